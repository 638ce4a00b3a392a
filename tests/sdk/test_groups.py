"""Chains and groups, as programs write them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER
from tests.sdk.test_follow_ups import Ledger
from tests.support.pace import patience
from timeball import ExecutionFailed, InvalidInput, Timeball
from timeball.sdk.handlers import SyncHandlerHandle

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]
Node = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def add(tb: Timeball) -> SyncHandlerHandle[[int, int], int]:
    @tb.handler(name="add", retries=0)
    def add(a: int, b: int = 1) -> int:
        if a < 0:
            raise ValueError("a is negative")
        return a + b

    assert isinstance(add, SyncHandlerHandle)
    return add


@pytest.fixture
def total(tb: Timeball) -> SyncHandlerHandle[[list[Any]], int]:
    @tb.handler(name="total")
    def total(numbers: list[Any]) -> int:
        return sum(number if isinstance(number, int) else sum(number) for number in numbers)

    assert isinstance(total, SyncHandlerHandle)
    return total


def test_a_chain_hands_each_result_on_to_the_next_step(tb: Timeball, node: Node, add: Any) -> None:
    with node():
        run = tb.chain(add.call(1), add.call(tb.result, 10), add.call(tb.result, b=100)).enqueue()

        assert run.results(timeout=patience(20)) == [112]
    status = run.status()
    assert (status.state, status.total, status.succeeded, status.failed) == ("succeeded", 1, 1, 0)


def test_a_group_is_joined_when_all_of_its_parts_have_ended(tb: Timeball, node: Node, add: Any, total: Any) -> None:
    ledger = Ledger(1)

    @tb.handler
    def note(n: int) -> None:
        ledger.write(n)

    joined = total.options(on_success=note.call(tb.result)).call(tb.results)
    with node():
        run = tb.group(add.call(n) for n in range(20)).then(joined).enqueue()

        assert run.results(timeout=patience(20)) == list(range(1, 21))
        assert ledger.read() == [210]


def test_chains_and_groups_stand_in_each_other(tb: Timeball, node: Node, add: Any, total: Any) -> None:
    inner = tb.group([add.call(tb.result), add.call(tb.result, 2)]).then(total.call(tb.results))
    parts = [tb.chain(add.call(1), inner, add.call(tb.result, 100)), tb.group([add.call(5), add.call(6)]), add.call(0)]
    with node():
        run = tb.chain(tb.group(parts).then(total.call(tb.results)), add.call(tb.result)).enqueue()

        # 1 + 1 = 2; then 3 and 4, which are 7; then 107. Beside it 6 and 7, and 1.
        assert run.results(timeout=patience(30)) == [107 + 13 + 1 + 1]


def test_a_failure_ends_a_chain_and_is_told(tb: Timeball, node: Node, add: Any, rows: Rows) -> None:
    ledger = Ledger(1)

    @tb.handler
    def tell(error: str) -> None:
        ledger.write(error)

    with node():
        run = tb.chain(add.call(1), add.call(-1), add.call(3)).on_failure(tell.call(tb.failed.error)).enqueue()

        assert ledger.read() == ["ValueError: a is negative"]
        with pytest.raises(ExecutionFailed, match=r"1 of 1 failed"):
            run.results(timeout=patience(20))
    assert rows("SELECT count(*) AS n FROM timeball.finished WHERE handler = 'add'") == [{"n": 2}]


def test_a_group_fails_when_all_parts_have_ended_and_one_has_failed(
    tb: Timeball, node: Node, add: Any, total: Any
) -> None:
    ledger = Ledger(1)

    @tb.handler
    def tell(group_id: str, state: str, error: str) -> None:
        ledger.write((group_id, state, error))

    failed = tell.call(tb.failed.id, tb.failed.state, tb.failed.error)
    with node():
        group = tb.group([add.call(1), add.call(-2), add.call(3)])
        run = group.then(total.call(tb.results)).on_failure(failed).enqueue()

        assert ledger.read() == [(run.id, "failed", "1 of 3 failed; part 2: ValueError: a is negative")]
    status = tb.get_group(run.id).status()
    assert (status.state, status.succeeded, status.failed, status.waits_for) == ("failed", 2, 1, 0)


def test_a_group_that_is_cancelled_fails(tb: Timeball, add: Any, total: Any, rows: Rows) -> None:
    late = add.options(queue="nobody")
    inner = tb.group([late.call(1), late.call(2)])
    run = tb.group([late.call(0), inner]).then(total.call(tb.results)).on_failure(add.call(7)).enqueue()
    before = run.status()

    cancelled = run.cancel("not needed")

    status = run.status()
    assert (before.state, before.total, before.waits_for, cancelled) == ("open", 2, 2, 3)
    assert (status.state, status.failed) == ("failed", 2)
    assert rows("SELECT count(*) AS n FROM timeball.job WHERE follows_as = 'on_failure'") == [{"n": 1}]


async def test_a_group_is_written_in_the_caller_s_transaction(
    tb: Timeball, add: Any, rows: Rows, fresh_database: FreshDatabase
) -> None:
    async with await psycopg.AsyncConnection.connect(fresh_database.dsn) as connection:
        await tb.group([add.call(1), add.call(2)]).aenqueue(connection=connection)
        await connection.rollback()
        run = await tb.group([add.call(3)]).aenqueue(connection=connection)
        await connection.commit()

    assert rows("SELECT payload ->> 'a' AS a FROM timeball.job") == [{"a": "3"}]
    assert (await run.astatus()).waits_for == 1


def test_what_follows_a_run_may_be_a_group(tb: Timeball, node: Node, add: Any, total: Any) -> None:
    ledger = Ledger(1)

    @tb.handler
    def note(n: int) -> None:
        ledger.write(n)

    joined = total.options(on_success=note.call(tb.result)).call(tb.results)
    with node():
        add.options(on_success=tb.group([add.call(tb.result), add.call(tb.result, 5)]).then(joined)).enqueue(1)

        assert ledger.read() == [3 + 7]


def test_results_that_are_too_large_are_the_failure_of_the_join(tb: Timeball, node: Node, total: Any) -> None:
    ledger = Ledger(1)

    @tb.handler
    def large() -> str:
        return "x" * 150_000

    @tb.handler
    def tell(error: str) -> None:
        ledger.write(error)

    joined = total.options(retries=0, on_failure=tell.call(tb.failed.error)).call(tb.results)
    with node():
        tb.group([large.call(), large.call()]).then(joined).enqueue()

        (error,) = ledger.read()
    assert "the results of its parts have 300,006 bytes, expected at most 262,144" in error


def test_what_is_no_group_is_refused(tb: Timeball, add: Any, total: Any) -> None:
    with pytest.raises(InvalidInput, match=r"the group is empty, expected one or more calls"):
        tb.group([])
    with pytest.raises(InvalidInput, match=r"the chain is empty"):
        tb.chain()
    with pytest.raises(InvalidInput, match=r"group was given a function, expected calls"):
        tb.group([add])
    with pytest.raises(InvalidInput, match=r"no run comes before this one"):
        tb.chain(add.call(tb.result), add.call(1)).enqueue()
    with pytest.raises(InvalidInput, match=r"expected result or execution_id"):
        tb.chain(add.call(1), total.call(tb.results)).enqueue()
    with pytest.raises(InvalidInput, match=r"expected results or execution_id"):
        tb.group([add.call(1)]).then(add.call(tb.result)).enqueue()
    with pytest.raises(InvalidInput, match=r"delay is given"):
        tb.group([add.options(delay="1s").call(1)]).enqueue()
