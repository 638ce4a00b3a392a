"""Recurrence rules of iCalendar (RFC 5545, `RRULE:`): their syntax, and the wall times that one names.

    RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9                                    the last Friday of each month, at nine
    DTSTART:20260105T093000 RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TH          every other week, counted from that one

A rule counts from its DTSTART, a wall time on the clock of the schedule, and what it leaves open it takes from there: `FREQ=WEEKLY` is the
weekday and the time of DTSTART. DTSTART stands before the rule, on a line of its own or with a blank between, as calendars and other
programs write it. A text without one is given one when it is accepted, and is stored with it, so a stored rule always names the same
wall times: `starts_at`, if the schedule has it, else the beginning of the day. With COUNT and neither, it counts from the first
occurrence that lies ahead.

The rule is about wall times alone. What a clock change does to them follows `on_gap` and `on_repeat` as with cron; a rule by the hour,
minute or second that names every hour of the day follows elapsed time, as such a cron expression does (see cron).

python-dateutil finds the days of one year or month at a time; it is never asked to search, for it would search a rule that matches no day
until the year 9999. The days of a year are a mask that is kept, and the times of a day are added here. So every question costs the years
between the answer and the instant that it is asked about, at most those up to 2199, and a rule that began long ago costs no more than a
new one. COUNT becomes the last wall time when the rule is read.

Refused, each with what to do instead: exceptions and further rules (EXDATE, RDATE, a second RRULE; calendars take days away), parts that
RFC 5545 does not allow together, BYSETPOS among several times of a day, BYEASTER, and what names no wall time up to 2199.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from timeball.domain.policies import Shift
from timeball.domain.scheduling.calendars import (
    FIRST_YEAR,
    LAST_YEAR,
    MAX_SHIFT_DAYS,
    CalendarRule,
    NamedDays,
    YearDays,
)
from timeball.domain.scheduling.civil_time import (
    DAY,
    MAX_INSTANT,
    MICROSECOND,
    MIN_INSTANT,
    SECOND,
    WallPattern,
    load_zone,
)
from timeball.domain.values.wording import ordinal
from timeball.errors import NeverFires, ScheduleError, quote_text

_DAY_SECONDS = 86_400
_FREQUENCIES: Final = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
# The frequencies that are less than a day, with their seconds.
_STEPS: Final[Mapping[str, int]] = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
_WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
# What the numbers of each part may be; those with a minus count from the end.
_NUMBERS: Final[Mapping[str, tuple[int, int, bool]]] = {
    "BYMONTH": (1, 12, False),
    "BYWEEKNO": (1, 53, True),
    "BYYEARDAY": (1, 366, True),
    "BYMONTHDAY": (1, 31, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
_PARTS: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_NUMBERS)
_MAX_NUMBER = 1_000_000
_BY_DAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_START = re.compile(r"DTSTART(?:;TZID=([^:]+))?:(\S+)", re.IGNORECASE)
_MOMENT = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")
# Behind every wall time that a rule can name.
_FAR: Final = datetime.combine(date(LAST_YEAR + 1, 1, 1), time.min)
_EARLIEST: Final = datetime.combine(date(FIRST_YEAR, 1, 1), time.min)
_MOST_MOVED: Final = timedelta(days=MAX_SHIFT_DAYS + 1)
# Days whose times differ from one another are counted one by one, so only so many.
_COUNTED_DAYS = 400


def is_rrule(text: object) -> bool:
    """Whether the text of a schedule is a recurrence rule, and no cron expression."""
    return isinstance(text, str) and text.lstrip().upper().startswith(("RRULE:", "DTSTART"))


def continued_rrule(text: str, present: str) -> str:
    """The text of a rule that takes the place of a *present* one: if it does not say from when it counts, it counts as that one."""
    return text if _START.match(text.strip()) else f"{present.partition(' ')[0]} {text.strip()}"


def canonical_rrule(text: str, timezone: str, wall: datetime, *, is_default: bool) -> str:
    """A rule as it is stored: DTSTART in wall time, a blank, and the rule, in capitals.

    *wall* is its DTSTART if the text has none; *is_default* if that is only the present moment: it then counts from the beginning of
    that day, and with COUNT from the first occurrence that is not before *wall*.
    """
    whole = " ".join(text.split())
    match = _START.match(whole)
    rest = whole[match.end() :].strip() if match else whole
    if not rest.upper().startswith("RRULE:") or " " in rest:
        raise _error(whole, "it has more than DTSTART and one RRULE", "one RRULE; leave days out with skip_on")
    parts = _read_parts(whole, rest[len("RRULE:") :])
    if "UNTIL" in parts:
        parts["UNTIL"] = _text_of(_read_moment(whole, "UNTIL", parts["UNTIL"], timezone, ends_day=True))
    rule = "RRULE:" + ";".join(f"{name}={value}" for name, value in parts.items())
    if match:
        zone, given = match.groups()
        if zone is not None and zone != timezone:
            expected = f"the same zone as timezone, which is {timezone}"
            raise _error(
                whole, f"TZID is {quote_text(zone)}", expected, hint="give it as timezone too, or leave TZID out"
            )
        start = _read_moment(whole, "DTSTART", given, timezone)
    elif is_default:
        start = datetime.combine(wall.date(), time.min)
        if "COUNT" in parts:
            endless = ";".join(f"{name}={value}" for name, value in parts.items() if name != "COUNT")
            ahead = parse_rrule(f"DTSTART:{_text_of(start)} RRULE:{endless}").walls_after(wall - MICROSECOND)
            start = next(ahead, start)
    else:
        start = wall.replace(microsecond=0)
    canonical = f"DTSTART:{_text_of(start)} {rule}"
    parse_rrule(canonical)
    return canonical


@lru_cache(maxsize=4096)
def parse_rrule(canonical: str) -> RrulePattern:
    """The wall times of a rule with its DTSTART; a ScheduleError names the part that does not fit, NeverFires means that there are none."""
    start, _, rule = canonical.partition(" ")
    begin = datetime.fromisoformat(start.removeprefix("DTSTART:"))
    parts = _read_parts(canonical, rule.removeprefix("RRULE:"))
    _check_together(canonical, parts)
    pattern = RrulePattern(canonical, begin, parts)
    if next(pattern.walls_after(begin - SECOND), None) is None:
        raise NeverFires(
            f'rrule "{quote_text(canonical)}": never fires, because no wall time up to 2199 matches all of its parts',
            field="schedule",
            hint="check its days against the length of the months, and UNTIL against DTSTART",
        )
    return pattern


def _read_parts(text: str, rule: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in rule.upper().strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or name not in _PARTS:
            hint = "Easter has a calendar: skip_on or only_on" if name == "BYEASTER" else None
            raise _error(text, f"it has the part {quote_text(part)}", f"NAME=VALUE with {', '.join(_PARTS)}", hint=hint)
        if name in parts:
            raise _error(text, f"{name} is given twice", "each part once")
        parts[name] = value
    if "FREQ" not in parts:
        raise _error(text, "it has no FREQ", f"one of {', '.join(_FREQUENCIES)}")
    return {"FREQ": parts.pop("FREQ"), **parts}


def _check_together(text: str, parts: Mapping[str, str]) -> None:
    """What RFC 5545 does not allow together, or what would be ambiguous."""
    frequency = parts["FREQ"]
    if frequency not in _FREQUENCIES:
        raise _error(text, f"FREQ is {quote_text(frequency)}", f"one of {', '.join(_FREQUENCIES)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise _error(text, "COUNT and UNTIL are both given", "one of them")
    refused = {
        "BYWEEKNO": set(_FREQUENCIES) - {"YEARLY"},
        "BYYEARDAY": {"MONTHLY", "WEEKLY", "DAILY"},
        "BYMONTHDAY": {"WEEKLY"},
        "BYSETPOS": {"DAILY", *_STEPS},
    }
    for name, frequencies in refused.items():
        if name in parts and frequency in frequencies:
            others = [other for other in _FREQUENCIES if other not in frequencies]
            raise _error(text, f"{name} is given with FREQ={frequency}", f"it with FREQ={' or '.join(others)} alone")
    has_ordinal = any(char.isdigit() for char in parts.get("BYDAY", ""))
    if has_ordinal and (frequency not in ("YEARLY", "MONTHLY") or "BYWEEKNO" in parts):
        raise _error(
            text,
            f"BYDAY is {parts['BYDAY']} with FREQ={frequency}",
            "plain weekdays such as FR",
            hint="-1FR needs FREQ=MONTHLY or YEARLY",
        )
    if "BYSETPOS" in parts:
        if not any(name.startswith("BY") and name != "BYSETPOS" for name in parts):
            raise _error(text, "BYSETPOS is given alone", "another BY part, of whose days it chooses")
        if any("," in parts.get(name, "") for name in ("BYHOUR", "BYMINUTE", "BYSECOND")):
            raise _error(
                text,
                "BYSETPOS is given with several times of a day",
                "one BYHOUR, BYMINUTE and BYSECOND",
                hint="make a job for each time",
            )


def _number(text: str, parts: Mapping[str, str], name: str) -> int | None:
    value = parts.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", value) or not 1 <= int(value) <= _MAX_NUMBER:
        raise _error(text, f"{name} is {quote_text(value)}", f"1 to {_MAX_NUMBER}")
    return int(value)


def _numbers(text: str, parts: Mapping[str, str], name: str) -> tuple[int, ...]:
    if name not in parts:
        return ()
    low, high, from_end = _NUMBERS[name]
    numbers = []
    for value in parts[name].split(","):
        number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,3}", value) else None
        if number is None or not (low <= number <= high or (from_end and -high <= number <= -low)):
            expected = f"{low} to {high}" + (f", or -{high} to -{low} from the end" if from_end else "")
            raise _error(text, f"{name} has {quote_text(value) or 'nothing'}", expected)
        numbers.append(number)
    return tuple(sorted(set(numbers)))


def _weekdays(text: str, parts: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """Each weekday with its number in the month or year; 0 is every one."""
    if "BYDAY" not in parts:
        return ()
    days = []
    for value in parts["BYDAY"].split(","):
        match = _BY_DAY.fullmatch(value)
        nth = int(match[1] or 0) if match else 0
        if match is None or abs(nth) > 53 or (match[1] and nth == 0):
            raise _error(
                text, f"BYDAY has {quote_text(value) or 'nothing'}", "weekdays such as MO, or -1FR for the last Friday"
            )
        days.append((_WEEKDAYS.index(match[2]), nth))
    return tuple(sorted(set(days)))


def _week_start(text: str, parts: Mapping[str, str]) -> int:
    value = parts.get("WKST", "MO")
    if value not in _WEEKDAYS:
        raise _error(text, f"WKST is {quote_text(value)}", f"one of {', '.join(_WEEKDAYS)}")
    return _WEEKDAYS.index(value)


def _read_moment(text: str, name: str, value: str, timezone: str, *, ends_day: bool = False) -> datetime:
    """A DATE-TIME of iCalendar in wall time; one in UTC is read on the clock of the zone, a date is its beginning or its end."""
    match = _MOMENT.fullmatch(value.upper())
    try:
        if match is None:
            raise ValueError
        clock = match[2] or ("235959" if ends_day else "000000")
        wall = datetime.fromisoformat(f"{match[1]}T{clock}")
        if not MIN_INSTANT.year <= wall.year <= MAX_INSTANT.year:
            raise ValueError
        if match[3]:
            wall = wall.replace(tzinfo=load_zone("UTC")).astimezone(load_zone(timezone)).replace(tzinfo=None)
    except ValueError:
        expected = "20260131T090000 in the years from 1970 to 2199, with a Z for UTC"
        raise _error(text, f"{name} is {quote_text(value)}", expected) from None
    return wall


def _text_of(wall: datetime) -> str:
    return wall.strftime("%Y%m%dT%H%M%S")


def _error(text: str, found: str, expected: str, *, hint: str | None = None) -> ScheduleError:
    return ScheduleError(f'rrule "{quote_text(text)}": {found}, expected {expected}', field="schedule", hint=hint)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The parts of a rule, with what it leaves open taken from its DTSTART."""

    start: datetime
    frequency: str
    interval: int
    week_start: int
    weekdays: tuple[tuple[int, int], ...]
    months: tuple[int, ...]
    month_days: tuple[int, ...]
    year_days: tuple[int, ...]
    weeks: tuple[int, ...]
    positions: tuple[int, ...]

    def days_of(self, year: int) -> int:
        """The days of a year that the rule names, as a mask: bit 0 is 1 January."""
        start = self.start.date()
        match self.frequency:
            case "YEARLY":
                return 0 if (year - start.year) % self.interval else self._matching("YEARLY", date(year, 1, 1))
            case "MONTHLY":
                ahead = (start.month - 1 - (year - start.year) * 12) % self.interval
                months = range(1 + ahead, 13, self.interval)
                return _union(self._matching("MONTHLY", date(year, month, 1)) for month in months)
            case "WEEKLY":
                return self._weekly(year)
            case "DAILY":
                ahead = (start - date(year, 1, 1)).days % self.interval
                return self._filtered(year) & _union(1 << day for day in range(ahead, 366, self.interval))
            case _:
                return self._filtered(year)

    def _weekly(self, year: int) -> int:
        """The days of every week that the interval leaves; a week may lie in two years."""
        week = self.start.date() - timedelta(days=(self.start.weekday() - self.week_start) % 7)
        first, mask = date(year, 1, 1), 0
        ahead = (week - first + timedelta(days=6)).days % (7 * self.interval) - 6
        for monday in range(ahead, 366, 7 * self.interval):
            days = [day for day in range(monday, monday + 7) if self._is_filtered(first + timedelta(days=day))]
            chosen = days if not self.positions else _at_positions(days, self.positions)
            mask |= _union(1 << day for day in chosen if day >= 0)
        return mask & (1 << _length_of(year)) - 1

    def _is_filtered(self, day: date) -> bool:
        return bool(self._filtered(day.year) >> (day.timetuple().tm_yday - 1) & 1)

    def _filtered(self, year: int) -> int:
        """The days of a year that the parts leave, whatever the frequency: every day if there are none."""
        if not any((self.weekdays, self.months, self.month_days, self.year_days, self.weeks)):
            return (1 << _length_of(year)) - 1
        return _filtered_days(self, year)

    def _matching(self, frequency: str, first: date) -> int:
        """The days of one period that the rule names, as a mask of its year.

        The interval leads behind the last year that dateutil knows: it looks at this period alone, and not for ever at a rule without days.
        """
        from dateutil import rrule as dateutil_rrule  # only rules need it, and it takes some milliseconds

        weekday = dateutil_rrule.weekday
        found = dateutil_rrule.rrule(
            getattr(dateutil_rrule, frequency),
            dtstart=datetime.combine(first, time.min),
            interval=12 * date.max.year,
            wkst=self.week_start,
            bysetpos=self.positions or None if self.frequency == frequency else None,
            bymonth=self.months or None,
            bymonthday=self.month_days or None,
            byyearday=self.year_days or None,
            byweekno=self.weeks or None,
            byweekday=[weekday(day, nth) if nth else weekday(day) for day, nth in self.weekdays] or None,
            byhour=0,
            byminute=0,
            bysecond=0,
        )
        return _union(1 << (day.timetuple().tm_yday - 1) for day in found)


@lru_cache(maxsize=4096)
def _filtered_days(rule: _Rule, year: int) -> int:
    if rule.months and not any((rule.weekdays, rule.month_days, rule.year_days, rule.weeks)):
        # dateutil would add the day of DTSTART.
        rule = replace(rule, month_days=tuple(range(1, 32)))
    return rule._matching("YEARLY", date(year, 1, 1))


def _union(masks: Iterable[int]) -> int:
    mask = 0
    for one in masks:
        mask |= one
    return mask


def _length_of(year: int) -> int:
    return 366 if isleap(year) else 365


def _at_positions(days: Sequence[int], positions: Sequence[int]) -> set[int]:
    """The days at these places, counted from the beginning, or from the end if they are negative."""
    places = (position - 1 if position > 0 else len(days) + position for position in positions)
    return {days[place] for place in places if 0 <= place < len(days)}


class _KeptTimes(NamedTuple):
    """The hours, minutes and seconds that a rule leaves of its frequency; none means all of them."""

    hours: frozenset[int]
    minutes: frozenset[int]
    seconds: frozenset[int]


class _RuleDays(YearDays):
    """The days that a rule names, from the day of its DTSTART on."""

    __slots__ = ("_rule",)

    def __init__(self, rule: _Rule) -> None:
        super().__init__(LAST_YEAR)
        self._rule = rule

    def _compute(self, year: int) -> int:
        start = self._rule.start.date()
        if year < start.year:
            return 0
        mask = self._rule.days_of(year)
        return (
            mask >> (start.timetuple().tm_yday - 1) << (start.timetuple().tm_yday - 1) if year == start.year else mask
        )


class RrulePattern(WallPattern):
    """The wall times that one rule names: without a zone, in whole seconds."""

    __slots__ = (
        "_days",
        "_filtered",
        "_first",
        "_last",
        "_parts",
        "_step",
        "_times",
        "follows_elapsed",
        "start",
        "text",
    )

    def __init__(self, text: str, start: datetime, parts: Mapping[str, str]) -> None:
        self.text = text
        self.start = start
        self._parts = parts
        rule = _rule_of(text, start, parts)
        self._days: YearDays = _RuleDays(rule)
        hours, minutes, seconds = (_numbers(text, parts, name) for name in ("BYHOUR", "BYMINUTE", "BYSECOND"))
        self._step = _STEPS.get(rule.frequency, 0) * rule.interval
        self._filtered: _KeptTimes | None = None
        self._times: Sequence[int] = ()
        if self._step:
            # An hour that comes round has all its named minutes; what is finer than the frequency is named or that of DTSTART.
            unit = _STEPS[rule.frequency]
            fine_minutes = minutes or (start.minute,) if unit > 60 else (0,)
            fine_seconds = seconds or (start.second,) if unit > 1 else (0,)
            self._times = sorted(60 * minute + second for minute, second in product(fine_minutes, fine_seconds))
            kept = (hours, () if unit > 60 else minutes, () if unit > 1 else seconds)
            if any(kept):
                self._filtered = _KeptTimes(*map(frozenset, kept))
        else:
            moments = product(hours or (start.hour,), minutes or (start.minute,), seconds or (start.second,))
            self._times = sorted(3_600 * hour + 60 * minute + second for hour, minute, second in moments)
        self.follows_elapsed = 0 < self._step <= 3_600 and not hours
        self._first = start
        self._last = _FAR
        if "UNTIL" in parts:
            self._last = datetime.fromisoformat(parts["UNTIL"])
        count = _number(text, parts, "COUNT")
        if count is not None:
            self._last = self._nth_wall(count)
        self._days.last_year = min(LAST_YEAR, self._last.year)

    def on_days(self, calendar: CalendarRule) -> RrulePattern:
        """The same rule on the days that calendars leave of it, or move its days to."""
        return _CalendarRrule(self, calendar)

    def walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly after *wall*, in order."""
        begin = max(wall.replace(microsecond=0) + SECOND, self._earliest)
        today = begin.date()
        for day in self._from(today):
            times = self.times_of(day)
            skipped = bisect_left(times, _second_of(begin)) if day == today else 0
            for second in times[skipped:]:
                at = datetime.combine(day, time.min) + timedelta(seconds=second)
                if at > self._latest:
                    return
                yield at
            if datetime.combine(day, time.max) > self._latest:
                return

    def walls_before(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly before *wall*, latest first."""
        end = min((wall - MICROSECOND).replace(microsecond=0), self._latest)
        today = end.date()
        for day in self._back_from(today):
            times = self.times_of(day)
            kept = bisect_right(times, _second_of(end)) if day == today else len(times)
            for second in reversed(times[:kept]):
                at = datetime.combine(day, time.min) + timedelta(seconds=second)
                if at < self._earliest:
                    return
                yield at
            if datetime.combine(day, time.min) < self._earliest:
                return

    def count_between(self, start: datetime, end: datetime) -> int:
        """The number of named wall times in [start, end)."""
        start, end = max(start, self._earliest), min(end, self._latest + MICROSECOND)
        if start >= end:
            return 0
        if start.date() == end.date():
            return self._count_of_day(start.date(), start, end)
        total = self._count_of_day(start.date(), start, _FAR) + self._count_of_day(end.date(), _EARLIEST, end)
        following = start.date() + DAY
        if self.has_alike_days:
            return total + self._days.count(following, end.date()) * len(self._times)
        return total + sum(len(self.times_of(day)) for day in self._days_between(following, end.date()))

    @property
    def has_alike_days(self) -> bool:
        """Whether all days have the same times, so that they can be counted without looking at each."""
        return not self._step

    def can_count(self, days: int) -> bool:
        """Whether so many days can be counted in little time."""
        return self.has_alike_days or days <= _COUNTED_DAYS

    def times_of(self, day: date) -> Sequence[int]:
        """The seconds of a named day at which the rule names a wall time."""
        if not self._step:
            return self._times
        begun = int((datetime.combine(day, time.min) - self._anchor).total_seconds())
        return _times_of_step(-begun % self._step, self._step, tuple(self._times), self._filtered)

    def matches_day(self, day: date) -> bool:
        """Whether any time of *day* is named."""
        return day in self._days and bool(self.times_of(day))

    def explain(self) -> str:
        """The rule in plain words."""
        return _words_of(self._parts, self.start, self._times if not self._step else None)

    def moved_from(self, wall: datetime) -> datetime | None:
        """The wall time that a calendar moved to *wall*; None if the rule names *wall* itself."""
        return None

    @property
    def _earliest(self) -> datetime:
        return self._first

    @property
    def _latest(self) -> datetime:
        return self._last

    @property
    def _anchor(self) -> datetime:
        """DTSTART without what is finer than the frequency."""
        unit = _STEPS[self._parts["FREQ"]]
        return self.start - timedelta(seconds=_second_of(self.start) % unit)

    def _from(self, day: date) -> Iterator[date]:
        if day in self._days:
            yield day
        yield from self._days.after(day)

    def _back_from(self, day: date) -> Iterator[date]:
        if day in self._days:
            yield day
        yield from self._days.before(day)

    def _days_between(self, start: date, end: date) -> Iterator[date]:
        for day in self._from(start):
            if day >= end:
                return
            yield day

    def _count_of_day(self, day: date, start: datetime, end: datetime) -> int:
        if day not in self._days:
            return 0
        times = self.times_of(day)
        first = bisect_left(times, _second_from(start)) if start.date() == day else 0
        last = bisect_left(times, _second_from(end)) if end.date() == day else len(times)
        return max(last - first, 0)

    def _nth_wall(self, count: int) -> datetime:
        """The last of *count* wall times; the end of time if there are fewer."""
        left = count
        for day in self._from(self.start.date()):
            times = self.times_of(day)
            skipped = bisect_left(times, _second_of(self.start)) if day == self.start.date() else 0
            if len(times) - skipped >= left:
                return datetime.combine(day, time.min) + timedelta(seconds=times[skipped + left - 1])
            left -= len(times) - skipped
        return _FAR


class _CalendarRrule(RrulePattern):
    """The wall times of a rule on the days that calendars leave of it, or move its days to."""

    __slots__ = ("_calendar", "_whole")

    def __init__(self, whole: RrulePattern, calendar: CalendarRule) -> None:
        for name in RrulePattern.__slots__:
            setattr(self, name, getattr(whole, name))
        self._whole = whole
        self._calendar = calendar
        self._days = NamedDays(calendar, self._is_named)
        self._days.last_year = min(self._days.last_year, self._latest.year)

    def times_of(self, day: date) -> Sequence[int]:
        origins = list(self._origins_of(day))
        if origins == [day]:
            return self._own_times(day)
        return sorted({second for origin in origins for second in self._own_times(origin)})

    @property
    def has_alike_days(self) -> bool:
        # The first and the last day may lack times, and may move onto others.
        return False

    def moved_from(self, wall: datetime) -> datetime | None:
        second = _second_of(wall)
        origins = [day for day in self._origins_of(wall.date()) if second in self._own_times(day)]
        if not origins or wall.date() in origins:
            return None
        return datetime.combine(origins[0], wall.time())

    # What was moved may lie outside of the rule's own bounds, which hold for what it names.

    @property
    def _earliest(self) -> datetime:
        return max(_EARLIEST, self._whole._first - _MOST_MOVED)

    @property
    def _latest(self) -> datetime:
        return min(_FAR, self._whole._last + _MOST_MOVED)

    def _is_named(self, day: date) -> bool:
        return bool(self._own_times(day))

    def _own_times(self, day: date) -> Sequence[int]:
        """The times that the rule itself names on a day, within its bounds."""
        whole = self._whole
        if day not in whole._days:
            return ()
        times = whole.times_of(day)
        if day == whole._first.date():
            times = times[bisect_left(times, _second_of(whole._first)) :]
        if day == whole._last.date():
            times = times[: bisect_right(times, _second_of(whole._last))]
        return times if whole._first.date() <= day <= whole._last.date() else ()

    def _origins_of(self, day: date) -> Iterator[date]:
        """The days whose wall times are those of *day*: itself, if it is allowed, and those that moved onto it, the nearest first."""
        rule = self._calendar
        if rule.inverse_years is not None:
            # What is left out keeps its place.
            yield day
            return
        if not self._is_open(day) or self._is_skipped(day):
            return
        if self._is_named(day):
            yield day
        if rule.shift is Shift.NONE:
            return
        step = -DAY if rule.shift is Shift.NEXT else DAY
        origin = day + step
        for _ in range(MAX_SHIFT_DAYS):
            if not FIRST_YEAR <= origin.year <= LAST_YEAR or (self._is_open(origin) and not self._is_skipped(origin)):
                return
            if self._is_open(origin) and self._is_named(origin):
                yield origin
            origin += step

    def _is_open(self, day: date) -> bool:
        return bool(self._calendar.open_mask(day.year) >> (day.timetuple().tm_yday - 1) & 1)

    def _is_skipped(self, day: date) -> bool:
        return bool(self._calendar.skipped_mask(day.year) >> (day.timetuple().tm_yday - 1) & 1)


def _rule_of(text: str, start: datetime, parts: Mapping[str, str]) -> _Rule:
    frequency = parts["FREQ"]
    weekdays, months = _weekdays(text, parts), _numbers(text, parts, "BYMONTH")
    month_days, year_days = _numbers(text, parts, "BYMONTHDAY"), _numbers(text, parts, "BYYEARDAY")
    weeks = _numbers(text, parts, "BYWEEKNO")
    if not (weekdays or month_days or year_days or weeks):
        match frequency:
            case "YEARLY":
                months, month_days = months or (start.month,), (start.day,)
            case "MONTHLY":
                month_days = (start.day,)
            case "WEEKLY":
                weekdays = ((start.weekday(), 0),)
    return _Rule(
        start=start,
        frequency=frequency,
        interval=_number(text, parts, "INTERVAL") or 1,
        week_start=_week_start(text, parts),
        weekdays=weekdays,
        months=months,
        month_days=month_days,
        year_days=year_days,
        weeks=weeks,
        positions=_numbers(text, parts, "BYSETPOS"),
    )


@lru_cache(maxsize=256)
def _times_of_step(
    first: int,
    step: int,
    fine: tuple[int, ...],
    kept: _KeptTimes | None,
) -> Sequence[int]:
    """The seconds of a day at every *step* from *first* on, with what is finer, as far as their hours, minutes and seconds are kept."""
    coarse: Iterable[int] = range(first, _DAY_SECONDS, step)
    if fine == (0,) and kept is None:
        return range(first, _DAY_SECONDS, step)
    if kept is not None:
        hours, minutes, seconds = kept
        coarse = [
            at
            for at in coarse
            if (not hours or at // 3_600 in hours)
            and (not minutes or at // 60 % 60 in minutes)
            and (not seconds or at % 60 in seconds)
        ]
    return [at + more for at in coarse for more in fine]


def _second_of(wall: datetime) -> int:
    return wall.hour * 3_600 + wall.minute * 60 + wall.second


def _second_from(wall: datetime) -> int:
    """The first whole second that is not before *wall*."""
    return _second_of(wall) + bool(wall.microsecond)


# the words

_UNITS: Final = dict(zip(_FREQUENCIES, ("year", "month", "week", "day", "hour", "minute", "second"), strict=True))
_DAY_NAMES: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTH_NAMES: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# More times a day than these are only counted.
_TOLD_TIMES = 6


def _words_of(parts: Mapping[str, str], start: datetime, times: Sequence[int] | None) -> str:
    rule = _rule_of("", start, parts)
    unit = _UNITS[rule.frequency]
    words = [f"Every {unit}" if rule.interval == 1 else f"Every {rule.interval} {unit}s"]
    if rule.positions:
        words.append(f"on the {_together([_ordinal(number) for number in rule.positions])} of")
    days = (
        [f"the {_ordinal(nth)} {_DAY_NAMES[day]}" if nth else _DAY_NAMES[day] for day, nth in rule.weekdays],
        [f"the {_ordinal(day)} of the month" for day in rule.month_days],
        [f"the {_ordinal(day)} day of the year" for day in rule.year_days],
    )
    named = [_together(some) for some in days if some]
    if named:
        words.append(("" if rule.positions else "on ") + ", if that is ".join(named))
    if rule.weeks:
        words.append(f"in the {_together([_ordinal(week) for week in rule.weeks])} week of the year")
    if rule.months:
        words.append(f"in {_together([_MONTH_NAMES[month - 1] for month in rule.months])}")
    if times is not None:
        is_few = len(times) <= _TOLD_TIMES
        words.append(f"at {_together([_clock(second) for second in times])}" if is_few else f"{len(times)} times a day")
    else:
        for name, one in (("BYHOUR", "hour"), ("BYMINUTE", "minute"), ("BYSECOND", "second")):
            if name in parts:
                words.append(f"in {one} {parts[name].replace(',', ', ')}")
    if rule.interval > 1 or "COUNT" in parts:
        words.append(f"counted from {start:%Y-%m-%d %H:%M}")
    if "COUNT" in parts:
        words.append("once" if parts["COUNT"] == "1" else f"{parts['COUNT']} times")
    if "UNTIL" in parts:
        words.append(f"until {datetime.fromisoformat(parts['UNTIL']):%Y-%m-%d %H:%M}")
    return " ".join(filter(None, words))


def _ordinal(number: int) -> str:
    if number == -1:
        return "last"
    return ordinal(abs(number)) + (" to last" if number < 0 else "")


def _together(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _clock(second: int) -> str:
    return f"{second // 3_600:02}:{second // 60 % 60:02}" + (f":{second % 60:02}" if second % 60 else "")
