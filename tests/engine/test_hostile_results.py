"""Whatever a handler returns, raises, logs or reports: it is recorded, and its neighbours are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import FreshDatabase
from tests.engine import hostile_values
from tests.engine.runners.support import Attempt
from tests.engine.support import Hands, Heard, check_promises, settle, start_worker
from tests.support.factories import FAILURE, enqueue, only_row, seconds, table, tables_of
from timeball.current import RUNNING, AttemptContext, current
from timeball.domain.execution import (
    CancelOutcome,
    ClaimedExecution,
    ErrorInfo,
    Failed,
    FinishedAttempt,
    Lost,
    Outcome,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.engine.runners.child import _FROM_CHILD, OutcomeMessage
from timeball.engine.runners.outcome import outcome_of_error, outcome_of_return
from timeball.engine.worker.recorder import LogWriter, Recorder, record_now
from timeball.env import Env
from timeball.errors import InvalidInput, StoreUnavailable, UnstorableValue
from timeball.handlers.registry import make_handler
from timeball.store.store import Store
from timeball.telemetry.events import ExecutionsSucceeded, OutcomeRefused, OutcomeUnwritable
from timeball.testing import VirtualClock


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


@pytest.fixture
def recorder(store: Store, env: Env, heard: Heard) -> Recorder:
    return Recorder(env, heard, store.executions)


def finding(claimed: ClaimedExecution, outcome: Outcome) -> FinishedAttempt:
    return FinishedAttempt(claimed, outcome, claimed.run_at, claimed.run_at + seconds(1))


async def claims(store: Store, worker: Hands, number: int, **fields: Any) -> list[ClaimedExecution]:
    for _ in range(number):
        await enqueue(store, **fields)
    return await worker.claim()


def outcome_of(error: BaseException) -> Outcome:
    try:
        raise error
    except BaseException as caught:
        return outcome_of_error(caught, None, Attempt())


def unchecked(outcome: Outcome, **fields: str) -> Outcome:
    """An outcome whose text was not cleaned on its way."""
    if isinstance(outcome, Failed | TimeoutOutcome | Lost):
        error = replace(outcome.error)
        for name, value in fields.items():
            object.__setattr__(error, name, value)
        return replace(outcome, error=error)
    for name, value in fields.items():
        object.__setattr__(outcome, name, value)
    return outcome


# what handlers do


async def test_whatever_handlers_return_and_raise_is_recorded_at_once(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """Fault 33."""
    outcomes = [outcome_of_return(value) for value in hostile_values.RETURNED]
    outcomes += [outcome_of(error) for error in hostile_values.raised()]
    claimed = await claims(store, worker, len(outcomes))

    for each, outcome in zip(claimed, outcomes, strict=True):
        recorder.hand_over(finding(each, outcome))
    await settle(recorder)

    assert await table(store, "running") == []
    assert heard.of(OutcomeRefused) == heard.of(OutcomeUnwritable) == [], "all of it was checked before it was written"
    await check_promises(store)


async def test_what_cannot_follow_a_run_costs_its_neighbours_nothing(
    store: Store, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """No door lets such a call in; rules may become stricter while it waits."""
    claimed = await claims(store, worker, 5, on_success={"handler": "h", "payload": {}})
    async with store.database.connection() as connection:
        await connection.execute(
            """UPDATE timeball.job SET on_success = on_success || '{"priority": 1000}' WHERE id = $1""", claimed[2].id
        )

    for each in claimed:
        recorder.hand_over(finding(each, Succeeded()))
    await settle(recorder)

    states = {row["id"]: row["state"] for row in await table(store, "finished")}
    assert states == {each.id: "dead" if each is claimed[2] else "succeeded" for each in claimed}
    assert len(await table(store, "ready")) == 4
    (told,) = heard.of(OutcomeUnwritable)
    assert (told.is_replaced, "job_priority_check" in told.error) == (True, True)


@given(hostile_values.values)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_result_becomes_json_that_the_database_takes(scratch: psycopg.Connection[Any], value: Any) -> None:
    outcome = outcome_of_return(value)

    assert isinstance(outcome, Succeeded)
    if outcome.result is not None:
        scratch.execute("SELECT %s::jsonb", [outcome.result])
    assert _through_the_wire(outcome) == outcome


@given(hostile_values.errors)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_error_becomes_text_that_the_database_takes(scratch: psycopg.Connection[Any], error: BaseException) -> None:
    outcome = outcome_of(error)

    assert isinstance(outcome, Failed)
    texts = [getattr(outcome.error, name) for name in ErrorInfo.__slots__]
    scratch.execute("SELECT %s::text[]", [texts])
    assert all(type(text) is str for text in texts if text is not None)
    assert _through_the_wire(outcome) == outcome


@given(
    hostile_values.values,
    hostile_values.values,
    st.dictionaries(st.text(max_size=5), hostile_values.values, max_size=2),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_line_and_note_becomes_text_that_the_database_takes(
    scratch: psycopg.Connection[Any], message: Any, level: Any, fields: dict[str, Any]
) -> None:
    context = Attempt()
    token = RUNNING.set(context)
    try:
        current.log(
            message, level, **{name: value for name, value in fields.items() if name not in ("message", "level")}
        )
        current.progress(0.5, message)
    finally:
        RUNNING.reset(token)

    ((said_as, line),), ((_, note),) = context.sink.lines, context.sink.progress
    scratch.execute("SELECT %s::text[]", [[said_as, line, note]])


@pytest.mark.parametrize("fraction", [float("nan"), float("inf"), 10**400, -(10**400), True])
def test_progress_is_a_number_from_0_to_1(fraction: Any) -> None:
    context = Attempt()
    token = RUNNING.set(context)
    try:
        current.progress(fraction)
    finally:
        RUNNING.reset(token)

    assert context.sink.progress in ([(0.0, None)], [(1.0, None)])


def _through_the_wire(outcome: Outcome) -> Outcome:
    message = OutcomeMessage.of(1, outcome, has_noticed=False, is_reusable=True, memory=0)
    received = _FROM_CHILD.validate_json(_FROM_CHILD.dump_json(message))
    assert isinstance(received, OutcomeMessage)
    return received.outcome


@pytest.fixture
def scratch(fresh_database: FreshDatabase) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(fresh_database.dsn, autocommit=True) as connection:
        yield connection


def test_a_result_is_checked_again_when_it_comes_from_a_child() -> None:
    ended = OutcomeMessage.of(1, Succeeded("no JSON"), has_noticed=False, is_reusable=True, memory=0)

    assert isinstance(ended.outcome, Succeeded)
    assert ended.outcome.result is not None
    assert orjson.loads(ended.outcome.result)["$timeball"].startswith("the result was dropped: it is not JSON")


def test_a_handler_whose_name_cannot_be_written_is_refused() -> None:
    """A worker names all its handlers in each claim."""
    with pytest.raises(InvalidInput, match="surrogate"):
        make_handler(lambda: None, name=f"send{hostile_values.LONE_SURROGATE}")


# text that was not cleaned


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        (unchecked(Succeeded(), result="no JSON"), "finished"),
        (unchecked(Succeeded(), result=hostile_values.LONE_SURROGATE), "finished"),
        (unchecked(Failed(FAILURE), type=hostile_values.LONE_SURROGATE), "due"),
        (unchecked(Failed(FAILURE), message="\0"), "due"),
        (unchecked(Failed(FAILURE, is_retryable=False), traceback=hostile_values.LONE_SURROGATE), "finished"),
        (unchecked(TimeoutOutcome(FAILURE), top_frame="\0"), "due"),
        (unchecked(Lost(FAILURE), message=hostile_values.LONE_SURROGATE), "ready"),
        (unchecked(CancelOutcome("x"), reason="\0"), "finished"),
        (Snoozed(seconds(10**13)), "due"),
        (Snoozed("soon"), "due"),  # type: ignore[arg-type]
    ],
)
async def test_one_outcome_that_cannot_be_written_costs_its_neighbours_nothing(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard, bad: Outcome, kept: str
) -> None:
    """Fault 33."""
    claimed = await claims(store, worker, 15)
    neighbours: list[Outcome] = [Succeeded('{"a":1}'), Failed(FAILURE)]

    for number, each in enumerate(claimed):
        recorder.hand_over(finding(each, bad if number == 7 else neighbours[number % 2]))
    await settle(recorder)

    for number, each in enumerate(claimed):
        assert await tables_of(store, each.id) == [kept if number == 7 else ["finished", "due"][number % 2]]
    (told,) = heard.of(OutcomeUnwritable)
    assert told.execution_id == claimed[7].id
    assert told.is_replaced
    assert heard.of(OutcomeRefused) == []
    assert recorder.unrecorded() == set()
    clock.advance("2s")
    await recorder.tick()
    assert sum(event.count for event in heard.of(ExecutionsSucceeded)) == len(
        [row for row in await table(store, "finished") if row["state"] == "succeeded"]
    )
    await check_promises(store)


async def test_a_failure_that_cannot_be_written_is_one_with_the_reason(
    store: Store, worker: Hands, recorder: Recorder
) -> None:
    (claimed,) = await claims(store, worker, 1)

    recorder.hand_over(finding(claimed, unchecked(Failed(FAILURE), message="\0")))
    await settle(recorder)

    attempt = await only_row(store, "attempt")
    assert attempt["error_type"] == "UnwritableOutcome"
    assert "PostgreSQL cannot hold what it was given" in attempt["error"]


async def test_work_that_is_done_stays_done_though_its_result_cannot_be_written(
    store: Store, worker: Hands, recorder: Recorder
) -> None:
    (claimed,) = await claims(store, worker, 1)

    recorder.hand_over(finding(claimed, unchecked(Succeeded(), result="no JSON")))
    await settle(recorder)

    row = await only_row(store, "finished")
    assert row["state"] == "succeeded"
    assert "the result was dropped" in row["result"]


async def test_an_outage_in_the_middle_of_sorting_out_loses_nothing(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    claimed = await claims(store, worker, 8)
    for number, each in enumerate(claimed):
        recorder.hand_over(finding(each, unchecked(Succeeded(), result="no JSON") if number == 3 else Succeeded()))
    written: list[str] = []

    def cut(point: str) -> None:
        written.append(point)
        if point == "finish_succeeded.after_commit" and written.count(point) == 2:
            raise StoreUnavailable("the connection was cut")

    env.fault = cut
    with pytest.raises(StoreUnavailable):
        await recorder.tick()
    await settle(recorder)

    assert len(await table(store, "finished")) == 8
    assert heard.of(OutcomeRefused) == []


async def test_a_row_that_takes_no_outcome_is_kept_aside_and_its_neighbours_go_on(
    store: Store, clock: VirtualClock, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """The fault is in the row: the history has a record of the same id and instant already, which no program has written."""
    claimed = await claims(store, worker, 4)
    bad = finding(claimed[2], Succeeded())
    async with store.database.connection() as connection:
        await connection.execute(
            """
            INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for,
                                           finished_at, attempts, lost, fence)
            SELECT id, job_id, 'succeeded', origin, version, queue, priority, handler, scheduled_for, $2, 1, 0, 1
            FROM timeball.running
            WHERE id = $1
            """,
            bad.claimed.id,
            bad.finished_at,
        )

    for each in claimed:
        recorder.hand_over(bad if each is claimed[2] else finding(each, Succeeded()))
    await settle(recorder)

    assert [row["id"] for row in await table(store, "running")] == [claimed[2].id]
    assert [event.is_replaced for event in heard.of(OutcomeUnwritable)] == [False]
    assert recorder.unrecorded() == {(claimed[2].id, claimed[2].claim_id)}, (
        "else it would be taken for a stray, and run again"
    )
    await recorder.flush()

    async with store.database.connection() as connection:
        await connection.execute("DELETE FROM timeball.finished WHERE id = $1", claimed[2].id)
    clock.advance("31s")
    await settle(recorder)

    assert await table(store, "running") == []
    assert recorder.unrecorded() == set()


async def test_the_reaper_is_not_held_up_by_one_row(store: Store, env: Env, worker: Hands) -> None:
    claimed = await claims(store, worker, 5)
    findings = [finding(each, Lost(FAILURE)) for each in claimed]
    findings[1] = finding(claimed[1], unchecked(Lost(FAILURE), message="\0"))

    await record_now(env, lambda _: None, store.executions, findings)

    assert await table(store, "running") == []


async def test_what_is_no_fault_of_the_content_is_not_taken_apart(
    store: Store, env: Env, worker: Hands, recorder: Recorder, heard: Heard
) -> None:
    """A full disk refuses everything; a success must not become anything else because of it."""
    claimed = await claims(store, worker, 4)
    for each in claimed:
        recorder.hand_over(finding(each, Succeeded()))
    async with store.database.connection() as connection:
        await connection.execute("ALTER TABLE timeball.finished RENAME TO away")

    with pytest.raises(Exception, match="finished") as caught:
        await recorder.tick()
    assert not isinstance(caught.value, UnstorableValue)
    async with store.database.connection() as connection:
        await connection.execute("ALTER TABLE timeball.away RENAME TO finished")
    await settle(recorder)

    assert len(await table(store, "finished")) == 4
    assert heard.of(OutcomeUnwritable) == []


# the log


async def test_one_line_that_cannot_be_kept_costs_the_others_nothing(
    store: Store, env: Env, heard: Heard, worker: Hands
) -> None:
    log_writer = LogWriter(env, heard, store.executions, store.history)
    (claimed,) = await claims(store, worker, 1)
    sink = log_writer.open_sink(AttemptContext(claimed, env.clock, log_writer.open_sink))
    for number in range(9):
        sink.emit_log(env.clock.now(), "info", hostile_values.LONE_SURROGATE if number == 4 else f"line {number}")
    log_writer.close_sink(claimed)

    await log_writer.flush()

    lines = [row["message"] for row in sorted(await table(store, "log_line"), key=lambda row: row["number"])]
    assert lines[4].startswith("a line of the log could not be kept: ")
    assert lines[:4] + lines[5:] == [f"line {number}" for number in range(9) if number != 4]


async def test_one_report_that_cannot_be_kept_costs_the_others_nothing(
    store: Store, env: Env, heard: Heard, worker: Hands
) -> None:
    log_writer = LogWriter(env, heard, store.executions, store.history)
    first, second = await claims(store, worker, 2)
    log_writer.add_progress(first, 0.5, hostile_values.LONE_SURROGATE)
    log_writer.add_progress(second, 0.5, "half")

    await log_writer.tick()

    assert {row["id"]: row["progress_note"] for row in await table(store, "running")} == {
        first.id: None,
        second.id: "half",
    }
