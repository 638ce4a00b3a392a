"""Writes inside the caller's own transaction.

The statements that Timeball itself runs are run on the caller's connection, so what they write exists if and only if the transaction
commits, together with everything else it wrote. No wake-up is sent from there: a NOTIFY would make the caller's commit wait for
others. Nodes find the work with their next poll, within a second.

The commands run where they always do, in the background loop. A connection belongs to the thread or the event loop of the caller, so
each statement is sent there: the caller serves its own connection until the command is done.

Connections are recognised by the names of their classes, so that no driver is imported that the program does not use. Errors of the
driver are not translated: the transaction is the caller's, and so is the decision to repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from timeball.errors import InvalidInput
from timeball.sdk.background_loop import BackgroundLoop
from timeball.store.db.database import CallerConnection
from timeball.store.db.statements import all_statements

T = TypeVar("T")
Answer = TypeVar("Answer")
Rows = Sequence[Mapping[str, Any]]
# What is done with the resource of the background loop and, if one is given, within the caller's connection.
TransactionWork = Callable[[T, CallerConnection | None], Coroutine[Any, Any, Answer]]


class ConnectionUnknown(InvalidInput):
    """The `connection` of a call is of a kind that Timeball cannot write through, or not from this call."""

    code = "unknown_connection"


def call_within(
    background_loop: BackgroundLoop[T], connection: Any, work: TransactionWork[T, Answer], verb: str
) -> Answer:
    """Run *work* within a connection of psycopg or Django, or a connection or session of SQLAlchemy; or without any, if it is None.

    *verb* is the method that was called, without an `a` before its name.
    """
    if connection is None:
        return background_loop.call(lambda resource: work(resource, None))
    run = _runner_for(connection, _SYNCHRONOUS, _ASYNCHRONOUS, f"it is asynchronous: await a{verb}(...) instead")
    caller = _CallingThread(connection, run)
    return caller.serve(background_loop.submit(lambda resource: work(resource, caller)))


async def acall_within(
    background_loop: BackgroundLoop[T], connection: Any, work: TransactionWork[T, Answer], verb: str
) -> Answer:
    """Run *work* within a connection of asyncpg or psycopg, or a connection or session of SQLAlchemy, all asynchronous; or without any."""
    if connection is None:
        return await background_loop.acall(lambda resource: work(resource, None))
    run = _runner_for(connection, _ASYNCHRONOUS, _SYNCHRONOUS, f"it is not asynchronous: call {verb}(...) instead")
    caller = _CallingTask(connection, run)
    return await caller.serve(background_loop.submit(lambda resource: work(resource, caller)))


def check_connection(connection: Any, verb: str) -> None:
    """Refuse a connection that the method *verb* could not write through."""
    if verb.startswith("a"):
        _runner_for(connection, _ASYNCHRONOUS, _SYNCHRONOUS, f"it is not asynchronous: call {verb[1:]}(...) instead")
    else:
        _runner_for(connection, _SYNCHRONOUS, _ASYNCHRONOUS, f"it is asynchronous: await a{verb}(...) instead")


# the caller, who serves the connection while a command runs in the background loop


@dataclass(frozen=True, slots=True)
class _SentStatement:
    name: str
    values: Mapping[str, Any]
    rows: Future[Rows] = field(default_factory=Future)


class _CallingThread(CallerConnection):
    """A thread that waits for the end of a command, and runs its statements meanwhile."""

    def __init__(self, connection: Any, run: _Run) -> None:
        self._connection = connection
        self._run = run
        self._statements: SimpleQueue[_SentStatement | None] = SimpleQueue()

    async def run(self, name: str, values: Mapping[str, Any]) -> Rows:
        statement = _SentStatement(name, values)
        self._statements.put(statement)
        return await asyncio.wrap_future(statement.rows)

    def serve(self, command: Future[Answer]) -> Answer:
        command.add_done_callback(lambda _: self._statements.put(None))
        try:
            while (statement := self._statements.get()) is not None:
                try:
                    statement.rows.set_result(self._run(self._connection, statement.name, statement.values))
                except Exception as error:
                    statement.rows.set_exception(error)
            return command.result()
        except BaseException:
            command.cancel()  # Ctrl-C: no caller waits for the result any more
            raise


class _CallingTask(CallerConnection):
    """A coroutine that awaits the end of a command, and runs its statements meanwhile."""

    def __init__(self, connection: Any, run: _AsyncRun) -> None:
        self._connection = connection
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._statements: asyncio.Queue[_SentStatement | None] = asyncio.Queue()

    async def run(self, name: str, values: Mapping[str, Any]) -> Rows:
        statement = _SentStatement(name, values)
        self._send(statement)
        return await asyncio.wrap_future(statement.rows)

    def _send(self, statement: _SentStatement | None) -> None:
        # The loop is closed if its program has ended meanwhile: no caller waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._statements.put_nowait, statement)

    async def serve(self, command: Future[Answer]) -> Answer:
        command.add_done_callback(lambda _: self._send(None))
        try:
            while (statement := await self._statements.get()) is not None:
                try:
                    statement.rows.set_result(await self._run(self._connection, statement.name, statement.values))
                except Exception as error:
                    statement.rows.set_exception(error)
            return command.result()
        except BaseException:
            command.cancel()
            raise


# the drivers, whose rows are made alike: ids are UUIDs and instants are in UTC, whatever the connection is set to

_IDS = frozenset({"id", "job_id", "execution_id", "holder", "last_id", "holder_id", "successor_id"})


def _alike(rows: Iterable[Mapping[str, Any]], local: ZoneInfo | None = None) -> Rows:
    return [{name: _value(name, value, local) for name, value in row.items()} for row in rows]


def _value(name: str, value: Any, local: ZoneInfo | None) -> Any:
    if isinstance(value, datetime):
        return (value if local is None or value.tzinfo else value.replace(tzinfo=local)).astimezone(UTC)
    return UUID(value) if isinstance(value, str) and name in _IDS else value


async def _run_on_asyncpg(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    statement = all_statements()[name]
    return _alike(await connection.fetch(statement.numbered(), *(values[name] for name in statement.parameters)))


def _run_on_psycopg(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    from psycopg.rows import dict_row

    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(all_statements()[name].pyformat(), values)
        return _alike(cursor.fetchall() if cursor.description else ())


async def _run_on_async_psycopg(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    from psycopg.rows import dict_row

    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(all_statements()[name].pyformat(), values)
        return _alike(await cursor.fetchall() if cursor.description else ())


def _run_on_django(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(all_statements()[name].pyformat(), values)
        if not cursor.description:
            return ()
        columns = [column[0] for column in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    # Without USE_TZ, Django reads instants as local times of its connection.
    return _alike(rows, ZoneInfo(connection.timezone_name))


def _run_on_sqlalchemy(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    result = connection.execute(_sqlalchemy_text(name), values)
    return _alike(result.mappings().all() if result.returns_rows else ())


async def _run_on_async_sqlalchemy(connection: Any, name: str, values: Mapping[str, Any]) -> Rows:
    result = await connection.execute(_sqlalchemy_text(name), values)
    return _alike(result.mappings().all() if result.returns_rows else ())


@cache
def _sqlalchemy_text(name: str) -> Any:
    """The statement for SQLAlchemy: with casts escaped, because it reads `:jobs::text` as a parameter `:job`.

    Its parameters have no types of SQLAlchemy's, which would become casts in the text: the database infers them, as it does for us.
    """
    from sqlalchemy import text

    return text(all_statements()[name].text.replace("::", r"\:\:"))


_Run = Callable[[Any, str, Mapping[str, Any]], Rows]
_AsyncRun = Callable[[Any, str, Mapping[str, Any]], Awaitable[Rows]]

_SYNCHRONOUS: dict[tuple[str, str], _Run] = {
    ("psycopg", "Connection"): _run_on_psycopg,
    ("django", "BaseDatabaseWrapper"): _run_on_django,
    ("django", "ConnectionProxy"): _run_on_django,
    ("sqlalchemy", "Connection"): _run_on_sqlalchemy,
    ("sqlalchemy", "Session"): _run_on_sqlalchemy,
    ("sqlalchemy", "scoped_session"): _run_on_sqlalchemy,
}
_ASYNCHRONOUS: dict[tuple[str, str], _AsyncRun] = {
    ("asyncpg", "Connection"): _run_on_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _run_on_asyncpg,
    ("psycopg", "AsyncConnection"): _run_on_async_psycopg,
    ("sqlalchemy", "AsyncConnection"): _run_on_async_sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _run_on_async_sqlalchemy,
    ("sqlalchemy", "async_scoped_session"): _run_on_async_sqlalchemy,
}


def _runner_for(
    connection: object,
    runners: Mapping[tuple[str, str], Any],
    others: Mapping[tuple[str, str], Any],
    why_not: str,
) -> Any:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    for ancestor in type(connection).__mro__:
        key = (ancestor.__module__.partition(".")[0], ancestor.__name__)
        if key in runners:
            return runners[key]
        if key in others:
            raise ConnectionUnknown(f"connection is of type {kind}, and {why_not}", field="connection")
    raise ConnectionUnknown(
        f"connection is of type {kind}, expected a connection of asyncpg, psycopg or Django, "
        "or a connection or session of SQLAlchemy",
        field="connection",
        hint="a pool or an engine has no transaction of its own: give the connection you took from it",
    )
