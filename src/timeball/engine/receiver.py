"""Tickets of a broker become claims, while this worker has room.

While tickets come, the claimer leaves `ready` alone, but for what has been unclaimed for two seconds: its ticket was
lost. Without them it claims from `ready` as it does without a broker: when the broker cannot be reached, and also when it
is silent, that is, when such leftovers are found although this worker has been waiting for tickets all the time.
"""

from __future__ import annotations

from datetime import timedelta

from timeball.broker.interface import Broker, Inbox
from timeball.domain.events import Emit
from timeball.engine.broker_watch import BrokerWatch
from timeball.engine.claimer import Sweeper
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service
from timeball.engine.ticket_claimer import TicketClaimer
from timeball.env import Env
from timeball.errors import BrokerUnavailable

_WAIT = timedelta(seconds=2)
# The first answer of a broker that was down is not waited for any longer than this.
_SHORT_WAIT = timedelta(milliseconds=100)
_NEXT_TRY = timedelta(seconds=1)


class Receiver(Service):
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
        self.watch = BrokerWatch(emit, broker.kind)
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
            return _NEXT_TRY
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
