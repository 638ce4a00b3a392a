"""What does an occurrence cost, by how many schedules lie ahead, and by how many are due together?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

from bench.cost import Cost, metered
from bench.curves import Curve, write_curves
from bench.growing import MEMORY, SCHEDULER, note, settle
from bench.lab import Lab
from bench.multiply import add_schedules
from bench.notebook import MEGABYTES
from bench.processes import megabytes
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "what an occurrence costs, by how many schedules there are"
_SIZES, _MILLION = (1_000, 10_000, 100_000), 1_000_000
# So many schedules run every second while the others lie ahead.
_FIRING, _SECONDS = 200, 15
_AHEAD = timedelta(seconds=20)
_ENDED = "SELECT count(*) FROM timeball.finished"
_PROMOTED = "SELECT count(*) FROM timeball.ready"
_IS_PUNCTUAL = """
SELECT NOT EXISTS (SELECT 1 FROM timeball.due WHERE run_at < now() - interval '2 seconds')
   AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE run_at < now() - interval '2 seconds')
"""


async def ask(lab: Lab) -> None:
    """Those that lie ahead are rows in an index; those that are due together have to be moved all."""
    ahead = await _ahead(lab, (*_SIZES, _MILLION) if lab.is_full else _SIZES)
    together = await _together(lab, _SIZES)
    write_curves("growth_schedules", [ahead, together])


async def _ahead(lab: Lab, sizes: Sequence[int]) -> Curve:
    """A fixed number of schedules runs every second; all others are due tomorrow."""
    curve = Curve("an occurrence, by schedules that lie ahead", sizes)
    async with lab.system() as system:
        await system.parts.commands.jobs.create_all(
            [JobSpec(name=f"busy-{n}", handler="bench.noop", interval_seconds=1) for n in range(_FIRING)]
        )
        for before, size in pairwise((_FIRING, *sizes)):
            await add_schedules(system, before + 1, size, 86_400, system.parts.env.clock.now() + timedelta(days=1))
            await settle(system)
            async with _firing(lab, system, f"{size:,} ahead") as cost:
                ended = await system.value(_ENDED)
                await asyncio.sleep(_SECONDS)
                number = await system.value(_ENDED) - ended
            note(lab, curve, f"{size:,} ahead", cost.over(max(number, 1)), SCHEDULER)
    return curve


@asynccontextmanager
async def _firing(lab: Lab, system: System, subject: str) -> AsyncIterator[Cost]:
    """What a scheduler and the database use, with a worker beside them, once what was missed has been made up for."""
    await system.start_nodes(schedulers=1, workers=1)
    await asyncio.sleep(5)
    # What fell due while the others were made runs late and in large batches, which would be measured along.
    while not await system.value(_IS_PUNCTUAL):
        await asyncio.sleep(0.5)
    async with metered(system, [system.nodes[0].pid]) as cost:
        yield cost
    lab.note(subject, MEMORY, megabytes(system.nodes[0].pid), MEGABYTES)
    system.stop()


async def _together(lab: Lab, sizes: Sequence[int]) -> Curve:
    """All schedules are due at one instant; no worker claims them, so that the promotion alone is measured."""
    curve = Curve("an occurrence, by schedules that are due together", sizes)
    for size in sizes:
        async with lab.system() as system:
            await add_schedules(system, 1, size - 1, 86_400, system.parts.env.clock.now() + _AHEAD)
            await system.start_nodes(schedulers=1)
            scheduler = system.nodes[0].pid
            async with metered(system, [scheduler], then=system.stop) as cost:
                while await system.value(_PROMOTED) < size:
                    await asyncio.sleep(0.5)
                memory = megabytes(scheduler)
            lab.note(f"{size:,} together", MEMORY, memory, MEGABYTES)
            note(lab, curve, f"{size:,} together", cost.over(size), SCHEDULER)
            # Ready executions that are never claimed break a promise: run them before the promises are verified.
            await system.start_nodes(workers=1)
            await system.wait_for_finished(size)
    return curve
