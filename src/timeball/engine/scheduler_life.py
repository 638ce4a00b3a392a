"""The life of a scheduler: its share of the shards, hoisting, tickets for a broker, and the housekeeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from timeball.broker.interface import Broker
from timeball.domain.events import Emit
from timeball.domain.hints import Hints
from timeball.domain.node import Node
from timeball.engine.bookkeeper import Bookkeeper
from timeball.engine.janitor import Janitor
from timeball.engine.life import Life
from timeball.engine.reaper import Reaper
from timeball.engine.scheduler import Scheduler
from timeball.engine.service import Service
from timeball.engine.shards import ShardKeeper
from timeball.env import Env
from timeball.settings import HousekeepingSettings, SchedulerSettings
from timeball.store.interface import Store

if TYPE_CHECKING:
    from timeball.engine.dispatcher import Dispatcher


class SchedulerLife(Life):
    """Owns shards, hoists what falls due in them, and keeps house if the first shard is its own."""

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
        self.keeper = ShardKeeper(env, emit, store.nodes, node.incarnation, self._on_shards)
        self.scheduler = Scheduler(env, emit, store.rooms, store.jobs, self.keeper, settings)
        self.reaper = Reaper(env, emit, store.nodes, store.rooms, housekeeping, lambda: self.keeper.is_housekeeper)
        self.bookkeeper = Bookkeeper(env, emit, store.rollups, housekeeping, lambda: self.keeper.is_housekeeper)
        self.janitor = Janitor(
            env, emit, store.history, store.retention, housekeeping, lambda: self.keeper.is_housekeeper
        )
        self.dispatcher: Dispatcher | None = None
        if broker is not None and broker.carries_tickets:
            from timeball.engine.dispatcher import Dispatcher

            self.dispatcher = dispatcher = Dispatcher(env, emit, store, broker, self.keeper)
            self.heartbeat.broker = lambda: dispatcher.watch.status

    def services(self) -> Sequence[Service]:
        dispatchers = () if self.dispatcher is None else (self.dispatcher,)
        return (self.keeper, self.scheduler, self.reaper, self.janitor, self.bookkeeper, *dispatchers)

    def heed(self, hints: Hints) -> None:
        self.scheduler.heed(hints)
        if self.dispatcher is not None:
            self.dispatcher.heed(hints)
        if hints.nodes_changed:
            self.keeper.wake()

    def _on_shards(self) -> None:
        self.scheduler.reload()
        self.janitor.wake()

    async def wind_down(self) -> int:
        """Hoist nothing more; the shards are released together with the node's row."""
        self.scheduler.stop()
        self.keeper.stop()
        return 0
