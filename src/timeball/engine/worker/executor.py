"""Holds claimed executions until their instant, starts them in free slots, and hands over their outcomes."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from timeball.current import AttemptContext, AttemptSink, StopReason
from timeball.domain.execution import (
    SKIP_STOP,
    ClaimedExecution,
    ClaimKey,
    ErrorInfo,
    Failed,
    FinishedAttempt,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    outcome_of_stop,
)
from timeball.domain.handler import Handler, HandlerSource, RunStyle
from timeball.domain.values.ids import ExecutionId
from timeball.engine.runners.base import Runner
from timeball.engine.worker.attempts import AttemptPool, ReadyAttempt
from timeball.env import Env

# How long something that is due may wait here while no slot becomes free; and how long at all.
_PATIENCE_SECONDS = 0.02
_LONGEST_WAIT_SECONDS = 0.25


@runtime_checkable
class OverrunReporter(Protocol):
    """A runner whose attempts cannot always be ended."""

    on_freed: Callable[[], None]

    @property
    def overrunning(self) -> Sequence[object]:
        """What still runs although it was given up."""


class Executor:
    """Runs what it is given in at most *slots* places, and hands every outcome over."""

    def __init__(
        self,
        env: Env,
        handlers: HandlerSource,
        runners: Mapping[RunStyle, Runner],
        slots: int,
        hand_over: Callable[[FinishedAttempt], None],
        open_sink: Callable[[AttemptContext], AttemptSink],
        close_sink: Callable[[ClaimedExecution], None] = lambda _: None,
    ) -> None:
        self._env = env
        self._handlers = handlers
        # Those whose attempts may go on after they were given up, and keep their slot until they end.
        self._overrunners = [runner for runner in runners.values() if isinstance(runner, OverrunReporter)]
        for runner in self._overrunners:
            runner.on_freed = self._on_freed
        self._slots = slots
        self._hand_over = hand_over
        self._open_sink = open_sink
        self._close_sink = close_sink
        self._loop = asyncio.get_running_loop()
        self._held: list[tuple[float, int, ClaimedExecution]] = []
        self._order = 0
        self._waiting: deque[tuple[ClaimedExecution, float]] = deque()
        self._stops: dict[ExecutionId, str] = {}
        self._attempts = AttemptPool(env, runners)
        self._attempts.next_ready = self._next_ready
        self._attempts.on_ended = self._on_ended
        self._attempts.on_room = lambda: self.on_room()
        self._dropped_at = float("-inf")
        self._drop_timer: asyncio.TimerHandle | None = None
        self._patience_timer: asyncio.TimerHandle | None = None
        self._patience_ends = 0.0
        self._last_start = float("-inf")
        self._longest_wait = 0.0
        # How many were begun here so far.
        self.started = 0
        # Whether this life may still begin anything: a machine that slept wakes to timers of work that others have by now.
        self.may_begin: Callable[[], bool] = lambda: True
        # How long an attempt has to wait before it may be made; None means not at all. And whom to tell of success.
        self.admit: Callable[[Handler, ClaimedExecution], timedelta | None] = lambda _handler, _claimed: None
        self.on_success: Callable[[Handler, ClaimedExecution], None] = lambda _handler, _claimed: None
        # Called whenever a place has become free.
        self.on_room: Callable[[], None] = lambda: None

    @property
    def busy(self) -> int:
        """How many places are taken, by those too that overran their timeout and cannot be ended."""
        return len(self._attempts) + self._overrunning()

    @property
    def free_slots(self) -> int:
        """How many more could run now."""
        return max(self._slots - self.busy - len(self._waiting), 0)

    @property
    def waiting(self) -> int:
        """How many are due here and have no slot yet."""
        return len(self._waiting)

    @property
    def is_starting(self) -> bool:
        """Whether something that was held for its instant is still to be started."""
        return bool(self._waiting) and self._waiting[0][1] <= self._dropped_at

    @property
    def held(self) -> int:
        """How many wait here for their instant."""
        return len(self._held)

    def take_longest_wait(self) -> float:
        """How many seconds something due had to wait for its slot, at worst, since this was last asked."""
        longest, self._longest_wait = self._longest_wait, 0.0
        return longest

    def _overrunning(self) -> int:
        number = 0
        for runner in self._overrunners:
            number += len(runner.overrunning)
        return number

    def _on_freed(self) -> None:
        self._fill()
        self.on_room()

    def accept(self, claims: Iterable[ClaimedExecution]) -> None:
        """Take executions: those due wait for a slot, the others for their instant."""
        now = self._env.clock.monotonic()
        for claimed in claims:
            if claimed.stop is not None:
                self._stops[claimed.id] = claimed.stop
            earliest = self._env.clock.earliest(claimed.run_at)
            if earliest <= now:
                self._waiting.append((claimed, now))
            else:
                self._order += 1
                heapq.heappush(self._held, (earliest, self._order, claimed))
        self._plan_start()
        self._fill()

    # the drop

    def _plan_start(self) -> None:
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None
        if self._held:
            delay = self._held[0][0] - self._env.clock.monotonic()
            self._drop_timer = self._loop.call_later(max(delay, 0), self._drop)

    def _drop(self) -> None:
        self._drop_timer = None
        self._dropped_at = now = self._env.clock.monotonic()
        while self._held and self._held[0][0] <= now:
            _, _, claimed = heapq.heappop(self._held)
            self._waiting.append((claimed, now))
        self._plan_start()
        self._fill()

    def _fill(self) -> None:
        """Start what waits, while there are slots; look again soon at what found none."""
        self._attempts.begin()
        if self._waiting and self._patience_timer is None:
            self._patience_ends = self._env.clock.monotonic() + _PATIENCE_SECONDS
            self._patience_timer = self._loop.call_later(_PATIENCE_SECONDS, self._on_waited_too_long)

    def _on_waited_too_long(self) -> None:
        self._patience_timer = None
        if self.busy >= self._slots:
            self._release_waiting()
        self._fill()

    def _release_waiting(self) -> None:
        now = self._env.clock.monotonic()
        is_late = now - self._patience_ends >= _PATIENCE_SECONDS
        is_stuck = now - self._last_start >= _PATIENCE_SECONDS and not is_late
        patience = _PATIENCE_SECONDS if is_stuck else _LONGEST_WAIT_SECONDS
        while self._waiting and now - self._waiting[0][1] >= patience:
            claimed, _ = self._waiting.popleft()
            self._longest_wait = _LONGEST_WAIT_SECONDS
            self._give_back(claimed)

    def _give_back(self, claimed: ClaimedExecution) -> None:
        self._stops.pop(claimed.id, None)
        self._conclude(claimed, Released(), None)

    # running

    def _next_ready(self) -> ReadyAttempt | None:
        """What is to run next, if there is a slot for it; what is not to be run any more is concluded on the way."""
        waiting = self._waiting
        while waiting and self.busy < self._slots:
            claimed, since = waiting.popleft()
            self._last_start = now = self._env.clock.monotonic()
            if now - since > self._longest_wait:
                self._longest_wait = now - since
            self.started += 1
            handler = self._admitted(claimed)
            if handler is not None:
                return handler, AttemptContext(claimed, self._env.clock, self._open_sink)
        return None

    def _admitted(self, claimed: ClaimedExecution) -> Handler | None:
        if not self.may_begin():
            return None
        stop = self._stops.pop(claimed.id, None) if self._stops else None
        if stop is not None:
            self._conclude(claimed, outcome_of_stop(stop), None)
            return None
        handler = self._handlers.find(claimed.handler)
        if handler is None:
            self._conclude(claimed, Failed(_unknown_handler(claimed), is_retryable=False), None)
        elif (delay := self.admit(handler, claimed)) is not None:
            self._conclude(claimed, Snoozed(delay), None)
            return None
        return handler

    def _on_ended(self, handler: Handler, context: AttemptContext, outcome: Outcome, started_at: datetime) -> None:
        claimed = context.claimed
        if isinstance(outcome, Succeeded):
            self.on_success(handler, claimed)
        elif isinstance(outcome, Released):
            outcome = Released(has_started=True)
        if context.has_spoken:
            self._close_sink(claimed)
        self._conclude(claimed, outcome, started_at)

    def _conclude(self, claimed: ClaimedExecution, outcome: Outcome, started_at: datetime | None) -> None:
        finished_at = self._env.clock.now()
        if started_at is not None and started_at > finished_at:
            finished_at = started_at
        self._hand_over(FinishedAttempt(claimed, outcome, started_at, finished_at))

    # stopping

    def stop_executions(self, stops: Mapping[ExecutionId, str]) -> None:
        """Heed requests to stop: what runs is told so, what is held or waits will not be started."""
        for execution_id, reason in stops.items():
            running = self._attempts.find(execution_id)
            if running is None:
                self._stops[execution_id] = reason
            elif not reason.startswith(SKIP_STOP):
                running.halt(StopReason.CANCEL, reason)
        self._call_off_held()

    def _call_off_held(self) -> None:
        for entry in [entry for entry in self._held if entry[2].id in self._stops]:
            self._held.remove(entry)
            claimed = entry[2]
            self._conclude(claimed, outcome_of_stop(self._stops.pop(claimed.id)), None)
        heapq.heapify(self._held)
        known = {claimed.id for claimed, _ in self._waiting}
        self._stops = {id_: reason for id_, reason in self._stops.items() if id_ in known}

    def give_back_all(self) -> int:
        """Give back everything that has not been started; returns how many that were."""
        waiting = [claimed for claimed, _ in self._waiting] + [claimed for _, _, claimed in self._held]
        self._waiting.clear()
        self._held.clear()
        for claimed in waiting:
            self._give_back(claimed)
        return len(waiting)

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if something still does after that time."""
        return await self._attempts.wait_idle(seconds)

    def halt_all(self) -> None:
        """Ask everything that runs to stop because this worker leaves; it will be given back uncounted."""
        self._attempts.halt_all(StopReason.SHUTDOWN, "the worker is leaving")

    def claim_keys(self) -> set[ClaimKey]:
        """Everything that was accepted and has no outcome yet."""
        accepted = (*self.unfinished(), *(c for c, _ in self._waiting), *(c for _, _, c in self._held))
        return {(claimed.id, claimed.claim_id) for claimed in accepted}

    def unfinished(self) -> Sequence[ClaimedExecution]:
        """What is still running."""
        return self._attempts.unfinished()

    def abandon(self) -> None:
        """Cut everything off, and hand nothing over any more: this life has no claim to it."""
        self._waiting.clear()
        self._held.clear()
        self._attempts.abandon("the lease was lost")


def _unknown_handler(claimed: ClaimedExecution) -> ErrorInfo:
    message = f"this worker has no handler {claimed.handler}"
    return ErrorInfo(type="UnknownHandler", message=message, fingerprint="unknown-handler")
