"""The arguments and results of tasks, as Django shows them and as the store keeps them.

A payload has keyword arguments under their names and positional ones in a list under `$args`. So a call is read back as it was made,
and a client that posts a job over HTTP needs to know no more than the names of the parameters.

| Django | Timeball |
|---|---|
| READY | scheduled, queued, retrying |
| RUNNING | running |
| SUCCESSFUL | succeeded |
| FAILED | dead, cancelled, skipped |
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import orjson

from timeball.contrib.django.compat import AnyTask, TaskError, TaskResult, TaskResultStatus
from timeball.domain.execution import Attempt, ClaimedExecution, ErrorInfo, Execution, ExecutionState
from timeball.domain.handler import PayloadMismatch
from timeball.domain.values.ids import ExecutionId, Incarnation, format_execution_id, format_id, id_created_at, shard_of
from timeball.domain.wakeup import Wakeup
from timeball.errors import NotFound
from timeball.handlers.payloads import arguments_mismatch
from timeball.sdk.enqueue import SdkRuntime
from timeball.store.db.notifier import WAKEUP_MARGIN

_POSITIONAL = "$args"


@dataclass(frozen=True, slots=True)
class TaskArguments:
    """The arguments of one call, without the context that some tasks take."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, payload: str) -> TaskArguments:
        """The arguments in a payload."""
        document = orjson.loads(payload) or {}
        if not isinstance(document, dict) or not isinstance(document.get(_POSITIONAL, []), list):
            raise PayloadMismatch(
                "the payload is not an object, expected the arguments by their names", field="payload"
            )
        return cls(document.pop(_POSITIONAL, []), document)

    def payload(self) -> dict[str, Any]:
        """The payload for these arguments."""
        return ({_POSITIONAL: list(self.args)} if self.args else {}) | dict(self.kwargs)

    def check(self, task: AnyTask) -> None:
        """Refuse arguments that the task cannot be called with."""
        signature = inspect.signature(task.func)
        context = (None,) if task.takes_context else ()
        try:
            signature.bind(*context, *self.args, **self.kwargs)
        except TypeError:
            own = tuple(signature.parameters.values())[len(context) :]
            misfit = arguments_mismatch(task.func, own, self.args, self.kwargs)
            raise PayloadMismatch(str(misfit), field="payload", hint=misfit.hint, errors=misfit.errors) from None


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


# An attempt that was ended from outside raised no exception; Django shows the path of one for every error.
_EXCEPTION_PATHS = {
    "TimedOut": "builtins.TimeoutError",
    "Timeout": "builtins.TimeoutError",
    "CancelledError": "asyncio.CancelledError",
    "Retry": "timeball.current.Retry",
}
_DEFAULT_EXCEPTION_PATH = "timeball.errors.ExecutionFailed"
_BUILT_IN = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """An execution with its unsuccessful attempts."""

    execution: Execution
    attempts: Sequence[Attempt] = ()

    def workers(self) -> list[str]:
        """The workers of all attempts, in order; the last one runs it, or has ended it."""
        workers = [attempt.worker for attempt in self.attempts]
        if self.execution.attempts > len(workers):
            workers.append(self.execution.worker)
        return [_show_worker(worker) for worker in workers if worker is not None]

    def starts(self) -> list[datetime]:
        """The starts of all attempts, in order."""
        starts = (*(attempt.started_at for attempt in self.attempts), self.execution.started_at)
        return sorted({instant for instant in starts if instant is not None})


def new_result(task: AnyTask, execution_id: str, call: TaskArguments, enqueued_at: datetime | None) -> TaskResult[Any]:
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


def result_of(record: TaskRecord, task: AnyTask, call: TaskArguments) -> TaskResult[Any]:
    """The result of a task so far."""
    execution, starts = record.execution, record.starts()
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=format_execution_id(execution.id),
        status=TaskResultStatus(_STATUS[execution.state]),
        enqueued_at=id_created_at(execution.id),
        started_at=starts[0] if starts else None,
        finished_at=execution.finished_at,
        last_attempted_at=starts[-1] if starts else None,
        args=list(call.args),
        kwargs=dict(call.kwargs),
        backend=task.backend,
        errors=[_error_of(attempt.error) for attempt in record.attempts if attempt.error is not None],
        worker_ids=record.workers(),
    )
    set_fields(result, _return_value=execution.result)
    return result


def set_fields(result: TaskResult[Any], **changes: Any) -> None:
    """Set fields of a result: Django freezes it for all but backends."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def _error_of(error: ErrorInfo) -> TaskError:
    return TaskError(
        exception_class_path=_path_of(error.type), traceback=error.traceback or f"{error.type}: {error.message}\n"
    )


def _path_of(kind: str) -> str:
    """The path of an exception's class; the store keeps built-in ones without their module."""
    if "." in kind:
        return kind
    return _EXCEPTION_PATHS.get(kind) or (f"builtins.{kind}" if kind in _BUILT_IN else _DEFAULT_EXCEPTION_PATH)


def _show_worker(worker: Incarnation) -> str:
    return format_id("wrk", worker)


# reading tasks from the store

T = TypeVar("T")


class StoreAccess(Protocol):
    """Runs work on the store, for a thread or for a coroutine."""

    def call_store(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Wait for the result."""

    async def acall_store(self, work: Callable[[SdkRuntime], Coroutine[Any, Any, T]]) -> T:
        """Await the result."""


async def read_record(execution_id: ExecutionId, runtime: SdkRuntime) -> TaskRecord:
    """An execution with its unsuccessful attempts; NotFound if it does not exist, or is not committed yet."""
    history = runtime.parts.store.history
    execution = await history.find(execution_id)
    if execution is None:
        raise NotFound("execution", format_execution_id(execution_id))
    return TaskRecord(execution, await history.attempts(execution_id) if execution.attempts else ())


async def read_with_payload(execution_id: ExecutionId, runtime: SdkRuntime) -> tuple[TaskRecord, str]:
    """A record with the payload of the execution, or else of its job's version; `{}` if the job is gone."""
    record = await read_record(execution_id, runtime)
    return record, await runtime.parts.store.history.payload(execution_id) or "{}"


async def is_last_try(claimed: ClaimedExecution, runtime: SdkRuntime) -> bool:
    """Whether no retry follows if this attempt fails."""
    job = (await runtime.parts.store.jobs.find([claimed.job_id])).get(claimed.job_id)
    return job is None or claimed.attempt - claimed.lost > job.retry.max_retries


async def announce(
    execution_id: ExecutionId, queue: str, priority: int, run_at: datetime | None, runtime: SdkRuntime
) -> None:
    """Wake workers, or the scheduler, after the transaction of an enqueue; without this they find the job within a second."""
    store, wakeup = runtime.parts.store, Wakeup()
    if run_at is None:
        wakeup.add_lane(queue, priority, await runtime.now() - WAKEUP_MARGIN, 1, execution_id)
    else:
        wakeup.add_shard(shard_of(execution_id, store.shards), run_at)
    store.notifier.tell(wakeup)
