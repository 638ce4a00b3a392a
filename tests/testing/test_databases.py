"""The databases of a test session, created and dropped by a role that may create databases and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.servers import PostgresServer, wait_until
from timeball.errors import StoreError
from timeball.testing import environment
from timeball.testing.environment import SessionDatabases

DROPPING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DROP DATABASE%%' AND pid <> pg_backend_pid()"


@pytest.fixture
def tester(postgres_server: PostgresServer) -> Iterator[str]:
    """A role that may create databases, and is not a superuser."""
    role = f"tester_{os.getpid()}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN CREATEDB")
    yield role
    postgres_server.execute(f"DROP ROLE {role}")


@pytest.fixture
def session(postgres_server: PostgresServer, tester: str) -> Iterator[SessionDatabases]:
    databases = SessionDatabases(postgres_server.dsn().replace("//timeball@", f"//{tester}@"))
    yield databases
    databases.close()


def databases_of(server: PostgresServer, role: str) -> int:
    owned = f"SELECT count(*) FROM pg_database JOIN pg_roles ON datdba = pg_roles.oid WHERE rolname = '{role}'"
    return int(server.execute(owned)[0][0])


def of_superuser(server: PostgresServer, url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection of a superuser to a database of the session; an autovacuum worker has one, too."""
    return psycopg.connect(server.dsn(url.partition("?")[0].rsplit("/", 1)[1]))


def test_dropping_waits_for_a_process_of_a_superuser(
    postgres_server: PostgresServer, tester: str, session: SessionDatabases
) -> None:
    url = session.create()
    worker = of_superuser(postgres_server, url)

    with ThreadPoolExecutor(1) as aside:
        dropped = aside.submit(session.drop, url)
        wait_until(
            lambda: dropped.done() or postgres_server.execute(DROPPING) == [(1,)], "the database is being dropped"
        )
        worker.close()
        dropped.result()

    assert databases_of(postgres_server, tester) == 1, "the template"


def test_dropping_ends_sessions_of_the_same_role(
    postgres_server: PostgresServer, tester: str, session: SessionDatabases
) -> None:
    url = session.create()
    with psycopg.connect(url) as forgotten:
        session.drop(url)

        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")

    assert databases_of(postgres_server, tester) == 1


def test_dropping_a_database_that_stays_in_use_raises(
    postgres_server: PostgresServer, session: SessionDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_DROP_TRIES", 1)
    url = session.create()

    with of_superuser(postgres_server, url), pytest.raises(StoreError, match="is being accessed by other users"):
        session.drop(url)

    session.drop(url)


def test_a_name_in_the_query_does_not_lead_to_another_database(postgres_server: PostgresServer, tester: str) -> None:
    session = SessionDatabases(postgres_server.dsn().replace("//timeball@/postgres?", f"//{tester}@/?dbname=postgres&"))
    try:
        url = session.create()
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT current_database()").fetchone()
        session.drop(url)
    finally:
        session.close()

    assert row is not None
    assert str(row[0]).startswith("timeball_test_")
