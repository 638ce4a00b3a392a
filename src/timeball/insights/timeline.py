"""Past, running and predicted runs on one axis, and the slots they need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import pairwise

from timeball.domain.capacity import slots_of
from timeball.domain.foresight import GUESS, Fires, Foresight, even_edges
from timeball.domain.ids import Incarnation, JobId, show, show_job
from timeball.domain.load import Load
from timeball.domain.marks import PIXELS_A_MARK, Row, fitted
from timeball.domain.node import NodeKind
from timeball.insights.dense_past import DensePast
from timeball.insights.explain import living
from timeball.insights.timeline_rows import RowName, RowParts, Seen, drawn_row, sorted_parts
from timeball.store.interface import Store
from timeball.store.outlook import Outlook, Past, Run
from timeball.store.rollups import series_of_queue

# Runs that are read of the past of all, and of the jobs that are shown: no view has room for more marks.
_SAMPLE = 1_000
_MOST_PAST = 2_000
_LEAST_PAST = 20
_LONGEST_BAND = 200
_PIXELS_A_STEP = 10
_MOST_DRAWN = 20_000
_LATER = RowName("not yet given to a worker", "", "worker")


class RowsBy(StrEnum):
    """What a row of the drawing is."""

    JOBS = "jobs"
    QUEUES = "queues"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineWish:
    """What to draw, and how wide in pixels."""

    start: datetime
    end: datetime
    queue: str | None = None
    rows_by: RowsBy = RowsBy.JOBS
    limit: int = 50
    width: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BandStep:
    """The slots in one step of time: busy on average, the most at once, and what there is."""

    start: datetime
    end: datetime
    busy: float
    peak: int
    is_predicted: bool
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole drawing. *has_more* rows were left out; *left_out* jobs were too many to foresee.

    *durations_at* says when it was read how long the jobs ahead usually take; None if nothing lies ahead.
    """

    now: datetime
    wish: TimelineWish
    rows: Sequence[Row]
    has_more: bool
    slots: int
    band: Sequence[BandStep]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None


class Timelines:
    """Draws time lines."""

    def __init__(self, store: Store, outlook: Outlook) -> None:
        self._store = store
        self._outlook = outlook

    async def draw(self, wish: TimelineWish) -> Timeline:
        """One view: what ran, what runs and what is to run between two instants."""
        now = await self._store.history.moment()
        seen = await self._look(wish, now)
        dense = DensePast(self._store, wish.start, now)
        rows, has_more = await self._rows(wish, seen, dense)
        limits = await self._outlook.queue_limits()
        slots = slots_of(seen.workers, wish.queue, limits)
        return Timeline(
            now=now,
            wish=wish,
            rows=await asyncio.to_thread(fitted, rows, wish.end - wish.start, wish.width),
            has_more=has_more,
            slots=slots,
            band=await self._band(wish, seen, dense, slots),
            left_out=seen.left_out,
            without_history=sorted({fires.line.label for fires in seen.fires if fires.line.is_guess}),
            durations_at=seen.durations_at,
        )

    async def _look(self, wish: TimelineWish, now: datetime) -> Seen:
        seen = Seen()
        nodes = living(await self._store.nodes.list(), now)
        seen.workers = [node for node in nodes if node.kind is NodeKind.WORKER]
        if wish.start < now:
            sample = await self._outlook.past(wish.start, min(wish.end, now), wish.queue, _SAMPLE)
            seen.past, seen.cut_before = sample.runs, sample.cut_before
        if wish.start <= now <= wish.end:
            seen.running = await self._outlook.running(wish.queue)
        if wish.end > now:
            await self._look_ahead(wish, max(wish.start, now), seen)
        seen.durations = await self._outlook.durations_of([*seen.running, *seen.one_offs])
        return seen

    async def _look_ahead(self, wish: TimelineWish, start: datetime, seen: Seen) -> None:
        lines, has_more, seen.durations_at = await self._outlook.futures(wish.queue)
        # No more marks are made than a view could be made of: all rows together are fitted to far fewer.
        buckets = max(min(wish.width // PIXELS_A_MARK, _MOST_DRAWN // wish.limit), 1)
        foresight = Foresight(even_edges(start, wish.end, buckets))
        # Aside: thousands of cron expressions are seconds of work, and others wait for this loop.
        seen.fires = await asyncio.to_thread(foresight.of, lines)
        seen.left_out = foresight.left_out + has_more
        seen.one_offs = await self._outlook.one_offs(start, wish.end, wish.queue)

    # rows

    async def _rows(self, wish: TimelineWish, seen: Seen, dense: DensePast) -> tuple[list[Row], bool]:
        match wish.rows_by:
            case RowsBy.JOBS:
                return await self._rows_of_jobs(wish, seen, dense)
            case RowsBy.QUEUES:
                return await self._rows_of_queues(wish, seen, dense)
            case RowsBy.WORKERS:
                return await asyncio.to_thread(self._rows_of_workers, wish, seen, dense)

    async def _rows_of_queues(self, wish: TimelineWish, seen: Seen, dense: DensePast) -> tuple[list[Row], bool]:
        def name(queue: str) -> RowName:
            return RowName(queue, queue, "queue")

        parts = sorted_parts(seen, lambda run: name(run.queue), lambda fires: name(fires.line.queue))
        rows = await asyncio.to_thread(_drawn, parts[: wish.limit], seen, wish, dense.now)
        return await dense.complete(rows, _apart(wish), series_of_queue), len(parts) > wish.limit

    def _rows_of_workers(self, wish: TimelineWish, seen: Seen, dense: DensePast) -> tuple[list[Row], bool]:
        names = {worker.incarnation: worker.name for worker in seen.workers}

        def name(run: Run) -> RowName:
            if run.worker is None:
                return _LATER
            shown = show("wrk", run.worker)
            return RowName(names.get(Incarnation(run.worker), shown), shown, "worker")

        parts = sorted_parts(seen, name, lambda _fires: _LATER)
        return _drawn(parts[: wish.limit], seen, wish, dense.now), len(parts) > wish.limit

    async def _rows_of_jobs(self, wish: TimelineWish, seen: Seen, dense: DensePast) -> tuple[list[Row], bool]:
        names = await self._names_of_jobs(seen)
        # What was enqueued without a name shows with its like.
        alike = cache(lambda handler: RowName(handler, handler, "enqueued"))
        parts = sorted_parts(
            seen,
            lambda run: (None if run.is_enqueued else names.get(run.job_id)) or alike(run.handler),
            lambda fires: names[fires.line.job_id],
        )
        shown = parts[: wish.limit]
        ids = {name.key: job_id for job_id, name in names.items()}
        if seen.cut_before is not None:
            await self._read_on(wish, dense.now, {ids[one.name.key]: one for one in shown if one.name.key in ids})
        rows = await asyncio.to_thread(_drawn, shown, seen, wish, dense.now)
        own = [row for row in rows if row.key in ids]
        complete = {row.key: row for row in await dense.complete(own, _apart(wish), ids.__getitem__)}
        return [complete.get(row.key, row) for row in rows], len(parts) > wish.limit

    async def _names_of_jobs(self, seen: Seen) -> dict[JobId, RowName]:
        runs = (run for run in (*seen.past, *seen.running, *seen.one_offs) if not run.is_enqueued)
        named = await self._outlook.names({run.job_id for run in runs})
        names = {id_: RowName(job.name, show_job(id_), job.kind) for id_, job in named.items()}
        for line in (fires.line for fires in seen.fires):
            names[line.job_id] = RowName(line.label, show_job(line.job_id), line.rule.kind.value)
        return names

    async def _read_on(self, wish: TimelineWish, now: datetime, jobs: Mapping[JobId, RowParts]) -> None:
        """The past of the jobs that are shown, further back than that of all together."""
        if not jobs:
            return
        each = max(_MOST_PAST // len(jobs), _LEAST_PAST)
        own = await self._outlook.past_of_jobs(list(jobs), wish.start, min(wish.end, now), each)
        for job_id, parts in jobs.items():
            past = own.get(job_id, Past())
            parts.past, parts.cut_before = list(past.runs), past.cut_before

    # slots

    async def _band(self, wish: TimelineWish, seen: Seen, dense: DensePast, slots: int) -> list[BandStep]:
        steps = min(max(wish.width // _PIXELS_A_STEP, 10), _LONGEST_BAND)
        middle = min(max(dense.now, wish.start), wish.end)
        before = round(steps * ((middle - wish.start) / (wish.end - wish.start)))
        band: list[BandStep] = []
        if middle > wish.start:
            measured = await self._measured(wish, seen, dense, middle, max(before, 1))
            band += _steps(measured, slots, is_predicted=False)
        if wish.end > middle:
            expected = await asyncio.to_thread(_expected, wish, seen, middle, max(steps - before, 1))
            band += _steps(expected, slots, is_predicted=True)
        return band

    async def _measured(self, wish: TimelineWish, seen: Seen, dense: DensePast, middle: datetime, steps: int) -> Load:
        load = Load(even_edges(wish.start, middle, steps))
        edge = wish.start if seen.cut_before is None else dense.edge_after(seen.cut_before)
        for run in (*seen.past, *seen.running):
            end = run.finished_at or middle
            if end >= edge:
                load.add_span(run.started_at, end)
        if seen.cut_before is not None:
            await dense.load(load, edge, wish.queue)
        return load


def _drawn(parts: Sequence[RowParts], seen: Seen, wish: TimelineWish, now: datetime) -> list[Row]:
    """Rows with their marks; tens of thousands of them are some hundred milliseconds of work."""
    return [drawn_row(one, seen, wish.start, wish.end, now) for one in parts]


def _apart(wish: TimelineWish) -> timedelta:
    return (wish.end - wish.start) * (PIXELS_A_MARK / wish.width)


def _expected(wish: TimelineWish, seen: Seen, middle: datetime, steps: int) -> Load:
    load = Load(even_edges(middle, wish.end, steps))
    for run in (*seen.running, *seen.one_offs):
        load.add_span(run.started_at, max(run.started_at + (seen.usual(run) or GUESS), middle))
    for fires in seen.fires:
        if fires.at:
            load.add(fires)
        else:
            _add_counts(load, fires, even_edges(middle, wish.end, len(fires.counts)))
    return load


def _add_counts(load: Load, fires: Fires, edges: Sequence[datetime]) -> None:
    """Counts of other buckets than the band's: each is put where it begins."""
    counts = [0] * len(load.seconds)
    for low, count in zip(edges, fires.counts, strict=False):
        counts[load.bucket(low)] += count
    load.add(Fires(fires.line, counts=counts))


def _steps(load: Load, slots: int, *, is_predicted: bool) -> list[BandStep]:
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
