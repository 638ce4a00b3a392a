"""Starts the nodes of a process, restarts those that lost their lease, and stops workers before schedulers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from timeball.engine.node import BaseNode
from timeball.env import Env
from timeball.errors import StoreError
from timeball.telemetry.events import Emit, ServiceFailed

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0
# A node that ran for so long says nothing about the next one.
_STEADY_SECONDS = 60.0

NodeFactory = Callable[[], BaseNode]


class Supervisor:
    """Runs nodes of this process until it is told to stop."""

    def __init__(self, env: Env, emit: Emit, workers: Sequence[NodeFactory], schedulers: Sequence[NodeFactory]) -> None:
        self._env = env
        self._emit = emit
        self._workers = [_SupervisedNode(env, emit, make) for make in workers]
        self._schedulers = [_SupervisedNode(env, emit, make) for make in schedulers]
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Leave in good order; called a second time, leave at once."""
        if self._stopping.is_set():
            for node in self._workers:
                node.hurry()
        self._stopping.set()

    async def run(self) -> None:
        """Run all nodes; returns when they have left, because they were stopped or drained."""
        if self._stopping.is_set():
            return
        workers = [asyncio.ensure_future(node.run()) for node in self._workers]
        schedulers = [asyncio.ensure_future(node.run()) for node in self._schedulers]
        try:
            await self._run(workers, schedulers)
        finally:
            # If one node fails or is cancelled, the others end with it.
            left = [task for task in (*workers, *schedulers) if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def _run(self, workers: Sequence[asyncio.Future[None]], schedulers: Sequence[asyncio.Future[None]]) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((stopping, *_stop_in_order([*workers, *schedulers])), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for node in self._workers:
            node.stop()
        await asyncio.gather(*workers)
        for node in self._schedulers:
            node.stop()
        await asyncio.gather(*schedulers)


def _stop_in_order(nodes: Sequence[asyncio.Future[None]]) -> Sequence[asyncio.Future[Any]]:
    """A future for the end of all nodes, or for the first failure; nothing if there are no nodes."""
    if not nodes:
        return ()
    all_of_them = asyncio.gather(*nodes)
    # Each node is asked for its own error. The error of the whole need not be reported as well.
    all_of_them.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return (all_of_them,)


class _SupervisedNode:
    """One node, and the nodes that follow it when it is lost."""

    def __init__(self, env: Env, emit: Emit, node_factory: NodeFactory) -> None:
        self._env = env
        self._emit = emit
        self._make_node = node_factory
        self._node: BaseNode | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        if self._node is not None:
            self._node.end()

    def hurry(self) -> None:
        if self._node is not None:
            self._node.hurry()

    async def run(self) -> None:
        """Start a new node whenever one was lost, until stopped or asked to drain."""
        failures = 0
        while not self._stopping.is_set():
            began = self._env.clock.monotonic()
            try:
                self._node = self._make_node()
                if not await self._node.run():
                    return
                error = None
            except StoreError as raised:
                error = raised
            if self._env.clock.monotonic() - began >= _STEADY_SECONDS:
                failures = 0
            pause = min(_FIRST_PAUSE * 2 ** min(failures, 10), _LONGEST_PAUSE)
            failures += 1
            if error is not None:
                message = f"{type(error).__name__}: {error}"
                self._emit(ServiceFailed("node", message, timedelta(seconds=pause), failures=failures))
            await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
