"""Outgoing webhooks: their list, one with its deliveries, one delivery, the forms, and the secret that is shown once."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.webhooks import delivery_details, delivery_document, webhook_document
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.domain.webhook import (
    WEBHOOK_EVENT_TYPES,
    DeliveryState,
    parse_delivery_id,
    parse_webhook_id,
)

router = PageRouter()

_PAGE = 50
_TEXTS = ("url", "queue", "job", "handler", "tag", "description")
_BLANK = dict.fromkeys(_TEXTS, "") | {"format": "standard"}


@router.get("/webhooks")
async def list_webhooks(context: PageContext) -> Response:
    """All webhooks."""
    rows = [webhook_document(one) for one in await context.site.queries.webhooks.list()]
    return context.page("webhooks.html", part="partials/webhooks_list.html", rows=rows)


@router.get("/webhooks/new", Role.EDITOR)
async def new_webhook_form(context: PageContext) -> Response:
    """The form of a new webhook."""
    return _form(context, None, {}, [])


@router.post("/webhooks", Role.EDITOR)
async def create_webhook(context: PageContext) -> Response:
    """Create a webhook, and show its secret once."""
    try:
        created = await context.api.post("webhooks", body=_body(context))
    except ApiProblem as problem:
        return _form(context, None, context.form, context.form_list("events"), problem)
    return _secret_page(context, created)


@router.get("/webhooks/{webhook}")
async def webhook_page(context: PageContext) -> Response:
    """One webhook with its deliveries, the latest first."""
    queries, webhook_id = context.site.queries, parse_webhook_id(context.path["webhook"])
    word = context.query("state")
    state = DeliveryState(word) if word in [*DeliveryState] else None
    webhook = await queries.webhooks.find(webhook_id)
    page = await queries.webhooks.deliveries(webhook_id, context.page_request(_PAGE), state)
    job_id = webhook.spec.filter.job_id
    names = {} if job_id is None else await queries.jobs.names([job_id])
    return context.page(
        "webhook.html",
        part="partials/webhook_deliveries.html",
        webhook=webhook_document(webhook),
        job_name=None if job_id is None else names.get(job_id),
        subject=f"webhook:{webhook_id}",
        rows=[_row(context, delivery_document(delivery)) for delivery in page.items],
        page=page,
        state=word,
        states=[each.value for each in DeliveryState],
    )


@router.get("/webhooks/{webhook}/edit", Role.EDITOR)
async def edit_webhook_form(context: PageContext) -> Response:
    """The form of a webhook."""
    webhook = await _read(context)
    values = {name: webhook.get(name) or "" for name in _TEXTS} | {
        "format": webhook["format"],
        "job": webhook["job_id"] or "",
    }
    return _form(context, webhook, values, webhook["events"])


@router.post("/webhooks/{webhook}/edit", Role.EDITOR)
async def change_webhook(context: PageContext) -> Response:
    """Change a webhook, if it still has the version that the form was opened with."""
    webhook = await _read(context)
    body = _body(context)
    if body["url"] == webhook["url"]:
        # It may be shown with hidden values, which stay as they are.
        del body["url"]
    version = context.form.get("version", "")
    try:
        expected = int(version) if version.isascii() and version.isdecimal() else webhook["version"]
        await context.api.change("webhooks", webhook["id"], body=body, version=expected)
    except ApiProblem as problem:
        return _form(context, webhook, context.form, context.form_list("events"), problem)
    return context.go(context.site_url(f"/webhooks/{webhook['id']}"), "Saved.")


@router.post("/webhooks/{webhook}/switch", Role.EDITOR)
async def switch_webhook(context: PageContext) -> Response:
    """Disable a webhook, or enable it again."""
    state = "active" if context.form.get("state") == "active" else "disabled"
    body = {"state": state, "reason": context.form.get("reason") or None}
    await context.api.change("webhooks", context.path["webhook"], body=body)
    words = "It gets events from now on, and what waited." if state == "active" else "It gets no events any more."
    return context.go(context.site_url(f"/webhooks/{context.path['webhook']}"), words)


@router.post("/webhooks/{webhook}/rotate", Role.EDITOR)
async def rotate_secret(context: PageContext) -> Response:
    """Sign by a new secret, and show it once; the present one signs, too, for a day."""
    return _secret_page(context, await context.api.post("webhooks", context.path["webhook"], "rotate"))


@router.post("/webhooks/{webhook}/test", Role.OPERATOR)
async def try_webhook(context: PageContext) -> Response:
    """Send a test, and show what becomes of it."""
    delivery = await context.api.post("webhooks", context.path["webhook"], "test")
    return context.go(context.site_url(f"/webhooks/deliveries/{delivery['id']}"), "The test is on its way.")


@router.post("/webhooks/{webhook}/delete", Role.EDITOR)
async def delete_webhook(context: PageContext) -> Response:
    """Delete a webhook with its deliveries."""
    await context.api.delete("webhooks", context.path["webhook"])
    return context.go(context.site_url("/webhooks"), "The webhook is deleted.")


@router.get("/webhooks/deliveries/{delivery}")
async def delivery_page(context: PageContext) -> Response:
    """One delivery: what is sent, and what was answered."""
    delivery = await context.site.queries.webhooks.delivery(parse_delivery_id(context.path["delivery"]))
    webhook = await context.site.queries.webhooks.find(delivery.webhook_id)
    return context.page(
        "webhook_delivery.html",
        part="partials/webhook_delivery.html",
        delivery=_row(context, delivery_details(delivery)),
        webhook=webhook_document(webhook),
    )


@router.post("/webhooks/deliveries/{delivery}/redeliver", Role.OPERATOR)
async def redeliver(context: PageContext) -> Response:
    """Send a message again."""
    delivery = await context.api.post("webhooks", "deliveries", context.path["delivery"], "redeliver")
    return context.go(context.back(f"/webhooks/deliveries/{delivery['id']}"), "It is sent again, with the same id.")


def _row(context: PageContext, delivery: dict[str, Any]) -> dict[str, Any]:
    kind = {"exe_": "execution", "job_": "job"}.get(delivery["subject"][:4])
    target = None if kind is None else f"/{kind}s/{delivery['subject']}"
    return delivery | {"href": None if target is None else context.site_url(target)}


def _secret_page(context: PageContext, webhook: dict[str, Any]) -> Response:
    # Nothing of the page is fetched again: the secret would be gone before it is copied.
    context.is_static = True
    return context.page("webhook_secret.html", webhook=webhook)


def _body(context: PageContext) -> dict[str, Any]:
    form = context.form
    texts: dict[str, Any] = {name: form.get(name, "").strip() or None for name in _TEXTS}
    return texts | {
        "url": form.get("url", "").strip(),
        "format": form.get("format", "standard"),
        "events": context.form_list("events"),
    }


def _form(
    context: PageContext,
    webhook: dict[str, Any] | None,
    values: dict[str, str],
    events: list[str],
    problem: ApiProblem | None = None,
) -> Response:
    groups = [event for event in events if event not in WEBHOOK_EVENT_TYPES]
    return context.page(
        "webhook_form.html",
        http_status=200 if problem is None else 422,
        webhook=webhook,
        values=_BLANK | values,
        events=events,
        types=[*WEBHOOK_EVENT_TYPES.items(), *((group, "all of this group") for group in groups)],
        problem=problem,
        errors=field_errors(problem),
    )


async def _read(context: PageContext) -> dict[str, Any]:
    return webhook_document(await context.site.queries.webhooks.find(parse_webhook_id(context.path["webhook"])))
