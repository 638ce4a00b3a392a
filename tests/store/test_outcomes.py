"""From running to the table of the outcome, only while the row still names the claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import pytest

from tests.support.factories import (
    FAILURE,
    claim_all,
    enqueue,
    found,
    make_job,
    make_node,
    only_row,
    put_row,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.domain.execution import (
    CancelOutcome,
    ClaimedExecution,
    ErrorInfo,
    ExecutionState,
    Failed,
    FinishedAttempt,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.job import Job
from timeball.domain.lifecycle import AttemptFacts, Decision, Finish, Requeue
from timeball.domain.policies import Delivery, RetryPolicy
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.store.store import Store
from timeball.testing import VirtualClock

ENDED = ExecutionId(UUID(int=0xEE))
STANDING = AttemptFacts(attempts=4, lost=2, retry=RetryPolicy())


@dataclass(frozen=True)
class Running:
    """A row in `running` with a distinct value in each column, and its claim."""

    job: Job
    row: dict[str, Any]
    claimed: ClaimedExecution


@pytest.fixture
async def running(store: Store, clock: VirtualClock) -> Running:
    now = clock.now()
    policy = {"max_retries": 11, "max_lost": 12, "initial_backoff_ms": 1000, "max_backoff_ms": 14_000}
    job = await make_job(store, delivery="at_least_once", **policy)
    claimed = ClaimedExecution(
        id=ExecutionId(UUID(int=0xE)),
        job_id=job.id,
        fence=8,
        attempt=4,
        lost=2,
        handler="app:h",
        payload="[1]",
        run_at=now - seconds(1),
        scheduled_for=now - seconds(20),
        timeout_ms=None,
        queue="q",
        priority=61,
        origin="trigger",
        version=4,
        job_name=None,
        expires_at=now + seconds(40),
        meta='{"of": "execution"}',
        claim_id=ClaimId(UUID(int=0xC)),
        stop=None,
    )
    row = {
        "id": claimed.id,
        "job_id": job.id,
        "origin": "trigger",
        "version": 4,
        "queue": "q",
        "priority": 61,
        "handler": "app:h",
        "scheduled_for": now - seconds(20),
        "run_at": now - seconds(1),
        "queued_at": now - seconds(10),
        "attempts": 4,
        "lost": 2,
        "fence": 8,
        "tzdata": "2025z",
        "limit_key": "l",
        "unique_key": "k",
        "payload": "[1]",
        "retry_of": ENDED,
        "created_by": "key:k deploy",
        "bound_secrets_only": True,
        "meta": '{"of": "execution"}',
        "has_follow_ups": True,
        "expires_at": now + seconds(40),
        "holder": await make_node(store),
        "claim_id": claimed.claim_id,
        "claimed_at": now - seconds(2),
    }
    await put_row(store, "running", **row)
    await put_row(store, "live_key", key="k", execution_id=claimed.id)
    return Running(job, row, claimed)


def finding(running: Running, outcome: Outcome) -> FinishedAttempt:
    times = {"started_at": running.row["run_at"] + seconds(0.25), "finished_at": running.row["run_at"] + seconds(0.75)}
    return found(running.claimed, outcome, **times)


def in_history(running: Running, state: str, **more: Any) -> dict[str, Any]:
    """The expected row of `finished` for this execution."""
    same = ("id", "job_id", "origin", "version", "queue", "priority", "handler", "scheduled_for", "queued_at")
    kept = {
        name: running.row[name]
        for name in (*same, "fence", "claim_id", "tzdata", "payload", "retry_of", "created_by", "bound_secrets_only")
    }
    kept |= {name: running.row[name] for name in ("meta", "has_follow_ups")}
    times = {
        "started_at": running.row["run_at"] + seconds(0.25),
        "finished_at": running.row["run_at"] + seconds(0.75),
    }
    empty = dict.fromkeys(("result", "error_type", "error", "reason", "fingerprint", "has_ended_part", "expires_at"))
    counts = {"attempts": 4, "lost": 2, "worker": running.row["holder"]}
    return kept | times | empty | counts | {"state": state} | more


def waiting_again(running: Running, **more: Any) -> dict[str, Any]:
    """The columns that a row of `due` or `ready` keeps of a running one that has begun, so that it expires no more."""
    own = ("holder", "claim_id", "claimed_at")
    return {name: value for name, value in running.row.items() if name not in own} | {"expires_at": None} | more


# success


async def test_a_success_keeps_the_whole_timeline(store: Store, running: Running) -> None:
    refused = await store.executions.finish_succeeded([finding(running, Succeeded('{"sum": 3}'))])

    assert refused == []
    assert await only_row(store, "finished") == in_history(
        running, "succeeded", result='{"sum": 3}', has_ended_part=False
    )
    assert await table(store, "running") == []
    assert await table(store, "live_key") == []
    assert await table(store, "attempt") == []


async def test_a_success_can_be_read_through_another_store(store: Store, running: Running) -> None:
    await store.executions.finish_succeeded([finding(running, Succeeded('{"sum": 3}'))])

    execution = await store.history.find(running.claimed.id)

    assert execution is not None
    assert (execution.state, execution.result, execution.retry_of) == ("succeeded", {"sum": 3}, ENDED)
    assert (execution.attempts, execution.lost, execution.fence, execution.version) == (4, 2, 8, 4)
    assert (execution.worker, execution.queue, execution.priority) == (running.row["holder"], "q", 61)
    assert execution.lateness == seconds(19 + 0.25)


async def test_a_success_does_not_free_a_key_that_another_execution_has_by_now(store: Store, running: Running) -> None:
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.live_key SET execution_id = $1", ENDED)

    await store.executions.finish_succeeded([finding(running, Succeeded())])

    assert (await only_row(store, "live_key"))["execution_id"] == ENDED


async def test_a_failure_does_not_free_a_key_that_another_execution_has_by_now(store: Store, running: Running) -> None:
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.live_key SET execution_id = $1", ENDED)

    await record(store, [finding(running, CancelOutcome("enough"))])

    assert (await only_row(store, "live_key"))["execution_id"] == ENDED


async def test_only_the_stale_outcomes_of_a_batch_are_refused(store: Store) -> None:
    for _ in range(3):
        await enqueue(store)
    claimed = await claim_all(store)
    findings = [found(each, Succeeded(str(number))) for number, each in enumerate(claimed)]
    stale = findings[1]._replace(claimed=claimed[1]._replace(claim_id=ClaimId(UUID(int=9))))

    refused = await store.executions.finish_succeeded([findings[0], stale, findings[2]])

    assert refused == [stale]
    assert {row["id"]: row["result"] for row in await table(store, "finished")} == {
        claimed[0].id: "0",
        claimed[2].id: "2",
    }
    assert (await only_row(store, "running"))["id"] == claimed[1].id


# the other outcomes


async def test_attempt_facts_have_the_policies_of_the_job(store: Store, running: Running) -> None:
    standings = await store.executions.attempt_facts([running.claimed])

    standing = standings[running.claimed.id]
    assert (standing.attempts, standing.lost, standing.delivery) == (4, 2, Delivery.AT_LEAST_ONCE)
    assert standing.retry == RetryPolicy(max_retries=11, max_lost=12, initial_backoff_ms=1000, max_backoff_ms=14_000)
    foreign = running.claimed._replace(claim_id=ClaimId(UUID(int=9)))
    assert await store.executions.attempt_facts([foreign]) == {}


async def test_a_failure_is_recorded_and_waits_for_its_retry(store: Store, running: Running) -> None:
    outcome = Failed(FAILURE, retry_after=seconds(33))

    assert await record(store, [finding(running, outcome)]) == []

    finished_at = running.row["run_at"] + seconds(0.75)
    assert await only_row(store, "due") == waiting_again(
        running,
        kind="retry",
        shard=running.job.shard,
        run_at=finished_at + seconds(33),
        watermark=None,
        executions_left=None,
        frozen_run_at=None,
        awaits_key=False,
    )
    assert await only_row(store, "attempt") == {
        "execution_id": running.claimed.id,
        "fence": 8,
        "number": 4,
        "claim_id": running.claimed.claim_id,
        "worker": running.row["holder"],
        "started_at": running.row["run_at"] + seconds(0.25),
        "finished_at": finished_at,
        "outcome": "failed",
        "error_type": "ValueError",
        "error": "no",
        "traceback": "a stack",
        "top_frame": "f:1",
        "fingerprint": "abc",
        "is_expected": None,
    }
    assert len(await table(store, "live_key")) == 1
    (attempt,) = await store.history.attempts(running.claimed.id)
    assert (attempt.fence, attempt.number, attempt.worker, attempt.error) == (8, 4, running.row["holder"], FAILURE)


async def test_a_failure_without_a_retry_is_dead(store: Store, running: Running) -> None:
    await record(store, [finding(running, Failed(FAILURE, is_retryable=False))])

    reason = "the error is not one to retry"
    error = {"error_type": "ValueError", "error": "no", "fingerprint": "abc", "reason": reason}
    assert await only_row(store, "finished") == in_history(running, "dead", **error)
    assert (await only_row(store, "attempt"))["outcome"] == "failed"
    assert await table(store, "live_key") == []


async def test_a_timeout_is_recorded_as_one(store: Store, running: Running) -> None:
    await record(store, [finding(running, TimeoutOutcome(FAILURE))])

    assert await tables_of(store, running.claimed.id) == ["due"]
    assert (await only_row(store, "attempt"))["outcome"] == "timed_out"


async def test_a_snooze_does_not_count_as_an_attempt(store: Store, running: Running) -> None:
    await record(store, [finding(running, Snoozed(seconds(33)))])

    row = await only_row(store, "due")
    finished_at = running.row["run_at"] + seconds(0.75)
    assert (row["run_at"], row["attempts"], row["lost"], row["fence"]) == (finished_at + seconds(33), 3, 2, 8)
    assert await table(store, "attempt") == []


async def test_a_snoozed_first_attempt_shows_as_scheduled(store: Store) -> None:
    execution = await enqueue(store)
    await record(store, [found(each, Snoozed(seconds(33))) for each in await claim_all(store)])

    shown = await store.history.find(execution)

    assert shown is not None
    assert (shown.state, (await only_row(store, "due"))["kind"]) == ("scheduled", "snooze")


async def test_a_cancelled_execution_ends_with_its_reason(store: Store, running: Running) -> None:
    await record(store, [finding(running, CancelOutcome("not needed"))])

    assert await only_row(store, "finished") == in_history(running, "cancelled", reason="not needed")
    assert await table(store, "attempt") == []
    assert await table(store, "live_key") == []


async def test_an_execution_cancelled_before_its_start_is_skipped(store: Store, running: Running) -> None:
    called_off = finding(running, NotStarted("deleted"))._replace(started_at=None)

    await record(store, [called_off])

    row = await only_row(store, "finished")
    expected = {"attempts": 3, "started_at": None, "expires_at": running.row["expires_at"]}
    assert row == in_history(running, "skipped", reason="deleted", **expected)


async def test_a_lost_execution_is_ready_again_and_its_attempt_recorded(store: Store, running: Running) -> None:
    await record(store, [finding(running, Lost(ErrorInfo(type="WorkerLost", message="gone")))])

    assert await only_row(store, "ready") == waiting_again(running, lost=3)
    attempt = await only_row(store, "attempt")
    assert (attempt["outcome"], attempt["error_type"], attempt["number"]) == ("lost", "WorkerLost", 4)
    assert len(await table(store, "live_key")) == 1


async def test_a_released_execution_is_ready_again_uncounted(store: Store, running: Running) -> None:
    await record(store, [finding(running, Released())])

    assert await only_row(store, "ready") == waiting_again(running, attempts=3)
    assert await table(store, "attempt") == []


async def test_fences_grow_over_all_attempts(store: Store) -> None:
    await enqueue(store)
    fences = []
    for outcome in (Released(), Lost(FAILURE), Released()):
        (claimed,) = await claim_all(store)
        fences.append(claimed.fence)
        await record(store, [found(claimed, outcome)])

    assert fences == [1, 2, 3]
    row = await only_row(store, "ready")
    assert (row["fence"], row["attempts"], row["lost"]) == (3, 1, 1)


# stale outcomes: each guard refuses alone


def with_foreign_claim(claimed: ClaimedExecution) -> ClaimedExecution:
    return claimed._replace(claim_id=ClaimId(UUID(int=9)))


def with_other_fence(claimed: ClaimedExecution) -> ClaimedExecution:
    return claimed._replace(fence=claimed.fence - 1)


@pytest.mark.parametrize("stale", [with_foreign_claim, with_other_fence])
async def test_a_stale_outcome_changes_nothing(store: Store, running: Running, stale: Any) -> None:
    """Fault 5."""
    before = await only_row(store, "running")
    late = found(stale(running.claimed))
    ended = Finish(ExecutionState.CANCELLED, 4, 2)

    assert await store.executions.finish_succeeded([late]) == [late]
    assert await store.executions.record_transitions([Decision(late, STANDING, ended)]) == [late]
    await store.executions.report_progress(late.claimed, 0.5, "half")
    await store.executions.extend_deadline(late.claimed, seconds(20))
    await store.executions.write_traces({late.claimed: {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}})

    assert await only_row(store, "running") == before
    assert await table(store, "finished") == []
    assert await table(store, "attempt") == []
    assert len(await table(store, "live_key")) == 1


@pytest.mark.parametrize("is_late_first", [True, False])
async def test_the_outcome_of_the_present_claim_counts_of_two_in_a_batch(
    store: Store, running: Running, *, is_late_first: bool
) -> None:
    """A worker that lost its claim and got another of the same execution may record both outcomes together."""
    honest = finding(running, Succeeded("1"))
    late = found(with_foreign_claim(running.claimed), Succeeded("2"), finished_at=honest.finished_at + seconds(1))
    order = -1 if is_late_first else 1

    assert await store.executions.finish_succeeded([honest, late][::order]) == [late]
    assert (await only_row(store, "finished"))["result"] == "1"

    await put_row(store, "running", **running.row | {"id": ENDED})
    honest, late = (f._replace(claimed=f.claimed._replace(id=ENDED)) for f in (honest, late))
    moves = [
        Decision(honest, STANDING, Finish(ExecutionState.CANCELLED, 4, 2)),
        Decision(late, STANDING, Requeue(4, 2)),
    ]

    assert await store.executions.record_transitions(moves[::order]) == [late]
    assert await tables_of(store, ENDED) == ["finished"]


async def test_an_outcome_is_accepted_once(store: Store, running: Running) -> None:
    done = finding(running, Succeeded())
    await store.executions.finish_succeeded([done])

    assert await store.executions.finish_succeeded([done]) == [done]
    assert await store.executions.record_transitions([Decision(done, STANDING, Finish(ExecutionState.DEAD, 4, 2))]) == [
        done
    ]
    assert len(await table(store, "finished")) == 1


async def test_a_success_whose_reply_was_lost_is_found_by_its_claim(store: Store, running: Running) -> None:
    done = finding(running, Succeeded())
    foreign = done._replace(claimed=with_foreign_claim(done.claimed))
    assert await store.executions.find_stale([done]) == [done]

    await store.executions.finish_succeeded([done])

    assert await store.executions.find_stale([done]) == []
    assert await store.executions.find_stale([foreign]) == [foreign]


async def test_a_failure_whose_reply_was_lost_is_found_by_its_attempt(store: Store, running: Running) -> None:
    failed = finding(running, Failed(FAILURE))
    foreign = failed._replace(claimed=with_foreign_claim(failed.claimed))

    await record(store, [failed])

    assert await store.executions.find_stale([failed]) == []
    assert await store.executions.find_stale([foreign]) == [foreign]


# progress, stopping, orphans


async def test_progress_is_stored_with_the_claim(store: Store, running: Running) -> None:
    await store.executions.report_progress(running.claimed, 0.5, "half")

    row = await only_row(store, "running")
    assert (row["progress"], row["progress_note"]) == (0.5, "half")


async def test_a_trace_is_added_to_the_meta_of_the_execution_and_carried_on(store: Store, running: Running) -> None:
    words = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    before = (await only_row(store, "running"))["meta"]

    await store.executions.write_traces({running.claimed: words})
    await store.executions.finish_succeeded([found(running.claimed, Succeeded())])

    meta = orjson.loads((await only_row(store, "finished"))["meta"])
    assert meta.pop("$trace") == words
    assert meta == (orjson.loads(before) if before else {})


async def test_a_deadline_is_put_off_from_now(store: Store, clock: VirtualClock, running: Running) -> None:
    await store.executions.extend_deadline(running.claimed, seconds(20))

    assert (await only_row(store, "running"))["deadline"] == clock.now() + seconds(20)


async def test_a_stop_is_requested_once_and_reaches_its_holder_alone(store: Store, running: Running) -> None:
    holder = Incarnation(running.row["holder"])

    assert await store.executions.stop([running.claimed.id, ENDED], "enough") == {running.claimed.id}
    assert await store.executions.stop([running.claimed.id], "again") == set()
    assert await store.executions.stops(holder) == {running.claimed.id: "enough"}
    assert await store.executions.stops(await make_node(store)) == {}


async def test_all_executions_of_a_job_are_asked_to_stop(store: Store, running: Running) -> None:
    assert await store.executions.stop_jobs([running.job.id], "superseded") == {running.claimed.id}
    assert (await only_row(store, "running"))["stop"] == "superseded"


async def test_an_execution_of_a_living_node_is_no_orphan(store: Store, running: Running) -> None:
    assert await store.executions.orphans(10) == []


async def test_executions_without_a_living_holder_are_orphans(store: Store, running: Running) -> None:
    await store.nodes.remove(Incarnation(running.row["holder"]))

    (orphan,) = await store.executions.orphans(10)

    assert orphan.claimed == running.claimed._replace(payload="", expires_at=None, meta=None)
    assert (orphan.holder, orphan.claimed_at) == (running.row["holder"], running.row["claimed_at"])
    assert orphan.is_orphan
    assert await store.executions.orphans(0) == []


async def test_executions_past_their_deadline_are_orphans_of_a_living_holder(store: Store, clock: VirtualClock) -> None:
    await enqueue(store, timeout_ms=1000)
    (claimed,) = await claim_all(store)
    clock.advance("6s")
    assert await store.executions.orphans(10) == []
    clock.advance("1ms")

    (orphan,) = await store.executions.orphans(10)

    assert (orphan.claimed.id, orphan.is_orphan) == (claimed.id, False)


# limits


async def test_a_free_place_goes_to_the_most_urgent(store: Store) -> None:
    await enqueue(store, max_running=1, limit_key="l")
    patient = await enqueue(store, after=-100, priority=50, max_running=1, limit_key="l")
    urgent = await enqueue(store, after=0, priority=60, max_running=1, limit_key="l")
    (claimed,) = await claim_all(store)

    await store.executions.finish_succeeded([found(claimed)])

    assert (await tables_of(store, urgent), await tables_of(store, patient)) == (["ready"], ["blocked"])


async def test_an_unblocked_execution_keeps_every_column(store: Store, running: Running) -> None:
    await put_row(store, "running_limit", key="l", max_running=2)
    blocked = waiting_again(running, id=ENDED, run_at=running.row["run_at"] - seconds(3), unique_key="k2")
    await put_row(store, "blocked", **blocked)

    await store.executions.unblock(["l"])

    assert await only_row(store, "ready") == blocked
    assert await table(store, "blocked") == []


async def test_ready_and_running_executions_count_for_a_limit(store: Store) -> None:
    for _ in range(4):
        await enqueue(store, max_running=3, limit_key="l")
    await claim_all(store, slots=1)

    await store.executions.unblock(["l"])

    assert (len(await table(store, "ready")), len(await table(store, "blocked"))) == (2, 1)


async def test_every_way_to_leave_running_unblocks_the_next(store: Store) -> None:
    for outcome in (Succeeded(), CancelOutcome("no"), Failed(FAILURE), Failed(FAILURE, is_retryable=False)):
        await enqueue(store, max_running=1, limit_key="l")
        waiting = await enqueue(store, max_running=1, limit_key="l")
        (claimed,) = await claim_all(store)

        await record(store, [found(claimed, outcome)])

        assert await tables_of(store, waiting) == ["ready"], outcome
        await store.executions.finish_succeeded([found(each) for each in await claim_all(store)])


async def test_a_higher_limit_unblocks_more(store: Store) -> None:
    for _ in range(4):
        await enqueue(store, max_running=1, limit_key="l")

    await enqueue(store, max_running=3, limit_key="l")

    assert len(await table(store, "ready")) == 3
    assert await store.executions.blocked_keys("", 10) == ["l"]
    assert await store.executions.blocked_keys("l", 10) == await store.executions.blocked_keys("", 0) == []
