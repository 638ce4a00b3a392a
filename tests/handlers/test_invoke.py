"""The one way to a handler: what surrounds a run, in which order, and what of it a traceback shows."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runners.support import Attempt
from timeball.current import Snooze, current
from timeball.domain.execution import Failed, Snoozed, Succeeded
from timeball.domain.handler import Handler, PayloadMismatch, RunStyle
from timeball.engine.runners.in_process import CoroutineRunner, ThreadRunner
from timeball.handlers.registry import invoke, make_handler


class Noting:
    """Notes when it is entered and left, under a name."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    @contextmanager
    def around(self) -> Iterator[None]:
        self._notes.append(f"enter {self._name}")
        try:
            yield
        finally:
            self._notes.append(f"leave {self._name}")

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        with self.around():
            yield


@pytest.fixture
def notes() -> list[str]:
    return []


def surrounded(function: Callable[..., Any], notes: list[str]) -> Handler:
    handler = make_handler(function, name="handler")
    return replace(handler, wrappers=(Noting("outer", notes), Noting("inner", notes)))


async def run(handler: Handler, payload: str = "{}") -> Any:
    runner = CoroutineRunner() if handler.style is RunStyle.COROUTINE else ThreadRunner(1)
    try:
        return await runner.run(handler, Attempt(payload=payload))
    finally:
        await runner.stop()


ORDER = ["enter outer", "enter inner", "run", "leave inner", "leave outer"]


async def test_every_wrapper_surrounds_a_plain_function(notes: list[str]) -> None:
    def work(number: int) -> int:
        notes.append("run")
        return number

    assert await run(surrounded(work, notes), '{"number": 5}') == Succeeded("5")
    assert notes == ORDER


async def test_every_wrapper_surrounds_a_coroutine_function(notes: list[str]) -> None:
    async def work(number: int) -> int:
        notes.append("run")
        return number

    assert await run(surrounded(work, notes), '{"number": 5}') == Succeeded("5")
    assert notes == ORDER


async def test_a_coroutine_function_in_a_process_of_its_own_is_awaited_inside_its_wrappers(notes: list[str]) -> None:
    async def work() -> None:
        notes.append("run")

    await invoke(replace(surrounded(work, notes), style=RunStyle.PROCESS), "{}")

    assert notes == ORDER


@pytest.mark.parametrize("is_async", [False, True])
async def test_wrappers_are_left_when_the_handler_raises_and_stay_out_of_its_traceback(
    notes: list[str], is_async: bool
) -> None:
    def fail() -> None:
        raise ValueError("no such order")

    async def fail_async() -> None:
        fail()

    outcome = await run(surrounded(fail_async if is_async else fail, notes))

    assert notes == ["enter outer", "enter inner", "leave inner", "leave outer"]
    assert isinstance(outcome, Failed)
    assert outcome.error.traceback is not None
    frames = [line for line in outcome.error.traceback.splitlines() if line.lstrip().startswith("File ")]
    assert frames
    assert all("test_invoke.py" in frame for frame in frames)


async def test_a_wrapper_sees_the_attempt_as_the_handler_does() -> None:
    seen: list[int] = []

    class Looking:
        @contextmanager
        def around(self) -> Iterator[None]:
            seen.append(current.attempt)
            yield

        @asynccontextmanager
        async def around_async(self) -> AsyncIterator[None]:
            seen.append(current.attempt)
            yield

    async def work() -> None: ...

    for function in (work, lambda: None):
        await run(replace(make_handler(function, name="handler"), wrappers=(Looking(),)))

    assert seen == [3, 3]


def test_a_payload_that_does_not_fit_is_refused_before_the_function_is_entered(notes: list[str]) -> None:
    def work(number: int) -> None:
        notes.append("run")

    with pytest.raises(PayloadMismatch):
        invoke(surrounded(work, notes), '{"number": "five"}')

    assert "run" not in notes


class NotingInFile:
    """Notes the process that leaves it, in a file that all copies of this process share."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def around(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._file.open("a") as notes:
                notes.write(f"{os.getpid()}\n")

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        with self.around():
            yield


@pytest.mark.parametrize("does_raise", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_forked_copy_is_ended_before_it_leaves_a_wrapper(
    tmp_path: Path, is_async: bool, does_raise: bool
) -> None:
    """The exit of a wrapper may close or commit a connection that the copy shares with the worker."""

    def fork() -> int:
        child = os.fork()
        if child == 0 and does_raise:
            raise ValueError("in the copy")
        return child

    async def fork_async() -> int:
        return fork()

    handler = make_handler(fork_async if is_async else fork, name="handler")
    wrappers = (NotingInFile(tmp_path / "outer"), NotingInFile(tmp_path / "inner"))

    outcome = await run(replace(handler, wrappers=wrappers))

    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert os.waitstatus_to_exitcode(os.waitpid(int(outcome.result), 0)[1]) == 70
    assert (tmp_path / "inner").read_text() == (tmp_path / "outer").read_text() == f"{os.getpid()}\n"


class Swallowing:
    """Swallows the error of what it surrounds."""

    @contextmanager
    def around(self) -> Iterator[None]:
        with suppress(ValueError):
            yield

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        with suppress(ValueError):
            yield


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_wrapper_cannot_swallow_the_error_of_a_handler(is_async: bool) -> None:
    seen: list[str] = []

    class Seeing:
        @contextmanager
        def around(self) -> Iterator[None]:
            try:
                yield
            except BaseException as error:
                seen.append(str(error))
                raise

        @asynccontextmanager
        async def around_async(self) -> AsyncIterator[None]:
            with self.around():
                yield

    def fail() -> None:
        raise ValueError("no such order")

    async def fail_async() -> None:
        fail()

    handler = make_handler(fail_async if is_async else fail, name="handler")

    outcome = await run(replace(handler, wrappers=(Seeing(), Swallowing(), Swallowing())))

    assert isinstance(outcome, Failed)
    assert outcome.error.message == "no such order"
    assert seen == ["no such order"], "the wrapper outside of the others does not see the error"
    assert outcome.error.traceback is not None
    assert "suppress" not in outcome.error.traceback
    assert "in around" not in outcome.error.traceback


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_wrapper_may_raise_another_error_in_place_of_the_handlers(is_async: bool) -> None:
    class Translating:
        @contextmanager
        def around(self) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                raise Snooze("5m") from error

        @asynccontextmanager
        async def around_async(self) -> AsyncIterator[None]:
            with self.around():
                yield

    def fail() -> None:
        raise ValueError("busy")

    async def fail_async() -> None:
        fail()

    handler = make_handler(fail_async if is_async else fail, name="handler")

    assert await run(replace(handler, wrappers=(Translating(),))) == Snoozed(timedelta(minutes=5))


class Raising:
    """Raises when it is entered, or when it is left."""

    def __init__(self, when: str) -> None:
        self._when = when

    @contextmanager
    def around(self) -> Iterator[None]:
        self.fail_if("enter")
        try:
            yield
        finally:
            self.fail_if("leave")

    @asynccontextmanager
    async def around_async(self) -> AsyncIterator[None]:
        with self.around():
            yield

    def fail_if(self, when: str) -> None:
        if when == self._when:
            raise ConnectionError(f"cannot {when}")


@pytest.mark.parametrize("when", ["enter", "leave"])
@pytest.mark.parametrize("does_raise", [False, True])
async def test_the_traceback_of_a_wrapper_that_raises_shows_its_own_frames_only(
    notes: list[str], when: str, does_raise: bool
) -> None:
    def work() -> None:
        if does_raise:
            raise ValueError("no such order")

    wrappers = (Noting("outer", notes), Raising(when), Noting("inner", notes))

    outcome = await run(replace(make_handler(work, name="handler"), wrappers=wrappers))

    assert isinstance(outcome, Failed)
    assert outcome.error.message == f"cannot {when}"
    assert outcome.error.top_frame is not None
    assert outcome.error.top_frame.endswith("in Raising.fail_if")
    assert outcome.error.traceback is not None
    assert {file for file, _ in frames_of(outcome.error.traceback)} == {"test_invoke.py"}
    assert ("test_invoke.py", "work") in frames_of(outcome.error.traceback) or not (does_raise and when == "leave")


async def test_the_traceback_of_an_async_wrapper_that_raises_shows_no_machinery(notes: list[str]) -> None:
    class RaisingAsync(Raising):
        @asynccontextmanager
        async def around_async(self) -> AsyncIterator[None]:
            yield
            self.fail_if("leave")

    async def work() -> None: ...

    wrappers = (Noting("outer", notes), RaisingAsync("leave"), Noting("inner", notes))

    outcome = await run(replace(make_handler(work, name="handler"), wrappers=wrappers))

    assert isinstance(outcome, Failed)
    assert outcome.error.traceback is not None
    assert frames_of(outcome.error.traceback) == [("test_invoke.py", "around_async"), ("test_invoke.py", "fail_if")]


async def test_a_context_manager_that_the_handler_uses_stays_in_its_traceback() -> None:
    def work() -> None:
        with Raising("enter").around():
            pass

    outcome = await run(make_handler(work, name="handler"))

    assert isinstance(outcome, Failed)
    assert outcome.error.traceback is not None
    assert [file for file, _ in frames_of(outcome.error.traceback)] == [
        "test_invoke.py",
        "contextlib.py",
        "test_invoke.py",
        "test_invoke.py",
    ]


async def test_a_wrapper_that_yields_twice_leaves_the_frame_that_says_so() -> None:
    class Twice(Raising):
        @contextmanager
        def around(self) -> Iterator[None]:
            yield
            yield

    outcome = await run(replace(make_handler(lambda: None, name="handler"), wrappers=(Twice(""),)))

    assert isinstance(outcome, Failed)
    assert outcome.error.message == "generator didn't stop"
    assert outcome.error.traceback is not None
    assert frames_of(outcome.error.traceback) == [("contextlib.py", "__exit__")]


def frames_of(traceback: str) -> list[tuple[str, str]]:
    """File and function of each frame."""
    return [(Path(file).name, function) for file, function in re.findall(r'File "(.*)", line \d+, in (\w+)', traceback)]
