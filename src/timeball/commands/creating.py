"""New jobs: one, some, or very many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.contracts import Contracts
from timeball.domain.deed import Deed
from timeball.domain.execution import Origin
from timeball.domain.handler import OWNED_BY_ADMINISTRATORS
from timeball.domain.ids import ExecutionId, JobId, shard_of
from timeball.domain.job import Job, JobSpec, define
from timeball.domain.occurrences import first_occurrence
from timeball.domain.schedule import Once
from timeball.errors import InvalidInput, StoreUnavailable
from timeball.store.interface import AuditEntry, Created, Opening, Own, Pattern, pattern_of, write_again

if TYPE_CHECKING:
    from timeball.store.interface import LoopLine, ThreadLine

_PREPARED_AT_A_TIME = 50


class Creating(Contracts):
    """Make jobs."""

    async def create(
        self, spec: JobSpec, connection: Any = None, actor: Actor = LOCAL, deed: Deed | None = None
    ) -> Created:
        """Create one job; inside the caller's own asyncpg *connection*, if one is given."""
        return (await self.create_all([spec], connection, actor, deed))[0]

    async def create_all(
        self, specs: Sequence[JobSpec], connection: Any = None, actor: Actor = LOCAL, deed: Deed | None = None
    ) -> list[Created]:
        """Create jobs, all or none. A one-off whose `unique_key` is alive gives the execution that holds the key."""
        prepared: list[tuple[Job, Opening | None]] = []
        for number, one in enumerate(self._prepare_each(specs, actor, deed), start=1):
            prepared.append(one)
            if number % _PREPARED_AT_A_TIME == 0:
                # Thousands of schedules are seconds of work, and others wait for this loop.
                await asyncio.sleep(0)
        jobs, openings = [job for job, _ in prepared], [opening for _, opening in prepared if opening is not None]
        if deed is not None and deed.is_repeated:
            done = await self._created_before(jobs, openings)
            if done is not None:
                return [await self._as_it_is(created) for created in done]
        return await self._write_new(jobs, openings, connection, actor)

    async def _write_new(
        self, jobs: Sequence[Job], openings: Sequence[Opening], connection: Any, actor: Actor
    ) -> list[Created]:
        # Definitions and bulk actions are audited; the enqueue of a one-off is work, not a change, unless it is an administrator's.
        is_noted = any(not job.is_enqueued or job.handler in OWNED_BY_ADMINISTRATORS for job in jobs)
        is_noted = is_noted or (actor is not LOCAL and len(jobs) > 1)
        audit = actor.entry if is_noted else None
        if connection is not None:
            return await self._store.jobs.create(jobs, openings, connection, audit)
        try:
            return await self._store.jobs.create(jobs, openings, audit=audit)
        except StoreUnavailable:
            return await self._write_again(jobs, openings, audit)

    async def _write_again(
        self, jobs: Sequence[Job], openings: Sequence[Opening], audit: AuditEntry | None = None
    ) -> list[Created]:
        return await write_again(
            self._env.clock,
            lambda: self._created_before(jobs, openings),
            lambda: self._store.jobs.create(jobs, openings, audit=audit),
        )

    async def _created_before(self, jobs: Sequence[Job], openings: Sequence[Opening]) -> list[Created] | None:
        """Whether a create whose reply was lost has been committed: the ids were ours, so they tell."""
        found = await self._store.jobs.find([job.id for job in jobs])
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

    async def _as_it_is(self, created: Created) -> Created:
        """What was opened for a recurring job that was created earlier, we do not know: it is named what it has now."""
        current = await self._store.history.current_of(created.job_id)
        return created if current is None else replace(created, execution_id=current)

    def prepare(
        self, specs: Sequence[JobSpec], actor: Actor = LOCAL, deed: Deed | None = None
    ) -> list[tuple[Job, Opening | None]]:
        """Check wishes and make them jobs with their first executions, ready to be written."""
        return list(self._prepare_each(specs, actor, deed))

    def _prepare_each(
        self, specs: Sequence[JobSpec], actor: Actor, deed: Deed | None
    ) -> Iterator[tuple[Job, Opening | None]]:
        now = self._env.clock.now()
        ids = map(JobId, deed.ids(len(specs))) if deed is not None else (self._new_job_id() for _ in specs)
        for spec, id_ in zip(specs, ids, strict=True):
            job, opening = self._prepare_one(spec, now, id_, actor)
            self._check_payload(job.handler, job.payload, actor)
            yield job, opening

    def _prepare_one(self, spec: JobSpec, now: datetime, job_id: JobId, actor: Actor) -> tuple[Job, Opening | None]:
        is_immediate = _is_immediate(spec)
        wish = replace(spec, scheduled_at=now) if is_immediate else spec
        job = define(wish, job_id, now, self._store.shards, actor.created_by)
        if self._is_confined(job.payload, actor):
            job = replace(job, bound_secrets_only=True)
        if is_immediate:
            return job, _opening_now(job)
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

    def pattern(self, spec: JobSpec) -> Pattern | None:
        """What one-offs by this wish have in common, checked once for all of them; None if each is something of its own."""
        if not _is_immediate(spec) or spec.handler in OWNED_BY_ADMINISTRATORS:
            return None
        now = self._env.clock.now()
        wish = replace(spec, scheduled_at=now)
        return pattern_of(define(wish, self._new_job_id(), now, self._store.shards, LOCAL.created_by))

    async def enqueue(self, pattern: Pattern, payloads: Sequence[str], actor: Actor = LOCAL) -> list[Created]:
        """Create one-offs of a pattern, due now, with these payloads (JSON texts): all or none, in one statement."""
        for payload in payloads:
            self._check_payload(pattern.job.handler, payload, actor)
        rows = list(self._rows_for(payloads))
        try:
            await self._store.jobs.enqueue(pattern, rows)
        except StoreUnavailable:
            return await self.make_sure(pattern, rows)
        return [_created(id_) for id_, _, _ in rows]

    def prepare_alone(self, pattern: Pattern, payload: str) -> Own:
        """Check a one-off of a pattern and give it its id: `enqueue_alone` writes it."""
        self._check_payload(pattern.job.handler, payload, LOCAL)
        id_ = self._env.new_id()
        return id_, shard_of(id_, self._store.shards), payload

    def enqueue_alone(self, pattern: Pattern, own: Own, line: ThreadLine) -> Created:
        """Create a one-off that was prepared, due now, in a thread that waits by itself; `make_sure` of it if that fails."""
        self._store.jobs.enqueue_alone(pattern, own, line)
        return _created(own[0])

    async def aenqueue_alone(self, pattern: Pattern, own: Own, line: LoopLine) -> Created:
        """The same in an event loop of the caller's."""
        await self._store.jobs.aenqueue_alone(pattern, own, line)
        return _created(own[0])

    async def make_sure(self, pattern: Pattern, rows: Sequence[Own]) -> list[Created]:
        """Have one-offs of a pattern written that may have been written before: the reply is not known."""
        jobs = [replace(pattern.job, id=JobId(id_), shard=shard, payload=payload) for id_, shard, payload in rows]
        return await self._write_again(jobs, [_opening_now(job) for job in jobs])

    def _rows_for(self, payloads: Sequence[str], deed: Deed | None = None) -> Iterator[Own]:
        shards = self._store.shards
        ids = self._new_ids(len(payloads), deed)
        return ((id_, shard_of(id_, shards), payload) for id_, payload in zip(ids, payloads, strict=True))

    async def enqueue_many(
        self, spec: JobSpec, payloads: Sequence[str], actor: Actor = LOCAL, deed: Deed | None = None
    ) -> list[ExecutionId]:
        """Create many one-offs that differ only in their payloads (JSON texts): all or none.

        One that its handler could never take is refused under its number. Audited in one row, unless it is local work.
        """
        if spec.unique_key is not None or spec.max_running is not None or spec.schedule is not None:
            raise InvalidInput(
                "unique_key, max_running and schedules cannot be given to a bulk enqueue; create them singly"
            )
        self._check_payloads(spec.handler, payloads, actor)
        now = self._env.clock.now()
        due_at = spec.scheduled_at
        wish = replace(spec, name=None, scheduled_at=due_at or now)
        template = define(wish, self._new_job_id(), now, self._store.shards, actor.created_by)
        if not actor.is_administrator and any(self._is_confined(payload, actor) for payload in payloads):
            template = replace(template, bound_secrets_only=True)
        assert isinstance(template.rule, Once)
        if not payloads:
            return []
        is_noted = actor is not LOCAL or spec.handler in OWNED_BY_ADMINISTRATORS
        run_at, audit = template.rule.scheduled_at if due_at else None, actor.entry if is_noted else None
        if deed is not None and deed.is_repeated:
            ids = list(deed.ids(len(payloads)))
            if await self._store.jobs.find([JobId(ids[0])]):
                return [ExecutionId(id_) for id_ in ids]
        made = await self._store.jobs.create_many(template, self._rows_for(payloads, deed), run_at, audit)
        return [ExecutionId(id_) for id_ in made]

    def _check_payloads(self, handler: str, payloads: Sequence[str], actor: Actor) -> None:
        self._check_owner(handler, actor)
        check = self._handlers.checker(handler)
        if check is None:
            return
        for number, payload in enumerate(payloads):
            try:
                check(payload)
            except InvalidInput as error:
                raise error.below(str(number)) from None


def _created(id_: UUID) -> Created:
    return Created(JobId(id_), ExecutionId(id_), is_new=True)


def _is_immediate(spec: JobSpec) -> bool:
    return spec.name is None and spec.schedule is None and spec.interval_seconds is None and spec.scheduled_at is None


def _opening_now(job: Job) -> Opening:
    return Opening(id=ExecutionId(job.id), job_id=job.id, origin=Origin.ENQUEUE)
