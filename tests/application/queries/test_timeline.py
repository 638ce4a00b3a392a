"""Past, running and predicted runs on one axis."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.application.queries.support import ran
from tests.engine.support import create, start_scheduler, start_worker
from tests.support.factories import HANDLER, claim_all, due_row, enqueue, make_job, make_node, make_recurring, put_row
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.application.queries.timeline import RowsBy, Timeline, TimelineRequest
from timeball.domain.forecast.timeline import TimelineMark, TimelineMarkKind
from timeball.domain.freeze import Afterwards, FreezeScope, format_freeze_id
from timeball.domain.node import Lease
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

LONG_LEASE = Lease(span=timedelta(hours=9), interval=timedelta(hours=1))


def around(clock: VirtualClock, **fields: object) -> TimelineRequest:
    now = clock.now()
    given: dict[str, object] = {"start": now - timedelta(hours=2), "end": now + timedelta(hours=2)}
    return TimelineRequest(**given | fields)  # type: ignore[arg-type]


def marks_of(timeline: Timeline, label: str) -> list[TimelineMark]:
    (row,) = [row for row in timeline.rows if row.label == label]
    return list(row.marks)


async def test_past_running_and_predicted(store: Store, queries: Queries, clock: VirtualClock) -> None:
    now = clock.now()
    job = await make_recurring(store, every=1800, name="etl", overlap="allow")
    for number in range(1, 4):
        await ran(store, now - timedelta(minutes=30 * number), 120, job.id, "dead" if number == 2 else "succeeded")
    worker = await make_node(store, handlers=(HANDLER,), slots=4)
    running = await put_running(store, job.id, worker, now - timedelta(seconds=30))

    timeline = await queries.timeline.draw(around(clock))

    marks = marks_of(timeline, "etl")
    past = [mark for mark in marks if mark.kind is TimelineMarkKind.PAST]
    ahead = [mark for mark in marks if mark.kind is TimelineMarkKind.PREDICTED]
    assert [(mark.start, mark.states) for mark in past] == [
        (now - timedelta(minutes=90), {"succeeded": 1}),
        (now - timedelta(minutes=60), {"dead": 1}),
        (now - timedelta(minutes=30), {"succeeded": 1}),
    ]
    (mark,) = [mark for mark in marks if mark.kind is TimelineMarkKind.RUNNING]
    assert (mark.start, mark.end, mark.execution_id) == (now - timedelta(seconds=30), now, format_execution_id(running))
    # What runs should end after its usual two minutes; then every half hour, two minutes wide.
    assert [(mark.start - now, mark.end - mark.start) for mark in ahead] == [
        (timedelta(0), timedelta(seconds=90)),
        *((timedelta(minutes=30 * number), timedelta(minutes=2)) for number in range(1, 4)),
    ]
    assert not any(mark.is_guess for mark in ahead)
    assert ahead[1].execution_id == format_execution_id((await due_row(store, job.id)).id)
    assert timeline.without_history == []
    assert timeline.slots == 4


async def put_running(store: Store, job_id: object, worker: object, at: datetime) -> object:
    execution_id = store.env.new_id()
    await put_row(
        store,
        "running",
        id=execution_id,
        job_id=job_id,
        origin="trigger",
        version=1,
        queue="default",
        priority=50,
        handler=HANDLER,
        scheduled_for=at,
        run_at=at,
        queued_at=at,
        attempts=1,
        lost=0,
        fence=1,
        holder=worker,
        claim_id=store.env.new_id(),
        claimed_at=at,
    )
    return execution_id


async def test_jobs_without_history_are_marked(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_recurring(store, every=1800, name="new", handler="h:new")
    await enqueue(store, after=600, handler="h:once")

    timeline = await queries.timeline.draw(around(clock))

    assert timeline.without_history == ["new"]
    assert all(mark.is_guess for row in timeline.rows for mark in row.marks)
    (one_off,) = marks_of(timeline, "h:once")
    assert one_off.start == clock.now() + timedelta(minutes=10)


async def test_a_dense_job_is_merged_and_whole(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_recurring(store, every=1, name="ping")

    timeline = await queries.timeline.draw(around(clock, width=400))

    marks = marks_of(timeline, "ping")
    assert len(marks) <= 100
    assert sum(mark.count for mark in marks) in (7199, 7200)
    assert all(mark.start >= clock.now() for mark in marks)


async def test_dense_jobs_of_one_queue_are_counted_together(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    for number in range(3):
        await make_recurring(store, every=2, name=f"ping-{number}")

    timeline = await queries.timeline.draw(around(clock, width=400, rows_by=RowsBy.QUEUES))

    marks = marks_of(timeline, "default")
    assert len(marks) <= 100
    assert sum(mark.count for mark in marks) == pytest.approx(3 * 3600, abs=3)


async def test_rows_by_queue_and_by_worker(store: Store, queries: Queries, clock: VirtualClock) -> None:
    now = clock.now()
    worker = await make_node(store, name="web-1", handlers=(HANDLER,), slots=2)
    await ran(store, now - timedelta(minutes=5), 10, queue="mail", worker=worker)
    await ran(store, now - timedelta(minutes=9), 10, queue="crm", worker=worker)
    await make_recurring(store, every=1800, queue="crm")

    queues = await queries.timeline.draw(around(clock, rows_by=RowsBy.QUEUES))
    workers = await queries.timeline.draw(around(clock, rows_by=RowsBy.WORKERS))
    crm = await queries.timeline.draw(around(clock, rows_by=RowsBy.QUEUES, queue="crm"))

    assert [(row.label, len(row.marks)) for row in queues.rows] == [("crm", 4), ("mail", 1)]
    assert [(row.label, len(row.marks)) for row in workers.rows] == [("not yet given to a worker", 3), ("web-1", 2)]
    assert [row.label for row in crm.rows] == ["crm"]


async def test_the_band_shows_needed_and_available_slots(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands
) -> None:
    now = clock.now()
    await make_node(store, handlers=(HANDLER,), slots=2)
    for number in range(3):
        job = await make_job(store, name=f"at-{number}", schedule="0 13 * * *")
        await ran(store, now - timedelta(days=1), 600, job.id)
    await ran(store, now - timedelta(minutes=60), 1800)

    timeline = await queries.timeline.draw(around(clock))

    noted = [step for step in timeline.band if step.note]
    assert {step.note for step in noted} == {"needs 3 of 2"}
    assert noted[0].start <= now + timedelta(hours=1) < noted[0].end
    assert all(low.end == high.start for low, high in pairwise(timeline.band))
    assert now in [step.start for step in timeline.band]
    assert all(step.is_predicted == (step.start >= now) for step in timeline.band)
    busy = sum(step.busy * (step.end - step.start).total_seconds() for step in timeline.band if not step.is_predicted)
    assert busy == pytest.approx(1800, rel=0.01)
    await commands.queues.limit("default", 1, Actor("ana"))
    limited = await queries.timeline.draw(around(clock, queue="default"))
    assert limited.slots == 1


async def test_more_rows_than_the_limit_are_reported(store: Store, queries: Queries, clock: VirtualClock) -> None:
    for number in range(4):
        await make_recurring(store, every=1800, name=f"job-{number}")

    timeline = await queries.timeline.draw(around(clock, limit=3))

    assert [row.label for row in timeline.rows] == ["job-0", "job-1", "job-2"]
    assert timeline.has_more


async def test_paused_jobs_and_those_that_end_are_not_foreseen(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands
) -> None:
    paused = await make_recurring(store, every=60, name="paused")
    await commands.jobs.pause(paused.id, None, Actor("ana"))
    await make_recurring(store, every=600, name="twice", max_executions=2)

    timeline = await queries.timeline.draw(around(clock))

    assert [row.label for row in timeline.rows] == ["twice"]
    assert len(marks_of(timeline, "twice")) == 2


async def test_a_past_too_long_to_read_comes_from_rollups(
    store: Store, queries: Queries, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    job = await make_job(store, name="a")
    for number in range(150):
        state = "dead" if number == 140 else "succeeded"
        await ran(store, now - timedelta(seconds=60 + number), 0.5, job.id, state)
    await store.rollups.fold()
    whole = await queries.timeline.draw(around(clock))
    monkeypatch.setattr("timeball.application.queries.timeline._MAX_PAST", 1)
    monkeypatch.setattr("timeball.application.queries.timeline._SAMPLE", 100)

    cut = await queries.timeline.draw(around(clock))
    queues = await queries.timeline.draw(around(clock, rows_by=RowsBy.QUEUES))

    for timeline in (whole, cut, queues):
        (row,) = timeline.rows
        assert row.cut_before is None
        assert sum(mark.count for mark in row.marks) == 150
        assert sum(mark.states.get("dead", 0) for mark in row.marks) == 1
        assert sum(work(timeline)) == pytest.approx(75, rel=0.02)
    assert cut.rows[0].key == format_job_id(job.id)


def work(timeline: Timeline) -> list[float]:
    """Seconds of work in each step of the band that is past."""
    past = [step for step in timeline.band if not step.is_predicted]
    return [step.busy * (step.end - step.start).total_seconds() for step in past]


async def test_a_cut_row_of_a_worker_says_so(
    store: Store, queries: Queries, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    for number in range(20):
        await ran(store, now - timedelta(seconds=60 + number), 0.5)
    monkeypatch.setattr("timeball.application.queries.timeline._SAMPLE", 10)

    (row,) = (await queries.timeline.draw(around(clock, rows_by=RowsBy.WORKERS))).rows

    assert row.cut_before == now - timedelta(seconds=69)


async def test_running_rows_are_those_of_claims(store: Store, queries: Queries, clock: VirtualClock) -> None:
    worker = await make_node(store, handlers=(HANDLER,), slots=2, lease=LONG_LEASE)
    execution = await enqueue(store)
    await claim_all(store, worker=worker)
    clock.advance("5m")

    timeline = await queries.timeline.draw(around(clock))

    (mark,) = marks_of(timeline, HANDLER)
    assert (mark.kind, mark.execution_id) == (TimelineMarkKind.RUNNING, format_execution_id(execution))


async def skipping(store: Store, clock: VirtualClock) -> None:
    """A job that missed five occurrences in a silence, and then skipped one because the one before still ran."""
    node, worker = await start_scheduler(store), await start_worker(store)
    await create(store, name="beat", interval_seconds=5, queue="mail")
    await node.run_for(12, worker.work)
    clock.advance("55s")
    await node.run_for(1, worker.work)
    await node.run_for(3)
    await worker.claim()
    await node.run_for(6)


@pytest.mark.parametrize(("rows_by", "label"), [(RowsBy.JOBS, "beat"), (RowsBy.QUEUES, "mail")])
async def test_skipped_occurrences_are_marks_with_their_reasons_and_numbers(
    store: Store, queries: Queries, clock: VirtualClock, rows_by: RowsBy, label: str
) -> None:
    start = clock.now()
    await skipping(store, clock)

    request = around(clock, rows_by=rows_by, start=start, end=clock.now() + timedelta(seconds=4), width=10_000)
    skips = [
        mark for mark in marks_of(await queries.timeline.draw(request), label) if mark.kind is TimelineMarkKind.SKIPPED
    ]

    assert [(mark.start - start, mark.end - start, mark.count, mark.states) for mark in skips] == [
        (timedelta(seconds=15), timedelta(seconds=35), 5, {"misfire": 5}),
        (timedelta(seconds=75), timedelta(seconds=75), 1, {"overlap": 1}),
    ]
    assert [mark.execution_id is None for mark in skips] == [True, False]


async def test_skipped_occurrences_outside_of_a_view_are_not_in_it(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    start = clock.now()
    await skipping(store, clock)

    async def skipped(first: float, last: float, **fields: object) -> int:
        seconds = [start + timedelta(seconds=number) for number in (first, last)]
        timeline = await queries.timeline.draw(around(clock, start=seconds[0], end=seconds[1], **fields))
        marks = [mark for row in timeline.rows for mark in row.marks if mark.kind is TimelineMarkKind.SKIPPED]
        return sum(mark.count for mark in marks)

    assert await skipped(0, 12) == 0
    assert await skipped(30, 60) == 5, "it crosses the edge"
    assert await skipped(40, 70) == 0
    assert await skipped(0, 80) == 6
    assert await skipped(0, 80, queue="other") == 0
    assert await skipped(0, 80, rows_by=RowsBy.WORKERS) == 0


async def test_what_a_freeze_holds_is_drawn_at_its_end_and_each_row_knows_its_freezes(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands
) -> None:
    now = clock.now()
    await make_recurring(store, every=600, name="billed", queue="billing")
    await make_recurring(store, every=600, name="tagged", tags=("payments",))
    await make_recurring(store, every=600, name="free")
    await enqueue(store, after=1_500, queue="billing", handler="one-off")
    span = {"since": now + timedelta(minutes=15), "until": now + timedelta(minutes=45)}
    latest = await commands.freezes.add(FreezeScope.QUEUE, "billing", **span, afterwards=Afterwards.LATEST)
    skips = await commands.freezes.add(FreezeScope.TAG, "payments", **span)

    timeline = await queries.timeline.draw(around(clock, end=now + timedelta(hours=1)))

    minutes = {row.label: [(mark.start - now) // timedelta(minutes=1) for mark in row.marks] for row in timeline.rows}
    assert minutes == {
        "billed": [10, 45, 50],
        "free": [10, 20, 30, 40, 50],
        "one-off": [45],
        "tagged": [10, 50],
    }
    held = {row.label: row.freezes for row in timeline.rows}
    billing, payments = format_freeze_id(latest.id), format_freeze_id(skips.id)
    assert held == {"billed": [billing], "free": [], "one-off": [billing], "tagged": [payments]}
    by_queue = await queries.timeline.draw(around(clock, rows_by=RowsBy.QUEUES))
    assert {row.label: row.freezes for row in by_queue.rows} == {"billing": [billing], "default": []}


@pytest.mark.parametrize("every", [600, 1])
async def test_a_job_that_a_freeze_holds_all_the_time_has_a_row_without_marks(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands, every: int
) -> None:
    await make_recurring(store, every=every, name="billed", queue="billing")
    await make_recurring(store, every=86_400, name="tomorrow", queue="billing")
    freeze = await commands.freezes.add(FreezeScope.QUEUE, "billing", until=clock.now() + timedelta(days=2))

    timeline = await queries.timeline.draw(around(clock, end=clock.now() + timedelta(hours=1)))

    (row,) = timeline.rows
    assert (row.label, list(row.marks), row.freezes) == ("billed", [], [format_freeze_id(freeze.id)])
    assert list(timeline.without_history) == []
