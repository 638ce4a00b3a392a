"""What do a job, an occurrence and a node cost when there is more of everything: waiting jobs, history, schedules, nodes?

CPU time, commits and buffers, not seconds: these are the same on a busy machine. A line that rises says that something
reads more than it should. An axis has one database, which is filled up from size to size (`multiply`) and verified at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

from bench.cost import Cost, metered
from bench.curves import Curve, write_curves
from bench.lab import Lab
from bench.load import fill
from bench.multiply import add_history, add_schedules, add_waiting
from bench.notebook import MEGABYTES, MICROSECONDS, PERCENT, Unit
from bench.processes import megabytes
from bench.statements import counted_statements
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "what a job, an occurrence and a node cost, by what there is besides"
_MANY, _TEN_MILLION = (0, 100_000, 1_000_000), 10_000_000
_SCHEDULES, _MILLION = (1_000, 10_000, 100_000), 1_000_000
_NODES, _ALL_NODES = (1, 4, 16), (1, 2, 4, 8, 16)
_DRAINED, _CREATED = 20_000, 1_000
# So many schedules run every second while the others lie ahead.
_FIRING, _SECONDS = 200, 15
_IDLE_SECONDS, _SETTLING_SECONDS = 10, 4

COUNT = Unit("", 2, is_more_better=False)
A_SECOND = Unit("/s", 2, is_more_better=False)
CLIENT, WORKER, SCHEDULER, DATABASE = "CPU, client", "CPU, worker", "CPU, scheduler", "CPU, database"
COMMITS, BUFFERS, MEMORY = "commits", "buffers", "memory of the scheduler"
STATEMENTS, BUSY, BUSY_DATABASE = "statements", "CPU, node", "CPU, database"
TARGETS = {
    (f"{what}, {size:,} {besides}", BUFFERS): "as with none"
    for what in ("drained", "created")
    for besides in ("waiting", "in the history")
    for size in (1_000_000, _TEN_MILLION)
}
_IS_DRAINED = "SELECT NOT EXISTS (SELECT 1 FROM timeball.ready) AND NOT EXISTS (SELECT 1 FROM timeball.running)"
_ENDED = "SELECT count(*) FROM timeball.finished"
_HOISTED = "SELECT count(*) FROM timeball.ready"


async def ask(lab: Lab) -> None:
    """One axis after the other."""
    many = (*_MANY, _TEN_MILLION) if lab.is_full else _MANY
    schedules = (*_SCHEDULES, _MILLION) if lab.is_full else _SCHEDULES
    nodes = _ALL_NODES if lab.is_full else _NODES
    curves = [
        *await _beside(lab, "waiting", many, _wait_for_tomorrow),
        *await _beside(lab, "in the history", many, _remember),
        await _schedules(lab, schedules),
        await _crowds(lab, _SCHEDULES),
        await _workers(lab, nodes),
        *[await _idle(lab, kind, nodes) for kind in ("worker", "scheduler")],
    ]
    write_curves("growth-curves", curves)


# what lies beside


async def _beside(
    lab: Lab, besides: str, sizes: Sequence[int], add: Callable[[System, int, int], Awaitable[None]]
) -> list[Curve]:
    """What a job costs, to create and to run, and what a scheduler costs that has nothing to do, while others wait or have ended."""
    created, drained, idle = (
        Curve(f"{what}, by jobs {besides}", sizes) for what in ("a job created", "a job drained", "an idle scheduler")
    )
    async with lab.system() as system:
        for before, size in pairwise((0, *sizes)):
            if size > before:
                await add(system, before + 1, size)
            await _settle(system)
            _note(lab, created, f"created, {size:,} {besides}", await _create_some(system), CLIENT)
            _note(lab, drained, f"drained, {size:,} {besides}", await _drain(system), WORKER)
            await system.start_nodes(schedulers=1)
            await _note_idle(lab, idle, f"scheduler, {size:,} {besides}", system)
            system.stop()
    return [created, drained, idle]


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
            await system.parts.commands.create(spec)
        client = time.process_time() - begun
    cost.node = client
    return cost.over(_CREATED)


async def _drain(system: System, workers: int = 1) -> Cost:
    """The cost of an execution, enqueued in bulk and run, while so many workers share the work."""
    await system.start_nodes(workers=workers)
    async with metered(system, [node.pid for node in system.nodes], then=system.stop) as cost:
        await fill(system, _DRAINED)
        # Not by counting what has ended: that would read the history, and be measured.
        while not await system.value(_IS_DRAINED):
            await asyncio.sleep(0.5)
    return cost.over(_DRAINED)


# schedules


async def _schedules(lab: Lab, sizes: Sequence[int]) -> Curve:
    """A fixed number of schedules runs every second; all others are due tomorrow."""
    curve = Curve("an occurrence, by schedules that lie ahead", sizes)
    async with lab.system() as system:
        await system.parts.commands.create_all(
            [JobSpec(name=f"busy-{n}", handler="bench.noop", interval_seconds=1) for n in range(_FIRING)]
        )
        for before, size in pairwise((_FIRING, *sizes)):
            tomorrow = system.parts.env.clock.now() + timedelta(days=1)
            await add_schedules(system, before + 1, size, 86_400, tomorrow)
            await _settle(system)
            async with _fired(lab, system, f"{size:,} schedules") as cost:
                before_it = await system.value(_ENDED)
                await asyncio.sleep(_SECONDS)
                number = await system.value(_ENDED) - before_it
            _note(lab, curve, f"{size:,} schedules", cost.over(max(number, 1)), SCHEDULER)
    return curve


@asynccontextmanager
async def _fired(lab: Lab, system: System, subject: str) -> AsyncIterator[Cost]:
    """What a scheduler and the database use, with a worker beside them, once what was missed has been made up for."""
    await system.start_nodes(schedulers=1, workers=1)
    await asyncio.sleep(5)
    async with metered(system, [system.nodes[0].pid]) as cost:
        yield cost
    lab.note(subject, MEMORY, megabytes(system.nodes[0].pid), MEGABYTES)
    system.stop()


async def _crowds(lab: Lab, sizes: Sequence[int]) -> Curve:
    """All schedules are due at one instant; nobody claims them, so that the hoist alone is measured."""
    curve = Curve("an occurrence, by schedules that are due together", sizes)
    for size in sizes:
        async with lab.system() as system:
            await add_schedules(system, 1, size - 1, 86_400, system.parts.env.clock.now() + timedelta(seconds=20))
            await system.start_nodes(schedulers=1)
            scheduler = system.nodes[0].pid
            async with metered(system, [scheduler], then=system.stop) as cost:
                while await system.value(_HOISTED) < size:
                    await asyncio.sleep(0.5)
                memory = megabytes(scheduler)
            _note(lab, curve, f"{size:,} together", cost.over(size), SCHEDULER)
            lab.note(f"{size:,} together", MEMORY, memory, MEGABYTES)
            # What is ready and not claimed is no loss, but a promise that nobody keeps: let it be kept before it is verified.
            await system.start_nodes(workers=1)
            await system.wait_for_finished(size)
    return curve


# nodes


async def _workers(lab: Lab, sizes: Sequence[int]) -> Curve:
    curve = Curve("a job drained, by worker processes", sizes)
    for size in sizes:
        async with lab.system() as system:
            _note(lab, curve, f"drained, {size} workers", await _drain(system, workers=size), WORKER)
    return curve


async def _idle(lab: Lab, kind: str, sizes: Sequence[int]) -> Curve:
    """What each of so many nodes costs that have nothing to do."""
    curve = Curve(f"an idle {kind}, by how many there are", sizes)
    for size in sizes:
        async with lab.system() as system:
            await system.start_nodes(**{f"{kind}s": size})
            await _note_idle(lab, curve, f"each of {size} idle {kind}s", system)
    return curve


async def _note_idle(lab: Lab, curve: Curve, subject: str, system: System) -> None:
    """What each of the present nodes and the database do in a second, once all have settled in."""
    await asyncio.sleep(_SETTLING_SECONDS)
    async with metered(system, [node.pid for node in system.nodes]) as cost:
        begun = time.monotonic()
        await asyncio.sleep(_IDLE_SECONDS)
        each = (time.monotonic() - begun) * len(system.nodes)
    async with counted_statements(system) as count:
        await asyncio.sleep(_IDLE_SECONDS)
    figures = (
        (BUSY, cost.node / each * 100, PERCENT),
        (BUSY_DATABASE, cost.database / each * 100, PERCENT),
        (STATEMENTS, count.number / count.seconds / len(system.nodes), A_SECOND),
        (BUFFERS, cost.buffers / each, A_SECOND),
    )
    _note_all(lab, curve, subject, figures)


# notes


def _note(lab: Lab, curve: Curve, subject: str, cost: Cost, node: str) -> None:
    figures = (
        (node, cost.node * 1e6, MICROSECONDS),
        (DATABASE, cost.database * 1e6, MICROSECONDS),
        (COMMITS, cost.commits, COUNT),
        (BUFFERS, cost.buffers, COUNT),
    )
    _note_all(lab, curve, subject, figures)


def _note_all(lab: Lab, curve: Curve, subject: str, figures: Sequence[tuple[str, float, Unit]]) -> None:
    for figure, value, unit in figures:
        lab.note(subject, figure, value, unit)
        curve.add(figure, value)
    print(subject, *(f"{figure} {unit.show(value)}" for figure, value, unit in figures), sep="; ", flush=True)


async def _settle(system: System) -> None:
    """As autovacuum and the checkpointer would have left it, so that neither works while something is measured."""
    connection = await system.parts.store.database.connect(is_patient=True)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()
