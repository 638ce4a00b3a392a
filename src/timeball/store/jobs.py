"""Jobs: made, found, changed; and the executions people ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from timeball.domain.changes import JobChange, JobSnapshot
from timeball.domain.civil_time import tzdata_version
from timeball.domain.execution import Origin
from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, JobId, occurrence_id, show_execution
from timeball.domain.job import Job
from timeball.domain.misfire import SkippedRange
from timeball.domain.occurrences import NextOccurrence
from timeball.errors import Conflict, NotFound
from timeball.store.database import Connection, Database
from timeball.store.hinter import Hinter
from timeball.store.rooms import PARKED_AT, Rooms
from timeball.store.rows import job_columns, job_from, json_text, pending_from

# A hint must not come out later than what it announces, and the two clocks are only nearly the same.
_HINT_MARGIN = timedelta(milliseconds=50)
# So many rows go with one statement of a bulk enqueue: each ends well within the patience for one.
_BULK_SLICE = 20_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An execution somebody asks for of a job that is there: a trigger, a retry, a backfill."""

    id: ExecutionId
    job_id: JobId
    origin: Origin
    run_at: datetime | None = None
    scheduled_for: datetime | None = None
    payload: str | None = None
    retry_of: ExecutionId | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who does something, and why."""

    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What came of creating a job: its execution, or the one that held its unique key already."""

    job_id: JobId
    execution_id: ExecutionId | None
    is_new: bool


class Jobs:
    """Every write to the definitions, each with its pending occurrence in the same transaction."""

    def __init__(self, database: Database, hinter: Hinter, rooms: Rooms, hoist_window: timedelta) -> None:
        self._database = database
        self._hinter = hinter
        self._rooms = rooms
        self._hoist_window = hoist_window

    async def create(
        self, jobs: Sequence[Job], openings: Sequence[Opening], connection: Connection | None = None
    ) -> list[Created]:
        """Write jobs and their first executions in one statement; a name that is taken raises Conflict and writes nothing.

        Inside a caller's own *connection* no hint is sent: the workers find the work with their next sweep.
        """
        hint = self._hint_for(jobs) if connection is None and self._hinter.may_go_along() else None
        try:
            rows = await self._database.fetch(
                "create_jobs",
                connection,
                jobs=json_text(job_columns(job) for job in jobs),
                firsts=json_text(_opening_columns(opening) for opening in openings),
                hoist_window=self._hoist_window,
                hint=hint,
            )
        except asyncpg.UniqueViolationError as error:
            raise _name_taken(error, jobs) from error
        if connection is None:
            await self._after_placing(rows, is_hinted=hint is not None)
        made = {row["job_id"]: Created(row["job_id"], row["execution_id"], is_new=True) for row in rows}
        refused = [job for job in jobs if job.id not in made]
        if refused:
            made |= await self._created_before(refused, openings, connection)
        return [made[job.id] for job in jobs]

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

    def _hint_for(self, jobs: Sequence[Job]) -> str:
        hints = Hints()
        moment = self._database.env.clock.now() - _HINT_MARGIN
        for job in jobs[:100]:
            hints.add_lane(job.queue, job.priority, moment)
        hints.look_everywhere = len(jobs) > 100
        return hints.encode()

    async def _after_placing(self, rows: Sequence[Any], *, is_hinted: bool) -> None:
        hints = Hints()
        for row in rows:
            if row["room"] == "ready" and not is_hinted:
                hints.add_lane(row["queue"], row["priority"], row["run_at"])
            elif row["room"] == "due":
                hints.add_shard(row["shard"], row["run_at"])
        self._hinter.tell(hints)
        limits = sorted({row["limit_key"] for row in rows if row["room"] == "blocked"})
        if limits:
            await self._rooms.promote(limits)

    async def create_many(self, template: Job, rows: Sequence[tuple[UUID, int, str]], run_at: datetime | None) -> None:
        """Write many one-off jobs that differ only in (id, shard, payload), all or nothing."""
        moment = await self.moment()
        starts_at = run_at or moment
        is_ready = starts_at <= moment + self._hoist_window
        given = json_text(
            [job_columns(template) | {"scheduled_at": starts_at, "created_at": moment, "updated_at": moment}]
        )
        async with self._database.transaction() as connection:
            for start in range(0, len(rows), _BULK_SLICE):
                ids, shards, payloads = map(list, zip(*rows[start : start + _BULK_SLICE], strict=True))
                await self._database.fetch(
                    "enqueue_jobs", connection, template=given, ids=ids, shards=shards, payloads=payloads
                )
                await self._database.fetch(
                    "enqueue_ready" if is_ready else "enqueue_due", connection, template=given, ids=ids, shards=shards
                )
        self._hint_bulk(template, {shard for _, shard, _ in rows}, starts_at, is_ready=is_ready)

    def _hint_bulk(self, template: Job, shards: set[int], starts_at: datetime, *, is_ready: bool) -> None:
        hints = Hints()
        if is_ready:
            hints.add_lane(template.queue, template.priority, starts_at)
        else:
            for shard in shards:
                hints.add_shard(shard, starts_at)
        self._hinter.tell(hints)

    async def request(self, requests: Sequence[Request], audit: AuditEntry, action: str) -> list[ExecutionId]:
        """Add executions to jobs that are there, audited in the same transaction: all or none.

        NotFound if one of the jobs is not there, Conflict if an unfinished execution holds the unique key of one.
        """

        async def work(connection: Connection) -> list[Any]:
            rows = await self._database.fetch(
                "add_executions",
                connection,
                executions=json_text(_request_columns(request) for request in requests),
                hoist_window=self._hoist_window,
            )
            if len(rows) != len(requests):
                found = {row["job_id"] for row in rows}
                raise NotFound("job", next(r.job_id for r in requests if r.job_id not in found))
            if refused := [row for row in rows if row["is_refused"]]:
                raise await self._key_taken(connection, refused[0]["unique_key"])
            subject = (
                f"job:{requests[0].job_id}" if len({r.job_id for r in requests}) == 1 else f"{len(requests)} executions"
            )
            facts = {"executions": [str(request.id) for request in requests[:100]], "count": len(requests)}
            await self.audit(connection, audit, action, subject, None, facts)
            return rows

        rows = await self._database.repeat(work, on=(_KeyFreedError,))
        await self._after_placing(rows, is_hinted=False)
        return [ExecutionId(row["execution_id"]) for row in rows]

    async def _key_taken(self, connection: Connection, key: str) -> Exception:
        row = await self._database.fetch_row("live_keys", connection, keys=[key])
        if row is None:
            return _KeyFreedError()
        return Conflict(
            f"the job has the unique_key {key!r}, held by {show_execution(row['execution_id'])}, which is not finished",
            hint="wait until that execution has ended, or cancel it",
        )

    # found

    async def find(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """These jobs, deleted ones too; those that do not exist are missing."""
        rows = await self._database.fetch("find_jobs", ids=list(ids))
        return {JobId(row["id"]): job_from(row) for row in rows}

    async def find_by_name(self, name: str) -> Job | None:
        """The job of this name that is not deleted."""
        row = await self._database.fetch_row("find_job_by_name", name=name)
        return None if row is None else job_from(row)

    async def undeclared(self, modules: Sequence[str], names: Sequence[str]) -> list[Job]:
        """The active jobs that these modules declared under other names than these."""
        rows = await self._database.fetch("undeclared_jobs", modules=list(modules), names=list(names))
        return [job_from(row) for row in rows]

    async def moment(self) -> datetime:
        """The database's time."""
        found: datetime = await self._database.fetch_value("moment")
        return found

    # changed

    async def change(self, job_id: JobId, decide: Callable[[JobSnapshot], JobChange], audit: AuditEntry) -> JobChange:
        """Change a job: lock it, take its pending occurrence away, and write what *decide* says, in one transaction.

        When a scheduler was quicker, all of it is done again on what is there then. NotFound if the job is gone.
        """

        async def work(connection: Connection) -> tuple[JobChange, list[Any]]:
            snapshot = await self._snapshot(connection, job_id)
            change = decide(snapshot)
            holders = await self._write(connection, snapshot, change)
            before, after = _differences(snapshot.job, change.job)
            await self.audit(connection, audit, change.action, f"job:{job_id}", before, after)
            return change, holders

        change, holders = await self._database.repeat(work, on=(_OccurrenceRaceError,))
        await self._after_change(change, holders)
        return change  # type: ignore[no-any-return]

    async def _snapshot(self, connection: Connection, job_id: JobId) -> JobSnapshot:
        row = await self._database.fetch_row("lock_job", connection, id=job_id)
        if row is None:
            raise NotFound("job", job_id)
        pending = await self._take_occurrence(connection, job_id)
        hoisted_until = await self._database.fetch_value("hoisted_until", connection, job_id=job_id)
        return JobSnapshot(job=job_from(row), pending=pending, hoisted_until=hoisted_until, now=row["moment"])

    async def _take_occurrence(self, connection: Connection, job_id: JobId) -> NextOccurrence | None:
        """A delete that waited for a hoist finds its row gone and does not see the successor: then look again."""
        while True:
            row = await self._database.fetch_row("take_occurrence", connection, job_id=job_id)
            if row is not None:
                return pending_from(row)
            if not await self._database.fetch_value("has_occurrence", connection, job_id=job_id):
                return None

    async def _write(self, connection: Connection, snapshot: JobSnapshot, change: JobChange) -> list[Any]:
        job = change.job
        run = self._database.fetch
        try:
            await run("write_job", connection, job=orjson.dumps(job_columns(job), default=str).decode())
        except asyncpg.UniqueViolationError as error:
            raise _name_taken(error, [job]) from error
        if job.limit_key is not None and job.effective_limit is not None:
            await run("set_limit", connection, key=job.limit_key, max_running=job.effective_limit)
        if change.effective_from is not None and not job.is_enqueued:
            await run("open_version", connection, job_id=job.id, effective_from=change.effective_from)
        if change.closes_at is not None:
            await run("close_versions", connection, job_id=job.id, closes_at=change.closes_at)
        if change.skipped is not None:
            await self._record_skipped(connection, snapshot.job, change.skipped)
        await run("drop_resumption", connection, job_id=job.id)
        if change.resume_at is not None:
            await self._put_resumption(connection, job, change.resume_at)
        # An enqueued execution was promised under its id: unless it is moved, it stays, and is parked or cancelled like others.
        pending = change.pending or (snapshot.pending if job.is_enqueued else None)
        if pending is not None:
            await self._put_occurrence(connection, job, pending)
        if change.unpark:
            await run("unpark", connection, job_id=job.id, parked_at=PARKED_AT)
        return await self._touch_executions(connection, job, change)

    async def _touch_executions(self, connection: Connection, job: Job, change: JobChange) -> list[Any]:
        run = self._database.fetch
        if change.withdraw is not None:
            reason = change.withdraw.value
            await run("park_waiting", connection, job_id=job.id, parked_at=PARKED_AT)
            await run(
                "withdraw_waiting", connection, job_id=job.id, reason=reason, shard=job.shard, parked_at=PARKED_AT
            )
            return await run("stop_held", connection, job_id=job.id, reason=f"skip:{reason}")
        if change.cancel_waiting is not None:
            # Again and again: what a scheduler moved on meanwhile is seen only by the next look.
            while rows := await run("waiting_of_job", connection, job_id=job.id):
                ids = [row["id"] for row in rows]
                await run("cancel_waiting", connection, ids=ids, reason=change.cancel_waiting)
            return await run("stop_held", connection, job_id=job.id, reason="skip:deleted")
        return []

    async def _record_skipped(self, connection: Connection, job: Job, skipped: SkippedRange) -> None:
        """A single skipped occurrence is a skipped execution, consecutive ones are a range."""
        tzdata = tzdata_version()
        if skipped.first != skipped.last:
            await self._database.fetch(
                "record_skip_range",
                connection,
                id=self._database.env.new_id(),
                job_id=job.id,
                version=job.version,
                tzdata=tzdata,
                first_at=skipped.first,
                last_at=skipped.last,
                occurrences=skipped.count,
                reason=skipped.reason.value,
            )
            return
        await self._database.fetch(
            "record_skipped",
            connection,
            id=occurrence_id(job.id, skipped.first),
            job_id=job.id,
            version=job.version,
            queue=job.queue,
            priority=job.priority,
            handler=job.handler,
            scheduled_for=skipped.first,
            tzdata=tzdata,
            reason=skipped.reason.value,
        )

    async def _put_occurrence(self, connection: Connection, job: Job, pending: NextOccurrence) -> None:
        try:
            await self._database.fetch(
                "put_occurrence",
                connection,
                id=pending.id,
                job_id=job.id,
                origin=(Origin.ENQUEUE if job.is_enqueued else Origin.SCHEDULE).value,
                shard=job.shard,
                run_at=pending.run_at,
                scheduled_for=pending.scheduled_for,
                watermark=None if job.is_enqueued else pending.watermark,
                tzdata=pending.tzdata if job.rule.is_recurring else None,
                version=job.version,
                queue=job.queue,
                priority=job.priority,
                handler=job.handler,
                executions_left=pending.executions_left,
                limit_key=job.limit_key,
                unique_key=job.unique_key,
            )
        except asyncpg.UniqueViolationError as error:
            raise _OccurrenceRaceError from error

    async def _put_resumption(self, connection: Connection, job: Job, resume_at: datetime) -> None:
        await self._database.fetch(
            "put_resumption",
            connection,
            id=self._database.env.new_id(),
            job_id=job.id,
            shard=job.shard,
            run_at=resume_at,
            version=job.version,
            queue=job.queue,
            priority=job.priority,
            handler=job.handler,
        )

    async def _after_change(self, change: JobChange, holders: Sequence[Any]) -> None:
        hints = Hints()
        if change.pending is not None:
            hints.add_shard(change.job.shard, change.pending.run_at)
        if change.unpark:
            hints.add_shard(change.job.shard, self._database.env.clock.now() - _HINT_MARGIN)
        hints.add_holders(row["holder"] for row in holders)
        self._hinter.tell(hints)
        if change.job.limit_key is not None:
            await self._rooms.promote([change.job.limit_key])

    async def cancel(self, ids: Sequence[ExecutionId], reason: str, audit: AuditEntry) -> set[ExecutionId]:
        """Cancel what waits, at once, and ask the holders of what runs to stop; returns what this reached.

        A pending occurrence of a recurring job is not reached: skip it by changing the job.
        """

        async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
            gone: list[Any] = []
            asked: list[Any] = []
            left = list(ids)
            while left:
                gone += await self._database.fetch("cancel_waiting", connection, ids=left, reason=reason)
                asked += await self._database.fetch("request_stop", connection, ids=left, reason=reason)
                left = [row["id"] for row in await self._database.fetch("cancellable", connection, ids=left)]
            if gone or asked:
                subject = f"execution:{ids[0]}" if len(ids) == 1 else f"{len(ids)} executions"
                facts = {"cancelled": len(gone), "asked_to_stop": len(asked)}
                await self.audit(connection, audit, "execution.cancel", subject, None, facts)
            return gone, asked

        gone, asked = await self._database.repeat(work)
        hints = Hints()
        hints.add_holders(row["holder"] for row in asked)
        self._hinter.tell(hints)
        freed = sorted({row["limit_key"] for row in gone if row["limit_key"] is not None})
        if freed:
            await self._rooms.promote(freed)
        return {ExecutionId(row["id"]) for row in (*gone, *asked)}

    async def set_queue(
        self, name: str, *, is_paused: bool, max_running: int | None, reason: str | None, audit: AuditEntry, action: str
    ) -> None:
        """Pause or limit a queue; takes effect with the next claim, and what was claimed before counts."""

        async def work(connection: Connection) -> None:
            if max_running is not None:
                await self._database.fetch("lock_out_claims", connection)
            before = await self._database.fetch_row("find_queue", connection, name=name)
            await self._database.fetch(
                "set_queue", connection, name=name, is_paused=is_paused, max_running=max_running, reason=reason
            )
            after = {"is_paused": is_paused, "max_running": max_running}
            old = (
                None
                if before is None
                else {"is_paused": before["paused_at"] is not None, "max_running": before["max_running"]}
            )
            await self.audit(connection, audit, action, f"queue:{name}", old, after)
            await self._rooms.mark_queue_limited(connection)

        await self._database.repeat(work)
        hints = Hints(look_everywhere=True)
        self._hinter.tell(hints)

    async def queue(self, name: str) -> Mapping[str, Any] | None:
        """A queue's pause and limit, if it has either."""
        row = await self._database.fetch_row("find_queue", name=name)
        return None if row is None else dict(row)

    async def audit(
        self,
        connection: Connection,
        entry: AuditEntry,
        action: str,
        subject: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        """Write who did what, in the transaction of the deed."""
        await self._database.fetch(
            "write_audit",
            connection,
            id=self._database.env.new_id(),
            actor=entry.actor,
            action=action,
            subject=subject,
            reason=entry.reason,
            before=None if before is None else orjson.dumps(before, default=str).decode(),
            after=None if after is None else orjson.dumps(after, default=str).decode(),
        )


class _KeyFreedError(Exception):
    """The key was held when it was asked for, and free when its holder was looked up: ask again."""


class _OccurrenceRaceError(Exception):
    """A scheduler wrote the job's next occurrence meanwhile: begin again."""


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


def _request_columns(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "job_id": request.job_id,
        "origin": request.origin.value,
        "run_at": request.run_at,
        "scheduled_for": request.scheduled_for,
        "payload": None if request.payload is None else orjson.Fragment(request.payload),
        "retry_of": request.retry_of,
    }


def _name_taken(error: asyncpg.UniqueViolationError, jobs: Sequence[Job]) -> Conflict:
    if error.constraint_name != "job_name":
        return Conflict(f"the database refused a second record: {error}")
    names = sorted(job.name for job in jobs if job.name is not None)
    which = f"named {names[0]!r}" if len(names) == 1 else "with one of these names"
    return Conflict(f"there is already a job {which}", hint="choose another name, or update that job", names=names)


def _differences(old: Job, new: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an edit changed, as the audit shows it."""
    before = job_columns(old) | {"payload": orjson.loads(old.payload)}
    after = job_columns(new) | {"payload": orjson.loads(new.payload)}
    changed = [name for name in after if before[name] != after[name]]
    return {name: before[name] for name in changed}, {name: after[name] for name in changed}
