"""What does an execution cost when there is more of everything: waiting jobs, history, schedules, workers?

CPU time, commits and buffers, not seconds: these are the same on a busy machine. Each figure is what one execution costs, all
its statements together with what the nodes do besides; so a line that rises says that something reads more than it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from bench.curves import Curve, write_curves
from bench.lab import Lab
from bench.load import fill
from bench.million import furnish
from bench.notebook import MEGABYTES, MICROSECONDS, Unit
from bench.processes import family_cpu_seconds, megabytes
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "the cost of one execution, by what there is besides"
_NUMBER = 20_000
_BACKLOGS, _TEN_MILLION = (0, 100_000, 1_000_000), 10_000_000
_HISTORIES = (0, 100_000, 1_000_000)
_SCHEDULES, _MANY_SCHEDULES = (1_000, 10_000, 50_000), 1_000_000
_WORKERS = (1, 4, 16)
# So many schedules run every second while the others lie ahead.
_FIRING, _SECONDS = 200, 15

COUNT = Unit("", 2, is_more_better=False)
WORKER, SCHEDULER, DATABASE = "CPU, worker", "CPU, scheduler", "CPU, database"
COMMITS, BUFFERS, MEMORY = "commits", "buffers", "memory of the scheduler"
TARGETS = {
    (f"{_BACKLOGS[-1]:,} waiting", BUFFERS): "as with none",
    (f"{_HISTORIES[-1]:,} in the history", BUFFERS): "as with none",
}
_IS_DRAINED = "SELECT NOT EXISTS (SELECT 1 FROM timeball.ready) AND NOT EXISTS (SELECT 1 FROM timeball.running)"
_ENDED = "SELECT count(*) FROM timeball.finished"
_COUNTERS = """
SELECT xact_commit AS commits, blks_hit + blks_read AS buffers
FROM pg_stat_database
WHERE datname = current_database()
"""


@dataclass
class Cost:
    """What was used between two moments, in all."""

    node: float = 0.0
    database: float = 0.0
    commits: float = 0.0
    buffers: float = 0.0


async def ask(lab: Lab) -> None:
    """One axis after the other, each size on a database of its own."""
    curves = [
        await _backlog(lab, (*_BACKLOGS, _TEN_MILLION) if lab.is_full else _BACKLOGS),
        await _history(lab, (*_HISTORIES, _TEN_MILLION) if lab.is_full else _HISTORIES),
        await _schedules(lab, (*_SCHEDULES[:2], 100_000, _MANY_SCHEDULES) if lab.is_full else _SCHEDULES),
        await _workers(lab, _WORKERS),
    ]
    write_curves("growth-curves", curves)


async def _backlog(lab: Lab, sizes: Sequence[int]) -> Curve:
    curve = Curve("jobs that wait for tomorrow", sizes)
    for size in sizes:
        async with lab.system() as system:
            await fill(system, size, at=system.parts.env.clock.now() + timedelta(days=1))
            await _settle(system)
            _note(lab, curve, f"{size:,} waiting", await _drained(system), WORKER)
    return curve


async def _history(lab: Lab, sizes: Sequence[int]) -> Curve:
    curve = Curve("executions in the history", sizes)
    for size in sizes:
        async with lab.system() as system:
            await furnish(system, size)
            await _settle(system)
            _note(lab, curve, f"{size:,} in the history", await _drained(system), WORKER)
    return curve


async def _workers(lab: Lab, sizes: Sequence[int]) -> Curve:
    curve = Curve("worker processes", sizes)
    for size in sizes:
        async with lab.system() as system:
            _note(lab, curve, f"{size} workers", await _drained(system, workers=size), WORKER)
    return curve


async def _schedules(lab: Lab, sizes: Sequence[int]) -> Curve:
    """A fixed number of schedules runs every second; all others are due tomorrow."""
    curve = Curve("schedules", sizes)
    for size in sizes:
        async with lab.system() as system:
            await _schedule(system, "quiet", size - _FIRING, 86_400)
            await _schedule(system, "busy", _FIRING, 1)
            await _settle(system)
            cost, memory = await _fired(system)
            _note(lab, curve, f"{size:,} schedules", cost, SCHEDULER)
            lab.note(f"{size:,} schedules", MEMORY, memory, MEGABYTES)
    return curve


async def _schedule(system: System, name: str, number: int, seconds: int) -> None:
    for start in range(0, number, 2_000):
        specs = [
            JobSpec(name=f"{name}-{place}", handler="bench.noop", interval_seconds=seconds)
            for place in range(start, min(start + 2_000, number))
        ]
        await system.parts.commands.create_all(specs)


async def _drained(system: System, workers: int = 1) -> Cost:
    """The cost of an execution while so many workers drain the same number of ready jobs."""
    await system.start_nodes(workers=workers)
    async with _cost(system, list(range(workers))) as cost:
        await fill(system, _NUMBER)
        # Not by counting what has ended: that would read the history, and be measured.
        while not await system.value(_IS_DRAINED):
            await asyncio.sleep(0.5)
    system.stop()
    return _each(cost, _NUMBER)


async def _fired(system: System) -> tuple[Cost, float]:
    """The cost of an execution of a schedule, and the memory of the scheduler in the end."""
    await system.start_nodes(schedulers=1, workers=1)
    await asyncio.sleep(5)
    before = await system.value(_ENDED)
    async with _cost(system, [0]) as cost:
        await asyncio.sleep(_SECONDS)
    number = await system.value(_ENDED) - before
    memory = megabytes(system.nodes[0].pid)
    system.stop()
    return _each(cost, max(number, 1)), memory


@asynccontextmanager
async def _cost(system: System, nodes: Sequence[int]) -> AsyncIterator[Cost]:
    """What some of the nodes, and the database, use meanwhile."""
    used = Cost()
    pids = [system.nodes[place].pid for place in nodes]

    async def read() -> tuple[float, float, int, int]:
        row = await system.row(_COUNTERS)
        node = sum(family_cpu_seconds(pid) for pid in pids)
        return node, family_cpu_seconds(system.server_pid), row["commits"], row["buffers"]

    before = await read()
    yield used
    # The server's counters follow within a second.
    await asyncio.sleep(2)
    after = await read()
    used.node, used.database, used.commits, used.buffers = (
        late - early for early, late in zip(before, after, strict=True)
    )


def _each(cost: Cost, number: int) -> Cost:
    return Cost(cost.node / number, cost.database / number, cost.commits / number, cost.buffers / number)


def _note(lab: Lab, curve: Curve, subject: str, cost: Cost, node: str) -> None:
    figures = (
        (node, cost.node * 1e6, MICROSECONDS),
        (DATABASE, cost.database * 1e6, MICROSECONDS),
        (COMMITS, cost.commits, COUNT),
        (BUFFERS, cost.buffers, COUNT),
    )
    for figure, value, unit in figures:
        lab.note(subject, figure, value, unit)
        curve.add(figure, value)


async def _settle(system: System) -> None:
    """As autovacuum and the checkpointer would have left it, so that neither works while something is measured."""
    connection = await system.parts.store.database.connect(is_patient=True)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()
