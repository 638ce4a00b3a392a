"""What a node costs that has nothing to do, and what it costs to hold schedules."""

from __future__ import annotations

import asyncio
import heapq
import tracemalloc
from datetime import datetime, timedelta

from bench.bare_listener import running_listener
from bench.lab import Lab
from bench.multiply import add_schedules
from bench.notebook import MEGABYTES, PERCENT
from bench.processes import cpu_seconds, megabytes
from bench.system import System

TITLE = "idle nodes, and a scheduler with 20,000 schedules due within its look-ahead (100,000 with FULL=1)"
LIMIT = "a bare listener, a bare heap"
TARGETS = {("idle worker", "CPU"): "0.2 %", ("idle worker", "memory"): "40 MB"}
_SETTLING_SECONDS, _SECONDS, _ROUNDS = 3, 5, 3
_HELD, _MORE_HELD, _AHEAD = 20_000, 100_000, timedelta(seconds=15)
_FOR_SCHEDULES = "more for 100,000 schedules"


async def ask(lab: Lab) -> None:
    """The memory of each node alone: shared pages count by halves among those who share them (Pss). The CPU time of all side by side."""
    async with lab.system() as system:
        await system.start_nodes(workers=1)
        await asyncio.sleep(_SETTLING_SECONDS)
        lab.note("idle worker", "memory", megabytes(system.nodes[0].pid), MEGABYTES)
        await system.start_nodes(schedulers=1)
        async with running_listener(system.dsn) as listener:
            worker, scheduler = (node.pid for node in system.nodes)
            await _rest(lab, {"idle worker": worker, "idle scheduler": scheduler, LIMIT: listener})
            lab.note(LIMIT, "memory", megabytes(listener), MEGABYTES)
        # Without a worker, so that what the scheduler promotes stays where it can be counted.
        system.stop()
        await system.start_nodes(schedulers=1)
        held = _MORE_HELD if lab.is_full else _HELD
        await _hold(lab, system, held)
        await system.start_nodes(workers=1)
        await system.wait_for_finished(held)


async def _rest(lab: Lab, pids: dict[str, int]) -> None:
    await asyncio.sleep(_SETTLING_SECONDS)
    for _ in range(_ROUNDS):
        before = {subject: cpu_seconds(pid) for subject, pid in pids.items()}
        await asyncio.sleep(_SECONDS)
        for subject, pid in pids.items():
            lab.note(subject, "CPU", (cpu_seconds(pid) - before[subject]) / _SECONDS * 100, PERCENT)


async def _hold(lab: Lab, system: System, number: int) -> None:
    """Let all of them come into the look-ahead at once, and note the most memory that is seen."""
    scheduler = system.nodes[0].pid
    await asyncio.sleep(_SETTLING_SECONDS)
    before = most = megabytes(scheduler)
    lab.note("idle scheduler", "memory", before, MEGABYTES)
    first = system.parts.env.clock.now() + _AHEAD
    await add_schedules(system, 1, number - 1, 3600, first)
    while await system.value("SELECT count(*) FROM timeball.ready") < number:
        most = max(most, megabytes(scheduler))
        await asyncio.sleep(0.25)
    lab.note("idle scheduler", _FOR_SCHEDULES, (most - before) * 100_000 / number, MEGABYTES)
    lab.note(LIMIT, _FOR_SCHEDULES, _heap(system, first, number) * 100_000 / number, MEGABYTES)


def _heap(system: System, first: datetime, number: int) -> float:
    """The least that could be held of so many in Python: an instant and an id each."""
    tracemalloc.start()
    try:
        held = [(first + timedelta(microseconds=n), id_) for n, id_ in enumerate(system.parts.env.new_ids(number))]
        heapq.heapify(held)
        return tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()
