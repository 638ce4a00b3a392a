"""Keeps the history in shape: partitions for the days ahead, none for days long past, and nothing beside it that grows for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

from timeball.domain.events import Emit, HistoryTrimmed, RecordsForgotten
from timeball.engine.service import Service
from timeball.env import Env
from timeball.settings import HousekeepingSettings
from timeball.store.interface import HistoryStore, RetentionStore

_INTERVAL = timedelta(minutes=5)
# Making a day out of what lies in the default partition keeps writers waiting; no more than so many in one round.
_MOST_DAYS = 10


class Janitor(Service):
    """Makes the partitions of the coming days, drops those whose retention has passed, and forgets what stands beside them."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        history: HistoryStore,
        retention: RetentionStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._history = history
        self._retention = retention
        self._settings = settings
        self._is_housekeeper = is_housekeeper
        self._next_round = float("-inf")
        self._forgot_on: date | None = None

    async def tick(self) -> timedelta:
        monotonic = self.env.clock.monotonic()
        if not self._is_housekeeper() or monotonic < self._next_round:
            return _INTERVAL
        today = (await self._history.moment()).date()
        await self._make_days(today)
        await self._drop_days(today)
        if self._forgot_on != today:
            await self._forget(today)
            await self._history.summarize_until(today)
            self._forgot_on = today
        self._next_round = monotonic + _INTERVAL.total_seconds()
        return _INTERVAL

    async def _make_days(self, today: date) -> None:
        present = await self._history.days()
        wanted = [today + timedelta(days=ahead) for ahead in range(self._settings.days_ahead + 1)]
        for day in [*wanted, *await self._retention.days_outside(_MOST_DAYS)]:
            if day not in present:
                await self._history.add_day(day)

    async def _drop_days(self, today: date) -> None:
        first_kept = today - timedelta(days=self._settings.keep_days)
        for day in sorted(day for day in await self._history.days() if day < first_kept):
            gone = await self._history.drop_day(day)
            self.emit(HistoryTrimmed(day.isoformat(), gone))

    async def _forget(self, today: date) -> None:
        """Once a day: nothing here is urgent, and some of it is found only by reading a table from end to end."""
        now = datetime.combine(today, time(), UTC)
        before = now - timedelta(days=self._settings.keep_days)
        retention = self._retention
        self._tell("settled", await retention.settled(before))
        self._tell("skip_range", await retention.skip_ranges(before))
        self._tell("audit", await retention.audit(now - timedelta(days=self._settings.keep_audit_days)))
        self._tell("idempotency_key", await retention.requests(now))
        self._tell("job", await retention.deleted_jobs(before))
        self._tell("running_limit", await retention.limits())

    def _tell(self, what: str, count: int) -> None:
        if count:
            self.emit(RecordsForgotten(what, count))
