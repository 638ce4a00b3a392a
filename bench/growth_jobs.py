"""What does a job cost, to create and to run, while others wait or have ended, and what a scheduler that has nothing to do?"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import pairwise

from bench.cost import Cost, metered
from bench.curves import Curve, write_curves
from bench.growing import BUFFERS, CLIENT, WORKER, drained, note, note_idle, settle
from bench.lab import Lab
from bench.multiply import add_history, add_waiting
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "what a job costs, by how many wait and how many have ended"
_SIZES, _TEN_MILLION = (0, 100_000, 1_000_000), 10_000_000
_CREATED = 1_000
TARGETS = {
    (f"{done}, {size:,} {besides}", BUFFERS): "as with none"
    for done in ("created", "drained")
    for besides in ("waiting", "in the history")
    for size in (1_000_000, _TEN_MILLION)
}

Adding = Callable[[System, int, int], Awaitable[None]]


async def ask(lab: Lab) -> None:
    """First by what waits, then by what has ended."""
    sizes = (*_SIZES, _TEN_MILLION) if lab.is_full else _SIZES
    waiting = await _beside(lab, "waiting", sizes, _wait_for_tomorrow)
    ended = await _beside(lab, "in the history", sizes, _remember)
    write_curves("growth_jobs", [*waiting, *ended])


async def _beside(lab: Lab, besides: str, sizes: Sequence[int], add: Adding) -> list[Curve]:
    created, run, idle = (
        Curve(f"{what}, by jobs {besides}", sizes) for what in ("a job created", "a job drained", "an idle scheduler")
    )
    async with lab.system() as system:
        for before, size in pairwise((0, *sizes)):
            if size > before:
                await add(system, before + 1, size)
            await settle(system)
            note(lab, created, f"created, {size:,} {besides}", await _create_some(system), CLIENT)
            note(lab, run, f"drained, {size:,} {besides}", await drained(system), WORKER)
            await settle(system)
            await system.start_nodes(schedulers=1)
            await note_idle(lab, idle, f"idle scheduler, {size:,} {besides}", system)
            system.stop()
    return [created, run, idle]


async def _wait_for_tomorrow(system: System, first: int, last: int) -> None:
    await add_waiting(system, first, last, system.parts.env.clock.now() + timedelta(days=1))


async def _remember(system: System, first: int, last: int) -> None:
    await add_history(system, first, last, system.parts.env.clock.now())


async def _create_some(system: System) -> Cost:
    """The cost of a job that is created by itself, for tomorrow: a row among those that wait."""
    spec = JobSpec(handler="bench.noop", scheduled_at=system.parts.env.clock.now() + timedelta(days=1, hours=1))
    async with metered(system) as cost:
        begun = time.process_time()
        for _ in range(_CREATED):
            await system.parts.commands.jobs.create(spec)
        client = time.process_time() - begun
    cost.node = client
    return cost.over(_CREATED)
