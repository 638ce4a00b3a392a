"""The time line of an execution: every state it has been in, in order, and how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from timeball.application.queries.executions import ExecutionView
from timeball.dashboard.pages.executions import first_start_lateness_ms, state_history
from timeball.domain.execution import Attempt, ErrorInfo, Execution, ExecutionState, Origin
from timeball.domain.values.ids import ExecutionId, JobId

START = datetime(2026, 11, 16, 10, tzinfo=UTC)
ID = UUID(int=7)
EXECUTION = Execution(
    id=ExecutionId(ID),
    job_id=JobId(ID),
    state=ExecutionState.SCHEDULED,
    origin=Origin.SCHEDULE,
    version=1,
    queue="default",
    priority=50,
    handler="test.echo",
    created_by=None,
    scheduled_for=START,
    run_at=START,
    queued_at=None,
    started_at=None,
    finished_at=None,
    attempts=0,
    lost=0,
    fence=0,
    worker=None,
    result=None,
    error_type=None,
    error=None,
    reason=None,
    retry_of=None,
    limit_key=None,
    unique_key=None,
)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def failed(number: int, start: float, end: float) -> Attempt:
    return Attempt(
        execution_id=EXECUTION.id,
        fence=number,
        number=number,
        worker=None,
        started_at=after(start),
        finished_at=after(end),
        outcome="failed",
        error=ErrorInfo(type="ValueError", message="no"),
    )


def seen(tries: list[Attempt], **fields: Any) -> ExecutionView:
    return ExecutionView(replace(EXECUTION, **fields), tries, "{}", None, None)


def words(view: ExecutionView) -> list[tuple[str, float | None]]:
    return [(step.state, step.ms) for step in state_history(view, after(60))]


def test_what_waits_for_its_time_is_scheduled() -> None:
    assert words(seen([])) == [("scheduled", None)]


def test_what_waits_for_a_worker_is_queued_until_now() -> None:
    view = seen([], state=ExecutionState.QUEUED, queued_at=after(1))

    assert words(view) == [("scheduled", 1_000), ("queued", 59_000)]


def test_what_succeeded_at_once() -> None:
    view = seen(
        [],
        state=ExecutionState.SUCCEEDED,
        queued_at=after(0),
        started_at=after(2),
        finished_at=after(5),
        attempts=1,
    )

    assert words(view) == [("scheduled", 0), ("queued", 2_000), ("running", 3_000), ("succeeded", None)]
    assert first_start_lateness_ms(view.execution, view.attempts) == 2_000


def test_what_died_after_three_tries_tells_how_long_it_was_retried() -> None:
    tries = [failed(1, 1, 2), failed(2, 12, 13), failed(3, 33, 34)]
    view = seen(
        tries,
        state=ExecutionState.DEAD,
        queued_at=after(0),
        started_at=after(33),
        finished_at=after(34),
        attempts=3,
    )

    expected = [("scheduled", 0), ("queued", 1_000), ("running", 1_000), ("retrying", 32_000), ("dead", None)]
    assert words(view) == expected
    # The retries waited for their turn; only the first try could be late.
    assert first_start_lateness_ms(view.execution, view.attempts) == 1_000


def test_what_waits_for_its_next_try_says_when() -> None:
    view = seen([failed(1, 1, 2)], state=ExecutionState.RETRYING, queued_at=after(0), run_at=after(90), attempts=1)

    steps = state_history(view, after(60))
    assert [step.state for step in steps] == ["scheduled", "queued", "running", "retrying"]
    assert steps[-1].at == after(90)


def test_what_was_cancelled_before_it_ran_has_no_run() -> None:
    view = seen([], state=ExecutionState.CANCELLED, queued_at=after(0), finished_at=after(9))

    assert words(view) == [("scheduled", 0), ("queued", 9_000), ("cancelled", None)]
    assert first_start_lateness_ms(view.execution, view.attempts) is None
