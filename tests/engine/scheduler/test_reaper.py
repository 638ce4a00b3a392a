"""What the dead held gets an outcome, what they freed is handed on, and from every state there is a way out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from tests.engine.support import (
    IMMORTAL,
    MORTAL,
    Hands,
    Heard,
    ManualScheduler,
    check_promises,
    create,
    settle,
    start_scheduler,
    start_worker,
)
from tests.support.factories import (
    FAILURE,
    enqueue,
    found,
    make_node,
    only_row,
    read_job,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.config.settings import HousekeepingSettings
from timeball.domain.execution import CancelOutcome, ClaimedExecution, Failed, NotStarted, Outcome, Snoozed, Succeeded
from timeball.domain.job import Job
from timeball.domain.job_fields import JobSpec
from timeball.domain.lifecycle import AttemptFacts
from timeball.domain.policies import Delivery, Misfire, Overlap
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.executions import SUPERSEDED_REASON
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, OrphanedClaim
from timeball.telemetry.events import AttemptFailed, ExecutionsExpired, ExecutionsRescued, NodeExpired, OutcomeRefused
from timeball.testing import VirtualClock


@pytest.fixture
def commands(store: Store, env: Env) -> Commands:
    return Commands(store, env)


@pytest.fixture
def make_reaper(store: Store, env: Env, heard: Heard) -> Callable[[], Reaper]:
    """A housekeeper's reaper, whose next sweep is due."""

    def make() -> Reaper:
        return Reaper(
            env, heard, store.nodes, store.executions, store.jobs, store.queues, HousekeepingSettings(), lambda: True
        )

    return make


@pytest.fixture
async def doomed(store: Store) -> Hands:
    """A worker that will not renew its lease of ten seconds."""
    return await start_worker(store, MORTAL)


async def nodes(store: Store) -> set[UUID]:
    return {row["incarnation"] for row in await table(store, "node")}


# the dead


async def test_an_expired_node_is_removed_and_its_executions_are_ready_again(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    execution_id = await enqueue(store)
    (claimed,) = await doomed.claim()
    clock.advance("10001ms")

    await make_reaper().tick()

    assert heard.of(NodeExpired) == [NodeExpired(doomed.incarnation, "worker", "a node")]
    assert heard.of(ExecutionsRescued) == [ExecutionsRescued(lost=1, timed_out=0)]
    assert doomed.incarnation not in await nodes(store)
    row = await only_row(store, "ready")
    assert (row["id"], row["attempts"], row["lost"], row["fence"]) == (execution_id, 1, 1, 1)
    attempt = await only_row(store, "attempt")
    assert (attempt["outcome"], attempt["worker"], attempt["claim_id"]) == (
        "lost",
        doomed.incarnation,
        claimed.claim_id,
    )
    assert str(doomed.incarnation) in attempt["error"]
    await check_promises(store)


async def test_what_no_worker_claims_in_time_is_skipped(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    expiring, patient = await enqueue(store, start_within_seconds=5), await enqueue(store)
    clock.advance("5s")

    await make_reaper().tick()

    assert heard.of(ExecutionsExpired) == [ExecutionsExpired(1)]
    assert await tables_of(store, expiring) == ["finished"]
    assert await tables_of(store, patient) == ["ready"]
    await check_promises(store)


async def test_a_crowd_that_expired_is_swept_in_batches_without_a_rest(
    store: Store, commands: Commands, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    await commands.jobs.enqueue_many(JobSpec(handler="work", start_within_seconds=5), ["{}"] * 1_200)
    clock.advance("5s")
    reaper = make_reaper()

    rests = [await reaper.tick() for _ in range(3)]

    assert [event.count for event in heard.of(ExecutionsExpired)] == [500, 500, 200]
    assert [rest == timedelta(0) for rest in rests] == [True, True, False]


@pytest.mark.parametrize(("after", "waited"), [(0, 3), (0.4, 0)], ids=["due", "held"])
async def test_a_lost_attempt_started_at_its_claim_or_its_instant(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], after: float, waited: float
) -> None:
    """Its worker is gone at once: what it held has not come to its instant, and cannot have ended before that."""
    start = clock.now()
    await enqueue(store, after=after)
    clock.advance(waited)
    await (await start_worker(store)).claim(holds=1)
    async with store.database.transaction() as connection:
        await connection.execute("DELETE FROM timeball.node")

    await make_reaper().tick()

    attempt = await only_row(store, "attempt")
    assert attempt["started_at"] == attempt["finished_at"] == start + seconds(after + waited)


@pytest.mark.parametrize("is_orphan", [True, False])
async def test_nothing_ends_before_it_began_though_the_reapers_clock_is_behind(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], is_orphan: bool
) -> None:
    await enqueue(store)
    (claimed,) = await doomed.claim()
    claimed_at = clock.now() + seconds(1)

    attempt = make_reaper()._finished_attempt(OrphanedClaim(claimed, doomed.incarnation, claimed_at, is_orphan))

    assert attempt.started_at == attempt.finished_at == claimed_at


async def test_what_could_not_be_recorded_is_not_said_to_be_reaped(
    store: Store, env: Env, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    await enqueue(store)
    await doomed.claim()
    clock.advance("11s")
    cuts = ["record_transitions.before"]

    def cut(point: str) -> None:
        if point in cuts:
            cuts.remove(point)
            raise StoreUnavailable("the connection was cut")

    env.fault = cut
    reaper = make_reaper()

    with pytest.raises(StoreUnavailable):
        await reaper.tick()
    assert heard.of(ExecutionsRescued) == []

    await reaper.tick()
    assert heard.of(ExecutionsRescued) == [ExecutionsRescued(lost=1, timed_out=0)]


async def test_what_was_cancelled_is_not_run_again_though_its_worker_died_before_it_heard(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], commands: Commands
) -> None:
    execution_id = await enqueue(store)
    await doomed.claim()
    await commands.executions.cancel([execution_id])
    clock.advance("11s")

    await make_reaper().tick()

    row = await only_row(store, "finished")
    assert (row["id"], row["state"]) == (execution_id, "cancelled")
    assert (await only_row(store, "attempt"))["outcome"] == "lost"
    await check_promises(store)


@pytest.mark.parametrize(("word", "room"), [("pause", "due"), ("delete", "finished"), ("cancel", "finished")])
async def test_what_people_say_while_the_reaper_makes_up_its_mind_is_heeded(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard,
    commands: Commands, word: str, room: str,
) -> None:  # fmt: skip
    """It has read how things stand, and not written yet what follows: a run that is not wanted any more must not start."""
    execution_id = await enqueue(store)
    await doomed.claim()
    clock.advance("11s")
    original = store.executions.attempt_facts

    async def speak_behind(claims: Sequence[ClaimedExecution]) -> dict[ExecutionId, AttemptFacts]:
        store.executions.attempt_facts = original  # type: ignore[method-assign]
        read = await original(claims)
        await (
            commands.executions.cancel([execution_id])
            if word == "cancel"
            else getattr(commands.jobs, word)(JobId(execution_id))
        )
        return read

    store.executions.attempt_facts = speak_behind  # type: ignore[method-assign]
    await make_reaper().tick()

    assert await tables_of(store, execution_id) == [room]
    assert (await only_row(store, "attempt"))["outcome"] == "lost"
    assert (len(heard.of(AttemptFailed)), heard.of(OutcomeRefused)) == (1, [])
    await check_promises(store)


async def test_the_living_are_left_alone(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    await enqueue(store)
    await doomed.claim()
    clock.advance(MORTAL.span)
    assert await store.nodes.renew(doomed.incarnation, 0) is None, "in the very last moment it is too late to renew"

    await make_reaper().tick()

    assert heard == []
    assert len(await table(store, "running")) == 1


async def test_a_worker_that_renews_keeps_what_it_holds(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    await enqueue(store)
    await doomed.claim()

    for _ in range(5):
        clock.advance("9s")
        assert await store.nodes.renew(doomed.incarnation, 1) is not None
        await make_reaper().tick()

    assert heard == []


async def test_an_execution_of_an_unknown_holder_is_rescued(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    """Fault 7. The owner's row was deleted by hand: a missing row means dead."""
    await enqueue(store)
    await doomed.claim()
    async with store.database.transaction() as connection:
        await connection.execute("DELETE FROM timeball.node")

    await make_reaper().tick()

    assert heard.of(ExecutionsRescued) == [ExecutionsRescued(lost=1, timed_out=0)]
    assert len(await table(store, "ready")) == 1


async def test_a_claim_that_the_dead_commit_after_their_burial_is_found_by_the_next_sweep(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    await enqueue(store)
    clock.advance("11s")
    await make_reaper().tick()
    assert doomed.incarnation not in await nodes(store)

    await doomed.claim()
    await make_reaper().tick()

    assert heard.of(ExecutionsRescued) == [ExecutionsRescued(lost=1, timed_out=0)]


async def test_an_outcome_that_comes_after_the_reaper_is_refused(
    store: Store, env: Env, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    await enqueue(store)
    (claimed,) = await doomed.claim()
    clock.advance("11s")
    await make_reaper().tick()
    told = Heard()
    recorder = Recorder(env, told, store.executions)

    recorder.hand_over(found(claimed, Succeeded()))
    await settle(recorder)

    assert len(told.of(OutcomeRefused)) == 1
    assert len(await table(store, "ready")) == 1


async def test_an_outcome_that_was_quicker_than_the_reaper_stands(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], env: Env, heard: Heard
) -> None:
    """Between the burial and the reaping the worker's last word is still heard: its row still names the claim."""
    execution_id = await enqueue(store)
    (claimed,) = await doomed.claim()
    clock.advance("11s")
    reaper = make_reaper()
    orphans = store.executions.orphans

    async def too_late(limit: int) -> object:
        found_orphans = await orphans(limit)
        await doomed.succeed([claimed])
        return found_orphans

    store.executions.orphans = too_late  # type: ignore[method-assign, assignment]
    await reaper.tick()

    assert await tables_of(store, execution_id) == ["finished"]
    assert (await only_row(store, "finished"))["state"] == "succeeded"
    assert await table(store, "attempt") == []


async def test_what_kills_its_worker_again_and_again_ends_dead(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper]
) -> None:
    execution_id = await enqueue(store, max_lost=3, max_retries=0)
    for _ in range(3):
        victim = await start_worker(store, MORTAL)
        await victim.claim()
        clock.advance("11s")
        await make_reaper().tick()

    row = await only_row(store, "finished")
    assert (row["id"], row["state"], row["attempts"], row["lost"]) == (execution_id, "dead", 3, 3)
    assert [attempt["fence"] for attempt in await table(store, "attempt")] == [1, 2, 3]
    await check_promises(store)


async def test_at_most_once_is_not_run_again(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    await enqueue(store, delivery="at_most_once")
    await doomed.claim()
    clock.advance("11s")

    await make_reaper().tick()

    assert (await only_row(store, "finished"))["state"] == "dead"


async def test_many_orphans_are_reaped_in_batches_without_a_rest(
    store: Store,
    clock: VirtualClock,
    doomed: Hands,
    make_reaper: Callable[[], Reaper],
    heard: Heard,
    commands: Commands,
) -> None:
    await commands.jobs.enqueue_many(JobSpec(handler="tests:noop"), ["{}"] * 1_200)
    assert len(await doomed.claim(slots=2_000)) == 1_200
    clock.advance("11s")

    await settle(make_reaper())

    assert [event.lost for event in heard.of(ExecutionsRescued)] == [500, 500, 200]
    assert len(await table(store, "ready")) == 1_200


async def test_expired_schedulers_are_removed_too(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    dead = await start_scheduler(store, MORTAL)
    clock.advance("11s")

    await make_reaper().tick()

    assert [(event.incarnation, event.kind) for event in heard.of(NodeExpired)] == [(dead.incarnation, "scheduler")]


# deadlines


async def test_an_attempt_past_its_deadline_times_out_although_its_worker_is_alive(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    worker = await start_worker(store, IMMORTAL)
    await enqueue(store, timeout_ms=60_000)
    await worker.claim()

    clock.advance("65s")
    await make_reaper().tick()
    assert heard == [], "the worker has five seconds to end it by itself"

    clock.advance("1ms")
    await make_reaper().tick()
    assert heard.of(ExecutionsRescued) == [ExecutionsRescued(lost=0, timed_out=1)]
    row = await only_row(store, "due")
    assert (row["kind"], row["attempts"], row["lost"]) == ("retry", 1, 0)
    assert (await only_row(store, "attempt"))["outcome"] == "timed_out"


async def test_the_time_of_a_held_attempt_begins_at_its_instant(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    worker = await start_worker(store, IMMORTAL)
    await enqueue(store, after=0.4, timeout_ms=1)
    await worker.claim(holds=1)

    clock.advance("5.4s")
    await make_reaper().tick()

    assert heard == []


async def test_without_a_timeout_there_is_no_deadline(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], heard: Heard
) -> None:
    worker = await start_worker(store, IMMORTAL)
    await enqueue(store, timeout_ms=None)
    await worker.claim()
    clock.advance("900d")

    await make_reaper().tick()

    assert heard == []


# what was freed and not handed on


async def test_a_place_freed_by_a_node_that_died_is_passed_on(
    store: Store, env: Env, clock: VirtualClock, make_reaper: Callable[[], Reaper], commands: Commands
) -> None:
    """The finish was committed; its worker died before it could unblock."""
    worker = await start_worker(store, IMMORTAL)
    job = await create(store, max_running=1)
    ids = [await commands.executions.trigger(job.id) for _ in range(2)]
    (first,) = await worker.claim()

    def dies(point: str) -> None:
        if point == "finish_succeeded.after_commit":
            raise StoreUnavailable("dead")

    env.fault = dies
    with pytest.raises(StoreUnavailable):
        await worker.succeed([first])
    env.fault = lambda _: None
    assert await worker.claim() == []

    await make_reaper().tick()

    assert [claimed.id for claimed in await worker.claim()] == [ids[1]]


async def test_what_was_to_stop_for_the_next_occurrence_is_asked_though_its_scheduler_died(
    store: Store, env: Env, clock: VirtualClock, make_reaper: Callable[[], Reaper]
) -> None:
    """The promotion was committed; its scheduler died before it could ask."""
    scheduler, worker = await start_scheduler(store), await start_worker(store)
    await create(store, interval_seconds=60, overlap="cancel_running")
    await scheduler.run_for(60)
    (running,) = await worker.claim()

    def dies(point: str) -> None:
        if point == "request_stop_of_jobs.before":
            raise StoreUnavailable("dead")

    env.fault = dies
    with pytest.raises(StoreUnavailable):
        await scheduler.run_for(60)
    env.fault = lambda _: None
    assert await store.executions.stops(worker.incarnation) == {}

    await make_reaper().tick()

    assert await store.executions.stops(worker.incarnation) == {running.id: SUPERSEDED_REASON}


async def test_what_is_claimed_after_the_next_occurrence_was_due_is_asked_to_stop(
    store: Store, make_reaper: Callable[[], Reaper]
) -> None:
    """It was ready when the next one came, and ran nowhere."""
    scheduler, worker = await start_scheduler(store), await start_worker(store)
    await create(store, interval_seconds=60, overlap="cancel_running")
    await scheduler.run_for(120)
    (late,) = await worker.claim()

    await make_reaper().tick()

    assert await store.executions.stops(worker.incarnation) == {late.id: SUPERSEDED_REASON}


@pytest.mark.parametrize("waiting", ["an older one", "a trigger", "a queued one"])
async def test_nothing_else_that_waits_makes_what_runs_stop(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], commands: Commands, waiting: str
) -> None:
    scheduler, worker = await start_scheduler(store), await start_worker(store)
    overlap = "queue" if waiting == "a queued one" else "cancel_running"
    job = await create(store, interval_seconds=60, overlap=overlap, initial_backoff_ms=30_000, max_backoff_ms=30_000)
    await scheduler.run_for(60)
    (first,) = await worker.claim()
    if waiting == "an older one":
        # Its retry comes due while the next occurrence runs.
        await record(store, [found(first, Failed(FAILURE, retry_after=seconds(70)))])
        await scheduler.run_for(60)
        assert await worker.claim() != []
        await scheduler.run_for(30)
    elif waiting == "a trigger":
        await commands.executions.trigger(job.id)
    else:
        await scheduler.run_for(60)
    assert len(await table(store, "blocked")) == 1

    await make_reaper().tick()

    assert await store.executions.stops(worker.incarnation) == {}


async def test_limits_beyond_those_that_a_sweep_looks_at_have_their_turn_in_the_next(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeball.engine.scheduler.housekeeping._REAP_BATCH", 2)
    keys = ["a", "b", "c", "d", "e"]
    for key in keys:
        taken, _ = [await enqueue(store, max_running=1, limit_key=key) for _ in range(2)]
        if key > "b":
            await store.database.fetch("cancel_waiting", ids=[taken], reason="frees its place without passing it on")
    reaper = make_reaper()

    for _ in range(3):
        await reaper.tick()
        clock.advance("2s")

    assert {row["limit_key"] for row in await table(store, "ready")} == set(keys)
    assert {row["limit_key"] for row in await table(store, "blocked")} == {"a", "b"}, "these have no place yet"


async def test_a_lost_attempt_keeps_its_place_in_the_queue(
    store: Store, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper], commands: Commands
) -> None:
    job = await create(store, max_running=1)
    ids = [await commands.executions.trigger(job.id) for _ in range(2)]
    await doomed.claim()
    clock.advance("11s")

    await make_reaper().tick()

    worker = await start_worker(store, IMMORTAL)
    assert [claimed.id for claimed in await worker.claim()] == [ids[0]]
    await check_promises(store)


async def test_what_ran_before_its_queue_was_limited_is_counted(
    store: Store, clock: VirtualClock, make_reaper: Callable[[], Reaper]
) -> None:
    worker = await start_worker(store, IMMORTAL)
    await enqueue(store)
    await worker.claim()
    async with store.database.transaction() as connection:
        await connection.execute("INSERT INTO timeball.queue (name, max_running) VALUES ('default', 1)")

    await make_reaper().tick()

    assert (await only_row(store, "running"))["queue_limited"]


# queues whose pause is over


async def test_a_queue_is_resumed_when_its_pause_is_over(
    store: Store, clock: VirtualClock, commands: Commands, make_reaper: Callable[[], Reaper]
) -> None:
    begin = clock.now()
    await commands.queues.pause("q", Actor("ana", "the server moves"), begin + timedelta(seconds=60))
    clock.advance("59s")
    await make_reaper().tick()
    assert (await store.queues.find("q") or {})["paused_at"] == begin

    clock.advance("1s")
    await make_reaper().tick()
    await make_reaper().tick()

    queue = await store.queues.find("q")
    assert queue is not None
    assert {name: queue[name] for name in ("paused_at", "paused_until", "pause_reason")} == dict.fromkeys(
        ("paused_at", "paused_until", "pause_reason")
    )
    (_, entry) = await table(store, "audit")
    assert (entry["actor"], entry["action"], entry["subject"], entry["reason"]) == (
        "timeball",
        "queue.resume",
        "queue:q",
        "the end had come",
    )
    (interval,) = await store.queues.intervals("q", begin, clock.now())
    assert (interval.actor, interval.since, interval.until) == ("ana", begin, clock.now())


async def test_a_pause_that_was_made_longer_is_not_over(
    store: Store, clock: VirtualClock, commands: Commands, make_reaper: Callable[[], Reaper]
) -> None:
    await commands.queues.pause("q", until=clock.now() + timedelta(seconds=60))
    await commands.queues.pause("q", until=clock.now() + timedelta(seconds=120))
    clock.advance("61s")

    await make_reaper().tick()

    assert (await store.queues.find("q") or {})["paused_at"] is not None


async def test_a_limit_stays_when_the_pause_of_its_queue_is_over(
    store: Store, clock: VirtualClock, commands: Commands, make_reaper: Callable[[], Reaper]
) -> None:
    await commands.queues.limit("q", 3)
    await commands.queues.pause("q", until=clock.now() + timedelta(seconds=60))
    clock.advance("61s")

    await make_reaper().tick()

    assert (await store.queues.find("q") or {})["max_running"] == 3


# jobs that fail


async def end_all(store: Store, worker: Hands, outcome: Outcome) -> None:
    claims = await worker.claim()
    assert claims
    await record(store, [found(claimed, outcome) for claimed in claims])


DEADLY = Failed(FAILURE, is_retryable=False)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


async def run_and_end(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands, job: Job, outcome: Outcome
) -> None:
    clock.advance("1s")
    await commands.executions.trigger(job.id)
    await end_all(store, worker, outcome)


async def test_a_job_is_paused_after_so_many_dead_executions_in_a_row(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    job = await create(store, interval_seconds=3600, pause_after_failures=3)
    for outcome in (DEADLY, DEADLY, Succeeded(), DEADLY, DEADLY):
        await run_and_end(store, clock, commands, worker, job, outcome)
        await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is None, "a success came between"

    await run_and_end(store, clock, commands, worker, job, DEADLY)
    await make_reaper().tick()
    await make_reaper().tick()

    paused = await read_job(store, job.id)
    assert (paused.paused_at, paused.pause_reason) == (clock.now(), "3 executions in a row ended dead")
    entries = [
        (row["actor"], row["action"], row["reason"])
        for row in await table(store, "audit")
        if row["subject"] == f"job:{job.id}" and row["action"] == "job.pause"
    ]
    assert entries == [("timeball", "job.pause", "3 executions in a row ended dead")]
    assert await table(store, "failing_job") == []


async def test_a_job_is_not_paused_for_errors_that_its_handler_expects(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    job = await create(store, interval_seconds=3600, pause_after_failures=2)
    for _ in range(3):
        await run_and_end(store, clock, commands, worker, job, replace(DEADLY, is_expected=True))
    assert await table(store, "failing_job") == []

    for outcome in (DEADLY, replace(DEADLY, is_expected=True), DEADLY):
        await run_and_end(store, clock, commands, worker, job, outcome)
        await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is None, "an expected one came between"

    await run_and_end(store, clock, commands, worker, job, DEADLY)
    await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is not None


async def test_a_resumption_begins_the_count_of_failures_anew(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    job = await create(store, interval_seconds=3600, pause_after_failures=2)
    for _ in range(2):
        await run_and_end(store, clock, commands, worker, job, DEADLY)
    await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is not None
    clock.advance("10s")
    await commands.jobs.resume(job.id)

    await run_and_end(store, clock, commands, worker, job, DEADLY)
    await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is None

    await run_and_end(store, clock, commands, worker, job, DEADLY)
    await make_reaper().tick()
    assert (await read_job(store, job.id)).paused_at is not None


async def test_a_failure_that_will_be_tried_again_and_a_job_without_the_field_do_not_count(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands
) -> None:
    patient = await create(store, interval_seconds=3600, pause_after_failures=1)
    other = await create(store, interval_seconds=3600)
    await run_and_end(store, clock, commands, worker, patient, Failed(FAILURE))
    await run_and_end(store, clock, commands, worker, other, DEADLY)

    assert await table(store, "failing_job") == []


# whose business it is


async def test_only_the_housekeeper_reaps(
    store: Store, env: Env, clock: VirtualClock, doomed: Hands, heard: Heard
) -> None:
    is_housekeeper = False
    reaper = Reaper(
        env,
        heard,
        store.nodes,
        store.executions,
        store.jobs,
        store.queues,
        HousekeepingSettings(),
        lambda: is_housekeeper,
    )
    clock.advance("11s")
    await reaper.tick()
    assert heard == []

    is_housekeeper = True
    await reaper.tick()
    assert len(heard) == 1


async def test_waking_does_not_sweep_more_often(store: Store, env: Env, clock: VirtualClock, heard: Heard) -> None:
    reaper = Reaper(
        env,
        heard,
        store.nodes,
        store.executions,
        store.jobs,
        store.queues,
        HousekeepingSettings(reap_seconds=2),
        lambda: True,
    )
    await reaper.tick()
    sweeps: list[str] = []
    env.fault = lambda point: sweeps.append(point) if point == "remove_expired_nodes.before" else None

    for _ in range(5):
        assert await reaper.tick() == timedelta(seconds=2)
        clock.advance("390ms")
    assert sweeps == []

    clock.advance("390ms")
    await reaper.tick()
    assert len(sweeps) == 1


async def test_a_housekeeper_that_dies_in_the_middle_is_made_up_for(
    store: Store, env: Env, clock: VirtualClock, doomed: Hands, make_reaper: Callable[[], Reaper]
) -> None:
    """Fault 38. The node is removed, what it held is not rescued: the next housekeeper does not find the node's row either."""
    await enqueue(store)
    await doomed.claim()
    clock.advance("11s")

    def dies(point: str) -> None:
        if point == "reaper.expired":
            raise StoreUnavailable("dead")

    env.fault = dies
    with pytest.raises(StoreUnavailable):
        await make_reaper().tick()
    env.fault = lambda _: None
    assert await nodes(store) == set()

    await make_reaper().tick()

    assert len(await table(store, "ready")) == 1


# every state


async def live_a_little(
    store: Store, node: ManualScheduler, worker: Hands, commands: Commands, chance: random.Random
) -> None:
    """Jobs of all kinds in all states; in the end all nodes are dead."""
    clock = node.clock
    overlaps, misfires = [*Overlap], [*Misfire]
    for number in range(16):
        await create(
            store,
            interval_seconds=chance.choice([2, 3, 7]),
            ends_at=clock.now() + timedelta(minutes=2),
            overlap=overlaps[number % len(overlaps)],
            misfire=chance.choice(misfires),
            jitter_seconds=chance.choice([0, 2]),
            max_executions=chance.choice([None, 9]),
            unique_key=f"key-{number % 5}" if number % 3 == 0 else None,
            max_running=chance.choice([None, 2]) if overlaps[number % len(overlaps)] is Overlap.ALLOW else None,
            delivery=chance.choice(list(Delivery)),
            timeout_ms=chance.choice([None, 20_000]),
            max_lost=chance.choice([1, 3]),
            max_retries=chance.choice([0, 3]),
        )
    limited = await create(store, max_running=2)
    await create(store, scheduled_at=clock.now() + seconds(9))
    await commands.queues.limit("narrow", 2)
    jobs = [row["id"] for row in await table(store, "job")]
    for _ in range(12):
        await enqueue(store, after=chance.choice([0, 0.4, 30]), queue=chance.choice(["default", "narrow"]))
        await commands.executions.trigger(limited.id)
        await node.run_for(chance.choice([0.3, 1, 3]))
        for claimed in await worker.claim(slots=9, holds=9):
            await take_somewhere(store, claimed, chance)
        job_id = chance.choice(jobs)
        match chance.randrange(6):
            case 0:
                await commands.jobs.pause(job_id, clock.now() + seconds(chance.choice([1, 40])))
            case 1:
                await commands.jobs.resume(job_id)
            case 2:
                await commands.jobs.update(job_id, {"priority": chance.randrange(100)})
            case 3:
                waiting = [ExecutionId(row["id"]) for row in await table(store, "running")]
                await commands.executions.cancel(waiting[:2])


async def take_somewhere(store: Store, claimed: ClaimedExecution, chance: random.Random) -> None:
    """One of the outcomes an attempt can have, or none at all."""
    outcomes: list[Outcome | None] = [
        None,
        None,
        None,
        Succeeded(),
        Failed(FAILURE),
        Snoozed(seconds(5)),
        CancelOutcome("enough"),
        NotStarted("paused"),
    ]
    outcome, now = chance.choice(outcomes), store.env.clock.now()
    if outcome is not None and claimed.run_at <= now:
        # What is called off has not been started.
        started_at = None if isinstance(outcome, NotStarted) else now
        await record(store, [found(claimed, outcome, started_at=started_at, finished_at=now)], chance.random())


@pytest.mark.parametrize("seed", range(3))
async def test_every_state_is_left_after_all_nodes_died(
    store: Store, clock: VirtualClock, commands: Commands, make_reaper: Callable[[], Reaper], seed: int
) -> None:
    """Fault 39."""
    chance = random.Random(seed)
    await live_a_little(
        store, await start_scheduler(store, MORTAL), await start_worker(store, MORTAL), commands, chance
    )
    executions = {name for name in ("due", "ready", "blocked", "running") if await table(store, name)}
    assert executions == {"due", "ready", "blocked", "running"}, "there was something in every room"
    for row in await table(store, "job"):
        await commands.jobs.resume(row["id"])
    clock.advance("60s")

    # Housekeeping alone: whatever can be run is ready, the rest has ended or waits for a time or for those.
    node, reaper = await start_scheduler(store), make_reaper()

    async def keep_house() -> None:
        await settle(reaper)

    await node.run_for(3 * 3600, keep_house)
    assert await table(store, "running") == []
    assert await table(store, "due") == []
    ready = {row["limit_key"] for row in await table(store, "ready")}
    assert {row["limit_key"] for row in await table(store, "blocked")} <= ready

    # With a worker everything comes to its end.
    worker = await start_worker(store)

    async def work() -> None:
        for queue in ("narrow", "default"):
            await work_off_limited(store, worker, queue)
        await worker.work()
        await settle(reaper)

    await node.run_for(3600, work)
    for _ in range(60):
        await work()
    assert [await table(store, name) for name in ("due", "ready", "blocked", "running", "live_key")] == [[]] * 5
    await check_promises(store)


async def work_off_limited(store: Store, worker: Hands, queue: str) -> None:
    lanes = {lane: at for lane, (at, _) in (await store.executions.lanes()).items() if lane[0] == queue}
    request = ClaimRequest(worker.incarnation, ["tests:noop"], 100, 0)
    claims = await store.executions.claim_limited(request, queue, lanes, ClaimId(store.env.new_id()))
    await worker.succeed(claims.executions)


async def test_a_dead_node_does_not_keep_its_name(store: Store, clock: VirtualClock, doomed: Hands) -> None:
    """Names are for people: a restarted process of the same name is another node."""
    await enqueue(store)
    await doomed.claim()

    again = await make_node(store)

    assert again != doomed.incarnation
    assert {row["name"] for row in await table(store, "node")} == {"a node"}
    assert (await only_row(store, "running"))["holder"] == doomed.incarnation
