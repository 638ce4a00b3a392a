"""How fast are jobs enqueued by one process, one by one and in bulk?"""

from __future__ import annotations

from collections.abc import Iterator

from bench.notebook import RATE
from bench.peers.contest import Contest, Note
from bench.peers.stage import Stage

TITLE = "enqueuing from one process, jobs a second"
_WARM_UP = 50
_ONE_BY_ONE = 500
_BULK = 10_000


def ask(contest: Contest) -> None:
    """Each call waits for the one before; nobody works meanwhile."""
    contest.interleave({"enqueue": _enqueue}, rounds=5 if contest.is_full else 2)


def _enqueue(stage: Stage) -> Iterator[Note]:
    stage.ask("enqueue", first=0, count=_WARM_UP)
    yield "one by one", _ONE_BY_ONE / stage.ask("enqueue", first=_WARM_UP, count=_ONE_BY_ONE), RATE
    if "bulk" not in stage.peer.cannot:
        yield "in bulk", _BULK / stage.ask("enqueue_many", first=10_000, count=_BULK), RATE
