"""From due to ready: due rows are read ahead, and promoted only if they still are as they were read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.factories import (
    ALWAYS,
    FAILURE,
    OPERATOR,
    TZDATA,
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
    put_row,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.domain import job_changes
from timeball.domain.execution import DueKind, Failed, Origin, Snoozed
from timeball.domain.node import NodeKind
from timeball.domain.scheduling.occurrences import DueRow, NextOccurrence, Promotion
from timeball.domain.values.ids import ExecutionId, JobId, occurrence_id
from timeball.store.store import Store
from timeball.store.types import PARKED_AT, ExecutionRequest, ShardOwnership
from timeball.testing import VirtualClock

JOB, EXECUTION, ENDED = UUID(int=0x10B), UUID(int=0xE), UUID(int=0xEE)
SHARD = 5


def held(key: str, holder: UUID) -> dict[str, Any]:
    """A row of `live_key`, as an unfinished execution has it."""
    return {"key": key, "execution_id": holder, "held_until": None, "has_ended": False}


def waiting(now: datetime) -> dict[str, Any]:
    """A retry in `due`, with a distinct value in each column."""
    return {
        "id": EXECUTION,
        "job_id": JOB,
        "kind": "retry",
        "origin": "trigger",
        "shard": SHARD,
        "run_at": now - seconds(1),
        "scheduled_for": now - seconds(20),
        "watermark": now - seconds(30),
        "tzdata": "2025z",
        "version": 4,
        "queue": "q",
        "priority": 61,
        "handler": "app:h",
        "executions_left": 9,
        "queued_at": now - seconds(10),
        "attempts": 3,
        "lost": 2,
        "fence": 7,
        "limit_key": "l",
        "unique_key": "k",
        "payload": "[1]",
        "retry_of": ENDED,
        "created_by": "key:k deploy",
        "bound_secrets_only": True,
        "meta": '{"of": "execution"}',
        "has_follow_ups": True,
        "expires_at": now + seconds(40),
    }


# reading ahead


async def test_the_look_ahead_reads_every_column(store: Store, clock: VirtualClock) -> None:
    await put_row(store, "due", **waiting(clock.now()))

    (row,) = await due_rows(store)

    assert row == DueRow(
        id=ExecutionId(EXECUTION),
        job_id=JobId(JOB),
        kind=DueKind.RETRY,
        origin=Origin.TRIGGER,
        shard=SHARD,
        run_at=clock.now() - seconds(1),
        scheduled_for=clock.now() - seconds(20),
        watermark=clock.now() - seconds(30),
        tzdata="2025z",
        version=4,
        executions_left=9,
        limit_key="l",
        queue="q",
        priority=61,
        is_paused=False,
        expires_at=clock.now() + seconds(40),
    )


async def test_the_look_ahead_reads_each_shard_from_its_bound_to_the_horizon(store: Store, clock: VirtualClock) -> None:
    now = clock.now()
    for shard in (1, 2, 3):
        for second in range(5):
            row = waiting(now) | {"id": UUID(int=100 * shard + second), "shard": shard, "run_at": now + seconds(second)}
            await put_row(store, "due", **row)

    rows = await store.executions.look_ahead({1: now + seconds(1), 2: ALWAYS}, seconds(3), 2)

    ids = [row.id.int for row in rows]
    assert sorted(ids) == [101, 102, 200, 201]
    rows = await store.executions.look_ahead({1: now + seconds(1)}, seconds(3), 100)
    assert [row.id.int for row in rows] == [101, 102, 103]


async def test_the_look_ahead_marks_retries_of_paused_jobs(store: Store, clock: VirtualClock) -> None:
    job = await make_job(store)
    await store.jobs.change(job.id, lambda found: job_changes.pause_job(found, None, None), OPERATOR)
    await put_row(store, "due", **waiting(clock.now()) | {"job_id": job.id})

    assert (await due_row(store, job.id)).is_paused


async def test_a_job_is_busy_from_the_promotion_to_the_end(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, max_running=1)
    owner = await make_owner(store)

    async def is_busy() -> bool:
        return await store.executions.busy_jobs([job.id]) == {job.id}

    assert not await is_busy()

    clock.advance("60s")
    await promote_due(store, owner)
    assert await is_busy()  # in ready

    (claimed,) = await claim_all(store)
    assert await is_busy()  # in running

    await record(store, [found(claimed, Failed(FAILURE))])
    assert await is_busy()  # in due, to be tried again

    clock.advance("5s")
    await store.executions.promote(
        [await plan_row(store, row) for row in await due_rows(store)], owner, seconds(0.5), TZDATA
    )
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Snoozed(seconds(5)))])
    assert await is_busy()  # in due, snoozed

    await store.jobs.cancel([claimed.id], "enough", OPERATOR)
    assert not await is_busy()


async def test_a_job_is_busy_while_one_of_its_executions_is_blocked(store: Store) -> None:
    holder = await enqueue(store, max_running=1, limit_key="l")
    job = await make_job(store, max_running=1, limit_key="l")
    wanted = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)
    await store.jobs.request([wanted], OPERATOR, "job.trigger")
    assert (await tables_of(store, wanted.id), await tables_of(store, holder)) == (["blocked"], ["ready"])

    assert await store.executions.busy_jobs([job.id, JobId(JOB)]) == {job.id}


# promoting


async def test_a_promoted_execution_keeps_every_column_of_due(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    before = waiting(clock.now()) | {"limit_key": None}
    await put_row(store, "due", **before)

    assert await promote_due(store, owner) == {EXECUTION}

    kept = set(before) - {"kind", "shard", "watermark", "executions_left"}
    assert await only_row(store, "ready") == {name: before[name] for name in kept}
    assert await table(store, "due") == []


async def test_a_waiting_execution_with_a_limit_goes_to_blocked(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    before = waiting(clock.now()) | {"queued_at": None}
    await put_row(store, "due", **before)

    await promote_due(store, owner)

    kept = set(before) - {"kind", "shard", "watermark", "executions_left"}
    assert await only_row(store, "blocked") == {name: before[name] for name in kept} | {"queued_at": clock.now()}


async def test_a_promotion_inserts_the_following_occurrence_in_the_same_statement(
    store: Store, clock: VirtualClock
) -> None:
    start = clock.now()
    job = await make_recurring(
        store,
        60,
        queue="q",
        priority=33,
        handler="app:h",
        max_executions=5,
        unique_key="k",
        jitter_seconds=9,
        start_within_seconds=50,
    )
    owner = await make_owner(store)
    row = await due_row(store, job.id)
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.due SET has_follow_ups = true")
    clock.advance("75s")

    done = await store.executions.promote([await plan_row(store, row)], owner, store.promotion_window, "2027q")

    assert done == {row.id}
    ready = await only_row(store, "ready")
    assert (ready["id"], ready["origin"], ready["version"]) == (
        occurrence_id(job.id, start + seconds(60)),
        "schedule",
        1,
    )
    assert (ready["scheduled_for"], ready["run_at"]) == (start + seconds(60), start + seconds(60) + job.jitter)
    assert (ready["queued_at"], ready["tzdata"], ready["unique_key"]) == (clock.now(), TZDATA, "k")
    assert (ready["expires_at"], ready["has_follow_ups"]) == (start + seconds(60 + 50) + job.jitter, True)
    following = await only_row(store, "due")
    assert following == {
        "id": occurrence_id(job.id, start + seconds(120)),
        "job_id": job.id,
        "kind": "occurrence",
        "origin": "schedule",
        "shard": job.shard,
        "run_at": start + seconds(120) + job.jitter,
        "scheduled_for": start + seconds(120),
        "watermark": start + seconds(60),
        "frozen_run_at": None,
        "awaits_key": False,
        "tzdata": "2027q",
        "version": 1,
        "queue": "q",
        "priority": 33,
        "handler": "app:h",
        "executions_left": 4,
        "queued_at": None,
        "attempts": 0,
        "lost": 0,
        "fence": 0,
        "limit_key": None,
        "unique_key": "k",
        "payload": None,
        "retry_of": None,
        "created_by": None,
        "bound_secrets_only": None,
        "meta": None,
        "has_follow_ups": True,
        "expires_at": start + seconds(120 + 50) + job.jitter,
    }


async def test_a_job_cannot_have_two_next_occurrences(store: Store) -> None:
    await make_recurring(store, 60)
    row = await only_row(store, "due")

    with pytest.raises(asyncpg.UniqueViolationError):
        await put_row(store, "due", **row | {"id": store.env.new_id()})


async def test_the_last_occurrence_is_followed_by_none(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, 60, max_executions=1)
    owner = await make_owner(store)
    clock.advance("60s")

    await promote_due(store, owner)

    assert await table(store, "due") == []
    assert len(await table(store, "ready")) == 1


async def test_missed_occurrences_are_caught_up_one_by_one_or_recorded(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    job = await make_recurring(store, 60, misfire="all", misfire_cap=2, queue="q", priority=33, handler="app:h")
    owner = await make_owner(store)
    clock.advance("290s")  # 60, 120, 180 and 240 are owed; the two newest run

    await promote_due(store, owner)

    ready = await only_row(store, "ready")
    assert (ready["scheduled_for"], ready["run_at"]) == (start + seconds(180), start + seconds(180))
    later, following = sorted(await table(store, "due"), key=lambda row: row["scheduled_for"])
    assert (later["kind"], later["scheduled_for"]) == ("later", start + seconds(240))
    assert later["run_at"] == clock.now() + seconds(0.1)
    assert (later["queue"], later["priority"], later["handler"], later["shard"]) == ("q", 33, "app:h", job.shard)
    assert (following["kind"], following["scheduled_for"]) == ("occurrence", start + seconds(300))
    assert following["watermark"] == start + seconds(240)
    skipped = await only_row(store, "skip_range")
    assert (skipped["job_id"], skipped["version"], skipped["tzdata"]) == (job.id, 1, TZDATA)
    assert (skipped["first_at"], skipped["last_at"]) == (start + seconds(60), start + seconds(120))
    assert (skipped["occurrences"], skipped["reason"], skipped["recorded_at"]) == (2, "capped", clock.now())


async def test_a_single_skipped_occurrence_is_a_skipped_execution(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="skip", queue="q", priority=33, handler="app:h")
    owner = await make_owner(store)
    row = await due_row(store, job.id)
    clock.advance("65s")

    await promote(store, [await plan_row(store, row, is_busy=True)], owner)

    skipped = await only_row(store, "finished")
    assert (skipped["id"], skipped["job_id"], skipped["state"]) == (row.id, job.id, "skipped")
    assert (skipped["reason"], skipped["origin"], skipped["version"], skipped["tzdata"]) == (
        "overlap",
        "schedule",
        1,
        TZDATA,
    )
    assert (skipped["queue"], skipped["priority"], skipped["handler"]) == ("q", 33, "app:h")
    assert (skipped["scheduled_for"], skipped["finished_at"]) == (row.scheduled_for, clock.now())
    assert (skipped["attempts"], skipped["fence"], skipped["started_at"]) == (0, 0, None)
    assert await table(store, "ready") == []


@pytest.mark.parametrize("max_running", [None, 1], ids=["free", "limited"])
async def test_an_occurrence_whose_key_is_taken_is_skipped(
    store: Store, clock: VirtualClock, max_running: int | None
) -> None:
    holder = await enqueue(store, unique_key="k")
    job = await make_recurring(store, 60, unique_key="k", max_running=max_running)
    owner = await make_owner(store)
    pending = await due_row(store, job.id)
    clock.advance("60s")

    await promote_due(store, owner)

    skipped = await only_row(store, "finished")
    assert (skipped["id"], skipped["state"], skipped["reason"]) == (pending.id, "skipped", "unique_key")
    assert [row["id"] for state_table in ("ready", "blocked") for row in await table(store, state_table)] == [holder]
    assert await only_row(store, "live_key") == held("k", holder)
    assert (await only_row(store, "due"))["watermark"] == pending.scheduled_for


async def test_an_occurrence_has_its_key_while_it_is_unfinished(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, unique_key="k", overlap="allow")
    owner = await make_owner(store)
    pending = await due_row(store, job.id)
    clock.advance("60s")

    await promote_due(store, owner)
    assert await only_row(store, "live_key") == held("k", pending.id)

    clock.advance("60s")
    await promote_due(store, owner)
    assert (await only_row(store, "finished"))["reason"] == "unique_key"


async def test_of_several_owed_runs_with_one_key_the_first_runs(store: Store, clock: VirtualClock) -> None:
    start = clock.now()
    await make_recurring(store, 60, unique_key="k", misfire="all")
    owner = await make_owner(store)
    clock.advance("190s")

    await promote_due(store, owner)

    runs = [row["scheduled_for"] for state_table in ("ready", "due") for row in await table(store, state_table)]
    skipped = [(row["scheduled_for"], row["reason"]) for row in await table(store, "finished")]
    assert sorted(runs) == [start + seconds(60), start + seconds(240)]  # the first, and the following occurrence
    assert {reason for _, reason in skipped} == {"unique_key"}
    assert sorted([*runs, *(at for at, _ in skipped)]) == [start + seconds(60 * n) for n in (1, 2, 3, 4)]


async def test_a_superseded_execution_is_asked_to_stop(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, overlap="cancel_running")
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    worker = await make_node(store)
    (old,) = await claim_all(store, worker=worker)
    clock.advance("60s")

    await promote(store, [await plan_row(store, await due_row(store, job.id), is_busy=True)], owner)

    assert await store.executions.stops(worker) == {old.id: "superseded by the next occurrence"}
    assert len(await table(store, "blocked")) == 1


async def sql(store: Store, statement: str, *values: Any) -> None:
    async with store.database.transaction() as connection:
        await connection.execute(statement, *values)


async def with_one_that_waits(store: Store, clock: VirtualClock, **fields: Any) -> tuple[JobId, ShardOwnership]:
    """A job with overlap `latest`: its first occurrence runs, and its second one waits."""
    job = await make_recurring(store, 60, overlap="latest", **fields)
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    await claim_all(store)
    clock.advance("60s")
    await promote_due(store, owner)
    return job.id, owner


async def test_a_newer_occurrence_replaces_the_one_that_waits(store: Store, clock: VirtualClock) -> None:
    job_id, owner = await with_one_that_waits(store, clock)
    older, newer = await only_row(store, "blocked"), await due_row(store, job_id)
    clock.advance("60s")

    await promote_due(store, owner)

    assert (await only_row(store, "blocked"))["id"] == newer.id
    skipped = await only_row(store, "finished")
    kept = ("id", "job_id", "origin", "version", "queue", "priority", "handler", "scheduled_for", "queued_at", "tzdata")
    assert [skipped[name] for name in kept] == [older[name] for name in kept]
    assert (skipped["state"], skipped["reason"], skipped["finished_at"]) == ("skipped", "overlap", clock.now())
    assert (skipped["attempts"], skipped["started_at"]) == (0, None)


async def test_a_replaced_occurrence_frees_its_key(store: Store, clock: VirtualClock) -> None:
    """The key was of an older version of the job: an occurrence with the same key could not have come between."""
    _, owner = await with_one_that_waits(store, clock)
    older = await only_row(store, "blocked")
    await sql(store, "UPDATE timeball.blocked SET unique_key = 'old'")
    await sql(store, "INSERT INTO timeball.live_key VALUES ('old', $1)", older["id"])
    clock.advance("60s")

    await promote_due(store, owner)

    assert await table(store, "live_key") == []


@pytest.mark.parametrize("change", ["origin = 'manual'", "fence = 1", "job_id = gen_random_uuid()"])
async def test_only_occurrences_that_no_worker_has_claimed_are_replaced(
    store: Store, clock: VirtualClock, change: str
) -> None:
    _, owner = await with_one_that_waits(store, clock)
    await sql(store, f"UPDATE timeball.blocked SET {change}")
    clock.advance("60s")

    await promote_due(store, owner)

    assert len(await table(store, "blocked")) == 2
    assert await table(store, "finished") == []


async def test_a_retry_replaces_nothing(store: Store, clock: VirtualClock) -> None:
    """It is older than what waits, or it was begun: it takes its turn beside it."""
    _, owner = await with_one_that_waits(store, clock)
    await sql(store, "UPDATE timeball.due SET kind = 'retry', fence = 1, attempts = 1, run_at = $1", clock.now())

    await promote_due(store, owner)

    assert len(await table(store, "blocked")) == 2
    assert await table(store, "finished") == []


async def test_an_older_occurrence_gives_way_to_the_newer_one_that_waits(store: Store, clock: VirtualClock) -> None:
    """As one does that a freeze took from the queue, and that comes back later."""
    _, owner = await with_one_that_waits(store, clock)
    waiting = await only_row(store, "blocked")
    older = waiting["scheduled_for"] - seconds(60)
    await sql(
        store,
        """UPDATE timeball.due SET kind = 'snooze', id = $1, scheduled_for = $2, run_at = $2, unique_key = 'k'""",
        EXECUTION,
        older,
    )
    await sql(store, "INSERT INTO timeball.live_key VALUES ('k', $1)", EXECUTION)

    await promote_due(store, owner)

    assert (await only_row(store, "blocked"))["id"] == waiting["id"]
    skipped = [row for row in await table(store, "finished") if row["id"] == EXECUTION]
    assert [(row["state"], row["reason"], row["queued_at"]) for row in skipped] == [("skipped", "overlap", clock.now())]
    assert await table(store, "live_key") == []


# the guards, each of which alone can refuse


async def planned(store: Store, clock: VirtualClock) -> tuple[Promotion, ShardOwnership]:
    job = await make_recurring(store, 60)
    owner = await make_owner(store)
    clock.advance("60s")
    return await plan_row(store, await due_row(store, job.id)), owner


async def refused(store: Store, plan: Promotion, owner: ShardOwnership) -> bool:
    """Whether the promotion was refused, and nothing changed."""
    before = await table(store, "execution")
    done = await promote(store, [plan], owner)
    assert bool(done) == (await table(store, "execution") != before)
    return not done


async def test_a_valid_promotion_is_accepted(store: Store, clock: VirtualClock) -> None:
    assert not await refused(store, *await planned(store, clock))


async def test_a_second_promotion_of_the_same_row_changes_nothing(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)
    await promote(store, [plan], owner)

    assert await refused(store, plan, owner)


async def test_a_row_of_another_instant_is_not_moved(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)

    assert await refused(store, replace(plan, row=replace(plan.row, run_at=plan.row.run_at - seconds(1))), owner)


async def test_a_row_of_another_version_is_not_moved(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)

    assert await refused(store, replace(plan, row=replace(plan.row, version=2)), owner)


async def test_a_row_beyond_the_window_is_not_moved(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60)
    owner = await make_owner(store)
    clock.advance("59s")
    plan = await plan_row(store, await due_row(store, job.id))

    assert await store.executions.promote([plan], owner, seconds(0.999), TZDATA) == set()
    assert await store.executions.promote([plan], owner, seconds(1), TZDATA) == {plan.row.id}


async def test_a_shard_of_an_older_epoch_is_not_ours(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)
    older = {shard: epoch - 1 for shard, epoch in owner.epochs.items()}

    assert await refused(store, plan, replace(owner, epochs=older))


async def test_a_shard_that_another_owns_is_not_ours(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)
    other = await make_node(store, NodeKind.SCHEDULER)

    assert await refused(store, plan, replace(owner, incarnation=other))


async def test_a_shard_that_was_not_named_is_not_ours(store: Store, clock: VirtualClock) -> None:
    plan, owner = await planned(store, clock)
    others = {shard: epoch for shard, epoch in owner.epochs.items() if shard != plan.row.shard}

    assert await refused(store, plan, replace(owner, epochs=others))


async def test_a_refused_row_does_not_affect_the_others(store: Store, clock: VirtualClock) -> None:
    first, second = [await make_recurring(store, 60) for _ in range(2)]
    owner = await make_owner(store)
    clock.advance("60s")
    stale, honest = [await plan_row(store, await due_row(store, job.id)) for job in (first, second)]
    stale = replace(stale, row=replace(stale.row, version=9))

    assert await promote(store, [stale, honest], owner) == {honest.row.id}
    assert (await due_row(store, first.id)).run_at == clock.now()


# parking, and other time-zone data


async def test_only_unchanged_retries_and_snoozes_of_paused_jobs_are_parked(store: Store, clock: VirtualClock) -> None:
    paused, active = await make_job(store), await make_job(store)
    await store.jobs.change(paused.id, lambda found: job_changes.pause_job(found, None, None), OPERATOR)
    kinds = {
        1: ("retry", paused),
        2: ("snooze", paused),
        3: ("later", paused),
        4: ("retry", active),
        5: ("retry", paused),
    }
    for number, (kind, job) in kinds.items():
        own = {"id": UUID(int=number), "kind": kind, "job_id": job.id}
        await put_row(store, "due", **waiting(clock.now()) | own)
    rows = {row.id.int: row for row in await due_rows(store)}
    rows[5] = replace(rows[5], run_at=rows[5].run_at - seconds(1))

    await store.executions.park(list(rows.values()))

    parked = {row["id"].int: row["watermark"] for row in await table(store, "due") if row["run_at"] == PARKED_AT}
    assert parked == {number: rows[number].run_at for number in (1, 2)}, "and they keep their time"


async def test_occurrences_of_older_zone_data_are_found_and_moved(store: Store, clock: VirtualClock) -> None:
    before = waiting(clock.now()) | {"kind": "occurrence", "origin": "schedule"}
    before |= {"frozen_run_at": None, "awaits_key": False}
    fresh = NextOccurrence(
        id=ExecutionId(UUID(int=3)),
        run_at=clock.now() + seconds(5),
        scheduled_for=clock.now() + seconds(4),
        watermark=clock.now() + seconds(3),
        executions_left=77,
        tzdata="2026b",
    )
    await put_row(store, "due", **before)

    async def older_than(tzdata: str, shard: int = SHARD) -> list[DueRow]:
        return await store.executions.occurrences_of_other_tzdata([shard], tzdata, 10)

    assert await older_than("2025z") == []
    assert await older_than("2026b", shard=6) == []
    (row,) = await older_than("2026b")
    assert row == (await due_rows(store))[0]

    for stale in (
        replace(row, id=ExecutionId(JOB)),
        replace(row, run_at=clock.now()),
        replace(row, version=row.version + 1),
    ):
        assert not await store.executions.move_occurrence(stale, fresh)
    assert await store.executions.move_occurrence(row, fresh)

    forgotten = {
        "queued_at": None,
        "attempts": 0,
        "lost": 0,
        "fence": 0,
        "retry_of": None,
        "created_by": None,
        "bound_secrets_only": None,
    }
    moved = {"id": fresh.id, "run_at": fresh.run_at, "scheduled_for": fresh.scheduled_for, "tzdata": "2026b"}
    # It has as long to begin as before: 60 seconds after its instant.
    moved |= {"expires_at": fresh.scheduled_for + seconds(60)}
    assert await only_row(store, "due") == before | forgotten | moved


async def test_an_occurrence_without_a_successor_is_recorded_unless_it_has_changed(
    store: Store, clock: VirtualClock
) -> None:
    await put_row(store, "due", **waiting(clock.now() + seconds(9)) | {"kind": "occurrence", "origin": "schedule"})
    (row,) = await due_rows(store)

    for stale in (
        replace(row, id=ExecutionId(JOB)),
        replace(row, run_at=clock.now()),
        replace(row, version=row.version + 1),
    ):
        assert not await store.executions.end_occurrence(stale, "2026b")
    assert await table(store, "finished") == []
    assert await store.executions.end_occurrence(row, "2026b")
    assert not await store.executions.end_occurrence(row, "2026b")

    assert await table(store, "due") == []
    ended = await only_row(store, "finished")
    assert (ended["id"], ended["job_id"], ended["version"], ended["tzdata"]) == (
        row.id,
        row.job_id,
        row.version,
        row.tzdata,
    )
    assert (ended["state"], ended["reason"], ended["attempts"]) == ("skipped", "ended", 0)
    assert ended["finished_at"] == max(clock.now(), row.scheduled_for)


async def test_only_occurrences_depend_on_zone_data(store: Store, clock: VirtualClock) -> None:
    for number, kind in enumerate(("retry", "later", "snooze", "resume")):
        await put_row(store, "due", **waiting(clock.now()) | {"id": UUID(int=number), "kind": kind})

    assert await store.executions.occurrences_of_other_tzdata([SHARD], "2027a", 10) == []
