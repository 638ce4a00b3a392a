"""Reads executions and their logs, keeps the daily partitions, and deletes what has outlived its retention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.store.db.pool import Connection, unwritable_content
from timeball.store.db.rows import attempt_from, execution_from
from timeball.store.types import LogRecord

if TYPE_CHECKING:
    from timeball.domain.execution import Attempt, ClaimedExecution, Execution, ExecutionState
    from timeball.domain.values.ids import ExecutionId, JobId
    from timeball.store.db.database import Database

# What has outlived its use: forgotten in small steps, so that nobody waits for it.
#
# Days of history are dropped whole (`history.py`). Here is what stands beside them: who was dealt with, what was skipped, who changed
# what, which requests were answered, the jobs that have nothing left to show, and the limits that nobody shares any more. Queues that
# people paused or limited stay.

_BATCH = 2_000
_FIRST_UUID = UUID(int=0)


class RetentionStore:
    """Forgets. Each verb returns how many rows went."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def days_outside(self, limit: int) -> list[date]:
        """Days gone by that have records outside partitions of their own."""
        return [row["day"] for row in await self._database.fetch("days_outside", limit=limit)]

    async def settled(self, before: datetime) -> int:
        """Forget which dead executions were dealt with; their history has gone by then."""
        return await self._trim("trim_settled", before)

    async def skip_ranges(self, before: datetime) -> int:
        """Forget what was skipped before the history begins, and recorded before that instant."""
        return await self._trim("trim_skip_range", before)

    async def audit(self, before: datetime) -> int:
        """Forget who changed what."""
        return await self._trim("trim_audit", before)

    async def requests(self, now: datetime) -> int:
        """Forget the answers to requests whose idempotency keys have run out."""
        return await self._trim("trim_idempotency_key", now - IDEMPOTENCY_KEYS_KEPT_FOR)

    async def _trim(self, statement: str, before: datetime) -> int:
        forgotten = 0
        while True:
            rows = await self._database.fetch(statement, before=before, limit=_BATCH)
            forgotten += len(rows)
            if len(rows) < _BATCH:
                return forgotten

    async def deleted_jobs(self, before: datetime) -> int:
        """Remove jobs that were deleted, with their versions, once no execution of them is left."""
        forgotten, last = 0, _FIRST_UUID
        while True:
            rows = await self._database.fetch("deleted_jobs", before=before, after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["id"]
            forgotten += await self._spent_jobs([row["id"] for row in rows], before, partition=0, own_is_there=False)

    async def limits(self) -> int:
        """Forget the limits that no job and no execution names."""
        forgotten, last = 0, ""
        while True:
            rows = await self._database.fetch("unused_limits", after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["key"]
            forgotten += await self._unused_limits([row["key"] for row in rows])

    async def _unused_limits(self, keys: Sequence[str]) -> int:
        async def work(connection: Connection) -> int:
            await self._database.fetch("lock_limits", connection, keys=list(keys))
            return len(await self._database.fetch("trim_limits", connection, keys=list(keys)))

        removed: int = await self._database.repeat(work)
        return removed

    async def one_offs(self, ids: Sequence[UUID], partition: int, *, own_is_there: bool) -> int:
        """Remove those of the jobs that are nameless one-offs, and have no execution outside of a partition.

        *own_is_there*: the execution that each of them was enqueued with is known to lie in that partition.
        """
        return await self._spent_jobs(ids, None, partition=partition, own_is_there=own_is_there)

    async def _spent_jobs(
        self, ids: Sequence[UUID], before: datetime | None, *, partition: int, own_is_there: bool
    ) -> int:
        async def work(connection: Connection) -> int:
            locked = await self._database.fetch("lock_jobs", connection, ids=list(ids), before=before)
            own = [row["id"] for row in locked]
            gone = await self._database.fetch(
                "delete_spent_jobs", connection, ids=own, partition=partition, own_is_there=own_is_there
            )
            return len(gone)

        removed: int = await self._database.repeat(work)
        return removed


# Reading executions, their logs, and keeping the history in shape.

_PARTITION_LOCK = int.from_bytes(b"timebal2", "big") >> 1
_LAST_ID = UUID(int=2**128 - 1)


# By two indexes: an enqueued execution bears its job's id, a trigger or a retry of it does not.
_ENQUEUED = "SELECT id FROM {partition} WHERE id = job_id AND id > $1 ORDER BY id LIMIT $2"
_ASKED_FOR = "SELECT DISTINCT job_id AS id FROM {partition} WHERE job_id <> id AND job_id > $1 ORDER BY id LIMIT $2"
_PARTITIONED = {"finished": "finished_at", "attempt": "finished_at", "log_line": "at"}


class HistoryStore:
    """Executions as people read them; partitions as the janitor keeps them."""

    def __init__(self, database: Database, retention: RetentionStore) -> None:
        self._database = database
        self._retention = retention

    async def find(self, execution_id: ExecutionId) -> Execution | None:
        """One execution, whatever its table."""
        row = await self._database.fetch_row("find_execution", id=execution_id)
        return None if row is None else execution_from(row)

    async def payload_override(self, execution_id: ExecutionId) -> tuple[str | None, bool]:
        """The payload an execution was given of its own, as JSON text; None if it ran with its job's.

        And whether that payload may use bound secrets alone.
        """
        row = await self._database.fetch_row("payload_override", id=execution_id)
        return (None, False) if row is None else (row["payload"], row["bound_secrets_only"])

    async def payload(self, execution_id: ExecutionId) -> str | None:
        """The payload an execution runs with, as JSON text: its own, or its job's by the version it cites; None if the job is gone."""
        row = await self._database.fetch_row("execution_extras", id=execution_id)
        return None if row is None else row["payload_text"]

    async def use_secrets(self, claimed: ClaimedExecution, names: Sequence[str], *, is_bound: bool) -> bool:
        """Whether an execution that runs may use these secrets; if so, the first use of each by its job is noted.

        A payload that was written by someone who is no administrator may use only secrets that are bound.
        """
        row = await self._database.fetch_row(
            "use_secrets",
            id=claimed.id,
            claim_id=claimed.claim_id,
            names=list(names),
            notes=[self._database.env.new_id() for _ in names],
            is_bound=is_bound,
        )
        # Without a row the claim has been lost: then nothing may be used any more.
        return row is not None and bool(row["is_allowed"])

    async def of_job(self, job_id: JobId, limit: int = 100, before: ExecutionId | None = None) -> list[Execution]:
        """The executions of a job, newest first."""
        rows = await self._database.fetch("executions_of_job", job_id=job_id, before=before or _LAST_ID, limit=limit)
        return [execution_from(row) for row in rows]

    async def current_of(self, job_id: JobId) -> ExecutionId | None:
        """What of a job runs, or else waits: the one that is furthest on its way."""
        found: ExecutionId | None = await self._database.fetch_value("current_execution_of_job", job_id=job_id)
        return found

    async def last_ended_of(self, job_id: JobId) -> ExecutionId | None:
        """The latest execution of a job that has ended."""
        found: ExecutionId | None = await self._database.fetch_value("last_ended_of_job", job_id=job_id)
        return found

    async def attempts(self, execution_id: ExecutionId) -> list[Attempt]:
        """The unsuccessful tries of an execution, in order."""
        return [attempt_from(row) for row in await self._database.fetch("attempts_of", id=execution_id)]

    async def write_log(self, lines: Sequence[LogRecord]) -> None:
        """Keep what handlers said, all of it or none; Unwritable if one of the lines cannot be kept."""
        with unwritable_content():
            await self._database.fetch(
                "write_log_lines",
                execution_ids=[line.execution_id for line in lines],
                fences=[line.fence for line in lines],
                numbers=[line.number for line in lines],
                ats=[line.at for line in lines],
                levels=[line.level for line in lines],
                messages=[line.message for line in lines],
            )

    async def log(
        self, execution_id: ExecutionId, after: tuple[int, int] = (0, 0), limit: int = 1000
    ) -> list[LogRecord]:
        """The lines of an execution behind a cursor (fence, number)."""
        rows = await self._database.fetch("log_lines_of", id=execution_id, fence=after[0], number=after[1], limit=limit)
        return [
            LogRecord(execution_id, row["fence"], row["number"], row["at"], row["level"], row["message"])
            for row in rows
        ]

    async def fact(self, key: str) -> str | None:
        """A fact about this database."""
        found: str | None = await self._database.fetch_value("get_fact", key=key)
        return found

    # partitions

    async def moment(self) -> datetime:
        """The database's time."""
        found: datetime = await self._database.fetch_value("moment")
        return found

    async def days(self) -> list[date]:
        """The days that have partitions of their own."""
        rows = await self._database.fetch("days_kept")
        return [date.fromisoformat(row["relname"][-8:]) for row in rows]

    async def add_day(self, day: date) -> None:
        """Make the partitions of a day, if nothing of that day lies in the default one already."""
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        async with self._database.transaction() as connection:
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            # Two processes may start at once, and both find the day missing.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _PARTITION_LOCK)
            for table, column in _PARTITIONED.items():
                await self._add_partition(connection, table, column, start)

    async def _add_partition(self, connection: Any, table: str, column: str, start: datetime) -> None:
        """Rows that came into the default partition before their day was made move along with it.

        Nobody may write one there meanwhile, so writers wait; the days ahead are made while their partition is empty.
        ONLY, because a lock on the other partitions would end any vacuum that is at work there.
        """
        end = start + timedelta(days=1)
        name = f"timeball.{table}_{start:%Y%m%d}"
        if await connection.fetchval("SELECT to_regclass($1)", name):
            return
        bounds = f"'{start.isoformat()}' AND {column} < '{end.isoformat()}'"
        moved = f"WITH moved AS (DELETE FROM timeball.{table}_default WHERE {column} >= {bounds} RETURNING *)"
        await connection.execute(f"LOCK TABLE ONLY timeball.{table} IN ACCESS EXCLUSIVE MODE")
        await connection.execute(f"CREATE TABLE {name} (LIKE timeball.{table} INCLUDING ALL)")
        await connection.execute(f"{moved} INSERT INTO {name} SELECT * FROM moved")
        await connection.execute(
            f"ALTER TABLE timeball.{table} ATTACH PARTITION {name} "
            f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
        )

    async def summarize_until(self, today: date) -> list[date]:
        """Make the summaries of all days before *today* anew, of each day once; returns those that had their turn.

        Where nobody has done so yet, it begins with the days from here on.
        """
        known = await self.fact("summarized_until")
        last = today - timedelta(days=1)
        since = last if known is None else date.fromisoformat(known)
        wanted = [day for day in sorted(await self.days()) if since < day <= last]
        for day in wanted:
            await self._summarize(day)
        if known is None or since < last:
            await self._database.fetch("set_fact", key="summarized_until", value=last.isoformat())
        return wanted

    async def _summarize(self, day: date) -> None:
        connection = await self._database.connect(without_timeout=True)
        try:
            for table in _PARTITIONED:
                partition = f"timeball.{table}_{day:%Y%m%d}"
                await self._database.fetch("summarize_anew", connection, partition=partition)
        finally:
            await connection.close()

    async def drop_day(self, day: date, batch: int = 5_000) -> int:
        """Drop a day of history, with the one-off jobs that ran on it; returns how many executions went.

        What `verify` may still expect begins after the latest instant that was dropped: that is kept as a fact.
        """
        suffix = f"{day:%Y%m%d}"
        name = f"timeball.finished_{suffix}"
        await self._drop_jobs(name, batch)
        async with self._database.transaction() as connection:
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            gone = await connection.fetchval(f"SELECT count(*) FROM {name}")
            latest = await connection.fetchval(f"SELECT max(scheduled_for) FROM {name}")
            await connection.execute(
                f"DELETE FROM timeball.settled USING {name} AS gone WHERE settled.execution_id = gone.id"
            )
            for table in _PARTITIONED:
                await connection.execute(f"DROP TABLE IF EXISTS timeball.{table}_{suffix}")
            await self._raise_floor(connection, day, latest)
        return int(gone)

    async def trim_day(self, day: date, states: Sequence[ExecutionState], batch: int = 5_000) -> int:
        """Delete what ended in these states on a day, in small steps; returns how many executions went.

        For `verify` that day is over as if it had been dropped: from what is left, nobody could tell a hole.
        """
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        wanted = [state.value for state in states]
        deleted = 0
        while True:
            async with self._database.transaction() as connection:
                row = await self._database.fetch_row(
                    "delete_finished",
                    connection,
                    day_start=start,
                    day_end=start + timedelta(days=1),
                    states=wanted,
                    batch=batch,
                )
                if row is None or not row["deleted"]:
                    return deleted
                await self._raise_floor(connection, day, row["latest"])
                deleted += row["deleted"]

    async def _raise_floor(self, connection: Any, day: date, latest: datetime | None) -> None:
        """Nothing up to the end of this day, and up to the latest instant that was deleted, is expected any more."""
        end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        floor = max(end, latest) if latest else end
        known = await self._database.fetch_value("get_fact", connection, key="history_from")
        if known is None or datetime.fromisoformat(known) < floor:
            await self._database.fetch("set_fact", connection, key="history_from", value=floor.isoformat())

    async def _drop_jobs(self, partition: str, batch: int) -> None:
        """Remove the one-off jobs that ran on a day, and have nothing else left; in small steps."""
        async with self._database.connection() as connection:
            oid = await connection.fetchval("SELECT $1::text::regclass::oid", partition)
        await self._drop_jobs_found(_ENQUEUED.format(partition=partition), oid, batch, own_is_there=True)
        await self._drop_jobs_found(_ASKED_FOR.format(partition=partition), oid, batch, own_is_there=False)

    async def _drop_jobs_found(self, query: str, oid: int, batch: int, *, own_is_there: bool) -> None:
        last = UUID(int=0)
        while True:
            async with self._database.connection() as connection:
                ids = [row["id"] for row in await connection.fetch(query, last, batch)]
            if not ids:
                return
            last = ids[-1]
            await self._retention.one_offs(ids, oid, own_is_there=own_is_there)


IDEMPOTENCY_KEYS_KEPT_FOR = timedelta(hours=24)
