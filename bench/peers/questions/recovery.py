"""How long until the work of a killed worker is finished by another one?

All peers wait at the same time, because waiting is most of it; killing and starting is done by one after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.notebook import NUMBER, SECONDS
from bench.peers.catalog import Variant
from bench.peers.contest import Contest, Note
from bench.peers.stage import Stage

TITLE = "eight jobs of a worker that was killed (kill -9), finished by another"
_JOBS = 8
_JOB_SECONDS = 1.0
# In the midst of it, and not while the worker still takes its jobs.
_INTO_THE_JOB = 0.4
_START_SECONDS = 60.0


def ask(contest: Contest) -> None:
    """A worker with long jobs is killed in the midst of them, when another one has just been started."""
    limit = contest.sized(45, 120, 300)
    alone = threading.Lock()
    variants = contest.asked()

    def measure(variant: Variant) -> None:
        contest.measure(variant, "recovery", partial(_kill, alone=alone, limit=limit))

    with ThreadPoolExecutor(max_workers=len(variants) or 1) as pool:
        list(pool.map(measure, variants))


def _kill(stage: Stage, alone: threading.Lock, limit: int) -> Iterator[Note]:
    with alone:
        killed_at = _kill_in_the_midst(stage)
    deadline = killed_at + limit
    while stage.marks.finished(0, _JOBS) < _JOBS and time.monotonic() < deadline:
        time.sleep(0.1)
    finished = stage.marks.finished(0, _JOBS)
    yield f"finished within {limit} s", finished, NUMBER
    if finished == _JOBS:
        yield "the last one after", stage.marks.last_end(0, _JOBS) - killed_at, SECONDS


def _kill_in_the_midst(stage: Stage) -> float:
    stage.start_scheduler("recovery")
    if stage.peer.hears_others:
        victims = stage.start()
        stage.warm_up()
    before = stage.marks.count()
    stage.ask("enqueue_slow", first=0, count=_JOBS, seconds=_JOB_SECONDS)
    if not stage.peer.hears_others:
        victims = stage.start()
    if not stage.marks.wait_for(before + 1, _START_SECONDS):
        raise RuntimeError(f"no job started: {stage.log('worker')[-300:]}")
    time.sleep(_INTO_THE_JOB)
    stage.start()
    for victim in victims:
        stage.kill(victim)
    return time.monotonic()
