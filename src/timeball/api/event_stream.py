"""Events over HTTP: a stream that never ends by itself, and the documents it is made of.

A stream tells what was missed since `Last-Event-ID`, then what happens. `event: reset` says that it could not be taken
up there, `event: gap` that some events were left out because the reader was slow. The id of an event is where to go on
behind it: a reader that comes back may be told the last few again, under the same `id` in the data, and never misses any.

A stream ends when its caller's key is revoked or expires, which is looked at every few seconds, and after an hour in any case:
the reader then connects anew, as after any other break.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.api.views import to_bytes
from timeball.domain.happening import Happening, Interest
from timeball.domain.ids import show
from timeball.errors import InvalidInput, StoreError
from timeball.live import Changes, Listener, Live

KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 10.0
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
CLOUD_EVENTS = "application/cloudevents"

Shape = Callable[[Happening], dict[str, Any]]
IsAllowed = Callable[[], Awaitable[bool]]


def event_document(happening: Happening) -> dict[str, Any]:
    """An event as the API tells it."""
    return {
        "id": show("evt", happening.id),
        "type": happening.type,
        "at": happening.at,
        "subject": happening.subject,
        "job_id": None if happening.job_id is None else show("job", happening.job_id),
        "queue": happening.queue,
        "handler": happening.handler,
        "data": dict(happening.data),
    }


def cloud_event(happening: Happening) -> dict[str, Any]:
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


def shape_for(request: Request) -> Shape:
    """How the caller wants its events."""
    return cloud_event if CLOUD_EVENTS in request.headers.get("accept", "") else event_document


class EventStreamResponse(Response):
    """Events to one reader, until it goes, is too slow to be waited for, may not listen any more, or the server ends."""

    def __init__(self, live: Live, interest: Interest, since: str | None, shape: Shape, right: Awaitable[None]) -> None:
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

    async def _texts(self, listener: Listener) -> AsyncIterator[bytes]:
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

    async def _missed(self) -> Changes:
        try:
            return await self._live.since(self._since, self._interest)
        except InvalidInput:
            # A browser sends what it was given last, and cannot be asked to send something else.
            now = await self._live.since(None, self._interest)
            return Changes(now.position, [], is_whole=False)

    def _lines(self, happenings: Sequence[Happening], before: str, after: str) -> bytes:
        """Only the last one leads behind them all: whoever breaks off in between is told them again."""
        last = len(happenings) - 1
        return b"".join(
            b"id: %s\nevent: %s\ndata: %s\n\n"
            % ((after if place == last else before).encode(), one.type.encode(), to_bytes(self._shape(one)))
            for place, one in enumerate(happenings)
        )


async def right_to_listen(is_allowed: IsAllowed, longest: timedelta) -> None:
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
