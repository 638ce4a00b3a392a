"""The API behind a socket, as a part of a process that has other things to do too."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message
from uvicorn.server import ServerState

from timeball.api.app import make_api
from timeball.api.auth import Gate
from timeball.api.background import OperationLoop
from timeball.api.connections import Connections
from timeball.api.desk import ApiParts
from timeball.api.peers import PEER, Access, can_ask_kernel
from timeball.errors import InvalidInput
from timeball.local_key import remove_local_key, write_local_key

# How long a request that is being answered may hold up the end.
_LAST_WORDS_SECONDS = 5


class ApiServer:
    """Listens from `open` on, answers while `run` runs, and ends after `stop`."""

    def __init__(self, parts: ApiParts, app: ASGIApp | None = None) -> None:
        """Serve *app*; the API alone, if none is given."""
        self._parts = parts
        self._gate = Gate(parts.keys, parts.settings.host)
        self._socket: socket.socket | None = None
        self._app = app or make_api(parts)
        self._access = Access()
        settings = parts.settings.api
        self._connections = Connections(settings, parts.env.clock.monotonic)
        config = uvicorn.Config(
            self._app,
            # uvicorn asks for a class, and calls it.
            http=cast(type[asyncio.Protocol], self._accept),
            ws="none",
            timeout_keep_alive=math.ceil(settings.idle_seconds),
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
        await self._gate.refuse_to_start_open(settings.host)
        self._socket = _bind(settings.host, settings.port)
        if await self._gate.is_open() and not can_ask_kernel(self._socket.getsockname()[:2]):
            self._access = Access(write_local_key(settings.data_dir, self._port))
        await _ask_once(self._app)

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def _port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    async def greeting(self) -> str:
        """Where it listens, and which requests it serves."""
        token = ""
        if not await self._gate.is_open():
            who = "requests need an API key"
        elif self._access.local_key is None:
            who = "open to the programs of your account, until the first: timeball keys create --role admin"
        else:
            who = "open to the programs of your account by a local key, until the first: timeball keys create --role admin"
            token = f"?token={self._access.local_key}"
        return f"API on {self.address}/api/v1 ({who})\n  Dashboard: {self.address}/{token}   Every route: {self.address}/docs"

    async def run(self) -> None:
        """Answer until stopped, and work off operations meanwhile."""
        assert self._socket is not None
        port = self._port
        operations = OperationLoop(self._parts.commands, self._parts.env.new_id())
        tasks = [asyncio.create_task(work) for work in (operations.run(), self._connections.watch())]
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._access.local_key is not None:
                remove_local_key(self._parts.settings.data_dir, port)

    def _accept(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
    ) -> asyncio.Protocol:
        """A new connection, for uvicorn; it carries its Peer in the state of all its requests."""
        state = {**app_state, PEER: self._access.connection()}
        return self._connections.protocol(config, server_state, state)

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
