"""Tickets, if a broker is used: a scheduler publishes them for ready executions, and workers claim by them.

A ticket names an execution, which is claimed by its id; the database checks every rule again. While tickets arrive, lanes are read only for
executions that have been unclaimed for two seconds, because their ticket was lost; and once a second, so that a backlog does not draw
every worker to the same rows. Queues with a limit get no tickets and are read as always: their places are counted under a lock. Without
tickets all lanes are read as always: when the broker cannot be reached, and when it is silent, that is, when unclaimed executions are found
although this worker has been waiting for tickets all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

from timeball.brokers.base import Broker, BrokerHealth, Inbox, Ticket
from timeball.config.settings import WorkerSettings
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import Lane, LanePosition, Wakeup
from timeball.engine.lease import Peers
from timeball.engine.node import AT_ONCE, LONGEST_REST, Service, Signal
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.worker.admission import ClaimableHandlers
from timeball.engine.worker.claimer import Claimer, Sweeper
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.errors import BrokerUnavailable
from timeball.store.executions import ExecutionStore, TicketStore
from timeball.store.types import ClaimRequest, ClaimResult, ReadyExecution
from timeball.telemetry.events import Emit, TicketsPublished, TicketsUsed

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


# An execution that has been due for so long although tickets arrive has lost its own.
_UNCLAIMED_FOR = timedelta(seconds=2)
# The pause when tickets could not be claimed although there are free slots: they are not due yet, and no more can be held.
_NEXT_TRY = timedelta(milliseconds=100)
# How long the receiver waits for a ticket; shorter while the broker is down.
_WAIT = timedelta(seconds=2)
_SHORT_WAIT = timedelta(milliseconds=100)
_RECONNECT_PAUSE = timedelta(seconds=1)


class TicketClaimer(Claimer):
    """Claims executions that tickets name, and those that lost their ticket."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        tickets: TicketStore,
        executor: Executor,
        incarnation: Incarnation,
        handlers: ClaimableHandlers,
        settings: WorkerSettings,
        outcomes_recorded: Signal,
    ) -> None:
        # Tickets go to one worker each; a wake-up that leads to the lanes is for every worker.
        alone = Peers(env.clock, incarnation)
        super().__init__(env, emit, executions, executor, incarnation, handlers, settings, alone, outcomes_recorded)
        self._ticket_store = tickets
        self._tickets: dict[ExecutionId, None] = {}
        self._relies_on_tickets = False
        # Sent when more tickets can be used, and when an execution was found that had lost its ticket.
        self.capacity_freed = Signal()
        self.leftovers_found = Signal()

    @property
    def name(self) -> str:
        return "claimer"

    @property
    def capacity(self) -> int:
        """How many more tickets could be used now."""
        return self._window.slots - len(self._tickets)

    def deliver(self, ids: Iterable[ExecutionId]) -> None:
        """Claim these as soon as there are slots."""
        self._tickets.update(dict.fromkeys(ids))
        self.wake()

    def rely_on_tickets(self, relies: bool) -> bool:
        """Whether tickets bring ready executions; if not, all lanes are read. True if that has changed."""
        if relies == self._relies_on_tickets:
            return False
        self._relies_on_tickets = relies
        self._lanes.forget_all()
        return True

    def looks_at(self, lane: Lane, run_at: datetime) -> bool:
        """Not while a ticket may still arrive."""
        return super().looks_at(lane, run_at) and not self._awaits_ticket(lane, run_at)

    def _awaits_ticket(self, lane: Lane, run_at: datetime) -> bool:
        if not self._relies_on_tickets or self._lanes.is_limited(lane[0]):
            return False
        return run_at > self.env.clock.now() - _UNCLAIMED_FOR

    async def tick(self) -> timedelta:
        if not self._executor.lease.is_held:
            return LONGEST_REST
        if self.in_flight.claim_id is not None:
            await self._read_back()
        rest = await self._claim_tickets() if self._tickets else LONGEST_REST
        return min(rest, await super().tick())

    async def _claim_tickets(self) -> timedelta:
        """Claim the executions of the tickets; tickets for which there is no slot yet are kept."""
        request, asked = self._request(), list(self._tickets)
        if request.slots <= 0 and request.holds <= 0:
            return LONGEST_REST
        claim_id = self.in_flight.begin(ClaimId(self.env.new_id()))
        asked_at = self.env.clock.now()
        claims = await self._ticket_store.claim(request, asked, sorted(self._queues) or None, claim_id)
        self.in_flight.end()
        self._keep(claims.left, asked)
        self._executor.accept(claims.executions)
        self.emit(TicketsUsed(len(asked), len(claims.executions)))
        if 0 < request.slots <= sum(claimed.run_at <= asked_at for claimed in claims.executions):
            self._window.widen(request.slots)
        self.capacity_freed.send()
        if self._tickets and not claims.executions:
            return _NEXT_TRY
        return AT_ONCE if self._tickets else LONGEST_REST

    def _keep(self, left: Iterable[ExecutionId], asked: Iterable[ExecutionId]) -> None:
        for gone in asked:
            self._tickets.pop(gone, None)
        self._tickets = dict.fromkeys(left) | self._tickets

    async def _claim(self, request: ClaimRequest, queue: str | None, lanes: dict[Lane, LanePosition]) -> ClaimResult:
        if not self._relies_on_tickets or queue is not None:
            return await super()._claim(request, queue, lanes)
        claims = await super()._claim(replace(request, holds=0, unclaimed_for=_UNCLAIMED_FOR), queue, lanes)
        self._lanes.forget(lanes)
        if claims.executions:
            self.leftovers_found.send()
        return claims

    def _on_slot_free(self) -> None:
        # Though the lanes hold nothing, there may be tickets.
        self._reasons.on_slot_free()
        super()._on_slot_free()

    def _use_slots(self) -> None:
        self.wake()
        self.capacity_freed.send()


class TicketReceiver(Service):
    """Receives as many tickets from the broker as the claimer can use."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        broker: Broker,
        health: BrokerHealth,
        inbox: Inbox,
        claimer: TicketClaimer,
        sweeper: Sweeper,
    ) -> None:
        super().__init__(env, emit)
        self._sweeper = sweeper
        self._broker = broker
        self._inbox = inbox.name
        self._claimer = claimer
        self._waits_since: float | None = None
        self._health = health
        claimer.capacity_freed.subscribe(self.wake)
        claimer.leftovers_found.subscribe(self._on_leftovers)

    async def tick(self) -> timedelta:
        capacity = self._claimer.capacity
        if capacity <= 0:
            self._waits_since = None
            return LONGEST_REST
        if self._waits_since is None:
            self._waits_since = self.env.clock.monotonic()
        try:
            wait = _SHORT_WAIT if self._health.is_down else _WAIT
            tickets = await self._broker.receive(self._inbox, capacity, wait)
        except BrokerUnavailable as error:
            self._health.lost(error)
            self._tell_claimer()
            return _RECONNECT_PAUSE
        if tickets:
            self._waits_since = None
            self._claimer.deliver([ticket.id for ticket in tickets])
        if tickets or self._health.is_down:
            self._health.found()
        self._tell_claimer()
        return AT_ONCE

    def _on_leftovers(self) -> None:
        """An execution was found that had been ready for long."""
        since = self._waits_since
        if self._health.works and since is not None and self.env.clock.monotonic() - since >= _WAIT.total_seconds():
            self._health.silent()
            self._tell_claimer()

    def _tell_claimer(self) -> None:
        if self._claimer.rely_on_tickets(self._health.works):
            self._sweeper.wake()
