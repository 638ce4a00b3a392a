"""Does a backlog of future jobs slow the drain down?"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from bench.growing import settle
from bench.lab import Lab
from bench.load import drain_rate, fill

TITLE = "draining with jobs waiting for tomorrow"
LIMIT = "none waiting"
TARGETS = {("1,000,000 waiting", "rate"): "within 10 % of none waiting"}
_BACKLOGS = (100_000, 1_000_000)
_TEN_MILLION = 10_000_000
_NUMBER = 40_000


async def ask(lab: Lab) -> None:
    """One database for each backlog, drained in turn."""
    backlogs = (*_BACKLOGS, _TEN_MILLION) if lab.is_full else _BACKLOGS
    async with AsyncExitStack() as stack:
        systems = {LIMIT: await stack.enter_async_context(lab.system())}
        for backlog in backlogs:
            system = await stack.enter_async_context(lab.system())
            await fill(system, backlog, at=system.parts.env.clock.now() + timedelta(days=1))
            # Or autovacuum goes through what was filled in just while it is drained beside it.
            await settle(system)
            systems[f"{backlog:,} waiting"] = system
        variants = {name: partial(drain_rate, system, _NUMBER) for name, system in systems.items()}
        await lab.interleave(variants, "rate", rounds=3)
