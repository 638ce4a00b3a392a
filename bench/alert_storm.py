"""Does the evaluation of alerts slow down a drain in which everything dies? A channel is there, and jobs of which something is expected."""

from __future__ import annotations

import asyncio
from functools import partial

from bench.lab import Lab
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "draining jobs that all die, while alerts are evaluated"
LIMIT = "alerts not evaluated"
_SECOND, _USUAL = "alerts evaluated every second", "alerts evaluated every 10 s, as by default"
TARGETS = {(_USUAL, "rate"): "0.95 of not evaluated"}
_NUMBER = 20_000
_EXPECTING = 200
_ROUNDS = 7
_DRAINED = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))
FROM timeball.finished
WHERE started_at >= $1 AND state = 'dead'
"""
_EVALUATED = "SELECT count(*) FROM timeball.alert_evaluation WHERE at > $1"


async def ask(lab: Lab) -> None:
    """Interleaved rounds: one scheduler, one worker."""
    async with lab.system() as system:
        await _furnish(system)
        variants = {LIMIT: 3_600.0, _SECOND: 1.0, _USUAL: 10.0}
        await lab.interleave(
            {subject: partial(_rate, system, seconds) for subject, seconds in variants.items()}, "rate", rounds=_ROUNDS
        )


async def _furnish(system: System) -> None:
    """A channel that nothing answers at, a route, and jobs that are not as it is expected of them."""
    commands = system.parts.commands
    await commands.channels.create("nowhere", "webhook", {"url": "https://timeball.invalid/alerts"})
    await commands.alert_routes.create({"name": "all", "channels": ["nowhere"]})
    expect = {"succeed_every": "1s", "max_failures_in_a_row": 0, "max_dead": 0}
    specs = [
        JobSpec(name=f"expecting-{number}", handler="bench.noop", interval_seconds=86_400, expect=expect)
        for number in range(_EXPECTING)
    ]
    await commands.jobs.create_all(specs)


async def _rate(system: System, seconds: float) -> float:
    """Executions a second, from the first start to the last end."""
    begun = await system.value("SELECT clock_timestamp()")
    before = await system.value("SELECT count(*) FROM timeball.finished WHERE state = 'dead'")
    spec = JobSpec(handler="bench.fail", max_retries=0)
    await system.parts.commands.jobs.enqueue_many(spec, ["{}"] * _NUMBER)
    await system.start_nodes(schedulers=1, TIMEBALL_HOUSEKEEPING__ALERT_SECONDS=str(seconds))
    # Each scheduler evaluates once when it begins: that is not what is measured.
    while not await system.value(_EVALUATED, begun):
        await asyncio.sleep(0.1)
    system.start("worker", "bench.app:tb")
    while await system.value("SELECT count(*) FROM timeball.finished WHERE state = 'dead'") < before + _NUMBER:
        await asyncio.sleep(0.5)
    system.stop()
    return float(await system.value(_DRAINED, begun))
