"""What does each statement cost on the way of an execution, for each row: CPU here and in the database, buffers, write-ahead log?

Each statement is run by itself through the store, in batches as the nodes run it, over enough rows for the kernel's and the server's
counters to tell. Its parts add up to what a node needs; what the nodes do besides, `growth` and `drain` measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from bench.cost import Cost, metered
from bench.lab import Lab
from bench.multiply import add_schedules
from bench.notebook import MICROSECONDS, Unit
from bench.system import System
from timeball.domain.execution import ClaimedExecution, FinishedAttempt, Succeeded
from timeball.domain.job_fields import JobSpec
from timeball.domain.node import Lease, Node, NodeKind
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.occurrences import DueRow, JobTiming, Promotion, plan_promotion
from timeball.domain.values.ids import ClaimId, Incarnation, JobId
from timeball.domain.wakeup import LanePosition
from timeball.store.types import ClaimRequest, ShardOwnership

TITLE = "what each statement costs, for each row"
_ONE_BY_ONE, _MANY = 2_000, 40_000
_BATCH, _PROMOTE_BATCH = 500, 1_000
_ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)
_WINDOW, _AHEAD = timedelta(milliseconds=500), timedelta(seconds=30)

COUNT = Unit("", 3, is_more_better=False)
BUFFERS = Unit("", 1, is_more_better=False)
BYTES = Unit(" B", 0, is_more_better=False)
Item = TypeVar("Item")


async def ask(lab: Lab) -> None:
    """The way of what is enqueued, and the way of what a schedule names."""
    async with lab.system() as system:
        await _enqueued(lab, system)
        await _scheduled(lab, system)


async def _enqueued(lab: Lab, system: System) -> None:
    commands, spec = system.parts.commands, JobSpec(handler="bench.noop")
    await commands.jobs.enqueue_many(spec, ["{}"] * _BATCH)
    async with _counted(lab, system, "create, one by one", _ONE_BY_ONE):
        for _ in range(_ONE_BY_ONE):
            await commands.jobs.create(spec)
    async with _counted(lab, system, "create, in bulk", _MANY):
        await commands.jobs.enqueue_many(spec, ["{}"] * _MANY)
    await _claim_and_finish(lab, system, "", _BATCH + _ONE_BY_ONE + _MANY)


async def _claim_and_finish(lab: Lab, system: System, of_what: str, number: int) -> None:
    executions, env, claims = system.parts.store.executions, system.parts.env, list[ClaimedExecution]()
    request = ClaimRequest(Incarnation(env.new_id()), ["bench.noop"], _BATCH, 0, has_competitors=False)
    async with _counted(lab, system, f"claim{of_what}", number):
        mark = LanePosition(_ALWAYS)
        while len(claims) < number:
            claims += (await executions.claim(request, {("default", 50): mark}, ClaimId(env.new_id()))).executions
            mark = LanePosition(claims[-1].run_at, claims[-1].id)
    now = max(env.clock.now(), *(claimed.run_at for claimed in claims))
    async with _counted(lab, system, f"finish{of_what}", number):
        for batch in _batches(claims, _BATCH):
            await executions.finish_succeeded([FinishedAttempt(claimed, Succeeded(), now, now) for claimed in batch])


async def _scheduled(lab: Lab, system: System) -> None:
    """Schedules that are due, and the statements of the scheduler one after the other."""
    executions, shards = system.parts.store.executions, range(system.parts.store.shards)
    due_at = system.parts.env.clock.now() + _AHEAD
    await add_schedules(system, 1, _MANY - 1, 86_400, due_at)
    owner = await _own_all(system)
    async with _counted(lab, system, "look ahead", _MANY):
        marks = await executions.look_ahead(dict.fromkeys(shards, _ALWAYS), 2 * _AHEAD, _MANY)
    rows: list[DueRow] = []
    async with _counted(lab, system, "read what is due", _MANY):
        for batch in _batches(marks, _PROMOTE_BATCH):
            rows += await executions.due_rows([mark.id for mark in batch])
    jobs: dict[JobId, JobTiming] = {}
    async with _counted(lab, system, "read timetables", _MANY):
        for some in _batches(rows, _PROMOTE_BATCH):
            jobs |= await system.parts.store.jobs.timetables([row.job_id for row in some])
    async with _counted(lab, system, "look for overlaps", _MANY):
        for some in _batches(rows, _PROMOTE_BATCH):
            await executions.busy_jobs([row.job_id for row in some])
    promotions: list[Promotion] = []
    async with _counted(lab, system, "plan", _MANY):
        for row in rows:
            planned = plan_promotion(row, jobs[row.job_id], due_at, is_busy=False)
            assert isinstance(planned, Promotion)
            promotions.append(planned)
    await asyncio.sleep(max((due_at - system.parts.env.clock.now()).total_seconds(), 0))
    async with _counted(lab, system, "promote", _MANY):
        for group in _batches(promotions, _PROMOTE_BATCH):
            await executions.promote(group, owner, _WINDOW, tzdata_version())
    await _claim_and_finish(lab, system, " what was promoted", _MANY)


def _batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


async def _own_all(system: System) -> ShardOwnership:
    store, incarnation = system.parts.store, Incarnation(system.parts.env.new_id())
    lease = Lease(span=timedelta(minutes=10), interval=timedelta(minutes=1))
    await store.nodes.register(Node(incarnation=incarnation, kind=NodeKind.SCHEDULER, name="anatomy", lease=lease))
    return ShardOwnership(incarnation, await store.nodes.take_shards(incarnation, range(store.shards)))


@asynccontextmanager
async def _counted(lab: Lab, system: System, subject: str, number: int) -> AsyncIterator[None]:
    async with metered(system) as cost:
        begun = time.process_time()
        yield
        here = time.process_time() - begun
    cost.node = here
    _note(lab, subject, cost.over(number))


def _note(lab: Lab, subject: str, cost: Cost) -> None:
    lab.note(subject, "CPU, client", cost.node * 1e6, MICROSECONDS)
    lab.note(subject, "CPU, database", cost.database * 1e6, MICROSECONDS)
    lab.note(subject, "commits", cost.commits, COUNT)
    lab.note(subject, "buffers", cost.buffers, BUFFERS)
    lab.note(subject, "WAL", cost.wal, BYTES)
