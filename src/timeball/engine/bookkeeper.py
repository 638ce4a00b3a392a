"""Folds what has ended into the rollups that charts, counters and forecasts are made of.

Nothing is counted when an execution ends: that would cost every one of them. Every few seconds one scheduler takes what was recorded
since the last time. The mark up to where it came moves in the same transaction, so a bookkeeper may die at any point.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from timeball.domain.events import Emit
from timeball.engine.service import AT_ONCE, Service
from timeball.env import Env
from timeball.settings import HousekeepingSettings
from timeball.store.interface import RollupStore

_TRIM_SECONDS = 300.0


class Bookkeeper(Service):
    """Keeps the rollups up to date, and no longer than they are wanted."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        rollups: RollupStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._rollups = rollups
        self._interval = timedelta(seconds=settings.rollup_seconds)
        self._is_housekeeper = is_housekeeper
        self._next_fold = float("-inf")
        self._next_trim = float("-inf")

    async def tick(self) -> timedelta:
        now = self.env.clock.monotonic()
        if not self._is_housekeeper() or not self.is_time(self._next_fold):
            return self._interval
        folded = await self._rollups.fold()
        if folded.has_more:
            return AT_ONCE
        self._next_fold = now + self._interval.total_seconds()
        return await self._trim(now)

    async def _trim(self, now: float) -> timedelta:
        if now >= self._next_trim and not await self._rollups.trim():
            self._next_trim = now + _TRIM_SECONDS
        return self._interval
