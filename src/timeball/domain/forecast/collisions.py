"""Where jobs want more slots than there are: when, for how long, and how much delay that adds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from timeball.domain.forecast.outlook import FireTimes, FutureRuns, SlotPool
from timeball.domain.values.ids import JobId
from timeball.domain.values.wording import counted, duration_in_words, listed

# Shorter than this, nobody notices: the jobs start a moment later.
_SHORTEST = timedelta(seconds=1)


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
    line: FutureRuns


def find_collisions(
    fires: Sequence[FireTimes], pools: Iterable[SlotPool], zone: ZoneInfo, span: timedelta
) -> list[Collision]:
    """Every time some pool has too few slots, those that repeat at the same time of day told once, the worst first."""
    found: list[Collision] = []
    for pool in pools:
        if not pool.slots:
            # Nobody works there: that is no collision, and the doctor says so.
            continue
        own = [some for some in fires if some.line.queue in pool.queues]
        found += _grouped(_of_pool(own, pool, zone, span))
    return sorted(found, key=lambda one: (-one.delay * one.times, one.start))


def _of_pool(fires: Sequence[FireTimes], pool: SlotPool, zone: ZoneInfo, span: timedelta) -> Iterator[Collision]:
    steady = steady_slots(fires, span)
    free = pool.slots - steady
    spans = sorted(
        (_CrowdedPeriod(at, at + some.line.duration, some.line) for some in fires for at in some.at),
        key=lambda one: one.start,
    )
    starts = [one.start for one in spans]
    longest = max((some.line.duration for some in fires), default=timedelta(0))
    for start, end, most, excess in _crowded(spans, max(free, 0)):
        if end - start < _SHORTEST:
            continue
        near = spans[bisect_left(starts, start - longest) : bisect_left(starts, end)]
        inside = {one.line.job_id: one.line.label for one in near if one.end > start}
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
    return int(sum(some.total * (some.line.duration / span) for some in fires if some.counts))


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
