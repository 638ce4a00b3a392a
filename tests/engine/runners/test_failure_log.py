"""Failed attempts as records of `logging`: once each, at the level that they mean, where collectors of errors hear them."""

from __future__ import annotations

import ast
import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runners.failing_app import tb as failing_app
from tests.engine.runners.support import Attempt, patience, until
from tests.testing.conftest import harness as harness  # a fixture
from timeball import Cancel, Retry, Snooze, Timeball, current
from timeball.current import FAILURE_MARK, RUNNING, LogCapture, StopReason
from timeball.domain.execution import ErrorInfo, ExecutionState, Failed, Lost, Outcome, Succeeded
from timeball.domain.handler import HandlerOptions
from timeball.domain.lifecycle import Finish, Requeue
from timeball.engine.runners.failure_log import (
    LOGGED_BY_CHILD,
    AttemptFailure,
    FailureLog,
    failure_of,
    log_failure,
)
from timeball.engine.runners.in_process import ThreadRunner
from timeball.engine.runners.process import ProcessRunner
from timeball.handlers.registry import make_handler
from timeball.telemetry.events import TelemetryFailed
from timeball.testing import TimeballHarness

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
tenant: ContextVar[str] = ContextVar("tenant", default="none")


class Collector(logging.Handler):
    """What listens to the errors of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.heard: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, FAILURE_MARK):
            self.records.append(record)
            context = RUNNING.get(None)
            self.heard.append((tenant.get(), "" if context is None else context.claimed.handler))

    def told(self) -> list[tuple[str, str, str]]:
        return [(record.levelname, record.name, record.becomes) for record in self.records]  # type: ignore[attr-defined]


@pytest.fixture
def collector() -> Iterator[Collector]:
    root, made = logging.getLogger(), Collector()
    level = root.level
    root.addHandler(made)
    root.setLevel(logging.INFO)
    yield made
    root.removeHandler(made)
    root.setLevel(level)


@pytest.fixture
def program() -> Timeball:
    return Timeball(database_url="postgresql://nobody@nowhere.invalid/none")


def failure(raised: Any = None, level: int = logging.ERROR, handler: str = "app:send") -> AttemptFailure:
    claimed = Attempt(handler).claimed
    return AttemptFailure(claimed, "failed", ErrorInfo(type="ValueError", message="odd"), level, "dead", raised)


# levels


@on_one_server
@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_that_is_retried_is_a_warning_and_the_last_one_an_error(
    harness: TimeballHarness, program: Timeball, collector: Collector, is_async: bool
) -> None:
    def fail() -> None:
        raise ValueError(f"try {current.attempt}")

    async def afail() -> None:
        fail()

    handle = program.handler(name="app:fail", retries=1, backoff="10s")(afail if is_async else fail)
    harness.use(program)
    handle.enqueue()

    harness.drain()
    assert collector.told() == [("WARNING", "app:fail", "retrying")]
    harness.clock.advance("1m")

    assert collector.told() == [("WARNING", "app:fail", "retrying"), ("ERROR", "app:fail", "dead")]
    last = collector.records[-1]
    execution = harness.last(handle)
    assert last.attempt == 2  # type: ignore[attr-defined]
    assert (last.getMessage().split()[0:2], last.lineno) == (["attempt", "2"], fail.__code__.co_firstlineno + 1)
    text = logging.Formatter().format(last)
    assert "ValueError: try 2" in text
    assert text.count("File ") == 1 + is_async
    assert "timeball/engine" not in text
    assert execution.state is ExecutionState.DEAD


@on_one_server
def test_an_expected_error_is_told_as_information_and_what_is_no_failure_is_not_told(
    harness: TimeballHarness, program: Timeball, collector: Collector
) -> None:
    @program.handler(name="app:miss", retries=0, expected=LookupError)
    def miss(word: str) -> Any:
        match word:
            case "expected":
                raise LookupError("no such row")
            case "snooze":
                return Snooze("1h")
            case "cancel":
                raise Cancel("enough")
            case "retry":
                raise Retry("again")
        return None

    harness.use(program)
    for word in ("expected", "snooze", "cancel", "fine"):
        miss.enqueue(word)
    harness.drain()

    assert collector.told() == [("INFO", "app:miss", "dead")]
    miss.enqueue("retry")
    harness.drain()
    assert collector.told()[1:] == [("ERROR", "app:miss", "dead")]


async def test_a_timeout_is_told_with_the_place_where_the_handler_was(collector: Collector) -> None:
    started = threading.Event()

    def slow() -> None:
        while True:
            started.set()
            threading.Event().wait(0.001)

    handler = make_handler(slow, options=HandlerOptions(interrupt=True, grace=timedelta(minutes=1)))
    runner, context = ThreadRunner(1), Attempt("app:slow")
    task = asyncio.create_task(runner.run(handler, context))
    await until(started.is_set, "the handler runs")
    context.halt(StopReason.TIMEOUT)
    async with patience("the handler is interrupted"):
        outcome = await task
    told = failure_of(context.claimed, outcome, Finish(ExecutionState.DEAD, 1, 0))
    assert told is not None
    log_failure(told)
    await runner.stop()

    assert collector.told() == [("ERROR", "app:slow", "dead")]
    text = logging.Formatter().format(collector.records[0])
    assert "timed out" in text
    assert "TimedOut" in text
    assert "in slow" in text


def test_an_attempt_that_was_lost_is_a_warning_while_another_follows() -> None:
    claimed, lost = Attempt("h").claimed, Lost(ErrorInfo(type="WorkerDied", message="gone"))

    again = failure_of(claimed, lost, Requeue(1, 1))
    last = failure_of(claimed, lost, Finish(ExecutionState.DEAD, 1, 1))

    assert (again and again.level, again and again.becomes) == (logging.WARNING, "queued")
    assert (last and last.level, last and last.becomes) == (logging.ERROR, "dead")


def test_what_a_child_has_logged_and_what_has_not_failed_is_no_failure() -> None:
    claimed, error = Attempt("h").claimed, ErrorInfo(type="E", message="m")
    end = Finish(ExecutionState.DEAD, 1, 0)

    assert failure_of(claimed, Failed(error, raised=LOGGED_BY_CHILD), end) is None
    assert failure_of(claimed, Succeeded(), end) is None
    assert failure_of(claimed, Failed(error), end) is not None


# context


@on_one_server
def test_a_collector_finds_the_context_variables_that_code_around_the_run_has_set(
    harness: TimeballHarness, program: Timeball, collector: Collector
) -> None:
    @program.around_run
    def with_tenant() -> Iterator[None]:
        token = tenant.set("acme")
        try:
            yield
        finally:
            tenant.reset(token)

    @program.handler(name="app:plain", retries=0)
    def plain() -> None:
        raise ValueError

    @program.handler(name="app:coroutine", retries=0)
    async def coroutine() -> None:
        raise ValueError

    harness.use(program)
    plain.enqueue()
    coroutine.enqueue()
    harness.drain()

    assert sorted(collector.heard) == [("acme", "app:coroutine"), ("acme", "app:plain")]


def test_the_record_is_no_line_of_the_run_and_is_not_written_to_stderr_beside_our_own_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    others, capture = root.handlers[:], LogCapture()
    root.handlers[:] = [capture]
    context = Attempt("app:send")
    token = RUNNING.set(context)
    try:
        log_failure(failure())
    finally:
        RUNNING.reset(token)
        root.handlers[:] = others

    assert context.sink.lines == []
    assert capsys.readouterr().err == ""


# collectors that are no good


def test_a_collector_that_blocks_holds_up_nothing_and_its_arrears_are_bounded(collector: Collector) -> None:
    heard: list[Any] = []
    release = threading.Event()
    collector.emit = lambda _record: release.wait()  # type: ignore[assignment,method-assign]
    log = FailureLog(heard.append)

    for _ in range(1_100):
        log.add(failure())

    assert not log.flush(0.01)
    assert isinstance(heard[0], TelemetryFailed)
    assert 90 <= len(heard) <= 100
    release.set()
    assert log.flush(60)


def test_a_collector_that_raises_is_told_of_and_does_not_keep_the_next_failure_from_others(
    collector: Collector,
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no network")

    heard: list[Any] = []
    broken, log = Broken(), FailureLog(heard.append)
    logging.getLogger().addHandler(broken)
    try:
        log.add(failure())
        log.add(failure())
        assert log.flush(60)
    finally:
        logging.getLogger().removeHandler(broken)

    assert [event.error for event in heard] == ["a collector raised RuntimeError"] * 2
    assert len(collector.records) == 2


def test_a_failure_whose_logger_is_silent_takes_no_thread() -> None:
    logging.getLogger("app:silent").setLevel(logging.CRITICAL)
    log = FailureLog()

    log.add(failure(handler="app:silent"))

    assert not log._calls._is_busy


# children


@pytest.mark.skipif(sys.platform != "linux", reason="children need Linux")
@pytest.mark.parametrize(("level", "becomes"), [(logging.WARNING, "retrying"), (logging.ERROR, "dead")])
async def test_the_error_of_a_child_is_logged_there_once_at_the_level_that_its_worker_foresees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, becomes: str
) -> None:
    collected = tmp_path / "collected"
    monkeypatch.setenv("COLLECTED", str(collected))

    async def foresee(claimed: Any, outcome: Any) -> AttemptFailure:
        return AttemptFailure(claimed, "failed", outcome.error, level, becomes)

    runner = ProcessRunner("tests.engine.runners.failing_app:tb", foresee=foresee)
    async with patience("a child fails and runs on"):
        outcome = await _run(runner, "fail_in_child")
        pid = await _run(runner, "pid")
        await runner.stop()

    (line,) = collected.read_text().splitlines()
    levelname, name, process, text = ast.literal_eval(line)
    assert (levelname, name) == (logging.getLevelName(level), "fail_in_child")
    assert "LookupError: nothing there" in text
    assert "failing_app.py" in text
    assert "timeball/engine" not in text
    assert isinstance(outcome, Failed)
    assert outcome.raised == LOGGED_BY_CHILD
    # The same child goes on.
    assert isinstance(pid, Succeeded)
    assert pid.result == str(process)


@pytest.mark.skipif(sys.platform != "linux", reason="children need Linux")
async def test_a_collector_that_blocks_in_a_child_does_not_hold_up_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTED", str(tmp_path / "collected"))
    monkeypatch.setenv("COLLECTOR_BLOCKS", "1")

    async def foresee(claimed: Any, outcome: Any) -> AttemptFailure:
        return AttemptFailure(claimed, "failed", outcome.error, logging.ERROR, "dead")

    runner = ProcessRunner("tests.engine.runners.failing_app:tb", foresee=foresee)
    async with patience("the attempt ends"):
        outcome = await _run(runner, "fail_in_child")
        await runner.stop()

    assert isinstance(outcome, Failed)


async def _run(runner: ProcessRunner, handler: str) -> Outcome:
    return await runner.run(failing_app.registry.get(handler), Attempt(handler))


def test_the_log_of_failures_ends_its_thread_when_nothing_waits(collector: Collector) -> None:
    log = FailureLog()

    log.add(failure())
    assert log.flush(60)

    assert len(collector.records) == 1
    assert not log._calls._is_busy
