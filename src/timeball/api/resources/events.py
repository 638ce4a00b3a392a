"""Change events over HTTP: server-sent events, CloudEvents, and long polling.

A stream first sends what was missed since `Last-Event-ID`, then what happens. `event: reset` says that it could not be resumed
there, `event: gap` that events were left out because the reader was slow. The id of an event is the position behind it: a reader
that reconnects may get the last few events again, with the same `id` in the data, and never misses one.

A stream ends when the key of its caller is revoked or expires, which is checked every few seconds, and after an hour in any case.
The reader then connects again, as after any other break.
"""

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
from timeball.api.models import ShortText
from timeball.api.models.executions import EventsOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, WORKER_ID, route_options
from timeball.api.params import ApiContext, Context
from timeball.api.responses import json_bytes, json_response
from timeball.application.events import ChangeBatch, EventHub, EventSubscription
from timeball.domain.change_event import ChangeEvent, EventFilter, cloud_event, event_document
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput, StoreError

router = APIRouter()

_MAX_WAIT_SECONDS = 60.0
_MAX_TYPES = 20
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
_OPTIONS = route_options(
    Role.VIEWER, {"data": [_EVENT_EXAMPLE], "next_cursor": _POSITION, "has_gap": False}, fails=[404]
)
_OPTIONS["responses"][200]["content"]["text/event-stream"] = {
    "example": f'id: {_POSITION}\nevent: execution.succeeded\ndata: {{"id":"evt_..."}}\n\n'
}
_OPTIONS["responses"][200]["content"]["application/cloudevents-batch+json"] = {"example": []}


@router.get("/events", tags=["events"], response_model=EventsOut, **_OPTIONS)
async def events(
    request: Request,
    context: Context,
    types: Annotated[
        ShortText | None, Query(description="Only these types, separated by commas: `execution.*,attempt.failed`.")
    ] = None,
    queue: Annotated[ShortText | None, Query(description="Only this queue.")] = None,
    job: Annotated[ShortText | None, Query(description="Only this job, by id or name.")] = None,
    since: Annotated[
        str | None,
        Query(
            max_length=20_000,
            description="Resume behind this position: `next_cursor`, or the id of an event of the stream.",
        ),
    ] = None,
    wait: Annotated[
        ShortText | None, Query(description="Respond with JSON, and wait up to this long for the first event: `30s`.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=20_000)] = None,
) -> Response:
    """Change events: starts with their lateness, ends, failed attempts, actions of operators, workers that come and go.

    A stream of server-sent events. With `wait` (or `Accept: application/json`) a JSON response, as soon as there is an event.
    CloudEvents, if `Accept` names them. An event may come twice, with the same id; none is left out without a `gap` or a `reset`.
    """
    filters = await _event_filter(context, types, queue, job)
    if wait is None and _wants_stream(request):
        access = until_access_ends(request.state.is_still_allowed, context.longest_stream)
        return EventStreamResponse(context.live, filters, last_event_id or since, event_shape(request), access)
    seconds = 0.0 if wait is None else min(parse_duration(wait, "wait").total_seconds(), _MAX_WAIT_SECONDS)
    return _events_response(request, await _poll(context.live, filters, since or last_event_id, seconds))


async def _event_filter(context: ApiContext, types: str | None, queue: str | None, job: str | None) -> EventFilter:
    names = tuple(word.strip() for word in (types or "").split(",") if word.strip())
    if len(names) > _MAX_TYPES:
        raise InvalidInput(f"types has {len(names)} types, expected at most {_MAX_TYPES}", field="types")
    job_id = None if job is None else (await context.queries.jobs.find(job)).id
    return EventFilter(names, queue, job_id)


def _wants_stream(request: Request) -> bool:
    accepted = request.headers.get("accept", "*/*")
    return "text/event-stream" in accepted or "json" not in accepted


async def _poll(live: EventHub, filters: EventFilter, since: str | None, seconds: float) -> ChangeBatch:
    """The events since then; if there are none, the first that come within *seconds*."""
    if not seconds:
        return await live.since(since, filters)
    async with live.listen(filters) as listener:
        batch = await live.since(since, filters)
        if batch.events or not batch.is_complete:
            return batch
        await listener.next(seconds)
    return await live.since(batch.position, filters)


def _events_response(request: Request, batch: ChangeBatch) -> Response:
    if CLOUD_EVENTS in request.headers.get("accept", ""):
        shape = event_shape(request)
        body = json_bytes([shape(event) for event in batch.events])
        headers = {"Timeball-Next-Cursor": batch.position, "Timeball-Has-Gap": str(not batch.is_complete).lower()}
        return Response(body, headers=headers, media_type="application/cloudevents-batch+json")
    data = [event_document(event) for event in batch.events]
    return json_response({"data": data, "next_cursor": batch.position, "has_gap": not batch.is_complete})


KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 10.0
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
CLOUD_EVENTS = "application/cloudevents"

EventShape = Callable[[ChangeEvent], dict[str, Any]]
IsAllowed = Callable[[], Awaitable[bool]]


def event_shape(request: Request) -> EventShape:
    """The format that the caller accepts."""
    return cloud_event if CLOUD_EVENTS in request.headers.get("accept", "") else event_document


class EventStreamResponse(Response):
    """Events for one reader, until it disconnects, reads too slowly or loses access, or the server stops."""

    def __init__(
        self, live: EventHub, filters: EventFilter, since: str | None, shape: EventShape, access: Awaitable[None]
    ) -> None:
        """*access* completes when the reader may not listen any more (`until_access_ends`)."""
        super().__init__(headers=_HEADERS)
        # A stream has no length.
        del self.headers["content-length"]
        self._live = live
        self._filters = filters
        self._since = since
        self._shape = shape
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        disconnect = asyncio.ensure_future(_until_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        tasks = (disconnect, sending, asyncio.ensure_future(self._access))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _raise_unexpected(sending)
        if sending.cancelled() and not disconnect.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        async with self._live.listen(self._filters) as listener:
            async for text in self._chunks(listener):
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": text, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self, listener: EventSubscription) -> AsyncIterator[bytes]:
        missed = await self._missed()
        position = missed.position
        yield b"retry: 2000\n\n" if missed.is_complete else b"retry: 2000\n" + _signal("reset", position)
        known = {event.id for event in missed.events}
        yield self._lines(missed.events, self._since or position, position)
        while not listener.is_over:
            news = await listener.next(KEEP_ALIVE_SECONDS)
            if news.is_gap:
                yield _signal("gap", news.position or position)
            new = [event for event in news.events if event.id not in known]
            before, position = position, news.position or position
            yield self._lines(new, before, position) if new else f"id: {position}\n: still here\n\n".encode()

    async def _missed(self) -> ChangeBatch:
        try:
            return await self._live.since(self._since, self._filters)
        except InvalidInput:
            # A browser repeats the last id it got, and cannot be told to send another.
            now = await self._live.since(None, self._filters)
            return ChangeBatch(now.position, [], is_complete=False)

    def _lines(self, events: Sequence[ChangeEvent], before: str, after: str) -> bytes:
        """Only the last event has the position behind all of them: a reader that breaks off earlier gets them all again."""
        last = len(events) - 1
        return b"".join(
            b"id: %s\nevent: %s\ndata: %s\n\n"
            % ((after if number == last else before).encode(), event.type.encode(), json_bytes(self._shape(event)))
            for number, event in enumerate(events)
        )


async def until_access_ends(is_allowed: IsAllowed, longest: timedelta) -> None:
    """Return when the key of a listener is revoked or expired, or after *longest*.

    While the database is unavailable there are no events to send: the listener stays, and is checked again.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + longest.total_seconds()
    while (left := ends_at - loop.time()) > 0:
        await asyncio.sleep(min(KEEP_ALIVE_SECONDS, left))
        with suppress(StoreError):
            if not await is_allowed():
                return


def _raise_unexpected(sending: asyncio.Future[None]) -> None:
    """Raise the error that ended a stream, unless the reader was slow or the database unavailable: the reader will resume."""
    error = None if sending.cancelled() else sending.exception()
    if error is not None and not isinstance(error, (TimeoutError, StoreError)):
        raise error


def _signal(name: str, position: str) -> bytes:
    return f"id: {position}\nevent: {name}\ndata: {{}}\n\n".encode()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
