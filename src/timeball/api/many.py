"""One thing done to many executions or jobs: at once and item by item if they are few, in the background if they are not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import BULK_EXAMPLE, MOMENT, described
from timeball.api.desk import Desk
from timeball.api.schemas.operations import OperationOut
from timeball.api.views import Document, answer
from timeball.commands import Actor
from timeball.domain.deed import Deed
from timeball.domain.ids import ExecutionId, JobId, show, show_execution, show_job
from timeball.domain.operation import MOST_ITEMS, Operation, OperationAction, OperationItem, OperationSubject
from timeball.domain.search import LARGEST_PAGE, ExecutionFilter, JobFilter, JobOrder, Page, PageRequest
from timeball.errors import Conflict, InvalidInput

Item = TypeVar("Item")
Id = TypeVar("Id", bound=UUID)

# More than this is an operation of its own, to be asked about.
MOST_AT_ONCE = 500

OPERATION_EXAMPLE = {
    "id": "op_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "action": "retry",
    "subject": "execution",
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


def described_many(request: Any, role: Role = Role.OPERATOR) -> dict[str, Any]:
    """The arguments of a route that does something to many."""
    made = described(role, BULK_EXAMPLE, request=request, has_body=True, fails=[404, 409])
    made["responses"][202] = {
        "description": f"More than {MOST_AT_ONCE}: an operation that is worked off in the background",
        "model": OperationOut,
        "content": {"application/json": {"example": OPERATION_EXAMPLE}},
    }
    return made


async def all_matching(desk: Desk, wanted: ExecutionFilter) -> list[ExecutionId]:
    """The ids of all executions that match; InvalidInput if they are too many for one operation."""
    return await _all_ids(lambda page: desk.insights.executions(wanted, page), lambda found: found.id, "executions")


async def all_jobs_matching(desk: Desk, wanted: JobFilter) -> list[JobId]:
    """The ids of all jobs that match; InvalidInput if they are too many for one operation."""
    return await _all_ids(
        lambda page: desk.insights.jobs(wanted, JobOrder.NEWEST, page), lambda found: found.job.id, "jobs"
    )


async def _all_ids(
    read: Callable[[PageRequest], Awaitable[Page[Item]]], id_of: Callable[[Item], Id], noun: str
) -> list[Id]:
    ids: list[Id] = []
    cursor: str | None = None
    while True:
        page = await read(PageRequest(limit=LARGEST_PAGE, cursor=cursor))
        ids += [id_of(one) for one in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids
        if len(ids) >= MOST_ITEMS:
            raise InvalidInput(
                f"the filter matches more than {MOST_ITEMS} {noun}", field="filter", hint="narrow it by dates"
            )


async def done_to_many(
    desk: Desk,
    actor: Actor,
    action: OperationAction,
    ids: Sequence[UUID],
    *,
    subject: OperationSubject = OperationSubject.EXECUTION,
    settles: bool = False,
    dry_run: bool = False,
    expected_count: int | None = None,
    deed: Deed | None = None,
) -> Response:
    """Do it, and tell what came of each (200); or begin to, and tell where to ask (202)."""
    begun = await desk.commands.begun_operation(deed)
    if begun is not None:
        return going_on(begun)
    ids = list(dict.fromkeys(ids))
    check_count(len(ids), expected_count, subject)
    if dry_run:
        return answer(summed_up([_would(one, subject) for one in ids[:MOST_AT_ONCE]], total=len(ids)))
    if len(ids) > MOST_AT_ONCE:
        return going_on(
            await desk.commands.start_operation(action, ids, actor, subject=subject, settles=settles, deed=deed)
        )
    items = await each_of(desk, actor, action, ids, subject=subject, settles=settles, deed=deed)
    return answer(summed_up([item_document(item) for item in items]))


def going_on(operation: Operation) -> Response:
    """Where to ask about an operation that is begun: by this request, or by the same one before it, whose holder goes on."""
    where = {"Location": f"/api/v1/operations/{show('op', operation.id)}"}
    return answer(operation_document(operation), 202, where)


def check_count(found: int, expected: int | None, subject: OperationSubject) -> None:
    """Refuse if other than the expected number would be touched."""
    if expected is not None and expected != found:
        raise Conflict(f"{found} {subject}s would be touched, expected were {expected}")


async def each_of(
    desk: Desk,
    actor: Actor,
    action: OperationAction,
    ids: Sequence[UUID],
    *,
    subject: OperationSubject,
    settles: bool = False,
    deed: Deed | None = None,
) -> list[OperationItem]:
    """Do it to a few, now; what came of each. Nothing is done to nothing, and nothing is noted."""
    if not ids:
        return []
    begun = await desk.commands.start_operation(
        action, ids, actor, subject=subject, settles=settles, holder=desk.holder, deed=deed
    )
    await desk.commands.work_off(begun, desk.holder)
    return await desk.insights.operation_items(begun.id, None, 0, MOST_AT_ONCE)


def _would(target: UUID, subject: OperationSubject) -> Document:
    if subject is OperationSubject.JOB:
        return item_document(OperationItem(number=0, job_id=JobId(target)))
    return item_document(OperationItem(number=0, execution_id=ExecutionId(target)))


def item_document(item: OperationItem) -> Document:
    """What came of one of many."""
    is_done = item.status == "done"
    return {
        "id": _shown_target(item),
        "status": item.status or "would_be_done",
        "execution_id": show_execution(item.made) if is_done and item.made is not None else None,
        "error": item.error,
    }


def _shown_target(item: OperationItem) -> str:
    if item.job_id is not None:
        return show_job(item.job_id)
    assert item.execution_id is not None
    return show_execution(item.execution_id)


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
        "subject": operation.subject,
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
