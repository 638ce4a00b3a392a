"""Inserts jobs with their first executions: one, several, or very many; audits them, and wakes workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson

from timeball.domain.execution import Origin
from timeball.domain.job import JobSituation, JobView, come_after_each_other
from timeball.domain.policies import IfExists
from timeball.domain.scheduling.schedule import After
from timeball.domain.values.ids import ExecutionId, format_execution_id
from timeball.domain.values.json_text import to_json
from timeball.domain.wakeup import Wakeup
from timeball.errors import Conflict, StoreUnavailable
from timeball.store.db.columns import (
    PLAIN_FIELD_COLUMNS,
    calendar_citations,
    creation_audit,
    first_execution_columns,
    job_columns,
    json_text,
    without_nulls,
    write_audit,
)
from timeball.store.db.database import Database, WithinConnection, retry_write
from timeball.store.db.notifier import WAKEUP_MARGIN, Notifier
from timeball.store.db.rows import CitedCalendars, job_from
from timeball.store.follow_ups import hold_causes
from timeball.store.types import PARKED_AT, AuditEntry, CreatedJob, EnqueueRow, FirstExecution, PreparedJob

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore


# The rows of one statement of a bulk enqueue: few enough to be encoded while the database writes the rows before, and to end well within
# the timeout of a statement; enough to make the round trip irrelevant.
_BULK_SLICE = 2_500
# How often an enqueue looks at a key that other transactions give away meanwhile.
_LOOKS_AT_A_KEY = 50
_SHARED_COLUMNS = (*PLAIN_FIELD_COLUMNS, "version", "created_by")


# With these, all columns of a plain one-off.
PLAIN_COLUMNS = frozenset({*_SHARED_COLUMNS, "id", "payload", "shard", "kind", "scheduled_at"})


def prepare_job(job: Job) -> PreparedJob | None:
    """The shared columns of jobs like this one, checked and encoded once; None if it is not plain."""
    columns = job_columns(job)
    if not is_plain(job, columns):
        return None
    return PreparedJob(job, {name: columns[name] for name in _SHARED_COLUMNS} | {"meta": _json_or_none(job.meta)})


def _json_or_none(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def is_plain(job: Job, columns: Mapping[str, Any]) -> bool:
    """Whether this is a one-off without key, limit and other rare fields."""
    return job.is_enqueued and PLAIN_COLUMNS.issuperset(name for name, value in columns.items() if value is not None)


# How much the clock of the program may differ from that of the database. Beyond it wake-ups may be missing, and a sweep finds the work.
_CLOCK_SKEW = timedelta(seconds=1)


@dataclass(slots=True)
class _Written:
    """What one enqueue of several jobs has written so far, and has to announce once it is committed."""

    jobs: Mapping[UUID, Job]
    firsts: Mapping[UUID, FirstExecution]
    is_shown: bool
    created: dict[UUID, CreatedJob] = field(default_factory=dict)
    # Executions that waited and were given the arguments of a job.
    changed: dict[UUID, Job] = field(default_factory=dict)
    # Rows of new executions: of the first statement, whose wake-up is sent with it, and of later ones.
    placed: list[Any] = field(default_factory=list)
    placed_later: list[Any] = field(default_factory=list)
    freed_limits: list[str] = field(default_factory=list)


class Enqueuer:
    """Inserts jobs with their first executions."""

    def __init__(
        self, database: Database, notifier: Notifier, executions: ExecutionStore, promotion_window: timedelta
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._executions = executions
        self._promotion_window = promotion_window

    async def create(
        self,
        jobs: Sequence[Job],
        firsts: Sequence[FirstExecution],
        connection: WithinConnection | None = None,
        audit: AuditEntry | None = None,
        *,
        is_shown: bool = False,
        skips_taken_names: bool = False,
    ) -> list[CreatedJob]:
        """Insert jobs and their first executions; Conflict if a name is taken or a key awaited, and nothing is written.

        It is one statement, unless one of several jobs may be refused or changes what waits with its key.
        Within a *connection* of the caller no wake-up is sent: workers find the executions with their next sweep. With *audit*, the
        jobs are audited in the same transaction. If they are *is_shown*, the result has them as they were written. With
        *skips_taken_names*, jobs whose names are taken are missing in the result instead.
        """
        try:
            is_alone = len(jobs) == 1 and audit is None and not is_shown
            if is_alone and firsts and firsts[0].run_at is None and (prepared := prepare_job(jobs[0])):
                await self.enqueue(prepared, [(jobs[0].id, jobs[0].shard, jobs[0].payload)], connection)
                return [CreatedJob(jobs[0].id, firsts[0].id, is_new=True)]
            wakeup = self._wakeup_for([job for job in jobs if job.if_exists is IfExists.KEEP], firsts)
            carried = self._notifier.take_pending(wakeup) if connection is None and wakeup else None
            written = await self._notifier.send_with(
                carried,
                lambda wakeup: self._insert(
                    jobs, firsts, connection, wakeup, audit, is_shown=is_shown, skips_taken_names=skips_taken_names
                ),
            )
        except asyncpg.UniqueViolationError as error:
            raise Conflict(f"the database refused a second record: {error}") from error
        if connection is None:
            await self._executions.announce_placed(written.placed, is_ready_announced=carried is not None)
            await self._executions.announce_placed(written.placed_later, is_ready_announced=False)
            await self._executions.unblock_after_commit(sorted(set(written.freed_limits)))
        return [written.created[job.id] for job in jobs if job.id in written.created]

    async def _insert(
        self,
        jobs: Sequence[Job],
        firsts: Sequence[FirstExecution],
        connection: WithinConnection | None,
        wakeup: str | None,
        audit: AuditEntry | None,
        *,
        is_shown: bool,
        skips_taken_names: bool,
    ) -> _Written:
        cited, causes = _cited(jobs), _causes(jobs)
        note = None if audit is None else self._database.env.new_id()
        keeping = [job for job in jobs if job.if_exists is IfExists.KEEP]
        changing = [job for job in jobs if job.if_exists is not IfExists.KEEP]

        async def work(within: WithinConnection | None) -> _Written:
            written = _Written({job.id: job for job in jobs}, {first.job_id: first for first in firsts}, is_shown)
            await self._hold_calendars(cited, within)
            if keeping:
                linked = await self._with_causes(keeping, causes, within) if causes else keeping
                written.placed = await self._write_new(linked, firsts, within, wakeup, is_shown=is_shown)
                await self._note_new(written, written.placed, within)
                refused = [job for job in keeping if job.id not in written.created]
                if not skips_taken_names:
                    _refuse_taken_names(refused)
                elif any(job.id not in written.created and job.is_followed for job in linked):
                    raise Conflict(
                        "a job that another one was to come after was created by another caller meanwhile",
                        hint="repeat the request",
                    )
                await self._find_holders([job for job in refused if job.name is None], written, within)
            await self._change_or_follow(changing, written, within)
            if audit is not None and note is not None and within is not None:
                await self._audit_written(within, note, audit, written)
            return written

        if connection is not None:
            return await work(connection)
        if note is not None:
            return await self._database.once(work, note)
        # Of several jobs, none is written if one is refused. Calendars are held until their jobs are written.
        may_refuse = len(jobs) > 1 and (bool(changing) or any(job.name is not None for job in jobs))
        return await (self._database.repeat(work) if may_refuse or cited or causes else work(None))

    async def _with_causes(
        self, jobs: Sequence[Job], causes: Collection[str], connection: WithinConnection | None
    ) -> Sequence[Job]:
        """The jobs with those that they come after looked up and locked; these may be among them."""
        new = {job.name for job in jobs}
        known = await hold_causes(self._database, [name for name in causes if name not in new], connection)
        return come_after_each_other(jobs, known, self._database.env.clock.now())

    async def _hold_calendars(self, cited: Mapping[str, int], connection: WithinConnection | None) -> None:
        """Let no calendar change until jobs that cite its present version are written; CalendarChanged if one has changed already."""
        if not cited:
            return
        rows = await self._database.fetch("hold_calendars", connection, names=sorted(cited))
        present = {row["name"]: row["version"] for row in rows}
        if present != cited:
            raise CalendarChanged(next(name for name in sorted(cited) if present.get(name) != cited[name]))

    async def _write_new(
        self,
        jobs: Sequence[Job],
        firsts: Sequence[FirstExecution],
        connection: WithinConnection | None,
        wakeup: str | None,
        *,
        is_shown: bool,
    ) -> list[Any]:
        columns = [without_nulls(job_columns(job)) for job in jobs]
        is_due_now = all(first.run_at is None for first in firsts)
        if is_due_now and not is_shown and all(map(is_plain, jobs, columns)):
            return await self._database.fetch("create_plain_jobs", connection, jobs=json_text(columns), wakeup=wakeup)
        return await self._database.fetch(
            "create_and_show_jobs" if is_shown else "create_jobs",
            connection,
            jobs=json_text(columns),
            firsts=json_text(first_execution_columns(first) for first in firsts),
            promotion_window=self._promotion_window,
            wakeup=wakeup,
        )

    async def _note_new(self, written: _Written, rows: Sequence[Any], connection: WithinConnection | None) -> None:
        """Note jobs that were inserted."""
        calendars = await self._database.calendars.of(rows, connection) if written.is_shown and rows else {}
        for row in rows:
            view = _view_from(row, calendars) if written.is_shown else None
            written.created[row["job_id"]] = CreatedJob(row["job_id"], row["execution_id"], is_new=True, view=view)

    async def _audit_written(
        self, connection: WithinConnection, note: UUID, audit: AuditEntry, written: _Written
    ) -> None:
        """Audit what was written, if anything was; the first entry has the id *note*."""
        ids = chain([note], iter(self._database.env.new_id, None))
        new = [job for id_, job in written.jobs.items() if (made := written.created.get(id_)) and made.is_new]
        if len(new) == 1:
            entry = creation_audit(new[0], next(ids), audit)
            await self._database.fetch("write_audit", connection, entries=json_text([entry]))
        elif new:
            facts = {"count": len(new), "jobs": [job.name or str(job.id) for job in new[:100]]}
            subject = f"{len(new)} jobs"
            await write_audit(self._database, connection, next(ids), audit, "job.create", subject, None, facts)
        for holder, job in written.changed.items():
            after = {"payload": orjson.loads(job.payload), "meta": job.meta, "created_by": job.created_by}
            subject = f"job:{holder}"
            await write_audit(self._database, connection, next(ids), audit, "job.update", subject, {}, after)

    async def _find_holders(
        self, refused: Sequence[Job], written: _Written, connection: WithinConnection | None
    ) -> None:
        """Note the executions that have the keys of these one-offs; a one-off whose key became free meanwhile is inserted."""
        for _ in range(_LOOKS_AT_A_KEY):
            if not refused:
                return
            rows = await self._database.fetch("live_keys", connection, keys=[job.unique_key for job in refused])
            holders = {row["key"]: ExecutionId(row["execution_id"]) for row in rows}
            for job in refused:
                if job.unique_key in holders:
                    written.created[job.id] = CreatedJob(job.id, holders[job.unique_key], is_new=False)
            free = [job for job in refused if job.unique_key not in holders]
            if free:
                await self._insert_again(free, written, connection)
            refused = [job for job in free if job.id not in written.created]
        raise _restless_key(refused[0])

    async def _change_or_follow(
        self, jobs: Sequence[Job], written: _Written, connection: WithinConnection | None
    ) -> None:
        """Enqueue one-offs that change what waits with their keys, or run after what has begun."""
        alike: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            assert job.unique_key is not None
            alike.setdefault((job.unique_key, job.handler), []).append(job)
        # Two callers take their keys in one order, and wait for each other instead of meeting a deadlock.
        for of_key in sorted(alike, key=lambda pair: pair[0]):
            for _, in_a_row in groupby(alike[of_key], lambda job: job.if_exists):
                # Of several that do the same, the last one counts.
                *earlier, last = in_a_row
                met = await self._meet_holder(last, written, connection)
                written.created[last.id] = met
                for job in earlier:
                    written.created[job.id] = CreatedJob(job.id, met.execution_id, is_new=False)

    async def _meet_holder(self, job: Job, written: _Written, connection: WithinConnection | None) -> CreatedJob:
        """Change the waiting execution that has the key, or insert one that runs after it.

        Each statement is whole by itself; what another transaction does in between is seen by the next look.
        """
        for _ in range(_LOOKS_AT_A_KEY):
            facts = await self._database.fetch_row("key_facts", connection, key=job.unique_key)
            assert facts is not None
            successor, holder = facts["successor_id"], None if facts["has_ended"] else facts["holder_id"]
            rival = None
            if successor is not None:
                if await self._change_waiting(successor, job, written, connection):
                    return CreatedJob(job.id, ExecutionId(successor), is_new=False)
                rival = await self._database.fetch_row("standing_of_waiting", connection, id=successor)
                if rival is None or _is_alike(rival, job):
                    continue  # it has begun meanwhile, and has the key now; or it was moving from one table to another
            if holder is not None:
                if await self._change_waiting(holder, job, written, connection):
                    return CreatedJob(job.id, ExecutionId(holder), is_new=False)
                standing = await self._database.fetch_row("standing_of_waiting", connection, id=holder)
                if standing is not None and _is_alike(standing, job):
                    continue
            if rival is not None:
                raise _awaited_by_another(job, successor, rival["handler"])
            if facts["is_held"]:
                return CreatedJob(job.id, ExecutionId(facts["holder_id"]), is_new=False)
            if holder is None:
                await self._insert_again([job], written, connection)
            else:
                await self._insert_successor(job, written, connection)
            if job.id in written.created:
                return written.created[job.id]
        raise _restless_key(job)

    async def _change_waiting(
        self, waiting: UUID, job: Job, written: _Written, connection: WithinConnection | None
    ) -> bool:
        """Give a waiting execution the newest arguments, and the newest time if the job says so; False if it cannot be changed."""
        newest = {
            "id": waiting,
            "key": job.unique_key,
            "handler": job.handler,
            "payload": job.payload,
            "meta": None if job.meta is None else to_json(job.meta),
            "created_by": job.created_by,
            "bound_secrets_only": job.bound_secrets_only or None,
            "run_at": written.firsts[job.id].run_at,
        }
        if job.if_exists is IfExists.REPLACE:
            rows = await self._database.fetch("replace_waiting", connection, **newest)
            if rows and job.limit_key is not None:
                # A place that came free meanwhile was passed on to others, because this one was locked.
                written.freed_limits.append(job.limit_key)
        else:
            rows = await self._database.fetch("extend_waiting", connection, **newest, parked_at=PARKED_AT)
            written.placed_later += rows
            written.freed_limits += [row["limit_key"] for row in rows if row["limit_key"]]
        if rows:
            written.changed[waiting] = job
        return bool(rows)

    async def _insert_again(self, jobs: Sequence[Job], written: _Written, connection: WithinConnection | None) -> None:
        """Insert one-offs whose keys were free a moment ago; those whose keys are taken again are left out."""
        await self._database.fetch("free_keys", connection, keys=[job.unique_key for job in jobs])
        firsts = [written.firsts[job.id] for job in jobs]
        rows = await self._write_new(jobs, firsts, connection, None, is_shown=written.is_shown)
        await self._note_new(written, rows, connection)
        written.placed_later += rows

    async def _insert_successor(self, job: Job, written: _Written, connection: WithinConnection | None) -> None:
        """Insert a one-off that runs after the one that has the key; not if another waits for that already."""
        columns, run_at = without_nulls(job_columns(job)), written.firsts[job.id].run_at
        rows = await self._database.fetch("create_successor", connection, jobs=json_text([columns]), run_at=run_at)
        if rows:
            written.created[job.id] = CreatedJob(job.id, written.firsts[job.id].id, is_new=True)
            written.placed_later += rows

    def _wakeup_for(self, jobs: Sequence[Job], firsts: Sequence[FirstExecution]) -> Wakeup:
        """The wake-up for new executions; without those that lie further ahead than workers hold, whichever clock is right."""
        wakeup = Wakeup()
        now = self._database.env.clock.now()
        horizon = now + self._promotion_window + _CLOCK_SKEW
        near = {first.job_id: first for first in firsts if first.run_at is None or first.run_at <= horizon}
        ready = [job for job in jobs if job.id in near]
        for job in ready[:100]:
            # With an id only if it is due now: executions to be held are claimed by lane.
            named = near[job.id].id if near[job.id].run_at is None else None
            wakeup.add_lane(job.queue, job.priority, now - WAKEUP_MARGIN, 1, named)
        wakeup.look_everywhere = len(ready) > 100
        return wakeup

    async def enqueue(
        self, prepared: PreparedJob, rows: Sequence[EnqueueRow], connection: WithinConnection | None = None
    ) -> None:
        """Insert plain one-offs that are due now, in one statement; within a *connection* of the caller no wake-up is sent."""
        if connection is None:
            await self._write_and_wake(prepared, rows)
        else:
            await self._write_alike(prepared, rows, connection, None)

    def direct_write(self, prepared: PreparedJob, row: EnqueueRow) -> DirectWrite:
        """Insert one of them outside the pool: a `with` block gives the parameters of `enqueue_one`, which the caller runs in it."""
        return DirectWrite(
            self._notifier,
            self._wakeup_of(prepared, 1, row[0]),
            prepared,
            row,
            self._database.env.clock.statement_now(),
        )

    async def _write_and_wake(self, prepared: PreparedJob, rows: Sequence[EnqueueRow]) -> None:
        wakeup = self._wakeup_of(prepared, len(rows), rows[0][0] if len(rows) == 1 else None)
        carried = self._notifier.take_pending(wakeup)
        await self._notifier.send_with(carried, lambda wakeup: self._write_alike(prepared, rows, None, wakeup))
        if carried is None:
            self._notifier.tell(wakeup)

    def _wakeup_of(self, prepared: PreparedJob, executions: int, alone: UUID | None) -> Wakeup:
        moment = self._database.env.clock.now() - WAKEUP_MARGIN
        return Wakeup({(prepared.job.queue, prepared.job.priority): moment}, executions=executions, named=alone)

    async def _write_alike(
        self,
        prepared: PreparedJob,
        rows: Sequence[EnqueueRow],
        connection: WithinConnection | None,
        wakeup: str | None,
    ) -> None:
        if len(rows) == 1:
            ((id_, shard, payload),) = rows
            own: dict[str, Any] = {"id": id_, "shard": shard, "payload": payload}
            await self._database.fetch("enqueue_one", connection, **prepared.columns, **own, wakeup=wakeup)
            return
        ids, shards, payloads = zip(*rows, strict=True)
        each: dict[str, Any] = {"ids": ids, "shards": shards, "payloads": payloads}
        await self._database.fetch("enqueue_alike", connection, **prepared.columns, **each, wakeup=wakeup)

    async def create_many(
        self, template: Job, rows: Iterable[EnqueueRow], run_at: datetime | None, audit: AuditEntry | None = None
    ) -> list[UUID]:
        """Insert many one-off jobs that differ only in (id, shard, payload), all or none, with one audit row; returns their ids.

        Without *run_at* they are due now, by the clock of the database. *rows* is consumed while rows are written, so that making them
        takes no extra time.
        """
        rows = iter(rows)
        prepared = prepare_job(template) if run_at is None else None
        if prepared is None:
            return await self._create_many_at(template, rows, run_at, audit)
        first = list(islice(rows, _BULK_SLICE + 1))
        if audit is None and len(first) <= _BULK_SLICE:
            await self._enqueue_whole(prepared, first)
            return [id_ for id_, _, _ in first]
        return await self._enqueue_slices(prepared, chain(first, rows), audit)

    async def _enqueue_whole(self, prepared: PreparedJob, rows: Sequence[EnqueueRow]) -> None:
        async def write() -> bool:
            await self.enqueue(prepared, rows)
            return True

        try:
            await write()
        except StoreUnavailable:
            await retry_write(self._database.env.clock, lambda: self._is_written(rows[0][0]), write)

    async def _is_written(self, first: UUID) -> bool | None:
        return bool(await self._database.fetch("find_jobs", ids=[first])) or None

    @asynccontextmanager
    async def _whole(self, slices: _BulkSlices) -> AsyncIterator[Connection]:
        """Run a transaction, and look it up if the reply to its commit is lost.

        It is not repeated, because its rows were consumed while they were written.
        """
        is_whole = False
        try:
            async with self._database.transaction() as connection:
                yield connection
                is_whole = True
        except StoreUnavailable as error:
            if not is_whole:
                raise
            unknown = error

            async def refuse() -> bool:
                raise unknown

            await retry_write(self._database.env.clock, lambda: self._is_written(slices.ids[0]), refuse)

    async def _enqueue_slices(
        self, prepared: PreparedJob, rows: Iterator[EnqueueRow], audit: AuditEntry | None
    ) -> list[UUID]:
        moment, slices = self._database.env.clock.now() - WAKEUP_MARGIN, _BulkSlices(rows)
        given = {**prepared.columns, "wakeup": None}
        async with self._whole(slices) as connection:
            await self._database.run_pipelined(connection, (("enqueue_alike", given | own) for own in slices))
            await self._audit_bulk(connection, prepared.job, len(slices.ids), audit)
        self._wake_for_bulk(prepared.job, (), moment, is_ready=True)
        return slices.ids

    async def _create_many_at(
        self, template: Job, rows: Iterator[EnqueueRow], run_at: datetime | None, audit: AuditEntry | None
    ) -> list[UUID]:
        moment, slices = await self._database.fetch_value("moment"), _BulkSlices(rows)
        starts_at = run_at or moment
        is_ready = starts_at <= moment + self._promotion_window
        names = "enqueue_jobs", "enqueue_ready" if is_ready else "enqueue_due"
        at = {"scheduled_at": starts_at, "created_at": moment, "updated_at": moment}
        given = {"template": json_text([job_columns(template) | at])}
        async with self._whole(slices) as connection:
            await self._database.run_pipelined(connection, ((name, given | own) for own in slices for name in names))
            await self._audit_bulk(connection, template, len(slices.ids), audit)
        self._wake_for_bulk(template, slices.shards, starts_at, is_ready=is_ready)
        return slices.ids

    async def _audit_bulk(self, connection: Connection, template: Job, count: int, audit: AuditEntry | None) -> None:
        if audit is not None:
            facts = {"count": count, "handler": template.handler, "queue": template.queue}
            await write_audit(
                self._database,
                connection,
                self._database.env.new_id(),
                audit,
                "job.create",
                f"{count} jobs",
                None,
                facts,
            )

    def _wake_for_bulk(self, template: Job, shards: Iterable[int], starts_at: datetime, *, is_ready: bool) -> None:
        wakeup = Wakeup()
        if is_ready:
            wakeup.add_lane(template.queue, template.priority, starts_at)
        else:
            for shard in shards:
                wakeup.add_shard(shard, starts_at)
        self._notifier.tell(wakeup)


class DirectWrite:
    """One job while it is written outside the pool: gives the parameters of `enqueue_one`, and sends its wake-up.

    Not a generator: every enqueue makes one, and a generator would take longer than its work.
    """

    __slots__ = ("_carried", "_notifier", "_now", "_prepared", "_row", "_wakeup")

    def __init__(
        self, notifier: Notifier, wakeup: Wakeup, prepared: PreparedJob, row: EnqueueRow, now: datetime | None
    ) -> None:
        self._notifier = notifier
        self._wakeup = wakeup
        self._prepared = prepared
        self._row = row
        self._now = now
        self._carried: Wakeup | None = None

    def __enter__(self) -> Mapping[str, Any]:
        self._carried = self._notifier.take_pending(self._wakeup)
        wakeup = None if self._carried is None else self._carried.encode()
        id_, shard, payload = self._row
        return {
            **self._prepared.columns,
            "id": id_,
            "shard": shard,
            "payload": payload,
            "wakeup": wakeup,
            "now": self._now,
        }

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            if self._carried is None:
                self._notifier.tell(self._wakeup)
        elif self._carried is not None:
            # They may announce the work of other writes, too.
            self._notifier.tell(self._carried)


class _BulkSlices:
    """Rows as parameters of statements, slice by slice; and the ids of those consumed so far."""

    def __init__(self, rows: Iterator[EnqueueRow]) -> None:
        self._rows = rows
        self.ids: list[UUID] = []
        self.shards: set[int] = set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while part := list(islice(self._rows, _BULK_SLICE)):
            ids, shards, payloads = zip(*part, strict=True)
            self.ids += ids
            self.shards.update(shards)
            yield {"ids": ids, "shards": shards, "payloads": payloads}


def _view_from(row: Any, calendars: CitedCalendars) -> JobView:
    """A new job as it was written: nothing of it has run yet."""
    is_waiting = row["state_table"] == "due"
    situation = JobSituation(row["execution_id"] is not None, row["run_at"] if is_waiting else None)
    return JobView(job_from(row, calendars), situation)


def _cited(jobs: Sequence[Job]) -> dict[str, int]:
    """The calendars that some jobs cite, and their versions."""
    return {name: cited["version"] for job in jobs for name, cited in (calendar_citations(job) or {}).items()}


def _causes(jobs: Sequence[Job]) -> set[str]:
    """The names of the jobs that some jobs come after."""
    return {job.rule.cause for job in jobs if isinstance(job.rule, After)}


class CalendarChanged(Conflict):
    """A calendar has changed since a job was made that cites it: the job is made once more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the calendar {name!r} was changed or deleted meanwhile", hint="repeat the request")


def name_conflict(names: Sequence[str]) -> Conflict:
    """The error for names that other jobs have."""
    which = f"a job named {names[0]!r}" if len(names) == 1 else f"jobs named {', '.join(map(repr, names[:3]))}"
    return Conflict(f"there is already {which}", hint="choose another name, or update that job", names=list(names))


def _restless_key(job: Job) -> Conflict:
    return Conflict(
        f"the unique_key {job.unique_key!r} changed hands all the while", hint="repeat the request", field="unique_key"
    )


def _is_alike(standing: Mapping[str, Any], job: Job) -> bool:
    """Whether a waiting execution may be given the arguments of this one-off: it was enqueued, too, for the same handler."""
    return (standing["origin"], standing["handler"]) == (Origin.ENQUEUE.value, job.handler)


def _awaited_by_another(job: Job, waiting: UUID, handler: str) -> Conflict:
    return Conflict(
        f"the unique_key {job.unique_key!r} is awaited by {format_execution_id(waiting)} of {handler}, expected one of {job.handler}",
        hint="give each handler keys of its own",
        field="unique_key",
    )


def _refuse_taken_names(missing: Iterable[Job]) -> None:
    names = sorted(job.name for job in missing if job.name is not None)
    if names:
        raise name_conflict(names)
