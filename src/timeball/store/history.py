"""Reads executions and their logs, keeps the daily partitions, and deletes what has passed its retention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState
from timeball.store.db.pool import Connection, unwritable_content
from timeball.store.db.rows import attempt_from, execution_from
from timeball.store.types import LogRecord, OwnWords

if TYPE_CHECKING:
    from timeball.domain.execution import Attempt, ClaimedExecution, Execution
    from timeball.domain.values.ids import ExecutionId, JobId
    from timeball.store.db.database import Database

_BATCH = 2_000
_FIRST_UUID = UUID(int=0)


class RetentionStore:
    """Deletes what has passed its retention, in small steps that block no other transaction; returns the number of rows.

    `HistoryStore` drops whole days of history. Here is the rest: settlements, skip ranges, intervals of queues, audit, idempotency
    keys, jobs without executions, and limits that are not used any more. Queues that were paused or limited stay.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def days_outside(self, limit: int) -> list[date]:
        """Past days that have records in the default partitions."""
        return [row["day"] for row in await self._database.fetch("days_outside", limit=limit)]

    async def settled(self, before: datetime) -> int:
        """Delete the settlements of dead executions, whose history is gone by then."""
        return await self._trim("trim_settled", before)

    async def skip_ranges(self, before: datetime) -> int:
        """Delete skip ranges from before the beginning of the history that were recorded before this instant."""
        return await self._trim("trim_skip_range", before)

    async def queue_intervals(self, before: datetime) -> int:
        """Delete pauses and limits of queues that had ended by then."""
        return await self._trim("trim_queue_interval", before)

    async def freezes(self, before: datetime) -> int:
        """Delete freezes from before the beginning of the history."""
        return await self._trim("trim_freeze", before)

    async def alerts(self, before: datetime) -> int:
        """Delete alerts that were resolved by then."""
        return await self._trim("trim_alert", before)

    async def alert_deliveries(self, before: datetime) -> int:
        """Delete deliveries of resolved alerts that were created by then."""
        return await self._trim("trim_alert_delivery", before)

    async def unique_keys(self, before: datetime) -> int:
        """Delete unique keys that executions which have ended held until an instant before this one."""
        return await self._trim("trim_live_key", before)

    async def groups(self, before: datetime) -> int:
        """Delete groups that were closed by then."""
        return await self._trim("trim_group", before)

    async def followed_successes(self, before: datetime) -> int:
        """Delete the occurrences of jobs of kind `after` that came by then, and of which no execution is left."""
        return await self._trim("trim_followed_successes", before)

    async def audit(self, before: datetime) -> int:
        """Delete audit rows."""
        return await self._trim("trim_audit", before)

    async def requests(self, now: datetime) -> int:
        """Delete the answers to requests whose idempotency keys have expired."""
        return await self._trim("trim_idempotency_key", now - IDEMPOTENCY_KEYS_KEPT_FOR)

    async def _trim(self, statement: str, before: datetime) -> int:
        forgotten = 0
        while True:
            rows = await self._database.fetch(statement, before=before, limit=_BATCH)
            forgotten += len(rows)
            if len(rows) < _BATCH:
                return forgotten

    async def deleted_jobs(self, before: datetime) -> int:
        """Delete the rows of deleted jobs, with their versions, once they have no execution left."""
        forgotten, last = 0, _FIRST_UUID
        while True:
            rows = await self._database.fetch("deleted_jobs", before=before, after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["id"]
            forgotten += await self._spent_jobs([row["id"] for row in rows], before, partition=0, own_is_there=False)

    async def limits(self) -> int:
        """Delete the limits that no job and no execution names."""
        forgotten, last = 0, ""
        while True:
            rows = await self._database.fetch("unused_limits", after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["key"]
            forgotten += await self._unused_limits([row["key"] for row in rows])

    async def _unused_limits(self, keys: Sequence[str]) -> int:
        async def work(connection: Connection) -> int:
            await self._database.fetch("lock_unused_limits", connection, keys=list(keys))
            return len(await self._database.fetch("trim_limits", connection, keys=list(keys)))

        removed: int = await self._database.repeat(work)
        return removed

    async def one_offs(self, ids: Sequence[UUID], partition: int, *, own_is_there: bool) -> int:
        """Delete those of the jobs that are unnamed one-offs, and have no execution outside of a partition.

        *own_is_there*: the execution that each of them was enqueued with is known to be in that partition.
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


_PARTITION_LOCK = int.from_bytes(b"timebal2", "big") >> 1
_LAST_ID = UUID(int=2**128 - 1)


# By two indexes: an enqueued execution has the id of its job, a trigger or a retry of it does not.
_ENQUEUED = "SELECT id FROM {partition} WHERE id = job_id AND id > $1 ORDER BY id LIMIT $2"
_ASKED_FOR = "SELECT DISTINCT job_id AS id FROM {partition} WHERE job_id <> id AND job_id > $1 ORDER BY id LIMIT $2"
_PARTITIONED = {"finished": "finished_at", "attempt": "finished_at", "log_line": "at"}


class HistoryStore:
    """Reads executions of all state tables, and keeps the partitions of the history."""

    def __init__(self, database: Database, retention: RetentionStore) -> None:
        self._database = database
        self._retention = retention

    async def find(self, execution_id: ExecutionId) -> Execution | None:
        """One execution, in any state table."""
        row = await self._database.fetch_row("find_execution", id=execution_id)
        return None if row is None else execution_from(row)

    async def ended(self, ids: Sequence[ExecutionId]) -> list[ExecutionId]:
        """Those of the executions that have come to their end."""
        rows = await self._database.fetch("states_of_executions", ids=ids) if ids else []
        return [row["id"] for row in rows if ExecutionState(row["state"]).is_final]

    async def own_words(self, execution_id: ExecutionId) -> OwnWords:
        """What was given to the execution itself, in place of the words of its job."""
        row = await self._database.fetch_row("own_words", id=execution_id)
        if row is None:
            return OwnWords()
        meta = None if row["meta"] is None else orjson.loads(row["meta"])
        calls = None if row["calls"] is None else orjson.loads(row["calls"])
        return OwnWords(row["payload"], meta, bound_secrets_only=row["bound_secrets_only"], calls=calls)

    async def payload(self, execution_id: ExecutionId) -> str | None:
        """The payload of an execution as JSON text: its own, or that of its job in the version that it cites; None if the job is gone."""
        row = await self._database.fetch_row("execution_extras", id=execution_id)
        return None if row is None else row["payload_text"]

    async def use_secrets(self, claimed: ClaimedExecution, names: Sequence[str], *, is_bound: bool) -> bool:
        """Whether a running execution may use these secrets; if so, the first use of each is recorded.

        A payload whose author is not an administrator may use bound secrets only.
        """
        row = await self._database.fetch_row(
            "use_secrets",
            id=claimed.id,
            claim_id=claimed.claim_id,
            names=list(names),
            notes=[self._database.env.new_id() for _ in names],
            is_bound=is_bound,
        )
        # Without a row the claim is lost, and no secret may be used.
        return row is not None and bool(row["is_allowed"])

    async def of_job(self, job_id: JobId, limit: int = 100, before: ExecutionId | None = None) -> list[Execution]:
        """The executions of a job, newest first."""
        rows = await self._database.fetch("executions_of_job", job_id=job_id, before=before or _LAST_ID, limit=limit)
        return [execution_from(row) for row in rows]

    async def current_of(self, job_id: JobId) -> ExecutionId | None:
        """The unfinished execution of a job that is furthest on its way."""
        execution_id: ExecutionId | None = await self._database.fetch_value("current_execution_of_job", job_id=job_id)
        return execution_id

    async def last_ended_of(self, job_id: JobId) -> ExecutionId | None:
        """The latest finished execution of a job."""
        execution_id: ExecutionId | None = await self._database.fetch_value("last_ended_of_job", job_id=job_id)
        return execution_id

    async def attempts(self, execution_id: ExecutionId) -> list[Attempt]:
        """The unsuccessful attempts of an execution, in order."""
        return [attempt_from(row) for row in await self._database.fetch("attempts_of", id=execution_id)]

    async def write_log(self, lines: Sequence[LogRecord]) -> None:
        """Insert log lines, all or none; Unwritable if one of them cannot be stored."""
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
        """The log lines of an execution after a cursor (fence, number)."""
        rows = await self._database.fetch("log_lines_of", id=execution_id, fence=after[0], number=after[1], limit=limit)
        return [
            LogRecord(execution_id, row["fence"], row["number"], row["at"], row["level"], row["message"])
            for row in rows
        ]

    async def fact(self, key: str) -> str | None:
        """A fact about this database."""
        value: str | None = await self._database.fetch_value("get_fact", key=key)
        return value

    # partitions

    async def moment(self) -> datetime:
        """The time of the database."""
        moment: datetime = await self._database.fetch_value("moment")
        return moment

    async def days(self) -> list[date]:
        """The days that have partitions of their own."""
        rows = await self._database.fetch("days_kept")
        return [date.fromisoformat(row["relname"][-8:]) for row in rows]

    async def add_day(self, day: date) -> None:
        """Create the partitions of a day, if they do not exist."""
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        async with self._database.transaction() as connection:
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            # Two processes may start at once, and both may find the day missing.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _PARTITION_LOCK)
            for table, column in _PARTITIONED.items():
                await self._add_partition(connection, table, column, start)

    async def _add_partition(self, connection: Any, table: str, column: str, start: datetime) -> None:
        """Create a partition, and move the rows of its day into it from the default partition.

        Writers wait, because they could insert further rows of the day. Days ahead have no rows yet, so that takes no time.
        ONLY: a lock on the other partitions would end a vacuum that runs there.
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
        """Rebuild the summaries of all days before *today*, once for each day; returns the days of this call.

        In a database where this has never run, it begins with the present day.
        """
        summarized_until = await self.fact("summarized_until")
        last = today - timedelta(days=1)
        since = last if summarized_until is None else date.fromisoformat(summarized_until)
        days = [day for day in sorted(await self.days()) if since < day <= last]
        for day in days:
            await self._summarize(day)
        if summarized_until is None or since < last:
            await self._database.fetch("set_fact", key="summarized_until", value=last.isoformat())
        return days

    async def _summarize(self, day: date) -> None:
        connection = await self._database.connect(without_timeout=True)
        try:
            for table in _PARTITIONED:
                partition = f"timeball.{table}_{day:%Y%m%d}"
                await self._database.fetch("summarize_anew", connection, partition=partition)
        finally:
            await connection.close()

    async def drop_day(self, day: date, batch: int = 5_000) -> int:
        """Drop a day of history, with the one-off jobs that ran on it; returns the number of executions.

        The latest instant that was dropped is stored as a fact: `verify` expects records only after it.
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
            await connection.execute(
                f"DELETE FROM timeball.follow_up USING {name} AS gone WHERE follow_up.execution_id = gone.id"
            )
            for table in _PARTITIONED:
                await connection.execute(f"DROP TABLE IF EXISTS timeball.{table}_{suffix}")
            await self._raise_floor(connection, day, latest)
        return int(gone)

    async def trim_day(self, day: date, states: Sequence[ExecutionState], batch: int = 5_000) -> int:
        """Delete the executions that ended in these states on a day, in small steps; returns their number.

        `verify` treats the day as if it had been dropped, because it cannot tell a deleted record from a missing one.
        """
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        names = [state.value for state in states]
        deleted = 0
        while True:
            async with self._database.transaction() as connection:
                row = await self._database.fetch_row(
                    "delete_finished",
                    connection,
                    day_start=start,
                    day_end=start + timedelta(days=1),
                    states=names,
                    batch=batch,
                )
                if row is None or not row["deleted"]:
                    return deleted
                await self._raise_floor(connection, day, row["latest"])
                deleted += row["deleted"]

    async def _raise_floor(self, connection: Any, day: date, latest: datetime | None) -> None:
        """Store that `verify` expects no records up to the end of this day, and up to the latest instant that was deleted."""
        end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        floor = max(end, latest) if latest else end
        history_from = await self._database.fetch_value("get_fact", connection, key="history_from")
        if history_from is None or datetime.fromisoformat(history_from) < floor:
            await self._database.fetch("set_fact", connection, key="history_from", value=floor.isoformat())

    async def _drop_jobs(self, partition: str, batch: int) -> None:
        """Delete the one-off jobs that ran on a day and have no other execution, in small steps."""
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
