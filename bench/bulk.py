"""How fast are jobs created: one by one, many at once?"""

from __future__ import annotations

import asyncio
import time

from bench.raw import fill
from bench.system import System, system
from timeball.domain.job import JobSpec

_BULK = 200_000
_SINGLE = 1_000


async def _raw_copy(bench: System) -> float:
    """COPY of rows with an id and a payload into a bare table with a primary key."""
    new_id = bench.parts.env.new_id
    async with bench.parts.store.database.connection() as connection:
        await connection.execute("CREATE TABLE raw_copy (id uuid PRIMARY KEY, payload jsonb)")
        begun = time.perf_counter()
        await connection.copy_records_to_table("raw_copy", records=[(new_id(), "{}") for _ in range(_BULK)])
        return _BULK / (time.perf_counter() - begun)


async def ask() -> str:
    """Bulk; single creates one after the other, and a hundred at a time."""
    async with system() as bench:
        raw = await _raw_copy(bench)
        begun = time.perf_counter()
        await fill(bench, _BULK)
        bulk = _BULK / (time.perf_counter() - begun)
        create = bench.parts.commands.create
        begun = time.perf_counter()
        for _ in range(_SINGLE):
            await create(JobSpec(handler="bench.noop"))
        single = _SINGLE / (time.perf_counter() - begun)
        begun = time.perf_counter()
        for _ in range(_SINGLE // 100):
            await asyncio.gather(*(create(JobSpec(handler="bench.noop")) for _ in range(100)))
        together = _SINGLE / (time.perf_counter() - begun)
        bench.verify()
    return (
        f"bulk {bulk:,.0f}/s, one by one {single:,.0f}/s, a hundred together {together:,.0f}/s; "
        f"ratio of bulk to a bare COPY {bulk / raw:.2f}"
    )
