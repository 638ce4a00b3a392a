"""Enqueues inside the caller's own transaction: the job exists if and only if it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import asyncpg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER
from tests.sdk.drivers import (
    AsyncDriver,
    Driver,
    engine_of,
    every_async_driver,
    every_driver,
    with_async_psycopg,
    with_asyncpg,
    with_psycopg,
)
from timeball import ConnectionUnknown, ResultTimeout, Timeball

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database.dsn


# commit and rollback


@every_driver
def test_a_job_exists_after_the_commit(tb: Timeball, rows: Rows, dsn: str, driver: Driver) -> None:
    @tb.handler(queue="mail")
    def send(order_id: int, to: str) -> None: ...

    with driver(dsn) as opened:
        run = send.options(connection=opened.connection, priority=90).enqueue(42, to="50 % off: 'x'; --")
        later = send.options(connection=opened.connection, delay="1h").enqueue(43, to="")
        assert rows("SELECT FROM timeball.job") == []
        opened.commit()

        assert run.state() == "queued"
        assert later.state() == "scheduled"
    job, _ = rows("SELECT payload, queue, priority FROM timeball.job ORDER BY priority DESC")
    assert job == {"payload": {"order_id": 42, "to": "50 % off: 'x'; --"}, "queue": "mail", "priority": 90}


@every_driver
@pytest.mark.parametrize("commits", [True, False])
def test_what_waits_with_a_key_is_changed_by_the_commit(
    tb: Timeball, rows: Rows, dsn: str, driver: Driver, commits: bool
) -> None:
    @tb.handler
    def index(number: int) -> None: ...

    first = index.options(key="k", delay="1h").enqueue(1)
    (before,) = rows("SELECT run_at FROM timeball.due")

    with driver(dsn) as opened:
        again = index.options(key="k", if_exists="extend", delay="2h", connection=opened.connection).enqueue(2)
        assert (again.id, again.is_new) == (first.id, False)
        assert rows("SELECT payload FROM timeball.job") == [{"payload": {"number": 1}}]
        (opened.commit if commits else opened.rollback)()

    assert rows("SELECT payload FROM timeball.job") == [{"payload": {"number": 2 if commits else 1}}]
    (after,) = rows("SELECT run_at FROM timeball.due")
    assert (after["run_at"] > before["run_at"]) == commits


@every_driver
def test_what_comes_after_a_run_that_has_begun_exists_after_the_commit(
    tb: Timeball, rows: Rows, dsn: str, driver: Driver
) -> None:
    @tb.handler
    def index(number: int) -> None: ...

    index.options(key="k").enqueue(1)
    rows("UPDATE timeball.ready SET attempts = 1 RETURNING id")

    with driver(dsn) as opened:
        after = index.options(key="k", if_exists="replace", connection=opened.connection).enqueue(2)
        same = index.options(key="k", if_exists="replace", connection=opened.connection).enqueue(3)
        assert rows("SELECT FROM timeball.due") == []
        opened.commit()

    assert (after.is_new, same.is_new, same.id) == (True, False, after.id)
    assert rows("SELECT payload FROM timeball.due") == [{"payload": {"number": 3}}]


@every_driver
def test_a_job_does_not_exist_after_a_rollback(tb: Timeball, rows: Rows, dsn: str, driver: Driver) -> None:
    @tb.handler
    def send(order_id: int) -> None: ...

    with driver(dsn) as opened:
        send.options(connection=opened.connection, key="k").enqueue(42)
        send.options(connection=opened.connection).enqueue_many(send.call(n) for n in range(3))
        opened.rollback()

    for table in ("job", "ready", "due", "live_key", "job_version"):
        assert rows(f"SELECT FROM timeball.{table}") == []


@every_driver
def test_a_command_is_audited_in_the_same_transaction(tb: Timeball, rows: Rows, dsn: str, driver: Driver) -> None:
    with driver(dsn) as opened:
        tb.enqueue("shell.command", {"command": "id"}, connection=opened.connection)
        tb.enqueue("test.echo", {}, connection=opened.connection)
        assert rows("SELECT FROM timeball.audit") == []
        opened.commit()

    (note,) = rows("SELECT action, actor, subject, after -> 'handler' AS handler FROM timeball.audit")
    (job,) = rows("SELECT id, created_by FROM timeball.job WHERE handler = 'shell.command'")
    assert note == {"action": "job.create", "actor": "local", "subject": f"job:{job['id']}", "handler": "shell.command"}
    assert job["created_by"].startswith("program:")


@every_async_driver
async def test_a_command_of_a_coroutine_is_audited_in_the_same_transaction(
    tb: Timeball, rows: Rows, dsn: str, driver: AsyncDriver
) -> None:
    async with driver(dsn) as opened:
        await tb.aenqueue("shell.command", {"command": "id"}, connection=opened.connection)
        await opened.commit()

    assert len(rows("SELECT FROM timeball.audit WHERE action = 'job.create'")) == 1


@every_async_driver
async def test_a_job_of_a_coroutine_exists_after_the_commit(
    tb: Timeball, rows: Rows, dsn: str, driver: AsyncDriver
) -> None:
    @tb.handler(queue="mail")
    def send(order_id: int, to: str) -> None: ...

    async with driver(dsn) as opened:
        run = await send.options(connection=opened.connection, priority=90).aenqueue(42, to="50 % off: 'x'; --")
        later = await send.options(connection=opened.connection, delay="1h").aenqueue(43, to="")
        assert rows("SELECT FROM timeball.job") == []
        await opened.commit()

        assert await run.astate() == "queued"
        assert await later.astate() == "scheduled"
    job, _ = rows("SELECT payload, queue, priority FROM timeball.job ORDER BY priority DESC")
    assert job == {"payload": {"order_id": 42, "to": "50 % off: 'x'; --"}, "queue": "mail", "priority": 90}


@every_async_driver
async def test_a_job_of_a_coroutine_does_not_exist_after_a_rollback(
    tb: Timeball, rows: Rows, dsn: str, driver: AsyncDriver
) -> None:
    @tb.handler
    def send(order_id: int) -> None: ...

    async with driver(dsn) as opened:
        await send.options(connection=opened.connection, key="k").aenqueue(42)
        await send.options(connection=opened.connection).aenqueue_many(send.call(n) for n in range(3))
        await opened.rollback()

    for table in ("job", "ready", "due", "live_key", "job_version"):
        assert rows(f"SELECT FROM timeball.{table}") == []


# keys, limits, many


@every_driver
def test_a_live_key_returns_its_holder(tb: Timeball, rows: Rows, dsn: str, driver: Driver) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    before = send.options(key="before").enqueue(1)
    with driver(dsn) as opened:
        inside = send.options(connection=opened.connection, key="inside").enqueue(2)
        again = [
            send.options(connection=opened.connection, key="before").enqueue(3),
            send.options(connection=opened.connection, key="inside").enqueue(4),
        ]
        opened.commit()

    assert again == [before, inside]
    assert [(run.is_new, run.job_id) for run in again] == [(False, before.job_id), (False, inside.job_id)]
    assert len(rows("SELECT FROM timeball.job")) == 2


@every_async_driver
async def test_a_live_key_returns_its_holder_to_coroutines(
    tb: Timeball, rows: Rows, dsn: str, driver: AsyncDriver
) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    before = await send.options(key="before").aenqueue(1)
    async with driver(dsn) as opened:
        again = await send.options(connection=opened.connection, key="before").aenqueue(3)
        await opened.commit()

    assert again == before
    assert not again.is_new
    assert len(rows("SELECT FROM timeball.job")) == 1


async def test_a_limited_job_is_blocked(tb: Timeball, rows: Rows, dsn: str) -> None:
    @tb.handler(name="crawl", max_running=1)
    def crawl(n: int) -> None: ...

    async with with_asyncpg(dsn) as opened:
        for n in range(3):
            await crawl.options(connection=opened.connection).aenqueue(n)
        await opened.commit()

    assert rows("SELECT limit_key, count(*) AS n FROM timeball.blocked GROUP BY 1") == [{"limit_key": "crawl", "n": 3}]


async def test_many_jobs_are_written_by_several_statements_of_one_transaction(
    tb: Timeball, rows: Rows, dsn: str
) -> None:
    @tb.handler
    def send(n: int) -> None: ...

    async with with_asyncpg(dsn) as opened:
        runs = await send.options(connection=opened.connection).aenqueue_many(send.call(n) for n in range(2_500))
        await opened.commit()

    assert len({run.id for run in runs}) == 2_500
    assert rows("SELECT count(*) AS n, count(DISTINCT xmin::text) AS commits FROM timeball.ready") == [
        {"n": 2_500, "commits": 1}
    ]


async def test_nothing_is_announced_from_the_callers_transaction(tb: Timeball, dsn: str) -> None:
    notifications: list[object] = []
    listener = await asyncpg.connect(dsn)
    await listener.add_listener("timeball", lambda *_: notifications.append(_))

    async with with_asyncpg(dsn) as opened:
        await tb.aenqueue("elsewhere", connection=opened.connection)
        await opened.commit()
    await listener.execute("NOTIFY timeball, 'the end'")
    while not notifications:
        await asyncio.sleep(0.005)

    assert len(notifications) == 1
    await listener.close()


# with a worker


async def test_a_job_of_a_transaction_runs_after_the_commit(
    tb: Timeball, dsn: str, node: Callable[[], AbstractContextManager[None]]
) -> None:
    @tb.handler(max_running=1)
    def double(n: int) -> int:
        return 2 * n

    with node():
        async with with_asyncpg(dsn) as opened:
            runs = [await double.options(connection=opened.connection).aenqueue(n) for n in (21, 22)]
            with pytest.raises(ResultTimeout, match=r"is not there; has its transaction been committed\?"):
                await runs[0].aresult(timeout=0.05)
            waiting = asyncio.ensure_future(runs[0].aresult(timeout=30))
            await opened.commit()

            assert await waiting == 42
            assert await runs[1].aresult(timeout=30) == 44


# wrong connections


async def test_an_object_that_is_not_a_connection_is_refused(tb: Timeball, dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1) as pool:
        with pytest.raises(ConnectionUnknown, match=r"connection is of type asyncpg\.pool\.Pool, expected") as caught:
            await tb.aenqueue("elsewhere", connection=pool)
    assert caught.value.hint is not None
    assert "a pool or an engine has no transaction" in caught.value.hint
    with engine_of(dsn) as engine, pytest.raises(ConnectionUnknown, match=r"sqlalchemy.*Engine"):
        tb.enqueue("elsewhere", connection=engine)
    with pytest.raises(ConnectionUnknown, match=r"connection is of type builtins\.str"):
        tb.enqueue("elsewhere", connection=dsn)


async def test_a_connection_for_the_other_kind_of_call_is_refused(tb: Timeball, rows: Rows, dsn: str) -> None:
    async with with_async_psycopg(dsn) as opened:
        with pytest.raises(ConnectionUnknown, match=r"it is asynchronous: await aenqueue\(...\) instead"):
            tb.enqueue("elsewhere", connection=opened.connection)
    right = r"it is not asynchronous: call enqueue\(...\) instead"
    with with_psycopg(dsn) as opened, pytest.raises(ConnectionUnknown, match=right):
        await tb.aenqueue("elsewhere", connection=opened.connection)

    assert rows("SELECT FROM timeball.job") == []
