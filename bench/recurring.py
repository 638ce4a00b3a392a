"""A thousand schedules that are due every second: is each occurrence run once, and how late?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bench.lab import Lab
from bench.notebook import NUMBER
from bench.punctuality import BARE_STATEMENTS, note_bare_lateness, note_lateness
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "1,000 schedules every second for 10 s in each round, two workers"
LIMIT = BARE_STATEMENTS
TARGETS = {
    (subject, figure): text
    for subject in ("one scheduler", "two schedulers")
    for figure, text in {"recorded once": "10,000", "p99 late": "below 25 ms"}.items()
}
_SCHEDULES = 1_000
_SECONDS, _ROUNDS, _MORE_ROUNDS = 10, 2, 6
_ONCE = """
SELECT count(DISTINCT (job_id, scheduled_for)) - (count(*) - count(DISTINCT id))
FROM timeball.finished
WHERE scheduled_for >= $1
"""


async def ask(lab: Lab) -> None:
    """The bare statements, one scheduler and two, in turn: two systems, of which one has nothing to do while the other is watched."""
    async with lab.system() as one, lab.system() as two:
        await one.start_nodes(schedulers=1, workers=2)
        await two.start_nodes(schedulers=2, workers=2)
        await asyncio.sleep(1)
        for round_ in range(_MORE_ROUNDS if lab.is_full else _ROUNDS):
            await note_bare_lateness(lab, _SCHEDULES)
            await _watch(lab, one, "one scheduler", round_)
            await _watch(lab, two, "two schedulers", round_)


async def _watch(lab: Lab, system: System, subject: str, round_: int) -> None:
    first = system.parts.env.clock.now() + timedelta(seconds=3)
    last = first + timedelta(seconds=_SECONDS - 0.5)
    await system.parts.commands.jobs.create_all(
        [
            JobSpec(
                name=f"every-second-{round_}-{number}",
                handler="bench.noop",
                interval_seconds=1,
                scheduled_at=first,
                ends_at=last,
            )
            for number in range(_SCHEDULES)
        ]
    )
    await system.wait_for_finished(_SCHEDULES * _SECONDS * (round_ + 1))
    lab.note(subject, "recorded once", await system.value(_ONCE, first), NUMBER)
    await note_lateness(lab, system, subject, first)
