"""Publishes tickets for ready executions to the broker, if one is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

from timeball.brokers.base import Broker, BrokerHealth, Inbox, Ticket
from timeball.domain.values.ids import ExecutionId
from timeball.domain.wakeup import Lane, Wakeup
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env
from timeball.errors import BrokerUnavailable
from timeball.store.types import ReadyExecution
from timeball.telemetry.events import Emit, TicketsPublished

if TYPE_CHECKING:
    from timeball.store.store import Store

MAX_TICKETS = 10_000
_FIRST_DELAY = 2.0
_LONGEST_DELAY = 300.0
_SWEEP = 1.0
# A queue that is emptied faster than the sweep refills it is swept more often.
_QUICKEST_SWEEP = 0.1


def shard_of_queue(queue: str, shards: int) -> int:
    """The shard whose owner publishes this queue's tickets."""
    return int.from_bytes(blake2b(queue.encode(), digest_size=8).digest(), "big") % shards


@dataclass(slots=True)
class _OpenTicket:
    """A published ticket: for which fence of its execution, when to publish it again, and how long to wait after that."""

    queue: str
    fence: int
    again_at: float
    delay: float


class TicketPublisher(Service):
    """Publishes tickets for the queues whose shard this scheduler owns."""

    def __init__(
        self, env: Env, emit: Emit, store: Store, broker: Broker, health: BrokerHealth, shards: ShardBalancer
    ) -> None:
        super().__init__(env, emit)
        self._store = store
        self._broker = broker
        self._shards = shards
        self._inboxes: list[Inbox] = []
        self._handlers: list[str] = []
        self._announced: dict[Lane, datetime] = {}
        self._out: dict[ExecutionId, _OpenTicket] = {}
        self._next_sweep = 0.0
        self._interval = _SWEEP
        self._health = health

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Something is ready in these lanes, from these instants on."""
        for lane, run_at in wakeup.lanes.items():
            if self._owns(lane[0]):
                previous = self._announced.get(lane)
                self._announced[lane] = run_at if previous is None else min(previous, run_at)
        if wakeup.look_everywhere or wakeup.nodes_changed:
            self._next_sweep = 0.0
        if self._announced or not self._next_sweep:
            self.wake()

    def _owns(self, queue: str) -> bool:
        return shard_of_queue(queue, self._store.shards) in self._shards.epochs

    async def tick(self) -> timedelta:
        now = self.env.clock.monotonic()
        try:
            if now >= self._next_sweep:
                self._next_sweep = now + self._interval
                await self._sweep()
            elif not self._health.is_down:
                await self._publish_announced()
        except BrokerUnavailable as error:
            self._out.clear()
            self._health.lost(error)
        if self._health.is_down:
            self._announced.clear()
        rest = max(self._next_sweep - self.env.clock.monotonic(), 0)
        return min(timedelta(seconds=rest), LONGEST_REST)

    async def _sweep(self) -> None:
        """Learn which workers use tickets, and publish and forget tickets so that they match what is ready."""
        self._announced.clear()
        await self._learn_inboxes()
        lanes = await self._store.executions.lanes() if self._inboxes else {}
        owned = {
            lane: mark.run_at for lane, (mark, is_limited) in lanes.items() if not is_limited and self._owns(lane[0])
        }
        rows = await self._read(owned)
        self._forget_claimed(rows)
        if self._health.is_down:
            await self._broker.check()
        if not await self._publish(rows):
            await self._broker.check()
        self._health.found()

    async def _publish_announced(self) -> None:
        announced, self._announced = self._announced, {}
        out = Counter(published.queue for published in self._out.values())
        lanes = {lane: at for lane, at in announced.items() if out[lane[0]] < MAX_TICKETS}
        await self._publish(await self._read(lanes))

    async def _learn_inboxes(self) -> None:
        rows = await self._store.nodes.inboxes(self._broker.kind)
        self._inboxes = [Inbox.of(queues, handlers) for queues, handlers in rows]
        self._handlers = sorted({handler for inbox in self._inboxes for handler in inbox.handlers})

    async def _read(self, lanes: dict[Lane, datetime]) -> list[ReadyExecution]:
        if not lanes or not self._inboxes:
            return []
        return await self._store.tickets.read(lanes, self._handlers, MAX_TICKETS)

    def _forget_claimed(self, rows: Sequence[ReadyExecution]) -> None:
        """Forget tickets of executions that are no longer ready; sweep again sooner if many of them went."""
        before = len(self._out)
        ready = {row.id for row in rows}
        self._out = {id_: published for id_, published in self._out.items() if id_ in ready}
        is_quick = len(rows) >= MAX_TICKETS and 2 * len(self._out) < before
        self._interval = max(self._interval / 2, _QUICKEST_SWEEP) if is_quick else _SWEEP

    async def _publish(self, rows: Sequence[ReadyExecution]) -> bool:
        """Publish tickets for executions that have none, or an overdue one; False if there was nothing to publish."""
        now = self.env.clock.monotonic()
        due = [row for row in rows if self._needs_ticket(row, now)]
        for inbox in self._inboxes:
            tickets = [Ticket(row.id, row.queue, row.rank) for row in due if inbox.takes(row.queue, row.handler)]
            if tickets:
                await self._broker.publish(inbox.name, tickets)
        if due:
            self.emit(TicketsPublished(len(due), self._note(due, now)))
        return bool(due)

    def _needs_ticket(self, row: ReadyExecution, now: float) -> bool:
        published = self._out.get(row.id)
        # Another fence: the execution was claimed meanwhile, and given back.
        return published is None or published.fence != row.fence or published.again_at <= now

    def _note(self, rows: Iterable[ReadyExecution], now: float) -> int:
        """Remember the published tickets; returns how many of them had been published before."""
        again = 0
        for row in rows:
            ticket = self._out.get(row.id)
            is_again = ticket is not None and ticket.fence == row.fence
            delay = min(2 * ticket.delay, _LONGEST_DELAY) if ticket is not None and is_again else _FIRST_DELAY
            self._out[row.id] = _OpenTicket(row.queue, row.fence, now + delay, delay)
            again += is_again
        return again
