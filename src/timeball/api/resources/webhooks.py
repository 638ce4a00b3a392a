"""Routes of outgoing webhooks: where events are sent to, and what became of each message."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import precondition_error
from timeball.api.models import FullList, PageOut, ReasonIn
from timeball.api.models.webhooks import (
    DeliveryFull,
    DeliveryOut,
    RotateIn,
    WebhookIn,
    WebhookOut,
    WebhookPatch,
    WebhookWithSecret,
)
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, page_example, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, IfMatch, PageParams, parse_if_match
from timeball.api.responses import Document, json_response, page_document
from timeball.application.commands.webhooks import NewSecret
from timeball.domain.change_event import EventFilter
from timeball.domain.values.ids import JobId, format_id, format_job_id
from timeball.domain.values.redaction import redact
from timeball.domain.values.wording import parse_duration
from timeball.domain.webhook import (
    DeliveryState,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookFormat,
    WebhookSpec,
    format_delivery_id,
    format_webhook_id,
    parse_delivery_id,
    parse_webhook_id,
)
from timeball.errors import Conflict

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

WebhookRef = Annotated[str, Path(max_length=200, description="A webhook's id.")]
DeliveryRef = Annotated[str, Path(max_length=200, description="A delivery's id.")]

WEBHOOK_ID = "whk_01JCV3V1KC8M2T4QZ5R7N9X0AB"
_DELIVERY_ID = "dlv_01JCV3V1KC8M2T4QZ5R7N9X0AB"
_MESSAGE_ID = "evt_01JCV3V1KC8M2T4QZ5R7N9X0AB"
_EXAMPLE = {
    "id": WEBHOOK_ID,
    "url": "https://example.com/hooks/timeball",
    "events": ["execution.dead", "execution.retrying"],
    "queue": "billing",
    "job_id": None,
    "handler": None,
    "tag": None,
    "format": "standard",
    "description": "Tells the team of billing",
    "state": "active",
    "disabled_reason": None,
    "waiting": 0,
    "failing_since": None,
    "succeeded_at": INSTANT_EXAMPLE,
    "rotation_until": None,
    "version": 1,
    "created_by": "key:4c1a9d02b7e1 deploy",
    "created_at": INSTANT_EXAMPLE,
    "updated_at": INSTANT_EXAMPLE,
}
_SECRET_EXAMPLE = _EXAMPLE | {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
_DELIVERY_EXAMPLE = {
    "id": _DELIVERY_ID,
    "webhook_id": WEBHOOK_ID,
    "message_id": _MESSAGE_ID,
    "type": "execution.dead",
    "subject": EXECUTION_ID,
    "occurred_at": INSTANT_EXAMPLE,
    "state": "delivered",
    "attempts": 1,
    "status": 204,
    "error": None,
    "next_at": None,
    "created_at": INSTANT_EXAMPLE,
    "finished_at": INSTANT_EXAMPLE,
}
_FULL_EXAMPLE = _DELIVERY_EXAMPLE | {
    "body": {
        "type": "execution.dead",
        "timestamp": INSTANT_EXAMPLE,
        "data": {
            "subject": EXECUTION_ID,
            "job_id": JOB_ID,
            "queue": "billing",
            "handler": "http.webhook",
            "attempt": 3,
        },
    },
    "tries": [{"at": INSTANT_EXAMPLE, "status": 204, "error": None, "duration_ms": 41}],
}


@router.get("", response_model=FullList[WebhookOut], **route_options(Role.VIEWER, {"data": [_EXAMPLE]}))
async def list_webhooks(context: Context) -> Response:
    """All webhooks, in the order in which they were created."""
    return json_response({"data": [webhook_document(one) for one in await context.queries.webhooks.list()]})


@router.post(
    "",
    response_model=WebhookWithSecret,
    **route_options(
        Role.EDITOR,
        _SECRET_EXAMPLE,
        status=201,
        request={"url": "https://example.com/hooks/timeball", "events": ["execution.dead"], "queue": "billing"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def create_webhook(
    request: Request,
    body: WebhookIn,
    context: Context,
    caller: CurrentCaller,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send events to an address from now on, signed by Standard Webhooks. The secret is shown in this response, and never again.

    A repetition under the same Idempotency-Key shows the webhook without its secret.
    """
    fields = {name: getattr(body, name) for name in WebhookIn.model_fields}
    spec = WebhookSpec(
        url=body.url,
        filter=EventFilter(**await _filter_fields(fields, context)),
        format=WebhookFormat(body.format),
        description=body.description,
    )
    created = await context.commands.webhooks.create(spec, body.secret, caller.as_actor(), caller.idempotency)
    location = {"Location": f"/api/v1/webhooks/{format_webhook_id(created.webhook.id)}"}
    return _secret_response(request, created, 201, location)


@router.get("/{webhook}", response_model=WebhookOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_webhook(webhook: WebhookRef, context: Context) -> Response:
    """One webhook. Its ETag is its version."""
    return _webhook_response(await context.queries.webhooks.find(parse_webhook_id(webhook)))


_CHANGE: dict[str, Any] = route_options(
    Role.EDITOR, _EXAMPLE, request={"events": ["execution.*"]}, has_body=True, fails=[404, 409, 412]
)


@router.put("/{webhook}", response_model=WebhookOut, **_CHANGE)
async def replace_webhook(
    webhook: WebhookRef, body: WebhookPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; the same as PATCH."""
    return await _change(webhook, body, context, caller, if_match)


@router.patch("/{webhook}", response_model=WebhookOut, **_CHANGE)
async def change_webhook(
    webhook: WebhookRef, body: WebhookPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields, or disable and enable it. Messages that wait go to the new address, with the body they have."""
    return await _change(webhook, body, context, caller, if_match)


async def _change(
    webhook: str, body: WebhookPatch, context: ApiContext, caller: Caller, if_match: str | None
) -> Response:
    fields = {name: getattr(body, name) for name in body.model_fields_set if name != "reason"}
    changes = await _filter_fields(fields, context)
    changes |= {name: fields[name] for name in ("url", "description", "state") if name in fields}
    if "format" in fields:
        changes["format"] = WebhookFormat(fields["format"])
    try:
        changed = await context.commands.webhooks.update(
            parse_webhook_id(webhook), changes, caller.as_actor(body.reason), parse_if_match(if_match)
        )
    except Conflict as error:
        raise precondition_error(error) from error
    return _webhook_response(changed)


@router.delete(
    "/{webhook}", response_class=Response, **route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])
)
async def delete_webhook(
    webhook: WebhookRef, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Delete a webhook with its deliveries; what waits is not sent."""
    try:
        await context.commands.webhooks.delete(parse_webhook_id(webhook), caller.as_actor(), parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    return Response(status_code=204)


@router.post(
    "/{webhook}/rotate",
    response_model=WebhookWithSecret,
    **route_options(Role.EDITOR, _SECRET_EXAMPLE, request={"keep": "24h"}, has_body=True, fails=[404, 409, 412]),
)
async def rotate_webhook_secret(
    request: Request,
    webhook: WebhookRef,
    body: RotateIn,
    context: Context,
    caller: CurrentCaller,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Sign by a new secret, which is shown in this response and never again; for a while the present one signs, too."""
    try:
        rotated = await context.commands.webhooks.rotate(
            parse_webhook_id(webhook),
            body.secret,
            parse_duration(body.keep, "keep"),
            caller.as_actor(),
            parse_if_match(if_match),
        )
    except Conflict as error:
        raise precondition_error(error) from error
    return _secret_response(request, rotated)


@router.post(
    "/{webhook}/test",
    response_model=DeliveryFull,
    **route_options(
        Role.OPERATOR,
        _FULL_EXAMPLE | {"type": "webhook.test", "state": "pending", "attempts": 0, "tries": []},
        status=202,
        request={"reason": "the address has moved"},
        has_body=True,
        fails=[404],
    ),
)
async def try_webhook(
    webhook: WebhookRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send an event of type `webhook.test`, once, also to a webhook that is disabled. The delivery tells what became of it."""
    delivery = await context.commands.webhooks.test(
        parse_webhook_id(webhook), caller.as_actor((body or ReasonIn()).reason)
    )
    return json_response(delivery_details(delivery), 202)


@router.get(
    "/{webhook}/deliveries",
    response_model=PageOut[DeliveryOut],
    **route_options(Role.VIEWER, page_example(_DELIVERY_EXAMPLE), fails=[404]),
)
async def list_deliveries(
    webhook: WebhookRef,
    context: Context,
    page: PageParams,
    state: Annotated[
        Literal["pending", "delivered", "failed"] | None, Query(description="Only deliveries in this state.")
    ] = None,
) -> Response:
    """The deliveries of a webhook, the latest first; they are kept for seven days."""
    chosen = None if state is None else DeliveryState(state)
    deliveries = await context.queries.webhooks.deliveries(parse_webhook_id(webhook), page, chosen)
    return json_response(page_document(deliveries, page, delivery_document))


@router.get(
    "/deliveries/{delivery}", response_model=DeliveryFull, **route_options(Role.VIEWER, _FULL_EXAMPLE, fails=[404])
)
async def get_delivery(delivery: DeliveryRef, context: Context) -> Response:
    """One delivery with its body and its last attempts."""
    return json_response(delivery_details(await context.queries.webhooks.delivery(parse_delivery_id(delivery))))


@router.post(
    "/deliveries/{delivery}/redeliver",
    response_model=DeliveryFull,
    **route_options(
        Role.OPERATOR,
        _FULL_EXAMPLE | {"state": "pending", "attempts": 0, "next_at": INSTANT_EXAMPLE, "finished_at": None},
        status=202,
        request={"reason": "the receiver had lost it"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def redeliver(
    delivery: DeliveryRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send a message again, with the same id and body; or now, if it waits for its next attempt."""
    again = await context.commands.webhooks.redeliver(
        parse_delivery_id(delivery), caller.as_actor((body or ReasonIn()).reason)
    )
    return json_response(delivery_details(again), 202)


async def _filter_fields(fields: Document, context: ApiContext) -> Document:
    """Those of the given fields that are part of the filter, as `EventFilter` takes them."""
    chosen: Document = {name: fields[name] for name in ("queue", "handler", "tag") if name in fields}
    if "events" in fields:
        chosen["types"] = tuple(fields["events"])
    if "job" in fields:
        chosen["job_id"] = await _job_id(fields["job"], context)
    return chosen


async def _job_id(job: str | None, context: ApiContext) -> JobId | None:
    return None if job is None else (await context.queries.jobs.find(job)).id


def _webhook_response(webhook: WebhookEndpoint) -> Response:
    return json_response(webhook_document(webhook), headers=_etag(webhook))


def _secret_response(
    request: Request, created: NewSecret, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    # What is stored under the Idempotency-Key of the request is stored without it.
    request.state.shows_secret = True
    document = webhook_document(created.webhook) | {"secret": created.secret}
    return json_response(document, status, _etag(created.webhook) | (headers or {}))


def _etag(webhook: WebhookEndpoint) -> dict[str, str]:
    return {"ETag": f'"{webhook.version}"'}


def webhook_document(webhook: WebhookEndpoint) -> Document:
    """A webhook, without its secrets."""
    spec = webhook.spec
    return {
        "id": format_webhook_id(webhook.id),
        "url": redact(spec.url),
        "events": list(spec.filter.types),
        "queue": spec.filter.queue,
        "job_id": None if spec.filter.job_id is None else format_job_id(spec.filter.job_id),
        "handler": spec.filter.handler,
        "tag": spec.filter.tag,
        "format": spec.format.value,
        "description": spec.description,
        "state": webhook.state.value,
        "disabled_reason": webhook.disabled_reason,
        "waiting": webhook.waiting,
        "failing_since": webhook.failing_since,
        "succeeded_at": webhook.succeeded_at,
        "rotation_until": webhook.previous_until,
        "version": webhook.version,
        "created_by": webhook.created_by,
        "created_at": webhook.created_at,
        "updated_at": webhook.updated_at,
    }


def delivery_document(delivery: WebhookDelivery) -> Document:
    """A delivery, with the answer to its last attempt."""
    last = delivery.tries[-1] if delivery.tries else None
    return {
        "id": format_delivery_id(delivery.id),
        "webhook_id": format_webhook_id(delivery.webhook_id),
        "message_id": format_id("evt", delivery.event_id),
        "type": delivery.type,
        "subject": delivery.subject,
        "occurred_at": delivery.occurred_at,
        "state": delivery.state.value,
        "attempts": delivery.attempts,
        "status": None if last is None else last.status,
        "error": None if last is None else last.error,
        "next_at": delivery.next_at,
        "created_at": delivery.created_at,
        "finished_at": delivery.finished_at,
    }


def delivery_details(delivery: WebhookDelivery) -> Document:
    """A delivery with its body and its last attempts."""
    tries = [
        {"at": one.at, "status": one.status, "error": one.error, "duration_ms": one.duration_ms}
        for one in delivery.tries
    ]
    return delivery_document(delivery) | {"body": orjson.loads(delivery.body), "tries": tries}
