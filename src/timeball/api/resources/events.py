"""Change events over HTTP: server-sent events, CloudEvents, and long polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.api.auth import Role
from timeball.api.context import ApiContext, Context
from timeball.api.models import ShortText
from timeball.api.models.executions import EventsOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, WORKER_ID, route_options
from timeball.api.responses import json_bytes, json_response
from timeball.application.events import ChangeBatch, EventHub, EventSubscription
from timeball.domain.change_event import ChangeEvent, EventFilter
from timeball.domain.values.ids import format_id
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput, StoreError

# What happens, as it happens: server-sent events, or a question that waits for its answer.

router = APIRouter()

_LONGEST_WAIT = 60.0
_MOST_TYPES = 20
_POSITION = "7421:7424:7422"
_EVENT_EXAMPLE = {
    "id": "evt_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "type": "execution.succeeded",
    "at": INSTANT_EXAMPLE,
    "subject": EXECUTION_ID,
    "job_id": JOB_ID,
    "queue": "default",
    "handler": "http.webhook",
    "data": {
        "attempt": 1,
        "duration_ms": 841.0,
        "error_type": None,
        "reason": None,
        "scheduled_for": INSTANT_EXAMPLE,
        "worker": WORKER_ID,
    },
}
_DESCRIBED = route_options(
    Role.VIEWER, {"data": [_EVENT_EXAMPLE], "next_cursor": _POSITION, "has_gap": False}, fails=[404]
)
_DESCRIBED["responses"][200]["content"]["text/event-stream"] = {
    "example": f'id: {_POSITION}\nevent: execution.succeeded\ndata: {{"id":"evt_..."}}\n\n'
}
_DESCRIBED["responses"][200]["content"]["application/cloudevents-batch+json"] = {"example": []}


@router.get("/events", tags=["events"], response_model=EventsOut, **_DESCRIBED)
async def events(
    request: Request,
    context: Context,
    types: Annotated[
        ShortText | None, Query(description="Only these types, by commas: `execution.*,attempt.failed`.")
    ] = None,
    queue: Annotated[ShortText | None, Query(description="Only of this queue.")] = None,
    job: Annotated[ShortText | None, Query(description="Only of this job, by id or name.")] = None,
    since: Annotated[
        str | None, Query(max_length=20_000, description="Where to go on: next_cursor, or an id of the stream.")
    ] = None,
    wait: Annotated[
        ShortText | None, Query(description="Answer in JSON, and wait that long for the first event: `30s`.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=20_000)] = None,
) -> Response:
    """What happens: starts with their lateness, ends, failed tries, what operators do, workers that come and go.

    A stream of server-sent events. With `wait` (or `Accept: application/json`) an answer in JSON, as soon as something has happened.
    CloudEvents, if `Accept` names them. An event may be told twice, under the same id; none is left out without a `gap` or a `reset`.
    """
    interest = await _event_filter(context, types, queue, job)
    if wait is None and _wants_stream(request):
        right = until_access_ends(request.state.is_still_allowed, context.longest_stream)
        return EventStreamResponse(context.live, interest, last_event_id or since, event_shape(request), right)
    seconds = 0.0 if wait is None else min(parse_duration(wait, "wait").total_seconds(), _LONGEST_WAIT)
    return _answer(request, await _poll(context.live, interest, since or last_event_id, seconds))


async def _event_filter(context: ApiContext, types: str | None, queue: str | None, job: str | None) -> EventFilter:
    wanted = tuple(word.strip() for word in (types or "").split(",") if word.strip())
    if len(wanted) > _MOST_TYPES:
        raise InvalidInput(f"types names {len(wanted)} types, at most {_MOST_TYPES} are possible", field="types")
    job_id = None if job is None else (await context.queries.find_job(job)).id
    return EventFilter(wanted, queue, job_id)


def _wants_stream(request: Request) -> bool:
    accepted = request.headers.get("accept", "*/*")
    return "text/event-stream" in accepted or "json" not in accepted


async def _poll(live: EventHub, interest: EventFilter, since: str | None, seconds: float) -> ChangeBatch:
    """What happened since then; if nothing did, what happens first."""
    if not seconds:
        return await live.since(since, interest)
    async with live.listen(interest) as listener:
        found = await live.since(since, interest)
        if found.happenings or not found.is_whole:
            return found
        await listener.next(seconds)
    return await live.since(found.position, interest)


def _answer(request: Request, found: ChangeBatch) -> Response:
    if CLOUD_EVENTS in request.headers.get("accept", ""):
        shape = event_shape(request)
        body = json_bytes([shape(happening) for happening in found.happenings])
        headers = {"Timeball-Next-Cursor": found.position, "Timeball-Has-Gap": str(not found.is_whole).lower()}
        return Response(body, headers=headers, media_type="application/cloudevents-batch+json")
    data = [event_document(happening) for happening in found.happenings]
    return json_response({"data": data, "next_cursor": found.position, "has_gap": not found.is_whole})


# Events over HTTP: a stream that never ends by itself, and the documents it is made of.
#
# A stream tells what was missed since `Last-Event-ID`, then what happens. `event: reset` says that it could not be taken
# up there, `event: gap` that some events were left out because the reader was slow. The id of an event is where to go on
# behind it: a reader that comes back may be told the last few again, under the same `id` in the data, and never misses any.
#
# A stream ends when its caller's key is revoked or expires, which is looked at every few seconds, and after an hour in any case:
# the reader then connects anew, as after any other break.

KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 10.0
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
CLOUD_EVENTS = "application/cloudevents"

EventShape = Callable[[ChangeEvent], dict[str, Any]]
IsAllowed = Callable[[], Awaitable[bool]]


def event_document(happening: ChangeEvent) -> dict[str, Any]:
    """An event as the API tells it."""
    return {
        "id": format_id("evt", happening.id),
        "type": happening.type,
        "at": happening.at,
        "subject": happening.subject,
        "job_id": None if happening.job_id is None else format_id("job", happening.job_id),
        "queue": happening.queue,
        "handler": happening.handler,
        "data": dict(happening.data),
    }


def cloud_event(happening: ChangeEvent) -> dict[str, Any]:
    """An event as CloudEvents 1.0 has it."""
    document = event_document(happening)
    return {
        "specversion": "1.0",
        "id": document["id"],
        "source": "/timeball",
        "type": f"timeball.{happening.type}",
        "subject": happening.subject,
        "time": happening.at,
        "datacontenttype": "application/json",
        "data": {name: document[name] for name in ("job_id", "queue", "handler")} | document["data"],
    }


def event_shape(request: Request) -> EventShape:
    """How the caller wants its events."""
    return cloud_event if CLOUD_EVENTS in request.headers.get("accept", "") else event_document


class EventStreamResponse(Response):
    """Events to one reader, until it goes, is too slow to be waited for, may not listen any more, or the server ends."""

    def __init__(
        self, live: EventHub, interest: EventFilter, since: str | None, shape: EventShape, right: Awaitable[None]
    ) -> None:
        """*right* is over when the reader may not listen any more (`right_to_listen`)."""
        super().__init__(headers=_HEADERS)
        # The length of what never ends is not known.
        del self.headers["content-length"]
        self._live = live
        self._interest = interest
        self._since = since
        self._shape = shape
        self._right = right

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        leaving = asyncio.ensure_future(_until_gone(receive))
        telling = asyncio.ensure_future(self._tell(send))
        tasks = (leaving, telling, asyncio.ensure_future(self._right))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _raise_unless_passing(telling)
        if telling.cancelled() and not leaving.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        async with self._live.listen(self._interest) as listener:
            async for text in self._texts(listener):
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self, listener: EventSubscription) -> AsyncIterator[bytes]:
        missed = await self._missed()
        position = missed.position
        yield b"retry: 2000\n\n" if missed.is_whole else b"retry: 2000\n" + _signal("reset", position)
        known = {happening.id for happening in missed.happenings}
        yield self._lines(missed.happenings, self._since or position, position)
        while not listener.is_over:
            news = await listener.next(KEEP_ALIVE_SECONDS)
            if news.is_gap:
                yield _signal("gap", news.position or position)
            told = [happening for happening in news.happenings if happening.id not in known]
            before, position = position, news.position or position
            yield self._lines(told, before, position) if told else f"id: {position}\n: still here\n\n".encode()

    async def _missed(self) -> ChangeBatch:
        try:
            return await self._live.since(self._since, self._interest)
        except InvalidInput:
            # A browser sends what it was given last, and cannot be asked to send something else.
            now = await self._live.since(None, self._interest)
            return ChangeBatch(now.position, [], is_whole=False)

    def _lines(self, happenings: Sequence[ChangeEvent], before: str, after: str) -> bytes:
        """Only the last one leads behind them all: whoever breaks off in between is told them again."""
        last = len(happenings) - 1
        return b"".join(
            b"id: %s\nevent: %s\ndata: %s\n\n"
            % ((after if place == last else before).encode(), one.type.encode(), json_bytes(self._shape(one)))
            for place, one in enumerate(happenings)
        )


async def until_access_ends(is_allowed: IsAllowed, longest: timedelta) -> None:
    """Return when a listener's key is revoked or expired, or has been listening for so long.

    While the database is away nothing is told anyway: the listener stays, and is looked at again.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + longest.total_seconds()
    while (left := ends_at - loop.time()) > 0:
        await asyncio.sleep(min(KEEP_ALIVE_SECONDS, left))
        with suppress(StoreError):
            if not await is_allowed():
                return


def _raise_unless_passing(telling: asyncio.Future[None]) -> None:
    """Of a slow reader, or a database that is away, nobody needs to know: the reader comes back and goes on where it was."""
    error = None if telling.cancelled() else telling.exception()
    if error is not None and not isinstance(error, (TimeoutError, StoreError)):
        raise error


def _signal(name: str, position: str) -> bytes:
    return f"id: {position}\nevent: {name}\ndata: {{}}\n\n".encode()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
