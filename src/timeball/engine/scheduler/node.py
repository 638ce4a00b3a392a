"""A scheduler node: its shards, promotion of due executions, tickets for a broker, and the housekeeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from timeball.brokers.base import Broker
from timeball.config.settings import HousekeepingSettings, SchedulerSettings
from timeball.domain.node import Node
from timeball.domain.wakeup import Wakeup
from timeball.engine.node import BaseNode
from timeball.engine.scheduler.housekeeping import Janitor, Reaper, RollupWriter
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.service import Service
from timeball.env import Env
from timeball.store.store import Store
from timeball.telemetry.events import Emit

if TYPE_CHECKING:
    from timeball.engine.scheduler.ticket_publisher import TicketPublisher


class SchedulerNode(BaseNode):
    """Owns shards, promotes what falls due in them, and keeps house if the first shard is its own."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        store: Store,
        node: Node,
        settings: SchedulerSettings,
        housekeeping: HousekeepingSettings,
        broker: Broker | None = None,
    ) -> None:
        super().__init__(env, emit, store, node)
        self.keeper = ShardBalancer(env, emit, store.nodes, node.incarnation, self._on_shards)
        self.scheduler = Scheduler(env, emit, store.executions, store.jobs, self.keeper, settings)
        self.reaper = Reaper(env, emit, store.nodes, store.executions, housekeeping, lambda: self.keeper.is_housekeeper)
        self.rollup_writer = RollupWriter(env, emit, store.rollups, housekeeping, lambda: self.keeper.is_housekeeper)
        self.janitor = Janitor(
            env, emit, store.history, store.retention, housekeeping, lambda: self.keeper.is_housekeeper
        )
        self.ticket_publisher: TicketPublisher | None = None
        if broker is not None and broker.carries_tickets:
            from timeball.engine.scheduler.ticket_publisher import TicketPublisher

            self.ticket_publisher = ticket_publisher = TicketPublisher(env, emit, store, broker, self.keeper)
            self.heartbeat.broker = lambda: ticket_publisher.watch.status

    def services(self) -> Sequence[Service]:
        dispatchers = () if self.ticket_publisher is None else (self.ticket_publisher,)
        return (self.keeper, self.scheduler, self.reaper, self.janitor, self.rollup_writer, *dispatchers)

    def on_wakeup(self, wakeup: Wakeup) -> None:
        self.scheduler.on_wakeup(wakeup)
        if self.ticket_publisher is not None:
            self.ticket_publisher.on_wakeup(wakeup)
        if wakeup.nodes_changed:
            self.keeper.wake()

    def _on_shards(self) -> None:
        self.scheduler.reload()
        self.janitor.wake()

    async def wind_down(self) -> int:
        """Promote nothing more; the shards are released together with the node's row."""
        self.scheduler.stop()
        self.keeper.stop()
        return 0
