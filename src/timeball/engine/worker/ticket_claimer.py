"""Claims executions by the tickets of a broker.

A ticket names an execution, which is claimed by its id; the database checks every rule again. While tickets arrive, lanes are read only for
executions that have been unclaimed for two seconds, because their ticket was lost; and once a second, so that a backlog does not draw
every worker to the same rows. Queues with a limit get no tickets and are read as always: their places are counted under a lock. Without
tickets all lanes are read as always: when the broker cannot be reached, and when it is silent, that is, when unclaimed executions are found
although this worker has been waiting for tickets all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from timeball.brokers.base import Broker, BrokerHealth, Inbox
from timeball.config.settings import WorkerSettings
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import Lane, LanePosition
from timeball.engine.lease import Peers
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service, Signal
from timeball.engine.worker.admission import ClaimableHandlers
from timeball.engine.worker.claimer import Claimer, Sweeper
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.errors import BrokerUnavailable
from timeball.store.executions import ExecutionStore, TicketStore
from timeball.store.types import ClaimRequest, ClaimResult
from timeball.telemetry.events import Emit, TicketsUsed

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
