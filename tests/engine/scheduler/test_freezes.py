"""Freezes: nothing in their scope starts, what fell into them is decided once, and the rest goes on when they are over."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.engine.support import (
    Hands,
    ManualScheduler,
    check_promises,
    create,
    ranges,
    start_scheduler,
    start_worker,
    states,
)
from tests.support.factories import FAILURE, HANDLER, due_row, enqueue, found, record, seconds, table, tables_of
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.config.settings import Settings
from timeball.domain.execution import Failed, Origin
from timeball.domain.freeze import Afterwards, Freeze, FreezeScope
from timeball.domain.job import Job
from timeball.domain.values.ids import ClaimId, filling_id, occurrence_id
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.env import Env
from timeball.runtime import make_server_runtime
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ExecutionRequest
from timeball.testing import VirtualClock
from timeball.testing.environment import START

ANA = Actor("ana", "release")


@pytest.fixture
def commands(store: Store, env: Env) -> Commands:
    return Commands(store, env)


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    """A scheduler that owns everything."""
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


def at(number: float) -> datetime:
    return START + seconds(number)


async def freeze_all(commands: Commands, until: float, *, since: float | None = None, **fields: Any) -> Freeze:
    return await commands.freezes.add(
        FreezeScope.INSTALLATION, until=at(until), since=None if since is None else at(since), actor=ANA, **fields
    )


async def freeze_job(commands: Commands, job: Job, until: float, **fields: Any) -> Freeze:
    return await commands.freezes.add(FreezeScope.JOB, job_id=job.id, until=at(until), actor=ANA, **fields)


# occurrences of schedules


async def test_occurrences_of_a_freeze_are_recorded_as_skipped_when_it_is_over(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60)
    await freeze_all(commands, until=330, since=90)
    await node.run_until(at(61), worker.work)

    await node.run_until(at(329), worker.work)
    assert await states(store, job.id) == {at(60): "succeeded", at(120): "due"}
    assert (await due_row(store, job.id)).run_at == at(330)

    await node.run_until(at(360), worker.work)
    assert await states(store, job.id) == {at(60): "succeeded", at(360): "succeeded", at(420): "due"}
    assert await ranges(store, job.id) == [(at(120), at(300), 4, "freeze")]
    await check_promises(store)


async def test_the_latest_occurrence_of_a_freeze_runs_under_its_own_id_when_it_is_over(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60)
    await freeze_all(commands, until=330, since=90, afterwards=Afterwards.LATEST)
    await node.run_until(at(61), worker.work)

    await node.run_until(at(331), worker.work)

    assert await states(store, job.id) == {at(60): "succeeded", at(300): "succeeded", at(360): "due"}
    assert await ranges(store, job.id) == [(at(120), at(240), 3, "freeze")]
    (ran,) = [row for row in await table(store, "finished") if row["scheduled_for"] == at(300)]
    assert ran["id"] == occurrence_id(job.id, at(300))
    assert ran["started_at"] >= at(330)
    await check_promises(store)


async def test_all_occurrences_of_a_freeze_run_once_each_when_it_is_over(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, overlap="allow")
    await freeze_all(commands, until=330, since=90, afterwards=Afterwards.ALL)
    await node.run_until(at(61), worker.work)

    await node.run_until(at(332), worker.work)

    ran = {row["scheduled_for"]: row["started_at"] for row in await table(store, "finished")}
    assert sorted(ran) == [at(number) for number in (60, 120, 180, 240, 300)]
    assert all(started >= at(330) for instant, started in ran.items() if instant > at(60))
    assert await states(store, job.id) == dict.fromkeys(sorted(ran), "succeeded") | {at(360): "due"}
    await check_promises(store)


async def test_an_occurrence_at_the_edge_of_a_freeze_belongs_to_it_at_its_beginning_and_not_at_its_end(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60)
    await freeze_all(commands, until=180, since=60)

    await node.run_until(at(180), worker.work)

    assert await states(store, job.id) == {at(180): "succeeded", at(240): "due"}
    assert await ranges(store, job.id) == [(at(60), at(120), 2, "freeze")]


async def test_a_freeze_that_is_ended_early_lets_the_next_occurrence_run(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60)
    freeze = await freeze_all(commands, until=10_000)
    await node.run_until(at(150), worker.work)

    await commands.freezes.end(freeze.id, Actor("ben", "done"))
    await node.run_until(at(181), worker.work)

    assert await states(store, job.id) == {at(180): "succeeded", at(240): "due"}
    assert await ranges(store, job.id) == [(at(60), at(120), 2, "freeze")]
    await check_promises(store)


async def test_a_scheduler_that_was_down_during_a_freeze_obeys_it(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """All nodes are down while it lasts; the misfire policy decides about what came after it."""
    job = await create(store, interval_seconds=60, misfire="all")
    await node.run_until(at(60), worker.work)
    await freeze_all(commands, until=240)

    clock.advance_to(at(361))
    await (await start_scheduler(store, takes=False)).tick()
    await node.run_until(at(363), worker.work)

    assert await ranges(store, job.id) == [(at(120), at(180), 2, "freeze")]
    assert await states(store, job.id) == {
        at(60): "succeeded",
        at(240): "succeeded",
        at(300): "succeeded",
        at(360): "succeeded",
        at(420): "due",
    }
    await check_promises(store)


async def test_a_job_that_is_edited_paused_or_deleted_in_a_freeze_owes_nothing_afterwards(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    edited, paused, deleted = [await create(store, interval_seconds=60) for _ in range(3)]
    await freeze_all(commands, until=330)
    await node.run_until(at(200), worker.work)

    await commands.jobs.update(edited.id, {"interval_seconds": 50})
    await commands.jobs.pause(paused.id)
    await commands.jobs.delete(deleted.id)
    await node.run_until(at(300), worker.work)
    await commands.jobs.resume(paused.id)
    await node.run_until(at(400), worker.work)

    for job in (edited, paused, deleted):
        assert [row for row in await table(store, "finished") if row["job_id"] == job.id and row["started_at"]] == [
            row
            for row in await table(store, "finished")
            if row["job_id"] == job.id and row["started_at"] and row["started_at"] >= at(330)
        ]
    await check_promises(store)


# what was asked for


async def freeze_scope(commands: Commands, scope: str, job_id: Any) -> Freeze:
    kind = FreezeScope(scope)
    target = {"queue": "billing", "tag": "money"}.get(scope)
    return await commands.freezes.add(
        kind, target, job_id if kind is FreezeScope.JOB else None, until=at(100), actor=ANA
    )


@pytest.mark.parametrize("scope", ["installation", "queue", "tag", "job"])
async def test_triggers_and_schedules_in_scope_wait_and_others_go_on(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands, scope: str
) -> None:
    inside = await create(store, queue="billing", tags=["money"], interval_seconds=30)
    outside = await create(store, queue="other", tags=["games"], interval_seconds=30)
    await freeze_scope(commands, scope, inside.id)
    held, free = [(await commands.executions.trigger(job.id)) for job in (inside, outside)]

    await node.run_until(at(99), worker.work)
    ended = {row["job_id"] for row in await table(store, "finished")}
    assert ended == (set() if scope == "installation" else {outside.id})
    (place,) = await tables_of(store, held)
    assert place == ("ready" if scope in ("installation", "queue") else "due")

    await node.run_until(at(121), worker.work)
    assert await tables_of(store, held) == await tables_of(store, free) == ["finished"]
    assert at(120) in await states(store, inside.id)
    await check_promises(store)


@pytest.mark.parametrize("scope", ["installation", "queue", "tag", "job"])
async def test_retries_wait_for_the_end_of_a_freeze(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands, scope: str
) -> None:
    job = await create(store, queue="billing", tags=["money"], initial_backoff_ms=5_000, max_backoff_ms=5_000)
    execution_id = await commands.executions.trigger(job.id)
    (claimed,) = await worker.claim()
    await record(store, [found(claimed, Failed(FAILURE))])
    await freeze_scope(commands, scope, job.id)

    await node.run_until(at(99), worker.work)
    assert await tables_of(store, execution_id) == ["due"]

    await node.run_until(at(101), worker.work)
    assert await tables_of(store, execution_id) == ["finished"]


@pytest.mark.parametrize("scope", ["installation", "queue", "tag", "job"])
async def test_what_was_enqueued_before_a_freeze_and_has_not_begun_waits(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands, scope: str
) -> None:
    execution_id = await enqueue(store, queue="billing", tags=("money",))
    (row,) = await table(store, "ready")
    await freeze_scope(commands, scope, row["job_id"])

    await node.run_until(at(99), worker.work)
    assert await table(store, "finished") == []

    await node.run_until(at(101), worker.work)
    assert await tables_of(store, execution_id) == ["finished"]
    await check_promises(store)


async def test_what_a_freeze_puts_back_is_as_it_was(store: Store, commands: Commands, worker: Hands) -> None:
    """Every column of the row goes with it, into `due` and back."""
    job = await create(store, start_within_seconds=500, priority=7, tags=["money"], unique_key="k")
    await commands.executions.trigger(job.id, payload='{"n": 1}', actor=ANA)
    (before,) = await table(store, "ready")
    freeze = await freeze_scope(commands, "tag", job.id)

    assert await worker.claim() == []
    (waiting,) = await table(store, "due")
    shared = before.keys() & waiting.keys() - {"run_at"}
    assert {name: waiting[name] for name in shared} == {name: before[name] for name in shared}
    assert (waiting["run_at"], waiting["frozen_run_at"]) == (freeze.until_at, before["run_at"])
    assert (waiting["kind"], waiting["shard"]) == ("put_back", job.shard)

    node = await start_scheduler(store)
    await node.run_until(at(100))
    (after,) = await table(store, "ready")
    assert {name: after[name] for name in before if name != "run_at"} == {
        name: before[name] for name in before if name != "run_at"
    }


async def test_a_trigger_of_a_paused_job_that_a_freeze_puts_back_runs_when_the_freeze_is_over(
    store: Store, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """A pause does not hold what is triggered or filled in during it, with or without a freeze."""
    job = await create(store, interval_seconds=60)
    await commands.jobs.pause(job.id, actor=ANA)
    triggered = await commands.executions.trigger(job.id, actor=ANA)
    filling = ExecutionRequest(id=filling_id(job.id, at(0)), job_id=job.id, origin=Origin.BACKFILL, scheduled_for=at(0))
    await store.jobs.request([filling], ANA.entry, "job.backfill")
    await freeze_job(commands, job, until=100)
    assert await worker.claim() == []

    queries = make_server_runtime(Settings(), store, commands).queries
    explanation = await queries.explain.execution(str(triggered))
    await node.run_until(at(101), worker.work)

    assert [gate.result.sentence for gate in explanation.gates if gate.name == "run_time"] == [
        "it was queued when a freeze began, and goes back to the queue at 12:01:40 UTC, in 1 min 40 s"
    ]
    assert [row["state"] for row in await table(store, "finished")] == ["succeeded", "succeeded"]


async def test_a_retry_of_a_paused_job_waits_for_its_resumption_behind_a_freeze_too(
    store: Store, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, initial_backoff_ms=1_000, max_backoff_ms=1_000)
    triggered = await commands.executions.trigger(job.id)
    (claimed,) = await worker.claim()
    await commands.jobs.pause(job.id, actor=ANA)
    await record(store, [found(claimed, Failed(FAILURE))])
    await freeze_job(commands, job, until=100)

    await node.run_until(at(150), worker.work)
    assert await tables_of(store, triggered) == ["due"]

    await commands.jobs.resume(job.id, ANA)
    await node.run_for(1, worker.work)
    assert await tables_of(store, triggered) == ["finished"]


async def test_what_a_freeze_puts_back_takes_the_place_of_no_occurrence_unless_it_is_one(
    store: Store, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """Under `latest`, the newest occurrence waits; what was triggered or filled in is no older or newer one of them."""
    job = await create(store, interval_seconds=60, overlap="latest")
    await node.run_until(at(10))
    await commands.executions.trigger(job.id)
    filling = ExecutionRequest(id=filling_id(job.id, at(0)), job_id=job.id, origin=Origin.BACKFILL, scheduled_for=at(0))
    await store.jobs.request([filling], ANA.entry, "job.backfill")
    await freeze_job(commands, job, until=100, afterwards=Afterwards.LATEST)
    for _ in range(2):
        assert await worker.claim() == []
        await store.executions.unblock([f"job:{job.id}"])
    put_back = [row["origin"] for row in await table(store, "due") if row["kind"] == "put_back"]

    await node.run_until(at(101))
    while claims := await worker.claim():
        await worker.succeed(claims)

    assert sorted(put_back) == ["backfill", "trigger"]
    assert sorted((row["origin"], row["scheduled_for"], row["state"]) for row in await table(store, "finished")) == [
        ("backfill", at(0), "succeeded"),
        ("schedule", at(60), "succeeded"),
        ("trigger", at(10), "succeeded"),
    ]


async def test_what_runs_goes_on_in_a_freeze(
    store: Store, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    execution_id = await enqueue(store)
    claims = await worker.claim()
    await freeze_all(commands, until=100)

    await worker.succeed(claims)

    assert await tables_of(store, execution_id) == ["finished"]


async def test_an_execution_by_its_id_or_its_ticket_is_not_claimed_in_a_freeze(
    store: Store, commands: Commands, worker: Hands
) -> None:
    ids = [await enqueue(store, queue=queue) for queue in ("billing", "other")]
    await commands.freezes.add(FreezeScope.QUEUE, "billing", until=at(100), actor=ANA)
    request = ClaimRequest(worker.incarnation, [HANDLER], slots=10, holds=0)

    by_id = await store.executions.claim_by_id(request, ids[0], None, ClaimId(store.env.new_id()))
    by_ticket = await store.tickets.claim(request, ids, None, ClaimId(store.env.new_id()))

    assert by_id == []
    assert [claimed.id for claimed in by_ticket.executions] == [ids[1]]
    assert await tables_of(store, ids[0]) == ["ready"]


async def test_an_execution_that_would_be_held_into_a_freeze_is_not_claimed(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """Its instant lies behind the beginning of the freeze: the worker would start it then."""
    execution_id = await enqueue(store, after=0.4)
    await freeze_all(commands, until=100, since=0.2)

    assert await worker.claim(holds=10) == []
    await node.run_until(at(101), worker.work)

    assert await tables_of(store, execution_id) == ["finished"]


async def test_a_freeze_that_is_ended_early_lets_go_of_what_waits(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """Two freezes hold it; it goes on when both are over."""
    job = await create(store, tags=["money"])
    long = await commands.freezes.add(FreezeScope.TAG, "money", until=at(1_000), actor=ANA)
    await commands.freezes.add(FreezeScope.JOB, None, job.id, until=at(50), actor=ANA)
    execution_id = await commands.executions.trigger(job.id)
    await worker.claim()
    await node.run_until(at(10), worker.work)
    (row,) = [row for row in await table(store, "due") if row["id"] == execution_id]
    assert row["run_at"] == at(1_000)

    await commands.freezes.end(long.id, ANA)
    await node.run_until(at(49), worker.work)
    (row,) = [row for row in await table(store, "due") if row["id"] == execution_id]
    assert row["run_at"] == at(50)

    await node.run_until(at(51), worker.work)
    assert await tables_of(store, execution_id) == ["finished"]
    await check_promises(store)


async def test_a_retry_that_a_freeze_holds_keeps_its_own_time_over_a_pause(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, initial_backoff_ms=60_000, max_backoff_ms=60_000)
    execution_id = await commands.executions.trigger(job.id)
    (claimed,) = await worker.claim()
    await record(store, [found(claimed, Failed(FAILURE))], chance=0.999999)
    freeze = await freeze_all(commands, until=1_000)
    await node.run_until(at(65), worker.work)

    await commands.jobs.pause(job.id)
    await commands.freezes.end(freeze.id)
    await commands.jobs.resume(job.id)
    await node.run_until(at(70), worker.work)

    assert await tables_of(store, execution_id) == ["finished"]


# the record of a freeze


async def test_the_creation_and_the_end_of_a_freeze_are_audited_once(
    store: Store, clock: VirtualClock, commands: Commands, env: Env
) -> None:
    from timeball.config.settings import HousekeepingSettings

    over = await freeze_all(commands, until=60)
    ended = await commands.freezes.add(FreezeScope.QUEUE, "mail", until=at(500), actor=ANA)
    await commands.freezes.end(ended.id, Actor("ben", "done"))
    clock.advance("61s")
    for _ in range(2):
        await Reaper(
            env,
            lambda _: None,
            store.nodes,
            store.executions,
            store.jobs,
            store.queues,
            HousekeepingSettings(),
            lambda: True,
        ).tick()

    entries = [
        (row["actor"], row["action"], row["subject"], row["reason"])
        for row in await table(store, "audit")
        if row["subject"].startswith("freeze:")
    ]
    assert sorted(entries) == sorted(
        [
            ("ana", "freeze.create", f"freeze:{over.id}", "release"),
            ("ana", "freeze.create", f"freeze:{ended.id}", "release"),
            ("ben", "freeze.end", f"freeze:{ended.id}", "done"),
            ("timeball", "freeze.end", f"freeze:{over.id}", "the end had come"),
        ]
    )
