"""How fast are no-op jobs drained, by one worker process and by two?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from bench.notebook import RATE
from bench.peers.contest import Contest, FellShort, Note
from bench.peers.stage import Stage

TITLE = "draining jobs that do nothing, jobs a second"
_START_SECONDS = 60.0
# Who is slow is stopped; its rate is that of what it has run until then.
_LONGEST = 40.0
# Not before the slowest process is there, and everybody has warmed up.
_WARM_UP_SHARE = 0.1
_FEWEST = 20


def ask(contest: Contest) -> None:
    """Everything is enqueued first; then the workers start."""
    share = share_of(contest)
    measures = {
        "one process": partial(_drain, processes=1, share=share),
        "two processes": partial(_drain, processes=2, share=share),
    }
    contest.interleave(measures, contest.rounds)


def share_of(contest: Contest) -> float:
    """How much of a peer's usual number of jobs is drained."""
    return contest.sized(10, 100, 200) / 100


def _drain(stage: Stage, processes: int, share: float) -> Iterator[Note]:
    figure = "one process" if processes == 1 else "two processes"
    yield figure, drain_rate(stage, share, processes), RATE


def drain_rate(stage: Stage, share: float, processes: int = 1) -> float:
    """Jobs a second from the first start after the warm-up to the last start, or to the last there was time for."""
    number = round(stage.variant.drain_jobs * share) * processes
    stage.ask("enqueue_many", first=0, count=number)
    stage.start(processes)
    if not stage.marks.wait_for(1, _START_SECONDS):
        raise RuntimeError(f"no job ran in {_START_SECONDS:.0f} s: {stage.log('worker')[-300:]}")
    stage.marks.wait_until(number, time.monotonic() + _LONGEST)
    starts = [mark.at for mark in stage.marks.of(0, number)]
    if len(starts) < _FEWEST:
        raise FellShort(f"{len(starts):,} of {number:,} ran in {_LONGEST:.0f} s")
    first = round(len(starts) * _WARM_UP_SHARE)
    return (len(starts) - 1 - first) / (starts[-1] - starts[first])
