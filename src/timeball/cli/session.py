"""The client and printer of a command: a server named by `--url` or TIMEBALL_URL, or the API in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from timeball.cli.output import OutputFormat, Printer, TimeStyle

if TYPE_CHECKING:
    from timeball.client import AsyncClient
    from timeball.config.settings import Settings


T = TypeVar("T")


@dataclass(frozen=True)
class CliSession:
    """What every command is given: somebody to talk to, and a way to print."""

    url: str | None = None
    output: OutputFormat | None = None
    times: TimeStyle | None = None

    @cached_property
    def printer(self) -> Printer:
        """Where the command writes to."""
        return Printer(self.output, self.times)

    def talk(self, work: Callable[[AsyncClient], Awaitable[T]], settings: Settings | None = None) -> T:
        """Have *work* done with a client, in an event loop of its own; *settings* name another database than the environment."""

        async def whole() -> T:
            async with self.connected(settings) as client:
                return await work(client)

        return run_async(whole())

    @asynccontextmanager
    async def connected(self, settings: Settings | None = None) -> AsyncIterator[AsyncClient]:
        """A client: of the server that was named, or of the API in this process."""
        url = self.url or os.environ.get("TIMEBALL_URL") or None
        if url is None:
            async with _in_process(settings) as client:
                yield client
            return
        from timeball.client import AsyncClient
        from timeball.client.clients import check_server_url

        check_server_url(url, "--url" if self.url else "TIMEBALL_URL")
        async with AsyncClient(url, _local_key(url)) as client:
            yield client


def _local_key(url: str) -> str | None:
    """The local key of a server on this machine, unless the environment names another key."""
    if os.environ.get("TIMEBALL_API_KEY"):
        return None
    from timeball.config.local_key import find_local_key
    from timeball.config.settings import load_settings
    from timeball.errors import SettingsError

    try:
        return find_local_key(url, load_settings().data_dir)
    except SettingsError:
        # They are the server's: a command that only talks to one may do without.
        return None


@asynccontextmanager
async def _in_process(settings: Settings | None) -> AsyncIterator[AsyncClient]:
    from timeball.api.app import make_api
    from timeball.api.auth import Caller, Role, TrustedAuthenticator
    from timeball.api.server import OperationLoop
    from timeball.cli.program import resolve_database
    from timeball.client import AsyncClient
    from timeball.client.in_process import InProcessTransport, with_operation_loop
    from timeball.config.settings import load_settings
    from timeball.runtime import make_server_runtime, open_runtime

    settings = resolve_database(settings or load_settings())
    async with open_runtime(settings) as parts:
        gate = TrustedAuthenticator(Caller(f"cli:{user_name()}", Role.ADMIN))
        app = make_api(make_server_runtime(settings, parts.store, parts.commands), gate)
        async with (
            with_operation_loop(app, OperationLoop(parts.commands, parts.store.env.new_id())) as served,
            AsyncClient("http://localhost", transport=InProcessTransport(served)) as client,
        ):
            yield client


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """What comes of a coroutine, in an event loop of its own; a command that only shows its help needs none."""
    import asyncio

    return asyncio.run(work)


def user_name() -> str:
    """Who is at the keyboard, for the audit."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        return str(os.getuid())


async def take(items: Any, number: int) -> list[Any]:
    """The first items of a list that may be endless."""
    found: list[Any] = []
    async for item in items:
        found.append(item)
        if len(found) >= number:
            break
    return found
