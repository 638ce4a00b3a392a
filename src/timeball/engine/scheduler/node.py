"""A scheduler node: its shards, promotion of due executions, tickets for a broker, and the housekeeping."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.brokers.base import Broker, BrokerHealth
from timeball.config.life_signs import LifeSign
from timeball.config.settings import HousekeepingSettings, SchedulerSettings
from timeball.domain.node import Node
from timeball.engine.node import BaseNode, Service
from timeball.engine.scheduler.housekeeping import (
    AlertEvaluator,
    CalendarFollower,
    Janitor,
    OperationRunner,
    Reaper,
    RollupWriter,
)
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.scheduler.webhooks import MessagePoster, WebhookRecorder, WebhookSender
from timeball.env import Env
from timeball.telemetry.events import Emit

if TYPE_CHECKING:
    from timeball.domain.alerts import AlertTransition
    from timeball.domain.bulk_operation import Operation
    from timeball.engine.tickets import TicketPublisher
    from timeball.store.store import Store


class SchedulerNode(BaseNode):
    """Owns shards, promotes what falls due in them, and does the housekeeping if it owns the first shard."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        store: Store,
        node: Node,
        settings: SchedulerSettings,
        housekeeping: HousekeepingSettings,
        work_on_operations: Callable[[UUID], Awaitable[Operation | None]],
        post: MessagePoster,
        evaluate_alerts: Callable[[], Awaitable[Sequence[AlertTransition]]],
        broker: Broker | None = None,
        life_sign: LifeSign | None = None,
    ) -> None:
        broker_health = BrokerHealth.of(emit, broker)
        super().__init__(env, emit, store, node, broker=broker_health, life_sign=life_sign)
        self.shards = ShardBalancer(env, emit, store.nodes, node.incarnation, self._on_shards)
        self.scheduler = Scheduler(env, emit, store.executions, store.jobs, store.freezes, self.shards, settings)
        self.reaper = Reaper(
            env, emit, store.nodes, store.executions, store.jobs, store.queues, housekeeping, self._is_housekeeper
        )
        self.rollup_writer = RollupWriter(env, emit, store.rollups, housekeeping, self._is_housekeeper)
        self.janitor = Janitor(env, emit, store.history, store.retention, housekeeping, self._is_housekeeper)
        self.calendar_follower = CalendarFollower(env, emit, store.calendars, store.jobs, self._is_housekeeper)
        self.operation_runner = OperationRunner(
            env, emit, self._has_operations, work_on_operations, self._is_housekeeper
        )
        self.webhook_recorder = WebhookRecorder(env, emit, store, self._is_housekeeper)
        self.webhook_sender = WebhookSender(env, emit, store, post, self.webhook_recorder)
        self.alert_evaluator = AlertEvaluator(env, emit, evaluate_alerts, housekeeping, self._is_housekeeper)
        self.ticket_publisher: TicketPublisher | None = None
        if broker is not None and broker_health is not None:
            from timeball.engine.tickets import TicketPublisher

            self.ticket_publisher = TicketPublisher(env, emit, store, broker, broker_health, self.shards)

    def _is_housekeeper(self) -> bool:
        return self.shards.is_housekeeper

    async def _has_operations(self) -> bool:
        # One statement for both: an installation without webhooks pays nothing for them.
        work = await self.store.housekeeping_work()
        self.webhook_recorder.notice(has_webhooks=work.has_webhooks)
        return work.has_operations

    def services(self) -> Sequence[Service]:
        publishers = () if self.ticket_publisher is None else (self.ticket_publisher,)
        return (
            self.shards,
            self.scheduler,
            self.reaper,
            self.janitor,
            self.rollup_writer,
            self.calendar_follower,
            self.operation_runner,
            self.webhook_recorder,
            self.webhook_sender,
            self.alert_evaluator,
            *publishers,
        )

    def _on_shards(self) -> None:
        self.scheduler.reload()
        self.janitor.wake()

    async def wind_down(self) -> int:
        """Promote nothing more; the shards are released together with the node's row."""
        self.scheduler.stop()
        self.shards.stop()
        return 0
