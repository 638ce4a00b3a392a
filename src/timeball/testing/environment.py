"""The clock, the ids and the databases of tests.

Every statement of the store takes its `now` from the clock it was given. So with a clock that stands still until the test moves it, a
week of schedules passes in milliseconds, on the real SQL. Nothing happens by itself: advance the clock, then tick the services.

A test session has one template database with the schema, and a copy of it for each test. They are on the server of
`TIMEBALL_TEST_DATABASE_URL`, or on an embedded one that lives as long as the session. Only databases that were created here are dropped,
so the server may have other uses.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg

from timeball.domain.scheduling.civil_time import to_utc
from timeball.domain.values.ids import new_id
from timeball.domain.values.wording import Duration, parse_duration
from timeball.env import Env
from timeball.errors import EmbeddedServerError, InvalidInput
from timeball.store.db.database import Database
from timeball.store.db.migrate import migrate
from timeball.store.db.pool import translated_errors
from timeball.store.embedded.server import EmbeddedServer

# An ordinary Monday noon.
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class VirtualClock:
    """A `Clock` whose time is moved by `advance`, or by a task that sleeps."""

    def __init__(self, start: datetime = START) -> None:
        self._start = to_utc(start)
        self._now = self._start

    def advance(self, span: Duration) -> datetime:
        """Move on by a span ("3d", "1h30m", seconds or a timedelta), and return the new time."""
        return self.advance_to(self._now + parse_duration(span))

    def advance_to(self, instant: datetime) -> datetime:
        """Move on to an instant, and return the new time; a clock that is past the instant stays where it is."""
        self._now = max(self._now, to_utc(instant))
        return self._now

    def now(self) -> datetime:
        return self._now

    def statement_now(self) -> datetime:
        """The time of all statements: never the database's own."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self.earliest(self._now)

    def epoch_milliseconds(self) -> int:
        return (self._now - _EPOCH) // _MILLISECOND

    def earliest(self, instant: datetime) -> float:
        return (to_utc(instant) - self._start).total_seconds()

    def instant_at(self, monotonic: float) -> datetime:
        return self._start + timedelta(seconds=monotonic)

    async def sleep(self, seconds: float) -> None:
        """Give other tasks a turn, then move the clock to the end of this sleep, unless it is past that.

        So no task sleeps for ever, and sleeping takes no real time. Several tasks wake in the order in which they went to sleep.
        """
        wakes_at = self._now + timedelta(seconds=seconds)
        await asyncio.sleep(0)
        self.advance_to(wakes_at)


_SEED = 1833  # the year of the first time ball at Greenwich


class ManualClock(VirtualClock):
    """A clock that only the test moves: the short sleeps of services pass in real time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class HarnessEnv(Env):
    """Ids that grow even while the clock stands still, and the same random numbers in every run."""

    __slots__ = ("_numbers", "virtual_clock")

    def __init__(self, start: datetime) -> None:
        self.virtual_clock = ManualClock(start)
        super().__init__(self.virtual_clock, random.Random(_SEED))  # noqa: S311
        self._numbers = itertools.count(1)

    def new_id(self) -> UUID:
        return new_id(self.clock.epoch_milliseconds(), next(self._numbers))

    def new_ids(self, number: int) -> Iterator[UUID]:
        return (self.new_id() for _ in range(number))


VARIABLE = "TIMEBALL_TEST_DATABASE_URL"
_SCHEMES = ("postgresql", "postgres")


# Shards divide the schedules among schedulers, and a test has one scheduler.
_SHARDS = 1


# Each attempt waits for five seconds.
_DROP_TRIES = 4


# The sessions of the role that created the database; for a superuser, those of all roles.
_END_SESSIONS = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = $1
  AND backend_type = 'client backend'
  AND (usename = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
"""

T = TypeVar("T")


class SessionDatabases:
    """Creates and drops the databases of one session."""

    def __init__(self, url: str) -> None:
        self._url = _checked(url)
        self._template: str | None = None

    def create(self) -> str:
        """Create a database with the schema and no rows; returns its URL."""
        name = _new_name()
        _run(lambda: self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._ready_template()}"'))
        return _url_of_database(self._url, name)

    def drop(self, url: str) -> None:
        """Drop a database that was created here."""
        name = urlsplit(url).path.removeprefix("/")
        _run(lambda: _drop(self._url, name))

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self.drop(_url_of_database(self._url, self._template))
            self._template = None

    def _ready_template(self) -> str:
        if self._template is None:
            name = _new_name()
            _run(lambda: self._execute(f'CREATE DATABASE "{name}"'))
            # Before the schema is created: if that fails, the database will be dropped all the same.
            self._template = name
            _run(lambda: migrate(Database(_url_of_database(self._url, name), Env()), shards=_SHARDS))
        return self._template

    async def _execute(self, statement: str) -> None:
        await _execute(self._url, statement)


async def _drop(url: str, name: str) -> None:
    """Drop a database while connections of ours may still be open.

    Not with FORCE, which needs the right to end every process in the database, and an autovacuum worker is a superuser's. A plain DROP
    ends that worker by itself, and waits up to five seconds for other processes.
    """
    connection = await Database(url, Env()).connect(without_timeout=True)
    try:
        with translated_errors(url):
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
        with translated_errors(url):
            for statement in statements:
                await connection.execute(statement)
    finally:
        await connection.close()


_DROP_SCHEMA = "DROP SCHEMA IF EXISTS timeball CASCADE"
# A transaction that a test has left open must fail the test, not hang it.
_LOCK_TIMEOUT = "SET lock_timeout = '20s'"


def remake_schema(url: str, shards: int = _SHARDS) -> None:
    """Make the schema anew in a database for tests that is not ours to drop."""
    _run(lambda: _remake_schema(url, shards))


async def _remake_schema(url: str, shards: int) -> None:
    await _execute(url, _LOCK_TIMEOUT, _DROP_SCHEMA)
    await migrate(Database(url, Env()), shards=shards)


@contextmanager
def session_databases() -> Iterator[SessionDatabases]:
    """The databases of this session, dropped in the end."""
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
    # Not pytest's own folder: its long path does not fit that of a socket.
    folder = Path(tempfile.mkdtemp(prefix="timeball-tests-"))
    # For root the server runs under another account, which must be able to enter the folder: otherwise the cluster would be put
    # elsewhere, and stay there.
    folder.chmod(0o711)
    server = EmbeddedServer(folder)
    try:
        url = _started(server)
        _run(lambda: _disable_fsync(url))
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


async def _disable_fsync(url: str) -> None:
    """A database that is dropped at the end need not survive a power cut."""
    relaxed = [f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes", "synchronous_commit")]
    await _execute(url, *relaxed, "SELECT pg_reload_conf()")


def _checked(url: str) -> str:
    if urlsplit(url).scheme not in _SCHEMES:
        # Without the URL, which may hold a password.
        raise InvalidInput(f"{VARIABLE} is not a PostgreSQL URL, expected postgresql://user@host/database")
    return url


def _url_of_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    # A database name in the query would go before the one in the path.
    query = "&".join(pair for pair in parts.query.split("&") if pair and not pair.startswith("dbname="))
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{query}" if query else "")


def _new_name() -> str:
    return f"timeball_test_{uuid.uuid4().hex[:16]}"


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in another thread: the event loop of an asynchronous test may be running in this one."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
