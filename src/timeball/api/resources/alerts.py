"""Routes of alerts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import CurrentCaller, Role
from timeball.api.models import ReasonIn, ShortText
from timeball.api.models.alerts import AcknowledgeIn, AlertOut, AlertPage, alert_document
from timeball.api.openapi import INSTANT_EXAMPLE, JOB_ID, page_example, route_options
from timeball.api.params import Context, IdempotencyKey, QueueParam, optional_instant
from timeball.api.responses import json_response, page_document
from timeball.domain.alerts import AlertFilter, AlertId, AlertState, Severity
from timeball.domain.search import PageRequest
from timeball.domain.values.ids import parse_id
from timeball.errors import InvalidInput, NotFound, quote_text

router = APIRouter(prefix="/alerts", tags=["alerts"])

AlertRef = Annotated[str, Path(max_length=200, description="An alert's id.")]
_UNRESOLVED = ("open", "acknowledged")

_EXAMPLE = {
    "id": "alr_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "kind": "no_success",
    "severity": "critical",
    "state": "open",
    "sentence": "nightly has not succeeded for 1 d 2 h, expected every 26 h (last success 15 Nov 02:00:10 UTC): "
    "its queue batch is paused by ana since 15 Nov 12:00:00 UTC (release)",
    "advice": "take away what holds it: timeball queues resume batch",
    "command": "timeball queues resume batch",
    "why": None,
    "target": {"kind": "job", "id": JOB_ID},
    "count": 1,
    "members": [{"name": "nightly", "job_id": JOB_ID, "queue": "batch", "tags": ["billing"]}],
    "first_seen_at": INSTANT_EXAMPLE,
    "opened_at": INSTANT_EXAMPLE,
    "last_seen_at": INSTANT_EXAMPLE,
    "resolved_at": None,
    "acknowledgement": None,
}
_ACKNOWLEDGED = _EXAMPLE | {
    "state": "acknowledged",
    "acknowledgement": {
        "at": INSTANT_EXAMPLE,
        "by": "key:4c1a9d02b7e1 deploy",
        "until": "2026-11-16T08:00:00Z",
        "reason": "the disk is being replaced",
    },
}


@router.get(
    "",
    response_model=AlertPage,
    **route_options(Role.VIEWER, page_example(_EXAMPLE) | {"evaluated_at": INSTANT_EXAMPLE}, fails=[404]),
)
async def list_alerts(
    context: Context,
    state: Annotated[
        list[Literal["pending", "open", "acknowledged", "resolved"]] | None,
        Query(max_length=4, description="Repeat it for several; open and acknowledged ones if it is left out."),
    ] = None,
    severity: Annotated[Literal["critical", "warning"] | None, Query()] = None,
    kind: Annotated[ShortText | None, Query(description="Such as `no_success` or `queue_unserved`.")] = None,
    job: Annotated[ShortText | None, Query(description="About this job: its id or name.")] = None,
    queue: QueueParam = None,
    tag: Annotated[ShortText | None, Query(description="About a job with this tag.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="The size of a page.")] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page.")] = None,
) -> Response:
    """Facts that a person should act upon: those that are not resolved first, the latest first."""
    chosen = AlertFilter(
        states=frozenset(AlertState(word) for word in state or _UNRESOLVED),
        severity=None if severity is None else Severity(severity),
        kind=kind,
        job_id=None if job is None else (await context.queries.jobs.find(job)).id,
        queue=queue,
        tag=tag,
    )
    page = await context.queries.alerts.page(chosen, limit, cursor)
    document = page_document(page, PageRequest(limit=limit, cursor=cursor), alert_document)
    return json_response(document | {"evaluated_at": await context.queries.alerts.evaluated_at()})


@router.get("/{alert}", response_model=AlertOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_alert(alert: AlertRef, context: Context) -> Response:
    """One alert."""
    return json_response(alert_document(await context.queries.alerts.find(alert_id_of(alert))))


@router.post(
    "/{alert}/acknowledge",
    response_model=AlertOut,
    **route_options(
        Role.OPERATOR,
        _ACKNOWLEDGED,
        request={"until": "2026-11-16T08:00:00Z", "reason": "the disk is being replaced"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def acknowledge_alert(
    alert: AlertRef,
    context: Context,
    caller: CurrentCaller,
    body: AcknowledgeIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Say that a person knows of an open alert, until an instant or until it is resolved. It ends earlier if the alert gets worse."""
    body = body or AcknowledgeIn()
    until = optional_instant(body.until, "until")
    acknowledged = await context.commands.alerts.acknowledge(
        alert_id_of(alert), until=until, actor=caller.as_actor(body.reason)
    )
    return json_response(alert_document(acknowledged))


@router.post(
    "/{alert}/unacknowledge",
    response_model=AlertOut,
    **route_options(Role.OPERATOR, _EXAMPLE, request={"reason": "it is not done"}, has_body=True, fails=[404, 409]),
)
async def unacknowledge_alert(
    alert: AlertRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Take an acknowledgement back: the alert waits for a person again."""
    actor = caller.as_actor((body or ReasonIn()).reason)
    return json_response(alert_document(await context.commands.alerts.unacknowledge(alert_id_of(alert), actor=actor)))


def alert_id_of(reference: str) -> AlertId:
    """The id that a path names; NotFound if it is none."""
    try:
        return AlertId(parse_id("alr", reference))
    except InvalidInput:
        raise NotFound("alert", quote_text(reference)) from None
