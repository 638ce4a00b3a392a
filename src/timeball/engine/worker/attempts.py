"""The attempts of a worker: claimed executions on their way to a slot, the slots, and the tasks that attempts run in until their timeout.

A handler that never awaits needs no task of its own, and a task costs more than many a handler. So one task, the *inline* task,
runs attempts one after the other. If the event loop turns while an attempt is in the middle of the inline task, that attempt awaits
something: it keeps the task, and further attempts of its handler get a task each, until one ends without having awaited. The inline
task is passed on only as it was received: it ends with an attempt that left context variables behind or asked for the task's
cancellation.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from typing import Protocol, runtime_checkable

from timeball.current import SLOT_LENDER, AttemptContext, StopReason
from timeball.domain.execution import ClaimedExecution, ErrorInfo, Failed, Outcome
from timeball.domain.handler import Handler, RunStyle
from timeball.domain.payload_references import REFERENCE_MARK, may_have_references
from timeball.domain.values.ids import ExecutionId
from timeball.domain.values.text import clean_text
from timeball.engine.node import Signal
from timeball.env import Clock, Env

# The longest time that a due execution may wait for a slot before the worker gives it back.
LONGEST_WAIT_SECONDS = 0.25
# A worker lends as many slots as it has, or so many if it has fewer.
_LEAST_LENT = 10


def most_lent(slots: int) -> int:
    """How many of the attempts of a worker with so many slots may lend theirs at the same time."""
    return max(slots, _LEAST_LENT)


def most_attempts(slots: int) -> int:
    """How many attempts may run at the same time in a worker with so many slots, some of which are lent."""
    return slots + most_lent(slots)


class Runner(Protocol):
    """Runs handlers, one attempt per call."""

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        """Run one attempt (`context.claimed`) to its outcome; whatever the handler does, this does not raise.

        `context.halt(...)` from outside makes it return soon, with the outcome the halt asks for.
        Only cancelling the surrounding task itself gets a `CancelledError` out of here, after cleaning up.
        """

    async def stop(self) -> None:
        """Free what the runner holds. Attempts still running are ended where that is possible."""


@runtime_checkable
class OverrunReporter(Protocol):
    """A runner whose attempts cannot always be ended."""

    # Sent when an attempt that was given up has ended after all.
    freed: Signal

    @property
    def overrunning(self) -> Sequence[object]:
        """The attempts that were given up and still run."""


class Slots:
    """How many attempts a worker runs at once, and which ones it runs now.

    An attempt that was given up and cannot be ended, a thread, keeps its slot until it ends by itself. One that waits for another run
    lends its slot, or two parents could keep their children from running for ever. It goes on as soon as that run has ended, also when
    all slots are taken: then the worker runs more attempts than it has slots, by `most_lent` at most, until others have ended.
    """

    def __init__(self, total: int, runners: Iterable[object] = ()) -> None:
        self.total = total
        self.attempts: dict[ExecutionId, AttemptContext] = {}
        # The attempts that wait for other runs, each with how many it waits for.
        self.lent: dict[AttemptContext, int] = {}
        self._most_lent = most_lent(total)
        # Sent whenever a slot may have become free.
        self.freed = Signal()
        self._overrunners = [runner for runner in runners if isinstance(runner, OverrunReporter)]
        for runner in self._overrunners:
            runner.freed.subscribe(self.freed.send)

    @property
    def busy(self) -> int:
        """How many slots are taken. Safe to read from any thread."""
        busy = len(self.attempts)
        for runner in self._overrunners:
            busy += len(runner.overrunning)
        if self.lent:
            busy -= self._given_away()
        return busy

    @property
    def running(self) -> int:
        """How many attempts run, also those that have lent their slots. Safe to read from any thread."""
        return self.busy + self._given_away()

    def _given_away(self) -> int:
        # Counted here, because an attempt that lends nothing must not pay for it when it ends.
        waiting = sum(self.attempts.get(context.claimed.id) is context for context in list(self.lent))
        return min(waiting, self._most_lent)

    def lend(self, context: AttemptContext) -> None:
        """The attempt waits for one more run."""
        # A child that was killed has not told that its wait is over.
        for ended in [one for one in self.lent if self.attempts.get(one.claimed.id) is not one]:
            del self.lent[ended]
        self.lent[context] = self.lent.get(context, 0) + 1
        self.freed.send()

    def take_back(self, context: AttemptContext) -> None:
        """The attempt waits for one run less."""
        waits = self.lent.pop(context, 0) - 1
        if waits > 0:
            self.lent[context] = waits


class StartQueue:
    """Claimed executions that have not started: *held* until their instant, then *waiting* for a slot in the order of arrival.

    A request to stop one of them is kept here until the execution would start.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: list[tuple[float, int, ClaimedExecution]] = []
        self._order = 0
        self._waiting: deque[tuple[ClaimedExecution, float]] = deque()
        self._stops: dict[ExecutionId, str] = {}
        # When held executions were last moved to the waiting ones.
        self._released_at = float("-inf")
        self._longest_wait = 0.0
        # When an execution last left the queue for a slot, and how many have.
        self.last_start = float("-inf")
        self.started = 0

    @property
    def held(self) -> int:
        """How many wait for their instant."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many are due and have no slot yet."""
        return len(self._waiting)

    @property
    def is_starting(self) -> bool:
        """Whether executions whose instant has just come still wait for their start."""
        return bool(self._waiting) and self._waiting[0][1] <= self._released_at

    @property
    def next_instant(self) -> float | None:
        """The monotonic second at which the first held execution may start."""
        return self._held[0][0] if self._held else None

    def take_longest_wait(self) -> float:
        """The longest time in seconds that a due execution waited for its slot since the last call."""
        longest, self._longest_wait = self._longest_wait, 0.0
        return longest

    def add(self, claims: Iterable[ClaimedExecution]) -> None:
        """Let the due ones wait for a slot, and hold the others."""
        now = self._clock.monotonic()
        for claimed in claims:
            if claimed.stop is not None:
                self._stops[claimed.id] = claimed.stop
            earliest = self._clock.earliest(claimed.run_at)
            if earliest <= now:
                self._waiting.append((claimed, now))
            else:
                self._order += 1
                heapq.heappush(self._held, (earliest, self._order, claimed))

    def release_due(self) -> None:
        """Let the held executions whose instant has come wait for a slot."""
        self._released_at = now = self._clock.monotonic()
        while self._held and self._held[0][0] <= now:
            _, _, claimed = heapq.heappop(self._held)
            self._waiting.append((claimed, now))

    def pop(self) -> tuple[ClaimedExecution, str | None] | None:
        """Take the first waiting execution, to start it; with the reason if it was asked to stop meanwhile."""
        if not self._waiting:
            return None
        claimed, since = self._waiting.popleft()
        self.last_start = now = self._clock.monotonic()
        if now - since > self._longest_wait:
            self._longest_wait = now - since
        self.started += 1
        stop = self._stops.pop(claimed.id, None) if self._stops else None
        return claimed, stop

    def take_overdue(self, patience: float) -> list[ClaimedExecution]:
        """Take the executions that have waited this many seconds or longer."""
        now = self._clock.monotonic()
        overdue = []
        while self._waiting and now - self._waiting[0][1] >= patience:
            claimed, _ = self._waiting.popleft()
            self._stops.pop(claimed.id, None)
            overdue.append(claimed)
        if overdue:
            # They would have waited on: to the claimer that is the longest wait there is.
            self._longest_wait = LONGEST_WAIT_SECONDS
        return overdue

    def take_all(self) -> list[ClaimedExecution]:
        """Take everything, the waiting ones first."""
        left = self.executions()
        self._waiting.clear()
        self._held.clear()
        self._stops.clear()
        return left

    def executions(self) -> list[ClaimedExecution]:
        """Everything that waits here."""
        return [claimed for claimed, _ in self._waiting] + [claimed for _, _, claimed in self._held]

    def stop(self, stops: Mapping[ExecutionId, str]) -> list[tuple[ClaimedExecution, str]]:
        """Keep these requests; returns the held executions that they concern, with their reasons, and holds them no longer."""
        self._stops.update(stops)
        stopped = [entry for entry in self._held if entry[2].id in self._stops]
        for entry in stopped:
            self._held.remove(entry)
        heapq.heapify(self._held)
        reasons = [(claimed, self._stops.pop(claimed.id)) for _, _, claimed in stopped]
        waiting = {claimed.id for claimed, _ in self._waiting}
        self._stops = {id_: reason for id_, reason in self._stops.items() if id_ in waiting}
        return reasons


# How long the inline task may run attempts before the event loop gets a turn.
_INLINE_SECONDS = 0.001

ReadyAttempt = tuple[Handler, AttemptContext]


class AttemptSource(Protocol):
    """Where attempts come from, and where their outcomes go."""

    def next_attempt(self) -> ReadyAttempt | None:
        """The attempt to make next; None if none can be made now."""

    async def resolve_payload(self, context: AttemptContext) -> Outcome | None:
        """Put the values of references into the payload; an outcome if that cannot be done."""

    def note_timeout(self, context: AttemptContext) -> None:
        """An attempt was told that its time is over."""

    def finish_attempt(self, handler: Handler, context: AttemptContext, outcome: Outcome, started_at: datetime) -> None:
        """An attempt has ended; its slot is free."""


class AttemptPool:
    """Runs the attempts of *source*, each to its outcome."""

    def __init__(self, env: Env, runners: Mapping[RunStyle, Runner], slots: Slots, source: AttemptSource) -> None:
        self._env = env
        self._runners = runners
        self._slots = slots
        self._source = source
        self._loop = asyncio.get_running_loop()
        # What every attempt begins with. Tasks are made in the middle of other attempts and must not inherit their variables.
        self._context = copy_context()
        self._context.run(SLOT_LENDER.set, self)
        self._wheel = DeadlineWheel(env.clock, source.note_timeout)
        # Handlers whose last attempt awaited something.
        self._slow: set[str] = set()
        self._begun_last: AttemptContext | None = None
        self._inline_task: asyncio.Task[None] | None = None
        self._inline_attempt: AttemptContext | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    def begin(self) -> None:
        """Begin all attempts that can be begun; the inline task, while it runs, does so by itself."""
        while self._inline_task is None and (ready := self._source.next_attempt()) is not None:
            self._begin(ready)

    def _begin(self, ready: ReadyAttempt) -> None:
        handler, context = ready
        if handler.style is RunStyle.COROUTINE and handler.name not in self._slow:
            self._inline_task = task = self._loop.create_task(self._run_inline(ready), context=self._context.copy())
            self._loop.call_soon(self._turned)
        else:
            task = self._loop.create_task(self._run_alone(ready), context=self._context.copy())
            self._time(context)
        context.run_in(task)
        self._slots.attempts[context.claimed.id] = context
        self._idle.clear()

    def _time(self, context: AttemptContext) -> None:
        if context.claimed.timeout_ms is not None:
            self._wheel.add(context, context.claimed.timeout_ms / 1000)

    # alone

    async def _run_alone(self, ready: ReadyAttempt) -> None:
        handler, context = ready
        self._begun_last = context
        await self._attempt(handler, context)
        if self._begun_last is context:
            # Nothing else was begun meanwhile: the attempt did not await, or delayed no other.
            self._slow.discard(handler.name)
        self._after_end()

    def _after_end(self) -> None:
        if not self._slots.attempts and self._inline_task is None:
            self._idle.set()
        if not self._is_closed:
            self._slots.freed.send()

    # inline

    async def _run_inline(self, first: ReadyAttempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._run_inline_attempts(first, task)
        finally:
            if self._inline_task is task:
                self._inline_task = self._inline_attempt = None
        self._after_end()

    async def _run_inline_attempts(self, first: ReadyAttempt, task: asyncio.Task[None]) -> None:
        ready: ReadyAttempt | None = first
        ends_at = self._env.clock.monotonic() + _INLINE_SECONDS
        while ready is not None:
            handler, context = ready
            self._inline_attempt = context
            await self._attempt(handler, context)
            # An attempt that awaited has kept the task, and another inline task has begun.
            if self._inline_attempt is not context or task.cancelling() or copy_context() != self._context:
                return
            self._inline_attempt = None
            if self._env.clock.monotonic() >= ends_at:
                await self._yield_to_loop()
                ends_at = self._env.clock.monotonic() + _INLINE_SECONDS
            ready = self._next_inline(task)

    async def _yield_to_loop(self) -> None:
        self._slots.freed.send()
        await asyncio.sleep(0)
        self._loop.call_soon(self._turned)

    def _next_inline(self, task: asyncio.Task[None]) -> ReadyAttempt | None:
        """The next attempt that is likely not to await; others get a task of their own."""
        while (ready := self._source.next_attempt()) is not None:
            handler, context = ready
            if handler.style is RunStyle.COROUTINE and handler.name not in self._slow:
                context.run_in(task)
                self._slots.attempts[context.claimed.id] = context
                return ready
            self._begin(ready)
        return None

    def _turned(self) -> None:
        """The loop turns. An attempt in the middle of the inline task awaits something: it keeps the task, and others may begin."""
        context = self._inline_attempt
        if context is None:
            return
        self._inline_attempt = self._inline_task = None
        self._slow.add(context.claimed.handler)
        self._time(context)
        self.begin()

    # one attempt

    async def _attempt(self, handler: Handler, context: AttemptContext) -> None:
        claimed = context.claimed
        # By the database the instant has come; our reading of its clock may lag behind by its uncertainty.
        now = self._env.clock.now()
        started_at = now if now > claimed.run_at else claimed.run_at
        outcome: Outcome | None = None
        try:
            if REFERENCE_MARK in claimed.payload and may_have_references(claimed.payload):
                outcome = await self._source.resolve_payload(context)
            if outcome is None:
                outcome = await self._runners[handler.style].run(handler, context)
        except asyncio.CancelledError:
            message = "the handler cancelled the task it ran in"
            outcome = Failed(ErrorInfo(type="CancelledError", message=message, fingerprint="cancelled-itself"))
        except Exception as error:
            # An error of the runner, not of the handler. It must not end the task: the slot and the outcome would be lost.
            message = f"the attempt could not be run: {clean_text(error)}"
            outcome = Failed(ErrorInfo(type=type(error).__name__, message=message, fingerprint="runner-failed"))
        if self._is_closed:
            return
        self._wheel.remove(context)
        self._slots.attempts.pop(claimed.id, None)
        self._source.finish_attempt(handler, context, outcome, started_at)

    # lending, from any thread

    def lend(self, context: AttemptContext) -> None:
        """The attempt waits for another run."""
        self._in_loop(self._slots.lend, context)

    def take_back(self, context: AttemptContext) -> None:
        """The attempt goes on."""
        self._in_loop(self._slots.take_back, context)

    def _in_loop(self, change: Callable[[AttemptContext], None], context: AttemptContext) -> None:
        # A closed loop has no attempts any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(change, context)

    # ending

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if something still does after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def halt_all(self, why: StopReason, reason: str) -> None:
        """Ask everything that runs to stop."""
        for context in list(self._slots.attempts.values()):
            context.halt(why, reason)

    def abandon(self, reason: str) -> None:
        """Cut everything off; no outcome is handed over any more."""
        self._is_closed = True
        for context in list(self._slots.attempts.values()):
            context.halt(StopReason.SHUTDOWN, reason)
            if context.task is not None:
                context.task.cancel()
        if self._inline_task is not None:
            self._inline_task.cancel()
        self._slots.attempts.clear()
        self._slots.lent.clear()
        self._idle.set()


_NOTCH_SECONDS = 0.05


class DeadlineWheel:
    """Halts attempts that run past their timeout, to within a notch. One timer serves all: one for each attempt would cost too much."""

    def __init__(self, clock: Clock, on_timeout: Callable[[AttemptContext], None] = lambda _: None) -> None:
        self._clock = clock
        self._on_timeout = on_timeout
        self._notches: dict[int, set[AttemptContext]] = {}
        self._places: dict[AttemptContext, int] = {}
        self._turned_to = self._notch(clock.monotonic())
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def _notch(monotonic: float) -> int:
        return int(monotonic / _NOTCH_SECONDS)

    def add(self, context: AttemptContext, seconds: float) -> None:
        """Halt this attempt once *seconds* have passed."""
        # The next notch, so that no attempt is halted early.
        notch = self._notch(self._clock.monotonic() + seconds) + 1
        self._notches.setdefault(notch, set()).add(context)
        self._places[context] = notch
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTCH_SECONDS, self._turn)

    def remove(self, context: AttemptContext) -> None:
        """Forget an attempt that has ended."""
        notch = self._places.pop(context, None)
        if notch is None:
            return
        neighbours = self._notches[notch]
        neighbours.discard(context)
        if not neighbours:
            del self._notches[notch]

    def _turn(self) -> None:
        self._timer = None
        now = self._notch(self._clock.monotonic())
        for notch in [notch for notch in self._notches if notch <= now]:
            for context in self._notches.pop(notch):
                self._places.pop(context, None)
                seconds = (context.claimed.timeout_ms or 0) / 1000
                context.halt(StopReason.TIMEOUT, f"ran longer than its timeout of {seconds:g} s")
                self._on_timeout(context)
        if self._places:
            self._timer = asyncio.get_running_loop().call_later(_NOTCH_SECONDS, self._turn)
