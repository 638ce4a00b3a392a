"""How jobs come into APScheduler: into its store, by a scheduler that runs nothing."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from driver import Adapter, serve
from scheduler import make
from tasks import noop, slow


class ApschedulerAdapter(Adapter):
    async def prepare(self) -> None:
        self._scheduler = make()
        self._scheduler.start(paused=True)

    async def enqueue(self, number: int) -> None:
        self._add(noop, time.time(), number)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            self._add(noop, instant, number)

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            self._add(slow, time.time(), number, seconds)

    def _add(self, function: object, instant: float, *arguments: float) -> None:
        self._scheduler.add_job(function, "date", arguments, run_date=datetime.fromtimestamp(instant, UTC))

    async def close(self) -> None:
        self._scheduler.shutdown()


serve(ApschedulerAdapter())
