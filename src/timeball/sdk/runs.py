"""`Run`: what `enqueue` gives back, a hold on one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property, partial
from inspect import unwrap
from typing import Any, Generic, TypeVar, get_type_hints

import orjson
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_job_id
from timeball.domain.values.wording import Duration, format_duration, parse_duration
from timeball.errors import ExecutionFailed, NotFound, PayloadError, ResultTimeout
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.enqueue import SdkRuntime

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.2
_PAUSES_GROW_BY = 1.5
# How much longer than its timeout a wait may take, because the database does not answer.
_GRACE_SECONDS = 2.0

R = TypeVar("R")


class Run(Generic[R]):
    """One execution, seen by whoever enqueued it. Every verb has a twin for coroutines, with an `a` before its name."""

    __slots__ = ("_convert", "_execution_id", "_is_committed", "_job_id", "_portal", "is_new")

    def __init__(
        self,
        background_loop: BackgroundLoop[SdkRuntime],
        execution_id: ExecutionId,
        job_id: JobId,
        *,
        is_new: bool = True,
        is_committed: bool = True,
        convert: Callable[[Any], R] | None = None,
    ) -> None:
        self._portal = background_loop
        self._execution_id = execution_id
        self._job_id = job_id
        # False when an execution with the same key was unfinished: then this is that one.
        self.is_new = is_new
        self._is_committed = is_committed
        self._convert = convert

    @property
    def id(self) -> str:
        """The execution's id, `exe_...`."""
        return format_execution_id(self._execution_id)

    @property
    def job_id(self) -> str:
        """The id of its job, `job_...`."""
        return format_job_id(self._job_id)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the execution has ended, and return what its handler returned.

        Raises ExecutionFailed if it did not succeed, and ResultTimeout if it has not ended in time; it goes on then.
        """
        return self._portal.call(partial(self._wait, _seconds(timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Like `result`, for coroutines."""
        return await self._portal.acall(partial(self._wait, _seconds(timeout)))

    def state(self) -> ExecutionState:
        """Where the execution is now; NotFound if its transaction is not committed, or its history has been trimmed."""
        return self._portal.call(self._look).state

    async def astate(self) -> ExecutionState:
        """Like `state`, for coroutines."""
        return (await self._portal.acall(self._look)).state

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel the execution if it waits, ask it to stop if it runs; False if it has ended already."""
        return self._portal.call(partial(self._cancel, reason))

    async def acancel(self, reason: str | None = None) -> bool:
        """Like `cancel`, for coroutines."""
        return await self._portal.acall(partial(self._cancel, reason))

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other._execution_id == self._execution_id

    def __hash__(self) -> int:
        return hash(self._execution_id)

    # in the portal's loop

    async def _wait(self, seconds: float | None, runtime: SdkRuntime) -> R:
        try:
            async with asyncio.timeout(None if seconds is None else seconds + _GRACE_SECONDS):
                return self._value(await self._ended(seconds, runtime))
        except TimeoutError:
            raise ResultTimeout(f"the database has not told within {seconds:g} s what became of {self.id}") from None

    async def _ended(self, seconds: float | None, runtime: SdkRuntime) -> Execution:
        """Look again and again, at growing distances."""
        clock = asyncio.get_running_loop().time
        started, pause = clock(), _FIRST_PAUSE
        while True:
            found = await self._find(runtime)
            if found is not None and found.state.is_final:
                return found
            left = _LONGEST_PAUSE if seconds is None else seconds - (clock() - started)
            if left <= 0:
                raise self._timed_out(seconds or 0, found)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _PAUSES_GROW_BY, _LONGEST_PAUSE)

    async def _find(self, runtime: SdkRuntime) -> Execution | None:
        found = await runtime.parts.store.history.find(self._execution_id)
        if found is None and self._is_committed:
            raise NotFound("execution", self.id)
        return found

    async def _look(self, runtime: SdkRuntime) -> Execution:
        found = await self._find(runtime)
        if found is None:
            raise NotFound("execution", self.id)
        return found

    async def _cancel(self, reason: str | None, runtime: SdkRuntime) -> bool:
        reached = await runtime.commands.executions.cancel([self._execution_id], runtime.actor(reason))
        return self._execution_id in reached

    def _value(self, ended: Execution) -> R:
        if ended.state is not ExecutionState.SUCCEEDED:
            raise ExecutionFailed(self.id, ended.state.value, _words(ended))
        why_dropped = _why_dropped(ended.result)
        if why_dropped is not None:
            raise PayloadError(f"execution {self.id} has succeeded, but {why_dropped}", field="result")
        value: R = ended.result if self._convert is None else self._convert(ended.result)
        return value

    def _timed_out(self, seconds: float, found: Execution | None) -> ResultTimeout:
        span = format_duration(parse_duration(seconds))
        if found is None:
            return ResultTimeout(f"after {span} {self.id} is not there; has its transaction been committed?")
        error = ResultTimeout(f"after {span} {self.id} is still {found.state.value}")
        if found.state is ExecutionState.QUEUED:
            error.hint = f"does a worker serve queue {found.queue!r} and know {found.handler}? timeball worker app:tb"
        return error


class ResultConverter:
    """Turns results, which are kept as JSON, back into what a function is annotated to return.

    Where there is no such annotation, or a result does not fit it, the JSON value is given as it is: a type in a program
    is a promise of its author, and breaking it is no reason to withhold the result.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        return _adapter_for(self._function)

    def __call__(self, value: Any) -> Any:
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_json(orjson.dumps(value))
        except ValidationError:
            return value


def _adapter_for(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    try:
        hint = get_type_hints(unwrap(function), include_extras=True).get("return", Any)
        return None if hint in (Any, type(None)) else TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError, AttributeError):
        return None


def _why_dropped(result: Any) -> str | None:
    """The note that stands in the place of a result which could not be kept."""
    return result["$timeball"] if isinstance(result, dict) and result.keys() == {"$timeball"} else None


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout, "timeout").total_seconds()


def _words(ended: Execution) -> str | None:
    if ended.error is None:
        return ended.reason
    return f"{ended.error_type}: {ended.error}" if ended.error_type else ended.error
