"""The future runs of each job within a budget of steps, and the slot pools they share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice, pairwise

from timeball.domain.node import NodeStatus
from timeball.domain.rollup import TypicalDuration
from timeball.domain.scheduling.schedule import Every, Once, Schedule
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId

# What will run, and when: the future of each job from the scheduler's own iterator, within a budget.
#
# A `Line` is the future of one job: its pending occurrence, then whatever its schedule names. `Foresight` asks lines for
# their fire times or, where those are too many, for how many fall into each bucket; both cost steps of one budget for the
# whole view. A line for which the budget does not suffice is left out and counted, never guessed at.

# What a run without any history is taken to last: it has to be drawn somehow, and is marked.
ASSUMED_DURATION = timedelta(seconds=1)


# Looking for the count of one bucket costs about as much as some fire times.
_STEPS_A_BUCKET = 5


# The steps of one view: about a second of work at most.
MAX_STEPS = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureRuns:
    """The future of one job. *left* bounds how many executions it has yet; *since* is when it was made."""

    job_id: JobId
    label: str
    handler: str
    queue: str
    rule: Schedule
    pending: datetime
    since: datetime
    jitter: timedelta = timedelta(0)
    left: int | None = None
    usual: TypicalDuration | None = None
    execution_id: ExecutionId | None = None

    @property
    def duration(self) -> timedelta:
        """How long a run should take."""
        return self.usual.median if self.usual is not None else ASSUMED_DURATION

    @property
    def is_guess(self) -> bool:
        """Whether there is no history to tell a run's length by."""
        return self.usual is None

    def from_the_start(self, start: datetime) -> FutureRuns | None:
        """The same line as it lay ahead at an earlier moment; None if it was not there yet or named nothing."""
        tick = timedelta(microseconds=1)
        first = self.rule.next_after(max(start, self.since) - tick)
        return None if first is None else replace(self, pending=first, left=None)

    def fires(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """When runs are to start, in [start, end), from the pending occurrence on."""
        return islice(self._all(start - self.jitter, end - self.jitter), self.left)

    def _all(self, start: datetime, end: datetime) -> Iterator[datetime]:
        if start <= self.pending < end:
            yield self.pending + self.jitter
        if isinstance(self.rule, Once):
            return
        tick = timedelta(microseconds=1)
        for occurrence in self.rule.occurrences(max(self.pending, start - tick), end - tick):
            yield occurrence.at + self.jitter

    def count(self, start: datetime, end: datetime) -> int:
        """How many runs are to start in [start, end), not minding how many are left."""
        tick = timedelta(microseconds=1)
        low, high = start - self.jitter - tick, end - self.jitter - tick
        own = int(low < self.pending <= high)
        if isinstance(self.rule, Once):
            return own
        return own + (self.rule.count_between(max(self.pending, low), high) or 0)


@dataclass(frozen=True, slots=True)
class FireTimes:
    """The runs of a line: each of them, or only how many fall into each bucket."""

    line: FutureRuns
    at: Sequence[datetime] = ()
    counts: Sequence[int] = ()

    @property
    def total(self) -> int:
        return len(self.at) or sum(self.counts)


@dataclass(slots=True)
class FireTimeBudget:
    """Asks lines for their fire times between the edges of some buckets, within a budget.

    A line with more runs than buckets, and more than *singly*, is only counted.
    """

    edges: Sequence[datetime]
    budget: int = MAX_STEPS
    singly: int = 50
    left_out: int = 0
    _known: dict[object, tuple[int, ...]] = field(default_factory=dict)

    def of(self, lines: Iterable[FutureRuns]) -> list[FireTimes]:
        """The runs of these lines; lines for which the budget does not suffice are counted in `left_out`."""
        found: list[FireTimes] = []
        for line in lines:
            fires = self._of(line)
            if fires is None:
                self.left_out += 1
            elif fires.total:
                found.append(fires)
        return found

    def _of(self, line: FutureRuns) -> FireTimes | None:
        start, end = self.edges[0], self.edges[-1]
        if line.pending + line.jitter >= end:
            return FireTimes(line)
        expected = line.count(start, end)
        if line.left is not None:
            expected = min(expected, line.left)
        buckets = len(self.edges) - 1
        if expected <= max(buckets, self.singly) or line.left is not None:
            return FireTimes(line, at=tuple(line.fires(start, end))) if self._spend(1 + expected) else None
        counts = self._counts(line)
        return None if counts is None else FireTimes(line, counts=counts)

    def _counts(self, line: FutureRuns) -> Sequence[int] | None:
        """Lines with one rhythm and one beginning are counted once."""
        key = (line.rule, line.pending, line.jitter)
        if key not in self._known:
            # For an interval a count is one division.
            cost = 1 if isinstance(line.rule, Every) else _STEPS_A_BUCKET
            if not self._spend(cost * (len(self.edges) - 1)):
                return None
            self._known[key] = tuple(line.count(low, high) for low, high in pairwise(self.edges))
        return self._known[key]

    def _spend(self, steps: int) -> bool:
        if steps > self.budget:
            return False
        self.budget -= steps
        return True


def even_edges(start: datetime, end: datetime, number: int) -> list[datetime]:
    """The edges of so many buckets of one size."""
    step = (end - start) / number
    return [start + step * position for position in range(number)] + [end]


# How many slots there are, and who shares them.


@dataclass(frozen=True, slots=True)
class SlotPool:
    """Queues that share the same slots: those of the workers that serve them, or the places of a limited queue."""

    queues: tuple[str, ...]
    slots: int

    @property
    def label(self) -> str:
        return ", ".join(self.queues)


def slots_of(workers: Iterable[NodeStatus], queue: str | None, limits: Mapping[str, int]) -> int:
    """How many executions of a queue, or of all, can run together."""
    serving = [worker for worker in workers if not worker.draining and (queue is None or worker.serves(queue))]
    slots = sum(worker.slots for worker in serving)
    return slots if queue is None else min(slots, limits.get(queue, slots))


def slot_pools(workers: Collection[NodeStatus], queues: Collection[str], limits: Mapping[str, int]) -> list[SlotPool]:
    """The queues by the workers they share; a limited queue is also a pool of its own."""
    shared: dict[frozenset[Incarnation], list[str]] = {}
    for queue in sorted(queues):
        serving = frozenset(worker.incarnation for worker in workers if worker.serves(queue))
        shared.setdefault(serving, []).append(queue)
    found = [
        SlotPool(tuple(names), sum(worker.slots for worker in workers if worker.incarnation in serving))
        for serving, names in shared.items()
    ]
    alone = {pool.queues[0]: pool.slots for pool in found if len(pool.queues) == 1}
    limited = [SlotPool((queue,), limits[queue]) for queue in sorted(queues) if queue in limits]
    # The narrower of the two is what a queue of its own meets first.
    narrow = [pool for pool in limited if pool.slots < alone.get(pool.queues[0], pool.slots + 1)]
    replaced = {pool.queues[0] for pool in narrow if pool.queues[0] in alone}
    return [pool for pool in found if not (len(pool.queues) == 1 and pool.queues[0] in replaced)] + narrow
