"""The ledger of a job day by day: how many occurrences ran, began late, died or were skipped on each.

The numbers come from the rollups of the hours, so that half a year of an every-second job costs a few thousand small rows. The rollups
count a skip range where it was recorded, which may be days after its occurrences. So ranges are read one by one and moved to the days of
their occurrences. What the schedule leaves out is in no rollup: it comes from the versions of the job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import MICROSECOND, first_instant

if TYPE_CHECKING:
    from timeball.application.queries.ledger import LedgerQueries
    from timeball.domain.job import Job
    from timeball.domain.scheduling.ledger import VersionPeriod
    from timeball.domain.scheduling.schedule import Schedule
    from timeball.domain.scheduling.verdicts import LedgerLine
    from timeball.store.ledger import LedgerStore, RecordedRange
    from timeball.store.store import Store

# More ranges than these stay where they were recorded.
_MAX_RANGES = 1_000


class DayVerdict(StrEnum):
    """The worst that happened on a day."""

    DEAD = "dead"
    MISSED = "missed"
    SKIPPED = "skipped"
    LATE = "late"
    RAN = "ran"
    EMPTY = "empty"


@dataclass(slots=True, kw_only=True)
class LedgerDay:
    """One day of a job, from *start* to *end*."""

    date: date
    start: datetime
    end: datetime
    ran: int = 0
    dead: int = 0
    late: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> DayVerdict:
        if self.dead:
            return DayVerdict.DEAD
        if any(reason.is_missed for reason in SkipReason if reason in self.skipped):
            return DayVerdict.MISSED
        if self.skipped:
            return DayVerdict.SKIPPED
        if self.late:
            return DayVerdict.LATE
        return DayVerdict.RAN if self.ran else DayVerdict.EMPTY


class LedgerDayQueries:
    """Reads the days of jobs."""

    def __init__(self, store: Store, ledger: LedgerStore, lines: LedgerQueries) -> None:
        self._store = store
        self._ledger = ledger
        self._lines = lines

    async def days(self, job: Job, timezone: str, first: date, last: date) -> list[LedgerDay]:
        """The days from *first* to *last* on the clock of a zone. Late is what began later than the grace of the job, after its jitter."""
        edges = [_beginning(timezone, first + timedelta(days=n)) for n in range((last - first).days + 2)]
        counts = await self._store.rollups.days(job.id, edges, job.misfire.grace + job.jitter)
        days = [
            LedgerDay(
                date=first + timedelta(days=number),
                start=start,
                end=end,
                ran=count.ran,
                dead=count.dead,
                late=count.late,
                skipped=Counter(count.skipped),
            )
            for number, ((start, end), count) in enumerate(zip(pairwise(edges), counts, strict=True))
        ]
        ranges = await self._ledger.ranges(job.id, edges[-1], _MAX_RANGES)
        until = min(edges[-1] - MICROSECOND, self._store.env.clock.now())
        left_out = await self._lines.left_out(job, edges[0], until) if edges[0] <= until else []
        if ranges or left_out:
            versions = await self._ledger.versions(job.id)
            _move(days, ranges, versions)
            _count_left_out(days, left_out, versions)
        return days


def _beginning(timezone: str, day: date) -> datetime:
    return first_instant(timezone, datetime.combine(day, time.min))


def _move(days: Sequence[LedgerDay], ranges: Sequence[RecordedRange], periods: Sequence[VersionPeriod]) -> None:
    """Count ranges on the days of their occurrences, and not on those on which they were recorded."""
    starts = [day.start for day in days]
    rules = {period.version: period.rule for period in periods}
    for one in ranges:
        place = bisect_right(starts, one.recorded_at) - 1
        if place >= 0 and one.recorded_at < days[place].end:
            # The rollups may not count it yet.
            days[place].skipped[one.reason] = max(days[place].skipped[one.reason] - one.count, 0)
        for day, number in _spread(days, one, rules.get(one.version)):
            day.skipped[one.reason] += number
    for day in days:
        day.skipped = +day.skipped


def _count_left_out(days: Sequence[LedgerDay], lines: Sequence[LedgerLine], periods: Sequence[VersionPeriod]) -> None:
    """Count what the schedule leaves out."""
    rules = {period.version: period.rule for period in periods}
    for line in lines:
        if line.verdict is not Verdict.SKIPPED or line.reason is None:
            continue
        for day in days:
            if day.end <= line.first or day.start > line.last:
                continue
            parts = rules[line.version].left_out(
                max(day.start, line.first) - MICROSECOND, min(day.end - MICROSECOND, line.last)
            )
            day.skipped[line.reason] += sum(part.count or 1 for part in parts if part.reason == line.reason)


def _spread(days: Sequence[LedgerDay], one: RecordedRange, rule: Schedule | None) -> Iterator[tuple[LedgerDay, int]]:
    """How many occurrences of a range there are on each day. If its schedule is not known any more, they are all on the first."""
    for day in days:
        if day.end <= one.first or day.start > one.last:
            continue
        if day.start <= one.first and one.last < day.end:
            yield day, one.count
        elif rule is None:
            if day.start <= one.first:
                yield day, one.count
        else:
            after, until = max(day.start, one.first) - MICROSECOND, min(day.end - MICROSECOND, one.last)
            number = rule.count_between(after, until)
            if number:
                yield day, number
