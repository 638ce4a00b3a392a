"""Routes of groups: parts that run side by side, and what follows when all of them have ended."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import CurrentCaller, Role
from timeball.api.errors import HttpProblem
from timeball.api.models import PageOut, ReasonIn
from timeball.api.models.groups import (
    GroupCancelled,
    GroupCreated,
    GroupExplanationOut,
    GroupFull,
    GroupIn,
    GroupOut,
    group_document,
    group_explanation_document,
    group_tree_document,
)
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import Context, IdempotencyKey, PageParams
from timeball.api.responses import json_response, page_document
from timeball.domain.follow_ups import GroupState
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import format_id
from timeball.domain.values.redaction import refuse_redacted
from timeball.errors import Conflict

router = APIRouter(prefix="/groups", tags=["groups"])

GroupRef = Annotated[str, Path(max_length=200, description="A group's id.")]

_GROUP_ID = "grp_01JCV3V1KC8M2T4QZ5R7N9X0AB"
_EXAMPLE: dict[str, Any] = {
    "id": _GROUP_ID,
    "state": "open",
    "total": 3,
    "succeeded": 1,
    "failed": 0,
    "waits_for": 2,
    "progress": 0.3333,
    "handler": "pages.read",
    "group": None,
    "meta": {"tenant": "acme"},
    "created_by": "key:4c1a9d02b7e1 shop",
    "created_at": INSTANT_EXAMPLE,
    "closed_at": None,
}
_STEP: dict[str, Any] = {
    "execution_id": EXECUTION_ID,
    "handler": "pages.read",
    "state": "running",
    "error": None,
    "group": None,
    "parts": [],
}
_FULL_EXAMPLE = _EXAMPLE | {
    "followed_by": [],
    "parts": [{"number": 1, "state": "open", "steps": [_STEP], "steps_left": 0}],
    "next_cursor": None,
    "has_more": False,
}
_REQUEST = {
    "group": [
        {"handler": "pages.read", "payload": {"page": 1}},
        {"handler": "pages.read", "payload": {"page": 2}, "queue": "scans"},
        {
            "chain": [
                {"handler": "pages.scan", "payload": {"page": 3}},
                {"handler": "pages.read", "payload": {"page": {"$cause": "result"}}},
            ]
        },
    ],
    "then": {"handler": "pages.join", "payload": {"pages": {"$cause": "results"}}},
    "on_failure": {"handler": "owner.tell", "payload": {"error": {"$cause": "error"}}},
    "meta": {"tenant": "acme"},
}


@router.post(
    "",
    response_model=GroupCreated,
    **route_options(
        Role.EDITOR,
        _EXAMPLE | {"succeeded": 0, "waits_for": 3, "progress": 0.0, "warnings": []},
        status=201,
        request=_REQUEST,
        has_body=True,
    ),
)
async def create_group(
    body: GroupIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Begin a group: its parts run side by side, and `then` follows when all have succeeded, else `on_failure`, when all have ended.

    A part is a call, `{"chain": [...]}` or `{"group": [...]}`. With `chain` in place of `group`, the steps run one after the other.
    All of it is written in one transaction, and nothing waits in a slot for the parts. A group has up to 10,000 parts, a chain up to
    10,000 steps, and they stand up to 20 deep in each other. Calls take the options that their handlers declare, unless they say
    otherwise.
    """
    work = _work(body)
    created = await context.commands.groups.create(
        work, caller.as_actor(body.reason), caller.idempotency, meta=body.meta, is_unchecked=body.unchecked
    )
    group = group_document(await context.queries.groups.find(str(created.id)))
    location = {"Location": f"/api/v1/groups/{group['id']}"}
    return json_response(group | {"warnings": created.warnings}, 201, location)


def _work(body: GroupIn) -> dict[str, Any]:
    """The group or chain in a body."""
    if (body.group is None) == (body.chain is None):
        raise HttpProblem(
            422,
            "invalid_input",
            "group and chain are both given or both missing, expected one of them",
            hint="a group's parts run side by side, a chain's steps one after the other",
        )
    fields = ("group", "chain", "then", "on_failure", "meta")
    given = {name: value for name in fields if (value := getattr(body, name)) is not None}
    for name, value in given.items():
        refuse_redacted(value, name)
    given.pop("meta", None)
    return given


@router.get("", response_model=PageOut[GroupOut], **route_options(Role.VIEWER, page_example(_EXAMPLE)))
async def list_groups(
    context: Context,
    page: PageParams,
    state: Annotated[GroupState | None, Query(description="Only groups in this state.")] = None,
    nested: Annotated[bool, Query(description="Also groups that are inside of other groups.")] = False,
) -> Response:
    """List groups, the latest first. They are kept as long as the history."""
    if page.with_total:
        raise unexpected_value("page", "a total", "a cursor", hint="groups are not counted; follow next_cursor")
    groups = await context.queries.groups.page(state, page, is_nested=nested)
    return json_response(page_document(groups, page, group_document))


@router.get("/{group}", response_model=GroupFull, **route_options(Role.VIEWER, _FULL_EXAMPLE, fails=[404]))
async def get_group(
    group: GroupRef,
    context: Context,
    limit: Annotated[int, Query(ge=1, le=200, description="How many parts.")] = 200,
    cursor: Annotated[
        str | None, Query(max_length=10, description="`next_cursor` of the previous page of parts.")
    ] = None,
    is_open: Annotated[bool, Query(alias="open", description="Only parts that have not ended.")] = False,
) -> Response:
    """A group with its parts in order, a page at a time: the executions of each, and the groups in it with their parts."""
    tree = await context.queries.groups.tree(group, part_number(cursor), limit, is_open=is_open)
    return json_response(group_tree_document(tree))


def part_number(cursor: str | None) -> int:
    """The number of the part after which a page begins."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 6):
        raise unexpected_value("cursor", cursor, "next_cursor of the previous page")
    return int(cursor)


@router.post(
    "/{group}/cancel",
    response_model=GroupCancelled,
    **route_options(
        Role.OPERATOR, _EXAMPLE | {"cancelled": 2}, request={"reason": "not needed"}, has_body=True, fails=[404, 409]
    ),
)
async def cancel_group(
    group: GroupRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Cancel what waits of a group, and ask what runs to stop. Its parts fail by that, and what follows its failure follows."""
    target = await context.queries.groups.find(group)
    if target.state is not GroupState.OPEN:
        raise Conflict(f"the group {format_id('grp', target.id)} has {target.state}, expected an open one")
    count = await context.commands.groups.cancel(target.id, caller.as_actor((body or ReasonIn()).reason))
    status = await context.queries.groups.find(str(target.id))
    return json_response(group_document(status) | {"cancelled": count})


_WAIT: dict[str, Any] = {
    "part": 2,
    "execution_id": EXECUTION_ID,
    "group_id": None,
    "handler": "pages.read",
    "state": "queued",
    "headline": "NOT STARTED: queue «scans» is paused since 05:00:00 UTC.",
    "stopped_by": "queue_open",
}


@router.get(
    "/{group}/explain",
    response_model=GroupExplanationOut,
    **route_options(
        Role.VIEWER,
        {
            "checked_at": INSTANT_EXAMPLE,
            "group_id": _GROUP_ID,
            "state": "open",
            "headline": f"OPEN: waits for 1 of 3: pages.read ({EXECUTION_ID}). pages.read ({EXECUTION_ID}): {_WAIT['headline']}",
            "total": 3,
            "waits_for": 1,
            "waits": [_WAIT],
        },
        fails=[404],
    ),
)
async def explain_group(group: GroupRef, context: Context) -> Response:
    """Which parts a group waits for, by name, and why those have not ended; or how it has ended."""
    return json_response(group_explanation_document(await context.queries.explain.group(group)))
