"""Handlers in child processes: real ones, most of them badly behaved."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import uvloop

from tests.engine import hostile_values
from tests.engine.runners import isolated_app
from tests.engine.runners.support import Attempt, is_alive, open_files, patience, read_pid, until
from timeball.current import StopReason
from timeball.domain.execution import CancelOutcome, Failed, Lost, Outcome, Released, Snoozed, Succeeded, TimeoutOutcome
from timeball.domain.handler import HandlerOptions, Isolate
from timeball.engine.runners.child import load_handlers
from timeball.engine.runners.process import ProcessRunner
from timeball.env import SystemClock
from timeball.errors import InvalidInput
from timeball.handlers.registry import make_handler

APP = "tests.engine.runners.isolated_app:registry"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
async def runner() -> AsyncIterator[ProcessRunner]:
    processes = ProcessRunner(APP, cooperation=timedelta(seconds=10))
    yield processes
    async with patience("all children end"):
        await processes.stop()


def attempt_at(handler: str, **arguments: object) -> Attempt:
    return Attempt(handler, orjson.dumps(arguments).decode(), timeout_ms=100)


async def run_attempt(runner: ProcessRunner, context: Attempt) -> Outcome:
    handler = isolated_app.registry.get(context.claimed.handler)
    async with patience(f"{handler.name} ends"):
        return await runner.run(handler, context)


async def run(runner: ProcessRunner, handler: str, **arguments: object) -> Outcome:
    return await run_attempt(runner, attempt_at(handler, **arguments))


class SteppedClock(SystemClock):
    """Notes what it was asked to sleep, and sleeps no longer than a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def start(runner: ProcessRunner, handler: str, **arguments: object) -> tuple[Attempt, asyncio.Task[Outcome]]:
    context = attempt_at(handler, **arguments)
    return context, asyncio.create_task(run_attempt(runner, context))


def result_of(outcome: Outcome) -> Any:
    assert isinstance(outcome, Succeeded), outcome
    return None if outcome.result is None else orjson.loads(outcome.result)


class Pids(NamedTuple):
    child: int
    supervisor: int
    session: int
    runs: int


async def pids(runner: ProcessRunner) -> Pids:
    return Pids(*result_of(await run(runner, "pids")))


# what a child does


async def test_a_handler_runs_in_a_process_and_session_of_its_own(runner: ProcessRunner) -> None:
    found = await pids(runner)

    assert os.getpid() not in (found.child, found.supervisor)
    assert found.session == found.child != os.getsid(0)


async def test_a_child_is_used_again_and_again(runner: ProcessRunner) -> None:
    first = await pids(runner)
    second = await pids(runner)

    assert first.child == second.child
    assert (first.runs, second.runs) == (1, 2)


async def test_attempts_side_by_side_have_children_of_their_own(runner: ProcessRunner) -> None:
    found = await asyncio.gather(pids(runner), pids(runner))

    assert found[0].child != found[1].child


async def test_a_handler_in_a_child_knows_its_attempt(runner: ProcessRunner) -> None:
    assert result_of(await run(runner, "know")) == [
        *("exe_" + "0" * 25 + "1", 3, 7),
        *("2024-05-01T12:00:00+00:00", "mail"),
    ]


async def test_a_program_that_an_isolated_handler_starts_finds_the_occurrence_in_its_environment(
    runner: ProcessRunner,
) -> None:
    first = result_of(await run_attempt(runner, Attempt("environment", origin="backfill", job_name="Café")))
    second = result_of(await run_attempt(runner, Attempt("environment", attempt=4, job_name=None)))

    assert first == {
        "TIMEBALL_ATTEMPT": "3",
        "TIMEBALL_EXECUTION_ID": "exe_" + "0" * 25 + "1",
        "TIMEBALL_FENCE": "7",
        "TIMEBALL_JOB_ID": "job_" + "0" * 25 + "2",
        "TIMEBALL_JOB_NAME": "Café",
        "TIMEBALL_ORIGIN": "backfill",
        "TIMEBALL_SCHEDULED_FOR": "2024-05-01T12:00:00Z",
    }
    assert second == first | {"TIMEBALL_ATTEMPT": "4", "TIMEBALL_ORIGIN": "schedule", "TIMEBALL_JOB_NAME": ""}, (
        "the child is the same, its attempt is another"
    )


async def test_an_isolated_handler_is_called_with_the_values_of_its_references(runner: ProcessRunner) -> None:
    context = Attempt("add", '{"a": {"$now": "attempt"}, "b": 2}')
    context.payload = '{"a": 3, "b": 2}'

    assert result_of(await run_attempt(runner, context)) == 5


async def test_a_coroutine_runs_in_a_child_too(runner: ProcessRunner) -> None:
    assert result_of(await run(runner, "add", a=1, b=2)) == 3


async def test_the_traceback_of_a_coroutine_in_a_child_starts_at_its_handler(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    outcome = await run(runner, "hang_async", file=str(tmp_path / "missing" / "file"))

    assert isinstance(outcome, Failed)
    assert outcome.error.traceback is not None
    assert "isolated_app.py" in outcome.error.traceback.splitlines()[1]
    assert "asyncio" not in outcome.error.traceback


async def test_a_plain_function_that_returns_a_coroutine_fails_as_it_does_in_a_thread(runner: ProcessRunner) -> None:
    outcome = await run(runner, "add_later", a=1, b=2)

    assert isinstance(outcome, Failed)
    assert not outcome.is_retryable
    assert "returned the coroutine add without awaiting it" in outcome.error.message


async def test_all_that_is_said_printed_or_logged_is_heard_once(runner: ProcessRunner) -> None:
    context = Attempt("talk")

    await run_attempt(runner, context)

    assert sorted(context.sink.lines) == [
        ("info", "logged 1"),
        ("info", "said page=1"),
        ("print", "from a program"),
        ("print", "printed"),
        ("print", "to stderr"),
        ("print", "unfinished"),
    ]
    assert context.sink.progress == [(0.5, "half")]


async def test_what_one_attempt_says_is_not_taken_for_anothers(runner: ProcessRunner) -> None:
    contexts = [Attempt("talk") for _ in range(5)]

    for context in contexts:
        await run_attempt(runner, context)

    assert [len(context.sink.lines) for context in contexts] == [6] * 5


async def test_a_flood_of_output_is_taken_whole_before_the_attempt_ends(runner: ProcessRunner) -> None:
    context = Attempt("flood", '{"megabytes": 4}')

    await run_attempt(runner, context)

    assert len(context.sink.lines) == 4 * 1024


async def test_failures_and_words_of_control_come_back(runner: ProcessRunner) -> None:
    failed = await run(runner, "fail")
    misfit = await run(runner, "add", a="x", b=2)

    assert isinstance(failed, Failed)
    assert (failed.error.type, failed.error.message) == ("LookupError", "nothing\ufffdthere")
    assert failed.error.top_frame is not None
    assert failed.error.top_frame.startswith("tests/engine/runners/isolated_app.py:")
    assert failed.error.top_frame.endswith(" in fail")
    assert isinstance(misfit, Failed)
    assert not misfit.is_retryable
    assert await run(runner, "snooze") == Snoozed(timedelta(minutes=5))


# when a child is replaced


async def run_with(runner: ProcessRunner, limits: Isolate | None, name: str, **arguments: object) -> int:
    """The child that a handler with these limits ran in."""
    declared = isolated_app.registry.get(name)
    handler = replace(declared, options=HandlerOptions(isolate=limits))
    async with patience(f"{name} ends"):
        found = result_of(await runner.run(handler, attempt_at(name, **arguments)))
    return int(found[0] if isinstance(found, list) else found)


async def test_a_child_is_replaced_after_so_many_runs(runner: ProcessRunner) -> None:
    children = [await run_with(runner, Isolate(runs_per_child=2), "pids") for _ in range(4)]

    assert children[0] == children[1] != children[2] == children[3]
    assert not is_alive(children[0])


async def test_a_child_is_replaced_after_the_run_that_left_it_with_too_much_memory(runner: ProcessRunner) -> None:
    limits = Isolate(max_memory="150MB")
    children = [await run_with(runner, limits, "grow", megabytes=megabytes) for megabytes in (1, 200, 1)]

    assert children[0] == children[1] != children[2]
    assert not is_alive(children[1])


async def test_the_limits_of_a_worker_hold_for_handlers_that_say_nothing() -> None:
    runner = ProcessRunner(APP, isolate=Isolate(runs_per_child=1))

    silent = [await run_with(runner, None, "pids") for _ in range(2)]
    own = [await run_with(runner, Isolate(runs_per_child=5), "pids") for _ in range(2)]

    assert silent[0] != silent[1]
    assert own[0] == own[1]
    await runner.stop()


async def test_a_handler_that_wants_a_fresh_child_gets_no_used_one(runner: ProcessRunner) -> None:
    used = await run_with(runner, None, "pids")

    fresh = await run_with(runner, Isolate(runs_per_child=1), "pids")

    assert fresh != used
    assert not is_alive(used), "there are not more children than before"


# how a child dies


@pytest.mark.parametrize(
    ("handler", "argument", "manner"),
    [
        ("leave_with", {"code": 3}, "exited with code 3"),
        ("leave_with", {"code": 0}, "exited with code 0"),
        ("kill_with", {"number": signal.SIGKILL}, "was killed by SIGKILL"),
        ("kill_with", {"number": signal.SIGSEGV}, "was killed by SIGSEGV"),
    ],
)
async def test_a_child_that_dies_is_lost_with_its_attempt(
    runner: ProcessRunner, handler: str, argument: dict[str, object], manner: str
) -> None:
    outcome = await run(runner, handler, **argument)

    assert isinstance(outcome, Lost)
    assert outcome.error.type == "ProcessDied"
    assert manner in outcome.error.message
    assert result_of(await run(runner, "add", a=1, b=2)) == 3


async def test_sys_exit_is_a_failure_and_the_child_goes_on(runner: ProcessRunner) -> None:
    before = await pids(runner)

    outcome = await run(runner, "call_exit")

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "SystemExit"
    assert (await pids(runner)).child == before.child


async def test_a_child_that_has_run_out_of_memory_is_not_used_again(runner: ProcessRunner) -> None:
    """Fault 10."""
    before = await pids(runner)

    outcome = await run(runner, "eat_memory")

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "MemoryError"
    assert (await pids(runner)).child != before.child


async def test_a_child_found_dead_costs_the_attempt_nothing(runner: ProcessRunner) -> None:
    before = await pids(runner)
    os.kill(before.child, signal.SIGKILL)

    assert (await pids(runner)).child != before.child
    await until(lambda: not is_alive(before.supervisor), "the old supervisor ends")


async def test_an_app_that_cannot_be_imported_fails_the_attempt() -> None:
    runner = ProcessRunner("tests.engine.runners.broken_app:registry")

    outcome = await run(runner, "add", a=1, b=2)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("RuntimeError", "no such luck")
    await runner.stop()


async def test_a_machine_that_cannot_start_a_process_fails_the_attempt(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    outcome = await run(runner, "add", a=1, b=2)

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "FileNotFoundError"
    assert open_files() == before


def test_children_work_on_the_loop_that_workers_use(tmp_path: Path) -> None:
    async def main() -> None:
        runner = ProcessRunner(APP)
        assert result_of(await run(runner, "add", a=1, b=2)) == 3
        assert isinstance(await run(runner, "leave_with", code=3), Lost)
        context, attempt = start(runner, "hang", file=str(tmp_path / "pid"))
        child = await read_pid(tmp_path / "pid")
        context.halt(StopReason.TIMEOUT)
        assert isinstance(await attempt, TimeoutOutcome)
        assert not is_alive(child)
        await runner.stop()

    uvloop.run(main())


def test_an_app_is_named_by_module_and_attribute() -> None:
    assert load_handlers(APP) is isolated_app.registry
    for nonsense in ("", "tests.engine.runners.isolated_app", ":registry"):
        with pytest.raises(InvalidInput, match="expected module:attribute"):
            load_handlers(nonsense)


# how a child is ended


async def test_a_timeout_ends_the_child_and_says_where_it_was(runner: ProcessRunner, tmp_path: Path) -> None:
    context, attempt = start(runner, "hang", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)
    outcome = await attempt

    assert isinstance(outcome, TimeoutOutcome)
    assert outcome.error.message == "ran past its timeout of 100ms"
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith(" in hang")
    assert not is_alive(child)


async def test_a_timeout_ends_a_coroutine_too(runner: ProcessRunner, tmp_path: Path) -> None:
    context, attempt = start(runner, "hang_async", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)
    outcome = await attempt

    assert isinstance(outcome, TimeoutOutcome)
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith(" in hang_async")
    assert (await pids(runner)).child == child, "a coroutine ends in good order"


async def test_a_handler_that_is_ended_can_clean_up(runner: ProcessRunner, tmp_path: Path) -> None:
    context, attempt = start(runner, "clean_up", file=str(tmp_path / "pid"))
    await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)
    assert (tmp_path / "pid.cleaned").exists()


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (StopReason.TIMEOUT, "TimedOut: enough; timeout"),
        (StopReason.CANCEL, "Cancelled: enough; cancel"),
        (StopReason.SHUTDOWN, "Stopped: enough; shutdown"),
    ],
)
async def test_the_code_of_a_handler_is_told_by_an_error_that_it_can_catch(
    tmp_path: Path, why: StopReason, told: str
) -> None:
    runner = ProcessRunner(APP, cooperation=timedelta(0))
    context, attempt = start(runner, "clean_up_after_the_error", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(why, "enough")
    outcome = await attempt

    assert (tmp_path / "pid.cleaned").read_text() == told
    assert isinstance(outcome, TimeoutOutcome | CancelOutcome | Released)
    assert not is_alive(child), "what was interrupted may have left anything behind"
    await runner.stop()


async def test_the_error_that_ended_an_attempt_says_where_it_was(runner: ProcessRunner, tmp_path: Path) -> None:
    context, attempt = start(runner, "clean_up_after_the_error", file=str(tmp_path / "pid"))
    await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT, "too long")
    outcome = await attempt

    assert isinstance(outcome, TimeoutOutcome)
    assert outcome.error.type == "TimedOut"
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith(" in clean_up_after_the_error")
    assert outcome.error.traceback is not None
    assert "runners/child.py" not in outcome.error.traceback


async def test_a_handler_that_swallows_the_error_is_ended_after_its_grace(tmp_path: Path) -> None:
    runner = ProcessRunner(APP, grace=timedelta(milliseconds=50))
    context, attempt = start(runner, "swallow_the_error", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)
    assert not is_alive(child)
    await runner.stop()


async def test_the_grace_of_a_handler_goes_before_the_usual_one(tmp_path: Path) -> None:
    """With the usual grace of ten seconds, the error that is swallowed would be awaited for so long."""
    runner = ProcessRunner(APP)
    handler = make_handler(
        isolated_app.swallow_the_error,
        name="swallow_the_error",
        isolate=True,
        options=HandlerOptions(grace=timedelta(0)),
    )
    context = attempt_at("swallow_the_error", file=str(tmp_path / "pid"))
    context.clock = SteppedClock()
    attempt = asyncio.create_task(runner.run(handler, context))
    await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)

    async with patience("the handler is ended"):
        assert isinstance(await attempt, TimeoutOutcome)
    assert context.clock.slept == [0]
    await runner.stop()


async def test_a_coroutine_in_a_child_learns_why_it_was_cancelled(runner: ProcessRunner, tmp_path: Path) -> None:
    context, attempt = start(runner, "tell_why", file=str(tmp_path / "pid"))
    await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)
    assert (tmp_path / "pid.cleaned").read_text() == "timeout"


@pytest.mark.parametrize(
    ("why", "outcome"), [(StopReason.CANCEL, CancelOutcome("enough")), (StopReason.SHUTDOWN, Released())]
)
async def test_a_handler_that_stops_when_asked_keeps_its_child(
    runner: ProcessRunner, tmp_path: Path, why: StopReason, outcome: Outcome
) -> None:
    context, attempt = start(runner, "stop_when_asked", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(why, "enough")

    assert await attempt == outcome
    assert (await pids(runner)).child == child


async def test_a_handler_that_does_not_stop_when_asked_is_ended(tmp_path: Path) -> None:
    runner = ProcessRunner(APP, cooperation=timedelta(milliseconds=50), grace=timedelta(0))
    context, attempt = start(runner, "hang", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(StopReason.CANCEL, "enough")

    assert await attempt == CancelOutcome("enough")
    assert not is_alive(child)
    await runner.stop()


async def test_nothing_survives_a_timeout_even_if_it_ignores_term_and_forks_twice(tmp_path: Path) -> None:
    """Fault 11."""
    runner = ProcessRunner(APP, grace=timedelta(0))
    context, attempt = start(runner, "defy", folder=str(tmp_path))
    processes = [await read_pid(tmp_path / name) for name in ("handler", "daemon", "program")]
    assert all(is_alive(pid) for pid in processes)
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)
    assert not any(is_alive(pid) for pid in processes)
    await runner.stop()


async def test_a_handler_that_blocks_the_interpreter_is_ended(tmp_path: Path) -> None:
    runner = ProcessRunner(APP, grace=timedelta(0))
    context, attempt = start(runner, "block_everything", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)
    assert not is_alive(child)
    await runner.stop()


async def test_what_a_dead_child_leaves_running_is_ended_with_it(runner: ProcessRunner, tmp_path: Path) -> None:
    outcome = await run(runner, "leave_daemon", file=str(tmp_path / "pid"))

    assert isinstance(outcome, Lost)
    assert not is_alive(await read_pid(tmp_path / "pid"))


async def test_a_child_whose_handler_left_a_process_behind_is_not_used_again(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    child = result_of(await run(runner, "leave_child_behind", file=str(tmp_path / "pid")))

    assert not is_alive(await read_pid(tmp_path / "pid"))
    assert (await pids(runner)).child != child


async def test_halting_while_the_child_still_imports_the_app_ends_it(runner: ProcessRunner) -> None:
    context, attempt = start(runner, "hang", file="unused")
    await asyncio.sleep(0.01)
    context.halt(StopReason.TIMEOUT)

    assert isinstance(await attempt, TimeoutOutcome)


async def test_what_was_halted_before_it_began_is_not_run(runner: ProcessRunner) -> None:
    context = Attempt("leave_with", '{"code": 1}')
    context.halt(StopReason.CANCEL, "early")

    assert await run_attempt(runner, context) == CancelOutcome("early")


async def test_cancelling_the_task_itself_ends_the_child(runner: ProcessRunner, tmp_path: Path) -> None:
    _, attempt = start(runner, "hang", file=str(tmp_path / "pid"))
    child = await read_pid(tmp_path / "pid")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt

    assert not is_alive(child)


async def test_nonsense_in_our_socket_costs_the_handler_its_child_only(runner: ProcessRunner) -> None:
    outcome = await run(runner, "scribble")

    assert isinstance(outcome, Lost)
    assert result_of(await run(runner, "add", a=1, b=2)) == 3


async def test_stopping_leaves_neither_processes_nor_open_files() -> None:
    before = open_files()
    runner = ProcessRunner(APP)
    found = await asyncio.gather(*(pids(runner) for _ in range(2)))

    await runner.stop()

    assert not any(is_alive(pid) for processes in found for pid in (processes.child, processes.supervisor))
    assert open_files() == before


async def test_a_warm_child_is_ready_before_it_is_needed(runner: ProcessRunner) -> None:
    await runner.warm()

    async with asyncio.timeout(60):
        assert (await pids(runner)).runs == 1


# forks, and the death of the worker


async def test_a_fork_in_a_child_does_not_become_a_second_child(runner: ProcessRunner) -> None:
    assert result_of(await run(runner, "fork_and_return")) == 70
    assert result_of(await run(runner, "fork_and_use")) == 42
    assert result_of(await run(runner, "add", a=1, b=2)) == 3


WORKER = """
import asyncio, sys
from tests.engine.runners import isolated_app
from tests.engine.runners.support import Attempt
from timeball.engine.runners.process import ProcessRunner

async def main():
    handler = isolated_app.registry.get(sys.argv[1])
    await ProcessRunner("tests.engine.runners.isolated_app:registry").run(handler, Attempt(sys.argv[1], sys.argv[2]))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "names", [("defy", "folder", ["handler", "daemon", "program"]), ("block_everything", "file", ["pid"])]
)
async def test_nothing_survives_a_worker_that_is_killed(tmp_path: Path, names: tuple[str, str, list[str]]) -> None:
    handler, parameter, files = names
    target = tmp_path if parameter == "folder" else tmp_path / "pid"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, handler, orjson.dumps({parameter: str(target)}).decode()])
    processes = [await read_pid(tmp_path / name) for name in files]
    assert all(is_alive(pid) for pid in processes)

    worker.kill()
    worker.wait()

    await until(lambda: not any(is_alive(pid) for pid in processes), "all of its processes end")


async def test_whatever_a_handler_returns_or_raises_comes_through_the_wire(runner: ProcessRunner) -> None:
    for number in range(len(hostile_values.RETURNED)):
        outcome = await run(runner, "return_odd", number=number)
        assert isinstance(outcome, Succeeded | Snoozed | CancelOutcome | Failed), number
    for number in range(len(hostile_values.raised())):
        outcome = await run(runner, "raise_odd", number=number)
        assert isinstance(outcome, Failed), number


async def test_a_line_that_is_longer_than_a_message_may_be_costs_no_attempt(runner: ProcessRunner) -> None:
    context = attempt_at("say_much")

    outcome = await run_attempt(runner, context)

    assert isinstance(outcome, Succeeded)
    assert "characters left out" in context.sink.lines[0][1]
