"""What a node costs that has nothing to do, and what it costs to hold schedules."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bench.bare_listener import running_listener
from bench.lab import Lab
from bench.notebook import MEGABYTES, PERCENT
from bench.processes import megabytes
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "idle nodes, and a scheduler with 20,000 schedules due within its look-ahead"
LIMIT = "a bare listener"
TARGETS = {("idle worker", "CPU"): "0.2 %", ("idle worker", "memory"): "40 MB"}
_SECONDS = 10
_HELD = 20_000


async def ask(lab: Lab) -> None:
    """Shared pages count by halves among those who share them (Pss)."""
    async with lab.system() as system:
        for kind in ("worker", "scheduler"):
            await system.start_nodes(schedulers=int(kind == "scheduler"), workers=int(kind == "worker"))
            await asyncio.sleep(3)
            with system.cpu() as used:
                await asyncio.sleep(_SECONDS)
            lab.note(f"idle {kind}", "CPU", used.nodes / _SECONDS * 100, PERCENT)
            lab.note(f"idle {kind}", "memory", megabytes(system.nodes[0].pid), MEGABYTES)
            if kind == "worker":
                system.stop()
        async with running_listener(system.dsn) as listener:
            lab.note(LIMIT, "memory", megabytes(listener), MEGABYTES)
        await _hold(lab, system)


async def _hold(lab: Lab, system: System) -> None:
    """Let all of them come into the look-ahead at once, and note the most memory that is seen."""
    scheduler = system.nodes[0].pid
    before = megabytes(scheduler)
    clock = system.parts.env.clock
    first = clock.now() + timedelta(seconds=45)
    for start in range(0, _HELD, 2_000):
        await system.parts.commands.create_all(
            [
                JobSpec(
                    name=f"hourly-{start + number}", handler="bench.noop", interval_seconds=3600, scheduled_at=first
                )
                for number in range(2_000)
            ]
        )
    most = before
    while await system.value("SELECT count(*) FROM timeball.ready") < _HELD:
        most = max(most, megabytes(scheduler))
        await asyncio.sleep(0.25)
    lab.note("scheduler", "more for 100,000 schedules", (most - before) * 100_000 / _HELD, MEGABYTES)
