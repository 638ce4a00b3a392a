"""Create, edit, pause, delete and declare jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from timeball.application.commands.requests import LOCAL, Actor, check_version, new_ids
from timeball.domain import job_changes
from timeball.domain.execution import Origin
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS, confine_calls
from timeball.domain.handler import ADMIN_HANDLERS, clear_inherited_limit
from timeball.domain.job import Job, JobView, KnownCalendars, causes_first, define_job, redefine_job
from timeball.domain.job_changes import (
    JobChange,
    JobSnapshot,
    SyncAction,
    SyncedJob,
    check_declaration,
    declared_changes,
    declared_fields,
    plan_sync,
)
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import SkipReason
from timeball.domain.scheduling.calendars import CalendarVersion, possible_names
from timeball.domain.scheduling.occurrences import SkippedRange, first_occurrence
from timeball.domain.scheduling.schedule import Once
from timeball.domain.values.ids import ExecutionId, IdempotentRequest, JobId, shard_of
from timeball.domain.values.json_text import to_json
from timeball.domain.values.text import check_label
from timeball.domain.wakeup import Wakeup
from timeball.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from timeball.store.db.database import retry_write
from timeball.store.enqueue import CalendarChanged, prepare_job
from timeball.store.types import AuditEntry, EnqueueRow, FirstExecution, JobDecision, OccurrenceRaceError, PreparedJob
from timeball.store.types import CreatedJob as CreatedJob

if TYPE_CHECKING:
    from timeball.application.commands.requests import ContractChecks
    from timeball.env import Env
    from timeball.store.db.database import WithinConnection
    from timeball.store.db.direct_connection import DirectConnection
    from timeball.store.store import Store

_PREPARE_BATCH = 50
_DEFINE_BATCH = 1_000
_MAX_TRIES = 5
_CALENDAR_ATTEMPTS = 5
_DECLARATION = Actor("declaration")
_Created = TypeVar("_Created")


@dataclass(frozen=True, slots=True)
class DefinedJob:
    """A job, and what was done so that it is as it was asked for: created, changed or left. A new one has its view."""

    job: Job
    action: SyncAction = SyncAction.CREATE
    view: JobView | None = None


@dataclass(frozen=True, slots=True)
class _DefinitionPlan:
    """What is to be done with many jobs: those that stay, are created, and are changed; with its cause one that comes after another."""

    left: dict[str, DefinedJob] = field(default_factory=dict)
    new: list[tuple[Job, FirstExecution | None]] = field(default_factory=list)
    changed: dict[JobId, JobDecision] = field(default_factory=dict)
    following: dict[JobId, tuple[JobDecision, str]] = field(default_factory=dict)


class JobCommands:
    """Create, edit, pause, delete and declare jobs."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts

    async def existing(self, job_id: JobId) -> Job:
        """A job; NotFound if there is none, or if it was deleted."""
        job = (await self._store.jobs.find([job_id])).get(job_id)
        if job is None or job.deleted_at is not None:
            raise NotFound("job", job_id)
        return job

    # create

    async def create(
        self,
        spec: JobSpec,
        connection: WithinConnection | None = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_shown: bool = False,
    ) -> CreatedJob:
        """Create one job; in the transaction of *connection*, if one is given.

        If it *is_shown*, the result has the job as it was written, unless an earlier call has written it.
        """
        return (await self.create_all([spec], connection, actor, idempotency, is_shown=is_shown))[0]

    async def create_all(
        self,
        specs: Sequence[JobSpec],
        connection: WithinConnection | None = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_shown: bool = False,
    ) -> list[CreatedJob]:
        """Create jobs, all or none. A one-off whose `unique_key` is held returns the execution that holds it."""
        return await self._with_calendars(
            specs,
            lambda calendars: self._create_all(specs, calendars, connection, actor, idempotency, is_shown=is_shown),
            connection,
        )

    async def _with_calendars(
        self,
        specs: Sequence[JobSpec],
        create: Callable[[KnownCalendars], Awaitable[_Created]],
        connection: WithinConnection | None = None,
    ) -> _Created:
        """Create jobs by the present versions of their calendars; once more, if one changes before they are written."""
        for _ in range(_CALENDAR_ATTEMPTS):
            try:
                return await create(await self.calendars_of(specs, connection))
            except CalendarChanged:
                continue
        return await create(await self.calendars_of(specs, connection))

    async def calendars_of(
        self, specs: Sequence[JobSpec], connection: WithinConnection | None = None
    ) -> dict[str, CalendarVersion]:
        """The calendars that some specs name, in their present versions. Specs without calendars cost no statement."""
        names = possible_names(name for spec in specs for name in (*spec.skip_on, *spec.only_on))
        return await self._store.calendars.present(names, connection) if names else {}

    async def _create_all(
        self,
        specs: Sequence[JobSpec],
        calendars: KnownCalendars,
        connection: Any,
        actor: Actor,
        idempotency: IdempotentRequest | None,
        *,
        is_shown: bool,
    ) -> list[CreatedJob]:
        prepared: list[tuple[Job, FirstExecution | None]] = []
        for number, pair in enumerate(self._prepare_each(specs, actor, idempotency, calendars), start=1):
            prepared.append(pair)
            if number % _PREPARE_BATCH == 0:
                # Thousands of schedules take seconds; let other tasks of this event loop run in between.
                await asyncio.sleep(0)
        jobs, openings = [job for job, _ in prepared], [opening for _, opening in prepared if opening is not None]
        if idempotency is not None and idempotency.is_repeated:
            done = await self._created_before(jobs, openings)
            if done is not None:
                return [await self._as_it_is(created) for created in done]
        return await self._write_new(jobs, openings, connection, actor, is_shown=is_shown)

    async def _write_new(
        self,
        jobs: Sequence[Job],
        openings: Sequence[FirstExecution],
        connection: WithinConnection | None,
        actor: Actor,
        *,
        is_shown: bool = False,
    ) -> list[CreatedJob]:
        # Definitions and bulk actions are audited; the enqueue of a one-off is not, except of an administrator's handler.
        is_noted = any(not job.is_enqueued or job.handler in ADMIN_HANDLERS for job in jobs)
        is_noted = is_noted or (actor is not LOCAL and len(jobs) > 1)
        audit = actor.entry if is_noted else None
        if connection is not None:
            return await self._store.enqueuer.create(jobs, openings, connection, audit, is_shown=is_shown)
        try:
            return await self._store.enqueuer.create(jobs, openings, audit=audit, is_shown=is_shown)
        except StoreUnavailable:
            return await self._write_again(jobs, openings, audit)

    async def _write_again(
        self, jobs: Sequence[Job], openings: Sequence[FirstExecution], audit: AuditEntry | None = None
    ) -> list[CreatedJob]:
        return await retry_write(
            self._env.clock,
            lambda: self._created_before(jobs, openings),
            lambda: self._store.enqueuer.create(jobs, openings, audit=audit),
        )

    async def _created_before(self, jobs: Sequence[Job], openings: Sequence[FirstExecution]) -> list[CreatedJob] | None:
        """The result of a create whose reply was lost, if it was committed; its ids were chosen here, so they show it."""
        written = await self._store.jobs.find([job.id for job in jobs])
        if not written:
            return None
        executions = {opening.job_id: opening.id for opening in openings}
        done = {job_id: CreatedJob(job_id, executions.get(job_id), is_new=True) for job_id in written}
        # One statement wrote the others, so a missing job was refused for its unique key; a second try names the holder.
        missing = [job for job in jobs if job.id not in written]
        if missing:
            again = await self._store.enqueuer.create(missing, [o for o in openings if o.job_id not in written])
            done |= {created.job_id: created for created in again}
        return [done[job.id] for job in jobs]

    async def _as_it_is(self, created: CreatedJob) -> CreatedJob:
        """The first execution of a recurring job that was created earlier is unknown, so its current one is returned."""
        current = await self._store.history.current_of(created.job_id)
        return created if current is None else replace(created, execution_id=current)

    def prepare(
        self,
        specs: Sequence[JobSpec],
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        calendars: KnownCalendars = None,
    ) -> list[tuple[Job, FirstExecution | None]]:
        """Check specs and turn them into jobs with their first executions, ready to be written.

        *calendars* are those that the specs name (`calendars_of`); without them, jobs with calendars cannot be written.
        """
        return list(self._prepare_each(specs, actor, idempotency, calendars))

    def _prepare_each(
        self,
        specs: Sequence[JobSpec],
        actor: Actor,
        idempotency: IdempotentRequest | None,
        calendars: KnownCalendars,
    ) -> Iterator[tuple[Job, FirstExecution | None]]:
        now = self._env.clock.now()
        ids = (
            map(JobId, idempotency.ids(len(specs)))
            if idempotency is not None
            else (JobId(self._env.new_id()) for _ in specs)
        )
        for spec, id_ in zip(specs, ids, strict=True):
            job, opening = self.prepare_one(spec, now, id_, actor, calendars)
            self._contracts.check_payload(job.handler, job.payload, actor)
            if job.has_follow_ups:
                self._contracts.check_follow_ups(calls_of(job), actor)
            yield job, opening

    def prepare_one(
        self, spec: JobSpec, now: datetime, job_id: JobId, actor: Actor, calendars: KnownCalendars = None
    ) -> tuple[Job, FirstExecution | None]:
        is_immediate = _is_immediate(spec)
        dated = replace(spec, scheduled_at=now) if is_immediate else spec
        job = define_job(dated, job_id, now, self._store.shards, actor.created_by, calendars)
        if actor.is_confined(job.payload):
            job = replace(job, bound_secrets_only=True)
        if job.has_follow_ups:
            job = confined_job(job, actor)
        if is_immediate:
            return job, _immediate_execution(job)
        first = first_occurrence(job, now)
        if first is None:
            return job, None
        return job, FirstExecution(
            id=first.id,
            job_id=job.id,
            origin=Origin.ENQUEUE if job.is_enqueued else Origin.SCHEDULE,
            run_at=first.run_at,
            scheduled_for=first.scheduled_for,
            watermark=None if job.is_enqueued else now,
            tzdata=None if isinstance(job.rule, Once) else first.tzdata,
            executions_left=first.executions_left,
        )

    def prepared_job(self, spec: JobSpec) -> PreparedJob | None:
        """What one-offs of this definition have in common, checked and encoded once; None if they are not plain, or not due now."""
        if not _is_immediate(spec) or spec.handler in ADMIN_HANDLERS:
            return None
        now = self._env.clock.now()
        dated = replace(spec, scheduled_at=now)
        return prepare_job(define_job(dated, JobId(self._env.new_id()), now, self._store.shards, LOCAL.created_by))

    async def enqueue(self, prepared: PreparedJob, payloads: Sequence[str], actor: Actor = LOCAL) -> list[CreatedJob]:
        """Create one-offs of a prepared job, due now, with these payloads (JSON texts): all or none, in one statement."""
        for payload in payloads:
            self._contracts.check_payload(prepared.job.handler, payload, actor)
        rows = list(self._rows_for(payloads))
        try:
            await self._store.enqueuer.enqueue(prepared, rows)
        except StoreUnavailable:
            return await self.make_sure(prepared, rows)
        return [_created_one_off(id_) for id_, _, _ in rows]

    def prepare_row(self, prepared: PreparedJob, payload: str) -> EnqueueRow:
        """Check the payload of a one-off of a prepared job, and give it its id."""
        self._contracts.check_payload(prepared.job.handler, payload, LOCAL)
        id_ = self._env.new_id()
        return id_, shard_of(id_, self._store.shards), payload

    def enqueue_direct(self, prepared: PreparedJob, row: EnqueueRow, connection: DirectConnection) -> CreatedJob:
        """Create a one-off, due now, on a connection of the caller's own; if that fails, `make_sure` tells the outcome."""
        with self._store.enqueuer.direct_write(prepared, row) as values:
            connection.run("enqueue_one", values)
        return _created_one_off(row[0])

    async def aenqueue_direct(self, prepared: PreparedJob, row: EnqueueRow, connection: DirectConnection) -> CreatedJob:
        """Like `enqueue_direct`, for coroutines."""
        with self._store.enqueuer.direct_write(prepared, row) as values:
            await connection.arun("enqueue_one", values)
        return _created_one_off(row[0])

    async def make_sure(self, prepared: PreparedJob, rows: Sequence[EnqueueRow]) -> list[CreatedJob]:
        """Write one-offs whose first write has an unknown outcome: they are looked up by their ids, and written if they are missing."""
        jobs = [replace(prepared.job, id=JobId(id_), shard=shard, payload=payload) for id_, shard, payload in rows]
        return await self._write_again(jobs, [_immediate_execution(job) for job in jobs])

    def _rows_for(self, payloads: Sequence[str], idempotency: IdempotentRequest | None = None) -> Iterator[EnqueueRow]:
        shards = self._store.shards
        ids = new_ids(self._env, len(payloads), idempotency)
        return ((id_, shard_of(id_, shards), payload) for id_, payload in zip(ids, payloads, strict=True))

    async def enqueue_many(
        self, spec: JobSpec, payloads: Sequence[str], actor: Actor = LOCAL, idempotency: IdempotentRequest | None = None
    ) -> list[ExecutionId]:
        """Create many one-offs that differ only in their payloads (JSON texts): all or none.

        A payload that its handler never accepts is refused under its number. Audited as one entry, unless it is local work.
        """
        if spec.unique_key is not None or spec.max_running is not None or spec.schedule is not None:
            raise InvalidInput(
                "unique_key, max_running and schedules cannot be given to a bulk enqueue; create them singly"
            )
        self._contracts.check_payloads(spec.handler, payloads, actor)
        now = self._env.clock.now()
        due_at = spec.scheduled_at
        dated = replace(spec, name=None, scheduled_at=due_at or now)
        template = define_job(dated, JobId(self._env.new_id()), now, self._store.shards, actor.created_by)
        if not actor.is_administrator and any(actor.is_confined(payload) for payload in payloads):
            template = replace(template, bound_secrets_only=True)
        if template.has_follow_ups:
            self._contracts.check_follow_ups(calls_of(template), actor)
            template = confined_job(template, actor)
        assert isinstance(template.rule, Once)
        if not payloads:
            return []
        is_noted = actor is not LOCAL or spec.handler in ADMIN_HANDLERS
        run_at, audit = template.rule.scheduled_at if due_at else None, actor.entry if is_noted else None
        if idempotency is not None and idempotency.is_repeated:
            ids = list(idempotency.ids(len(payloads)))
            if await self._store.jobs.find([JobId(ids[0])]):
                return [ExecutionId(id_) for id_ in ids]
        ids = await self._store.enqueuer.create_many(template, self._rows_for(payloads, idempotency), run_at, audit)
        return [ExecutionId(id_) for id_ in ids]

    # edit

    async def update(
        self,
        job_id: JobId,
        fields: Mapping[str, Any],
        actor: Actor = LOCAL,
        expected_version: int | None = None,
        connection: WithinConnection | None = None,
        *,
        is_unchecked: bool = False,
    ) -> Job:
        """Change some fields of a job; takes effect for the next occurrence, and the version goes up by one.

        A payload that the handler's published contract refuses is written only if *is_unchecked*.
        """
        if fields.keys() & {"handler", "payload"}:
            fields = await self._fitting(job_id, fields, connection, is_unchecked=is_unchecked)
        fields = await self._contracts.resolve_calls(fields, is_unchecked=is_unchecked)
        if fields.get("scheduled_at") is not None:
            known = await self._store.jobs.find([job_id], connection)
            await self._refuse_known_instants([(job, fields) for job in known.values()])
        decide, named = self._edit(fields, actor, expected_version), _calendars_in(fields)
        return (await self._store.jobs.change(job_id, decide, actor.entry, connection, named, fields.get("after"))).job

    def _edit(
        self, fields: Mapping[str, Any], actor: Actor, expected_version: int | None = None
    ) -> Callable[[JobSnapshot], JobChange]:
        def decide(snapshot: JobSnapshot) -> JobChange:
            check_version("job", snapshot.job.version, expected_version)
            edited = clear_inherited_limit(fields, snapshot.job.limit_key, snapshot.job.handler)
            change = job_changes.edit_job(snapshot, edited, self._store.shards)
            job = change.job
            if fields.keys() & FOLLOW_UP_FIELDS.keys() and job.has_follow_ups:
                self._contracts.check_follow_ups(calls_of(job), actor)
                job = confined_job(job, actor)
            if fields.keys() & {"handler", "payload"}:
                self._contracts.check_edit(snapshot.job.handler, job.handler, job.payload, actor)
                if job.bound_secrets_only != actor.is_confined(job.payload):
                    job = replace(job, bound_secrets_only=not job.bound_secrets_only)
            return change if job is change.job else replace(change, job=job)

        return decide

    async def _fitting(
        self, job_id: JobId, fields: Mapping[str, Any], connection: WithinConnection | None, *, is_unchecked: bool
    ) -> Mapping[str, Any]:
        """The fields of an edit, if they fit the contract of the handler that the job will have."""
        job = (await self._store.jobs.find([job_id], connection)).get(job_id)
        if job is None:
            return fields
        if not is_unchecked:
            payload = to_json(fields["payload"]) if "payload" in fields else job.payload
            await self._contracts.check_contract(fields.get("handler", job.handler), payload)
        return await self._contracts.fields_for_edit(fields, job.handler)

    async def _refuse_known_instants(self, edits: Iterable[tuple[Job, Mapping[str, Any]]]) -> None:
        """A one-off cannot be moved to an instant at which it has run: its record is there already."""
        now = self._env.clock.now()
        instants: dict[ExecutionId, tuple[Job, datetime]] = {}
        for job, fields in edits:
            if fields.get("scheduled_at") is None or job.is_enqueued or not isinstance(job.rule, Once):
                continue
            first = first_occurrence(redefine_job(job, fields, now, self._store.shards), now)
            if first is not None:
                instants[first.id] = job, first.scheduled_for
        for execution_id in await self._store.history.ended(list(instants)):
            job, instant = instants[execution_id]
            raise Conflict(
                f"job {job.name!r} has already run for {instant.isoformat()}",
                hint="trigger it, or choose another instant",
            )

    async def pause(
        self,
        job_id: JobId,
        until: datetime | None = None,
        actor: Actor = LOCAL,
        connection: WithinConnection | None = None,
    ) -> Job:
        """Let nothing of a job start until it is resumed, by hand or at *until*."""
        change = await self._store.jobs.change(
            job_id, lambda snapshot: job_changes.pause_job(snapshot, until, actor.reason), actor.entry, connection
        )
        return change.job

    async def resume(self, job_id: JobId, actor: Actor = LOCAL, connection: WithinConnection | None = None) -> Job:
        """Let a paused job go on from now."""
        change = await self._store.jobs.change(
            job_id, lambda snapshot: job_changes.resume_job(snapshot, actor.reason), actor.entry, connection
        )
        return change.job

    async def delete(self, job_id: JobId, actor: Actor = LOCAL, connection: WithinConnection | None = None) -> None:
        """Take a job out of service; its history stays."""
        await self._store.jobs.change(
            job_id, lambda snapshot: job_changes.delete_job(snapshot, actor.reason), actor.entry, connection
        )

    async def pause_all(
        self,
        owner: str,
        until: datetime | None = None,
        actor: Actor = LOCAL,
        connection: WithinConnection | None = None,
    ) -> int:
        """Pause every job of an owner, all or none; returns how many. One-offs that have come to their end are left alone.

        In this as in the others, a job that another caller deletes meanwhile is passed over.
        """

        async def choose(within: WithinConnection) -> list[JobId]:
            return [*await self._store.jobs.of_owner(owner, within)]

        decide = partial(job_changes.pause_job, until=until, reason=actor.reason)
        return await self._all_or_none(owner, choose, decide, actor, connection)

    async def resume_all(self, owner: str, actor: Actor = LOCAL, connection: WithinConnection | None = None) -> int:
        """Resume every paused job of an owner, all or none; returns how many."""

        async def choose(within: WithinConnection) -> list[JobId]:
            owned = await self._store.jobs.of_owner(owner, within)
            return [job_id for job_id, is_paused in owned.items() if is_paused]

        decide = partial(job_changes.resume_job, reason=actor.reason)
        return await self._all_or_none(owner, choose, decide, actor, connection)

    async def delete_all(self, owner: str, actor: Actor = LOCAL, connection: WithinConnection | None = None) -> int:
        """Delete every job of an owner, all or none; returns how many."""

        async def choose(within: WithinConnection) -> list[JobId]:
            return [*await self._store.jobs.of_owner(owner, within, with_ended=True)]

        decide = partial(job_changes.delete_job, reason=actor.reason)
        return await self._all_or_none(owner, choose, decide, actor, connection)

    async def _all_or_none(
        self,
        owner: str,
        choose: Callable[[WithinConnection], Awaitable[list[JobId]]],
        decide: Callable[[JobSnapshot], JobChange],
        actor: Actor,
        connection: WithinConnection | None,
    ) -> int:
        check_label(owner, "owner")

        async def work(within: WithinConnection) -> int:
            decisions = dict.fromkeys(await choose(within), JobDecision(decide))
            return len(await self._store.jobs.change_all(decisions, actor.entry, within))

        if connection is not None:
            return await work(connection)
        number = await self._store.database.repeat(work, on=(OccurrenceRaceError,))
        self._store.notifier.tell(Wakeup(look_everywhere=True))
        return number

    async def skip_next(self, job_id: JobId, actor: Actor = LOCAL, expected: ExecutionId | None = None) -> JobChange:
        """Record the next occurrence of a job as cancelled, and go on with the one after it.

        Conflict if there is none, or if it is not the *expected* one: that has been promoted meanwhile.
        """

        def decide(snapshot: JobSnapshot) -> JobChange:
            pending = snapshot.pending
            if pending is None:
                raise Conflict("the job has no occurrence ahead")
            if expected is not None and pending.id != expected:
                raise Conflict("this occurrence is no longer pending", hint="look at its state, and cancel it there")
            skipped = SkippedRange(
                first=pending.scheduled_for, last=pending.scheduled_for, count=1, reason=SkipReason.CANCELLED
            )
            goes_on = snapshot.job.rule.is_recurring
            following = (
                first_occurrence(snapshot.job, pending.scheduled_for, pending.executions_left) if goes_on else None
            )
            return JobChange(
                job=snapshot.job, action="job.skip_next", pending=following, skipped=skipped, reason=actor.reason
            )

        return await self._store.jobs.change(job_id, decide, actor.entry)

    # declare: by name, and the same however often it is repeated

    async def declare(self, spec: JobSpec, declared_by: str) -> Job:
        """Create or change the job of this name as declared; ten processes that declare the same job create one.

        Only fields that differ are changed, so a restart is no edit. A pause stays.
        """
        check_declaration(spec)
        return (await self._create_or_change(spec, _DECLARATION, None, declared_by)).job

    async def define(
        self, spec: JobSpec, actor: Actor = LOCAL, connection: WithinConnection | None = None
    ) -> DefinedJob:
        """Create the job of this name, or change it to this definition; says which. A job without a name is always a new one.

        Any number of callers may do so at a time: one creates the job, and the definition of the last one stands. A pause stays.
        Conflict if the name belongs to a job of another handler, or to one that a program or a file declares.
        """
        if spec.name is None:
            created = await self.create(spec, connection, actor, is_shown=True)
            if created.view is not None:
                return DefinedJob(created.view.job, view=created.view)
            return DefinedJob((await self._store.jobs.find([created.job_id], connection))[created.job_id])
        return await self._create_or_change(spec, actor, connection)

    async def _create_or_change(
        self,
        spec: JobSpec,
        actor: Actor,
        connection: WithinConnection | None,
        declared_by: str | None = None,
    ) -> DefinedJob:
        assert spec.name is not None
        for _ in range(_MAX_TRIES):
            present = await self._store.jobs.find_by_name(spec.name, connection)
            # The job may be created or deleted by another caller in between: then what is there is looked at again.
            with suppress(NotFound if present is not None else _NameTaken):
                if present is None:
                    return await self._create_named(spec, actor, connection, declared_by)
                if declared_by is None:
                    _check_same_job(present, spec)
                return await self._align(present, spec, actor, connection)
        raise _restless_name(spec.name)

    async def _create_named(
        self, spec: JobSpec, actor: Actor, connection: WithinConnection | None, declared_by: str | None
    ) -> DefinedJob:
        async def create(calendars: KnownCalendars) -> DefinedJob:
            jobs, openings = self._prepare_declared([spec], declared_by, actor, calendars)
            created = await self._store.enqueuer.create(
                jobs, openings, connection, actor.entry, is_shown=True, skips_taken_names=True
            )
            if not created:
                raise _NameTaken
            return DefinedJob(jobs[0], view=created[0].view)

        return await self._with_calendars([spec], create, connection)

    async def _align(
        self, present: Job, spec: JobSpec, actor: Actor, connection: WithinConnection | None
    ) -> DefinedJob:
        fields = self.differences(present, spec)
        if not fields:
            return DefinedJob(present, SyncAction.LEAVE)
        return DefinedJob(
            await self.update(present.id, fields, actor, connection=connection, is_unchecked=True), SyncAction.CHANGE
        )

    async def define_all(
        self, specs: Sequence[JobSpec], actor: Actor = LOCAL, connection: WithinConnection | None = None
    ) -> list[DefinedJob]:
        """As `define` for many jobs with names, all or none: a few statements for each thousand that are new or unchanged, and for each
        few hundred that change. Those that change and come after another job are changed one by one.

        What can be is computed before the first write: a transaction that waits for a busy processor would hold its locks, and be ended.
        Conflict if a calendar of a new job changes in between; repeat the call.
        """
        _check_names(specs)
        # In the order of their names: two callers that define the same jobs wait for each other, and never both.
        in_order = sorted(specs, key=_name_of)
        plan = await self._plan_definitions(in_order, actor, connection)
        if connection is not None:
            defined = await self._carry_out(plan, in_order, actor, connection)
        else:
            defined = await self._store.database.repeat(
                lambda own: self._carry_out(plan, in_order, actor, own), on=(OccurrenceRaceError,)
            )
            self._store.notifier.tell(Wakeup(look_everywhere=True))
        return [defined[_name_of(spec)] for spec in specs]

    async def _plan_definitions(
        self, specs: Sequence[JobSpec], actor: Actor, connection: WithinConnection | None
    ) -> _DefinitionPlan:
        plan = _DefinitionPlan()
        new: dict[str, tuple[JobSpec, Job, FirstExecution | None]] = {}
        for start in range(0, len(specs), _DEFINE_BATCH):
            part = specs[start : start + _DEFINE_BATCH]
            present = await self._store.jobs.find_by_names([_name_of(spec) for spec in part], connection)
            calendars = await self.calendars_of(part, connection)
            changed: list[tuple[JobSpec, Job]] = []
            for number, spec in enumerate(part):
                if number % _PREPARE_BATCH == 0:
                    await asyncio.sleep(0)
                name = _name_of(spec)
                job = present.get(name)
                with _told_of(spec):
                    if job is None:
                        new[name] = spec, *self.prepare([spec], actor, calendars=calendars)[0]
                        continue
                    _check_same_job(job, spec)
                    if self.differences(job, spec):
                        changed.append((spec, job))
                    else:
                        plan.left[name] = DefinedJob(job, SyncAction.LEAVE)
            await self._plan_changes(plan, changed, actor)
        plan.new.extend(new[_name_of(spec)][1:] for spec in causes_first([spec for spec, _, _ in new.values()]))
        return plan

    async def _plan_changes(self, plan: _DefinitionPlan, changed: Sequence[tuple[JobSpec, Job]], actor: Actor) -> None:
        await self._refuse_known_instants(
            (job, declared_fields(spec)) for spec, job in changed if spec.scheduled_at is not None
        )
        calls = await self._contracts.resolve_calls_of_each(
            [{name: getattr(spec, name) for name in FOLLOW_UP_FIELDS} for spec, _ in changed], is_unchecked=True
        )
        for (spec, job), resolved in zip(changed, calls, strict=True):
            whole = replace(spec, **resolved) if resolved else spec
            calendars = _calendars_in({"skip_on": spec.skip_on, "only_on": spec.only_on})
            decision = JobDecision(partial(self._decide_definition, whole, actor), calendars)
            if spec.after is None:
                plan.changed[job.id] = decision
            else:
                plan.following[job.id] = decision, spec.after

    def _decide_definition(self, spec: JobSpec, actor: Actor, snapshot: JobSnapshot) -> JobChange:
        with _told_of(spec):
            return self._edit(declared_fields(spec), actor)(snapshot)

    async def _carry_out(
        self, plan: _DefinitionPlan, specs: Sequence[JobSpec], actor: Actor, connection: WithinConnection
    ) -> dict[str, DefinedJob]:
        defined: dict[str, DefinedJob] = {}
        for _ in range(_MAX_TRIES):
            defined |= await self._write_definitions(plan, actor, connection)
            left = [spec for spec in specs if spec.name not in defined]
            if not left:
                return defined
            # Created or deleted by other callers in between: what is there is looked at again.
            plan = await self._plan_definitions(left, actor, connection)
        raise _restless_name(_name_of(left[0]))

    async def _write_definitions(
        self, plan: _DefinitionPlan, actor: Actor, connection: WithinConnection
    ) -> dict[str, DefinedJob]:
        """Those that could be written: not new ones whose names were taken meanwhile, nor changed ones that were deleted."""
        defined = dict(plan.left)
        for start in range(0, len(plan.new), _DEFINE_BATCH):
            part = plan.new[start : start + _DEFINE_BATCH]
            jobs, openings = [job for job, _ in part], [opening for _, opening in part if opening is not None]
            entry = actor.entry
            rows = await self._store.enqueuer.create(jobs, openings, connection, entry, skips_taken_names=True)
            created = {row.job_id for row in rows}
            defined |= {job.name or "": DefinedJob(job) for job in jobs if job.id in created}
        changed = await self._store.jobs.change_all(plan.changed, actor.entry, connection)
        for job_id, (decision, cause) in plan.following.items():
            # One by one: each could close a circle with those before it.
            with suppress(NotFound):
                change = await self._store.jobs.change(job_id, decision.decide, actor.entry, connection, cause=cause)
                changed[job_id] = change.job
        return defined | {job.name or "": DefinedJob(job, SyncAction.CHANGE) for job in changed.values()}

    async def undeclared(self, modules: Sequence[str], names: Sequence[str]) -> list[Job]:
        """The active jobs that these modules declared earlier under names that are not in *names*."""
        return await self._store.jobs.undeclared(modules, names)

    def differences(self, present: Job, spec: JobSpec) -> dict[str, Any]:
        """The fields of a declaration that differ from the existing job."""
        return declared_changes(present, spec, self._env.clock.now(), self._store.shards)[1]

    # many at once

    async def plan_sync(
        self, specs: Sequence[JobSpec], declared_by: str, *, prune: bool = False, actor: Actor = LOCAL
    ) -> list[SyncedJob]:
        """The steps of `sync`: one for each job and, with *prune*, one for each job that *declared_by* no longer declares."""
        check_label(declared_by, "declared_by")
        calendars = await self.calendars_of(specs)
        jobs = [self._prepared(number, spec, actor, calendars) for number, spec in enumerate(specs)]
        causes = [spec.after for spec in specs if spec.after is not None]
        present = await self._store.jobs.find_by_names([*(job.name for job in jobs if job.name is not None), *causes])
        pruned = await self._store.jobs.declared_by(declared_by) if prune else []
        return plan_sync(
            present, list(zip(specs, jobs, strict=True)), pruned, self._env.clock.now(), self._store.shards, calendars
        )

    def _prepared(self, number: int, spec: JobSpec, actor: Actor, calendars: KnownCalendars) -> Job:
        try:
            check_declaration(spec)
            return self.prepare([spec], actor, calendars=calendars)[0][0]
        except InvalidInput as error:
            raise error.below(f"jobs/{number}") from error

    async def sync(
        self, specs: Sequence[JobSpec], declared_by: str, *, prune: bool = False, actor: Actor = LOCAL
    ) -> list[SyncedJob]:
        """Create, change or keep jobs as declared; with *prune*, delete those that are no longer declared.

        Everything is checked before anything is written. A job that is edited meanwhile raises Conflict; repeat the call.
        """
        steps = await self.plan_sync(specs, declared_by, prune=prune, actor=actor)
        new = [step.spec for step in steps if step.step is SyncAction.CREATE and step.spec is not None]
        created = {job.name: job for job in await self._create_declared(new, declared_by, actor)} if new else {}
        # Those that come after no job any more go first, so that no circle stands in between.
        in_order = sorted(steps, key=lambda step: step.fields.get("after") is not None)
        taken = {id(step): await self._take(step, created, actor) for step in in_order}
        return [taken[id(step)] for step in steps]

    async def _take(self, step: SyncedJob, created: dict[str | None, Job], actor: Actor) -> SyncedJob:
        before = step.before
        if before is None:
            return replace(step, after=created[step.name])
        if step.step is SyncAction.CHANGE:
            return replace(step, after=await self.update(before.id, step.fields, actor, before.version))
        if step.step is SyncAction.DELETE:
            await self.delete(before.id, actor)
        return step

    async def _create_declared(self, specs: Sequence[JobSpec], declared_by: str, actor: Actor) -> list[Job]:
        async def create(calendars: KnownCalendars) -> list[Job]:
            jobs, openings = self._prepare_declared(specs, declared_by, actor, calendars)
            await self._store.enqueuer.create(jobs, openings, audit=actor.entry)
            return jobs

        return await self._with_calendars(specs, create)

    def _prepare_declared(
        self, specs: Sequence[JobSpec], declared_by: str | None, actor: Actor, calendars: KnownCalendars
    ) -> tuple[list[Job], list[FirstExecution]]:
        prepared = self.prepare(specs, actor, calendars=calendars)
        jobs = [replace(job, declared_by=declared_by) for job, _ in prepared]
        return jobs, [opening for _, opening in prepared if opening is not None]


class _NameTaken(Exception):
    """Another caller has created a job of this name in between."""


def _check_names(specs: Sequence[JobSpec]) -> None:
    names: set[str] = set()
    for number, spec in enumerate(specs):
        if spec.name is None:
            raise InvalidInput("a job has no name; each of many jobs needs one", field=f"{number}/name")
        if spec.name in names:
            raise InvalidInput(f"two of the jobs are named {spec.name!r}", field=f"{number}/name")
        names.add(spec.name)


def _name_of(spec: JobSpec) -> str:
    assert spec.name is not None
    return spec.name


@contextmanager
def _told_of(spec: JobSpec) -> Iterator[None]:
    """An error in one of many jobs names it."""
    try:
        yield
    except InvalidInput as error:
        raise error.below(_name_of(spec)) from error


def _restless_name(name: str) -> Conflict:
    return Conflict(f"job {name!r} is being created and deleted over and over")


def _calendars_in(fields: Mapping[str, Any]) -> set[str]:
    """The calendars that the fields of an edit may name."""
    return possible_names(name for field in ("skip_on", "only_on") for name in fields.get(field) or ())


def _check_same_job(present: Job, spec: JobSpec) -> None:
    """Refuse to take a name from a job that someone else defines."""
    if present.declared_by is not None:
        raise Conflict(
            f"job {present.name!r} is declared by {present.declared_by}",
            hint="choose another name, or change it in its declaration",
        )
    if present.handler != spec.handler:
        raise Conflict(
            f"job {present.name!r} runs {present.handler}, and {spec.handler} is to be scheduled under its name",
            hint="choose another name, or change or delete that job",
        )


def confined_job(job: Job, actor: Actor) -> Job:
    """The job with those of its calls confined to bound secrets that the actor writes, and that name secrets."""
    calls = confine_calls(calls_of(job), actor.is_confined)
    return replace(job, on_success=calls["on_success"], on_failure=calls["on_failure"])


def calls_of(job: Job) -> dict[str, Any]:
    """The calls that follow the executions of a job, by their fields."""
    return {name: getattr(job, name) for name in FOLLOW_UP_FIELDS}


def _created_one_off(id_: UUID) -> CreatedJob:
    return CreatedJob(JobId(id_), ExecutionId(id_), is_new=True)


def _is_immediate(spec: JobSpec) -> bool:
    return spec.name is None and not spec.has_time and spec.starts_at is None


def _immediate_execution(job: Job) -> FirstExecution:
    return FirstExecution(id=ExecutionId(job.id), job_id=job.id, origin=Origin.ENQUEUE)
