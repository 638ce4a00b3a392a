"""The databases of a test session: one template with the schema, and a copy of it for each test.

They are made on the server of `TIMEBALL_TEST_DATABASE_URL`, or on an embedded one that lives as long as the session. Nothing is
ever dropped that was not made here, so the server may be one that is used for other things.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from timeball.env import Env
from timeball.errors import EmbeddedServerError, InvalidInput
from timeball.store.database import Database, translated
from timeball.store.embedded import EmbeddedServer
from timeball.store.migrate import migrate

VARIABLE = "TIMEBALL_TEST_DATABASE_URL"
_SCHEMES = ("postgresql", "postgres")
# Shards share the schedule out among schedulers; a test has one.
_SHARDS = 1
# Each waits for five seconds.
_DROP_TRIES = 4
# Those of the role that made the database, or of any role for a superuser.
_END_SESSIONS = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = $1
  AND backend_type = 'client backend'
  AND (usename = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
"""

T = TypeVar("T")


class SessionDatabases:
    """Makes and drops the databases of one session."""

    def __init__(self, url: str) -> None:
        self._url = _checked(url)
        self._template: str | None = None

    def create(self) -> str:
        """A database with the schema and nothing in it; returns its URL."""
        name = _new_name()
        _run(lambda: self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._ready_template()}"'))
        return _named(self._url, name)

    def drop(self, url: str) -> None:
        """Drop a database that was made here."""
        name = urlsplit(url).path.removeprefix("/")
        _run(lambda: _drop(self._url, name))

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self.drop(_named(self._url, self._template))
            self._template = None

    def _ready_template(self) -> str:
        if self._template is None:
            name = _new_name()
            _run(lambda: self._execute(f'CREATE DATABASE "{name}"'))
            # Known from here on: whatever goes wrong with the schema, it will be dropped.
            self._template = name
            _run(lambda: migrate(Database(_named(self._url, name), Env()), shards=_SHARDS))
        return self._template

    async def _execute(self, statement: str) -> None:
        await _execute(self._url, statement)


async def _drop(url: str, name: str) -> None:
    """Drop a database while connections of ours may still be open.

    Not with FORCE: that needs the right to end every process it finds there, and an autovacuum worker is a superuser's. A plain
    DROP ends that one by itself, and waits up to five seconds for others to go.
    """
    connection = await Database(url, Env()).connect(is_patient=True)
    try:
        with translated(url):
            for tries_left in reversed(range(_DROP_TRIES)):
                await connection.execute(_END_SESSIONS, name)
                try:
                    await connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
                except asyncpg.ObjectInUseError:
                    if not tries_left:
                        raise
                else:
                    return
    finally:
        await connection.close()


async def _execute(url: str, *statements: str) -> None:
    connection = await Database(url, Env()).connect()
    try:
        with translated(url):
            for statement in statements:
                await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def session_databases() -> Iterator[SessionDatabases]:
    """The databases of this session, on the server it is to use."""
    with _server() as url:
        databases = SessionDatabases(url)
        try:
            yield databases
        finally:
            databases.close()


@contextmanager
def _server() -> Iterator[str]:
    url = os.environ.get(VARIABLE)
    if url:
        yield url
        return
    # Not pytest's own folder: its long names do not fit the path of a socket.
    folder = Path(tempfile.mkdtemp(prefix="timeball-tests-"))
    # Root's server runs under another account: a folder closed to it would have its database put elsewhere, and left there.
    folder.chmod(0o711)
    server = EmbeddedServer(folder)
    try:
        url = _started(server)
        _run(lambda: _hasten(url))
        yield url
    finally:
        server.leave()
        shutil.rmtree(folder, ignore_errors=True)


def _started(server: EmbeddedServer) -> str:
    try:
        return server.start()
    except EmbeddedServerError as error:
        instead = f"tests can use any PostgreSQL instead: {VARIABLE}=postgresql://user@host/database"
        raise EmbeddedServerError(f"{error}\n{instead}") from error


async def _hasten(url: str) -> None:
    """What is thrown away at the end need not survive a power cut."""
    relaxed = [f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes", "synchronous_commit")]
    await _execute(url, *relaxed, "SELECT pg_reload_conf()")


def _checked(url: str) -> str:
    if urlsplit(url).scheme not in _SCHEMES:
        # The URL may hold a password: it is not repeated.
        raise InvalidInput(f"{VARIABLE} is no address of PostgreSQL, expected postgresql://user@host/database")
    return url


def _named(url: str, name: str) -> str:
    parts = urlsplit(url)
    # What stands behind the ? wins over what stands before it.
    query = "&".join(pair for pair in parts.query.split("&") if pair and not pair.startswith("dbname="))
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{query}" if query else "")


def _new_name() -> str:
    return f"timeball_test_{uuid.uuid4().hex[:16]}"


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """In a thread, because the loop of an asynchronous test may be running in this one."""
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(lambda: asyncio.run(work())).result()
