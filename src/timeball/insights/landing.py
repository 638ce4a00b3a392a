"""What else runs at the instant that a schedule names, and how many slots that needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.domain.capacity import Pool, pools
from timeball.domain.foresight import GUESS, Line
from timeball.domain.ids import JobId
from timeball.domain.node import NodeKind
from timeball.insights.explain import living
from timeball.store.interface import Store
from timeball.store.outlook import Outlook

_TICK = timedelta(microseconds=1)
# A one-off that began longer ago than this is taken to have ended.
_LOOK_BACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingWish:
    """An instant and a queue; the job whose schedule is looked at does not land on itself."""

    at: datetime
    queue: str
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What runs at an instant in the queues that share the slots, the longest first; *need* counts the new run too.

    *left_out* jobs were too many to foresee.
    """

    at: datetime
    jobs: Sequence[Line]
    one_offs: int
    need: int
    slots: int
    left_out: bool


class Landings:
    """Looks at single instants."""

    def __init__(self, store: Store, outlook: Outlook) -> None:
        self._store = store
        self._outlook = outlook

    async def at(self, wish: LandingWish) -> Landing:
        """What a run that starts then, in this queue, meets."""
        lines, has_more, _ = await self._outlook.futures(None)
        pool = await self._pool(wish.queue, {line.queue for line in lines})
        others = [line for line in lines if line.queue in pool.queues and line.job_id != wish.job_id]
        # Aside: thousands of cron expressions take a while, and others wait for this loop.
        running = await asyncio.to_thread(_running_at, others, wish.at)
        one_offs = await self._one_offs(wish, pool)
        return Landing(
            at=wish.at,
            jobs=sorted((line for line, _ in running), key=lambda line: line.duration, reverse=True),
            one_offs=one_offs,
            need=1 + one_offs + sum(runs for _, runs in running),
            slots=pool.slots,
            left_out=has_more,
        )

    async def _pool(self, queue: str, queues: set[str]) -> Pool:
        now = await self._store.history.moment()
        nodes = living(await self._store.nodes.list(), now)
        workers = [node for node in nodes if node.kind is NodeKind.WORKER and not node.draining]
        shared = pools(workers, queues | {queue}, await self._outlook.queue_limits())
        return min((pool for pool in shared if queue in pool.queues), key=lambda pool: pool.slots)

    async def _one_offs(self, wish: LandingWish, pool: Pool) -> int:
        due = await self._outlook.one_offs(wish.at - _LOOK_BACK, wish.at + _TICK, None)
        own = [run for run in due if run.queue in pool.queues and run.job_id != wish.job_id]
        durations = await self._outlook.durations_of(own)
        usual = [durations.of(run.job_id, run.handler) for run in own]
        ends = [run.started_at + (GUESS if one is None else one.median) for run, one in zip(own, usual, strict=True)]
        return sum(end > wish.at for end in ends)


def _running_at(lines: Iterable[Line], at: datetime) -> list[tuple[Line, int]]:
    """Those that start then or are not done by then, and how many runs of each."""
    counted = ((line, line.count(at - max(line.duration, _TICK) + _TICK, at + _TICK)) for line in lines)
    return [(line, runs) for line, runs in counted if runs]
