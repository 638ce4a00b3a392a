"""Rollups: counts and duration percentiles of a minute, an hour or a longer window, without reading single executions.

A sketch holds durations in few numbers, with every percentile accurate to 2.5 %. A duration falls into a bucket of a fixed
logarithmic scale; each bucket reaches 5 % further than the one before it. A sketch is the number of durations in each
bucket, so sketches are merged by adding, in any order. `timeball.bucket` in the schema is the same scale in SQL; the two
must never differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import accumulate
from math import ceil, log

from timeball.domain.values.ids import ExecutionId, JobId

# Everything up to a tenth of a millisecond is in the first bucket; the last one begins after a year.
FINEST_SECONDS = 1e-4
GROWTH = 1.05
LAST_BUCKET = 550
# The middle of a bucket differs from anything in it by at most this share.
RELATIVE_ERROR = (GROWTH - 1) / (GROWTH + 1)


def bucket_of(seconds: float) -> int:
    """The bucket of a duration."""
    if seconds <= FINEST_SECONDS:
        return 0
    return min(ceil(log(seconds / FINEST_SECONDS) / log(GROWTH)), LAST_BUCKET)


def upper_bound(bucket: int) -> float:
    """The longest duration of a bucket, in seconds."""
    return FINEST_SECONDS * GROWTH**bucket


@cache
def middle_of(bucket: int) -> float:
    """The duration that a bucket stands for, in seconds."""
    return FINEST_SECONDS if bucket == 0 else upper_bound(bucket) * 2 / (GROWTH + 1)


@dataclass(frozen=True, slots=True)
class DurationSketch:
    """The number of durations in each bucket, the buckets in order."""

    buckets: Sequence[int] = ()
    counts: Sequence[int] = ()

    @classmethod
    def of(cls, spans: Iterable[float]) -> DurationSketch:
        """The sketch of some durations in seconds."""
        counts: dict[int, int] = {}
        for seconds in spans:
            bucket = bucket_of(seconds)
            counts[bucket] = counts.get(bucket, 0) + 1
        return _from_counts(counts)

    @property
    def total(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """The duration in seconds that this share of all did not exceed; None for an empty sketch."""
        return self.percentiles([share])[0]

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """Several percentiles at once: charts ask for three of each of a thousand sketches."""
        if not self.counts:
            return [None] * len(shares)
        up_to = list(accumulate(self.counts))
        places = [bisect_left(up_to, max(ceil(up_to[-1] * share), 1)) for share in shares]
        return [middle_of(self.buckets[place]) for place in places]

    def at_most(self, seconds: float) -> int:
        """The number of durations up to a limit, as accurately as the buckets allow."""
        pairs = zip(self.buckets, self.counts, strict=True)
        return sum(count for bucket, count in pairs if middle_of(bucket) <= seconds)


def merge_sketches(sketches: Iterable[DurationSketch]) -> DurationSketch:
    """The sum of some sketches."""
    counts: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in zip(sketch.buckets, sketch.counts, strict=True):
            counts[bucket] = counts.get(bucket, 0) + count
    return _from_counts(counts)


def _from_counts(counts: Mapping[int, int]) -> DurationSketch:
    buckets = sorted(counts)
    return DurationSketch(buckets, [counts[bucket] for bucket in buckets])


@dataclass(frozen=True, slots=True)
class TypicalDuration:
    """How long a job or handler usually takes, from *count* runs."""

    median: timedelta
    p95: timedelta
    count: int


# How long each period is kept; older history is known by the hour, then not at all.
MINUTES_KEPT = timedelta(days=8)
HOURS_KEPT = timedelta(days=400)


class RollupPeriod(StrEnum):
    """The period of a rollup."""

    MINUTE = "minute"
    HOUR = "hour"
    EVER = "ever"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupCounts:
    """The counts of a period.

    `starts` are attempts, counted where they started. `succeeded`, `cancelled`, `dead`, `skipped` and `expected` are executions,
    and `failed`, `timed_out`, `lost` and `expected_tries` are attempts, counted where they ended. What was expected is what failed
    with an error that its handler declares as such: the other counts leave it out, so that it raises no alarm.
    """

    starts: int = 0
    succeeded: int = 0
    cancelled: int = 0
    dead: int = 0
    skipped: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    expected: int = 0
    expected_tries: int = 0

    @property
    def unsuccessful_tries(self) -> int:
        """Attempts that failed, timed out or were lost with their worker, and were not expected to."""
        return self.failed + self.timed_out + self.lost

    @property
    def ended(self) -> int:
        """Executions that ended, in any state."""
        return self.succeeded + self.cancelled + self.died + self.skipped

    @property
    def died(self) -> int:
        """Executions that ended dead, expected or not."""
        return self.dead + self.expected

    @property
    def failure_share(self) -> float | None:
        """The share of ended attempts that did not succeed, and were not expected to fail; None if none ended."""
        tries = self.succeeded + self.unsuccessful_tries + self.expected_tries
        return self.unsuccessful_tries / tries if tries else None


@dataclass(frozen=True, slots=True)
class OccurrenceCounts:
    """The occurrences of schedules in a period: those that ran, counted where they ended, and those that were skipped, by reason,
    counted where that was recorded. A skip range counts as many as it holds."""

    ran: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)


def sum_occurrences(parts: Iterable[OccurrenceCounts]) -> OccurrenceCounts:
    """Several counts as one."""
    ran, skipped = 0, Counter[str]()
    for part in parts:
        ran += part.ran
        skipped.update(part.skipped)
    return OccurrenceCounts(ran, dict(sorted(skipped.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """The counts and durations of a period, for one (queue, handler) or, if these are empty, for all."""

    at: datetime
    queue: str = ""
    handler: str = ""
    counts: RollupCounts = field(default_factory=RollupCounts)
    occurrences: OccurrenceCounts = field(default_factory=OccurrenceCounts)
    lateness: DurationSketch = field(default_factory=DurationSketch)
    lateness_seconds: float = 0.0
    duration: DurationSketch = field(default_factory=DurationSketch)
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """What the latest runs of a recurring job tell; without a name, the worst of those that have no label of their own."""

    name: str | None
    succeeded_at: datetime | None
    failures_in_a_row: int
    duration_seconds: float | None
    lateness_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExample:
    """An execution that ended lately, as an example of what counters count. *lateness_seconds* only if its first attempt ended it."""

    id: ExecutionId
    queue: str
    handler: str
    outcome: str
    ended_at: datetime
    lateness_seconds: float | None
    duration_seconds: float | None
    traceparent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupQuery:
    """Which rollups: a window, and a job, queue or handler; all of them if none is given."""

    since: datetime
    until: datetime
    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None
    span: RollupPeriod = RollupPeriod.MINUTE


def sum_rollups(rollups: Iterable[Rollup], at: datetime, queue: str = "", handler: str = "") -> Rollup:
    """Several rollups as one."""
    parts = list(rollups)
    return Rollup(
        at=at,
        queue=queue,
        handler=handler,
        counts=RollupCounts(**{name: sum(getattr(part.counts, name) for part in parts) for name in COUNTED_FIELDS}),
        occurrences=sum_occurrences(part.occurrences for part in parts),
        lateness=merge_sketches(part.lateness for part in parts),
        lateness_seconds=sum(part.lateness_seconds for part in parts),
        duration=merge_sketches(part.duration for part in parts),
        duration_seconds=sum(part.duration_seconds for part in parts),
    )


COUNTED_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(RollupCounts))
