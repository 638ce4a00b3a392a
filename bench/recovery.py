"""How long until the work of a killed worker is finished by another one?"""

from __future__ import annotations

import asyncio
import signal

from bench.lab import Lab
from bench.notebook import SECONDS
from timeball.domain.job_fields import JobSpec

TITLE = "work of a worker that was killed, finished by another"
LIMIT = "no worker killed"
_DEFAULT, _FAST = "default settings", "fast profile"
TARGETS = {(_DEFAULT, "after"): "20 s", (_FAST, "after"): "4.5 s"}
_FAST_PROFILE = {
    "TIMEBALL_WORKER__LEASE_SECONDS": "2.4",
    "TIMEBALL_WORKER__RENEW_SECONDS": "0.8",
    "TIMEBALL_HOUSEKEEPING__REAP_SECONDS": "0.5",
}
_ROUNDS = 3
_JOBS = 20
_RUNS_FOR = 1.0
_LAST_END = "SELECT max(finished_at) FROM timeball.finished"


async def ask(lab: Lab) -> None:
    """Twenty jobs of a second on one worker; it is killed in the midst of them, and another one is there.

    With default settings nearly all of it is waiting for a lease to end: the rounds of these wait at the same time, and beside them
    the others take turns.
    """
    await asyncio.gather(*(_measure(lab, _DEFAULT, {}) for _ in range(_ROUNDS)), _take_turns(lab))


async def _take_turns(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        await _measure(lab, LIMIT, {}, is_killed=False)
        await _measure(lab, _FAST, _FAST_PROFILE)


async def _measure(lab: Lab, subject: str, settings: dict[str, str], *, is_killed: bool = True) -> None:
    async with lab.system() as system:
        await system.start_nodes(schedulers=1, workers=1, **settings)
        spec = JobSpec(handler="bench.sleep", initial_backoff_ms=0)
        await system.parts.commands.jobs.enqueue_many(spec, [f'{{"seconds": {_RUNS_FOR}}}'] * _JOBS)
        while await system.value("SELECT count(*) FROM timeball.running") < _JOBS:
            await asyncio.sleep(0.01)
        begun = system.parts.env.clock.now()
        if is_killed:
            system.nodes[1].send_signal(signal.SIGKILL)
            system.start("worker", "bench.app:tb", **settings)
        await system.wait_for_finished(_JOBS)
        # By the history, and not by when we looked: others are waited for at the same time.
        lab.note(subject, "after", (await system.value(_LAST_END) - begun).total_seconds(), SECONDS)
