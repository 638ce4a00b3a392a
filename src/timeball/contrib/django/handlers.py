"""A Django task as a handler: its context, Django's signals, and database connections cleaned up around it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from traceback import format_exception
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone

from timeball.contrib.django.compat import (
    AnyTask,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from timeball.contrib.django.results import (
    StoreAccess,
    TaskArguments,
    TaskRecord,
    is_last_try,
    read_record,
    result_of,
    set_fields,
)
from timeball.current import RUNNING, ControlSignal
from timeball.domain.execution import ClaimedExecution
from timeball.domain.handler import Handler, HandlerOptions
from timeball.domain.values.json_text import encode_object
from timeball.errors import TimeballError
from timeball.handlers.binding import style_of


class ResultNotKept(TypeError):
    """A task returned a value that is not JSON. By Django's contract it has failed; a retry would return the same."""


def task_handler(task: AnyTask, store: StoreAccess) -> Handler:
    """The handler of a task, under the task's path."""
    return Handler(
        name=task.module_path,
        function=task.func,
        style=style_of(task.func, isolate=False),
        binder=TaskBinder(task, store),
        options=HandlerOptions(no_retry=(ResultNotKept,)),
    )


class TaskBinder:
    """Calls one task with a stored payload."""

    def __init__(self, task: AnyTask, store: StoreAccess) -> None:
        self._task = task
        self._store = store

    @property
    def call(self) -> Callable[[str], Any]:
        """Call the task; for a coroutine function this makes the coroutine."""
        return self._arun if inspect.iscoroutinefunction(self._task.func) else self._run

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these arguments."""
        call = TaskArguments(args, kwargs)
        call.check(self._task)
        return encode_object(call.payload())

    def prepare(self) -> None:
        """Nothing to build."""

    def check(self, payload: str) -> None:
        """Raise what `call` would raise for arguments that do not fit."""
        self._decode(payload)

    def schema(self) -> dict[str, Any]:
        """The schema of a payload: any object; only a call shows whether the arguments fit."""
        return {"type": "object"}

    def _run(self, payload: str) -> Any:
        call, claimed = self._decode(payload), _claimed()
        result = self._begin(call, self._store.call_store(partial(read_record, claimed.id)))
        try:
            value = _as_json(self._task.func(*self._arguments(call, result), **call.kwargs))
        except ControlSignal:
            raise
        except Exception as error:
            # If the store cannot tell whether this was the last try, the error of the task is raised all the same.
            with suppress(TimeballError):
                if _is_final(error) or self._store.call_store(partial(is_last_try, claimed)):
                    self._fail(result, error)
            raise
        return self._succeed(result, value)

    async def _arun(self, payload: str) -> Any:
        call, claimed = self._decode(payload), _claimed()
        result = self._begin(call, await self._store.acall_store(partial(read_record, claimed.id)))
        try:
            value = _as_json(await self._task.func(*self._arguments(call, result), **call.kwargs))
        except ControlSignal:
            raise
        except Exception as error:
            with suppress(TimeballError):
                if _is_final(error) or await self._store.acall_store(partial(is_last_try, claimed)):
                    self._fail(result, error)
            raise
        return self._succeed(result, value)

    def _decode(self, payload: str) -> TaskArguments:
        call = TaskArguments.of(payload)
        call.check(self._task)
        return call

    def _arguments(self, call: TaskArguments, result: TaskResult[Any]) -> list[Any]:
        return [*([TaskContext(task_result=result)] if self._task.takes_context else []), *call.args]

    def _begin(self, call: TaskArguments, record: TaskRecord) -> TaskResult[Any]:
        result = result_of(record, self._task, call)
        set_fields(result, status=TaskResultStatus.RUNNING)
        task_started.send(self._sender, task_result=result)
        return result

    def _succeed(self, result: TaskResult[Any], value: Any) -> Any:
        # A signal such as Snooze is not a result: the task goes on later.
        if not isinstance(value, ControlSignal):
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


def _claimed() -> ClaimedExecution:
    return RUNNING.get().claimed


def _is_final(error: Exception) -> bool:
    return isinstance(error, ResultNotKept)


def _as_json(value: Any) -> Any:
    if isinstance(value, ControlSignal):
        return value
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise ResultNotKept(f"the result cannot be kept, expected JSON: {error}") from error


# connections


class ConnectionCleanup:
    """Lets a run find no stale connection of Django's, and leave none open for longer than Django would: as Django calls a view."""

    @contextmanager
    def around(self) -> Iterator[None]:
        """Look at the connections of this thread before and after."""
        reset_queries()
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        """Give the run connections of its own, and close them."""
        # Coroutines share the worker's thread. Each run gets a thread of its own for what Django does in threads, with connections
        # of its own: a transaction of one run is never that of another.
        async with ThreadSensitiveContext():
            try:
                yield
            finally:
                await sync_to_async(connections.close_all)()
