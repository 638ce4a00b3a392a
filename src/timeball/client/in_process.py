"""The API in this process: an httpx transport that calls an ASGI application, and bulk operations carried out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from timeball.api.peers import PEER, InProcessPeer

if TYPE_CHECKING:
    from timeball.api.server import OperationLoop


# Operations without a server: who waits for one in this process works it off.

_OPERATIONS_PATH = "/api/v1/operations/"


@asynccontextmanager
async def with_operation_loop(app: AsgiApp, loop: OperationLoop) -> AsyncIterator[AsgiApp]:
    """*app*, and *loop* beside it as soon as somebody asks after an operation.

    Not before: a command that does not wait must not begin what it would leave half done, held by nobody.
    """
    work: list[asyncio.Task[None]] = []

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        if not work and scope["path"].startswith(_OPERATIONS_PATH):
            work.append(asyncio.create_task(loop.run()))
        await app(scope, receive, send)

    try:
        yield asked
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


# The API without a socket: a transport that calls an ASGI application in this process, and streams what it answers.
#
# (The one that comes with httpx waits for the end of an answer; a stream of events has none.)

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


# How far an application may be ahead of whoever reads its answer.
_MESSAGES_AHEAD = 16


class InProcessTransport(httpx.AsyncBaseTransport):
    """Carries requests to an application in the same event loop."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(await request.aread())
        exchange.begin(self._app(_scope(request), exchange.receive, exchange.send))
        start = await exchange.next_message()
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(exchange))


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
        "state": {PEER: InProcessPeer()},
    }


class _Exchange:
    """One request and its answer, while the application is at work."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue(_MESSAGES_AHEAD)
        self._task: asyncio.Future[None] | None = None
        self.is_complete = False

    def begin(self, work: Awaitable[None]) -> None:
        self._task = asyncio.ensure_future(work)

    async def receive(self) -> Message:
        if self._body is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    async def next_message(self) -> Message:
        """What the application sends next; what it raised, if it sends nothing more."""
        assert self._task is not None
        asked = asyncio.ensure_future(self._messages.get())
        either: set[asyncio.Future[Any]] = {asked, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        if not self._messages.empty():
            return self._messages.get_nowait()
        self._task.result()
        return {"type": "http.response.body", "more_body": False}

    async def end(self) -> None:
        """Nobody reads any more; an application that has said all may still have something to write down."""
        assert self._task is not None
        self._gone.set()
        if not self.is_complete:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class _Body(httpx.AsyncByteStream):
    """The content of an answer, as the application sends it."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._exchange.next_message()
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                self._exchange.is_complete = True
                return

    async def aclose(self) -> None:
        await self._exchange.end()
