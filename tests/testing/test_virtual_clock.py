"""The clock that tests move."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from timeball.env import Clock
from timeball.errors import InvalidInput
from timeball.testing import VirtualClock


def test_the_clock_stands_still() -> None:
    clock: Clock = VirtualClock()

    assert clock.now() == clock.now() == clock.statement_now() == datetime(2026, 3, 2, 12, tzinfo=UTC)
    assert clock.monotonic() == 0


def test_the_clock_starts_at_the_given_instant() -> None:
    clock = VirtualClock(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))

    assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_the_clock_moves_by_spans_of_any_kind() -> None:
    clock = VirtualClock()
    start = clock.now()

    clock.advance("3d")
    clock.advance(timedelta(hours=1))
    clock.advance(0.25)

    assert clock.now() - start == timedelta(days=3, hours=1, seconds=0.25)
    assert clock.monotonic() == 3 * 86_400 + 3_600 + 0.25
    assert clock.epoch_milliseconds() == int(clock.now().timestamp() * 1000)


def test_the_clock_never_goes_back() -> None:
    clock = VirtualClock()
    later = clock.advance("1h")

    assert clock.advance_to(later - timedelta(minutes=5)) == later
    with pytest.raises(InvalidInput):
        clock.advance(-1)


def test_monotonic_seconds_and_instants_agree() -> None:
    clock = VirtualClock()
    instant = clock.now() + timedelta(days=900, microseconds=1)

    assert clock.instant_at(clock.earliest(instant)) == instant
    assert clock.instant_at(clock.monotonic()) == clock.now()


async def test_sleeping_moves_the_clock_after_other_tasks_had_a_turn() -> None:
    clock = VirtualClock()
    start = clock.now()
    order = []

    async def sleeper() -> None:
        await clock.sleep(5)
        order.append("slept")

    async def other() -> None:
        order.append("had a turn")

    await asyncio.gather(sleeper(), other())

    assert order == ["had a turn", "slept"]
    assert clock.now() - start == timedelta(seconds=5)
