"""Does a backlog of future jobs slow the drain down?"""

from __future__ import annotations

from datetime import timedelta

from bench.drain import _engine_rate
from bench.raw import fill, raw_drain_rate
from bench.system import system

_BACKLOGS = (0, 100_000, 1_000_000)


async def ask() -> str:
    """The same drain with nothing, a hundred thousand and a million jobs waiting for tomorrow."""
    rates: list[float] = []
    async with system() as bench:
        waiting = 0
        for backlog in _BACKLOGS:
            await fill(bench, backlog - waiting, at=bench.parts.env.clock.now() + timedelta(days=1))
            waiting = backlog
            raw = await raw_drain_rate(bench, 30_000)
            rates.append(await _engine_rate(bench, 1) / raw)
        bench.verify()
    figures = ", ".join(f"{backlog:,}: {rate:.2f}" for backlog, rate in zip(_BACKLOGS, rates, strict=True))
    return f"rate as a ratio to raw statements in the same state, by backlog: {figures}; million to none {rates[-1] / rates[0]:.2f}"
