"""The API behind a socket, as a part of a process that has other things to do too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Message

from timeball.api.app import make_api
from timeball.api.auth import Gate
from timeball.api.background import OperationLoop
from timeball.api.desk import ApiParts
from timeball.errors import InvalidInput

# How long a request that is being answered may hold up the end.
_LAST_WORDS_SECONDS = 5


class ApiServer:
    """Listens from `open` on, answers while `run` runs, and ends after `stop`."""

    def __init__(self, parts: ApiParts, app: ASGIApp | None = None) -> None:
        """Serve *app*; the API alone, if none is given."""
        self._parts = parts
        self._socket: socket.socket | None = None
        self._app = app or make_api(parts)
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        )
        self._server = _QuietServer(config)

    async def open(self) -> None:
        """Take the address; InvalidInput if it is taken, or if everybody could come in."""
        settings = self._parts.settings
        await Gate(self._parts.keys, settings.host).refuse_to_start_open(settings.host)
        self._socket = _bind(settings.host, settings.port)
        await _ask_once(self._app)

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def greeting(self) -> str:
        """Where it listens, and who may come in."""
        is_open = await Gate(self._parts.keys, self._parts.settings.host).is_open()
        who = (
            "open to every program on this machine, until the first: timeball keys create"
            if is_open
            else "requests need an API key"
        )
        return f"API on {self.address}/api/v1 ({who})\n  Dashboard: {self.address}/   Every route: {self.address}/docs"

    async def run(self) -> None:
        """Answer until stopped, and work off operations meanwhile."""
        assert self._socket is not None
        working = asyncio.create_task(OperationLoop(self._parts.commands, self._parts.env.new_id()).run())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            working.cancel()
            await asyncio.wait([working])

    def stop(self) -> None:
        """Answer what has been asked, and end; asked a second time, end at once. Streams of events end now."""
        self._parts.live.close()
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True


class _QuietServer(uvicorn.Server):
    """Signals are for the process to heed, not for one of its parts."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _ask_once(app: ASGIApp) -> None:
    """Routes are built when they are first looked for, which takes a second: before work is waiting, and not during it."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Message) -> None:
        pass

    path = "/api/v1/health/live"
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "root_path": ""}
    await app(scope | {"raw_path": path.encode(), "query_string": b"", "headers": [], "state": {}}, receive, send)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise InvalidInput(
            f"the API cannot listen on {host}:{port}: {error.strerror or error}",
            field="port",
            hint="choose another address with TIMEBALL_HOST and TIMEBALL_PORT (0 takes any free port)",
        ) from error
    bound.setblocking(False)
    return bound
