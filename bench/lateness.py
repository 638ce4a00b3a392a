"""How late do one-off jobs start at so many a second, with a million others waiting?"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from bench.lab import Lab
from bench.load import fill
from bench.notebook import MILLISECONDS
from bench.punctuality import note_lateness
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "lateness of one-off jobs, a million waiting, two workers with default slots"
LIMIT = "one trip to the database"
TARGETS = {(f"at {rate:,}/s", "p99 late"): "below 5 ms" for rate in (100, 500, 1_000)}
_RATES = (100, 500, 1_000, 5_000)
_SECONDS = 5
_WAITING = 1_000_000


async def ask(lab: Lab) -> None:
    """Two workers and a scheduler, default settings."""
    async with lab.system() as system:
        await fill(system, _WAITING, at=system.parts.env.clock.now() + timedelta(days=1))
        await system.start_nodes(schedulers=1, workers=2)
        lab.note(LIMIT, "p50 late", await _trip(system), MILLISECONDS)
        for rate in _RATES:
            await _drop(lab, system, rate)


async def _trip(system: System) -> float:
    """What one trip costs, in milliseconds: the least a mover at the instant itself would be late."""
    begun = time.perf_counter()
    for _ in range(200):
        await system.parts.store.nodes.read_clock()
    return (time.perf_counter() - begun) / 200 * 1000


async def _drop(lab: Lab, system: System, rate: int) -> None:
    clock = system.parts.env.clock
    before = await system.value("SELECT count(*) FROM timeball.finished")
    number = rate * _SECONDS
    # Time enough to write them all before the first is due.
    first = clock.now() + timedelta(seconds=2 + number / 4_000)
    specs = [JobSpec(handler="bench.noop", scheduled_at=first + timedelta(seconds=n / rate)) for n in range(number)]
    for start in range(0, number, 1_000):
        await system.parts.commands.create_all(specs[start : start + 1_000])
    await asyncio.sleep(max((first - clock.now()).total_seconds(), 0) + _SECONDS)
    await system.wait_for_finished(before + number)
    await note_lateness(lab, system, f"at {rate:,}/s", first)
