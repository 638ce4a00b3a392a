"""Work to do, and the limit: the same statements in a bare loop, without an engine around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from bench.system import System
from timeball.domain.execution import ClaimedExecution, FinishedAttempt, Succeeded
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ClaimId, Incarnation
from timeball.domain.wakeup import LanePosition
from timeball.store.types import ClaimRequest

_BATCH = 500
# The first claims on a connection are planned anew, each: a worker has them behind it before it registers.
_REHEARSED = 10
_DRAINED = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))
FROM timeball.finished
WHERE started_at >= $1 AND worker IS NOT NULL
"""


async def fill(
    system: System, number: int, at: datetime | None = None, handler: str = "bench.noop", priority: int = 50
) -> None:
    """Enqueue so many, in portions."""
    spec = JobSpec(handler=handler, scheduled_at=at, priority=priority)
    for start in range(0, number, 50_000):
        await system.parts.commands.jobs.enqueue_many(spec, ["{}"] * min(50_000, number - start))


async def drain_rate(
    system: System,
    number: int,
    *worker: str,
    handler: str = "bench.noop",
    work: Callable[[], Awaitable[None]] | None = None,
) -> float:
    """Start a worker on so many ready jobs, or *work* that makes so many: executions a second, from the first start to the last end."""
    begun = await system.value("SELECT clock_timestamp()")
    before = await system.value("SELECT count(*) FROM timeball.finished")
    await (fill(system, number, handler=handler) if work is None else work())
    system.start("worker", "bench.app:tb", *worker)
    await system.wait_for_finished(before + number)
    system.stop()
    return float(await system.value(_DRAINED, begun))


async def raw_drain_rate(system: System, number: int) -> float:
    """What the bare statements do with so many ready jobs: executions a second."""
    answers = await _bare_loop(system, number)
    return number / answers[-1][1]


async def raw_lateness(system: System, number: int) -> dict[float, float]:
    """Of so many that are due at one instant, how late are a half, 99 % and all claimed by the bare statements, in ms?"""
    answers = await _bare_loop(system, number)
    return {
        part: next(seconds * 1000 for claimed, seconds in answers if claimed >= part * number)
        for part in (0.5, 0.99, 1.0)
    }


async def _bare_loop(system: System, number: int) -> list[tuple[int, float]]:
    """Claim and finish *number* executions: one connection claims while another finishes, in batches of 500.

    Each answer is how many have been claimed by then, and after how many seconds; the last one when all have ended.
    """
    await fill(system, number)
    executions, env = system.parts.store.executions, system.parts.env
    request = ClaimRequest(Incarnation(env.new_id()), ["bench.noop"], _BATCH, 0)
    mark = LanePosition(datetime(2020, 1, 1, tzinfo=UTC))
    finishing: asyncio.Task[list[FinishedAttempt]] | None = None
    begun, claimed = time.perf_counter(), 0
    answers: list[tuple[int, float]] = []
    while True:
        claims = await executions.claim(request, {("default", 50): mark}, ClaimId(env.new_id()))
        claimed += len(claims.executions)
        answers.append((claimed, time.perf_counter() - begun))
        if finishing is not None:
            await finishing
        if not claims.executions:
            return [*answers, (claimed, time.perf_counter() - begun)]
        mark = LanePosition(claims.executions[-1].run_at, claims.executions[-1].id)
        now = env.clock.now()
        findings = [FinishedAttempt(one, Succeeded(), now, now) for one in claims.executions]
        finishing = asyncio.ensure_future(executions.finish_succeeded(findings))


async def bare_claims(system: System, number: int, pause_seconds: float = 0.0) -> list[float]:
    """The duration of each of so many claims of one execution, in milliseconds: no worker can start it sooner."""
    executions, env, spec = system.parts.store.executions, system.parts.env, JobSpec(handler="bench.noop")
    request = ClaimRequest(Incarnation(env.new_id()), ["bench.noop"], 1, 0, has_competitors=False)
    took: list[float] = []
    claims: list[ClaimedExecution] = []
    for _ in range(_REHEARSED + number):
        created = await system.parts.commands.jobs.create(spec)
        assert created.execution_id is not None
        await asyncio.sleep(pause_seconds)
        begun = time.perf_counter()
        (claimed,) = await executions.claim_by_id(request, created.execution_id, None, ClaimId(env.new_id()))
        took.append((time.perf_counter() - begun) * 1000)
        claims.append(claimed)
    now = env.clock.now()
    await executions.finish_succeeded(
        [FinishedAttempt(one, Succeeded(), max(now, one.run_at), max(now, one.run_at)) for one in claims]
    )
    return took[_REHEARSED:]
