"""The one seam through which time, randomness, ids and faults enter.

Everything in `engine` and `store` asks its `Env` for the time, for random numbers and for ids; a test passes another one and
controls all three. `fault(point)` marks a place between two steps of the protocol. It does nothing, unless a test has put a fault
there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from uuid import UUID

from timeball.clock import Clock, SystemClock
from timeball.domain.values.ids import new_id, new_ids


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
