"""From the return of an enqueue to the start of the handler, on an idle system."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles

from bench.lab import Lab
from bench.notebook import MILLISECONDS
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "idle latency: enqueue returned, handler started"
LIMIT = "one durable insert"
TARGETS = {("Timeball", "p50"): "below 1.5 ms", ("Timeball", "p99"): "below 5 ms"}
_NUMBER = 200
_ROUNDS = 3


async def ask(lab: Lab) -> None:
    """Enqueue one by one with pauses between; what a commit costs is measured beside it."""
    async with lab.system() as system:
        await system.start_nodes(workers=1)
        await asyncio.sleep(1)
        for _ in range(_ROUNDS):
            _note(lab, LIMIT, await _inserts(system))
            _note(lab, "Timeball", await _starts(system))


def _note(lab: Lab, subject: str, milliseconds: list[float]) -> None:
    cuts = quantiles(milliseconds, n=100)
    lab.note(subject, "p50", cuts[49], MILLISECONDS)
    lab.note(subject, "p99", cuts[98], MILLISECONDS)


async def _inserts(system: System) -> list[float]:
    took: list[float] = []
    async with system.parts.store.database.connection() as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY)")
        for _ in range(_NUMBER):
            begun = time.perf_counter()
            await connection.execute("INSERT INTO bare VALUES ($1)", system.parts.env.new_id())
            took.append((time.perf_counter() - begun) * 1000)
    return took


async def _starts(system: System) -> list[float]:
    late: list[float] = []
    for _ in range(_NUMBER):
        created = await system.parts.commands.create(JobSpec(handler="bench.noop"))
        returned = system.parts.env.clock.now()
        await asyncio.sleep(0.02)
        started = await system.value("SELECT started_at FROM timeball.finished WHERE id = $1", created.execution_id)
        if started is not None:
            late.append((started - returned).total_seconds() * 1000)
    return late
