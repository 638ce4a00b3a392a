"""Reads channels, their latest deliveries, and the routes of alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timeball.domain.alert_routes import AlertDeliveryId, AlertRoute
from timeball.domain.search import PageRequest, ResultPage
from timeball.domain.values.ids import parse_id
from timeball.errors import InvalidInput, NotFound, quote_text

if TYPE_CHECKING:
    from timeball.domain.channels import AlertChannel
    from timeball.store.alert_deliveries import AlertDelivery
    from timeball.store.store import Store


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel, the names of the routes that lead to it, and its latest delivery."""

    channel: AlertChannel
    routes: list[str]
    latest: AlertDelivery | None


class ChannelQueries:
    """Reads channels, deliveries and routes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, name: str) -> ChannelView:
        """A channel; NotFound if there is none."""
        return await self.view(await self._existing(name))

    async def _existing(self, name: str) -> AlertChannel:
        channel = None if "\0" in name else await self._store.channels.find(name)
        if channel is None:
            raise NotFound("channel", quote_text(name))
        return channel

    async def page(self, request: PageRequest) -> ResultPage[ChannelView]:
        """A page of channels, by name."""
        page = await self._store.channels.page(request.limit, request.cursor)
        routes = await self._store.channels.routes()
        return ResultPage([await self.view(channel, routes) for channel in page.items], page.next_cursor)

    async def view(self, channel: AlertChannel, routes: Sequence[AlertRoute] | None = None) -> ChannelView:
        """A channel with what is known about it."""
        known = await self._store.channels.routes() if routes is None else routes
        latest = await self._store.alert_deliveries.page(channel.name, 1, None)
        names = [route.name for route in known if channel.name in route.channels]
        return ChannelView(channel, names, latest.items[0] if latest.items else None)

    async def deliveries(self, name: str, request: PageRequest) -> ResultPage[AlertDelivery]:
        """A page of what was sent to a channel, the latest first."""
        channel = await self._existing(name)
        return await self._store.alert_deliveries.page(channel.name, request.limit, request.cursor)

    async def delivery(self, name: str, reference: str) -> AlertDelivery:
        """One delivery of a channel."""
        channel = await self._existing(name)
        try:
            delivery = await self._store.alert_deliveries.find(AlertDeliveryId(parse_id("ald", reference)))
        except InvalidInput:
            delivery = None
        if delivery is None or delivery.channel != channel.name:
            raise NotFound("delivery", quote_text(reference))
        return delivery

    async def routes(self) -> list[AlertRoute]:
        """Every route of alerts, by name."""
        return await self._store.channels.routes()

    async def route(self, name: str) -> AlertRoute:
        """A route of alerts; NotFound if there is none."""
        route = None if "\0" in name else await self._store.channels.find_route(name)
        if route is None:
            raise NotFound("alert route", quote_text(name))
        return route
