"""How jobs come into RQ."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from driver import Adapter, serve
from redis import Redis
from rq import Queue, Retry
from tasks import noop, slow

_BATCH = 1_000


class RqAdapter(Adapter):
    async def prepare(self) -> None:
        self._queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))

    async def enqueue(self, number: int) -> None:
        self._queue.enqueue(noop, number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _BATCH):
            self._queue.enqueue_many(
                [Queue.prepare_data(noop, (number,)) for number in numbers[start : start + _BATCH]]
            )

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        for number, instant in zip(numbers, instants, strict=True):
            self._queue.enqueue_at(datetime.fromtimestamp(instant, UTC), noop, number)

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            self._queue.enqueue(slow, number, seconds, retry=Retry(max=5))


serve(RqAdapter())
