"""Handlers in threads, which cannot be ended and must be lived with."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine import hostile_values
from tests.engine.runners.support import Attempt, patience, until
from tests.support import pace
from timeball.current import Cancel, StopReason, current
from timeball.domain.execution import CancelOutcome, Failed, Outcome, Released, Snoozed, Succeeded, TimeoutOutcome
from timeball.domain.handler import Handler, RunStyle
from timeball.engine.runners.in_process import ThreadRunner
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
