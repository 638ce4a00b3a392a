"""The client without a server: an httpx transport to the API in the same process, and its bulk operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from timeball.api.auth import PEER
from timeball.api.in_process import AsgiCall, request_scope

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from timeball.api.server import OperationLoop

_OPERATIONS_PATH = "/api/v1/operations/"


class InProcessPeer:
    """The peer of a request that is a function call in this process."""

    def is_own_account(self, _scope: Scope) -> bool:
        """A caller inside the process could do everything without the API."""
        return True

    def has_local_key(self, _token: str) -> bool:
        return False

    def has_local_session(self, _cookie: str) -> bool:
        return False

    def local_session(self) -> str:
        raise AssertionError("a call inside the process has no local key")


class InProcessTransport(httpx.AsyncBaseTransport):
    """Carries requests to an application in the same event loop, and streams what it responds.

    The transport that comes with httpx waits for the end of a response; a stream of events has none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        scope = request_scope(
            request.method, url.path, query=url.query, headers=request.headers.raw, state={PEER: InProcessPeer()}
        )
        scope |= {
            "scheme": url.scheme,
            "raw_path": url.raw_path.partition(b"?")[0],
            "server": (url.host, url.port),
            "client": ("127.0.0.1", 0),
        }
        call = AsgiCall(self._app, scope, await request.aread())
        try:
            start = await call.start()
        except BaseException:
            await call.close()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(call))


class _Body(httpx.AsyncByteStream):
    def __init__(self, call: AsgiCall) -> None:
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._call.chunks():
            yield chunk

    async def aclose(self) -> None:
        await self._call.close()


@asynccontextmanager
async def with_operation_loop(app: ASGIApp, loop: OperationLoop) -> AsyncIterator[ASGIApp]:
    """*app*, with *loop* running from the first request that asks for an operation.

    Not before: a command that does not wait for its operation must not start it and leave it half done.
    """
    tasks: list[asyncio.Task[None]] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if not tasks and scope["path"].startswith(_OPERATIONS_PATH):
            tasks.append(asyncio.create_task(loop.run()))
        await app(scope, receive, send)

    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
