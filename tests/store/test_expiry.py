"""What has not begun in time is recorded as skipped, once; what has begun never is."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    claim_all,
    due_row,
    enqueue,
    found,
    make_job,
    make_owner,
    make_recurring,
    only_row,
    plan_row,
    promote,
    promote_due,
    read_job,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.application.commands import Commands
from timeball.domain import job_changes
from timeball.domain.execution import (
    ErrorInfo,
    Failed,
    Lost,
    NotStarted,
    Origin,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
)
from timeball.domain.expiry import NEVER, Expiry
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.store import Store
from timeball.store.types import ExecutionRequest
from timeball.testing import VirtualClock
from timeball.testing.environment import START


async def expire(store: Store, limit: int = 100) -> set[ExecutionId]:
    return set(await store.executions.expire_waiting(limit))


async def expiry_of(store: Store, execution_id: ExecutionId) -> datetime | None:
    execution = await store.history.find(execution_id)
    assert execution is not None
    return execution.expires_at


# what expires


@pytest.mark.parametrize("state_table", ["due", "ready", "blocked"])
async def test_an_execution_that_waits_expires_at_its_instant(
    store: Store, clock: VirtualClock, state_table: str
) -> None:
    now = clock.now()
    limit = {"max_running": 1, "limit_key": "l"} if state_table == "blocked" else {}
    if limit:
        await enqueue(store, **limit)
    execution_id = await enqueue(store, 60 if state_table == "due" else 0, expires_at=now + seconds(90), **limit)
    assert await tables_of(store, execution_id) == [state_table]
    clock.advance(seconds(90) - seconds(0.000001))
    assert await expire(store) == set()
    clock.advance(seconds(0.000001))

    assert await expire(store) == {execution_id}

    assert await tables_of(store, execution_id) == ["finished"]
    ended = await only_row(store, "finished")
    assert (ended["state"], ended["reason"], ended["attempts"]) == ("skipped", "expired", 0)
    assert (ended["expires_at"], ended["finished_at"]) == (now + seconds(90), now + seconds(90))
    assert await expire(store) == set()


async def test_an_execution_without_expiry_waits_for_ever(store: Store, clock: VirtualClock) -> None:
    execution_id = await enqueue(store)
    clock.advance("300d")

    assert await expire(store) == set()
    assert await tables_of(store, execution_id) == ["ready"]


async def test_an_expired_execution_frees_its_key(store: Store, clock: VirtualClock) -> None:
    await enqueue(store, unique_key="k", start_within_seconds=5)
    clock.advance("5s")

    await expire(store)

    assert await table(store, "live_key") == []


async def test_an_expired_execution_does_not_free_a_key_that_another_has_by_now(
    store: Store, clock: VirtualClock
) -> None:
    await enqueue(store, unique_key="k", start_within_seconds=5)
    other = store.env.new_id()
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.live_key SET execution_id = $1", other)
    clock.advance("5s")

    await expire(store)

    assert (await only_row(store, "live_key"))["execution_id"] == other


async def test_the_place_of_an_expired_execution_is_passed_on(store: Store, clock: VirtualClock) -> None:
    first = await enqueue(store, max_running=1, limit_key="l", start_within_seconds=5)
    second = await enqueue(store, max_running=1, limit_key="l")
    assert await tables_of(store, second) == ["blocked"]
    clock.advance("5s")

    assert await expire(store) == {first}

    assert await tables_of(store, second) == ["ready"]


async def test_a_sweep_takes_a_bounded_number_the_oldest_first(store: Store, clock: VirtualClock) -> None:
    ids = [await enqueue(store, start_within_seconds=number) for number in (9, 3, 7, 5, 20)]
    clock.advance("10s")

    assert await expire(store, 2) == {ids[1], ids[3]}
    assert await expire(store, 2) == {ids[2], ids[0]}
    assert await expire(store, 2) == set()


async def test_the_pending_occurrence_of_a_schedule_is_left_to_its_scheduler(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, start_within_seconds=5)
    clock.advance("70s")

    assert await expire(store) == set()
    await promote_due(store, await make_owner(store))

    (skipped,) = await table(store, "finished")
    assert (skipped["reason"], skipped["scheduled_for"]) == ("expired", clock.now() - seconds(10))
    assert skipped["expires_at"] == clock.now() - seconds(5)
    following = await due_row(store, job.id)
    assert following.expires_at == following.scheduled_for + seconds(5)


async def test_an_occurrence_that_waits_for_an_earlier_one_expires(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="queue", start_within_seconds=30)
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    (claimed,) = await claim_all(store)
    clock.advance("60s")
    await promote(store, [await plan_row(store, await due_row(store, job.id), is_busy=True)], owner)
    waiting = await only_row(store, "blocked")
    clock.advance("30s")

    assert await expire(store) == {waiting["id"]}

    await store.executions.finish_succeeded([found(claimed, Succeeded())])
    ended = {row["scheduled_for"]: row["state"] for row in await table(store, "finished")}
    assert list(ended.values()) == ["succeeded", "skipped"]


@pytest.mark.parametrize("kind", ["ready", "due"])
async def test_a_pause_does_not_stop_the_time_to_begin(store: Store, clock: VirtualClock, kind: str) -> None:
    execution_id = await enqueue(store, 60 if kind == "due" else 0, start_within_seconds=30)
    await store.jobs.change(JobId(execution_id), lambda found: job_changes.pause_job(found, None, None), OPERATOR)
    assert await tables_of(store, execution_id) == ["due"]
    clock.advance("90s")

    assert await expire(store) == {execution_id}


# what moves keeps its time


async def test_every_move_keeps_the_time_to_begin(store: Store, clock: VirtualClock) -> None:
    execution_id = await enqueue(store, 10, start_within_seconds=100)
    expires_at = clock.now() + seconds(110)
    owner = await make_owner(store)

    async def is_kept(state_table: str) -> bool:
        row = await only_row(store, state_table)
        return (row["id"], row["expires_at"]) == (execution_id, expires_at)

    assert await is_kept("due")
    clock.advance("10s")
    await promote_due(store, owner)
    assert await is_kept("ready")
    await store.jobs.change(
        JobId(execution_id),
        lambda found: job_changes.edit_job(found, {"max_running": 1, "limit_key": "l"}, store.shards),
        OPERATOR,
    )
    assert await is_kept("ready"), "it was blocked, and had a free place"
    (claimed,) = await claim_all(store)
    assert await is_kept("running")
    assert claimed.expires_at == expires_at
    await record(store, [found(claimed, Released(), started_at=None)])
    assert await is_kept("ready"), "it was given back before it began"
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Snoozed(seconds(1)), started_at=None)])
    assert await is_kept("due"), "it was held back before it began"


async def test_a_lowered_limit_keeps_the_time_to_begin(store: Store, clock: VirtualClock) -> None:
    for _ in range(2):
        await enqueue(store, max_running=2, limit_key="l", start_within_seconds=100)

    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.running_limit SET max_running = 1")

    assert (await only_row(store, "blocked"))["expires_at"] == clock.now() + seconds(100)


async def test_a_claim_that_is_read_back_knows_its_time(store: Store) -> None:
    await enqueue(store, start_within_seconds=100)
    (claimed,) = await claim_all(store)
    row = await only_row(store, "running")

    assert await store.executions.read_back_claim(row["holder"], row["claim_id"]) == [claimed]


async def test_an_edited_one_off_counts_from_its_new_instant(store: Store, clock: VirtualClock) -> None:
    execution_id = await enqueue(store, 60, start_within_seconds=30)
    moved = clock.now() + seconds(500)

    await store.jobs.change(
        JobId(execution_id),
        lambda found: job_changes.edit_job(found, {"scheduled_at": moved}, store.shards),
        OPERATOR,
    )

    assert await expiry_of(store, execution_id) == moved + seconds(30)


async def test_a_one_off_that_is_edited_during_a_pause_counts_from_its_instant(
    store: Store, clock: VirtualClock
) -> None:
    """A parked row waits for the year 9999."""
    instant = clock.now() + seconds(60)
    execution_id = await enqueue(store, 60, start_within_seconds=30)
    job_id = JobId(execution_id)
    await store.jobs.change(job_id, lambda found: job_changes.pause_job(found, None, None), OPERATOR)

    await store.jobs.change(job_id, lambda found: job_changes.edit_job(found, {"priority": 7}, store.shards), OPERATOR)

    assert await expiry_of(store, execution_id) == instant + seconds(30)


# what has begun


@pytest.mark.parametrize(
    "outcome",
    [
        Failed(FAILURE),
        Snoozed(seconds(1)),
        Released(has_started=True),
        Lost(ErrorInfo(type="WorkerLost", message="gone")),
    ],
    ids=["failed", "snoozed", "released", "lost"],
)
async def test_an_execution_that_has_begun_expires_no_more(store: Store, clock: VirtualClock, outcome: Outcome) -> None:
    execution_id = await enqueue(store, start_within_seconds=5)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, outcome)])
    clock.advance("1h")

    assert await expire(store) == set()

    assert await expiry_of(store, execution_id) is None
    assert await tables_of(store, execution_id) in (["due"], ["ready"])


async def test_an_execution_that_runs_is_not_swept(store: Store, clock: VirtualClock) -> None:
    execution_id = await enqueue(store, start_within_seconds=5)
    (claimed,) = await claim_all(store)
    clock.advance("1h")

    assert await expire(store) == set()

    assert await store.executions.finish_succeeded([found(claimed, Succeeded())]) == []
    ended = await only_row(store, "finished")
    assert (ended["id"], ended["state"], ended["expires_at"]) == (execution_id, "succeeded", None)


async def test_a_worker_records_what_expired_in_its_hands(store: Store, clock: VirtualClock) -> None:
    await enqueue(store, start_within_seconds=5, unique_key="k")
    (claimed,) = await claim_all(store)
    clock.advance("5s")

    await record(store, [found(claimed, NotStarted("expired"), started_at=None, finished_at=clock.now())])

    ended = await only_row(store, "finished")
    assert (ended["state"], ended["reason"], ended["attempts"]) == ("skipped", "expired", 0)
    assert (ended["expires_at"], ended["finished_at"]) == (clock.now(), clock.now())
    assert await table(store, "live_key") == []


# requests


@pytest.mark.parametrize(
    ("expiry", "after"),
    [
        (NEVER, 30),
        (Expiry(start_within_seconds=7), 7),
        (Expiry(start_within_seconds=300), 300),
        (Expiry(expires_at=START + seconds(900)), 900),
    ],
    ids=["the job's", "shorter", "longer", "an instant"],
)
async def test_a_request_overrules_its_job(store: Store, expiry: Expiry, after: float) -> None:
    job = await make_job(store, start_within_seconds=30)

    new = await Commands(store, store.env).executions.trigger(job.id, expiry=expiry)

    assert await expiry_of(store, new) == START + seconds(after)


async def test_a_retry_has_its_own_time_to_begin(store: Store, clock: VirtualClock) -> None:
    """The instant at which a one-off expires concerns its own execution, or a retry could never run."""
    execution_id = await enqueue(store, start_within_seconds=30, expires_at=clock.now() + seconds(10))
    clock.advance("10s")
    await expire(store)

    new = await Commands(store, store.env).executions.retry(execution_id)

    assert await expiry_of(store, new) == clock.now() + seconds(30)


async def test_a_backfilled_execution_counts_from_when_it_is_to_run(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, start_within_seconds=30)
    run_at = clock.now() + seconds(100)
    request = ExecutionRequest(
        id=ExecutionId(store.env.new_id()),
        job_id=job.id,
        origin=Origin.BACKFILL,
        run_at=run_at,
        scheduled_for=clock.now() - seconds(86_400),
    )

    await store.jobs.request([request], OPERATOR, "job.backfill")

    assert await expiry_of(store, request.id) == run_at + seconds(30)


@pytest.mark.parametrize("after", [0, 60], ids=["now", "ahead"])
async def test_a_bulk_enqueue_expires(store: Store, clock: VirtualClock, after: float) -> None:
    fields: dict[str, Any] = {"scheduled_at": clock.now() + seconds(after)} if after else {}
    spec = JobSpec(handler="work", start_within_seconds=30, **fields)

    ids = await Commands(store, store.env).jobs.enqueue_many(spec, ["1", "2", "3"])

    clock.advance(seconds(after + 29))
    assert await expire(store) == set()
    clock.advance("1s")
    assert await expire(store) == set(ids)


async def test_a_job_keeps_its_time_to_begin(store: Store, clock: VirtualClock) -> None:
    at = clock.now() + seconds(60)
    job = await make_job(store, scheduled_at=at, expires_at=at + seconds(10), start_within_seconds=20)

    stored = await read_job(store, job.id)

    assert (stored.expires_at, stored.start_within_seconds) == (at + seconds(10), 20)
    assert stored.expiry_of(at) == at + seconds(10)
