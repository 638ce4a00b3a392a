"""Running plain functions in threads.

A thread cannot be ended from outside. A handler that is halted can see it (`current.cancelled`) and has a short grace
to end by itself; then its attempt is given up with the outcome the halt asks for, while the thread goes on as *overrunning*.
It keeps its place in the pool, so its slot must not be filled again until `on_freed` is called.
The threads are daemons: one that never ends does not keep the process from leaving.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import SimpleQueue
from threading import Thread, current_thread
from types import FrameType

from timeball.current import RUNNING, RunContext, end_forked_copy
from timeball.domain.execution import Claimed, Outcome
from timeball.domain.handler import Handler
from timeball.runners.coroutine import invoke
from timeball.runners.error_report import describe_interruption
from timeball.runners.verdict import outcome_of_error, outcome_of_halt, outcome_of_return, settle, without_room

GRACE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Overrun:
    """A thread that still runs an attempt which was given up."""

    claimed: Claimed
    since: datetime
    thread: str


class ThreadRunner:
    """A pool of at most *threads* threads, each started when first needed."""

    def __init__(self, threads: int, *, grace: timedelta = GRACE) -> None:
        self._limit = threads
        self._grace = grace
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._unfinished = 0
        self._overrunning: dict[_Call, datetime] = {}
        self._waits: set[asyncio.Task[None]] = set()
        # Called on the loop when a thread that overran has ended after all.
        self.on_freed: Callable[[], None] = lambda: None

    @property
    def overrunning(self) -> tuple[Overrun, ...]:
        """The threads that run what was given up already; each still takes a slot."""
        if not self._overrunning:
            return ()
        return tuple(
            Overrun(call.context.claimed, since, call.thread.name)
            for call, since in self._overrunning.items()
            if call.thread is not None
        )

    async def run(self, handler: Handler, context: RunContext) -> Outcome:
        """Run the handler in a thread; given up, it goes on there as overrunning."""
        if context.is_halted:
            return outcome_of_halt(context)
        call = _Call(handler, context)
        context.on_halt = lambda: self._grant_grace(call)
        try:
            self._submit(call)
        except RuntimeError as error:
            context.on_halt = None
            return settle(context, without_room(error))
        try:
            return await call.settled
        except asyncio.CancelledError:
            self._overrunning[call] = context.clock.now()
            raise
        finally:
            context.on_halt = None

    async def stop(self) -> None:
        """Let the idle threads end. One that is busy ends with its handler, or with the process."""
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
                # The machine has no thread left; those there are will come to it, if there are any.
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
                # The loop was closed while the handler overran; nobody waits for the outcome any more.
                return

    def _end(self, call: _Call, outcome: Outcome) -> None:
        self._unfinished -= 1
        if not call.settled.done():
            call.settled.set_result(settle(call.context, outcome))
        if self._overrunning.pop(call, None) is not None:
            self.on_freed()

    def _grant_grace(self, call: _Call) -> None:
        wait = asyncio.get_running_loop().create_task(self._give_up(call))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    async def _give_up(self, call: _Call) -> None:
        await call.context.clock.sleep(self._grace.total_seconds())
        if call.settled.done():
            return
        error = describe_interruption("Overrun", "the thread goes on", call.frame())
        self._overrunning[call] = call.context.clock.now()
        call.settled.set_result(outcome_of_halt(call.context, error))


class _Call:
    """One attempt on its way through the pool."""

    __slots__ = ("context", "handler", "loop", "scope", "settled", "thread")

    def __init__(self, handler: Handler, context: RunContext) -> None:
        self.handler = handler
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[Outcome] = self.loop.create_future()
        self.scope: Context = copy_context()
        self.scope.run(RUNNING.set, context)
        self.thread: Thread | None = None

    def perform(self) -> Outcome:
        """Run the handler in this thread, whatever it does."""
        self.thread = current_thread()
        if self.context.is_halted:
            return outcome_of_halt(self.context)
        try:
            outcome = outcome_of_return(self.scope.run(invoke, self.handler, self.context.claimed.payload))
        except BaseException as error:
            end_forked_copy(self.context)
            return outcome_of_error(error, self.handler.options.no_retry)
        end_forked_copy(self.context)
        return outcome

    def frame(self) -> FrameType | None:
        """Where the handler is just now."""
        ident = None if self.thread is None else self.thread.ident
        return None if ident is None else sys._current_frames().get(ident)
