"""Work to do, and the limit: the same statements in a bare loop, without an engine around them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from bench.system import System
from timeball.domain.execution import Finding, Succeeded
from timeball.domain.hints import Mark
from timeball.domain.ids import ClaimId, Incarnation
from timeball.domain.job import JobSpec
from timeball.store.interface import ClaimWish

_BATCH = 500
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
        await system.parts.commands.enqueue_many(spec, ["{}"] * min(50_000, number - start))


async def drain_rate(system: System, number: int, *worker: str, handler: str = "bench.noop") -> float:
    """Start a worker on so many ready jobs: executions a second, from the first start to the last end."""
    begun = await system.value("SELECT clock_timestamp()")
    before = await system.value("SELECT count(*) FROM timeball.finished")
    await fill(system, number, handler=handler)
    system.start("worker", "bench.app:tb", *worker)
    await system.wait_for_finished(before + number)
    system.stop()
    return float(await system.value(_DRAINED, begun))


async def raw_drain_rate(system: System, number: int) -> float:
    """Claim and finish *number* executions: one connection claims while another finishes, in batches of 500."""
    await fill(system, number)
    rooms, env = system.parts.store.rooms, system.parts.env
    wish = ClaimWish(Incarnation(env.new_id()), ["bench.noop"], _BATCH, 0)
    mark = Mark(datetime(2020, 1, 1, tzinfo=UTC))
    finishing: asyncio.Task[list[Finding]] | None = None
    begun, done = time.perf_counter(), 0
    while True:
        claims = await rooms.claim(wish, {("default", 50): mark}, ClaimId(env.new_id()))
        if finishing is not None:
            await finishing
        if not claims.executions:
            break
        mark = Mark(claims.executions[-1].run_at, claims.executions[-1].id)
        now = env.clock.now()
        findings = [Finding(claimed, Succeeded(), now, now) for claimed in claims.executions]
        finishing = asyncio.ensure_future(rooms.finish_succeeded(findings))
        done += len(findings)
    return done / (time.perf_counter() - begun)
