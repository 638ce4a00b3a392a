"""How a command talks: to the server named by `--url` or TIMEBALL_URL, or to the API in this very process.

Without a server the database of the environment is opened and the API is called in process, by an administrator whose name
is that of the user: the same rules and the same audit, with no socket in between. One code path, whatever is behind it.

    paused = session.talk(lambda client: client.jobs.pause("nightly"))
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from timeball.cli.render import Output, Printer, TimeStyle

if TYPE_CHECKING:
    from timeball.client import AsyncClient
    from timeball.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """What every command is given: somebody to talk to, and a way to print."""

    url: str | None = None
    output: Output | None = None
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

        return complete(whole())

    @asynccontextmanager
    async def connected(self, settings: Settings | None = None) -> AsyncIterator[AsyncClient]:
        """A client: of the server that was named, or of the API in this process."""
        url = self.url or os.environ.get("TIMEBALL_URL") or None
        if url is None:
            async with _in_process(settings) as client:
                yield client
            return
        from timeball.client import AsyncClient
        from timeball.client.faces import check_server

        check_server(url, "--url" if self.url else "TIMEBALL_URL")
        async with AsyncClient(url, _local_key(url)) as client:
            yield client


def _local_key(url: str) -> str | None:
    """The local key of a server on this machine, unless the environment names another key."""
    if os.environ.get("TIMEBALL_API_KEY"):
        return None
    from timeball.errors import SettingsError
    from timeball.local_key import find_local_key
    from timeball.settings import load_settings

    try:
        return find_local_key(url, load_settings().data_dir)
    except SettingsError:
        # They are the server's: a command that only talks to one may do without.
        return None


@asynccontextmanager
async def _in_process(settings: Settings | None) -> AsyncIterator[AsyncClient]:
    from timeball.api.app import make_api
    from timeball.api.auth import Caller, Role, Trusting
    from timeball.api.background import OperationLoop
    from timeball.cli.errands import working_off
    from timeball.cli.place import at_hand
    from timeball.client import AsyncClient
    from timeball.client.in_process import InProcessTransport
    from timeball.settings import load_settings
    from timeball.wiring import front_parts, opened

    settings = at_hand(settings or load_settings())
    async with opened(settings) as parts:
        gate = Trusting(Caller(f"cli:{user_name()}", Role.ADMIN))
        app = make_api(front_parts(settings, parts.store, parts.commands), gate)
        async with (
            working_off(app, OperationLoop(parts.commands, parts.store.env.new_id())) as served,
            AsyncClient("http://localhost", transport=InProcessTransport(served)) as client,
        ):
            yield client


def complete(work: Coroutine[Any, Any, T]) -> T:
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
