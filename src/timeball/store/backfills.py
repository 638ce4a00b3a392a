"""Creates the executions of a backfill, each once.

The state tables alone do not refuse an execution that has moved on: its id is free again in `ready` once it runs. So a backfill locks its
job against other backfills, and the next statement looks for the ids in all state tables. An id that is found was filled in before, by
another caller or by a process that died: it is left out. Cursor, items, executions and the counts of skip ranges are one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.backfill import unique_key_conflict
from timeball.domain.bulk_operation import Operation, OperationItem
from timeball.domain.execution import ExecutionState
from timeball.domain.values.ids import ExecutionId
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import execution_request_columns, json_text
from timeball.store.operations import OPERATION_LEASE, operation_from

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore
    from timeball.store.types import ExecutionRequest


class BackfillStore:
    """Feeds the backfills of this database."""

    def __init__(self, database: Database, executions: ExecutionStore, promotion_window: timedelta) -> None:
        self._database = database
        self._executions = executions
        self._promotion_window = promotion_window

    async def feed(
        self,
        operation: Operation,
        holder: UUID,
        requests: Sequence[ExecutionRequest],
        cursor: datetime,
        in_ranges: Collection[datetime] = (),
    ) -> Operation | None:
        """Create executions that do not exist yet, and move the cursor; None, and nothing is written, if it is not the holder's turn.

        Those *in_ranges* are occurrences of skip ranges, which count them.
        NotFound if the job does not exist any more, Conflict if it has a unique_key or another handler than the payload was checked for.
        """
        placed: list[Any] = []

        async def work(connection: Connection) -> Operation | None:
            placed.clear()
            row = await self._database.fetch_row(
                "feed_operation",
                connection,
                id=operation.id,
                holder=holder,
                cursor=cursor,
                previous=operation.cursor,
                lease=OPERATION_LEASE,
            )
            if row is None or not requests:
                return None if row is None else operation_from(row)
            placed.extend(await self._create(connection, operation, requests, in_ranges))
            if not placed:
                return operation_from(row)
            # In the order of the backfill: that of the rows is PostgreSQL's choice.
            created = {new["execution_id"] for new in placed}
            ids = [request.id for request in requests if request.id in created]
            return operation_from(await self._database.fetch_row("count_fed", connection, id=operation.id, ids=ids))

        fed: Operation | None = await self._database.repeat(work)
        await self._executions.announce_placed(placed, is_ready_announced=False)
        return fed

    async def _create(
        self,
        connection: Connection,
        operation: Operation,
        requests: Sequence[ExecutionRequest],
        in_ranges: Collection[datetime] = (),
    ) -> list[Any]:
        backfill = operation.backfill
        assert backfill is not None
        if await self._database.fetch_row("lock_to_fill", connection, job_id=backfill.job_id) is None:
            raise NotFound("job", backfill.job_id)
        ids = [request.id for request in requests]
        existing = {row["id"] for row in await self._database.fetch("existing_executions", connection, ids=ids)}
        new = [request for request in requests if request.id not in existing]
        if not new:
            return []
        rows = await self._database.fetch(
            "add_executions",
            connection,
            executions=json_text(execution_request_columns(request) for request in new),
            promotion_window=self._promotion_window,
        )
        for row in rows:
            if row["unique_key"] is not None:
                raise unique_key_conflict(row["unique_key"])
            if backfill.payload is not None and row["handler"] != backfill.handler:
                raise Conflict(
                    f"the backfill has a payload for {backfill.handler}, and its job runs {row['handler']} now",
                    hint="start another backfill with a payload for that handler",
                )
        # Another instant may lie within a range, too: the present schedule names some that the version of the range does not.
        filled = [request.scheduled_for for request in new if request.scheduled_for in in_ranges]
        await self._database.fetch("count_filled", connection, job_id=backfill.job_id, instants=filled)
        return rows

    async def results(self, items: Sequence[OperationItem]) -> list[OperationItem]:
        """Those items whose execution has ended, with their result."""
        ids = [item.execution_id for item in items]
        rows = await self._database.fetch("existing_executions", ids=ids)
        states = {ExecutionId(row["id"]): row for row in rows}
        results = (_result(item, states) for item in items)
        return [item for item in results if item.status is not None]


def _result(item: OperationItem, states: dict[ExecutionId, Any]) -> OperationItem:
    assert item.execution_id is not None
    row = states.get(item.execution_id)
    if row is None:
        return replace(item, status="failed", error="the record of the execution was deleted")
    state = ExecutionState(row["state"])
    if not state.is_final:
        return item
    if state is ExecutionState.SUCCEEDED:
        return replace(item, status="done")
    why = f": {row['reason']}" if row["reason"] else ""
    return replace(item, status="failed", error=f"the execution is {state}{why}")
