"""The wall times that a cron expression names.

cronsim reads the fields, knows which dates match and finds the next one; it is given wall time and knows nothing of
zones. The times of a day are sorted lists here, since cronsim ticks to them minute by minute (`*/30 * * * *` took it
90 µs, and takes 10 µs so).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from copy import copy
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from types import MappingProxyType

from cronsim import CronSim, CronSimError

from timeball.domain.cron_text import read_expression
from timeball.domain.instants import MICROSECOND, SECOND
from timeball.errors import NeverFires

# Twenty-eight years hold every kind of year: leap or not, beginning on any day of the week.
_SOME_DAY = datetime(2000, 1, 1)
_ANOTHER_DAY = date(2028, 1, 1)

_HOURS_A_DAY = 24

_ODD_ORDINAL = re.compile(r"\b([2-6][123])th\b")
_ORDINAL_ENDINGS: Mapping[str, str] = MappingProxyType({"1": "st", "2": "nd", "3": "rd"})


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> CronPattern:
    """Read a cron expression; CronSyntaxError says which field does not fit, NeverFires that no date does."""
    canonical, normal = read_expression(text)
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
