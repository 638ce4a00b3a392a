"""How fast are jobs enqueued by one process, one by one and in bulk?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.notebook import RATE
from bench.peers.contest import Contest, Note
from bench.peers.stage import Stage

TITLE = "enqueuing from one process, jobs a second"
_WARM_UP = 50


def ask(contest: Contest) -> None:
    """Each call waits for the one before; nobody works meanwhile."""
    measure = partial(_enqueue, one_by_one=contest.sized(100, 1_000, 2_000), bulk=contest.sized(1_000, 10_000, 50_000))
    contest.interleave({"enqueue": measure}, contest.rounds)
    for variant in contest.asked():
        if "bulk" in variant.peer.cannot:
            contest.refuse(variant, variant.peer.cannot["bulk"], "in bulk")


def _enqueue(stage: Stage, one_by_one: int, bulk: int) -> Iterator[Note]:
    stage.ask("enqueue", first=0, count=_WARM_UP)
    yield "one by one", one_by_one / stage.ask("enqueue", first=_WARM_UP, count=one_by_one), RATE
    if "bulk" not in stage.peer.cannot:
        yield "in bulk", bulk / stage.ask("enqueue_many", first=10_000, count=bulk), RATE
