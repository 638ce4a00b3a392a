"""The slots of a worker, and the claimed executions on their way to one."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from timeball.clock import Clock
from timeball.current import AttemptContext
from timeball.domain.execution import ClaimedExecution
from timeball.domain.values.ids import ExecutionId
from timeball.engine.service import Signal

# The longest time that a due execution may wait for a slot before the worker gives it back.
LONGEST_WAIT_SECONDS = 0.25


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

    An attempt that was given up and cannot be ended, a thread, keeps its slot until it ends by itself.
    """

    def __init__(self, total: int, runners: Iterable[object] = ()) -> None:
        self.total = total
        self.attempts: dict[ExecutionId, AttemptContext] = {}
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
        return busy


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
