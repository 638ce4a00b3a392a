"""The time line of an execution: what it was at which instant, and how long it stayed so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.domain.execution import Attempt, Execution, ExecutionState
from timeball.insights import ExecutionView


@dataclass(frozen=True, slots=True)
class Step:
    """A state on the way, since when, and for how long; None while it lasts."""

    state: str
    at: datetime | None
    took: timedelta | None
    note: str = ""

    @property
    def ms(self) -> float | None:
        return None if self.took is None else self.took / timedelta(milliseconds=1)


def state_line(view: ExecutionView, now: datetime) -> list[Step]:
    """What an execution has been, in order, up to what it is now."""
    execution = view.execution
    steps = [Step("scheduled", execution.scheduled_for, _between(execution.scheduled_for, execution.queued_at))]
    if execution.queued_at is not None:
        steps.append(Step("queued", execution.queued_at, _between(execution.queued_at, first_start(view) or now)))
    steps += _tries(view, now)
    if execution.state is ExecutionState.RETRYING:
        steps.append(Step("retrying", execution.run_at, None, "next try"))
    if execution.state.is_final:
        steps.append(Step(execution.state.value, execution.finished_at, None, _ending(execution)))
    return steps if execution.state is not ExecutionState.SCHEDULED else steps[:1]


def _tries(view: ExecutionView, now: datetime) -> list[Step]:
    execution, failed = view.execution, [attempt for attempt in view.attempts if attempt.started_at is not None]
    steps: list[Step] = []
    if len(failed) > 1 or (failed and not execution.state.is_final):
        first, last = failed[0], failed[-1]
        steps.append(Step("running", first.started_at, _between(first.started_at, first.finished_at), "first try"))
        if len(failed) > 1:
            took = _between(first.finished_at, last.finished_at)
            steps.append(Step("retrying", first.finished_at, took, f"{len(failed) - 1} more"))
    is_last_open = execution.started_at is not None and (not failed or _is_another_try(execution, view))
    if is_last_open or (execution.started_at is not None and not steps):
        end = execution.finished_at or now
        steps.append(Step("running", execution.started_at, _between(execution.started_at, end)))
    return steps


def _is_another_try(execution: Execution, view: ExecutionView) -> bool:
    return execution.state in (ExecutionState.RUNNING, ExecutionState.SUCCEEDED) and bool(view.attempts)


def late_ms(execution: Execution, attempts: Sequence[Attempt]) -> float | None:
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


def _ending(execution: Execution) -> str:
    return f"after {execution.attempts} tries" if execution.attempts > 1 else ""
