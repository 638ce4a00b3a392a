"""Django's tasks as Timeball keeps and runs them: arguments, results, and the handler of a task with its context and Django's signals.

A payload has keyword arguments under their names and positional ones in a list under `$args`. So a call is read back as it was made,
and a client that posts a job over HTTP needs to know no more than the names of the parameters.

| Django | Timeball |
|---|---|
| READY | scheduled, queued, retrying |
| RUNNING | running |
| SUCCESSFUL | succeeded |
| FAILED | dead, cancelled, skipped |

Database connections are cleaned up around every run (`ConnectionCleanup`).
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, wraps
from traceback import format_exception
from typing import Any, Protocol, TypeVar

import orjson
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone
from pydantic_core import to_jsonable_python

from timeball.contrib.django.compat import (
    AnyTask,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from timeball.contrib.django.options import function_options, in_words_of_django
from timeball.current import RUNNING, ControlSignal
from timeball.domain.execution import Attempt, ClaimedExecution, ErrorInfo, Execution, ExecutionState
from timeball.domain.handler import Handler, HandlerOptions, PayloadMismatch
from timeball.domain.values.ids import ExecutionId, Incarnation, format_execution_id, format_id, id_created_at
from timeball.domain.values.json_text import encode_object
from timeball.errors import InvalidInput, NotFound, PayloadError, TimeballError
from timeball.handlers.binding import SignatureBinder, style_of
from timeball.handlers.dependencies import with_dependencies
from timeball.handlers.registry import check_stopping
from timeball.sdk.enqueue import SdkRuntime
from timeball.sdk.inline_context import InlineRecord, inline_context
from timeball.sdk.options import handler_options

_POSITIONAL = "$args"
# The handler of the call that follows a task and tells its end; `contrib.django.ends`.
END_OF_TASK = "django.end_of_task"


@dataclass(frozen=True, slots=True)
class TaskArguments:
    """The arguments of one call, without the context that some tasks take."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def given(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskArguments:
        """The arguments of an enqueue, as JSON; by Django's contract it is a TypeError if they cannot be."""
        try:
            return cls.of(encode_object(cls(args, kwargs).payload()))
        except PayloadError as error:
            raise TypeError(
                f"{error}, expected JSON, or what becomes JSON: dates, UUIDs, Decimals, dataclasses"
            ) from error

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

    def encoded(self) -> str:
        """The payload as JSON text."""
        return encode_object(self.payload())


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


def record_of(inline: InlineRecord) -> TaskRecord:
    """An inline run as a record."""
    return TaskRecord(inline.execution, inline.attempts)


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


async def is_end_sent_here(claimed: ClaimedExecution, is_final: bool, runtime: SdkRuntime) -> bool:
    """Whether the end of a task is to be told by the worker that sees its error: it is the end, and no call follows it that tells it."""
    job = (await runtime.parts.store.jobs.find([claimed.job_id])).get(claimed.job_id)
    if job is None:
        return True
    if job.on_failure is not None and job.on_failure["handler"] == END_OF_TASK:
        return False
    return is_final or claimed.attempt - claimed.lost > job.retry.max_retries


class ResultNotKept(TypeError):
    """A task returned a value that is not JSON. By Django's contract it has failed; a retry would return the same."""


def task_handler(task: AnyTask, backend_options: Mapping[str, Any], store: StoreAccess) -> Handler:
    """The handler of a task, under the task's path, with the options of the task or else of its backend."""
    declared = function_options(task, backend_options)
    options = handler_options(declared)
    options = replace(options, no_retry=(*options.no_retry, ResultNotKept))
    style = style_of(task.func, isolate=bool(declared.get("isolate", False)))
    check_stopping(style, options)
    return Handler(
        name=task.module_path,
        function=task.func,
        style=style,
        binder=TaskBinder(task, store, options),
        options=options,
    )


class TaskBinder:
    """Calls one task with a stored payload; annotations convert its arguments, as those of a handler."""

    def __init__(self, task: AnyTask, store: StoreAccess, options: HandlerOptions | None = None) -> None:
        self._task = task
        self._options = options or HandlerOptions()
        self._store = store
        self._function = with_dependencies(task.func)
        self._arguments = SignatureBinder(_without_context(task, self._function))

    @property
    def call(self) -> Callable[[str], Any]:
        """Call the task; for a coroutine function this makes the coroutine."""
        return self._arun if inspect.iscoroutinefunction(self._task.func) else self._run

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these arguments."""
        call = TaskArguments.given(args, kwargs)
        self.bind(call)
        return call.encoded()

    def bind(self, call: TaskArguments) -> str:
        """The arguments by the names of their parameters, as JSON; PayloadMismatch if the task cannot be called with them."""
        try:
            return self._arguments.encode(call.args, call.kwargs)
        except InvalidInput as misfit:
            hint = None if misfit.hint is None else in_words_of_django(misfit.hint)
            raise PayloadMismatch(str(misfit), field="payload", hint=hint, errors=misfit.errors) from None

    def prepare(self) -> None:
        """Build what converts the arguments."""
        self._arguments.prepare()

    def check(self, payload: str) -> None:
        """Raise what `call` would raise for arguments that do not fit."""
        self._arguments.check(self.bind(TaskArguments.of(payload)))

    def schema(self) -> dict[str, Any]:
        """The schema of a payload: any object; only a call shows whether the arguments fit."""
        return {"type": "object"}

    def parameters_json_cannot_hold(self) -> Sequence[tuple[str, str]]:
        """The parameters that take values of a class of which none can be in a payload."""
        return self._arguments.parameters_json_cannot_hold()

    def _run(self, payload: str) -> Any:
        (call, converted), claimed = self._decode(payload), _claimed()
        inline = inline_context()
        record = (
            self._store.call_store(partial(read_record, claimed.id)) if inline is None else record_of(inline.record)
        )
        result = self._begin(call, record)
        try:
            value = _as_json(self._function(*self._with_context(converted.args, result), **converted.kwargs))
        except ControlSignal:
            raise
        except Exception as error:
            # If the store cannot tell whether this was the last try, the error of the task is raised all the same.
            with suppress(TimeballError):
                if inline is None:
                    is_end = self._store.call_store(partial(is_end_sent_here, claimed, self._is_final(error)))
                else:
                    is_end = inline.is_last or self._is_final(error)
                if is_end:
                    self._fail(result, error)
            raise
        return self._succeed(result, value)

    async def _arun(self, payload: str) -> Any:
        (call, converted), claimed = self._decode(payload), _claimed()
        inline = inline_context()
        read = partial(read_record, claimed.id)
        record = await self._store.acall_store(read) if inline is None else record_of(inline.record)
        result = self._begin(call, record)
        try:
            value = _as_json(await self._function(*self._with_context(converted.args, result), **converted.kwargs))
        except ControlSignal:
            raise
        except Exception as error:
            with suppress(TimeballError):
                if inline is None:
                    is_end = await self._store.acall_store(partial(is_end_sent_here, claimed, self._is_final(error)))
                else:
                    is_end = inline.is_last or self._is_final(error)
                if is_end:
                    self._fail(result, error)
            raise
        return self._succeed(result, value)

    def _is_final(self, error: Exception) -> bool:
        """Whether the error is one after which trying again is no use."""
        return not self._options.retries(type(error))

    def _decode(self, payload: str) -> tuple[TaskArguments, TaskArguments]:
        """The arguments as they were given, and as the function is called with them."""
        call = TaskArguments.of(payload)
        converted: TaskArguments = self._arguments.call(self.bind(call))
        return call, converted

    def _with_context(self, args: Sequence[Any], result: TaskResult[Any]) -> list[Any]:
        return [*([TaskContext(task_result=result)] if self._task.takes_context else []), *args]

    def _begin(self, call: TaskArguments, record: TaskRecord) -> TaskResult[Any]:
        execution = record.execution
        if inline_context() is not None and execution.attempts == 1:
            # Inline, the enqueue returns after the end: it cannot send this in time.
            waiting = replace(execution, state=ExecutionState.QUEUED, attempts=0, started_at=None)
            task_enqueued.send(self._sender, task_result=result_of(TaskRecord(waiting), self._task, call))
        result = result_of(record, self._task, call)
        set_fields(result, status=TaskResultStatus.RUNNING)
        task_started.send(self._sender, task_result=result)
        return result

    def _succeed(self, result: TaskResult[Any], value: Any) -> Any:
        # A signal such as Snooze is not a result: the task goes on later.
        # And what a task returns that was told to stop may come too late to count.
        if not isinstance(value, ControlSignal) and not RUNNING.get().is_halted:
            set_fields(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
            task_finished.send(self._sender, task_result=result)
        return value

    def _fail(self, result: TaskResult[Any], error: Exception) -> None:
        kind = type(error)
        task_error = TaskError(
            exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
        )
        set_fields(
            result, status=TaskResultStatus.FAILED, finished_at=timezone.now(), errors=[*result.errors, task_error]
        )
        task_finished.send(self._sender, task_result=result)

    @property
    def _sender(self) -> type:
        return type(self._task.get_backend())


def _without_context(task: AnyTask, function: Callable[..., Any]) -> Callable[..., TaskArguments]:
    """A function with the parameters of the task's *function* but its context, which returns the arguments of a call."""

    @wraps(task.func)
    def collect(*args: Any, **kwargs: Any) -> TaskArguments:
        return TaskArguments(args, kwargs)

    signature = inspect.signature(function)
    own = list(signature.parameters.values())[1 if task.takes_context else 0 :]
    collect.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return collect


def _claimed() -> ClaimedExecution:
    return RUNNING.get().claimed


def _as_json(value: Any) -> Any:
    if isinstance(value, ControlSignal):
        return value
    try:
        return to_jsonable_python(value)
    except (TypeError, ValueError) as error:
        raise ResultNotKept(f"the result cannot be kept, expected JSON: {error}") from error


# connections


class ConnectionCleanup:
    """Lets a run find no stale connection of Django's, and leave none open for longer than Django would: as Django calls a view."""

    def __init__(self, *, closes_all: bool = False) -> None:
        self._closes_all = closes_all

    @contextmanager
    def around(self) -> Iterator[None]:
        """Look at the connections of this thread before and after."""
        if inline_context() is not None:  # the connections are the caller's, and so are the queries
            yield
            return
        reset_queries()
        close_old_connections()
        try:
            yield
        finally:
            if self._closes_all:
                connections.close_all()
            else:
                close_old_connections()

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        """Give the run connections of its own, and close them."""
        if inline_context() is not None:
            yield
            return
        # Coroutines share the worker's thread. Each run gets a thread of its own for what Django does in threads, with connections
        # of its own: a transaction of one run is never that of another.
        async with ThreadSensitiveContext():
            try:
                yield
            finally:
                await sync_to_async(connections.close_all)()
