"""The contents of a timeline: marks, merged where they would overlap and never across now, and the load of each bucket.

Instants are kept as seconds since 1970 here: a view adds thousands of runs, and numbers compare far faster than instants.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from timeball.domain.forecast.demand import FireTimes

# A screen cannot show more marks, and no reader could distinguish them.
MAX_MARKS = 2_000
PIXELS_PER_MARK = 4


@dataclass(slots=True)
class BucketLoad:
    """The load of each bucket: seconds of work, starts, and the most runs at once where every run is known."""

    edges: Sequence[datetime]
    seconds: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    _spans: list[tuple[float, float]] = field(default_factory=list)
    _moments: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seconds = [0.0] * (len(self.edges) - 1)
        self.starts = [0] * (len(self.edges) - 1)
        self._moments = [edge.timestamp() for edge in self.edges]

    @property
    def width(self) -> float:
        """The length of a bucket in seconds, if all are alike."""
        return (self._moments[-1] - self._moments[0]) / max(len(self.edges) - 1, 1)

    def add(self, fires: FireTimes) -> None:
        """Add the runs of a job."""
        for at in fires.at:
            self.add_span(at, at + fires.job.duration)
        for number, count in enumerate(fires.counts):
            if count:
                self._add_many(number, count, fires.job.duration.total_seconds())

    def add_span(self, start: datetime, end: datetime, *, is_start: bool = True) -> None:
        """One run, spread over the buckets it touches."""
        low, high = start.timestamp(), end.timestamp()
        first, last = self._moments[0], self._moments[-1]
        if high <= first or low >= last:
            return
        is_start = is_start and low >= first
        low, high = max(low, first), min(high, last)
        number = self._bucket(low)
        if is_start:
            self.starts[number] += 1
        self._spans.append((low, high))
        self._spread(number, low, high, 1.0)

    def add_ended(self, until: datetime, seconds: float, each: float) -> None:
        """Add runs of which only the end, their total work and the average duration are known: the work ends at *until*."""
        high = until.timestamp()
        low = high - max(each, 1e-6)
        share = seconds / (high - low)
        low, high = max(low, self._moments[0]), min(high, self._moments[-1])
        if low < high:
            self._spread(self._bucket(low), low, high, share)

    def _spread(self, number: int, low: float, high: float, share: float) -> None:
        """Add the work of a span that begins in a bucket; most spans end there too."""
        if high <= self._moments[number + 1]:
            self.seconds[number] += (high - low) * share
            return
        while number < len(self.seconds) and self._moments[number] < high:
            begun, ended = max(low, self._moments[number]), min(high, self._moments[number + 1])
            self.seconds[number] += (ended - begun) * share
            number += 1

    def _add_many(self, number: int, count: int, seconds: float) -> None:
        """Add runs of which only the bucket is known: their work begins there and continues for their duration."""
        self.starts[number] += count
        reach = max(1, -(-int(seconds) // max(int(self.width), 1)))
        for later in range(number, min(number + reach, len(self.seconds))):
            self.seconds[later] += count * seconds / reach

    def bucket(self, at: datetime) -> int:
        """The bucket of an instant; the first or the last bucket for one outside."""
        return max(self._bucket(at.timestamp()), 0)

    def _bucket(self, moment: float) -> int:
        """The bucket of a moment that is not before the first."""
        return min(bisect_right(self._moments, moment), len(self.seconds)) - 1

    def busy(self, number: int) -> float:
        """How many slots are busy in a bucket on average."""
        span = self._moments[number + 1] - self._moments[number]
        return self.seconds[number] / span if span else 0.0

    def peaks(self) -> list[int]:
        """The most runs at once in each bucket, of those that were added one by one."""
        highest = [0] * len(self.seconds)
        changes: defaultdict[float, int] = defaultdict(int)
        for start, end in self._spans:
            changes[start] += 1
            changes[end] -= 1
        level = at = 0
        last = len(highest) - 1
        for moment in sorted(changes):
            # A level that lasts counts in every bucket that it reaches into.
            while at < last and moment >= self._moments[at + 1]:
                at += 1
                if moment > self._moments[at]:
                    highest[at] = max(highest[at], level)
            level += changes[moment]
            if level > highest[at]:
                highest[at] = level
        return highest


def bucket_load(edges: Sequence[datetime], fires: Iterable[FireTimes]) -> BucketLoad:
    """The load of these runs."""
    load = BucketLoad(edges)
    for times in fires:
        load.add(times)
    return load


class TimelineMarkKind(StrEnum):
    """Solid, striped, outlined or hatched."""

    PAST = "past"
    SKIPPED = "skipped"
    RUNNING = "running"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """One run, or several that are too close to distinguish; *states* counts the states of those that ended.

    A mark of skipped occurrences reaches from the first to the last of them, and *states* counts their reasons.
    """

    kind: TimelineMarkKind
    start: datetime
    end: datetime
    count: int = 1
    states: Mapping[str, int] = field(default_factory=dict)
    execution_id: str | None = None
    is_guess: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """One row of the timeline; *cut_before* says that older runs than this were not read, *freezes* are the ids of those that hold it."""

    key: str
    label: str
    kind: str
    marks: Sequence[TimelineMark]
    cut_before: datetime | None = None
    freezes: Sequence[str] = ()


def merge_marks(marks: Iterable[TimelineMark], apart: timedelta) -> list[TimelineMark]:
    """Join marks of one kind whose starts are less than *apart* from each other."""
    merged: list[TimelineMark] = []
    for kind in TimelineMarkKind:
        last: TimelineMark | None = None
        for mark in sorted((mark for mark in marks if mark.kind is kind), key=lambda mark: mark.start):
            if last is not None and mark.start - last.start < apart:
                last = _join_marks(last, mark)
                merged[-1] = last
            else:
                last = mark
                merged.append(mark)
    return merged


def fit_rows(rows: Sequence[MarkRow], span: timedelta, width: int) -> list[MarkRow]:
    """Rows whose marks are at least about four pixels apart, with no more marks in all than a view may have."""
    apart = span * (PIXELS_PER_MARK / max(width, PIXELS_PER_MARK))
    drawn = [replace(row, marks=merge_marks(row.marks, apart)) for row in rows]
    while sum(len(row.marks) for row in drawn) > MAX_MARKS:
        apart *= 2
        drawn = [replace(row, marks=merge_marks(row.marks, apart)) for row in drawn]
    return drawn


def _join_marks(left: TimelineMark, right: TimelineMark) -> TimelineMark:
    states = dict(left.states)
    for state, count in right.states.items():
        states[state] = states.get(state, 0) + count
    return replace(
        left,
        end=max(left.end, right.end),
        count=left.count + right.count,
        states=states,
        execution_id=None,
        is_guess=left.is_guess or right.is_guess,
    )
