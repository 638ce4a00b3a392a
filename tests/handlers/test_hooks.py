"""The code that a program declares around its runs, and at the start and the end of its processes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.engine.runners.support import Attempt, patience
from tests.handlers import hooked_app
from timeball import ActiveRun, Cancel, InvalidInput, Retry, Snooze, Timeball
from timeball.current import StopReason
from timeball.domain.execution import CancelOutcome, Failed, Outcome, Succeeded
from timeball.domain.handler import RunStyle
from timeball.engine.runners.in_process import CoroutineRunner, ThreadRunner
from timeball.engine.runners.process import ProcessRunner
from timeball.handlers.registry import make_handler

EACH_STYLE = pytest.mark.parametrize("is_async", [False, True], ids=["plain function", "coroutine function"])
tenant: ContextVar[str] = ContextVar("tenant", default="none")
place = threading.local()


@pytest.fixture
def tb() -> Timeball:
    return Timeball()


def declare(tb: Timeball, function: Callable[..., Any], *, is_async: bool) -> None:
    """The function as the one handler of a program, plain or as a coroutine function."""

    async def coroutine_function() -> Any:
        return function()

    tb.handler(name="handler")(coroutine_function if is_async else function)


async def run(tb: Timeball, **columns: Any) -> Outcome:
    handler = tb.registry.get("handler")
    runner = CoroutineRunner() if handler.style is RunStyle.COROUTINE else ThreadRunner(1)
    try:
        return await runner.run(handler, Attempt(**columns))
    finally:
        await runner.stop()


# around runs


@EACH_STYLE
async def test_code_around_a_run_is_entered_in_order_where_the_handler_runs(tb: Timeball, is_async: bool) -> None:
    notes: list[str] = []

    @tb.around_run
    def with_tenant(run: ActiveRun) -> Iterator[None]:
        notes.append(f"enter tenant of {run.handler}")
        token = tenant.set(run.meta["tenant"])
        place.name = run.queue
        yield
        notes.append(f"leave tenant, {run.outcome}")
        tenant.reset(token)

    @tb.around_run
    @contextmanager
    def with_session(run: ActiveRun) -> Iterator[None]:
        notes.append(f"enter session {run.attempt} of {run.job_name}")
        yield
        notes.append(f"leave session, {run.result}")

    def work() -> list[str]:
        notes.append("work")
        return [tenant.get(), place.name]

    declare(tb, work, is_async=is_async)

    assert await run(tb, meta='{"tenant":"acme"}') == Succeeded('["acme","mail"]')
    assert notes == [
        "enter tenant of handler",
        "enter session 3 of nightly",
        "work",
        "leave session, ['acme', 'mail']",
        "leave tenant, succeeded",
    ]
    assert tenant.get() == "none"


@EACH_STYLE
@pytest.mark.parametrize(
    ("way", "ending", "outcome"),
    [
        ("raised", ValueError("no such order"), "failed"),
        ("raised", Retry("busy"), "failed"),
        ("raised", Snooze("1s"), "snoozed"),
        ("raised", Cancel("gone"), "cancelled"),
        ("returned", Retry("busy"), "failed"),
        ("returned", Snooze("1s"), "snoozed"),
        ("returned", Cancel("gone"), "cancelled"),
    ],
)
async def test_code_around_a_run_sees_how_it_ended(
    tb: Timeball, is_async: bool, way: str, ending: BaseException, outcome: str
) -> None:
    seen: list[Any] = []

    @tb.around_run
    def watch(run: ActiveRun) -> Iterator[None]:
        assert run.outcome is None
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            seen.append(run.outcome)

    def work() -> Any:
        if way == "raised":
            raise ending
        return ending

    declare(tb, work, is_async=is_async)

    await run(tb)

    assert seen == ([ending, outcome] if way == "raised" else [outcome])


@EACH_STYLE
@pytest.mark.parametrize("when", ["enter", "leave"])
async def test_an_error_of_the_code_around_fails_the_attempt_and_the_code_outside_sees_it(
    tb: Timeball, is_async: bool, when: str
) -> None:
    seen: list[Any] = []

    @tb.around_run
    def watch(run: ActiveRun) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append((str(run.outcome), str(run.error), run.result))

    @tb.around_run
    def broken() -> Iterator[None]:
        if when == "enter":
            raise ConnectionError("no session")
        yield
        raise ConnectionError("no session")

    declare(tb, lambda: 7, is_async=is_async)

    outcome = await run(tb)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("ConnectionError", "no session")
    assert outcome.error.traceback is not None
    assert "in broken" in outcome.error.traceback
    assert "timeball/handlers/hooks.py" not in outcome.error.traceback
    assert seen == [("failed", "no session", None)]


@EACH_STYLE
async def test_the_code_around_cannot_swallow_an_error(tb: Timeball, is_async: bool) -> None:
    @tb.around_run
    def swallow() -> Iterator[None]:
        try:
            yield
        except ValueError:
            return

    def fail() -> None:
        raise ValueError("no such order")

    declare(tb, fail, is_async=is_async)

    assert isinstance(await run(tb), Failed)


async def test_a_handler_that_stopped_because_it_was_asked_to_is_told_so(tb: Timeball) -> None:
    seen: list[Any] = []

    @tb.around_run
    def watch(run: ActiveRun) -> Iterator[None]:
        yield
        seen.append(run.outcome)

    attempt = Attempt()

    @tb.handler(name="handler")
    async def work() -> str:
        attempt.halt(StopReason.CANCEL, "not needed")
        try:
            await patience_for_ever()
        finally:
            return "left early"  # noqa: B012

    outcome = await CoroutineRunner().run(tb.registry.get("handler"), attempt)

    assert (outcome, seen) == (CancelOutcome("not needed"), ["stopped"])


async def patience_for_ever() -> None:
    async with patience("the cancellation"):
        await asyncio.Event().wait()


@EACH_STYLE
async def test_what_takes_no_argument_may_return_any_context_manager(tb: Timeball, is_async: bool) -> None:
    """As `app.app_context` of Flask."""

    class Flask:
        depth = 0

        @contextmanager
        def app_context(self) -> Iterator[None]:
            self.depth += 1
            yield
            self.depth -= 1

    app = Flask()
    tb.around_run(app.app_context)
    declare(tb, lambda: app.depth, is_async=is_async)

    assert (await run(tb), app.depth) == (Succeeded("1"), 0)


async def test_async_code_surrounds_coroutine_functions(tb: Timeball) -> None:
    notes: list[str] = []

    @tb.around_run
    async def with_session(run: ActiveRun) -> AsyncIterator[None]:
        notes.append("enter")
        yield
        notes.append(str(run.outcome))

    class Both:
        async def __aenter__(self) -> None:
            notes.append("enter class")

        async def __aexit__(self, *error: object) -> None:
            notes.append("leave class")

    tb.around_run(Both)
    declare(tb, lambda: notes.append("work"), is_async=True)

    assert await run(tb) == Succeeded()
    assert notes == ["enter", "enter class", "work", "leave class", "succeeded"]


async def _session(run: ActiveRun) -> AsyncIterator[None]:
    yield


def test_async_code_around_a_plain_function_is_refused_whichever_comes_first(tb: Timeball) -> None:
    """Without a word it would run without its tenant."""
    other = Timeball()
    tb.around_run(_session)
    with pytest.raises(InvalidInput, match="_session is async and cannot surround plain, which is a plain function"):
        tb.handler(name="plain")(lambda: None)
    assert "plain" not in tb.registry
    other.handler(name="plain")(lambda: None)
    with pytest.raises(InvalidInput, match="cannot surround plain") as refused:
        other.around_run(_session)
    assert "coroutines_only=True" in str(refused.value.hint)
    assert other.registry.get("plain").wrappers == ()


async def test_async_code_may_leave_out_plain_functions_by_choice(tb: Timeball) -> None:
    tb.around_run(coroutines_only=True)(_session)

    tb.handler(name="plain")(lambda: None)
    tb.handler(name="coroutine")(_coroutine)

    assert tb.registry.get("plain").wrappers == ()
    assert len(tb.registry.get("coroutine").wrappers) == 1


async def _coroutine() -> None: ...


async def _no_yield(run: ActiveRun) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (_no_yield, "a coroutine function without a yield"),
        ("with_tenant", "found 'with_tenant', expected a function"),
        (lambda one, two: None, "expected a function that takes the run, or nothing"),
    ],
)
def test_what_cannot_surround_a_run_is_refused_at_once(tb: Timeball, function: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        tb.around_run(function)


@EACH_STYLE
async def test_a_function_that_returns_no_context_manager_fails_the_attempt_with_its_name(
    tb: Timeball, is_async: bool
) -> None:
    @tb.around_run
    def forgot_to_yield(run: ActiveRun) -> Any:
        return 5

    declare(tb, lambda: None, is_async=is_async)

    outcome = await run(tb)

    assert isinstance(outcome, Failed)
    assert "forgot_to_yield, which returned int, expected a context manager" in outcome.error.message


@EACH_STYLE
async def test_without_code_around_it_a_handler_has_no_wrapper(tb: Timeball, is_async: bool) -> None:
    declare(tb, lambda: None, is_async=is_async)
    attempt = Attempt()

    await CoroutineRunner().run(make_handler(_coroutine, name="handler"), attempt)

    assert tb.registry.get("handler").wrappers == ()
    assert attempt.active_run is None


# isolated children, and the start and the end of processes


APP = "tests.handlers.hooked_app:tb"


async def in_a_child(runner: ProcessRunner, name: str) -> list[Any]:
    attempt = Attempt(name, meta='{"tenant":"acme"}')
    async with patience(f"{name} ends"):
        outcome = await runner.run(hooked_app.tb.registry.get(name), attempt)
    assert isinstance(outcome, Succeeded), outcome
    found: list[Any] = orjson.loads(outcome.result or "")
    return found


async def test_a_child_has_the_code_around_its_runs_and_its_own_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    monkeypatch.setenv("HOOKED_APP_NOTE", str(note))
    runner = ProcessRunner(APP)

    name, where, started, pid = await in_a_child(runner, "child")
    of_coroutine = await in_a_child(runner, "async_child")
    async with patience("the child ends"):
        await runner.stop()

    assert (name, where) == ("acme", "child 3")
    assert of_coroutine == ["acme", "async_child 3"]
    assert pid != os.getpid()
    assert started == [f"sync in {pid}", f"async in {pid}"]
    assert note.read_text(encoding="utf-8") == f"stopped in {pid}"
    assert hooked_app.STARTED == [], "the program that only declares has not started anything"


async def test_a_child_whose_start_raises_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKED_APP_BREAKS", "yes")
    runner = ProcessRunner(APP)

    async with patience("the attempt fails"):
        outcome = await runner.run(hooked_app.tb.registry.get("child"), Attempt("child"))
        await runner.stop()

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("ConnectionError", "no model")


async def test_a_worker_starts_in_order_and_stops_in_reverse(tb: Timeball) -> None:
    notes: list[str] = []

    def noting(word: str) -> Callable[[], Any]:
        async def note() -> None:
            notes.append(word)

        return note if "async" in word else lambda: notes.append(word)

    for word in ("start one", "start two async"):
        tb.on_worker_start(noting(word))
    for word in ("stop one async", "stop two"):
        tb.on_worker_stop(noting(word))

    async with tb.registry.process_hooks.around_worker():
        notes.append("work")

    assert notes == ["start one", "start two async", "work", "stop two", "stop one async"]


async def test_a_worker_whose_start_raises_does_not_start_and_names_the_hook(tb: Timeball) -> None:
    notes: list[str] = []

    @tb.on_worker_start
    def broken() -> None:
        raise ConnectionError("no model")

    tb.on_worker_stop(lambda: notes.append("stop"))

    with pytest.raises(ConnectionError, match="no model") as failed:
        async with tb.registry.process_hooks.around_worker():
            notes.append("work")

    assert notes == []
    assert "broken, which @tb.on_worker_start has registered" in failed.value.__notes__[0]


def _yields() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda worker: None, "expected a function that takes no arguments"),
        (_yields, "a generator function"),
        (None, "found None"),
    ],
)
@pytest.mark.parametrize("where", ["on_worker_start", "on_worker_stop"])
def test_what_cannot_be_called_at_a_start_or_a_stop_is_refused_at_once(
    tb: Timeball, function: Any, complaint: str, where: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        getattr(tb, where)(function)


async def test_handlers_in_the_box_stay_in_a_registry_with_the_hooks_of_the_program(tb: Timeball) -> None:
    tb.on_worker_start(lambda: None)
    tb.around_run(_tenant)

    merged = tb.registry.merge([make_handler(_coroutine, name="in.the.box")])

    assert merged.get("in.the.box").wrappers == ()
    assert len(merged.process_hooks.starts) == 1


@asynccontextmanager
async def _async_tenant() -> AsyncIterator[None]:
    yield


@contextmanager
def _tenant() -> Iterator[None]:
    yield


def test_a_decorated_async_generator_is_known_to_be_async(tb: Timeball) -> None:
    tb.handler(name="plain")(lambda: None)

    tb.around_run(_tenant)
    with pytest.raises(InvalidInput, match="is async"):
        tb.around_run(_async_tenant)
