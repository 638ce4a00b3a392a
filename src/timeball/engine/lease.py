"""Keeps the lease of this node alive, by a heartbeat in a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg

from timeball.clock import ClockReading, SystemClock
from timeball.domain.node import BrokerStatus, Node
from timeball.domain.values.text import clean_text
from timeball.domain.wakeup import WakeupElection
from timeball.env import Env
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.store import Store
from timeball.store.types import LeaseRenewal
from timeball.telemetry.events import ClockStepped, Emit, LoopBlocked, ServiceFailed

_MARGIN = timedelta(seconds=1)
_RETRY_SECONDS = 0.5
# What a connection that breaks raises, the last one if it does so between two steps of a statement.
_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# The part of a lease that the first try to renew it may take.
_TRY_SHARE = 0.2
# The longest rest; a shorter one ends just when something is to be done.
_LOOK_SECONDS = 1.0
_GATHER_SECONDS = 0.25
# What a clock is put right by, all the time, is no step.
_STEP = timedelta(milliseconds=100)
# How long the node's loop may not be seen to turn before that is reported, with the stack that holds it: it shows itself once a second.
_BLOCKED_SECONDS = 2.0
_REPORTED_AGAIN_SECONDS = 15.0


class Heartbeat:
    """Renews the lease of one life until stopped, or until the life is over; then calls `on_lost`, from whichever thread noticed."""

    def __init__(self, env: Env, emit: Emit, store: Store, node: Node, on_lost: Callable[[str], None]) -> None:
        self._env = env
        self._emit = emit
        self._store = store
        self._node = node
        self._on_lost = on_lost
        self._stopped = False
        # Ends the rest of the heart's thread.
        self._roused = threading.Event()
        self._thread: threading.Thread | None = None
        self._deadline = 0.0
        self._identity: str | None = None
        self._node_thread = threading.get_ident()
        self._turned_at = 0.0
        self.busy: Callable[[], int] = lambda: 0
        self.broker: Callable[[], BrokerStatus] = BrokerStatus
        # Whose turn it is to look at hints, among those who can stand in for this node.
        self.turns = WakeupElection(node.incarnation)
        self._is_in_haste = False
        # What went wrong since the last renewal.
        self._trouble: str | None = None
        self._misses = 0
        self.is_draining = False
        self.is_lost = False
        self.on_drain: Callable[[], object] = lambda: None

    @property
    def has_lease(self) -> bool:
        """Whether this life may still touch what it holds."""
        return not self.is_lost and self._env.clock.monotonic() < self._deadline

    async def start(self) -> None:
        """Register the node and begin to beat."""
        sent = self._env.clock.monotonic()
        # Known before the node is: a failover between the two would go unnoticed.
        self._identity = await self._store.nodes.identity()
        await self._store.nodes.register(self._node)
        self._extend(sent)
        self._turned_at = sent
        self._node_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._beat_in_thread, name=f"heartbeat-{self._node.kind}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the node's row stays until somebody removes it."""
        self._stopped = True
        self._roused.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            # It may be waiting for a database that does not answer; a renewal that comes late changes nothing.
            self._thread.join(timeout=1)

    def renew_soon(self) -> None:
        """The nodes have changed: do not wait for the next renewal to hear who there is."""
        if not self._is_in_haste:
            self._is_in_haste = True
            self._roused.set()

    def note_loop_alive(self) -> None:
        """Called on the node's loop, every now and then: it turns."""
        self._turned_at = self._env.clock.monotonic()

    async def confirm(self, connection: Any) -> None:
        """Renew the lease by a connection that is new to this life, on the node's loop; StoreUnavailable if the life is over."""
        sent = self._env.clock.monotonic()
        if not self.is_lost and sent < self._deadline:
            await self._check_identity(connection)
        if not self.is_lost and sent < self._deadline:
            self._accept(await self._ask_for_renewal(connection), sent)
        if not self.has_lease:
            raise StoreUnavailable("the lease of this node has run out, or may have")

    def _extend(self, sent: float) -> None:
        # The heart's thread and the node's loop may be renewing at the same time, and be answered in any order.
        self._deadline = max(self._deadline, sent + (self._node.lease.span - _MARGIN).total_seconds())

    def _beat_in_thread(self) -> None:
        """Beat to the end; an error that nothing foresaw is told, and the heart beats on. A thread that ends otherwise ends the life."""
        failures = 0
        try:
            while not self._stopped and not self.is_lost:
                try:
                    asyncio.run(self._beat())
                except Exception as error:
                    failures += 1
                    self._tell_failure(error, failures)
                    # When the lease was renewed last is unknown now.
                    self._is_in_haste = True
                    self._rest_for(_RETRY_SECONDS)
                    self._watch_deadline()
        finally:
            if not self._stopped:
                self._lose("the thread of the heartbeat has ended")

    def _tell_failure(self, error: Exception, failures: int) -> None:
        pause = timedelta(seconds=_RETRY_SECONDS)
        message = f"{type(error).__name__}: {error}"
        self._emit(ServiceFailed("heartbeat", message, pause, traceback.format_exc(), failures))

    async def _beat(self) -> None:
        connection: Any = None
        next_renewal = self._env.clock.monotonic() + self._node.lease.interval.total_seconds()
        try:
            while not self._stopped and not self.is_lost:
                # Blocking is right here: nothing else lives in this thread's loop.
                self._rest_for(self._until_next_duty(next_renewal))
                if self._is_in_haste and not self._stopped:
                    # Nodes come and go together: one renewal is to hear of all of them.
                    self._rest_for(_GATHER_SECONDS)
                self._watch_loop()
                self._watch_deadline()
                if self._stopped or self.is_lost or not self._is_time_to_renew(next_renewal):
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
        """Seconds until there is something to be done, or to be said of a loop that does not turn."""
        next_duty = min(next_renewal, self._deadline, self._turned_at + _BLOCKED_SECONDS)
        return max(next_duty - self._env.clock.monotonic(), 0)

    def _is_time_to_renew(self, next_renewal: float) -> bool:
        return self._is_in_haste or self._env.clock.monotonic() >= next_renewal

    async def _renew(self, connection: Any) -> Any:
        """One renewal; returns the connection to keep, or None when it is broken."""
        sent = self._env.clock.monotonic()
        limit = max(min(self._deadline - sent, self._patience()), 0.1)
        try:
            async with asyncio.timeout(limit):
                is_new = connection is None
                if is_new:
                    connection = await self._store.database.connect()
                # PgBouncer keeps our connection to it, and may have made one to another server behind our back.
                if is_new or self._store.database.behind_pgbouncer:
                    await self._check_identity(connection)
                if self.is_lost:
                    return connection
                renewal = await self._ask_for_renewal(connection)
        except (StoreError, *_BROKEN):
            if connection is not None:
                # Not closed in good order: where nobody answers, that would wait on beyond the deadline.
                connection.terminate()
            self._misses += 1
            return None
        self._misses = 0
        self._accept(renewal, sent)
        return connection

    def _patience(self) -> float:
        """How long one renewal may take: the connection may have died in silence, and another one be in time. Longer after each miss."""
        return self._node.lease.span.total_seconds() * _TRY_SHARE * float(2**self._misses)

    async def _ask_for_renewal(self, connection: Any) -> LeaseRenewal | None:
        trouble = self._trouble
        renewal = await self._store.nodes.renew(self._node.incarnation, self.busy(), connection, self.broker(), trouble)
        if trouble is self._trouble:
            self._trouble = None
        return renewal

    def _accept(self, renewal: LeaseRenewal | None, sent: float) -> None:
        if self._stopped:
            return
        if renewal is None:
            self._lose("the lease had run out, or the node was buried")
            return
        self._extend(sent)
        self.turns = WakeupElection(self._node.incarnation, renewal.peers)
        if isinstance(self._env.clock, SystemClock):
            self._learn_clock(self._env.clock, renewal.reading)
        if renewal.is_draining and not self.is_draining:
            self.is_draining = True
            self.on_drain()

    def _learn_clock(self, clock: SystemClock, reading: ClockReading) -> None:
        step = clock.learn(reading)
        if step is not None and abs(step) >= _STEP:
            self._emit(ClockStepped(step))

    async def _check_identity(self, connection: Any) -> None:
        identity = await self._store.nodes.identity(connection)
        if identity != self._identity:
            self._lose("the database is another one, or was restored or promoted")

    def _watch_deadline(self) -> None:
        if not self._stopped and not self.is_lost and self._env.clock.monotonic() >= self._deadline:
            self._lose("no renewal was accepted in time")

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_lost(reason)

    def _watch_loop(self) -> None:
        """Say so when the node's loop stands still, with the line it stands at."""
        still_for = self._env.clock.monotonic() - self._turned_at
        if still_for < _BLOCKED_SECONDS:
            return
        frame = sys._current_frames().get(self._node_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else None
        self._emit(LoopBlocked(timedelta(seconds=still_for), stack))
        place = "" if frame is None else f" in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        self._trouble = clean_text(f"its event loop stood still for {still_for:.1f} s{place}")
        # Once per block, and again only if it lasts.
        self._turned_at = self._env.clock.monotonic() + _REPORTED_AGAIN_SECONDS


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except _BROKEN:
        connection.terminate()
