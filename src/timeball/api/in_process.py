"""Calls to an ASGI application in the same event loop: the one way in which this program calls its own API.

A response is read whole (`call`) or as the application sends it (`AsgiCall`), because a stream of events has no end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message

# How many messages an application may be ahead of the reader of its response.
_MESSAGES_AHEAD = 16
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """A response that was read to its end."""

    status: int
    body: bytes


def request_scope(
    method: str, path: str, *, query: bytes = b"", headers: Headers = (), state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The ASGI scope of a request that comes over no connection."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "root_path": "",
        "query_string": query,
        "headers": [(name.lower(), value) for name, value in headers],
        "client": None,
        "server": None,
        "state": {} if state is None else state,
    }


async def call(app: ASGIApp, scope: MutableMapping[str, Any], body: bytes = b"") -> WholeResponse:
    """The whole response to a request; what the application raised, if it did not respond."""
    exchange = AsgiCall(app, scope, body)
    try:
        start = await exchange.start()
        content = b"".join([chunk async for chunk in exchange.chunks()])
    finally:
        await exchange.close()
    return WholeResponse(start["status"], content)


class AsgiCall:
    """One request to an application, and its response as the application sends it; to be closed in any case."""

    def __init__(self, app: ASGIApp, scope: MutableMapping[str, Any], body: bytes = b"") -> None:
        self._body: bytes | None = body
        self._is_closed = asyncio.Event()
        self._is_complete = False
        self._messages: asyncio.Queue[Message] = asyncio.Queue(_MESSAGES_AHEAD)
        self._task = asyncio.ensure_future(app(scope, self._receive, self._messages.put))

    async def start(self) -> Message:
        """The head of the response: `status` and `headers`."""
        return await self._next_message()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The content of the response."""
        while not self._is_complete:
            message = await self._next_message()
            # Before the chunk is given away: a reader that has all it needs may stop there.
            self._is_complete = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def close(self) -> None:
        """End the request. An application that has sent its whole response may finish its own work first."""
        self._is_closed.set()
        if not self._is_complete:
            self._task.cancel()
        # An error after the response has been logged by the application, and raised again by its framework.
        await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> Message:
        if self._body is None:
            await self._is_closed.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _next_message(self) -> Message:
        """The next message of the application; what it raised, if it sends nothing more."""
        message = asyncio.ensure_future(self._messages.get())
        either: set[asyncio.Future[Any]] = {message, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if message.done():
            return message.result()
        message.cancel()
        if not self._messages.empty():
            return self._messages.get_nowait()
        self._task.result()
        return {"type": "http.response.body", "more_body": False}
