"""The limit: the same statements in a bare loop, without an engine around them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from bench.system import System
from timeball.domain.execution import Finding, Succeeded
from timeball.domain.ids import ClaimId, Incarnation
from timeball.domain.job import JobSpec
from timeball.store.interface import ClaimWish

_BATCH = 500


async def fill(system: System, number: int, at: datetime | None = None) -> None:
    """Enqueue so many no-ops, in portions."""
    for start in range(0, number, 50_000):
        portion = min(50_000, number - start)
        await system.parts.commands.enqueue_many(JobSpec(handler="bench.noop", scheduled_at=at), ["{}"] * portion)


async def raw_drain_rate(system: System, number: int) -> float:
    """Claim and finish *number* executions: one connection claims while another finishes, in batches of 500."""
    await fill(system, number)
    rooms, env = system.parts.store.rooms, system.parts.env
    wish = ClaimWish(Incarnation(env.new_id()), ["bench.noop"], _BATCH, 0)
    bound = datetime(2020, 1, 1, tzinfo=UTC)
    finishing: asyncio.Task[list[Finding]] | None = None
    begun, done = time.perf_counter(), 0
    while True:
        claims = await rooms.claim(wish, {("default", 50): bound}, ClaimId(env.new_id()))
        if finishing is not None:
            await finishing
        if not claims.executions:
            break
        bound = claims.executions[-1].run_at
        now = env.clock.now()
        findings = [Finding(claimed, Succeeded(), now, now) for claimed in claims.executions]
        finishing = asyncio.ensure_future(rooms.finish_succeeded(findings))
        done += len(findings)
    return done / (time.perf_counter() - begun)
