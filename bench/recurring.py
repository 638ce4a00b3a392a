"""A thousand schedules that are due every second: is each occurrence run once, and how late?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bench.lab import Lab
from bench.notebook import NUMBER
from bench.punctuality import BARE_STATEMENTS, note_bare_lateness, note_lateness
from timeball.domain.job import JobSpec

TITLE = "1,000 schedules every second for 20 s, two workers"
LIMIT = BARE_STATEMENTS
TARGETS = {
    (subject, figure): text
    for subject in ("one scheduler", "two schedulers")
    for figure, text in {"recorded once": "20,000", "p99 late": "below 25 ms"}.items()
}
_SCHEDULES = 1_000
_SECONDS = 20
_ONCE = "SELECT count(DISTINCT (job_id, scheduled_for)) - (count(*) - count(DISTINCT id)) FROM timeball.finished"


async def ask(lab: Lab) -> None:
    """The same with one scheduler and with two."""
    await note_bare_lateness(lab, _SCHEDULES)
    for schedulers, subject in ((1, "one scheduler"), (2, "two schedulers")):
        async with lab.system() as system:
            await system.start_nodes(schedulers=schedulers, workers=2)
            await asyncio.sleep(1)
            first = system.parts.env.clock.now() + timedelta(seconds=3)
            last = first + timedelta(seconds=_SECONDS - 0.5)
            await system.parts.commands.create_all(
                [
                    JobSpec(
                        name=f"every-second-{number}",
                        handler="bench.noop",
                        interval_seconds=1,
                        scheduled_at=first,
                        ends_at=last,
                    )
                    for number in range(_SCHEDULES)
                ]
            )
            await system.wait_for_finished(_SCHEDULES * _SECONDS)
            lab.note(subject, "recorded once", await system.value(_ONCE), NUMBER)
            await note_lateness(lab, system, subject, first)
