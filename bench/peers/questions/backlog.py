"""How fast is the drain while many other jobs wait for tomorrow?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from bench.notebook import RATE
from bench.peers.contest import Contest, Note
from bench.peers.questions.drain import drain_rate, share_of
from bench.peers.stage import Stage

TITLE = "draining with jobs in the store that wait for tomorrow, jobs a second"
_FIRST_WAITING = 500_000_000
_TOMORROW = 24 * 3600.0


def ask(contest: Contest) -> None:
    """One process, as in the drain without a backlog."""
    waiting = contest.sized(1_000, 10_000, 200_000)
    measure = partial(_drain, waiting=waiting, share=share_of(contest))
    contest.interleave({f"{waiting:,} waiting": measure}, contest.sized(1, 1, 2))


def _drain(stage: Stage, waiting: int, share: float) -> Iterator[Note]:
    stage.ask("enqueue_at", first=_FIRST_WAITING, count=waiting, at=time.time() + _TOMORROW, rate=1_000)
    yield f"{waiting:,} waiting", drain_rate(stage, share), RATE
