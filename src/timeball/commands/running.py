"""Executions that people ask for, or want to be rid of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.changing import Changing
from timeball.domain.deed import Deed
from timeball.domain.execution import Origin
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.schedule import Manual, Once
from timeball.domain.text import to_json
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.store.interface import AuditEntry, Request

_MOST_BACKFILLED = 10_000
_BACKFILL_INTERVAL = timedelta(milliseconds=100)


class Running(Changing):
    """Trigger, retry, cancel, backfill."""

    async def trigger(
        self,
        job_id: JobId,
        payload: Any = None,
        actor: Actor = LOCAL,
        deed: Deed | None = None,
        *,
        is_unchecked: bool = False,
    ) -> ExecutionId:
        """Run a job now, beside its schedule; with another payload, if one is given.

        A payload that the handler's published contract refuses is taken only if *is_unchecked*.
        """
        new_id = ExecutionId(next(self._new_ids(1, deed)))
        if await self._is_done(deed, new_id):
            return new_id
        if payload is not None and not is_unchecked:
            await self._check_contract((await self._existing(job_id)).handler, to_json(payload))
        return await self._trigger(job_id, payload, actor, new_id)

    async def _is_done(self, deed: Deed | None, first: ExecutionId) -> bool:
        return deed is not None and deed.is_repeated and await self._is_made(first)

    async def _is_made(self, execution_id: ExecutionId | None) -> bool:
        """Whoever did this before us may have died before it was written down: then the execution is there already."""
        return execution_id is not None and await self._store.history.find(execution_id) is not None

    async def _trigger(self, job_id: JobId, payload: Any, actor: Actor, new_id: ExecutionId) -> ExecutionId:
        job = await self._existing(job_id)
        own = None if payload is None else to_json(payload)
        request = Request(
            id=new_id,
            job_id=job.id,
            origin=Origin.TRIGGER,
            payload=own,
            created_by=actor.created_by,
            bound_secrets_only=own is not None and self._is_confined(own, actor),
        )
        check = None if own is None else partial(self._check_payload, payload=own, actor=actor)
        return (await self._store.jobs.request([request], actor.entry, "job.trigger", check))[0]

    async def retry(
        self,
        execution_id: ExecutionId,
        payload: Any = None,
        actor: Actor = LOCAL,
        deed: Deed | None = None,
        *,
        is_unchecked: bool = False,
    ) -> ExecutionId:
        """Run an ended execution again: a new one, linked to the old, which stays as it is.

        It runs what its job says now. A payload that the old one had of its own goes with it, unless the job has another handler
        by now: then Conflict.
        """
        new_id = ExecutionId(next(self._new_ids(1, deed)))
        if await self._is_done(deed, new_id):
            return new_id
        if payload is not None and not is_unchecked:
            job_id = (await self._existing_execution(execution_id)).job_id
            await self._check_contract((await self._existing(job_id)).handler, to_json(payload))
        return await self._retry(execution_id, payload, actor, new_id, actor.entry)

    async def _retry(
        self,
        execution_id: ExecutionId,
        payload: Any,
        actor: Actor,
        new_id: ExecutionId,
        audit: AuditEntry | None,
    ) -> ExecutionId:
        ended = await self._existing_execution(execution_id)
        if not ended.state.is_final:
            raise Conflict(f"execution {execution_id} is {ended.state}, not ended", hint="cancel it first, or wait")
        check: Callable[[str], None] | None = None
        if payload is None:
            own, is_confined = await self._store.history.payload_override(execution_id)
            if own is not None:
                check = partial(_check_same_handler, ended=ended.handler)
        else:
            text = to_json(payload)
            own, is_confined = text, self._is_confined(text, actor)
            check = partial(self._check_payload, payload=text, actor=actor)
        request = Request(
            id=new_id,
            job_id=ended.job_id,
            origin=Origin.RETRY,
            payload=own,
            retry_of=execution_id,
            created_by=actor.created_by,
            bound_secrets_only=is_confined,
        )
        return (await self._store.jobs.request([request], audit, "execution.retry", check))[0]

    async def cancel(self, execution_ids: Sequence[ExecutionId], actor: Actor = LOCAL) -> set[ExecutionId]:
        """Cancel executions: what waits, at once; what runs is asked to stop. Returns those that this reached.

        The pending occurrence of a recurring job is cancelled too; its schedule goes on with the next.
        """
        return await self._cancel(execution_ids, actor, actor.entry)

    async def _cancel(
        self, execution_ids: Sequence[ExecutionId], actor: Actor, audit: AuditEntry | None
    ) -> set[ExecutionId]:
        reason = actor.reason or f"cancelled by {actor.name}"
        reached = await self._store.jobs.cancel(execution_ids, reason, audit)
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

    async def backfill(
        self, job_id: JobId, start: datetime, end: datetime, actor: Actor = LOCAL, deed: Deed | None = None
    ) -> list[ExecutionId]:
        """Run a job once for every occurrence its present schedule names in (start, end], at ten a second."""
        job = await self._existing(job_id)
        if isinstance(job.rule, Manual | Once):
            raise InvalidInput("only a recurring job has occurrences to fill in", field="job")
        if job.unique_key is not None:
            raise Conflict(
                f"the job has the unique_key {job.unique_key!r}: only one execution of it can be unfinished at a time",
                hint="take the unique_key away first, or trigger the job once for each occurrence",
            )
        now = self._env.clock.now()
        instants: list[datetime] = []
        # What has become due since it was first asked for was not meant then, and has no id of its own.
        for occurrence in job.rule.occurrences(start, min(end, now if deed is None else deed.begun_at)):
            if len(instants) == _MOST_BACKFILLED:
                raise InvalidInput(
                    f"more than {_MOST_BACKFILLED} occurrences; fill them in by smaller spans", field="end"
                )
            instants.append(occurrence.at)
        if not instants:
            return []
        ids = [ExecutionId(id_) for id_ in self._new_ids(len(instants), deed)]
        if await self._is_done(deed, ids[0]):
            return ids
        requests = [
            Request(
                id=id_,
                job_id=job.id,
                origin=Origin.BACKFILL,
                run_at=now + number * _BACKFILL_INTERVAL,
                scheduled_for=instant,
                created_by=actor.created_by,
            )
            for number, (id_, instant) in enumerate(zip(ids, instants, strict=True))
        ]
        return await self._store.jobs.request(requests, actor.entry, "job.backfill")


def _check_same_handler(handler: str, *, ended: str) -> None:
    if handler != ended:
        raise Conflict(
            f"this execution ran {ended} with a payload of its own, and its job runs {handler} now",
            hint="retry it with a payload for that handler, or trigger the job",
        )
