"""Ten thousand schedules that are all due at second zero of the minute."""

from __future__ import annotations

from datetime import timedelta

from bench.lab import Lab
from bench.punctuality import BARE_STATEMENTS, note_bare_lateness, note_lateness
from timeball.domain.job_fields import JobSpec

TITLE = "10,000 schedules every minute, all at second zero, two workers"
LIMIT = BARE_STATEMENTS
_SCHEDULES = 10_000
# A minute is a minute: the usual run waits for the beginning of one.
_MINUTES, _MORE_MINUTES = 1, 3


async def ask(lab: Lab) -> None:
    """The beginnings of some minutes, with one scheduler and two workers; between them, the bare statements."""
    minutes = _MORE_MINUTES if lab.is_full else _MINUTES
    async with lab.system() as system:
        await system.start_nodes(schedulers=1, workers=2)
        now = system.parts.env.clock.now()
        # The next minute must not begin before they are all written.
        zero = (now + timedelta(seconds=75)).replace(second=0, microsecond=0)
        for start in range(0, _SCHEDULES, 1_000):
            await system.parts.commands.jobs.create_all(
                [
                    JobSpec(
                        name=f"minutely-{start + number}",
                        handler="bench.noop",
                        schedule="* * * * *",
                        starts_at=zero,
                        ends_at=zero + timedelta(minutes=minutes, seconds=-30),
                    )
                    for number in range(1_000)
                ]
            )
        for minute in range(minutes):
            await note_bare_lateness(lab, _SCHEDULES)
            await system.wait_for_finished(_SCHEDULES * (minute + 1))
            await note_lateness(lab, system, "Timeball", zero + timedelta(minutes=minute))
