"""The API behind a socket: start, stop, the loop for bulk operations, deadlines for slow clients, limits on connections.

uvicorn waits without limit for the rest of a request. Here a client has some seconds for the head of a request, and for a body
the same seconds plus the time its size takes at the slowest accepted rate. A response of which nothing is read for a minute ends too.
One sweep a second checks all connections, so that a connection needs no timers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from typing import Any, cast
from uuid import UUID

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from timeball.api.app import make_api
from timeball.api.auth import PEER, KeyAuthenticator
from timeball.api.in_process import call, request_scope
from timeball.api.params import ApiParts
from timeball.api.peers import LocalAccess, can_ask_kernel
from timeball.application.commands import Commands
from timeball.application.commands.backfills import FEED_REST
from timeball.config.environment import file_limit
from timeball.config.life_signs import API, LifeSign
from timeball.config.servers import remove_local_key, write_local_key
from timeball.config.settings import ApiSettings
from timeball.domain.bulk_operation import Operation
from timeball.errors import InvalidInput, StoreError

# How long a request in progress may delay the end of the process.
_SHUTDOWN_SECONDS = 5


class ApiServer:
    """Listens after `open`, serves requests during `run`, and ends after `stop`."""

    def __init__(self, parts: ApiParts, app: ASGIApp | None = None) -> None:
        """Serve *app*, or only the API if none is given."""
        self._parts = parts
        self._authenticator = KeyAuthenticator(parts.keys, parts.settings.host)
        self._socket: socket.socket | None = None
        self._app = app or make_api(parts)
        self._access = LocalAccess()
        self._life_sign = LifeSign(API)
        settings = parts.settings.api
        self._connections = HttpConnections(settings, parts.env.clock.monotonic)
        config = uvicorn.Config(
            self._app,
            # uvicorn expects a class, and only calls it.
            http=cast(type[asyncio.Protocol], self._accept),
            ws="none",
            timeout_keep_alive=math.ceil(settings.idle_seconds),
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = _QuietServer(config)

    async def open(self) -> None:
        """Bind the address; InvalidInput if it is in use, or if it is not loopback and there is no key."""
        settings = self._parts.settings
        await self._authenticator.refuse_to_start_open(settings.host)
        self._socket = _bind(settings.host, settings.port)
        if await self._authenticator.is_open() and not can_ask_kernel(self._socket.getsockname()[:2]):
            self._access = LocalAccess(write_local_key(settings.data_dir, self._port))
        await _warm_up(self._app)
        host, port = self._socket.getsockname()[:2]
        self._life_sign.listen(_reachable(host), port)

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
        if not await self._authenticator.is_open():
            access = "requests need an API key"
        elif self._access.local_key is None:
            access = "open to the programs of your account; with the first key, requests need one"
        else:
            access = "open to the programs of your account, by a local key; with the first API key, requests need one"
            token = f"?token={self._access.local_key}"
        lines = [
            f"API on {self.address}/api/v1 ({access})",
            f"Dashboard: {self.address}/{token}   Every route: {self.address}/docs",
        ]
        return "\n  ".join(lines)

    async def run(self) -> None:
        """Serve requests until stopped, and carry out bulk operations meanwhile."""
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
            self._life_sign.remove()
            if self._access.local_key is not None:
                remove_local_key(self._parts.settings.data_dir, port)

    def _accept(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
    ) -> asyncio.Protocol:
        """A new connection, for uvicorn; the state of all its requests holds its peer."""
        state = {**app_state, PEER: self._access.connection()}
        return self._connections.protocol(config, server_state, state)

    def stop(self) -> None:
        """Finish the requests in progress, and end; when called again, end at once. Streams of events end now."""
        self._parts.live.close()
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True


class _QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the process handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _warm_up(app: ASGIApp) -> None:
    """Build the routes, which takes a second and otherwise happens in the first request."""
    await call(app, request_scope("GET", "/api/v1/health/live"))


def _reachable(host: str) -> str:
    """Where this machine reaches a server that listens there: on all addresses is also on loopback."""
    address = ip_address(host.partition("%")[0])
    if not address.is_unspecified:
        return host
    return "::1" if address.version == 6 else "127.0.0.1"


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


_PAUSE_SECONDS = 1.0
# A little longer than a backfill rests after a step.
_FEED_SECONDS = 1.25 * FEED_REST.total_seconds()
_operations_log = logging.getLogger("timeball.api")


class OperationLoop:
    """Carries out bulk operations that no live process holds, one after the other; it looks for them once a second."""

    def __init__(self, commands: Commands, holder: UUID) -> None:
        self._commands = commands
        self._holder = holder

    async def run(self) -> None:
        """Run until cancelled; an interrupted operation is resumed by another process when its lease has expired."""
        pause = _PAUSE_SECONDS
        while True:
            try:
                operation = await self.round()
            except StoreError as error:
                _operations_log.warning("bulk operations wait for the database: %s", error)
                operation = None
            except Exception:
                # The operation is recorded as failed; the next one may succeed.
                _operations_log.exception("a bulk operation failed")
                operation = None
            if operation is not None:
                # A backfill that rests is looked at again soon: a place may come free at any time.
                pause = _FEED_SECONDS if operation.backfill and not operation.is_over else _PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = _PAUSE_SECONDS

    async def round(self) -> Operation | None:
        """Carry out one operation, or one step of a backfill, if there is one; returns it as it is afterwards."""
        return await self._commands.operations.work(self._holder)


_SWEEP_SECONDS = 1.0


# A response ends if nothing of it is read for this time.
_UNREAD_SECONDS = 60.0


# How much of a body is discarded after a response that did not read it, so that the client sees the response and not an error.
_MAX_DISCARDED = 1024 * 1024
_MAX_SKIPPED = 64 * 1024 * 1024


# A body in chunks of a few bytes takes a hundred times as long to read as its size suggests.
_SLICE = 16 * 1024
_MAX_WIRE_BYTES_PER_BYTE = 3


# Open files that a process needs besides its connections.
_OTHER_FILES = 200
_WARN_SECONDS = 60.0
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 26\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\ntoo many connections open\r\n"
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_SMALL_CHUNKS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_log = logging.getLogger("timeball.api")


class HttpConnections:
    """All open connections of one server."""

    def __init__(self, settings: ApiSettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._open: set[HttpConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._proxies = [ip_network(proxy, strict=False) for proxy in settings.trusted_proxies]
        self._most = min(settings.most_connections, _files_to_spare())
        self._refused = 0
        self._warned_at = -_WARN_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> HttpConnection:
        """A new connection, for uvicorn."""
        return HttpConnection(self, config, server_state, app_state)

    def admit(self, connection: HttpConnection, address: str) -> bool:
        """Count a connection; False if there are too many, in all or from its address."""
        is_full = len(self._open) >= self._most
        is_greedy = self._by_address[address] >= self._settings.connections_per_address and not self._is_proxy(address)
        if is_full or is_greedy:
            self._log_refusal(address)
            return False
        self._open.add(connection)
        self._by_address[address] += 1
        return True

    def forget(self, connection: HttpConnection, address: str) -> None:
        """Stop counting a connection that has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def sweep(self) -> None:
        """End the connections whose client is too slow."""
        now = self._monotonic()
        for connection in list(self._open):
            connection.check(now, self._settings)

    async def watch(self) -> None:
        """Sweep once a second until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()

    def _is_proxy(self, address: str) -> bool:
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._proxies)

    def _log_refusal(self, address: str) -> None:
        """Log once a minute: a line for each would cost as much as the connection."""
        self._refused += 1
        now = self._monotonic()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            _log.warning(
                "connections refused: %d in all, the last from %s; %d are open", self._refused, address, len(self._open)
            )


class HttpConnection(H11Protocol):
    """One connection that measures how fast its client sends and reads."""

    def __init__(
        self, connections: HttpConnections, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._connections = connections
        self._address = ""
        self._is_admitted = False
        self._received = 0
        # What the client has to send next, since when, and how much had been received then.
        self._phase: tuple[object, bool] | None = None
        self._since = 0.0
        self._received_before = 0
        self._unread = 0
        self._unread_since = 0.0
        # The size of the request that is being read: on the wire, and of its body.
        self._wire_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Always TCP; uvloop's transports do not inherit from asyncio's.
        stream = cast(asyncio.Transport, transport)
        peer = stream.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) and peer else ""
        self._is_admitted = self._connections.admit(self, self._address)
        if self._is_admitted:
            super().connection_made(stream)
            return
        self.transport = stream
        stream.write(_TOO_MANY)
        stream.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self, self._address)
        if self._is_admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        self._received += len(data)
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            self._read(data[start : start + _SLICE])

    def _read(self, data: bytes) -> None:
        cycle = self._latest
        if cycle is not None and cycle.response_complete and cycle.more_body and not self._has_bounded_body():
            # The rest of a chunked body after its response: parsing each chunk would be expensive.
            self._wire_bytes += len(data)
            if self._wire_bytes > _MAX_DISCARDED:
                self.transport.close()
            return
        before = 0 if cycle is None else len(cycle.body)
        super().data_received(data)
        if self.cycle is not cycle:
            self._wire_bytes = self._body_bytes = 0
        elif cycle is not None and cycle.more_body and not cycle.response_complete:
            self._wire_bytes += len(data)
            self._body_bytes += len(cycle.body) - before
            self._check_chunks()

    def _has_bounded_body(self) -> bool:
        """Whether the head declares the length of the body: then the rest is skipped, and the connection can be reused."""
        length = dict(self.headers).get(b"content-length", b"")
        return length.isdigit() and int(length) <= _MAX_SKIPPED

    def _check_chunks(self) -> None:
        """End a request whose chunks are mostly overhead."""
        if self._wire_bytes > 2 * _SLICE and self._wire_bytes > _MAX_WIRE_BYTES_PER_BYTE * self._body_bytes:
            self._end(_TOO_SMALL_CHUNKS)

    @property
    def _latest(self) -> RequestResponseCycle | None:
        """The last request and its response; None before the first."""
        return self.cycle

    def on_response_complete(self) -> None:
        self._wire_bytes = 0
        super().on_response_complete()

    def check(self, now: float, settings: ApiSettings) -> None:
        """End the connection if its client is too slow to send or to read."""
        if self._is_unread(now):
            self.transport.abort()
            return
        phase = self._awaited()
        if phase is None or self.flow.read_paused:
            self._phase = None
            return
        if phase != self._phase:
            self._phase, self._since, self._received_before = phase, now, self._received
        rate = settings.least_kilobytes_per_second * 1024
        allowed = settings.request_seconds + (self._received - self._received_before) / rate
        if now - self._since > allowed:
            self._end(_TOO_SLOW)

    def _awaited(self) -> tuple[object, bool] | None:
        """What the client has to send next: the head of a request, or the rest of a body; None if nothing."""
        cycle = self._latest
        if cycle is None:
            return (None, False)
        if cycle.more_body:
            return (cycle, cycle.response_complete)
        # Between two requests uvicorn's own limit for idle connections holds, until the first byte of the next request.
        is_next_begun = cycle.response_complete and self.timeout_keep_alive_task is None
        return (cycle, True) if is_next_begun else None

    def _is_unread(self, now: float) -> bool:
        buffered = self.transport.get_write_buffer_size()
        if not buffered or buffered != self._unread:
            self._unread, self._unread_since = buffered, now
            return False
        return now - self._unread_since > _UNREAD_SECONDS

    def _end(self, answer: bytes) -> None:
        cycle = self._latest
        if cycle is None or not (cycle.response_started or cycle.response_complete):
            self.transport.write(answer)
        self.transport.close()


def _files_to_spare() -> int:
    files = file_limit()
    return max(files - _OTHER_FILES, files // 2)
