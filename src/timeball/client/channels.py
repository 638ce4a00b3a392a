"""`client.channels` and `client.alert_routes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from timeball.client.requests import (
    ApiRequest,
    ClientType,
    IterateMethod,
    Method,
    Page,
    Poll,
    Resource,
    WaitMethod,
    get,
    parse_list,
    parse_model,
    parse_nothing,
    parse_page,
    path_of,
    post,
)
from timeball.client.types import AlertDelivery, AlertRoute, Channel

_ENDS: Final = frozenset({"sent", "left_out", "failed"})


def search_channels(*, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Channel]]:
    """All channels."""
    return get("/channels", parse_page(Channel), limit=limit, cursor=cursor)


def fetch_channel(channel: str) -> ApiRequest[Channel]:
    """A channel by name."""
    return get(path_of("channels", channel), parse_model(Channel))


def create_channel(
    name: str,
    kind: Literal["webhook", "slack", "email", "pagerduty", "command"],
    settings: Mapping[str, Any],
    *,
    description: str | None = None,
) -> ApiRequest[Channel]:
    """Create a channel. A secret is named in its settings: `{"url": {"$secret": "SLACK_URL"}}`."""
    body = {"name": name, "kind": kind, "settings": dict(settings), "description": description}
    return ApiRequest("POST", "/channels", parse_model(Channel), body=body)


def update_channel(channel: str, version: int | None = None, **changes: Any) -> ApiRequest[Channel]:
    """Change the `description` or the `settings` of a channel; new settings replace all that are there."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest("PATCH", path_of("channels", channel), parse_model(Channel), body=changes, headers=headers)


def delete_channel(channel: str) -> ApiRequest[None]:
    """Delete a channel that no route leads to."""
    return ApiRequest("DELETE", path_of("channels", channel), parse_nothing)


def send_test(channel: str, reason: str | None = None) -> ApiRequest[AlertDelivery]:
    """Send a test to a channel; a worker delivers it."""
    return post(path_of("channels", channel, "test"), parse_model(AlertDelivery), {"reason": reason})


def search_deliveries(
    channel: str, *, limit: int | None = None, cursor: str | None = None
) -> ApiRequest[Page[AlertDelivery]]:
    """What was sent to a channel or waits to be, the latest first."""
    return get(path_of("channels", channel, "deliveries"), parse_page(AlertDelivery), limit=limit, cursor=cursor)


def fetch_delivery(channel: str, delivery: str) -> ApiRequest[AlertDelivery]:
    """A delivery by id."""
    return get(path_of("channels", channel, "deliveries", delivery), parse_model(AlertDelivery))


def wait_for_delivery(channel: str, delivery: str, timeout: float | None = None) -> Poll[AlertDelivery]:
    """Wait until a delivery was sent, left out or given up; ResultTimeout after *timeout* seconds."""
    return Poll(delivery, fetch_delivery(channel, delivery), lambda one: one.state in _ENDS, timeout)


class ChannelsApi(Resource[ClientType]):
    """Channels of alerts."""

    list = Method(search_channels)
    iterate = IterateMethod(search_channels)
    get = Method(fetch_channel)
    create = Method(create_channel)
    update = Method(update_channel)
    delete = Method(delete_channel)
    test = Method(send_test)
    deliveries = Method(search_deliveries)
    iterate_deliveries = IterateMethod(search_deliveries)
    delivery = Method(fetch_delivery)
    wait_for_delivery = WaitMethod(wait_for_delivery)


def list_alert_routes() -> ApiRequest[list[AlertRoute]]:
    """Every route of alerts, by name."""
    return get("/alert-routes", parse_list(AlertRoute))


def fetch_alert_route(route: str) -> ApiRequest[AlertRoute]:
    """A route of alerts by name."""
    return get(path_of("alert-routes", route), parse_model(AlertRoute))


def create_alert_route(name: str, channels: Sequence[str], **fields: Any) -> ApiRequest[AlertRoute]:
    """Create a route: `severity`, `queues`, `tags` and `jobs` narrow it down; `quiet_hours` and `repeat_every_seconds` say when."""
    body = {"name": name, "channels": [*channels], **fields}
    return ApiRequest("POST", "/alert-routes", parse_model(AlertRoute), body=body)


def update_alert_route(route: str, version: int | None = None, **changes: Any) -> ApiRequest[AlertRoute]:
    """Change the given fields of a route; a list replaces the whole list that is there."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest("PATCH", path_of("alert-routes", route), parse_model(AlertRoute), body=changes, headers=headers)


def delete_alert_route(route: str) -> ApiRequest[None]:
    """Delete a route of alerts."""
    return ApiRequest("DELETE", path_of("alert-routes", route), parse_nothing)


class AlertRoutesApi(Resource[ClientType]):
    """The routes of alerts to channels."""

    list = Method(list_alert_routes)
    get = Method(fetch_alert_route)
    create = Method(create_alert_route)
    update = Method(update_alert_route)
    delete = Method(delete_alert_route)
