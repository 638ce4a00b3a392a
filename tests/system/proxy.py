"""A network that fails, between a node and its PostgreSQL.

The proxy passes the messages of PostgreSQL's protocol on, one by one, so it knows which statement a reply belongs to. It
can lose the reply to a statement that the server has committed, and then cut the connection; or it can fall silent,
with all connections still there, and deliver what was under way once it is healed.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.servers import POSTGRES_PORT, ROLE

SOCKET = f".s.PGSQL.{POSTGRES_PORT}"
_IDLE = b"I"


class Cut:
    """Loses one reply: that of the first transaction that runs this statement and whose reply contains these bytes."""

    def __init__(self, statement: str, containing: bytes) -> None:
        self.statement = statement
        self.containing = containing
        self.happened = threading.Event()


class Proxy:
    """Listens on a socket of its own in *folder*, and passes on to the server whose socket is in *server_folder*."""

    def __init__(self, folder: Path, server_folder: str) -> None:
        self.folder = folder
        self.statements: dict[str, int] = {}
        self._server = f"{server_folder}/{SOCKET}"
        self.silencing: str | None = None
        self.holding: str | None = None
        self._cuts: list[Cut] = []
        self._cuts_every_statement_once = False
        self._links: set[_Link] = set()
        self._is_silent = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy", daemon=True)

    def dsn(self, database: str) -> str:
        return f"postgresql://{ROLE}@/{database}?host={quote(str(self.folder), safe='')}&port={POSTGRES_PORT}"

    # what tests do to it

    def lose_reply(self, statement: str, containing: bytes = b"") -> Cut:
        """Lose the next reply to a transaction with this statement, after its commit, and cut the connection."""
        cut = Cut(statement, containing)
        self._cuts.append(cut)
        return cut

    def lose_first_replies(self) -> None:
        """Lose the first reply to each statement that is seen from now on."""
        self._cuts_every_statement_once = True
        self.statements.clear()

    def fall_silent_at(self, statement: str) -> None:
        """Pass this statement on, and then nothing any more of the connection that sent it."""
        self.silencing = statement

    def hold_back(self, statement: str) -> None:
        """Do not pass this statement on before the network is healed, whatever has become of its sender by then."""
        self.holding = statement

    def silence(self, concerns: Callable[[_Link], bool] = lambda _: True) -> int:
        """Pass nothing on any more, for those present connections that this concerns; returns how many those are."""
        return self._ask(self._silence, concerns)

    def silence_all(self) -> None:
        """Pass nothing on any more, for connections to come neither."""
        self._is_silent = True
        self.silence()

    def heal(self) -> None:
        """Pass on again what is sent, and what was held back."""
        self._ask(self._heal)

    # passing on

    def start(self) -> None:
        self._thread.start()
        self._ready.result(10)

    def stop(self) -> None:
        self._ask(self._stopping.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        socket = self.folder / SOCKET
        server = await asyncio.start_unix_server(self._meet, socket)
        socket.chmod(0o777)
        self._ready.set_result(None)
        await self._stopping.wait()
        server.close()
        for link in list(self._links):
            link.cut()

    def _ask(self, work: Callable[..., Any], *given: Any) -> Any:
        answer: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(work(*given)))
        return answer.result(10)

    def _silence(self, concerns: Callable[[_Link], bool]) -> int:
        chosen = [link for link in self._links if concerns(link)]
        for link in chosen:
            link.passing.clear()
        return len(chosen)

    def _heal(self) -> None:
        self._is_silent = False
        for link in self._links:
            link.passing.set()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._server)
        except OSError:
            # The server is away: the client is to know.
            writer.transport.abort()
            return
        link = _Link(self, writer, upstream_writer)
        if not self._is_silent:
            link.passing.set()
        self._links.add(link)
        try:
            await asyncio.gather(link.pass_requests(reader), link.pass_replies(upstream_reader))
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            link.cut()
            self._links.discard(link)

    def wants_to_lose(self, statements: list[str], reply: bytes) -> bool:
        """Whether the reply to a transaction of these statements is to be lost."""
        if self._cuts_every_statement_once:
            fresh = [text for text in statements if text not in self.statements]
            for text in statements:
                self.statements[text] = self.statements.get(text, 0) + 1
            return bool(fresh)
        for cut in self._cuts:
            if cut.statement in statements and cut.containing in reply:
                self._cuts.remove(cut)
                cut.happened.set()
                return True
        return False


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._prepared: dict[bytes, str] = {}
        # What was run since the connection was last idle, and all of it ever.
        self._running: list[str] = []
        self._is_asked = False
        self.statements: set[str] = set()
        self.passing = asyncio.Event()

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()

    async def pass_requests(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readexactly(4)
        await self._pass_on(self._server, head + await reader.readexactly(struct.unpack("!I", head)[0] - 4))
        while True:
            message = await _message(reader)
            self._note(message[:1], message[5:])
            if self._running and self._running[-1] == self._proxy.holding:
                self._proxy.holding = None
                self.passing.clear()
            await self._pass_on(self._server, message)
            if message[:1] == b"S" and self._proxy.silencing in self._running:
                self._proxy.silencing = None
                self.passing.clear()

    async def pass_replies(self, reader: asyncio.StreamReader) -> None:
        reply = b""
        while True:
            message = await _message(reader)
            if not self._is_asked:
                # The greeting, notifications, descriptions: nothing that a commit hangs on.
                await self._pass_on(self._client, message)
                continue
            reply += message
            if message[:1] in b"ZGHW":
                self._is_asked = message[:1] != b"Z"
                if message[:1] == b"Z" and message[5:6] == _IDLE:
                    statements, self._running = self._running, []
                    if self._proxy.wants_to_lose(statements, reply):
                        raise ConnectionAbortedError
                await self._pass_on(self._client, reply)
                reply = b""

    def _note(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._prepared[name] = text.decode()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self._ran(self._prepared[name])
        elif kind == b"Q":
            self._ran(body[:-1].decode())

    def _ran(self, text: str) -> None:
        self._is_asked = True
        self._running.append(text)
        self.statements.add(text)

    async def _pass_on(self, to: asyncio.StreamWriter, message: bytes) -> None:
        await self.passing.wait()
        to.write(message)
        await to.drain()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


@contextmanager
def proxy_to(server_folder: str, folder: Path) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts."""
    folder.mkdir(mode=0o755)
    proxy = Proxy(folder, server_folder)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
