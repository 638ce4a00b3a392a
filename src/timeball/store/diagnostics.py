"""Bounded reads for explain, doctor, gauges and the test harness."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.execution import Attempt, DueKind, Execution
from timeball.domain.explain.causes import LATE_AFTER, Change
from timeball.domain.explain.facts import Competitor, ExecutionTable
from timeball.domain.rollup import EndedExample, JobSummary
from timeball.domain.search import EXACT_UP_TO
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId, first_id_at, format_id
from timeball.store.db.rows import attempt_from, execution_from
from timeball.store.timeline import TypicalDurations, read_typical_durations
from timeball.store.types import PARKED_AT

if TYPE_CHECKING:
    from timeball.domain.rollup import TypicalDuration
    from timeball.store.db.database import Database, Record

MAX_COMPETITORS = 20
MAX_AHEAD = 1_000
# A chain of causes is looked for among so many records at most.
_MAX_LOOKED_AT = 2_000
_NO_EXECUTION = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Location:
    """The state table of an execution, and the columns that only this table has."""

    state_table: ExecutionTable
    due_kind: DueKind | None = None
    stop: str | None = None
    progress: float | None = None
    progress_note: str | None = None


class ExplainStore:
    """Reads the facts that explain one execution."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def locate(self, execution_id: ExecutionId) -> Location:
        """The table of an unfinished execution; one that is in none of them has finished."""
        row = await self._database.fetch_row("locate_execution", id=execution_id)
        if row is None:
            return Location(ExecutionTable.FINISHED)
        kind = None if row["due_kind"] is None else DueKind(row["due_kind"])
        return Location(ExecutionTable(row["state_table"]), kind, row["stop"], row["progress"], row["progress_note"])

    async def read_gates(self, queue: str, limit_key: str | None, unique_key: str | None) -> Mapping[str, Any]:
        """The state of the queue, the limit and the unique key of an execution."""
        row = await self._database.fetch_row("gate_facts", queue=queue, limit_key=limit_key, unique_key=unique_key)
        assert row is not None
        return dict(row)

    async def competitors(
        self, execution_id: ExecutionId | None, job_id: JobId, queue: str, limit_key: str | None
    ) -> dict[str, list[Competitor]]:
        """Executions that may hold this one up, by relation: `job`, `limit`, `queue`."""
        rows = await self._database.fetch(
            "competitors",
            id=execution_id or _NO_EXECUTION,
            job_id=job_id,
            queue=queue,
            limit_key=limit_key,
            limit=MAX_COMPETITORS,
        )
        usual = await self._usual_of(rows)
        competitors: dict[str, list[Competitor]] = {"job": [], "limit": [], "queue": []}
        for row in rows:
            competitors[row["relation"]].append(_competitor_from(row, usual))
        return competitors

    async def running_on(self, holders: Collection[Incarnation]) -> list[Competitor]:
        """What these workers run, the longest running first."""
        rows = await self._database.fetch("running_on_workers", holders=list(holders), limit=MAX_COMPETITORS)
        usual = await self._usual_of(rows)
        return [_competitor_from(row, usual) for row in rows]

    async def queue_position(self, execution: Execution) -> int:
        """The number of executions before a ready one in its queue."""
        ahead: int = await self._database.fetch_value(
            "queue_position",
            queue=execution.queue,
            priority=execution.priority,
            run_at=execution.run_at,
            limit=MAX_AHEAD,
        )
        return min(ahead, MAX_AHEAD)

    async def unfinished_at(
        self, job_id: JobId, instant: datetime, apart_from: ExecutionId, *, with_backfills: bool
    ) -> list[ExecutionId]:
        """The executions of a job that were unfinished at an instant, one of them left out: up to a few."""
        rows = await self._database.fetch(
            "unfinished_at",
            job_id=job_id,
            before=first_id_at(instant + timedelta(milliseconds=1)),
            at=instant,
            day=instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0),
            looked_at=_MAX_LOOKED_AT,
            limit=MAX_COMPETITORS,
            with_backfills=with_backfills,
        )
        return [ExecutionId(row["id"]) for row in rows if row["id"] != apart_from]

    async def last_change(
        self, subject: str, actions: Sequence[str], since: datetime, until: datetime
    ) -> Change | None:
        """The latest change of a subject by one of these actions, from one instant to another."""
        row = await self._database.fetch_row(
            "last_change",
            subject=subject,
            actions=list(actions),
            low=first_id_at(since),
            high=first_id_at(until + timedelta(milliseconds=1)),
            looked_at=_MAX_LOOKED_AT,
        )
        return None if row is None else Change(**dict(row) | {"id": format_id("aud", row["id"])})

    async def typical_duration(self, job_id: JobId, handler: str) -> TypicalDuration | None:
        """The typical duration of a job."""
        return (await read_typical_durations(self._database, [job_id])).of(job_id, handler)

    async def _usual_of(self, rows: Sequence[Any]) -> TypicalDurations:
        job_ids = {JobId(row["job_id"]) for row in rows}
        return await read_typical_durations(self._database, job_ids) if rows else TypicalDurations({}, {})


def is_parked(run_at: datetime | None) -> bool:
    """Whether a row waits until its job is resumed."""
    return run_at is not None and run_at >= PARKED_AT


def _competitor_from(row: Any, durations: TypicalDurations) -> Competitor:
    job_id = JobId(row["job_id"])
    return Competitor(
        id=ExecutionId(row["id"]),
        job_id=job_id,
        state_table=ExecutionTable(row["state_table"]),
        started_at=row["started_at"],
        typical=durations.of(job_id, row["handler"]),
    )


_MAX_USES = 2_000


class DoctorStore:
    """Reads for the doctor: about the whole installation, each bounded."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def server(self) -> Mapping[str, Any]:
        """The server: version, durability, oldest transaction."""
        return await self._only("server_facts")

    async def installation(self) -> Mapping[str, Any]:
        """The state tables at a glance."""
        return await self._only("installation_facts")

    async def uses(self) -> dict[tuple[str, str], int]:
        """The number of jobs by queue and handler."""
        rows = await self._database.fetch("uses_of_handlers", limit=_MAX_USES)
        return {(row["queue"], row["handler"]): row["jobs"] for row in rows}

    async def oldest_ready(self, queues: Sequence[str]) -> list[tuple[str, ExecutionId, datetime]]:
        """The execution of each of these queues that has waited longest."""
        rows = await self._database.fetch("oldest_ready", queues=list(queues))
        return [(row["queue"], ExecutionId(row["id"]), row["run_at"]) for row in rows]

    async def versions(self, job_id: JobId) -> dict[int, Mapping[str, Any]]:
        """The versions of a job that are kept, with the instants that each is responsible for."""
        rows = await self._database.fetch("versions_of_job", job_id=job_id)
        return {row["version"]: dict(row) for row in rows}

    async def attempts(self, ids: Sequence[ExecutionId]) -> dict[ExecutionId, list[Attempt]]:
        """The unsuccessful attempts of some executions, each in order."""
        attempts: dict[ExecutionId, list[Attempt]] = {id_: [] for id_ in ids}
        for row in await self._database.fetch("attempts_of_some", ids=list(ids)):
            attempts[ExecutionId(row["execution_id"])].append(attempt_from(row))
        return attempts

    async def unsuccessful_tries(self, since: datetime, until: datetime, limit: int) -> list[dict[str, Any]]:
        """The unsuccessful attempts that ended within a span, the latest first."""
        rows = await self._database.fetch("unsuccessful_tries", since=since, until=until, limit=limit)
        return [dict(row) for row in rows]

    async def _only(self, name: str) -> Mapping[str, Any]:
        row = await self._database.fetch_row(name)
        assert row is not None
        return dict(row)


# Jobs without a label of their own are looked at up to so many.
_MAX_OTHERS = 10_000


class GaugeStore:
    """Reads the numbers of this moment, at a cost that does not depend on them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def present(self) -> dict[str, Any]:
        """The numbers of waiting, running, late and dead executions, each counted up to 10,001."""
        return dict(await self._database.fetch_row("present_numbers", limit=EXACT_UP_TO, late_after=LATE_AFTER) or {})

    async def database(self) -> dict[str, Any]:
        """The health of the database."""
        return dict(await self._database.fetch_row("database_numbers") or {})

    async def jobs(self, limit: int) -> list[JobSummary]:
        """What the latest runs of the first *limit* named recurring jobs tell, and the worst of up to 10,000 others."""
        rows = await self._database.fetch("job_summaries", limit=limit, others=_MAX_OTHERS)
        return [JobSummary(**dict(row)) for row in rows]

    async def examples(self, since: datetime, limit: int) -> list[EndedExample]:
        """Executions that began and ended since an instant, the latest first."""
        rows = await self._database.fetch("latest_ended", since=since, first_id=first_id_at(since), limit=limit)
        return [_example_from(row) for row in rows]


def _example_from(row: Any) -> EndedExample:
    started_at, ended_at = row["started_at"], row["finished_at"]
    is_first = row["attempts"] == 1 and row["error_type"] is None and row["origin"] not in ("backfill", "after")
    late = None if started_at is None or not is_first else started_at - row["scheduled_for"]
    return EndedExample(
        id=ExecutionId(row["id"]),
        queue=row["queue"],
        handler=row["handler"],
        outcome="expected" if row["is_expected"] else row["state"],
        ended_at=ended_at,
        lateness_seconds=None if late is None else max(late.total_seconds(), 0.0),
        duration_seconds=None if started_at is None else (ended_at - started_at).total_seconds(),
        traceparent=row["traceparent"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExecution:
    """An execution, and the fields of its job that tests compare."""

    execution: Execution
    payload: Any
    job_name: str | None
    timezone: str


class RecordedExecutions:
    """Reads all executions at once, for the small databases of tests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def next_instant(self) -> datetime | None:
        """The next instant after now at which something is to happen."""
        instant: datetime | None = await self._database.fetch_value("next_instant")
        return instant

    async def executions(self) -> list[RecordedExecution]:
        """All executions, in the order of their instants."""
        return [_recorded_from(row) for row in await self._database.fetch("recorded_executions")]


def _recorded_from(row: Record) -> RecordedExecution:
    return RecordedExecution(
        execution=execution_from(row),
        payload=orjson.loads(row["payload_text"]),
        job_name=row["job_name"],
        timezone=row["job_timezone"] or "UTC",
    )
