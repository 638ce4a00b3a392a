"""Routes of freezes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import CurrentCaller, Role
from timeball.api.errors import precondition_error
from timeball.api.models import FullList
from timeball.api.models.system import FreezeIn, FreezeOut
from timeball.api.openapi import INSTANT_EXAMPLE, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, IfMatch, optional_instant, parse_if_match
from timeball.api.responses import Document, json_response
from timeball.application.commands.requests import check_version
from timeball.domain.freeze import Afterwards, Freeze, FreezeId, FreezeScope, format_freeze_id
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.values.ids import JobId, format_job_id, parse_id
from timeball.errors import Conflict, InvalidInput, NotFound, quote_text

router = APIRouter(prefix="/freezes", tags=["freezes"])

FreezeRef = Annotated[str, Path(max_length=200, description="A freeze's id.")]

FREEZE_EXAMPLE = {
    "id": "frz_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "scope": "queue",
    "queue": "billing",
    "tag": None,
    "job": None,
    "from": INSTANT_EXAMPLE,
    "until": "2026-11-16T08:00:00Z",
    "state": "active",
    "afterwards": "skip",
    "reason": "release",
    "created_by": "key:4c1a9d02b7e1 deploy",
    "created_at": INSTANT_EXAMPLE,
    "ended_by": None,
}


@router.get("", response_model=FullList[FreezeOut], **route_options(Role.VIEWER, {"data": [FREEZE_EXAMPLE]}))
async def list_freezes(
    context: Context,
    past: Annotated[bool, Query(description="Also those that are over, as long as the history is kept.")] = False,
) -> Response:
    """The freezes that hold now or are to come, in the order in which they begin."""
    now = context.queries.now()
    freezes = (await context.queries.freezes()).freezes
    shown = [freeze for freeze in freezes if past or freeze.until_at > now]
    return json_response({"data": [freeze_document(freeze, now) for freeze in shown]})


@router.post(
    "",
    response_model=FreezeOut,
    **route_options(
        Role.OPERATOR,
        FREEZE_EXAMPLE,
        status=201,
        request={"queue": "billing", "until": "2026-11-16T08:00:00Z", "reason": "release"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def create_freeze(
    body: FreezeIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Let nothing of a queue, a tag, a job or of everything start until an instant. Running executions go on.

    Occurrences of schedules that fall into it follow `afterwards`; triggers, enqueues and retries wait until it is over.
    """
    scope, target, job_id = await _scope(body, context)
    freeze = await context.commands.freezes.add(
        scope,
        target,
        job_id,
        until=parse_instant(body.until, "UTC", "until"),
        since=optional_instant(body.from_, "from"),
        afterwards=Afterwards(body.afterwards),
        actor=caller.as_actor(body.reason),
        idempotency=caller.idempotency,
    )
    location = {"Location": f"/api/v1/freezes/{format_freeze_id(freeze.id)}"}
    return json_response(freeze_document(freeze, context.queries.now()), 201, _etag(freeze) | location)


async def _scope(body: FreezeIn, context: ApiContext) -> tuple[FreezeScope, str | None, JobId | None]:
    given = [name for name in ("queue", "tag", "job") if getattr(body, name) is not None]
    given += ["everything"] if body.everything else []
    if len(given) != 1:
        found = f"{' and '.join(given)} are" if given else "none of them is"
        raise InvalidInput(
            f"{found} given, expected one of queue, tag, job and everything",
            hint='to freeze the whole installation, say {"everything": true}',
            field=given[1] if given else "queue",
        )
    if body.job is not None:
        return FreezeScope.JOB, None, (await context.queries.jobs.find(body.job)).id
    if body.everything:
        return FreezeScope.INSTALLATION, None, None
    return (FreezeScope.QUEUE, body.queue, None) if body.queue is not None else (FreezeScope.TAG, body.tag, None)


@router.get("/{freeze}", response_model=FreezeOut, **route_options(Role.VIEWER, FREEZE_EXAMPLE, fails=[404]))
async def get_freeze(freeze: FreezeRef, context: Context) -> Response:
    """One freeze."""
    target = await _find(freeze, context)
    return json_response(freeze_document(target, context.queries.now()), headers=_etag(target))


_END: dict[str, Any] = route_options(Role.OPERATOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{freeze}", response_class=Response, **_END)
async def end_freeze(
    freeze: FreezeRef,
    context: Context,
    caller: CurrentCaller,
    reason: Annotated[str | None, Query(max_length=1_000, description="The reason, for the audit.")] = None,
    if_match: IfMatch = None,
) -> Response:
    """End a freeze now: what it held back goes on. Its record is kept as long as the history."""
    target = await _find(freeze, context)
    try:
        check_version("freeze", target.version, parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    await context.commands.freezes.end(target.id, caller.as_actor(reason))
    return Response(status_code=204)


async def _find(reference: str, context: ApiContext) -> Freeze:
    try:
        freeze_id = FreezeId(parse_id("frz", reference))
    except InvalidInput:
        raise NotFound("freeze", quote_text(reference)) from None
    freeze = next((one for one in (await context.queries.freezes()).freezes if one.id == freeze_id), None)
    if freeze is None:
        raise NotFound("freeze", quote_text(reference))
    return freeze


def _etag(freeze: Freeze) -> dict[str, str]:
    return {"ETag": f'"{freeze.version}"'}


def freeze_document(freeze: Freeze, now: datetime) -> Document:
    """A freeze."""
    state = "over" if freeze.until_at <= now else "active" if freeze.from_at <= now else "planned"
    return {
        "id": format_freeze_id(freeze.id),
        "scope": freeze.scope,
        "queue": freeze.target if freeze.scope is FreezeScope.QUEUE else None,
        "tag": freeze.target if freeze.scope is FreezeScope.TAG else None,
        "job": None if freeze.job_id is None else format_job_id(freeze.job_id),
        "from": freeze.from_at,
        "until": freeze.until_at,
        "state": state,
        "afterwards": freeze.afterwards,
        "reason": freeze.reason,
        "created_by": freeze.actor,
        "created_at": freeze.created_at,
        "ended_by": freeze.ended_by,
    }
