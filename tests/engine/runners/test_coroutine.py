"""Handlers on the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.runners.support import Attempt, patience
from timeball.current import Retry, StopReason, current
from timeball.domain.execution import CancelOutcome, Failed, Outcome, Released, Succeeded, TimeoutOutcome
from timeball.domain.handler import Handler, HandlerOptions, RunStyle
from timeball.engine.runners.in_process import CoroutineRunner
from timeball.handlers.registry import make_handler


def handler_of(function: Callable[..., Any], *no_retry: type[BaseException]) -> Handler:
    handler = make_handler(function, name="handler", options=HandlerOptions(no_retry=no_retry))
    assert handler.style is RunStyle.COROUTINE
    return handler


async def run(function: Callable[..., Any], context: Attempt) -> Outcome:
    async with patience("the handler ends"):
        return await CoroutineRunner().run(handler_of(function), context)


async def halt_once_running(function: Callable[..., Any], why: StopReason) -> tuple[Outcome, Attempt]:
    context = Attempt(timeout_ms=1_000)
    attempt = asyncio.create_task(run(function, context))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    context.halt(why, "enough")
    return await attempt, context


async def sleep_long() -> None:
    await asyncio.sleep(3600)


async def test_a_coroutine_is_awaited_with_its_arguments() -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b + current.attempt

    assert await run(add, Attempt(payload='{"a": 1, "b": 2}')) == Succeeded("6")


async def test_each_of_many_attempts_sees_its_own_context() -> None:
    async def say(word: str) -> str:
        current.log(word)
        await asyncio.sleep(0.001)
        current.log(word)
        return word

    contexts = [Attempt(payload=f'{{"word": "{number}"}}') for number in range(20)]
    outcomes = await asyncio.gather(*(run(say, context) for context in contexts))

    for number, (context, outcome) in enumerate(zip(contexts, outcomes, strict=True)):
        assert outcome == Succeeded(f'"{number}"')
        assert context.sink.lines == [("info", str(number))] * 2


async def test_a_payload_that_does_not_fit_is_not_retried() -> None:
    async def takes(a: int) -> None: ...

    outcome = await run(takes, Attempt(payload='{"a": "x"}'))

    assert isinstance(outcome, Failed)
    assert not outcome.is_retryable
    assert 'takes(a: int): a is "x", expected a whole number' in outcome.error.message


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), Retry("later")])
async def test_nothing_a_handler_raises_reaches_the_loop(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    assert isinstance(await run(fail, Attempt()), Failed)


async def test_a_cancellation_of_the_handlers_own_making_is_a_failure() -> None:
    async def trip() -> None:
        task = asyncio.create_task(sleep_long())
        await asyncio.sleep(0)
        task.cancel()
        await task

    outcome = await run(trip, Attempt())

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize(
    ("why", "kind"),
    [(StopReason.TIMEOUT, TimeoutOutcome), (StopReason.CANCEL, CancelOutcome), (StopReason.SHUTDOWN, Released)],
)
async def test_a_halt_ends_what_the_handler_awaits(why: StopReason, kind: type) -> None:
    outcome, _ = await halt_once_running(sleep_long, why)

    assert isinstance(outcome, kind)


async def test_a_timeout_says_where_the_handler_was() -> None:
    outcome, _ = await halt_once_running(sleep_long, StopReason.TIMEOUT)

    assert isinstance(outcome, TimeoutOutcome)
    assert outcome.error.message == "ran past its timeout of 1s"
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith(" in sleep_long")


async def test_a_handler_that_swallows_the_halt_is_not_taken_for_done() -> None:
    async def swallow() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "as if nothing had happened"

    outcome, _ = await halt_once_running(swallow, StopReason.SHUTDOWN)

    assert outcome == Released()


async def test_the_task_can_go_on_after_a_halt() -> None:
    context = Attempt()

    async def attempt() -> Outcome:
        outcome = await run(sleep_long, context)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return outcome

    task = asyncio.create_task(attempt())
    await asyncio.sleep(0)
    context.halt(StopReason.CANCEL, "enough")

    assert await task == CancelOutcome("enough")


@pytest.mark.parametrize("is_halted_too", [False, True])
async def test_cancelling_the_task_itself_is_not_swallowed(is_halted_too: bool) -> None:
    context = Attempt()
    task = asyncio.create_task(CoroutineRunner().run(handler_of(sleep_long), context))
    await asyncio.sleep(0)

    if is_halted_too:
        context.halt(StopReason.SHUTDOWN)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_halted_before_it_began_is_not_called() -> None:
    context = Attempt()
    context.halt(StopReason.CANCEL, "early")

    async def never() -> None:
        pytest.fail("was called")

    assert await run(never, context) == CancelOutcome("early")


async def test_a_copy_of_the_worker_that_returns_from_a_handler_ends_there() -> None:
    async def fork() -> int:
        return os.fork()

    outcome = await run(fork, Attempt())

    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert os.waitstatus_to_exitcode(os.waitpid(int(outcome.result), 0)[1]) == 70


async def test_a_copy_of_the_worker_that_awaits_or_raises_ends_there_too(capfd: pytest.CaptureFixture[str]) -> None:
    async def fork() -> int:
        child = os.fork()
        if child == 0:
            sys.stderr = sys.__stderr__
            await asyncio.sleep(0.01)
        return child

    outcome = await run(fork, Attempt("app:fork"))

    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert os.waitstatus_to_exitcode(os.waitpid(int(outcome.result), 0)[1]) == 70
    assert "was forked by handler app:fork" in capfd.readouterr().err
