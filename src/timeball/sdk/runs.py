"""`Run`: one execution, as `enqueue` returns it to a program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import cached_property, partial
from inspect import unwrap
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

import orjson
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from timeball.current import OwnSlot
from timeball.domain.execution import Execution, ExecutionState, Progress
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_job_id
from timeball.domain.values.json_text import missing_result
from timeball.domain.values.wording import Duration, format_duration, parse_duration
from timeball.errors import ExecutionFailed, NotFound, PayloadError, ResultTimeout
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.enqueue import SdkRuntime

if TYPE_CHECKING:
    from timeball.sdk.pages import RunInfo

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.2
_PAUSES_GROW_BY = 1.5
# How much longer than its timeout a wait may take while the database does not answer.
_GRACE_SECONDS = 2.0

R = TypeVar("R")


class Run(Generic[R]):
    """One execution: ask for its state, wait for its result, or cancel it.

    `enqueue` returns it, and `tb.get_run(id)` finds it again, in another process for example. `is_new` is False if the enqueue had a
    key and an execution with the same key was unfinished: then this run is that execution. Methods for coroutines have an `a` before
    their names.
    """

    __slots__ = ("_background_loop", "_convert", "_execution_id", "_is_committed", "_job_id", "is_new")

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
        self._background_loop = background_loop
        self._execution_id = execution_id
        self._job_id = job_id
        self.is_new = is_new
        self._is_committed = is_committed
        self._convert = convert

    @property
    def id(self) -> str:
        """The id of the execution, `exe_...`."""
        return format_execution_id(self._execution_id)

    @property
    def job_id(self) -> str:
        """The id of the job, `job_...`."""
        return format_job_id(self._job_id)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the execution has ended, through all its retries, and return what the handler returned.

        The value is converted to the type that the handler is annotated to return. Raises ExecutionFailed if the execution ended
        otherwise than by success, and ResultTimeout if it has not ended within *timeout* (`30s`, seconds or a timedelta); the
        execution is not cancelled then. Without *timeout* this waits for ever.

        A handler that waits here lends its slot to other executions meanwhile, so that what it waits for can run in it.
        """
        return self._background_loop.wait(partial(self._wait, _seconds(timeout), OwnSlot()))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Like `result`, for coroutines."""
        return await self._background_loop.acall(partial(self._wait, _seconds(timeout), OwnSlot()))

    def __await__(self) -> Generator[Any, None, R]:
        """`await run` is `await run.aresult()`."""
        return self.aresult().__await__()

    def state(self) -> ExecutionState:
        """The state now: `queued`, `running`, `succeeded`, ...; NotFound if it is not committed yet, or past its retention."""
        return self._background_loop.call(self._look).state

    async def astate(self) -> ExecutionState:
        """Like `state`, for coroutines."""
        return (await self._background_loop.acall(self._look)).state

    def info(self) -> RunInfo:
        """All that is known of the execution now: state, times, attempts, error, meta, progress; NotFound as `state` raises it."""
        return self._background_loop.call(self._info)

    async def ainfo(self) -> RunInfo:
        """Like `info`, for coroutines."""
        return await self._background_loop.acall(self._info)

    def progress(self) -> Progress | None:
        """How far the handler says it is, `fraction` from 0 to 1 and a `note`; None while it does not run, or says nothing."""
        return self._background_loop.call(self._look).progress

    async def aprogress(self) -> Progress | None:
        """Like `progress`, for coroutines."""
        return (await self._background_loop.acall(self._look)).progress

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel the execution if it waits, ask it to stop if it runs; False if it has ended before. *reason* is kept with it."""
        return self._background_loop.call(partial(self._cancel, reason))

    async def acancel(self, reason: str | None = None) -> bool:
        """Like `cancel`, for coroutines."""
        return await self._background_loop.acall(partial(self._cancel, reason))

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other._execution_id == self._execution_id

    def __hash__(self) -> int:
        return hash(self._execution_id)

    # in the background loop

    async def _wait(self, seconds: float | None, slot: OwnSlot, runtime: SdkRuntime) -> R:
        try:
            async with asyncio.timeout(None if seconds is None else seconds + _GRACE_SECONDS):
                value: R = execution_value(await self._ended(seconds, slot, runtime), self._convert)
                return value
        except TimeoutError:
            raise ResultTimeout(f"no answer from the database about {self.id} within {seconds:g} s") from None

    async def _ended(self, seconds: float | None, slot: OwnSlot, runtime: SdkRuntime) -> Execution:
        execution = await self._find(runtime)
        if execution is not None and execution.state.is_final:
            return execution
        with slot.lent():
            return await self._end_of(execution, seconds, runtime)

    async def _end_of(self, execution: Execution | None, seconds: float | None, runtime: SdkRuntime) -> Execution:
        """Ask again and again, at growing intervals."""
        clock = asyncio.get_running_loop().time
        started, pause = clock(), _FIRST_PAUSE
        while True:
            left = _LONGEST_PAUSE if seconds is None else seconds - (clock() - started)
            if left <= 0:
                raise self._timed_out(seconds or 0, execution)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _PAUSES_GROW_BY, _LONGEST_PAUSE)
            execution = await self._find(runtime)
            if execution is not None and execution.state.is_final:
                return execution

    async def _find(self, runtime: SdkRuntime) -> Execution | None:
        execution = await runtime.parts.store.history.find(self._execution_id)
        if execution is None and self._is_committed:
            raise NotFound("execution", self.id)
        return execution

    async def _look(self, runtime: SdkRuntime) -> Execution:
        execution = await self._find(runtime)
        if execution is None:
            raise NotFound("execution", self.id)
        return execution

    async def _info(self, runtime: SdkRuntime) -> RunInfo:
        # Here and not above: most programs only enqueue, and the models of the API take a while to import.
        from timeball.sdk.pages import info_of

        return info_of(await self._look(runtime))

    async def _cancel(self, reason: str | None, runtime: SdkRuntime) -> bool:
        cancelled = await runtime.commands.executions.cancel([self._execution_id], runtime.actor(reason))
        return self._execution_id in cancelled

    def _timed_out(self, seconds: float, execution: Execution | None) -> ResultTimeout:
        span = format_duration(parse_duration(seconds))
        if execution is None:
            return ResultTimeout(f"after {span} {self.id} is not there; has its transaction been committed?")
        error = ResultTimeout(f"after {span} {self.id} is still {execution.state.value}")
        if execution.state is ExecutionState.QUEUED:
            error.hint = (
                f"does a worker serve queue {execution.queue!r} and know {execution.handler}? timeball worker app:tb"
            )
        return error


def execution_value(ended: Execution, convert: Callable[[Any], Any] | None) -> Any:
    """What the handler of an execution that has ended returned; ExecutionFailed if it did not succeed."""
    id_ = format_execution_id(ended.id)
    if ended.state is not ExecutionState.SUCCEEDED:
        raise ExecutionFailed(id_, ended.state.value, _error_text(ended))
    why_missing = missing_result(ended.result)
    if why_missing is not None:
        raise PayloadError(f"execution {id_} has succeeded, but {why_missing}", field="result")
    return ended.result if convert is None else convert(ended.result)


class ResultConverter:
    """Turns results, which are kept as JSON, back into the type that a function is annotated to return.

    Without such an annotation, and if a result does not fit it, the JSON value is returned as it is: a wrong annotation is no reason
    to withhold a result.
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


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout, "timeout").total_seconds()


def _error_text(ended: Execution) -> str | None:
    if ended.error is None:
        return ended.reason
    return f"{ended.error_type}: {ended.error}" if ended.error_type else ended.error
