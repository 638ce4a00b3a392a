"""Handlers in threads, which cannot be ended and must be lived with."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.engine import hostile_values
from tests.engine.runners.support import Attempt, RememberingSink, patience, until
from tests.support import pace
from timeball.current import Cancel, Cancelled, Stopped, StopReason, TimedOut, current
from timeball.domain.execution import CancelOutcome, Failed, Outcome, Released, Snoozed, Succeeded, TimeoutOutcome
from timeball.domain.handler import Handler, HandlerOptions, RunStyle
from timeball.engine.runners import interrupt as interrupt_module
from timeball.engine.runners.in_process import ThreadRunner
from timeball.engine.runners.interrupt import RETRY_SECONDS, ThreadInterrupt
from timeball.handlers.registry import make_handler

SHORT = timedelta(milliseconds=20)
LONG = timedelta(hours=1)


def handler_of(function: Callable[..., Any]) -> Handler:
    handler = make_handler(function, name="handler")
    assert handler.style is RunStyle.THREAD
    return handler


@pytest.fixture
async def runner() -> AsyncIterator[ThreadRunner]:
    threads = ThreadRunner(4, grace=SHORT)
    yield threads
    await threads.stop()


async def run(runner: ThreadRunner, function: Callable[..., Any], context: Attempt) -> Outcome:
    async with patience("the handler ends or is given up"):
        return await runner.run(handler_of(function), context)


async def test_a_function_runs_in_a_thread_of_its_own(runner: ThreadRunner) -> None:
    def where(word: str) -> list[str]:
        current.log(word)
        return [word, threading.current_thread().name]

    context = Attempt(payload='{"word": "hello"}')

    assert await run(runner, where, context) == Succeeded('["hello","timeball-handler-1"]')
    assert context.sink.lines == [("info", "hello")]


async def test_context_variables_of_the_caller_are_seen(runner: ThreadRunner) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("seen")

    def read() -> str:
        seen = variable.get()
        variable.set("changed")
        return seen

    assert await run(runner, read, Attempt()) == Succeeded('"seen"')
    assert variable.get() == "seen"


async def test_attempts_run_side_by_side_up_to_the_number_of_threads(runner: ThreadRunner) -> None:
    together = threading.Barrier(4)

    def meet() -> str:
        together.wait(timeout=pace.patience(10))
        return current.execution_id

    outcomes = await asyncio.gather(*(run(runner, meet, Attempt()) for _ in range(8)))

    assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
    assert sum(thread.name.startswith("timeball-handler") for thread in threading.enumerate()) <= 4


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
async def test_whatever_is_raised_fails_the_attempt_and_not_the_thread(
    runner: ThreadRunner, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    assert isinstance(await run(runner, fail, Attempt()), Failed)
    assert await run(runner, lambda: 1, Attempt()) == Succeeded("1")


async def test_a_thread_that_overruns_is_given_up_but_keeps_its_slot(runner: ThreadRunner) -> None:
    entered, release, freed = threading.Event(), threading.Event(), []
    runner.freed.subscribe(lambda: freed.append(1))

    def stuck() -> None:
        entered.set()
        release.wait()

    context = Attempt(timeout_ms=100)
    attempt = asyncio.create_task(run(runner, stuck, context))
    await until(entered.is_set, "the thread is in the handler")
    context.halt(StopReason.TIMEOUT)
    outcome = await attempt

    assert isinstance(outcome, TimeoutOutcome)
    assert outcome.error.message == "ran past its timeout of 100ms"
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith(" in stuck")
    (overrun,) = runner.overrunning
    assert overrun.claimed is context.claimed
    assert overrun.thread.startswith("timeball-handler-")
    assert not freed

    release.set()
    await until(lambda: bool(freed), "the thread ends")
    assert runner.overrunning == ()


async def test_a_handler_that_looks_can_stop_within_the_grace() -> None:
    runner = ThreadRunner(1, grace=LONG)
    begun = threading.Event()

    def considerate() -> None:
        begun.set()
        while not current.cancelled:
            pass
        raise Cancel("I was asked to")

    context = Attempt()
    attempt = asyncio.create_task(run(runner, considerate, context))
    await until(begun.is_set, "the handler runs")
    context.halt(StopReason.SHUTDOWN)

    assert await attempt == Released()
    assert runner.overrunning == ()


async def test_a_success_within_the_grace_counts_if_the_handler_did_not_know() -> None:
    runner = ThreadRunner(1, grace=LONG)
    begun, release = threading.Event(), threading.Event()

    def unaware() -> int:
        begun.set()
        release.wait()
        return 1

    context = Attempt()
    attempt = asyncio.create_task(run(runner, unaware, context))
    await until(begun.is_set, "the handler runs")
    context.halt(StopReason.TIMEOUT)
    release.set()

    assert await attempt == Succeeded("1")


async def test_what_waits_for_a_thread_when_it_is_halted_never_begins() -> None:
    runner = ThreadRunner(1, grace=SHORT)
    release = threading.Event()
    first, second = Attempt(), Attempt()
    called = []

    def block() -> None:
        release.wait()

    blocked = asyncio.create_task(run(runner, block, first))
    waiting = asyncio.create_task(run(runner, lambda: called.append(1), second))
    await asyncio.sleep(0.01)
    second.halt(StopReason.CANCEL, "not needed")

    assert await waiting == CancelOutcome("not needed")
    assert runner.overrunning == ()
    release.set()
    assert await blocked == Succeeded(None)
    assert await run(runner, lambda: 5, Attempt()) == Succeeded("5")
    assert not called


async def test_cancelling_the_task_itself_leaves_the_thread_counted(runner: ThreadRunner) -> None:
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait()

    task = asyncio.create_task(runner.run(handler_of(block), Attempt()))
    await until(begun.is_set, "the thread begins")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(runner.overrunning) == 1
    release.set()
    await until(lambda: not runner.overrunning, "the thread ends")


async def test_a_plain_function_that_returns_a_coroutine_is_told_so(runner: ThreadRunner) -> None:
    async def inner() -> None: ...

    outcome = await run(runner, lambda: inner(), Attempt())

    assert isinstance(outcome, Failed)
    assert "declare the handler with async def" in outcome.error.message


async def test_a_fork_in_a_thread_does_not_become_a_second_worker(runner: ThreadRunner) -> None:
    outcome = await run(runner, lambda: os.fork(), Attempt())

    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert os.waitstatus_to_exitcode(os.waitpid(int(outcome.result), 0)[1]) == 70
    assert await run(runner, lambda: 1, Attempt()) == Succeeded("1")


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    program = """
import asyncio, threading
from tests.engine.runners.support import Attempt
from timeball.current import StopReason
from timeball.handlers.registry import make_handler
from timeball.engine.runners.in_process import ThreadRunner

def stuck():
    threading.Event().wait()

async def main():
    runner, context = ThreadRunner(1), Attempt()
    attempt = asyncio.create_task(runner.run(make_handler(stuck), context))
    await asyncio.sleep(0.05)
    context.halt(StopReason.SHUTDOWN)
    print(await attempt)
    await runner.stop()

asyncio.run(main())
"""

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)

    assert ended.stdout == "Released(has_started=False)\n"
    assert ended.stderr == ""


async def test_whatever_a_function_returns_or_raises_ends_its_attempt_and_not_its_thread(runner: ThreadRunner) -> None:
    def raise_one(error: BaseException) -> None:
        raise error

    for value in hostile_values.RETURNED:
        outcome = await run(runner, lambda value=value: value, Attempt())
        assert isinstance(outcome, Succeeded | Snoozed | CancelOutcome | Failed)
    for error in hostile_values.raised():
        assert isinstance(await run(runner, lambda error=error: raise_one(error), Attempt()), Failed)


# errors in the code of a thread


def interruptible(function: Callable[..., Any], **options: Any) -> Handler:
    return make_handler(function, name="handler", options=HandlerOptions(interrupt=True, **options))


@pytest.fixture
async def patient() -> AsyncIterator[ThreadRunner]:
    threads = ThreadRunner(2, grace=LONG)
    yield threads
    await threads.stop()


async def start_interruptible(
    runner: ThreadRunner, function: Callable[..., Any], begun: threading.Event
) -> tuple[Attempt, asyncio.Task[Outcome]]:
    context = Attempt(timeout_ms=100)
    attempt = asyncio.create_task(runner.run(interruptible(function), context))
    await until(begun.is_set, "the handler runs")
    return context, attempt


@pytest.mark.parametrize(
    ("why", "error"),
    [(StopReason.TIMEOUT, TimedOut), (StopReason.CANCEL, Cancelled), (StopReason.SHUTDOWN, Stopped)],
)
async def test_an_error_is_raised_in_a_thread_whose_handler_asked_for_it(
    patient: ThreadRunner, why: StopReason, error: type[Stopped]
) -> None:
    begun, caught = threading.Event(), []

    def count() -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        except Exception as raised:
            caught.append((type(raised), str(raised)))
            raise

    context, attempt = await start_interruptible(patient, count, begun)
    context.halt(why, "enough")
    async with patience("the handler is interrupted"):
        outcome = await attempt

    assert caught == [(error, "enough")]
    assert isinstance(outcome, TimeoutOutcome | CancelOutcome | Released)
    assert patient.overrunning == ()
    assert await run(patient, lambda: 7, Attempt()) == Succeeded("7"), "the thread is as good as before"


async def test_what_a_handler_returns_after_it_swallowed_the_error_is_no_success(patient: ThreadRunner) -> None:
    begun = threading.Event()

    def shrug() -> str:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        except TimedOut:
            return "half done"

    context, attempt = await start_interruptible(patient, shrug, begun)
    context.halt(StopReason.TIMEOUT)
    async with patience("the handler is interrupted"):
        assert isinstance(await attempt, TimeoutOutcome)


async def test_a_thread_that_nobody_may_interrupt_is_left_alone() -> None:
    runner, begun, release = ThreadRunner(1, grace=SHORT), threading.Event(), threading.Event()
    ended: list[bool] = []

    def stuck() -> None:
        begun.set()
        while not release.is_set():
            time.sleep(0.001)
        ended.append(True)

    context = Attempt()
    attempt = asyncio.create_task(run(runner, stuck, context))
    await until(begun.is_set, "the handler runs")
    context.halt(StopReason.TIMEOUT)
    await attempt
    release.set()

    await until(lambda: bool(ended), "the thread comes to its own end")
    await runner.stop()


async def test_a_thread_that_waits_in_c_is_given_up_after_its_grace_and_gets_the_error_when_it_returns() -> None:
    runner, begun, release = ThreadRunner(1, grace=SHORT), threading.Event(), threading.Lock()
    caught: list[type] = []

    def wait() -> None:
        begun.set()
        try:
            release.acquire()
            time.sleep(3600)
        except Stopped as error:
            caught.append(type(error))

    release.acquire()
    context, attempt = await start_interruptible(runner, wait, begun)
    context.halt(StopReason.TIMEOUT)
    async with patience("the handler is given up"):
        assert isinstance(await attempt, TimeoutOutcome)
    assert len(runner.overrunning) == 1

    release.release()
    await until(lambda: not runner.overrunning, "the thread ends")
    assert caught == [TimedOut]
    await runner.stop()


def send_once_begun(interrupt: ThreadInterrupt, begun: threading.Event) -> None:
    begun.wait()
    interrupt.send(TimedOut)


def test_an_error_never_reaches_what_calls_the_handler() -> None:
    """Thousands of calls that end while the error is on its way: each has returned, or has raised it, and nothing comes after."""
    outcomes: set[str] = set()

    for spins in range(1_000):
        interrupt, begun = ThreadInterrupt(), threading.Event()
        sender = threading.Thread(target=send_once_begun, args=(interrupt, begun))
        sender.start()

        def handler(spins: int = spins, begun: threading.Event = begun) -> str:
            begun.set()
            for _ in range(spins % 97):
                pass
            return "returned"

        try:
            outcomes.add(interrupt.call(handler))
        except TimedOut:
            outcomes.add("raised")
        sender.join()

    assert outcomes <= {"returned", "raised"}
    assert "returned" in outcomes


def test_an_error_that_has_not_arrived_when_the_handler_returns_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt, sent = ThreadInterrupt(), []

    def handler() -> str:
        # Marked as sent while it never was: the way out has to clear what may be pending.
        interrupt._has_sent = True
        return "returned"

    monkeypatch.setattr(interrupt_module, "_set_error", lambda thread, error: sent.append((thread, error)))

    assert interrupt.call(handler) == "returned"
    assert sent[0] == (threading.get_ident(), None)


TRACED_AFTERWARDS = """
import sys
from timeball.engine.runners.interrupt import ThreadInterrupt

interrupt = ThreadInterrupt()

def handler():
    interrupt._has_sent = True
    return "returned"

assert interrupt.call(handler) == "returned"
sys.setprofile(lambda *event: None)
handler()
print("done")
"""


def test_a_debugger_goes_on_after_an_error_was_taken_back() -> None:
    """Python 3.11 repeats one bytecode for ever under a tracer while it believes that an error is on its way."""
    program = subprocess.run(
        [sys.executable, "-c", TRACED_AFTERWARDS], capture_output=True, text=True, check=True, timeout=pace.patience(30)
    )

    assert program.stdout == "done\n"


def test_a_return_stands_even_if_the_error_comes_while_it_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_self: ThreadInterrupt) -> None:
        raise TimedOut

    monkeypatch.setattr(ThreadInterrupt, "_shut", late)

    assert ThreadInterrupt().call(lambda: "returned") == "returned"


async def test_code_of_ours_that_a_handler_has_called_is_not_interrupted(patient: ThreadRunner) -> None:
    """Writing a line of the log takes its time here: the error comes after it, in the handler."""
    begun, entered, release, seen = threading.Event(), threading.Event(), threading.Event(), []

    class SlowSink(RememberingSink):
        def emit_log(self, at: datetime, level: str, message: str) -> None:
            entered.set()
            while not release.is_set():
                time.sleep(0.001)
            super().emit_log(at, level, message)

    def speak() -> None:
        begun.set()
        try:
            current.log("half a line")
            seen.append("logged")
            while True:
                time.sleep(0.001)
        except TimedOut:
            seen.append("told")

    context = Attempt(timeout_ms=100)
    context.sink = SlowSink()
    attempt = asyncio.create_task(patient.run(interruptible(speak), context))
    await until(entered.is_set, "the line is being written")
    context.halt(StopReason.TIMEOUT)
    await asyncio.sleep(5 * RETRY_SECONDS)
    assert seen == []
    release.set()
    async with patience("the handler is interrupted"):
        await attempt

    assert seen == ["logged", "told"]
    assert context.sink.lines == [("info", "half a line")]
