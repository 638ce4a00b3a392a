"""How soon does a job start that is enqueued while nothing else is to be done?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import quantiles

from bench.notebook import MILLISECONDS
from bench.peers.contest import Contest, Note
from bench.peers.stage import Stage

TITLE = "idle latency, one process"
_PAUSE = 0.02
_PATIENCE = 10.0


def ask(contest: Contest) -> None:
    """Single jobs with a pause between them."""
    measure = partial(_trickle, number=contest.sized(50, 250, 500))
    contest.interleave({"latency": measure}, contest.sized(1, 1, 3))


def _trickle(stage: Stage, number: int) -> Iterator[Note]:
    stage.start()
    stage.warm_up()
    before = stage.marks.count()
    moments = stage.ask("trickle", first=0, count=number, pause=_PAUSE)
    stage.marks.wait_for(before + number, _PATIENCE)
    starts = {mark.number: mark.at for mark in stage.marks.of(0, number)}
    if len(starts) < number:
        raise RuntimeError(f"only {len(starts)} of {number} ran")
    since_called = [(starts[index] - called / 1e9) * 1000 for index, (called, _) in enumerate(moments)]
    # A job that was quicker than the answer to whoever enqueued it did not keep anybody waiting.
    since_returned = [max((starts[index] - back / 1e9) * 1000, 0) for index, (_, back) in enumerate(moments)]
    yield "p50 after the call returned", percentile(since_returned, 50), MILLISECONDS
    yield "p99 after the call returned", percentile(since_returned, 99), MILLISECONDS
    yield "p50 from the call", percentile(since_called, 50), MILLISECONDS
    yield "p99 from the call", percentile(since_called, 99), MILLISECONDS


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which so many percent lie."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]
