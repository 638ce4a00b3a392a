"""The lease of this node, the heartbeat that renews it from a thread of its own, and the peers that each renewal brings news of."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from timeball.brokers.base import BrokerHealth
from timeball.config.life_signs import LifeSign
from timeball.domain.node import BrokerStatus, Lease, Node
from timeball.domain.values.ids import Incarnation
from timeball.domain.values.text import clean_text
from timeball.domain.wakeup import ELECTED, PeerWorker, Wakeup, WakeupElection
from timeball.env import Clock, ClockReading, Env, SystemClock
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.types import LeaseRenewal
from timeball.telemetry.events import ClockStepped, Emit, LoopBlocked, ServiceFailed

if TYPE_CHECKING:
    from timeball.engine.worker.attempts import Slots
    from timeball.store.store import Store

_MARGIN = timedelta(seconds=1)
_RETRY_SECONDS = 0.5
# What a broken connection raises; the last one if it breaks between two steps of a statement.
_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# The part of a lease that the first attempt to renew it may take.
_TRY_SHARE = 0.2
# The longest rest of the heartbeat's thread.
_LOOK_SECONDS = 1.0
_GATHER_SECONDS = 0.25
# Smaller corrections of the database's clock happen all the time; they are no steps.
_STEP = timedelta(milliseconds=100)
# The node's loop shows itself once a second. After this long without it, its stack is reported.
_BLOCKED_SECONDS = 2.0
_REPORTED_AGAIN_SECONDS = 15.0


# A peer that was elected and did not come is hardly a better choice the next moment: for so long every wake-up is ours.
_DISTRUST_SECONDS = 2.0


class HeldLease:
    """Whether this node still holds its lease. The heartbeat extends it; everything that acts on claims asks it first."""

    def __init__(self, clock: Clock, lease: Lease) -> None:
        self._clock = clock
        self._span = (lease.span - _MARGIN).total_seconds()
        # By this node's monotonic clock.
        self.deadline = 0.0
        self.is_lost = False

    @property
    def is_held(self) -> bool:
        """Whether this node may still touch what it has claimed."""
        return not self.is_lost and self._clock.monotonic() < self.deadline

    def is_held_at(self, monotonic: float) -> bool:
        """The same for a moment that has just been read from the clock."""
        return not self.is_lost and monotonic < self.deadline

    def extend(self, sent: float) -> None:
        """A renewal that was sent at *sent* has been accepted."""
        # The heartbeat's thread and the node's loop may renew at the same time, and be answered in any order.
        self.deadline = max(self.deadline, sent + self._span)

    def lose(self) -> bool:
        """The lease is gone for good; False if that was known."""
        was_lost, self.is_lost = self.is_lost, True
        return not was_lost


class Peers:
    """The workers that can stand in for this one, as of the last renewal; they share the wake-ups among them."""

    def __init__(self, clock: Clock, incarnation: Incarnation) -> None:
        self._clock = clock
        self._incarnation = incarnation
        # A worker that knows of no peers answers every wake-up.
        self._election = WakeupElection(incarnation)
        self._distrusted_until = float("-inf")

    def learn(self, peers: Iterable[PeerWorker]) -> None:
        """These are alive, this worker included."""
        self._election = WakeupElection(self._incarnation, peers)

    def turn_of(self, wakeup: Wakeup) -> int:
        """`ELECTED` if this worker is to answer now, else its place behind those that are."""
        is_distrusting = self._clock.monotonic() < self._distrusted_until
        return ELECTED if is_distrusting else self._election.of(wakeup)

    def distrust(self) -> None:
        """A peer that was elected did not come: answer everything for a while."""
        self._distrusted_until = self._clock.monotonic() + _DISTRUST_SECONDS


class Heartbeat:
    """Renews the lease of a node until stopped, or until the lease is lost; then calls `on_lost`, from the thread that noticed.

    Each renewal reports how many *slots* are busy and how the *broker* does, and extends the *life sign* that health checks of this machine
    read. `on_drain` is called once an operator asks the node to drain.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        store: Store,
        node: Node,
        on_lost: Callable[[str], None],
        on_drain: Callable[[], object] = lambda: None,
        slots: Slots | None = None,
        broker: BrokerHealth | None = None,
        life_sign: LifeSign | None = None,
    ) -> None:
        self._env = env
        self._emit = emit
        self._store = store
        self._node = node
        self._life_sign = life_sign
        self._on_lost = on_lost
        self._on_drain = on_drain
        self._slots = slots
        self._broker = broker
        self.lease = HeldLease(env.clock, node.lease)
        self.peers = Peers(env.clock, node.incarnation)
        self._stopped = False
        # Ends the rest of the heartbeat's thread.
        self._roused = threading.Event()
        self._thread: threading.Thread | None = None
        self._identity: str | None = None
        self._node_thread = threading.get_ident()
        self._turned_at = 0.0
        self._is_in_haste = False
        # What went wrong since the last renewal.
        self._trouble: str | None = None
        self._misses = 0
        self.is_draining = False

    async def start(self) -> None:
        """Register the node and begin to renew its lease."""
        await self.register()
        self._turned_at = self._env.clock.monotonic()
        self._node_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._beat_in_thread, name=f"heartbeat-{self._node.kind}", daemon=True)
        self._thread.start()

    async def register(self) -> None:
        """Register the node, with the first span of its lease."""
        sent = self._env.clock.monotonic()
        # Read before the node is registered: a failover between the two would go unnoticed.
        self._identity = await self._store.nodes.identity()
        await self._store.nodes.register(self._node)
        self._extend(sent)

    def stop(self) -> None:
        """Stop renewing. The node's row stays until it is removed."""
        self._stopped = True
        self._roused.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            # The thread may be waiting for a database that does not answer; a late renewal changes nothing.
            self._thread.join(timeout=1)
        if self._life_sign is not None:
            self._life_sign.remove()

    def renew_soon(self) -> None:
        """The nodes have changed: learn the new peers before the next renewal is due."""
        if not self._is_in_haste:
            self._is_in_haste = True
            self._roused.set()

    def note_loop_alive(self) -> None:
        """The node's event loop turns; called there once a second."""
        self._turned_at = self._env.clock.monotonic()

    async def confirm(self, connection: Any) -> None:
        """Renew the lease over a new connection of the node, on the node's loop; StoreUnavailable if the lease is gone."""
        sent = self._env.clock.monotonic()
        lease = self.lease
        if not lease.is_lost and sent < lease.deadline:
            await self._check_identity(connection)
        if not lease.is_lost and sent < lease.deadline:
            self._accept(await self._ask_for_renewal(connection), sent)
        if not lease.is_held:
            raise StoreUnavailable("the lease of this node has run out, or may have")

    def _beat_in_thread(self) -> None:
        """Renew until stopped or lost. An unforeseen error is reported and the thread goes on; if the thread ends, the lease is lost."""
        failures = 0
        try:
            while not self._stopped and not self.lease.is_lost:
                try:
                    asyncio.run(self._beat())
                except Exception as error:
                    failures += 1
                    self._report_failure(error, failures)
                    # It is unknown when the lease was last renewed.
                    self._is_in_haste = True
                    self._rest_for(_RETRY_SECONDS)
                    self._watch_deadline()
        finally:
            if not self._stopped:
                self._lose("the thread of the heartbeat has ended")

    def _report_failure(self, error: Exception, failures: int) -> None:
        pause = timedelta(seconds=_RETRY_SECONDS)
        message = f"{type(error).__name__}: {error}"
        self._emit(ServiceFailed("heartbeat", message, pause, traceback.format_exc(), failures))

    async def _beat(self) -> None:
        connection: Any = None
        next_renewal = self._env.clock.monotonic() + self._node.lease.interval.total_seconds()
        try:
            while not self._stopped and not self.lease.is_lost:
                # Blocking is right here: nothing else runs in this thread's loop.
                self._rest_for(self._until_next_duty(next_renewal))
                if self._is_in_haste and not self._stopped:
                    # Nodes come and go together: one renewal learns about all of them.
                    self._rest_for(_GATHER_SECONDS)
                self._watch_loop()
                self._watch_deadline()
                if self._stopped or self.lease.is_lost or not self._is_time_to_renew(next_renewal):
                    continue
                self._is_in_haste = False
                connection = await self._renew(connection)
                pause = self._node.lease.interval.total_seconds() if connection is not None else _RETRY_SECONDS
                next_renewal = self._env.clock.monotonic() + pause
        finally:
            if connection is not None:
                await _close(connection)

    def _rest_for(self, seconds: float) -> None:
        self._roused.wait(min(seconds, _LOOK_SECONDS))
        self._roused.clear()

    def _until_next_duty(self, next_renewal: float) -> float:
        """Seconds until the next renewal, the end of the lease, or the report about a blocked loop."""
        next_duty = min(next_renewal, self.lease.deadline, self._turned_at + _BLOCKED_SECONDS)
        return max(next_duty - self._env.clock.monotonic(), 0)

    def _is_time_to_renew(self, next_renewal: float) -> bool:
        return self._is_in_haste or self._env.clock.monotonic() >= next_renewal

    async def _renew(self, connection: Any) -> Any:
        """One renewal; returns the connection to keep, or None when it is broken."""
        sent = self._env.clock.monotonic()
        limit = max(min(self.lease.deadline - sent, self._patience()), 0.1)
        try:
            async with asyncio.timeout(limit):
                is_new = connection is None
                if is_new:
                    connection = await self._store.database.connect()
                # PgBouncer keeps our connection and may have opened one to another server behind it.
                if is_new or self._store.database.behind_pgbouncer:
                    await self._check_identity(connection)
                if self.lease.is_lost:
                    return connection
                renewal = await self._ask_for_renewal(connection)
        except (StoreError, *_BROKEN):
            if connection is not None:
                # Not closed in good order: a server that does not answer would keep us waiting past the deadline.
                connection.terminate()
            self._misses += 1
            return None
        self._misses = 0
        self._accept(renewal, sent)
        return connection

    def _patience(self) -> float:
        """How long one renewal may take: a connection may have died in silence, and a new one be in time. Doubles with each miss."""
        return self._node.lease.span.total_seconds() * _TRY_SHARE * float(2**self._misses)

    async def _ask_for_renewal(self, connection: Any) -> LeaseRenewal | None:
        trouble = self._trouble
        busy = 0 if self._slots is None else self._slots.busy
        broker = BrokerStatus() if self._broker is None else self._broker.status
        renewal = await self._store.nodes.renew(self._node.incarnation, busy, connection, broker, trouble)
        if trouble is self._trouble:
            self._trouble = None
        return renewal

    def _accept(self, renewal: LeaseRenewal | None, sent: float) -> None:
        if self._stopped:
            return
        if renewal is None:
            self._lose("the lease had run out, or the node was removed as expired")
            return
        self._extend(sent)
        self.peers.learn(renewal.peers)
        if isinstance(self._env.clock, SystemClock):
            self._learn_clock(self._env.clock, renewal.reading)
        if renewal.is_draining and not self.is_draining:
            self.is_draining = True
            self._on_drain()

    def _extend(self, sent: float) -> None:
        self.lease.extend(sent)
        if self._life_sign is not None:
            self._life_sign.extend(self.lease.deadline)

    def _learn_clock(self, clock: SystemClock, reading: ClockReading) -> None:
        step = clock.learn(reading)
        if step is not None and abs(step) >= _STEP:
            self._emit(ClockStepped(step))

    async def _check_identity(self, connection: Any) -> None:
        identity = await self._store.nodes.identity(connection)
        if identity != self._identity:
            self._lose("the database is another one, or was restored or promoted")

    def _watch_deadline(self) -> None:
        if not self._stopped and not self.lease.is_lost and self._env.clock.monotonic() >= self.lease.deadline:
            self._lose("no renewal was accepted in time")

    def _lose(self, reason: str) -> None:
        if self.lease.lose():
            self._on_lost(reason)

    def _watch_loop(self) -> None:
        """Report a loop that does not turn, with the line at which it stands."""
        still_for = self._env.clock.monotonic() - self._turned_at
        if still_for < _BLOCKED_SECONDS:
            return
        frame = sys._current_frames().get(self._node_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else None
        self._emit(LoopBlocked(timedelta(seconds=still_for), stack))
        place = "" if frame is None else f" in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        self._trouble = clean_text(f"its event loop stood still for {still_for:.1f} s{place}")
        # Reported once, and again only if it lasts.
        self._turned_at = self._env.clock.monotonic() + _REPORTED_AGAIN_SECONDS


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except _BROKEN:
        connection.terminate()
