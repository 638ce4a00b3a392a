"""Bulk operations: one action on many executions or jobs, resumed by another process if its holder dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.application.commands.requests import LOCAL, Actor, new_ids
from timeball.domain.bulk_operation import (
    MAX_OPERATION_ITEMS,
    Operation,
    OperationAction,
    OperationId,
    OperationItem,
    OperationState,
    OperationSubject,
)
from timeball.domain.job_changes import refuse_past
from timeball.domain.values.ids import ExecutionId, IdempotentRequest, JobId
from timeball.errors import Conflict, InvalidInput, NotFound, StoreError, TimeballError, quote_text

if TYPE_CHECKING:
    from timeball.application.commands.backfills import BackfillCommands
    from timeball.application.commands.executions import ExecutionCommands
    from timeball.application.commands.jobs import JobCommands
    from timeball.env import Env
    from timeball.store.store import Store

# Items are recorded in batches: a process that dies repeats at most one of them.
_BATCH = 50
_NOT_CANCELLABLE = "the execution has finished or is already being cancelled"


class OperationCommands:
    """Start, cancel and run bulk operations."""

    def __init__(
        self,
        store: Store,
        env: Env,
        jobs: JobCommands,
        executions: ExecutionCommands,
        backfills: BackfillCommands,
    ) -> None:
        self._store = store
        self._env = env
        self._jobs = jobs
        self._executions = executions
        self._backfills = backfills

    async def start(
        self,
        action: OperationAction,
        ids: Sequence[UUID],
        actor: Actor = LOCAL,
        *,
        subject: OperationSubject = OperationSubject.EXECUTION,
        settles: bool = False,
        until: datetime | None = None,
        holder: UUID | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> Operation:
        """Store an operation that any process may run; with a *holder*, that process runs it at once."""
        if len(ids) > MAX_OPERATION_ITEMS:
            raise InvalidInput(
                f"the operation has {len(ids)} {subject}s, expected at most {MAX_OPERATION_ITEMS}",
                hint="split it into smaller ones",
            )
        refuse_past(until, self._env.clock.now())
        unique = list(dict.fromkeys(ids))
        return await self._store.operations.begin(
            self._operation_id(idempotency),
            action,
            unique,
            actor.entry,
            subject=subject,
            settles=settles,
            until=until,
            holder=holder,
        )

    async def find_started(self, idempotency: IdempotentRequest | None) -> Operation | None:
        """The operation that an earlier try of the same request started, if there is one."""
        if idempotency is None or not idempotency.is_repeated:
            return None
        return await self._store.operations.find(self._operation_id(idempotency))

    def _operation_id(self, idempotency: IdempotentRequest | None) -> OperationId:
        return OperationId(next(new_ids(self._env, 1, idempotency)))

    async def cancel(self, operation_id: OperationId, actor: Actor = LOCAL) -> Operation:
        """Stop an operation after its current batch; what it has done stays done."""
        operation = await self._store.operations.request_cancel(operation_id, actor.entry)
        if operation is None:
            await self._existing(operation_id)
            raise Conflict("the operation has finished")
        return operation

    async def pause(self, operation_id: OperationId, actor: Actor = LOCAL) -> Operation:
        """Let a backfill create nothing more until it is resumed; what it has created runs on."""
        operation = await self._existing(operation_id)
        if operation.backfill is None:
            raise Conflict(
                f"the operation is a {operation.action}, expected a backfill: only backfills can be paused",
                hint="cancel it; what it has done stays done",
            )
        paused = await self._store.operations.pause(operation_id, actor.entry)
        if paused is None:
            raise Conflict("the operation has finished")
        return paused

    async def resume(self, operation_id: OperationId, actor: Actor = LOCAL) -> Operation:
        """Let a paused backfill go on."""
        await self._existing(operation_id)
        resumed = await self._store.operations.resume(operation_id, actor.entry)
        if resumed is None:
            raise Conflict("the operation is not paused")
        return resumed

    async def _existing(self, operation_id: OperationId) -> Operation:
        operation = await self._store.operations.find(operation_id)
        if operation is None:
            raise NotFound("operation", operation_id)
        return operation

    async def claim(self, holder: UUID) -> Operation | None:
        """Give the oldest operation that no live process runs to *holder*, if there is one."""
        return await self._store.operations.take(holder)

    async def work(self, holder: UUID) -> Operation | None:
        """Carry out one operation that no live process runs, or one step of a backfill; None if there is none."""
        operation = await self.claim(holder)
        return None if operation is None else await self.run(operation, holder)

    async def run(self, operation: Operation, holder: UUID) -> Operation:
        """Run the rest of an operation that *holder* holds, or one step of a backfill; returns it as it is afterwards.

        If the database cannot be reached the operation stays open, to be claimed again; any other error ends it as failed.
        """
        try:
            if operation.backfill is not None:
                return await self._backfills.step(operation, operation.backfill, holder)
            return await self._run(operation, holder)
        except StoreError:
            raise
        except Exception as error:
            await self._store.operations.finish(operation, holder, OperationState.FAILED, quote_text(repr(error), 500))
            raise

    async def _run(self, operation: Operation, holder: UUID) -> Operation:
        operations = self._store.operations
        while not operation.cancel_requested:
            items = await operations.left(operation.id, _BATCH)
            if not items:
                return await operations.finish(operation, holder, OperationState.SUCCEEDED)
            recorded = await operations.record(operation, holder, await self._process(operation, items))
            if recorded is None:  # another process holds it by now
                return await operations.find(operation.id) or operation
            operation = recorded
        return await operations.finish(operation, holder, OperationState.CANCELLED)

    async def _process(self, operation: Operation, items: Sequence[OperationItem]) -> list[OperationItem]:
        if operation.action is OperationAction.DISCARD:
            settled = await self._store.operations.settle([_execution_of(item) for item in items], "discarded")
            return [_discard_result(item, is_done=item.execution_id in settled) for item in items]
        return [await self._process_item(operation, item) for item in items]

    async def _process_item(self, operation: Operation, item: OperationItem) -> OperationItem:
        actor = Actor(operation.actor, operation.reason, operation.place, author=operation.actor)
        try:
            if operation.subject is OperationSubject.JOB:
                return replace(await self.apply_to_job(operation, item, actor), status="done")
            if operation.action is OperationAction.CANCEL:
                if item.execution_id not in await self._executions.cancel(
                    [_execution_of(item)], actor, is_audited=False
                ):
                    raise Conflict(_NOT_CANCELLABLE)
            else:
                await self.retry_once(item, actor)
                if operation.settles:
                    await self._store.operations.settle([_execution_of(item)], "retried")
        except StoreError:
            raise
        except TimeballError as error:
            return replace(item, status="failed", result_id=None, error=quote_text(str(error), 500))
        return replace(item, status="done")

    async def retry_once(self, item: OperationItem, actor: Actor) -> None:
        """Retry the execution of an item, unless a process that died meanwhile has done so."""
        if not await self._executions.exists(item.result_id):
            await self._executions.retry_with_id(
                item.new_execution_id, _execution_of(item), actor=actor, is_audited=False
            )

    async def apply_to_job(self, operation: Operation, item: OperationItem, actor: Actor) -> OperationItem:
        """Returns the item, with the execution that was created or cancelled, if one was."""
        assert item.job_id is not None
        match operation.action:
            case OperationAction.PAUSE:
                await self._jobs.pause(item.job_id, operation.until, actor)
            case OperationAction.RESUME:
                await self._jobs.resume(item.job_id, actor)
            case OperationAction.DELETE:
                await self._jobs.delete(item.job_id, actor)
            case OperationAction.TRIGGER:
                if not await self._executions.exists(item.result_id):
                    await self._executions.trigger_with_id(item.new_execution_id, item.job_id, actor=actor)
            case OperationAction.RETRY:
                if not await self._executions.exists(item.result_id):
                    last = await self._last_ended(item.job_id)
                    await self._executions.retry_with_id(item.new_execution_id, last, actor=actor, is_audited=False)
            case OperationAction.CANCEL:
                return replace(item, result_id=await self._cancel_current(item.job_id, actor))
            case OperationAction.DISCARD | OperationAction.BACKFILL:
                raise AssertionError("only executions are discarded, and a backfill has steps of its own")
        return item

    async def _last_ended(self, job_id: JobId) -> ExecutionId:
        await self._jobs.existing(job_id)
        execution_id = await self._store.history.last_ended_of(job_id)
        if execution_id is None:
            raise Conflict("no execution of the job has finished")
        return execution_id

    async def _cancel_current(self, job_id: JobId, actor: Actor) -> ExecutionId:
        await self._jobs.existing(job_id)
        execution_id = await self._store.history.current_of(job_id)
        if execution_id is None:
            raise Conflict("the job has no waiting or running execution")
        if execution_id not in await self._executions.cancel([execution_id], actor, is_audited=False):
            raise Conflict(_NOT_CANCELLABLE)
        return execution_id


def _execution_of(item: OperationItem) -> ExecutionId:
    assert item.execution_id is not None
    return item.execution_id


def _discard_result(item: OperationItem, *, is_done: bool) -> OperationItem:
    if is_done:
        return replace(item, status="done")
    return replace(item, status="failed", error="the execution is not a dead letter")
