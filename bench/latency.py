"""From the return of an enqueue to the start of the handler, on an idle system."""

from __future__ import annotations

import asyncio
from datetime import datetime
from statistics import quantiles
from uuid import UUID

from bench.lab import Lab
from bench.load import bare_claims
from bench.notebook import MILLISECONDS
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "idle latency: enqueue returned, handler started"
LIMIT = "bare claims of one"
TARGETS = {("Timeball", "p50"): "below 1.5 ms", ("Timeball", "p99"): "below 5 ms"}
_NUMBER = 200
_ROUNDS = 3
_PAUSE_SECONDS = 0.02
_STARTED = "SELECT id, started_at FROM timeball.finished WHERE id = ANY($1)"


async def ask(lab: Lab) -> None:
    """Enqueue one by one with pauses between; beside it, on a database without a worker, claim what was enqueued as long before."""
    async with lab.system() as system, lab.system() as bare:
        await system.start_nodes(workers=1)
        await asyncio.sleep(1)
        for _ in range(_ROUNDS):
            _note(lab, LIMIT, await bare_claims(bare, _NUMBER // 2, _PAUSE_SECONDS))
            _note(lab, "Timeball", await _starts(system))


def _note(lab: Lab, subject: str, milliseconds: list[float]) -> None:
    cuts = quantiles(milliseconds, n=100)
    lab.note(subject, "p50", cuts[49], MILLISECONDS)
    lab.note(subject, "p99", cuts[98], MILLISECONDS)


async def _starts(system: System) -> list[float]:
    returned: dict[UUID | None, datetime] = {}
    for _ in range(_NUMBER):
        created = await system.parts.commands.jobs.create(JobSpec(handler="bench.noop"))
        returned[created.execution_id] = system.parts.env.clock.now()
        await asyncio.sleep(_PAUSE_SECONDS)
    # What started late is waited for, and counts.
    while len(started := await system.rows(_STARTED, list(returned))) < _NUMBER:
        await asyncio.sleep(_PAUSE_SECONDS)
    return [(row["started_at"] - returned[row["id"]]).total_seconds() * 1000 for row in started]
