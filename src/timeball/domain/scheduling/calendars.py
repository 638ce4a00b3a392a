"""Calendars: named, versioned sets of days, and what they make of the days of a schedule.

A calendar is a list of days: single ones (`2026-12-25`), days of every year (`12-25`) and days of every week (`sat`). A version of a
calendar never changes. A job names calendars in `skip_on` and `only_on`, and each of its versions cites the versions of them that it uses:
so a record, which cites the version of its job, can be traced to the days that decided about it.

What the calendars of a job do to the days that its schedule names, in this order:

    only_on    a day that no calendar of this list has is left out
    skip_on    a day that a calendar of this list has is left out, or moves by `shift`
    shift      next       it moves to the next day that the calendars allow, at the same wall time
               previous   it moves to the last such day before
               none       it does not move

Days that move onto one another are one. A day moves by 365 days at most; one that would have to move further is left out. Days are days on
the wall clock of the job's zone: for a cron schedule the day that the expression names, for an interval the day that the clock shows.

What is left out is no occurrence, and no row is written for it: the version of the job proves it, and `left_out_by` says which calendar it
was.

`YearDays` is the sum of it: a set of days that is asked by year, kept as one bit for each day. So the next day, the last one and the number
of days between two are found without a walk, and a search ends where the calendar years do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from timeball.domain.policies import Shift
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput, quote_text

MAX_DAYS: Final = 10_000
MAX_SHIFT_DAYS: Final = 365
# The years in which a clock of any zone shows an accepted instant.
FIRST_YEAR, LAST_YEAR = 1969, 2200
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EXPECTED = "a date such as 2026-12-25, a range such as 2026-12-24..2027-01-01, a day of every year such as 12-25, or mon to sun"


@dataclass(frozen=True, slots=True)
class DaySet:
    """A set of days: single ones, some of every year (month, day) and some of every week (Monday is 0)."""

    days: frozenset[date] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    weekly: frozenset[int] = frozenset()

    def __contains__(self, day: date) -> bool:
        return day in self.days or day.weekday() in self.weekly or (day.month, day.day) in self.yearly

    @property
    def is_endless(self) -> bool:
        """Whether there is such a day in every year, or nearly every one."""
        return bool(self.yearly or self.weekly)

    @property
    def entries(self) -> list[str]:
        """The days as text, as `parse_days` reads them: days of the week, of the year, and single ones, each in order."""
        weekly = [_WEEKDAYS[number] for number in sorted(self.weekly)]
        yearly = [f"{month:02}-{day:02}" for month, day in sorted(self.yearly)]
        return [*weekly, *yearly, *(day.isoformat() for day in sorted(self.days))]

    def from_day(self, start: date, most: int) -> list[date]:
        """The first *most* days from *start* on."""
        days = AllDays(self)
        first = [start] if start in self else []
        following = days.after(start)
        return [*first, *(day for day, _ in zip(following, range(most), strict=False))][:most]


def parse_days(entries: Iterable[object], name: str = "days") -> DaySet:
    """The days that a list of texts names; InvalidInput says which entry does not fit."""
    if isinstance(entries, str):
        raise InvalidInput(f"{name} is text, expected a list of texts", field=name)
    days: set[date] = set()
    yearly: set[tuple[int, int]] = set()
    weekly: set[int] = set()
    for number, entry in enumerate(entries):
        text = str(entry).strip().lower()
        if text in _WEEKDAYS:
            weekly.add(_WEEKDAYS.index(text))
        elif len(text) == 5:
            yearly.add(_yearly(text, f"{name}/{number}"))
        else:
            days.update(_single_days(text, f"{name}/{number}"))
        if len(days) > MAX_DAYS:
            raise InvalidInput(f"{name} has more than {MAX_DAYS:,} days, expected at most that many", field=name)
    return DaySet(frozenset(days), frozenset(yearly), frozenset(weekly))


def _yearly(text: str, name: str) -> tuple[int, int]:
    # A leap year, so that the 29th of February is a day of some years.
    day = _date(f"2000-{text}", name, text)
    return day.month, day.day


def _single_days(text: str, name: str) -> Iterator[date]:
    first, dots, last = text.partition("..")
    start = _date(first, name, text)
    end = _date(last, name, text) if dots else start
    if end < start or (end - start).days > MAX_DAYS:
        raise unexpected_value(name, text, f"a range of at most {MAX_DAYS:,} days that does not end before it begins")
    return (start + timedelta(days=number) for number in range((end - start).days + 1))


def _date(text: str, name: str, entry: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise unexpected_value(name, quote_text(entry, 40), _EXPECTED) from None
    if len(text) != 10 or not 1970 <= day.year <= 2199:
        raise unexpected_value(name, quote_text(entry, 40), f"{_EXPECTED}, from 1970 to 2199")
    return day


# A calendar is reached at /calendars/{name}.
def check_calendar(name: object, description: object) -> tuple[str, str | None]:
    """The name and the description of a calendar, checked."""
    return check_label(name, "name"), None if description is None else check_description(description, "description")


@dataclass(frozen=True, slots=True)
class CalendarVersion:
    """One version of a calendar; its days never change."""

    name: str
    version: int
    days: DaySet

    @property
    def fingerprint(self) -> str:
        """Equal for equal days: a failover may lose a version, and another may get its number."""
        return _fingerprint(self.days)


@lru_cache(maxsize=1024)
def _fingerprint(days: DaySet) -> str:
    return blake2b(" ".join(days.entries).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarRule:
    """Which days a schedule may use: the calendars of a job, in the versions that it cites, and the zone of its days."""

    skip_on: tuple[CalendarVersion, ...] = ()
    only_on: tuple[CalendarVersion, ...] = ()
    shift: Shift = Shift.NONE
    zone: str = "UTC"
    # Years: with them it is the rule of the days that are left out; see `left_out`.
    inverse_years: tuple[int, int] | None = None

    def left_out(self, since: datetime, until: datetime) -> CalendarRule:
        """The rule of the days that this one leaves out and does not move, in the years of a span."""
        return replace(self, inverse_years=(max(since.year - 1, FIRST_YEAR), min(until.year + 1, LAST_YEAR)))

    @property
    def versions(self) -> dict[str, int]:
        """The version of each calendar, by name."""
        return {calendar.name: calendar.version for calendar in (*self.skip_on, *self.only_on)}

    @property
    def names(self) -> list[str]:
        return list(self.versions)

    @property
    def is_resolved(self) -> bool:
        """Whether the days of its calendars are known; see `unresolved`."""
        return all(self.versions.values())

    def in_versions(self, known: Mapping[str, CalendarVersion]) -> CalendarRule:
        """The same calendars in other versions."""
        skip_on, only_on = (tuple(known[one.name] for one in part) for part in (self.skip_on, self.only_on))
        return replace(self, skip_on=skip_on, only_on=only_on)

    def left_out_by(self, day: date) -> tuple[str, ...]:
        """The names of the calendars that leave a day out; none, if it is allowed."""
        skipping = tuple(calendar.name for calendar in self.skip_on if day in calendar.days)
        if skipping or not self.only_on or any(day in calendar.days for calendar in self.only_on):
            return skipping
        return tuple(calendar.name for calendar in self.only_on)

    def describe(self) -> str:
        """What the calendars do, in words."""
        skip, only = (" or ".join(calendar.name for calendar in part) for part in (self.skip_on, self.only_on))
        moved = "" if self.shift is Shift.NONE else f" (moved to the {self.shift} day that is allowed)"
        return (f", only on {only}" if only else "") + (f", not on {skip}{moved}" if skip else "")

    def skipped_mask(self, year: int) -> int:
        return _union(self.skip_on, year)

    def open_mask(self, year: int) -> int:
        """The days of `only_on`; all days, if there is no such list."""
        return _union(self.only_on, year) if self.only_on else _whole_year(year)

    @property
    def first_year(self) -> int:
        """The first year that is searched for days."""
        return FIRST_YEAR if self.inverse_years is None else self.inverse_years[0]

    @property
    def last_year(self) -> int:
        """The last year in which any day may be allowed."""
        if self.inverse_years is not None:
            return self.inverse_years[1]
        if not self.only_on or any(calendar.days.is_endless for calendar in self.only_on):
            return LAST_YEAR
        return max((day.year for calendar in self.only_on for day in calendar.days.days), default=FIRST_YEAR)


def calendar_rule(
    skip_on: Sequence[str], only_on: Sequence[str], shift: Shift, zone: str, known: Mapping[str, CalendarVersion]
) -> CalendarRule | None:
    """The rule for these names, by the calendars that are known; None if no calendar is named."""
    if not skip_on and not only_on:
        return None
    return CalendarRule(
        skip_on=tuple(_known(name, known, "skip_on") for name in skip_on),
        only_on=tuple(_known(name, known, "only_on") for name in only_on),
        shift=shift,
        zone=zone,
    )


def _known(name: str, known: Mapping[str, CalendarVersion], field_name: str) -> CalendarVersion:
    if name not in known:
        raise InvalidInput(
            f'{field_name} names the calendar "{quote_text(name)}", which does not exist',
            field=field_name,
            hint="create it first: timeball calendars create NAME sat sun",
        )
    return known[name]


def possible_names(names: Iterable[object]) -> set[str]:
    """Those of some values that can be the name of a calendar; the others are refused where a job is checked."""
    return {name for name in names if isinstance(name, str) and name.isprintable()}


def unresolved(names: Iterable[str]) -> dict[str, CalendarVersion]:
    """Calendars of these names whose days are not known, for a job that is only compared or copied."""
    return {name: CalendarVersion(name, 0, DaySet()) for name in names}


# Days by year: bit n of a mask is the day n of the year, from 0 on.


def _whole_year(year: int) -> int:
    return (1 << _length(year)) - 1


def _length(year: int) -> int:
    return (date(year + 1, 1, 1) - date(year, 1, 1)).days


@lru_cache(maxsize=4096)
def _mask(days: DaySet, year: int) -> int:
    start = date(year, 1, 1)
    mask = 0
    for day in days.days:
        if day.year == year:
            mask |= 1 << (day - start).days
    if days.is_endless:
        for number in range(_length(year)):
            day = start + timedelta(days=number)
            if day.weekday() in days.weekly or (day.month, day.day) in days.yearly:
                mask |= 1 << number
    return mask


def _union(calendars: Sequence[CalendarVersion], year: int) -> int:
    mask = 0
    for calendar in calendars:
        mask |= _mask(calendar.days, year)
    return mask


@dataclass(slots=True)
class YearDays:
    """A set of days, computed year by year and kept; it is searched from *first_year* to *last_year*."""

    last_year: int = LAST_YEAR
    first_year: int = FIRST_YEAR
    _masks: dict[int, int] = field(default_factory=dict)

    def mask(self, year: int) -> int:
        if year not in self._masks:
            self._masks[year] = self._compute(year) if self.first_year <= year <= LAST_YEAR else 0
        return self._masks[year]

    def _compute(self, year: int) -> int:
        raise NotImplementedError

    def __contains__(self, day: date) -> bool:
        return bool(self.mask(day.year) >> (day.timetuple().tm_yday - 1) & 1)

    def after(self, day: date) -> Iterator[date]:
        """The days strictly after *day*, in order."""
        skipped = day.timetuple().tm_yday
        for year in range(day.year, self.last_year + 1):
            mask = self.mask(year) >> skipped << skipped
            start, skipped = date(year, 1, 1), 0
            while mask:
                lowest = mask & -mask
                yield start + timedelta(days=lowest.bit_length() - 1)
                mask ^= lowest

    def before(self, day: date) -> Iterator[date]:
        """The days strictly before *day*, latest first."""
        mask = self.mask(day.year) & ((1 << (day.timetuple().tm_yday - 1)) - 1)
        for year in range(day.year, self.first_year - 1, -1):
            start = date(year, 1, 1)
            while mask:
                highest = mask.bit_length() - 1
                yield start + timedelta(days=highest)
                mask ^= 1 << highest
            mask = self.mask(year - 1)

    def count(self, start: date, end: date) -> int:
        """The number of days from *start* up to, not including, *end*."""
        total = 0
        for year in range(start.year, end.year + 1):
            mask = self.mask(year)
            if year == end.year:
                mask &= (1 << (end.timetuple().tm_yday - 1)) - 1
            if year == start.year:
                mask >>= start.timetuple().tm_yday - 1
            total += mask.bit_count()
        return total

    def first_absent_after(self, day: date) -> date:
        """The first day strictly after *day* that is not in the set."""
        skipped = day.timetuple().tm_yday
        for year in range(day.year, LAST_YEAR + 1):
            absent = (_whole_year(year) & ~self.mask(year)) >> skipped << skipped
            if absent:
                return date(year, 1, 1) + timedelta(days=(absent & -absent).bit_length() - 1)
            skipped = 0
        return date(LAST_YEAR + 1, 1, 1)


class AllDays(YearDays):
    """The days of a set."""

    __slots__ = ("_days",)

    def __init__(self, days: DaySet) -> None:
        last = LAST_YEAR if days.is_endless else max((day.year for day in days.days), default=FIRST_YEAR)
        super().__init__(last)
        self._days = days

    def _compute(self, year: int) -> int:
        return _mask(self._days, year)


class AllowedDays(YearDays):
    """The days that a calendar rule allows; of an inverse rule, those that it leaves out."""

    __slots__ = ("_rule",)

    def __init__(self, rule: CalendarRule) -> None:
        super().__init__(rule.last_year, rule.first_year)
        self._rule = rule

    def _compute(self, year: int) -> int:
        allowed = self._rule.open_mask(year) & ~self._rule.skipped_mask(year)
        return allowed if self._rule.inverse_years is None else _whole_year(year) & ~allowed


class NamedDays(YearDays):
    """The days of a schedule after its calendars: those that stay, and those that others moved onto.

    Of an inverse rule, those that neither stay nor move.
    """

    __slots__ = ("_matches", "_moved", "_named", "_rule")

    def __init__(self, rule: CalendarRule, matches: Callable[[date], bool]) -> None:
        # A day may move into the year after the last allowed one only if that year has an allowed day, so no year is added.
        super().__init__(rule.last_year, rule.first_year)
        self._rule = rule
        self._matches = matches
        self._named: dict[int, int] = {}
        self._moved: dict[int, int] = {}

    def moved_from(self, day: date) -> date | None:
        """The day that moved onto *day*, the nearest if there are several; None if the schedule names *day* itself."""
        number = day.timetuple().tm_yday - 1
        if not self.mask(day.year) >> number & 1 or not self._moved.get(day.year, 0) >> number & 1:
            return None
        step = timedelta(days=-1 if self._rule.shift is Shift.NEXT else 1)
        origin = day + step
        while not self._origins(origin.year) >> (origin.timetuple().tm_yday - 1) & 1:
            origin += step
        return origin

    def _compute(self, year: int) -> int:
        rule = self._rule
        if rule.inverse_years is not None:
            return self._left_out(year)
        stays = self._named_mask(year) & ~rule.skipped_mask(year)
        targets = 0 if rule.shift is Shift.NONE else self._targets(year)
        self._moved[year] = targets & ~stays
        return stays | targets

    def _left_out(self, year: int) -> int:
        """The days that the schedule names and its calendars leave out, those that move left aside."""
        left_out = self._named_among(_whole_year(year) & ~self._allowed(year), year)
        if self._rule.shift is not Shift.NONE:
            is_next = self._rule.shift is Shift.NEXT
            shift = 0 if is_next else _length(year - 1)
            for origin, _ in self._moves(year if is_next else year - 1):
                left_out &= ~(1 << origin >> shift)
        return left_out

    def _named_mask(self, year: int) -> int:
        """The days of `only_on` that the schedule names."""
        if year not in self._named:
            self._named[year] = self._named_among(self._rule.open_mask(year), year)
        return self._named[year]

    def _named_among(self, days: int, year: int) -> int:
        """Those of some days of a year that the schedule names."""
        start, mask = date(year, 1, 1), 0
        while days:
            lowest = days & -days
            if self._matches(start + timedelta(days=lowest.bit_length() - 1)):
                mask |= lowest
            days ^= lowest
        return mask

    def _origins(self, year: int) -> int:
        """The days that move."""
        return self._named_mask(year) & self._rule.skipped_mask(year) if FIRST_YEAR <= year <= LAST_YEAR else 0

    def _targets(self, year: int) -> int:
        """The days of a year that days of this year and of a neighbour move onto."""
        is_next = self._rule.shift is Shift.NEXT
        first, shift = (year - 1, _length(year - 1)) if is_next else (year, 0)
        targets = 0
        for _, target in self._moves(first):
            targets |= 1 << target
        return targets >> shift & _whole_year(year)

    def _moves(self, first: int) -> Iterator[tuple[int, int]]:
        """From which day to which each one moves within a year and the next, counted from the first day of both."""
        is_next, length = self._rule.shift is Shift.NEXT, _length(first)
        origins = self._origins(first) | self._origins(first + 1) << length
        allowed = self._allowed(first) | self._allowed(first + 1) << length
        while origins:
            lowest = origins & -origins
            origin = lowest.bit_length() - 1
            target = _following(allowed, lowest) if is_next else _preceding(allowed, lowest)
            if target is not None and abs(target - origin) <= MAX_SHIFT_DAYS:
                yield origin, target
            origins ^= lowest

    def _allowed(self, year: int) -> int:
        in_range = FIRST_YEAR <= year <= LAST_YEAR
        return self._rule.open_mask(year) & ~self._rule.skipped_mask(year) if in_range else 0


def _following(mask: int, bit: int) -> int | None:
    """The number of the lowest bit of a mask above another bit."""
    above = mask & ~((bit << 1) - 1)
    return (above & -above).bit_length() - 1 if above else None


def _preceding(mask: int, bit: int) -> int | None:
    """The number of the highest bit of a mask below another bit."""
    below = mask & (bit - 1)
    return below.bit_length() - 1 if below else None


@lru_cache(maxsize=1024)
def allowed_days(rule: CalendarRule) -> AllowedDays:
    """The days that a rule allows, kept: many jobs share their calendars."""
    return AllowedDays(rule)
