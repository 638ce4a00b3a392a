"""One life of a node: its lease, its services, and the order of their end.

A life ends in one of two ways. It leaves: its services stop, what it held is given back, its row is removed. Or it is lost: the
lease ran out, or one of its services ended, and everything is dropped where it stands, because others may hold it by now. Then the
node begins another life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from datetime import timedelta
from functools import partial

from timeball.domain.events import Emit, NodeLost, NodeStarted, NodeStopped
from timeball.domain.hints import Hints
from timeball.domain.node import Node
from timeball.engine.heartbeat import Heartbeat
from timeball.engine.listener import Listener
from timeball.engine.service import LONGEST_REST, Beat, Service
from timeball.env import Env
from timeball.errors import StoreError
from timeball.store.interface import Confirmation, Store

_FAREWELL_SECONDS = 2.0


class LoopWatch(Service):
    """Shows the heartbeat that the node's loop turns."""

    def __init__(self, env: Env, emit: Emit, heartbeat: Heartbeat) -> None:
        super().__init__(env, emit)
        self._heartbeat = heartbeat

    async def tick(self) -> timedelta:
        self._heartbeat.loop_turned()
        return LONGEST_REST


class Life:
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
        self.listener = Listener(env, emit, store, self.heed)

    def services(self) -> Sequence[Service]:
        """The services of this life, in the order of their start."""
        raise NotImplementedError  # pragma: no cover

    def heed(self, hints: Hints) -> None:
        """Pass a hint on to whom it concerns."""
        raise NotImplementedError  # pragma: no cover

    async def start(self) -> None:
        """Register the node and start its services."""
        await self.heartbeat.start()
        started = [LoopWatch(self.env, self.emit, self.heartbeat), *self.services()]
        if not self.store.database.behind_pgbouncer:
            # In transaction mode a subscription would belong to somebody else's session: then polling has to do.
            started.append(self.listener)
        beat = Beat(self.env.random.random())
        for service in started:
            service.beat = beat
        # Whatever they say, they say only where the lease has been confirmed.
        confirmed = Confirmation(self.heartbeat.confirm).context()
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
            self._on_lost(_manner(task))

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
        await asyncio.wait([asyncio.ensure_future(self._say_farewell())], timeout=_FAREWELL_SECONDS)
        self.emit(NodeStopped(self.node.incarnation, self.node.kind.value, given_back))

    async def _say_farewell(self) -> None:
        try:
            await self.store.nodes.remove(self.node.incarnation)
            await self.store.hinter.flush()
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
            await asyncio.wait(self._tasks, timeout=_FAREWELL_SECONDS)
        await self.listener.hang_up()


def _manner(task: asyncio.Task[None]) -> str:
    """How a service ended that should not have."""
    if task.cancelled():
        return f"the task of the {task.get_name()} was cancelled, by a handler most likely"
    error = task.exception()
    return f"the {task.get_name()} ended" + (f": {type(error).__name__}: {error}" if error is not None else "")
