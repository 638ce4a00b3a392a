"""From the return of an enqueue to the start of the handler, on an idle system."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles

from bench.system import System, system
from timeball.domain.job import JobSpec

_NUMBER = 300


async def _raw_round_trip(bench: System) -> float:
    """One durable insert, the least an enqueue can cost, in milliseconds."""
    async with bench.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        for number in range(_NUMBER):
            await connection.execute("INSERT INTO timeball.fact VALUES ($1, 'x')", f"raw-{number}")
        return (time.perf_counter() - begun) / _NUMBER * 1000


async def ask() -> str:
    """Enqueue one by one with pauses between."""
    late: list[float] = []
    async with system() as bench:
        bench.start("worker", "bench.app:tb")
        await bench.wait_for_nodes("worker", 1)
        await asyncio.sleep(1)
        for _ in range(_NUMBER):
            created = await bench.parts.commands.create(JobSpec(handler="bench.noop"))
            returned = bench.parts.env.clock.now()
            await asyncio.sleep(0.02)
            started = await bench.value("SELECT started_at FROM timeball.finished WHERE id = $1", created.execution_id)
            if started is not None:
                late.append((started - returned).total_seconds() * 1000)
        raw = await _raw_round_trip(bench)
        bench.stop()
        bench.verify()
    cuts = quantiles(late, n=100)
    return (
        f"p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms of {len(late)}; a durable insert takes {raw:.2f} ms; "
        f"ratio of p50 to it {cuts[49] / raw:.2f}"
    )
