"""Ten thousand schedules that are all due at second zero of the minute."""

from __future__ import annotations

from datetime import timedelta

from bench.lab import Lab
from bench.punctuality import BARE_STATEMENTS, note_bare_lateness, note_lateness
from timeball.domain.job import JobSpec

TITLE = "10,000 schedules every minute, all at second zero, two workers"
LIMIT = BARE_STATEMENTS
_SCHEDULES = 10_000


async def ask(lab: Lab) -> None:
    """One minute's beginning, with one scheduler and two workers."""
    await note_bare_lateness(lab, _SCHEDULES)
    async with lab.system() as system:
        await system.start_nodes(schedulers=1, workers=2)
        now = system.parts.env.clock.now()
        # The next minute must not begin before they are all written.
        zero = (now + timedelta(seconds=75)).replace(second=0, microsecond=0)
        for start in range(0, _SCHEDULES, 1_000):
            await system.parts.commands.create_all(
                [
                    JobSpec(
                        name=f"minutely-{start + number}",
                        handler="bench.noop",
                        schedule="* * * * *",
                        starts_at=zero,
                        ends_at=zero + timedelta(seconds=30),
                    )
                    for number in range(1_000)
                ]
            )
        await system.wait_for_finished(_SCHEDULES)
        await note_lateness(lab, system, "Timeball", zero)
