"""The server closes connections that send too slowly, read nothing, or are too many."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from timeball.api.server import HttpConnections
from timeball.config.environment import is_out_of_files
from timeball.config.settings import ApiSettings, load_settings
from timeball.errors import SettingsError

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Watch:
    """A clock that moves only when the test moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    """Connections to a server, and the bodies that its application received."""

    connections: HttpConnections
    watch: Watch
    port: int
    bodies: list[int] = field(default_factory=list)
    # The number of connections so far.
    seen: int = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, and wait until the server has accepted or refused it."""
        seen = self.seen
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        await until(lambda: self.seen > seen)
        return streams

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send, and wait until the server has read it."""
        address = writer.get_extra_info("sockname")
        connection = next(one for one in self.connections._open if one.client == address)
        before = connection._received
        writer.write(data)
        await until(lambda: connection._received >= before + len(data))

    def pass_seconds(self, seconds: int) -> None:
        """Move the clock second by second, with a sweep each."""
        for _ in range(seconds):
            self.watch.now += 1
            self.connections.sweep()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the other side of a socket has acted."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server with some settings; its application responds with the length of the body."""
    servers: list[asyncio.Server] = []

    async def start(**settings: Any) -> Served:
        watch = Watch()
        served = Served(HttpConnections(ApiSettings(**settings), watch), watch, 0)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            size, more = 0, scope["path"] != "/unread"
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    served.bodies.append(-1)
                    return
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
            served.bodies.append(size)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

        config = uvicorn.Config(app, lifespan="off", log_level="error")
        loop, state = asyncio.get_running_loop(), ServerState()

        def connected() -> asyncio.Protocol:
            loop.call_soon(lambda: setattr(served, "seen", served.seen + 1))
            return served.connections.protocol(config, state, {})

        server = await loop.create_server(connected, "127.0.0.1", 0)
        servers.append(server)
        served.port = server.sockets[0].getsockname()[1]
        return served

    yield start
    for server in servers:
        server.close()


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Everything that the server sends until it closes."""
    async with asyncio.timeout(10):
        return await reader.read()


async def send_until_refused(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send the same bytes repeatedly."""
    async with asyncio.timeout(10):
        while True:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)


async def test_a_silent_connection_is_closed(serve: Serve) -> None:
    served = await serve(request_seconds=10)
    reader, _ = await served.connect()

    served.pass_seconds(10)
    assert len(served.connections) == 1
    served.pass_seconds(3)

    assert (await answer_of(reader)).startswith(b"HTTP/1.1 408 ")


async def test_an_incomplete_head_is_timed_out_even_if_bytes_trickle_in(serve: Serve) -> None:
    served = await serve(request_seconds=10)
    reader, writer = await served.connect()

    await served.send(writer, HEAD)
    for _ in range(4):
        await served.send(writer, b"x")
        served.pass_seconds(3)

    assert (await answer_of(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_slow_body_is_accepted_and_a_stalled_one_timed_out(serve: Serve) -> None:
    served = await serve(request_seconds=10, least_kilobytes_per_second=8)
    slow_reader, slow = await served.connect()
    standing_reader, standing = await served.connect()
    for writer in (slow, standing):
        await served.send(writer, HEAD + b"Content-Length: 320000\r\n\r\n")

    for _ in range(31):
        await served.send(slow, b"x" * 10_000)
        served.pass_seconds(1)
    slow.write(b"x" * 10_000)

    assert (await standing_reader.read(12)) == b"HTTP/1.1 408"
    assert (await slow_reader.readline()).startswith(b"HTTP/1.1 200")
    assert served.bodies == [-1, 320_000]


async def test_an_idle_connection_stays_open_and_an_incomplete_second_request_is_timed_out(serve: Serve) -> None:
    served = await serve(request_seconds=10)
    reader, writer = await served.connect()
    writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    served.pass_seconds(30)
    assert len(served.connections) == 1
    await served.send(writer, b"GET / HT")
    served.pass_seconds(13)

    assert (await answer_of(reader)).endswith(b"ok")


async def test_an_unread_chunked_body_is_not_parsed_and_the_connection_closed(serve: Serve) -> None:
    served = await serve()
    reader, writer = await served.connect()
    writer.write(HEAD.replace(b" / ", b" /unread ") + b"Transfer-Encoding: chunked\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    with pytest.raises(OSError):
        await send_until_refused(writer, b"1\r\nx\r\n" * 10_000)

    await until(lambda: len(served.connections) == 0)


async def test_a_connection_is_reused_after_an_unread_body_of_known_length(serve: Serve) -> None:
    served = await serve()
    reader, writer = await served.connect()
    writer.write(HEAD.replace(b" / ", b" /unread ") + b"Content-Length: 3000000\r\n\r\n" + b"x" * 100)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert (await reader.readuntil(b"ok")).endswith(b"ok")

    writer.write(b"x" * 2_999_900 + HEAD + b"Content-Length: 2\r\n\r\nhi")

    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert served.bodies == [0, 2]


async def test_chunks_of_a_few_bytes_are_refused(serve: Serve) -> None:
    served = await serve()
    reader, writer = await served.connect()
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000)
    fine_reader, fine = await served.connect()
    chunk = b"%x\r\n%s\r\n" % (100, b"y" * 100)
    fine.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 5_000 + b"0\r\n\r\n")

    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    assert (await fine_reader.readline()).startswith(b"HTTP/1.1 200")
    assert 500_000 in served.bodies


async def fills(served: Served, most: int) -> None:
    """A connection above the limit is refused; for each that ends, another is accepted."""
    opened = [await served.connect() for _ in range(most)]
    reader, _ = await served.connect()
    assert (await answer_of(reader)).startswith(b"HTTP/1.1 503 ")
    opened[0][1].close()
    await until(lambda: len(served.connections) == most - 1)
    opened.append(await served.connect())
    assert len(served.connections) == most


async def test_connections_are_limited_by_address_except_for_proxies(serve: Serve) -> None:
    """Fault 40."""
    served = await serve(connections_per_address=3, most_connections=5)
    proxied = await serve(connections_per_address=3, most_connections=5, trusted_proxies=["127.0.0.0/8"])

    await fills(served, 3)
    await fills(proxied, 5)


async def test_an_unread_response_is_aborted(serve: Serve) -> None:
    served = await serve()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.port))
    await until(lambda: len(served.connections) == 1)
    (connection,) = served.connections._open
    connection.transport.write(b"x" * 20_000_000)

    served.pass_seconds(62)

    assert connection.transport.is_closing()
    sock.close()


def test_proxies_are_addresses() -> None:
    with pytest.raises(SettingsError, match="not an address"):
        load_settings(api={"trusted_proxies": ["nginx"]})


def test_running_out_of_files_is_recognised_by_its_cause() -> None:
    out = OSError(24, "Too many open files")
    wrapped = RuntimeError("no connection")
    wrapped.__cause__ = ConnectionError("refused")
    wrapped.__cause__.__context__ = out

    assert is_out_of_files(out)
    assert is_out_of_files(wrapped)
    assert not is_out_of_files(OSError(2, "no such file"))


def test_every_process_may_open_as_many_files_as_the_system_allows() -> None:
    program = (
        "import resource, json; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 900));"
        "from timeball.cli.processes import run_event_loop\n"
        "async def show(): print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))\n"
        "run_event_loop(show())"
    )

    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=Path.cwd())

    assert json.loads(shown.stdout) == [900, 900]
