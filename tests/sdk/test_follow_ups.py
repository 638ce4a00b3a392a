"""Calls that follow a run, as programs write them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER
from tests.support.pace import patience
from timeball import Cancel, InvalidInput, Timeball

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]
Node = Callable[[], AbstractContextManager[None]]


class Ledger:
    """What handlers have written, and an event once there are enough lines."""

    def __init__(self, lines: int) -> None:
        self.lines: list[Any] = []
        self._wanted = lines
        self._is_full = threading.Event()

    def write(self, line: Any) -> None:
        self.lines.append(line)
        if len(self.lines) >= self._wanted:
            self._is_full.set()

    def read(self) -> list[Any]:
        assert self._is_full.wait(patience(30))
        return self.lines


def test_the_result_is_handed_on_to_the_call_that_follows(tb: Timeball, node: Node) -> None:
    ledger = Ledger(1)

    @tb.handler
    def make(day: str) -> dict[str, str]:
        return {"file": f"{day}.csv"}

    @tb.handler
    def archive(report: dict[str, str], names: list[Any], *, copies: int = 1) -> None:
        ledger.write((report, names, copies))

    with node():
        make.options(on_success=archive.call(tb.result, ["as is", tb.result], copies=2)).enqueue("monday")

        assert ledger.read() == [({"file": "monday.csv"}, ["as is", {"file": "monday.csv"}], 2)]


def test_a_failure_is_told_with_its_error(tb: Timeball, node: Node) -> None:
    ledger = Ledger(2)

    @tb.handler(retries=0)
    def fail(how: str) -> None:
        if how == "cancel":
            raise Cancel("not needed")
        raise ValueError("no such file")

    @tb.handler
    def tell(run_id: str, state: str, error: str) -> None:
        ledger.write((run_id, state, error))

    told = fail.options(on_failure=tell.call(tb.failed.id, tb.failed.state, tb.failed.error))
    with node():
        runs = [told.enqueue("raise"), told.enqueue("cancel")]

        assert sorted(ledger.read()) == sorted(
            [(runs[0].id, "dead", "ValueError: no such file"), (runs[1].id, "cancelled", "not needed")]
        )


def test_a_call_that_follows_is_followed_and_keeps_the_options_of_its_handler(
    tb: Timeball, node: Node, rows: Rows
) -> None:
    ledger = Ledger(1)

    @tb.handler
    def first() -> int:
        return 1

    @tb.handler(queue="second", retries=7)
    def second(n: int) -> int:
        return n + 1

    @tb.handler
    def third(n: int) -> None:
        ledger.write(n)

    with node():
        then = second.options(priority=90, on_success=third.call(tb.result))
        first.options(on_success=then.call(tb.result)).enqueue()

        assert ledger.read() == [2]
    (job,) = rows("SELECT queue, priority, max_retries, created_by FROM timeball.job WHERE queue = 'second'")
    assert (job["queue"], job["priority"], job["max_retries"]) == ("second", 90, 7)
    assert job["created_by"].startswith("program:")


async def test_coroutines_and_the_caller_s_transaction_take_calls_too(
    tb: Timeball, rows: Rows, fresh_database: FreshDatabase
) -> None:
    @tb.handler
    async def first() -> None: ...

    @tb.handler
    async def second() -> None: ...

    async with await psycopg.AsyncConnection.connect(fresh_database.dsn) as connection:
        await first.options(on_success=second.call(), connection=connection).aenqueue()
        await connection.rollback()
    await first.options(on_failure=second.call()).aenqueue()
    await first.options(on_success=second.call()).aenqueue_many([first.call(), first.call()])

    assert rows("SELECT on_success IS NOT NULL AS ok FROM timeball.job ORDER BY 1") == [
        {"ok": False},
        {"ok": True},
        {"ok": True},
    ]
    assert rows("SELECT count(*) AS n FROM timeball.ready WHERE has_follow_ups") == [{"n": 3}]


def test_a_schedule_is_followed_after_each_of_its_runs(tb: Timeball, node: Node) -> None:
    ledger = Ledger(2)

    @tb.handler
    def count() -> int:
        return 5

    @tb.handler
    def note(n: int) -> None:
        ledger.write(n)

    with node():
        count.schedule(every="1s", name="counting", on_success=note.call(tb.result))

        assert ledger.read()[:2] == [5, 5]


def test_a_triggered_run_may_have_calls_of_its_own(tb: Timeball, node: Node) -> None:
    ledger = Ledger(1)

    @tb.handler
    def count() -> int:
        return 5

    @tb.handler
    def note(n: int, by: str) -> None:
        ledger.write((n, by))

    with node():
        count.schedule("0 0 1 1 *", name="yearly", on_success=note.call(tb.result, by="schedule"))
        tb.jobs.trigger("yearly", on_success=note.call(tb.result, by="hand"))

        assert ledger.read() == [(5, "hand")]


def test_a_result_that_does_not_fit_is_the_failure_of_the_call_that_follows(
    tb: Timeball, node: Node, rows: Rows
) -> None:
    ledger = Ledger(1)

    @tb.handler
    def large() -> str:
        return "x" * 200_000

    @tb.handler(retries=0)
    def join(first: str, second: str) -> None:
        raise AssertionError

    @tb.handler
    def tell(error: str) -> None:
        ledger.write(error)

    with node():
        joined = join.options(on_failure=tell.call(tb.failed.error))
        large.options(on_success=joined.call(tb.result, tb.result)).enqueue()

        (error,) = ledger.read()
    assert "400,024 bytes with the values of its references, expected at most 262,144" in error


# refusals


def test_what_is_no_call_is_refused(tb: Timeball) -> None:
    @tb.handler
    def send(n: int = 0) -> None: ...

    with pytest.raises(InvalidInput, match=r"on_success is a function, expected a call that is not made yet"):
        send.options(on_success=send).enqueue()  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"on_failure is int, expected a call"):
        send.options(on_failure=3).enqueue()  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"delay is given for .*send, but a call that follows a run starts when"):
        send.options(on_success=send.options(delay="10s").call()).enqueue()


def test_a_placeholder_without_a_result_is_refused_when_it_is_enqueued(tb: Timeball) -> None:
    @tb.handler
    def send(n: int = 0) -> None: ...

    with pytest.raises(InvalidInput, match=r'\$cause is "result", but no run comes before this one'):
        send.enqueue(tb.result)
    with pytest.raises(InvalidInput, match=r"expected execution_id, state or error"):
        send.options(on_failure=send.call(tb.result)).enqueue()
    with pytest.raises(InvalidInput, match=r"expected result or execution_id"):
        send.options(on_success=send.call(tb.failed.error)).enqueue()
