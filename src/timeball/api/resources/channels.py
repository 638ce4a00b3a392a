"""Channels of alerts with what was sent to them, and the routes that lead to them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import precondition_error
from timeball.api.models import FullList, PageOut, ReasonIn
from timeball.api.models.channels import (
    AlertDeliveryOut,
    AlertRouteIn,
    AlertRouteOut,
    AlertRoutePatch,
    ChannelIn,
    ChannelOut,
    ChannelPatch,
)
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, IfMatch, PageParams, parse_if_match
from timeball.api.responses import Document, json_response, page_document
from timeball.application.queries.channels import ChannelView
from timeball.domain.alert_routes import AlertRoute, format_alert_delivery_id
from timeball.domain.alerts import format_alert_id
from timeball.domain.values.ids import format_execution_id
from timeball.domain.values.redaction import redact
from timeball.errors import Conflict

router = APIRouter(prefix="/channels", tags=["alerts"])
routes_router = APIRouter(prefix="/alert-routes", tags=["alerts"])

ChannelRef = Annotated[str, Path(max_length=200, description="A channel's name.")]
DeliveryRef = Annotated[str, Path(max_length=200, description="A delivery's id.")]
RouteRef = Annotated[str, Path(max_length=200, description="A route's name.")]

_DELIVERY_EXAMPLE = {
    "id": "ald_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "channel": "on-call",
    "alert": "alr_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "event": "opened",
    "state": "sent",
    "sentence": "nightly-report has not succeeded for 27 h",
    "attempts": 1,
    "created_at": INSTANT_EXAMPLE,
    "next_at": None,
    "sent_at": INSTANT_EXAMPLE,
    "note": None,
    "error": None,
    "execution": EXECUTION_ID,
}
_TEST_EXAMPLE = _DELIVERY_EXAMPLE | {
    "alert": None,
    "event": "test",
    "state": "waiting",
    "sentence": None,
    "attempts": 0,
    "sent_at": None,
    "next_at": INSTANT_EXAMPLE,
}
_NEW_CHANNEL = {"name": "on-call", "kind": "slack", "settings": {"url": {"$secret": "SLACK_URL"}}}
_EXAMPLE = _NEW_CHANNEL | {
    "description": None,
    "secrets": ["SLACK_URL"],
    "bound_secrets_only": False,
    "routes": ["everything"],
    "latest_delivery": _DELIVERY_EXAMPLE,
    "version": 1,
    "created_at": INSTANT_EXAMPLE,
    "updated_at": INSTANT_EXAMPLE,
}
_NIGHT = {"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"]}
_NEW_ROUTE = {"name": "everything", "channels": ["on-call"], "quiet_hours": [_NIGHT], "repeat_every_seconds": 14_400}
_ROUTE_EXAMPLE = _NEW_ROUTE | {
    "description": None,
    "severity": "warning",
    "queues": [],
    "tags": [],
    "jobs": [],
    "version": 1,
    "created_at": INSTANT_EXAMPLE,
    "updated_at": INSTANT_EXAMPLE,
}


@router.get("", response_model=PageOut[ChannelOut], **route_options(Role.VIEWER, page_example(_EXAMPLE)))
async def list_channels(context: Context, page: PageParams) -> Response:
    """List channels by name."""
    return json_response(page_document(await context.queries.channels.page(page), page, channel_document))


@router.post(
    "",
    response_model=ChannelOut,
    **route_options(
        Role.EDITOR,
        _EXAMPLE | {"latest_delivery": None, "routes": []},
        status=201,
        request=_NEW_CHANNEL,
        has_body=True,
        fails=[409],
    ),
)
async def create_channel(
    body: ChannelIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a channel. Its settings are checked; whether a message arrives, its test tells.

    A secret is named in the settings and set on the workers. Only an administrator may write a channel of the kind `command`,
    or one whose secrets are not bound to its host.
    """
    channel = await context.commands.channels.create(
        body.name, body.kind, body.settings, body.description, caller.as_actor()
    )
    view = await context.queries.channels.view(channel)
    location = {"Location": f"/api/v1/channels/{quote(channel.name, safe='')}"}
    return json_response(channel_document(view), 201, _etag(channel.version) | location)


@router.get("/{channel}", response_model=ChannelOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_channel(channel: ChannelRef, context: Context) -> Response:
    """One channel. Its ETag is its version."""
    view = await context.queries.channels.find(channel)
    return json_response(channel_document(view), headers=_etag(view.channel.version))


_CHANGE: dict[str, Any] = route_options(
    Role.EDITOR, _EXAMPLE, request={"description": "who is on call"}, has_body=True, fails=[404, 409, 412]
)


@router.put("/{channel}", response_model=ChannelOut, **_CHANGE)
async def replace_channel(
    channel: ChannelRef, body: ChannelPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; the same as PATCH."""
    return await _change(channel, body, context, caller, if_match)


@router.patch("/{channel}", response_model=ChannelOut, **_CHANGE)
async def change_channel(
    channel: ChannelRef, body: ChannelPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields. What waits to be sent goes by the new settings."""
    return await _change(channel, body, context, caller, if_match)


async def _change(name: str, body: ChannelPatch, context: ApiContext, caller: Caller, if_match: str | None) -> Response:
    expected = parse_if_match(if_match)
    try:
        changed = await context.commands.channels.update(name, _given(body), caller.as_actor(), expected)
    except Conflict as error:
        raise precondition_error(error) from error
    view = await context.queries.channels.view(changed)
    return json_response(channel_document(view), headers=_etag(changed.version))


@router.delete(
    "/{channel}", response_class=Response, **route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])
)
async def delete_channel(
    channel: ChannelRef, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Delete a channel that no route leads to; otherwise 409 names the routes. What waits to be sent to it is left out."""
    try:
        await context.commands.channels.delete(channel, caller.as_actor(), parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    return Response(status_code=204)


@router.post(
    "/{channel}/test",
    response_model=AlertDeliveryOut,
    **route_options(
        Role.OPERATOR, _TEST_EXAMPLE, status=201, request={"reason": "a new phone"}, has_body=True, fails=[404]
    ),
)
async def send_test(
    channel: ChannelRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send a test. A worker makes the delivery, once; it is read at `deliveries/{delivery}`, where its error is if it fails."""
    delivery_id = await context.commands.channels.test(channel, caller.as_actor((body or ReasonIn()).reason))
    delivery = await context.queries.channels.delivery(channel, format_alert_delivery_id(delivery_id))
    return json_response(delivery_document(delivery), 201)


@router.get(
    "/{channel}/deliveries",
    response_model=PageOut[AlertDeliveryOut],
    **route_options(Role.VIEWER, page_example(_DELIVERY_EXAMPLE), fails=[404]),
)
async def list_deliveries(channel: ChannelRef, context: Context, page: PageParams) -> Response:
    """What was sent to a channel or waits to be, the latest first, as long as the history is kept."""
    deliveries = await context.queries.channels.deliveries(channel, page)
    return json_response(page_document(deliveries, page, delivery_document))


@router.get(
    "/{channel}/deliveries/{delivery}",
    response_model=AlertDeliveryOut,
    **route_options(Role.VIEWER, _DELIVERY_EXAMPLE, fails=[404]),
)
async def get_delivery(channel: ChannelRef, delivery: DeliveryRef, context: Context) -> Response:
    """One delivery."""
    return json_response(delivery_document(await context.queries.channels.delivery(channel, delivery)))


# Routes of alerts.


@routes_router.get("", response_model=FullList[AlertRouteOut], **route_options(Role.VIEWER, {"data": [_ROUTE_EXAMPLE]}))
async def list_alert_routes(context: Context) -> Response:
    """Every route, by name."""
    return json_response({"data": [route_document(route) for route in await context.queries.channels.routes()]})


@routes_router.post(
    "",
    response_model=AlertRouteOut,
    **route_options(Role.EDITOR, _ROUTE_EXAMPLE, status=201, request=_NEW_ROUTE, has_body=True, fails=[409]),
)
async def create_alert_route(
    body: AlertRouteIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a route. Alerts that are open already take it when they change, or when they are told again."""
    route = await context.commands.alert_routes.create(_given(body), caller.as_actor())
    location = {"Location": f"/api/v1/alert-routes/{quote(route.name, safe='')}"}
    return json_response(route_document(route), 201, _etag(route.version) | location)


@routes_router.get("/{route}", response_model=AlertRouteOut, **route_options(Role.VIEWER, _ROUTE_EXAMPLE, fails=[404]))
async def get_alert_route(route: RouteRef, context: Context) -> Response:
    """One route. Its ETag is its version."""
    target = await context.queries.channels.route(route)
    return json_response(route_document(target), headers=_etag(target.version))


_CHANGE_ROUTE: dict[str, Any] = route_options(
    Role.EDITOR, _ROUTE_EXAMPLE, request={"severity": "critical"}, has_body=True, fails=[404, 409, 412]
)


@routes_router.put("/{route}", response_model=AlertRouteOut, **_CHANGE_ROUTE)
async def replace_alert_route(
    route: RouteRef, body: AlertRoutePatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; the same as PATCH."""
    return await _change_route(route, body, context, caller, if_match)


@routes_router.patch("/{route}", response_model=AlertRouteOut, **_CHANGE_ROUTE)
async def change_alert_route(
    route: RouteRef, body: AlertRoutePatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields. What waits to be sent is asked again when it is due."""
    return await _change_route(route, body, context, caller, if_match)


async def _change_route(
    name: str, body: AlertRoutePatch, context: ApiContext, caller: Caller, if_match: str | None
) -> Response:
    expected = parse_if_match(if_match)
    try:
        changed = await context.commands.alert_routes.update(name, _given(body), caller.as_actor(), expected)
    except Conflict as error:
        raise precondition_error(error) from error
    return json_response(route_document(changed), headers=_etag(changed.version))


@routes_router.delete(
    "/{route}", response_class=Response, **route_options(Role.EDITOR, None, status=204, fails=[404, 412])
)
async def delete_alert_route(
    route: RouteRef, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Delete a route. What waits to be sent because of it is left out, unless another route leads there."""
    try:
        await context.commands.alert_routes.delete(route, caller.as_actor(), parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    return Response(status_code=204)


def _given(body: BaseModel) -> dict[str, Any]:
    """The fields that the caller has named, as JSON has them."""
    return body.model_dump(include=body.model_fields_set, by_alias=True, exclude_unset=True)


def _etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def channel_document(view: ChannelView) -> Document:
    """A channel, the routes that lead to it, and its latest delivery."""
    channel = view.channel
    return {
        "name": channel.name,
        "kind": channel.kind.value,
        "settings": redact(dict(channel.settings)),
        "description": channel.description,
        "secrets": list(channel.secrets),
        "bound_secrets_only": channel.bound_secrets_only,
        "routes": view.routes,
        "latest_delivery": None if view.latest is None else delivery_document(view.latest),
        "version": channel.version,
        "created_at": channel.created_at,
        "updated_at": channel.updated_at,
    }


def delivery_document(delivery: Any) -> Document:
    """A delivery, and where it is."""
    return {
        "id": format_alert_delivery_id(delivery.id),
        "channel": delivery.channel,
        "alert": None if delivery.alert_id is None else format_alert_id(delivery.alert_id),
        "event": delivery.event.value,
        "state": delivery.state.value,
        "sentence": delivery.sentence,
        "attempts": delivery.attempts,
        "created_at": delivery.created_at,
        "next_at": delivery.next_at,
        "sent_at": delivery.sent_at,
        "note": delivery.note,
        "error": delivery.error,
        "execution": format_execution_id(delivery.id),
    }


def route_document(route: AlertRoute) -> Document:
    """A route of alerts."""
    times = {"version": route.version, "created_at": route.created_at, "updated_at": route.updated_at}
    return route.as_fields() | times
