"""The background loop: opened by the first call, shared by all callers, closed at the end; and forks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from timeball import StoreUnavailable, TimeballError
from timeball.sdk.background_loop import BackgroundLoop
from timeball.store.embedded.cluster import FileLock


class Thing:
    """An asynchronous resource, which can be used only in the loop it was opened in."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.under_way = threading.Event()

    async def number(self) -> int:
        assert asyncio.get_running_loop() is self.loop
        return 7

    async def never(self) -> None:
        self.under_way.set()
        await asyncio.Event().wait()


class Opener:
    """Opens things and counts them."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.failures = 0
        self.last: Thing | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Thing]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.opened += 1
        self.last = Thing()
        try:
            yield self.last
        finally:
            await asyncio.to_thread(lambda: None)  # closing may need a thread
            self.closed += 1


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def background_loop(opener: Opener) -> Any:
    loop = BackgroundLoop(opener.open)
    yield loop
    loop.close()


def threads() -> list[str]:
    """The threads of background loops; those of handlers, which outlive other tests, have longer names."""
    return [thread.name for thread in threading.enumerate() if thread.name == "timeball"]


def test_nothing_is_started_before_the_first_call(background_loop: BackgroundLoop[Thing], opener: Opener) -> None:
    assert threads() == []
    assert opener.opened == 0
    assert background_loop.resource is None


def test_threads_and_event_loops_share_one_resource(background_loop: BackgroundLoop[Thing], opener: Opener) -> None:
    async def ask() -> int:
        return await background_loop.acall(Thing.number)

    answers = [
        background_loop.call(Thing.number),
        asyncio.run(ask()),
        asyncio.run(ask()),
        background_loop.call(Thing.number),
    ]

    assert answers == [7, 7, 7, 7]
    assert opener.opened == 1
    assert background_loop.resource is opener.last


def test_many_first_calls_open_once(background_loop: BackgroundLoop[Thing], opener: Opener) -> None:
    callers = [threading.Thread(target=background_loop.call, args=(Thing.number,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert opener.opened == 1


def test_a_resource_that_cannot_be_opened_is_tried_again_by_the_next_call(
    background_loop: BackgroundLoop[Thing], opener: Opener
) -> None:
    opener.failures = 1

    with pytest.raises(StoreUnavailable, match="away"):
        background_loop.call(Thing.number)

    assert background_loop.call(Thing.number) == 7


def test_closing_closes_the_resource_and_ends_the_thread(
    background_loop: BackgroundLoop[Thing], opener: Opener
) -> None:
    background_loop.call(Thing.number)

    background_loop.close()
    background_loop.close()

    assert opener.closed == 1
    assert threads() == []
    assert background_loop.resource is None


def test_closing_needs_no_new_thread(
    background_loop: BackgroundLoop[Thing], opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12.1 refuses a new thread at the end of a program, which is when a background loop closes itself."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    background_loop.call(Thing.number)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    background_loop.close()

    assert opener.closed == 1
    assert threads() == []


async def test_closing_from_a_coroutine_does_not_block_its_loop(
    background_loop: BackgroundLoop[Thing], opener: Opener
) -> None:
    await background_loop.acall(Thing.number)

    await background_loop.aclose()

    assert opener.closed == 1


def test_a_call_after_closing_opens_again(background_loop: BackgroundLoop[Thing], opener: Opener) -> None:
    background_loop.call(Thing.number)
    background_loop.close()

    assert background_loop.call(Thing.number) == 7
    assert opener.opened == 2


def test_closing_fails_a_call_that_is_under_way(background_loop: BackgroundLoop[Thing], opener: Opener) -> None:
    background_loop.call(Thing.number)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            background_loop.call(Thing.never)
        except StoreUnavailable as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert opener.last is not None
    assert opener.last.under_way.wait(10)
    background_loop.close()
    waiting.join(10)

    assert "closed while this call was under way" in str(errors[0])


async def test_a_cancelled_caller_cancels_its_own_work_only(
    background_loop: BackgroundLoop[Thing], opener: Opener
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await background_loop.acall(Thing.never)

    assert await background_loop.acall(Thing.number) == 7


def test_a_call_from_the_background_thread_is_refused(background_loop: BackgroundLoop[Thing]) -> None:
    async def call_back(_thing: Thing) -> int:
        return background_loop.call(Thing.number)

    with pytest.raises(TimeballError, match="from its own background thread"):
        background_loop.call(call_back)


FORKING = """
import os, sys
from timeball import Timeball

tb = Timeball()

@tb.handler(name="note")
def note(n: int) -> None: ...

def fork(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)  # not os._exit: what the parent registered for the end is run here too
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

def in_child():
    note.enqueue(2)
    fork(lambda: note.enqueue(3))
    note.enqueue(4)

note.enqueue(1)
fork(in_child)
fork(lambda: None)
note.enqueue(5)
tb.close()
fork(lambda: note.enqueue(6))
note.enqueue(7)
"""


@ON_ONE_SERVER
def test_a_forked_child_opens_its_own_connections(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    run_program(FORKING)

    jobs = rows("SELECT payload ->> 'n' AS n FROM timeball.job ORDER BY created_at")
    assert [row["n"] for row in jobs] == ["1", "2", "3", "4", "5", "6", "7"]


FORKING_UNDER_LOAD = """
import os, sys, threading
from timeball import Timeball

tb = Timeball()

@tb.handler(name="note")
def note(n: int) -> None: ...

def keep_busy():
    while not stop.is_set():
        note.enqueue(0)

stop = threading.Event()
note.enqueue(0)
busy = [threading.Thread(target=keep_busy) for _ in range(3)]
for thread in busy: thread.start()
for number in range(1, 11):
    pid = os.fork()
    if pid == 0:
        note.enqueue(number)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for thread in busy: thread.join()
"""


@ON_ONE_SERVER
def test_a_fork_during_calls_of_other_threads_is_safe(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    run_program(FORKING_UNDER_LOAD)

    jobs = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job WHERE payload ->> 'n' <> '0' ORDER BY 1")
    assert [row["n"] for row in jobs] == list(range(1, 11))


LEAVING = """
from timeball import Timeball

tb = Timeball()

@tb.handler(name="note")
def note(n: int) -> None: ...

print(note.enqueue(1).state())
"""


@ON_ONE_SERVER
def test_a_program_that_ends_leaves_the_embedded_server(
    run_program: Callable[..., list[str]], short_folder: Path
) -> None:
    data = short_folder / "data"

    printed = run_program(LEAVING, TIMEBALL_DATABASE_URL=None, TIMEBALL_DATA_DIR=str(data))

    assert printed == ["queued"]
    # The server holds this lock while any of its processes lives.
    assert FileLock(data / "server.lock").try_exclusive()
