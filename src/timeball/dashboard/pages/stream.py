"""The stream of the dashboard: one per browser. It says which topics have changed, and which executions were dropped.

Pages fetch anew what shows these topics; only drops carry data, because a ticker must not miss any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.api.event_stream import KEEP_ALIVE_SECONDS, SEND_SECONDS, event_document, right_to_listen
from timeball.api.problems import Refusal
from timeball.api.views import to_bytes
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.happening import STARTED, Happening, Interest
from timeball.live import Listener, TopicListener

pages = Pages()
MOST_STREAMS = 500
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# How long a drop may wait to be told together with others.
_DROPS_SECONDS = 0.25


@pages.get("/parts/stream")
async def stream(visit: Visit) -> Response:
    """Say what changes, for as long as the browser listens."""
    streams, most = visit.site.streams, visit.site.settings.api.concurrent_requests
    if streams.total() >= MOST_STREAMS:
        raise Refusal(503, "too_many_streams", f"{MOST_STREAMS} browsers are listening", headers={"Retry-After": "30"})
    if streams[visit.caller.name] >= most:
        raise Refusal(429, "too_many_streams", f"{most} browsers of this key listen", headers={"Retry-After": "30"})
    return _Stream(visit)


class _Stream(Response):
    """What changes, to one browser, until it goes, is too slow to be waited for, may not look any more, or the server ends."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(headers=_HEADERS)
        # The length of what never ends is not known.
        del self.headers["content-length"]
        self._visit = visit
        site = visit.site
        self._live = site.live
        self._streams = site.streams
        self._names = site.insights.job_names
        self._reads = site.reads
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._streams[self._visit.caller.name] += 1
        right = right_to_listen(self._is_still_allowed, self._visit.site.settings.api.longest_stream)
        works = (_until_gone(receive), self._topics(send), self._drops(send), right)
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams -= Counter([self._visit.caller.name])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if tasks[0].cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _is_still_allowed(self) -> bool:
        return await self._visit.site.reception.is_still_allowed(self._visit.request, self._visit.caller)

    async def _topics(self, send: Send) -> None:
        async with self._live.watch() as listener:
            await self._tell(send, b"retry: 3000\n\n")
            async for text in _changes(listener):
                await self._tell(send, text)

    async def _drops(self, send: Send) -> None:
        async with self._live.listen(Interest(types=(STARTED,))) as listener:
            async for text in self._dropped(listener):
                await self._tell(send, text)

    async def _dropped(self, listener: Listener) -> AsyncIterator[bytes]:
        while not listener.is_over:
            news = await listener.next(KEEP_ALIVE_SECONDS)
            if news.is_gap:
                yield b"event: gap\ndata: {}\n\n"
            if news.happenings:
                yield b"event: drop\ndata: %s\n\n" % await self._named(news.happenings)
                await asyncio.sleep(_DROPS_SECONDS)

    async def _named(self, drops: Sequence[Happening]) -> bytes:
        """Drops with the names of their jobs; browsers that listen together are told of the same ones, so they are asked for once."""

        async def ask() -> bytes:
            names = await self._names([one.job_id for one in drops if one.job_id is not None])
            return to_bytes([event_document(one) | {"name": names.get(one.job_id)} for one in drops if one.job_id])

        return await self._reads.get(("drops", *(one.id for one in drops)), ask)

    async def _tell(self, send: Send, text: bytes) -> None:
        async with self._sending, asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": text, "more_body": True})


async def _changes(listener: TopicListener) -> AsyncIterator[bytes]:
    while not listener.is_over:
        topics = await listener.next(KEEP_ALIVE_SECONDS)
        # An event and not a comment: the page measures by it whether the stream still lives.
        yield b"event: topics\ndata: %s\n\n" % orjson.dumps(sorted(topics)) if topics else b"event: beat\ndata: {}\n\n"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
