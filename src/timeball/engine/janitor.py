"""Keeps the history in shape: partitions for the days ahead, none for days long past."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

from timeball.domain.events import Emit, HistoryTrimmed
from timeball.engine.service import Service
from timeball.env import Env
from timeball.settings import HousekeepingSettings
from timeball.store.interface import HistoryStore

_INTERVAL = timedelta(minutes=5)


class Janitor(Service):
    """Makes the partitions of the coming days and drops those whose retention has passed."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        history: HistoryStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._history = history
        self._settings = settings
        self._is_housekeeper = is_housekeeper
        self._next_round = float("-inf")

    async def tick(self) -> timedelta:
        monotonic = self.env.clock.monotonic()
        if not self._is_housekeeper() or monotonic < self._next_round:
            return _INTERVAL
        today = (await self._history.moment()).date()
        present = set(await self._history.days())
        await self._make_days(today, present)
        await self._drop_days(today, present)
        self._next_round = monotonic + _INTERVAL.total_seconds()
        return _INTERVAL

    async def _make_days(self, today: date, present: set[date]) -> None:
        for ahead in range(self._settings.days_ahead + 1):
            day = today + timedelta(days=ahead)
            if day not in present:
                await self._history.add_day(day)

    async def _drop_days(self, today: date, present: set[date]) -> None:
        for day in sorted(day for day in present if day < today - timedelta(days=self._settings.keep_days)):
            gone = await self._history.drop_day(day)
            self.emit(HistoryTrimmed(day.isoformat(), gone))
