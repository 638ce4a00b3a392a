"""`InlineRun`, and how the handler of an enqueue is called inline; `sdk/inline.py` says what that means."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from timeball.current import RUNNING, AttemptContext, ControlSignal
from timeball.domain.execution import (
    Attempt,
    CancelOutcome,
    ClaimedExecution,
    ErrorInfo,
    Execution,
    ExecutionState,
    Failed,
    Origin,
    Outcome,
    Progress,
    Snoozed,
    Succeeded,
)
from timeball.domain.expiry import Expiry
from timeball.domain.follow_ups import CALL_FIELDS, GroupState, GroupStatus
from timeball.domain.handler import Handler
from timeball.domain.job import Job, check_group_work, define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.lifecycle import AttemptFacts, Finish, decide
from timeball.domain.payload_references import CauseRecord, ReferenceValues, resolve_references
from timeball.domain.policies import SkipReason
from timeball.domain.scheduling.schedule import Once
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId
from timeball.domain.values.json_text import to_json
from timeball.domain.values.wording import Duration, format_duration
from timeball.engine.runners.failure_log import AttemptFailure, failure_of, log_failure
from timeball.engine.runners.outcome import outcome_of_error, outcome_of_return
from timeball.env import Env
from timeball.errors import ExecutionFailed, InlineOnly, InvalidInput, ResultTimeout
from timeball.handlers.binding import is_async
from timeball.handlers.registry import invoke
from timeball.sdk.enqueue import EnqueueRequest
from timeball.sdk.groups import InlineGroupRun
from timeball.sdk.inline import MOST_KEPT, InlinePolicy, InlineScope
from timeball.sdk.inline_context import InlineContext, InlineRecord, inline_context
from timeball.sdk.inline_groups import InlineStep, Steps, end_of_group, steps_of
from timeball.sdk.runs import Run, execution_value

if TYPE_CHECKING:
    from timeball.sdk.enqueue import EnqueueClient
    from timeball.sdk.pages import RunInfo

Answer = TypeVar("Answer")
Convert = Callable[[Any], Any] | None

# Each level takes some frames of the caller's stack, of which Python allows a thousand.
_MOST_NESTED = 30
# There is no schedule to divide.
_SHARDS = 1


class InlineRun(Run[Any]):
    """A run that was made inline: it has ended when an enqueue returns it.

    Only a handler that enqueues its own unique key is given a run that has not: its own.
    """

    __slots__ = ("record",)

    def __init__(
        self, client: EnqueueClient, record: InlineRecord, convert: Callable[[Any], Any] | None, *, is_new: bool = True
    ) -> None:
        execution = record.execution
        super().__init__(client.background_loop, execution.id, execution.job_id, is_new=is_new, convert=convert)
        self.record = record

    @property
    def execution(self) -> Execution:
        """All that is known of the run, as a worker would record it."""
        return self.record.execution

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts that failed."""
        return self.record.attempts

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return self.execution.handler

    @property
    def arguments(self) -> Any:
        """What the handler was called with: JSON, by name."""
        return orjson.loads(self.record.payload)

    @property
    def scheduled_for(self) -> datetime:
        """The instant that `delay` or `at` asked for; without them, that of the enqueue."""
        return self.execution.scheduled_for

    @property
    def exception(self) -> BaseException | None:
        """What the handler raised, if the run failed."""
        return self.record.exception

    @property
    def log(self) -> list[str]:
        """What the handler wrote with `current.log`."""
        return [line.message for line in self.record.lines]

    def result(self, timeout: Duration | None = None) -> Any:
        """What the handler returned, converted to the type that it is annotated to return; ExecutionFailed if it failed."""
        if not self.execution.state.is_final:
            raise ResultTimeout(f"{self.id} is still running, and this is it")
        try:
            return execution_value(self.execution, self._convert)
        except ExecutionFailed as error:
            raise error from self.exception

    async def aresult(self, timeout: Duration | None = None) -> Any:
        return self.result()

    def state(self) -> ExecutionState:
        return self.execution.state

    async def astate(self) -> ExecutionState:
        return self.execution.state

    def info(self) -> RunInfo:
        """All that is known of the run: state, times, attempts, error, meta."""
        from timeball.sdk.pages import info_of

        return info_of(self.execution)

    async def ainfo(self) -> RunInfo:
        return self.info()

    def progress(self) -> Progress | None:
        """None: a run that has ended has no progress."""
        return None

    async def aprogress(self) -> Progress | None:
        return None

    def cancel(self, reason: str | None = None) -> bool:
        """False: the run has ended."""
        return False

    async def acancel(self, reason: str | None = None) -> bool:
        return False


class CallMethods:
    """How an inline run calls what its caller cannot call by itself."""

    def coroutine(self, call: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run a coroutine for a caller that is not one: in its thread, unless an event loop runs there."""
        context = copy_context()
        if not has_running_loop():
            return _run_in_new_loop(call, context)
        with ThreadPoolExecutor(1, thread_name_prefix="timeball-inline") as executor:
            return executor.submit(_run_in_new_loop, call, context).result()

    async def function(self, call: Callable[[], Answer]) -> Answer:
        """Call a plain function for a coroutine: in a thread, where it may wait and may start event loops."""
        return await asyncio.to_thread(call)


def has_running_loop() -> bool:
    """Whether the caller stands in an event loop, which it must not block by starting another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_new_loop(call: Callable[[], Coroutine[Any, Any, Answer]], context: Context) -> Answer:
    # With a factory, so that the runner leaves the thread's own event loop alone.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return context.run(lambda: runner.run(call(), context=context.copy()))


class InlineRuns:
    """Makes the inline runs of one Timeball, and keeps the last of them for `tb.get_run`."""

    def __init__(
        self,
        client: EnqueueClient,
        find_handler: Callable[[str], Handler | None],
        calls: CallMethods,
        env: Callable[[], Env | None],
    ) -> None:
        self._client = client
        self._find_handler = find_handler
        self._calls = calls
        self._given_env = env
        self._own_env = Env()
        self._worker = Incarnation(self._own_env.new_id())
        self._mutex = Lock()
        self._by_key: dict[str, InlineRecord] = {}
        self._kept: OrderedDict[ExecutionId, InlineRun] = OrderedDict()

    @property
    def _env(self) -> Env:
        return self._given_env() or self._own_env

    def find(self, execution_id: ExecutionId) -> InlineRun | None:
        """One of the last runs of this process."""
        return self._kept.get(execution_id)

    def find_key(self, key: str) -> InlineRun | None:
        """The latest of them that was enqueued with this key."""
        with self._mutex:
            return next((run for run in reversed(self._kept.values()) if run.execution.unique_key == key), None)

    def run(self, scope: InlineScope, request: EnqueueRequest, payload: str, convert: Convert) -> InlineRun:
        """Run the handler of an enqueue."""
        handler, job = self._prepare(request, verb="enqueue")
        return self._run(scope, handler, job, payload, convert)

    async def arun(self, scope: InlineScope, request: EnqueueRequest, payload: str, convert: Convert) -> InlineRun:
        handler, job = self._prepare(request, verb="aenqueue")
        return await self._arun(scope, handler, job, payload, convert)

    def run_many(
        self, scope: InlineScope, request: EnqueueRequest, payloads: Sequence[str], convert: Convert
    ) -> list[InlineRun]:
        """Run a handler with each of these payloads, one after the other; an error that is raised leaves the others out."""
        handler, job = self._prepare(request, verb="enqueue_many")
        return [self._run(scope, handler, job, payload, convert) for payload in payloads]

    async def arun_many(
        self, scope: InlineScope, request: EnqueueRequest, payloads: Sequence[str], convert: Convert
    ) -> list[InlineRun]:
        handler, job = self._prepare(request, verb="aenqueue_many")
        return [await self._arun(scope, handler, job, payload, convert) for payload in payloads]

    # before the call

    def _prepare(self, request: EnqueueRequest, verb: str) -> tuple[Handler, Job]:
        """The handler, and the job that an enqueue would have written; refuses what an enqueue refuses."""
        spec, now = request.spec, self._env.clock.now()
        if spec.unique_key is not None and verb.endswith("many"):
            raise InvalidInput("a key cannot be given to a bulk enqueue; enqueue them singly", field="key")
        if request.connection is not None:
            from timeball.sdk.transactions import check_connection

            check_connection(request.connection, verb)
        run_at = spec.scheduled_at or now if request.delay is None else now + request.delay
        job = define_job(replace(spec, scheduled_at=run_at), JobId(self._env.new_id()), now, _SHARDS)
        handler = self._find_handler(spec.handler)
        if handler is None:
            raise InvalidInput(
                f"{spec.handler} is not a handler of this program, and an inline run calls the function itself",
                field="handler",
                hint="declare it with @tb.handler, or enqueue it where Timeball has a database",
            )
        outer = inline_context()
        if outer is not None and outer.depth >= _MOST_NESTED:
            raise InlineOnly(
                f"{spec.handler} would be inline run number {outer.depth + 1} inside of another",
                hint="a handler that enqueues itself again has no end inline, because nothing waits",
            )
        return handler, job

    def _begin(
        self, scope: InlineScope, job: Job, payload: str, convert: Convert, cause: CauseRecord | None
    ) -> tuple[InlineRun, bool]:
        """The run, and whether it is to be made: one with this key may be under way."""
        execution = _new_execution(job, ExecutionId(self._env.new_id()), self._env.clock.now(), self._worker)
        record = InlineRecord(execution, payload, cause=cause)
        run = InlineRun(self._client, record, convert)
        with self._mutex:
            if job.unique_key is not None:
                present = self._by_key.setdefault(job.unique_key, record)
                if present is not record:
                    return InlineRun(self._client, present, convert, is_new=False), False
            self._kept[execution.id] = run
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        scope.runs.append(run)
        return run, True

    # the call

    def _run(
        self,
        scope: InlineScope,
        handler: Handler,
        job: Job,
        payload: str,
        convert: Convert,
        cause: CauseRecord | None = None,
        failures: list[_Attempts] | None = None,
    ) -> InlineRun:
        """A run, and all that follows it. What failed is raised or logged after that, or left to the caller in *failures*."""
        run, is_new = self._begin(scope, job, payload, convert, cause)
        if is_new:
            attempts = _Attempts(run, job, scope.policy, self._env)
            try:
                while (context := attempts.next()) is not None:
                    attempts.end(*self._call(handler, context))
            finally:
                self._forget_key(job)
            failed = [] if failures is None else failures
            failed.append(attempts)
            self._make(scope, self._follow_ups(run, job), job.meta, failed)
            if failures is None:
                _raise_errors(failed)
        return run

    async def _arun(
        self,
        scope: InlineScope,
        handler: Handler,
        job: Job,
        payload: str,
        convert: Convert,
        cause: CauseRecord | None = None,
        failures: list[_Attempts] | None = None,
    ) -> InlineRun:
        run, is_new = self._begin(scope, job, payload, convert, cause)
        if is_new:
            attempts = _Attempts(run, job, scope.policy, self._env)
            try:
                while (context := attempts.next()) is not None:
                    attempts.end(*await self._acall(handler, context))
            finally:
                self._forget_key(job)
            failed = [] if failures is None else failures
            failed.append(attempts)
            await self._amake(scope, self._follow_ups(run, job), job.meta, failed)
            if failures is None:
                _raise_errors(failed)
        return run

    def _follow_ups(self, run: InlineRun, job: Job) -> Steps | None:
        """The calls that follow the end of a run."""
        ended = run.execution
        work = job.on_success if ended.state is ExecutionState.SUCCEEDED else job.on_failure
        return None if work is None else steps_of(work, _end_of(run), self._env.new_id)

    def _make(
        self, scope: InlineScope, steps: Steps | None, meta: Mapping[str, Any] | None, failures: list[_Attempts]
    ) -> None:
        """Make the calls of a chain, a group or a single follow-up, each with the end of the one before it."""
        end: CauseRecord | None = None
        while steps is not None and (step := _next_step(steps, end)) is not None:
            end = _end_of(self._run(scope, *self._of_step(step, meta), None, step.cause, failures))

    async def _amake(
        self, scope: InlineScope, steps: Steps | None, meta: Mapping[str, Any] | None, failures: list[_Attempts]
    ) -> None:
        end: CauseRecord | None = None
        while steps is not None and (step := _next_step(steps, end)) is not None:
            end = _end_of(await self._arun(scope, *self._of_step(step, meta), None, step.cause, failures))

    def _of_step(self, step: InlineStep, meta: Mapping[str, Any] | None) -> tuple[Handler, Job, str]:
        """The handler, the job and the payload of a call."""
        fields = {name: value for name, value in step.call.items() if name in CALL_FIELDS}
        payload = to_json(fields.pop("payload"))
        fields["meta"] = {**(meta or {}), **(step.call.get("meta") or {})} or None
        return *self._prepare(EnqueueRequest(JobSpec(**fields)), verb="enqueue"), payload

    # groups

    def run_group(self, scope: InlineScope, work: Mapping[str, Any], meta: Mapping[str, Any] | None) -> InlineGroupRun:
        """Make a group, part after part, and what follows it."""
        began = _InlineGroup(work, self._env)
        failures: list[_Attempts] = []
        self._make(scope, began.steps, meta, failures)
        _raise_errors(failures)
        return began.ended(self._client)

    async def arun_group(
        self, scope: InlineScope, work: Mapping[str, Any], meta: Mapping[str, Any] | None
    ) -> InlineGroupRun:
        began = _InlineGroup(work, self._env)
        failures: list[_Attempts] = []
        await self._amake(scope, began.steps, meta, failures)
        _raise_errors(failures)
        return began.ended(self._client)

    def _forget_key(self, job: Job) -> None:
        if job.unique_key is not None:
            with self._mutex:
                self._by_key.pop(job.unique_key, None)

    def _call(self, handler: Handler, context: InlineContext) -> _Ended:
        variables = copy_context()
        variables.run(RUNNING.set, context)
        call = partial(invoke, handler, context.payload)
        try:
            value = variables.run(self._calls.coroutine, call) if is_async(handler) else variables.run(call)
        except (*_ENDS_OF_A_HANDLER, asyncio.CancelledError) as error:
            return _failed(handler, context, error)
        return outcome_of_return(value), None

    async def _acall(self, handler: Handler, context: InlineContext) -> _Ended:
        variables = copy_context()
        variables.run(RUNNING.set, context)
        call = partial(invoke, handler, context.payload)
        made = _await_call(call) if is_async(handler) else self._calls.function(call)
        # A task of its own: context variables that the handler sets end with it, as in a worker.
        task = asyncio.get_running_loop().create_task(made, context=variables)
        try:
            value = await task
        except _ENDS_OF_A_HANDLER as error:
            return _failed(handler, context, error)
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            return _failed(handler, context, error)
        return outcome_of_return(value), None


async def _await_call(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


class _InlineGroup:
    """A group while it is made: it remembers how its parts ended."""

    def __init__(self, work: Mapping[str, Any], env: Env) -> None:
        self._work = check_group_work(work)
        self._env = env
        self._id = env.new_id()
        self._began_at = env.clock.now()
        self._parts: list[CauseRecord] = []
        self.steps = self._steps()

    def _steps(self) -> Steps:
        for part in self._work["group"]:
            self._parts.append((yield from steps_of(part, None, self._env.new_id)))
        end = end_of_group(self._parts, self._id)
        follows = "then" if end.state == GroupState.SUCCEEDED else "on_failure"
        return (yield from steps_of(self._work[follows], end, self._env.new_id)) if follows in self._work else end

    def ended(self, client: EnqueueClient) -> InlineGroupRun:
        failed = sum(part.state != GroupState.SUCCEEDED for part in self._parts)
        status = GroupStatus(
            id=self._id,
            state=GroupState.FAILED if failed else GroupState.SUCCEEDED,
            total=len(self._parts),
            succeeded=len(self._parts) - failed,
            failed=failed,
            created_at=self._began_at,
            closed_at=self._env.clock.now(),
        )
        return InlineGroupRun(client, status, end_of_group(self._parts, self._id))


def _next_step(steps: Steps, end: CauseRecord | None) -> InlineStep | None:
    try:
        return next(steps) if end is None else steps.send(end)
    except StopIteration:
        return None


def _end_of(run: InlineRun) -> CauseRecord:
    """The end of a run, as what follows it refers to it."""
    ended = run.execution
    result = None if ended.result is None else to_json(ended.result)
    error = f"{ended.error_type}: {ended.error}" if ended.error_type and ended.error else ended.error or ended.reason
    return CauseRecord(id=ended.id, state=ended.state, result=result, error=error)


def _raise_errors(failures: Sequence[_Attempts]) -> None:
    """Log the errors of these runs, or raise the first."""
    for attempts in failures:
        attempts.raise_error()


_Ended = tuple[Outcome, BaseException | None]
# Others, such as Ctrl-C, are the caller's.
_ENDS_OF_A_HANDLER: Final = (Exception, ControlSignal, SystemExit)


def _failed(handler: Handler, context: AttemptContext, error: BaseException) -> _Ended:
    return outcome_of_error(error, handler, context, shares_files=False), error


class _Attempts:
    """The attempts of one run, and what becomes of it."""

    def __init__(self, run: InlineRun, job: Job, policy: InlinePolicy, env: Env) -> None:
        self._record = run.record
        self._run = run
        self._job = job
        self._policy = policy
        self._env = env
        outer = inline_context()
        self._depth = 1 if outer is None else outer.depth + 1
        self._number = 0
        self._claimed: ClaimedExecution
        self._failure: AttemptFailure | None = None

    def next(self) -> InlineContext | None:
        """The next attempt; None if the run has ended."""
        record, now = self._record, self._env.clock.now()
        if record.execution.state.is_final:
            return None
        expires_at = record.execution.expires_at
        if expires_at is not None and expires_at <= now and not self._number:
            self._finish(Finish(ExecutionState.SKIPPED, 0, 0, reason=SkipReason.EXPIRED))
            return None
        self._number += 1
        record.execution = execution = replace(
            record.execution,
            state=ExecutionState.RUNNING,
            attempts=self._number,
            fence=self._number,
            started_at=record.execution.started_at or now,
        )
        claimed = self._claimed = _claimed(record, self._job, self._env)
        is_last = not self._policy.retries or self._number > self._job.retry.max_retries
        context = InlineContext(record, claimed, self._env, depth=self._depth, is_last=is_last)
        values = ReferenceValues(
            scheduled_for=execution.scheduled_for,
            execution_id=execution.id,
            attempt=self._number,
            fence=self._number,
            timezone=self._job.timezone,
            cause=record.cause,
        )
        try:
            context.replace_payload(resolve_references(record.payload, values))
        except InvalidInput as error:
            self.end(Failed(ErrorInfo(type="InvalidInput", message=str(error)), is_retryable=False), error)
            return None
        return context

    def end(self, outcome: Outcome, error: BaseException | None) -> None:
        """An attempt has ended."""
        record, now = self._record, self._env.clock.now()
        record.exception = error if isinstance(outcome, Failed) else None
        if isinstance(outcome, Snoozed):
            pause = format_duration(outcome.delay)
            outcome = CancelOutcome(f"it asked to run again in {pause}, and an inline run does not wait")
        if isinstance(outcome, Failed):
            record.attempts.append(_failed_attempt(record.execution, outcome, now))
            if not self._policy.retries:
                outcome = replace(outcome, is_retryable=False)
        facts = AttemptFacts(attempts=self._number, lost=0, retry=self._job.retry, delivery=self._job.delivery)
        transition = decide(facts, outcome, now, self._env.random.random())
        self._failure = failure_of(self._claimed, outcome, transition)
        if self._failure is not None and not isinstance(transition, Finish):
            log_failure(replace(self._failure, is_inline=True))
        if isinstance(transition, Finish):
            self._finish(transition, result=outcome.result if isinstance(outcome, Succeeded) else None)

    def _finish(self, end: Finish, result: str | None = None) -> None:
        error = end.error
        self._record.execution = replace(
            self._record.execution,
            state=end.state,
            finished_at=self._env.clock.now(),
            result=None if result is None else orjson.loads(result),
            error_type=None if error is None else error.type,
            error=None if error is None else error.message,
            reason=end.reason,
        )

    def raise_error(self) -> None:
        """Raise the error of a run that failed, or log it."""
        execution, error = self._record.execution, self._record.exception
        if execution.state is not ExecutionState.DEAD:
            return
        if not self._policy.raise_errors:
            if self._failure is not None:
                log_failure(replace(self._failure, is_inline=True))
        elif isinstance(error, Exception):
            raise error
        else:
            self._run.result()


def _new_execution(job: Job, execution_id: ExecutionId, now: datetime, worker: Incarnation) -> Execution:
    assert isinstance(job.rule, Once)
    scheduled_for = job.rule.scheduled_at
    return Execution(
        id=execution_id,
        job_id=JobId(execution_id),
        state=ExecutionState.QUEUED,
        origin=Origin.ENQUEUE,
        version=1,
        queue=job.queue,
        priority=job.priority,
        handler=job.handler,
        scheduled_for=scheduled_for,
        run_at=scheduled_for,
        queued_at=now,
        started_at=None,
        finished_at=None,
        attempts=0,
        lost=0,
        fence=0,
        worker=worker,
        result=None,
        error_type=None,
        error=None,
        reason=None,
        retry_of=None,
        limit_key=job.limit_key,
        unique_key=job.unique_key,
        created_by=None,
        expires_at=Expiry(start_within_seconds=job.start_within_seconds, expires_at=job.expires_at).instant(
            scheduled_for
        ),
        meta=job.meta,
    )


def _claimed(record: InlineRecord, job: Job, env: Env) -> ClaimedExecution:
    execution = record.execution
    return ClaimedExecution(
        id=execution.id,
        job_id=execution.job_id,
        fence=execution.fence,
        attempt=execution.attempts,
        lost=0,
        handler=execution.handler,
        payload=record.payload,
        run_at=execution.scheduled_for,
        scheduled_for=execution.scheduled_for,
        timeout_ms=job.timeout_ms,
        queue=execution.queue,
        priority=execution.priority,
        origin=execution.origin,
        version=1,
        job_name=None,
        expires_at=None,
        meta=None if job.meta is None else to_json(job.meta),
        claim_id=ClaimId(env.new_id()),
        stop=None,
    )


def _failed_attempt(execution: Execution, outcome: Failed, now: datetime) -> Attempt:
    return Attempt(
        execution_id=execution.id,
        fence=execution.fence,
        number=execution.attempts,
        worker=execution.worker,
        started_at=execution.started_at,
        finished_at=now,
        outcome="failed",
        error=outcome.error,
        is_expected=outcome.is_expected,
    )
