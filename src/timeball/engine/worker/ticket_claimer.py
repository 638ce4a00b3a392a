"""Claims executions by the tickets of a broker: receives as many as there is room for, and claims what they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from timeball.brokers.base import Broker, BrokerHealth, Inbox
from timeball.config.settings import WorkerSettings
from timeball.domain.node import Node
from timeball.domain.values.ids import ClaimId, ExecutionId
from timeball.domain.wakeup import Lane, LanePosition
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service
from timeball.engine.worker.claimer import Claimer, Sweeper
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.errors import BrokerUnavailable
from timeball.store.executions import ExecutionStore, TicketStore
from timeball.store.types import ClaimRequest, ClaimResult
from timeball.telemetry.events import Emit, TicketsUsed

# Tickets become claimed executions, when a broker is used.
#
# A ticket names an execution, and is claimed by its id; every rule is asked again in the database. While tickets come,
# lanes are read only for what has been unclaimed for two seconds, because its ticket was lost; once a second, so that a
# backlog does not draw every worker to the same rows. Queues with a limit get no tickets and are read as ever: their
# places are counted under a lock. Without tickets all lanes are read as ever.

# What has been due for so long although tickets come has lost its own.
_UNCLAIMED_FOR = timedelta(seconds=2)


# When tickets found no room although there are free slots: they are for later, and nothing more can be held.
_NEXT_TRY = timedelta(milliseconds=100)


class TicketClaimer(Claimer):
    """Claims what tickets name, and what lost its ticket."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        tickets: TicketStore,
        executor: Executor,
        node: Node,
        settings: WorkerSettings,
    ) -> None:
        super().__init__(env, emit, executions, executor, node.incarnation, node.handlers, settings)
        self._ticket_store = tickets
        self._tickets: dict[ExecutionId, None] = {}
        self._relies_on_tickets = False
        # Called when there is room for more tickets, and when something was found that had lost its own.
        self.on_room: Callable[[], None] = lambda: None
        self.on_leftovers: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return "claimer"

    @property
    def room(self) -> int:
        """How many more tickets could be used now."""
        return self._slots() - len(self._tickets)

    def deliver(self, ids: Iterable[ExecutionId]) -> None:
        """Claim these as soon as there is room."""
        self._tickets.update(dict.fromkeys(ids))
        self.wake()

    def rely_on_tickets(self, relies: bool) -> bool:
        """Whether tickets bring what is ready; if not, it is looked for in all lanes. True if that is new."""
        if relies == self._relies_on_tickets:
            return False
        self._relies_on_tickets = relies
        self._lanes.clear()
        return True

    def looks_at(self, lane: Lane, run_at: datetime) -> bool:
        """Not while a ticket may still come."""
        return super().looks_at(lane, run_at) and not self._awaits_ticket(lane, run_at)

    def _awaits_ticket(self, lane: Lane, run_at: datetime) -> bool:
        if not self._relies_on_tickets or lane[0] in self._limited:
            return False
        return run_at > self.env.clock.now() - _UNCLAIMED_FOR

    async def tick(self) -> timedelta:
        if not self._executor.may_begin():
            return LONGEST_REST
        if self.in_flight is not None:
            await self._read_back()
        rest = await self._claim_tickets() if self._tickets else LONGEST_REST
        return min(rest, await super().tick())

    async def _claim_tickets(self) -> timedelta:
        """Claim what the tickets name; those for which there is no room yet are kept."""
        request, asked = self._wish(), list(self._tickets)
        if request.slots <= 0 and request.holds <= 0:
            return LONGEST_REST
        claim_id = self.in_flight = ClaimId(self.env.new_id())
        asked_at = self.env.clock.now()
        claims = await self._ticket_store.claim(request, asked, sorted(self._queues) or None, claim_id)
        self.in_flight = None
        self._keep(claims.left, asked)
        self._executor.accept(claims.executions)
        self.emit(TicketsUsed(len(asked), len(claims.executions)))
        if 0 < request.slots <= sum(claimed.run_at <= asked_at for claimed in claims.executions):
            self._widen_window(request)
        self.on_room()
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
        for lane in lanes:
            self._lanes.pop(lane, None)
        if claims.executions:
            self.on_leftovers()
        return claims

    def _on_room(self) -> None:
        # Without anything in the lanes, there may still be tickets.
        self._expects_more = True
        super()._on_room()

    def _use_room(self) -> None:
        self.wake()
        self.on_room()


# Tickets of a broker become claims, while this worker has room.
#
# While tickets come, the claimer leaves `ready` alone, but for what has been unclaimed for two seconds: its ticket was
# lost. Without them it claims from `ready` as it does without a broker: when the broker cannot be reached, and also when it
# is silent, that is, when such leftovers are found although this worker has been waiting for tickets all the time.

_WAIT = timedelta(seconds=2)


# The first answer of a broker that was down is not waited for any longer than this.
_SHORT_WAIT = timedelta(milliseconds=100)
_RECONNECT_PAUSE = timedelta(seconds=1)


class TicketReceiver(Service):
    """Asks the broker for as many tickets as the claimer has room for."""

    def __init__(
        self, env: Env, emit: Emit, broker: Broker, inbox: Inbox, claimer: TicketClaimer, sweeper: Sweeper
    ) -> None:
        super().__init__(env, emit)
        self._sweeper = sweeper
        self._broker = broker
        self._inbox = inbox.name
        self._claimer = claimer
        self._waits_since: float | None = None
        self.watch = BrokerHealth(emit, broker.kind)
        claimer.on_room = self.wake
        claimer.on_leftovers = self._on_leftovers

    async def tick(self) -> timedelta:
        room = self._claimer.room
        if room <= 0:
            self._waits_since = None
            return LONGEST_REST
        if self._waits_since is None:
            self._waits_since = self.env.clock.monotonic()
        try:
            wait = _SHORT_WAIT if self.watch.is_down else _WAIT
            tickets = await self._broker.receive(self._inbox, room, wait)
        except BrokerUnavailable as error:
            self.watch.lost(error)
            self._tell_claimer()
            return _RECONNECT_PAUSE
        if tickets:
            self._waits_since = None
            self._claimer.deliver([ticket.id for ticket in tickets])
        if tickets or self.watch.is_down:
            self.watch.found()
        self._tell_claimer()
        return AT_ONCE

    def _on_leftovers(self) -> None:
        """Something was found in `ready` that had been there for long."""
        since = self._waits_since
        if self.watch.works and since is not None and self.env.clock.monotonic() - since >= _WAIT.total_seconds():
            self.watch.silent()
            self._tell_claimer()

    def _tell_claimer(self) -> None:
        if self._claimer.rely_on_tickets(self.watch.works):
            self._sweeper.wake()
