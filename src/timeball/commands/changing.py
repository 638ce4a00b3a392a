"""What can be done to a job that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.contracts import Contracts
from timeball.domain import changes
from timeball.domain.changes import JobChange, JobSnapshot
from timeball.domain.contract import unlimited
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job, redefine
from timeball.domain.misfire import SkippedRange, SkipReason
from timeball.domain.occurrences import first_occurrence
from timeball.domain.schedule import Once
from timeball.domain.text import to_json
from timeball.errors import Conflict


class Changing(Contracts):
    """Edit, pause, resume, delete."""

    async def update(
        self,
        job_id: JobId,
        fields: Mapping[str, Any],
        actor: Actor = LOCAL,
        expected_version: int | None = None,
        *,
        is_unchecked: bool = False,
    ) -> Job:
        """Change some fields of a job; takes effect for the next occurrence, and the version goes up by one.

        A payload that the handler's published contract refuses is written only if *is_unchecked*.
        """
        if fields.keys() & {"handler", "payload"}:
            fields = await self._fitting(job_id, fields, is_unchecked=is_unchecked)

        def decide(snapshot: JobSnapshot) -> JobChange:
            _check_version(snapshot.job, expected_version)
            wanted = unlimited(fields, snapshot.job.limit_key, snapshot.job.handler)
            change = changes.edit(snapshot, wanted, self._store.shards)
            if fields.keys() & {"handler", "payload"}:
                self._check_edit(snapshot.job.handler, change.job.handler, change.job.payload, actor)
                is_confined = self._is_confined(change.job.payload, actor)
                return replace(change, job=replace(change.job, bound_secrets_only=is_confined))
            return change

        await self._refuse_known_instant(job_id, fields)
        return (await self._store.jobs.change(job_id, decide, actor.entry)).job

    async def _fitting(self, job_id: JobId, fields: Mapping[str, Any], *, is_unchecked: bool) -> Mapping[str, Any]:
        """The fields of an edit, if they fit the contract of the handler that the job will have."""
        job = (await self._store.jobs.find([job_id])).get(job_id)
        if job is None:
            return fields
        if not is_unchecked:
            payload = to_json(fields["payload"]) if "payload" in fields else job.payload
            await self._check_contract(fields.get("handler", job.handler), payload)
        return await self._fields_for(fields, job.handler)

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


def _check_version(job: Job, expected: int | None) -> None:
    if expected is not None and job.version != expected:
        raise Conflict(
            f"the job has version {job.version}, the change was made for version {expected}",
            hint="read the job again, and repeat the change on what is there",
            version=job.version,
        )
