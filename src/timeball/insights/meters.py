"""Numbers: of this moment, of a window, minute by minute, and of all time. All of them from rollups and bounded looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from timeball.domain.ids import JobId
from timeball.domain.node import NodeStatus
from timeball.domain.rollup import HOURS_KEPT, MINUTES_KEPT, Rollup, RollupQuery, Span, summed
from timeball.store.interface import Store
from timeball.store.listing import Listing
from timeball.store.meters import Gauges

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE, _TEN_MINUTES, _HOUR = timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1)
LONGEST_WINDOW = HOURS_KEPT


@dataclass(frozen=True, slots=True)
class Now:
    """What waits and runs at this moment; the counts stop at 10,001."""

    at: datetime
    running: int
    queued: int
    scheduled: int
    retrying: int
    late: int
    overdue: int
    dead: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Series:
    """What happened in each step of a window, steps without anything included."""

    since: datetime
    until: datetime
    step: timedelta
    points: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class Overview:
    """This moment and the last hour, with queues and nodes."""

    now: Now
    hour: Series
    queues: Sequence[dict[str, Any]]
    nodes: Sequence[NodeStatus]

    @property
    def number_of_queues(self) -> int:
        """How many queues are in use; *queues* may be fewer."""
        return self.queues[0]["total"] if self.queues else 0

    @property
    def last_hour(self) -> Rollup:
        """The last hour as one."""
        return summed(self.hour.points, self.hour.since)


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened in a window: in all, and by handler."""

    since: datetime
    until: datetime
    total: Rollup
    by_handler: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose numbers: a job's, a queue's, a handler's, or all."""

    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None


# How many queues the numbers tell of one by one; how many there are is told beside them.
MOST_TOLD_QUEUES = 100


class Meters:
    """Reads the numbers."""

    def __init__(self, store: Store, listing: Listing) -> None:
        self._store = store
        self._listing = listing
        self._gauges = Gauges(store.database)

    async def overview(self) -> Overview:
        """This moment and the last hour."""
        queues = await self._listing.queues(limit=MOST_TOLD_QUEUES, by_need=True)
        found = await self._gauges.present()
        moment: datetime = found.pop("moment")
        waits = [
            max((moment - one["oldest_at"]).total_seconds(), 0.0) for one in queues if one["oldest_at"] is not None
        ]
        now = Now(at=moment, oldest_seconds=max(waits, default=0.0), **found)
        return Overview(now, await self.series(_HOUR), queues, await self._store.nodes.list())

    async def stats(self, window: timedelta, whose: Whose = Whose()) -> Stats:
        """What happened in the last while; to the minute within eight days, to the hour beyond."""
        step = _MINUTE if window <= MINUTES_KEPT else _HOUR
        query = self._query(window, step, whose)
        groups = sorted(await self._store.rollups.groups(query), key=lambda group: group.handler)
        by_handler = [
            summed(some, query.since, handler=handler) for handler, some in groupby(groups, lambda group: group.handler)
        ]
        return Stats(query.since, query.until, summed(groups, query.since), by_handler)

    async def series(self, window: timedelta, whose: Whose = Whose()) -> Series:
        """What happened minute by minute within a day, in steps of ten minutes within eight, by the hour beyond."""
        step = _MINUTE if window <= timedelta(days=1) else _TEN_MINUTES if window <= MINUTES_KEPT else _HOUR
        query = self._query(window, step, whose)
        found = {one.at: one for one in await self._store.rollups.series(query, step)}
        number = (query.until - query.since) // step
        instants = [query.since + place * step for place in range(number)]
        return Series(query.since, query.until, step, [found.get(at) or Rollup(at=at) for at in instants])

    async def ever(self) -> list[Rollup]:
        """What happened since there are rollups, by queue and handler."""
        query = RollupQuery(since=_EPOCH, until=_EPOCH + _MINUTE, span=Span.EVER)
        return await self._store.rollups.groups(query)

    async def database(self) -> dict[str, Any]:
        """How the database itself is."""
        return await self._gauges.database()

    def _query(self, window: timedelta, step: timedelta, whose: Whose) -> RollupQuery:
        # The step that has begun belongs to the window.
        until = _EPOCH + ((self._store.env.clock.now() - _EPOCH) // step + 1) * step
        return RollupQuery(
            since=until - max(window // step, 1) * step,
            until=until,
            job_id=whose.job_id,
            queue=whose.queue,
            handler=whose.handler,
            span=Span.HOUR if step == _HOUR else Span.MINUTE,
        )
