"""An execution has its unique key exactly as long as it is unfinished, however it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    claim_all,
    due_row,
    due_rows,
    enqueue,
    found,
    make_job,
    make_owner,
    make_recurring,
    only_row,
    plan_row,
    promote,
    promote_due,
    put_row,
    record,
    table,
    tables_of,
)
from timeball.domain import job_changes
from timeball.domain.execution import Failed, Origin
from timeball.domain.job import Job
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.store import Store
from timeball.store.types import ExecutionRequest, ShardOwnership
from timeball.testing import VirtualClock

# The columns that a row keeps from table to table.
SHARED = ("id", "job_id", "origin", "version", "queue", "priority", "handler", "scheduled_for", "run_at", "unique_key")


async def keys(store: Store) -> dict[str, ExecutionId]:
    return {row["key"]: row["execution_id"] for row in await table(store, "live_key")}


async def trigger(store: Store, job: Job) -> ExecutionId:
    request = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)
    return (await store.jobs.request([request], OPERATOR, "job.trigger"))[0]


async def pause(store: Store, job_id: JobId) -> None:
    await store.jobs.change(job_id, lambda found: job_changes.pause_job(found, None, None), OPERATOR)


async def delete(store: Store, job_id: JobId) -> None:
    await store.jobs.change(job_id, lambda found: job_changes.delete_job(found, None), OPERATOR)


async def promoted(store: Store, clock: VirtualClock, **fields: object) -> tuple[Job, ShardOwnership, ExecutionId]:
    """A recurring job with a key, whose first occurrence is ready and has it."""
    job = await make_recurring(store, 60, unique_key="k", **fields)
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    execution = (await keys(store))["k"]
    return job, owner, execution


@pytest.mark.parametrize("ends", [pause, delete], ids=["pause", "delete"])
async def test_a_withdrawn_occurrence_frees_its_key(
    store: Store, clock: VirtualClock, ends: Callable[[Store, JobId], Awaitable[None]]
) -> None:
    job, _, _ = await promoted(store, clock, overlap="allow")

    await ends(store, job.id)

    assert await keys(store) == {}


async def test_a_blocked_occurrence_frees_its_key_when_its_job_is_paused(store: Store, clock: VirtualClock) -> None:
    await enqueue(store, max_running=1, limit_key="l")
    job, _, execution = await promoted(store, clock, overlap="allow", max_running=1, limit_key="l")
    assert (await only_row(store, "blocked"))["id"] == execution

    await pause(store, job.id)

    assert await keys(store) == {}


async def test_a_requested_execution_keeps_its_key_during_a_pause(store: Store) -> None:
    """It is unfinished: it will run when the job is resumed."""
    job = await make_job(store, unique_key="k")
    triggered = await trigger(store, job)

    await pause(store, job.id)

    assert await keys(store) == {"k": triggered}


async def test_a_retry_keeps_its_key_during_a_pause(store: Store, clock: VirtualClock) -> None:
    job, _, execution = await promoted(store, clock, overlap="allow")
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE))])
    clock.advance("1h")
    await promote(
        store,
        [await plan_row(store, row) for row in await due_rows(store) if row.id == execution],
        await make_owner(store),
    )

    await pause(store, job.id)

    assert (await keys(store))["k"] == execution
    assert await tables_of(store, execution) == ["due"]


async def test_an_edit_leaves_the_key_with_its_execution(store: Store, clock: VirtualClock) -> None:
    job, _, execution = await promoted(store, clock)

    await store.jobs.change(
        job.id, lambda found: job_changes.edit_job(found, {"unique_key": "another"}, store.shards), OPERATOR
    )

    assert await keys(store) == {"k": execution}
    (claimed,) = await claim_all(store)
    await store.executions.finish_succeeded([found(claimed)])
    assert await keys(store) == {}


@pytest.mark.parametrize("after", [0, 60], ids=["ready", "due"])
async def test_a_cancellation_frees_the_key(store: Store, after: float) -> None:
    execution = await enqueue(store, after=after, unique_key="k")

    await store.jobs.cancel([execution], "not needed", OPERATOR)

    assert await keys(store) == {}


async def test_a_purge_frees_the_keys(store: Store) -> None:
    await enqueue(store, unique_key="k")

    await store.queues.purge("default", "not needed", OPERATOR)

    assert await keys(store) == {}


async def test_a_named_one_off_that_is_due_at_once_takes_its_key_with_the_promotion(
    store: Store, clock: VirtualClock
) -> None:
    """So it does not go to ready at once, like others: only a promotion can skip it because its key is taken."""
    held = await make_job(store, name="held", scheduled_at=clock.now(), unique_key="k")
    refused = await make_job(store, name="refused", scheduled_at=clock.now(), unique_key="k")
    assert {row["job_id"] for row in await table(store, "due")} == {held.id, refused.id}
    owner = await make_owner(store)

    await promote(store, [await plan_row(store, await due_row(store, held.id))], owner)
    await promote(store, [await plan_row(store, await due_row(store, refused.id))], owner)

    ready, skipped = await only_row(store, "ready"), await only_row(store, "finished")
    assert (ready["job_id"], await keys(store)) == (held.id, {"k": ready["id"]})
    assert (skipped["job_id"], skipped["state"], skipped["reason"]) == (refused.id, "skipped", "unique_key")


async def test_an_occurrence_that_is_skipped_for_an_overlap_takes_no_key(store: Store, clock: VirtualClock) -> None:
    job, owner, execution = await promoted(store, clock)
    clock.advance("60s")

    await promote(store, [await plan_row(store, await due_row(store, job.id), is_busy=True)], owner)

    assert await keys(store) == {"k": execution}
    assert (await only_row(store, "finished"))["reason"] == "overlap"


@pytest.mark.parametrize("is_its_own", [True, False], ids=["its own", "another's"])
async def test_a_skipped_catch_up_frees_its_key(store: Store, clock: VirtualClock, is_its_own: bool) -> None:
    job, owner, execution = await promoted(store, clock)
    columns = {name: value for name, value in (await only_row(store, "ready")).items() if name in SHARED}
    async with store.database.transaction() as connection:
        await connection.execute("DELETE FROM timeball.ready")
        if not is_its_own:
            await connection.execute("UPDATE timeball.live_key SET execution_id = $1", job.id)
    await put_row(store, "due", kind="later", shard=job.shard, **columns)
    (later,) = [row for row in await due_rows(store) if row.id == execution]

    await promote(store, [await plan_row(store, later, is_busy=True)], owner)

    assert (await only_row(store, "finished"))["reason"] == "overlap"
    assert await keys(store) == ({} if is_its_own else {"k": job.id})


async def test_missed_occurrences_take_no_key(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, unique_key="k", misfire="skip")
    owner = await make_owner(store)
    clock.advance("18045s")

    await promote(store, [await plan_row(store, await due_row(store, job.id))], owner)

    assert await keys(store) == {}
    assert await table(store, "ready") == []
