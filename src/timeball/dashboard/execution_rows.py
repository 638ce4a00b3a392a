"""Executions as tables show them, and the state history of one execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from timeball.api.documents import execution_document
from timeball.application.queries.executions import ExecutionView
from timeball.dashboard.context import PageContext
from timeball.domain.execution import Attempt, Execution, ExecutionState


@dataclass(frozen=True, slots=True)
class StatePeriod:
    """A state on the way, since when, and for how long; None while it lasts."""

    state: str
    at: datetime | None
    took: timedelta | None
    note: str = ""

    @property
    def ms(self) -> float | None:
        return None if self.took is None else self.took / timedelta(milliseconds=1)


def state_history(view: ExecutionView, now: datetime) -> list[StatePeriod]:
    """What an execution has been, in order, up to what it is now."""
    execution = view.execution
    steps = [StatePeriod("scheduled", execution.scheduled_for, _between(execution.scheduled_for, execution.queued_at))]
    if execution.queued_at is not None:
        steps.append(
            StatePeriod("queued", execution.queued_at, _between(execution.queued_at, first_start(view) or now))
        )
    steps += _attempt_periods(view, now)
    if execution.state is ExecutionState.RETRYING:
        steps.append(StatePeriod("retrying", execution.run_at, None, "next try"))
    if execution.state.is_final:
        steps.append(StatePeriod(execution.state.value, execution.finished_at, None, _attempts_note(execution)))
    return steps if execution.state is not ExecutionState.SCHEDULED else steps[:1]


def _attempt_periods(view: ExecutionView, now: datetime) -> list[StatePeriod]:
    execution, failed = view.execution, [attempt for attempt in view.attempts if attempt.started_at is not None]
    steps: list[StatePeriod] = []
    if len(failed) > 1 or (failed and not execution.state.is_final):
        first, last = failed[0], failed[-1]
        steps.append(
            StatePeriod("running", first.started_at, _between(first.started_at, first.finished_at), "first try")
        )
        if len(failed) > 1:
            took = _between(first.finished_at, last.finished_at)
            steps.append(StatePeriod("retrying", first.finished_at, took, f"{len(failed) - 1} more"))
    is_last_open = execution.started_at is not None and (not failed or _is_further_attempt(execution, view))
    if is_last_open or (execution.started_at is not None and not steps):
        end = execution.finished_at or now
        steps.append(StatePeriod("running", execution.started_at, _between(execution.started_at, end)))
    return steps


def _is_further_attempt(execution: Execution, view: ExecutionView) -> bool:
    return execution.state in (ExecutionState.RUNNING, ExecutionState.SUCCEEDED) and bool(view.attempts)


def first_start_lateness_ms(execution: Execution, attempts: Sequence[Attempt]) -> float | None:
    """How long after its instant the first try began; a retry that waited for its turn was not late."""
    late = _between(execution.scheduled_for, min(_starts(execution, attempts), default=None))
    return None if late is None else late / timedelta(milliseconds=1)


def first_start(view: ExecutionView) -> datetime | None:
    """When the first try began; when it ended, if nothing of it ever ran."""
    return min(_starts(view.execution, view.attempts), default=view.execution.finished_at)


def _starts(execution: Execution, attempts: Sequence[Attempt]) -> list[datetime]:
    known = [execution.started_at, *(attempt.started_at for attempt in attempts)]
    return [at for at in known if at is not None]


def _between(start: datetime | None, end: datetime | None) -> timedelta | None:
    return None if start is None or end is None else max(end - start, timedelta(0))


def _attempts_note(execution: Execution) -> str:
    return f"after {execution.attempts} tries" if execution.attempts > 1 else ""


async def named_execution_rows(context: PageContext, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as they are shown, each with the name of its job."""
    names = await context.site.queries.jobs.names([one.job_id for one in executions])
    rows = await execution_rows(context, executions)
    return [row | {"job_name": names.get(one.job_id)} for one, row in zip(executions, rows, strict=True)]


async def execution_rows(context: PageContext, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as they are shown; late is the first start, and a retry that waited for its turn was not."""
    tried = await context.site.queries.executions.attempts([one for one in executions if _has_earlier_attempts(one)])
    return [
        execution_document(one) | {"lateness_ms": first_start_lateness_ms(one, tried.get(one.id, ()))}
        for one in executions
    ]


def _has_earlier_attempts(execution: Execution) -> bool:
    return execution.attempts + execution.lost > 1 or execution.state is ExecutionState.RETRYING
