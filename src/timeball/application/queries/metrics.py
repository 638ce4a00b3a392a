"""Counts and rates from rollups: of this moment, of a window, and of a past too dense to read run by run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.forecast.timeline import MAX_MARKS, BucketLoad, MarkRow, TimelineMark, TimelineMarkKind
from timeball.domain.rollup import HOURS_KEPT, MINUTES_KEPT, Rollup, RollupPeriod, RollupQuery, sum_rollups
from timeball.store.rollups import INSTALLATION_SERIES, series_of_queue

if TYPE_CHECKING:
    from timeball.domain.node import NodeStatus
    from timeball.domain.rollup import EndedExample, JobSummary
    from timeball.domain.values.ids import JobId
    from timeball.store.diagnostics import GaugeStore
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE, _TEN_MINUTES, _HOUR = timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1)
# Queues with a line of their own; the total number is reported beside them.
MAX_LISTED_QUEUES = 100
# Counters have examples among so many of the last hour.
_MAX_EXAMPLES = 300
# Rollup steps in a bucket of a load, if the bucket is long enough.
_STEPS_A_BUCKET = 4
MAX_WINDOW = HOURS_KEPT


@dataclass(frozen=True, slots=True)
class CurrentCounts:
    """The numbers of waiting and running executions at this moment; the counts stop at 10,001."""

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
    """The rollup of each step of a window, empty steps included."""

    since: datetime
    until: datetime
    step: timedelta
    points: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class Overview:
    """This moment and the last hour, with queues and nodes."""

    now: CurrentCounts
    hour: Series
    queues: Sequence[dict[str, Any]]
    nodes: Sequence[NodeStatus]

    @property
    def number_of_queues(self) -> int:
        """The number of queues in use; *queues* may hold fewer."""
        return self.queues[0]["total"] if self.queues else 0

    @property
    def last_hour(self) -> Rollup:
        """The last hour as one rollup."""
        return sum_rollups(self.hour.points, self.hour.since)


@dataclass(frozen=True, slots=True)
class Stats:
    """The rollup of a window: in total and by handler."""

    since: datetime
    until: datetime
    total: Rollup
    by_handler: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class MetricsScope:
    """Which rollups: those of a job, a queue or a handler, or all."""

    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None


class MetricsQueries:
    """Reads counts and rates from rollups, and gauges by bounded reads."""

    def __init__(self, store: Store, listing: ListingStore, gauges: GaugeStore, named_jobs: int) -> None:
        self._store = store
        self._listing = listing
        self._gauges = gauges
        self._named_jobs = named_jobs

    async def overview(self) -> Overview:
        """This moment and the last hour."""
        queues = await self._listing.queues(limit=MAX_LISTED_QUEUES, by_need=True)
        gauges = await self._gauges.present()
        moment: datetime = gauges.pop("moment")
        waits = [
            max((moment - queue["oldest_at"]).total_seconds(), 0.0)
            for queue in queues
            if queue["oldest_at"] is not None
        ]
        now = CurrentCounts(at=moment, oldest_seconds=max(waits, default=0.0), **gauges)
        return Overview(now, await self.series(_HOUR), queues, await self._store.nodes.list())

    async def stats(self, window: timedelta, whose: MetricsScope = MetricsScope()) -> Stats:
        """The rollup of the last *window*: to the minute within eight days, to the hour beyond."""
        step = _MINUTE if window <= MINUTES_KEPT else _HOUR
        query = self._query(window, step, whose)
        groups = sorted(await self._store.rollups.groups(query), key=lambda group: group.handler)
        by_handler = [
            sum_rollups(group, query.since, handler=handler)
            for handler, group in groupby(groups, lambda group: group.handler)
        ]
        return Stats(query.since, query.until, sum_rollups(groups, query.since), by_handler)

    async def series(self, window: timedelta, whose: MetricsScope = MetricsScope()) -> Series:
        """Rollups by the minute within a day, by ten minutes within eight days, by the hour beyond."""
        step = _MINUTE if window <= timedelta(days=1) else _TEN_MINUTES if window <= MINUTES_KEPT else _HOUR
        query = self._query(window, step, whose)
        return _complete(query, step, await self._store.rollups.series(query, step))

    async def history(self, window: timedelta, step: timedelta, whose: MetricsScope = MetricsScope()) -> Series:
        """The counts of a long window in steps of whole hours, without percentiles; the step that has begun is the last one."""
        query = replace(self._query(window, step, whose), span=RollupPeriod.HOUR)
        return _complete(query, step, await self._store.rollups.series(query, step, with_sketches=False))

    async def total(self, series: Series, whose: MetricsScope) -> Rollup:
        """The window of a history as one rollup, with its percentiles."""
        query = RollupQuery(
            since=series.since,
            until=series.until,
            job_id=whose.job_id,
            queue=whose.queue,
            handler=whose.handler,
            span=RollupPeriod.HOUR,
        )
        return sum_rollups(await self._store.rollups.groups(query), series.since)

    async def ever(self) -> list[Rollup]:
        """The rollups of all time, by queue and handler."""
        query = RollupQuery(since=_EPOCH, until=_EPOCH + _MINUTE, span=RollupPeriod.EVER)
        return await self._store.rollups.groups(query)

    async def jobs(self) -> list[JobSummary]:
        """What the latest runs of recurring jobs tell: of as many with a name as the settings say, and of the others as one."""
        return await self._gauges.jobs(self._named_jobs)

    async def examples(self) -> list[EndedExample]:
        """Some of what ended within the last hour, the latest first."""
        return await self._gauges.examples(self._store.env.clock.now() - _HOUR, _MAX_EXAMPLES)

    async def database(self) -> dict[str, Any]:
        """Gauges of the database itself."""
        return await self._gauges.database()

    def _query(self, window: timedelta, step: timedelta, whose: MetricsScope) -> RollupQuery:
        # The step that has begun belongs to the window.
        until = _EPOCH + ((self._store.env.clock.now() - _EPOCH) // step + 1) * step
        return RollupQuery(
            since=until - max(window // step, 1) * step,
            until=until,
            job_id=whose.job_id,
            queue=whose.queue,
            handler=whose.handler,
            span=RollupPeriod.HOUR if step == _HOUR else RollupPeriod.MINUTE,
        )


def _complete(query: RollupQuery, step: timedelta, rollups: Sequence[Rollup]) -> Series:
    """A series with its empty steps."""
    by_instant = {rollup.at: rollup for rollup in rollups}
    number = (query.until - query.since) // step
    instants = [query.since + index * step for index in range(number)]
    return Series(query.since, query.until, step, [by_instant.get(at) or Rollup(at=at) for at in instants])


@dataclass(frozen=True, slots=True)
class RollupHistory:
    """The part of a past from *start* on that is too long to read run by run, from the rollups.

    Rollups count what ended in a minute, so the two parts meet at a whole minute: what ended before it is counted, what
    ended after it is read. Only hours are kept beyond eight days; there the parts meet at a whole hour.
    """

    store: Store
    start: datetime
    now: datetime

    @property
    def _unit(self) -> timedelta:
        return _HOUR if self.start < self.now - MINUTES_KEPT else _MINUTE

    def edge_after(self, cut_before: datetime) -> datetime:
        """The instant at which the two parts meet."""
        return cut_before + (_EPOCH - cut_before) % self._unit

    async def complete(
        self, rows: Sequence[MarkRow], apart: timedelta, series_of: Callable[[str], UUID]
    ) -> list[MarkRow]:
        """Rows whose cut-off past is completed from rollups."""
        edges = {series_of(row.key): self.edge_after(row.cut_before) for row in rows if row.cut_before is not None}
        if not edges:
            return list(rows)
        # No more steps in all than a view may have marks.
        step = self._whole(max(apart, (max(edges.values()) - self.start) * (len(edges) / MAX_MARKS)))
        counted = await self._rollups(edges, step)
        return [
            row if row.cut_before is None else self._completed(row, series_of(row.key), counted, step) for row in rows
        ]

    def _completed(
        self, row: MarkRow, series: UUID, counted: Mapping[UUID, Sequence[Rollup]], step: timedelta
    ) -> MarkRow:
        assert row.cut_before is not None
        edge = self.edge_after(row.cut_before)
        read = [mark for mark in row.marks if mark.kind is not TimelineMarkKind.PAST or mark.end >= edge]
        marks = [mark for rollup in counted.get(series, ()) if (mark := _mark(rollup, step, edge)) is not None]
        return replace(row, marks=[*marks, *read], cut_before=None)

    async def load(self, load: BucketLoad, until: datetime, queue: str | None) -> None:
        """Add to a load what ended before *until*, an instant at which the parts may meet."""
        series = INSTALLATION_SERIES if queue is None else series_of_queue(queue)
        step = max(timedelta(seconds=load.width / _STEPS_A_BUCKET) // self._unit * self._unit, self._unit)
        for rollup in (await self._rollups({series: until}, step)).get(series, ()):
            counts, seconds = rollup.counts, rollup.duration_seconds
            ended = counts.succeeded + counts.died + counts.cancelled
            load.add_ended(min(rollup.at + step, until), seconds, seconds / max(ended, 1))
            load.starts[load.bucket(rollup.at)] += counts.starts

    async def _rollups(self, untils: Mapping[UUID, datetime], step: timedelta) -> Mapping[UUID, Sequence[Rollup]]:
        span = RollupPeriod.HOUR if self._unit == _HOUR else RollupPeriod.MINUTE
        return await self.store.rollups.tallies(untils, self.start, span, step)

    def _whole(self, step: timedelta) -> timedelta:
        return max(step + (-step) % self._unit, self._unit)


def _mark(rollup: Rollup, step: timedelta, edge: datetime) -> TimelineMark | None:
    counts = rollup.counts
    ended = {"succeeded": counts.succeeded, "dead": counts.died, "cancelled": counts.cancelled}
    states = {state: number for state, number in ended.items() if number}
    if not states:
        return None
    end = min(rollup.at + step, edge)
    return TimelineMark(kind=TimelineMarkKind.PAST, start=rollup.at, end=end, count=sum(states.values()), states=states)
