"""Bodies about groups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.models import ReasonIn
from timeball.domain.explain.groups import GroupExplanation
from timeball.domain.follow_ups import GroupPart, GroupStatus, GroupStep, GroupTree
from timeball.domain.trace import without_trace
from timeball.domain.values.ids import format_execution_id, format_id
from timeball.domain.values.redaction import redact

_State = Literal["open", "succeeded", "failed"]
_WORK = 'a call (`handler`, `payload` and the options of a one-off), `{"chain": [...]}` or `{"group": [...]}`'


class GroupIn(ReasonIn):
    """A group, or a chain, which is a group of one part. The reason is for the audit."""

    group: Annotated[
        list[dict[str, Any]] | None, Field(description=f"The parts, which run side by side: each {_WORK}.")
    ] = None
    chain: Annotated[
        list[dict[str, Any]] | None,
        Field(description="Instead of a group: the steps, each of which runs when the one before it has succeeded."),
    ] = None
    then: Annotated[
        dict[str, Any] | None, Field(description="What follows a group when all of its parts have succeeded.")
    ] = None
    on_failure: Annotated[
        dict[str, Any] | None,
        Field(description="What follows when all parts have ended and one has failed, or when a step has failed."),
    ] = None
    meta: Annotated[
        dict[str, Any] | None,
        Field(description="Meta of all of its calls, beside their own: a JSON object, up to 4 KB."),
    ] = None
    unchecked: Annotated[
        bool, Field(description="Accept payloads that the published contracts of their handlers refuse.")
    ] = False


class GroupOut(BaseModel):
    """A group as lists show it."""

    id: str
    state: _State = Field(description="`open` until all parts have ended; then `succeeded` if all have, else `failed`.")
    total: int = Field(description="How many parts it has.")
    succeeded: int
    failed: int
    waits_for: int = Field(description="How many parts have not ended.")
    progress: float = Field(description="The share of the parts that have ended, from 0 to 1.")
    handler: str | None = Field(description="The handler of one of its parts, to know it by.")
    group: str | None = Field(description="The group of which it is a part, or inside of a part.")
    meta: dict[str, Any] | None = Field(description="The meta of all of its calls; secrets hidden.")
    created_by: str | None
    created_at: datetime
    closed_at: datetime | None


class GroupCreated(GroupOut):
    """The new group."""

    warnings: list[str] = Field(description="Handlers that no worker provides.")


class GroupCancelled(GroupOut):
    """The group after the request."""

    cancelled: int = Field(description="How many executions were cancelled, or asked to stop.")


class GroupStepOut(BaseModel):
    """What a part has begun: an execution or a group."""

    execution_id: str | None
    handler: str | None
    state: str | None = Field(description="Of the execution, or of the group; `null` if its history is no longer kept.")
    error: str | None
    group: GroupOut | None
    parts: list[GroupPartOut] = Field(
        description="The first parts of the group, if it is small; at most 200 of all such parts are in a response."
    )


class GroupPartOut(BaseModel):
    """A part of a group."""

    number: int
    state: _State
    steps: list[GroupStepOut] = Field(description="What it has begun: one step, or those of a chain so far.")
    steps_left: int = Field(description="How many steps of its chain have not begun.")


class GroupFull(GroupOut):
    """A group with a page of its parts."""

    followed_by: list[str] = Field(description="The first 200 executions that its end has caused.")
    parts: list[GroupPartOut]
    next_cursor: str | None = Field(description="Where the next page of parts begins.")
    has_more: bool


class WaitOut(BaseModel):
    """A part that has not ended, and why."""

    part: int
    execution_id: str | None = Field(description="The execution that it waits for; or the group, if it is one.")
    group_id: str | None
    handler: str | None
    state: str | None
    headline: str = Field(description="Why that has not ended, in one sentence.")
    stopped_by: str | None = Field(description="The first gate that is closed.")


class GroupExplanationOut(BaseModel):
    """Which parts a group waits for, and why those have not ended."""

    checked_at: datetime
    group_id: str
    state: _State
    headline: str
    total: int
    waits_for: int
    waits: list[WaitOut] = Field(description="The first 10 parts that have not ended.")


def group_explanation_document(explanation: GroupExplanation) -> dict[str, Any]:
    """Which parts a group waits for."""
    status = explanation.status
    return {
        "checked_at": explanation.checked_at,
        "group_id": format_id("grp", status.id),
        "state": status.state,
        "headline": explanation.headline,
        "total": status.total,
        "waits_for": status.waits_for,
        "waits": [
            {
                "part": wait.part,
                "execution_id": None if wait.execution_id is None else format_execution_id(wait.execution_id),
                "group_id": None if wait.group_id is None else format_id("grp", wait.group_id),
                "handler": wait.handler,
                "state": wait.state,
                "headline": wait.headline,
                "stopped_by": wait.stopped_by,
            }
            for wait in explanation.waits
        ],
    }


def group_document(group: GroupStatus) -> dict[str, Any]:
    """A group."""
    return {
        "id": format_id("grp", group.id),
        "state": group.state,
        "total": group.total,
        "succeeded": group.succeeded,
        "failed": group.failed,
        "waits_for": group.waits_for,
        "progress": round((group.total - group.waits_for) / group.total, 4),
        "handler": group.handler,
        "group": None if group.outer is None else format_id("grp", group.outer),
        "meta": redact(without_trace(group.meta)),
        "created_by": group.created_by,
        "created_at": group.created_at,
        "closed_at": group.closed_at,
    }


def group_tree_document(tree: GroupTree) -> dict[str, Any]:
    """A group with a page of its parts."""
    return group_document(tree.status) | {
        "followed_by": [format_execution_id(id_) for id_ in tree.followed_by],
        "parts": [_part_document(part) for part in tree.parts],
        "next_cursor": None if tree.next_after is None else str(tree.next_after),
        "has_more": tree.next_after is not None,
    }


def _part_document(part: GroupPart) -> dict[str, Any]:
    return {
        "number": part.number,
        "state": part.state,
        "steps": [_step_document(step) for step in part.steps],
        "steps_left": part.steps_left,
    }


def _step_document(step: GroupStep) -> dict[str, Any]:
    return {
        "execution_id": None if step.group is not None else format_execution_id(step.id),
        "handler": step.handler,
        "state": step.state if step.group is None else step.group.state,
        "error": step.error,
        "group": None if step.group is None else group_document(step.group),
        "parts": [_part_document(part) for part in step.parts],
    }
