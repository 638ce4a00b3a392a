"""Executions as Django shows the results of tasks.

| Django | Timeball |
|---|---|
| READY | scheduled, queued, retrying |
| RUNNING | running |
| SUCCESSFUL | succeeded |
| FAILED | dead, cancelled, skipped |
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from timeball.contrib.django.calls import Call
from timeball.contrib.django.frameworks import AnyTask, TaskError, TaskResult, TaskResultStatus
from timeball.domain.execution import Attempt, ErrorInfo, Execution, ExecutionState
from timeball.domain.ids import Incarnation, made_at, show, show_execution

_STATUS: Mapping[ExecutionState, str] = {
    ExecutionState.SCHEDULED: "READY",
    ExecutionState.QUEUED: "READY",
    ExecutionState.RETRYING: "READY",
    ExecutionState.RUNNING: "RUNNING",
    ExecutionState.SUCCEEDED: "SUCCESSFUL",
    ExecutionState.DEAD: "FAILED",
    ExecutionState.CANCELLED: "FAILED",
    ExecutionState.SKIPPED: "FAILED",
}
# What ended an attempt from outside is no exception that anybody raised; Django wants the path of one.
_PATHS = {
    "TimedOut": "builtins.TimeoutError",
    "Timeout": "builtins.TimeoutError",
    "CancelledError": "asyncio.CancelledError",
    "Retry": "timeball.outcomes.Retry",
}
_OTHER_PATH = "timeball.errors.ExecutionFailed"
_BUILT_IN = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))


@dataclass(frozen=True, slots=True)
class Record:
    """An execution with its unsuccessful tries."""

    execution: Execution
    attempts: Sequence[Attempt] = ()

    def workers(self) -> list[str]:
        """Who has tried it, in order; the one that runs it, or has ended it well, is the last."""
        tried = [attempt.worker for attempt in self.attempts]
        if self.execution.attempts > len(tried):
            tried.append(self.execution.worker)
        return [_show_worker(worker) for worker in tried if worker is not None]

    def starts(self) -> list[datetime]:
        """When it was tried."""
        found = (*(attempt.started_at for attempt in self.attempts), self.execution.started_at)
        return sorted({instant for instant in found if instant is not None})


def new_result(task: AnyTask, execution_id: str, call: Call, enqueued_at: datetime | None) -> TaskResult[Any]:
    """The result of a task that has just been enqueued."""
    return TaskResult(
        task=task,
        id=execution_id,
        status=TaskResultStatus(_STATUS[ExecutionState.QUEUED]),
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(call.args),
        kwargs=dict(call.kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def result_of(record: Record, task: AnyTask, call: Call) -> TaskResult[Any]:
    """The result of a task as it stands."""
    execution, starts = record.execution, record.starts()
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=show_execution(execution.id),
        status=TaskResultStatus(_STATUS[execution.state]),
        enqueued_at=made_at(execution.id),
        started_at=starts[0] if starts else None,
        finished_at=execution.finished_at,
        last_attempted_at=starts[-1] if starts else None,
        args=list(call.args),
        kwargs=dict(call.kwargs),
        backend=task.backend,
        errors=[_error_of(attempt.error) for attempt in record.attempts if attempt.error is not None],
        worker_ids=record.workers(),
    )
    amend(result, _return_value=execution.result)
    return result


def amend(result: TaskResult[Any], **changes: Any) -> None:
    """Write into a result, which Django has frozen against everybody but backends."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def _error_of(error: ErrorInfo) -> TaskError:
    return TaskError(
        exception_class_path=_path_of(error.type), traceback=error.traceback or f"{error.type}: {error.message}\n"
    )


def _path_of(kind: str) -> str:
    """The path of an exception's class; those of Python's own bear no module here."""
    if "." in kind:
        return kind
    return _PATHS.get(kind) or (f"builtins.{kind}" if kind in _BUILT_IN else _OTHER_PATH)


def _show_worker(worker: Incarnation) -> str:
    return show("wrk", worker)
