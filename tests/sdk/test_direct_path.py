"""The direct path: used by one caller at a time, and no acknowledged job is lost, whatever strikes."""

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
from timeball.sdk import enqueue_paths
from timeball.sdk.enqueue import SdkRuntime
from timeball.sdk.enqueue_paths import _LONG_PAUSE_SECONDS, _REOPEN_SECONDS, _TIGHT_LOOP_CALLS, DirectPath
from timeball.sdk.handlers import SyncHandlerHandle
from timeball.store.db.direct_connection import DirectConnection


class FakeConnection:
    """A connection that answers, or never does."""

    def __init__(self) -> None:
        self.is_broken = False
        self.is_closed = False
        self.under_way = threading.Event()
        self.interrupted = threading.Event()

    def is_usable(self) -> bool:
        return not self.is_broken

    def close(self) -> None:
        self.is_closed = True

    def interrupt(self) -> None:
        self.interrupted.set()

    def number(self) -> int:
        assert not self.is_closed
        return 7

    def never(self) -> int:
        self.under_way.set()
        assert self.interrupted.wait(30)
        raise StoreUnavailable("the connection broke")


class FakeServer:
    """Opens connections in threads of their own, and keeps them for the test; its clock is set by hand."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.attempts = 0
        self.error: Exception | None = None
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.now = 0.0
        self.path = DirectPath(
            self._connect,  # type: ignore[arg-type]
            lambda open_: threading.Thread(target=open_).start(),
            lambda: self.now,
        )

    def _connect(self) -> FakeConnection:
        self.attempts += 1
        assert self.may_connect.wait(30)
        if self.error is not None:
            raise self.error
        self.connections.append(FakeConnection())
        return self.connections[-1]

    @property
    def has_connection(self) -> bool:
        """Whether a connection is open, or about to be opened."""
        return self.path._connection is not None or self.path._is_opening

    def run(self, work: Callable[[FakeConnection], Any] = FakeConnection.number) -> Any:
        return self.path.run(work)  # type: ignore[arg-type]

    async def arun(self, work: Callable[[FakeConnection], Any]) -> Any:
        return await self.path.arun(work)  # type: ignore[arg-type]

    def warm_up(self) -> FakeConnection:
        while self.run() is None:
            time.sleep(0.001)
        return self.connections[-1]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.may_connect.set()
    fake.path.close()


def wait_until(is_true: Callable[[], object]) -> None:
    for _ in range(3_000):
        if is_true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not become true within half a minute")


def test_a_connection_is_opened_for_a_tight_loop(server: FakeServer) -> None:
    assert [server.run() for _ in range(_TIGHT_LOOP_CALLS)] == [None] * _TIGHT_LOOP_CALLS
    assert not server.has_connection

    server.warm_up()

    assert server.run() == 7
    assert len(server.connections) == 1


def test_no_connection_is_opened_for_calls_now_and_then(server: FakeServer) -> None:
    for _ in range(3 * _TIGHT_LOOP_CALLS):
        server.now += 2 * _LONG_PAUSE_SECONDS
        assert server.run() is None

    assert not server.has_connection


def test_no_caller_waits_for_the_connection_to_be_opened(server: FakeServer) -> None:
    server.may_connect.clear()
    assert [server.run() for _ in range(3 * _TIGHT_LOOP_CALLS)] == [None] * 3 * _TIGHT_LOOP_CALLS
    server.may_connect.set()

    server.warm_up()

    assert server.attempts == 1


def test_after_concurrent_calls_a_tight_loop_is_counted_from_the_start(server: FakeServer) -> None:
    connection = server.warm_up()
    server.path.forget_loop()

    assert [server.run() for _ in range(_TIGHT_LOOP_CALLS)] == [None] * _TIGHT_LOOP_CALLS
    assert server.run() == 7
    assert server.connections == [connection]


def test_an_open_connection_stays_through_a_pause(server: FakeServer) -> None:
    server.warm_up()
    server.now += 10 * _LONG_PAUSE_SECONDS

    assert server.run() == 7
    assert len(server.connections) == 1


def test_a_connection_that_broke_during_a_pause_is_noticed_before_it_is_used(server: FakeServer) -> None:
    connection = server.warm_up()
    connection.is_broken = True
    server.now += 10 * _LONG_PAUSE_SECONDS

    assert server.run() is None
    assert connection.is_closed
    assert server.warm_up() is not connection


def test_a_connection_that_broke_under_a_statement_is_replaced(server: FakeServer) -> None:
    connection = server.warm_up()
    connection.interrupted.set()
    with pytest.raises(StoreUnavailable, match="the connection broke"):
        server.run(FakeConnection.never)

    assert connection.is_closed
    assert server.warm_up() is not connection


def test_a_caller_that_finds_it_in_use_is_sent_elsewhere(server: FakeServer) -> None:
    server.warm_up()
    answers: list[int | None] = []

    def run_meanwhile(connection: FakeConnection) -> int:
        other = threading.Thread(target=lambda: answers.append(server.run()))
        other.start()
        other.join()
        return connection.number()

    assert server.run(run_meanwhile) == 7
    assert answers == [None]
    assert server.run() == 7


def test_threads_use_it_one_after_the_other(server: FakeServer) -> None:
    server.warm_up()
    answers: list[int | None] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: answers.append(server.run()))
        thread.start()
        thread.join()

    assert answers == [7, 7, 7]
    assert len(server.connections) == 1


async def test_a_thread_with_a_loop_of_its_own_may_take_it_too(server: FakeServer) -> None:
    await asyncio.to_thread(server.warm_up)

    assert server.run() == 7


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), ImportError("no such driver"), AttributeError("no such method")]
)
def test_a_connection_that_cannot_be_opened_is_not_tried_with_every_call(server: FakeServer, error: Exception) -> None:
    server.error = error
    for _ in range(_TIGHT_LOOP_CALLS + 1):
        assert server.run() is None
    wait_until(lambda: not server.has_connection)
    assert [server.run() for _ in range(1_000)] == [None] * 1_000
    assert not server.has_connection
    assert server.attempts == 1
    server.error = None
    server.now += _REOPEN_SECONDS + 1

    server.warm_up()


def test_our_own_errors_leave_it_open(server: FakeServer) -> None:
    connection = server.warm_up()

    def refuse(_connection: FakeConnection) -> int:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        server.run(refuse)

    assert server.run() == 7
    assert server.connections == [connection]


class Struck(Exception):
    """What a signal handler raises, as those do that limit the time of a task."""


def test_an_error_of_a_signal_handler_is_passed_on_and_the_connection_is_closed(server: FakeServer) -> None:
    connection = server.warm_up()

    def be_struck(_connection: FakeConnection) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 7

    def raise_error(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, raise_error)
    try:
        with pytest.raises(Struck):
            server.run(be_struck)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert connection.is_closed
    assert server.warm_up() is not connection


def test_closing_closes_the_connection_and_opens_no_other(server: FakeServer) -> None:
    connection = server.warm_up()

    server.path.close()
    server.path.close()

    assert connection.is_closed
    assert [server.run() for _ in range(2 * _TIGHT_LOOP_CALLS)] == [None] * 2 * _TIGHT_LOOP_CALLS
    assert not server.has_connection


def test_closing_ends_the_wait_of_the_caller_that_uses_the_connection(server: FakeServer) -> None:
    connection = server.warm_up()
    errors: list[str] = []

    def wait() -> None:
        try:
            server.run(FakeConnection.never)
        except StoreUnavailable as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert connection.under_way.wait(10)
    server.path.close()
    waiting.join(10)

    assert errors == ["the connection broke"]
    assert connection.is_closed


def test_a_connection_that_is_opened_after_the_closing_is_closed(server: FakeServer) -> None:
    server.may_connect.clear()
    for _ in range(_TIGHT_LOOP_CALLS + 1):
        server.run()
    server.path.close()
    server.may_connect.set()

    wait_until(lambda: server.connections and server.connections[0].is_closed)


def test_a_lost_mutex_costs_the_path_and_stops_no_caller(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may strike right behind the acquire of the mutex, or right before its release."""
    monkeypatch.setattr(enqueue_paths, "_CLOSE_SECONDS", 0.01)
    server.may_connect.clear()
    for _ in range(_TIGHT_LOOP_CALLS + 1):
        server.run()
    assert server.path._mutex.acquire(timeout=10)
    server.may_connect.set()
    wait_until(lambda: server.connections and server.connections[0].is_closed)

    assert server.run() is None
    server.path.close()


def test_a_connection_for_which_calls_left_no_gap_is_opened_again(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls in a tight loop may hold the mutex whenever the new connection is to be put in its place."""
    monkeypatch.setattr(enqueue_paths, "_CLOSE_SECONDS", 0.01)
    server.may_connect.clear()
    for _ in range(_TIGHT_LOOP_CALLS + 1):
        server.run()
    with server.path._mutex:
        server.may_connect.set()
        wait_until(lambda: not server.has_connection)

    server.now += _REOPEN_SECONDS + 1

    server.warm_up()


# for coroutines


async def test_coroutines_use_it_one_at_a_time(server: FakeServer) -> None:
    server.warm_up()

    async def run_meanwhile(connection: FakeConnection) -> list[int | None]:
        return [connection.number(), await server.arun(answer), server.run()]

    async def answer(connection: FakeConnection) -> int:
        return connection.number()

    assert await server.arun(run_meanwhile) == [7, None, None]
    assert await server.arun(answer) == 7


async def test_a_cancelled_coroutine_has_the_connection_closed(server: FakeServer) -> None:
    connection = server.warm_up()
    has_begun = asyncio.Event()

    async def wait_for_ever(_connection: FakeConnection) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(server.arun(wait_for_ever))
    await has_begun.wait()
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert connection.is_closed
    assert server.warm_up() is not connection


# in a program


def runtime_of(tb: Timeball) -> SdkRuntime:
    runtime = tb._enqueue_client.background_loop.resource
    assert runtime is not None
    return runtime


def _server_pid(connection: DirectConnection) -> int:
    return connection.server_pid


def open_path(tb: Timeball, note: SyncHandlerHandle[[int], None], first: int = 0) -> tuple[int, int]:
    """Enqueue numbers until the direct path is open: the first number that was not sent, and the server's process."""
    number = first
    while True:
        note.enqueue(number)
        number += 1
        process = runtime_of(tb).direct_path.run(_server_pid)
        if process is not None:
            return number, process


def test_a_tight_loop_of_a_thread_takes_the_direct_path(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note", tags=["a", "b"])
    def note(n: int) -> None: ...

    number, _ = open_path(tb, note)
    # Only the direct path is left from now on.
    monkeypatch.setattr(runtime_of(tb).batcher, "submit", None)
    runs = [note.enqueue(n) for n in range(number, number + 20)]

    jobs = rows("SELECT job.* FROM timeball.ready JOIN timeball.job USING (id) ORDER BY (job.payload ->> 'n')::int")
    assert [row["payload"]["n"] for row in jobs] == list(range(number + 20))
    assert [format_execution_id(row["id"]) for row in jobs[number:]] == [run.id for run in runs]
    own = {"id", "payload", "shard", "scheduled_at", "created_at", "updated_at"}
    directly, by_batcher = (
        {name: value for name, value in row.items() if name not in own} for row in (jobs[-1], jobs[0])
    )
    assert directly == by_batcher


@ON_ONE_SERVER
def test_an_enqueue_on_a_broken_connection_is_written_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = open_path(tb, note)
    rows(f"SELECT pg_terminate_backend({process}, 5000)")
    note.enqueue(number)
    number, anew = open_path(tb, note, number + 1)

    jobs = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in jobs] == list(range(number))
    assert anew != process


@ON_ONE_SERVER
def test_an_enqueue_whose_reply_is_lost_is_written_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_path(tb, note)
    run = DirectConnection.run

    def run_and_break(connection: DirectConnection, name: str, values: Mapping[str, Any]) -> None:
        run(connection, name, values)
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(DirectConnection, "run", run_and_break)
    sent = note.enqueue(number)

    jobs = rows("SELECT id, (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 2")
    assert [row["n"] for row in jobs] == list(range(number + 1))
    assert format_execution_id(jobs[-1]["id"]) == sent.id


@ON_ONE_SERVER
def test_a_connection_that_the_server_ended_is_not_usable(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    _, process = open_path(tb, note)
    (session,) = rows(f"SELECT application_name FROM pg_stat_activity WHERE pid = {process}")
    assert session["application_name"] == "timeball"
    was_usable = runtime_of(tb).direct_path.run(DirectConnection.is_usable)
    rows(f"SELECT pg_terminate_backend({process}, 5000)")

    assert (was_usable, runtime_of(tb).direct_path.run(DirectConnection.is_usable)) == (True, False)


@ON_ONE_SERVER
def test_closing_fails_the_caller_that_waits_for_the_server(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    _, process = open_path(tb, note)
    errors: list[str] = []

    def enqueue() -> None:
        try:
            note.enqueue(1_000)
        except StoreUnavailable as error:
            errors.append(str(error))

    with psycopg.connect(tb.settings.database_url) as other:
        other.execute("LOCK TABLE timeball.job")
        waiting = threading.Thread(target=enqueue)
        waiting.start()
        wait_until(lambda: rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"))
        tb.close()
        waiting.join(30)

    assert errors == ["Timeball was closed while this call was under way"]


@ON_ONE_SERVER
def test_a_job_is_announced_in_its_statement_or_after_it(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_path(tb, note)
    notifier, sent = runtime_of(tb).parts.store.notifier, list[tuple[int, Wakeup]]()

    def tell(wakeup: Wakeup) -> None:
        sent.append((rows("SELECT count(*) AS n FROM timeball.job")[0]["n"], wakeup))

    monkeypatch.setattr(notifier, "tell", tell)
    monkeypatch.setattr(notifier, "take_pending", lambda wakeup: None)
    note.enqueue(number)
    monkeypatch.setattr(notifier, "take_pending", lambda wakeup: wakeup)
    note.enqueue(number + 1)
    ((written, wakeup),) = sent

    assert written == number + 1
    assert wakeup.lanes.keys() == {("default", 50)}


@ON_ONE_SERVER
def test_wakeups_that_went_with_a_failed_statement_are_sent_again(
    tb: Timeball, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = open_path(tb, note)
    notifier, sent, others = runtime_of(tb).parts.store.notifier, list[Wakeup](), Wakeup(look_everywhere=True)

    def fail(_connection: DirectConnection, _name: str, _values: Mapping[str, Any]) -> None:
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(notifier, "take_pending", lambda wakeup: others)
    monkeypatch.setattr(notifier, "tell", sent.append)
    monkeypatch.setattr(DirectConnection, "run", fail)
    note.enqueue(number)

    assert others in sent


async def open_path_in_loop(tb: Timeball, note: SyncHandlerHandle[[int], None], first: int = 0) -> tuple[int, int]:
    """Like `open_path`, for coroutines."""
    number = first
    while True:
        await note.aenqueue(number)
        number += 1
        process = runtime_of(tb).direct_path.run(_server_pid)
        if process is not None:
            return number, process


def test_a_tight_loop_of_a_coroutine_takes_the_direct_path_in_any_event_loop(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    async def enqueue(numbers: range) -> list[str]:
        return [(await note.aenqueue(n)).id for n in numbers]

    number, process = asyncio.run(open_path_in_loop(tb, note))
    # Only the direct path is left from now on.
    monkeypatch.setattr(runtime_of(tb).batcher, "asubmit", None)
    ids = asyncio.run(enqueue(range(number, number + 10)))
    ids += asyncio.run(enqueue(range(number + 10, number + 20)))

    jobs = rows("SELECT job.* FROM timeball.ready JOIN timeball.job USING (id) ORDER BY (job.payload ->> 'n')::int")
    assert [row["payload"]["n"] for row in jobs] == list(range(number + 20))
    assert [format_execution_id(row["id"]) for row in jobs[number:]] == ids
    assert runtime_of(tb).direct_path.run(_server_pid) == process


@ON_ONE_SERVER
async def test_an_async_enqueue_on_a_broken_connection_is_written_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = await open_path_in_loop(tb, note)
    await asyncio.to_thread(rows, f"SELECT pg_terminate_backend({process}, 5000)")
    await note.aenqueue(number)
    number, anew = await open_path_in_loop(tb, note, number + 1)

    jobs = await asyncio.to_thread(rows, "SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in jobs] == list(range(number))
    assert anew != process


@ON_ONE_SERVER
async def test_an_async_enqueue_whose_reply_is_lost_is_written_once(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, _ = await open_path_in_loop(tb, note)
    run = DirectConnection.arun

    async def run_and_break(connection: DirectConnection, name: str, values: Mapping[str, Any]) -> None:
        await run(connection, name, values)
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(DirectConnection, "arun", run_and_break)
    sent = await note.aenqueue(number)

    jobs = await asyncio.to_thread(rows, "SELECT id, (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 2")
    assert [row["n"] for row in jobs] == list(range(number + 1))
    assert format_execution_id(jobs[-1]["id"]) == sent.id


@ON_ONE_SERVER
async def test_a_cancelled_coroutine_has_its_statement_cancelled_at_the_server(
    tb: Timeball, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    number, process = await open_path_in_loop(tb, note)
    waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"
    with psycopg.connect(tb.settings.database_url) as other:
        other.execute("LOCK TABLE timeball.job")
        waiting = asyncio.create_task(note.aenqueue(number))
        await asyncio.to_thread(wait_until, lambda: rows(waits))
        waiting.cancel()
        await asyncio.wait([waiting])
    await note.aenqueue(number + 1)

    assert waiting.cancelled()
    jobs = await asyncio.to_thread(rows, "SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in jobs] == [*range(number), number + 1]


@ON_ONE_SERVER
def test_a_caller_among_many_shares_their_commit(tb: Timeball, monkeypatch: pytest.MonkeyPatch) -> None:
    @tb.handler(name="note")
    def note(n: int) -> None: ...

    note.enqueue(19)
    calls: list[object] = []
    runtime = runtime_of(tb)
    monkeypatch.setattr(runtime.direct_path, "run", calls.append)
    note.enqueue(20)
    calls_alone = len(calls)
    monkeypatch.setattr(type(runtime.batcher), "waiting", 16)
    note.enqueue(21)

    assert (calls_alone, len(calls)) == (1, 1)
    assert runtime.direct_path._calls_in_a_row == 0


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
path = tb._enqueue_client.background_loop.resource.direct_path
struck = 0
for number in range(1, 301):
    while path.run(lambda connection: True) is None:
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
def test_signals_at_any_moment_lose_no_acknowledged_job(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    printed = [line.split() for line in run_program(STRUCK)]

    done = {int(number) for word, number in printed if word == "done"}
    (struck,) = [int(number) for word, number in printed if word == "struck"]
    jobs = [row["n"] for row in rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job")]
    assert struck > 0
    assert done | {0} <= set(jobs)
    assert len(jobs) == len(set(jobs))
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
path = tb._enqueue_client.background_loop.resource.direct_path
while path.run(lambda connection: True) is None:
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
def test_a_forked_child_has_a_connection_of_its_own(
    run_program: Callable[..., list[str]], rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    run_program(FORKING)

    jobs = rows("SELECT (payload ->> 'n')::int AS n FROM timeball.job ORDER BY 1")
    assert [row["n"] for row in jobs] == [*range(100), *range(100, 120), *range(200, 220), *range(300, 320)]
