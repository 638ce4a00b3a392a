"""Jobs, made: one, some, or very many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from timeball.domain.execution import Origin
from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job
from timeball.errors import Conflict
from timeball.store.connections import Connection
from timeball.store.enqueuing import HINT_MARGIN, Enqueuing, is_plain, pattern_of
from timeball.store.placing import AuditEntry
from timeball.store.rows import job_columns, json_text

# How much a program's clock may differ from the database's before a hint is missing, and a sweep finds the work.
_CLOCKS_APART = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first execution of a new job. Without *run_at* it is due now, by the database's clock."""

    id: ExecutionId
    job_id: JobId
    origin: Origin
    run_at: datetime | None = None
    scheduled_for: datetime | None = None
    watermark: datetime | None = None
    tzdata: str | None = None
    executions_left: int | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What came of creating a job: its execution, or the one that held its unique key already."""

    job_id: JobId
    execution_id: ExecutionId | None
    is_new: bool


class NewJobs(Enqueuing):
    """Writes jobs with their first executions."""

    async def create(
        self,
        jobs: Sequence[Job],
        openings: Sequence[Opening],
        connection: Connection | None = None,
        audit: AuditEntry | None = None,
    ) -> list[Created]:
        """Write jobs and their first executions in one statement; a name that is taken raises Conflict and writes nothing.

        Inside a caller's own *connection* no hint is sent: the workers find the work with their next sweep.
        With *audit*, what was written is noted in the same transaction.
        """
        try:
            is_alone = len(jobs) == 1 and audit is None
            if is_alone and openings and openings[0].run_at is None and (pattern := pattern_of(jobs[0])):
                await self.enqueue(pattern, [(jobs[0].id, jobs[0].shard, jobs[0].payload)], connection)
                return [Created(jobs[0].id, openings[0].id, is_new=True)]
            hints = self._hints_for(jobs, openings)
            carried = self._hinter.take_along(hints) if connection is None and hints else None
            rows = await self._carrying(carried, lambda hint: self._insert(jobs, openings, connection, hint, audit))
        except asyncpg.UniqueViolationError as error:
            raise name_taken(error, jobs) from error
        if connection is None:
            await self._after_placing(rows, is_hinted=carried is not None)
        made = {row["job_id"]: Created(row["job_id"], row["execution_id"], is_new=True) for row in rows}
        refused = [job for job in jobs if job.id not in made]
        if refused:
            made |= await self._created_before(refused, openings, connection)
        return [made[job.id] for job in jobs]

    async def _insert(
        self,
        jobs: Sequence[Job],
        openings: Sequence[Opening],
        connection: Connection | None,
        hint: str | None,
        audit: AuditEntry | None,
    ) -> list[Any]:
        if audit is None:
            return await self._write_new(jobs, openings, connection, hint)
        note = self._database.env.new_id()

        async def work(within: Connection) -> list[Any]:
            rows = await self._write_new(jobs, openings, within, hint)
            if rows:
                made = {row["job_id"] for row in rows}
                await self._note_created(within, note, audit, [job for job in jobs if job.id in made])
            return rows

        if connection is not None:
            return await work(connection)
        found: list[Any] = await self._database.once(work, note)
        return found

    async def _write_new(
        self, jobs: Sequence[Job], openings: Sequence[Opening], connection: Connection | None, hint: str | None
    ) -> list[Any]:
        columns = [_without_nulls(job_columns(job)) for job in jobs]
        if all(map(is_plain, jobs, columns)) and all(opening.run_at is None for opening in openings):
            return await self._database.fetch("create_plain_jobs", connection, jobs=json_text(columns), hint=hint)
        return await self._database.fetch(
            "create_jobs",
            connection,
            jobs=json_text(columns),
            firsts=json_text(_opening_columns(opening) for opening in openings),
            hoist_window=self._hoist_window,
            hint=hint,
        )

    async def _note_created(self, connection: Connection, note: UUID, audit: AuditEntry, jobs: Sequence[Job]) -> None:
        if len(jobs) == 1:
            await self._database.fetch("write_audit", connection, **self.note_of_new(jobs[0], note, audit))
            return
        facts = {"count": len(jobs), "jobs": [job.name or str(job.id) for job in jobs[:100]]}
        await self.audit(connection, note, audit, "job.create", f"{len(jobs)} jobs", None, facts)

    async def _created_before(
        self, refused: Sequence[Job], openings: Sequence[Opening], connection: Connection | None
    ) -> dict[UUID, Created]:
        """Who holds the keys of these one-offs; where the holder has just ended, the key is free and they are written after all."""
        rows = await self._database.fetch("live_keys", connection, keys=[job.unique_key for job in refused])
        holders = {row["key"]: ExecutionId(row["execution_id"]) for row in rows}
        free = {job.id: job for job in refused if job.unique_key not in holders}
        again = [opening for opening in openings if opening.job_id in free]
        made = await self.create(list(free.values()), again, connection) if free else []
        known = [Created(job.id, holders[job.unique_key], is_new=False) for job in refused if job.unique_key in holders]
        return {created.job_id: created for created in (*made, *known)}

    def _hints_for(self, jobs: Sequence[Job], openings: Sequence[Opening]) -> Hints:
        """Where workers are to look: not for what lies further ahead than a worker holds, on whichever clock."""
        hints = Hints()
        now = self._database.env.clock.now()
        horizon = now + self._hoist_window + _CLOCKS_APART
        near = {opening.job_id: opening for opening in openings if opening.run_at is None or opening.run_at <= horizon}
        ready = [job for job in jobs if job.id in near]
        for job in ready[:100]:
            # By name only what is due now: what is to be held is looked for with all else that comes.
            named = near[job.id].id if near[job.id].run_at is None else None
            hints.add_lane(job.queue, job.priority, now - HINT_MARGIN, 1, named)
        hints.look_everywhere = len(ready) > 100
        return hints


def _without_nulls(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value is not None}


def _opening_columns(opening: Opening) -> dict[str, Any]:
    return {
        "id": opening.id,
        "job_id": opening.job_id,
        "origin": opening.origin.value,
        "run_at": opening.run_at,
        "scheduled_for": opening.scheduled_for,
        "watermark": opening.watermark,
        "tzdata": opening.tzdata,
        "executions_left": opening.executions_left,
    }


def name_taken(error: asyncpg.UniqueViolationError, jobs: Sequence[Job]) -> Conflict:
    if error.constraint_name != "job_name":
        return Conflict(f"the database refused a second record: {error}")
    names = sorted(job.name for job in jobs if job.name is not None)
    which = f"named {names[0]!r}" if len(names) == 1 else "with one of these names"
    return Conflict(f"there is already a job {which}", hint="choose another name, or update that job", names=names)
