"""Every write a front needs: create, update, pause, resume, delete, trigger, cancel, retry, backfill; queues; declarations.

API, command line, dashboard and SDK all come through here, so a rule that holds here holds everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import orjson

from timeball.domain import changes
from timeball.domain.changes import JobChange, JobSnapshot
from timeball.domain.execution import Execution, Origin
from timeball.domain.ids import ExecutionId, JobId, new_id
from timeball.domain.job import SPEC_FIELDS, Job, JobSpec, define, redefine
from timeball.domain.misfire import SkippedRange, SkipReason
from timeball.domain.occurrences import first_occurrence
from timeball.domain.schedule import Manual, Once
from timeball.domain.text import check_label, to_json
from timeball.env import Env
from timeball.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from timeball.store.interface import AuditEntry, Created, Opening, Request, Store

# A write whose reply was lost is looked up before it is made again; for about this long in all.
_TRIES = 4
_MOST_BACKFILLED = 10_000
_BACKFILL_INTERVAL = timedelta(milliseconds=100)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who gives a command, and why."""

    name: str = "local"
    reason: str | None = None

    @property
    def entry(self) -> AuditEntry:
        return AuditEntry(self.name, self.reason)


LOCAL = Actor()


class Commands:
    """What can be done to jobs, executions and queues."""

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env

    # create

    async def create(self, spec: JobSpec, connection: Any = None) -> Created:
        """Create one job; inside the caller's own asyncpg *connection*, if one is given."""
        return (await self.create_all([spec], connection))[0]

    async def create_all(self, specs: Sequence[JobSpec], connection: Any = None) -> list[Created]:
        """Create jobs, all or none. A one-off whose `unique_key` is alive gives the execution that holds the key."""
        prepared = self.prepare(specs)
        jobs, openings = [job for job, _ in prepared], [opening for _, opening in prepared if opening is not None]
        if connection is not None:
            return await self._store.jobs.create(jobs, openings, connection)
        for attempt in range(_TRIES):
            try:
                return await self._store.jobs.create(jobs, openings)
            except StoreUnavailable:
                if attempt == _TRIES - 1:
                    raise
                await self._env.clock.sleep(0.2 * 2**attempt)
                done = await self._created_before(jobs, openings)
                if done is not None:
                    return done
        raise AssertionError("unreachable")

    async def _created_before(self, jobs: Sequence[Job], openings: Sequence[Opening]) -> list[Created] | None:
        """Whether a create whose reply was lost has been committed: the ids were ours, so they tell."""
        try:
            found = await self._store.jobs.find([job.id for job in jobs])
        except StoreUnavailable:
            return None
        if not found:
            return None
        executions = {opening.job_id: opening.id for opening in openings}
        done = {job_id: Created(job_id, executions.get(job_id), is_new=True) for job_id in found}
        # It was one statement: what it did not write is refused for its unique key, and asking again says by whom.
        missing = [job for job in jobs if job.id not in found]
        if missing:
            again = await self._store.jobs.create(missing, [o for o in openings if o.job_id not in found])
            done |= {created.job_id: created for created in again}
        return [done[job.id] for job in jobs]

    def prepare(self, specs: Sequence[JobSpec]) -> list[tuple[Job, Opening | None]]:
        """Check wishes and make them jobs with their first executions, ready to be written."""
        now = self._env.clock.now()
        return [self._prepare_one(spec, now) for spec in specs]

    def _prepare_one(self, spec: JobSpec, now: datetime) -> tuple[Job, Opening | None]:
        is_immediate = (
            spec.name is None and spec.schedule is None and spec.interval_seconds is None and spec.scheduled_at is None
        )
        job = define(
            replace(spec, scheduled_at=now) if is_immediate else spec, self._new_job_id(), now, self._store.shards
        )
        if is_immediate:
            return job, Opening(id=ExecutionId(job.id), job_id=job.id, origin=Origin.ENQUEUE)
        first = first_occurrence(job, now)
        if first is None:
            return job, None
        return job, Opening(
            id=first.id,
            job_id=job.id,
            origin=Origin.ENQUEUE if job.is_enqueued else Origin.SCHEDULE,
            run_at=first.run_at,
            scheduled_for=first.scheduled_for,
            watermark=None if job.is_enqueued else now,
            tzdata=None if isinstance(job.rule, Once) else first.tzdata,
            executions_left=first.executions_left,
        )

    def _new_job_id(self) -> JobId:
        return JobId(self._env.new_id())

    async def enqueue_many(self, spec: JobSpec, payloads: Sequence[str]) -> list[ExecutionId]:
        """Create many one-offs that differ only in their payloads (JSON texts), by COPY: all or none."""
        if spec.unique_key is not None or spec.max_running is not None or spec.schedule is not None:
            raise InvalidInput(
                "unique_key, max_running and schedules cannot be given to a bulk enqueue; create them singly"
            )
        now = self._env.clock.now()
        due_at = spec.scheduled_at
        template = define(
            replace(spec, name=None, scheduled_at=due_at or now), self._new_job_id(), now, self._store.shards
        )
        assert isinstance(template.rule, Once)
        milliseconds, random, shards = self._env.clock.epoch_milliseconds(), self._env.random, self._store.shards
        rows: list[tuple[UUID, int, str]] = []
        for payload in payloads:
            bits = random.getrandbits(74)
            rows.append((new_id(milliseconds, bits), (bits & 0xFFFF_FFFF) % shards, payload))
        if rows:
            await self._store.jobs.create_many(template, rows, template.rule.scheduled_at if due_at else None)
        return [ExecutionId(id_) for id_, _, _ in rows]

    # change

    async def update(
        self, job_id: JobId, fields: Mapping[str, Any], actor: Actor = LOCAL, expected_version: int | None = None
    ) -> Job:
        """Change some fields of a job; takes effect for the next occurrence, and the version goes up by one."""

        def decide(snapshot: JobSnapshot) -> JobChange:
            _check_version(snapshot.job, expected_version)
            return changes.edit(snapshot, fields, self._store.shards)

        await self._refuse_known_instant(job_id, fields)
        return (await self._store.jobs.change(job_id, decide, actor.entry)).job

    async def _refuse_known_instant(self, job_id: JobId, fields: Mapping[str, Any]) -> None:
        """A one-off cannot be moved to an instant at which it has run: its record is there already."""
        if fields.get("scheduled_at") is None:
            return
        job = (await self._store.jobs.find([job_id])).get(job_id)
        if job is None or not isinstance(job.rule, Once):
            return
        moved = redefine(job, fields, self._env.clock.now(), self._store.shards)
        first = first_occurrence(moved, self._env.clock.now())
        known = None if first is None or moved.is_enqueued else await self._store.history.find(first.id)
        if known is not None and known.state.is_final:
            raise Conflict(
                f"this job has already run for {known.scheduled_for.isoformat()}",
                hint="trigger it, or choose another instant",
            )

    async def pause(self, job_id: JobId, until: datetime | None = None, actor: Actor = LOCAL) -> Job:
        """Let nothing of a job start until it is resumed, by hand or at *until*."""
        change = await self._store.jobs.change(
            job_id, lambda found: changes.pause(found, until, actor.reason), actor.entry
        )
        return change.job

    async def resume(self, job_id: JobId, actor: Actor = LOCAL) -> Job:
        """Let a paused job go on from now."""
        change = await self._store.jobs.change(job_id, lambda found: changes.resume(found, actor.reason), actor.entry)
        return change.job

    async def delete(self, job_id: JobId, actor: Actor = LOCAL) -> None:
        """Take a job out of service; its history stays."""
        await self._store.jobs.change(job_id, lambda found: changes.delete(found, actor.reason), actor.entry)

    async def skip_next(self, job_id: JobId, actor: Actor = LOCAL, expected: ExecutionId | None = None) -> JobChange:
        """Record the next occurrence of a job as cancelled, and go on with the one after it.

        Conflict if there is none, or if it is not the *expected* one: that has been hoisted meanwhile.
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

    # executions

    async def trigger(self, job_id: JobId, payload: Any = None, actor: Actor = LOCAL) -> ExecutionId:
        """Run a job now, beside its schedule; with another payload, if one is given."""
        job = await self._existing(job_id)
        request = Request(
            id=ExecutionId(self._env.new_id()),
            job_id=job.id,
            origin=Origin.TRIGGER,
            payload=None if payload is None else to_json(payload),
        )
        return (await self._store.jobs.request([request], actor.entry, "job.trigger"))[0]

    async def retry(self, execution_id: ExecutionId, payload: Any = None, actor: Actor = LOCAL) -> ExecutionId:
        """Run an ended execution again: a new one, linked to the old, which stays as it is."""
        ended = await self._existing_execution(execution_id)
        if not ended.state.is_final:
            raise Conflict(f"execution {execution_id} is {ended.state}, not ended", hint="cancel it first, or wait")
        request = Request(
            id=ExecutionId(self._env.new_id()),
            job_id=ended.job_id,
            origin=Origin.RETRY,
            payload=await self._store.history.payload_override(execution_id) if payload is None else to_json(payload),
            retry_of=execution_id,
        )
        return (await self._store.jobs.request([request], actor.entry, "execution.retry"))[0]

    async def cancel(self, execution_ids: Sequence[ExecutionId], actor: Actor = LOCAL) -> set[ExecutionId]:
        """Cancel executions: what waits, at once; what runs is asked to stop. Returns those that this reached.

        The pending occurrence of a recurring job is cancelled too; its schedule goes on with the next.
        """
        reason = actor.reason or f"cancelled by {actor.name}"
        reached = await self._store.jobs.cancel(execution_ids, reason, actor.entry)
        for execution_id in execution_ids:
            if execution_id not in reached and await self._skip_if_pending(execution_id, actor):
                reached.add(execution_id)
        return reached

    async def _skip_if_pending(self, execution_id: ExecutionId, actor: Actor) -> bool:
        found = await self._store.history.find(execution_id)
        if found is None or found.state.is_final or found.origin is not Origin.SCHEDULE:
            return False
        try:
            await self.skip_next(found.job_id, actor, expected=execution_id)
        except (Conflict, NotFound):
            return False
        return True

    async def backfill(self, job_id: JobId, start: datetime, end: datetime, actor: Actor = LOCAL) -> list[ExecutionId]:
        """Run a job once for every occurrence its present schedule names in (start, end], at ten a second."""
        job = await self._existing(job_id)
        if isinstance(job.rule, Manual | Once):
            raise InvalidInput("only a recurring job has occurrences to fill in", field="job")
        now = self._env.clock.now()
        instants: list[datetime] = []
        for occurrence in job.rule.occurrences(start, min(end, now)):
            if len(instants) == _MOST_BACKFILLED:
                raise InvalidInput(
                    f"more than {_MOST_BACKFILLED} occurrences; fill them in by smaller spans", field="end"
                )
            instants.append(occurrence.at)
        if not instants:
            return []
        requests = [
            Request(
                id=ExecutionId(self._env.new_id()),
                job_id=job.id,
                origin=Origin.BACKFILL,
                run_at=now + number * _BACKFILL_INTERVAL,
                scheduled_for=instant,
            )
            for number, instant in enumerate(instants)
        ]
        return await self._store.jobs.request(requests, actor.entry, "job.backfill")

    # queues

    async def pause_queue(self, name: str, actor: Actor = LOCAL) -> None:
        """Let nothing of a queue be claimed."""
        await self._set_queue(name, actor, "queue.pause", is_paused=True)

    async def resume_queue(self, name: str, actor: Actor = LOCAL) -> None:
        """Let a paused queue go on."""
        await self._set_queue(name, actor, "queue.resume", is_paused=False)

    async def limit_queue(self, name: str, max_running: int | None, actor: Actor = LOCAL) -> None:
        """Let at most so many of a queue run together, across all workers; None takes the limit away."""
        if max_running is not None and max_running < 1:
            raise InvalidInput(
                f"max_running is {max_running}, expected at least 1",
                field="max_running",
                hint="pause the queue instead",
            )
        await self._set_queue(name, actor, "queue.limit", max_running=max_running)

    async def _set_queue(self, name: str, actor: Actor, action: str, **wanted: Any) -> None:
        check_label(name, "queue")
        found = await self._store.jobs.queue(name) or {}
        is_paused = wanted.get("is_paused", found.get("paused_at") is not None)
        max_running = wanted["max_running"] if "max_running" in wanted else found.get("max_running")
        await self._store.jobs.set_queue(
            name, is_paused=is_paused, max_running=max_running, reason=actor.reason, audit=actor.entry, action=action
        )

    async def drain_node(self, incarnation: UUID) -> None:
        """Ask a worker or scheduler to leave in good order."""
        if not await self._store.nodes.drain(incarnation):  # type: ignore[arg-type]
            raise NotFound("node", incarnation)

    # declarations

    async def declare(self, spec: JobSpec, declared_by: str) -> Job:
        """Make the job of this name what the declaration says; ten processes that declare the same make one job.

        Only what differs is changed, so that a restart is no edit. A pause stays.
        """
        if spec.name is None:
            raise InvalidInput("a declared job needs a name", field="name")
        for _ in range(5):
            present = await self._store.jobs.find_by_name(spec.name)
            if present is not None:
                return await self._align(present, spec)
            try:
                prepared = self.prepare([spec])
                jobs = [replace(job, declared_by=declared_by) for job, _ in prepared]
                await self._store.jobs.create(jobs, [opening for _, opening in prepared if opening is not None])
            except Conflict:
                continue  # another process was quicker: compare with what it made
            return jobs[0]
        raise Conflict(f"job {spec.name!r} is being created and deleted over and over")

    async def _align(self, present: Job, spec: JobSpec) -> Job:
        fields = self.differences(present, spec)
        if not fields:
            return present
        return await self.update(present.id, fields, Actor("declaration"))

    def differences(self, present: Job, spec: JobSpec) -> dict[str, Any]:
        """Which fields of a declaration differ from the job that is there."""
        wanted = {name: getattr(spec, name) for name in SPEC_FIELDS}
        if spec.interval_seconds is not None and spec.scheduled_at is None:
            # An interval without an anchor keeps the one it has: a restart must not shift the rhythm.
            wanted.pop("scheduled_at")
        fresh = redefine(present, wanted, present.created_at or self._env.clock.now(), self._store.shards)
        if _same_definition(present, fresh):
            return {}
        return wanted

    # finding

    async def _existing(self, job_id: JobId) -> Job:
        job = (await self._store.jobs.find([job_id])).get(job_id)
        if job is None or job.deleted_at is not None:
            raise NotFound("job", job_id)
        return job

    async def _existing_execution(self, execution_id: ExecutionId) -> Execution:
        found = await self._store.history.find(execution_id)
        if found is None:
            raise NotFound("execution", execution_id)
        return found


def _check_version(job: Job, expected: int | None) -> None:
    if expected is not None and job.version != expected:
        raise Conflict(
            f"the job has version {job.version}, the change was made for version {expected}",
            hint="read the job again, and repeat the change on what is there",
            version=job.version,
        )


def _same_definition(one: Job, other: Job) -> bool:
    return _comparable(one) == _comparable(other) and orjson.loads(one.payload) == orjson.loads(other.payload)


def _comparable(job: Job) -> Job:
    """A job without what differs in any case; the database writes a payload in its own way."""
    return replace(job, payload="", version=0, created_at=None, updated_at=None)
