"""`TimeballHarness`: the value of the `timeball` fixture, and the matchers of its assertions.

def test_receipt(timeball):
    timeball.use(app.tb)
    app.checkout(order_id=42)
    timeball.assert_enqueued(app.send_receipt, 42)
    timeball.drain(raise_errors=True)
    assert timeball.last(app.send_receipt).result == "receipt 42"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson

from timeball.domain.execution import Execution, ExecutionState, Origin
from timeball.domain.scheduling.civil_time import load_zone, parse_instant
from timeball.domain.values.json_text import encode_object
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput
from timeball.handlers.dependencies import with_dependencies
from timeball.handlers.payloads import arguments_mismatch
from timeball.sdk.app import Timeball
from timeball.sdk.app_loader import load_app
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.handlers import Call, HandlerHandle
from timeball.store.diagnostics import RecordedExecution
from timeball.testing.environment import START, HarnessEnv, remake_schema
from timeball.testing.nodes import DrainResult, ElapsedTime, ManualNodes, harness_settings, open_nodes

_DEFAULT_PATIENCE = timedelta(seconds=60)
_NOT_STARTED = frozenset({ExecutionState.SCHEDULED, ExecutionState.QUEUED})
_NEVER_RAN = frozenset({ExecutionState.SKIPPED, ExecutionState.CANCELLED})

Answer = TypeVar("Answer")
Work = Callable[[ManualNodes], Coroutine[Any, Any, Answer]]


class Fired(NamedTuple):
    """An instant at which a job ran: in UTC, and in the job's timezone."""

    at: datetime
    local: datetime

    def __str__(self) -> str:
        return f"{self.local:%Y-%m-%d %H:%M:%S %Z}"


class TimeballHarness:
    """A program with a database of its own, and a clock that stands still until the test moves it.

    Handlers run in this process, in `drain` and while the clock moves, so a test can patch what they use. `patience` is the real time
    that handlers may take at one instant before the test fails. Methods for coroutines have an `a` before their names.
    """

    def __init__(
        self,
        database_url: str | Callable[[], str],
        start: datetime | str = START,
        report: Callable[[str], None] = print,
    ) -> None:
        # Made when it is needed: the framework of a program may have a database for the test already.
        self._database_url = database_url
        self._report = report
        self._env = HarnessEnv(_instant(start, "start"))
        self._program: Timeball | None = None
        self._nodes: BackgroundLoop[ManualNodes] | None = None
        self._stack = ExitStack()
        self.patience: Duration = _DEFAULT_PATIENCE
        self.clock = HarnessClock(self._env, self.call, self.acall, self._patience)

    def use(self, program: Timeball | str, *, schedules: bool | Iterable[str] = True) -> Timeball:
        """Have a program, or the one that `app:tb` names, use the test's database and clock until the test ends; returns it.

        Its schedules become jobs, as when a worker starts: all of them, none, or those of the given names.
        """
        app = load_app(program) if isinstance(program, str) else program
        if self._program is not None:
            raise InvalidInput("this test uses a program already, expected one", hint="call use() once in a test")
        names = _schedule_names(app, schedules)
        settings = harness_settings(app.settings, self._url_for(app))
        self._stack.enter_context(app.redirected(settings, self._env))
        self._program = app
        self._nodes = BackgroundLoop(lambda: open_nodes(settings, self._env, app.registry, self._report))
        self._stack.callback(self._nodes.close)
        self.call(partial(_declare, app, names))
        return app

    def _url_for(self, app: Timeball) -> str:
        url = app.test_database_url()
        if url is None:
            return self._database_url if isinstance(self._database_url, str) else self._database_url()
        app.check_test_is_committed()
        remake_schema(url)
        # Called last, once nothing is connected any more: tests without this fixture find a schema as new.
        self._stack.callback(partial(remake_schema, url, app.settings.shards))
        return url

    def close(self) -> None:
        """Give the program back its own settings and clock."""
        self._stack.close()
        self._program = self._nodes = None

    # running

    def drain(self, *, raise_errors: bool = False) -> DrainResult:
        """Run all executions that are due now, and those that they enqueue for now; retries that are due later stay for later.

        With *raise_errors*, a failed attempt is raised as ExecutionFailed with the traceback of the handler; several are an ExceptionGroup.
        What failed with an error that its handler expects is not raised.
        """
        __tracebackhide__ = True
        return _result_of(self.call(lambda nodes: nodes.drain(self._patience())), raise_errors)

    async def adrain(self, *, raise_errors: bool = False) -> DrainResult:
        """Like `drain`, for coroutines; their event loop is not blocked."""
        __tracebackhide__ = True
        return _result_of(await self.acall(lambda nodes: nodes.drain(self._patience())), raise_errors)

    # inspecting

    def assert_enqueued(
        self, handler: HandlerLike | Call[..., Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> list[Execution]:
        """Assert that a handler was enqueued in this test, whether it has run or not; returns the executions.

        Arguments given here have to be equal, others do not matter; a call, `send.call(42, to="x")`, stands for exactly these arguments.
        Without *times*, the handler may have been enqueued once or more often.
        """
        __tracebackhide__ = True
        return _assert_enqueued(self.call(_all_executions), match_call(handler, args, kwargs), times)

    async def aassert_enqueued(
        self, handler: HandlerLike | Call[..., Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> list[Execution]:
        """Like `assert_enqueued`, for coroutines."""
        __tracebackhide__ = True
        return _assert_enqueued(await self.acall(_all_executions), match_call(handler, args, kwargs), times)

    def executions(self, handler: HandlerLike | None = None) -> list[Execution]:
        """All executions, or those of one handler, in the order of their instants; also those that have not started."""
        return _of_handler(self.call(_all_executions), handler)

    async def aexecutions(self, handler: HandlerLike | None = None) -> list[Execution]:
        """Like `executions`, for coroutines."""
        return _of_handler(await self.acall(_all_executions), handler)

    def last(self, handler: HandlerLike) -> Execution:
        """The last execution of a handler that has started; or, if none has, the last one that waits."""
        __tracebackhide__ = True
        return _last(self.call(_all_executions), handler)

    async def alast(self, handler: HandlerLike) -> Execution:
        """Like `last`, for coroutines."""
        __tracebackhide__ = True
        return _last(await self.acall(_all_executions), handler)

    def fired(self, job: HandlerLike) -> list[Fired]:
        """The instants at which a job ran, in order; *job* is its name or its handler."""
        return _fired(self.call(_all_executions), job)

    async def afired(self, job: HandlerLike) -> list[Fired]:
        """Like `fired`, for coroutines."""
        return _fired(await self.acall(_all_executions), job)

    def log(self, execution: Execution) -> list[str]:
        """The messages that the handler of an execution wrote by `current.log`."""
        return self.call(lambda nodes: nodes.lines(execution.id))

    async def alog(self, execution: Execution) -> list[str]:
        """Like `log`, for coroutines."""
        return await self.acall(lambda nodes: nodes.lines(execution.id))

    # nodes

    def call(self, work: Work[Answer]) -> Answer:
        """Run *work* with the scheduler and the worker of this test, in their event loop."""
        return self._opened().call(work)

    async def acall(self, work: Work[Answer]) -> Answer:
        """Like `call`, for coroutines."""
        return await self._opened().acall(work)

    def _opened(self) -> BackgroundLoop[ManualNodes]:
        if self._nodes is None or self._program is None:
            raise InvalidInput(
                "this test has no program yet",
                hint="timeball.use(app.tb), or timeball_app = app:tb in the configuration of pytest",
            )
        self._program.check_test_is_committed()
        return self._nodes

    def _patience(self) -> timedelta:
        return parse_duration(self.patience, "patience")


class HarnessClock:
    """The clock of a test. Executions that fall due while it moves are run, each at its own instant."""

    def __init__(
        self,
        env: HarnessEnv,
        call: Callable[[Work[ElapsedTime]], ElapsedTime],
        acall: Callable[[Work[ElapsedTime]], Coroutine[Any, Any, ElapsedTime]],
        patience: Callable[[], timedelta],
    ) -> None:
        self._env = env
        self._call = call
        self._acall = acall
        self._patience = patience

    def now(self) -> datetime:
        """The test's time, in UTC."""
        return self._env.clock.now()

    def advance(self, span: Duration, *, raise_errors: bool = False) -> DrainResult:
        """Move the clock by a span ("3d", "1h30m", seconds or a timedelta), and run what falls due meanwhile."""
        __tracebackhide__ = True
        return self.advance_to(self._after(span), raise_errors=raise_errors)

    async def aadvance(self, span: Duration, *, raise_errors: bool = False) -> DrainResult:
        """Like `advance`, for coroutines; their event loop is not blocked."""
        __tracebackhide__ = True
        return await self.aadvance_to(self._after(span), raise_errors=raise_errors)

    def advance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> DrainResult:
        """Move the clock to an instant, such as `2026-03-29T12:00+02:00`, and run what falls due up to and including it."""
        __tracebackhide__ = True
        return _result_of(self._call(self._moving(instant)), raise_errors)

    async def aadvance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> DrainResult:
        """Like `advance_to`, for coroutines."""
        __tracebackhide__ = True
        return _result_of(await self._acall(self._moving(instant)), raise_errors)

    def _moving(self, instant: datetime | str) -> Work[ElapsedTime]:
        until, patience = _instant(instant, "instant"), self._patience()
        if until < self.now():
            raise InvalidInput(
                f"the clock is at {self.now()}, expected a later instant than {until}; it cannot go back"
            )
        return lambda nodes: nodes.advance_to(until, patience)

    def _after(self, span: Duration) -> datetime:
        return self.now() + parse_duration(span)


def _result_of(elapsed: ElapsedTime, raise_errors: bool) -> DrainResult:
    __tracebackhide__ = True
    if raise_errors and len(elapsed.errors) == 1:
        raise elapsed.errors[0]
    if raise_errors and elapsed.errors:
        raise ExceptionGroup(f"{len(elapsed.errors)} attempts failed", list(elapsed.errors))
    return elapsed.result


def _instant(value: datetime | str, field: str) -> datetime:
    """An instant without an offset is in UTC."""
    return parse_instant(value, "UTC", field)


def _schedule_names(program: Timeball, schedules: bool | Iterable[str]) -> frozenset[str]:
    declared = program.schedules.keys()
    if isinstance(schedules, bool):
        return frozenset(declared if schedules else ())
    names = frozenset([schedules] if isinstance(schedules, str) else schedules)
    if not names <= declared:
        missing = ", ".join(sorted(names - declared))
        raise InvalidInput(
            f"there is no schedule {missing}; this program declares {', '.join(sorted(declared)) or 'none'}"
        )
    return names


async def _declare(program: Timeball, names: frozenset[str], nodes: ManualNodes) -> None:
    for declared_by, spec in program.declarations():
        if spec.name in names:
            await nodes.commands.jobs.declare(spec, declared_by)


async def _all_executions(nodes: ManualNodes) -> list[RecordedExecution]:
    return await nodes.records.executions()


def _assert_enqueued(records: list[RecordedExecution], matcher: CallMatcher, times: int | None) -> list[Execution]:
    __tracebackhide__ = True
    enqueued = [record for record in records if record.execution.origin is Origin.ENQUEUE]
    matches = [record.execution for record in enqueued if matcher.matches(record.execution.handler, record.payload)]
    if (times is None and matches) or len(matches) == times:
        return matches
    expected = "at least once" if times is None else f"{times} times"
    calls = "\n".join(f"  {call_text(record.execution.handler, record.payload)}" for record in enqueued) or "  nothing"
    raise AssertionError(f"{matcher} was enqueued {len(matches)} times, expected {expected}; enqueued were:\n{calls}")


def _of_handler(records: list[RecordedExecution], handler: HandlerLike | None) -> list[Execution]:
    name = None if handler is None else handler_name(handler)
    return [record.execution for record in records if name in (None, record.execution.handler)]


def _last(records: list[RecordedExecution], handler: HandlerLike) -> Execution:
    __tracebackhide__ = True
    executions = _of_handler(records, handler)
    if not executions:
        others = ", ".join(sorted({record.execution.handler for record in records})) or "none"
        raise AssertionError(f"{handler_name(handler)} has no execution in this test; those that have: {others}")
    started = [execution for execution in executions if _has_started(execution)]
    return (started or executions)[-1]


def _has_started(execution: Execution) -> bool:
    return execution.state not in _NOT_STARTED or execution.attempts > 0


def _fired(records: list[RecordedExecution], job: HandlerLike) -> list[Fired]:
    name, by_handler = handler_name(job), isinstance(job, HandlerHandle)
    of_job = [record for record in records if name == (record.execution.handler if by_handler else record.job_name)]
    return [_fired_at(record) for record in of_job if _has_run(record.execution)]


def _has_run(execution: Execution) -> bool:
    return _has_started(execution) and (execution.state not in _NEVER_RAN or execution.started_at is not None)


def _fired_at(record: RecordedExecution) -> Fired:
    at = record.execution.scheduled_for
    return Fired(at, at.astimezone(load_zone(record.timezone)))


# matchers

HandlerLike = HandlerHandle[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMatcher:
    """Executions by their handler and some or all of their arguments; *defaults* fill in arguments that were not stored."""

    handler: str
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False

    def matches(self, handler: str, payload: Any) -> bool:
        """Whether an execution of *handler* with this payload matches."""
        if handler != self.handler:
            return False
        if self.is_whole:
            return bool(payload == self.arguments)
        stored = {**self.defaults, **payload}
        return all(name in stored and stored[name] == value for name, value in self.arguments.items())

    def __str__(self) -> str:
        return call_text(self.handler, self.arguments)


def call_text(handler: str, payload: Any) -> str:
    """A call as it is written in Python."""
    if not isinstance(payload, dict):
        return f"{handler}({payload!r})"
    return f"{handler}({', '.join(f'{name}={value!r}' for name, value in payload.items())})"


def match_call(
    handler: HandlerLike | Call[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> CallMatcher:
    """The matcher of a handler and arguments, or of a call such as `send.call(42, to="x")`."""
    named = kwargs or {}
    if isinstance(handler, Call):
        _reject_if(bool(args or named), f"a call of {handler.handler} has its arguments already")
        return CallMatcher(handler=handler.handler, arguments=orjson.loads(handler.payload), is_whole=True)
    if isinstance(handler, str):
        _reject_if(bool(args), f"arguments of {handler!r} need names: its parameters are not known by its name alone")
        return CallMatcher(handler=handler, arguments=_as_stored(named))
    function = with_dependencies(handler.handler.function)
    return CallMatcher(
        handler=handler.name,
        arguments=_as_stored(_arguments_by_name(function, args, named)),
        defaults=_defaults(function),
    )


def handler_name(handler: HandlerLike) -> str:
    """The name of a handler."""
    return handler if isinstance(handler, str) else handler.name


def _arguments_by_name(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        parameters = tuple(signature.parameters.values())
        raise arguments_mismatch(function, parameters, args, kwargs, is_partial=True) from None
    extra = {p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD}
    own = {name: value for name, value in bound.items() if name not in extra}
    return own | {key: value for name in extra for key, value in bound.get(name, {}).items()}


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: _stored_default(p.default) for p in parameters if p.default is not p.empty}


def _stored_default(value: Any) -> Any:
    """A default may be a value that no payload can hold; then no stored argument equals it."""
    try:
        return _as_stored({"value": value})["value"]
    except InvalidInput:
        return value


def _as_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    stored: dict[str, Any] = orjson.loads(encode_object(dict(values)))
    return stored


def _reject_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise InvalidInput(message)
