"""Which collision is to be spread, and what came of looking for a way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from timeball.domain.collisions import Collision
from timeball.domain.ids import JobId
from timeball.domain.job import Job
from timeball.domain.spreading import Move, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadWish:
    """A collision of these queues at an instant, as a forecast of so many days finds it; the worst if several are meant."""

    queues: Sequence[str] = ()
    at: datetime | None = None
    days: int = 7
    timezone: str = "UTC"

    def choose(self, collisions: Sequence[Collision]) -> Collision | None:
        """The one that is meant, of those that are there, the worst first; the fewest queues if they are not told apart."""
        meant = [one for one in collisions if self._means(one)]
        return (
            min(meant, key=lambda one: len(one.pool.queues), default=None) if self.queues else next(iter(meant), None)
        )

    def _means(self, one: Collision) -> bool:
        is_then = self.at is None or any(start <= self.at < end for start, end in one.spans)
        return is_then and set(self.queues) <= set(one.pool.queues)


@dataclass(frozen=True, slots=True)
class Advice:
    """How a collision could be spread; *jobs* are those to be moved, as they are now."""

    spread: Spread
    jobs: Mapping[JobId, Job]

    @property
    def moves(self) -> list[Move]:
        """The moves, up to the first whose job was changed meanwhile: those after it count on it."""
        return list(takewhile(self._holds, self.spread.moves))

    def _holds(self, move: Move) -> bool:
        job = self.jobs.get(move.line.job_id)
        return job is not None and job.deleted_at is None and job.rule == move.line.rule
