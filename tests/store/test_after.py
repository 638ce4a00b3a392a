"""Jobs that come after another: an occurrence for each success of one, written by the statement that ends it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.factories import (
    FAILURE,
    claim_all,
    define_job,
    first_execution_of,
    found,
    make_job,
    make_owner,
    make_recurring,
    promote_due,
    read_job,
    record,
    seconds,
    table,
)
from timeball.domain.execution import Failed, Lost, Origin, Outcome, Succeeded
from timeball.domain.job import Job
from timeball.domain.job_changes import delete_job, edit_job, pause_job, resume_job
from timeball.domain.scheduling.schedule import After
from timeball.domain.values.ids import ExecutionId
from timeball.errors import InvalidInput
from timeball.store.store import Store
from timeball.store.types import AuditEntry, ExecutionRequest
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

FINAL = Failed(FAILURE, is_retryable=False)
DONE = Succeeded("null")
AUDIT = AuditEntry("test")


async def edited(store: Store, job: Job, **changes: Any) -> Job:
    change = await store.jobs.change(
        job.id, lambda snapshot: edit_job(snapshot, changes, store.shards), AUDIT, cause=changes.get("after")
    )
    return change.job


async def run_next(store: Store, clock: VirtualClock, outcome: Outcome = DONE) -> datetime:
    """Let a minute pass, and end what is due then; returns its instant."""
    clock.advance(seconds(60))
    await promote_due(store, await make_owner(store))
    (claimed,) = await claim_all(store)
    assert await record(store, [found(claimed, outcome)]) == []
    return claimed.scheduled_for


async def occurrences(store: Store, job: Job) -> list[tuple[str, datetime, str]]:
    """The table, instant and origin of each execution of a job."""
    return [
        (name, row["scheduled_for"], row["origin"])
        for name in ("due", "ready", "blocked", "running", "finished")
        for row in await table(store, name)
        if row["job_id"] == job.id
    ]


async def holds(store: Store) -> bool:
    report = await verify(store.database)
    broken = [str(one) for check in report.checks for one in check.violations if "lease of a node" not in one.why]
    assert broken == []
    return True


async def request(store: Store, job: Job, origin: Origin, **fields: Any) -> ExecutionId:
    new = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=origin, **fields)
    return (await store.jobs.request([new], AUDIT, "test"))[0]


async def end_all(store: Store, outcome: Outcome = DONE) -> None:
    clock = store.env.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(seconds(5))
    for claimed in await claim_all(store):
        assert await record(store, [found(claimed, outcome)]) == []


async def test_each_success_is_an_occurrence_for_the_same_instant(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store, after="etl", priority=70)

    instant = await run_next(store, clock)

    assert await occurrences(store, report) == [("ready", instant, "after")]
    (ready,) = await table(store, "ready")
    assert (ready["priority"], ready["version"], ready["attempts"]) == (70, 1, 0)
    assert ready["run_at"] == (await table(store, "finished"))[0]["finished_at"] > instant - seconds(1)
    assert await holds(store)


@pytest.mark.parametrize("outcome", [FINAL, Failed(FAILURE), Lost(FAILURE)])
async def test_no_other_end_is_an_occurrence(store: Store, clock: VirtualClock, outcome: Outcome) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")

    await run_next(store, clock, outcome)

    assert await occurrences(store, report) == []
    assert await holds(store)


async def test_a_chain_keeps_the_instant_of_the_first(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="a")
    b = await make_job(store, name="b", after="a")
    c = await make_job(store, name="c", after="b")

    instant = await run_next(store, clock)
    await end_all(store)

    assert [len(await occurrences(store, job)) for job in (b, c)] == [1, 1]
    assert await occurrences(store, c) == [("ready", instant, "after")]
    assert await holds(store)


async def test_several_jobs_may_come_after_one(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    jobs = [await make_job(store, after="etl") for _ in range(3)]

    instant = await run_next(store, clock)

    assert [await occurrences(store, job) for job in jobs] == [[("ready", instant, "after")]] * 3


async def test_a_retry_that_succeeds_counts_for_the_occurrence_that_it_repeats(
    store: Store, clock: VirtualClock
) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")
    instant = await run_next(store, clock, FINAL)
    (dead,) = await table(store, "finished")

    first = await request(store, etl, Origin.RETRY, retry_of=dead["id"])
    await end_all(store, FINAL)
    await request(store, etl, Origin.RETRY, retry_of=first)
    await end_all(store)

    assert await occurrences(store, report) == [("ready", instant, "after")]
    assert await holds(store)


async def test_a_trigger_is_no_occurrence(store: Store) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")

    triggered = await request(store, etl, Origin.TRIGGER)
    await end_all(store, FINAL)
    await request(store, etl, Origin.RETRY, retry_of=triggered)
    await end_all(store)

    assert await occurrences(store, report) == []
    assert await holds(store)


async def test_an_occurrence_that_succeeds_twice_is_followed_once(store: Store, clock: VirtualClock) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")
    instant = await run_next(store, clock)
    (ended,) = await table(store, "finished")
    await end_all(store)

    await request(store, etl, Origin.RETRY, retry_of=ended["id"])
    await request(store, etl, Origin.BACKFILL, scheduled_for=instant)
    await end_all(store)

    assert await occurrences(store, report) == [("finished", instant, "after")]
    assert await holds(store)


async def test_a_backfill_is_followed(store: Store, clock: VirtualClock) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")
    instant = await run_next(store, clock, FINAL)

    await request(store, etl, Origin.BACKFILL, scheduled_for=instant)
    await end_all(store)

    assert await occurrences(store, report) == [("ready", instant, "after")]
    assert await holds(store)


async def test_what_had_been_promoted_before_is_not_followed(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    clock.advance(seconds(60))
    await promote_due(store, await make_owner(store))

    report = await make_job(store, after="etl")
    await end_all(store)

    assert await occurrences(store, report) == []
    assert await holds(store)
    instant = await run_next(store, clock)
    assert await occurrences(store, report) == [("ready", instant, "after")]


async def test_a_limit_holds(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store, after="etl", max_running=1)

    first = await run_next(store, clock)
    assert await occurrences(store, report) == [("ready", first, "after")]  # unblocked when it was announced
    clock.advance(seconds(60))
    await promote_due(store, await make_owner(store))
    claimed = {one.job_id: one for one in await claim_all(store)}
    running = claimed.pop(report.id)
    (etl,) = claimed.values()
    await record(store, [found(etl, DONE)])

    assert await occurrences(store, report) == [("blocked", etl.scheduled_for, "after"), ("running", first, "after")]
    await record(store, [found(running, DONE)])
    assert [name for name, *_ in await occurrences(store, report)] == ["ready", "finished"]
    assert await holds(store)


async def test_of_a_paused_job_it_is_recorded_as_skipped(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")
    waiting = await run_next(store, clock)

    await store.jobs.change(report.id, lambda snapshot: pause_job(snapshot, None, None), AUDIT)
    instant = await run_next(store, clock)

    rows = [row for row in await table(store, "finished") if row["job_id"] == report.id]
    assert {(row["scheduled_for"], row["state"], row["reason"]) for row in rows} == {
        (waiting, "skipped", "paused"),
        (instant, "skipped", "paused"),
    }
    assert await holds(store)
    await store.jobs.change(report.id, resume_job, AUDIT)
    later = await run_next(store, clock)
    assert ("ready", later, "after") in await occurrences(store, report)
    assert await holds(store)


async def test_of_a_deleted_job_there_is_nothing(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")
    await run_next(store, clock)

    await store.jobs.change(report.id, lambda snapshot: delete_job(snapshot, None), AUDIT)
    assert [name for name, *_ in await occurrences(store, report)] == ["finished"]
    await run_next(store, clock)

    assert [name for name, *_ in await occurrences(store, report)] == ["finished"]
    assert await holds(store)


async def test_a_job_keeps_its_cause_when_that_is_renamed(store: Store, clock: VirtualClock) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")

    await edited(store, etl, name="nightly-etl")

    assert (await read_job(store, report.id)).rule == After(cause="nightly-etl")
    instant = await run_next(store, clock)
    assert await occurrences(store, report) == [("ready", instant, "after")]
    assert await holds(store)


async def test_a_job_whose_cause_is_deleted_waits_for_nothing(store: Store) -> None:
    etl = await make_recurring(store, name="etl")
    report = await make_job(store, after="etl")

    await store.jobs.change(etl.id, lambda snapshot: delete_job(snapshot, None), AUDIT)

    rule = (await read_job(store, report.id)).rule
    assert isinstance(rule, After)
    assert (rule.cause, rule.cause_id) == ("etl", None)
    assert (await edited(store, report, priority=3)).rule == rule
    another = await make_recurring(store, name="etl")
    again = (await edited(store, await read_job(store, report.id), after="etl")).rule
    assert isinstance(again, After)
    assert again.cause_id == another.id


async def test_a_job_may_get_and_lose_a_cause(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    report = await make_job(store)

    await edited(store, report, after="etl")
    instant = await run_next(store, clock)
    assert await occurrences(store, report) == [("ready", instant, "after")]
    await end_all(store)
    await edited(store, await read_job(store, report.id), payload={"n": 2})
    await run_next(store, clock)
    await end_all(store)
    await edited(store, await read_job(store, report.id), schedule="manual")
    await run_next(store, clock)

    assert [name for name, *_ in await occurrences(store, report)] == ["finished", "finished"]
    assert await holds(store)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"after": "no-such"}, "there is no job of this name"),
        ({"after": "by-hand"}, "has no occurrences"),
        ({"name": "me", "after": "me"}, "is the job itself"),
    ],
)
async def test_a_cause_that_has_no_occurrences_is_refused(store: Store, fields: dict[str, Any], why: str) -> None:
    await make_job(store, name="by-hand")

    with pytest.raises(InvalidInput, match=why) as error:
        await make_job(store, **fields)

    assert error.value.field == "after"


async def test_a_circle_is_refused(store: Store) -> None:
    a = await make_recurring(store, name="a")
    await make_job(store, name="b", after="a")
    c = await make_job(store, name="c", after="b")

    with pytest.raises(InvalidInput, match="a after c after b after a"):
        await edited(store, a, after="c")
    with pytest.raises(InvalidInput, match="is the job itself"):
        await edited(store, c, after="c")

    assert (await read_job(store, a.id)).version == 1


async def test_new_jobs_may_come_after_each_other_in_any_order(store: Store, clock: VirtualClock) -> None:
    jobs = [define_job(store, name="b", after="a"), define_job(store, name="a", interval_seconds=60)]
    first = first_execution_of(jobs[1], clock.now())
    assert first is not None
    await store.enqueuer.create(jobs, [first])

    instant = await run_next(store, clock)

    assert await occurrences(store, jobs[0]) == [("ready", instant, "after")]
    assert await holds(store)


async def test_new_jobs_in_a_circle_are_refused(store: Store) -> None:
    jobs = [define_job(store, name=name, after=after) for name, after in [("a", "b"), ("b", "c"), ("c", "a")]]

    with pytest.raises(InvalidInput, match="makes a circle"):
        await store.enqueuer.create(jobs, [])

    assert await table(store, "job") == []


async def test_verify_finds_an_occurrence_that_was_not_followed(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    await make_job(store, after="etl")
    await run_next(store, clock)
    assert await holds(store)

    async with store.database.connection() as connection:
        await connection.execute("DELETE FROM timeball.ready")
    assert "has no execution" in str((await verify(store.database)).check("follow-ups").violations[0])
    async with store.database.connection() as connection:
        await connection.execute("DELETE FROM timeball.followed_success")

    assert "has no record of it" in str((await verify(store.database)).check("follow-ups").violations[0])


async def test_verify_finds_an_occurrence_without_a_success(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, name="etl")
    await make_job(store, after="etl")
    await run_next(store, clock)

    async with store.database.connection() as connection:
        await connection.execute("UPDATE timeball.finished SET state = 'dead', error_type = 'E', reason = NULL")
    assert "no success of its instant" in str((await verify(store.database)).check("follow-ups").violations)
    async with store.database.connection() as connection:
        await connection.execute("UPDATE timeball.followed_success SET execution_id = cause")

    assert "is not its occurrence" in str((await verify(store.database)).check("follow-ups").violations)
