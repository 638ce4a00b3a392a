"""The clock, the ids and the databases of tests."""

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
from timeball.store.embedded import EmbeddedServer

# A clock that stands still until it is told to move.
#
# Every statement of the store takes its `now` from the clock it was given, so with this one a week of schedules passes in
# milliseconds, on the real SQL. Nothing happens by itself: advance the clock, then tick what you want to see at work.
#
# clock = VirtualClock()
# clock.advance("3d")

# An ordinary Monday noon.
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class VirtualClock:
    """A `Clock` whose time only moves when somebody moves it: a test by `advance`, or a sleeper by sleeping."""

    def __init__(self, start: datetime = START) -> None:
        self._start = to_utc(start)
        self._now = self._start

    def advance(self, span: Duration) -> datetime:
        """Move on by a span ("3d", "1h30m", seconds or a timedelta), and return the new time."""
        return self.advance_to(self._now + parse_duration(span))

    def advance_to(self, instant: datetime) -> datetime:
        """Move on to an instant, and return it; a clock that is there already stays, and none goes back."""
        self._now = max(self._now, to_utc(instant))
        return self._now

    def now(self) -> datetime:
        return self._now

    def statement_now(self) -> datetime:
        """The time all statements go by: never the database's own."""
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
        """Let everybody else have a turn, then move the clock to where this sleep ends, unless it is past that already.

        So whoever sleeps is never stuck, and sleeping costs no time. Several sleepers wake in the order they went to sleep in.
        """
        wakes_at = self._now + timedelta(seconds=seconds)
        await asyncio.sleep(0)
        self.advance_to(wakes_at)


# The time and the ids of a rehearsal: nothing of it is left to chance.

_SEED = 1833  # the year of the first time ball at Greenwich


class ManualClock(VirtualClock):
    """A clock that only the test moves: the short pauses of the machinery pass in real time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class HarnessEnv(Env):
    """Ids in the order of their making even while the clock stands still, and the same chance in every run."""

    __slots__ = ("_numbers", "virtual_clock")

    def __init__(self, start: datetime) -> None:
        self.virtual_clock = ManualClock(start)
        super().__init__(self.virtual_clock, random.Random(_SEED))  # noqa: S311
        self._numbers = itertools.count(1)

    def new_id(self) -> UUID:
        return new_id(self.clock.epoch_milliseconds(), next(self._numbers))

    def new_ids(self, number: int) -> Iterator[UUID]:
        return (self.new_id() for _ in range(number))


# The databases of a test session: one template with the schema, and a copy of it for each test.
#
# They are made on the server of `TIMEBALL_TEST_DATABASE_URL`, or on an embedded one that lives as long as the session. Nothing is
# ever dropped that was not made here, so the server may be one that is used for other things.

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
        return _url_of_database(self._url, name)

    def drop(self, url: str) -> None:
        """Drop a database that was made here."""
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
            # Known from here on: whatever goes wrong with the schema, it will be dropped.
            self._template = name
            _run(lambda: migrate(Database(_url_of_database(self._url, name), Env()), shards=_SHARDS))
        return self._template

    async def _execute(self, statement: str) -> None:
        await _execute(self._url, statement)


async def _drop(url: str, name: str) -> None:
    """Drop a database while connections of ours may still be open.

    Not with FORCE: that needs the right to end every process it finds there, and an autovacuum worker is a superuser's. A plain
    DROP ends that one by itself, and waits up to five seconds for others to go.
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
    """What is thrown away at the end need not survive a power cut."""
    relaxed = [f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes", "synchronous_commit")]
    await _execute(url, *relaxed, "SELECT pg_reload_conf()")


def _checked(url: str) -> str:
    if urlsplit(url).scheme not in _SCHEMES:
        # The URL may hold a password: it is not repeated.
        raise InvalidInput(f"{VARIABLE} is no address of PostgreSQL, expected postgresql://user@host/database")
    return url


def _url_of_database(url: str, name: str) -> str:
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
