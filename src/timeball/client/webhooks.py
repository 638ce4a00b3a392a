"""`client.webhooks`: the addresses that events are sent to, and what became of each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from timeball.client.requests import (
    ApiRequest,
    ClientType,
    IterateMethod,
    Method,
    Page,
    Resource,
    get,
    parse_list,
    parse_model,
    parse_nothing,
    parse_page,
    path_of,
    post,
)
from timeball.client.types import CreatedWebhook, Delivery, DeliveryDetails, Webhook


def list_webhooks() -> ApiRequest[list[Webhook]]:
    """All webhooks, in the order in which they were created."""
    return get("/webhooks", parse_list(Webhook))


def fetch_webhook(webhook: str) -> ApiRequest[Webhook]:
    """One webhook."""
    return get(path_of("webhooks", webhook), parse_model(Webhook))


def create_webhook(
    url: str,
    events: Sequence[str] = (),
    *,
    queue: str | None = None,
    job: str | None = None,
    handler: str | None = None,
    tag: str | None = None,
    format: Literal["standard", "cloudevents"] | None = None,
    description: str | None = None,
    secret: str | None = None,
) -> ApiRequest[CreatedWebhook]:
    """Send events to an address from now on. The result has the secret that signs them, which cannot be read again."""
    body = {
        "url": url,
        "events": list(events),
        "queue": queue,
        "job": job,
        "handler": handler,
        "tag": tag,
        "format": format,
        "description": description,
        "secret": secret,
    }
    return post("/webhooks", parse_model(CreatedWebhook), body)


def update_webhook(webhook: str, version: int | None = None, **changes: Any) -> ApiRequest[Webhook]:
    """Change the given fields; `state="disabled"` and `state="active"` switch it off and on."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest("PATCH", path_of("webhooks", webhook), parse_model(Webhook), body=changes, headers=headers)


def delete_webhook(webhook: str) -> ApiRequest[None]:
    """Delete a webhook with its deliveries; what waits is not sent."""
    return ApiRequest("DELETE", path_of("webhooks", webhook), parse_nothing)


def rotate_webhook(webhook: str, keep: str | None = None, *, secret: str | None = None) -> ApiRequest[CreatedWebhook]:
    """Sign by a new secret; for *keep* (24 hours, unless given) the present one signs, too."""
    return post(path_of("webhooks", webhook, "rotate"), parse_model(CreatedWebhook), {"keep": keep, "secret": secret})


def try_webhook(webhook: str, reason: str | None = None) -> ApiRequest[DeliveryDetails]:
    """Send an event of type `webhook.test`; the delivery tells what becomes of it."""
    return post(path_of("webhooks", webhook, "test"), parse_model(DeliveryDetails), {"reason": reason})


def search_deliveries(
    webhook: str,
    *,
    state: Literal["pending", "delivered", "failed"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ApiRequest[Page[Delivery]]:
    """The deliveries of a webhook, the latest first."""
    path = path_of("webhooks", webhook, "deliveries")
    return get(path, parse_page(Delivery), state=state, limit=limit, cursor=cursor)


def fetch_delivery(delivery: str) -> ApiRequest[DeliveryDetails]:
    """One delivery with its body and its last attempts."""
    return get(path_of("webhooks", "deliveries", delivery), parse_model(DeliveryDetails))


def redeliver(delivery: str, reason: str | None = None) -> ApiRequest[DeliveryDetails]:
    """Send a message again, with the same id and body; or now, if it waits for its next attempt."""
    return post(
        path_of("webhooks", "deliveries", delivery, "redeliver"), parse_model(DeliveryDetails), {"reason": reason}
    )


class WebhooksApi(Resource[ClientType]):
    """Outgoing webhooks."""

    list = Method(list_webhooks)
    get = Method(fetch_webhook)
    create = Method(create_webhook)
    update = Method(update_webhook)
    delete = Method(delete_webhook)
    rotate = Method(rotate_webhook)
    test = Method(try_webhook)
    deliveries = Method(search_deliveries)
    iterate_deliveries = IterateMethod(search_deliveries)
    delivery = Method(fetch_delivery)
    redeliver = Method(redeliver)
