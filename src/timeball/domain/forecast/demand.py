"""The demand for slots: when each job runs in the future, which slots they share, and where they want more than there are.

A `ForecastJob` is the future of one job: its pending occurrence, then all that its schedule names, but for freezes: what falls into one
does not start in it, and what remains of it starts when it is over. `FireTimeBudget` asks
for fire times or, where those are too many, for the number in each bucket; both cost steps of one budget for the whole
view. A job for which the budget does not suffice is left out and counted, never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from timeball.domain.freeze import Afterwards, FrozenWindow
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
_TICK = timedelta(microseconds=1)
# After a freeze, the occurrences of a job start ten a second.
_RELEASE_STEP = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastJob:
    """The future of one job. *left* bounds the number of executions that remain; *since* is when the job was created.

    *windows* are the freezes that hold it, *misfire_cap* is how many occurrences run after one at most.
    """

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
    windows: tuple[FrozenWindow, ...] = ()
    misfire_cap: int = 1

    @property
    def duration(self) -> timedelta:
        """How long a run should take."""
        return self.typical.median if self.typical is not None else ASSUMED_DURATION

    @property
    def is_guess(self) -> bool:
        """Whether there is no history to predict the duration from."""
        return self.typical is None

    def from_the_start(self, start: datetime) -> ForecastJob | None:
        """The same job as seen from an earlier moment; None if it did not exist yet or had no occurrence."""
        first = self.rule.next_after(max(start, self.since) - _TICK)
        return None if first is None else replace(self, pending=first, left=None)

    def fires(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The starts in [start, end), from the pending occurrence on."""
        thawed = (at for at in self._thawed(start, end) if at < end)
        unfrozen = (at for low, high in self._unfrozen(start, end) for at in self._named(low, high))
        return islice(merge(unfrozen, thawed), self.left)

    def count(self, start: datetime, end: datetime) -> int:
        """The number of starts in [start, end), regardless of *left*."""
        thawed = sum(1 for _ in self._thawed(start, end))
        return thawed + sum(self._count_named(low, high) for low, high in self._unfrozen(start, end))

    def is_held_in(self, start: datetime, end: datetime) -> bool:
        """Whether freezes hold occurrences of it within [start, end), those included that have waited since before."""
        touching = [window for window in self.windows if start < window.end and window.start < end]
        return any(self._count_named(window.start, min(window.end, end)) for window in touching)

    def _unfrozen(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The parts of [start, end) in which no freeze holds the job."""
        for window in self.windows:
            if start < window.end and window.start < end:
                if start < window.start:
                    yield start, window.start
                start = window.end
        if start < end:
            yield start, end

    def _thawed(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The starts of what fell into the freezes that end in [start, end)."""
        for window in self.windows:
            if start <= window.end < end:
                for number in range(self._kept(window)):
                    yield window.end + number * _RELEASE_STEP

    def _kept(self, window: FrozenWindow) -> int:
        number = self._count_named(window.start, window.end)
        if isinstance(self.rule, Once):
            # It waits, as everything does that no schedule repeats.
            return number
        return min(
            number, {Afterwards.SKIP: 0, Afterwards.LATEST: 1, Afterwards.ALL: self.misfire_cap}[window.afterwards]
        )

    def _named(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """What the schedule names in [start, end), with its jitter."""
        low, high = start - self.jitter, end - self.jitter
        if low <= self.pending < high:
            yield self.pending + self.jitter
        if isinstance(self.rule, Once):
            return
        for occurrence in self.rule.occurrences(max(self.pending, low - _TICK), high - _TICK):
            yield occurrence.at + self.jitter

    def _count_named(self, start: datetime, end: datetime) -> int:
        low, high = start - self.jitter - _TICK, end - self.jitter - _TICK
        pending = int(low < self.pending <= high)
        if isinstance(self.rule, Once):
            return pending
        return pending + (self.rule.count_between(max(self.pending, low), high) or 0)


@dataclass(frozen=True, slots=True)
class FireTimes:
    """The starts of a job: each of them, or only their number in each bucket."""

    job: ForecastJob
    at: Sequence[datetime] = ()
    counts: Sequence[int] = ()

    @property
    def total(self) -> int:
        return len(self.at) or sum(self.counts)


@dataclass(slots=True)
class FireTimeBudget:
    """Computes the fire times of jobs between the edges of some buckets, within a budget.

    The runs of a job that has more of them than there are buckets, and more than *singly*, are only counted. A job that has none is left
    out, *with_held* only if no freeze holds it either.
    """

    edges: Sequence[datetime]
    budget: int = MAX_STEPS
    singly: int = 50
    with_held: bool = False
    left_out: int = 0
    _known: dict[object, tuple[int, ...]] = field(default_factory=dict)

    def of(self, jobs: Iterable[ForecastJob]) -> list[FireTimes]:
        """The fire times of these jobs; jobs for which the budget does not suffice are counted in `left_out`."""
        fire_times: list[FireTimes] = []
        for job in jobs:
            fires = self._of(job)
            if fires is None:
                self.left_out += 1
            elif fires.total or (self.with_held and job.is_held_in(self.edges[0], self.edges[-1])):
                fire_times.append(fires)
        return fire_times

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
        """The counts of a job, computed once for all jobs with the same schedule and pending occurrence."""
        key = (job.rule, job.pending, job.jitter, job.windows, job.misfire_cap)
        if key not in self._known:
            # For an interval, counting is one division.
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
    """The edges of a number of equal buckets."""
    step = (end - start) / number
    return [start + step * position for position in range(number)] + [end]


@dataclass(frozen=True, slots=True)
class SlotPool:
    """Queues that share the same slots: those of the workers that serve them, or those of a queue with a limit."""

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
    """The pools of some queues, by the workers that serve them; a queue with a limit is also a pool of its own."""
    shared: dict[frozenset[Incarnation], list[str]] = {}
    for queue in sorted(queues):
        serving = frozenset(worker.incarnation for worker in workers if worker.serves(queue))
        shared.setdefault(serving, []).append(queue)
    pools = [
        SlotPool(tuple(names), sum(worker.slots for worker in workers if worker.incarnation in serving))
        for serving, names in shared.items()
    ]
    alone = {pool.queues[0]: pool.slots for pool in pools if len(pool.queues) == 1}
    limited = [SlotPool((queue,), limits[queue]) for queue in sorted(queues) if queue in limits]
    # A queue that is alone in its pool is bound by the smaller of the two.
    narrow = [pool for pool in limited if pool.slots < alone.get(pool.queues[0], pool.slots + 1)]
    replaced = {pool.queues[0] for pool in narrow if pool.queues[0] in alone}
    return [pool for pool in pools if not (len(pool.queues) == 1 and pool.queues[0] in replaced)] + narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """Some jobs need more slots than their pool has; *spans* are all the periods within the forecast when this happens."""

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
    """Every period in which a pool has too few slots, the worst first; those that repeat at one time of day are one."""
    collisions: list[Collision] = []
    for pool in pools:
        if not pool.slots:
            # A queue without workers is no collision; the doctor reports it.
            continue
        inside = [times for times in fires if times.job.queue in pool.queues]
        collisions += _grouped(_of_pool(inside, pool, zone, span))
    return sorted(collisions, key=lambda collision: (-collision.delay * collision.times, collision.start))


def _of_pool(fires: Sequence[FireTimes], pool: SlotPool, zone: ZoneInfo, span: timedelta) -> Iterator[Collision]:
    steady = steady_slots(fires, span)
    free = pool.slots - steady
    spans = sorted(
        (_CrowdedPeriod(at, at + times.job.duration, times.job) for times in fires for at in times.at),
        key=lambda run: run.start,
    )
    starts = [run.start for run in spans]
    longest = max((times.job.duration for times in fires), default=timedelta(0))
    for start, end, most, excess in _crowded(spans, max(free, 0)):
        if end - start < _SHORTEST_COLLISION:
            continue
        near = spans[bisect_left(starts, start - longest) : bisect_left(starts, end)]
        inside = {run.job.job_id: run.job.label for run in near if run.end > start}
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
    """The slots that jobs so frequent that they were only counted take all the time."""
    return int(sum(times.total * (times.job.duration / span) for times in fires if times.counts))


def _crowded(spans: Sequence[_CrowdedPeriod], free: int) -> Iterator[tuple[datetime, datetime, int, timedelta]]:
    """Each period in which more run than slots are free: its ends, the most at once, and the work that finds no slot."""
    changes: Counter[datetime] = Counter()
    for run in spans:
        changes[run.start] += 1
        changes[run.end] -= 1
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
    for collision in collisions:
        alike.setdefault((collision.local, collision.jobs), []).append(collision)
    return [_merged(group) for group in alike.values()]


def _merged(group: Sequence[Collision]) -> Collision:
    """The first collision of a group, with the highest need and the spans of all."""
    spans = tuple(span for collision in group for span in collision.spans)
    return replace(group[0], need=max(collision.need for collision in group), spans=spans)
