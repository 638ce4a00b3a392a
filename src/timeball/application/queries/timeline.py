"""The timeline: past, running and predicted runs on one axis, and the slots they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from timeball.application.queries.metrics import RollupHistory
from timeball.domain.forecast.demand import ASSUMED_DURATION, FireTimeBudget, FireTimes, even_edges, slots_of
from timeball.domain.forecast.timeline import (
    PIXELS_PER_MARK,
    BucketLoad,
    MarkRow,
    TimelineMark,
    TimelineMarkKind,
    fit_rows,
)
from timeball.domain.freeze import Freeze, FreezeScope, format_freeze_id
from timeball.domain.node import NodeKind, NodeStatus, alive_nodes
from timeball.domain.values.ids import Incarnation, JobId, format_execution_id, format_id, format_job_id
from timeball.store.rollups import series_of_queue
from timeball.store.timeline import NO_DURATIONS, NamedJob, PastRuns, TimelineRun, TypicalDurations

if TYPE_CHECKING:
    from timeball.store.store import Store
    from timeball.store.timeline import TimelineStore

# Runs of the past that are read for all rows together, and for the jobs that are shown; a view cannot show more marks.
_SAMPLE = 1_000
_MAX_PAST = 2_000
_MIN_PAST = 20
_MAX_BAND_STEPS = 200
_PIXELS_A_STEP = 10
_MAX_DRAWN = 20_000


class RowsBy(StrEnum):
    """What the rows of a timeline stand for."""

    JOBS = "jobs"
    QUEUES = "queues"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRequest:
    """The period, the rows and the width in pixels of a timeline."""

    start: datetime
    end: datetime
    queue: str | None = None
    rows_by: RowsBy = RowsBy.JOBS
    limit: int = 50
    width: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BandStep:
    """The busy slots in one step of time: on average, and the most at once."""

    start: datetime
    end: datetime
    busy: float
    peak: int
    is_predicted: bool
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A timeline. *has_more* says that rows were left out; *left_out* jobs exceeded the budget.

    *durations_at* is when the typical durations were read; None if the period lies in the past.
    """

    now: datetime
    request: TimelineRequest
    rows: Sequence[MarkRow]
    has_more: bool
    slots: int
    band: Sequence[BandStep]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None


@dataclass(slots=True)
class TimelineData:
    """Everything that was read for one view."""

    past: Sequence[TimelineRun] = ()
    skips: Sequence[TimelineRun] = ()
    cut_before: datetime | None = None
    running: list[TimelineRun] = field(default_factory=list)
    one_offs: list[TimelineRun] = field(default_factory=list)
    fires: list[FireTimes] = field(default_factory=list)
    # Jobs that freezes hold all the time.
    held: list[FireTimes] = field(default_factory=list)
    names: dict[JobId, NamedJob] = field(default_factory=dict)
    durations: TypicalDurations = NO_DURATIONS
    durations_at: datetime | None = None
    workers: list[NodeStatus] = field(default_factory=list)
    left_out: int = 0
    freezes: list[Freeze] = field(default_factory=list)
    tags: Mapping[JobId, Collection[str]] = field(default_factory=dict)

    def typical(self, run: TimelineRun) -> timedelta | None:
        """The median duration of a run's job, if there is history."""
        typical = self.durations.of(run.job_id, run.handler)
        return None if typical is None else typical.median


class RowName(NamedTuple):
    """The name of a row; rows are sorted by it."""

    label: str
    key: str
    kind: str


@dataclass(slots=True)
class RowContent:
    """The runs of one row."""

    name: RowName
    past: list[TimelineRun] = field(default_factory=list)
    skips: list[TimelineRun] = field(default_factory=list)
    running: list[TimelineRun] = field(default_factory=list)
    one_offs: list[TimelineRun] = field(default_factory=list)
    fires: list[FireTimes] = field(default_factory=list)
    cut_before: datetime | None = None

    def is_held_by(self, freeze: Freeze, tags: Mapping[JobId, Collection[str]]) -> bool:
        """Whether nothing of the row starts in a freeze; a row of a queue may be held in part."""
        match self.name.kind:
            case "worker":
                return freeze.scope is FreezeScope.INSTALLATION
            case "queue":
                return freeze.holds(self.name.key, None, ())
            case _:
                lines = [(fires.job.queue, fires.job.job_id) for fires in self.fires[:1]]
                runs = [(run.queue, run.job_id) for part in self._runs for run in part[:1]]
                queue, job_id = [*lines, *runs][0]
                return freeze.holds(queue, job_id, tags.get(job_id, ()))

    @property
    def _runs(self) -> Sequence[Sequence[TimelineRun]]:
        return self.one_offs, self.running, self.past, self.skips


def group_by_row(
    data: TimelineData, name_of: Callable[[TimelineRun], RowName], name_of_line: Callable[[FireTimes], RowName]
) -> list[RowContent]:
    """All runs, grouped by row, in the order of the rows."""
    rows: dict[RowName, RowContent] = {}

    def parts(name: RowName) -> RowContent:
        row = rows.get(name)
        if row is None:
            row = rows[name] = RowContent(name, cut_before=data.cut_before)
        return row

    for run in data.past:
        parts(name_of(run)).past.append(run)
    for run in data.skips:
        parts(name_of(run)).skips.append(run)
    for run in data.running:
        parts(name_of(run)).running.append(run)
    for run in data.one_offs:
        parts(name_of(run)).one_offs.append(run)
    for fires in (*data.fires, *data.held):
        parts(name_of_line(fires)).fires.append(fires)
    return [rows[name] for name in sorted(rows)]


def draw_row(parts: RowContent, data: TimelineData, start: datetime, end: datetime, now: datetime) -> MarkRow:
    """A row with its marks; *start* and *end* are those of the view."""
    marks = [_past_mark(run) for run in parts.past]
    marks += [_skip_mark(run) for run in parts.skips]
    for run in parts.running:
        marks += _running_marks(run, data, now)
    marks += [_one_off_mark(run, data) for run in parts.one_offs]
    marks += _predicted_marks(parts.fires, max(start, now), end)
    name = parts.name
    return MarkRow(
        key=name.key,
        label=name.label,
        kind=name.kind,
        marks=marks,
        cut_before=parts.cut_before,
        freezes=[format_freeze_id(one.id) for one in data.freezes if parts.is_held_by(one, data.tags)],
    )


def _past_mark(run: TimelineRun) -> TimelineMark:
    return TimelineMark(
        kind=TimelineMarkKind.PAST,
        start=run.started_at,
        end=run.finished_at or run.started_at,
        states={run.state or "": 1},
        execution_id=format_execution_id(run.id),
    )


def _skip_mark(run: TimelineRun) -> TimelineMark:
    return TimelineMark(
        kind=TimelineMarkKind.SKIPPED,
        start=run.started_at,
        end=run.finished_at or run.started_at,
        count=run.number,
        states={run.state or "": run.number},
        execution_id=format_execution_id(run.id) if run.number == 1 else None,
    )


def _running_marks(run: TimelineRun, data: TimelineData, now: datetime) -> Iterable[TimelineMark]:
    """The elapsed part of a run, and the part that it usually still takes."""
    shown = format_execution_id(run.id)
    yield TimelineMark(
        kind=TimelineMarkKind.RUNNING, start=run.started_at, end=now, states={"running": 1}, execution_id=shown
    )
    typical = data.typical(run)
    if typical is not None and run.started_at + typical > now:
        yield TimelineMark(kind=TimelineMarkKind.PREDICTED, start=now, end=run.started_at + typical, execution_id=shown)


def _one_off_mark(run: TimelineRun, data: TimelineData) -> TimelineMark:
    typical = data.typical(run)
    return TimelineMark(
        kind=TimelineMarkKind.PREDICTED,
        start=run.started_at,
        end=run.started_at + (typical or ASSUMED_DURATION),
        execution_id=format_execution_id(run.id),
        is_guess=typical is None,
    )


def _predicted_marks(group: Sequence[FireTimes], start: datetime, end: datetime) -> Iterable[TimelineMark]:
    for fires in group:
        job = fires.job
        for at in fires.at:
            shown = (
                format_execution_id(job.execution_id) if job.execution_id and at == job.pending + job.jitter else None
            )
            yield TimelineMark(
                kind=TimelineMarkKind.PREDICTED,
                start=at,
                end=at + job.duration,
                execution_id=shown,
                is_guess=job.is_guess,
            )
    yield from _counted_marks([fires for fires in group if fires.counts], start, end)


def _counted_marks(dense: Sequence[FireTimes], start: datetime, end: datetime) -> Iterable[TimelineMark]:
    """The counted jobs of a row, all together: a queue may have thousands of them."""
    if not dense:
        return
    totals = [sum(counts) for counts in zip(*(fires.counts for fires in dense), strict=True)]
    is_guess = any(fires.job.is_guess for fires in dense)
    edges = even_edges(start, end, len(totals))
    for (low, high), count in zip(pairwise(edges), totals, strict=True):
        if count:
            yield TimelineMark(kind=TimelineMarkKind.PREDICTED, start=low, end=high, count=count, is_guess=is_guess)


_UNASSIGNED = RowName("not yet given to a worker", "", "worker")


class TimelineQueries:
    """Draws timelines."""

    def __init__(self, store: Store, timelines: TimelineStore) -> None:
        self._store = store
        self._timelines = timelines

    async def draw(self, request: TimelineRequest) -> Timeline:
        """One view: the past, running and predicted runs between two instants."""
        now = await self._store.history.moment()
        data = await self._look(request, now)
        rollups = RollupHistory(self._store, request.start, now)
        rows, has_more = await self._rows(request, data, rollups)
        limits = await self._timelines.queue_limits()
        slots = slots_of(data.workers, request.queue, limits)
        return Timeline(
            now=now,
            request=request,
            rows=await asyncio.to_thread(fit_rows, rows, request.end - request.start, request.width),
            has_more=has_more,
            slots=slots,
            band=await self._band(request, data, rollups, slots),
            left_out=data.left_out,
            without_history=sorted({fires.job.label for fires in data.fires if fires.job.is_guess}),
            durations_at=data.durations_at,
        )

    async def _look(self, request: TimelineRequest, now: datetime) -> TimelineData:
        data = TimelineData()
        nodes = alive_nodes(await self._store.nodes.list(), now)
        data.workers = [node for node in nodes if node.kind is NodeKind.WORKER]
        if request.start < now:
            sample = await self._timelines.past(request.start, min(request.end, now), request.queue, _SAMPLE)
            data.past, data.cut_before = sample.runs, sample.cut_before
            # No worker had anything to do with them.
            if request.rows_by is not RowsBy.WORKERS:
                end = min(request.end, now)
                data.skips = await self._timelines.skips(request.start, end, request.queue, _SAMPLE)
        if request.start <= now <= request.end:
            data.running = await self._timelines.running(request.queue)
        if request.end > now:
            await self._look_ahead(request, max(request.start, now), data)
        data.durations = await self._timelines.durations_of([*data.running, *data.one_offs])
        await self._look_at_freezes(request, data)
        return data

    async def _look_at_freezes(self, request: TimelineRequest, data: TimelineData) -> None:
        data.freezes = (await self._store.freezes.list()).between(request.start, request.end, request.queue)
        tags = {one.target for one in data.freezes if one.scope is FreezeScope.TAG and one.target}
        if tags:
            runs = (*data.past, *data.skips, *data.running, *data.one_offs)
            ids = {run.job_id for run in runs} | {fires.job.job_id for fires in (*data.fires, *data.held)}
            data.tags = await self._store.freezes.tags_of(list(ids), tags)

    async def _look_ahead(self, request: TimelineRequest, start: datetime, data: TimelineData) -> None:
        jobs, has_more, data.durations_at = await self._timelines.futures(request.queue)
        # No more marks are made than a view may need: all rows together are fitted to far fewer.
        buckets = max(min(request.width // PIXELS_PER_MARK, _MAX_DRAWN // request.limit), 1)
        # What waits has no worker yet.
        budget = FireTimeBudget(
            even_edges(start, request.end, buckets), with_held=request.rows_by is not RowsBy.WORKERS
        )
        # In a thread: thousands of cron expressions would hold up the event loop for seconds.
        fires = await asyncio.to_thread(budget.of, jobs)
        data.fires, data.held = [one for one in fires if one.total], [one for one in fires if not one.total]
        data.left_out = budget.left_out + has_more
        data.one_offs = await self._timelines.one_offs(start, request.end, request.queue)

    # rows

    async def _rows(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory
    ) -> tuple[list[MarkRow], bool]:
        match request.rows_by:
            case RowsBy.JOBS:
                return await self._rows_of_jobs(request, data, rollups)
            case RowsBy.QUEUES:
                return await self._rows_of_queues(request, data, rollups)
            case RowsBy.WORKERS:
                return await asyncio.to_thread(self._rows_of_workers, request, data, rollups)

    async def _rows_of_queues(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory
    ) -> tuple[list[MarkRow], bool]:
        def name(queue: str) -> RowName:
            return RowName(queue, queue, "queue")

        parts = group_by_row(data, lambda run: name(run.queue), lambda fires: name(fires.job.queue))
        rows = await asyncio.to_thread(_draw_rows, parts[: request.limit], data, request, rollups.now)
        return await rollups.complete(rows, _mark_spacing(request), series_of_queue), len(parts) > request.limit

    def _rows_of_workers(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory
    ) -> tuple[list[MarkRow], bool]:
        names = {worker.incarnation: worker.name for worker in data.workers}

        def name(run: TimelineRun) -> RowName:
            if run.worker is None:
                return _UNASSIGNED
            shown = format_id("wrk", run.worker)
            return RowName(names.get(Incarnation(run.worker), shown), shown, "worker")

        parts = group_by_row(data, name, lambda _fires: _UNASSIGNED)
        return _draw_rows(parts[: request.limit], data, request, rollups.now), len(parts) > request.limit

    async def _rows_of_jobs(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory
    ) -> tuple[list[MarkRow], bool]:
        names = await self._names_of_jobs(data)
        # Enqueued executions have no job name; those of one handler share a row.
        alike = cache(lambda handler: RowName(handler, handler, "enqueued"))
        parts = group_by_row(
            data,
            lambda run: (None if run.is_enqueued else names.get(run.job_id)) or alike(run.handler),
            lambda fires: names[fires.job.job_id],
        )
        shown = parts[: request.limit]
        ids = {name.key: job_id for job_id, name in names.items()}
        if data.cut_before is not None:
            await self._read_on(request, rollups.now, {ids[row.name.key]: row for row in shown if row.name.key in ids})
        rows = await asyncio.to_thread(_draw_rows, shown, data, request, rollups.now)
        of_jobs = [row for row in rows if row.key in ids]
        complete = {row.key: row for row in await rollups.complete(of_jobs, _mark_spacing(request), ids.__getitem__)}
        return [complete.get(row.key, row) for row in rows], len(parts) > request.limit

    async def _names_of_jobs(self, data: TimelineData) -> dict[JobId, RowName]:
        runs = (run for run in (*data.past, *data.skips, *data.running, *data.one_offs) if not run.is_enqueued)
        named = await self._timelines.names({run.job_id for run in runs})
        names = {id_: RowName(job.name, format_job_id(id_), job.kind) for id_, job in named.items()}
        for job in (fires.job for fires in (*data.fires, *data.held)):
            names[job.job_id] = RowName(job.label, format_job_id(job.job_id), job.rule.kind.value)
        return names

    async def _read_on(self, request: TimelineRequest, now: datetime, jobs: Mapping[JobId, RowContent]) -> None:
        """Reads the past of the jobs that are shown, further back than the sample of all jobs."""
        if not jobs:
            return
        each = max(_MAX_PAST // len(jobs), _MIN_PAST)
        past_runs = await self._timelines.past_of_jobs(list(jobs), request.start, min(request.end, now), each)
        for job_id, parts in jobs.items():
            past = past_runs.get(job_id, PastRuns())
            parts.past, parts.cut_before = list(past.runs), past.cut_before

    # slots

    async def _band(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory, slots: int
    ) -> list[BandStep]:
        steps = min(max(request.width // _PIXELS_A_STEP, 10), _MAX_BAND_STEPS)
        middle = min(max(rollups.now, request.start), request.end)
        before = round(steps * ((middle - request.start) / (request.end - request.start)))
        band: list[BandStep] = []
        if middle > request.start:
            measured = await self._measured(request, data, rollups, middle, max(before, 1))
            band += _steps(measured, slots, is_predicted=False)
        if request.end > middle:
            expected = await asyncio.to_thread(_predicted_load, request, data, middle, max(steps - before, 1))
            band += _steps(expected, slots, is_predicted=True)
        return band

    async def _measured(
        self, request: TimelineRequest, data: TimelineData, rollups: RollupHistory, middle: datetime, steps: int
    ) -> BucketLoad:
        load = BucketLoad(even_edges(request.start, middle, steps))
        edge = request.start if data.cut_before is None else rollups.edge_after(data.cut_before)
        for run in (*data.past, *data.running):
            end = run.finished_at or middle
            if end >= edge:
                load.add_span(run.started_at, end)
        if data.cut_before is not None:
            await rollups.load(load, edge, request.queue)
        return load


def _draw_rows(
    parts: Sequence[RowContent], data: TimelineData, request: TimelineRequest, now: datetime
) -> list[MarkRow]:
    """Rows with their marks. Tens of thousands of marks take some hundred milliseconds, so this runs in a thread."""
    return [draw_row(part, data, request.start, request.end, now) for part in parts]


def _mark_spacing(request: TimelineRequest) -> timedelta:
    return (request.end - request.start) * (PIXELS_PER_MARK / request.width)


def _predicted_load(request: TimelineRequest, data: TimelineData, middle: datetime, steps: int) -> BucketLoad:
    load = BucketLoad(even_edges(middle, request.end, steps))
    for run in (*data.running, *data.one_offs):
        load.add_span(run.started_at, max(run.started_at + (data.typical(run) or ASSUMED_DURATION), middle))
    for fires in data.fires:
        if fires.at:
            load.add(fires)
        else:
            _add_counts(load, fires, even_edges(middle, request.end, len(fires.counts)))
    return load


def _add_counts(load: BucketLoad, fires: FireTimes, edges: Sequence[datetime]) -> None:
    """Adds counts whose buckets differ from those of the load: each count goes where its bucket begins."""
    counts = [0] * len(load.seconds)
    for low, count in zip(edges, fires.counts, strict=False):
        counts[load.bucket(low)] += count
    load.add(FireTimes(fires.job, counts=counts))


def _steps(load: BucketLoad, slots: int, *, is_predicted: bool) -> list[BandStep]:
    steps: list[BandStep] = []
    peaks = load.peaks()
    for number, (low, high) in enumerate(pairwise(load.edges)):
        busy = load.busy(number)
        peak = max(peaks[number], round(busy))
        note = f"needs {peak} of {slots}" if is_predicted and peak > slots else None
        steps.append(
            BandStep(start=low, end=high, busy=round(busy, 3), peak=peak, is_predicted=is_predicted, note=note)
        )
    return steps
