"""Recurrence rules of iCalendar: every rule names what python-dateutil says, and is one schedule for all who ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from tests.support.factories import or_manual
from timeball.domain.job import Job, define_job, redefine_job
from timeball.domain.job_changes import declared_changes
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import OnGap, OnRepeat, Shift
from timeball.domain.scheduling.calendars import CalendarVersion, calendar_rule, parse_days
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.ledger import LedgerCursor, LedgerEntry, QuickLedgerCheck, VersionPeriod
from timeball.domain.scheduling.rrule import parse_rrule
from timeball.domain.scheduling.schedule import Rrule, Schedule, parse_schedule
from timeball.domain.values.ids import JobId
from timeball.errors import NeverFires, ScheduleError

NOW = utc(2026, 11, 18, 20, 13, 45)


def wall_at(year: int, month: int, day: int) -> datetime:
    return utc(year, month, day).replace(tzinfo=None)


def parsed(text: str, **fields: Any) -> Rrule:
    rule = parse_schedule(schedule=text, now=NOW, **fields)
    assert isinstance(rule, Rrule)
    return rule


def walls(rule: Schedule, count: int = 3, after: datetime = NOW) -> list[str]:
    """The next occurrences on the clock of the zone."""
    assert isinstance(rule, Rrule)
    zone = ZoneInfo(rule.timezone)
    return [f"{found.at.astimezone(zone):%a %Y-%m-%d %H:%M:%S}" for found in islice(rule.occurrences(after), count)]


# what a rule names


def test_a_rule_runs_on_the_last_friday_of_each_month() -> None:
    rule = parsed("RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9", timezone="Europe/Berlin")

    assert walls(rule) == ["Fri 2026-11-27 09:00:00", "Fri 2026-12-25 09:00:00", "Fri 2027-01-29 09:00:00"]
    assert rule.describe() == "Every month on the last Friday at 09:00 (Europe/Berlin)"


_NUMBERS = {
    "BYMONTH": st.integers(1, 12),
    "BYMONTHDAY": st.one_of(st.integers(1, 31), st.integers(-31, -1)),
    "BYYEARDAY": st.one_of(st.integers(1, 366), st.integers(-366, -1)),
    "BYWEEKNO": st.one_of(st.integers(1, 53), st.integers(-53, -1)),
    "BYHOUR": st.integers(0, 23),
    "BYMINUTE": st.integers(0, 59),
    "BYSECOND": st.integers(0, 59),
    "BYSETPOS": st.sampled_from([1, 2, -1, -2]),
}
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_ALLOWED = {
    "YEARLY": ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"),
    "MONTHLY": ("BYMONTH", "BYMONTHDAY", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"),
    "WEEKLY": ("BYMONTH", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"),
    "DAILY": ("BYMONTH", "BYMONTHDAY", "BYHOUR", "BYMINUTE", "BYSECOND"),
    "HOURLY": ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYHOUR", "BYMINUTE", "BYSECOND"),
    "MINUTELY": ("BYMONTH", "BYMONTHDAY", "BYHOUR", "BYMINUTE", "BYSECOND"),
}


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(sorted(_ALLOWED)))
    most = {"YEARLY": 4, "MONTHLY": 14, "WEEKLY": 9, "DAILY": 40, "HOURLY": 60, "MINUTELY": 400}[frequency]
    parts = {"FREQ": frequency, "INTERVAL": str(draw(st.integers(1, most)))}
    chosen = draw(st.lists(st.sampled_from(_ALLOWED[frequency]), max_size=3, unique=True))
    for name in chosen:
        is_single = "BYSETPOS" in chosen and name in ("BYHOUR", "BYMINUTE", "BYSECOND")
        values = draw(st.lists(_NUMBERS[name], min_size=1, max_size=1 if is_single else 3, unique=True))
        parts[name] = ",".join(map(str, values))
    if draw(st.booleans()):
        has_ordinal = frequency in ("YEARLY", "MONTHLY") and "BYWEEKNO" not in parts
        ordinals = st.sampled_from(["", "", "1", "2", "-1", "+3", "-2"]) if has_ordinal else st.just("")
        days = st.builds("{}{}".format, ordinals, st.sampled_from(_WEEKDAYS))
        parts["BYDAY"] = ",".join(draw(st.lists(days, min_size=1, max_size=3, unique=True)))
    if "BYSETPOS" in parts and not any(name.startswith("BY") and name != "BYSETPOS" for name in parts):
        del parts["BYSETPOS"]
    if draw(st.integers(0, 3)) == 0:
        parts["WKST"] = draw(st.sampled_from(_WEEKDAYS))
    match draw(st.integers(0, 5)):
        case 0:
            parts["COUNT"] = str(draw(st.integers(1, 60)))
        case 1:
            parts["UNTIL"] = f"{draw(st.integers(2026, 2032))}0{draw(st.integers(1, 9))}15T120000"
    start = draw(st.datetimes(wall_at(2024, 1, 1), wall_at(2026, 12, 31))).replace(microsecond=0)
    return f"DTSTART:{start:%Y%m%dT%H%M%S} RRULE:" + ";".join(f"{name}={value}" for name, value in parts.items())


def by_dateutil(text: str, until: datetime) -> Iterator[datetime]:
    """The wall times of a rule up to an instant; UNTIL keeps dateutil from searching for ever."""
    bounded = text if "COUNT=" in text or "UNTIL=" in text else f"{text};UNTIL={until:%Y%m%dT%H%M%S}"
    for at in rrulestr(bounded.replace(" ", "\n")):
        if at > until:
            return
        yield at


@settings(max_examples=120, deadline=None)
@given(rule_texts())
def test_a_rule_names_what_dateutil_says(text: str) -> None:
    until = wall_at(2030, 1, 1)
    try:
        pattern = parse_rrule(text)
    except NeverFires:
        # Searched to the end of its years by hand: dateutil would go on to the year 9999.
        return
    expected = (
        list(islice(by_dateutil(text, until), 200))
        if next(pattern.walls_after(wall_at(2023, 1, 1)), until) < until
        else []
    )

    found = list(islice((wall for wall in pattern.walls_after(wall_at(2023, 1, 1)) if wall <= until), len(expected)))

    assert found == expected
    if expected:
        beyond = expected[-1] + MICROSECOND
        assert list(islice(pattern.walls_before(beyond), len(expected))) == expected[::-1]
        assert pattern.count_between(expected[0], beyond) == len(expected)
        middle = expected[len(expected) // 2]
        assert pattern.count_between(expected[0], middle) == len(expected) // 2
        assert pattern.count_between(middle - MICROSECOND, beyond) == len(expected) - len(expected) // 2
        assert pattern.matches(middle)
        assert pattern.explain()


_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca")


@settings(max_examples=60, deadline=None)
@given(
    rule_texts(),
    st.sampled_from(_ZONES),
    st.sampled_from(OnGap),
    st.sampled_from(OnRepeat),
    st.sampled_from([None, Shift.NONE, Shift.NEXT, Shift.PREVIOUS]),
)
def test_all_who_ask_a_rule_are_told_the_same(
    text: str, timezone: str, on_gap: OnGap, on_repeat: OnRepeat, shift: Shift | None
) -> None:
    """The scheduler steps, previews iterate, misfires look back, the ledger counts, and `verify` walks."""
    weekend = CalendarVersion("weekend", 1, parse_days(["sat", "sun", "12-25"]))
    calendar = None if shift is None else calendar_rule(("weekend",), (), shift, timezone, {"weekend": weekend})
    try:
        rule = parsed(text, timezone=timezone, on_gap=on_gap, on_repeat=on_repeat, calendar=calendar)
    except NeverFires:
        return
    since = utc(2026, 1, 1)
    previewed = [found.at for found in islice(rule.occurrences(since), 40)]
    if not previewed:
        return

    stepped = [since]
    while len(stepped) <= len(previewed) and (at := rule.next_after(stepped[-1])) is not None:
        stepped.append(at)
    assert stepped[1 : len(previewed) + 1] == previewed
    assert all(one < other for one, other in pairwise(previewed))
    assert list(rule.occurrences_back(previewed[-1], since)) == previewed[::-1]
    assert rule.last_at_or_before(previewed[-1], since) == previewed[-1]
    assert rule.count_between(since, previewed[-1]) in (len(previewed), None)
    if shift is Shift.NONE and timezone == "UTC":
        whole = replace(rule, calendar=None).count_between(since, previewed[-1])
        gone = [part.count for part in rule.left_out(since, previewed[-1])]
        if whole is not None and None not in gone:
            assert len(previewed) + sum(number or 0 for number in gone) == whole
    cursor = LedgerCursor(rule, since)
    for at in previewed:
        assert cursor.upcoming == at
        cursor.step()
    entries = [
        LedgerEntry(first=at, last=at, number=1, version=1, tzdata=None, is_range=False, used=1)
        for at in previewed[:-1]
    ]
    period = VersionPeriod(version=1, rule=rule, after=since, until=None, max_executions=None, tzdata=None)
    assert QuickLedgerCheck(None).sees_order(period, entries, previewed[-1])


@pytest.mark.parametrize(
    ("on_gap", "on_repeat", "spring", "autumn"),
    [
        (OnGap.NEXT_VALID, OnRepeat.FIRST, [utc(2027, 3, 28, 1)], [utc(2027, 10, 31, 0, 30)]),
        (OnGap.SKIP, OnRepeat.SECOND, [], [utc(2027, 10, 31, 1, 30)]),
        (OnGap.SKIP, OnRepeat.BOTH, [], [utc(2027, 10, 31, 0, 30), utc(2027, 10, 31, 1, 30)]),
    ],
)
def test_clock_changes_are_treated_as_those_of_a_cron_expression(
    on_gap: OnGap, on_repeat: OnRepeat, spring: list[datetime], autumn: list[datetime]
) -> None:
    zone = {"timezone": "Europe/Berlin", "on_gap": on_gap, "on_repeat": on_repeat}
    rule = parsed("RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30", **zone)
    cron = parse_schedule(schedule="30 2 * * *", now=NOW, **zone)

    for day, expected in ((utc(2027, 3, 28), spring), (utc(2027, 10, 31), autumn)):
        found = [one.at for one in rule.occurrences(day - timedelta(hours=2), day + timedelta(hours=20))]
        assert found == expected
        assert list(rule.occurrences(day, day + timedelta(days=2), with_skipped=True)) == list(
            cron.occurrences(day, day + timedelta(days=2), with_skipped=True)
        )


def test_a_rule_by_the_minute_follows_elapsed_time() -> None:
    rule = parsed("RRULE:FREQ=MINUTELY;INTERVAL=30", timezone="Europe/Berlin", on_gap="skip")

    night = [one.at for one in rule.occurrences(utc(2027, 10, 31), utc(2027, 10, 31, 3))]

    assert {later - earlier for earlier, later in pairwise(night)} == {timedelta(minutes=30)}


def test_a_day_that_calendars_move_keeps_its_times() -> None:
    closed = CalendarVersion("closed", 1, parse_days(["2026-11-27", "2026-11-28", "2026-11-29"]))
    calendar = calendar_rule(("closed",), (), Shift.NEXT, "UTC", {"closed": closed})

    rule = parsed("RRULE:FREQ=HOURLY;INTERVAL=7;BYDAY=FR", calendar=calendar)

    whole = parsed("RRULE:FREQ=HOURLY;INTERVAL=7;BYDAY=FR")
    friday = [wall.partition("11-27")[2] for wall in walls(whole, 9, utc(2026, 11, 26)) if "11-27" in wall]
    assert [wall for wall in walls(rule, 9, utc(2026, 11, 26)) if "11-30" in wall] == [
        f"Mon 2026-11-30{time}" for time in friday
    ]
    assert len(friday) >= 3
    (moved, *_) = rule.occurrences(utc(2026, 11, 26))
    assert moved.note is not None
    assert moved.note.wall.date() == date(2026, 11, 27)


# from when it counts


@pytest.mark.parametrize(
    ("text", "fields", "stored"),
    [
        ("RRULE:FREQ=DAILY", {}, "DTSTART:20261118T000000 RRULE:FREQ=DAILY"),
        ("rrule:interval=2;freq=daily;", {}, "DTSTART:20261118T000000 RRULE:FREQ=DAILY;INTERVAL=2"),
        (
            "RRULE:FREQ=DAILY",
            {"starts_at": "2027-01-04T09:30", "timezone": "Europe/Berlin"},
            "DTSTART:20270104T093000 RRULE:FREQ=DAILY",
        ),
        ("DTSTART:20200101T080000\nRRULE:FREQ=DAILY", {}, "DTSTART:20200101T080000 RRULE:FREQ=DAILY"),
        (
            "DTSTART;TZID=America/New_York:20200101T080000 RRULE:FREQ=DAILY;UNTIL=20301231T170000Z",
            {"timezone": "America/New_York"},
            "DTSTART:20200101T080000 RRULE:FREQ=DAILY;UNTIL=20301231T120000",
        ),
        (
            "DTSTART:20200101T130000Z RRULE:FREQ=DAILY;UNTIL=20301231",
            {"timezone": "America/New_York"},
            "DTSTART:20200101T080000 RRULE:FREQ=DAILY;UNTIL=20301231T235959",
        ),
        ("RRULE:FREQ=DAILY;BYHOUR=9;COUNT=5", {}, "DTSTART:20261119T090000 RRULE:FREQ=DAILY;BYHOUR=9;COUNT=5"),
    ],
)
def test_a_rule_is_stored_with_the_wall_time_from_which_it_counts(
    text: str, fields: dict[str, Any], stored: str
) -> None:
    rule = parsed(text, **fields)

    assert rule.expression == stored
    assert parsed(stored, timezone=rule.timezone).expression == stored, "it is accepted as it was stored"


def test_a_rule_ends_after_its_count() -> None:
    rule = parsed("RRULE:FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;COUNT=3")

    assert walls(rule, 9) == ["Thu 2026-11-19 09:00:00", "Mon 2026-11-23 09:00:00", "Thu 2026-11-26 09:00:00"]


def a_job(**fields: Any) -> Job:
    return define_job(JobSpec(**{"handler": "h", "name": "n"} | or_manual(fields)), JobId(UUID(int=17)), NOW, 64)


def test_a_rule_that_is_said_again_goes_on_counting_as_before() -> None:
    job = a_job(schedule="RRULE:FREQ=DAILY;INTERVAL=3")
    later = NOW + timedelta(days=100)

    same, changes = declared_changes(
        job, JobSpec(name="n", handler="h", schedule="RRULE:FREQ=DAILY;INTERVAL=3"), later, 64
    )
    assert (same, changes) == (job, {})

    edited = redefine_job(job, {"schedule": "RRULE:FREQ=DAILY;INTERVAL=5"}, later, 64).rule
    assert isinstance(edited, Rrule)
    assert edited.expression == "DTSTART:20261118T000000 RRULE:FREQ=DAILY;INTERVAL=5"


# what is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RRULE:", "expected NAME=VALUE"),
        ("RRULE:INTERVAL=2", "it has no FREQ"),
        ("RRULE:FREQ=FORTNIGHTLY", "FREQ is FORTNIGHTLY, expected one of YEARLY"),
        ("RRULE:FREQ=DAILY;FREQ=DAILY", "FREQ is given twice"),
        ("RRULE:FREQ=YEARLY;BYEASTER=0", "it has the part BYEASTER=0"),
        ("RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL is 0, expected 1 to"),
        ("RRULE:FREQ=DAILY;INTERVAL=0.5", "INTERVAL is 0.5, expected 1 to"),
        ("RRULE:FREQ=DAILY;COUNT=0", "COUNT is 0, expected 1 to"),
        ("RRULE:FREQ=DAILY;COUNT=3;UNTIL=20300101", "COUNT and UNTIL are both given"),
        ("RRULE:FREQ=DAILY;BYHOUR=24", "BYHOUR has 24, expected 0 to 23"),
        ("RRULE:FREQ=MINUTELY;BYSECOND=60", "BYSECOND has 60, expected 0 to 59"),
        ("RRULE:FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY has 0, expected 1 to 31, or -31 to -1 from the end"),
        ("RRULE:FREQ=MONTHLY;BYDAY=XX", "BYDAY has XX, expected weekdays such as MO"),
        ("RRULE:FREQ=WEEKLY;BYDAY=2MO", "BYDAY is 2MO with FREQ=WEEKLY"),
        ("RRULE:FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY is given with FREQ=WEEKLY"),
        ("RRULE:FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO is given with FREQ=MONTHLY"),
        ("RRULE:FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS is given alone"),
        ("RRULE:FREQ=MONTHLY;BYDAY=MO;BYHOUR=9,17;BYSETPOS=-1", "BYSETPOS is given with several times of a day"),
        ("RRULE:FREQ=HOURLY;BYDAY=MO;BYSETPOS=1", "BYSETPOS is given with FREQ=HOURLY"),
        ("RRULE:FREQ=DAILY;WKST=XX", "WKST is XX"),
        ("RRULE:FREQ=DAILY;UNTIL=soon", "UNTIL is SOON"),
        ("RRULE:FREQ=DAILY\nEXDATE:20260102T000000", "expected one RRULE; leave days out with skip_on"),
        ("DTSTART:20260101T000000", "expected one RRULE"),
        ("DTSTART:20260101T090000.5 RRULE:FREQ=DAILY", "DTSTART is 20260101T090000.5"),
        ("DTSTART:18000101T090000 RRULE:FREQ=DAILY", "DTSTART is 18000101T090000"),
        ("DTSTART;TZID=Europe/Rome:20260101T000000 RRULE:FREQ=DAILY", "TZID is Europe/Rome, expected the same zone"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parsed(text)

    assert message in str(refusal.value)
    assert refusal.value.field == "schedule"


@pytest.mark.parametrize(
    "text",
    [
        "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "RRULE:FREQ=HOURLY;INTERVAL=24;BYHOUR=5",
        "RRULE:FREQ=WEEKLY;INTERVAL=1000000;BYMONTH=1",
        "RRULE:FREQ=MONTHLY;INTERVAL=12;BYMONTH=5",
        "RRULE:FREQ=DAILY;UNTIL=20251231",
        "DTSTART:20200101T000000 RRULE:FREQ=DAILY;COUNT=5",
    ],
)
def test_a_rule_that_never_fires_is_refused_and_not_searched_for_ever(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """python-dateutil searches such rules until the year 9999, second by second if they say so: it is asked for single periods alone."""
    from dateutil.rrule import rrule

    steps = 0
    original = rrule._iter

    def counted(self: Any) -> Any:
        nonlocal steps
        steps += 1
        assert self._interval > 9_999, "a search that may not end"
        return original(self)

    monkeypatch.setattr(rrule, "_iter", counted)
    parse_rrule.cache_clear()

    with pytest.raises(NeverFires, match="never fires"):
        parsed(text)

    assert steps <= 12 * 240


def test_a_rule_that_began_long_ago_costs_no_more_than_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from timeball.domain.scheduling import rrule as module

    rule = parsed("DTSTART:19700101T000000 RRULE:FREQ=MINUTELY;INTERVAL=7;BYDAY=MO")
    rule.next_after(NOW)
    asked: list[int] = []
    original = module._Rule.days_of

    def days_of(self: Any, year: int) -> int:
        asked.append(year)
        return original(self, year)

    monkeypatch.setattr(module._Rule, "days_of", days_of)
    parse_rrule.cache_clear()

    fresh = parse_rrule(rule.expression.replace("INTERVAL=7", "INTERVAL=11"))
    asked.clear()
    assert next(fresh.walls_after(wall_at(2026, 11, 18))).year == 2026

    assert asked == [2026]
