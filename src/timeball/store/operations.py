"""Bulk operations: rows with items, kept for a week. An API process, or a scheduler, holds one under a lease while it works on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.backfill import Backfill
from timeball.domain.bulk_operation import (
    Operation,
    OperationAction,
    OperationId,
    OperationItem,
    OperationState,
    OperationSubject,
)
from timeball.domain.search import ResultPage, read_cursor, write_cursor
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import NotFound
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry

OPERATION_LEASE = timedelta(seconds=30)
OPERATIONS_KEPT_FOR = timedelta(days=7)
_LAST_ID = UUID(int=2**128 - 1)
_LATEST_FIRST = "operation"
# Other actions change jobs, and are audited for each of them.
_AUDITED_AS = {
    OperationAction.CANCEL: "execution.cancel",
    OperationAction.RETRY: "execution.retry",
    OperationAction.DISCARD: "dead_letter.discarded",
}


class OperationStore:
    """The operations of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self,
        operation_id: OperationId,
        action: OperationAction,
        ids: Sequence[UUID],
        audit: AuditEntry,
        *,
        subject: OperationSubject = OperationSubject.EXECUTION,
        settles: bool = False,
        until: datetime | None = None,
        holder: UUID | None = None,
        backfill: Backfill | None = None,
    ) -> Operation:
        """Insert an operation, with one audit row. With *holder* it begins at once; otherwise an API process takes it."""
        env = self._database.env

        async def work(connection: Connection) -> Operation:
            row = await self._database.fetch_row(
                "add_operation",
                connection,
                id=operation_id,
                action=action.value,
                subject=subject.value,
                actor=audit.actor,
                place=audit.place,
                reason=audit.reason,
                settles=settles,
                until=until,
                total=len(ids),
                holder=holder,
                lease=OPERATION_LEASE,
                backfill=None if backfill is None else orjson.dumps(backfill.as_document()).decode(),
            )
            await self._database.fetch(
                "add_operation_items",
                connection,
                operation_id=operation_id,
                subject=subject.value,
                ids=list(ids),
                made=[env.new_id() if action.makes_executions else None for _ in ids],
            )
            if backfill is not None:
                what = {"operation": str(operation_id), **backfill.as_facts()}
                touched = f"job:{backfill.job_id}"
                await write_audit(self._database, connection, env.new_id(), audit, "job.backfill", touched, None, what)
            if action in _AUDITED_AS:
                facts = {
                    "count": len(ids),
                    f"{subject}s": [str(one) for one in ids[:100]],
                    "operation": str(operation_id),
                }
                touched = f"{subject}:{ids[0]}" if len(ids) == 1 else f"{len(ids)} {subject}s"
                await write_audit(
                    self._database, connection, env.new_id(), audit, _AUDITED_AS[action], touched, None, facts
                )
            return operation_from(row)

        await self._database.fetch("forget_operations", keep=OPERATIONS_KEPT_FOR)
        begun: Operation = await self._database.once(work, operation_id, found_by="find_operation")
        return begun

    async def find(self, operation_id: OperationId) -> Operation | None:
        """One operation."""
        row = await self._database.fetch_row("find_operation", id=operation_id)
        return None if row is None else operation_from(row)

    async def page(self, limit: int, cursor: str | None) -> ResultPage[Operation]:
        """A page of operations, the latest first."""
        before = _LAST_ID if cursor is None else UUID(read_cursor(cursor, _LATEST_FIRST, 1)[0])
        operations = [
            operation_from(row) for row in await self._database.fetch("list_operations", before=before, limit=limit + 1)
        ]
        items = operations[:limit]
        return ResultPage(items, write_cursor(_LATEST_FIRST, items[-1].id) if len(operations) > limit else None)

    async def items(
        self, operation_id: OperationId, status: str | None = None, after: int = 0, limit: int = 100
    ) -> list[OperationItem]:
        """The items after a number; of one status, if it is given."""
        rows = await self._database.fetch(
            "operation_items", operation_id=operation_id, status=status, after=after, limit=limit
        )
        return [_item_from(row) for row in rows]

    async def request_cancel(self, operation_id: OperationId, audit: AuditEntry) -> Operation | None:
        """Ask for an operation to be cancelled where it is; None if it has finished."""
        return await self._change("cancel_operation", "operation.cancel", operation_id, audit)

    async def pause(self, operation_id: OperationId, audit: AuditEntry) -> Operation | None:
        """Let an operation rest until it is resumed; None if it has finished."""
        return await self._change("pause_operation", "operation.pause", operation_id, audit)

    async def resume(self, operation_id: OperationId, audit: AuditEntry) -> Operation | None:
        """Let a paused operation go on; None if it is not paused."""
        return await self._change("resume_operation", "operation.resume", operation_id, audit)

    async def _change(
        self, statement: str, action: str, operation_id: OperationId, audit: AuditEntry
    ) -> Operation | None:
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Operation | None:
            row = await self._database.fetch_row(statement, connection, id=operation_id)
            if row is None:
                return None
            subject = f"operation:{operation_id}"
            await write_audit(self._database, connection, note, audit, action, subject, None, None)
            return operation_from(row)

        changed: Operation | None = await self._database.once(work, note)
        return changed

    # running operations

    async def take(self, holder: UUID) -> Operation | None:
        """Take the oldest unfinished operation without a living holder."""
        row = await self._database.fetch_row("take_operation", holder=holder, lease=OPERATION_LEASE)
        return None if row is None else operation_from(row)

    async def left(self, operation_id: OperationId, limit: int) -> list[OperationItem]:
        """The items without a result, in order."""
        rows = await self._database.fetch("items_left", operation_id=operation_id, limit=limit)
        return [_item_from(row) for row in rows]

    async def record(self, operation: Operation, holder: UUID, results: Sequence[OperationItem]) -> Operation | None:
        """Record the results of some items, and renew the lease; None, and nothing is written, if another process holds the operation."""

        async def work(connection: Connection) -> Operation | None:
            failed = sum(item.status == "failed" for item in results)
            row = await self._database.fetch_row(
                "advance_operation",
                connection,
                id=operation.id,
                holder=holder,
                done=len(results) - failed,
                failed=failed,
                lease=OPERATION_LEASE,
            )
            if row is None:
                return None
            await self._database.fetch(
                "record_items",
                connection,
                operation_id=operation.id,
                numbers=[item.number for item in results],
                statuses=[item.status for item in results],
                made=[item.result_id for item in results],
                errors=[item.error for item in results],
            )
            return operation_from(row)

        recorded: Operation | None = await self._database.repeat(work)
        return recorded

    async def finish(
        self, operation: Operation, holder: UUID, state: OperationState, error: str | None = None
    ) -> Operation:
        """Finish an operation; if another process holds it by now, return it as it is."""
        row = await self._database.fetch_row(
            "finish_operation", id=operation.id, holder=holder, state=state.value, error=error
        )
        if row is not None:
            return operation_from(row)
        current = await self.find(operation.id)
        if current is None:
            raise NotFound("operation", operation.id)
        return current

    async def rest(self, operation: Operation, holder: UUID, rest: timedelta) -> Operation:
        """Put an operation down for a while: any process may go on with it then."""
        row = await self._database.fetch_row("rest_operation", id=operation.id, holder=holder, rest=rest)
        return operation if row is None else operation_from(row)

    async def settle(self, ids: Sequence[ExecutionId], how: str) -> set[ExecutionId]:
        """Take dead executions off the dead-letter list; the operation has been audited already."""
        rows = await self._database.fetch("settle", ids=list(ids), how=how)
        return {ExecutionId(row["execution_id"]) for row in rows}


def operation_from(row: Any) -> Operation:
    """An operation from its row."""
    return Operation(
        id=OperationId(row["id"]),
        action=OperationAction(row["action"]),
        subject=OperationSubject(row["subject"]),
        state=OperationState(row["state"]),
        actor=row["actor"],
        place=row["place"],
        reason=row["reason"],
        settles=row["settles"],
        until=row["until_at"],
        total=row["total"],
        done=row["done"],
        failed=row["failed"],
        cancel_requested=row["cancel_requested"],
        error=row["error"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        backfill=None if row["backfill"] is None else Backfill.from_document(orjson.loads(row["backfill"])),
        cursor=row["cursor_at"],
    )


def _item_from(row: Any) -> OperationItem:
    return OperationItem(
        number=row["number"],
        execution_id=None if row["execution_id"] is None else ExecutionId(row["execution_id"]),
        job_id=None if row["job_id"] is None else JobId(row["job_id"]),
        status=row["status"],
        result_id=None if row["made"] is None else ExecutionId(row["made"]),
        error=row["error"],
    )
