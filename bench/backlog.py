"""Does a backlog of future jobs slow the drain down?"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from bench.growing import settle
from bench.lab import Lab
from bench.load import drain_rate, raw_drain_rate
from bench.multiply import add_waiting
from bench.notebook import RATIO

TITLE = "draining with jobs waiting for tomorrow"
LIMIT = "none waiting"
TARGETS = {("1,000,000 waiting", "rate"): "within 10 % of none waiting"}
_BACKLOGS = (100_000, 1_000_000)
_TEN_MILLION = 10_000_000
_NUMBER, _BARE_NUMBER = 40_000, 20_000
_ROUNDS = 3


async def ask(lab: Lab) -> None:
    """One database for each backlog, drained in turn: by a worker, and by the bare statements, which say what the database makes of it."""
    backlogs = (*_BACKLOGS, _TEN_MILLION) if lab.is_full else _BACKLOGS
    async with AsyncExitStack() as stack:
        systems = {LIMIT: await stack.enter_async_context(lab.system())}
        for backlog in backlogs:
            system = await stack.enter_async_context(lab.system())
            await add_waiting(system, 1, backlog, system.parts.env.clock.now() + timedelta(days=1))
            # Or autovacuum goes through what was filled in just while it is drained beside it.
            await settle(system)
            systems[f"{backlog:,} waiting"] = system
        by_worker = {name: partial(drain_rate, system, _NUMBER) for name, system in systems.items()}
        bare = {name: partial(raw_drain_rate, system, _BARE_NUMBER) for name, system in systems.items()}
        for _ in range(_ROUNDS):
            await lab.interleave(by_worker, "rate", rounds=1)
            await lab.interleave(bare, "bare statements", rounds=1)
    for name in systems:
        ratio = lab.notebook.median(name, "rate") / lab.notebook.median(name, "bare statements")
        lab.note(name, "rate to bare statements", ratio, RATIO)
