"""What the tests of the built-in handlers share: running one as a worker does, and an HTTP server without manners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engine.runners.support import Attempt, patience
from timeball.domain.execution import Failed, Outcome, Succeeded
from timeball.domain.handler import Handler, RunStyle
from timeball.engine.runners.in_process import CoroutineRunner, ThreadRunner
from timeball.handlers.catalogue import HandlerCatalogue


def attempt_at(handler: Handler, payload: Any, **columns: Any) -> Attempt:
    """An attempt that is about to start."""
    return Attempt(handler.name, json.dumps(payload), **columns)


async def run(handler: Handler, payload: Any, attempt: Attempt | None = None) -> Outcome:
    """Run a handler by the runner it would get."""
    runner = CoroutineRunner() if handler.style is RunStyle.COROUTINE else ThreadRunner(2)
    try:
        async with patience(f"{handler.name} ends"):
            return await runner.run(handler, attempt or attempt_at(handler, payload))
    finally:
        await runner.stop()


async def succeed(handler: Handler, payload: Any, attempt: Attempt | None = None) -> Any:
    """The result of a handler that must succeed."""
    outcome = await run(handler, payload, attempt)
    assert isinstance(outcome, Succeeded), outcome
    return None if outcome.result is None else json.loads(outcome.result)


async def fail(handler: Handler, payload: Any, attempt: Attempt | None = None) -> Failed:
    """The failure of a handler that must fail."""
    outcome = await run(handler, payload, attempt)
    assert isinstance(outcome, Failed), outcome
    return outcome


async def die(handler: Handler, payload: Any, attempt: Attempt | None = None) -> str:
    """The words of a handler that must fail and must not be tried again."""
    outcome = await fail(handler, payload, attempt)
    assert not outcome.is_retryable, outcome
    return outcome.error.message


@dataclass
class Request:
    """What the server was sent."""

    line: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RudeServer:
    """An HTTP server that does what each path says, however wrong."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    paths: dict[str, Reply] = field(default_factory=dict)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def on(self, path: str, reply: Reply | bytes) -> str:
        """Answer a path with a function, or with raw bytes; returns the URL."""

        async def say(_request: Request, writer: asyncio.StreamWriter) -> None:
            assert isinstance(reply, bytes)
            writer.write(reply)
            await writer.drain()

        self.paths[path] = say if isinstance(reply, bytes) else reply
        return self.url(path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(head[0], headers, body)
                self.requests.append(request)
                path = head[0].split()[1].partition("?")[0]
                await self.paths[path](request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(status: str = "200 OK", body: bytes = b"", *headers: str) -> bytes:
    """A well-formed answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def rude_server(host: str = "127.0.0.1") -> AsyncIterator[RudeServer]:
    """A running server; on leaving, all its connections are cut."""
    rude = RudeServer()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(rude.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0)
    rude.port = server.sockets[0].getsockname()[1]
    try:
        yield rude
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_payload(handlers, name, payload):
    """Refuse a payload as creating a job would."""
    check = HandlerCatalogue(handlers, ()).checker(name)
    if check is not None:
        check(payload)
