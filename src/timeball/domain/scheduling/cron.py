"""Cron expressions: the wall times that one names, and the instants at which it fires in a time zone."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from cronsim import CronSim, CronSimError

from timeball.domain.policies import OnGap, OnRepeat
from timeball.domain.scheduling.civil_time import (
    MICROSECOND,
    SECOND,
    OffsetPeriod,
    WallTimeRepeat,
    offset_periods_back_from,
    offset_periods_from,
)
from timeball.domain.scheduling.cron_syntax import parse_expression
from timeball.errors import NeverFires

# The wall times that a cron expression names.
#
# cronsim reads the fields, knows which dates match and finds the next one; it is given wall time and knows nothing of
# zones. The times of a day are sorted lists here, since cronsim ticks to them minute by minute (`*/30 * * * *` took it
# 90 µs, and takes 10 µs so).

# Twenty-eight years hold every kind of year: leap or not, beginning on any day of the week.
_SOME_DAY = datetime(2000, 1, 1)
_ANOTHER_DAY = date(2028, 1, 1)

_HOURS_A_DAY = 24

_ODD_ORDINAL = re.compile(r"\b([2-6][123])th\b")
_ORDINAL_ENDINGS: Mapping[str, str] = MappingProxyType({"1": "st", "2": "nd", "3": "rd"})


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> CronPattern:
    """Read a cron expression; CronSyntaxError says which field does not fit, NeverFires that no date does."""
    canonical, normal = parse_expression(text)
    try:
        pattern = CronPattern(canonical, normal)
    except CronSimError:
        raise _never_fires(canonical) from None
    if not any(map(pattern.matches_day, _days(_SOME_DAY.date(), _ANOTHER_DAY))):
        raise _never_fires(canonical)
    return pattern


class CronPattern:
    """The wall times that one cron expression names; they have no zone, and whole seconds."""

    __slots__ = (
        "_expression",
        "_hours",
        "_minutes",
        "_next_day",
        "_previous_day",
        "_seconds",
        "follows_elapsed",
        "text",
    )

    def __init__(self, text: str, normal: str) -> None:
        self.text = text
        self._expression = CronSim(normal, _SOME_DAY)
        dates = " ".join(self._expression.parts[3:])
        self._next_day = CronSim(f"0 0 0 {dates}", _SOME_DAY)
        self._previous_day = CronSim(f"59 59 23 {dates}", _SOME_DAY, reverse=True)
        self._hours = sorted(self._expression.hours)
        self._minutes = sorted(self._expression.minutes)
        self._seconds = sorted(self._expression.seconds)
        self.follows_elapsed = len(self._hours) == _HOURS_A_DAY

    def walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly after *wall*, in order."""
        start = wall.replace(microsecond=0) + SECOND
        today = start.date()
        if self.matches_day(today):
            yield from self._times_from(today, start.time())
        for day in _resumed(self._next_day, datetime.combine(today, time(23, 59, 59))):
            yield from self._times_from(day.date(), time.min)

    def walls_before(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly before *wall*, latest first."""
        end = (wall - MICROSECOND).replace(microsecond=0)
        today = end.date()
        if self.matches_day(today):
            yield from self._times_back_from(today, end.time())
        for day in _resumed(self._previous_day, datetime.combine(today, time.min)):
            yield from self._times_back_from(day.date(), time.max)

    def first_between(self, start: datetime, end: datetime) -> datetime | None:
        """The first named wall time in [start, end)."""
        wall = next(self.walls_after(start - MICROSECOND), None)
        return wall if wall is not None and wall < end else None

    def matches(self, wall: datetime) -> bool:
        """Whether *wall* is one of the named wall times."""
        return self.first_between(wall, wall + MICROSECOND) is not None

    def matches_day(self, day: date) -> bool:
        """Whether any time of *day* is named."""
        return day.month in self._expression.months and self._expression.match_day(day)

    def count_between(self, start: datetime, end: datetime) -> int:
        """How many named wall times there are in [start, end); costs by the number of days, not of wall times."""
        if start >= end:
            return 0
        whole_days = sum(map(self.matches_day, _days(start.date(), end.date())))
        return (
            whole_days * self._times_a_day
            - self.matches_day(start.date()) * self._times_before(start.time())
            + self.matches_day(end.date()) * self._times_before(end.time())
        )

    def explain(self) -> str:
        """The expression in plain words."""
        # cronsim writes "31th".
        return _ODD_ORDINAL.sub(lambda found: found[1] + _ORDINAL_ENDINGS[found[1][-1]], self._expression.explain())

    @property
    def _times_a_day(self) -> int:
        return len(self._hours) * len(self._minutes) * len(self._seconds)

    def _times_from(self, day: date, start: time) -> Iterator[datetime]:
        """The times of a matching day from *start* on."""
        for hour in self._hours[bisect_left(self._hours, start.hour) :]:
            same_hour = hour == start.hour
            for minute in self._minutes[bisect_left(self._minutes, start.minute) if same_hour else 0 :]:
                same_minute = same_hour and minute == start.minute
                for second in self._seconds[bisect_left(self._seconds, start.second) if same_minute else 0 :]:
                    yield datetime(day.year, day.month, day.day, hour, minute, second)

    def _times_back_from(self, day: date, end: time) -> Iterator[datetime]:
        """The times of a matching day up to *end*, latest first."""
        for hour in reversed(self._hours[: bisect_right(self._hours, end.hour)]):
            same_hour = hour == end.hour
            for minute in reversed(self._minutes[: bisect_right(self._minutes, end.minute) if same_hour else None]):
                same_minute = same_hour and minute == end.minute
                for second in reversed(
                    self._seconds[: bisect_right(self._seconds, end.second) if same_minute else None]
                ):
                    yield datetime(day.year, day.month, day.day, hour, minute, second)

    def _times_before(self, moment: time) -> int:
        """How many of a matching day's times come before *moment*."""
        second = bisect_left(self._seconds, moment.second)
        if moment.microsecond and moment.second in self._expression.seconds:
            second += 1
        minute = bisect_left(self._minutes, moment.minute)
        if moment.minute not in self._expression.minutes:
            second = 0
        hour = bisect_left(self._hours, moment.hour)
        if moment.hour not in self._expression.hours:
            minute = second = 0
        return (hour * len(self._minutes) + minute) * len(self._seconds) + second


def _resumed(search: CronSim, wall: datetime) -> Iterator[datetime]:
    """A search for days, started from *wall*."""
    # A copy: to read the expression again would take longer than the search.
    resumed = copy(search)
    resumed.dt = wall
    return resumed


def _days(start: date, end: date) -> Iterator[date]:
    """Every date from *start* up to, not including, *end*."""
    for day in range((end - start).days):
        yield start + timedelta(days=day)


def _never_fires(text: str) -> NeverFires:
    return NeverFires(
        f'cron "{text}": never fires, because no date matches day-of-month, month and day-of-week; '
        "expected at least one day that exists",
        field="schedule",
        hint="check the day against the length of the months",
    )


# From the wall times a cron expression names to the instants at which it fires.
#
# Two kinds of expression, told apart by the hours they name:
#
# * An expression that names every hour (`*`, `*/1`, `0-23`) means a rhythm ("every half hour"). It *follows elapsed time*:
# it fires at every instant at which the clock shows a named wall time. Where the clock repeats itself both passes fire;
# what a gap jumps over is never shown, so it does not fire, is not moved and was never owed. `*/30 * * * *` thus fires
# every thirty minutes of real time through any change of whole half hours.
# * Any other expression names times of day ("at 02:30", "every other hour"), and people count on them: `on_gap` and
# `on_repeat` decide. `*/24` is midnight and `*/2` is twelve hours of the day, however they are written. All named times
# inside one gap move to the one instant at its end, and if the expression fires there anyway, that is the same
# occurrence and not another.
#
# Five and six fields are treated alike. The walk goes stretch by stretch (see civil_time), forwards or backwards, and
# inside a stretch the offset is fixed, so a wall time is an instant. Between distant matches it leaps: see `_leap`.

# Further than this from a wall time, no zone's clock can show it: offsets stay within a day.
_MARGIN = timedelta(days=2)


class NoteKind(StrEnum):
    """What a change of the clock did to an occurrence."""

    MOVED_BY_GAP = "moved_by_gap"
    SKIPPED_BY_GAP = "skipped_by_gap"
    FIRST_OF_REPEAT = "first_of_repeat"
    SECOND_OF_REPEAT = "second_of_repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurrenceNote:
    """Why an occurrence is not simply at its wall time.

    *wall* is the local time that was named (the first one, if a gap swallowed several), *count* how many there were.
    """

    kind: NoteKind
    wall: datetime
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One instant at which a schedule is due, in UTC.

    With a note of kind `skipped_by_gap` it is not due at all: *at* is then the end of the gap.
    """

    at: datetime
    note: OccurrenceNote | None = None

    @property
    def is_due(self) -> bool:
        return self.note is None or self.note.kind is not NoteKind.SKIPPED_BY_GAP


@dataclass(frozen=True, slots=True)
class CronIterator:
    """One expression on the clock of one zone."""

    pattern: CronPattern
    zone: str
    on_gap: OnGap
    on_repeat: OnRepeat

    def forward(self, after: datetime) -> Iterator[Occurrence]:
        """What comes strictly after *after*, in order, with what a gap skips in its place."""
        start: datetime | None = after
        while start is not None:
            start = yield from self._forward_until_leap(after, start)

    def backward(self, until: datetime) -> Iterator[datetime]:
        """The due instants at or before *until*, latest first."""
        start: datetime | None = until
        while start is not None:
            start = yield from self._backward_until_leap(until, start)

    def count(self, after: datetime, until: datetime) -> int:
        """How many due instants there are in (after, until]; costs by the number of days, not of instants."""
        total = 0
        for stretch in offset_periods_from(self.zone, after):
            if stretch.start > until:
                break
            total += self._count_inside(stretch, after, until)
        return total

    def _forward_until_leap(self, after: datetime, start: datetime) -> Generator[Occurrence, None, datetime | None]:
        for stretch in offset_periods_from(self.zone, start):
            if stretch.start > after and (jumped := self._jumped_over(stretch)):
                yield jumped
            if not self._admits(stretch):
                continue
            beyond = None
            for wall in self.pattern.walls_after(max(stretch.wall(start), stretch.wall_start - MICROSECOND)):
                if wall >= stretch.wall_end:
                    beyond = wall
                    break
                yield Occurrence(at=stretch.instant(wall), note=_note(stretch, wall))
            if beyond is None:
                return None
            leap = _leap(stretch, beyond)
            if leap is not None:
                return leap
        return None

    def _backward_until_leap(self, until: datetime, start: datetime) -> Generator[datetime, None, datetime | None]:
        for stretch in offset_periods_back_from(self.zone, start):
            beyond = None
            if self._admits(stretch):
                for wall in self.pattern.walls_before(min(stretch.wall(until) + MICROSECOND, stretch.wall_end)):
                    if wall < stretch.wall_start:
                        beyond = wall
                        break
                    yield stretch.instant(wall)
                if beyond is None:
                    return None
            if (jumped := self._jumped_over(stretch)) and jumped.is_due:
                yield jumped.at
            leap = _leap(stretch, beyond) if beyond is not None else None
            if leap is not None:
                return leap
        return None

    def _count_inside(self, stretch: OffsetPeriod, after: datetime, until: datetime) -> int:
        total = 0
        if after < stretch.start and (jumped := self._jumped_over(stretch)) and jumped.is_due:
            total += 1
        if self._admits(stretch):
            start = max(stretch.wall(after) + MICROSECOND, stretch.wall_start)
            end = min(stretch.wall(until) + MICROSECOND, stretch.wall_end)
            total += self.pattern.count_between(start, end)
        return total

    def _admits(self, stretch: OffsetPeriod) -> bool:
        if self.pattern.follows_elapsed or self.on_repeat is OnRepeat.BOTH or stretch.reading is WallTimeRepeat.ONCE:
            return True
        return stretch.reading.value == self.on_repeat.value

    def _jumped_over(self, stretch: OffsetPeriod) -> Occurrence | None:
        """What becomes of the named times in the gap before *stretch*, if it makes a difference."""
        if not stretch.gap or self.pattern.follows_elapsed:
            return None
        gap_start, gap_end = stretch.wall_start - stretch.gap, stretch.wall_start
        wall = self.pattern.first_between(gap_start, gap_end)
        if wall is None:
            return None
        skips = self.on_gap is OnGap.SKIP
        if not skips and self._admits(stretch) and self.pattern.matches(gap_end):
            return None
        kind = NoteKind.SKIPPED_BY_GAP if skips else NoteKind.MOVED_BY_GAP
        note = OccurrenceNote(kind=kind, wall=wall, count=self.pattern.count_between(gap_start, gap_end))
        return Occurrence(at=stretch.start, note=note)


@lru_cache(maxsize=4096)
def cron_iterator(expression: str, zone: str, on_gap: OnGap, on_repeat: OnRepeat) -> CronIterator:
    """The line of an expression in a zone, read once."""
    return CronIterator(parse_cron(expression), zone, on_gap, on_repeat)


def _leap(stretch: OffsetPeriod, wall: datetime) -> datetime | None:
    """Where to go on when the nearest match is *wall*, far outside of *stretch*; None: at the next stretch.

    Only from readings that come once: before or after a repeat, the wall times already seen may be shown again.
    """
    if stretch.reading is not WallTimeRepeat.ONCE:
        return None
    if wall > stretch.wall_end + 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) - _MARGIN
    if wall < stretch.wall_start - 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) + _MARGIN
    return None


def _note(stretch: OffsetPeriod, wall: datetime) -> OccurrenceNote | None:
    if stretch.reading is WallTimeRepeat.ONCE:
        return None
    kind = NoteKind.FIRST_OF_REPEAT if stretch.reading is WallTimeRepeat.FIRST else NoteKind.SECOND_OF_REPEAT
    return OccurrenceNote(kind=kind, wall=wall)
