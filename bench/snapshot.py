"""What remains of the rate while a foreign transaction holds a snapshot open, so that no dead row can be cleaned away?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg

from bench.lab import Lab
from bench.load import fill
from bench.system import System

TITLE = "draining mixed priorities under a foreign open snapshot, while others are promoted"
LIMIT = "no snapshot"
TARGETS = {("open for a minute", "rate"): "at least 0.6"}
_NUMBER = 33_000
_PRIORITIES = range(0, 101, 10)
_SECONDS = 60


async def ask(lab: Lab) -> None:
    """Three drains before, then drains for a minute with the snapshot open; the last three count."""
    async with lab.system() as system:
        await system.start_nodes(schedulers=1, workers=1)
        await _drain(system)
        for _ in range(3):
            lab.note(LIMIT, "rate", await _drain(system))
        async with _snapshot(system):
            rates: list[float] = []
            opened_at = time.monotonic()
            while time.monotonic() < opened_at + _SECONDS or len(rates) < 3:
                rates.append(await _drain(system))
            for rate in rates[-3:]:
                lab.note("open for a minute", "rate", rate)


@asynccontextmanager
async def _snapshot(system: System) -> AsyncIterator[None]:
    # A stranger's: our own connections would be cut off after ten idle seconds in a transaction.
    connection = await asyncpg.connect(system.dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM timeball.node")
            yield
    finally:
        await connection.close()


async def _drain(system: System) -> float:
    before = await system.value("SELECT count(*) FROM timeball.finished")
    begun = time.perf_counter()
    for priority in _PRIORITIES:
        await fill(system, _NUMBER // len(_PRIORITIES) * 9 // 10, priority=priority)
        # A tenth is promoted: due in a moment.
        soon = system.parts.env.clock.now() + timedelta(seconds=1)
        await fill(system, _NUMBER // len(_PRIORITIES) // 10, at=soon, priority=priority)
    number = len(_PRIORITIES) * (_NUMBER // len(_PRIORITIES) * 9 // 10 + _NUMBER // len(_PRIORITIES) // 10)
    while await system.value("SELECT count(*) FROM timeball.finished") < before + number:
        await asyncio.sleep(0.1)
    return number / (time.perf_counter() - begun)
