"""A node from registration to exit: its services, its lease, its listener, and the order in which they stop.

A service is a loop of a node. It does one round in `tick` and says how long to rest; `Service` owns waiting, waking, errors and stopping.

A node ends in one of two ways. It *leaves*: its services stop, what it held is given back, its row is removed. Or it is *lost*: its
lease ran out or one of its services ended, and it lets go of everything at once, because other nodes may hold it by now. The
supervisor then starts another node in its place.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from timeball.brokers.base import BrokerHealth
from timeball.config.life_signs import LifeSign
from timeball.domain.node import Node
from timeball.domain.wakeup import Wakeup
from timeball.engine.lease import Heartbeat
from timeball.env import Env
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.db.pool import LeaseConfirmation
from timeball.telemetry.events import (
    Emit,
    ListenerChanged,
    NodeLost,
    NodeStarted,
    NodeStopped,
    ServiceFailed,
    ServiceRecovered,
)

if TYPE_CHECKING:
    from timeball.engine.worker.attempts import Slots
    from timeball.store.store import Store

AT_ONCE = timedelta(0)
LONGEST_REST = timedelta(seconds=1)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
# The shared timer wakes a service up to this much before its time. The service acts then: the next beat would be a second late.
_EARLY_SECONDS = 0.1


class Signal:
    """Tells its subscribers that something has happened, in the order of their subscription."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], object]] = []

    def subscribe(self, subscriber: Callable[[], object]) -> None:
        """Call *subscriber* at each `send` from now on."""
        self._subscribers.append(subscriber)

    def send(self) -> None:
        """It has happened."""
        for subscriber in self._subscribers:
            subscriber()


class SharedTimer:
    """Wakes all resting services of a node once a second, so that none rests for longer.

    *phase* is the part of a second before the first beat. It differs by node: nodes that start together must not query the database
    at the same moments for ever.
    """

    def __init__(self, phase: float = 1.0) -> None:
        self._phase = phase
        self._resting: dict[asyncio.Event, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, woken: asyncio.Event) -> None:
        """Wait until the event is set: by the next beat, or by anything else before that."""
        self._resting[woken] = None
        if self._timer is None:
            self._schedule_strike(self._phase * LONGEST_REST)
        try:
            await woken.wait()
        finally:
            self._resting.pop(woken, None)

    def _schedule_strike(self, rest: timedelta) -> None:
        self._timer = asyncio.get_running_loop().call_later(rest.total_seconds(), self._strike)

    def _strike(self) -> None:
        self._timer = None
        resting, self._resting = self._resting, {}
        if resting:
            # Scheduled now, before the services run: otherwise each beat would be late by what they do.
            self._schedule_strike(LONGEST_REST)
        for woken in resting:
            woken.set()


class Service:
    """Runs `tick` again and again until stopped. An error pauses the service; it does not end it."""

    def __init__(self, env: Env, emit: Emit) -> None:
        self.env = env
        self.emit = emit
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failures = 0
        self.is_stopping = False
        self._timer = SharedTimer()

    @property
    def name(self) -> str:
        """What logs call this service."""
        return type(self).__name__.lower()

    async def tick(self) -> timedelta:
        """Do one round, and say how long to rest before the next."""
        raise NotImplementedError  # pragma: no cover

    def is_time(self, at: float) -> bool:
        """Whether this moment (monotonic) has come, or is so near that the next beat would be too late."""
        return self.env.clock.monotonic() >= at - _EARLY_SECONDS

    def wake(self) -> None:
        """End the present rest, or skip the next one."""
        self._woken.set()

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Hear a wake-up of the channel; a service that wake-ups concern says here which ones, and what it does then."""

    def stop(self) -> None:
        """Let the present round be the last one."""
        self.is_stopping = True
        self._woken.set()
        self._stopped.set()

    async def run(self, timer: SharedTimer | None = None) -> None:
        """Tick until stopped; *timer* is the one of the node."""
        self._timer = timer or self._timer
        while not self.is_stopping:
            self._woken.clear()
            rest = await self._one_round()
            if not self.is_stopping:
                await self._rest(min(rest, LONGEST_REST))

    async def _one_round(self) -> timedelta:
        try:
            rest = await self.tick()
        except Exception as error:
            # `wake` does not end this pause: a busy service would meet the same error over and over.
            await self._pause_after_error(self._after_error(error))
            return AT_ONCE
        if self._failures:
            self.emit(ServiceRecovered(self.name, self._failures))
            self._failures = 0
        return rest

    def _after_error(self, error: Exception) -> timedelta:
        self._failures += 1
        longest = min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 10), _LONGEST_PAUSE)
        pause = timedelta(seconds=longest * (0.5 + self.env.random.random() / 2))
        # The stack says nothing new when the database cannot be reached.
        trace = None if isinstance(error, StoreUnavailable) else traceback.format_exc()
        self.emit(ServiceFailed(self.name, f"{type(error).__name__}: {error}", pause, trace, self._failures))
        return pause

    async def _rest(self, rest: timedelta) -> None:
        if rest <= AT_ONCE:
            # Even a service that never rests lets the others run.
            await asyncio.sleep(0)
            return
        if rest >= LONGEST_REST:
            await self._timer.wait(self._woken)
            return
        # `asyncio.timeout` would do the same, but the claimer would take twice as long to wake up.
        alarm = asyncio.get_running_loop().call_later(rest.total_seconds(), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    async def _pause_after_error(self, pause: timedelta) -> None:
        try:
            async with asyncio.timeout(pause.total_seconds()):
                await self._stopped.wait()
        except TimeoutError:
            return


_DEREGISTER_SECONDS = 2.0
_CHANNEL = "timeball"
_PROBE_SECONDS = 5.0
_PROBE_TIMEOUT = 3.0
_LISTEN_INTERVAL = timedelta(seconds=1)


class LoopMonitor(Service):
    """Shows the heartbeat that the node's event loop turns."""

    def __init__(self, env: Env, emit: Emit, heartbeat: Heartbeat) -> None:
        super().__init__(env, emit)
        self._heartbeat = heartbeat

    async def tick(self) -> timedelta:
        self._heartbeat.note_loop_alive()
        return LONGEST_REST


class BaseNode:
    """What schedulers and workers share; each adds its services. *slots* and *broker* are reported with every renewal of the lease."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        store: Store,
        node: Node,
        slots: Slots | None = None,
        broker: BrokerHealth | None = None,
        life_sign: LifeSign | None = None,
    ) -> None:
        self.env = env
        self.emit = emit
        self.store = store
        self.node = node
        # Only workers have peers, of which a renewal brings news.
        self._has_peers = slots is not None
        self._lost_reason: str | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self.heartbeat = Heartbeat(env, emit, store, node, self._on_lost, self._on_drain, slots, broker, life_sign)
        self.listener = Listener(env, emit, store, self.on_wakeup)

    def services(self) -> Sequence[Service]:
        """The services of this node, in the order of their start."""
        raise NotImplementedError  # pragma: no cover

    @cached_property
    def _hearing(self) -> list[Service]:
        """The services that wake-ups concern."""
        return [service for service in self.services() if type(service).on_wakeup is not Service.on_wakeup]

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Pass a wake-up on to the services."""
        for service in self._hearing:
            service.on_wakeup(wakeup)
        if wakeup.nodes_changed and self._has_peers:
            self.heartbeat.renew_soon()

    async def start(self) -> None:
        """Register the node and start its services."""
        await self.heartbeat.start()
        started = [LoopMonitor(self.env, self.emit, self.heartbeat), *self.services()]
        if not self.store.database.behind_pgbouncer:
            # In transaction mode a subscription would belong to the session of another client. There, polling has to do.
            started.append(self.listener)
        timer = SharedTimer(self.env.random.random())
        # The services use a connection only after the lease has been confirmed over it.
        confirmed = LeaseConfirmation(self.heartbeat.confirm).context()
        self._tasks = [self._run_service(service, timer, confirmed.copy()) for service in started]
        self.emit(NodeStarted(self.node.incarnation, self.node.kind.value, self.node.name))

    def _run_service(self, service: Service, timer: SharedTimer, context: Context) -> asyncio.Task[None]:
        task = self._loop.create_task(service.run(timer), name=service.name, context=context)
        task.add_done_callback(partial(self._on_service_ended, service))
        return task

    def end(self) -> None:
        """Ask this node to leave."""
        self._ended.set()

    def hurry(self) -> None:
        """Do not wait for running attempts."""

    def _on_drain(self) -> None:
        self._loop.call_soon_threadsafe(self.end)

    def _on_lost(self, reason: str) -> None:
        self._lost_reason = reason
        self._loop.call_soon_threadsafe(self._ended.set)

    async def run(self) -> bool:
        """Run until asked to leave, or lost; True if the node was lost."""
        await self.start()
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            # The services and the heartbeat would go on without this task.
            await self.abandon("the task of the node was cancelled")
            raise
        if self._lost_reason is not None:
            await self.abandon(self._lost_reason)
            return True
        await self.leave()
        return False

    def _on_service_ended(self, service: Service, task: asyncio.Task[None]) -> None:
        """A service ends with its node, or when it is stopped. If it ends otherwise, the node is lost."""
        if not self._ended.is_set() and not service.is_stopping:
            self._on_lost(_exit_reason(task))

    async def abandon(self, reason: str) -> None:
        """The lease is lost: let go of everything at once, and write nothing."""
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
            # The lease will run out by itself.
            pass

    async def wind_down(self) -> int:
        """Called before the services are stopped; returns how many executions were given back."""
        return 0

    async def _cut_services(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # A statement that gets no answer cannot be cancelled at once. It is not waited for any longer.
            await asyncio.wait(self._tasks, timeout=_DEREGISTER_SECONDS)
        await self.listener.disconnect()


def _exit_reason(task: asyncio.Task[None]) -> str:
    """How a service ended that should not have."""
    if task.cancelled():
        return f"the task of the {task.get_name()} was cancelled, by a handler most likely"
    error = task.exception()
    return f"the {task.get_name()} ended" + (f": {type(error).__name__}: {error}" if error is not None else "")


class Listener(Service):
    """Hands every wake-up of the channel to `on_wakeup`. A node without one is only slower: every service polls as well.

    The listener subscribes first and then says "look everywhere", so that nothing is missed in between. It probes its connection, because
    one that was cut in silence looks like a quiet one.
    """

    def __init__(self, env: Env, emit: Emit, store: Store, on_wakeup: Callable[[Wakeup], None]) -> None:
        super().__init__(env, emit)
        self._store = store
        self._on_wakeup = on_wakeup
        self._connection: Any = None
        self._next_probe = 0.0

    @property
    def is_listening(self) -> bool:
        """Whether wake-ups arrive, as far as is known; never behind PgBouncer, where no node listens."""
        return self._connection is not None

    async def tick(self) -> timedelta:
        try:
            if self._connection is None:
                await self._subscribe()
            elif self.is_time(self._next_probe):
                await self._probe()
        except Exception as error:
            await self.disconnect()
            self.emit(ListenerChanged(False, f"{type(error).__name__}: {error}"))
            raise StoreUnavailable(f"the listener's connection failed: {str(error) or type(error).__name__}") from error
        return _LISTEN_INTERVAL

    async def _subscribe(self) -> None:
        self._connection = await self._store.database.connect()
        await self._connection.add_listener(_CHANNEL, self._on_notification)
        self._plan_probe()
        self.emit(ListenerChanged(True))
        self._on_wakeup(Wakeup(nodes_changed=True, look_everywhere=True))

    async def _probe(self) -> None:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            await self._connection.execute("SELECT 1")
        self._plan_probe()

    def _plan_probe(self) -> None:
        self._next_probe = self.env.clock.monotonic() + _PROBE_SECONDS

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._on_wakeup(Wakeup.decode(payload))

    async def disconnect(self) -> None:
        """Give the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
