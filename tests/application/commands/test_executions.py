"""Commands on executions and queues: trigger, retry, backfill, cancel, pause and limit."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    claim_all,
    enqueue,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    only_row,
    promote_due,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.execution import Failed, Origin
from timeball.domain.values.ids import ExecutionId, JobId, format_id, new_id
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.store.store import Store
from timeball.store.types import AuditEntry, ExecutionRequest
from timeball.testing import VirtualClock

NOBODY = AuditEntry(None)  # type: ignore[arg-type]


def request(store: Store, job_id: JobId, origin: Origin = Origin.TRIGGER, **fields: object) -> ExecutionRequest:
    return ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job_id, origin=origin, **fields)  # type: ignore[arg-type]


# request


async def test_a_trigger_is_ready_at_once_with_a_payload_of_its_own(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, handler="app:h", queue="q", priority=33, payload={"of": "job"})
    ended = await enqueue(store)
    wanted = request(
        store,
        job.id,
        Origin.RETRY,
        payload='{"of": "trigger"}',
        retry_of=ended,
        created_by="me",
        bound_secrets_only=True,
    )

    ids = await store.jobs.request([wanted], OPERATOR, "job.trigger")

    assert ids == [wanted.id]
    (row,) = [row for row in await table(store, "ready") if row["job_id"] == job.id]
    assert json.loads(row.pop("payload")) == {"of": "trigger"}
    assert row == {
        "id": wanted.id,
        "job_id": job.id,
        "origin": "retry",
        "version": 1,
        "queue": "q",
        "priority": 33,
        "handler": "app:h",
        "scheduled_for": clock.now(),
        "run_at": clock.now(),
        "queued_at": clock.now(),
        "attempts": 0,
        "lost": 0,
        "fence": 0,
        "tzdata": None,
        "limit_key": None,
        "unique_key": None,
        "retry_of": ended,
        "created_by": "me",
        "bound_secrets_only": True,
        "meta": None,
        "has_follow_ups": None,
        "expires_at": None,
    }
    (claimed,) = [each for each in await claim_all(store, handlers=["app:h"]) if each.id == wanted.id]
    assert json.loads(claimed.payload) == {"of": "trigger"}


async def test_a_backfill_runs_now_for_an_instant_in_the_past(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, queue="q", priority=33, handler="app:h", max_running=2, limit_key="l")
    past, soon, later = clock.now() - seconds(600), clock.now() + seconds(0.4), clock.now() + seconds(7)
    near = request(store, job.id, Origin.BACKFILL, run_at=soon, scheduled_for=past)
    far = request(store, job.id, Origin.BACKFILL, run_at=later, scheduled_for=past + seconds(60), payload="[3]")

    await store.jobs.request([near, far], OPERATOR, "job.backfill")

    ready = await only_row(store, "ready")
    assert (ready["id"], ready["run_at"], ready["scheduled_for"], ready["limit_key"]) == (near.id, soon, past, "l")
    (row,) = [row for row in await table(store, "due") if row["id"] == far.id]
    assert (row["kind"], row["origin"], row["shard"], row["version"]) == ("later", "backfill", job.shard, 1)
    assert (row["run_at"], row["scheduled_for"]) == (later, past + seconds(60))
    assert (row["queue"], row["priority"], row["handler"], row["limit_key"]) == ("q", 33, "app:h", "l")
    assert row["payload"] == "[3]"


async def test_triggers_of_a_limited_job_are_blocked(store: Store) -> None:
    job = await make_job(store, max_running=1)

    ids = await store.jobs.request([request(store, job.id) for _ in range(3)], OPERATOR, "job.trigger")

    executions = [await tables_of(store, id_) for id_ in ids]
    assert sorted(executions) == [["blocked"], ["blocked"], ["ready"]]


@pytest.mark.parametrize("limit", [{}, {"max_running": 5}])
async def test_a_request_takes_the_unique_key_of_its_job_until_it_has_ended(
    store: Store, limit: dict[str, Any]
) -> None:
    job = await make_job(store, unique_key="k", **limit)
    (first,) = await store.jobs.request([request(store, job.id)], OPERATOR, "job.trigger")
    assert [(row["key"], row["execution_id"]) for row in await table(store, "live_key")] == [("k", first)]

    with pytest.raises(Conflict, match=f"unique_key 'k', held by {format_id('exe', first)}"):
        await store.jobs.request([request(store, job.id)], OPERATOR, "job.trigger")
    assert len(await table(store, "audit")) == 1
    await store.executions.finish_succeeded([found(claimed) for claimed in await claim_all(store)])
    (second,) = await store.jobs.request([request(store, job.id)], OPERATOR, "job.trigger")

    assert await tables_of(store, second) == ["ready"]


async def test_a_request_for_later_holds_its_unique_key(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, unique_key="k")
    later = request(store, job.id, run_at=clock.now() + seconds(60))

    await store.jobs.request([later], OPERATOR, "job.trigger")

    assert (await only_row(store, "due"))["unique_key"] == "k"
    assert (await only_row(store, "live_key"))["execution_id"] == later.id
    assert await store.jobs.cancel([later.id], "enough", OPERATOR) == {later.id}
    assert await table(store, "live_key") == []


async def test_of_requests_that_share_a_key_none_is_written(store: Store) -> None:
    job = await make_job(store, unique_key="k")

    with pytest.raises(Conflict):
        await store.jobs.request([request(store, job.id) for _ in range(2)], OPERATOR, "job.trigger")

    assert await table(store, "ready") == []
    assert await table(store, "live_key") == []


async def test_an_occurrence_is_skipped_while_a_trigger_holds_the_key(store: Store, clock: VirtualClock) -> None:
    job, owner = await make_recurring(store, 60, unique_key="k", overlap="allow"), await make_owner(store)
    await store.jobs.request([request(store, job.id)], OPERATOR, "job.trigger")
    clock.advance("60s")

    await promote_due(store, owner)

    skipped = await only_row(store, "finished")
    assert (skipped["state"], skipped["reason"]) == ("skipped", "unique_key")


async def test_a_request_for_a_missing_job_writes_nothing(store: Store) -> None:
    job = await make_job(store)
    wanted = [request(store, job.id), request(store, JobId(new_id(5, 5)))]

    with pytest.raises(NotFound, match="there is no job"):
        await store.jobs.request(wanted, OPERATOR, "job.trigger")

    assert await table(store, "ready") == []
    assert await table(store, "audit") == []


async def test_a_request_is_audited_once_however_many_it_asks_for(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    wanted = [request(store, job.id) for _ in range(2)]

    await store.jobs.request(wanted, OPERATOR, "job.backfill")

    entry = await only_row(store, "audit")
    assert (entry["at"], entry["actor"], entry["reason"]) == (clock.now(), "somebody", "a test")
    assert (entry["action"], entry["subject"], entry["before"]) == ("job.backfill", f"job:{job.id}", None)
    assert json.loads(entry["after"]) == {"executions": [str(each.id) for each in wanted], "count": 2}


# cancel


async def test_cancelled_executions_leave_their_state_table(store: Store, clock: VirtualClock) -> None:
    ready = await enqueue(store, queue="q", priority=33, max_running=1, limit_key="l", unique_key="k")
    blocked = await enqueue(store, max_running=1, limit_key="l")
    due = await enqueue(store, after=60)
    clock.advance("5s")

    reached = await store.jobs.cancel([ready, blocked, due], "not needed", OPERATOR)

    assert reached == {ready, blocked, due}
    rows = {row["id"]: row for row in await table(store, "finished")}
    assert {(row["state"], row["reason"]) for row in rows.values()} == {("cancelled", "not needed")}
    row = rows[ready]
    assert (row["queue"], row["priority"], row["origin"], row["version"]) == ("q", 33, "enqueue", 1)
    assert (row["scheduled_for"], row["queued_at"]) == (clock.now() - seconds(5),) * 2
    assert (row["started_at"], row["finished_at"]) == (None, clock.now())
    assert await table(store, "live_key") == []
    entry = await only_row(store, "audit")
    assert (entry["action"], entry["subject"]) == ("execution.cancel", "3 executions")
    assert json.loads(entry["after"]) == {"cancelled": 3, "asked_to_stop": 0}


async def test_a_cancelled_retry_keeps_its_attempts(store: Store) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE))])

    await store.jobs.cancel([execution], "enough", OPERATOR)

    row = await only_row(store, "finished")
    assert (row["id"], row["state"], row["attempts"], row["fence"]) == (execution, "cancelled", 1, 1)
    assert (await only_row(store, "attempt"))["outcome"] == "failed"


async def test_the_worker_of_a_running_execution_is_asked_to_stop(store: Store) -> None:
    execution = await enqueue(store)
    worker = await make_node(store)
    await claim_all(store, worker=worker)

    reached = await store.jobs.cancel([execution], "not needed", OPERATOR)

    assert reached == {execution}
    assert await tables_of(store, execution) == ["running"]
    assert await store.executions.stops(worker) == {execution: "not needed"}
    assert (await only_row(store, "audit"))["subject"] == f"execution:{execution}"


async def test_the_first_reason_to_stop_stays(store: Store) -> None:
    execution = await enqueue(store)
    worker = await make_node(store)
    await claim_all(store, worker=worker)
    await store.jobs.cancel([execution], "first", OPERATOR)

    assert await store.jobs.cancel([execution], "second", OPERATOR) == set()
    assert await store.executions.stops(worker) == {execution: "first"}


async def test_cancel_reaches_neither_ended_executions_nor_the_pending_occurrence(store: Store) -> None:
    ended = await enqueue(store)
    await store.executions.finish_succeeded([found(each) for each in await claim_all(store)])
    await make_recurring(store, 60)
    pending = await only_row(store, "due")

    assert await store.jobs.cancel([ended, pending["id"], ExecutionId(new_id(5, 5))], "?", OPERATOR) == set()
    assert await only_row(store, "due") == pending
    assert await table(store, "audit") == []


async def test_a_cancelled_execution_frees_its_limit_for_the_next(store: Store) -> None:
    first = await enqueue(store, max_running=1, limit_key="l")
    second = await enqueue(store, max_running=1, limit_key="l")

    await store.jobs.cancel([first], "not needed", OPERATOR)

    assert await tables_of(store, second) == ["ready"]


async def test_a_cancellation_that_cannot_be_audited_does_not_happen(store: Store) -> None:
    execution = await enqueue(store)

    with pytest.raises(asyncpg.NotNullViolationError):
        await store.jobs.cancel([execution], "?", NOBODY)

    assert await tables_of(store, execution) == ["ready"]


# queues


async def test_a_queue_is_paused_and_limited(store: Store, clock: VirtualClock) -> None:
    paused_at = clock.now()
    await store.queues.change(
        "q", is_paused=True, max_running=7, reason="maintenance", audit=OPERATOR, action="queue.pause"
    )
    clock.advance("5s")
    await store.queues.change("q", is_paused=True, max_running=8, reason="still", audit=OPERATOR, action="queue.limit")

    found = await store.queues.find("q")
    assert found == {
        "name": "q",
        "paused_at": paused_at,
        "paused_until": None,
        "pause_reason": "still",
        "max_running": 8,
        "max_oldest_wait_seconds": None,
        "must_be_served": False,
    }
    assert await store.queues.find("other") is None
    (_, entry) = await table(store, "audit")
    assert (entry["action"], entry["subject"]) == ("queue.limit", "queue:q")
    assert json.loads(entry["before"]) == {"is_paused": True, "max_running": 7}
    assert json.loads(entry["after"]) == {"is_paused": True, "max_running": 8}

    await store.queues.change(
        "q", is_paused=False, max_running=None, reason=None, audit=OPERATOR, action="queue.resume"
    )

    found = await store.queues.find("q")
    assert found is not None
    assert (found["paused_at"], found["pause_reason"], found["max_running"]) == (None, None, None)


async def test_pauses_and_limits_of_a_queue_are_kept_as_intervals(store: Store, clock: VirtualClock) -> None:
    queues = Commands(store, store.env).queues
    ana, ben = Actor("ana", "the server moves"), Actor("ben", "crowded")
    begin = clock.now()
    await queues.pause("q", ana)
    clock.advance("5s")
    await queues.limit("q", 3, ben)
    clock.advance("5s")
    await queues.resume("q", ben)
    await queues.limit("q", 4, ben)
    clock.advance("5s")
    await queues.limit("q", None, ana)
    await queues.pause("other", ana)

    intervals = await store.queues.intervals("q", begin, clock.now())
    assert [(one.kind, one.value, one.actor, one.reason) for one in intervals] == [
        ("pause", None, "ana", "the server moves"),
        ("limit", 3, "ben", "crowded"),
        ("limit", 4, "ben", "crowded"),
    ]
    assert [((one.since - begin).seconds, one.until and (one.until - begin).seconds) for one in intervals] == [
        (0, 10),
        (5, 10),
        (10, 15),
    ]
    (lasting,) = await store.queues.intervals("other", begin, clock.now())
    assert lasting.until is None


async def test_a_pause_that_is_said_twice_at_one_instant_is_one_interval(store: Store, clock: VirtualClock) -> None:
    queues = Commands(store, store.env).queues
    await queues.pause("q", Actor("ana", "first"))
    await queues.pause("q", Actor("ben", "second"))

    (interval,) = await store.queues.intervals("q", clock.now(), clock.now())
    assert (interval.actor, interval.reason, interval.until) == ("ben", "second", None)


async def test_a_pause_of_a_queue_may_not_end_in_the_past(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInput, match="which has passed"):
        await Commands(store, store.env).queues.pause("q", until=clock.now())

    assert await store.queues.find("q") is None


async def test_a_queue_that_cannot_be_audited_is_not_changed(store: Store) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await store.queues.change("q", is_paused=True, max_running=None, reason=None, audit=NOBODY, action="x")

    assert await store.queues.find("q") is None
