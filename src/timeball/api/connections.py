"""Connections that cannot be held for ever: deadlines for what a client sends and reads, and caps on how many are open.

uvicorn waits without end for the rest of a request. Here a client has some seconds for the head of a request, and for a body
these seconds and as long as its size takes at the slowest rate; an answer that is not read for a minute ends, too.
One sweep a second looks at all connections, so that a connection costs no timers of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from timeball.loops import most_files
from timeball.settings import ApiSettings

_SWEEP_SECONDS = 1.0
# An answer of which nothing is read for so long is given up.
_UNREAD_SECONDS = 60.0
# What may follow an answer that did not wait for its body, so that the client reads the answer and not an error.
_MOST_DISCARDED = 1024 * 1024
_LONGEST_SKIPPED = 64 * 1024 * 1024
# A body in chunks of some bytes each takes a hundred times as long to read as its size would tell.
_SLICE = 16 * 1024
_MOST_WIRE_BYTES_A_BYTE = 3
# Files that a process needs besides its connections.
_OTHER_FILES = 200
_WARN_SECONDS = 60.0
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 26\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\ntoo many connections open\r\n"
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_SMALL_CHUNKS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_log = logging.getLogger("timeball.api")


class Connections:
    """All open connections of one server."""

    def __init__(self, settings: ApiSettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._proxies = [ip_network(one, strict=False) for one in settings.trusted_proxies]
        self._most = min(settings.most_connections, _files_to_spare())
        self._refused = 0
        self._warned_at = -_WARN_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> Connection:
        """A new connection, for uvicorn."""
        return Connection(self, config, server_state, app_state)

    def admit(self, connection: Connection, address: str) -> bool:
        """Take a connection in, unless there are too many, in all or of its address."""
        is_full = len(self._open) >= self._most
        is_greedy = self._by_address[address] >= self._settings.connections_per_address and not self._is_proxy(address)
        if is_full or is_greedy:
            self._tell_refusal(address)
            return False
        self._open.add(connection)
        self._by_address[address] += 1
        return True

    def forget(self, connection: Connection, address: str) -> None:
        """A connection has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def sweep(self) -> None:
        """End the connections whose client takes too long."""
        now = self._monotonic()
        for connection in list(self._open):
            connection.check(now, self._settings)

    async def watch(self) -> None:
        """Sweep for as long as the server runs."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)

    def _tell_refusal(self, address: str) -> None:
        """Once a minute: a line for each would be as much work as the connection."""
        self._refused += 1
        now = self._monotonic()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            _log.warning(
                "connections refused: %d in all, the last from %s; %d are open", self._refused, address, len(self._open)
            )


class Connection(H11Protocol):
    """One connection, with what is needed to tell whether its client is too slow."""

    def __init__(
        self, connections: Connections, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._guard = connections
        self._address = ""
        self._is_admitted = False
        self._received = 0
        # What is waited for, since when, and what had been received by then.
        self._phase: tuple[object, bool] | None = None
        self._since = 0.0
        self._received_before = 0
        self._unread = 0
        self._unread_since = 0.0
        # The bytes of the request that is being read, as they came.
        self._wire_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # TCP alone leads here; uvloop's transports do not inherit from asyncio's.
        stream = cast(asyncio.Transport, transport)
        peer = stream.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) and peer else ""
        self._is_admitted = self._guard.admit(self, self._address)
        if self._is_admitted:
            super().connection_made(stream)
            return
        self.transport = stream
        stream.write(_TOO_MANY)
        stream.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.forget(self, self._address)
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
            # The rest of a body that was answered unread, of which chunk after chunk would have to be parsed.
            self._wire_bytes += len(data)
            if self._wire_bytes > _MOST_DISCARDED:
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
        """Whether the head says how long the body is: then the rest is skipped, and the connection can be used again."""
        length = dict(self.headers).get(b"content-length", b"")
        return length.isdigit() and int(length) <= _LONGEST_SKIPPED

    def _check_chunks(self) -> None:
        """Refuse chunks that are mostly their own lengths."""
        if self._wire_bytes > 2 * _SLICE and self._wire_bytes > _MOST_WIRE_BYTES_A_BYTE * self._body_bytes:
            self._end(_TOO_SMALL_CHUNKS)

    @property
    def _latest(self) -> RequestResponseCycle | None:
        """The request that came last, and its answer; None before the first."""
        return self.cycle

    def on_response_complete(self) -> None:
        self._wire_bytes = 0
        super().on_response_complete()

    # deadlines

    def check(self, now: float, settings: ApiSettings) -> None:
        """End the connection if its client has taken too long to send, or to read."""
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
        """What the client has to send next: the head of a request, or the rest of a body; None while it has to send nothing."""
        cycle = self._latest
        if cycle is None:
            return (None, False)
        if cycle.more_body:
            return (cycle, cycle.response_complete)
        # Between two requests uvicorn's own time for idle connections runs; it ends with the first byte of the next one.
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
    files = most_files()
    return max(files - _OTHER_FILES, files // 2)
