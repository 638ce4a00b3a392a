"""The demand for slots: when each job runs in the future, which slots they share, and where they want more than there are.

A `ForecastJob` is the future of one job: its pending occurrence, then all that its schedule names. `FireTimeBudget` asks
for fire times or, where those are too many, for the number in each bucket; both cost steps of one budget for the whole
view. A job for which the budget does not suffice is left out and counted, never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from timeball.domain.node import NodeStatus
from timeball.domain.rollup import TypicalDuration
from timeball.domain.scheduling.schedule import Every, Once, Schedule
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId
from timeball.domain.values.wording import counted, duration_in_words, listed

# The duration of a run that has no history; views mark it as a guess.
ASSUMED_DURATION = timedelta(seconds=1)
# Counting the runs of one bucket costs about as much as this many fire times.
_STEPS_A_BUCKET = 5
# The steps of one view: about a second of work at most.
MAX_STEPS = 40_000
# A shorter collision only delays the jobs by a moment.
_SHORTEST_COLLISION = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastJob:
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
    typical: TypicalDuration | None = None
    execution_id: ExecutionId | None = None

    @property
    def duration(self) -> timedelta:
        """How long a run should take."""
        return self.typical.median if self.typical is not None else ASSUMED_DURATION

    @property
    def is_guess(self) -> bool:
        """Whether there is no history to tell a run's length by."""
        return self.typical is None

    def from_the_start(self, start: datetime) -> ForecastJob | None:
        """The same job as it lay ahead at an earlier moment; None if it was not there yet or named nothing."""
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
    """The runs of a job: each of them, or only how many fall into each bucket."""

    job: ForecastJob
    at: Sequence[datetime] = ()
    counts: Sequence[int] = ()

    @property
    def total(self) -> int:
        return len(self.at) or sum(self.counts)


@dataclass(slots=True)
class FireTimeBudget:
    """Asks jobs for their fire times between the edges of some buckets, within a budget.

    A job with more runs than buckets, and more than *singly*, is only counted.
    """

    edges: Sequence[datetime]
    budget: int = MAX_STEPS
    singly: int = 50
    left_out: int = 0
    _known: dict[object, tuple[int, ...]] = field(default_factory=dict)

    def of(self, jobs: Iterable[ForecastJob]) -> list[FireTimes]:
        """The runs of these jobs; jobs for which the budget does not suffice are counted in `left_out`."""
        found: list[FireTimes] = []
        for job in jobs:
            fires = self._of(job)
            if fires is None:
                self.left_out += 1
            elif fires.total:
                found.append(fires)
        return found

    def _of(self, job: ForecastJob) -> FireTimes | None:
        start, end = self.edges[0], self.edges[-1]
        if job.pending + job.jitter >= end:
            return FireTimes(job)
        expected = job.count(start, end)
        if job.left is not None:
            expected = min(expected, job.left)
        buckets = len(self.edges) - 1
        if expected <= max(buckets, self.singly) or job.left is not None:
            return FireTimes(job, at=tuple(job.fires(start, end))) if self._spend(1 + expected) else None
        counts = self._counts(job)
        return None if counts is None else FireTimes(job, counts=counts)

    def _counts(self, job: ForecastJob) -> Sequence[int] | None:
        """Lines with one rhythm and one beginning are counted once."""
        key = (job.rule, job.pending, job.jitter)
        if key not in self._known:
            # For an interval a count is one division.
            cost = 1 if isinstance(job.rule, Every) else _STEPS_A_BUCKET
            if not self._spend(cost * (len(self.edges) - 1)):
                return None
            self._known[key] = tuple(job.count(low, high) for low, high in pairwise(self.edges))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """Some jobs want *need* of *slots* for a while; *spans* are all the times that just this happens within the forecast."""

    pool: SlotPool
    start: datetime
    end: datetime
    local: str
    need: int
    jobs: tuple[tuple[JobId, str], ...]
    delay: timedelta
    spans: tuple[tuple[datetime, datetime], ...]

    @property
    def times(self) -> int:
        return len(self.spans)

    @property
    def sentence(self) -> str:
        jobs = counted(len(self.jobs), "job wants", "jobs want")
        often = f"{self.times} times at {self.local}" if self.times > 1 else f"at {self.local}"
        return (
            f"{often}, queue {self.pool.label}: {jobs} {self.need} of {self.pool.slots} slots for "
            f"{duration_in_words(self.end - self.start)}, which adds about {duration_in_words(self.delay)}: "
            f"{listed([label for _, label in self.jobs])}"
        )


@dataclass(frozen=True, slots=True)
class _CrowdedPeriod:
    start: datetime
    end: datetime
    job: ForecastJob


def find_collisions(
    fires: Sequence[FireTimes], pools: Iterable[SlotPool], zone: ZoneInfo, span: timedelta
) -> list[Collision]:
    """Every time some pool has too few slots, those that repeat at the same time of day told once, the worst first."""
    found: list[Collision] = []
    for pool in pools:
        if not pool.slots:
            # Nobody works there: that is no collision, and the doctor says so.
            continue
        own = [some for some in fires if some.job.queue in pool.queues]
        found += _grouped(_of_pool(own, pool, zone, span))
    return sorted(found, key=lambda one: (-one.delay * one.times, one.start))


def _of_pool(fires: Sequence[FireTimes], pool: SlotPool, zone: ZoneInfo, span: timedelta) -> Iterator[Collision]:
    steady = steady_slots(fires, span)
    free = pool.slots - steady
    spans = sorted(
        (_CrowdedPeriod(at, at + some.job.duration, some.job) for some in fires for at in some.at),
        key=lambda one: one.start,
    )
    starts = [one.start for one in spans]
    longest = max((some.job.duration for some in fires), default=timedelta(0))
    for start, end, most, excess in _crowded(spans, max(free, 0)):
        if end - start < _SHORTEST_COLLISION:
            continue
        near = spans[bisect_left(starts, start - longest) : bisect_left(starts, end)]
        inside = {one.job.job_id: one.job.label for one in near if one.end > start}
        yield Collision(
            pool=pool,
            start=start,
            end=end,
            local=f"{start.astimezone(zone):%H:%M}",
            need=most + steady,
            jobs=tuple(sorted(inside.items(), key=lambda job: job[1])),
            delay=excess / max(pool.slots, 1),
            spans=((start, end),),
        )


def steady_slots(fires: Iterable[FireTimes], span: timedelta) -> int:
    """The slots that are always taken by what comes so often that it was only counted."""
    return int(sum(some.total * (some.job.duration / span) for some in fires if some.counts))


def _crowded(spans: Sequence[_CrowdedPeriod], free: int) -> Iterator[tuple[datetime, datetime, int, timedelta]]:
    """Each stretch in which more run than are free: its ends, the most at once, and the work that finds no slot."""
    changes: Counter[datetime] = Counter()
    for one in spans:
        changes[one.start] += 1
        changes[one.end] -= 1
    level, most, excess = 0, 0, timedelta(0)
    since: datetime | None = None
    last: datetime | None = None
    for moment in sorted(changes):
        if since is not None and last is not None:
            excess += (level - free) * (moment - last)
        level += changes[moment]
        last = moment
        if level > free:
            since = since or moment
            most = max(most, level)
        elif since is not None:
            yield since, moment, most, excess
            since, most, excess = None, 0, timedelta(0)


def _grouped(collisions: Iterable[Collision]) -> list[Collision]:
    alike: dict[tuple[str, tuple[tuple[JobId, str], ...]], list[Collision]] = {}
    for one in collisions:
        alike.setdefault((one.local, one.jobs), []).append(one)
    return [_as_one(same) for same in alike.values()]


def _as_one(same: Sequence[Collision]) -> Collision:
    """The first of those that are alike, with the highest need and the spans of all."""
    spans = tuple(span for one in same for span in one.spans)
    return replace(same[0], need=max(one.need for one in same), spans=spans)
