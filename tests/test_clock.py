"""What a node knows of the database's clock: how far off it may be, that a drop is never early by it, and that it follows steps."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.env import ClockReading, SystemClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MILLISECOND = 0.001


def database_time(monotonic: float, ahead: float) -> datetime:
    """What the database's clock says at a monotonic second, if it is so many seconds ahead of noon at the zeroth."""
    return NOON + timedelta(seconds=monotonic + ahead)


def reading(sent: float, round_trip: float, answered: float = 0.5, ahead: float = 0.0) -> ClockReading:
    """A look at the clock that was read at this part of its round trip."""
    return ClockReading(sent, sent + round_trip, database_time(sent + answered * round_trip, ahead))


def clock_with(*readings: ClockReading) -> SystemClock:
    clock = SystemClock()
    for one in readings:
        clock.learn(one)
    return clock


def test_statements_are_given_no_time_so_that_the_database_decides() -> None:
    assert clock_with(reading(sent=5, round_trip=0.01)).statement_now() is None


def test_the_clock_was_read_in_the_middle_give_or_take_half_the_way() -> None:
    one = reading(sent=100, round_trip=0.004)

    assert EPOCH + timedelta(seconds=one.offset) == NOON
    assert one.uncertainty(one.received) == pytest.approx(0.002)


@given(
    round_trips=st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 1)), min_size=1, max_size=10),
    ahead=st.floats(-3, 3),
    wait=st.floats(0, 60),
)
@settings(deadline=None)
def test_what_waits_for_its_earliest_second_is_never_early(
    round_trips: list[tuple[float, float]], ahead: float, wait: float
) -> None:
    """Wherever in its round trip each reading was taken."""
    readings = [reading(5 * number, *trip, ahead) for number, trip in enumerate(round_trips)]
    clock = clock_with(*readings)
    instant = readings[-1].database_time + timedelta(seconds=wait)

    earliest = clock.earliest(instant)

    assert database_time(earliest, ahead) >= instant - timedelta(microseconds=2)


@given(drift=st.floats(-100e-6, 100e-6), wait=st.floats(0, 60))
@settings(deadline=None)
def test_nor_if_the_two_clocks_have_drifted_apart_since_the_reading(drift: float, wait: float) -> None:
    clock = clock_with(reading(0, 0.001))
    instant = NOON + timedelta(seconds=wait)

    earliest = clock.earliest(instant)

    assert database_time(earliest * (1 + drift), 0) >= instant - timedelta(microseconds=2)


def test_a_step_is_told_with_its_length_and_nothing_else_is_one() -> None:
    clock = clock_with(reading(0, 0.001))

    assert clock.learn(reading(5, 0.2, answered=1)) is None, "it may have been read at either end of its way"
    step = clock.learn(reading(10, 0.001, ahead=-3600))
    assert step is not None
    assert step.total_seconds() == pytest.approx(-3600, abs=0.2)
    assert clock.learn(reading(15, 0.001, ahead=-3600)) is None


def test_the_surest_of_the_last_readings_counts() -> None:
    sure, unsure = reading(0, 0.001, answered=0), reading(5, 0.2, answered=1)

    clock = clock_with(sure, unsure)

    # Five seconds older, so a little less sure.
    assert clock.uncertainty.total_seconds() == pytest.approx(0.5 * MILLISECOND, abs=0.6 * MILLISECOND)
    assert clock.earliest(NOON) < 2 * MILLISECOND


def test_an_old_reading_gets_worse() -> None:
    old, young = reading(0, 0.002), reading(30, 0.004, answered=0.6)

    clock = clock_with(old, young)

    assert clock.instant_at(30.002) == young.database_time


@pytest.mark.parametrize("step", [-3_600.0, -1.0, 1.0, 3_600.0, 178 * 365 * 86_400.0])
def test_a_step_of_the_databases_clock_is_followed_at_once(step: float) -> None:
    """Fault 20."""
    before, after = reading(0, 0.001), reading(5, 0.05, ahead=step)

    clock = clock_with(before, after)

    assert clock.instant_at(5.025) == after.database_time
    assert database_time(clock.earliest(after.database_time), step) >= after.database_time


@pytest.mark.parametrize("days", [-3, 3])
def test_a_wall_clock_that_is_days_off_has_no_effect(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Fault 21. Once the database's clock has been read, that of the machine is not asked any more."""
    wrong = time.time() + timedelta(days=days).total_seconds()
    monkeypatch.setattr(time, "time", lambda: wrong)
    sent = time.monotonic()

    clock = clock_with(ClockReading(sent, sent, NOON))

    assert NOON <= clock.now() < NOON + timedelta(minutes=1)
    assert clock.earliest(NOON + timedelta(hours=1)) == pytest.approx(sent + 3600, abs=1)
    assert clock.wall_clock_apart() > timedelta(days=1), "but it is told"
