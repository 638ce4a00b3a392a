"""What runs: attempts, and the tasks they run in.

A handler that never waits needs no task of its own, and a task costs more than many a handler does. So one task, the *relay*, runs
attempts one after the other. When the event loop turns while an attempt is in the middle of the relay, that attempt waits for
something: the task is its own from then on, and further attempts of its handler get one each, until one comes through without waiting.
A task is handed on only as it was received: an attempt that left context variables behind, or asked for its cancellation, was its last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from datetime import datetime

from timeball.current import Halt, RunContext
from timeball.domain.execution import Claimed, ErrorInfo, Failed, Outcome
from timeball.domain.handler import Handler, RunStyle
from timeball.domain.ids import ExecutionId
from timeball.domain.text import clean
from timeball.engine.deadlines import DeadlineWheel
from timeball.env import Env
from timeball.runners.interface import Runner

# How long attempts may follow each other before the event loop gets a turn.
_STRETCH_SECONDS = 0.001

Ready = tuple[Handler, RunContext]


class Attempts:
    """Runs attempts, each to its outcome."""

    def __init__(self, env: Env, runners: Mapping[RunStyle, Runner]) -> None:
        self._env = env
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        # What every attempt begins with: tasks are made in the middle of others, whose variables are none of its business.
        self._context = copy_context()
        self._wheel = DeadlineWheel(env.clock)
        self._running: dict[ExecutionId, RunContext] = {}
        # Handlers whose last attempt waited for something.
        self._slow: set[str] = set()
        self._begun_last: RunContext | None = None
        self._relay: asyncio.Task[None] | None = None
        self._in_relay: RunContext | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        # What is to be run next; None if nothing can be begun now.
        self.next_ready: Callable[[], Ready | None] = lambda: None
        # Called with every attempt that has ended; and when places have become free.
        self.on_ended: Callable[[Handler, RunContext, Outcome, datetime], None] = lambda *_: None
        self.on_room: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._running)

    def find(self, execution_id: ExecutionId) -> RunContext | None:
        """The attempt at an execution, if it is running."""
        return self._running.get(execution_id)

    def unfinished(self) -> Sequence[Claimed]:
        """What is still running."""
        return [context.claimed for context in self._running.values()]

    def begin(self) -> None:
        """Begin what can be begun; the relay, while it is under way, does so by itself."""
        while self._relay is None and (ready := self.next_ready()) is not None:
            self._begin(ready)

    def _begin(self, ready: Ready) -> None:
        handler, context = ready
        if handler.style is RunStyle.COROUTINE and handler.name not in self._slow:
            self._relay = task = self._loop.create_task(self._run_relay(ready), context=self._context.copy())
            self._loop.call_soon(self._turned)
        else:
            task = self._loop.create_task(self._run_alone(ready), context=self._context.copy())
            self._time(context)
        self._take(context, task)
        self._idle.clear()

    def _take(self, context: RunContext, task: asyncio.Task[None]) -> None:
        context.task = task
        self._running[context.claimed.id] = context

    def _time(self, context: RunContext) -> None:
        if context.claimed.timeout_ms is not None:
            self._wheel.add(context, context.claimed.timeout_ms / 1000)

    # alone

    async def _run_alone(self, ready: Ready) -> None:
        handler, context = ready
        self._begun_last = context
        await self._attempt(handler, context)
        if self._begun_last is context:
            # Nothing else was begun meanwhile: it did not wait, or nobody minded.
            self._slow.discard(handler.name)
        self._after_end()

    def _after_end(self) -> None:
        if not self._running and self._relay is None:
            self._idle.set()
        if not self._is_closed:
            self.begin()
            self.on_room()

    # the relay

    async def _run_relay(self, first: Ready) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._run_in_turn(first, task)
        finally:
            if self._relay is task:
                self._relay = self._in_relay = None
        self._after_end()

    async def _run_in_turn(self, first: Ready, task: asyncio.Task[None]) -> None:
        ready: Ready | None = first
        ends_at = self._env.clock.monotonic() + _STRETCH_SECONDS
        while ready is not None:
            handler, context = ready
            self._in_relay = context
            await self._attempt(handler, context)
            # Whoever has waited has kept the task; the relay went on without it.
            if self._in_relay is not context or task.cancelling() or copy_context() != self._context:
                return
            self._in_relay = None
            if self._env.clock.monotonic() >= ends_at:
                await self._let_the_loop_turn()
                ends_at = self._env.clock.monotonic() + _STRETCH_SECONDS
            ready = self._next_in_relay(task)

    async def _let_the_loop_turn(self) -> None:
        self.on_room()
        await asyncio.sleep(0)
        self._loop.call_soon(self._turned)

    def _next_in_relay(self, task: asyncio.Task[None]) -> Ready | None:
        """The next one that is likely not to wait; others are begun apart."""
        while (ready := self.next_ready()) is not None:
            handler, context = ready
            if handler.style is RunStyle.COROUTINE and handler.name not in self._slow:
                self._take(context, task)
                return ready
            self._begin(ready)
        return None

    def _turned(self) -> None:
        """The loop turns. If an attempt is in the middle of the relay, it waits: it keeps the task, and others may begin."""
        context = self._in_relay
        if context is None:
            return
        self._in_relay = self._relay = None
        self._slow.add(context.claimed.handler)
        self._time(context)
        self.begin()

    # one attempt

    async def _attempt(self, handler: Handler, context: RunContext) -> None:
        claimed = context.claimed
        # The database said that the instant had come; our reading of its clock may lag behind by its uncertainty.
        now = self._env.clock.now()
        started_at = now if now > claimed.run_at else claimed.run_at
        try:
            outcome = await self._runners[handler.style].run(handler, context)
        except asyncio.CancelledError:
            message = "the handler cancelled the task it ran in"
            outcome = Failed(ErrorInfo(type="CancelledError", message=message, fingerprint="cancelled-itself"))
        except Exception as error:
            # Not the handler's error but its runner's. It must not end the task: the slot would be lost, and the outcome with it.
            message = f"the attempt could not be run: {clean(error)}"
            outcome = Failed(ErrorInfo(type=type(error).__name__, message=message, fingerprint="runner-failed"))
        if self._is_closed:
            return
        self._wheel.remove(context)
        self._running.pop(claimed.id, None)
        self.on_ended(handler, context, outcome, started_at)

    # ending

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if something still does after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def halt_all(self, why: Halt, reason: str) -> None:
        """Ask everything that runs to stop."""
        for context in list(self._running.values()):
            context.halt(why, reason)

    def abandon(self, reason: str) -> None:
        """Cut everything off; no outcome is told any more."""
        self._is_closed = True
        for context in list(self._running.values()):
            context.halt(Halt.SHUTDOWN, reason)
            if context.task is not None:
                context.task.cancel()
        if self._relay is not None:
            self._relay.cancel()
        self._running.clear()
        self._idle.set()
