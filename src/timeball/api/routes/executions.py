"""Executions: what ran, what runs, what waits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from timeball.api.auth import Caller, Role, TheCaller
from timeball.api.described import EXECUTION_EXAMPLE, MOMENT, WORKER_ID, described, described_export, listed
from timeball.api.desk import Desk, TheDesk
from timeball.api.expanding import ExecutionShape, FullExecutionShape, executions_page, expansions, tries
from timeball.api.export import Format, WithMark, exported
from timeball.api.many import all_matching, described_many, done_to_many
from timeball.api.problems import Refusal
from timeball.api.routes.jobs import RUN, IdempotencyKey, ThePage, cancel_one, checked_run
from timeball.api.schemas.bulk import BulkOut, ExecutionBulkIn
from timeball.api.schemas.common import ListOut, Many, Reason
from timeball.api.schemas.executions import ExecutionFull, ExecutionOut, LogLineOut, TryOut
from timeball.api.schemas.jobs import RunIn
from timeball.api.views import answer, execution_document, full_execution_document, off_loop
from timeball.api.waiting import Wait, awaited_execution, shown_execution
from timeball.api.wishes import check_search, execution_filter, searched_executions
from timeball.domain.ids import ExecutionId, parse_id
from timeball.domain.operation import OperationAction
from timeball.domain.search import ExecutionFilter, PageRequest, read_cursor, write_cursor
from timeball.errors import InvalidInput

router = APIRouter(prefix="/executions", tags=["executions"])

ExecutionRef = Annotated[str, Path(max_length=200, description="An execution's id.")]
TheFilter = Annotated[ExecutionFilter, Depends(searched_executions)]

_COLUMNS = list(EXECUTION_EXAMPLE)
_FULL_EXAMPLE = EXECUTION_EXAMPLE | {
    "payload": {},
    "result": {"status": 200},
    "fingerprint": None,
    "stop_requested": None,
    "attempt_list": [],
    "timeline": [{"at": MOMENT, "what": "scheduled"}],
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
}
_LOG_EXAMPLE = {"at": MOMENT, "attempt_fence": 1, "number": 1, "level": "info", "message": "sent"}


@router.get("", response_model=ListOut[ExecutionOut], **described(Role.VIEWER, listed(EXECUTION_EXAMPLE)))
async def list_executions(desk: TheDesk, wanted: TheFilter, page: ThePage, shape: ExecutionShape) -> Response:
    """List executions, the latest first, in the order of their ids."""
    return answer(await executions_page(await desk.insights.executions(wanted, page), page, shape, desk.insights))


@router.get(
    "/export",
    response_class=Response,
    **described_export("id,job_id,state\r\n"),
)
async def export_executions(
    desk: TheDesk, wanted: TheFilter, kind: Annotated[Format, Query(alias="format")] = "csv", bom: WithMark = False
) -> Response:
    """All executions that match, as CSV or JSON lines. Cells that a spreadsheet would run begin with an apostrophe."""

    async def read(request: PageRequest) -> Any:
        return await desk.insights.executions(wanted, request)

    return await exported(kind, "executions", _COLUMNS, read, execution_document, has_mark=bom)


@router.get("/{execution}", response_model=ExecutionFull, **described(Role.VIEWER, _FULL_EXAMPLE, fails=[404]))
async def get_execution(execution: ExecutionRef, desk: TheDesk, shape: FullExecutionShape) -> Response:
    """One execution: its attempts, time line, result and error."""
    view = await desk.insights.view_execution(execution)
    more = await expansions([view.execution], shape, desk.insights)
    document = await off_loop(lambda: full_execution_document(view), len(view.payload))
    return answer(shape.fit(document | more[view.execution.id]))


@router.get(
    "/{execution}/attempts",
    response_model=Many[TryOut],
    **described(Role.VIEWER, {"data": [_TRY_EXAMPLE]}, fails=[404]),
)
async def get_attempts(execution: ExecutionRef, desk: TheDesk) -> Response:
    """Every try of an execution, in order: those that failed, with their errors, and the one that runs or succeeded."""
    found = await desk.insights.find_execution(execution)
    attempts = await desk.insights.attempts_of([found])
    return answer({"data": tries(found, attempts[found.id])})


@router.get(
    "/{execution}/logs",
    response_model=ListOut[LogLineOut],
    **described(Role.VIEWER, listed(_LOG_EXAMPLE), fails=[404]),
)
async def get_logs(
    execution: ExecutionRef,
    desk: TheDesk,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    cursor: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    """What the handler said, in order. The cursor of the last page goes on where it ended, also while it still runs."""
    found = await desk.insights.find_execution(execution)
    lines = await desk.insights.log(found.id, _log_position(cursor), limit + 1)
    shown = lines[:limit]
    last = shown[-1] if shown else None
    next_cursor = cursor if last is None else write_cursor("log", str(last.fence), str(last.number), found.id)
    data = [
        {
            "at": line.at,
            "attempt_fence": line.fence,
            "number": line.number,
            "level": line.level,
            "message": line.message,
        }
        for line in shown
    ]
    return answer({"data": data, "next_cursor": next_cursor, "has_more": len(lines) > limit})


def _log_position(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    fence, number, _ = read_cursor(cursor, "log", 3)
    if not all(text is not None and text.isascii() and text.isdecimal() and len(text) < 10 for text in (fence, number)):
        raise InvalidInput("cursor is none of this list", field="cursor")
    return int(fence or 0), int(number or 0)


@router.post(
    "/{execution}/cancel",
    response_model=ExecutionFull,
    **described(Role.OPERATOR, _FULL_EXAMPLE, request={"reason": "not needed"}, has_body=True, fails=[404, 409]),
)
async def cancel_execution(
    execution: ExecutionRef,
    desk: TheDesk,
    caller: TheCaller,
    body: Reason | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Cancel an execution: what waits, at once; what runs is asked to stop."""
    found = await desk.insights.find_execution(execution)
    await cancel_one(desk, found.id, caller.acting((body or Reason()).reason))
    return await shown_execution(desk, found.id, 200)


@router.post("/{execution}/retry", response_model=ExecutionFull, **RUN)
async def retry_execution(
    execution: ExecutionRef,
    desk: TheDesk,
    caller: TheCaller,
    wait: Wait,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run an ended execution again: a new one, linked to the old. Another payload needs the role editor."""
    body = checked_run(body, caller)
    found = await desk.insights.find_execution(execution)
    execution_id = await desk.commands.retry(
        found.id, body.payload, caller.acting(body.reason), caller.deed, is_unchecked=body.unchecked
    )
    return await awaited_execution(desk, execution_id, wait)


@router.post(
    "/bulk",
    response_model=BulkOut,
    **described_many({"action": "retry", "filter": {"status": ["dead"]}, "dry_run": True}),
)
async def change_executions(
    body: ExecutionBulkIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel or retry many executions, named or found by a filter.

    Up to 500 are done at once, and the answer tells of each; more become an operation (202) that is asked about at
    `/operations/{id}`. With `dry_run` the first 500 that would be touched are shown.
    """
    return await done_to_many(
        desk,
        caller.acting(body.reason),
        OperationAction(body.action),
        await _chosen(desk, caller, body),
        dry_run=body.dry_run,
        expected_count=body.expected_count,
        deed=caller.deed,
    )


async def _chosen(desk: Desk, caller: Caller, body: ExecutionBulkIn) -> list[ExecutionId]:
    if (body.ids is None) == (body.filter is None):
        raise Refusal(422, "invalid_input", "give either ids or a filter", hint="a filter may be empty: {}")
    if body.ids is not None:
        return [ExecutionId(parse_id("exe", one)) for one in body.ids]
    assert body.filter is not None
    chosen = body.filter
    dates = chosen.start_date, chosen.end_date
    wanted = execution_filter(chosen.status, chosen.handler, chosen.queue, None, *dates, chosen.q)
    check_search(wanted, caller)
    return await all_matching(desk, wanted)
