"""What follows the end of an execution: written by the statement that ends it, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.factories import (
    FAILURE,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_job,
    make_node,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.domain.execution import (
    CancelOutcome,
    ClaimedExecution,
    Failed,
    Lost,
    NotStarted,
    Origin,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.policies import SkipReason
from timeball.domain.values.ids import ClaimId, ExecutionId
from timeball.store.store import Store
from timeball.store.types import AuditEntry, ExecutionRequest
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

FINAL = Failed(FAILURE, is_retryable=False)
CALLS = {
    "on_success": {"handler": "after.success", "payload": {"of": {"$cause": "result"}}, "queue": "after"},
    "on_failure": {"handler": "after.failure", "payload": {}, "priority": 90},
}


async def followed(store: Store, **fields: Any) -> ExecutionId:
    """A one-off with a call for each end."""
    return await enqueue(store, **{"queue": "first", **CALLS, **fields})


async def run_one(store: Store, outcome: Outcome) -> ClaimedExecution:
    """Claim the only execution of the queue `first`, and end it."""
    handlers = [HANDLER, "second", "third"]
    (claimed,) = [one for one in await claim_all(store, handlers=handlers) if one.queue == "first"]
    assert await record(store, [found(claimed, outcome)]) == []
    return claimed


async def follow_ups(store: Store) -> list[dict[str, Any]]:
    return [row for row in await table(store, "job") if row["follows"] is not None]


async def test_what_follows_a_success_is_a_one_off_that_is_due_at_once(store: Store) -> None:
    cause = await followed(store, meta={"tenant": "acme"})

    claimed = await run_one(store, Succeeded('{"file": "a.csv"}'))

    (job,) = await follow_ups(store)
    (ready,) = await table(store, "ready")
    assert (job["follows"], job["follows_as"], job["handler"]) == (cause, "on_success", "after.success")
    assert (ready["id"], ready["job_id"], ready["queue"], ready["priority"]) == (job["id"], job["id"], "after", 50)
    assert ready["run_at"] == ready["scheduled_for"] == (await table(store, "finished"))[0]["finished_at"]
    assert (job["created_by"], job["meta"]) == (
        (await table(store, "job"))[0]["created_by"],
        '{"tenant": "acme"}',
    )
    read = await store.follow_ups.cause_of(ready["job_id"])
    assert read is not None
    assert (read.id, read.state, read.value_of("result")) == (claimed.id, "succeeded", {"file": "a.csv"})
    assert (await store.follow_ups.links(cause, cause)).followed_by == [job["id"]]


@pytest.mark.parametrize(
    "outcome",
    [FINAL, TimeoutOutcome(FAILURE), Lost(FAILURE), CancelOutcome("enough"), NotStarted(SkipReason.EXPIRED)],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_every_other_end_is_followed_as_a_failure(store: Store, outcome: Outcome) -> None:
    await followed(store, max_retries=0, max_lost=1)

    await run_one(store, outcome)

    (job,) = await follow_ups(store)
    assert (job["handler"], job["follows_as"], job["priority"]) == ("after.failure", "on_failure", 90)


@pytest.mark.parametrize("outcome", [Failed(FAILURE), Lost(FAILURE), Released(), Snoozed(seconds(1))])
async def test_an_attempt_that_is_not_the_end_is_not_followed(store: Store, outcome: Outcome) -> None:
    await followed(store)

    await run_one(store, outcome)

    assert await follow_ups(store) == []


async def test_a_cancellation_and_an_expiry_of_what_waits_are_followed(store: Store, clock: VirtualClock) -> None:
    cancelled = await followed(store)
    expired = await followed(store, start_within_seconds=10)

    await store.jobs.cancel([cancelled], "not needed", None)
    clock.advance(seconds(11))
    await store.executions.expire_waiting(10)

    assert {job["follows"] for job in await follow_ups(store)} == {cancelled, expired}
    assert {job["handler"] for job in await follow_ups(store)} == {"after.failure"}


async def test_an_execution_that_waits_is_followed_wherever_it_waits(store: Store, clock: VirtualClock) -> None:
    ids = [await followed(store, after=100), await followed(store, max_running=1, limit_key="k")]

    await store.jobs.cancel(ids, "not needed", None)

    assert {job["follows"] for job in await follow_ups(store)} == set(ids)


async def test_a_stale_outcome_is_not_followed(store: Store) -> None:
    await followed(store)
    (claimed,) = await claim_all(store)
    other = claimed._replace(claim_id=ClaimId(store.env.new_id()))

    stale = await record(store, [found(other, Succeeded())])

    assert len(stale) == 1
    assert await follow_ups(store) == []


async def test_an_outcome_that_is_written_twice_is_followed_once(store: Store) -> None:
    await followed(store)
    (claimed,) = await claim_all(store)
    outcome = found(claimed, Succeeded())

    await asyncio.gather(*(store.executions.finish_succeeded([outcome]) for _ in range(4)))

    assert len(await follow_ups(store)) == 1


async def test_a_success_and_a_cancellation_at_once_are_followed_once(store: Store) -> None:
    cause = await followed(store)
    (claimed,) = await claim_all(store)

    async def cancel() -> None:
        await store.jobs.cancel([cause], "not needed", None)

    async def finish() -> None:
        # A request to stop in between keeps the execution where it is, and the worker decides once more.
        while await record(store, [found(claimed, Succeeded())]):
            pass

    races: list[Callable[[], Awaitable[None]]] = [finish, cancel]
    await asyncio.gather(*(race() for race in races))

    assert [job["follows_as"] for job in await follow_ups(store)] == ["on_success"]


async def test_a_limited_call_waits_for_a_place_of_its_limit(store: Store) -> None:
    limited = {"handler": "slow", "payload": {}, "max_running": 1, "queue": "after"}
    for _ in range(3):
        await enqueue(store, queue="first", on_success=limited)

    claims = await claim_all(store)
    await record(store, [found(claimed, Succeeded()) for claimed in claims])

    tables = [await tables_of(store, ExecutionId(job["id"])) for job in await follow_ups(store)]
    assert sorted(tables) == [["blocked"], ["blocked"], ["ready"]]
    assert {row["key"]: row["max_running"] for row in await table(store, "running_limit")} == {"slow": 1}


async def test_a_call_that_follows_is_followed_itself(store: Store, clock: VirtualClock) -> None:
    third = {"handler": "third", "payload": {}, "queue": "first"}
    second = {"handler": "second", "payload": {}, "queue": "first", "on_success": third, "start_within_seconds": 60}
    first = await enqueue(store, queue="first", on_success=second)

    await run_one(store, Succeeded())
    clock.advance(seconds(5))
    following = await run_one(store, Succeeded())

    jobs = {job["handler"]: job for job in await follow_ups(store)}
    assert jobs["second"]["follows"] == first
    assert jobs["third"]["follows"] == following.id == jobs["second"]["id"]
    assert following.expires_at == jobs["second"]["created_at"] + seconds(60)


async def test_each_occurrence_of_a_job_is_followed_by_the_calls_of_its_version(store: Store) -> None:
    job = await make_job(store, name="nightly", schedule="manual", queue="first", on_success=CALLS["on_success"])
    requests = [
        ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER) for _ in range(2)
    ]
    await store.jobs.request(requests[:1], None, "job.trigger")
    await store.database.fetch_value("moment")
    async with store.database.connection() as connection:
        await connection.execute(
            "INSERT INTO timeball.job_version (job_id, version, definition, effective_from, recorded_at) "
            "SELECT id, 7, jsonb_set(to_jsonb(job), '{on_success,handler}', '\"later\"'), now(), now() FROM timeball.job"
        )
        await connection.execute("UPDATE timeball.ready SET version = 7")
    await store.jobs.request(requests[1:], None, "job.trigger")

    for claimed in await claim_all(store):
        await record(store, [found(claimed, Succeeded())])

    assert {job["follows"]: job["handler"] for job in await follow_ups(store)} == {
        requests[0].id: "later",
        requests[1].id: "after.success",
    }


async def test_a_trigger_may_have_calls_of_its_own_and_its_retry_keeps_them(store: Store) -> None:
    job = await make_job(store, name="nightly", schedule="manual", queue="first", **CALLS)
    own = {**CALLS["on_failure"], "handler": "own", "max_retries": 1, "max_lost": 1, "initial_backoff_ms": 1}
    own |= {"max_backoff_ms": 1, "delivery": "at_least_once", "queue": "after"}
    request = ExecutionRequest(
        id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER, calls={"on_failure": own}
    )
    await store.jobs.request([request], AuditEntry("t"), "job.trigger")

    await run_one(store, FINAL)

    (following,) = await follow_ups(store)
    assert (following["handler"], following["max_retries"]) == ("own", 1)
    words = await store.history.own_words(request.id)
    assert words.calls is not None
    assert words.calls["on_failure"]["handler"] == "own"

    retry = replace(request, id=ExecutionId(store.env.new_id()), calls=words.calls, retry_of=request.id)
    await store.jobs.request([retry], AuditEntry("t"), "execution.retry")
    await run_one(store, Succeeded())

    assert len(await follow_ups(store)) == 1


async def test_an_execution_without_calls_writes_nothing_else(store: Store) -> None:
    await make_node(store)
    await enqueue(store, queue="first")

    await run_one(store, Succeeded())

    assert len(await table(store, "job")) == 1
    assert await table(store, "ready") == []


# verify


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM timeball.job WHERE follows_as = 'on_success'", "nothing follows an execution that on_success was to follow"),
        ("UPDATE timeball.job SET follows_as = 'on_success' WHERE follows_as = 'on_failure'", "is for another end of it"),
        ("UPDATE timeball.job SET follows = (SELECT id FROM timeball.running) WHERE follows_as = 'on_failure'", "has not ended"),
    ],
)  # fmt: skip
async def test_verify_names_an_end_that_is_not_followed_as_it_should_be(store: Store, change: str, why: str) -> None:
    for outcome in (Succeeded(), FINAL):
        await followed(store)
        await run_one(store, outcome)
    await enqueue(store)
    await claim_all(store)
    sound = (await verify(store.database)).check("follow-ups")

    async with store.database.connection() as connection:
        await connection.execute(change)

    broken = (await verify(store.database)).check("follow-ups")
    assert (sound.holds, sound.checked) == (True, 2)
    assert any(why in str(violation) for violation in broken.violations)


async def test_verify_takes_what_no_call_was_for_as_it_is(store: Store) -> None:
    await enqueue(store, queue="first", on_success=CALLS["on_success"])

    await run_one(store, FINAL)

    assert (await verify(store.database)).check("follow-ups").holds
