"""Is a group drained as fast as work that belongs together in nothing?"""

from __future__ import annotations

from functools import partial

from bench.lab import Lab
from bench.load import drain_rate
from bench.system import System

TITLE = "draining groups of jobs that do nothing, each with a join"
LIMIT = "no groups"
_PARTS = 10_000
_LARGE, _SMALL = f"groups of {_PARTS:,}", "groups of 100"
TARGETS = {(_LARGE, "rate"): "0.8 of no groups"}
# Several seconds of each, as for the question about ordinary work.
_NUMBER = 60_000
_ROUNDS = 5


async def ask(lab: Lab) -> None:
    """Interleaved rounds, one worker. A join is an execution as its parts are."""
    async with lab.system() as system:
        await lab.interleave(
            {
                LIMIT: partial(drain_rate, system, _NUMBER),
                _LARGE: partial(_group_rate, system, _PARTS),
                _SMALL: partial(_group_rate, system, 100),
            },
            "rate",
            rounds=_ROUNDS,
        )


async def _group_rate(system: System, parts: int) -> float:
    groups = _NUMBER // parts
    return await drain_rate(system, groups * (parts + 1), work=partial(_begin, system, groups, parts))


async def _begin(system: System, groups: int, parts: int) -> None:
    call = {"handler": "bench.noop", "payload": {}}
    for _ in range(groups):
        await system.parts.commands.groups.begin({"group": [call] * parts, "then": call})
