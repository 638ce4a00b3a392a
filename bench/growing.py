"""What the questions about growth share: the sizes of a run, and how a cost is noted at each of them.

CPU time, commits and buffers, not seconds: these are the same on a busy machine. A line that rises says that something
reads more than it should. An axis has one database where it can, which is filled up from size to size (`multiply`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.cost import Cost, metered
from bench.curves import Curve
from bench.lab import Lab
from bench.load import fill
from bench.notebook import MICROSECONDS, PERCENT, Unit
from bench.statements import counted_statements
from bench.system import System
from timeball.domain.job_fields import JobSpec

COUNT = Unit("", 2, is_more_better=False)
A_SECOND = Unit("/s", 2, is_more_better=False)
CLIENT, WORKER, SCHEDULER, NODE, DATABASE = "CPU, client", "CPU, worker", "CPU, scheduler", "CPU, node", "CPU, database"
COMMITS, BUFFERS, STATEMENTS, MEMORY = "commits", "buffers", "statements", "memory of the scheduler"
_DRAINED, _WARMING_UP = 20_000, 500
_TRICKLED, _GAP_SECONDS = 300, 0.01
_IDLE_SECONDS, _SETTLING_SECONDS = 10, 4
_IS_DRAINED = "SELECT NOT EXISTS (SELECT 1 FROM timeball.ready) AND NOT EXISTS (SELECT 1 FROM timeball.running)"


async def drained(system: System, workers: int = 1) -> Cost:
    """The cost of an execution, enqueued in bulk and run, while so many workers share the work."""
    await _start_warm(system, workers)
    async with metered(system, [node.pid for node in system.nodes], then=system.stop) as cost:
        await fill(system, _DRAINED)
        await _wait_until_drained(system)
    return cost.over(_DRAINED)


async def trickled(system: System, workers: int) -> Cost:
    """The cost of an execution that is enqueued by itself while so many workers have nothing else to do."""
    await _start_warm(system, workers)
    spec = JobSpec(handler="bench.noop")
    async with metered(system, [node.pid for node in system.nodes], then=system.stop) as cost:
        for _ in range(_TRICKLED):
            await system.parts.commands.jobs.create(spec)
            await asyncio.sleep(_GAP_SECONDS)
        await _wait_until_drained(system)
    return cost.over(_TRICKLED)


async def _start_warm(system: System, workers: int) -> None:
    """Workers that have run something: opening a connection and planning its first statements costs as much as hundreds of executions."""
    await system.start_nodes(workers=workers)
    await fill(system, _WARMING_UP * workers)
    await _wait_until_drained(system)


async def _wait_until_drained(system: System) -> None:
    # Not by counting what has ended: that would read the history, and be measured.
    while not await system.value(_IS_DRAINED):
        await asyncio.sleep(0.5)


def note(lab: Lab, curve: Curve, subject: str, cost: Cost, node: str) -> None:
    """Write down what each of many cost: *node* says whose CPU time it was that is not the database's."""
    figures = (
        (node, cost.node * 1e6, MICROSECONDS),
        (DATABASE, cost.database * 1e6, MICROSECONDS),
        (COMMITS, cost.commits, COUNT),
        (BUFFERS, cost.buffers, COUNT),
    )
    _note_all(lab, curve, subject, figures)


async def note_idle(lab: Lab, curve: Curve, subject: str, system: System) -> None:
    """Write down what each of the present nodes and the database do in a second, once all have settled in."""
    await asyncio.sleep(_SETTLING_SECONDS)
    async with metered(system, [node.pid for node in system.nodes]) as cost:
        begun = time.monotonic()
        await asyncio.sleep(_IDLE_SECONDS)
        each = (time.monotonic() - begun) * len(system.nodes)
    async with counted_statements(system) as count:
        await asyncio.sleep(_IDLE_SECONDS)
    figures = (
        (NODE, cost.node / each * 100, PERCENT),
        (DATABASE, cost.database / each * 100, PERCENT),
        (STATEMENTS, count.number / count.seconds / len(system.nodes), A_SECOND),
        (BUFFERS, cost.buffers / each, A_SECOND),
    )
    _note_all(lab, curve, subject, figures)


def _note_all(lab: Lab, curve: Curve, subject: str, figures: Sequence[tuple[str, float, Unit]]) -> None:
    for figure, value, unit in figures:
        lab.note(subject, figure, value, unit)
        curve.add(figure, value)
    # The large sizes take minutes each: show the progress.
    print(f"  {subject}:", *(f"{figure} {unit.show(value)};" for figure, value, unit in figures), flush=True)


async def settle(system: System) -> None:
    """As autovacuum and the checkpointer would have left it, so that neither works while something is measured."""
    connection = await system.parts.store.database.connect(without_timeout=True)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()
