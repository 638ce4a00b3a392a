"""How late do one-off jobs start at so many a second, with a million others waiting?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bench.growing import settle
from bench.lab import Lab
from bench.load import bare_claims
from bench.multiply import add_waiting
from bench.notebook import MILLISECONDS
from bench.punctuality import note_lateness, percentiles
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "lateness of one-off jobs, a million waiting, two workers with default slots"
LIMIT = "bare claims of one"
TARGETS = {(f"at {rate:,}/s", "p99 late"): "below 5 ms" for rate in (100, 500, 1_000)}
_RATES = (100, 500, 1_000, 5_000)
_SECONDS, _ROUNDS, _MORE_ROUNDS = 2, 3, 9
_WAITING = 1_000_000
_CLAIMS = 100


async def ask(lab: Lab) -> None:
    """Two workers and a scheduler, default settings; all rates in turn, several times.

    A worker that claims a row at its instant is late by the claim: that is the limit, on a database of its own without other workers.
    """
    async with lab.system() as system, lab.system() as bare:
        await add_waiting(system, 1, _WAITING, system.parts.env.clock.now() + timedelta(days=1))
        # Or autovacuum and the checkpointer are busy with the million.
        await settle(system)
        await system.start_nodes(schedulers=1, workers=2)
        for _ in range(_MORE_ROUNDS if lab.is_full else _ROUNDS):
            for figure, value in percentiles(await bare_claims(bare, _CLAIMS)).items():
                lab.note(LIMIT, figure, value, MILLISECONDS)
            for rate in _RATES:
                await _drop(lab, system, rate)


async def _drop(lab: Lab, system: System, rate: int) -> None:
    clock = system.parts.env.clock
    before = await system.value("SELECT count(*) FROM timeball.finished")
    number = rate * _SECONDS
    # Time enough to write them all before the first is due.
    first = clock.now() + timedelta(seconds=1.5 + number / 4_000)
    specs = [JobSpec(handler="bench.noop", scheduled_at=first + timedelta(seconds=n / rate)) for n in range(number)]
    for start in range(0, number, 1_000):
        await system.parts.commands.jobs.create_all(specs[start : start + 1_000])
    await asyncio.sleep(max((first - clock.now()).total_seconds(), 0) + _SECONDS)
    await system.wait_for_finished(before + number)
    await note_lateness(lab, system, f"at {rate:,}/s", first)
