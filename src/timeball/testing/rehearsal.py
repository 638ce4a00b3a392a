"""`Rehearsal`: what a test gets from the `timeball` fixture.

    def test_receipt(timeball):
        timeball.use(app.tb)
        app.checkout(order_id=42)
        timeball.assert_enqueued(app.send_receipt, 42)
        timeball.drain(raise_errors=True)
        assert timeball.last(app.send_receipt).result == "receipt 42"

The program works on a database of the test's own, and goes by a clock that stands still until the test moves it. Verbs have
twins for coroutines, with an `a` before their names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from timeball.app import Timeball
from timeball.domain.civil_time import load_zone, read_moment
from timeball.domain.execution import Execution, ExecutionState, Origin
from timeball.domain.spans import Span, parse_span
from timeball.errors import InvalidInput
from timeball.handles import Call, HandlerHandle
from timeball.loading import load_app
from timeball.portal import Portal
from timeball.store.rehearsal import Rehearsed
from timeball.testing.clock import START
from timeball.testing.env import RehearsalEnv
from timeball.testing.stage import Passage, Stage, Tally, open_stage, stage_settings
from timeball.testing.wanted import HandlerLike, Wanted, name_of, spelt, wanted

_PATIENCE = timedelta(seconds=60)
_NOT_BEGUN = frozenset({ExecutionState.SCHEDULED, ExecutionState.QUEUED})
_NEVER_RAN = frozenset({ExecutionState.SKIPPED, ExecutionState.CANCELLED})

Answer = TypeVar("Answer")
Work = Callable[[Stage], Coroutine[Any, Any, Answer]]


class Fired(NamedTuple):
    """An instant at which a job ran: in UTC, and on the clock of the job's zone."""

    at: datetime
    local: datetime

    def __str__(self) -> str:
        return f"{self.local:%Y-%m-%d %H:%M:%S %Z}"


class Rehearsal:
    """A program on a database and a clock of the test's own."""

    def __init__(self, database_url: str, start: datetime | str = START, tell: Callable[[str], None] = print) -> None:
        self._database_url = database_url
        self._tell = tell
        self._env = RehearsalEnv(_instant(start, "start"))
        self._program: Timeball | None = None
        self._stage: Portal[Stage] | None = None
        self._stack = ExitStack()
        # How long, in real time, handlers may run at one instant before that is called an error.
        self.patience: Span = _PATIENCE
        self.clock = RehearsalClock(self._env, self.call, self.acall, self._patience)

    def use(self, program: Timeball | str, *, schedules: bool | Iterable[str] = True) -> Timeball:
        """Take a program, or what `app:tb` names, to the test's database and clock until the test ends; returns it.

        Its schedules become jobs as they do when a worker starts: all, none, or those that are named.
        """
        taken = load_app(program) if isinstance(program, str) else program
        if self._program is not None:
            raise InvalidInput("this test uses a program already, expected one", hint="call use() once in a test")
        names = _chosen(taken, schedules)
        settings = stage_settings(taken.settings, self._database_url)
        self._stack.enter_context(taken.redirected(settings, self._env))
        self._program = taken
        self._stage = Portal(lambda: open_stage(settings, self._env, taken.registry, self._tell))
        self._stack.callback(self._stage.close)
        self.call(partial(_declare, taken, names))
        return taken

    def close(self) -> None:
        """Give the program back its own settings and clock."""
        self._stack.close()
        self._program = self._stage = None

    # running

    def drain(self, *, raise_errors: bool = False) -> Tally:
        """Run everything that is due now to its end, with all that it enqueues for now; later retries stay for later.

        With *raise_errors*, attempts that failed are raised as ExecutionFailed, with the traceback of the handler.
        """
        __tracebackhide__ = True
        return _tally(self.call(lambda stage: stage.drain(self._patience())), raise_errors)

    async def adrain(self, *, raise_errors: bool = False) -> Tally:
        """Like `drain`, for coroutines: their event loop goes on meanwhile."""
        __tracebackhide__ = True
        return _tally(await self.acall(lambda stage: stage.drain(self._patience())), raise_errors)

    # looking

    def assert_enqueued(
        self, handler: HandlerLike | Call[..., Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> list[Execution]:
        """Assert that a handler was enqueued in this test, whether it has run or not; returns the executions.

        Arguments that are given have to be the same, others do not matter. Without *times*, once or more often will do.
        A call, `send.call(42, to="x")`, stands for exactly these arguments.
        """
        __tracebackhide__ = True
        return _assert_enqueued(self.call(_all), wanted(handler, args, kwargs), times)

    async def aassert_enqueued(
        self, handler: HandlerLike | Call[..., Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> list[Execution]:
        """Like `assert_enqueued`, for coroutines."""
        __tracebackhide__ = True
        return _assert_enqueued(await self.acall(_all), wanted(handler, args, kwargs), times)

    def executions(self, handler: HandlerLike | None = None) -> list[Execution]:
        """All executions, or those of one handler, in the order of their instants; also those that have not begun."""
        return _of_handler(self.call(_all), handler)

    async def aexecutions(self, handler: HandlerLike | None = None) -> list[Execution]:
        """Like `executions`, for coroutines."""
        return _of_handler(await self.acall(_all), handler)

    def last(self, handler: HandlerLike) -> Execution:
        """The last execution of a handler that has begun; or, if none has, the last one that waits."""
        __tracebackhide__ = True
        return _last(self.call(_all), handler)

    async def alast(self, handler: HandlerLike) -> Execution:
        """Like `last`, for coroutines."""
        __tracebackhide__ = True
        return _last(await self.acall(_all), handler)

    def fired(self, job: HandlerLike) -> list[Fired]:
        """The instants at which a job ran, by its name or by its handler, in order."""
        return _fired(self.call(_all), job)

    async def afired(self, job: HandlerLike) -> list[Fired]:
        """Like `fired`, for coroutines."""
        return _fired(await self.acall(_all), job)

    def log(self, execution: Execution) -> list[str]:
        """What the handler of an execution said by `current.log`."""
        return self.call(lambda stage: stage.lines(execution.id))

    async def alog(self, execution: Execution) -> list[str]:
        """Like `log`, for coroutines."""
        return await self.acall(lambda stage: stage.lines(execution.id))

    # in the stage's loop

    def call(self, work: Work[Answer]) -> Answer:
        """Have something done with the scheduler and the worker of this test."""
        return self._opened().call(work)

    async def acall(self, work: Work[Answer]) -> Answer:
        """Like `call`, for coroutines."""
        return await self._opened().acall(work)

    def _opened(self) -> Portal[Stage]:
        if self._stage is None:
            raise InvalidInput(
                "this test has no program yet",
                hint="timeball.use(app.tb), or timeball_app = app:tb in the configuration of pytest",
            )
        return self._stage

    def _patience(self) -> timedelta:
        return parse_span(self.patience, "patience")


class RehearsalClock:
    """The clock of a test: what falls due while it moves is run, each at its own instant."""

    def __init__(
        self,
        env: RehearsalEnv,
        call: Callable[[Work[Passage]], Passage],
        acall: Callable[[Work[Passage]], Coroutine[Any, Any, Passage]],
        patience: Callable[[], timedelta],
    ) -> None:
        self._env = env
        self._call = call
        self._acall = acall
        self._patience = patience

    def now(self) -> datetime:
        """The time of the test, in UTC."""
        return self._env.clock.now()

    def advance(self, span: Span, *, raise_errors: bool = False) -> Tally:
        """Let a span pass ("3d", "1h30m", seconds or a timedelta)."""
        __tracebackhide__ = True
        return self.advance_to(self._after(span), raise_errors=raise_errors)

    async def aadvance(self, span: Span, *, raise_errors: bool = False) -> Tally:
        """Like `advance`, for coroutines: their event loop goes on meanwhile."""
        __tracebackhide__ = True
        return await self.aadvance_to(self._after(span), raise_errors=raise_errors)

    def advance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> Tally:
        """Let time pass up to and including an instant, such as `2026-03-29T12:00+02:00`."""
        __tracebackhide__ = True
        return _tally(self._call(self._moving(instant)), raise_errors)

    async def aadvance_to(self, instant: datetime | str, *, raise_errors: bool = False) -> Tally:
        """Like `advance_to`, for coroutines."""
        __tracebackhide__ = True
        return _tally(await self._acall(self._moving(instant)), raise_errors)

    def _moving(self, instant: datetime | str) -> Work[Passage]:
        until, patience = _instant(instant, "instant"), self._patience()
        if until < self.now():
            raise InvalidInput(f"the clock is at {self.now()}, expected a later instant than {until}: none goes back")
        return lambda stage: stage.advance_to(until, patience)

    def _after(self, span: Span) -> datetime:
        return self.now() + parse_span(span)


def _tally(passage: Passage, raise_errors: bool) -> Tally:
    __tracebackhide__ = True
    if raise_errors and len(passage.errors) == 1:
        raise passage.errors[0]
    if raise_errors and passage.errors:
        raise ExceptionGroup(f"{len(passage.errors)} attempts failed", list(passage.errors))
    return passage.tally


def _instant(value: datetime | str, field: str) -> datetime:
    """Without an offset, it is read in UTC."""
    return read_moment(value, "UTC", field)


def _chosen(program: Timeball, schedules: bool | Iterable[str]) -> frozenset[str]:
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


async def _declare(program: Timeball, names: frozenset[str], stage: Stage) -> None:
    for declared_by, spec in program.declarations():
        if spec.name in names:
            await stage.commands.declare(spec, declared_by)


async def _all(stage: Stage) -> list[Rehearsed]:
    return await stage.ledger.executions()


def _assert_enqueued(found: list[Rehearsed], meant: Wanted, times: int | None) -> list[Execution]:
    __tracebackhide__ = True
    enqueued = [each for each in found if each.execution.origin is Origin.ENQUEUE]
    fitting = [each.execution for each in enqueued if meant.fits(each.execution.handler, each.payload)]
    if (times is None and fitting) or len(fitting) == times:
        return fitting
    expected = "at least once" if times is None else f"{times} times"
    there_is = "\n".join(f"  {spelt(each.execution.handler, each.payload)}" for each in enqueued) or "  nothing"
    raise AssertionError(f"{meant} was enqueued {len(fitting)} times, expected {expected}; enqueued were:\n{there_is}")


def _of_handler(found: list[Rehearsed], handler: HandlerLike | None) -> list[Execution]:
    name = None if handler is None else name_of(handler)
    return [each.execution for each in found if name in (None, each.execution.handler)]


def _last(found: list[Rehearsed], handler: HandlerLike) -> Execution:
    __tracebackhide__ = True
    own = _of_handler(found, handler)
    if not own:
        known = ", ".join(sorted({each.execution.handler for each in found})) or "none"
        raise AssertionError(f"{name_of(handler)} has no execution in this test; those that have: {known}")
    begun = [execution for execution in own if _has_begun(execution)]
    return (begun or own)[-1]


def _has_begun(execution: Execution) -> bool:
    return execution.state not in _NOT_BEGUN or execution.attempts > 0


def _fired(found: list[Rehearsed], job: HandlerLike) -> list[Fired]:
    name, by_handler = name_of(job), isinstance(job, HandlerHandle)
    own = [each for each in found if name == (each.execution.handler if by_handler else each.job_name)]
    return [_fired_at(each) for each in own if _has_run(each.execution)]


def _has_run(execution: Execution) -> bool:
    return _has_begun(execution) and (execution.state not in _NEVER_RAN or execution.started_at is not None)


def _fired_at(each: Rehearsed) -> Fired:
    at = each.execution.scheduled_for
    return Fired(at, at.astimezone(load_zone(each.timezone)))
