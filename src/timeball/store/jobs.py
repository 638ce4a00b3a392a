"""Finds and changes jobs and queues, requests and cancels executions; every write is audited in its own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
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
from timeball.store.db.columns import (
    audit_columns,
    changed_fields,
    execution_request_columns,
    job_columns,
    json_text,
    without_nulls,
    write_audit,
)
from timeball.store.db.notifier import WAKEUP_MARGIN, Notifier
from timeball.store.db.rows import job_from, pending_from, rule_from, timetable_from, version_from
from timeball.store.enqueue import name_conflict
from timeball.store.follow_ups import hold_causes
from timeball.store.types import PARKED_AT, AuditEntry, ExecutionRequest, JobDecision, OccurrenceRaceError

if TYPE_CHECKING:
    from timeball.domain.job import CauseJob, Job
    from timeball.domain.scheduling.occurrences import JobTiming, NextOccurrence, SkippedRange
    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore


# The jobs of a calendar that are looked up at once.
_FOLLOWING_PAGE = 1_000
# The jobs that are changed with the same statements. They are decided about while the transaction waits: a tenth of a second, or seconds
# on a busy machine, of the ten after which the server ends it.
_CHANGE_BATCH = 250
# After so many decisions other tasks of the event loop run.
_DECIDE_BATCH = 50

# A job as it was locked, and what is to be written.
_Step = tuple[JobSnapshot, JobChange]


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
        decisions = {job_id: JobDecision(decide, calendars)}

        async def work(within: WithinConnection) -> tuple[JobChange, list[Any]]:
            # Before the job itself: whoever ends an execution locks the cause first, and then the jobs that come after it.
            causes = {} if cause is None else await hold_causes(self._database, [cause], within)
            changes, holders = await self._change_within(within, decisions, audit, note, causes)
            if not changes:
                raise NotFound("job", job_id)
            return changes[0], holders

        if connection is not None:
            return (await work(connection))[0]
        change, holders = await self._database.once(work, note, on=(OccurrenceRaceError,))
        await self._after_change(change, holders)
        return change

    async def change_all(
        self, decisions: Mapping[JobId, JobDecision], audit: AuditEntry, connection: WithinConnection
    ) -> dict[JobId, Job]:
        """Change many jobs as `change` does one, in the transaction of *connection*; those that do not exist are missing in the result.

        A few statements for each few hundred: little is computed between two of them, so that the transaction is never idle for long.
        """
        done: dict[JobId, Job] = {}
        # In one order for all callers: two that change the same jobs wait for each other, and never both.
        ids = sorted(decisions, key=attrgetter("bytes"))
        for start in range(0, len(ids), _CHANGE_BATCH):
            part = {job_id: decisions[job_id] for job_id in ids[start : start + _CHANGE_BATCH]}
            changes, _ = await self._change_within(connection, part, audit, self._database.env.new_id())
            done |= {change.job.id: change.job for change in changes}
        return done

    async def _change_within(
        self,
        connection: WithinConnection,
        decisions: Mapping[JobId, JobDecision],
        audit: AuditEntry,
        note: UUID,
        causes: Mapping[str, CauseJob] | None = None,
    ) -> tuple[list[JobChange], list[Any]]:
        """The changes of the jobs that exist, written and audited, the first under the id *note*; and who holds what is to stop."""
        steps: list[_Step] = []
        for number, snapshot in enumerate(await self._snapshots(connection, decisions, causes or {})):
            if number % _DECIDE_BATCH == _DECIDE_BATCH - 1:
                await asyncio.sleep(0)
            steps.append((snapshot, decisions[snapshot.job.id].decide(snapshot)))
        holders = await self._write(connection, steps, audit, note) if steps else []
        return [change for _, change in steps], holders

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
                decisions = {job_id: JobDecision(partial(pause_job, until=None, reason=reason))}
                changes, holders = await self._change_within(connection, decisions, AuditEntry(actor, reason), note)
                paused = (changes[0], holders) if changes else None
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

    async def _snapshots(
        self,
        connection: WithinConnection,
        decisions: Mapping[JobId, JobDecision],
        causes: Mapping[str, CauseJob],
    ) -> list[JobSnapshot]:
        rows = await self._database.fetch("jobs_to_change", connection, job_ids=list(decisions))
        if not rows:
            return []
        now: datetime = rows[0]["moment"]
        jobs = await self._jobs_from(rows, connection)
        names = {name for decision in decisions.values() for name in decision.calendars}
        names |= {name for job in jobs if (rule := calendar_of(job.rule)) for name in rule.names}
        held: list[Any] = []
        if names:
            await self._database.fetch("hold_calendars", connection, names=sorted(names))
            held = await self._database.fetch("present_calendars", connection, names=sorted(names))
        calendars = {row["name"]: version_from(row) for row in held}
        ids = [job.id for job in jobs]
        pending = await self._take_occurrences(connection, ids)
        live = await self._database.fetch("promoted_until", connection, job_ids=ids, first_ahead=first_id_at(now))
        promoted_until = {row["job_id"]: row["scheduled_for"] for row in live}
        return [
            JobSnapshot(
                job=job,
                pending=pending.get(job.id),
                promoted_until=promoted_until.get(job.id),
                now=now,
                causes=causes,
                calendars=calendars,
            )
            for job in jobs
        ]

    async def _take_occurrences(
        self, connection: WithinConnection, job_ids: Sequence[JobId]
    ) -> dict[JobId, NextOccurrence]:
        """Delete the pending occurrences. After waiting for a promotion, a delete sees neither its row nor the successor: repeat it."""
        taken: dict[JobId, NextOccurrence] = {}
        left = list(job_ids)
        while left:
            rows = await self._database.fetch("take_occurrences", connection, job_ids=left)
            taken |= {row["job_id"]: pending_from(row) for row in rows}
            left = [job_id for job_id in left if job_id not in taken]
            if left:
                rows = await self._database.fetch("jobs_with_occurrence", connection, job_ids=left)
                left = [row["job_id"] for row in rows]
        return taken

    async def _write(
        self, connection: WithinConnection, steps: Sequence[_Step], audit: AuditEntry, note: UUID
    ) -> list[Any]:
        run = partial(self._run_for, connection)
        jobs = {change.job.id: change.job for _, change in steps}
        await self._check_instants(connection, steps)
        for snapshot, change in steps:
            await self._check_name(connection, snapshot.job, change.job)
        outdated = [job.id for before, job in _pairs(steps) if job.is_enqueued and job.version != before.version]
        await run("keep_versions", job_ids=outdated)
        columns = {job.id: without_nulls(job_columns(job)) for job in jobs.values()}
        try:
            await run("write_jobs", jobs=columns.values())
        except asyncpg.UniqueViolationError as error:
            raise name_conflict([job.name or "" for before, job in _pairs(steps) if job.name != before.name]) from error
        await self._write_bonds(connection, steps)
        await self._write_limits(connection, steps)
        await self._write_versions(connection, steps)
        await self._record_skipped(connection, steps)
        await run("drop_resumptions", job_ids=list(jobs))
        resumed = [(change.job, change.resume_at) for _, change in steps if change.resume_at is not None]
        await run("put_resumptions", resumptions=[self._resumption_columns(*each) for each in resumed])
        # The caller knows the id of an enqueued execution: it stays unless it is moved, and is parked or cancelled like others.
        pending = [
            (change.job, change.pending or (snapshot.pending if change.job.is_enqueued else None))
            for snapshot, change in steps
        ]
        try:
            await run(
                "put_occurrences", occurrences=[_occurrence_columns(job, next_) for job, next_ in pending if next_]
            )
        except asyncpg.UniqueViolationError as error:
            raise OccurrenceRaceError from error
        await run("unpark", job_ids=[change.job.id for _, change in steps if change.unpark], parked_at=PARKED_AT)
        holders = await self._touch_executions(connection, steps)
        notes = chain([note], iter(self._database.env.new_id, None))
        entries = [
            audit_columns(
                id_, audit, change.action, f"job:{change.job.id}", *changed_fields(before, job, columns[job.id])
            )
            for (_, change), (before, job), id_ in zip(steps, _pairs(steps), notes, strict=False)
        ]
        await run("write_audit", entries=entries)
        return holders

    async def _run_for(self, connection: WithinConnection, name: str, /, **given: Any) -> list[Any]:
        """Run a statement for what its first parameter holds: ids, or rows, which are sent as JSON; not at all if that is empty."""
        first, values = next(iter(given.items()))
        if not values:
            return []
        if not first.endswith("ids"):
            given[first] = json_text(values)
        return await self._database.fetch(name, connection, **given)

    async def _write_bonds(self, connection: WithinConnection, steps: Sequence[_Step]) -> None:
        """What other rows know of jobs that are deleted or renamed."""
        run = partial(self._run_for, connection)
        deleted = [(before, job) for before, job in _pairs(steps) if job.deleted_at is not None]
        await run("forget_summaries", job_ids=[job.id for _, job in deleted])
        await run("forget_causes", ids=[job.id for before, job in deleted if before.is_followed])
        for before, job in _pairs(steps):
            if before.is_followed and job.deleted_at is None and job.name != before.name:
                await self._database.fetch("rename_cause", connection, id=job.id, name=job.name)

    async def _write_limits(self, connection: WithinConnection, steps: Sequence[_Step]) -> None:
        limits: dict[str, dict[str, Any]] = {}
        limited: dict[JobId, str] = {}
        for before, job in _pairs(steps):
            if job.limit_key is None or job.effective_limit is None:
                continue
            is_new = job.limit_key != before.limit_key
            gains_jobs = is_new or limits.get(job.limit_key, {}).get("gains_jobs", False)
            limits[job.limit_key] = {
                "key": job.limit_key,
                "max_running": job.effective_limit,
                "gains_jobs": gains_jobs,
            }
            if is_new:
                limited[job.id] = job.limit_key
        # If a limit is lower than before, a trigger moves ready executions beyond it back to `blocked` (timeball.block_excess).
        await self._run_for(connection, "set_limits", limits=limits.values())
        # Executions that were written before the limit count for it from now on; those with another limit keep that.
        # Repeated: executions that were claimed, finished or promoted in between are seen only by the next statement.
        while rows := await self._run_for(connection, "unlimited_jobs", job_ids=list(limited)):
            for row in rows:
                key = limited[row["job_id"]]
                await self._database.fetch("put_under_limit", connection, job_id=row["job_id"], limit_key=key)

    async def _write_versions(self, connection: WithinConnection, steps: Sequence[_Step]) -> None:
        opened = [
            {
                "job_id": change.job.id,
                "effective_from": change.effective_from,
                "tzdata": closing_tzdata(snapshot),
            }
            for snapshot, change in steps
            if change.effective_from is not None and not change.job.is_enqueued
        ]
        closed = [
            {"job_id": change.job.id, "closes_at": change.closes_at, "tzdata": closing_tzdata(snapshot)}
            for snapshot, change in steps
            if change.closes_at is not None
        ]
        await self._run_for(connection, "open_versions", versions=opened)
        await self._run_for(connection, "close_versions", versions=closed)

    async def _touch_executions(self, connection: WithinConnection, steps: Sequence[_Step]) -> list[Any]:
        run = partial(self._run_for, connection)
        withdrawn: dict[str, list[JobId]] = {}
        cancelled: dict[str, list[JobId]] = {}
        for _, change in steps:
            if change.withdraw is not None:
                withdrawn.setdefault(change.withdraw.value, []).append(change.job.id)
            elif change.cancel_waiting is not None:
                cancelled.setdefault(change.cancel_waiting, []).append(change.job.id)
        holders: list[Any] = []
        for reason, ids in withdrawn.items():
            await run("park_waiting", job_ids=ids, parked_at=PARKED_AT)
            # Repeated: executions that were unblocked in between are seen only by the next statement.
            while await self._database.fetch_value("is_queued", connection, job_ids=ids):
                await run("withdraw_waiting", job_ids=ids, reason=reason, parked_at=PARKED_AT)
            holders += await run("stop_held", job_ids=ids, reason=f"{SKIP_STOP}{reason}")
        for reason, ids in cancelled.items():
            # Repeated: executions that a scheduler promoted in between are seen only by the next statement.
            while rows := await run("waiting_of_jobs", job_ids=ids):
                await run("cancel_waiting", ids=[row["id"] for row in rows], reason=reason)
            holders += await run("stop_held", job_ids=ids, reason=f"{SKIP_STOP}deleted")
        return holders

    async def _record_skipped(self, connection: WithinConnection, steps: Sequence[_Step]) -> None:
        """Record each skipped occurrence that is alone as a skipped execution, and consecutive ones as a range."""
        skips = [
            (snapshot.job, skipped, tzdata)
            for snapshot, change in steps
            if change.skipped is not None
            for skipped, tzdata in skipped_with_tzdata(snapshot, change.skipped)
        ]
        ranges = [self._range_columns(*skip) for skip in skips if skip[1].first != skip[1].last]
        await self._run_for(connection, "record_skip_ranges", ranges=ranges)
        alone = [_skipped_columns(*skip) for skip in skips if skip[1].first == skip[1].last]
        await self._run_for(connection, "record_skipped", skipped=alone)

    def _range_columns(self, job: Job, skipped: SkippedRange, tzdata: str) -> dict[str, Any]:
        return {
            "id": self._database.env.new_id(),
            "job_id": job.id,
            "version": job.version,
            "tzdata": tzdata,
            "first_at": skipped.first,
            "last_at": skipped.last,
            "occurrences": skipped.count,
            "reason": skipped.reason.value,
        }

    def _resumption_columns(self, job: Job, resume_at: datetime) -> dict[str, Any]:
        return {
            "id": self._database.env.new_id(),
            "job_id": job.id,
            "shard": job.shard,
            "run_at": resume_at,
            "version": job.version,
            "queue": job.queue,
            "priority": job.priority,
            "handler": job.handler,
        }

    async def _check_instants(self, connection: WithinConnection, steps: Sequence[_Step]) -> None:
        """Conflict if a one-off is moved back to an instant that has a record: no instant has two records."""
        moved = {
            occurrence_id(job.id, job.rule.scheduled_at): (_named(job), job.rule.scheduled_at)
            for before, job in _pairs(steps)
            if not job.is_enqueued
            and isinstance(job.rule, Once)
            and not (isinstance(before.rule, Once) and before.rule.scheduled_at == job.rule.scheduled_at)
        }
        for row in await self._run_for(connection, "states_of_executions", ids=list(moved)):
            which, instant = moved[row["id"]]
            raise Conflict(
                f"{which} has an execution for {instant.isoformat()} already: {format_execution_id(row['id'])}",
                hint="choose another instant, or trigger the job",
            )

    async def _check_name(self, connection: WithinConnection, old: Job, new: Job) -> None:
        """Conflict if a job is given a name that another one has; the error of the index would end the transaction of a caller."""
        if new.name is None or new.name == old.name:
            return
        if await self.find_by_name(new.name, connection) is not None:
            raise name_conflict([new.name])

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


def _pairs(steps: Sequence[_Step]) -> Iterator[tuple[Job, Job]]:
    """Each job before and after its change."""
    return ((snapshot.job, change.job) for snapshot, change in steps)


def _named(job: Job) -> str:
    return "the job" if job.name is None else f"the job {job.name!r}"


def _occurrence_columns(job: Job, pending: NextOccurrence) -> dict[str, Any]:
    return {
        "id": pending.id,
        "job_id": job.id,
        "origin": (Origin.ENQUEUE if job.is_enqueued else Origin.SCHEDULE).value,
        "shard": job.shard,
        "run_at": pending.run_at,
        "scheduled_for": pending.scheduled_for,
        "watermark": None if job.is_enqueued else pending.watermark,
        "tzdata": pending.tzdata if job.rule.is_recurring else None,
        "version": job.version,
        "queue": job.queue,
        "priority": job.priority,
        "handler": job.handler,
        "executions_left": pending.executions_left,
        "limit_key": job.limit_key,
        "unique_key": job.unique_key,
        "expires_at": job.expiry_of(pending.scheduled_for),
        "has_follow_ups": job.has_follow_ups or None,
    }


def _skipped_columns(job: Job, skipped: SkippedRange, tzdata: str) -> dict[str, Any]:
    return {
        "id": occurrence_id(job.id, skipped.first),
        "job_id": job.id,
        "version": job.version,
        "queue": job.queue,
        "priority": job.priority,
        "handler": job.handler,
        "scheduled_for": skipped.first,
        "tzdata": tzdata,
        "reason": skipped.reason.value,
        "has_follow_ups": job.has_follow_ups or None,
    }


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
