"""How late do one-off jobs start at 1,000 a second, with a million others waiting?"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from bench.raw import fill
from bench.system import System, system
from timeball.domain.job import JobSpec

_RATE = 1_000
_SECONDS = 10
_WAITING = 1_000_000
_FIGURES = """
SELECT count(*) AS number,
       percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - scheduled_for) * 1000) AS late,
       count(*) FILTER (WHERE started_at < scheduled_for) AS early
FROM timeball.finished
WHERE handler = 'bench.noop'
"""


async def _raw_move(bench: System) -> float:
    """What one trip through the database costs, in milliseconds: the least a mover at the instant itself would be late."""
    begun = time.perf_counter()
    for _ in range(200):
        await bench.parts.store.nodes.read_clock()
    return (time.perf_counter() - begun) / 200 * 1000


async def ask() -> str:
    """Two workers and a scheduler, default settings."""
    async with system() as bench:
        clock = bench.parts.env.clock
        await fill(bench, _WAITING, at=clock.now() + timedelta(days=1))
        bench.start("scheduler")
        bench.start("worker", "bench.app:tb")
        bench.start("worker", "bench.app:tb")
        await bench.wait_for_nodes("worker", 2)
        await bench.wait_for_nodes("scheduler", 1)
        first = clock.now() + timedelta(seconds=6)
        specs = [
            JobSpec(handler="bench.noop", scheduled_at=first + timedelta(seconds=n / _RATE))
            for n in range(_RATE * _SECONDS)
        ]
        for start in range(0, len(specs), 1_000):
            await bench.parts.commands.create_all(specs[start : start + 1_000])
        await asyncio.sleep(max((first - clock.now()).total_seconds(), 0) + _SECONDS)
        await bench.wait_for_finished(len(specs))
        figures = await bench.row(_FIGURES)
        raw = await _raw_move(bench)
        bench.stop()
        bench.verify()
    p50, p99, worst = figures["late"]
    return (
        f"{figures['number']} drops at {_RATE}/s with {_WAITING:,} waiting: late p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
        f"worst {worst:.1f} ms, early {figures['early']}; ratio of p50 to one round trip of the database {p50 / raw:.1f}"
    )
