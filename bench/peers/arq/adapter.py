"""How jobs come into arq."""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime

from arq import create_pool
from arq.connections import RedisSettings
from driver import Adapter, serve

_AT_ONCE = 100


class ArqAdapter(Adapter):
    async def prepare(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(os.environ["REDIS_URL"]))

    async def enqueue(self, number: int) -> None:
        await self._pool.enqueue_job("noop", number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), _AT_ONCE):
            await asyncio.gather(*(self.enqueue(number) for number in numbers[start : start + _AT_ONCE]))

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        wishes = list(zip(numbers, instants, strict=True))
        for start in range(0, len(wishes), _AT_ONCE):
            await asyncio.gather(*(self._enqueue_at(*wish) for wish in wishes[start : start + _AT_ONCE]))

    async def _enqueue_at(self, number: int, instant: float) -> None:
        await self._pool.enqueue_job("noop", number, _defer_until=datetime.fromtimestamp(instant, UTC))

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            await self._pool.enqueue_job("slow", number, seconds)


serve(ArqAdapter())
