"""Enqueues inside the caller's own transaction.

The statement that Timeball itself runs is run on the caller's connection, so the job exists if and only if the transaction commits,
together with everything else it wrote. No wake-up is sent from there: a NOTIFY would make the caller's commit wait for others. Workers
find the job with their next poll, within a second.

Connections are recognised by the names of their classes, so that no driver is imported that the program does not use. Errors of the
driver are not translated: the transaction is the caller's, and so is the decision to repeat it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from timeball.domain.job import Job
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import InvalidInput, StoreError
from timeball.store.db.columns import job_columns, json_text
from timeball.store.db.statements import all_statements
from timeball.store.enqueue import is_plain
from timeball.store.types import CreatedJob, FirstExecution

_JOBS_PER_STATEMENT = 1_000
_MAX_TRIES = 5

Rows = Sequence[Mapping[str, Any]]
# Yields the name of a statement and its parameters, and is sent the rows.
_Creation = Generator[tuple[str, dict[str, Any]], Rows, list[CreatedJob]]


class ConnectionUnknown(InvalidInput):
    """The `connection` of an enqueue is of a kind that Timeball cannot write through, or not from this call."""

    code = "unknown_connection"


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """Jobs ready to be written, with their first executions."""

    jobs: Sequence[Job]
    openings: Sequence[FirstExecution]
    promotion_window: timedelta
    # None lets the database's own clock decide.
    now: datetime | None
    # The parameters of the audit entry that some of the jobs are written with.
    notes: Mapping[JobId, Mapping[str, Any]] = field(default_factory=dict)


def create_in_transaction(connection: Any, batch: TransactionBatch) -> list[CreatedJob]:
    """Write jobs through a connection of psycopg or Django, or a connection or session of SQLAlchemy."""
    run = _runner_for(connection, _SYNCHRONOUS, _ASYNCHRONOUS, "it is asynchronous: await aenqueue(...) instead")
    created: list[CreatedJob] = []
    for creation in _creations(batch):
        try:
            statement = next(creation)
            while True:
                statement = creation.send(run(connection, *statement))
        except StopIteration as done:
            created += done.value
    return created


async def acreate_in_transaction(connection: Any, batch: TransactionBatch) -> list[CreatedJob]:
    """Write jobs through a connection of asyncpg or psycopg, or a connection or session of SQLAlchemy, all asynchronous."""
    run = _runner_for(connection, _ASYNCHRONOUS, _SYNCHRONOUS, "it is not asynchronous: call enqueue(...) instead")
    created: list[CreatedJob] = []
    for creation in _creations(batch):
        try:
            statement = next(creation)
            while True:
                statement = creation.send(await run(connection, *statement))
        except StopIteration as done:
            created += done.value
    return created


# what is written, for all drivers alike


def _creations(batch: TransactionBatch) -> Iterable[_Creation]:
    for start in range(0, len(batch.jobs), _JOBS_PER_STATEMENT):
        yield _creation(batch, batch.jobs[start : start + _JOBS_PER_STATEMENT])


def _creation(batch: TransactionBatch, jobs: Sequence[Job]) -> _Creation:
    """Create jobs. Where a unique key is taken, find the execution that holds it; if that has just ended, try again."""
    openings = {opening.job_id: opening for opening in batch.openings}
    created: dict[JobId, CreatedJob] = {}
    missing = jobs
    for _ in range(_MAX_TRIES):
        rows = yield _statement(batch, missing, [openings[job.id] for job in missing if job.id in openings])
        for row in rows:
            job_id = JobId(_uuid(row["job_id"]))
            created[job_id] = CreatedJob(job_id, ExecutionId(_uuid(row["execution_id"])), is_new=True)
        missing = [job for job in missing if job.id not in created]
        if missing:
            rows = yield "live_keys", {"keys": [job.unique_key for job in missing]}
            holders = {row["key"]: ExecutionId(_uuid(row["execution_id"])) for row in rows}
            created |= {
                job.id: CreatedJob(job.id, holders[job.unique_key], is_new=False)
                for job in missing
                if job.unique_key in holders
            }
            missing = [job for job in missing if job.id not in created]
        if not missing:
            for job in jobs:
                if created[job.id].is_new and job.id in batch.notes:
                    yield "write_audit", {**batch.notes[job.id], "now": batch.now}
            return [created[job.id] for job in jobs]
    raise StoreError(f"the unique key {missing[0].unique_key!r} is taken and freed again and again")


def _statement(
    batch: TransactionBatch, jobs: Sequence[Job], openings: Sequence[FirstExecution]
) -> tuple[str, dict[str, Any]]:
    columns = [job_columns(job) for job in jobs]
    shared = {"jobs": json_text(columns), "now": batch.now, "wakeup": None}
    if all(map(is_plain, jobs, columns)) and all(opening.run_at is None for opening in openings):
        return "create_plain_jobs", shared
    firsts = json_text(asdict(opening) for opening in openings)
    return "create_jobs", {**shared, "firsts": firsts, "promotion_window": batch.promotion_window}


def _uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


# the drivers


async def _run_on_asyncpg(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    statement = all_statements()[name]
    rows: Rows = await connection.fetch(statement.numbered(), *(values[name] for name in statement.parameters))
    return rows


def _run_on_psycopg(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    from psycopg.rows import dict_row

    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(all_statements()[name].pyformat(), values)
        rows: Rows = cursor.fetchall()
        return rows


async def _run_on_async_psycopg(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    from psycopg.rows import dict_row

    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(all_statements()[name].pyformat(), values)
        rows: Rows = await cursor.fetchall()
        return rows


def _run_on_django(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(all_statements()[name].pyformat(), values)
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def _run_on_sqlalchemy(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    rows: Rows = connection.execute(_sqlalchemy_text(name), values).mappings().all()
    return rows


async def _run_on_async_sqlalchemy(connection: Any, name: str, values: dict[str, Any]) -> Rows:
    rows: Rows = (await connection.execute(_sqlalchemy_text(name), values)).mappings().all()
    return rows


@cache
def _sqlalchemy_text(name: str) -> Any:
    """The statement for SQLAlchemy: with casts escaped, because it reads `:jobs::text` as a parameter `:job`."""
    from sqlalchemy import ARRAY, DateTime, Interval, Text, Uuid, bindparam, text

    types: dict[str, Any] = {
        "now": DateTime(timezone=True),
        "promotion_window": Interval(),
        "keys": ARRAY(Text()),
        "id": Uuid(),
    }
    statement = all_statements()[name]
    escaped = statement.text.replace("::", r"\:\:")
    return text(escaped).bindparams(*(bindparam(p, type_=types.get(p, Text())) for p in statement.parameters))


_Run = Callable[[Any, str, dict[str, Any]], Rows]
_AsyncRun = Callable[[Any, str, dict[str, Any]], Awaitable[Rows]]

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
