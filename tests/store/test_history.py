"""Reading executions of all state tables, and the daily partitions of the history."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    STATE_TABLES,
    claim_all,
    enqueue,
    found,
    make_job,
    make_owner,
    make_recurring,
    promote_due,
    put_row,
    record,
    seconds,
    table,
)
from timeball.domain.execution import Execution, Failed, Origin
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import StoreError
from timeball.store.store import Store
from timeball.store.types import ExecutionRequest, LogRecord, OwnWords
from timeball.testing import VirtualClock

DAY = date(2026, 3, 2)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def found_one(store: Store, execution_id: ExecutionId) -> Execution:
    execution = await store.history.find(execution_id)
    assert execution is not None
    return execution


def ended(number: int, finished_at: datetime, **more: Any) -> dict[str, Any]:
    """A row of the history, of an enqueued job by default."""
    row: dict[str, Any] = {
        "id": UUID(int=number),
        "job_id": UUID(int=number),
        "state": "succeeded",
        "origin": "enqueue",
        "version": 1,
        "queue": "q",
        "priority": 50,
        "handler": "h",
        "scheduled_for": finished_at - seconds(1),
        "finished_at": finished_at,
        "attempts": 1,
        "lost": 0,
        "fence": 1,
    }
    return row | more


# reading


async def test_an_execution_is_found_in_each_state_table(store: Store, clock: VirtualClock) -> None:
    execution = await enqueue(store, after=60, max_running=1, limit_key="l", queue="q", priority=61)
    holder = await enqueue(store, max_running=1, limit_key="l")
    owner = await make_owner(store)

    async def state() -> str:
        return (await found_one(store, execution)).state.value

    scheduled = await found_one(store, execution)
    assert (scheduled.state, scheduled.run_at) == ("scheduled", clock.now() + seconds(60))
    assert (scheduled.queue, scheduled.priority, scheduled.limit_key) == ("q", 61, "l")

    clock.advance("60s")
    await promote_due(store, owner)
    assert await state() == "queued"  # in blocked

    await store.jobs.cancel([holder], "no", OPERATOR)
    assert await state() == "queued"  # in ready

    (claimed,) = await claim_all(store)
    running = await found_one(store, execution)
    assert (running.state, running.started_at, running.fence) == ("running", clock.now(), 1)

    await record(store, [found(claimed, Failed(FAILURE))])
    assert await state() == "retrying"

    clock.advance("5s")
    await promote_due(store, owner)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])
    dead = await found_one(store, execution)
    assert (dead.state, dead.error_type, dead.error, dead.attempts) == ("dead", "ValueError", "no", 2)
    assert [attempt.fence for attempt in await store.history.attempts(execution)] == [1, 2]
    assert await store.history.find(ExecutionId(UUID(int=1))) is None


async def test_a_held_execution_shows_as_queued(store: Store) -> None:
    execution = await enqueue(store)
    await claim_all(store)
    async with store.database.connection() as connection:
        # The view uses the clock of the database.
        await connection.execute("UPDATE timeball.running SET run_at = now() + interval '1 hour'")

    held = await found_one(store, execution)

    assert (held.state, held.started_at) == ("queued", None)


async def test_the_executions_of_a_job_are_listed_newest_first(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="allow")
    other = await enqueue(store)
    owner = await make_owner(store)
    for _ in range(3):
        clock.advance("60s")
        await promote_due(store, owner)

    listed = await store.history.of_job(job.id)

    instants = [NOON + timedelta(minutes=minute) for minute in (4, 3, 2, 1)]
    assert [execution.scheduled_for for execution in listed] == instants
    page = await store.history.of_job(job.id, limit=2, before=listed[0].id)
    assert [execution.scheduled_for for execution in page] == instants[1:3]
    assert [execution.id for execution in await store.history.of_job(JobId(other))] == [other]


async def test_the_payload_of_an_execution_differs_from_that_of_its_job(store: Store) -> None:
    job = await make_job(store, payload={"of": "job"})
    ids = [ExecutionId(store.env.new_id()) for _ in range(2)]
    for id_, payload in zip(ids, ("[1]", None), strict=True):
        request = ExecutionRequest(id=id_, job_id=job.id, origin=Origin.TRIGGER, payload=payload)
        await store.jobs.request([request], OPERATOR, "job.trigger")

    assert [await store.history.own_words(id_) for id_ in ids] == [OwnWords("[1]"), OwnWords()]


# what handlers said


async def test_log_lines_are_read_after_a_cursor(store: Store, clock: VirtualClock) -> None:
    execution, other = ExecutionId(UUID(int=1)), ExecutionId(UUID(int=2))
    lines = [
        LogRecord(execution, fence, number, clock.now() + seconds(10 * fence + number), level, f"{fence}.{number}")
        for fence, number, level in [(1, 1, "info"), (1, 2, "error"), (2, 1, "debug")]
    ]

    await store.history.write_log([*lines, LogRecord(other, 1, 1, clock.now(), "info", "other")])
    await store.history.write_log(lines)  # a reply was lost: written again, stored once

    assert await store.history.log(execution) == lines
    assert await store.history.log(execution, after=(1, 1)) == lines[1:]
    assert await store.history.log(execution, limit=1) == lines[:1]


# days


async def test_a_new_day_takes_its_rows_out_of_the_default_partition(store: Store, clock: VirtualClock) -> None:
    first, last = NOON - timedelta(hours=12), NOON + timedelta(hours=12) - timedelta(microseconds=1)
    for number, instant in enumerate((first, last, last + timedelta(microseconds=1)), start=1):
        await put_row(store, "finished", **ended(number, instant))
        await store.history.write_log([LogRecord(ExecutionId(UUID(int=number)), 1, 1, instant, "info", "hello")])

    await store.history.add_day(DAY)
    await store.history.add_day(DAY)  # again: nothing to do

    assert await store.history.days() == [DAY]
    assert [row["id"].int for row in await table(store, "finished_20260302")] == [1, 2]
    assert [row["id"].int for row in await table(store, "finished_default")] == [3]
    assert [row["execution_id"].int for row in await table(store, "log_line_20260302")] == [1, 2]
    assert len(await table(store, "finished")) == 3

    await enqueue(store)
    await store.executions.finish_succeeded([found(each) for each in await claim_all(store)])
    assert len(await table(store, "finished_20260302")) == 3


async def test_a_partition_of_its_own_has_every_index(store: Store) -> None:
    await store.history.add_day(DAY)

    async with store.database.transaction() as connection:
        rows = await connection.fetch(
            "SELECT tablename, count(*) AS number FROM pg_indexes WHERE tablename ~ '^(finished|attempt|log_line)_' GROUP BY 1"
        )
    numbers = {row["tablename"]: row["number"] for row in rows}
    for name in ("finished", "attempt", "log_line"):
        assert numbers[f"{name}_20260302"] == numbers[f"{name}_default"]


async def test_a_dropped_day_takes_its_one_off_jobs_along(store: Store, clock: VirtualClock) -> None:
    gone, kept = await enqueue(store), await enqueue(store)
    job = await make_job(store)
    trigger = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)
    again = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=JobId(kept), origin=Origin.RETRY, retry_of=kept)
    await store.jobs.request([trigger, again], OPERATOR, "test")
    claimed = {each.id: each for each in await claim_all(store)}
    await store.history.add_day(DAY)
    await store.executions.finish_succeeded([found(claimed[id_]) for id_ in (gone, kept, trigger.id)])
    await store.history.write_log([LogRecord(gone, 1, 1, clock.now(), "info", "hello")])
    await put_row(store, "finished", **ended(7, NOON + timedelta(days=1)))

    number = await store.history.drop_day(DAY, batch=1)

    assert number == 3
    assert await store.history.days() == []
    assert [row["id"].int for row in await table(store, "finished")] == [7]
    assert await table(store, "log_line") == []
    # One is still being retried, and a job with a name outlives its history.
    assert {row["id"] for row in await table(store, "job")} == {kept, job.id}


async def test_a_one_off_that_has_another_execution_stays(store: Store) -> None:
    job_ids = {state_table: await enqueue(store) for state_table in STATE_TABLES}
    await store.history.add_day(DAY)
    await store.executions.finish_succeeded([found(each) for each in await claim_all(store)])
    for number, (state_table, job_id) in enumerate(job_ids.items(), start=1):
        row = ended(number, NOON + timedelta(days=1), job_id=job_id, origin="retry", retry_of=job_id)
        await put_row(store, state_table, **in_state_table(state_table, row))

    await store.history.drop_day(DAY)

    assert {row["id"] for row in await table(store, "job")} == set(job_ids.values())


def in_state_table(state_table: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the history with the columns of another table."""
    if state_table == "finished":
        return row
    row = {name: value for name, value in row.items() if name not in ("state", "finished_at")} | {"run_at": NOON}
    if state_table == "due":
        return row | {"kind": "retry", "shard": 1}
    holder = {"holder": UUID(int=1), "claim_id": UUID(int=2), "claimed_at": NOON} if state_table == "running" else {}
    return row | {"queued_at": NOON, "limit_key": "l"} | holder


async def test_a_dropped_day_moves_the_beginning_of_history(store: Store) -> None:
    assert await store.history.fact("history_from") is None
    for day in (DAY, DAY + timedelta(days=1)):
        await store.history.add_day(day)
    # An occurrence that was cancelled long before its instant.
    await put_row(store, "finished", **ended(1, NOON, scheduled_for=NOON + timedelta(days=9)))

    await store.history.drop_day(DAY)
    assert await store.history.fact("history_from") == (NOON + timedelta(days=9)).isoformat()

    await store.history.drop_day(DAY + timedelta(days=1))
    assert await store.history.fact("history_from") == (NOON + timedelta(days=9)).isoformat()


async def test_an_empty_day_moves_the_beginning_of_history_to_its_end(store: Store) -> None:
    await store.history.add_day(DAY)

    assert await store.history.drop_day(DAY) == 0
    assert await store.history.fact("history_from") == (NOON + timedelta(hours=12)).isoformat()


async def test_a_missing_day_cannot_be_dropped(store: Store) -> None:
    with pytest.raises(StoreError, match="finished_20260302"):
        await store.history.drop_day(DAY)


async def test_the_moment_is_that_of_the_virtual_clock(store: Store, clock: VirtualClock) -> None:
    clock.advance("3d")

    assert await store.history.moment() == clock.now()
