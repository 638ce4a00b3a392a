"""How long until the work of a killed worker is finished by another one?"""

from __future__ import annotations

import asyncio
import signal
import time

from bench.lab import Lab
from bench.notebook import SECONDS
from timeball.domain.job import JobSpec

TITLE = "work of a worker that was killed, finished by another"
LIMIT = "nobody killed"
TARGETS = {("default settings", "after"): "20 s", ("fast profile", "after"): "4.5 s"}
_PROFILES = {
    "default settings": {},
    "fast profile": {
        "TIMEBALL_WORKER__LEASE_SECONDS": "2.4",
        "TIMEBALL_WORKER__RENEW_SECONDS": "0.8",
        "TIMEBALL_HOUSEKEEPING__REAP_SECONDS": "0.5",
    },
}
_JOBS = 20
_RUNS_FOR = 0.5


async def ask(lab: Lab) -> None:
    """Twenty jobs of half a second on one worker; it is killed in the midst of them, and another one is there."""
    await _measure(lab, LIMIT, {}, is_killed=False)
    for profile, settings in _PROFILES.items():
        await _measure(lab, profile, settings, is_killed=True)


async def _measure(lab: Lab, subject: str, settings: dict[str, str], *, is_killed: bool) -> None:
    async with lab.system() as system:
        await system.start_nodes(schedulers=1, workers=1, **settings)
        spec = JobSpec(handler="bench.sleep", initial_backoff_ms=0)
        await system.parts.commands.enqueue_many(spec, [f'{{"seconds": {_RUNS_FOR}}}'] * _JOBS)
        while await system.value("SELECT count(*) FROM timeball.running") < _JOBS:
            await asyncio.sleep(0.01)
        if is_killed:
            system.start("worker", "bench.app:tb", **settings)
            system.nodes[1].send_signal(signal.SIGKILL)
        begun = time.monotonic()
        await system.wait_for_finished(_JOBS)
        lab.note(subject, "after", time.monotonic() - begun, SECONDS)
