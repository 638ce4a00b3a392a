"""The one seam through which time, randomness, ids and faults enter, and the only file that reads the time.

Everything in `engine` and `store` asks its `Env` for the time, for random numbers and for ids; a test passes another one and
controls all three. `fault(point)` marks a place between two steps of the protocol. It does nothing, unless a test has put a fault
there.

The database's clock decides. A node measures how far its own monotonic clock is from it (`ClockReading`), and keeps the
reading with the least uncertainty of the last moments; what it calls *now* is monotonic time plus that offset. `earliest`
adds the uncertainty, so that an execution that is held until then never starts early by the database's clock.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Protocol
from uuid import UUID

from timeball.domain.values.ids import new_id, new_ids

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Two quartz clocks may drift apart by about this much; a reading gets worse with its age.
_DRIFT = 100e-6
_READINGS = 8


class Clock(Protocol):
    """What the engine may know of time."""

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""

    def statement_now(self) -> datetime | None:
        """What statements are given as `:now`: None lets the database's own clock decide."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; for sleeping and for self-fencing."""

    def epoch_milliseconds(self) -> int:
        """Milliseconds since 1970, for ids."""

    def earliest(self, instant: datetime) -> float:
        """The monotonic second at which *instant* has surely come by the database's clock."""

    def instant_at(self, monotonic: float) -> datetime:
        """The database's time at a monotonic second."""

    async def sleep(self, seconds: float) -> None:
        """Rest for a span of monotonic time."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One look at the database's clock: asked at *sent*, answered at *received* (monotonic), it said *database_time*."""

    sent: float
    received: float
    database_time: datetime

    @property
    def offset(self) -> float:
        """Database seconds since 1970 minus monotonic seconds, taken at the middle of the round trip."""
        return (self.database_time - _EPOCH).total_seconds() - (self.sent + self.received) / 2

    def uncertainty(self, at: float) -> float:
        """How wrong the offset may be: half the round trip, and more as it gets older."""
        return (self.received - self.sent) / 2 + abs(at - self.received) * _DRIFT


class SystemClock:
    """Monotonic time of this machine, corrected to the database's clock by the best of the recent readings."""

    def __init__(self) -> None:
        self._readings: deque[ClockReading] = deque(maxlen=_READINGS)
        # Every heartbeat of the process reads the clock, each in a thread of its own.
        self._learning = Lock()
        # Before the first reading, the machine's own wall clock has to do; it decides nothing then.
        self._offset = time.time() - time.monotonic()
        self._uncertainty = 0.0
        self._learned_at = time.monotonic()

    def learn(self, reading: ClockReading) -> timedelta | None:
        """Take a new reading into account. After a step of the database's clock older readings are forgotten; returns the step."""
        step = None
        with self._learning:
            if self._readings and self._contradicts(reading):
                step = timedelta(seconds=reading.offset - self._readings[-1].offset)
                self._readings.clear()
            self._readings.append(reading)
            self._learned_at = at = reading.received
            best = min(self._readings, key=lambda known: known.uncertainty(at))
            self._offset, self._uncertainty = best.offset, best.uncertainty(at)
        return step

    def _contradicts(self, reading: ClockReading) -> bool:
        at = reading.received
        known = self._readings[-1]
        return abs(known.offset - reading.offset) > known.uncertainty(at) + reading.uncertainty(at)

    @property
    def uncertainty(self) -> timedelta:
        """How far `now()` may be from the database's clock."""
        return timedelta(seconds=self._uncertainty)

    def wall_clock_apart(self) -> timedelta:
        """How far this machine's own wall clock is from the database's. Nothing depends on it; a wrong one is worth a warning."""
        return timedelta(seconds=abs(time.time() - time.monotonic() - self._offset))

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    def statement_now(self) -> datetime | None:
        return None

    def monotonic(self) -> float:
        return time.monotonic()

    def epoch_milliseconds(self) -> int:
        return int((time.monotonic() + self._offset) * 1000)

    def earliest(self, instant: datetime) -> float:
        likely = (instant - _EPOCH).total_seconds() - self._offset
        return likely + self._uncertainty + max(likely - self._learned_at, 0) * _DRIFT

    def instant_at(self, monotonic: float) -> datetime:
        return datetime.fromtimestamp(monotonic + self._offset, UTC)

    async def sleep(self, seconds: float) -> None:
        # Imported here: `timeball next` reads the time without an event loop.
        from asyncio import sleep

        await sleep(seconds)


def _no_fault(_point: str) -> None:
    return None


class Env:
    """Clock, random numbers, ids and fault points of one node."""

    __slots__ = ("clock", "fault", "random")

    def __init__(
        self,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        fault: Callable[[str], None] = _no_fault,
    ) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.random: random.Random = rng if rng is not None else random.SystemRandom()
        self.fault = fault

    def new_id(self) -> UUID:
        """A fresh id, later than those before it by the clock."""
        return new_id(self.clock.epoch_milliseconds(), self.random.getrandbits(74))

    def new_ids(self, number: int) -> Iterator[UUID]:
        """So many fresh ids of this moment, in their order."""
        # One call for all: each one asks the operating system.
        gaps = memoryview(self.random.randbytes(4 * number)).cast("I")
        return new_ids(self.clock.epoch_milliseconds(), self.random.getrandbits(73), gaps)
