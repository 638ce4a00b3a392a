"""Once, Every, Cron, Rrule, Manual, After: the schedules, and the one computation of fire times for all callers.

A schedule is a value. It computes instants from instants and reads no clock. Scheduler, previews, forecasts and `verify`
all ask it the same questions:

    occurrences(after, until)         what is due in (after, until], lazily, in order, with notes on clock changes
    occurrences_back(until, after)    the same instants, latest first
    next_after(instant)               the first one strictly after
    last_at_or_before(instant, after) the last one in (after, instant]
    count_between(after, until)       how many there are in (after, until]
    left_out(after, until)            what calendars and `on_gap = skip` leave out in (after, until], as ranges, in order
    left_out_back(until, after)       the same ranges, latest first

The rules:

* Instants are UTC, from 1970 to 2199; nothing is due outside, and a schedule that points outside is refused.
* `starts_at` and `ends_at` bound every schedule, both inclusive: the schedule may fire at either of them.
* `every` counts elapsed time: occurrence n is anchor + n * interval, and the anchor is the first. It does not drift,
  and clock changes do not affect it.
* `cron` follows the wall clock of a zone; cron and civil_time say what happens when that clock changes.
* `rrule` is a recurrence rule of RFC 5545 (see rrule), and in all else a cron schedule.
* `once` is one instant, `manual` none at all.
* `after` is each success of an occurrence of another job. Its instants are known when they have come, so as a value it names none.
* A job with no time runs now: it is `once`, at the instant of its creation. `manual` is said, never meant by silence.
* Calendars leave days of a recurring schedule out, or move them (see calendars). What they leave is all that the schedule names, for every
  method alike; `occurrences` tells what they took away if it is asked to. `left_out` has only that, without what moved, and does not
  walk along what is due.

No method iterates over the past: ten years of an every-second schedule cost no more than a minute of it. Only
`count_between` looks at each day of a cron schedule or of a calendar, and gives up (None) beyond its budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from heapq import merge
from itertools import count
from typing import ClassVar, Self, TypeAlias, TypeVar
from uuid import UUID

from timeball.domain.policies import OnGap, OnRepeat, Shift, SkipReason
from timeball.domain.scheduling.calendars import CalendarRule, allowed_days
from timeball.domain.scheduling.civil_time import (
    DAY,
    MAX_INSTANT,
    MICROSECOND,
    MIN_INSTANT,
    OffsetPeriod,
    accept_instant,
    accept_interval,
    format_instant,
    interval_in_words,
    load_zone,
    offset_periods_back_from,
    offset_periods_from,
    parse_instant,
    to_utc,
)
from timeball.domain.scheduling.cron import (
    NoteKind,
    Occurrence,
    OccurrenceNote,
    WallIterator,
    canonical_text,
    cron_iterator,
    has_hash,
    parse_cron,
    resolve_hash,
)
from timeball.domain.scheduling.rrule import (
    RrulePattern,
    canonical_rrule,
    is_rrule,
    parse_rrule,
)
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.text import check_label
from timeball.errors import NeverFires, ScheduleError

__all__ = [
    "After",
    "Cron",
    "Every",
    "LeftOut",
    "Manual",
    "NoteKind",
    "Occurrence",
    "OccurrenceNote",
    "OnGap",
    "OnRepeat",
    "Once",
    "Rrule",
    "Schedule",
    "ScheduleKind",
    "parse_schedule",
]

# The days that count_between looks at before it gives up: fifty years, some tens of milliseconds.
COUNT_BUDGET = 20_000


class ScheduleKind(StrEnum):
    """The kinds of schedule."""

    ONCE = "once"
    EVERY = "every"
    CRON = "cron"
    RRULE = "rrule"
    MANUAL = "manual"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Instants that a schedule leaves out, with none between them at which it is due; *count* is None if they were not counted.

    Those that a clock change skips have no instant of their own: it is that of the change, and *count* is the number of wall times.
    """

    first: datetime
    last: datetime
    count: int | None
    reason: SkipReason


def _first(part: LeftOut) -> datetime:
    return part.first


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundedSchedule:
    """What all schedules share: their bounds and their methods."""

    kind: ClassVar[ScheduleKind]
    is_recurring: ClassVar[bool] = False

    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("starts_at", "ends_at"):
            _store_instant(self, name)
        if self.starts_at and self.ends_at and self.ends_at < self.starts_at:
            why = f"ends_at {format_instant(self.ends_at)} is before starts_at {format_instant(self.starts_at)}"
            raise _never_fires(why, "ends_at")

    def occurrences(
        self, after: datetime, until: datetime | None = None, *, with_skipped: bool = False
    ) -> Iterator[Occurrence]:
        """The occurrences in (after, until], lazily, strictly increasing.

        *with_skipped* also yields, once per gap, what `on_gap = skip` leaves out and, once between two that are due, what calendars
        leave out (`is_due` is then false).
        """
        low, high = self._window(after, until)
        for occurrence in self._forward(low):
            if occurrence.at > high:
                break
            if with_skipped and occurrence.is_due:
                yield from self._left_out(low, occurrence.at - MICROSECOND)
                low = occurrence.at
            if with_skipped or occurrence.is_due:
                yield occurrence
        if with_skipped:
            yield from self._left_out(low, high)

    def occurrences_back(self, until: datetime, after: datetime | None = None) -> Iterator[datetime]:
        """The due instants of (after, until], latest first; without *after*, back to the very first."""
        low, high = self._window(after or MIN_INSTANT - MICROSECOND, until)
        for instant in self._backward(high):
            if instant <= low:
                return
            yield instant

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after *instant*."""
        return next((occurrence.at for occurrence in self.occurrences(instant)), None)

    def last_at_or_before(self, instant: datetime, after: datetime | None = None) -> datetime | None:
        """The last occurrence in (after, instant]."""
        return next(self.occurrences_back(instant, after), None)

    def count_between(self, after: datetime, until: datetime, budget: int = COUNT_BUDGET) -> int | None:
        """The number of occurrences in (after, until]; None if counting would take too long.

        *budget* is the number of calendar days that may be looked at; only `cron` needs it.
        """
        low, high = self._window(after, until)
        return self._count(low, high, budget) if low < high else 0

    def left_out(self, after: datetime, until: datetime) -> Iterator[LeftOut]:
        """What calendars and `on_gap = skip` leave out in (after, until], lazily, in order; what calendars move is not left out."""
        return iter(())

    def left_out_back(self, until: datetime, after: datetime) -> Iterator[LeftOut]:
        """The same ranges, the latest first."""
        return iter(())

    def _left_out(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        """What calendars leave out in (after, until], as one."""
        return iter(())

    def describe(self) -> str:
        """The schedule in plain words."""
        start = f", from {format_instant(self.starts_at)}" if self.starts_at else ""
        end = f", until {format_instant(self.ends_at)}" if self.ends_at else ""
        return f"{self._words()}{start}{end}"

    def _window(self, after: datetime, until: datetime | None) -> tuple[datetime, datetime]:
        """(after, until] narrowed to what the bounds allow, in UTC."""
        low = max(to_utc(after), (self.starts_at or MIN_INSTANT) - MICROSECOND)
        high = min(to_utc(until or MAX_INSTANT), self.ends_at or MAX_INSTANT)
        return low, high

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        raise NotImplementedError

    def _backward(self, until: datetime) -> Iterator[datetime]:
        raise NotImplementedError

    def _count(self, after: datetime, until: datetime, budget: int) -> int | None:
        raise NotImplementedError

    def _words(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecurringSchedule(_BoundedSchedule):
    """A schedule that calendars may take days from."""

    is_recurring: ClassVar[bool] = True

    calendar: CalendarRule | None = None

    @property
    def is_zoned(self) -> bool:
        """Whether its instants depend on the rules of a time zone."""
        raise NotImplementedError

    def describe(self) -> str:
        return _BoundedSchedule.describe(self) + ("" if self.calendar is None else self.calendar.describe())

    def left_out(self, after: datetime, until: datetime) -> Iterator[LeftOut]:
        low, high = self._window(after, until)
        # Of two parts at one instant, the gap comes first.
        return merge(self._left_out_by_gaps(low, high), self._left_out_by_calendar(low, high), key=_first)

    def left_out_back(self, until: datetime, after: datetime) -> Iterator[LeftOut]:
        low, high = self._window(after, until)
        parts = self._left_out_by_calendar_back(low, high), self._left_out_by_gaps_back(low, high)
        return merge(*parts, key=_first, reverse=True)

    def _left_out_by_calendar(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        inverse = self._inverse(low, high)
        at = None if inverse is None else inverse.next_after(low)
        while inverse is not None and at is not None and at <= high:
            following = self.next_after(at - MICROSECOND)
            # A gap that ends on another day moves what is left out to an instant at which something may be due.
            if following != at:
                yield _range_left_out(inverse, at, high if following is None else min(high, following - MICROSECOND))
            at = None if following is None else inverse.next_after(following)

    def _left_out_by_calendar_back(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        inverse = self._inverse(low, high)
        at = None if inverse is None else inverse.last_at_or_before(high, low)
        while inverse is not None and at is not None:
            preceding = self.last_at_or_before(at, low)
            if preceding != at:
                first = inverse.next_after(preceding or low)
                yield _range_left_out(inverse, at if first is None else first, at)
            at = None if preceding is None else inverse.last_at_or_before(preceding - MICROSECOND, low)

    def _inverse(self, low: datetime, high: datetime) -> Self | None:
        """The schedule of what calendars leave out of this one in a span; None without calendars."""
        if self.calendar is None or low >= high:
            return None
        return replace(self, calendar=self.calendar.left_out(low, high))

    def _left_out_by_gaps(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        return iter(())

    def _left_out_by_gaps_back(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        return iter(())

    def _left_out(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        if self.calendar is None:
            return
        whole = replace(self, calendar=None)
        first = next((at for at in _instants(whole, after, until)), None)
        if first is None:
            return
        last = whole.last_at_or_before(until, after) or first
        zone = load_zone(self.calendar.zone)
        walls = [instant.astimezone(zone).replace(tzinfo=None) for instant in (first, last)]
        names = (name for wall in walls for name in self.calendar.left_out_by(wall.date()))
        note = OccurrenceNote(
            kind=NoteKind.LEFT_OUT_BY_CALENDAR,
            wall=walls[0],
            count=whole.count_between(after, until),
            last=last,
            calendars=tuple(dict.fromkeys(names)),
        )
        yield Occurrence(at=first, note=note)


def _range_left_out(inverse: _RecurringSchedule, first: datetime, until: datetime) -> LeftOut:
    before = first - MICROSECOND
    last = inverse.last_at_or_before(until, before) or first
    number = 1 if last == first else inverse.count_between(before, last)
    return LeftOut(first=first, last=last, count=number, reason=SkipReason.CALENDAR)


def _instants(schedule: _BoundedSchedule, after: datetime, until: datetime) -> Iterator[datetime]:
    return (occurrence.at for occurrence in schedule.occurrences(after, until))


@dataclass(frozen=True, slots=True, kw_only=True)
class Once(_BoundedSchedule):
    """One instant; it may be in the past."""

    kind: ClassVar[ScheduleKind] = ScheduleKind.ONCE

    scheduled_at: datetime

    def __post_init__(self) -> None:
        _store_instant(self, "scheduled_at")
        _BoundedSchedule.__post_init__(self)

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        if self.scheduled_at > after:
            yield Occurrence(at=self.scheduled_at)

    def _backward(self, until: datetime) -> Iterator[datetime]:
        if self.scheduled_at <= until:
            yield self.scheduled_at

    def _count(self, after: datetime, until: datetime, budget: int) -> int:
        return int(after < self.scheduled_at <= until)

    def _words(self) -> str:
        return f"Once, at {format_instant(self.scheduled_at)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(_RecurringSchedule):
    """A fixed period of real time, counted from *anchor*, which is the first occurrence."""

    kind: ClassVar[ScheduleKind] = ScheduleKind.EVERY

    interval_seconds: int
    anchor: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval_seconds", accept_interval(self.interval_seconds))
        _store_instant(self, "anchor")
        _BoundedSchedule.__post_init__(self)

    @property
    def interval(self) -> timedelta:
        return timedelta(seconds=self.interval_seconds)

    @property
    def is_zoned(self) -> bool:
        return self.calendar is not None

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after *instant*: without walking, because every promotion asks for it."""
        if self.calendar is not None:
            return _BoundedSchedule.next_after(self, instant)
        low, high = self._window(instant, None)
        span = max(self._number_at(low) + 1, 0) * self.interval
        return self.anchor + span if span <= high - self.anchor else None

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        if self.calendar is not None:
            yield from (Occurrence(at=at) for at in _DaysOfInterval(self, self.calendar).forward(after))
            return
        for number in count(max(self._number_at(after) + 1, 0)):
            # The last period before the year 2200 may end after the year 9999.
            if number * self.interval > MAX_INSTANT - self.anchor:
                return
            yield Occurrence(at=self.anchor + number * self.interval)

    def _backward(self, until: datetime) -> Iterator[datetime]:
        if self.calendar is not None:
            yield from _DaysOfInterval(self, self.calendar).backward(until)
            return
        for number in range(self._number_at(until), -1, -1):
            yield self.anchor + number * self.interval

    def _count(self, after: datetime, until: datetime, budget: int) -> int | None:
        if self.calendar is None:
            return self.ticks_between(after, until)
        if (until - after).days > budget:
            return None
        return _DaysOfInterval(self, self.calendar).count(after, until)

    def tick_after(self, instant: datetime) -> datetime | None:
        """The first multiple of the interval after *instant*, whatever the calendars say."""
        span = max(self._number_at(instant) + 1, 0) * self.interval
        return self.anchor + span if span <= MAX_INSTANT - self.anchor else None

    def tick_at_or_before(self, instant: datetime) -> datetime | None:
        """The last multiple of the interval up to *instant*, whatever the calendars say."""
        return self.anchor + self._number_at(instant) * self.interval if instant >= self.anchor else None

    def ticks_between(self, after: datetime, until: datetime) -> int:
        """The number of multiples of the interval in (after, until], whatever the calendars say."""
        return max(self._number_at(until), -1) - max(self._number_at(after), -1)

    def _number_at(self, instant: datetime) -> int:
        """The number of the last occurrence at or before *instant*; negative before the anchor."""
        return (instant - self.anchor) // self.interval

    def _words(self) -> str:
        return f"Every {interval_in_words(self.interval_seconds)}, counted from {format_instant(self.anchor)}"


@dataclass(frozen=True, slots=True)
class _DaysOfInterval:
    """The instants of an interval on the days that calendars allow; they go through one offset period after the other."""

    rule: Every
    calendar: CalendarRule

    def forward(self, after: datetime) -> Iterator[datetime]:
        """The instants strictly after *after*, in order; it leaps from one allowed day to the next."""
        days = allowed_days(self.calendar)
        for period in offset_periods_from(self.calendar.zone, after):
            if period.wall_start.year > days.last_year:
                return
            start = max(after, period.start - MICROSECOND)
            while (at := self.rule.tick_after(start)) is not None and at < period.end:
                day = period.wall(at).date()
                if day in days:
                    yield at
                    start = at
                    continue
                following = next(days.after(day), None)
                if following is None:
                    break
                start = period.instant(datetime.combine(following, time.min)) - MICROSECOND

    def backward(self, until: datetime) -> Iterator[datetime]:
        """The instants at or before *until*, latest first."""
        days = allowed_days(self.calendar)
        for period in offset_periods_back_from(self.calendar.zone, until):
            if period.end <= self.rule.anchor:
                return
            end = min(until, period.end - MICROSECOND)
            while (at := self.rule.tick_at_or_before(end)) is not None and at >= period.start:
                day = period.wall(at).date()
                if day in days:
                    yield at
                    end = at - MICROSECOND
                    continue
                preceding = next(days.before(day), None)
                if preceding is None:
                    break
                end = period.instant(datetime.combine(preceding + DAY, time.min)) - MICROSECOND

    def count(self, after: datetime, until: datetime) -> int:
        """The number of instants in (after, until]; the cost grows with the runs of allowed days, not with the instants."""
        total = 0
        for period in offset_periods_from(self.calendar.zone, after):
            if period.start > until:
                break
            total += self._count_inside(
                period, max(after, period.start - MICROSECOND), min(until, period.end - MICROSECOND)
            )
        return total

    def _count_inside(self, period: OffsetPeriod, after: datetime, until: datetime) -> int:
        days, total = allowed_days(self.calendar), 0
        first, last = period.wall(after).date(), period.wall(until).date()
        day = first if first in days else next(days.after(first), None)
        while day is not None and day <= last:
            beyond = days.first_absent_after(day)
            low = max(after, period.instant(datetime.combine(day, time.min)) - MICROSECOND)
            high = min(until, period.instant(datetime.combine(beyond, time.min)) - MICROSECOND)
            total += self.rule.ticks_between(low, high) if low < high else 0
            day = next(days.after(beyond), None)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(_RecurringSchedule):
    """The wall times that a cron expression names, on the clock of a zone."""

    kind: ClassVar[ScheduleKind] = ScheduleKind.CRON

    expression: str
    timezone: str = "UTC"
    on_gap: OnGap = OnGap.NEXT_VALID
    on_repeat: OnRepeat = OnRepeat.FIRST
    # The name that `H` is derived from; None for an expression without it, so that jobs share one value.
    name: str | None = None

    def __post_init__(self) -> None:
        if not has_hash(self.expression):
            object.__setattr__(self, "name", None)
        parse_cron(self.resolved)
        load_zone(self.timezone)
        object.__setattr__(self, "on_gap", _choice(OnGap, self.on_gap, "on_gap"))
        object.__setattr__(self, "on_repeat", _choice(OnRepeat, self.on_repeat, "on_repeat"))
        _BoundedSchedule.__post_init__(self)

    @property
    def is_zoned(self) -> bool:
        return True

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after *instant*."""
        # It is the same for all instants of a second, because occurrences fall on whole ones: so jobs that are made in a row share it.
        return _next_of_cron(self, instant.replace(microsecond=0))

    @property
    def resolved(self) -> str:
        """The expression with values in place of every `H`."""
        return resolve_hash(self.expression, self.name)

    @property
    def _iterator(self) -> WallIterator:
        return cron_iterator(self.resolved, self.timezone, self.on_gap, self.on_repeat, self.calendar)

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        return self._iterator.forward(after)

    def _backward(self, until: datetime) -> Iterator[datetime]:
        return self._iterator.backward(until)

    def _count(self, after: datetime, until: datetime, budget: int) -> int | None:
        return self._iterator.count(after, until) if (until - after).days <= budget else None

    def _left_out_by_gaps(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        if self.on_gap is OnGap.SKIP and low < high:
            yield from map(_left_out_by_gap, self._iterator.skipped_in_gaps(low, high))

    def _left_out_by_gaps_back(self, low: datetime, high: datetime) -> Iterator[LeftOut]:
        if self.on_gap is OnGap.SKIP and low < high:
            yield from map(_left_out_by_gap, self._iterator.skipped_in_gaps_back(high, low))

    def _words(self) -> str:
        words = f"{parse_cron(self.resolved).explain()} ({self.timezone})"
        return words if self.name is None else f"{words}; {self.expression} is {self.resolved} for the name {self.name}"


def _left_out_by_gap(gone: Occurrence) -> LeftOut:
    count = None if gone.note is None else gone.note.count
    return LeftOut(first=gone.at, last=gone.at, count=count, reason=SkipReason.CLOCK_GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rrule(Cron):
    """The wall times that a recurrence rule names, on the clock of a zone; its expression has its DTSTART."""

    kind: ClassVar[ScheduleKind] = ScheduleKind.RRULE

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", None)
        parse_rrule(self.expression)
        load_zone(self.timezone)
        object.__setattr__(self, "on_gap", _choice(OnGap, self.on_gap, "on_gap"))
        object.__setattr__(self, "on_repeat", _choice(OnRepeat, self.on_repeat, "on_repeat"))
        _BoundedSchedule.__post_init__(self)

    @property
    def resolved(self) -> str:
        return self.expression

    @property
    def _iterator(self) -> WallIterator:
        return WallIterator(_rrule_pattern(self.expression, self.calendar), self.timezone, self.on_gap, self.on_repeat)

    def _count(self, after: datetime, until: datetime, budget: int) -> int | None:
        days = (until - after).days
        is_countable = _rrule_pattern(self.expression, self.calendar).can_count(days)
        return self._iterator.count(after, until) if days <= budget and is_countable else None

    def _words(self) -> str:
        return f"{parse_rrule(self.expression).explain()} ({self.timezone})"


@lru_cache(maxsize=4096)
def _rrule_pattern(expression: str, calendar: CalendarRule | None) -> RrulePattern:
    pattern = parse_rrule(expression)
    return pattern if calendar is None else pattern.on_days(calendar)


@lru_cache(maxsize=4096)
def _next_of_cron(rule: Cron, instant: datetime) -> datetime | None:
    """Cached, because thousands of jobs may share one expression and be due at the same minute."""
    return _BoundedSchedule.next_after(rule, instant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual(_BoundedSchedule):
    """No occurrences; the job runs only when it is triggered."""

    kind: ClassVar[ScheduleKind] = ScheduleKind.MANUAL

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        return iter(())

    def _backward(self, until: datetime) -> Iterator[datetime]:
        return iter(())

    def _count(self, after: datetime, until: datetime, budget: int) -> int:
        return 0

    def _words(self) -> str:
        return "Only when triggered"


@dataclass(frozen=True, slots=True, kw_only=True)
class After(_BoundedSchedule):
    """The successes of another job, found by its name.

    *cause_id* is that job, and its occurrences from *since* on count; both are None where it was not looked up, and once it is deleted.
    """

    kind: ClassVar[ScheduleKind] = ScheduleKind.AFTER

    cause: str
    cause_id: UUID | None = field(default=None, compare=False)
    since: datetime | None = field(default=None, compare=False)

    def _forward(self, after: datetime) -> Iterator[Occurrence]:
        return iter(())

    def _backward(self, until: datetime) -> Iterator[datetime]:
        return iter(())

    def _count(self, after: datetime, until: datetime, budget: int) -> int:
        return 0

    def _words(self) -> str:
        return f"After each success of {self.cause}"


Schedule: TypeAlias = Once | Every | Cron | Rrule | Manual | After


def parse_schedule(
    *,
    schedule: str | None = None,
    interval_seconds: int | float | None = None,
    scheduled_at: datetime | str | None = None,
    after: str | None = None,
    timezone: str = "UTC",
    on_gap: OnGap | str = OnGap.NEXT_VALID,
    on_repeat: OnRepeat | str = OnRepeat.FIRST,
    starts_at: datetime | str | None = None,
    ends_at: datetime | str | None = None,
    name: str | None = None,
    calendar: CalendarRule | None = None,
    now: datetime,
) -> Schedule:
    """The schedule that the fields of a job describe; a ScheduleError names the field that does not fit.

    `schedule` makes it cron, rrule if it is a recurrence rule, or manual if it is that word; `interval_seconds` every, `scheduled_at` alone
    once, `after` the successes of the job of that name. None of them is once: *now*, or at `starts_at` if that is later. A time without an
    offset is a wall time of *timezone*. *name* is that of the job, for an expression with `H`. A schedule that cannot fire from
    *now* on is refused, but a past `once` is not.
    """
    load_zone(_text(timezone, "timezone"))
    gap_rule, repeat_rule = _choice(OnGap, on_gap, "on_gap"), _choice(OnRepeat, on_repeat, "on_repeat")
    start, end, moment = (
        None if value is None else parse_instant(value, timezone, field)
        for field, value in (("starts_at", starts_at), ("ends_at", ends_at), ("scheduled_at", scheduled_at))
    )
    if after is not None:
        return _after(after, schedule, interval_seconds, moment, start, end, calendar)
    if schedule is not None:
        _refuse_beside_schedule(schedule, interval_seconds, moment)
        if _is_manual(schedule):
            if calendar is not None:
                raise _not_recurring(calendar)
            return Manual(starts_at=start, ends_at=end)
        if is_rrule(schedule):
            first = (start or now).astimezone(load_zone(timezone)).replace(tzinfo=None)
            expression = canonical_rrule(schedule, timezone, first, is_default=start is None)
            kind: type[Cron] = Rrule
        else:
            expression, kind = canonical_text(_text(schedule, "schedule")), Cron
        parsed: Schedule = kind(
            expression=expression,
            name=name,
            timezone=timezone,
            on_gap=gap_rule,
            on_repeat=repeat_rule,
            starts_at=start,
            ends_at=end,
            calendar=calendar,
        )
    elif interval_seconds is not None:
        seconds = accept_interval(interval_seconds)
        anchor = moment or start or _one_interval_from(now, seconds)
        _refuse_shift_of_interval(calendar)
        parsed = Every(interval_seconds=seconds, anchor=anchor, starts_at=start, ends_at=end, calendar=calendar)
    elif calendar is not None:
        raise _not_recurring(calendar)
    else:
        parsed = Once(scheduled_at=moment or max(now, start or now), starts_at=start, ends_at=end)
    if isinstance(parsed, Every | Cron) and calendar is not None and not calendar.is_resolved:
        # Calendars whose days are not known cannot leave too few of them.
        _refuse_if_over(replace(parsed, calendar=None), now)
    else:
        _refuse_if_over(parsed, now)
    return parsed


def _after(
    cause: str,
    schedule: str | None,
    interval_seconds: int | float | None,
    scheduled_at: datetime | None,
    starts_at: datetime | None,
    ends_at: datetime | None,
    calendar: CalendarRule | None,
) -> After:
    times = {"schedule": schedule, "interval_seconds": interval_seconds, "scheduled_at": scheduled_at}
    for name, value in times.items():
        if value is not None:
            raise ScheduleError(
                f"after and {name} are both given, expected one of them; leave out the one you do not mean",
                field="after",
            )
    name = check_label(cause, "after")
    bounds = {
        "starts_at": starts_at,
        "ends_at": ends_at,
        "skip_on": calendar and calendar.skip_on,
        "only_on": calendar and calendar.only_on,
    }
    for field_name, bound in bounds.items():
        if bound:
            raise ScheduleError(
                f"{field_name} is given, but the job runs when {name} has succeeded; its days are those of that job",
                field=field_name,
                hint=f"leave {field_name} out, or give it to {name}",
            )
    return After(cause=name)


def _is_manual(schedule: object) -> bool:
    return isinstance(schedule, str) and schedule.strip().lower() == ScheduleKind.MANUAL


def _refuse_beside_schedule(
    schedule: object, interval_seconds: int | float | None, scheduled_at: datetime | None
) -> None:
    if interval_seconds is not None:
        raise ScheduleError(
            "schedule and interval_seconds are both given, expected one of them; leave out the one you do not mean",
            field="interval_seconds",
        )
    if scheduled_at is not None:
        advice = (
            "a manual job has no time"
            if _is_manual(schedule)
            else "a rule counts from its DTSTART or from starts_at"
            if is_rrule(schedule)
            else "to let a cron schedule begin later, use starts_at"
        )
        raise ScheduleError(
            f"schedule and scheduled_at are both given, expected one of them; {advice}", field="scheduled_at"
        )


def _refuse_shift_of_interval(calendar: CalendarRule | None) -> None:
    if calendar is not None and calendar.shift is not Shift.NONE:
        raise ScheduleError(
            f"shift is {calendar.shift}, expected none: an interval has no wall time to keep",
            field="shift",
            hint="use a cron expression, or leave shift out",
        )


def _not_recurring(calendar: CalendarRule) -> ScheduleError:
    field = "skip_on" if calendar.skip_on else "only_on"
    return ScheduleError(
        f"{field} is given, but the job does not recur; expected schedule or interval_seconds beside it",
        field=field,
        hint=f"leave {field} out, or empty",
    )


def _refuse_if_over(parsed: Schedule, now: datetime) -> None:
    since = now - MICROSECOND if parsed.is_recurring else MIN_INSTANT - MICROSECOND
    if parsed.next_after(since) is not None:
        return
    start, end = parsed.starts_at, parsed.ends_at
    if isinstance(parsed, Once) and start and parsed.scheduled_at < start:
        raise _never_fires(
            f"starts_at {format_instant(start)} is after the only occurrence {format_instant(parsed.scheduled_at)}",
            "starts_at",
        )
    following = None if end is None else replace(parsed, ends_at=None).next_after(since)
    if end and following:
        raise _never_fires(
            f"ends_at {format_instant(end)} is before the next occurrence {format_instant(following)}", "ends_at"
        )
    if isinstance(parsed, Every | Cron) and parsed.calendar is not None:
        without = replace(parsed, calendar=None)
        if without.next_after(since) is not None:
            field = "only_on" if parsed.calendar.only_on else "skip_on"
            raise _never_fires(
                f"its calendars leave no day of it from {format_instant(now)} on: {parsed.describe()}", field
            )
    raise _never_fires(f"nothing is due from {format_instant(now)} to the end of 2199: {parsed.describe()}", "schedule")


def _never_fires(why: str, field: str) -> NeverFires:
    return NeverFires(f"never fires: {why}", field=field)


def _one_interval_from(now: datetime, seconds: int) -> datetime:
    first = now + timedelta(seconds=seconds)
    if first > MAX_INSTANT:
        why = f"interval_seconds is {seconds}, so the first occurrence would be {format_instant(first)}, after 2199"
        raise _never_fires(why, "interval_seconds")
    return first


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise ScheduleError(f"{field} is {type(value).__name__}, expected text", field=field)
    return value


_Choice = TypeVar("_Choice", OnGap, OnRepeat)


def _choice(kind: type[_Choice], value: str, field: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise unexpected_value(field, value, list_choices(kind), error=ScheduleError) from None


def _store_instant(schedule: _BoundedSchedule, field: str) -> None:
    """Put an instant of a frozen schedule into UTC, so that equal schedules look alike."""
    instant = getattr(schedule, field)
    if instant is not None:
        object.__setattr__(schedule, field, accept_instant(instant, field))
