"""The short way: driven by the thread that waits, one at a time; nobody is told wrong, whatever strikes."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.app.conftest import ON_ONE_SERVER
from timeball import InvalidInput, StoreUnavailable, Timeball
from timeball.office import Desk
from timeball.shortcut import _FEW, _LONG_SECONDS, Shortcut


class FakeLine:
    """A connection that belongs to the loop it was opened in."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_broken = False
        self.ended_by: str | None = None
        self.under_way = threading.Event()

    def is_closed(self) -> bool:
        return self.is_broken or self.ended_by is not None

    async def close(self, *, timeout: float | None = None) -> None:
        self.ended_by = "close"

    def terminate(self) -> None:
        self.ended_by = "terminate"

    async def number(self) -> int:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return 7

    async def never(self) -> int:
        self.under_way.set()
        await asyncio.Event().wait()
        raise AssertionError("it came")


class Exchange:
    """Opens lines and takes note; its clock is set by hand."""

    def __init__(self) -> None:
        self.lines: list[FakeLine] = []
        self.error: Exception | None = None
        self.now = 0.0
        self.shortcut: Shortcut[FakeLine] = Shortcut(self._connect, lambda: self.now)

    async def _connect(self) -> FakeLine:
        if self.error is not None:
            raise self.error
        self.lines.append(FakeLine())
        return self.lines[-1]

    def ask(self) -> int | None:
        return self.shortcut.run(FakeLine.number)

    def warm_up(self) -> FakeLine:
        while self.ask() is None:
            pass
        return self.lines[-1]


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange()
    yield made
    made.shortcut.close()


def test_it_is_opened_for_those_who_send_one_after_the_other(exchange: Exchange) -> None:
    answers = [exchange.ask() for _ in range(_FEW + 2)]

    assert answers == [None] * _FEW + [7, 7]
    assert len(exchange.lines) == 1


def test_it_is_not_opened_for_those_who_send_now_and_then(exchange: Exchange) -> None:
    for _ in range(3 * _FEW):
        exchange.now += 2 * _LONG_SECONDS
        assert exchange.ask() is None

    assert exchange.lines == []


def test_once_open_it_stays_through_a_pause(exchange: Exchange) -> None:
    exchange.warm_up()
    exchange.now += 60 * _LONG_SECONDS

    assert exchange.ask() == 7
    assert len(exchange.lines) == 1


def test_what_broke_meanwhile_is_opened_anew(exchange: Exchange) -> None:
    exchange.warm_up().is_broken = True

    assert exchange.ask() == 7
    assert len(exchange.lines) == 2


def test_a_line_that_broke_during_a_pause_is_noticed_before_it_is_used(exchange: Exchange) -> None:
    """Nobody drove its loop: what came in waits there."""
    line = exchange.warm_up()
    line.loop.call_soon(lambda: setattr(line, "is_broken", True))
    exchange.now += 60 * _LONG_SECONDS
    while (answer := exchange.ask()) is None:
        pass

    assert answer == 7
    assert exchange.lines[-1] is not line


def test_who_finds_it_taken_is_sent_elsewhere(exchange: Exchange) -> None:
    exchange.warm_up()
    asked: list[int | None] = []

    async def ask_meanwhile(line: FakeLine) -> int:
        other = threading.Thread(target=lambda: asked.append(exchange.ask()))
        other.start()
        other.join()
        return await line.number()

    assert exchange.shortcut.run(ask_meanwhile) == 7
    assert asked == [None]
    assert exchange.ask() == 7


def test_threads_use_it_one_after_the_other(exchange: Exchange) -> None:
    exchange.warm_up()
    answers: list[int | None] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: answers.append(exchange.ask()))
        thread.start()
        thread.join()

    assert answers == [7, 7, 7]
    assert len(exchange.lines) == 1


async def test_a_thread_with_a_loop_of_its_own_is_sent_elsewhere(exchange: Exchange) -> None:
    await asyncio.to_thread(exchange.warm_up)

    assert exchange.ask() is None


def test_where_the_database_is_away_the_portal_is_asked(exchange: Exchange) -> None:
    exchange.error = StoreUnavailable("away")
    assert [exchange.ask() for _ in range(2 * _FEW)] == [None] * 2 * _FEW
    exchange.error = None

    exchange.warm_up()


def test_our_own_errors_leave_it_open(exchange: Exchange) -> None:
    line = exchange.warm_up()

    async def refuse(_line: FakeLine) -> int:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        exchange.shortcut.run(refuse)

    assert exchange.ask() == 7
    assert exchange.lines == [line]


class Struck(Exception):
    """What a signal handler raises, as those do that limit the time of a task."""


@pytest.fixture
def strike() -> Iterator[Callable[[], None]]:
    """Has a signal raise an error right now, in the main thread."""

    def raise_error(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, raise_error)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("is_in_callback", [False, True], ids=["in the work", "in a callback"])
def test_a_signal_that_strikes_is_heard_and_everything_is_thrown_away(
    exchange: Exchange, strike: Callable[[], None], is_in_callback: bool
) -> None:
    """A loop would log what is raised in a callback and forget it, and nobody would ever answer."""
    line = exchange.warm_up()

    async def be_struck(line: FakeLine) -> int:
        if not is_in_callback:
            strike()
        line.loop.call_soon(strike)
        return await line.never()

    with pytest.raises(Struck):
        exchange.shortcut.run(be_struck)

    assert line.loop.is_closed()
    assert exchange.warm_up() is not line
    assert exchange.ask() == 7


def test_an_error_that_a_transport_took_for_its_own_is_heard(exchange: Exchange) -> None:
    """Whatever comes of it, an answer included: it was raised for whoever waits."""
    line = exchange.warm_up()

    async def be_struck(line: FakeLine) -> int:
        line.loop.call_exception_handler({"message": "fatal", "exception": Struck(), "transport": object()})
        return await line.number()

    with pytest.raises(Struck):
        exchange.shortcut.run(be_struck)

    assert line.loop.is_closed()


def test_ctrl_c_ends_the_waiting(exchange: Exchange) -> None:
    line = exchange.warm_up()

    async def be_interrupted(line: FakeLine) -> int:
        line.loop.call_soon(signal.raise_signal, signal.SIGINT)
        return await line.never()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            exchange.shortcut.run(be_interrupted)
    finally:
        signal.signal(signal.SIGINT, before)

    assert line.loop.is_closed()


def test_closing_takes_leave_and_opens_nothing_again(exchange: Exchange) -> None:
    line = exchange.warm_up()

    exchange.shortcut.close()
    exchange.shortcut.close()

    assert line.ended_by == "close"
    assert [exchange.ask() for _ in range(2 * _FEW)] == [None] * 2 * _FEW


def test_whoever_is_on_the_line_hears_of_the_closing(exchange: Exchange) -> None:
    line = exchange.warm_up()
    heard: list[str] = []

    def wait() -> None:
        try:
            exchange.shortcut.run(FakeLine.never)
        except StoreUnavailable as error:
            heard.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert line.under_way.wait(10)
    exchange.shortcut.close()
    waiting.join(10)

    assert heard == ["Timeball was closed while this call was under way"]
    assert line.is_closed()


def test_a_connection_that_is_being_made_hears_of_the_closing() -> None:
    is_connecting = threading.Event()

    async def connect() -> FakeLine:
        is_connecting.set()
        await asyncio.Event().wait()
        raise AssertionError("it came")

    shortcut: Shortcut[FakeLine] = Shortcut(connect, lambda: 0.0)
    answers: list[int | None] = []
    asking = threading.Thread(target=lambda: answers.extend(shortcut.run(FakeLine.number) for _ in range(_FEW + 1)))
    asking.start()
    assert is_connecting.wait(10)
    shortcut.close()
    asking.join(10)

    assert answers == [None] * (_FEW + 1)


# in a program


def desk_of(tb: Timeball) -> Desk:
    desk = tb._office.portal.resource
    assert desk is not None
    return desk


def test_a_program_that_enqueues_one_after_the_other_takes_it(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    runs = [note.enqueue(number) for number in range(30)]

    assert desk_of(tb).shortcut.run(_is_open) is True
    found = rows("SELECT job.payload ->> 'n' AS n FROM timeball.ready JOIN timeball.job USING (id)")
    assert sorted(int(row["n"]) for row in found) == list(range(30))
    assert len({run.id for run in runs}) == 30


async def _is_open(line: Any) -> bool:
    return not line.is_closed()


@ON_ONE_SERVER
def test_an_enqueue_on_a_line_that_was_cut_off_is_done_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    for number in range(20):
        note.enqueue(number)
    pid = desk_of(tb).shortcut.run(_server_process)
    rows(f"SELECT pg_terminate_backend({pid}, 5000)")
    for number in range(20, 40):
        note.enqueue(number)

    found = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in found] == list(range(40))


async def _server_process(line: Any) -> int:
    pid: int = line.get_server_pid()
    return pid


@ON_ONE_SERVER
def test_whoever_comes_with_a_crowd_shares_its_commit(tb: Timeball, monkeypatch: pytest.MonkeyPatch) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    for number in range(20):
        note.enqueue(number)
    asked: list[object] = []
    desk = desk_of(tb)
    monkeypatch.setattr(desk.shortcut, "run", asked.append)
    note.enqueue(20)
    is_alone = len(asked)
    monkeypatch.setattr(type(desk.enqueues), "crowd", 16)
    note.enqueue(21)

    assert (is_alone, len(asked)) == (1, 1)


STRUCK = """
import random, signal, sys
from timeball import Timeball

class Struck(Exception): ...

def strike(*_):
    raise Struck

signal.signal(signal.SIGALRM, strike)
tb = Timeball()

@tb.handler(name="note")
def note(n: int) -> None: ...

for number in range(20):
    note.enqueue(number)
struck = 0
for number in range(20, 320):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.0015))
        try:
            note.enqueue(number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Struck:
        struck += 1
    else:
        print("done", number)
print("struck", struck)
"""


@ON_ONE_SERVER
def test_signals_at_any_moment_lose_nothing_that_was_said_to_be_done(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    said = [line.split() for line in run_program(STRUCK)]

    done = {int(number) for word, number in said if word == "done"}
    (struck,) = [int(number) for word, number in said if word == "struck"]
    found = [row["n"] for row in rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job")]
    assert struck > 0
    assert done | set(range(20)) <= set(found)
    assert len(found) == len(set(found))
    assert len(done) + struck == 300


FORKING = """
import os, sys
from timeball import Timeball

tb = Timeball()

@tb.handler(name="note")
def note(n: int) -> None: ...

def send(numbers):
    for number in numbers:
        note.enqueue(number)

send(range(20))
for child in range(1, 4):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        send(range(100 * child, 100 * child + 20))
        sys.exit(0)
    send(range(20 * child, 20 * child + 20))
    assert os.waitpid(pid, 0)[1] == 0
send(range(80, 100))
"""


@ON_ONE_SERVER
def test_a_forked_child_has_a_way_of_its_own(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    run_program(FORKING)

    found = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in found] == [*range(100), *range(100, 120), *range(200, 220), *range(300, 320)]
