"""What happens, as it happens: server-sent events, or a question that waits for its answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import EXECUTION_ID, JOB_ID, MOMENT, WORKER_ID, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.event_stream import CLOUD_EVENTS, EventStreamResponse, event_document, right_to_listen, shape_for
from timeball.api.schemas.common import Words
from timeball.api.schemas.events import EventsOut
from timeball.api.views import answer, to_bytes
from timeball.domain.happening import Interest
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput
from timeball.live import Changes, Live

router = APIRouter()

_LONGEST_WAIT = 60.0
_MOST_TYPES = 20
_POSITION = "7421:7424:7422"
_EVENT_EXAMPLE = {
    "id": "evt_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "type": "execution.succeeded",
    "at": MOMENT,
    "subject": EXECUTION_ID,
    "job_id": JOB_ID,
    "queue": "default",
    "handler": "http.webhook",
    "data": {
        "attempt": 1,
        "duration_ms": 841.0,
        "error_type": None,
        "reason": None,
        "scheduled_for": MOMENT,
        "worker": WORKER_ID,
    },
}
_DESCRIBED = described(Role.VIEWER, {"data": [_EVENT_EXAMPLE], "next_cursor": _POSITION, "has_gap": False}, fails=[404])
_DESCRIBED["responses"][200]["content"]["text/event-stream"] = {
    "example": f'id: {_POSITION}\nevent: execution.succeeded\ndata: {{"id":"evt_..."}}\n\n'
}
_DESCRIBED["responses"][200]["content"]["application/cloudevents-batch+json"] = {"example": []}


@router.get("/events", tags=["events"], response_model=EventsOut, **_DESCRIBED)
async def events(
    request: Request,
    desk: TheDesk,
    types: Annotated[
        Words | None, Query(description="Only these types, by commas: `execution.*,attempt.failed`.")
    ] = None,
    queue: Annotated[Words | None, Query(description="Only of this queue.")] = None,
    job: Annotated[Words | None, Query(description="Only of this job, by id or name.")] = None,
    since: Annotated[
        str | None, Query(max_length=20_000, description="Where to go on: next_cursor, or an id of the stream.")
    ] = None,
    wait: Annotated[
        Words | None, Query(description="Answer in JSON, and wait that long for the first event: `30s`.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=20_000)] = None,
) -> Response:
    """What happens: starts with their lateness, ends, failed tries, what operators do, workers that come and go.

    A stream of server-sent events. With `wait` (or `Accept: application/json`) an answer in JSON, as soon as something has happened.
    CloudEvents, if `Accept` names them. An event may be told twice, under the same id; none is left out without a `gap` or a `reset`.
    """
    interest = await _interest(desk, types, queue, job)
    if wait is None and _wants_stream(request):
        right = right_to_listen(request.state.is_still_allowed, desk.longest_stream)
        return EventStreamResponse(desk.live, interest, last_event_id or since, shape_for(request), right)
    seconds = 0.0 if wait is None else min(parse_span(wait, "wait").total_seconds(), _LONGEST_WAIT)
    return _answer(request, await _poll(desk.live, interest, since or last_event_id, seconds))


async def _interest(desk: Desk, types: str | None, queue: str | None, job: str | None) -> Interest:
    wanted = tuple(word.strip() for word in (types or "").split(",") if word.strip())
    if len(wanted) > _MOST_TYPES:
        raise InvalidInput(f"types names {len(wanted)} types, at most {_MOST_TYPES} are possible", field="types")
    job_id = None if job is None else (await desk.insights.find_job(job)).id
    return Interest(wanted, queue, job_id)


def _wants_stream(request: Request) -> bool:
    accepted = request.headers.get("accept", "*/*")
    return "text/event-stream" in accepted or "json" not in accepted


async def _poll(live: Live, interest: Interest, since: str | None, seconds: float) -> Changes:
    """What happened since then; if nothing did, what happens first."""
    if not seconds:
        return await live.since(since, interest)
    async with live.listen(interest) as listener:
        found = await live.since(since, interest)
        if found.happenings or not found.is_whole:
            return found
        await listener.next(seconds)
    return await live.since(found.position, interest)


def _answer(request: Request, found: Changes) -> Response:
    if CLOUD_EVENTS in request.headers.get("accept", ""):
        shape = shape_for(request)
        body = to_bytes([shape(happening) for happening in found.happenings])
        headers = {"Timeball-Next-Cursor": found.position, "Timeball-Has-Gap": str(not found.is_whole).lower()}
        return Response(body, headers=headers, media_type="application/cloudevents-batch+json")
    data = [event_document(happening) for happening in found.happenings]
    return answer({"data": data, "next_cursor": found.position, "has_gap": not found.is_whole})
