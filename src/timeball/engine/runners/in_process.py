"""Runs coroutine handlers on the event loop and plain functions in threads."""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from types import FrameType
from typing import Any

from timeball.current import RUNNING, AttemptContext, end_forked_copy
from timeball.domain.execution import ClaimedExecution, Outcome
from timeball.domain.handler import Handler
from timeball.engine.node import Signal
from timeball.engine.runners.interrupt import RETRY_SECONDS, ThreadInterrupt, error_of_halt
from timeball.engine.runners.outcome import (
    describe_interruption,
    outcome_of_error,
    outcome_of_exhaustion,
    outcome_of_halt,
    outcome_of_return,
    settle,
)
from timeball.handlers.registry import invoke


class CoroutineRunner:
    """Awaits the handler's coroutine in the caller's task."""

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        """Await the handler. A halt cancels what it awaits; one that swallows that keeps its slot until it returns."""
        if context.halted is not None:
            return outcome_of_halt(context)
        task = context.task or asyncio.current_task()
        assert task is not None
        token = RUNNING.set(context)
        context.interrupt_by(partial(context.cancel_task, task))
        try:
            outcome = outcome_of_return(await invoke(handler, context.payload))
        except BaseException as error:
            end_forked_copy(context)
            if isinstance(error, asyncio.CancelledError) and task.cancelling() and not context.is_halted:
                raise
            outcome = outcome_of_error(error, handler, context)
        else:
            end_forked_copy(context)
        finally:
            context.interrupt_by(None)
            RUNNING.reset(token)
        if context.has_noticed:
            _take_back_interrupt(task)
        return settle(context, outcome)

    async def stop(self) -> None:
        """There is nothing to free."""


def _take_back_interrupt(task: asyncio.Task[Any]) -> None:
    if task.uncancel():
        # The task itself was cancelled, too.
        raise asyncio.CancelledError


@dataclass(frozen=True, slots=True)
class Overrun:
    """A thread that still runs an attempt which was given up."""

    claimed: ClaimedExecution
    since: datetime
    thread: str


class ThreadRunner:
    """Runs plain functions in a pool of at most *threads* threads, each started when first needed.

    A thread cannot be ended from outside. A handler that is halted can see it (`current.cancelled`) and has a grace to end by itself;
    one with `interrupt` gets an error in its code. After the grace its attempt is given up with the outcome that the halt asks for,
    while the thread goes on as *overrunning*. It keeps its place in the pool, so its slot must not be filled again until `freed` is
    sent. The threads are daemons: one that never ends does not keep the process from exiting.
    """

    def __init__(self, threads: int, *, grace: timedelta | None = None) -> None:
        self._limit = threads
        # In place of the grace that handlers have.
        self._grace = grace
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._unfinished = 0
        self._overrunning: dict[_Call, datetime] = {}
        self._waits: set[asyncio.Task[None]] = set()
        # Sent on the loop when a thread that overran has ended after all.
        self.freed = Signal()

    @property
    def overrunning(self) -> tuple[Overrun, ...]:
        """The threads whose attempt was given up; each still takes a slot."""
        if not self._overrunning:
            return ()
        return tuple(
            Overrun(call.context.claimed, since, call.thread.name)
            for call, since in self._overrunning.items()
            if call.thread is not None
        )

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        """Run the handler in a thread."""
        if context.is_halted:
            return outcome_of_halt(context)
        call = _Call(handler, context)
        context.interrupt_by(lambda: self._grant_grace(call))
        try:
            self._submit(call)
        except RuntimeError as error:
            context.interrupt_by(None)
            return settle(context, outcome_of_exhaustion(error))
        try:
            return await call.settled
        except asyncio.CancelledError:
            self._overrunning[call] = context.clock.now()
            raise
        finally:
            context.interrupt_by(None)

    async def stop(self) -> None:
        """Let idle threads end. A busy thread ends with its handler, or with the process."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _submit(self, call: _Call) -> None:
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self._limit:
            thread = Thread(target=self._serve, name=f"timeball-handler-{len(self._threads) + 1}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The machine has no thread left; the threads of the pool will run the call, if there are any.
                if not self._threads:
                    self._unfinished -= 1
                    raise
            else:
                self._threads.append(thread)
        self._calls.put(call)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            outcome = call.perform()
            try:
                call.loop.call_soon_threadsafe(self._end, call, outcome)
            except RuntimeError:
                # The loop was closed while the handler overran: the outcome is not wanted any more.
                return

    def _end(self, call: _Call, outcome: Outcome) -> None:
        self._unfinished -= 1
        if not call.settled.done():
            call.settled.set_result(settle(call.context, outcome))
        if self._overrunning.pop(call, None) is not None:
            self.freed.send()

    def _grant_grace(self, call: _Call) -> None:
        wait = asyncio.get_running_loop().create_task(self._give_up(call))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    async def _give_up(self, call: _Call) -> None:
        context = call.context
        seconds = (call.handler.grace if self._grace is None else self._grace).total_seconds()
        ends_at = context.clock.monotonic() + seconds
        if call.interrupt is not None:
            error = error_of_halt(context.halted)
            while not call.settled.done() and not call.interrupt.send(error) and context.clock.monotonic() < ends_at:
                await context.clock.sleep(RETRY_SECONDS)
        await context.clock.sleep(max(ends_at - context.clock.monotonic(), 0))
        if call.settled.done():
            return
        overrun = describe_interruption("Overrun", "the thread goes on", call.frame())
        self._overrunning[call] = context.clock.now()
        call.settled.set_result(outcome_of_halt(context, overrun))


class _Call:
    """One attempt that waits for a thread, or runs in one."""

    __slots__ = ("context", "handler", "interrupt", "loop", "scope", "settled", "thread")

    def __init__(self, handler: Handler, context: AttemptContext) -> None:
        self.handler = handler
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[Outcome] = self.loop.create_future()
        self.scope: Context = copy_context()
        self.scope.run(RUNNING.set, context)
        self.thread: Thread | None = None
        self.interrupt = ThreadInterrupt() if handler.options.interrupt else None

    def perform(self) -> Outcome:
        """Run the handler in this thread; never raises."""
        self.thread = current_thread()
        if self.context.is_halted:
            return outcome_of_halt(self.context)
        try:
            outcome = outcome_of_return(self._call())
        except BaseException as error:
            end_forked_copy(self.context)
            return self.scope.run(outcome_of_error, error, self.handler, self.context)
        end_forked_copy(self.context)
        return outcome

    def _call(self) -> Any:
        handler, payload = self.handler, self.context.payload
        if self.interrupt is None:
            return self.scope.run(invoke, handler, payload)
        return self.scope.run(self.interrupt.call, partial(invoke, handler, payload))

    def frame(self) -> FrameType | None:
        """Where the handler is now."""
        ident = None if self.thread is None else self.thread.ident
        return None if ident is None else sys._current_frames().get(ident)
