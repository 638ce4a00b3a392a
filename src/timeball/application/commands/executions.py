"""Trigger, retry and cancel executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from timeball.application.commands.requests import LOCAL, Actor, new_ids
from timeball.domain.execution import Execution, Origin
from timeball.domain.expiry import NEVER, Expiry
from timeball.domain.follow_ups import confine_calls
from timeball.domain.job import check_calls, check_meta
from timeball.domain.values.ids import ExecutionId, IdempotentRequest, JobId
from timeball.domain.values.json_text import to_json
from timeball.errors import Conflict, NotFound
from timeball.store.types import ExecutionRequest

if TYPE_CHECKING:
    from timeball.application.commands.jobs import JobCommands
    from timeball.application.commands.requests import ContractChecks
    from timeball.env import Env
    from timeball.store.store import Store


class ExecutionCommands:
    """Trigger, retry, cancel."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks, jobs: JobCommands) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts
        self._jobs = jobs

    async def trigger(
        self,
        job_id: JobId,
        payload: Any = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_unchecked: bool = False,
        expiry: Expiry = NEVER,
        meta: Mapping[str, Any] | None = None,
        calls: Mapping[str, Any] | None = None,
    ) -> ExecutionId:
        """Run a job now, beside its schedule; with another payload, other meta and another time to begin, if they are given.

        *calls* follow it in place of those that follow the executions of the job.
        A payload that the handler's published contract refuses is accepted only if *is_unchecked*.
        """
        new_id = ExecutionId(next(new_ids(self._env, 1, idempotency)))
        if await self._is_done(idempotency, new_id):
            return new_id
        expiry.refuse_if_over(self._env.clock.now())
        meta = None if meta is None else check_meta(meta)
        if calls is not None:
            calls = await self._checked_calls(calls, actor, is_unchecked=is_unchecked)
        if payload is not None and not is_unchecked:
            await self._contracts.check_contract((await self._jobs.existing(job_id)).handler, to_json(payload))
        return await self.trigger_with_id(new_id, job_id, payload, actor, expiry, meta, calls)

    async def _checked_calls(
        self, calls: Mapping[str, Any], actor: Actor, *, is_unchecked: bool
    ) -> dict[str, dict[str, Any] | None] | None:
        """What follows one execution, as it is stored; None if nothing does."""
        checked = check_calls(await self._contracts.resolve_calls(calls, is_unchecked=is_unchecked))
        self._contracts.check_follow_ups(checked, actor)
        return confine_calls(checked, actor.is_confined) if any(checked.values()) else None

    async def trigger_with_id(
        self,
        new_id: ExecutionId,
        job_id: JobId,
        payload: Any = None,
        actor: Actor = LOCAL,
        expiry: Expiry = NEVER,
        meta: Mapping[str, Any] | None = None,
        calls: Mapping[str, Any] | None = None,
    ) -> ExecutionId:
        """Trigger under an id that the caller has chosen, without a check against the handler's contract."""
        job = await self._jobs.existing(job_id)
        override = None if payload is None else to_json(payload)
        request = ExecutionRequest(
            id=new_id,
            job_id=job.id,
            origin=Origin.TRIGGER,
            payload=override,
            created_by=actor.created_by,
            bound_secrets_only=override is not None and actor.is_confined(override),
            expiry=expiry,
            meta=meta,
            calls=calls,
        )
        check = None if override is None else partial(self._contracts.check_payload, payload=override, actor=actor)
        return (await self._store.jobs.request([request], actor.entry, "job.trigger", check))[0]

    async def retry(
        self,
        execution_id: ExecutionId,
        payload: Any = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_unchecked: bool = False,
    ) -> ExecutionId:
        """Run a finished execution again: a new one, linked to the old, which stays as it is.

        The new execution runs the job as it is defined now. A payload, meta and calls of its own that the old one had are
        kept: its end is followed, too. Conflict if the job has another handler by now than the one that such a payload was for.
        """
        new_id = ExecutionId(next(new_ids(self._env, 1, idempotency)))
        if await self._is_done(idempotency, new_id):
            return new_id
        if payload is not None and not is_unchecked:
            job_id = (await self._existing(execution_id)).job_id
            await self._contracts.check_contract((await self._jobs.existing(job_id)).handler, to_json(payload))
        return await self.retry_with_id(new_id, execution_id, payload, actor)

    async def retry_with_id(
        self,
        new_id: ExecutionId,
        execution_id: ExecutionId,
        payload: Any = None,
        actor: Actor = LOCAL,
        *,
        is_audited: bool = True,
    ) -> ExecutionId:
        """Retry under an id that the caller has chosen, without a check against the handler's contract."""
        ended = await self._existing(execution_id)
        if not ended.state.is_final:
            raise Conflict(
                f"execution {execution_id} is {ended.state}, expected a finished one", hint="cancel it first, or wait"
            )
        check: Callable[[str], None] | None = None
        own = await self._store.history.own_words(execution_id)
        if payload is None:
            override, is_confined = own.payload, own.bound_secrets_only
            if override is not None:
                check = partial(_check_same_handler, ended=ended.handler)
        else:
            text = to_json(payload)
            override, is_confined = text, actor.is_confined(text)
            check = partial(self._contracts.check_payload, payload=text, actor=actor)
        request = ExecutionRequest(
            id=new_id,
            job_id=ended.job_id,
            origin=Origin.RETRY,
            payload=override,
            retry_of=execution_id,
            created_by=actor.created_by,
            bound_secrets_only=is_confined,
            meta=own.meta,
            calls=own.calls,
        )
        return (
            await self._store.jobs.request([request], actor.entry if is_audited else None, "execution.retry", check)
        )[0]

    async def exists(self, execution_id: ExecutionId | None) -> bool:
        """Whether an earlier try whose result is unknown has created this execution."""
        return execution_id is not None and await self._store.history.find(execution_id) is not None

    async def _is_done(self, idempotency: IdempotentRequest | None, first: ExecutionId) -> bool:
        return idempotency is not None and idempotency.is_repeated and await self.exists(first)

    async def _existing(self, execution_id: ExecutionId) -> Execution:
        execution = await self._store.history.find(execution_id)
        if execution is None:
            raise NotFound("execution", execution_id)
        return execution

    async def cancel(
        self, execution_ids: Sequence[ExecutionId], actor: Actor = LOCAL, *, is_audited: bool = True
    ) -> set[ExecutionId]:
        """Cancel waiting executions at once and ask running ones to stop. Returns those that were reached.

        The pending occurrence of a recurring job is cancelled too; its schedule goes on with the next.
        """
        reason = actor.reason or f"cancelled by {actor.name}"
        reached = await self._store.jobs.cancel(execution_ids, reason, actor.entry if is_audited else None)
        for execution_id in execution_ids:
            if execution_id not in reached and await self._skip_if_pending(execution_id, actor):
                reached.add(execution_id)
        return reached

    async def _skip_if_pending(self, execution_id: ExecutionId, actor: Actor) -> bool:
        execution = await self._store.history.find(execution_id)
        if execution is None or execution.state.is_final or execution.origin is not Origin.SCHEDULE:
            return False
        try:
            await self._jobs.skip_next(execution.job_id, actor, expected=execution_id)
        except (Conflict, NotFound):
            return False
        return True


def _check_same_handler(handler: str, *, ended: str) -> None:
    if handler != ended:
        raise Conflict(
            f"the execution overrode the payload of {ended}, and its job runs {handler} now",
            hint="retry it with a payload for that handler, or trigger the job",
        )
