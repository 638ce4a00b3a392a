"""Routes of executions and of dead letters: list, read, logs, cancel, retry, discard.

A dead letter is an execution that ended dead and was neither retried nor discarded. Either takes it off the list;
its history stays as it is.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.documents import (
    ExecutionSelection,
    FullExecutionSelection,
    WaitParam,
    attempt_documents,
    execution_response,
    executions_page,
    expansions,
    full_execution_document,
    wait_for_execution,
)
from timeball.api.errors import HttpProblem
from timeball.api.models import FullList, PageOut, ReasonIn, ShortText
from timeball.api.models.executions import (
    AnyAttemptOut,
    BulkOut,
    DeadGroupOut,
    DeadLettersIn,
    ExecutionBulkIn,
    ExecutionFull,
    ExecutionOut,
    LogLineOut,
    execution_document,
)
from timeball.api.models.jobs import RunIn
from timeball.api.openapi import (
    EXECUTION_EXAMPLE,
    EXECUTION_ID,
    INSTANT_EXAMPLE,
    WORKER_ID,
    export_options,
    page_example,
    route_options,
)
from timeball.api.params import (
    ApiContext,
    Context,
    ExecutionFilterParams,
    ExecutionRef,
    IdempotencyKey,
    PageParams,
    allowed_execution_filter,
    check_payload_search,
    execution_filter,
)
from timeball.api.resources.jobs import RUN_OPTIONS, cancel_or_conflict, check_run_payload
from timeball.api.resources.operations import bulk_options, matching_execution_ids, run_bulk
from timeball.api.responses import (
    ByteOrderMark,
    Document,
    ExportFormat,
    export_response,
    in_thread_if_large,
    json_response,
    page_document,
)
from timeball.domain.bulk_operation import OperationAction
from timeball.domain.search import (
    DEAD_LETTERS,
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    PageRequest,
    where,
)
from timeball.domain.values.ids import ExecutionId, format_execution_id, parse_id


def dead_group_document(group: DeadLetterGroup) -> Document:
    """Dead executions with the same error, handler or queue; the field that is set is the one to retry or discard them by."""
    return {
        **{by.field: group.key if by is group.by else None for by in DeadLetterGrouping},
        "executions": group.executions,
        "error_type": group.error_type,
        "latest_error": group.latest_error,
        "latest_id": format_execution_id(group.latest_id),
        "top_frame": group.top_frame,
        "handlers": group.handlers,
        "queues": group.queues,
        "first_at": group.first_at,
        "last_at": group.last_at,
        "deaths": {"since": group.since, "until": group.until, "counts": group.deaths},
    }


router = APIRouter(prefix="/executions", tags=["executions"])

_COLUMNS = list(EXECUTION_EXAMPLE)
_FULL_EXAMPLE = EXECUTION_EXAMPLE | {
    "payload": {},
    "resolved": None,
    "result": {"status": 200},
    "fingerprint": None,
    "stop_requested": None,
    "follows": None,
    "followed_by": [],
    "group": None,
    "attempt_list": [],
    "timeline": [{"at": INSTANT_EXAMPLE, "what": "scheduled"}],
}
_TRY_EXAMPLE = {
    "number": 1,
    "worker": WORKER_ID,
    "started_at": "2026-11-16T06:00:00.001000Z",
    "finished_at": "2026-11-16T06:00:00.842000Z",
    "outcome": "succeeded",
    "error_type": None,
    "error": None,
    "traceback": None,
    "top_frame": None,
    "fingerprint": None,
    "is_expected": False,
}
_LOG_EXAMPLE = {"at": INSTANT_EXAMPLE, "attempt_fence": 1, "number": 1, "level": "info", "message": "sent"}


@router.get("", response_model=PageOut[ExecutionOut], **route_options(Role.VIEWER, page_example(EXECUTION_EXAMPLE)))
async def list_executions(
    context: Context, filters: ExecutionFilterParams, page: PageParams, selection: ExecutionSelection
) -> Response:
    """List executions, the latest first, in the order of their ids."""
    return json_response(
        await executions_page(await context.queries.executions.page(filters, page), page, selection, context.queries)
    )


@router.get(
    "/export",
    response_class=Response,
    **export_options("id,job_id,state\r\n"),
)
async def export_executions(
    context: Context,
    filters: ExecutionFilterParams,
    kind: Annotated[ExportFormat, Query(alias="format")] = "csv",
    bom: ByteOrderMark = False,
) -> Response:
    """All matching executions as CSV, JSON lines or JSON. Cells that a spreadsheet would run begin with an apostrophe."""

    async def read(request: PageRequest) -> Any:
        return await context.queries.executions.page(filters, request)

    return await export_response(kind, "executions", _COLUMNS, read, execution_document, has_mark=bom)


@router.get("/{execution}", response_model=ExecutionFull, **route_options(Role.VIEWER, _FULL_EXAMPLE, fails=[404]))
async def get_execution(execution: ExecutionRef, context: Context, selection: FullExecutionSelection) -> Response:
    """One execution with its attempts, timeline, result and error."""
    view = await context.queries.executions.view(execution)
    more = await expansions([view.execution], selection, context.queries)
    document = await in_thread_if_large(lambda: full_execution_document(view), len(view.payload))
    return json_response(selection.fit(document | more[view.execution.id]))


@router.get(
    "/{execution}/attempts",
    response_model=FullList[AnyAttemptOut],
    **route_options(Role.VIEWER, {"data": [_TRY_EXAMPLE]}, fails=[404]),
)
async def get_attempts(execution: ExecutionRef, context: Context) -> Response:
    """Every attempt of an execution, in order: the failed ones with their errors, and the one that runs or succeeded."""
    target = await context.queries.executions.find(execution)
    attempts = await context.queries.executions.attempts([target])
    return json_response({"data": attempt_documents(target, attempts[target.id])})


@router.get(
    "/{execution}/logs",
    response_model=PageOut[LogLineOut],
    **route_options(Role.VIEWER, page_example(_LOG_EXAMPLE), fails=[404]),
)
async def get_logs(
    execution: ExecutionRef,
    context: Context,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    cursor: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    """The log lines of the handler, in order. The cursor of the last page stays valid while the execution runs."""
    page = await context.queries.executions.log(execution, cursor, limit)
    data = [
        {
            "at": line.at,
            "attempt_fence": line.fence,
            "number": line.number,
            "level": line.level,
            "message": line.message,
        }
        for line in page.lines
    ]
    return json_response({"data": data, "next_cursor": page.next_cursor, "has_more": page.has_more})


@router.post(
    "/{execution}/cancel",
    response_model=ExecutionFull,
    **route_options(Role.OPERATOR, _FULL_EXAMPLE, request={"reason": "not needed"}, has_body=True, fails=[404, 409]),
)
async def cancel_execution(
    execution: ExecutionRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Cancel an execution: a waiting one at once; a running one is asked to stop."""
    target = await context.queries.executions.find(execution)
    await cancel_or_conflict(context, target.id, caller.as_actor((body or ReasonIn()).reason))
    return await execution_response(context, target.id, 200)


@router.post("/{execution}/retry", response_model=ExecutionFull, **RUN_OPTIONS)
async def retry_execution(
    execution: ExecutionRef,
    context: Context,
    caller: CurrentCaller,
    wait: WaitParam,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a finished execution again, as a new one that is linked to it. Another payload needs the role editor."""
    body = check_run_payload(body, caller)
    target = await context.queries.executions.find(execution)
    execution_id = await context.commands.executions.retry(
        target.id, body.payload, caller.as_actor(body.reason), caller.idempotency, is_unchecked=body.unchecked
    )
    return await wait_for_execution(context, execution_id, wait)


@router.post(
    "/bulk",
    response_model=BulkOut,
    **bulk_options({"action": "retry", "filter": {"status": ["dead"]}, "dry_run": True}),
)
async def change_executions(
    body: ExecutionBulkIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel or retry many executions, given by id or by a filter.

    Up to 500 are done at once, and the response lists each; more become an operation (202), whose progress is at
    `/operations/{id}`. With `dry_run` the response lists the first 500 that would be affected.
    """
    return await run_bulk(
        context,
        caller.as_actor(body.reason),
        OperationAction(body.action),
        await _chosen_executions(context, caller, body),
        dry_run=body.dry_run,
        expected_count=body.expected_count,
        idempotency=caller.idempotency,
    )


async def _chosen_executions(context: ApiContext, caller: Caller, body: ExecutionBulkIn) -> list[ExecutionId]:
    if (body.ids is None) == (body.filter is None):
        raise HttpProblem(
            422,
            "invalid_input",
            "ids and filter are both given or both missing, expected one of them",
            hint="a filter may be empty: {}",
        )
    if body.ids is not None:
        return [ExecutionId(parse_id("exe", id_)) for id_ in body.ids]
    assert body.filter is not None
    chosen = body.filter
    dates = chosen.start_date, chosen.end_date
    filters = execution_filter(chosen.status, chosen.handler, chosen.queue, None, *dates, chosen.q)
    check_payload_search(filters, caller)
    return await matching_execution_ids(context, filters)


dead_letter_router = APIRouter(prefix="/dead-letter", tags=["dead letter"])

_DEAD_EXAMPLE = EXECUTION_EXAMPLE | {"state": "dead", "attempts": 4, "error_type": "TimeoutError", "error": "no answer"}
_GROUP_EXAMPLE = {
    "fingerprint": "4c1a9d02",
    "handler": None,
    "queue": None,
    "executions": 17,
    "error_type": "TimeoutError",
    "latest_error": "no answer",
    "latest_id": EXECUTION_ID,
    "top_frame": "app/crm.py:14 in sync",
    "handlers": ["http.webhook"],
    "queues": ["crm"],
    "first_at": INSTANT_EXAMPLE,
    "last_at": INSTANT_EXAMPLE,
    "deaths": {"since": INSTANT_EXAMPLE, "until": INSTANT_EXAMPLE, "counts": [*[0] * 20, 3, 9, 5, 0]},
}


@dead_letter_router.get(
    "", response_model=PageOut[ExecutionOut], **route_options(Role.VIEWER, page_example(_DEAD_EXAMPLE))
)
async def list_dead(
    context: Context,
    filters: Annotated[ExecutionFilter, Depends(allowed_execution_filter)],
    page: PageParams,
    fingerprint: Annotated[
        ShortText | None, Query(description="Only executions with this error; `none`: those without a fingerprint.")
    ] = None,
) -> Response:
    """Dead executions that were neither retried nor discarded from here, the latest first; `status` is ignored."""
    terms = [term for term in filters.terms if term.field != "status"]
    dead = ExecutionFilter((*DEAD_LETTERS, *where(fingerprint=fingerprint), *terms))
    return json_response(page_document(await context.queries.executions.page(dead, page), page, execution_document))


@dead_letter_router.get(
    "/groups", response_model=FullList[DeadGroupOut], **route_options(Role.VIEWER, {"data": [_GROUP_EXAMPLE]})
)
async def list_groups(
    context: Context,
    by: Annotated[DeadLetterGrouping, Query(description="What groups them.")] = DeadLetterGrouping.ERROR,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The latest 10,000 dead executions, grouped by error, handler or queue, the largest group first."""
    return json_response(
        {"data": [dead_group_document(group) for group in await context.queries.executions.dead_groups(limit, by)]}
    )


@dead_letter_router.post("/retry", response_model=BulkOut, **bulk_options({"fingerprint": "4c1a9d02"}))
async def retry_dead(
    body: DeadLettersIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run dead executions again, each as a new one: by id, all of a group, or all.

    Up to 500 are done at once; more become an operation (202).
    """
    ids = await _chosen_dead(context, body)
    return await run_bulk(
        context, caller.as_actor(body.reason), OperationAction.RETRY, ids, settles=True, idempotency=caller.idempotency
    )


@dead_letter_router.post("/discard", response_model=BulkOut, **bulk_options({"ids": [EXECUTION_ID], "reason": "known"}))
async def discard_dead(
    body: DeadLettersIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Take dead executions off this list without running them: by id, all of a group, or all.

    Up to 500 are done at once; more become an operation (202).
    """
    ids = await _chosen_dead(context, body)
    return await run_bulk(
        context, caller.as_actor(body.reason), OperationAction.DISCARD, ids, idempotency=caller.idempotency
    )


async def _chosen_dead(context: ApiContext, body: DeadLettersIn) -> list[ExecutionId]:
    group = {by.field: getattr(body, by.field) for by in DeadLetterGrouping}
    given = [value is not None for value in (body.ids, *group.values())]
    if [*given, body.all].count(True) != 1:
        raise HttpProblem(
            422,
            "invalid_input",
            f"{[*given, body.all].count(True)} choices are given, expected one: ids, fingerprint, handler, queue or all: true",
        )
    if body.ids is not None:
        return [ExecutionId(parse_id("exe", id_)) for id_ in body.ids]
    return await matching_execution_ids(context, ExecutionFilter((*DEAD_LETTERS, *where(**group))))
