"""Backfills fill in what was missed, each occurrence once, whatever crashes; and run again what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.engine.support import Hands, Heard, ManualScheduler, check_promises, create, start_scheduler, start_worker
from tests.store.racing import PATIENCE_SECONDS
from tests.support.factories import FAILURE, claim_all, found, record, seconds, table
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries.ledger import LedgerQueries, LedgerQuery
from timeball.config.settings import HousekeepingSettings, Settings
from timeball.domain.backfill import Backfill, BackfillSelection, BackfillSource
from timeball.domain.bulk_operation import Operation, OperationAction, OperationState
from timeball.domain.execution import ClaimedExecution, Failed, Origin, Outcome
from timeball.domain.freeze import FreezeScope
from timeball.domain.job import Job
from timeball.domain.policies import Overlap, Verdict
from timeball.domain.search import PageRequest
from timeball.domain.values.ids import IdempotentRequest, filling_id, occurrence_id, repetition_id
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.errors import Conflict, InvalidInput
from timeball.runtime import make_server_runtime
from timeball.store.ledger import LedgerStore
from timeball.store.store import Store
from timeball.store.types import ExecutionRequest
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock
from timeball.testing.environment import START

ANA = Actor("ana", "the outage")
# The occurrences that were missed while nothing was alive, in seconds after the start of the test.
MISSED = [15, 20, 25, 30, 35]
ALL = BackfillSelection.ALL
FAILED_ONES = BackfillSelection.FAILED
DEATH = Failed(FAILURE)
NO_TIME = timedelta(0)


@pytest.fixture
def commands(store: Store) -> Commands:
    return Commands(store, store.env)


@pytest.fixture
def loop(store: Store, commands: Commands) -> OperationLoop:
    return OperationLoop(commands, store.env.new_id())


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


@pytest.fixture
async def job(store: Store, node: ManualScheduler, worker: Hands) -> Job:
    """A job of every five seconds that ran at 5 and 10 s; then nothing was alive for 55 s; then it ran on until 70 s."""
    job = await create(store, interval_seconds=5, max_retries=0)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    return job


def whole(job: Job, **fields: Any) -> Backfill:
    return Backfill(job_id=job.id, since=START, until=START + seconds(72), **fields)


async def end_all(store: Store, outcome: Outcome | None = None) -> int:
    """End everything that waits for a worker."""
    claimed = await claim_all(store)
    await record(store, [found(one, outcome) for one in claimed])
    return len(claimed)


async def state_of(store: Store, operation: Operation) -> Operation:
    current = await store.operations.find(operation.id)
    assert current is not None
    return current


async def run(
    store: Store, loop: OperationLoop, operation: Operation, clock: VirtualClock, outcome: Outcome | None = None
) -> Operation:
    """Let a backfill run to its end, its executions all with one outcome."""
    for _ in range(100):
        await loop.round()
        await end_all(store, outcome)
        clock.advance(seconds(1))
        current = await state_of(store, operation)
        if current.is_over:
            return current
    raise AssertionError("the backfill did not end")


async def backfilled(store: Store) -> list[Any]:
    """The executions of backfills, in order of their instants."""
    rows = [row for name in ("due", "ready", "blocked", "running", "finished") for row in await table(store, name)]
    return sorted((row for row in rows if row["origin"] == "backfill"), key=lambda row: row["scheduled_for"])


def offsets(rows: Sequence[Any]) -> list[float]:
    return [(row["scheduled_for"] - START).total_seconds() for row in rows]


async def counts(commands: Commands, backfill: Backfill) -> dict[tuple[str, str | None], tuple[int, int]]:
    preview = await commands.backfills.preview(backfill)
    return {(one.verdict, one.reason): (one.count, one.would_run) for one in preview.counts}


async def test_a_backfill_fills_in_what_was_missed_and_nothing_else(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    over = await run(store, loop, await commands.backfills.start(whole(job), ANA), clock)

    rows = await backfilled(store)
    assert offsets(rows) == MISSED
    assert [row["id"] for row in rows] == [filling_id(job.id, START + seconds(at)) for at in MISSED]
    assert {(row["state"], row["created_by"], row["priority"]) for row in rows} == {("succeeded", "ana", 0)}
    assert (over.state, over.total, over.done, over.failed) == (OperationState.SUCCEEDED, 5, 5, 0)
    assert over.progress == 1.0
    await check_promises(store)


async def test_a_dry_run_counts_by_verdict_and_reason_and_writes_nothing(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    before = await counts(commands, whole(job))
    written = (await table(store, "operation"), await backfilled(store))
    await run(store, loop, await commands.backfills.start(whole(job), ANA), clock)
    after = await counts(commands, whole(job))

    assert before == {("ran", None): (9, 0), ("skipped", "misfire"): (5, 5)}
    assert written == ([], [])
    assert after == {("ran", None): (14, 0)}


async def test_the_ledger_tells_what_was_filled_in(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    ledger = LedgerQueries(store, LedgerStore(store.database))
    query = LedgerQuery(since=START + seconds(15), until=START + seconds(35))
    operation = await commands.backfills.start(whole(job, max_running=2), ANA)
    await loop.round()
    waiting = (await ledger.page(job, query, PageRequest(limit=50))).page.items
    await run(store, loop, operation, clock)

    lines = (await ledger.page(job, query, PageRequest(limit=50))).page.items
    backwards = LedgerQuery(since=query.since, until=query.until, newest_first=True)

    assert [(line.origin, line.verdict, line.filled) for line in waiting] == [
        ("schedule", Verdict.SKIPPED, 2),
        ("backfill", Verdict.WAITING, 0),
        ("backfill", Verdict.WAITING, 0),
    ]
    assert [(line.origin, line.verdict, line.count, line.filled) for line in lines] == [
        ("schedule", Verdict.SKIPPED, 5, 5),
        *[("backfill", Verdict.RAN, 1, 0)] * 5,
    ]
    assert [line.execution_id for line in lines[1:]] == [filling_id(job.id, START + seconds(at)) for at in MISSED]
    assert (await ledger.page(job, backwards, PageRequest(limit=50))).page.items == lines[::-1]
    line = await ledger.at(job, START + seconds(15))
    assert line is not None
    assert line.verdict is Verdict.SKIPPED


async def test_a_skipped_execution_is_filled_in_too(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5)
    await commands.jobs.skip_next(job.id, ANA)
    await node.run_until(START + seconds(12), worker.work)
    backfill = Backfill(job_id=job.id, since=START, until=clock.now())
    (before,) = [key for key, (_, chosen) in (await counts(commands, backfill)).items() if chosen]

    await run(store, loop, await commands.backfills.start(backfill, ANA), clock)

    assert before[0] == "skipped"
    assert offsets(await backfilled(store)) == [5]
    ledger = LedgerQueries(store, LedgerStore(store.database))
    query = LedgerQuery(since=START + seconds(5), until=START + seconds(5))
    lines = (await ledger.page(job, query, PageRequest(limit=50))).page.items
    assert sorted((line.verdict, line.filled) for line in lines) == [("ran", 0), ("skipped", 1)]
    assert (await commands.backfills.preview(backfill)).would_run == 0


async def test_any_number_of_callers_fill_in_an_occurrence_once(
    store: Store, commands: Commands, clock: VirtualClock, job: Job
) -> None:
    loops = [OperationLoop(commands, store.env.new_id()) for _ in range(6)]
    operations = [await commands.backfills.start(whole(job, max_running=3), ANA) for _ in loops]

    for _ in range(12):
        await asyncio.gather(*(loop.round() for loop in loops))
        await end_all(store)
        clock.advance(seconds(1))

    assert {(await state_of(store, one)).state for one in operations} == {OperationState.SUCCEEDED}
    assert offsets(await backfilled(store)) == MISSED
    assert sum([(await state_of(store, one)).done for one in operations]) == len(MISSED)
    assert [row["filled"] for row in await table(store, "skip_range")] == [5]
    await check_promises(store)


async def test_two_backfills_that_have_chosen_the_same_occurrence_fill_it_in_once(
    store: Store, commands: Commands, clock: VirtualClock, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either writes; the first execution has ended when the second is to be written."""
    first, second = [await commands.backfills.start(whole(job), ANA) for _ in range(2)]
    holder = store.env.new_id()
    taken = [await store.operations.take(holder) for _ in range(1)]
    assert taken[0] is not None
    chosen = await commands.backfills._choose(job, whole(job), None, 1)
    await commands.operations.run(taken[0], holder)
    await end_all(store)

    async def stale(*_: Any) -> Any:
        return chosen

    monkeypatch.setattr(commands.backfills, "_choose", stale)
    other = await store.operations.take(store.env.new_id())
    assert other is not None
    assert {first.id, second.id} == {taken[0].id, other.id}
    held = await state_of(store, other)
    row = await store.database.fetch_row("find_operation", id=held.id)
    assert row is not None
    after = await commands.operations.run(other, row["holder"])

    assert after.total == 0
    assert offsets(await backfilled(store)) == [15]


# Through PgBouncer, no connection has a process of the server to itself.
@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_a_backfill_waits_for_another_one_that_creates_executions_of_its_job(
    store: Store, commands: Commands, job: Job
) -> None:
    """The first has written and not committed when the second comes; then the second sees what was filled in."""
    at = START + seconds(15)
    request = ExecutionRequest(id=filling_id(job.id, at), job_id=job.id, origin=Origin.BACKFILL, scheduled_for=at)
    holder = store.env.new_id()
    operations = [await commands.backfills.start(whole(job), ANA) for _ in range(2)]
    held = [await store.operations.take(store.env.new_id()), await store.operations.take(holder)]
    assert held[1] is not None
    asked = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"

    async with asyncio.timeout(PATIENCE_SECONDS), store.database.connection() as watch:
        async with store.database.transaction() as first:
            pid = await first.fetchval("SELECT pg_backend_pid()")
            await store.backfills._create(first, operations[0], [request])
            second = asyncio.create_task(store.backfills.feed(held[1], holder, [request], at))
            while not await watch.fetchval(asked, pid):
                assert not second.done()
        fed = await second

    assert fed is not None
    assert (fed.total, fed.cursor) == (0, at)
    assert offsets(await backfilled(store)) == [15]


async def test_a_freeze_holds_for_a_backfill(
    store: Store, commands: Commands, loop: OperationLoop, node: ManualScheduler, clock: VirtualClock, job: Job
) -> None:
    freeze = await commands.freezes.add(FreezeScope.JOB, job_id=job.id, until=clock.now() + seconds(600), actor=ANA)
    operation = await commands.backfills.start(whole(job, max_running=3), ANA)
    for _ in range(3):
        await loop.round()
        assert await claim_all(store) == []
        clock.advance(seconds(1))
    waiting = await backfilled(store)

    await commands.freezes.end(freeze.id, ANA)
    await node.tick()

    assert offsets(waiting) == MISSED[:3]
    assert (await run(store, loop, operation, clock)).done == 5


async def backfilling(
    store: Store, commands: Commands, loop: OperationLoop, worker: Hands, **fields: Any
) -> tuple[Job, ClaimedExecution]:
    """A job with an occurrence each minute, of which five were skipped by a pause; a worker runs the first of them for a backfill."""
    clock = store.env.clock
    assert isinstance(clock, VirtualClock)
    job = await create(store, interval_seconds=60, **fields)
    await commands.jobs.pause(job.id, actor=ANA)
    clock.advance(seconds(330))
    await commands.jobs.resume(job.id, ANA)
    await commands.backfills.start(Backfill(job_id=job.id, since=START, until=clock.now(), max_running=2), ANA)
    await loop.round()
    (claimed,) = await worker.claim(1)
    assert (claimed.origin, claimed.scheduled_for) == (Origin.BACKFILL, START + seconds(60))
    return job, claimed


@pytest.mark.parametrize("is_tried_again", [False, True])
async def test_a_backfill_does_not_make_the_schedule_skip(
    store: Store,
    commands: Commands,
    loop: OperationLoop,
    node: ManualScheduler,
    worker: Hands,
    is_tried_again: bool,
) -> None:
    """One execution of the backfill runs, or waits to be tried again; another is ready."""
    job, running = await backfilling(store, commands, loop, worker, initial_backoff_ms=600_000)
    if is_tried_again:
        await record(store, [found(running, Failed(FAILURE))])
        assert [row["origin"] for row in await table(store, "due") if row["kind"] == "retry"] == ["backfill"]

    explanation = await make_server_runtime(Settings(), store, commands).queries.explain.execution(
        str(occurrence_id(job.id, START + seconds(360)))
    )
    await node.run_until(START + seconds(361))

    assert [gate.result.sentence for gate in explanation.gates if gate.name == "overlap"] == [
        "no earlier execution of the job is unfinished"
    ]
    ready = [row["scheduled_for"] for row in await table(store, "ready") if row["origin"] == "schedule"]
    assert ready == [START + seconds(360)]
    assert [row["reason"] for row in await table(store, "skip_range")] == ["paused"]
    await check_promises(store)


@pytest.mark.parametrize("overlap", [policy.value for policy in Overlap if policy.is_serial])
async def test_under_a_limit_of_one_the_schedule_and_a_backfill_take_turns(
    store: Store, commands: Commands, loop: OperationLoop, node: ManualScheduler, worker: Hands, overlap: str
) -> None:
    """No occurrence asks an execution of a backfill to stop, and none takes the place of one that waits; nor do they beside a trigger."""
    job, running = await backfilling(store, commands, loop, worker, overlap=overlap)
    await commands.executions.trigger(job.id, actor=ANA)

    await node.run_until(START + seconds(361))
    reaper = Reaper(
        store.env,
        Heard(),
        store.nodes,
        store.executions,
        store.jobs,
        store.queues,
        HousekeepingSettings(),
        lambda: True,
    )
    await reaper.tick()

    assert await store.executions.stops(worker.incarnation) == {}
    waiting = await table(store, "blocked")
    assert sorted((row["origin"], row["scheduled_for"]) for row in waiting) == [
        ("backfill", START + seconds(120)),
        ("schedule", START + seconds(360)),
        ("trigger", START + seconds(330)),
    ]
    await worker.succeed([running])
    for _ in waiting:
        claims = await worker.claim()
        assert len(claims) == 1
        await worker.succeed(claims)
    assert await table(store, "blocked") == []
    assert [row["reason"] for row in await table(store, "skip_range")] == ["paused"]
    await check_promises(store)


@pytest.mark.parametrize("max_running", [1, 2, 4])
async def test_at_most_max_running_executions_are_unfinished(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job, max_running: int
) -> None:
    operation = await commands.backfills.start(whole(job, max_running=max_running), ANA)
    most = 0
    for _ in range(30):
        for _ in range(3):
            await loop.round()
            clock.advance(seconds(1))
        most = max(most, len(await table(store, "ready")))
        await end_all(store)

    assert most == max_running
    assert (await state_of(store, operation)).done == 5


async def test_a_backfill_goes_on_after_the_death_of_its_process(
    store: Store, commands: Commands, clock: VirtualClock, job: Job
) -> None:
    operation = await commands.backfills.start(whole(job), ANA)
    dead = store.env.new_id()
    held = await store.operations.take(dead)
    assert held is not None
    clock.advance(seconds(31))

    over = await run(store, OperationLoop(commands, store.env.new_id()), operation, clock)

    assert over.done == 5
    assert offsets(await backfilled(store)) == MISSED
    # The dead one wakes up, and has lost its turn.
    await commands.operations.run(held, dead)
    assert offsets(await backfilled(store)) == MISSED


async def test_a_step_whose_reply_was_lost_is_not_repeated(store: Store, commands: Commands, job: Job) -> None:
    await commands.backfills.start(whole(job), ANA)
    holder = store.env.new_id()
    held = await store.operations.take(holder)
    assert held is not None

    at = START + seconds(15)
    request = ExecutionRequest(
        id=filling_id(job.id, at), job_id=job.id, origin=Origin.BACKFILL, scheduled_for=at, priority=0
    )

    fed = await store.backfills.feed(held, holder, [request], at)
    again = await store.backfills.feed(held, holder, [request], at)

    assert fed is not None
    assert again is None
    assert (await state_of(store, held)).total == 1
    assert offsets(await backfilled(store)) == [15]


async def test_a_paused_backfill_creates_nothing_until_it_is_resumed(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    operation = await commands.backfills.start(whole(job), ANA)
    await loop.round()
    paused = await commands.operations.pause(operation.id, ANA)
    await end_all(store)
    clock.advance(seconds(60))

    assert await loop.round() is None
    assert paused.state is OperationState.PAUSED
    assert len(await backfilled(store)) == 1
    await commands.operations.resume(operation.id, ANA)
    assert (await run(store, loop, operation, clock)).done == 5
    audit = {row["action"]: row for row in await table(store, "audit") if row["actor"] == "ana"}
    assert set(audit) == {"job.backfill", "operation.pause", "operation.resume"}
    assert (audit["job.backfill"]["subject"], audit["job.backfill"]["reason"]) == (f"job:{job.id}", "the outage")
    with pytest.raises(Conflict, match="not paused"):
        await commands.operations.resume(operation.id, ANA)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_cancelled_backfill_creates_nothing_more(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job, is_paused: bool
) -> None:
    operation = await commands.backfills.start(whole(job), ANA)
    await loop.round()
    if is_paused:
        await commands.operations.pause(operation.id, ANA)
    await commands.operations.cancel(operation.id, ANA)

    over = await loop.round()

    assert over is not None
    assert over.state is OperationState.CANCELLED
    assert len(await backfilled(store)) == 1
    assert (await commands.backfills.preview(whole(job))).would_run == 4


async def test_what_failed_runs_again_once_for_each_backfill_until_it_succeeds(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    failed = whole(job, only=FAILED_ONES)
    filling = await run(store, loop, await commands.backfills.start(whole(job), ANA), clock, DEATH)
    assert (filling.state, filling.done, filling.failed) == (OperationState.SUCCEEDED, 0, 5)
    assert await counts(commands, failed) == {("ran", None): (9, 0), ("ran", "dead"): (5, 5)}
    assert (await commands.backfills.preview(whole(job))).would_run == 0

    still = await run(store, loop, await commands.backfills.start(failed, ANA), clock, DEATH)
    again = await commands.backfills.start(failed, ANA)
    await run(store, loop, again, clock)

    assert (still.total, still.failed) == (5, 5)
    ids = {row["id"] for row in await backfilled(store)}
    assert len(ids) == 15
    assert repetition_id(job.id, START + seconds(15), again.id) in ids
    assert await counts(commands, failed) == {("ran", None): (14, 0)}
    await check_promises(store)


async def test_what_was_retried_with_success_has_not_failed(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    failed = whole(job, only=FAILED_ONES)
    await run(store, loop, await commands.backfills.start(whole(job), ANA), clock, DEATH)
    first = await commands.executions.retry(filling_id(job.id, START + seconds(15)), actor=ANA)
    assert (await commands.backfills.preview(failed)).would_run == 4
    await end_all(store, DEATH)
    assert (await commands.backfills.preview(failed)).would_run == 5
    await commands.executions.retry(first, actor=ANA)
    await end_all(store)

    assert await counts(commands, failed) == {("ran", None): (10, 0), ("ran", "dead"): (4, 4)}


async def test_all_runs_everything_that_is_over_and_fills_in_the_rest(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    over = await run(store, loop, await commands.backfills.start(whole(job, only=ALL, max_running=3), ANA), clock)

    assert over.done == 14
    assert offsets(await backfilled(store)) == [5 * n for n in range(1, 15)]
    assert (await commands.backfills.preview(whole(job))).would_run == 0
    second = await run(store, loop, await commands.backfills.start(whole(job, only=ALL), ANA), clock)
    assert second.done == 14
    await check_promises(store)


async def test_the_latest_occurrence_comes_first_if_asked_for(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    operation = await commands.backfills.start(whole(job, newest_first=True), ANA)
    order: list[float] = []
    for _ in range(5):
        await loop.round()
        order += offsets(list(await table(store, "ready")))
        await end_all(store)
        clock.advance(seconds(1))

    assert order == [float(at) for at in MISSED[::-1]]
    assert (await run(store, loop, operation, clock)).progress == 1.0


async def test_the_instants_are_those_of_the_versions_or_of_the_present_schedule(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    await commands.jobs.update(job.id, {"interval_seconds": 7}, ANA)
    present = Backfill(job_id=job.id, since=START - seconds(30), until=START + seconds(40), by=BackfillSource.PRESENT)
    by_versions = await counts(commands, whole(job))
    edited = (await store.jobs.find([job.id]))[job.id]
    instants = [one.at for one in edited.rule.occurrences(START - seconds(31), START + seconds(40))]
    ran = [at for at in (START + seconds(n) for n in (5, 10, 40)) if at in instants]

    over = await run(store, loop, await commands.backfills.start(present, ANA), clock)

    assert by_versions["skipped", "misfire"] == (5, 5)
    assert over.done == len(instants) - len(ran)
    assert [row["scheduled_for"] for row in await backfilled(store)] == [at for at in instants if at not in ran]
    await check_promises(store)


async def test_a_range_counts_only_the_occurrences_that_its_own_version_names(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    """The present schedule names more instants within the range than were skipped, and one of those that were."""
    await commands.jobs.update(job.id, {"interval_seconds": 2}, ANA)
    present = whole(job, by=BackfillSource.PRESENT, max_running=20)
    edited = (await store.jobs.find([job.id]))[job.id]
    instants = [one.at for one in edited.rule.occurrences(START - seconds(1), START + seconds(72))]
    skipped = [at for at in instants if at in [START + seconds(n) for n in MISSED]]
    ran = [at for at in instants if at in [START + seconds(n) for n in (5, 10, *range(40, 75, 5))]]

    before = await counts(commands, present)
    await run(store, loop, await commands.backfills.start(present, ANA), clock)
    by_present = [row["filled"] for row in await table(store, "skip_range")]
    await check_promises(store)
    await run(store, loop, await commands.backfills.start(whole(job), ANA), clock)
    by_versions = [row["filled"] for row in await table(store, "skip_range")]

    assert 0 < len(skipped) < len(MISSED)
    assert before == {
        ("ran", None): (len(ran), 0),
        ("skipped", "misfire"): (len(skipped), len(skipped)),
        ("unrecorded", "not_scheduled"): (
            len(instants) - len(ran) - len(skipped),
            len(instants) - len(ran) - len(skipped),
        ),
    }
    assert (by_present, by_versions) == ([len(skipped)], [len(MISSED)])
    assert (await commands.backfills.preview(whole(job))).would_run == 0
    await check_promises(store)


async def test_occurrences_whose_records_were_deleted_are_left_alone(
    store: Store, commands: Commands, clock: VirtualClock, job: Job
) -> None:
    async with store.database.connection() as connection:
        await connection.execute("TRUNCATE timeball.finished, timeball.skip_range")
        await connection.execute(
            "INSERT INTO timeball.fact VALUES ('history_from', $1)", (START + seconds(71)).isoformat()
        )

    assert await counts(commands, whole(job, only=ALL)) == {("unrecorded", "deleted"): (14, 0)}


async def test_what_a_pause_skips_is_filled_in_when_the_pause_is_over(
    store: Store, commands: Commands, loop: OperationLoop, node: ManualScheduler, clock: VirtualClock
) -> None:
    job = await create(store, interval_seconds=5)
    await commands.jobs.pause(job.id, actor=ANA)
    clock.advance(seconds(12))
    backfill = Backfill(job_id=job.id, since=START, until=clock.now())

    assert await counts(commands, backfill) == {("skipped", "paused"): (2, 0)}
    await commands.jobs.resume(job.id, ANA)
    assert await counts(commands, backfill) == {("skipped", "paused"): (2, 2)}


async def test_a_payload_is_given_to_every_execution_with_the_values_of_its_occurrence(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    payload = '{"day": {"$now": "scheduled_for"}}'
    await run(store, loop, await commands.backfills.start(whole(job, payload=payload), ANA), clock)

    assert {row["payload"] for row in await backfilled(store)} == {payload}


async def test_a_year_of_minutes_is_looked_at_page_by_page(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock
) -> None:
    job = await create(store, schedule="* * * * *")
    year = Backfill(
        job_id=job.id,
        since=clock.now() - seconds(365 * 86_400),
        until=clock.now(),
        by=BackfillSource.PRESENT,
        only=FAILED_ONES,
    )

    preview = await commands.backfills.preview(year)
    operation = await commands.backfills.start(year, ANA)
    await loop.round()
    step = await state_of(store, operation)

    assert preview.total == 100_000
    assert preview.counted_until is not None
    assert step.cursor is not None
    assert 4_000 < (step.cursor - year.since) / seconds(60) <= 5_001
    assert await table(store, "operation_item") == []


async def test_a_job_that_cannot_be_backfilled_says_why(store: Store, commands: Commands, clock: VirtualClock) -> None:
    manual = await create(store)
    unique = await create(store, interval_seconds=5, unique_key="one")
    clock.advance(seconds(10))
    late = clock.now() + seconds(60)

    with pytest.raises(InvalidInput, match="only recurring jobs"):
        await commands.backfills.start(Backfill(job_id=manual.id, since=START, until=clock.now()), ANA)
    with pytest.raises(Conflict, match="unique_key 'one'"):
        await commands.backfills.start(Backfill(job_id=unique.id, since=START, until=clock.now()), ANA)
    with pytest.raises(InvalidInput, match=r"from is .*, expected an instant of the past"):
        await commands.backfills.start(Backfill(job_id=unique.id, since=late, until=late), ANA)
    with pytest.raises(InvalidInput, match=r"until is .*not before from"):
        Backfill(job_id=unique.id, since=clock.now(), until=START)
    with pytest.raises(InvalidInput, match="max_running is 0, expected 1 to 1000"):
        whole(unique, max_running=0)


async def test_a_backfill_of_a_deleted_job_fails_and_says_why(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    await commands.backfills.start(whole(job), ANA)
    await commands.jobs.delete(job.id, ANA)

    over = await loop.round()

    assert over is not None
    assert over.state is OperationState.FAILED
    assert "job" in (over.error or "")


async def test_verify_finds_an_occurrence_that_was_filled_in_wrongly(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock, job: Job
) -> None:
    """A filling of what ran, one at an instant that no version names, and a range with more fillings than occurrences."""
    await run(store, loop, await commands.backfills.start(whole(job), ANA), clock)
    proven = (await verify(store.database, clock.now(), second_look=NO_TIME)).check("backfills")
    wrong = [START + seconds(at) for at in (10, 17)]
    requests = [
        ExecutionRequest(id=filling_id(job.id, at), job_id=job.id, origin=Origin.BACKFILL, scheduled_for=at)
        for at in wrong
    ]
    await store.jobs.request(requests, ANA.entry, "job.backfill")
    async with store.database.connection() as connection:
        await connection.execute("UPDATE timeball.skip_range SET filled = filled + 1")

    broken = (await verify(store.database, clock.now(), second_look=NO_TIME)).check("backfills")

    assert (proven.holds, proven.checked) == (True, 5 + 1)
    assert sorted(violation.why for violation in broken.violations) == [
        "a backfill ran an occurrence that no version of its job names",
        "an occurrence that ran was filled in",
        "more was filled in than was skipped",
    ]


async def test_a_repeated_request_starts_one_backfill(store: Store, commands: Commands, job: Job) -> None:
    request = IdempotentRequest(store.env.new_id())

    first = await commands.backfills.start(whole(job), ANA, request)
    again = await commands.backfills.start(whole(job), ANA, replace(request, is_repeated=True))

    assert again == first
    assert len(await table(store, "operation")) == 1


async def test_only_backfills_are_paused(store: Store, commands: Commands, job: Job) -> None:
    operation = await commands.operations.start(OperationAction.CANCEL, [UUID(int=1)], ANA)

    with pytest.raises(Conflict, match="only backfills can be paused"):
        await commands.operations.pause(operation.id, ANA)
