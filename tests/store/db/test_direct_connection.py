"""Connections outside the pool: what they set on the server, and how long a caller waits on them."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import VERSIONS
from timeball.errors import StoreError, StoreUnavailable
from timeball.store.db.direct_connection import DirectConnection, DirectConnectionOptions
from timeball.store.db.statements import all_statements
from timeball.store.db.url import DatabaseUrl

pytestmark = pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)


def connect_to(dsn: str, *, behind_pgbouncer: bool = False, statement_seconds: float = 10) -> DirectConnection:
    options = DirectConnectionOptions(
        url=DatabaseUrl.parse(dsn),
        session={"application_name": "timeball", "jit": "off"},
        connect_seconds=10,
        statement_seconds=statement_seconds,
        silence_seconds=8,
        behind_pgbouncer=behind_pgbouncer,
    )
    return DirectConnection(options)


@pytest.mark.parametrize("behind_pgbouncer", [False, True])
def test_statements_are_prepared_unless_sessions_are_shared(
    fresh_database: FreshDatabase, behind_pgbouncer: bool
) -> None:
    connection = connect_to(fresh_database.dsn, behind_pgbouncer=behind_pgbouncer)
    for _ in range(10):
        connection.run("moment", {"now": None})

    row = connection._connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    settings = connection._connection.execute(
        "SELECT current_setting('application_name'), current_setting('jit')"
    ).fetchone()
    connection.close()

    assert row == (0 if behind_pgbouncer else 1,)
    assert (settings == ("timeball", "off")) is not behind_pgbouncer


def test_options_of_the_url_are_kept(fresh_database: FreshDatabase) -> None:
    joint = "&" if "?" in fresh_database.dsn else "?"
    connection = connect_to(f"{fresh_database.dsn}{joint}options=-c%20work_mem%3D5MB")
    row = connection._connection.execute("SELECT current_setting('work_mem'), current_setting('jit')").fetchone()
    connection.close()

    assert row == ("5MB", "off")


@pytest.mark.parametrize("is_async", [False, True])
def test_driver_errors_are_translated(fresh_database: FreshDatabase, is_async: bool) -> None:
    connection = connect_to(fresh_database.dsn)
    run = partial(run_in_loop, connection) if is_async else connection.run
    with pytest.raises(StoreError, match="PostgreSQL refused a statement") as refused:
        run("enqueue_one", dict.fromkeys(all_statements()["enqueue_one"].parameters))
    run("moment", {"now": None})
    with psycopg.connect(fresh_database.dsn) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.server_pid])
    assert not connection.is_usable()
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        run("moment", {"now": None})
    connection.close()

    assert not isinstance(refused.value, StoreUnavailable)


def run_in_loop(connection: DirectConnection, name: str, values: Mapping[str, Any]) -> None:
    asyncio.run(connection.arun(name, values))


@pytest.mark.parametrize("is_async", [False, True])
def test_no_caller_waits_longer_for_a_statement_than_it_should(fresh_database: FreshDatabase, is_async: bool) -> None:
    connection = connect_to(fresh_database.dsn, statement_seconds=0.05)
    run = partial(run_in_loop, connection) if is_async else connection.run

    with psycopg.connect(fresh_database.dsn) as other:
        other.execute("LOCK TABLE timeball.job")
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            run("find_jobs", {"ids": []})
    connection.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_caller_that_waits_is_interrupted_from_another_thread(fresh_database: FreshDatabase, is_async: bool) -> None:
    connection = connect_to(fresh_database.dsn)
    run = partial(run_in_loop, connection) if is_async else connection.run

    with psycopg.connect(fresh_database.dsn) as other:
        other.execute("LOCK TABLE timeball.job")
        timer = threading.Timer(0.05, connection.interrupt)
        timer.start()
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            run("find_jobs", {"ids": []})
        timer.join()
    connection.close()


def test_a_server_that_is_away_is_unavailable(fresh_database: FreshDatabase) -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        connect_to("postgresql://nobody@127.0.0.1:1/nothing")


def test_a_signal_has_the_statement_cancelled_at_the_server(fresh_database: FreshDatabase) -> None:
    """Otherwise the server would write, after the lock is released, a job whose enqueue has failed."""

    class Struck(Exception): ...

    def strike(*_: object) -> None:
        raise Struck

    connection = connect_to(fresh_database.dsn)
    active = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with psycopg.connect(fresh_database.dsn, autocommit=True) as other, other.transaction():
            other.execute("LOCK TABLE timeball.job")
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Struck):
                connection.run("find_jobs", {"ids": []})
            with psycopg.connect(fresh_database.dsn, autocommit=True) as observer:
                deadline = time.monotonic() + 10
                while observer.execute(active, [connection.server_pid]).fetchone() and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert observer.execute(active, [connection.server_pid]).fetchone() is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    connection.close()
