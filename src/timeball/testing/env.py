"""The time and the ids of a rehearsal: nothing of it is left to chance."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

from timeball.domain.ids import new_id
from timeball.env import Env
from timeball.testing.clock import VirtualClock

_SEED = 1833  # the year of the first time ball at Greenwich


class StandingClock(VirtualClock):
    """A clock that only the test moves: the short pauses of the machinery pass in real time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RehearsalEnv(Env):
    """Ids in the order of their making even while the clock stands still, and the same chance in every run."""

    __slots__ = ("_numbers", "virtual_clock")

    def __init__(self, start: datetime) -> None:
        self.virtual_clock = StandingClock(start)
        super().__init__(self.virtual_clock, random.Random(_SEED))  # noqa: S311
        self._numbers = itertools.count(1)

    def new_id(self) -> UUID:
        return new_id(self.clock.epoch_milliseconds(), next(self._numbers))

    def new_ids(self, number: int) -> Iterator[UUID]:
        return (self.new_id() for _ in range(number))
