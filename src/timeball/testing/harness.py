"""`TimeballHarness`: what a test gets from the `timeball` fixture, and the matchers of its assertions."""

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
from timeball.handlers.payloads import arguments_mismatch
from timeball.sdk.app import Timeball
from timeball.sdk.app_loader import load_app
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.handlers import Call, HandlerHandle
from timeball.store.diagnostics import RecordedExecution
from timeball.testing.environment import START, HarnessEnv
from timeball.testing.nodes import DrainResult, ElapsedTime, ManualNodes, harness_settings, open_nodes

# `Rehearsal`: what a test gets from the `timeball` fixture.
#
# def test_receipt(timeball):
# timeball.use(app.tb)
# app.checkout(order_id=42)
# timeball.assert_enqueued(app.send_receipt, 42)
# timeball.drain(raise_errors=True)
# assert timeball.last(app.send_receipt).result == "receipt 42"
#
# The program works on a database of the test's own, and goes by a clock that stands still until the test moves it. Verbs have
# twins for coroutines, with an `a` before their names.

_DEFAULT_PATIENCE = timedelta(seconds=60)
_NOT_BEGUN = frozenset({ExecutionState.SCHEDULED, ExecutionState.QUEUED})
_NEVER_RAN = frozenset({ExecutionState.SKIPPED, ExecutionState.CANCELLED})

Answer = TypeVar("Answer")
Work = Callable[[ManualNodes], Coroutine[Any, Any, Answer]]


class Fired(NamedTuple):
    """An instant at which a job ran: in UTC, and on the clock of the job's zone."""

    at: datetime
    local: datetime

    def __str__(self) -> str:
        return f"{self.local:%Y-%m-%d %H:%M:%S %Z}"


class TimeballHarness:
    """A program on a database and a clock of the test's own."""

    def __init__(self, database_url: str, start: datetime | str = START, tell: Callable[[str], None] = print) -> None:
        self._database_url = database_url
        self._tell = tell
        self._env = HarnessEnv(_instant(start, "start"))
        self._program: Timeball | None = None
        self._nodes: BackgroundLoop[ManualNodes] | None = None
        self._stack = ExitStack()
        # How long, in real time, handlers may run at one instant before that is called an error.
        self.patience: Duration = _DEFAULT_PATIENCE
        self.clock = HarnessClock(self._env, self.call, self.acall, self._patience)

    def use(self, program: Timeball | str, *, schedules: bool | Iterable[str] = True) -> Timeball:
        """Take a program, or what `app:tb` names, to the test's database and clock until the test ends; returns it.

        Its schedules become jobs as they do when a worker starts: all, none, or those that are named.
        """
        taken = load_app(program) if isinstance(program, str) else program
        if self._program is not None:
            raise InvalidInput("this test uses a program already, expected one", hint="call use() once in a test")
        names = _schedule_names(taken, schedules)
        settings = harness_settings(taken.settings, self._database_url)
        self._stack.enter_context(taken.redirected(settings, self._env))
        self._program = taken
        self._nodes = BackgroundLoop(lambda: open_nodes(settings, self._env, taken.registry, self._tell))
        self._stack.callback(self._nodes.close)
        self.call(partial(_declare, taken, names))
        return taken

    def close(self) -> None:
        """Give the program back its own settings and clock."""
        self._stack.close()
        self._program = self._nodes = None

    # running

    def drain(self, *, raise_errors: bool = False) -> DrainResult:
        """Run everything that is due now to its end, with all that it enqueues for now; later retries stay for later.

        With *raise_errors*, attempts that failed are raised as ExecutionFailed, with the traceback of the handler.
        """
        __tracebackhide__ = True
        return _result_of(self.call(lambda nodes: nodes.drain(self._patience())), raise_errors)

    async def adrain(self, *, raise_errors: bool = False) -> DrainResult:
        """Like `drain`, for coroutines: their event loop goes on meanwhile."""
        __tracebackhide__ = True
        return _result_of(await self.acall(lambda nodes: nodes.drain(self._patience())), raise_errors)

    # looking

    def assert_enqueued(
        self, handler: HandlerLike | Call[..., Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> list[Execution]:
        """Assert that a handler was enqueued in this test, whether it has run or not; returns the executions.

        Arguments that are given have to be the same, others do not matter. Without *times*, once or more often will do.
        A call, `send.call(42, to="x")`, stands for exactly these arguments.
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
        """All executions, or those of one handler, in the order of their instants; also those that have not begun."""
        return _of_handler(self.call(_all_executions), handler)

    async def aexecutions(self, handler: HandlerLike | None = None) -> list[Execution]:
        """Like `executions`, for coroutines."""
        return _of_handler(await self.acall(_all_executions), handler)

    def last(self, handler: HandlerLike) -> Execution:
        """The last execution of a handler that has begun; or, if none has, the last one that waits."""
        __tracebackhide__ = True
        return _last(self.call(_all_executions), handler)

    async def alast(self, handler: HandlerLike) -> Execution:
        """Like `last`, for coroutines."""
        __tracebackhide__ = True
        return _last(await self.acall(_all_executions), handler)

    def fired(self, job: HandlerLike) -> list[Fired]:
        """The instants at which a job ran, by its name or by its handler, in order."""
        return _fired(self.call(_all_executions), job)

    async def afired(self, job: HandlerLike) -> list[Fired]:
        """Like `fired`, for coroutines."""
        return _fired(await self.acall(_all_executions), job)

    def log(self, execution: Execution) -> list[str]:
        """What the handler of an execution said by `current.log`."""
        return self.call(lambda nodes: nodes.lines(execution.id))

    async def alog(self, execution: Execution) -> list[str]:
        """Like `log`, for coroutines."""
        return await self.acall(lambda nodes: nodes.lines(execution.id))

    # in the stage's loop

    def call(self, work: Work[Answer]) -> Answer:
        """Have something done with the scheduler and the worker of this test."""
        return self._opened().call(work)

    async def acall(self, work: Work[Answer]) -> Answer:
        """Like `call`, for coroutines."""
        return await self._opened().acall(work)

    def _opened(self) -> BackgroundLoop[ManualNodes]:
        if self._nodes is None:
            raise InvalidInput(
                "this test has no program yet",
                hint="timeball.use(app.tb), or timeball_app = app:tb in the configuration of pytest",
            )
        return self._nodes

    def _patience(self) -> timedelta:
        return parse_duration(self.patience, "patience")


class HarnessClock:
    """The clock of a test: what falls due while it moves is run, each at its own instant."""

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
        """The time of the test, in UTC."""
        return self._env.clock.now()

    def advance(self, span: Duration, *, raise_errors: bool = False) -> DrainResult:
        """Let a span pass ("3d", "1h30m", seconds or a timedelta)."""
        __tracebackhide__ = True
        return self.advance_to(self._after(span), raise_errors=raise_errors)

    async def aadvance(self, span: Duration, *, raise_errors: bool = False) -> DrainResult:
        """Like `advance`, for coroutines: their event loop goes on meanwhile."""
        __tracebackhide__ = True
        return await self.aadvance_to(self._after(span), raise_errors=raise_errors)

    def advance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> DrainResult:
        """Let time pass up to and including an instant, such as `2026-03-29T12:00+02:00`."""
        __tracebackhide__ = True
        return _result_of(self._call(self._moving(instant)), raise_errors)

    async def aadvance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> DrainResult:
        """Like `advance_to`, for coroutines."""
        __tracebackhide__ = True
        return _result_of(await self._acall(self._moving(instant)), raise_errors)

    def _moving(self, instant: datetime | str) -> Work[ElapsedTime]:
        until, patience = _instant(instant, "instant"), self._patience()
        if until < self.now():
            raise InvalidInput(f"the clock is at {self.now()}, expected a later instant than {until}: none goes back")
        return lambda nodes: nodes.advance_to(until, patience)

    def _after(self, span: Duration) -> datetime:
        return self.now() + parse_duration(span)


def _result_of(elapsed: ElapsedTime, raise_errors: bool) -> DrainResult:
    __tracebackhide__ = True
    if raise_errors and len(elapsed.errors) == 1:
        raise elapsed.errors[0]
    if raise_errors and elapsed.errors:
        raise ExceptionGroup(f"{len(elapsed.errors)} attempts failed", list(elapsed.errors))
    return elapsed.tally


def _instant(value: datetime | str, field: str) -> datetime:
    """Without an offset, it is read in UTC."""
    return parse_instant(value, "UTC", field)


def _schedule_names(program: Timeball, schedules: bool | Iterable[str]) -> frozenset[str]:
    known = program.schedules.keys()
    if isinstance(schedules, bool):
        return frozenset(known if schedules else ())
    names = frozenset([schedules] if isinstance(schedules, str) else schedules)
    if not names <= known:
        missing = ", ".join(sorted(names - known))
        raise InvalidInput(
            f"there is no schedule {missing}; this program declares {', '.join(sorted(known)) or 'none'}"
        )
    return names


async def _declare(program: Timeball, names: frozenset[str], nodes: ManualNodes) -> None:
    for declared_by, spec in program.declarations():
        if spec.name in names:
            await nodes.commands.jobs.declare(spec, declared_by)


async def _all_executions(nodes: ManualNodes) -> list[RecordedExecution]:
    return await nodes.ledger.executions()


def _assert_enqueued(found: list[RecordedExecution], meant: CallMatcher, times: int | None) -> list[Execution]:
    __tracebackhide__ = True
    enqueued = [each for each in found if each.execution.origin is Origin.ENQUEUE]
    fitting = [each.execution for each in enqueued if meant.matches(each.execution.handler, each.payload)]
    if (times is None and fitting) or len(fitting) == times:
        return fitting
    expected = "at least once" if times is None else f"{times} times"
    there_is = "\n".join(f"  {call_text(each.execution.handler, each.payload)}" for each in enqueued) or "  nothing"
    raise AssertionError(f"{meant} was enqueued {len(fitting)} times, expected {expected}; enqueued were:\n{there_is}")


def _of_handler(found: list[RecordedExecution], handler: HandlerLike | None) -> list[Execution]:
    name = None if handler is None else handler_name(handler)
    return [each.execution for each in found if name in (None, each.execution.handler)]


def _last(found: list[RecordedExecution], handler: HandlerLike) -> Execution:
    __tracebackhide__ = True
    own = _of_handler(found, handler)
    if not own:
        known = ", ".join(sorted({each.execution.handler for each in found})) or "none"
        raise AssertionError(f"{handler_name(handler)} has no execution in this test; those that have: {known}")
    begun = [execution for execution in own if _has_begun(execution)]
    return (begun or own)[-1]


def _has_begun(execution: Execution) -> bool:
    return execution.state not in _NOT_BEGUN or execution.attempts > 0


def _fired(found: list[RecordedExecution], job: HandlerLike) -> list[Fired]:
    name, by_handler = handler_name(job), isinstance(job, HandlerHandle)
    own = [each for each in found if name == (each.execution.handler if by_handler else each.job_name)]
    return [_fired_at(each) for each in own if _has_run(each.execution)]


def _has_run(execution: Execution) -> bool:
    return _has_begun(execution) and (execution.state not in _NEVER_RAN or execution.started_at is not None)


def _fired_at(each: RecordedExecution) -> Fired:
    at = each.execution.scheduled_for
    return Fired(at, at.astimezone(load_zone(each.timezone)))


# Which executions a test means: by their handler, and by some or all of their arguments.

HandlerLike = HandlerHandle[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMatcher:
    """A handler's name, and the arguments that matter; *defaults* stand for those that were not stored."""

    handler: str
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False

    def matches(self, handler: str, payload: Any) -> bool:
        """Whether an execution of *handler* with this payload is meant."""
        if handler != self.handler:
            return False
        if self.is_whole:
            return bool(payload == self.arguments)
        known = {**self.defaults, **payload}
        return all(name in known and known[name] == value for name, value in self.arguments.items())

    def __str__(self) -> str:
        return call_text(self.handler, self.arguments)


def call_text(handler: str, payload: Any) -> str:
    """A call as people write it."""
    if not isinstance(payload, dict):
        return f"{handler}({payload!r})"
    return f"{handler}({', '.join(f'{name}={value!r}' for name, value in payload.items())})"


def match_call(
    handler: HandlerLike | Call[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> CallMatcher:
    """What a test means by a handler and arguments, or by a call such as `send.call(42, to="x")`."""
    given = kwargs or {}
    if isinstance(handler, Call):
        _reject_if(bool(args or given), f"a call of {handler.handler} has its arguments already")
        return CallMatcher(handler=handler.handler, arguments=orjson.loads(handler.payload), is_whole=True)
    if isinstance(handler, str):
        _reject_if(bool(args), f"arguments of {handler!r} need names: its parameters are not known by its name alone")
        return CallMatcher(handler=handler, arguments=_as_stored(given))
    function = handler.handler.function
    return CallMatcher(
        handler=handler.name,
        arguments=_as_stored(_arguments_by_name(function, args, given)),
        defaults=_defaults(function),
    )


def handler_name(handler: HandlerLike) -> str:
    """The name of a handler, however it is given."""
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
    """A default may be anything, even what no payload could hold: then nothing equals it."""
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
