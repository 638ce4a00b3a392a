"""Outcomes become rows: in batches, each by its claim, none lost and none counted twice."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.engine.runners.support import Attempt
from tests.engine.support import Hands, Heard, check_promises, create, settle, start_worker
from tests.support.factories import FAILURE, enqueue, only_row, seconds, table, tables_of
from timeball.application.commands import Commands
from timeball.domain.execution import (
    CancelOutcome,
    ClaimedExecution,
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
from timeball.engine.node import AT_ONCE, LONGEST_REST
from timeball.engine.worker.attempts import StartQueue
from timeball.engine.worker.recorder import Recorder, foresee_failure, record_now
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.telemetry.events import (
    AttemptFailed,
    AttemptFailedAsExpected,
    ExecutionsExpired,
    ExecutionsSucceeded,
    OutcomeRefused,
)
from timeball.testing import VirtualClock


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


@pytest.fixture
def queue(env: Env) -> StartQueue:
    return StartQueue(env.clock)


@pytest.fixture
def recorder(store: Store, env: Env, heard: Heard, queue: StartQueue) -> Recorder:
    return Recorder(env, heard, store.executions, queue)


def release_a_crowd(queue: StartQueue, clock: VirtualClock) -> None:
    """An execution that was held for its instant waits for its start."""
    queue.add([Attempt().claimed._replace(run_at=clock.now() + timedelta(microseconds=1))])
    clock.advance(timedelta(microseconds=1))
    queue.release_due()


def finding(claimed: ClaimedExecution, outcome: Outcome | None = None, after: float = 0) -> FinishedAttempt:
    """An attempt that began at its instant, and ended some seconds later; what was called off has not begun."""
    started_at = None if isinstance(outcome, NotStarted) else claimed.run_at
    return FinishedAttempt(claimed, outcome or Succeeded(), started_at, claimed.run_at + seconds(after))


async def claimed_one(store: Store, worker: Hands, **fields: object) -> ClaimedExecution:
    await enqueue(store, **fields)
    (claimed,) = await worker.claim()
    return claimed


async def record(recorder: Recorder, *findings: FinishedAttempt) -> None:
    for each in findings:
        recorder.hand_over(each)
    await settle(recorder)


class Cuts:
    """Cuts the connection at some points, a number of times."""

    def __init__(self, *points: str, times: int = 1) -> None:
        self.left = dict.fromkeys(points, times)

    def __call__(self, point: str) -> None:
        if self.left.get(point):
            self.left[point] -= 1
            raise StoreUnavailable("the connection was cut")


# batches


async def test_starting_executions_go_before_recording_but_not_for_long(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, queue: StartQueue
) -> None:
    claimed = await claimed_one(store, worker)
    recorder.hand_over(finding(claimed))
    release_a_crowd(queue, clock)

    assert AT_ONCE < await recorder.tick() < LONGEST_REST
    assert await tables_of(store, claimed.id) == ["running"]

    clock.advance("10ms")
    assert await recorder.tick() == AT_ONCE
    assert await tables_of(store, claimed.id) == ["finished"]


async def test_outcomes_are_written_as_soon_as_the_crowd_has_begun(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, queue: StartQueue
) -> None:
    claimed = await claimed_one(store, worker)
    recorder.hand_over(finding(claimed))
    release_a_crowd(queue, clock)
    await recorder.tick()

    queue.pop()
    assert await recorder.tick() == AT_ONCE
    assert await tables_of(store, claimed.id) == ["finished"]


async def test_outcomes_are_written_in_one_batch(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    for _ in range(50):
        await enqueue(store)
    claims = await worker.claim()
    statements: list[str] = []
    env.fault = statements.append

    for claimed in claims:
        recorder.hand_over(finding(claimed))
    assert await recorder.tick() == AT_ONCE

    assert statements.count("finish_succeeded.before") == 1
    assert len(await table(store, "finished")) == 50
    assert await recorder.tick() == LONGEST_REST
    assert [(event.count, event.worst_lateness) for event in heard.of(ExecutionsSucceeded)] == [(50, timedelta(0))]


async def test_what_comes_in_while_a_batch_is_written_is_the_next_one(
    store: Store, env: Env, worker: Hands, recorder: Recorder
) -> None:
    await enqueue(store)
    await enqueue(store)
    first, second = await worker.claim()
    recorder.hand_over(finding(first))

    def hand_over_another(point: str) -> None:
        if point == "finish_succeeded.before" and not recorder._waiting:
            env.fault = lambda _: None
            recorder.hand_over(finding(second))

    env.fault = hand_over_another
    await recorder.tick()
    assert len(await table(store, "finished")) == 1

    await recorder.tick()
    assert len(await table(store, "finished")) == 2


async def test_a_batch_of_all_kinds_is_sorted_out(store: Store, worker: Hands, recorder: Recorder) -> None:
    for _ in range(7):
        await enqueue(store)
    claims = await worker.claim()
    outcomes = [
        Succeeded('{"a":1}'),
        Failed(FAILURE),
        TimeoutOutcome(FAILURE),
        Snoozed(seconds(60)),
        CancelOutcome("enough"),
        NotStarted("paused"),
        Released(),
    ]

    await record(recorder, *(finding(claimed, outcome) for claimed, outcome in zip(claims, outcomes, strict=True)))

    executions = [await tables_of(store, claimed.id) for claimed in claims]
    assert executions == [["finished"], ["due"], ["due"], ["due"], ["finished"], ["finished"], ["ready"]]
    states = {row["id"]: row["state"] for row in await table(store, "finished")}
    assert [states.get(claims[number].id) for number in (0, 4, 5)] == ["succeeded", "cancelled", "skipped"]
    await check_promises(store)


async def test_the_worst_lateness_is_told(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claims = [await claimed_one(store, worker) for _ in range(2)]

    late = zip(claims, (3, 1), strict=True)
    await record(
        recorder, *(FinishedAttempt(c, Succeeded(), c.run_at + seconds(n), c.run_at + seconds(4)) for c, n in late)
    )

    assert heard.of(ExecutionsSucceeded) == [ExecutionsSucceeded(2, seconds(3))]


async def test_flush_waits_until_everything_is_written(store: Store, worker: Hands, recorder: Recorder) -> None:
    recorder.hand_over(finding(await claimed_one(store, worker)))
    assert not recorder._idle.is_set()

    await settle(recorder)

    await recorder.flush()
    assert len(await table(store, "finished")) == 1


# what follows


async def test_a_failure_is_tried_again_after_its_back_off(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = await claimed_one(store, worker, initial_backoff_ms=4_000)

    await record(recorder, finding(claimed, Failed(FAILURE), after=1))

    row = await only_row(store, "due")
    assert row["kind"] == "retry"
    assert seconds(2) <= row["run_at"] - (claimed.run_at + seconds(1)) <= seconds(4)
    assert (row["attempts"], row["lost"], row["fence"]) == (1, 0, 1)
    attempt = await only_row(store, "attempt")
    assert (attempt["number"], attempt["outcome"], attempt["error_type"]) == (1, "failed", "ValueError")
    (told,) = heard.of(AttemptFailed)
    assert (told.attempt, told.outcome, told.becomes, told.error) == (1, "failed", "retrying", "ValueError: no")


async def test_the_dead_keep_every_attempt(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """max_retries = 2: three attempts, then dead."""
    execution_id = await enqueue(store, max_retries=2)

    for _ in range(3):
        (claimed,) = await worker.claim()
        await record(recorder, finding(claimed, Failed(FAILURE)))
        await make_ready(store)

    row = await only_row(store, "finished")
    assert (row["id"], row["state"], row["attempts"], row["fence"]) == (execution_id, "dead", 3, 3)
    assert (row["error_type"], row["reason"]) == ("ValueError", "failed 3 times, max_retries is 2")
    assert [(a["number"], a["fence"], a["traceback"]) for a in await table(store, "attempt")] == [
        (1, 1, "a stack"),
        (2, 2, "a stack"),
        (3, 3, "a stack"),
    ]
    assert [event.becomes for event in heard.of(AttemptFailed)] == ["retrying", "retrying", "dead"]
    await check_promises(store)


async def test_what_dies_of_an_expected_error_is_recorded_but_no_dead_letter_and_no_warning(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = [await claimed_one(store, worker, max_retries=0) for _ in range(3)]
    outcomes = [Failed(FAILURE, is_expected=True), Failed(FAILURE), TimeoutOutcome(FAILURE, is_expected=True)]

    await record(recorder, *(finding(one, outcome) for one, outcome in zip(claimed, outcomes, strict=True)))

    assert [row["state"] for row in await table(store, "finished")] == ["dead"] * 3
    attempts = {row["execution_id"]: row["is_expected"] for row in await table(store, "attempt")}
    assert attempts == {claimed[0].id: True, claimed[1].id: None, claimed[2].id: True}
    assert {row["execution_id"]: row["how"] for row in await table(store, "settled")} == {
        claimed[0].id: "expected",
        claimed[2].id: "expected",
    }
    assert await ListingStore(store.database).dead_count() == 1
    levels = [(type(event), event.log_level) for event in heard.of(AttemptFailed)]
    assert sorted(levels, key=lambda one: one[1]) == [(AttemptFailedAsExpected, logging.INFO)] * 2 + [
        (AttemptFailed, logging.WARNING)
    ]
    await check_promises(store)


async def test_an_expected_error_that_is_retried_settles_nothing(
    store: Store, worker: Hands, recorder: Recorder
) -> None:
    claimed = await claimed_one(store, worker, max_retries=1)

    await record(recorder, finding(claimed, Failed(FAILURE, is_expected=True)))

    assert (await only_row(store, "due"))["kind"] == "retry"
    assert await table(store, "settled") == []


async def test_a_retry_waits_for_the_pauses_of_the_job(store: Store, worker: Hands, recorder: Recorder) -> None:
    claimed = await claimed_one(store, worker, backoff_ms=[7_000, 9_000])

    await record(recorder, finding(claimed, Failed(FAILURE)))

    assert (await only_row(store, "due"))["run_at"] == claimed.run_at + seconds(7)


async def make_ready(store: Store) -> None:
    """Promote what waits in `due`, past all back-off."""
    async with store.database.transaction() as connection:
        await connection.execute(
            """
            WITH gone AS (DELETE FROM timeball.due RETURNING *)
            INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at,
                                        queued_at, attempts, lost, fence)
            SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, scheduled_for,
                   queued_at, attempts, lost, fence
            FROM gone
            """
        )


async def test_a_snooze_waits_and_does_not_count(store: Store, worker: Hands, recorder: Recorder) -> None:
    claimed = await claimed_one(store, worker)

    await record(recorder, finding(claimed, Snoozed(seconds(30)), after=1))

    row = await only_row(store, "due")
    assert (row["kind"], row["attempts"], row["fence"]) == ("snooze", 0, 1)
    assert row["run_at"] == claimed.run_at + seconds(31)
    assert await table(store, "attempt") == []


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_snooze_is_news_of_a_handler_only_if_that_has_begun(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard, has_begun: bool
) -> None:
    """A retry that is held back by the budget of its target has not been made."""
    claimed = await claimed_one(store, worker)

    await record(
        recorder, FinishedAttempt(claimed, Snoozed(seconds(9)), claimed.run_at if has_begun else None, claimed.run_at)
    )

    assert [event.outcome for event in heard.of(AttemptFailed)] == ["snoozed"] * has_begun


async def test_a_cancelled_attempt_ends_with_its_reason(store: Store, worker: Hands, recorder: Recorder) -> None:
    claimed = await claimed_one(store, worker, unique_key="one")

    await record(recorder, finding(claimed, CancelOutcome("the order is gone")))

    row = await only_row(store, "finished")
    assert (row["state"], row["reason"]) == ("cancelled", "the order is gone")
    assert await table(store, "live_key") == []


async def test_what_is_given_back_is_ready_at_once_and_uncounted(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = await claimed_one(store, worker)

    await record(recorder, FinishedAttempt(claimed, Released(), None, claimed.run_at))

    row = await only_row(store, "ready")
    assert (row["attempts"], row["lost"], row["fence"], row["run_at"]) == (0, 0, 1, claimed.run_at)
    assert await table(store, "attempt") == []
    assert heard.of(AttemptFailed) == [], "nothing has failed"


async def test_what_expired_in_the_hands_of_a_worker_is_skipped_and_no_failure(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = await claimed_one(store, worker, start_within_seconds=5)
    clock.advance("5s")

    await record(recorder, FinishedAttempt(claimed, NotStarted("expired"), None, clock.now()))

    row = await only_row(store, "finished")
    assert (row["state"], row["reason"], row["attempts"]) == ("skipped", "expired", 0)
    assert (heard.of(AttemptFailed), heard.of(ExecutionsExpired)) == ([], [ExecutionsExpired(1)])


async def test_a_lost_attempt_goes_back_until_it_was_lost_too_often(
    store: Store, worker: Hands, recorder: Recorder
) -> None:
    execution_id = await enqueue(store, max_lost=2)

    (claimed,) = await worker.claim()
    await record(recorder, finding(claimed, Lost(FAILURE)))
    row = await only_row(store, "ready")
    assert (row["attempts"], row["lost"]) == (1, 1)

    (claimed,) = await worker.claim()
    await record(recorder, finding(claimed, Lost(FAILURE)))
    row = await only_row(store, "finished")
    assert (row["id"], row["state"], row["lost"]) == (execution_id, "dead", 2)
    assert row["reason"] == "lost with its worker 2 times, max_lost is 2"
    assert [attempt["outcome"] for attempt in await table(store, "attempt")] == ["lost", "lost"]
    await check_promises(store)


async def test_at_most_once_is_not_run_again_after_a_loss(store: Store, worker: Hands, recorder: Recorder) -> None:
    claimed = await claimed_one(store, worker, delivery="at_most_once")

    await record(recorder, finding(claimed, Lost(FAILURE)))

    assert (await only_row(store, "finished"))["state"] == "dead"


async def test_an_end_lets_the_next_of_a_limit_in(store: Store, worker: Hands, recorder: Recorder) -> None:
    job = await create(store, max_running=1)
    commands = Commands(store, store.env)
    ids = [await commands.executions.trigger(job.id) for _ in range(3)]
    (first,) = await worker.claim()

    await record(recorder, finding(first, Failed(FAILURE)))
    (second,) = await worker.claim()
    await record(recorder, finding(second))
    (third,) = await worker.claim()

    assert {first.id, second.id, third.id} == set(ids)


# refused


@pytest.mark.parametrize("outcome", [Succeeded(), Failed(FAILURE), Released(), CancelOutcome("enough")])
async def test_a_stale_outcome_changes_nothing_and_is_told(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard, outcome: Outcome
) -> None:
    stale = await claimed_one(store, worker)
    await record_now(store.env, lambda _: None, store.executions, [finding(stale, Lost(FAILURE))])
    (fresh,) = await worker.claim()
    before = await everything(store)

    await record(recorder, finding(stale, outcome))

    assert heard.of(OutcomeRefused) == [OutcomeRefused(stale.id, stale.handler, 1)]
    assert await everything(store) == before
    heard.clear()
    await record(recorder, finding(fresh))
    assert heard.of(OutcomeRefused) == []
    assert (await only_row(store, "finished"))["fence"] == 2


async def everything(store: Store) -> list[object]:
    return [await table(store, room) for room in ("due", "ready", "running", "finished", "attempt")]


async def test_the_claim_id_alone_refuses_a_claim_that_another_history_gave(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """After a failover that lost writes, a fence may be given out twice; a claim id is not."""
    claimed = await claimed_one(store, worker)
    stranger = claimed._replace(claim_id=store.env.new_id())

    await record(recorder, finding(stranger), finding(stranger, Failed(FAILURE)))

    assert len(heard.of(OutcomeRefused)) == 2
    assert await tables_of(store, claimed.id) == ["running"]


async def test_the_stale_do_not_hold_back_the_others(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    for _ in range(4):
        await enqueue(store)
    claims = await worker.claim()
    strangers = [claimed._replace(claim_id=store.env.new_id()) for claimed in claims[:2]]

    await record(
        recorder,
        finding(strangers[0]),
        finding(strangers[1], Failed(FAILURE)),
        finding(claims[2]),
        finding(claims[3], Failed(FAILURE)),
    )

    assert {event.execution_id for event in heard.of(OutcomeRefused)} == {claims[0].id, claims[1].id}
    assert [await tables_of(store, claimed.id) for claimed in claims] == [
        ["running"],
        ["running"],
        ["finished"],
        ["due"],
    ]
    assert [event.count for event in heard.of(ExecutionsSucceeded)] == [1], "what was refused did not succeed"
    assert [event.execution_id for event in heard.of(AttemptFailed)] == [claims[3].id]


# faults


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded(),
        Failed(FAILURE),
        TimeoutOutcome(FAILURE),
        Lost(FAILURE),
        CancelOutcome("enough"),
        NotStarted("paused"),
        Released(),
        Snoozed(seconds(9)),
    ],
)
async def test_a_lost_reply_is_no_stale_outcome(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard, outcome: Outcome
) -> None:
    claimed = await claimed_one(store, worker)
    env.fault = Cuts("finish_succeeded.after_commit", "record_transitions.after_commit")
    recorder.hand_over(finding(claimed, outcome))

    with pytest.raises(StoreUnavailable):
        await recorder.tick()
    before = await everything(store)
    await settle(recorder)

    assert await everything(store) == before, "the second write found nothing to do"
    assert heard.of(OutcomeRefused) == []


async def test_a_truly_stale_outcome_is_told_even_if_the_connection_was_cut(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = await claimed_one(store, worker)
    env.fault = Cuts("finish_succeeded.before")
    recorder.hand_over(finding(claimed._replace(claim_id=env.new_id())))

    with pytest.raises(StoreUnavailable):
        await recorder.tick()
    await settle(recorder)

    assert len(heard.of(OutcomeRefused)) == 1


@pytest.mark.parametrize("outcome", [Succeeded(), Failed(FAILURE), CancelOutcome("enough"), Released()])
async def test_an_outcome_that_came_too_late_is_told_even_if_it_had_been_tried_before(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard, outcome: Outcome
) -> None:
    """The claim has an outcome, but it is the reaper's."""
    claimed = await claimed_one(store, worker)
    env.fault = Cuts("finish_succeeded.before", "attempt_facts.before")
    recorder.hand_over(finding(claimed, outcome))
    with pytest.raises(StoreUnavailable):
        await recorder.tick()
    env.fault = lambda _: None
    await record_now(env, lambda _: None, store.executions, [finding(claimed, Lost(FAILURE))])

    await settle(recorder)

    assert heard.of(OutcomeRefused) == [OutcomeRefused(claimed.id, claimed.handler, 1)]


@pytest.mark.parametrize(
    "point",
    ["finish_succeeded.before", "attempt_facts.before", "record_transitions.before", "finish_succeeded.after_commit"],
)
async def test_a_failing_store_loses_no_outcome(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard, point: str
) -> None:
    for _ in range(6):
        await enqueue(store)
    claims = await worker.claim()
    env.fault = Cuts(point, times=4)
    for number, claimed in enumerate(claims):
        recorder.hand_over(finding(claimed, Failed(FAILURE) if number % 2 else Succeeded()))

    failures = await tick_through(recorder)

    assert failures == 4
    assert [await tables_of(store, claimed.id) for claimed in claims] == [["finished"], ["due"]] * 3
    assert len(await table(store, "attempt")) == 3
    assert heard.of(OutcomeRefused) == []
    await check_promises(store)


async def tick_through(recorder: Recorder) -> int:
    """Tick until all is written; returns how often it failed."""
    failures = 0
    while True:
        try:
            if await recorder.tick() > AT_ONCE:
                return failures
        except StoreUnavailable:
            failures += 1


async def test_a_batch_that_is_too_much_for_one_statement_is_written_in_parts(
    store: Store, worker: Hands, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows many ends at once may take longer to write than a statement may."""
    for _ in range(20):
        await enqueue(store)
    tried: list[int] = []
    finish = store.executions.finish_succeeded

    async def finish_few(findings: list[FinishedAttempt]) -> list[FinishedAttempt]:
        tried.append(len(findings))
        if len(findings) > 3:
            raise StoreUnavailable("no answer in time")
        return await finish(findings)

    monkeypatch.setattr(store.executions, "finish_succeeded", finish_few)
    for claimed in await worker.claim():
        recorder.hand_over(finding(claimed))
    while await table(store, "running"):
        with suppress(StoreUnavailable):
            await recorder.tick()

    assert tried[:5] == [20, 10, 5, 2, 4]
    assert [row["state"] for row in await table(store, "finished")] == ["succeeded"] * 20
    assert recorder.unrecorded() == set()


async def test_what_came_in_meanwhile_waits_behind_what_is_in_doubt(
    store: Store, env: Env, worker: Hands, recorder: Recorder
) -> None:
    await enqueue(store)
    await enqueue(store)
    first, second = await worker.claim()
    env.fault = Cuts("finish_succeeded.before")
    recorder.hand_over(finding(first))
    with pytest.raises(StoreUnavailable):
        await recorder.tick()

    recorder.hand_over(finding(second))
    await recorder.tick()
    assert [row["id"] for row in await table(store, "finished")] == [first.id]

    await recorder.tick()
    assert len(await table(store, "finished")) == 2


async def test_after_the_lease_is_lost_nothing_is_written(store: Store, worker: Hands, recorder: Recorder) -> None:
    claimed = await claimed_one(store, worker)
    recorder.hand_over(finding(claimed))

    recorder.forget_all()
    await settle(recorder)

    assert await tables_of(store, claimed.id) == ["running"]
    await recorder.flush()


async def test_after_the_lease_is_lost_outcomes_in_doubt_are_forgotten_too(
    store: Store, env: Env, worker: Hands, recorder: Recorder
) -> None:
    claimed = await claimed_one(store, worker)
    env.fault = Cuts("finish_succeeded.before_commit", "finish_succeeded.after_commit")
    recorder.hand_over(finding(claimed))
    with pytest.raises(StoreUnavailable):
        await recorder.tick()
    assert recorder.unrecorded() == {(claimed.id, claimed.claim_id)}

    recorder.forget_all()

    assert recorder.unrecorded() == set()


async def test_recording_at_once_says_whether_it_could(store: Store, env: Env, worker: Hands, heard: Heard) -> None:
    claimed = await claimed_one(store, worker)
    env.fault = Cuts("finish_succeeded.before")

    with pytest.raises(StoreUnavailable):
        await record_now(env, heard, store.executions, [finding(claimed)])
    await record_now(env, heard, store.executions, [finding(claimed)])

    assert await tables_of(store, claimed.id) == ["finished"]


# what is logged


@pytest.mark.parametrize(("max_retries", "level", "becomes"), [(1, "WARNING", "retrying"), (0, "ERROR", "dead")])
async def test_a_failure_is_foreseen_as_it_is_recorded_later(
    store: Store, env: Env, worker: Hands, max_retries: int, level: str, becomes: str
) -> None:
    claimed = await claimed_one(store, worker, max_retries=max_retries)

    foreseen = await foresee_failure(env, store.executions, claimed, Failed(FAILURE))
    expected = await foresee_failure(env, store.executions, claimed, Failed(FAILURE, is_expected=True))

    assert (logging.getLevelName(foreseen.level), foreseen.becomes) == (level, becomes)
    assert expected.level == logging.INFO


async def test_a_failure_that_cannot_be_foreseen_is_an_error(store: Store, env: Env, worker: Hands) -> None:
    claimed = await claimed_one(store, worker, max_retries=5)
    env.fault = Cuts("attempt_facts.before", times=100)

    foreseen = await foresee_failure(env, store.executions, claimed, Failed(FAILURE))

    assert (foreseen.level, foreseen.becomes) == (logging.ERROR, "dead")


async def test_an_attempt_that_failed_is_logged_once_however_often_its_outcome_is_written(
    store: Store, env: Env, worker: Hands, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = await claimed_one(store, worker, max_retries=0)
    env.fault = Cuts("record_transitions.after")

    with caplog.at_level(logging.INFO, claimed.handler):
        await record(recorder, finding(claimed, Failed(FAILURE)), finding(claimed, Failed(FAILURE)))
        assert await asyncio.to_thread(recorder.failure_log.flush, 60)

    records = [record for record in caplog.records if record.name == claimed.handler]
    assert [(record.levelname, record.becomes) for record in records] == [("ERROR", "dead")]  # type: ignore[attr-defined]
