"""Freezes: their list, the form that creates one, its end, and the lines that other pages show about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.freezes import freeze_document
from timeball.dashboard.context import PageContext, PageRouter, browser_zone, typed_instant, zone_label
from timeball.dashboard.formatting import frozen_words
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.domain.freeze import Afterwards, Freeze, FreezeScope
from timeball.domain.values.ids import format_job_id

router = PageRouter()

_SCOPES = (
    (FreezeScope.QUEUE, "A queue"),
    (FreezeScope.TAG, "A tag"),
    (FreezeScope.JOB, "A job"),
    (FreezeScope.INSTALLATION, "Everything"),
)
_BLANK = {"scope": FreezeScope.QUEUE.value, "queue": "", "tag": "", "job": ""}
_BLANK |= {"from": "", "until": "", "afterwards": Afterwards.SKIP.value, "reason": ""}
_MAX_SHOWN = 200


@router.get("/freezes")
async def list_freezes(context: PageContext) -> Response:
    """The freezes that hold now or are to come; or those that are over, the latest first."""
    is_past, now = context.query("past") == "yes", context.site.queries.now()
    kept = (await context.site.queries.freezes()).freezes
    freezes = [freeze for freeze in kept if (freeze.until_at <= now) is is_past]
    shown = (freezes[::-1] if is_past else freezes)[:_MAX_SHOWN]
    return context.page(
        "freezes.html",
        part="partials/freezes_list.html",
        rows=await freeze_rows(context, shown),
        is_past=is_past,
        left_out=len(freezes) - len(shown),
    )


@router.get("/freezes/new", Role.OPERATOR)
async def new_freeze_form(context: PageContext) -> Response:
    """An empty form, or one that a link has filled in with a queue, a tag or a job."""
    given = dict(context.request.query_params)
    scope = next((word.value for word, _ in _SCOPES if given.get(word)), _BLANK["scope"])
    return await _form(context, {"scope": scope} | given)


@router.post("/freezes", Role.OPERATOR)
async def create_freeze(context: PageContext) -> Response:
    """Create a freeze; what does not fit is said beside its field."""
    form = context.form
    scope = form.get("scope", "")
    body: dict[str, Any] = {"reason": form.get("reason") or None, "until": typed_instant(context, "until")}
    body |= {"from": start} if (start := typed_instant(context, "from")) else {}
    body |= {"afterwards": form["afterwards"]} if form.get("afterwards") else {}
    body |= {"everything": True} if scope == FreezeScope.INSTALLATION else {scope: form.get(scope, "").strip()}
    try:
        created = await context.api.post("freezes", body=body)
    except ApiProblem as problem:
        return await _form(context, form, problem)
    words = "It holds now." if created["state"] == "active" else "It has not begun yet."
    return context.go(context.site_url("/freezes"), f"The freeze is created. {words}")


@router.post("/freezes/{freeze}/end", Role.OPERATOR)
async def end_freeze(context: PageContext) -> Response:
    """End a freeze before its time: what it held back goes on."""
    await context.api.delete("freezes", context.path["freeze"], reason=context.form.get("reason"))
    return context.go(context.back("/freezes"), "The freeze is over; what it held back goes on.")


async def _form(context: PageContext, values: dict[str, str], problem: ApiProblem | None = None) -> Response:
    return context.page(
        "freeze_form.html",
        http_status=200 if problem is None else 422,
        values=_BLANK | values,
        scopes=_SCOPES,
        queues=sorted(queue["name"] for queue in await context.site.queries.queues()),
        afterwards=[(word.value, word.about) for word in Afterwards],
        zone=zone_label(browser_zone(context.request)),
        problem=problem,
        errors=field_errors(problem),
    )


async def freeze_rows(context: PageContext, freezes: Sequence[Freeze]) -> list[dict[str, Any]]:
    """Freezes as pages show them: what each holds by its name, and in a sentence."""
    now, zone = context.site.queries.now(), browser_zone(context.request)
    ids = [freeze.job_id for freeze in freezes if freeze.job_id is not None]
    names = await context.site.queries.jobs.names(ids) if ids else {}
    rows = []
    for freeze in freezes:
        name = freeze.target if freeze.job_id is None else names.get(freeze.job_id) or format_job_id(freeze.job_id)
        rows.append(
            freeze_document(freeze, now)
            | {
                "name": name,
                "href": _page_of(context, freeze),
                "words": frozen_words(freeze, name, zone),
            }
        )
    return rows


def _page_of(context: PageContext, freeze: Freeze) -> str:
    match freeze.scope:
        case FreezeScope.QUEUE:
            return context.url("/queues/one", name=freeze.target)
        case FreezeScope.TAG:
            return context.tag_url(freeze.target or "")
        case FreezeScope.JOB if freeze.job_id is not None:
            return context.site_url(f"/jobs/{format_job_id(freeze.job_id)}")
        case _:
            return context.site_url("/timeline")
