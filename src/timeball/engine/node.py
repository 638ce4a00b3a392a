"""A node from registration to exit: its lease, its listener, its services, and the order in which they stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import timedelta
from functools import partial
from typing import Any

from timeball.domain.node import Node
from timeball.domain.wakeup import Wakeup
from timeball.engine.lease import Heartbeat
from timeball.engine.service import LONGEST_REST, Service, SharedTimer
from timeball.env import Env
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.db.pool import LeaseConfirmation
from timeball.store.store import Store
from timeball.telemetry.events import Emit, ListenerChanged, NodeLost, NodeStarted, NodeStopped

# One life of a node: its lease, its services, and the order of their end.
#
# A life ends in one of two ways. It leaves: its services stop, what it held is given back, its row is removed. Or it is lost: the
# lease ran out, or one of its services ended, and everything is dropped where it stands, because others may hold it by now. Then the
# node begins another life.

_DEREGISTER_SECONDS = 2.0


class LoopMonitor(Service):
    """Shows the heartbeat that the node's loop turns."""

    def __init__(self, env: Env, emit: Emit, heartbeat: Heartbeat) -> None:
        super().__init__(env, emit)
        self._heartbeat = heartbeat

    async def tick(self) -> timedelta:
        self._heartbeat.note_loop_alive()
        return LONGEST_REST


class BaseNode:
    """What all lives share; a scheduler's and a worker's add their services."""

    def __init__(self, env: Env, emit: Emit, store: Store, node: Node) -> None:
        self.env = env
        self.emit = emit
        self.store = store
        self.node = node
        self._lost_reason: str | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self.heartbeat = Heartbeat(env, emit, store, node, self._on_lost)
        self.heartbeat.on_drain = lambda: self._loop.call_soon_threadsafe(self.end)
        self.listener = Listener(env, emit, store, self.on_wakeup)

    def services(self) -> Sequence[Service]:
        """The services of this life, in the order of their start."""
        raise NotImplementedError  # pragma: no cover

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Pass a hint on to whom it concerns."""
        raise NotImplementedError  # pragma: no cover

    async def start(self) -> None:
        """Register the node and start its services."""
        await self.heartbeat.start()
        started = [LoopMonitor(self.env, self.emit, self.heartbeat), *self.services()]
        if not self.store.database.behind_pgbouncer:
            # In transaction mode a subscription would belong to somebody else's session: then polling has to do.
            started.append(self.listener)
        beat = SharedTimer(self.env.random.random())
        for service in started:
            service.beat = beat
        # Whatever they say, they say only where the lease has been confirmed.
        confirmed = LeaseConfirmation(self.heartbeat.confirm).context()
        self._tasks = [self._run_service(service, confirmed.copy()) for service in started]
        self.emit(NodeStarted(self.node.incarnation, self.node.kind.value, self.node.name))

    def _run_service(self, service: Service, context: Context) -> asyncio.Task[None]:
        task = self._loop.create_task(service.run(), name=service.name, context=context)
        task.add_done_callback(partial(self._on_service_ended, service))
        return task

    def end(self) -> None:
        """Ask this life to leave."""
        self._ended.set()

    def hurry(self) -> None:
        """Do not wait for what runs; nothing does, unless a kind of life says so."""

    def _on_lost(self, reason: str) -> None:
        self._lost_reason = reason
        self._loop.call_soon_threadsafe(self._ended.set)

    async def run(self) -> bool:
        """Live until asked to leave, or lost; True if it was lost."""
        await self.start()
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            # Its services and its heart would go on without it.
            await self.drop("the task of the node was cancelled")
            raise
        if self._lost_reason is not None:
            await self.drop(self._lost_reason)
            return True
        await self.leave()
        return False

    def _on_service_ended(self, service: Service, task: asyncio.Task[None]) -> None:
        """A service ends with its life, or when it is told to: a life in which one is missing otherwise is lost."""
        if not self._ended.is_set() and not service.is_stopping:
            self._on_lost(_exit_reason(task))

    async def drop(self, reason: str) -> None:
        """The lease is gone: let go of everything at once, and write nothing."""
        self.emit(NodeLost(self.node.incarnation, self.node.kind.value, reason))
        await self._cut_services()
        self.heartbeat.stop()

    async def leave(self) -> None:
        """Leave in good order."""
        given_back = await self.wind_down()
        await self._cut_services()
        self.heartbeat.stop()
        await asyncio.wait([asyncio.ensure_future(self._deregister())], timeout=_DEREGISTER_SECONDS)
        self.emit(NodeStopped(self.node.incarnation, self.node.kind.value, given_back))

    async def _deregister(self) -> None:
        try:
            await self.store.nodes.remove(self.node.incarnation)
            await self.store.notifier.flush()
        except StoreError:
            # Then the lease will run out by itself.
            pass

    async def wind_down(self) -> int:
        """What there is to do before the services stop; returns how many executions were given back."""
        return 0

    async def _cut_services(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # A statement that nobody answers cannot be called off at once; it is not waited for.
            await asyncio.wait(self._tasks, timeout=_DEREGISTER_SECONDS)
        await self.listener.hang_up()


def _exit_reason(task: asyncio.Task[None]) -> str:
    """How a service ended that should not have."""
    if task.cancelled():
        return f"the task of the {task.get_name()} was cancelled, by a handler most likely"
    error = task.exception()
    return f"the {task.get_name()} ended" + (f": {type(error).__name__}: {error}" if error is not None else "")


# Hears hints. A deaf node is only slower: every service polls as well.
#
# The listener subscribes first and then says "look everywhere", so nothing falls between; it probes its connection, because one that was
# cut in silence looks like a quiet one.

_CHANNEL = "timeball"
_PROBE_SECONDS = 5.0
_PROBE_TIMEOUT = 3.0
_LISTEN_INTERVAL = timedelta(seconds=1)


class Listener(Service):
    """Hands every hint of the channel to `heed`."""

    def __init__(self, env: Env, emit: Emit, store: Store, on_wakeup: Callable[[Wakeup], None]) -> None:
        super().__init__(env, emit)
        self._store = store
        self._heed = on_wakeup
        self._connection: Any = None
        self._next_probe = 0.0

    @property
    def is_listening(self) -> bool:
        """Whether hints are heard, as far as is known; never behind PgBouncer, where nobody listens."""
        return self._connection is not None

    async def tick(self) -> timedelta:
        try:
            if self._connection is None:
                await self._subscribe()
            elif self.is_time(self._next_probe):
                await self._probe()
        except Exception as error:
            await self.hang_up()
            self.emit(ListenerChanged(False, f"{type(error).__name__}: {error}"))
            raise StoreUnavailable(f"the listener's connection failed: {str(error) or type(error).__name__}") from error
        return _LISTEN_INTERVAL

    async def _subscribe(self) -> None:
        self._connection = await self._store.database.connect()
        await self._connection.add_listener(_CHANNEL, self._on_notification)
        self._plan_probe()
        self.emit(ListenerChanged(True))
        self._heed(Wakeup(nodes_changed=True, look_everywhere=True))

    async def _probe(self) -> None:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            await self._connection.execute("SELECT 1")
        self._plan_probe()

    def _plan_probe(self) -> None:
        self._next_probe = self.env.clock.monotonic() + _PROBE_SECONDS

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heed(Wakeup.decode(payload))

    async def hang_up(self) -> None:
        """Give the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
