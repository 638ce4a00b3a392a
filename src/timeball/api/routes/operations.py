"""Operations: what is done to very many executions or jobs, in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import Role, TheCaller
from timeball.api.described import EXECUTION_ID, described, listed
from timeball.api.desk import TheDesk
from timeball.api.many import OPERATION_EXAMPLE, item_document, operation_document
from timeball.api.routes.jobs import IdempotencyKey, ThePage
from timeball.api.schemas.common import ListOut, Reason
from timeball.api.schemas.operations import OperationItemOut, OperationOut
from timeball.api.views import Document, answer, page_document
from timeball.domain.operation import OperationItem
from timeball.domain.search import read_cursor, write_cursor
from timeball.errors import InvalidInput

router = APIRouter(prefix="/operations", tags=["operations"])

OperationRef = Annotated[str, Path(max_length=200, description="An operation's id.")]

_ITEM_EXAMPLE = {
    "number": 1,
    "id": EXECUTION_ID,
    "status": "failed",
    "execution_id": None,
    "error": "execution exe_… is running, not ended",
}
_ORDER = "item"


@router.get("", response_model=ListOut[OperationOut], **described(Role.VIEWER, listed(OPERATION_EXAMPLE)))
async def list_operations(desk: TheDesk, page: ThePage) -> Response:
    """List the operations of the last week, the latest first."""
    return answer(page_document(await desk.insights.operations(page), page, operation_document))


@router.get("/{operation}", response_model=OperationOut, **described(Role.VIEWER, OPERATION_EXAMPLE, fails=[404]))
async def get_operation(operation: OperationRef, desk: TheDesk) -> Response:
    """One operation, and how far it has come."""
    return answer(operation_document(await desk.insights.find_operation(operation)))


@router.get(
    "/{operation}/items",
    response_model=ListOut[OperationItemOut],
    **described(Role.VIEWER, listed(_ITEM_EXAMPLE), fails=[404]),
)
async def list_items(
    operation: OperationRef,
    desk: TheDesk,
    status: Annotated[Literal["done", "failed"] | None, Query(description="Only those with this end.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    """What came of each execution or job, in order."""
    found = await desk.insights.find_operation(operation)
    items = await desk.insights.operation_items(found.id, status, _position(cursor), limit + 1)
    shown = items[:limit]
    has_more = len(items) > limit
    next_cursor = write_cursor(_ORDER, str(shown[-1].number), found.id) if has_more else None
    return answer({"data": [_document(item) for item in shown], "next_cursor": next_cursor, "has_more": has_more})


_CANCEL: dict[str, Any] = described(
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
    desk: TheDesk,
    caller: TheCaller,
    body: Reason | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Stop an operation where it is; what it has done stays done."""
    found = await desk.insights.find_operation(operation)
    asked = await desk.commands.cancel_operation(found.id, caller.acting((body or Reason()).reason))
    return answer(operation_document(asked), 202)


def _document(item: OperationItem) -> Document:
    return item_document(item) | {"number": item.number, "status": item.status or "waiting"}


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    number = read_cursor(cursor, _ORDER, 2)[0] or ""
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise InvalidInput("cursor is none of this list", field="cursor")
    return int(number)
