"""Finds and changes jobs and queues, requests and cancels executions; every write is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson

from timeball.domain.execution import SKIP_STOP, Origin
from timeball.domain.job import calendar_of
from timeball.domain.job_changes import (
    JobChange,
    JobSnapshot,
    closing_tzdata,
    follow_calendars,
    pause_job,
    skipped_with_tzdata,
)
from timeball.domain.job_fields import SPEC_FIELDS
from timeball.domain.payload_references import VersionSchedule
from timeball.domain.scheduling.schedule import Once
from timeball.domain.values.ids import ExecutionId, JobId, first_id_at, format_execution_id, occurrence_id
from timeball.domain.values.wording import counted
from timeball.domain.wakeup import Wakeup
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import changed_fields, execution_request_columns, job_columns, json_text, write_audit
from timeball.store.db.notifier import WAKEUP_MARGIN, Notifier
from timeball.store.db.rows import job_from, pending_from, rule_from, timetable_from, version_from
from timeball.store.enqueue import name_conflict
from timeball.store.follow_ups import hold_causes
from timeball.store.types import PARKED_AT, AuditEntry, ExecutionRequest, OccurrenceRaceError

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.domain.scheduling.occurrences import JobTiming, NextOccurrence, SkippedRange
    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore


# The jobs of a calendar that are looked up at once.
_FOLLOWING_PAGE = 1_000


class JobStore:
    """Finds and changes jobs, each change with the pending occurrence in the same transaction."""

    def __init__(
        self, database: Database, notifier: Notifier, executions: ExecutionStore, promotion_window: timedelta
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._executions = executions
        self._promotion_window = promotion_window

    async def request(
        self,
        requests: Sequence[ExecutionRequest],
        audit: AuditEntry | None,
        action: str,
        check: Callable[[str], None] | None = None,
    ) -> list[ExecutionId]:
        """Add executions to existing jobs, all or none, audited in the same transaction.

        *check* is called with the handler of each execution, while the job is locked against edits; an error that it raises rolls
        everything back. NotFound if one of the jobs does not exist, Conflict if an unfinished execution has the unique key of one.
        Without *audit* they are part of an operation that has been audited as a whole. Under the same ids it is done once.
        """
        # The audit row has the id of the first execution. The state tables would accept that id again once the execution has moved on.
        key = requests[0].id

        async def work(connection: Connection) -> list[Any]:
            rows = await self._database.fetch(
                "add_executions",
                connection,
                executions=json_text(execution_request_columns(request) for request in requests),
                promotion_window=self._promotion_window,
            )
            if len(rows) != len(requests):
                job_ids = {row["job_id"] for row in rows}
                raise NotFound("job", next(r.job_id for r in requests if r.job_id not in job_ids))
            if check is not None:
                for row in rows:
                    check(row["handler"])
            if refused := [row for row in rows if row["is_refused"]]:
                raise await self._key_taken(connection, refused[0]["unique_key"])
            for request in requests:
                if request.calls is not None:
                    await self._database.fetch("put_follow_up", connection, **_follow_up_columns(request))
            subject = (
                f"job:{requests[0].job_id}" if len({r.job_id for r in requests}) == 1 else f"{len(requests)} executions"
            )
            facts = {"executions": [str(request.id) for request in requests[:100]], "count": len(requests)}
            if audit is not None:
                await write_audit(self._database, connection, key, audit, action, subject, None, facts)
            return rows

        rows = await self._database.once(work, key, found_by="find_execution", on=(_KeyFreedError,))
        await self._executions.announce_placed(rows, is_ready_announced=False)
        return [ExecutionId(row["execution_id"]) for row in rows]

    async def _key_taken(self, connection: Connection, key: str) -> Exception:
        row = await self._database.fetch_row("live_keys", connection, keys=[key])
        if row is None:
            # Beside the transaction, which is repeated.
            await self._database.fetch("free_keys", keys=[key])
            return _KeyFreedError()
        holder = format_execution_id(row["execution_id"])
        if row["has_ended"]:
            until = row["held_until"].isoformat()
            return Conflict(
                f"the job has the unique_key {key!r}, which {holder} holds until {until}", hint="wait until then"
            )
        return Conflict(
            f"the job has the unique_key {key!r}, held by {holder}, which is not finished",
            hint="wait until that execution has ended, or cancel it",
        )

    # reading

    async def find(self, ids: Sequence[JobId], connection: WithinConnection | None = None) -> dict[JobId, Job]:
        """These jobs, including deleted ones; those that do not exist are missing."""
        rows = await self._database.fetch("find_jobs", connection, ids=list(ids))
        return {job.id: job for job in await self._jobs_from(rows, connection)}

    async def _jobs_from(self, rows: Sequence[Any], connection: WithinConnection | None = None) -> list[Job]:
        calendars = await self._database.calendars.of(rows, connection)
        return [job_from(row, calendars) for row in rows]

    async def enqueued_with_key(self, key: str, limit: int) -> list[JobId]:
        """The one-offs that were enqueued with a unique key, the latest first."""
        return [JobId(row["id"]) for row in await self._database.fetch("enqueued_with_key", key=key, limit=limit)]

    async def holder_of(self, key: str) -> ExecutionId | None:
        """The execution that has a unique key now."""
        row = await self._database.fetch_row("live_keys", keys=[key])
        return None if row is None else ExecutionId(row["execution_id"])

    async def timetables(self, ids: Sequence[JobId]) -> dict[JobId, JobTiming]:
        """When these jobs run; those that do not exist are missing."""
        # The keys are the objects that were given, so that the scheduler, which keeps both, does not store each id twice.
        given = {id_: id_ for id_ in ids}
        rows = await self._database.fetch("timetables", ids=list(ids))
        calendars = await self._database.calendars.of(rows)
        return {given[row["id"]]: timetable_from(given[row["id"]], row, calendars) for row in rows}

    async def schedule_of(self, job_id: JobId, version: int) -> VersionSchedule:
        """When a job runs by one of its versions; NotFound if that version is not kept."""
        row = await self._database.fetch_row("schedule_of_version", job_id=job_id, version=version)
        if row is None:
            raise NotFound("version of the job", f"{job_id} {version}")
        calendars = await self._database.calendars.of([row])
        return VersionSchedule(rule_from(row, calendars), row["timezone"] or SPEC_FIELDS["timezone"].default)

    async def find_by_name(self, name: str, connection: WithinConnection | None = None) -> Job | None:
        """The job of this name that is not deleted."""
        row = await self._database.fetch_row("find_job_by_name", connection, name=name)
        return None if row is None else (await self._jobs_from([row], connection))[0]

    async def undeclared(self, modules: Sequence[str], names: Sequence[str]) -> list[Job]:
        """The active jobs that these modules have declared under other names than these."""
        rows = await self._database.fetch("undeclared_jobs", modules=list(modules), names=list(names))
        return await self._jobs_from(rows)

    async def find_by_names(self, names: Sequence[str], connection: WithinConnection | None = None) -> dict[str, Job]:
        """The jobs of these names that are not deleted."""
        rows = await self._database.fetch("find_jobs_by_name", connection, names=list(names))
        return {job.name: job for job in await self._jobs_from(rows, connection) if job.name is not None}

    async def of_owner(
        self, owner: str, connection: WithinConnection | None = None, *, with_ended: bool = False
    ) -> dict[JobId, bool]:
        """The jobs of an owner that are not deleted, and whether each is paused; without one-offs that have come to their end."""
        rows = await self._database.fetch("jobs_of_owner", connection, owner=owner, with_ended=with_ended)
        return {JobId(row["id"]): row["is_paused"] for row in rows}

    async def declared_by(self, declared_by: str) -> list[Job]:
        """The jobs of a declaration that are not deleted."""
        return await self._jobs_from(await self._database.fetch("jobs_declared_by", declared_by=declared_by))

    # changing

    async def change(
        self,
        job_id: JobId,
        decide: Callable[[JobSnapshot], JobChange],
        audit: AuditEntry,
        connection: WithinConnection | None = None,
        calendars: Collection[str] = (),
        cause: str | None = None,
    ) -> JobChange:
        """Change a job in one transaction: lock it, delete its pending occurrence, and write what *decide* returns.

        If a scheduler promotes the occurrence first, everything is repeated on the new state. NotFound if the job does not exist.
        Within a *connection* of the caller no wake-up is sent, and nodes see the change with their next sweep.
        *calendars* are the names of those that the change may give to the job, *cause* is the name of the job that it is to come after.
        """
        note = self._database.env.new_id()

        async def work(within: WithinConnection) -> tuple[JobChange, list[Any]]:
            # Before the job itself: whoever ends an execution locks the cause first, and then the jobs that come after it.
            causes = {} if cause is None else await hold_causes(self._database, [cause], within)
            snapshot = replace(await self._snapshot(within, job_id, calendars), causes=causes)
            change = decide(snapshot)
            holders = await self._write(within, snapshot, change)
            before, after = changed_fields(snapshot.job, change.job)
            await write_audit(self._database, within, note, audit, change.action, f"job:{job_id}", before, after)
            return change, holders

        if connection is not None:
            return (await work(connection))[0]
        change, holders = await self._database.once(work, note, on=(OccurrenceRaceError,))
        await self._after_change(change, holders)
        return change

    async def pause_if_failing(self, job_id: JobId, actor: str) -> bool:
        """Pause a job whose latest executions have all died, as many as it says; once, however many nodes try.

        The count, the pause and its audit row are one transaction.
        """
        note = self._database.env.new_id()

        async def work(connection: Connection) -> tuple[JobChange, list[Any]] | None:
            if await self._database.fetch_row("failing_job", connection, job_id=job_id) is None:
                return None
            row = await self._database.fetch_row("failures_in_a_row", connection, job_id=job_id)
            paused = None
            if row is not None and row["failures"] >= row["most"]:
                reason = f"{counted(row['failures'], 'execution')} in a row ended dead"
                snapshot = await self._snapshot(connection, job_id, ())
                change = pause_job(snapshot, None, reason)
                holders = await self._write(connection, snapshot, change)
                before, after = changed_fields(snapshot.job, change.job)
                audit = AuditEntry(actor, reason)
                await write_audit(
                    self._database, connection, note, audit, change.action, f"job:{job_id}", before, after
                )
                paused = change, holders
            await self._database.fetch("forget_failing_job", connection, job_id=job_id)
            return paused

        paused = await self._database.once(work, note, on=(OccurrenceRaceError,))
        if paused is not None:
            await self._after_change(*paused)
        return paused is not None

    async def follow_calendar(self, name: str, version: int, audit: AuditEntry, limit: int) -> bool:
        """Let the jobs of a calendar use this version of it, each in a transaction of its own; returns whether all do so now.

        At most *limit* jobs are looked at. One that owes an occurrence waits until that is promoted.
        """
        after, left = UUID(int=0), limit
        while left > 0:
            page = min(left, _FOLLOWING_PAGE)
            rows = await self._database.fetch("jobs_of_calendar", name=name, after=after, version=version, limit=page)
            for row in rows:
                with suppress(NotFound, _NothingToFollow):
                    await self.change(JobId(row["id"]), _follow_calendars, audit)
            if len(rows) < page:
                break
            after, left = rows[-1]["id"], left - len(rows)
        behind = await self._database.fetch("jobs_of_calendar", name=name, after=UUID(int=0), version=version, limit=1)
        if not behind:
            await self._database.fetch("calendar_followed", name=name, version=version)
        return not behind

    async def _snapshot(self, connection: WithinConnection, job_id: JobId, calendars: Collection[str]) -> JobSnapshot:
        row = await self._database.fetch_row("lock_job", connection, id=job_id)
        if row is None:
            raise NotFound("job", job_id)
        now: datetime = row["moment"]
        job = (await self._jobs_from([row], connection))[0]
        rule = calendar_of(job.rule)
        names = {*calendars, *(rule.names if rule else ())}
        held: list[Any] = []
        if names:
            await self._database.fetch("hold_calendars", connection, names=sorted(names))
            held = await self._database.fetch("present_calendars", connection, names=sorted(names))
        pending = await self._take_occurrence(connection, job_id)
        promoted_until = await self._database.fetch_value(
            "promoted_until", connection, job_id=job_id, first_ahead=first_id_at(now)
        )
        return JobSnapshot(
            job=job,
            pending=pending,
            promoted_until=promoted_until,
            now=now,
            calendars={row["name"]: version_from(row) for row in held},
        )

    async def _take_occurrence(self, connection: WithinConnection, job_id: JobId) -> NextOccurrence | None:
        """Delete the pending occurrence. After waiting for a promotion, a delete sees neither its row nor the successor: it is repeated."""
        while True:
            row = await self._database.fetch_row("take_occurrence", connection, job_id=job_id)
            if row is not None:
                return pending_from(row)
            if not await self._database.fetch_value("has_occurrence", connection, job_id=job_id):
                return None

    async def _write(self, connection: WithinConnection, snapshot: JobSnapshot, change: JobChange) -> list[Any]:
        job = change.job
        run = self._database.fetch
        await self._check_instant(connection, snapshot.job, job)
        await self._check_name(connection, snapshot.job, job)
        if job.is_enqueued and job.version != snapshot.job.version:
            await run("keep_version", connection, job_id=job.id)
        try:
            await run("write_job", connection, job=orjson.dumps(job_columns(job), default=str).decode())
        except asyncpg.UniqueViolationError as error:
            raise name_conflict([job.name or ""]) from error
        if job.deleted_at is not None:
            await run("forget_summary", connection, job_id=job.id)
        if snapshot.job.is_followed and job.deleted_at is not None:
            await run("forget_cause", connection, id=job.id)
        elif snapshot.job.is_followed and job.name != snapshot.job.name:
            await run("rename_cause", connection, id=job.id, name=job.name)
        if job.limit_key is not None and job.effective_limit is not None:
            # If the limit is lower than before, a trigger moves ready executions beyond it back to `blocked` (timeball.block_excess).
            await run("set_limit", connection, key=job.limit_key, max_running=job.effective_limit)
            if job.limit_key != snapshot.job.limit_key:
                await self._put_under_limit(connection, job)
        if change.effective_from is not None and not job.is_enqueued:
            tzdata = closing_tzdata(snapshot)
            await run("open_version", connection, job_id=job.id, effective_from=change.effective_from, tzdata=tzdata)
        if change.closes_at is not None:
            tzdata = closing_tzdata(snapshot)
            await run("close_versions", connection, job_id=job.id, closes_at=change.closes_at, tzdata=tzdata)
        if change.skipped is not None:
            for skipped, tzdata in skipped_with_tzdata(snapshot, change.skipped):
                await self._record_skipped(connection, snapshot.job, skipped, tzdata)
        await run("drop_resumption", connection, job_id=job.id)
        if change.resume_at is not None:
            await self._put_resumption(connection, job, change.resume_at)
        # The caller knows the id of an enqueued execution: it stays unless it is moved, and is parked or cancelled like others.
        pending = change.pending or (snapshot.pending if job.is_enqueued else None)
        if pending is not None:
            await self._put_occurrence(connection, job, pending)
        if change.unpark:
            await run("unpark", connection, job_id=job.id, parked_at=PARKED_AT)
        return await self._touch_executions(connection, job, change)

    async def _put_under_limit(self, connection: WithinConnection, job: Job) -> None:
        """Make executions count for the limit that were written before it; those with another limit keep that."""
        # Repeated: executions that were claimed, finished or promoted in between are seen only by the next statement.
        is_unlimited = True
        while is_unlimited:
            await self._database.fetch("put_under_limit", connection, job_id=job.id, limit_key=job.limit_key)
            is_unlimited = await self._database.fetch_value("is_unlimited", connection, job_id=job.id)

    async def _touch_executions(self, connection: WithinConnection, job: Job, change: JobChange) -> list[Any]:
        run = self._database.fetch
        if change.withdraw is not None:
            reason = change.withdraw.value
            await run("park_waiting", connection, job_id=job.id, parked_at=PARKED_AT)
            # Repeated: executions that were unblocked in between are seen only by the next statement.
            while await self._database.fetch_value("is_queued", connection, job_id=job.id):
                await run(
                    "withdraw_waiting", connection, job_id=job.id, reason=reason, shard=job.shard, parked_at=PARKED_AT
                )
            return await run("stop_held", connection, job_id=job.id, reason=f"{SKIP_STOP}{reason}")
        if change.cancel_waiting is not None:
            # Repeated: executions that a scheduler promoted in between are seen only by the next statement.
            while rows := await run("waiting_of_job", connection, job_id=job.id):
                ids = [row["id"] for row in rows]
                await run("cancel_waiting", connection, ids=ids, reason=change.cancel_waiting)
            return await run("stop_held", connection, job_id=job.id, reason=f"{SKIP_STOP}deleted")
        return []

    async def _record_skipped(self, connection: WithinConnection, job: Job, skipped: SkippedRange, tzdata: str) -> None:
        """Record a single skipped occurrence as a skipped execution, and consecutive ones as a range."""
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
            has_follow_ups=job.has_follow_ups or None,
        )

    async def _check_instant(self, connection: WithinConnection, old: Job, new: Job) -> None:
        """Conflict if a one-off is moved back to an instant that has a record: no instant has two records."""
        if new.is_enqueued or not isinstance(new.rule, Once):
            return
        instant = new.rule.scheduled_at
        recorded = occurrence_id(new.id, instant)
        is_moved = not isinstance(old.rule, Once) or old.rule.scheduled_at != instant
        if is_moved and await self._database.fetch_row("find_execution", connection, id=recorded) is not None:
            raise Conflict(
                f"the job has an execution for {instant.isoformat()} already: {format_execution_id(recorded)}",
                hint="choose another instant, or trigger the job",
            )

    async def _check_name(self, connection: WithinConnection, old: Job, new: Job) -> None:
        """Conflict if a job is given a name that another one has; the error of the index would end the transaction of a caller."""
        if new.name is None or new.name == old.name:
            return
        if await self.find_by_name(new.name, connection) is not None:
            raise name_conflict([new.name])

    async def _put_occurrence(self, connection: WithinConnection, job: Job, pending: NextOccurrence) -> None:
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
                expires_at=job.expiry_of(pending.scheduled_for),
                has_follow_ups=job.has_follow_ups or None,
            )
        except asyncpg.UniqueViolationError as error:
            raise OccurrenceRaceError from error

    async def _put_resumption(self, connection: WithinConnection, job: Job, resume_at: datetime) -> None:
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
        wakeup = Wakeup()
        if change.pending is not None:
            wakeup.add_shard(change.job.shard, change.pending.run_at)
        if change.unpark:
            wakeup.add_shard(change.job.shard, self._database.env.clock.now() - WAKEUP_MARGIN)
        wakeup.add_holders(row["holder"] for row in holders)
        self._notifier.tell(wakeup)
        if change.job.limit_key is not None:
            await self._executions.unblock_after_commit([change.job.limit_key])

    async def cancel(self, ids: Sequence[ExecutionId], reason: str, audit: AuditEntry | None) -> set[ExecutionId]:
        """Cancel waiting executions at once, and ask the holders of running ones to stop; returns the executions of both kinds.

        The pending occurrence of a recurring job is left alone: it is skipped by changing the job.
        """
        note = self._database.env.new_id()

        async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
            gone: list[Any] = []
            asked: list[Any] = []
            left = list(ids)
            while left:
                gone += await self._database.fetch("cancel_waiting", connection, ids=left, reason=reason)
                asked += await self._database.fetch("request_stop", connection, ids=left, reason=reason)
                left = [row["id"] for row in await self._database.fetch("cancellable", connection, ids=left)]
            if audit is not None and (gone or asked):
                subject = f"execution:{ids[0]}" if len(ids) == 1 else f"{len(ids)} executions"
                facts = {"cancelled": len(gone), "asked_to_stop": len(asked)}
                await write_audit(self._database, connection, note, audit, "execution.cancel", subject, None, facts)
            return gone, asked

        gone, asked = await self._database.once(work, note)
        wakeup = Wakeup()
        wakeup.add_holders(row["holder"] for row in asked)
        self._notifier.tell(wakeup)
        await self._executions.unblock_after_commit(
            sorted({row["limit_key"] for row in gone if row["limit_key"] is not None})
        )
        await self._executions.announce_follow_ups([row["id"] for row in gone if row["is_followed"]])
        return {ExecutionId(row["id"]) for row in (*gone, *asked)}


def _follow_up_columns(request: ExecutionRequest) -> dict[str, Any]:
    calls = {name: orjson.dumps(call).decode() for name, call in (request.calls or {}).items() if call is not None}
    return {"execution_id": request.id, "on_success": calls.get("on_success"), "on_failure": calls.get("on_failure")}


def _follow_calendars(snapshot: JobSnapshot) -> JobChange:
    change = follow_calendars(snapshot)
    if change is None:
        raise _NothingToFollow
    return change


class _NothingToFollow(Exception):
    """A job uses the present versions of its calendars already, or has to wait: nothing is written."""


class _KeyFreedError(Exception):
    """The key was taken at the first statement, and free when its execution was looked up: the transaction is repeated."""
