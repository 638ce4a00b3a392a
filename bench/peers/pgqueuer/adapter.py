"""How jobs come into PgQueuer."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from driver import Adapter, serve
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

_BATCH = 1_000


class PgqueuerAdapter(Adapter):
    async def prepare(self) -> None:
        self._connection = await asyncpg.connect(os.environ["DATABASE_URL"])
        self._queries = Queries(AsyncpgDriver(self._connection))
        await self._queries.install()

    async def enqueue(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._many("noop", [b"%d" % number for number in numbers], [timedelta(0)] * len(numbers))

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        now = time.time()
        await self._many(
            "noop", [b"%d" % number for number in numbers], [timedelta(seconds=at - now) for at in instants]
        )

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        await self._many("slow", [b"%d %f" % (number, seconds) for number in numbers], [timedelta(0)] * len(numbers))

    async def _many(self, entrypoint: str, payloads: list[bytes], delays: list[timedelta]) -> None:
        for start in range(0, len(payloads), _BATCH):
            part = slice(start, start + _BATCH)
            count = len(payloads[part])
            await self._queries.enqueue([entrypoint] * count, list(payloads[part]), [0] * count, delays[part])

    async def close(self) -> None:
        await self._connection.close()


serve(PgqueuerAdapter())
