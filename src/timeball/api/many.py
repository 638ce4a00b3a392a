"""One thing done to many executions: at once and item by item if they are few, in the background if they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import BULK_EXAMPLE, MOMENT, described
from timeball.api.desk import Desk
from timeball.api.schemas.operations import OperationOut
from timeball.api.views import Document, answer
from timeball.commands import Actor
from timeball.domain.ids import ExecutionId, show, show_execution
from timeball.domain.operation import MOST_ITEMS, Operation, OperationAction, OperationItem
from timeball.domain.search import ExecutionFilter, PageRequest
from timeball.errors import Conflict, InvalidInput

# More than this is an operation of its own, to be asked about.
MOST_AT_ONCE = 500

OPERATION_EXAMPLE = {
    "id": "op_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "action": "retry",
    "state": "running",
    "total": 1200,
    "done": 350,
    "failed": 2,
    "progress": 0.2933,
    "actor": "key:4c1a9d02b7e1 deploy",
    "reason": "a bad release",
    "cancel_requested": False,
    "error": None,
    "created_at": MOMENT,
    "started_at": MOMENT,
    "finished_at": None,
}


def described_many(request: Any) -> dict[str, Any]:
    """The arguments of a route that does something to many."""
    made = described(Role.OPERATOR, BULK_EXAMPLE, request=request, has_body=True, fails=[404, 409])
    made["responses"][202] = {
        "description": f"More than {MOST_AT_ONCE}: an operation that is worked off in the background",
        "model": OperationOut,
        "content": {"application/json": {"example": OPERATION_EXAMPLE}},
    }
    return made


async def all_matching(desk: Desk, wanted: ExecutionFilter) -> list[ExecutionId]:
    """The ids of all executions that match; InvalidInput if they are too many for one operation."""
    ids: list[ExecutionId] = []
    cursor: str | None = None
    while True:
        page = await desk.insights.executions(wanted, PageRequest(limit=200, cursor=cursor))
        ids += [execution.id for execution in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids
        if len(ids) >= MOST_ITEMS:
            raise InvalidInput(
                f"the filter matches more than {MOST_ITEMS} executions", field="filter", hint="narrow it by dates"
            )


async def done_to_many(
    desk: Desk,
    actor: Actor,
    action: OperationAction,
    ids: Sequence[ExecutionId],
    *,
    settles: bool = False,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> Response:
    """Do it, and tell what came of each (200); or begin to, and tell where to ask (202)."""
    ids = list(dict.fromkeys(ids))
    if expected_count is not None and expected_count != len(ids):
        raise Conflict(f"{len(ids)} executions would be touched, expected were {expected_count}")
    if dry_run:
        would = [OperationItem(number=number, execution_id=one) for number, one in enumerate(ids[:MOST_AT_ONCE])]
        return answer(summed_up([item_document(item) for item in would], total=len(ids)))
    if len(ids) > MOST_AT_ONCE:
        operation = await desk.commands.start_operation(action, ids, actor, settles=settles)
        where = {"Location": f"/api/v1/operations/{show('op', operation.id)}"}
        return answer(operation_document(operation), 202, where)
    items = await each_of(desk, actor, action, ids, settles=settles)
    return answer(summed_up([item_document(item) for item in items.values()]))


async def each_of(
    desk: Desk, actor: Actor, action: OperationAction, ids: Sequence[ExecutionId], *, settles: bool = False
) -> dict[ExecutionId | None, OperationItem]:
    """Do it to a few, now; what came of each. Nothing is done to nothing, and nothing is noted."""
    if not ids:
        return {}
    operation = await desk.commands.start_operation(action, ids, actor, settles=settles, holder=desk.holder)
    await desk.commands.work_off(operation, desk.holder)
    items = await desk.insights.operation_items(operation.id, None, 0, MOST_AT_ONCE)
    return {item.execution_id: item for item in items}


def item_document(item: OperationItem) -> Document:
    """What came of one of many."""
    is_done = item.status == "done"
    return {
        "id": show_execution(item.execution_id),
        "status": item.status or "would_be_done",
        "execution_id": show_execution(item.made) if is_done and item.made is not None else None,
        "error": item.error,
    }


def summed_up(results: list[Document], total: int | None = None) -> Document:
    """What came of each, and how many; of a dry run the first 500 are shown."""
    failed = sum(item["status"] == "failed" for item in results)
    done = (len(results) if total is None else total) - failed
    return {"done": done, "failed": failed, "has_more": len(results) < done + failed, "results": results}


def operation_document(operation: Operation) -> Document:
    """An operation and how far it has come."""
    tried = operation.done + operation.failed
    return {
        "id": show("op", operation.id),
        "action": operation.action,
        "state": operation.state,
        "total": operation.total,
        "done": operation.done,
        "failed": operation.failed,
        "progress": round(tried / operation.total, 4) if operation.total else 1.0,
        "actor": operation.actor,
        "reason": operation.reason,
        "cancel_requested": operation.cancel_requested,
        "error": operation.error,
        "created_at": operation.created_at,
        "started_at": operation.started_at,
        "finished_at": operation.finished_at,
    }
