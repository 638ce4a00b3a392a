"""A job is edited, paused, resumed, deleted: definition, pending occurrence, record and audit change in one transaction."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import asyncpg
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
    make_node,
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
from timeball.domain.execution import CancelOutcome, Failed, NotStarted, Origin
from timeball.domain.job import Job
from timeball.domain.job_changes import JobChange
from timeball.domain.values.ids import ExecutionId, JobId, new_id, occurrence_id
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.store.store import Store
from timeball.store.types import PARKED_AT, AuditEntry, ExecutionRequest
from timeball.testing import VirtualClock


async def edit(store: Store, job: Job, **fields: Any) -> JobChange:
    return await store.jobs.change(job.id, lambda found: job_changes.edit_job(found, fields, store.shards), OPERATOR)


async def pause(store: Store, job: Job, until: datetime | None = None, reason: str | None = None) -> JobChange:
    return await store.jobs.change(job.id, lambda found: job_changes.pause_job(found, until, reason), OPERATOR)


async def resume(store: Store, job: Job) -> JobChange:
    return await store.jobs.change(job.id, job_changes.resume_job, OPERATOR)


async def delete(store: Store, job: Job) -> JobChange:
    return await store.jobs.change(job.id, lambda found: job_changes.delete_job(found, "no longer wanted"), OPERATOR)


async def trigger(store: Store, job: Job) -> ExecutionId:
    request = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)
    return (await store.jobs.request([request], OPERATOR, "job.trigger"))[0]


async def make_retrying(store: Store, job: Job) -> ExecutionId:
    """An execution of the job that has failed once and waits for its next attempt."""
    execution = await trigger(store, job)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE))])
    return execution


# edit


async def test_an_edit_replaces_definition_and_pending_occurrence(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    job = await make_recurring(store, 60, payload={"a": 1}, queue="old", priority=10, handler="app:old")
    clock.advance("10s")

    fields = {"interval_seconds": 45, "queue": "new", "priority": 20, "handler": "app:new", "unique_key": "u"}
    await edit(store, job, **fields, payload={"a": 2}, max_running=7, limit_key="l", max_executions=9)

    edited = await read_job(store, job.id)
    assert (edited.version, edited.queue, edited.priority, edited.handler) == (2, "new", 20, "app:new")
    assert (json.loads(edited.payload), edited.created_at, edited.updated_at) == ({"a": 2}, start, clock.now())
    row = await only_row(store, "due")
    # The anchor stays, one minute after the start; the new rhythm counts from there.
    assert (row["scheduled_for"], row["run_at"]) == (start + seconds(60), start + seconds(60))
    assert (row["id"], row["version"]) == (occurrence_id(job.id, start + seconds(60)), 2)
    assert (row["queue"], row["priority"], row["handler"]) == ("new", 20, "app:new")
    assert (row["kind"], row["origin"], row["shard"]) == ("occurrence", "schedule", job.shard)
    assert (row["watermark"], row["executions_left"]) == (clock.now(), 9)
    assert (row["limit_key"], row["unique_key"]) == ("l", "u")
    assert await table(store, "running_limit") == [{"key": "l", "max_running": 7}]


async def test_every_version_is_kept_with_the_span_it_answers_for(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    job = await make_recurring(store, 60)
    edited_at = clock.advance("10s")

    await edit(store, job, interval_seconds=45)

    old, new = sorted(await table(store, "job_version"), key=lambda row: row["version"])
    assert (old["effective_from"], old["effective_until"], old["recorded_at"]) == (start, edited_at, start)
    assert (new["effective_from"], new["effective_until"], new["recorded_at"]) == (edited_at, None, edited_at)
    assert [json.loads(row["definition"])["interval_seconds"] for row in (old, new)] == [60, 45]


async def test_an_edit_answers_only_for_occurrences_not_yet_promoted(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60)
    owner = await make_owner(store)
    first = clock.now() + seconds(60)
    clock.advance("59.8s")
    await promote_due(store, owner)

    await edit(store, job, interval_seconds=60, scheduled_at=first)

    assert (await only_row(store, "ready"))["scheduled_for"] == first
    assert (await only_row(store, "due"))["scheduled_for"] == first + seconds(60)


async def test_an_edit_records_unrun_occurrences_as_skipped(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    job = await make_recurring(store, 60, queue="q", priority=33, handler="app:h")
    clock.advance("61s")
    await edit(store, job, interval_seconds=60, scheduled_at=start + seconds(120))
    edited_at = clock.advance("200s")

    await edit(store, job, interval_seconds=3600, scheduled_at=start + seconds(3600))

    skipped = await only_row(store, "finished")
    assert (skipped["id"], skipped["job_id"]) == (occurrence_id(job.id, start + seconds(60)), job.id)
    assert (skipped["state"], skipped["reason"], skipped["origin"]) == ("skipped", "edited", "schedule")
    assert (skipped["scheduled_for"], skipped["finished_at"]) == (start + seconds(60), start + seconds(61))
    assert (skipped["version"], skipped["queue"], skipped["priority"], skipped["handler"]) == (1, "q", 33, "app:h")
    skip_range = await only_row(store, "skip_range")
    assert (skip_range["job_id"], skip_range["version"], skip_range["reason"]) == (job.id, 2, "edited")
    assert (skip_range["first_at"], skip_range["last_at"]) == (start + seconds(120), start + seconds(240))
    assert (skip_range["occurrences"], skip_range["recorded_at"]) == (3, edited_at)


async def test_an_edit_of_an_ended_schedule_adds_no_occurrence(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, scheduled_at=clock.now() + seconds(60))
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)

    await edit(store, job, priority=99)

    assert await table(store, "due") == []
    assert (await read_job(store, job.id)).priority == 99


async def test_a_last_occurrence_cancelled_before_its_time_does_not_return_with_an_edit(
    store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store, 60, ends_at=clock.now() + seconds(70))
    await Commands(store, store.env).jobs.skip_next(job.id)
    assert await table(store, "due") == []

    await edit(store, job, priority=77)

    assert await table(store, "due") == []


@pytest.mark.parametrize("state_table", ["ready", "due", "finished"])
async def test_a_one_off_cannot_be_moved_back_to_an_instant_that_has_its_record(
    store: Store, clock: VirtualClock, state_table: str
) -> None:
    """For an ended record and for a retry in `due`: another record of the occurrence would be a duplicate."""
    instant = clock.now()
    job = await make_job(store, name="once", scheduled_at=instant)
    if state_table != "ready":
        (claimed,) = await claim_all(store)
        await record(store, [found(claimed, Failed(FAILURE) if state_table == "due" else CancelOutcome("no"))])
    await edit(store, job, scheduled_at=instant + seconds(3600))
    before = [await table(store, each) for each in ("job", "due", state_table)]

    with pytest.raises(Conflict, match="has an execution for 2026-03-02T12:00:00"):
        await edit(store, job, scheduled_at=instant)

    assert [await table(store, each) for each in ("job", "due", state_table)] == before


async def test_a_paused_job_stays_paused_when_edited(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60)
    until = clock.now() + seconds(1000)
    await pause(store, job, until)
    edited_at = clock.advance("61s")

    await edit(store, job, priority=7)

    edited = await read_job(store, job.id)
    assert (edited.is_paused, edited.paused_from, edited.priority) == (True, edited_at, 7)
    row = await only_row(store, "due")
    assert (row["kind"], row["run_at"], row["version"], row["priority"]) == ("resume", until, 2, 7)
    assert (await only_row(store, "finished"))["reason"] == "paused"


async def test_an_edit_that_is_refused_changes_nothing(store: Store) -> None:
    job = await make_recurring(store, 60)
    before = await only_row(store, "due")

    with pytest.raises(InvalidInput, match="priority is 101"):
        await edit(store, job, priority=101)

    assert await only_row(store, "due") == before
    assert await read_job(store, job.id) == job
    assert await table(store, "audit") == []


# pause and resume


async def test_a_pause_takes_the_pending_occurrence_away_and_remembers_where_it_was(
    store: Store, clock: VirtualClock
) -> None:
    start = clock.now()
    job = await make_recurring(store, 60, max_executions=5)
    paused_at = clock.advance("10s")

    await pause(store, job, reason="maintenance")

    paused = await read_job(store, job.id)
    assert (paused.paused_at, paused.paused_until, paused.pause_reason) == (paused_at, None, "maintenance")
    assert (paused.paused_from, paused.paused_left, paused.version) == (start, 5, 1)
    assert await table(store, "due") == []


async def test_a_resumed_job_goes_on_without_a_burst(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    job = await make_recurring(store, 60, max_executions=5)
    await pause(store, job)
    resumed_at = clock.advance("150s")

    await resume(store, job)

    resumed = await read_job(store, job.id)
    facts = (resumed.paused_at, resumed.paused_until, resumed.paused_from, resumed.paused_left, resumed.pause_reason)
    assert facts == (None,) * 5
    row = await only_row(store, "due")
    assert (row["scheduled_for"], row["watermark"], row["executions_left"]) == (start + seconds(180), resumed_at, 5)
    skip_range = await only_row(store, "skip_range")
    assert (skip_range["first_at"], skip_range["last_at"]) == (start + seconds(60), start + seconds(120))
    assert (skip_range["occurrences"], skip_range["reason"]) == (2, "paused")


async def test_a_pause_until_puts_its_own_end_into_due(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, queue="q", priority=33, handler="app:h")
    until = clock.now() + seconds(90)

    await pause(store, job, until)

    row = await only_row(store, "due")
    assert (row["kind"], row["job_id"], row["shard"], row["version"]) == ("resume", job.id, job.shard, 1)
    assert (row["run_at"], row["scheduled_for"]) == (until, until)
    assert (row["queue"], row["priority"], row["handler"]) == ("q", 33, "app:h")
    assert (await read_job(store, job.id)).paused_until == until
    assert await table(store, "execution") == []

    later = clock.now() + seconds(120)
    await pause(store, job, later)

    assert (await only_row(store, "due"))["run_at"] == later

    await resume(store, job)

    assert (await only_row(store, "due"))["kind"] == "occurrence"


async def test_a_pause_records_promoted_occurrences_as_skipped_and_parks_the_rest(
    store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store, 60, overlap="allow", max_running=3)
    owner = await make_owner(store)
    retrying = await make_retrying(store, job)
    clock.advance("60s")
    await promote_due(store, owner)
    triggered = await trigger(store, job)
    (scheduled,) = [row["id"] for row in await table(store, "ready") if row["origin"] == "schedule"]
    assert await tables_of(store, retrying) == ["ready"]

    await pause(store, job)

    skipped = await only_row(store, "finished")
    assert (skipped["id"], skipped["state"], skipped["reason"]) == (scheduled, "skipped", "paused")
    assert (skipped["queued_at"], skipped["finished_at"]) == (clock.now(), clock.now())
    parked = {row["id"]: row for row in await table(store, "due")}
    assert set(parked) == {retrying, triggered}
    assert {row["run_at"] for row in parked.values()} == {PARKED_AT}
    assert (parked[retrying]["kind"], parked[retrying]["attempts"], parked[retrying]["fence"]) == ("retry", 1, 1)
    assert (parked[triggered]["kind"], parked[triggered]["origin"]) == ("later", "trigger")
    assert {row["limit_key"] for row in parked.values()} == {f"job:{job.id}"}
    assert await table(store, "ready") == []

    await resume(store, job)

    rows = {row["id"]: row["run_at"] for row in await table(store, "due") if row["kind"] != "occurrence"}
    assert rows == {retrying: clock.now(), triggered: clock.now()}


async def test_a_pause_parks_waiting_retries(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    retrying = await make_retrying(store, job)

    await pause(store, job)

    row = await only_row(store, "due")
    assert (row["id"], row["kind"], row["run_at"]) == (retrying, "retry", PARKED_AT)


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_a_retry_after_a_pause_waits_for_its_time(store: Store, clock: VirtualClock, is_promoted: bool) -> None:
    job = await make_job(store, initial_backoff_ms=600_000)
    owner = await make_owner(store)
    await make_retrying(store, job)
    before = await only_row(store, "due")
    if is_promoted:
        clock.advance_to(before["run_at"] - seconds(0.3))
        await promote(store, [await plan_row(store, await due_row(store, job.id))], owner)
        assert (await only_row(store, "ready"))["run_at"] == before["run_at"] > clock.now()

    await pause(store, job)
    await edit(store, job, description="paused, and still so")
    await resume(store, job)

    after = await only_row(store, "due")
    assert (after["run_at"], after["kind"], after["watermark"]) == (before["run_at"], "retry", None)


async def test_a_held_retry_of_a_paused_job_waits_for_the_end_of_the_pause(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    owner = await make_owner(store)
    retrying = await make_retrying(store, job)
    clock.advance_to((await only_row(store, "due"))["run_at"] - seconds(0.3))
    await promote(store, [await plan_row(store, await due_row(store, job.id))], owner)
    (held,) = await claim_all(store, holds=5)
    await pause(store, job)

    await record(store, [found(held, NotStarted("paused"), started_at=None, finished_at=clock.now())])

    row = await only_row(store, "due")
    assert (row["id"], row["kind"], row["attempts"], row["fence"]) == (retrying, "retry", 1, 2)
    assert row["run_at"] == held.run_at > clock.now(), "not a moment before its time, if that is over soon"

    await store.executions.park([await due_row(store, job.id)])
    await resume(store, job)

    assert (await only_row(store, "due"))["run_at"] == held.run_at


async def test_a_retry_due_during_a_pause_runs_after_it(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    await make_retrying(store, job)
    await pause(store, job)

    clock.advance("1h")
    await resume(store, job)

    assert (await only_row(store, "due"))["run_at"] == clock.now()


async def test_a_pause_reaches_blocked_executions(store: Store) -> None:
    job = await make_job(store, max_running=1)
    ids = [await trigger(store, job) for _ in range(2)]

    await pause(store, job)

    assert [await tables_of(store, id_) for id_ in ids] == [["due"], ["due"]]


async def test_a_pause_skips_held_executions_and_lets_started_ones_run(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="allow")
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    dropped = (await claim_all(store))[0]
    clock.advance("59.6s")
    await promote_due(store, owner)
    (held,) = await claim_all(store, holds=5)

    await pause(store, job)

    stops = {row["id"]: row["stop"] for row in await table(store, "running")}
    assert stops == {dropped.id: None, held.id: "skip:paused"}


async def test_a_paused_one_off_is_parked_and_runs_when_the_pause_is_over(store: Store, clock: VirtualClock) -> None:
    due_at = clock.now() + seconds(60)
    execution = await enqueue(store, after=60, unique_key="k", queue="q", priority=33)
    job = await read_job(store, JobId(execution))
    before = await only_row(store, "due")

    await pause(store, job)

    assert await only_row(store, "due") == before | {"run_at": PARKED_AT}

    resumed_at = clock.advance("90s")
    await resume(store, job)

    assert await only_row(store, "due") == before | {"run_at": resumed_at}
    assert due_at < resumed_at
    assert await table(store, "finished") == []


async def test_a_one_off_that_is_resumed_before_its_instant_keeps_it(store: Store, clock: VirtualClock) -> None:
    execution = await enqueue(store, after=60)
    before = await only_row(store, "due")
    job = await read_job(store, JobId(execution))
    await pause(store, job)
    clock.advance("30s")

    await resume(store, job)

    assert await only_row(store, "due") == before


async def test_a_one_off_that_was_cancelled_does_not_come_back_with_a_pause_and_its_end(
    store: Store, clock: VirtualClock
) -> None:
    execution_id = await enqueue(store, after=10)
    await store.jobs.cancel([execution_id], "not wanted", OPERATOR)
    job = await read_job(store, JobId(execution_id))

    await pause(store, job)
    await resume(store, job)

    assert await tables_of(store, execution_id) == ["finished"]


async def test_a_one_off_that_was_promoted_and_paused_can_be_resumed_before_its_instant(
    store: Store, clock: VirtualClock
) -> None:
    execution_id = await enqueue(store, after=0.3)
    assert await tables_of(store, execution_id) == ["ready"]
    job = await read_job(store, JobId(execution_id))

    await pause(store, job)
    await resume(store, job)

    assert [row["run_at"] for row in await table(store, "due")] == [clock.now() + seconds(0.3)]


async def test_a_delayed_trigger_keeps_its_instant_over_a_pause(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    later = clock.now() + seconds(60)
    request = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER, run_at=later)
    await store.jobs.request([request], OPERATOR, "job.trigger")
    await pause(store, job)
    assert (await only_row(store, "due"))["run_at"] == PARKED_AT
    clock.advance("10s")

    await resume(store, job)

    assert (await only_row(store, "due"))["run_at"] == later


# delete


async def test_a_deleted_job_is_gone_but_its_history_stays(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, name="doomed", overlap="allow")
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    done = (await claim_all(store))[0]
    await store.executions.finish_succeeded([found(done)])
    triggered = await trigger(store, job)
    deleted_at = clock.advance("1s")

    await delete(store, job)

    assert await store.jobs.find_by_name("doomed") is None
    assert (await read_job(store, job.id)).deleted_at == deleted_at
    assert await table(store, "due") == []
    states = {row["id"]: (row["state"], row["reason"]) for row in await table(store, "finished")}
    assert states == {done.id: ("succeeded", None), triggered: ("cancelled", "no longer wanted")}
    assert (await only_row(store, "job_version"))["effective_until"] == deleted_at


async def test_a_deletion_cancels_waiting_retries_and_blocked_executions(store: Store) -> None:
    job = await make_job(store, max_running=1)
    retrying = await make_retrying(store, job)
    ready, blocked = [await trigger(store, job) for _ in range(2)]
    assert await tables_of(store, blocked) == ["blocked"]

    await delete(store, job)

    assert {row["id"] for row in await table(store, "finished")} == {retrying, ready, blocked}


async def test_a_deleted_one_off_is_recorded_as_cancelled_and_frees_its_key(store: Store, clock: VirtualClock) -> None:
    execution = await enqueue(store, after=60, unique_key="k", queue="q", priority=33)

    await delete(store, await read_job(store, JobId(execution)))

    row = await only_row(store, "finished")
    assert (row["id"], row["job_id"], row["state"]) == (execution, execution, "cancelled")
    assert (row["origin"], row["queue"], row["priority"]) == ("enqueue", "q", 33)
    assert (row["scheduled_for"], row["finished_at"]) == (clock.now() + seconds(60), clock.now())
    assert await table(store, "live_key") == []


async def test_a_missing_job_cannot_be_changed(store: Store) -> None:
    deleted = await make_job(store)
    await delete(store, deleted)

    for job_id in (JobId(new_id(5, 5)), deleted.id):
        with pytest.raises(NotFound, match="there is no job"):
            await store.jobs.change(job_id, job_changes.resume_job, OPERATOR)


# audit


async def test_a_change_is_audited_with_what_was_and_what_is(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, priority=10, payload={"a": 1})
    clock.advance("5s")

    await edit(store, job, priority=20, payload={"a": 2})

    entry = await only_row(store, "audit")
    assert (entry["at"], entry["actor"], entry["action"]) == (clock.now(), "somebody", "job.update")
    assert (entry["subject"], entry["reason"]) == (f"job:{job.id}", "a test")
    assert json.loads(entry["before"]) == {"priority": 10, "payload": {"a": 1}, "version": 1}
    assert json.loads(entry["after"]) == {"priority": 20, "payload": {"a": 2}, "version": 2}


async def test_a_change_that_cannot_be_audited_does_not_happen(store: Store) -> None:
    job = await make_recurring(store, 60)
    nobody = AuditEntry(None)  # type: ignore[arg-type]

    with pytest.raises(asyncpg.NotNullViolationError):
        await store.jobs.change(job.id, lambda found: job_changes.pause_job(found, None, None), nobody)

    assert not (await read_job(store, job.id)).is_paused
    assert (await due_row(store, job.id)).kind == "occurrence"


# limits


async def test_unfinished_executions_count_for_a_new_limit(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="allow")
    commands, worker = Commands(store, store.env), await make_node(store)
    ids = [await commands.executions.trigger(job.id) for _ in range(4)]
    running = await claim_all(store, slots=2, worker=worker)
    before = {row["id"]: row for row in await table(store, "ready")}

    await edit(store, job, max_running=2)
    assert await claim_all(store, worker=worker) == [], "two of them run, and no more"
    blocked = {row["id"]: row for row in await table(store, "blocked")}
    assert blocked == {id_: before[id_] | {"limit_key": f"job:{job.id}"} for id_ in before}

    await record(store, [found(running[0])])
    (third,) = await claim_all(store, worker=worker)
    await record(store, [found(running[1], Failed(FAILURE)), found(third)])
    (fourth,) = await claim_all(store, worker=worker)
    assert {each.id for each in (*running, third, fourth)} == set(ids)
    clock.advance("1h")
    assert (await due_row_of(store, running[1].id))["limit_key"] == f"job:{job.id}", "a retry needs a place, too"


async def test_a_lower_limit_blocks_executions_that_have_not_started(store: Store) -> None:
    job = await make_job(store, max_running=4)
    commands, worker = Commands(store, store.env), await make_node(store)
    for _ in range(4):
        await commands.executions.trigger(job.id)
    await claim_all(store, slots=1, worker=worker)
    assert len(await table(store, "ready")) == 3

    await edit(store, job, max_running=2)

    await claim_all(store, worker=worker)
    assert [len(await table(store, state_table)) for state_table in ("running", "ready", "blocked")] == [2, 0, 2]


async def test_an_edit_keeps_the_last_setting_of_a_shared_limit(store: Store) -> None:
    """Another job has raised the shared limit meanwhile, so too many were admitted, though this job's setting is unchanged."""
    job = await make_job(store, max_running=1, limit_key="l")
    other = await make_job(store, max_running=3, limit_key="l")
    commands = Commands(store, store.env)
    for _ in range(3):
        await commands.executions.trigger(other.id)
    assert len(await table(store, "ready")) == 3

    await edit(store, job, description="says the same again")

    assert [len(await table(store, state_table)) for state_table in ("ready", "blocked")] == [1, 2]


async def due_row_of(store: Store, execution_id: ExecutionId) -> dict[str, Any]:
    (row,) = [row for row in await table(store, "due") if row["id"] == execution_id]
    return row


async def test_a_row_read_before_the_limit_was_set_is_blocked(store: Store, clock: VirtualClock) -> None:
    """Only the limit of the row has changed since it was read; the row decides where the execution goes."""
    job = await make_recurring(store, 3600, overlap="allow", max_retries=3)
    execution_id = await Commands(store, store.env).executions.trigger(job.id)
    owner, (claimed,) = await make_owner(store), await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE))])
    clock.advance("30m")
    (row,) = [row for row in await due_rows(store) if row.id == execution_id]
    plan = await plan_row(store, row)

    await edit(store, job, max_running=1)
    await promote(store, [plan], owner)

    assert await tables_of(store, execution_id) == ["blocked"]
