"""The dead letters: executions that ended dead and that nobody has dealt with yet.

Retrying or discarding one from here takes it off the list. Its history stays as it is: what ended dead has ended dead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from timeball.api.auth import Role, TheCaller
from timeball.api.described import EXECUTION_EXAMPLE, EXECUTION_ID, MOMENT, described, listed
from timeball.api.desk import Desk, TheDesk
from timeball.api.many import all_matching, described_many, done_to_many
from timeball.api.problems import Refusal
from timeball.api.routes.jobs import IdempotencyKey, ThePage
from timeball.api.schemas.bulk import BulkOut, DeadChoice
from timeball.api.schemas.common import ListOut, Many, Words
from timeball.api.schemas.executions import DeadGroup, ExecutionOut
from timeball.api.views import answer, dead_group_document, execution_document, page_document
from timeball.api.wishes import searched_executions
from timeball.domain.dead_letters import DeadGrouping
from timeball.domain.execution import ExecutionState
from timeball.domain.ids import ExecutionId, parse_id
from timeball.domain.operation import OperationAction
from timeball.domain.search import ExecutionFilter

router = APIRouter(prefix="/dead-letter", tags=["dead letter"])

_DEAD = (ExecutionState.DEAD,)
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
    "first_at": MOMENT,
    "last_at": MOMENT,
    "deaths": {"since": MOMENT, "until": MOMENT, "counts": [*[0] * 20, 3, 9, 5, 0]},
}


@router.get("", response_model=ListOut[ExecutionOut], **described(Role.VIEWER, listed(_DEAD_EXAMPLE)))
async def list_dead(
    desk: TheDesk,
    wanted: Annotated[ExecutionFilter, Depends(searched_executions)],
    page: ThePage,
    fingerprint: Annotated[
        Words | None, Query(description="Only those with this cause; `none`: those without one.")
    ] = None,
) -> Response:
    """The dead that nobody has retried or discarded from here, the latest first; `status` does not matter."""
    dead = replace(wanted, states=_DEAD, fingerprint=fingerprint, is_unsettled=True)
    return answer(page_document(await desk.insights.executions(dead, page), page, execution_document))


@router.get("/groups", response_model=Many[DeadGroup], **described(Role.VIEWER, {"data": [_GROUP_EXAMPLE]}))
async def list_groups(
    desk: TheDesk,
    by: Annotated[DeadGrouping, Query(description="What they are put together by.")] = DeadGrouping.ERROR,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The latest 10,000 dead, grouped by what killed them, by handler or by queue, the largest group first."""
    return answer({"data": [dead_group_document(group) for group in await desk.insights.dead_groups(limit, by)]})


@router.post("/retry", response_model=BulkOut, **described_many({"fingerprint": "4c1a9d02"}))
async def retry_dead(
    body: DeadChoice, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run dead executions again, each as a new one: some by id, all of a group, or all.

    Up to 500 are done at once; more become an operation (202).
    """
    ids = await _chosen(desk, body)
    return await done_to_many(
        desk, caller.acting(body.reason), OperationAction.RETRY, ids, settles=True, deed=caller.deed
    )


@router.post("/discard", response_model=BulkOut, **described_many({"ids": [EXECUTION_ID], "reason": "known"}))
async def discard_dead(
    body: DeadChoice, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Take dead executions off this list, without running them: some by id, all of a group, or all.

    Up to 500 are done at once; more become an operation (202).
    """
    ids = await _chosen(desk, body)
    return await done_to_many(desk, caller.acting(body.reason), OperationAction.DISCARD, ids, deed=caller.deed)


async def _chosen(desk: Desk, body: DeadChoice) -> list[ExecutionId]:
    group = {by.field: getattr(body, by.field) for by in DeadGrouping}
    given = [value is not None for value in (body.ids, *group.values())]
    if [*given, body.all].count(True) != 1:
        raise Refusal(422, "invalid_input", "give one of ids, fingerprint, handler, queue, or all: true")
    if body.ids is not None:
        return [ExecutionId(parse_id("exe", one)) for one in body.ids]
    return await all_matching(desk, ExecutionFilter(states=_DEAD, is_unsettled=True, **group))
