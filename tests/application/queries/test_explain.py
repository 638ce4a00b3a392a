"""Each gate has a real situation in which it alone is closed, and one in which it is open."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.factories import (
    FAILURE,
    FROM_THE_FIRST,
    HANDLER,
    claim_all,
    due_row,
    due_rows,
    enqueue,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    plan_row,
    promote,
    put_row,
    record,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.domain.execution import Failed, Snoozed
from timeball.domain.explain.explanation import GATES, Explanation
from timeball.domain.explain.facts import GateVerdict
from timeball.domain.node import Lease, NodeKind
from timeball.domain.policies import Overlap
from timeball.domain.values.ids import ClaimId, ExecutionId, format_execution_id
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ShardOwnership
from timeball.testing import VirtualClock

ANA = Actor("ana")


def stopped(explanation: Explanation) -> list[str]:
    return [gate.name for gate in explanation.gates if gate.is_stopped]


def said(explanation: Explanation, name: str) -> str:
    (gate,) = [gate for gate in explanation.gates if gate.name == name]
    return f"{gate.result.verdict}: {gate.result.sentence}"


LONG_LEASE = Lease(span=timedelta(hours=1), interval=timedelta(minutes=1))


async def make_machinery(store: Store, **worker: object) -> ShardOwnership:
    """A scheduler that owns every shard, and a worker that knows the handler; both live long."""
    await make_node(store, **{"slots": 2, "handlers": (HANDLER,), "name": "web-1", "lease": LONG_LEASE} | worker)
    scheduler = await make_node(store, NodeKind.SCHEDULER, lease=LONG_LEASE)
    return ShardOwnership(scheduler, await store.nodes.take_shards(scheduler, range(store.shards)))


async def promoted(store: Store, owner: ShardOwnership, execution_id: ExecutionId, *, is_busy: bool = False) -> None:
    (row,) = [row for row in await due_rows(store) if row.id == execution_id]
    assert await promote(store, [await plan_row(store, row, is_busy=is_busy)], owner)


async def test_every_gate_is_open(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_machinery(store)
    first, second = await enqueue(store), await enqueue(store)

    explanation = await queries.explain.execution(str(second))

    assert [gate.name for gate in explanation.gates] == [name for name, _, _ in GATES]
    assert stopped(explanation) == []
    assert explanation.headline == "ABOUT TO START: every gate is open. It is 1st in line of «default»."
    assert said(explanation, "slots") == "passed: 2 of 2 slots are free on web-1"
    assert said(explanation, "worker_for_queue") == "passed: 1 worker serves «default»"
    assert said(explanation, "worker_for_handler") == f"passed: 1 worker knows {HANDLER}"
    assert said(explanation, "rate").startswith("not_asked: no limit")
    assert said(explanation, "unique_key") == "passed: it has no unique key"
    assert (await queries.explain.execution(str(first))).stopped_by is None


async def test_enabled(store: Store, queries: Queries, commands: Commands) -> None:
    await make_machinery(store)
    job = await make_recurring(store, name="nightly")
    assert said(await queries.explain.job("nightly"), "enabled") == "passed: the job is active"

    await commands.jobs.pause(job.id, None, Actor("ana", "maintenance"))
    explanation = await queries.explain.job("nightly")

    assert stopped(explanation) == ["enabled"]
    assert explanation.headline.startswith("NOT RUNNING: the job has been paused since 12:00:00 UTC: maintenance.")
    assert explanation.stopped_by is not None
    assert explanation.stopped_by.result.advice == "timeball jobs resume nightly"


async def test_enabled_stops_parked_executions(store: Store, queries: Queries, commands: Commands) -> None:
    await make_machinery(store)
    job = await make_job(store, name="by-hand")
    execution = await commands.executions.trigger(job.id, None, ANA)
    await commands.jobs.pause(job.id, None, ANA)

    explanation = await queries.explain.execution(str(execution))

    assert stopped(explanation) == ["enabled", "run_time"]
    assert explanation.likely_start is None


async def test_due(store: Store, queries: Queries, clock: VirtualClock) -> None:
    owner = await make_machinery(store)
    await make_job(store, name="by-hand")
    once = await make_job(store, name="once", scheduled_at=clock.now() + timedelta(seconds=1))
    await promoted_and_ended(store, owner, clock, (await due_row(store, once.id)).id)

    by_hand, over = await queries.explain.job("by-hand"), await queries.explain.job("once")

    assert stopped(by_hand) == ["due"]
    assert "only when it is triggered" in by_hand.headline
    assert stopped(over) == ["due"]
    assert "nothing left: Once, at 2026-03-02T12:00:01Z" in over.headline


async def test_due_of_a_job_that_comes_after_another(store: Store, queries: Queries, commands: Commands) -> None:
    await make_machinery(store)
    etl = await make_recurring(store, name="etl")
    await make_job(store, name="figures", after="etl")

    waiting = await queries.explain.job("figures")
    await commands.jobs.delete(etl.id, ANA)
    forgotten = await queries.explain.job("figures")

    assert stopped(waiting) == stopped(forgotten) == ["due"]
    assert "runs after each success of etl, and waits for the next one" in waiting.headline
    assert waiting.stopped_by is not None
    assert waiting.stopped_by.result.command == "timeball why etl"
    assert "the job that it came after, etl, is deleted" in forgotten.headline


async def promoted_and_ended(store: Store, owner: ShardOwnership, clock: VirtualClock, execution: ExecutionId) -> None:
    clock.advance("1s")
    await promoted(store, owner, execution)
    await record(store, [found(claimed) for claimed in await claim_all(store)])


@pytest.mark.parametrize(("policy", "verdict"), [("skip", "stopped"), ("latest", "passed"), ("all", "passed")])
async def test_late_policy(store: Store, queries: Queries, clock: VirtualClock, policy: str, verdict: str) -> None:
    job = await make_recurring(store, every=3600, misfire=policy)
    row = await due_row(store, job.id)
    clock.advance("1h10m")
    await make_machinery(store)

    explanation = await queries.explain.execution(str(row.id))

    assert said(explanation, "late_policy").startswith(f"{verdict}: it is 10 min late, past its grace of 30 s")
    # Whoever is late by so much also shows that no scheduler has looked.
    assert stopped(explanation) == (["late_policy"] if verdict == "stopped" else []) + ["scheduler"]


async def test_expiry(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_machinery(store)
    patient, expiring = await enqueue(store), await enqueue(store, start_within_seconds=180)

    assert said(await queries.explain.execution(str(patient)), "expiry") == "passed: it does not expire"
    in_time = await queries.explain.execution(str(expiring))
    assert said(in_time, "expiry").startswith("passed: it expires in 3 min, at ")

    clock.advance("181s")
    too_late = await queries.explain.execution(str(expiring))
    assert stopped(too_late)[0] == "expiry"
    assert "and will be recorded as skipped" in said(too_late, "expiry")

    await store.executions.expire_waiting(10)
    skipped = await queries.explain.execution(str(expiring))
    assert stopped(skipped) == ["expiry"]
    assert skipped.headline.startswith("ENDED: skipped, because it had not begun by 12:03:00 UTC, when it expired")


async def test_overlap_that_is_skipped(store: Store, queries: Queries, clock: VirtualClock) -> None:
    owner = await make_machinery(store)
    job = await make_recurring(store, every=60)
    first = (await due_row(store, job.id)).id
    clock.advance("60s")
    await promoted(store, owner, first)
    second = (await due_row(store, job.id)).id
    before = await queries.explain.execution(str(second))
    clock.advance("61s")

    explanation = await queries.explain.execution(str(second))

    assert stopped(before) == ["run_time"]
    assert "if it still is when the time comes" in said(before, "overlap")
    assert stopped(explanation) == ["overlap"]
    assert explanation.stopped_by is not None
    assert explanation.stopped_by.result.links == (format_execution_id(first),)


async def test_overlap_that_queues(store: Store, queries: Queries, clock: VirtualClock) -> None:
    owner = await make_machinery(store)
    job = await make_recurring(store, every=60, overlap="queue")
    first = (await due_row(store, job.id)).id
    clock.advance("60s")
    await promoted(store, owner, first)
    await store.executions.unblock([f"job:{job.id}"])
    await claim_all(store)
    clock.advance("60s")
    second = (await due_row(store, job.id)).id
    await promoted(store, owner, second, is_busy=True)

    explanation = await queries.explain.execution(str(second))

    assert stopped(explanation) == ["overlap"]
    assert "one after the other" in explanation.headline
    allowed = await make_recurring(store, every=60, overlap="allow")
    assert "passed" in said(await queries.explain.job(str(allowed.id)), "overlap")


@pytest.mark.parametrize("overlap", Overlap)
async def test_each_overlap_policy_is_explained(
    store: Store, queries: Queries, clock: VirtualClock, overlap: Overlap
) -> None:
    owner = await make_machinery(store)
    job = await make_recurring(store, every=60, overlap=overlap)
    first = (await due_row(store, job.id)).id
    clock.advance("60s")
    await promoted(store, owner, first)
    clock.advance("61s")

    explanation = await queries.explain.execution(str((await due_row(store, job.id)).id))

    assert said(explanation, "overlap").startswith(
        {
            Overlap.SKIP: "stopped: ",
            Overlap.ALLOW: "passed: overlap is allowed",
            Overlap.QUEUE: "passed: an earlier execution is unfinished, ",
            Overlap.CANCEL_RUNNING: "passed: an earlier execution is unfinished, ",
            Overlap.LATEST: "passed: an earlier execution is unfinished, ",
        }[overlap]
    )


async def test_unique_key(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_machinery(store)
    job = await make_recurring(store, every=3600, unique_key="crm")
    holder = await enqueue(store, unique_key="crm")

    waiting, holding = await queries.explain.job(str(job.id)), await queries.explain.execution(str(holder))

    assert stopped(waiting) == ["unique_key", "run_time"]
    assert waiting.stopped_by is not None
    assert waiting.stopped_by.result.links == (format_execution_id(holder),)
    assert said(holding, "unique_key") == "passed: no other execution holds its key «crm»"


async def test_run_time(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_machinery(store)
    execution = await enqueue(store, after=3 * 3600)

    explanation = await queries.explain.execution(str(execution))

    assert stopped(explanation) == ["run_time"]
    assert explanation.headline == "NOT STARTED: it is due at 15:00:00 UTC, in 3 h."
    assert explanation.likely_start is not None
    assert explanation.likely_start.at == clock.now() + timedelta(hours=3)


async def test_run_time_of_a_retry_and_of_a_snooze(store: Store, queries: Queries) -> None:
    await make_machinery(store)
    failing, snoozing = await enqueue(store, max_retries=2), await enqueue(store)
    claimed = {each.id: each for each in await claim_all(store)}
    await record(store, [found(claimed[failing], Failed(FAILURE))])
    await record(store, [found(claimed[snoozing], Snoozed(timedelta(minutes=5)))])

    retrying, snoozed = [await queries.explain.execution(str(one)) for one in (failing, snoozing)]

    assert stopped(retrying) == ["run_time"]
    assert "attempt 1 of 3 failed; the next one is at" in retrying.headline
    assert stopped(snoozed) == ["run_time"]
    assert "its handler asked to be run again" in snoozed.headline


async def test_run_time_of_a_held_execution(store: Store, queries: Queries, clock: VirtualClock) -> None:
    worker = await make_node(store, slots=2, handlers=(HANDLER,), name="web-7")
    execution = await enqueue(store, after=0.3)
    await claim_all(store, worker=worker, holds=5)

    held = await queries.explain.execution(str(execution))
    clock.advance("1s")
    running = await queries.explain.execution(str(execution))

    assert stopped(held) == ["run_time"]
    assert "web-7 holds it for its instant" in held.headline
    assert running.headline.startswith("RUNNING since 12:00:00 UTC (700 ms) on web-7.")
    assert {gate.result.verdict for gate in running.gates} == {GateVerdict.NOT_ASKED}


async def test_queue_open(store: Store, queries: Queries, commands: Commands) -> None:
    await make_machinery(store)
    execution = await enqueue(store, queue="mail")
    assert said(await queries.explain.execution(str(execution)), "queue_open") == "passed: queue «mail» is open"

    await commands.queues.pause("mail", Actor("ana", "provider is down"))
    explanation = await queries.explain.execution(str(execution))

    assert stopped(explanation) == ["queue_open"]
    assert "queue «mail» has been paused since 12:00:00 UTC: provider is down" in explanation.headline
    assert explanation.stopped_by is not None
    assert explanation.stopped_by.result.advice == "timeball queues resume mail"


async def test_worker_for_queue(store: Store, queries: Queries, clock: VirtualClock) -> None:
    execution = await enqueue(store, queue="reports")
    nobody = await queries.explain.execution(str(execution))
    await make_machinery(store, queues=("mail",))
    others = await queries.explain.execution(str(execution))
    mine = await make_node(store, slots=1, handlers=(HANDLER,), queues=("reports",))
    somebody = await queries.explain.execution(str(execution))
    await store.nodes.drain(mine)
    leaving = await queries.explain.execution(str(execution))

    assert stopped(nobody) == ["worker_for_queue"]
    assert "no worker is alive" in nobody.headline
    assert stopped(others) == ["worker_for_queue"]
    assert "1 worker is alive, none serves queue «reports»" in others.headline
    assert stopped(somebody) == []
    assert stopped(leaving) == ["worker_for_queue"]


async def test_a_worker_whose_lease_has_run_out_serves_nothing(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    await make_machinery(store)
    execution = await enqueue(store)
    clock.advance("61m")

    assert stopped(await queries.explain.execution(str(execution))) == ["worker_for_queue"]


async def test_worker_for_handler(store: Store, queries: Queries) -> None:
    await make_machinery(store)
    execution = await enqueue(store, handler="app.old:sync")

    explanation = await queries.explain.execution(str(execution))

    assert stopped(explanation) == ["worker_for_handler"]
    assert "the only worker of queue «default» does not know the handler app.old:sync" in explanation.headline


async def test_slots_of_the_queue(store: Store, queries: Queries, commands: Commands, clock: VirtualClock) -> None:
    await make_machinery(store)
    await commands.queues.limit("crm", 1, ANA)
    runner = await make_job(store, name="mirror", queue="crm")
    await usually_takes(store, runner.id, 180)
    holder = await commands.executions.trigger(runner.id, None, ANA)
    await claim_limited(store, "crm")
    waiting = await enqueue(store, queue="crm")
    clock.advance("60s")

    explanation = await queries.explain.execution(str(waiting))

    assert stopped(explanation) == ["slots"]
    assert explanation.headline.startswith(
        f"NOT STARTED: queue «crm» allows 1 at once and its one place is taken: {format_execution_id(holder)} (1 min, usually 3 min)."
    )
    assert explanation.headline.endswith("Likely start 12:03:00 UTC.")
    assert explanation.likely_start is not None
    await commands.queues.limit("crm", 2, ANA)
    assert stopped(await queries.explain.execution(str(waiting))) == []


async def usually_takes(store: Store, job_id: object, seconds: int) -> None:
    now = store.env.clock.now()
    for number in range(5):
        await put_row(
            store,
            "finished",
            id=store.env.new_id(),
            job_id=job_id,
            state="succeeded",
            origin="trigger",
            version=1,
            queue="crm",
            priority=50,
            handler=HANDLER,
            scheduled_for=now,
            started_at=now - timedelta(days=number + 1),
            finished_at=now - timedelta(days=number + 1) + timedelta(seconds=seconds),
            attempts=1,
            lost=0,
            fence=1,
        )


async def claim_limited(store: Store, queue: str) -> None:
    worker = await make_node(store, slots=5, handlers=(HANDLER,), queues=("elsewhere",))
    wish = ClaimRequest(worker, [HANDLER], 5, 0)
    await store.executions.claim_limited(wish, queue, {(queue, 50): FROM_THE_FIRST}, ClaimId(store.env.new_id()))


async def test_slots_of_the_job(store: Store, queries: Queries, commands: Commands) -> None:
    await make_machinery(store)
    job = await make_job(store, max_running=1)
    first, second = [await commands.executions.trigger(job.id, None, ANA) for _ in range(2)]
    await claim_all(store)

    explanation = await queries.explain.execution(str(second))

    assert stopped(explanation) == ["slots"]
    assert "the job allows 1 at once and its one place is taken" in explanation.headline
    assert explanation.stopped_by is not None
    assert explanation.stopped_by.result.links == (format_execution_id(first),)
    assert explanation.likely_start is None


async def test_slots_of_a_key(store: Store, queries: Queries) -> None:
    await make_machinery(store)
    await enqueue(store, limit_key="tenant-7", max_running=1)
    second = await enqueue(store, limit_key="tenant-7", max_running=1)

    explanation = await queries.explain.execution(str(second))

    assert stopped(explanation) == ["slots"]
    assert "the key «tenant-7» allows 1 at once" in explanation.headline


async def test_slots_of_the_workers(store: Store, queries: Queries) -> None:
    worker = await make_node(store, slots=1, handlers=(HANDLER,), name="web-1")
    first = await enqueue(store)
    await claim_all(store, worker=worker)
    await store.nodes.renew(worker, busy=1)
    second, third = await enqueue(store, after=-1), await enqueue(store)

    explanation = await queries.explain.execution(str(third))

    assert stopped(explanation) == ["slots"]
    assert f"the one slot of web-1 is taken: {format_execution_id(first)}" in explanation.headline
    assert said(explanation, "place_in_line") == "passed: it is 2nd in line of «default»"
    assert said(await queries.explain.execution(str(second)), "place_in_line").startswith("passed: it is 1st")


async def test_the_place_in_line_follows_the_rank(store: Store, queries: Queries) -> None:
    await make_machinery(store)
    low = await enqueue(store, after=-10, priority=25)
    for _ in range(3):
        await enqueue(store, priority=75)
    await enqueue(store, priority=0)

    assert "4th in line" in said(await queries.explain.execution(str(low)), "place_in_line")


async def test_scheduler(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_node(store, slots=2, handlers=(HANDLER,))
    job = await make_recurring(store, every=3600)
    nobody = await queries.explain.job(str(job.id))
    await make_node(store, NodeKind.SCHEDULER)
    idle = await queries.explain.job(str(job.id))
    await make_owner(store)
    at_work = await queries.explain.job(str(job.id))

    assert stopped(nobody) == ["run_time", "scheduler"]
    assert "Also: no scheduler is alive" in nobody.headline
    assert stopped(idle) == ["run_time", "scheduler"]
    assert f"shard {job.shard} has no scheduler" in said(idle, "scheduler")
    assert stopped(at_work) == ["run_time"]


async def test_ended_executions(store: Store, queries: Queries, clock: VirtualClock) -> None:
    owner = await make_machinery(store)
    good, bad = await enqueue(store), await enqueue(store, max_retries=0)
    claimed = {each.id: each for each in await claim_all(store)}
    await record(store, [found(claimed[good]), found(claimed[bad], Failed(FAILURE))])
    job = await make_recurring(store, every=60)
    clock.advance("60s")
    occurrence = (await due_row(store, job.id)).id
    skipped_plan = await plan_row(store, await due_row(store, job.id), is_busy=True)
    await promote(store, [skipped_plan], owner)

    succeeded, dead, skipped = [await queries.explain.execution(str(one)) for one in (good, bad, occurrence)]

    assert succeeded.headline == "ENDED: succeeded at 12:00:02 UTC after 1 s, started 1 s after its time."
    assert dead.headline == "ENDED: dead at 12:00:02 UTC after 1 attempt: ValueError: no."
    assert stopped(skipped) == ["overlap"]
    assert skipped.headline.startswith("ENDED: skipped, because an earlier execution was unfinished")
    # The record keeps the reason, not the policy, which may have been changed since.
    assert said(skipped, "overlap").endswith("the overlap policy of the job skips an occurrence then")
    assert said(skipped, "enabled") == "passed: it passed this gate"
    assert said(skipped, "run_time").startswith("not_asked")
