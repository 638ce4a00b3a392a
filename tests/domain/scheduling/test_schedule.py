"""Schedules: the four kinds, their bounds, and what the posted fields mean."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MAX_INTERVAL_SECONDS, MIN_INSTANT
from timeball.domain.scheduling.schedule import (
    Cron,
    Every,
    Manual,
    Once,
    OnGap,
    OnRepeat,
    Schedule,
    ScheduleKind,
    parse_schedule,
)
from timeball.errors import CronSyntaxError, NeverFires, ScheduleError, UnknownTimezone

NOW = utc(2024, 3, 30, 12)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

instants = st.datetimes(datetime(1971, 1, 1), datetime(2150, 1, 1)).map(lambda at: at.replace(tzinfo=NOW.tzinfo))  # noqa: DTZ001


def times(schedule: Schedule, after: datetime, until: datetime | None = None, limit: int = 50) -> list[datetime]:
    return [occurrence.at for occurrence in islice(schedule.occurrences(after, until), limit)]


# Every


@given(instants, st.integers(1, 10**7), instants, st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_every_is_the_anchor_plus_whole_intervals(anchor: datetime, seconds: int, after: datetime, number: int):
    schedule = Every(interval_seconds=seconds, anchor=anchor)
    first = anchor if after < anchor else anchor + ((after - anchor) // schedule.interval + 1) * schedule.interval
    expected = [at for n in range(number) if (at := first + n * schedule.interval) <= MAX_INSTANT]

    until = expected[-1] if expected else after
    assert times(schedule, after, until) == expected
    assert list(schedule.occurrences_back(until, after)) == expected[::-1]
    assert schedule.count_between(after, until) == len(expected)
    assert schedule.next_after(after) == (first if first <= MAX_INSTANT else None)
    assert schedule.last_at_or_before(until, after) == (expected[-1] if expected else None)


@given(instants, st.integers(1, 10**7), instants, st.lists(instants, min_size=2, max_size=2).map(sorted))
@settings(max_examples=100, deadline=None)
def test_every_steps_within_its_bounds_as_it_iterates(
    anchor: datetime, seconds: int, after: datetime, bounds: list[datetime]
):
    schedule = Every(interval_seconds=seconds, anchor=anchor, starts_at=bounds[0], ends_at=bounds[1])

    assert schedule.next_after(after) == next(iter(times(schedule, after, limit=1)), None)


# Cron


@given(
    st.sampled_from(["* * * * * *", "*/20 */7 * * * *", "59 59 23 * * *", "30 2 * * sun", "0 0 31 * *"]),
    st.sampled_from(["UTC", "Europe/Rome", "America/St_Johns", "Australia/Lord_Howe", "Africa/Monrovia"]),
    st.sampled_from(list(OnGap)),
    st.sampled_from(list(OnRepeat)),
    st.one_of(instants, instants.map(lambda at: at.replace(microsecond=0))),
    st.timedeltas(timedelta(0), timedelta(days=900)),
)
@settings(max_examples=150, deadline=None)
def test_cron_steps_from_any_part_of_a_second_as_it_iterates(
    expression: str, zone: str, on_gap: OnGap, on_repeat: OnRepeat, after: datetime, span: timedelta
):
    schedule = Cron(
        expression=expression,
        timezone=zone,
        on_gap=on_gap,
        on_repeat=on_repeat,
        starts_at=after - span / 3,
        ends_at=after + span,
    )

    assert schedule.next_after(after) == next(iter(times(schedule, after, limit=1)), None)


def test_instants_of_one_second_are_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    """Jobs that are made in a row share the look-up, although time goes on between them."""
    asked: list[datetime] = []
    occurrences = Cron.occurrences
    monkeypatch.setattr(
        Cron, "occurrences", lambda self, after, *given: asked.append(after) or occurrences(self, after, *given)
    )
    schedule = Cron(expression="17 4 29 2 *", timezone="Asia/Kathmandu")

    first = {schedule.next_after(NOW + number * timedelta(milliseconds=1)) for number in range(1_000)}

    assert first == {utc(2028, 2, 28, 22, 32)}
    assert len(asked) == 1


def test_every_does_not_drift_in_ten_years():
    schedule = Every(interval_seconds=7, anchor=utc(2014, 1, 1))

    at = schedule.next_after(utc(2024, 1, 1))

    assert at is not None
    assert (at - schedule.anchor).total_seconds() % 7 == 0
    assert schedule.count_between(utc(2014, 1, 1), utc(2024, 1, 1)) == 3652 * 86_400 // 7


def test_every_ends_with_the_accepted_years():
    schedule = Every(interval_seconds=MAX_INTERVAL_SECONDS, anchor=utc(2024, 1, 1))

    assert times(schedule, NOW - timedelta(days=365)) == [utc(2024, 1, 1)]
    assert schedule.next_after(NOW) is None
    assert schedule.last_at_or_before(MAX_INSTANT) == utc(2024, 1, 1)


# Once, manual


def test_once_is_one_instant():
    schedule = Once(scheduled_at=NOW)

    assert schedule.next_after(NOW - MICROSECOND) == NOW
    assert schedule.next_after(NOW) is None
    assert schedule.last_at_or_before(NOW) == NOW
    assert schedule.last_at_or_before(NOW, after=NOW) is None
    assert schedule.count_between(MIN_INSTANT, NOW) == 1
    assert not schedule.is_recurring


def test_manual_is_never_due():
    schedule = Manual()

    assert schedule.next_after(MIN_INSTANT) is None
    assert schedule.last_at_or_before(MAX_INSTANT) is None
    assert schedule.count_between(MIN_INSTANT, MAX_INSTANT) == 0
    assert schedule.kind is ScheduleKind.MANUAL


# Bounds


@pytest.mark.parametrize(
    "make",
    [
        lambda **bounds: Cron(expression="*/5 * * * *", **bounds),
        lambda **bounds: Every(interval_seconds=300, anchor=utc(2024, 1, 1), **bounds),
    ],
)
def test_both_bounds_are_inclusive(make):
    schedule = make(starts_at=utc(2024, 1, 1, 12), ends_at=utc(2024, 1, 1, 12, 10))
    inside = [utc(2024, 1, 1, 12, minute) for minute in (0, 5, 10)]

    assert times(schedule, utc(2023, 1, 1)) == inside
    assert list(schedule.occurrences_back(utc(2025, 1, 1))) == inside[::-1]
    assert schedule.count_between(utc(2023, 1, 1), utc(2025, 1, 1)) == 3
    assert schedule.next_after(inside[-1]) is None
    assert schedule.last_at_or_before(inside[0] - MICROSECOND) is None


def test_instants_are_kept_in_utc():
    there = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert Once(scheduled_at=there) == Once(scheduled_at=utc(2024, 7, 1, 10))
    assert str(Once(scheduled_at=there).scheduled_at) == "2024-07-01 10:00:00+00:00"


def test_every_method_accepts_any_instant():
    schedule = Cron(expression="0 0 1 1 *", timezone="Asia/Tokyo")
    first, last = datetime.min.replace(tzinfo=NOW.tzinfo), datetime.max.replace(tzinfo=NOW.tzinfo)

    assert schedule.next_after(first) == utc(1970, 12, 31, 15)
    assert schedule.last_at_or_before(last) == utc(2199, 12, 31, 15)
    assert schedule.next_after(last) is None
    assert schedule.last_at_or_before(first) is None
    assert schedule.count_between(first, last, budget=100_000) == 230


def test_an_instant_without_offset_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="instants are aware"):
        Manual().next_after(datetime(2024, 1, 1))  # noqa: DTZ001


# Cost


@pytest.mark.parametrize("expression", ["* * * * * *", "*/5 * * * *", "0 0 1 1 *", "0 0 29 2 *", "0 0 * 2 mon#5"])
def test_ten_years_of_downtime_are_cheap(expression: str):
    schedule = Cron(expression=expression, timezone="America/New_York")
    started = time.process_time()

    schedule.next_after(NOW)
    schedule.last_at_or_before(NOW, NOW - timedelta(days=3653))
    assert schedule.count_between(NOW - timedelta(days=3653), NOW) is not None

    assert time.process_time() - started < 0.5


def test_a_count_that_would_take_too_long_is_none():
    schedule = Cron(expression="0 0 * * *")

    assert schedule.count_between(NOW - timedelta(days=11), NOW, budget=10) is None
    assert schedule.count_between(NOW - timedelta(days=9), NOW, budget=10) == 9


# What the fields mean


def parse(**fields) -> Schedule:
    return parse_schedule(now=NOW, **fields)


def test_the_fields_decide_the_kind():
    assert parse() == Once(scheduled_at=NOW)
    assert parse(schedule="manual") == parse(schedule=" Manual ") == Manual()
    assert parse(scheduled_at="2024-04-01T00:00:00Z") == Once(scheduled_at=utc(2024, 4, 1))
    assert parse(schedule="@daily") == Cron(expression="@daily")
    assert parse(interval_seconds=60) == Every(interval_seconds=60, anchor=NOW + 60 * SECOND)


def test_no_time_is_now_or_as_soon_as_it_may_start():
    later = NOW + timedelta(days=1)

    assert parse(starts_at=later).next_after(NOW) == later
    assert parse(starts_at=NOW - timedelta(days=1)).next_after(NOW - SECOND) == NOW
    with pytest.raises(NeverFires, match="ends_at"):
        parse(ends_at=NOW - SECOND)


def test_a_manual_schedule_takes_no_other_time():
    with pytest.raises(ScheduleError, match=r"schedule and scheduled_at are both given.*a manual job has no time"):
        parse(schedule="manual", scheduled_at=NOW)
    with pytest.raises(ScheduleError, match="schedule and interval_seconds are both given"):
        parse(schedule="manual", interval_seconds=60)


def test_cron_takes_zone_and_rules():
    made = parse(schedule=" 0  9 * * MON-fri ", timezone="Europe/Berlin", on_gap="skip", on_repeat="both")

    assert made == Cron(
        expression="0 9 * * MON-fri", timezone="Europe/Berlin", on_gap=OnGap.SKIP, on_repeat=OnRepeat.BOTH
    )


def test_every_is_counted_from_scheduled_at_then_starts_at_then_now():
    later, much_later = NOW + timedelta(days=1), NOW + timedelta(days=2)

    assert parse(interval_seconds=60).next_after(NOW) == NOW + 60 * SECOND
    assert parse(interval_seconds=60, starts_at=later).next_after(NOW) == later
    assert parse(interval_seconds=60, scheduled_at=later).next_after(NOW) == later
    both = parse(interval_seconds=3600, scheduled_at=later + SECOND, starts_at=much_later)
    assert both.next_after(NOW) == much_later + SECOND


def test_every_from_a_past_instant_keeps_its_beat():
    made = parse(interval_seconds=3600, scheduled_at=utc(2020, 1, 1, 0, 15))

    assert made.next_after(NOW) == utc(2024, 3, 30, 12, 15)


def test_whole_floats_are_whole_seconds():
    made = parse(interval_seconds=60.0)

    assert made == parse(interval_seconds=60)
    assert isinstance(made, Every)
    assert isinstance(made.interval_seconds, int)


def test_a_time_without_offset_is_read_in_the_zone():
    def at(text: str) -> datetime | None:
        return parse(scheduled_at=text, timezone="Europe/Berlin").next_after(MIN_INSTANT)

    assert at("2024-07-01T12:00") == utc(2024, 7, 1, 10)
    assert at("2024-03-31T02:30") == utc(2024, 3, 31, 1)
    assert at("2024-10-27T02:30") == utc(2024, 10, 27, 0, 30)


def test_once_may_lie_in_the_past():
    assert parse(scheduled_at="2001-01-01T00:00:00Z") == Once(scheduled_at=utc(2001, 1, 1))


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (0, "0"),
        (-5, "-5"),
        (0.5, "0.5"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (True, "True"),
        (10**400, "1000000"),
        (1e300, "1e+300"),
        ("60", "'60'"),
        ([], "[]"),
        (MAX_INTERVAL_SECONDS + 1, str(MAX_INTERVAL_SECONDS + 1)),
    ],
)
def test_an_interval_is_whole_seconds_from_one(seconds, found: str):
    with pytest.raises(ScheduleError, match=r"expected whole seconds from 1 to") as error:
        parse(interval_seconds=seconds)

    assert str(error.value).startswith(f"interval_seconds is {found}")
    assert error.value.field == "interval_seconds"


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"schedule": "0 25 * * *"}, CronSyntaxError, 'cron "0 25 * * *": hour is 25, expected 0-23'),
        ({"schedule": "* * * * *", "interval_seconds": 5}, ScheduleError, "are both given, expected one of them"),
        ({"schedule": "* * * * *", "scheduled_at": NOW}, ScheduleError, "use starts_at"),
        ({"schedule": 5}, ScheduleError, "schedule is int, expected text"),
        ({"timezone": None}, ScheduleError, "timezone is NoneType, expected text"),
        ({"scheduled_at": 1711800000}, ScheduleError, "scheduled_at is int, expected a datetime or ISO 8601 text"),
        ({"timezone": "Mars/Base"}, UnknownTimezone, 'timezone is "Mars/Base", expected an IANA name'),
        ({"scheduled_at": "2300-01-01T00:00Z"}, ScheduleError, "expected an instant from 1970-01-01T00:00:00Z to"),
        ({"starts_at": utc(1969, 1, 1)}, ScheduleError, "starts_at is 1969-01-01T00:00:00+00:00, expected"),
        ({"on_gap": "explode"}, ScheduleError, 'on_gap is "explode", expected next_valid or skip'),
        ({"on_repeat": "never"}, ScheduleError, 'on_repeat is "never", expected first, second or both'),
        ({"schedule": "0 0 30 2 *"}, NeverFires, 'cron "0 0 30 2 *": never fires'),
        (
            {"schedule": "@yearly", "ends_at": "2024-12-31T23:59:59Z"},
            NeverFires,
            "ends_at 2024-12-31T23:59:59Z is before the next occurrence 2025-01-01T00:00:00Z",
        ),
        (
            {"interval_seconds": 60, "scheduled_at": utc(2020, 1, 1), "ends_at": utc(2021, 1, 1)},
            NeverFires,
            "ends_at 2021-01-01T00:00:00Z is before the next occurrence 2024-03-30T12:00:00Z",
        ),
        (
            {"scheduled_at": utc(2025, 1, 1), "ends_at": utc(2024, 6, 1)},
            NeverFires,
            "ends_at 2024-06-01T00:00:00Z is before the next occurrence 2025-01-01T00:00:00Z",
        ),
        (
            {"scheduled_at": utc(2025, 1, 1), "starts_at": utc(2025, 6, 1)},
            NeverFires,
            "starts_at 2025-06-01T00:00:00Z is after the only occurrence 2025-01-01T00:00:00Z",
        ),
        ({"starts_at": utc(2025, 1, 1), "ends_at": utc(2024, 1, 1)}, NeverFires, "is before starts_at"),
        ({"interval_seconds": MAX_INTERVAL_SECONDS}, NeverFires, "the first occurrence would be 2254-"),
        (
            {"schedule": "30 2 * 3 0L", "timezone": "Europe/Berlin", "on_gap": "skip"},
            NeverFires,
            "nothing is due from 2024-03-30T12:00:00Z to the end of 2199: At 02:30",
        ),
    ],
)
def test_an_impossible_schedule_is_refused_with_a_reason(fields, kind: type[ScheduleError], message: str):
    """Fault 27."""
    with pytest.raises(kind) as error:
        parse(**fields)

    assert type(error.value) is kind
    assert message in str(error.value)
    assert error.value.field is not None


def test_an_occurrence_right_now_is_not_too_late():
    assert parse(schedule="0 12 * * *", ends_at=NOW).next_after(NOW - SECOND) == NOW


# Plain words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "manual"}, "Only when triggered"),
        ({"schedule": "30 2 * * mon-fri", "timezone": "Europe/Berlin"}, "At 02:30 on Monday through Friday"),
        ({"schedule": "0 0 31 * *"}, "At 00:00 on the 31st day of every month (UTC)"),
        ({"schedule": "@hourly", "ends_at": utc(2030, 1, 1)}, "(UTC), until 2030-01-01T00:00:00Z"),
        ({"interval_seconds": 1}, "Every second, counted from 2024-03-30T12:00:01Z"),
        ({"interval_seconds": 5400}, "Every 1 hour 30 minutes, counted from 2024-03-30T13:30:00Z"),
        ({"interval_seconds": 172_800}, "Every 2 days, counted from"),
        ({"scheduled_at": NOW}, "Once, at 2024-03-30T12:00:00Z"),
    ],
)
def test_a_schedule_describes_itself_in_plain_words(fields, words: str):
    assert words in parse(**fields).describe()
