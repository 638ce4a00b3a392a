"""Calendars: sets of days, and schedules without some of them, against a computation that looks at every day."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import Clock, Fields, fire_times, utc, wall, zone
from timeball.domain.policies import OnGap, OnRepeat, Shift, SkipReason
from timeball.domain.scheduling.calendars import (
    MAX_DAYS,
    MAX_SHIFT_DAYS,
    CalendarRule,
    CalendarVersion,
    DaySet,
    parse_days,
)
from timeball.domain.scheduling.cron import NoteKind
from timeball.domain.scheduling.ledger import JobLedger, LedgerBounds, LedgerEntry, PendingOccurrence, VersionPeriod
from timeball.domain.scheduling.occurrences import first_occurrence, resolve_missed
from timeball.domain.scheduling.schedule import Cron, Every, parse_schedule
from timeball.errors import InvalidInput, NeverFires, ScheduleError

DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
HALF_HOUR = timedelta(minutes=30)
NOW = utc(2026, 11, 18, 12)

# Zones by whole half hours, and the middle of a week in which the clock does something odd there.
PLACES = [
    ("UTC", utc(2026, 3, 4)),
    ("Europe/Berlin", utc(2026, 3, 29)),
    ("Europe/Berlin", utc(2026, 10, 25)),
    ("America/New_York", utc(2026, 11, 1)),
    ("America/Sao_Paulo", utc(2017, 10, 15)),  # there is no midnight
    ("America/Sao_Paulo", utc(2018, 2, 18)),  # the last hour of a day comes twice
    ("Pacific/Apia", utc(2011, 12, 30)),  # a whole day is missing
    ("Australia/Lord_Howe", utc(2026, 4, 5)),  # half an hour comes twice
    ("Asia/Kolkata", utc(2026, 12, 31)),
]


def calendar(name: str, *entries: str) -> CalendarVersion:
    return CalendarVersion(name, 1, parse_days(entries))


@st.composite
def day_sets(draw: st.DrawFn, around: date) -> DaySet:
    near = st.integers(-9, 9).map(lambda number: around + number * DAY)
    days = draw(st.frozensets(near, max_size=10))
    yearly = draw(st.frozensets(near.map(lambda day: (day.month, day.day)), max_size=3))
    weekly = draw(st.frozensets(st.integers(0, 6), max_size=3))
    return DaySet(days, yearly, weekly)


@st.composite
def rules(draw: st.DrawFn, zone_name: str, middle: datetime, *, shifts: bool = True) -> CalendarRule:
    sets = [draw(day_sets(middle.date())) for _ in range(3)]
    skip = tuple(CalendarVersion(f"skip-{n}", 1, days) for n, days in enumerate(sets[: draw(st.integers(0, 2))]))
    only = (CalendarVersion("only", 1, sets[2]),) if draw(st.booleans()) else ()
    shift = draw(st.sampled_from(Shift)) if skip and shifts else Shift.NONE
    return CalendarRule(skip_on=skip, only_on=only, shift=shift, zone=zone_name)


def is_skipped(rule: CalendarRule, day: date) -> bool:
    return any(day in one.days for one in rule.skip_on)


def is_open(rule: CalendarRule, day: date) -> bool:
    return not rule.only_on or any(day in one.days for one in rule.only_on)


class NaiveFields(Fields):
    """The fields of an expression on the days that calendars leave of it, found by looking at every day."""

    def __init__(self, expression: str, rule: CalendarRule) -> None:
        super().__init__(expression)
        self.rule = rule
        self.known: dict[date, bool] = {}

    def match_date(self, day: date) -> bool:
        if day not in self.known:
            self.known[day] = self._decide(day)
        return self.known[day]

    def _decide(self, day: date) -> bool:
        rule = self.rule
        if is_skipped(rule, day) or not is_open(rule, day):
            return False
        if Fields.match_date(self, day):
            return True
        if rule.shift is Shift.NONE:
            return False
        step = -DAY if rule.shift is Shift.NEXT else DAY
        for number in range(1, MAX_SHIFT_DAYS + 1):
            other = day + number * step
            if is_open(rule, other) and not is_skipped(rule, other):
                return False
            if is_open(rule, other) and is_skipped(rule, other) and Fields.match_date(self, other):
                return True
        return False


class LeftOutFields(NaiveFields):
    """The fields of an expression on the days that its calendars leave out and do not move."""

    def _decide(self, day: date) -> bool:
        rule = self.rule
        if not Fields.match_date(self, day) or (is_open(rule, day) and not is_skipped(rule, day)):
            return False
        if rule.shift is Shift.NONE or not is_open(rule, day):
            return True
        step = DAY if rule.shift is Shift.NEXT else -DAY
        days = (day + number * step for number in range(1, MAX_SHIFT_DAYS + 1))
        return not any(is_open(rule, other) and not is_skipped(rule, other) for other in days)


hours = st.sampled_from(["*", "*/2", "0", "0,23", "2", "9", "2-3", "22-1"])
days_of_month = st.sampled_from(["*", "*", "1", "15", "25,28,29,30", "L", "15W", "L-1", "*/3"])
weekdays = st.sampled_from(["*", "*", "mon-fri", "sun", "sat,sun", "wed#1"])
crons = st.builds("{} {} {} * {}".format, st.sampled_from(["0", "30", "0,30"]), hours, days_of_month, weekdays)


@given(st.data(), st.sampled_from(PLACES), crons, st.sampled_from(OnGap), st.sampled_from(OnRepeat))
@settings(max_examples=250, deadline=None)
def test_cron_fires_on_the_days_that_its_calendars_leave(
    data, place, expression: str, on_gap: OnGap, on_repeat: OnRepeat
):
    name, middle = place
    rule = data.draw(rules(name, middle))
    schedule = Cron(expression=expression, timezone=name, on_gap=on_gap, on_repeat=on_repeat, calendar=rule)
    start, end = middle - 5 * DAY, middle + 5 * DAY
    # A few days more on both sides: what lies before a gap is moved by it.
    clock = Clock(name, start - 2 * DAY, end + 2 * DAY, HALF_HOUR)
    expected = [at for at in fire_times(clock, NaiveFields(expression, rule), on_gap, on_repeat) if start < at <= end]

    check_all_ways(schedule, start, end, expected)
    left_out = fire_times(clock, LeftOutFields(expression, rule), on_gap, on_repeat)
    check_left_out_ranges(schedule, start, end, expected, left_out)


@given(st.data(), st.sampled_from(PLACES), st.sampled_from([1800, 3600, 5400, 21_600, 86_400, 100_800, 604_800]))
@settings(max_examples=250, deadline=None)
def test_an_interval_fires_on_the_days_that_its_calendars_allow(data, place, seconds: int):
    name, middle = place
    rule = data.draw(rules(name, middle, shifts=False))
    anchor = middle - timedelta(days=data.draw(st.integers(-2, 30)), minutes=data.draw(st.integers(0, 1439)))
    schedule = Every(interval_seconds=seconds, anchor=anchor, calendar=rule)
    start, end = middle - 5 * DAY, middle + 5 * DAY
    ticks = (anchor + number * schedule.interval for number in range(40 * 86_400 // seconds + 2))
    expected = [
        at
        for at in ticks
        if start < at <= end
        and is_open(rule, at.astimezone(zone(name)).date())
        and not is_skipped(rule, at.astimezone(zone(name)).date())
    ]

    check_all_ways(schedule, start, end, expected)
    whole = [occurrence.at for occurrence in replace(schedule, calendar=None).occurrences(start, end)]
    check_left_out_ranges(schedule, start, end, expected, [at for at in whole if at not in expected])


def check_left_out_ranges(schedule, start: datetime, end: datetime, due: list[datetime], left_out: list[datetime]):
    """What a schedule leaves out is all told, in ranges with nothing that is due between them, in either direction."""
    ranges = list(schedule.left_out(start, end))
    by_calendar = [one for one in ranges if one.reason is SkipReason.CALENDAR]
    gone = [at for at in left_out if start < at <= end and at not in due]

    assert ranges == list(schedule.left_out_back(end, start))[::-1]
    assert sum(one.count for one in by_calendar) == len(gone)
    for one in by_calendar:
        inside = [at for at in gone if one.first <= at <= one.last]
        assert (inside[0], inside[-1], len(inside)) == (one.first, one.last, one.count)
        assert not any(one.first <= at <= one.last for at in due)
    for one, following in pairwise(by_calendar):
        assert any(one.last < at < following.first for at in due)
    skipped = [one for one in schedule.occurrences(start, end, with_skipped=True) if one.note]
    in_gaps = [(one.at, one.note.count) for one in skipped if one.note.kind is NoteKind.SKIPPED_BY_GAP]
    assert [(one.first, one.count) for one in ranges if one.reason is SkipReason.CLOCK_GAP] == in_gaps


def check_all_ways(schedule: Cron | Every, start: datetime, end: datetime, expected: list[datetime]) -> None:
    forward = [occurrence.at for occurrence in schedule.occurrences(start, end)]
    assert forward == expected
    assert list(schedule.occurrences_back(end, start)) == expected[::-1]
    assert schedule.count_between(start, end) == len(expected)
    middle = start + (end - start) / 2
    assert schedule.count_between(start, middle) + schedule.count_between(middle, end) == len(expected)
    following = schedule.next_after(start)
    assert (following if following is not None and following <= end else None) == next(iter(expected), None)
    assert schedule.last_at_or_before(end, start) == (expected[-1] if expected else None)
    told = list(schedule.occurrences(start, end, with_skipped=True))
    assert [occurrence.at for occurrence in told if occurrence.is_due] == expected
    check_what_is_left_out(schedule, start, end, told, expected)


def check_what_is_left_out(schedule, start: datetime, end: datetime, told, expected: list[datetime]) -> None:
    """What is told to be left out is what the schedule without calendars has between those that are due."""
    whole = [occurrence.at for occurrence in replace(schedule, calendar=None).occurrences(start, end)]
    left_out = [one for one in told if one.note and one.note.kind is NoteKind.LEFT_OUT_BY_CALENDAR]
    assert sum(one.note.count for one in left_out) == len(set(whole) - set(expected))
    for one in left_out:
        inside = [at for at in whole if one.at <= at <= one.note.last and at not in expected]
        assert (inside[0], inside[-1], len(inside)) == (one.at, one.note.last, one.note.count)


@given(st.data(), st.sampled_from(PLACES), crons, st.integers(0, 20), st.sampled_from(["", "hole", "phantom"]))
@settings(max_examples=150, deadline=None)
def test_scheduler_and_verify_agree_about_calendars(data, place, expression: str, missed: int, flaw: str):
    """What the scheduler records by the rule is what the ledger expects; and nothing else."""
    name, middle = place
    rule = data.draw(rules(name, middle))
    schedule = Cron(expression=expression, timezone=name, calendar=rule)
    start, now = middle - 5 * DAY, middle + 2 * DAY
    first = schedule.next_after(start)
    assume(first is not None and first <= now)
    owed = resolve_missed(schedule, first, now)
    entries = [LedgerEntry(at, at, 1, 1, "x", False, 1) for at in owed.run]
    entries += [LedgerEntry(one.first, one.last, one.count, 1, "x", True, 0) for one in owed.skipped]
    entries.sort()
    watermark = max([entry.last for entry in entries])
    if flaw == "hole":
        entries.pop(data.draw(st.integers(0, len(entries) - 1)))
    if flaw == "phantom":
        left_out = [one.at for one in replace(schedule, calendar=None).occurrences(start, now)]
        named = {one.at for one in schedule.occurrences(start, now)}
        phantoms = [at for at in left_out if at not in named and at < watermark]
        assume(phantoms)
        entries = sorted([*entries, LedgerEntry(phantoms[0], phantoms[0], 1, 1, "x", False, 1)])
    pending = (
        None if owed.next_at is None else PendingOccurrence(scheduled_for=owed.next_at, tzdata="x", watermark=watermark)
    )
    flaws: list[object] = []
    ledger = JobLedger(
        [VersionPeriod(version=1, rule=schedule, after=start, until=None)],
        LedgerBounds(pending=pending, tzdata="x"),
        flaws.append,
    )

    for entry in entries:
        ledger.enter(entry)
    ledger.close()

    assert bool(flaws) == bool(flaw)


# What the words mean


def instants(schedule, count: int = 4, after: datetime = NOW) -> list[str]:
    return [f"{occurrence.at:%Y-%m-%d}" for occurrence in islice(schedule.occurrences(after), count)]


HOLIDAYS = calendar("holidays", "12-25", "12-26")
WEEKEND = calendar("weekend", "sat", "sun")


@pytest.mark.parametrize(
    ("shift", "days"),
    [
        # In 2026 the 25th of December is a Friday.
        (Shift.NONE, ["2026-11-25", "2027-01-25", "2027-02-25", "2027-03-25"]),
        (Shift.NEXT, ["2026-11-25", "2026-12-28", "2027-01-25", "2027-02-25"]),
        (Shift.PREVIOUS, ["2026-11-25", "2026-12-24", "2027-01-25", "2027-02-25"]),
    ],
)
def test_shift_moves_to_a_business_day(shift: Shift, days: list[str]):
    rule = CalendarRule(skip_on=(HOLIDAYS, WEEKEND), shift=shift)

    assert instants(Cron(expression="0 9 25 * *", calendar=rule)) == days


def test_what_moves_is_not_left_out():
    moving = CalendarRule(skip_on=(WEEKEND,), shift=Shift.NEXT)
    staying = CalendarRule(skip_on=(WEEKEND,))
    until = utc(2027, 1, 1)

    assert list(Cron(expression="0 9 15 * *", calendar=moving).left_out(NOW - 90 * DAY, until)) == []
    (gone,) = Cron(expression="0 9 15 * *", calendar=staying).left_out(NOW - 90 * DAY, until)
    assert (gone.first, gone.last, gone.count) == (utc(2026, 11, 15, 9), utc(2026, 11, 15, 9), 1)


def test_what_is_left_out_is_found_without_a_walk_along_what_is_due():
    """Every second for a century, but for one day of it."""
    rule = CalendarRule(skip_on=(calendar("once", "2098-03-01"),))
    schedule = Every(interval_seconds=1, anchor=NOW, calendar=rule)

    (gone,) = schedule.left_out(NOW, utc(2126, 1, 1))

    assert (gone.first, gone.last, gone.count) == (utc(2098, 3, 1), utc(2098, 3, 1, 23, 59, 59), 86_400)
    assert next(schedule.left_out_back(utc(2126, 1, 1), NOW)) == gone


def test_two_that_move_onto_one_day_are_one():
    rule = CalendarRule(skip_on=(WEEKEND,), shift=Shift.NEXT)
    schedule = Cron(expression="0 9 * * *", calendar=rule)
    friday = utc(2026, 11, 20, 9)

    assert instants(schedule, 3, friday - MICROSECOND) == ["2026-11-20", "2026-11-23", "2026-11-24"]
    assert schedule.count_between(friday, friday + 3 * DAY) == 1


def test_a_moved_occurrence_tells_from_where():
    rule = CalendarRule(skip_on=(HOLIDAYS, WEEKEND), shift=Shift.NEXT)
    schedule = Cron(expression="0 9 25 12 *", calendar=rule)

    left_out, moved = islice(schedule.occurrences(NOW, with_skipped=True), 2)

    assert (left_out.is_due, left_out.note.calendars, left_out.note.count) == (False, ("holidays",), 1)
    assert (moved.is_due, moved.note.kind, moved.note.wall) == (
        True,
        NoteKind.MOVED_BY_CALENDAR,
        wall(2026, 12, 25, 9),
    )


def test_a_day_does_not_move_by_more_than_a_year():
    rules = [
        CalendarRule(skip_on=(calendar("closed", f"2028-02-29..{last}"),), shift=Shift.NEXT)
        for last in ("2029-02-27", "2029-02-28")
    ]

    near, far = (Cron(expression="0 9 29 2 *", calendar=rule) for rule in rules)

    assert instants(near, 2) == ["2029-02-28", "2032-02-29"]
    assert instants(far, 2) == ["2032-02-29", "2036-02-29"]


def test_only_on_narrows_before_skip_on_moves():
    month_ends = calendar("ends", "2026-11-30", "2026-12-31", "2027-01-29")
    rule = CalendarRule(only_on=(month_ends,), skip_on=(calendar("closed", "2026-12-31"),), shift=Shift.NEXT)

    assert instants(Cron(expression="0 9 * * *", calendar=rule)) == ["2026-11-30", "2027-01-29"]


def test_days_are_those_of_the_zone():
    closed = CalendarRule(skip_on=(calendar("closed", "2026-11-19"),), zone="Asia/Tokyo")
    schedule = Every(interval_seconds=3600, anchor=NOW, calendar=closed)

    hours_run = [occurrence.at for occurrence in islice(schedule.occurrences(NOW), 3)]

    assert hours_run == [utc(2026, 11, 18, 13), utc(2026, 11, 18, 14), utc(2026, 11, 19, 15)]


def test_words_name_the_calendars():
    rule = CalendarRule(skip_on=(HOLIDAYS, WEEKEND), only_on=(calendar("open"),), shift=Shift.NEXT)

    words = Cron(expression="0 9 * * *", calendar=rule).describe()

    assert words == (
        "At 09:00 every day (UTC), only on open, not on holidays or weekend (moved to the next day that is allowed)"
    )


# What has no end, and what has one


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "0 9 * * *", "calendar": CalendarRule(only_on=(calendar("past", "2020-01-01"),))},
        {"schedule": "0 9 * * *", "calendar": CalendarRule(only_on=(calendar("none"),))},
        {"schedule": "0 9 * * mon", "calendar": CalendarRule(only_on=(WEEKEND,))},
        {"schedule": "* * * * sat", "calendar": CalendarRule(skip_on=(WEEKEND,))},
        {"schedule": "0 9 29 2 *", "calendar": CalendarRule(skip_on=(calendar("leap", "02-29"),))},
        {
            "interval_seconds": 604_800,
            "scheduled_at": "2026-11-21T12:00Z",
            "calendar": CalendarRule(skip_on=(WEEKEND,)),
        },
        {"interval_seconds": 1, "calendar": CalendarRule(only_on=(calendar("past", "2020-01-01"),))},
    ],
)
def test_a_schedule_without_a_day_left_is_refused(fields):
    with pytest.raises(NeverFires, match="its calendars leave no day of it"):
        parse_schedule(**fields, now=NOW)


def test_a_schedule_ends_with_the_last_day_of_only_on():
    rule = CalendarRule(only_on=(calendar("days", "2026-11-20", "2026-11-22"),))
    daily = Cron(expression="0 9 * * *", calendar=rule)
    often = Every(interval_seconds=43_200, anchor=NOW, calendar=rule)

    assert instants(daily, 10) == ["2026-11-20", "2026-11-22"]
    assert daily.next_after(utc(2026, 11, 22, 9)) is None
    assert daily.last_at_or_before(utc(2199, 1, 1)) == utc(2026, 11, 22, 9)
    assert instants(often, 10) == ["2026-11-20", "2026-11-20", "2026-11-22", "2026-11-22"]
    assert often.next_after(utc(2026, 11, 22, 12)) is None
    assert first_occurrence_after(daily, utc(2027, 1, 1)) is None


def first_occurrence_after(rule: Cron, after: datetime):
    class Timing:
        id = None
        max_executions = None

    timing = Timing()
    timing.rule = rule
    return first_occurrence(timing, after)


def test_the_last_allowed_day_may_have_an_hour_twice():
    rule = CalendarRule(only_on=(calendar("change", "2026-10-25"),), zone="Europe/Berlin")
    schedule = Cron(expression="30 2 * * *", timezone="Europe/Berlin", on_repeat=OnRepeat.BOTH, calendar=rule)
    both = [utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 1, 30)]

    assert [occurrence.at for occurrence in schedule.occurrences(utc(2026, 1, 1))] == both
    assert list(schedule.occurrences_back(utc(2027, 1, 1))) == both[::-1]


def test_an_interval_does_not_move():
    with pytest.raises(ScheduleError, match="shift is next, expected none"):
        parse_schedule(interval_seconds=60, calendar=CalendarRule(skip_on=(WEEKEND,), shift=Shift.NEXT), now=NOW)


@pytest.mark.parametrize("fields", [{"scheduled_at": NOW + DAY}, {}, {"schedule": "manual"}])
def test_a_job_that_does_not_recur_has_no_calendar(fields):
    with pytest.raises(ScheduleError, match="skip_on is given, but the job does not recur"):
        parse_schedule(**fields, calendar=CalendarRule(skip_on=(WEEKEND,)), now=NOW)


# Sets of days


@given(day_sets(date(2024, 2, 29)))
def test_days_are_read_as_they_are_written(days: DaySet):
    assert parse_days(days.entries) == days


@given(day_sets(date(2026, 1, 1)), st.integers(-400, 400))
@settings(deadline=None)
def test_the_next_days_of_a_set_are_those_it_has(days: DaySet, offset: int):
    start = date(2026, 1, 1) + offset * DAY
    by_hand = [day for number in range(500) if (day := start + number * DAY) in days][:5]

    assert days.from_day(start, 5)[: len(by_hand)] == by_hand


def test_a_range_is_all_of_its_days():
    assert parse_days(["2026-12-30..2027-01-02"]).entries == ["2026-12-30", "2026-12-31", "2027-01-01", "2027-01-02"]


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("2026-13-01", "days/1 is 2026-13-01, expected a date such as 2026-12-25"),
        ("02-30", "days/1 is 02-30, expected a date"),
        ("saturday", "days/1 is saturday, expected a date"),
        ("2026-12-31..2026-12-01", "expected a range of at most 10,000 days that does not end before it begins"),
        ("1970-01-01..2199-01-01", "expected a range of at most 10,000 days"),
        ("2200-01-01", "from 1970 to 2199"),
        ("20261225", "expected a date"),
    ],
)
def test_an_entry_that_is_no_day_is_named(entry: str, part: str):
    with pytest.raises(InvalidInput) as error:
        parse_days(["sat", entry])

    assert part in str(error.value).replace('"', "")


def test_a_calendar_has_not_too_many_days():
    ranges = ["1970-01-01..1997-01-01", "1997-01-02..2020-01-01"]

    with pytest.raises(InvalidInput, match=f"more than {MAX_DAYS:,} days"):
        parse_days(ranges)


def test_equal_days_make_equal_rules():
    """Iterators are kept by their rules, so a version with other days must be another rule, whatever its name."""
    one, other = (CalendarRule(skip_on=(calendar("same", day),)) for day in ("2026-11-19", "2026-11-20"))

    assert instants(Cron(expression="0 9 * * *", calendar=one), 2) == ["2026-11-20", "2026-11-21"]
    assert instants(Cron(expression="0 9 * * *", calendar=other), 2) == ["2026-11-19", "2026-11-21"]
    assert NOW.tzinfo is UTC
