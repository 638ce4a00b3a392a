"""The wheel of timeouts: one timer for all attempts, and none when there is nothing to time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.worker.test_executor import claim
from timeball.current import AttemptContext, StopReason
from timeball.engine.worker.attempts import DeadlineWheel
from timeball.testing import VirtualClock


class Timers(list[Callable[[], None]]):
    """Stands for the timers of the event loop: each is kept until the test lets it fire."""

    def call_later(self, _delay: float, callback: Callable[[], None]) -> object:
        self.append(callback)
        return callback

    def fire(self) -> None:
        self.pop()()


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    made = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", made.call_later)
    return made


def attempt(clock: VirtualClock, **columns: Any) -> AttemptContext:
    return AttemptContext(claim(**columns), clock, lambda _context: None)  # type: ignore[arg-type,return-value]


async def test_all_attempts_share_one_timer(timers: Timers, clock: VirtualClock) -> None:
    wheel = DeadlineWheel(clock)

    for number in range(5):
        wheel.add(attempt(clock, number=number), 60)
    assert len(timers) == 1

    timers.fire()
    assert len(timers) == 1


async def test_the_wheel_stands_still_without_attempts_and_turns_again_with_the_next(
    timers: Timers, clock: VirtualClock
) -> None:
    wheel, first, second = DeadlineWheel(clock), attempt(clock), attempt(clock, number=2, timeout_ms=10)
    wheel.add(first, 60)
    wheel.remove(first)
    timers.fire()
    assert timers == []

    wheel.add(second, 0.01)
    clock.advance("1s")
    timers.fire()

    assert (first.halted, second.halted) == (None, StopReason.TIMEOUT)
    assert timers == []


async def test_nothing_is_kept_of_attempts_that_have_ended(timers: Timers, clock: VirtualClock) -> None:
    """Most timeouts are an hour: what a worker runs within one would add up."""
    wheel = DeadlineWheel(clock)
    for number in range(5):
        ended = attempt(clock, number=number)
        wheel.add(ended, 3600 + number)
        wheel.remove(ended)

    assert (wheel._notches, wheel._places) == ({}, {})
