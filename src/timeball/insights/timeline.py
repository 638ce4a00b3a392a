"""Past, running and predicted runs on one axis, and the slots they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from timeball.domain.capacity import slots_of
from timeball.domain.foresight import GUESS, Fires, Foresight, Load, even_edges
from timeball.domain.ids import JobId, show, show_execution, show_job
from timeball.domain.marks import PIXELS_A_MARK, Mark, MarkKind, Row, fitted
from timeball.domain.node import NodeKind, NodeStatus
from timeball.insights.dense_past import DensePast, whole_minute_after
from timeball.insights.explain import living
from timeball.store.durations import Durations
from timeball.store.interface import Store
from timeball.store.outlook import Named, Outlook, Past, Run

# Rows that are read of the past for one view, all together.
_MOST_PAST = 10_000
_SAMPLE = 2_000
_LONGEST_BAND = 200
_PIXELS_A_STEP = 10
_LATER = "not yet given to a worker"


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
    """A whole drawing. *has_more* rows were left out; *left_out* jobs were too many to foresee."""

    now: datetime
    wish: TimelineWish
    rows: Sequence[Row]
    has_more: bool
    slots: int
    band: Sequence[BandStep]
    left_out: int
    without_history: Sequence[str]


@dataclass(slots=True)
class _Seen:
    """Everything that was read for one view."""

    past: Sequence[Run] = ()
    cut_before: datetime | None = None
    running: list[Run] = field(default_factory=list)
    one_offs: list[Run] = field(default_factory=list)
    fires: list[Fires] = field(default_factory=list)
    names: dict[JobId, Named] = field(default_factory=dict)
    durations: Durations = field(default_factory=lambda: Durations({}, {}))
    workers: list[NodeStatus] = field(default_factory=list)
    left_out: int = 0

    def usual(self, run: Run) -> timedelta | None:
        known = self.durations.of(run.job_id, run.handler)
        return None if known is None else known.median


class Timelines:
    """Draws time lines."""

    def __init__(self, store: Store, outlook: Outlook) -> None:
        self._store = store
        self._outlook = outlook
        self._dense = DensePast(store)

    async def draw(self, wish: TimelineWish) -> Timeline:
        """One view: what ran, what runs and what is to run between two instants."""
        now = await self._store.history.moment()
        seen = await self._look(wish, now)
        rows, has_more = await self._rows(wish, seen, now)
        limits = await self._outlook.queue_limits()
        slots = slots_of(seen.workers, wish.queue, limits)
        return Timeline(
            now=now,
            wish=wish,
            rows=fitted(rows, wish.end - wish.start, wish.width),
            has_more=has_more,
            slots=slots,
            band=await self._band(wish, seen, now, slots),
            left_out=seen.left_out,
            without_history=sorted({fires.line.label for fires in seen.fires if fires.line.is_guess}),
        )

    async def _look(self, wish: TimelineWish, now: datetime) -> _Seen:
        seen = _Seen()
        nodes = living(await self._store.nodes.list(), now)
        seen.workers = [node for node in nodes if node.kind is NodeKind.WORKER]
        if wish.start < now:
            sample = await self._outlook.past(wish.start, min(wish.end, now), wish.queue, _SAMPLE)
            seen.past, seen.cut_before = sample.runs, sample.cut_before
        if wish.start <= now <= wish.end:
            seen.running = await self._outlook.running(wish.queue)
        if wish.end > now:
            await self._look_ahead(wish, max(wish.start, now), seen)
        ids = {run.job_id for run in (*seen.past, *seen.running, *seen.one_offs)}
        seen.names = await self._outlook.names(ids)
        seen.durations = await self._outlook.durations({run.job_id for run in (*seen.running, *seen.one_offs)})
        return seen

    async def _look_ahead(self, wish: TimelineWish, start: datetime, seen: _Seen) -> None:
        lines, has_more = await self._outlook.lines(wish.queue)
        buckets = max(wish.width // PIXELS_A_MARK, 1)
        foresight = Foresight(even_edges(start, wish.end, buckets))
        # Aside: thousands of cron expressions are seconds of work, and others wait for this loop.
        seen.fires = await asyncio.to_thread(foresight.of, lines)
        seen.left_out = foresight.left_out + has_more
        seen.one_offs = await self._outlook.one_offs(start, wish.end, wish.queue)

    # rows

    async def _rows(self, wish: TimelineWish, seen: _Seen, now: datetime) -> tuple[list[Row], bool]:
        if wish.rows_by is RowsBy.JOBS:
            return await self._rows_of_jobs(wish, seen, now)
        by_queue = wish.rows_by is RowsBy.QUEUES
        names = {worker.incarnation: worker.name for worker in seen.workers}

        def key(run: Run) -> tuple[str, str, str]:
            if by_queue:
                return run.queue, run.queue, "queue"
            if run.worker is None:
                return "", _LATER, "worker"
            shown = show("wrk", run.worker)
            return shown, next((name for id_, name in names.items() if id_ == run.worker), shown), "worker"

        def key_of_line(fires: Fires) -> tuple[str, str, str]:
            return (fires.line.queue, fires.line.queue, "queue") if by_queue else ("", _LATER, "worker")

        rows = _grouped(wish, seen, now, key, key_of_line, lambda _key: seen.cut_before)
        shown = rows[: wish.limit]
        if by_queue:
            shown = [await self._dense.complete(row, wish.start, _apart(wish), queue=row.key) for row in shown]
        return shown, len(rows) > wish.limit

    async def _rows_of_jobs(self, wish: TimelineWish, seen: _Seen, now: datetime) -> tuple[list[Row], bool]:
        labels = {id_: (show_job(id_), named.name, named.kind) for id_, named in seen.names.items()}
        for fires in seen.fires:
            labels[fires.line.job_id] = (show_job(fires.line.job_id), fires.line.label, fires.line.rule.kind.value)
        chosen = sorted(labels, key=lambda id_: labels[id_][1])[: wish.limit]
        own_rows = set(chosen)
        each = max(_MOST_PAST // max(len(chosen), 1), 100)
        own = await self._past_of(chosen, wish, now, each)
        read = [run for past in own.values() for run in past.runs]
        seen.past = list({run.id: run for run in (*seen.past, *read)}.values())
        cuts = {labels[id_][0]: past.cut_before for id_, past in own.items()}

        def key(run: Run) -> tuple[str, str, str]:
            # What was enqueued without a name shows with its like.
            return labels.get(run.job_id, (run.handler, run.handler, "enqueued"))

        def key_of_line(fires: Fires) -> tuple[str, str, str]:
            return labels[fires.line.job_id]

        shown_lines = replace(seen, fires=[fires for fires in seen.fires if fires.line.job_id in own_rows])
        rows = _grouped(wish, shown_lines, now, key, key_of_line, lambda row_key: cuts.get(row_key))
        ids = {label[0]: id_ for id_, label in labels.items()}
        shown = [
            await self._dense.complete(row, wish.start, _apart(wish), job_id=ids[row.key]) if row.cut_before else row
            for row in rows[: wish.limit]
        ]
        return shown, max(len(rows), len(labels)) > wish.limit

    async def _band(self, wish: TimelineWish, seen: _Seen, now: datetime, slots: int) -> list[BandStep]:
        steps = min(max(wish.width // _PIXELS_A_STEP, 10), _LONGEST_BAND)
        middle = min(max(now, wish.start), wish.end)
        before = round(steps * ((middle - wish.start) / (wish.end - wish.start)))
        band: list[BandStep] = []
        if middle > wish.start:
            measured = await self._measured(wish, seen, middle, max(before, 1))
            band += _steps(measured, slots, is_predicted=False)
        if wish.end > middle:
            expected = await asyncio.to_thread(_expected, wish, seen, middle, max(steps - before, 1))
            band += _steps(expected, slots, is_predicted=True)
        return band

    async def _measured(self, wish: TimelineWish, seen: _Seen, middle: datetime, steps: int) -> Load:
        load = Load(even_edges(wish.start, middle, steps))
        edge = None if seen.cut_before is None else whole_minute_after(seen.cut_before)
        for run in (*seen.past, *seen.running):
            end = run.finished_at or middle
            if edge is None or end >= edge:
                load.add_span(run.started_at, end)
        if seen.cut_before is not None:
            await self._dense.load(load, seen.cut_before, wish.queue)
        return load

    async def _past_of(
        self, chosen: Sequence[JobId], wish: TimelineWish, now: datetime, each: int
    ) -> dict[JobId, Past]:
        if not chosen or wish.start >= now:
            return {}
        return await self._outlook.past_of_jobs(chosen, wish.start, min(wish.end, now), each)


def _apart(wish: TimelineWish) -> timedelta:
    return (wish.end - wish.start) * (PIXELS_A_MARK / wish.width)


def _grouped(
    wish: TimelineWish,
    seen: _Seen,
    now: datetime,
    key: Callable[[Run], tuple[str, str, str]],
    key_of_line: Callable[[Fires], tuple[str, str, str]],
    cut: Callable[[str], datetime | None],
) -> list[Row]:
    marks: dict[tuple[str, str, str], list[Mark]] = {}
    for run in seen.past:
        marks.setdefault(key(run), []).append(_past_mark(run))
    for run in seen.running:
        marks.setdefault(key(run), []).extend(_running_marks(run, seen, now))
    for run in seen.one_offs:
        marks.setdefault(key(run), []).append(_one_off_mark(run, seen))
    for row_key, group in _by_row(seen.fires, key_of_line).items():
        marks.setdefault(row_key, []).extend(_predicted_marks(group, wish, now))
    rows = [
        Row(key=k, label=label, kind=kind, marks=found, cut_before=cut(k)) for (k, label, kind), found in marks.items()
    ]
    return sorted(rows, key=lambda row: (row.label, row.key))


def _past_mark(run: Run) -> Mark:
    return Mark(
        kind=MarkKind.PAST,
        start=run.started_at,
        end=run.finished_at or run.started_at,
        states={run.state or "": 1},
        execution_id=show_execution(run.id),
    )


def _running_marks(run: Run, seen: _Seen, now: datetime) -> Iterable[Mark]:
    """What it has done, and what it usually still has to do."""
    shown = show_execution(run.id)
    yield Mark(kind=MarkKind.RUNNING, start=run.started_at, end=now, states={"running": 1}, execution_id=shown)
    usual = seen.usual(run)
    if usual is not None and run.started_at + usual > now:
        yield Mark(kind=MarkKind.PREDICTED, start=now, end=run.started_at + usual, execution_id=shown)


def _one_off_mark(run: Run, seen: _Seen) -> Mark:
    usual = seen.usual(run)
    return Mark(
        kind=MarkKind.PREDICTED,
        start=run.started_at,
        end=run.started_at + (usual or GUESS),
        execution_id=show_execution(run.id),
        is_guess=usual is None,
    )


def _by_row(
    fires: Iterable[Fires], key_of_line: Callable[[Fires], tuple[str, str, str]]
) -> dict[tuple[str, str, str], list[Fires]]:
    groups: dict[tuple[str, str, str], list[Fires]] = {}
    for some in fires:
        groups.setdefault(key_of_line(some), []).append(some)
    return groups


def _predicted_marks(group: Sequence[Fires], wish: TimelineWish, now: datetime) -> Iterable[Mark]:
    for fires in group:
        line = fires.line
        for at in fires.at:
            shown = (
                show_execution(line.execution_id) if line.execution_id and at == line.pending + line.jitter else None
            )
            end = at + line.duration
            yield Mark(kind=MarkKind.PREDICTED, start=at, end=end, execution_id=shown, is_guess=line.is_guess)
    yield from _counted_marks([fires for fires in group if fires.counts], wish, now)


def _counted_marks(dense: Sequence[Fires], wish: TimelineWish, now: datetime) -> Iterable[Mark]:
    """Lines that were only counted, all of a row together: a queue may have thousands of them."""
    if not dense:
        return
    totals = [sum(counts) for counts in zip(*(fires.counts for fires in dense), strict=True)]
    is_guess = any(fires.line.is_guess for fires in dense)
    edges = even_edges(max(wish.start, now), wish.end, len(totals))
    for (low, high), count in zip(pairwise(edges), totals, strict=True):
        if count:
            yield Mark(kind=MarkKind.PREDICTED, start=low, end=high, count=count, is_guess=is_guess)


# the slots


def _expected(wish: TimelineWish, seen: _Seen, middle: datetime, steps: int) -> Load:
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
