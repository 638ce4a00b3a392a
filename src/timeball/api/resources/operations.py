"""Bulk operations: small ones run within the request, large ones in the background while the client polls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import CurrentCaller, Role
from timeball.api.models import PageOut, ReasonIn
from timeball.api.models.executions import OperationItemOut, OperationOut, operation_document
from timeball.api.openapi import BULK_EXAMPLE, EXECUTION_ID, INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, PageParams
from timeball.api.responses import Document, json_response, page_document
from timeball.application.commands.requests import Actor
from timeball.domain.bulk_operation import (
    MAX_OPERATION_ITEMS,
    Operation,
    OperationAction,
    OperationItem,
    OperationSubject,
)
from timeball.domain.search import (
    MAX_PAGE_SIZE,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    PageRequest,
    ResultPage,
    foreign_cursor,
    read_cursor,
    write_cursor,
)
from timeball.domain.values.ids import (
    ExecutionId,
    IdempotentRequest,
    JobId,
    format_execution_id,
    format_id,
    format_job_id,
)
from timeball.domain.values.wording import counted
from timeball.errors import Conflict, InvalidInput

ListItem = TypeVar("ListItem")
Id = TypeVar("Id", bound=UUID)


# More items run in the background.
MAX_INLINE = 500

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
    "until": None,
    "cancel_requested": False,
    "error": None,
    "created_at": INSTANT_EXAMPLE,
    "started_at": INSTANT_EXAMPLE,
    "finished_at": None,
}


def bulk_options(request: Any, role: Role = Role.OPERATOR) -> dict[str, Any]:
    """The arguments of a route for a bulk operation."""
    options = route_options(role, BULK_EXAMPLE, request=request, has_body=True, fails=[404, 409])
    options["responses"][202] = {
        "description": f"More than {MAX_INLINE}: an operation that runs in the background",
        "model": OperationOut,
        "content": {"application/json": {"example": OPERATION_EXAMPLE}},
    }
    return options


async def matching_execution_ids(context: ApiContext, filters: ExecutionFilter) -> list[ExecutionId]:
    """The ids of all executions that match; InvalidInput if they are too many for one operation."""
    return await _all_ids(
        lambda page: context.queries.executions.page(filters, page), lambda execution: execution.id, "executions"
    )


async def matching_job_ids(context: ApiContext, filters: JobFilter) -> list[JobId]:
    """The ids of all jobs that match; InvalidInput if they are too many for one operation."""
    return await _all_ids(
        lambda page: context.queries.jobs.page(filters, JobOrder.NEWEST, page), lambda view: view.job.id, "jobs"
    )


async def _all_ids(
    read: Callable[[PageRequest], Awaitable[ResultPage[ListItem]]], id_of: Callable[[ListItem], Id], noun: str
) -> list[Id]:
    ids: list[Id] = []
    cursor: str | None = None
    while True:
        page = await read(PageRequest(limit=MAX_PAGE_SIZE, cursor=cursor))
        ids += [id_of(item) for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids
        if len(ids) >= MAX_OPERATION_ITEMS:
            raise InvalidInput(
                f"the filter matches more than {MAX_OPERATION_ITEMS} {noun}, expected at most that many",
                field="filter",
                hint="narrow it by dates",
            )


async def run_bulk(
    context: ApiContext,
    actor: Actor,
    action: OperationAction,
    ids: Sequence[UUID],
    *,
    subject: OperationSubject = OperationSubject.EXECUTION,
    settles: bool = False,
    until: datetime | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Response:
    """Carry out a small operation and return the result of each item (200); start a large one (202)."""
    started = await context.commands.operations.find_started(idempotency)
    if started is not None:
        return accepted_operation(started)
    ids = list(dict.fromkeys(ids))
    check_expected_count(len(ids), expected_count, subject)
    if dry_run:
        return json_response(bulk_summary([_dry_run_item(id_, subject) for id_ in ids[:MAX_INLINE]], total=len(ids)))
    if len(ids) > MAX_INLINE:
        return accepted_operation(
            await context.commands.operations.start(
                action, ids, actor, subject=subject, settles=settles, until=until, idempotency=idempotency
            )
        )
    items = await run_each(
        context, actor, action, ids, subject=subject, settles=settles, until=until, idempotency=idempotency
    )
    return json_response(bulk_summary([item_document(item) for item in items]))


def accepted_operation(operation: Operation) -> Response:
    """The response for an operation that this request started, or an earlier request with the same Idempotency-Key."""
    location = {"Location": f"/api/v1/operations/{format_id('op', operation.id)}"}
    return json_response(operation_document(operation), 202, location)


def check_expected_count(count: int, expected: int | None, subject: OperationSubject) -> None:
    """Raise Conflict if the operation would affect another number of items than expected."""
    if expected is not None and expected != count:
        raise Conflict(f"would affect {counted(count, subject)}, expected {expected}", hint="look at them with dry_run")


async def run_each(
    context: ApiContext,
    actor: Actor,
    action: OperationAction,
    ids: Sequence[UUID],
    *,
    subject: OperationSubject,
    settles: bool = False,
    until: datetime | None = None,
    idempotency: IdempotentRequest | None = None,
) -> list[OperationItem]:
    """Carry out a small operation now, and return its items; without ids nothing is done or recorded."""
    if not ids:
        return []
    started = await context.commands.operations.start(
        action,
        ids,
        actor,
        subject=subject,
        settles=settles,
        until=until,
        holder=context.holder,
        idempotency=idempotency,
    )
    await context.commands.operations.run(started, context.holder)
    return await context.queries.operations.items(started.id, None, 0, MAX_INLINE)


def _dry_run_item(target: UUID, subject: OperationSubject) -> Document:
    if subject is OperationSubject.JOB:
        return item_document(OperationItem(number=0, job_id=JobId(target)))
    return item_document(OperationItem(number=0, execution_id=ExecutionId(target)))


def item_document(item: OperationItem) -> Document:
    """The result of one item."""
    is_done = item.status == "done"
    return {
        "id": _shown_target(item),
        "status": item.status or "would_be_done",
        "execution_id": format_execution_id(item.result_id) if is_done and item.result_id is not None else None,
        "error": item.error,
    }


def _shown_target(item: OperationItem) -> str:
    if item.job_id is not None:
        return format_job_id(item.job_id)
    assert item.execution_id is not None
    return format_execution_id(item.execution_id)


def bulk_summary(results: list[Document], total: int | None = None) -> Document:
    """The results and their counts; a dry run lists the first 500."""
    failed = sum(item["status"] == "failed" for item in results)
    done = (len(results) if total is None else total) - failed
    return {"done": done, "failed": failed, "has_more": len(results) < done + failed, "results": results}


router = APIRouter(prefix="/operations", tags=["operations"])

OperationRef = Annotated[str, Path(max_length=200, description="An operation's id.")]

_ITEM_EXAMPLE = {
    "number": 1,
    "id": EXECUTION_ID,
    "status": "failed",
    "execution_id": None,
    "error": "execution exe_… is running, expected a finished one",
}
_ORDER = "item"


@router.get("", response_model=PageOut[OperationOut], **route_options(Role.VIEWER, page_example(OPERATION_EXAMPLE)))
async def list_operations(context: Context, page: PageParams) -> Response:
    """List the operations of the last week, the latest first."""
    return json_response(page_document(await context.queries.operations.page(page), page, operation_document))


@router.get("/{operation}", response_model=OperationOut, **route_options(Role.VIEWER, OPERATION_EXAMPLE, fails=[404]))
async def get_operation(operation: OperationRef, context: Context) -> Response:
    """One operation and its progress."""
    return json_response(operation_document(await context.queries.operations.find(operation)))


@router.get(
    "/{operation}/items",
    response_model=PageOut[OperationItemOut],
    **route_options(Role.VIEWER, page_example(_ITEM_EXAMPLE), fails=[404]),
)
async def list_items(
    operation: OperationRef,
    context: Context,
    status: Annotated[Literal["done", "failed"] | None, Query(description="Only items with this result.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    """The result of each execution or job, in order."""
    target = await context.queries.operations.find(operation)
    items = await context.queries.operations.items(target.id, status, _position(cursor), limit + 1)
    shown = items[:limit]
    has_more = len(items) > limit
    next_cursor = write_cursor(_ORDER, str(shown[-1].number), target.id) if has_more else None
    return json_response(
        {"data": [_operation_item_document(item) for item in shown], "next_cursor": next_cursor, "has_more": has_more}
    )


_CANCEL: dict[str, Any] = route_options(
    Role.OPERATOR,
    OPERATION_EXAMPLE | {"cancel_requested": True},
    status=202,
    request={"reason": "too many"},
    has_body=True,
    fails=[404, 409],
)


@router.post("/{operation}/cancel", response_model=OperationOut, **_CANCEL)
async def cancel_operation(
    operation: OperationRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stop an operation; finished items stay as they are."""
    target = await context.queries.operations.find(operation)
    stopping = await context.commands.operations.cancel(target.id, caller.as_actor((body or ReasonIn()).reason))
    return json_response(operation_document(stopping), 202)


_PAUSE: dict[str, Any] = route_options(
    Role.OPERATOR,
    OPERATION_EXAMPLE | {"action": "backfill", "state": "paused"},
    request={"reason": "the database is busy"},
    has_body=True,
    fails=[404, 409],
)


@router.post("/{operation}/pause", response_model=OperationOut, **_PAUSE)
async def pause_operation(
    operation: OperationRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let a backfill create no more executions until it is resumed; those that it has created run on."""
    target = await context.queries.operations.find(operation)
    paused = await context.commands.operations.pause(target.id, caller.as_actor((body or ReasonIn()).reason))
    return json_response(operation_document(paused))


_RESUME: dict[str, Any] = route_options(
    Role.OPERATOR,
    OPERATION_EXAMPLE | {"action": "backfill", "state": "pending"},
    request={"reason": "it is quiet again"},
    has_body=True,
    fails=[404, 409],
)


@router.post("/{operation}/resume", response_model=OperationOut, **_RESUME)
async def resume_operation(
    operation: OperationRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let a paused backfill go on where it was."""
    target = await context.queries.operations.find(operation)
    resumed = await context.commands.operations.resume(target.id, caller.as_actor((body or ReasonIn()).reason))
    return json_response(operation_document(resumed))


def _operation_item_document(item: OperationItem) -> Document:
    return item_document(item) | {"number": item.number, "status": item.status or "waiting"}


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    number = read_cursor(cursor, _ORDER, 2)[0] or ""
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise foreign_cursor()
    return int(number)
