"""Reads outgoing webhooks and their deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeball.domain.webhook import (
    DeliveryId,
    DeliveryState,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookId,
    format_delivery_id,
    format_webhook_id,
)
from timeball.errors import NotFound

if TYPE_CHECKING:
    from timeball.domain.search import PageRequest, ResultPage
    from timeball.store.store import Store


class WebhookQueries:
    """Reads webhooks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> list[WebhookEndpoint]:
        """All webhooks, in the order in which they were created."""
        return await self._store.webhooks.all()

    async def find(self, webhook_id: WebhookId) -> WebhookEndpoint:
        """One webhook; NotFound if there is none."""
        webhook = await self._store.webhooks.find(webhook_id)
        if webhook is None:
            raise NotFound("webhook", format_webhook_id(webhook_id))
        return webhook

    async def deliveries(
        self, webhook_id: WebhookId, request: PageRequest, state: DeliveryState | None = None
    ) -> ResultPage[WebhookDelivery]:
        """A page of the deliveries of a webhook, the latest first."""
        await self.find(webhook_id)
        return await self._store.webhooks.deliveries(webhook_id, state, request.limit, request.cursor)

    async def delivery(self, delivery_id: DeliveryId) -> WebhookDelivery:
        """One delivery with its attempts; NotFound if there is none."""
        delivery = await self._store.webhooks.find_delivery(delivery_id)
        if delivery is None:
            raise NotFound("delivery", format_delivery_id(delivery_id))
        return delivery
