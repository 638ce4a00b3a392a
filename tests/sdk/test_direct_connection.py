"""The short way: used by the thread that waits, one at a time; nobody is told wrong, whatever strikes."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from timeball import InvalidInput, StoreUnavailable, Timeball
from timeball.domain.values.ids import format_execution_id
from timeball.domain.wakeup import Wakeup
from timeball.sdk import direct_connection
from timeball.sdk.direct_connection import _FEW, _IDLE_SECONDS, _LONG_SECONDS, _MANY, _PATIENCE_SECONDS, DirectPath
from timeball.sdk.enqueue import SdkRuntime
from timeball.sdk.handlers import SyncHandlerHandle
from timeball.store.db.direct_connection import LoopConnection, ThreadConnection


class FakeLine:
    """A line that answers, or never does."""

    def __init__(self) -> None:
        self.is_broken = False
        self.is_closed = False
        self.under_way = threading.Event()
        self.hung_up = threading.Event()

    def is_sound(self) -> bool:
        return not self.is_broken

    def close(self) -> None:
        self.is_closed = True

    def hang_up(self) -> None:
        self.hung_up.set()

    def number(self) -> int:
        assert not self.is_closed
        return 7

    def never(self) -> int:
        self.under_way.set()
        assert self.hung_up.wait(30)
        raise StoreUnavailable("the line broke")


class Exchange:
    """Opens lines and takes note; its clock is set by hand."""

    def __init__(self) -> None:
        self.lines: list[FakeLine] = []
        self.tried = 0
        self.error: Exception | None = None
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.now = 0.0
        self.shortcut: DirectPath[FakeLine] = DirectPath(self._connect, lambda: self.now)

    def _connect(self) -> FakeLine:
        self.tried += 1
        assert self.may_connect.wait(30)
        if self.error is not None:
            raise self.error
        self.lines.append(FakeLine())
        return self.lines[-1]

    @property
    def is_about_to_connect(self) -> bool:
        """Whether there is a line, or a keeper who is going to open one."""
        return self.shortcut._kept is not None

    def ask(self) -> int | None:
        return self.shortcut.run(FakeLine.number)

    def warm_up(self) -> FakeLine:
        while self.ask() is None:
            time.sleep(0.001)
        return self.lines[-1]


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange()
    yield made
    made.may_connect.set()
    made.shortcut.close()


def wait_until(is_true: Callable[[], object]) -> None:
    for _ in range(3_000):
        if is_true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not become true within half a minute")


def test_it_is_opened_for_those_who_send_one_after_the_other(exchange: Exchange) -> None:
    assert [exchange.ask() for _ in range(_FEW)] == [None] * _FEW
    assert not exchange.is_about_to_connect

    exchange.warm_up()

    assert exchange.ask() == 7
    assert len(exchange.lines) == 1


def test_it_is_not_opened_for_those_who_send_now_and_then(exchange: Exchange) -> None:
    for _ in range(3 * _FEW):
        exchange.now += 2 * _LONG_SECONDS
        assert exchange.ask() is None

    assert not exchange.is_about_to_connect


def test_nobody_waits_for_it_to_be_opened(exchange: Exchange) -> None:
    exchange.may_connect.clear()
    assert [exchange.ask() for _ in range(3 * _FEW)] == [None] * 3 * _FEW
    exchange.may_connect.set()

    exchange.warm_up()

    assert exchange.tried == 1


def test_who_came_with_a_crowd_is_to_be_alone_in_a_row_again(exchange: Exchange) -> None:
    line = exchange.warm_up()
    exchange.shortcut.reset_streak()

    assert [exchange.ask() for _ in range(_FEW)] == [None] * _FEW
    assert exchange.ask() == 7
    assert exchange.lines == [line]


def test_once_open_it_stays_through_a_pause(exchange: Exchange) -> None:
    exchange.warm_up()
    exchange.now += 10 * _LONG_SECONDS

    assert exchange.ask() == 7
    assert len(exchange.lines) == 1


def test_a_line_that_broke_during_a_pause_is_noticed_before_it_is_used(exchange: Exchange) -> None:
    line = exchange.warm_up()
    line.is_broken = True
    exchange.now += 10 * _LONG_SECONDS

    assert exchange.ask() is None
    assert line.is_closed
    assert exchange.warm_up() is not line


def test_a_line_that_broke_under_a_statement_is_opened_anew(exchange: Exchange) -> None:
    line = exchange.warm_up()
    line.hung_up.set()
    with pytest.raises(StoreUnavailable, match="the line broke"):
        exchange.shortcut.run(FakeLine.never)

    assert line.is_closed
    assert exchange.warm_up() is not line


def test_who_finds_it_taken_is_sent_elsewhere(exchange: Exchange) -> None:
    exchange.warm_up()
    asked: list[int | None] = []

    def ask_meanwhile(line: FakeLine) -> int:
        other = threading.Thread(target=lambda: asked.append(exchange.ask()))
        other.start()
        other.join()
        return line.number()

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


async def test_a_thread_with_a_loop_of_its_own_may_take_it_too(exchange: Exchange) -> None:
    await asyncio.to_thread(exchange.warm_up)

    assert exchange.ask() == 7


def test_where_the_database_is_away_it_is_not_tried_with_every_call(exchange: Exchange) -> None:
    exchange.error = StoreUnavailable("away")
    for _ in range(_FEW + 1):
        assert exchange.ask() is None
    wait_until(lambda: not exchange.is_about_to_connect)
    assert [exchange.ask() for _ in range(_MANY)] == [None] * _MANY
    assert not exchange.is_about_to_connect
    assert exchange.tried == 1
    exchange.error = None

    exchange.warm_up()


def test_our_own_errors_leave_it_open(exchange: Exchange) -> None:
    line = exchange.warm_up()

    def refuse(_line: FakeLine) -> int:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        exchange.shortcut.run(refuse)

    assert exchange.ask() == 7
    assert exchange.lines == [line]


class Struck(Exception):
    """What a signal handler raises, as those do that limit the time of a task."""


def test_a_signal_that_strikes_is_heard_and_the_line_is_thrown_away(exchange: Exchange) -> None:
    line = exchange.warm_up()

    def be_struck(_line: FakeLine) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 7

    def raise_error(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, raise_error)
    try:
        with pytest.raises(Struck):
            exchange.shortcut.run(be_struck)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert line.is_closed
    assert exchange.warm_up() is not line


def test_a_line_that_nobody_asks_is_closed(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_LOOK_SECONDS", 0.01)
    line = exchange.warm_up()
    exchange.now += _IDLE_SECONDS + 1

    wait_until(lambda: line.is_closed)

    assert exchange.ask() is None
    assert exchange.warm_up() is not line


def test_a_server_that_does_not_answer_is_hung_up_on(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_LOOK_SECONDS", 0.01)
    exchange.warm_up()

    def wait_for_ever(line: FakeLine) -> int:
        exchange.now += _PATIENCE_SECONDS + 1
        return line.never()

    with pytest.raises(StoreUnavailable, match="the line broke"):
        exchange.shortcut.run(wait_for_ever)


def test_closing_takes_leave_and_opens_nothing_again(exchange: Exchange) -> None:
    line = exchange.warm_up()

    exchange.shortcut.close()
    exchange.shortcut.close()

    assert line.is_closed
    assert not line.hung_up.is_set()
    assert [exchange.ask() for _ in range(2 * _FEW)] == [None] * 2 * _FEW
    assert not exchange.is_about_to_connect


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
    assert line.is_closed


def test_a_line_that_comes_after_the_closing_is_closed(exchange: Exchange) -> None:
    exchange.may_connect.clear()
    for _ in range(_FEW + 1):
        exchange.ask()
    exchange.shortcut.close()
    exchange.may_connect.set()

    wait_until(lambda: exchange.lines and exchange.lines[0].is_closed)


# for coroutines


async def test_coroutines_use_it_one_at_a_time(exchange: Exchange) -> None:
    exchange.warm_up()

    async def ask_meanwhile(line: FakeLine) -> list[int | None]:
        return [line.number(), await exchange.shortcut.arun(answer), exchange.ask()]

    async def answer(line: FakeLine) -> int:
        return line.number()

    assert await exchange.shortcut.arun(ask_meanwhile) == [7, None, None]
    assert await exchange.shortcut.arun(answer) == 7


async def test_what_a_cancelled_coroutine_leaves_behind_is_thrown_away(exchange: Exchange) -> None:
    line = exchange.warm_up()
    has_begun = asyncio.Event()

    async def wait_for_ever(_line: FakeLine) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(exchange.shortcut.arun(wait_for_ever))
    await has_begun.wait()
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert line.is_closed
    assert exchange.warm_up() is not line


# in a program


def desk_of(tb: Timeball) -> SdkRuntime:
    desk = tb._enqueue_client.background_loop.resource
    assert desk is not None
    return desk


def open_line(tb: Timeball, note: SyncHandlerHandle[[int], None], first: int = 0) -> tuple[int, int]:
    """Enqueue numbers until the line is open: the first number that was not sent, and the server's process at its other end."""
    number = first
    while True:
        note.enqueue(number)
        number += 1
        process = desk_of(tb).shortcut.run(ThreadConnection.server_process)
        if process is not None:
            return number, process


def test_a_program_that_enqueues_one_after_the_other_takes_it(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note", tags=["a", "b"])
    def note(n: int) -> None: ...

    number, _ = open_line(tb, note)
    # Nobody else is there from now on.
    monkeypatch.setattr(desk_of(tb).enqueues, "submit", None)
    runs = [note.enqueue(n) for n in range(number, number + 20)]

    found = rows("SELECT job.* FROM timeball.ready JOIN timeball.job USING (id) ORDER BY (job.payload ->> 'n')::int")
    assert [row["payload"]["n"] for row in found] == list(range(number + 20))
    assert [format_execution_id(row["id"]) for row in found[number:]] == [run.id for run in runs]
    own = {"id", "payload", "shard", "scheduled_at", "created_at", "updated_at"}
    by_hand, by_the_portal = (
        {name: value for name, value in row.items() if name not in own} for row in (found[-1], found[0])
    )
    assert by_hand == by_the_portal


@ON_ONE_SERVER
def test_an_enqueue_on_a_line_that_was_cut_off_is_done_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = open_line(tb, note)
    rows(f"SELECT pg_terminate_backend({process}, 5000)")
    note.enqueue(number)
    number, anew = open_line(tb, note, number + 1)

    found = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in found] == list(range(number))
    assert anew != process


@ON_ONE_SERVER
def test_an_enqueue_whose_reply_is_lost_is_done_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_line(tb, note)
    run = ThreadConnection.run

    def run_and_break(line: ThreadConnection, name: str, given: Mapping[str, Any]) -> None:
        run(line, name, given)
        raise StoreUnavailable("the line broke")

    monkeypatch.setattr(ThreadConnection, "run", run_and_break)
    sent = note.enqueue(number)

    found = rows("SELECT id, (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 2")
    assert [row["n"] for row in found] == list(range(number + 1))
    assert format_execution_id(found[-1]["id"]) == sent.id


@ON_ONE_SERVER
def test_a_line_that_was_cut_off_in_a_pause_is_noticed_before_it_is_used(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    _, process = open_line(tb, note)
    (session,) = rows(f"SELECT application_name FROM pg_stat_activity WHERE pid = {process}")
    assert session["application_name"] == "timeball"
    was_sound = desk_of(tb).shortcut.run(ThreadConnection.is_sound)
    rows(f"SELECT pg_terminate_backend({process}, 5000)")

    assert (was_sound, desk_of(tb).shortcut.run(ThreadConnection.is_sound)) == (True, False)


@ON_ONE_SERVER
def test_whoever_waits_for_the_server_is_cut_off_by_the_closing(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    _, process = open_line(tb, note)
    heard: list[str] = []

    def enqueue() -> None:
        try:
            note.enqueue(1_000)
        except StoreUnavailable as error:
            heard.append(str(error))

    with psycopg.connect(tb.settings.database_url) as other:
        other.execute("LOCK TABLE timeball.job")
        waiting = threading.Thread(target=enqueue)
        waiting.start()
        wait_until(lambda: rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"))
        tb.close()
        waiting.join(30)

    assert heard == ["Timeball was closed while this call was under way"]


@ON_ONE_SERVER
def test_what_is_enqueued_is_announced_once_it_is_written_or_along_with_it(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_line(tb, note)
    notifier, told = desk_of(tb).parts.store.notifier, list[tuple[int, Wakeup]]()

    def tell(hints: Wakeup) -> None:
        told.append((rows("SELECT count(*) AS n FROM timeball.job")[0]["n"], hints))

    monkeypatch.setattr(notifier, "tell", tell)
    monkeypatch.setattr(notifier, "take_pending", lambda hints: None)
    note.enqueue(number)
    monkeypatch.setattr(notifier, "take_pending", lambda hints: hints)
    note.enqueue(number + 1)
    ((written, hints),) = told

    assert written == number + 1
    assert hints.lanes.keys() == {("default", 50)}


@ON_ONE_SERVER
def test_hints_that_went_along_with_what_failed_are_told_otherwise(
    tb: Timeball, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_line(tb, note)
    notifier, told, others = desk_of(tb).parts.store.notifier, list[Wakeup](), Wakeup(look_everywhere=True)

    def fail(_line: ThreadConnection, _name: str, _given: Mapping[str, Any]) -> None:
        raise StoreUnavailable("the line broke")

    monkeypatch.setattr(notifier, "take_pending", lambda hints: others)
    monkeypatch.setattr(notifier, "tell", told.append)
    monkeypatch.setattr(ThreadConnection, "run", fail)
    note.enqueue(number)

    assert others in told


async def open_loop_line(tb: Timeball, note: SyncHandlerHandle[[int], None], first: int = 0) -> tuple[int, int]:
    """As `open_line`, for coroutines."""
    number = first
    while True:
        await note.aenqueue(number)
        number += 1
        process = desk_of(tb).ashortcut.run(LoopConnection.server_process)
        if process is not None:
            return number, process


def test_coroutines_that_enqueue_one_after_the_other_take_one_of_their_own_in_any_loop(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    async def enqueue(numbers: range) -> list[str]:
        return [(await note.aenqueue(n)).id for n in numbers]

    number, process = asyncio.run(open_loop_line(tb, note))
    # Nobody else is there from now on.
    monkeypatch.setattr(desk_of(tb).enqueues, "asubmit", None)
    ids = asyncio.run(enqueue(range(number, number + 10)))
    ids += asyncio.run(enqueue(range(number + 10, number + 20)))

    found = rows("SELECT job.* FROM timeball.ready JOIN timeball.job USING (id) ORDER BY (job.payload ->> 'n')::int")
    assert [row["payload"]["n"] for row in found] == list(range(number + 20))
    assert [format_execution_id(row["id"]) for row in found[number:]] == ids
    assert desk_of(tb).ashortcut.run(LoopConnection.server_process) == process


@ON_ONE_SERVER
async def test_a_coroutine_on_a_line_that_was_cut_off_is_served_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = await open_loop_line(tb, note)
    await asyncio.to_thread(rows, f"SELECT pg_terminate_backend({process}, 5000)")
    await note.aenqueue(number)
    number, anew = await open_loop_line(tb, note, number + 1)

    found = await asyncio.to_thread(rows, "SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in found] == list(range(number))
    assert anew != process


@ON_ONE_SERVER
async def test_a_coroutine_whose_reply_is_lost_is_served_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = await open_loop_line(tb, note)
    run = LoopConnection.run

    async def run_and_break(line: LoopConnection, name: str, given: Mapping[str, Any]) -> None:
        await run(line, name, given)
        raise StoreUnavailable("the line broke")

    monkeypatch.setattr(LoopConnection, "run", run_and_break)
    sent = await note.aenqueue(number)

    found = await asyncio.to_thread(rows, "SELECT id, (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 2")
    assert [row["n"] for row in found] == list(range(number + 1))
    assert format_execution_id(found[-1]["id"]) == sent.id


@ON_ONE_SERVER
async def test_a_coroutine_that_is_cancelled_at_the_server_leaves_nothing_hanging(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = await open_loop_line(tb, note)
    waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"
    with psycopg.connect(tb.settings.database_url) as other:
        other.execute("LOCK TABLE timeball.job")
        waiting = asyncio.create_task(note.aenqueue(number))
        await asyncio.to_thread(wait_until, lambda: rows(waits))
        waiting.cancel()
        await asyncio.wait([waiting])
    await note.aenqueue(number + 1)

    assert waiting.cancelled()
    found = await asyncio.to_thread(rows, "SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in found] == [*range(number), number + 1]


@ON_ONE_SERVER
def test_whoever_comes_with_a_crowd_shares_its_commit(tb: Timeball, monkeypatch: pytest.MonkeyPatch) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    note.enqueue(19)
    asked: list[object] = []
    desk = desk_of(tb)
    monkeypatch.setattr(desk.shortcut, "run", asked.append)
    note.enqueue(20)
    is_alone = len(asked)
    monkeypatch.setattr(type(desk.enqueues), "crowd", 16)
    note.enqueue(21)

    assert (is_alone, len(asked)) == (1, 1)
    assert desk.shortcut._sent == 0


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

note.enqueue(0)
shortcut = tb._enqueue_client.background_loop.resource.shortcut
struck = 0
for number in range(1, 301):
    while shortcut.run(lambda line: True) is None:
        pass
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
    assert done | {0} <= set(found)
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
shortcut = tb._enqueue_client.background_loop.resource.shortcut
while shortcut.run(lambda line: True) is None:
    pass
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
