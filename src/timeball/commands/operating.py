"""Operations: one thing that is done to many executions or jobs, and survives whoever does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.many_jobs import ManyJobs
from timeball.domain.deed import Deed
from timeball.domain.ids import ExecutionId
from timeball.domain.instants import shown
from timeball.domain.operation import (
    MOST_ITEMS,
    Operation,
    OperationAction,
    OperationId,
    OperationItem,
    OperationState,
    OperationSubject,
)
from timeball.errors import Conflict, InvalidInput, NotFound, StoreError, TimeballError

_BATCH = 50


class Operating(ManyJobs):
    """Do something to very many."""

    async def start_operation(
        self,
        action: OperationAction,
        ids: Sequence[UUID],
        actor: Actor = LOCAL,
        *,
        subject: OperationSubject = OperationSubject.EXECUTION,
        settles: bool = False,
        holder: UUID | None = None,
        deed: Deed | None = None,
    ) -> Operation:
        """Write an operation down; whoever runs `work_off` does it. With a *holder*, that one is to begin at once."""
        if len(ids) > MOST_ITEMS:
            raise InvalidInput(f"{len(ids)} {subject}s are more than {MOST_ITEMS}", hint="do it in smaller parts")
        unique = list(dict.fromkeys(ids))
        return await self._store.operations.begin(
            self._operation_id(deed),
            action,
            unique,
            actor.entry,
            subject=subject,
            settles=settles,
            holder=holder,
        )

    async def begun_operation(self, deed: Deed | None) -> Operation | None:
        """The operation that was written down when this was asked for before, if it was."""
        if deed is None or not deed.is_repeated:
            return None
        return await self._store.operations.find(self._operation_id(deed))

    def _operation_id(self, deed: Deed | None) -> OperationId:
        return OperationId(next(self._new_ids(1, deed)))

    async def cancel_operation(self, operation_id: OperationId, actor: Actor = LOCAL) -> Operation:
        """Stop an operation where it is; what it has done stays done."""
        asked = await self._store.operations.request_cancel(operation_id, actor.entry)
        if asked is None:
            if await self._store.operations.find(operation_id) is None:
                raise NotFound("operation", operation_id)
            raise Conflict("this operation is over")
        return asked

    async def take_operation(self, holder: UUID) -> Operation | None:
        """Hold the oldest operation that nobody alive works off, if there is one."""
        return await self._store.operations.take(holder)

    async def work_off(self, operation: Operation, holder: UUID) -> Operation:
        """Do all that is left of an operation that *holder* holds; returns it as it is afterwards.

        While the database cannot be reached it is left as it is, to be taken again; any other surprise ends it as failed.
        """
        try:
            return await self._work_off(operation, holder)
        except StoreError:
            raise
        except Exception as error:
            await self._store.operations.finish(operation, holder, OperationState.FAILED, shown(repr(error), 500))
            raise

    async def _work_off(self, operation: Operation, holder: UUID) -> Operation:
        operations = self._store.operations
        while not operation.cancel_requested:
            items = await operations.left(operation.id, _BATCH)
            if not items:
                return await operations.finish(operation, holder, OperationState.SUCCEEDED)
            recorded = await operations.record(operation, holder, await self._do(operation, items))
            if recorded is None:  # it was taken from us, and is another's now
                return await operations.find(operation.id) or operation
            operation = recorded
        return await operations.finish(operation, holder, OperationState.CANCELLED)

    async def _do(self, operation: Operation, items: Sequence[OperationItem]) -> list[OperationItem]:
        if operation.action is OperationAction.DISCARD:
            settled = await self._store.operations.settle([_execution_of(item) for item in items], "discarded")
            return [_discarded(item, is_done=item.execution_id in settled) for item in items]
        return [await self._do_one(operation, item) for item in items]

    async def _do_one(self, operation: Operation, item: OperationItem) -> OperationItem:
        actor = Actor(operation.actor, operation.reason, operation.place, author=operation.actor)
        try:
            if operation.subject is OperationSubject.JOB:
                return replace(await self._do_to_job(operation.action, item, actor), status="done")
            if operation.action is OperationAction.CANCEL:
                if item.execution_id not in await self._cancel([_execution_of(item)], actor, audit=None):
                    raise Conflict("this execution has ended, or is being stopped already")
            else:
                await self._retry_once(item, actor)
                if operation.settles:
                    await self._store.operations.settle([_execution_of(item)], "retried")
        except StoreError:
            raise
        except TimeballError as error:
            return replace(item, status="failed", made=None, error=shown(str(error), 500))
        return replace(item, status="done")

    async def _retry_once(self, item: OperationItem, actor: Actor) -> None:
        if not await self._is_made(item.made):
            await self._retry(_execution_of(item), None, actor, item.chosen, audit=None)


def _execution_of(item: OperationItem) -> ExecutionId:
    assert item.execution_id is not None
    return item.execution_id


def _discarded(item: OperationItem, *, is_done: bool) -> OperationItem:
    if is_done:
        return replace(item, status="done")
    return replace(item, status="failed", error="it is not on the dead-letter list")
