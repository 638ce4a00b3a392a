"""Cron expressions: their syntax, the wall times that one names, and the instants at which it fires in a time zone.

Five fields (minute, hour, day of month, month, day of week), or six with seconds in front:

    field          values                 also
    second         0-59
    minute         0-59
    hour           0-23
    day-of-month   1-31                   L (last day), LW (last weekday), L-3 (third day before the last),
                                          15W (the weekday nearest to the 15th, in the same month)
    month          1-12 or jan-dec
    day-of-week    0-7 or sun-sat         5L or friL (last Friday), fri#2 (second Friday); 0 and 7 are Sunday

A field is a list of values, ranges `a-b`, and `*`. A range, `*` or a value (then "from there on") may have a step `/n`.
A range may run past the end of its field: `fri-mon`, `nov-feb`, `22-2`. A step may be as large as its field and no
larger: `*/60` for minutes means every hour, but `*/90` would not mean every 90 minutes and is refused.
If neither day field begins with `*`, a day must match one of them; otherwise it must match both (Debian's rule).
`@yearly @annually @monthly @weekly @daily @midnight @hourly` stand for the usual five fields.
A month that has no such day is left out: `31W` and `L-30` name days of the long months alone.

`H` stands for a value that is derived from the name of the job, as Jenkins has it: always the same for one name, and spread over the
range for many. `H` is one value of its field (a day of the month is at most the 28th), `H(0-29)` one value of a range, `H/15` every
fifteenth value from such a start on. `resolve_hash` puts the values in place; what follows knows no `H`.

There are two kinds of expression, distinguished by the hours they name:

* An expression that names every hour (`*`, `*/1`, `0-23`) means a rhythm ("every half hour") and follows elapsed time.
  It fires at every instant at which the clock shows a named wall time. Where the clock repeats an hour, both passes fire.
  A wall time inside a gap is never shown, so it does not fire, is not moved and is not owed. `*/30 * * * *` thus fires
  every thirty minutes of real time through any clock change of whole half hours.
* Any other expression names times of day ("at 02:30", "every other hour"), and people rely on them: `on_gap` and
  `on_repeat` decide. `*/24` is midnight and `*/2` is twelve hours of the day, however they are written. All named times
  inside one gap move to the one instant at its end; if the expression fires there anyway, that is the same occurrence.

Five and six fields are treated alike. The iterator goes through one offset period after the other (see civil_time),
forwards or backwards. Within a period the offset is fixed, so a wall time is an instant. Between distant matches the
iterator leaps: see `_leap`.

cronsim finds the matching dates. It works on wall time and knows no zones. Syntax that cronsim does not read, such as a
range past the end of its field, is spelt out for it; `_DaySearch` adds the two kinds of day that it does not know. Each field
is parsed once from left to right and the text is short, so parsing is fast for any input.
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field as CronField
from cronsim.explain import Day, Expression, Field, Sequence, ordinal

from timeball.domain.policies import OnGap, OnRepeat
from timeball.domain.scheduling.calendars import CalendarRule, NamedDays
from timeball.domain.scheduling.civil_time import (
    MICROSECOND,
    SECOND,
    OffsetPeriod,
    WallPattern,
    WallTimeRepeat,
    offset_periods_back_from,
    offset_periods_from,
)
from timeball.errors import CronSyntaxError, NeverFires, quote_text

MAX_LENGTH = 256

NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)


def parse_expression(text: str) -> tuple[str, str]:
    """An expression as it is shown and as cronsim reads it; CronSyntaxError names the field that does not fit."""
    canonical = canonical_text(text)
    fields = (_FieldReader(canonical, kind).read(field) for kind, field in _split(canonical))
    return canonical, " ".join(fields)


def has_hash(text: str) -> bool:
    """Whether an expression needs the name of its job: no other term begins with an H."""
    return any(term[:1] in ("H", "h") for field in text.split() for term in field.split(","))


@lru_cache(maxsize=4096)
def resolve_hash(text: str, name: str | None) -> str:
    """An expression with values in place of every `H`; CronSyntaxError if there is an `H` and no *name* to derive them from."""
    canonical = canonical_text(text)
    if not has_hash(canonical):
        return canonical
    return " ".join(_FieldReader(canonical, kind).resolve(field, name) for kind, field in _split(canonical))


@dataclass(frozen=True, slots=True)
class _FieldKind:
    """The values that one field accepts."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        named = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"{self.low}-{self.high}{named}"

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def values(self) -> range:
        # Day 7 is day 0 again, not an eighth one.
        return range(self.low, 7 if self.is_weekday else self.high + 1)

    @property
    def hashed(self) -> range:
        """The values that `H` may stand for: a day that every month has."""
        return range(1, 29) if self.is_day else self.values

    @property
    def is_weekday(self) -> bool:
        return self.name == "day-of-week"

    @property
    def is_day(self) -> bool:
        return self.name == "day-of-month"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_KINDS = (
    _FieldKind("second", 0, 59),
    _FieldKind("minute", 0, 59),
    _FieldKind("hour", 0, 23),
    _FieldKind("day-of-month", 1, 31),
    _FieldKind("month", 1, 12, _MONTHS),
    _FieldKind("day-of-week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """Checks one field and rewrites it in cronsim's syntax."""

    text: str
    kind: _FieldKind

    def read(self, field: str) -> str:
        return ",".join(self._term(term) for term in field.split(","))

    def resolve(self, field: str, name: str | None) -> str:
        """The field with values in place of every `H`."""
        return ",".join(self._hashed(term, name) if has_hash(term) else term for term in field.split(","))

    def _hashed(self, term: str, name: str | None) -> str:
        if name is None:
            expected = "the name of a job, because H is derived from it"
            raise self._error(term, expected, hint="give the job a name, or write a number")
        base, slash, step = term.partition("/")
        low, high = self._hash_range(base)
        seed = int.from_bytes(blake2b(f"{self.kind.name}\0{name}".encode(), digest_size=8).digest(), "big")
        if not slash:
            return str(low + seed % (high - low + 1))
        width = self._step(step, high - low + 1)
        return f"{low + seed % width}-{high}/{width}"

    def _hash_range(self, base: str) -> tuple[int, int]:
        if len(base) == 1:
            return self.kind.hashed[0], self.kind.hashed[-1]
        left, dash, right = base[2:-1].partition("-")
        if base[1] != "(" or base[-1] != ")" or not dash:
            raise self._error(base, f"H, H/step or H(a-b) with a range within {self.kind.expected}")
        low, high = self._value(left), self._value(right)
        if low > high:
            raise self._error(base, f"a range within {self.kind.expected} that does not end before it begins")
        return low, high

    def _term(self, term: str) -> str:
        base, slash, step = term.partition("/")
        if self.kind.is_day and _is_special_day(term.upper()):
            return self._special_day(term.upper())
        if slash:
            return self._stepped(base, self._step(step))
        if base == "*":
            return base
        if self.kind.is_weekday and "#" in base:
            return self._nth(base)
        if self.kind.is_weekday and base.upper().endswith("L"):
            return self._last(base)
        return self._range(base) if "-" in base else str(self._value(base))

    def _special_day(self, term: str) -> str:
        if term in ("L", "LW"):
            return term
        if term.endswith("W"):
            day = _whole_number(term[:-1])
            if day is None or not 1 <= day <= 31:
                raise self._error(term, "a day before W (1W-31W), or LW")
            return f"{day}W"
        days = _whole_number(term.removeprefix("L-"))
        if days is None or not 1 <= days <= 30:
            raise self._error(term, "L, LW, L-1 to L-30, or 1-31")
        return f"L-{days}"

    def _stepped(self, base: str, step: int) -> str:
        if base == "*":
            # Kept as it is, because a leading star has a meaning for the day fields.
            return f"*/{step}"
        start, end = self._ends(base) if "-" in base else self._from(base)
        return ",".join(map(str, self._values(start, end)[::step]))

    def _range(self, base: str) -> str:
        start, end = self._ends(base)
        if start <= end:
            return f"{start}-{end}"
        if self.kind.is_weekday:
            # Sunday as day 7 closes the week, so that "fri-sun" stays one range in plain words.
            return f"{start}-7" if end == 0 else f"{start}-7,{self._short(1, end)}"
        return f"{self._short(start, self.kind.high)},{self._short(self.kind.low, end)}"

    def _values(self, start: int, end: int) -> list[int]:
        """All values from *start* to *end*, past the end of the field if necessary."""
        values = self.kind.values
        length = (end - start) % self.kind.size if start > end else end - start
        return [
            values[(start - self.kind.low + step) % self.kind.size] for step in range(min(length + 1, self.kind.size))
        ]

    def _ends(self, base: str) -> tuple[int, int]:
        left, _, right = base.partition("-")
        if "-" in right:
            raise self._error(base, f"a range within {self.kind.expected}")
        start, end = self._value(left), self._value(right)
        if self.kind.is_weekday and start == 7 and end != 7:
            start = 0
        return start, end

    def _last(self, base: str) -> str:
        if len(base) == 1:
            raise self._error(base, "a day before L", hint="for the last Friday of the month, write friL")
        return f"{self._value(base[:-1])}L"

    def _from(self, base: str) -> tuple[int, int]:
        start = self._value(base)
        return 0 if self.kind.is_weekday and start == 7 else start, self.kind.values[-1]

    def _nth(self, base: str) -> str:
        day, _, nth = base.partition("#")
        if nth not in ("1", "2", "3", "4", "5"):
            raise self._error(nth, "1-5 after #", part=f"{self.kind.name} number")
        return f"{self._value(day)}#{nth}"

    def _step(self, step: str, most: int | None = None) -> int:
        value, most = _whole_number(step), most or self.kind.size
        if value is None or not 1 <= value <= most:
            hint = "for a period that does not divide the hour or the day, use interval_seconds" if value else None
            raise self._error(step, f"1-{most}", part=f"{self.kind.name} step", hint=hint)
        return value

    def _value(self, word: str) -> int:
        if word.lower() in self.kind.names:
            return self.kind.names.index(word.lower()) + self.kind.low
        value = _whole_number(word)
        if value is None or not self.kind.low <= value <= self.kind.high:
            hint = "write * instead of ?" if word == "?" else None
            raise self._error(word, self.kind.expected, hint=hint)
        return value

    @staticmethod
    def _short(start: int, end: int) -> str:
        return str(start) if start == end else f"{start}-{end}"

    def _error(self, found: str, expected: str, *, part: str | None = None, hint: str | None = None) -> CronSyntaxError:
        return CronSyntaxError(
            self.text, part=part or self.kind.name, found=found or "empty", expected=expected, hint=hint
        )


def canonical_text(text: str) -> str:
    """An expression as it is stored and shown: its fields with one blank between them."""
    if len(text) > MAX_LENGTH:
        found = f"{len(text)} characters"
        raise CronSyntaxError(quote_text(text), part="length", found=found, expected=f"at most {MAX_LENGTH}")
    if not text.replace("\t", " ").isprintable():
        raise CronSyntaxError(
            quote_text(text), part="text", found="not printable", expected="fields separated by spaces"
        )
    return " ".join(text.split())


def _split(text: str) -> list[tuple[_FieldKind, str]]:
    fields = text.split()
    if text.startswith("@"):
        fields = _spelt_out(text).split()
    if len(fields) not in (5, 6):
        expected = "5 (minute hour day-of-month month day-of-week), or 6 with seconds in front"
        raise CronSyntaxError(text, part="number of fields", found=str(len(fields)), expected=expected)
    return list(zip(_KINDS[-len(fields) :], fields, strict=True))


def _spelt_out(word: str) -> str:
    if word.lower() not in NICKNAMES:
        hint = "for a fixed period, use interval_seconds" if word.lower().startswith("@every") else None
        raise CronSyntaxError(word, part="word", found=word, expected=", ".join(NICKNAMES), hint=hint)
    return NICKNAMES[word.lower()]


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _is_special_day(term: str) -> bool:
    return term.startswith("L") or term.endswith("W")


class _DaySearch(CronSim):
    """cronsim with two more kinds of day: the weekday nearest to a day (`15W`), and a day counted from the last one (`L-3`)."""

    def __init__(self, normal: str, wall: datetime, reverse: bool = False) -> None:
        parts = normal.split()
        terms = parts[-3].split(",")
        plain = ",".join(term for term in terms if not _is_added(term))
        if len(plain) == len(parts[-3]):
            super().__init__(normal, wall, reverse)
            self.nearest_weekdays = self.days_before_last = frozenset[int]()
            return
        # cronsim is given days that it knows, and that begin with a star if ours do, because a star has a meaning there.
        super().__init__(" ".join([*parts[:-3], "*" if terms[0].startswith("*") else "L", *parts[-2:]]), wall, reverse)
        self.parts[3] = parts[-3]
        self.days = {day for day in CronField.DAY.parse(plain) if isinstance(day, int)} if plain else set()
        self.nearest_weekdays = frozenset(int(term[:-1]) for term in terms if _is_added(term) and term.endswith("W"))
        self.days_before_last = frozenset(int(term[2:]) for term in terms if _is_added(term) and term.startswith("L"))

    def match_dom(self, d: date) -> bool:
        return super().match_dom(d) or self._matches_added(d)

    def explain(self) -> str:
        expression = Expression([*self.parts[:3], "*" if self._has_added else self.parts[3], *self.parts[4:]])
        if self._has_added:
            expression.day, expression.day_and = _ExplainedDay(self.parts[3]), self.day_and
        return expression.explain()

    @property
    def _has_added(self) -> bool:
        return bool(self.nearest_weekdays or self.days_before_last)

    def _matches_added(self, day: date) -> bool:
        if not self._has_added:
            return False
        last = calendar.monthrange(day.year, day.month)[1]
        if last - day.day in self.days_before_last:
            return True
        # The nearest weekday is at most two days away: the 1st may be a Saturday, and the last day a Sunday.
        around = range(max(day.day - 2, 1), min(day.day + 2, last) + 1)
        return any(
            number in self.nearest_weekdays and _nearest_weekday(day, number, last) == day.day for number in around
        )


def _is_added(term: str) -> bool:
    """Whether cronsim does not know this kind of day."""
    return term not in ("L", "LW") and _is_special_day(term)


def _nearest_weekday(month: date, number: int, last: int) -> int:
    """The day from Monday to Friday that is nearest to a day of the month, within the month."""
    match month.replace(day=number).weekday():
        case 5:
            return number - 1 if number > 1 else number + 2
        case 6:
            return number + 1 if number < last else number - 2
        case _:
            return number


class _ExplainedDay(Day):
    """The words of cronsim for days of the month, with those of the added ones."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        # A single day would be called by its number.
        self.single_value = None

    def parse(self, value: str) -> Generator[Sequence, None, None]:
        for term in value.split(","):
            if _is_added(term):
                number = -int(term[:-1] if term.endswith("W") else term[2:])
                yield Sequence(start=number, stop=number, nth=_NEAREST if term.endswith("W") else _BEFORE_LAST)
            else:
                yield from super().parse(term)

    def format_nth(self, value: int, nth: int) -> str:
        if nth == _NEAREST:
            return f"the weekday nearest the {ordinal(-value)} of the month"
        if nth == _BEFORE_LAST:
            return f"the {ordinal(-value)} day before the last of the month"
        return super().format_nth(value, nth)

    def format(self) -> str:
        return Field.format(self)


# What the words of a day are told to say; cronsim uses -1 for the last one.
_NEAREST, _BEFORE_LAST = -2, -3


# Twenty-eight years contain every kind of year: leap or not, starting on any day of the week.
_FIRST_DAY = datetime(2000, 1, 1)
_LAST_DAY = date(2028, 1, 1)

_HOURS_A_DAY = 24

_ODD_ORDINAL = re.compile(r"\b([2-6][123])th\b")
_ORDINAL_ENDINGS: Mapping[str, str] = MappingProxyType({"1": "st", "2": "nd", "3": "rd"})


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> CronPattern:
    """Read a cron expression; CronSyntaxError names the field that does not fit, NeverFires means that no date matches."""
    canonical, normal = parse_expression(text)
    try:
        pattern = CronPattern(canonical, normal)
    except CronSimError:
        raise _never_fires(canonical) from None
    if not any(map(pattern.matches_day, _days(_FIRST_DAY.date(), _LAST_DAY))):
        raise _never_fires(canonical)
    return pattern


class CronPattern(WallPattern):
    """The wall times that one cron expression names.

    The times of a day are sorted lists, because cronsim steps from minute to minute: `*/30 * * * *` takes it 90 µs, this 10 µs.
    """

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
        self._expression = _DaySearch(normal, _FIRST_DAY)
        dates = " ".join(self._expression.parts[3:])
        self._next_day = _DaySearch(f"0 0 0 {dates}", _FIRST_DAY)
        self._previous_day = _DaySearch(f"59 59 23 {dates}", _FIRST_DAY, reverse=True)
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
        for day in self._days_after(today):
            yield from self._times_from(day, time.min)

    def walls_before(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly before *wall*, latest first."""
        end = (wall - MICROSECOND).replace(microsecond=0)
        today = end.date()
        if self.matches_day(today):
            yield from self._times_back_from(today, end.time())
        for day in self._days_before(today):
            yield from self._times_back_from(day, time.max)

    def matches_day(self, day: date) -> bool:
        """Whether any time of *day* is named."""
        return day.month in self._expression.months and self._expression.match_day(day)

    def count_between(self, start: datetime, end: datetime) -> int:
        """The number of named wall times in [start, end); the cost grows with the days, not with the wall times."""
        if start >= end:
            return 0
        return (
            self._count_days(start.date(), end.date()) * self._times_a_day
            - self.matches_day(start.date()) * self._times_before(start.time())
            + self.matches_day(end.date()) * self._times_before(end.time())
        )

    def explain(self) -> str:
        """The expression in plain words."""
        # cronsim writes "31th".
        return _ODD_ORDINAL.sub(lambda match: match[1] + _ORDINAL_ENDINGS[match[1][-1]], self._expression.explain())

    def moved_from(self, wall: datetime) -> datetime | None:
        """The wall time that a calendar moved to *wall*; None if the expression names *wall* itself."""
        return None

    def _days_after(self, day: date) -> Iterator[date]:
        return (at.date() for at in _resumed(self._next_day, datetime.combine(day, time(23, 59, 59))))

    def _days_before(self, day: date) -> Iterator[date]:
        return (at.date() for at in _resumed(self._previous_day, datetime.combine(day, time.min)))

    def _count_days(self, start: date, end: date) -> int:
        """The number of matching days from *start* up to, not including, *end*."""
        return sum(map(self.matches_day, _days(start, end)))

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
        """The number of a matching day's times before *moment*."""
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


class CalendarPattern(CronPattern):
    """The wall times of an expression on the days that calendars leave of it, or move its days to."""

    __slots__ = ("_named_days",)

    def __init__(self, text: str, normal: str, rule: CalendarRule) -> None:
        super().__init__(text, normal)
        self._named_days = NamedDays(rule, super().matches_day)

    def matches_day(self, day: date) -> bool:
        return day in self._named_days

    def moved_from(self, wall: datetime) -> datetime | None:
        day = self._named_days.moved_from(wall.date())
        return None if day is None else datetime.combine(day, wall.time())

    def _days_after(self, day: date) -> Iterator[date]:
        return self._named_days.after(day)

    def _days_before(self, day: date) -> Iterator[date]:
        return self._named_days.before(day)

    def _count_days(self, start: date, end: date) -> int:
        return self._named_days.count(start, end)


def _resumed(search: CronSim, wall: datetime) -> Iterator[datetime]:
    """A search for days, started from *wall*."""
    # A copy, because parsing the expression again would take longer than the search.
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


# Offsets are less than a day, so no clock shows a wall time further than this from its UTC reading.
_MARGIN = timedelta(days=2)


class NoteKind(StrEnum):
    """How a clock change or a calendar affects an occurrence."""

    MOVED_BY_GAP = "moved_by_gap"
    SKIPPED_BY_GAP = "skipped_by_gap"
    FIRST_OF_REPEAT = "first_of_repeat"
    SECOND_OF_REPEAT = "second_of_repeat"
    MOVED_BY_CALENDAR = "moved_by_calendar"
    LEFT_OUT_BY_CALENDAR = "left_out_by_calendar"


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurrenceNote:
    """Why an occurrence is not simply at its wall time.

    *wall* is the named local time (the first one, if a gap or a calendar covers several), *count* is the number of them; None if it is
    not known. What calendars leave out has also the instant of the *last* one and their names.
    """

    kind: NoteKind
    wall: datetime
    count: int | None = 1
    last: datetime | None = None
    calendars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One instant at which a schedule is due, in UTC.

    With a note of kind `skipped_by_gap` it is not due at all: *at* is then the end of the gap. Nor is it with one of kind
    `left_out_by_calendar`: *at* is then the instant of the first one that is left out.
    """

    at: datetime
    note: OccurrenceNote | None = None

    @property
    def is_due(self) -> bool:
        return self.note is None or self.note.kind not in (NoteKind.SKIPPED_BY_GAP, NoteKind.LEFT_OUT_BY_CALENDAR)


@dataclass(frozen=True, slots=True)
class WallIterator:
    """The instants in one zone of the wall times that a pattern names."""

    pattern: WallPattern
    zone: str
    on_gap: OnGap
    on_repeat: OnRepeat

    def forward(self, after: datetime) -> Iterator[Occurrence]:
        """The occurrences strictly after *after*, in order, including those that a gap skips."""
        start: datetime | None = after
        while start is not None:
            start = yield from self._forward_until_leap(after, start)

    def backward(self, until: datetime) -> Iterator[datetime]:
        """The due instants at or before *until*, latest first."""
        start: datetime | None = until
        while start is not None:
            start = yield from self._backward_until_leap(until, start)

    def count(self, after: datetime, until: datetime) -> int:
        """The number of due instants in (after, until]; the cost grows with the days, not with the instants."""
        total = 0
        for period in offset_periods_from(self.zone, after):
            if period.start > until:
                break
            total += self._count_inside(period, after, until)
        return total

    def skipped_in_gaps(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        """What `on_gap = skip` leaves out in (after, until], in order: one for each gap."""
        for period in offset_periods_from(self.zone, after):
            if period.start > until:
                return
            if period.start > after and (gone := self._in_gap(period)) and not gone.is_due:
                yield gone

    def skipped_in_gaps_back(self, until: datetime, after: datetime) -> Iterator[Occurrence]:
        """The same, the latest first."""
        for period in offset_periods_back_from(self.zone, until):
            if period.start <= after:
                return
            if (gone := self._in_gap(period)) and not gone.is_due:
                yield gone

    def _forward_until_leap(self, after: datetime, start: datetime) -> Generator[Occurrence, None, datetime | None]:
        for period in offset_periods_from(self.zone, start):
            if period.start > after and (moved := self._in_gap(period)):
                yield moved
            if not self._admits(period):
                continue
            beyond = None
            for wall in self.pattern.walls_after(max(period.wall(start), period.wall_start - MICROSECOND)):
                if wall >= period.wall_end:
                    beyond = wall
                    break
                yield Occurrence(at=period.instant(wall), note=self._note(period, wall))
            if beyond is None:
                if period.reading is WallTimeRepeat.ONCE:
                    return None
                # The last day that a calendar allows may be one whose hours come twice.
                continue
            leap = _leap(period, beyond)
            if leap is not None:
                return leap
        return None

    def _backward_until_leap(self, until: datetime, start: datetime) -> Generator[datetime, None, datetime | None]:
        for period in offset_periods_back_from(self.zone, start):
            beyond = None
            if self._admits(period):
                for wall in self.pattern.walls_before(min(period.wall(until) + MICROSECOND, period.wall_end)):
                    if wall < period.wall_start:
                        beyond = wall
                        break
                    yield period.instant(wall)
                if beyond is None and period.reading is WallTimeRepeat.ONCE:
                    return None
            if (moved := self._in_gap(period)) and moved.is_due:
                yield moved.at
            leap = _leap(period, beyond) if beyond is not None else None
            if leap is not None:
                return leap
        return None

    def _count_inside(self, period: OffsetPeriod, after: datetime, until: datetime) -> int:
        total = 0
        if after < period.start and (moved := self._in_gap(period)) and moved.is_due:
            total += 1
        if self._admits(period):
            start = max(period.wall(after) + MICROSECOND, period.wall_start)
            end = min(period.wall(until) + MICROSECOND, period.wall_end)
            total += self.pattern.count_between(start, end)
        return total

    def _note(self, period: OffsetPeriod, wall: datetime) -> OccurrenceNote | None:
        if period.reading is WallTimeRepeat.ONCE:
            named = self.pattern.moved_from(wall)
            return None if named is None else OccurrenceNote(kind=NoteKind.MOVED_BY_CALENDAR, wall=named)
        kind = NoteKind.FIRST_OF_REPEAT if period.reading is WallTimeRepeat.FIRST else NoteKind.SECOND_OF_REPEAT
        return OccurrenceNote(kind=kind, wall=wall)

    def _admits(self, period: OffsetPeriod) -> bool:
        if self.pattern.follows_elapsed or self.on_repeat is OnRepeat.BOTH or period.reading is WallTimeRepeat.ONCE:
            return True
        return period.reading.value == self.on_repeat.value

    def _in_gap(self, period: OffsetPeriod) -> Occurrence | None:
        """The occurrence for the named times in the gap before *period*; None if the gap changes nothing."""
        if not period.gap or self.pattern.follows_elapsed:
            return None
        gap_start, gap_end = period.wall_start - period.gap, period.wall_start
        wall = self.pattern.first_between(gap_start, gap_end)
        if wall is None:
            return None
        skips = self.on_gap is OnGap.SKIP
        if not skips and self._admits(period) and self.pattern.matches(gap_end):
            return None
        kind = NoteKind.SKIPPED_BY_GAP if skips else NoteKind.MOVED_BY_GAP
        note = OccurrenceNote(kind=kind, wall=wall, count=self.pattern.count_between(gap_start, gap_end))
        return Occurrence(at=period.start, note=note)


@lru_cache(maxsize=4096)
def cron_iterator(
    expression: str, zone: str, on_gap: OnGap, on_repeat: OnRepeat, calendar: CalendarRule | None = None
) -> WallIterator:
    """The iterator of an expression in a zone, on the days that a calendar rule leaves of it; cached."""
    pattern = parse_cron(expression) if calendar is None else CalendarPattern(*parse_expression(expression), calendar)
    return WallIterator(pattern, zone, on_gap, on_repeat)


def _leap(period: OffsetPeriod, wall: datetime) -> datetime | None:
    """Where to continue when the nearest match *wall* is far outside of *period*; None means at the next period.

    Leaps start only from wall times that come once: around a repeat, wall times already seen may be shown again.
    """
    if period.reading is not WallTimeRepeat.ONCE:
        return None
    if wall > period.wall_end + 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) - _MARGIN
    if wall < period.wall_start - 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) + _MARGIN
    return None
