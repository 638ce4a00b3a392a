"""What a command works with: its client and printer, the program it is told of, and the database it finds.

A command talks to the server that `--url` or TIMEBALL_URL names. Without one, it runs the API in its own process, on the database of
this environment.

`timeball up` keeps the embedded PostgreSQL in the folder it is started in, and records that folder for the other commands of the
same account. A command without TIMEBALL_URL and TIMEBALL_DATABASE_URL uses the database of its own folder, or else the recorded one,
and says so. It never creates a database unasked: no worker would ever see what the command wrote there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from timeball.cli.output import OutputFormat, Printer, TimeStyle, printable

if TYPE_CHECKING:
    from timeball.client import AsyncClient
    from timeball.config.settings import Settings
    from timeball.sdk.app import Timeball


T = TypeVar("T")


@dataclass(frozen=True)
class CliSession:
    """What every command is given: a client to call the API with, and a printer."""

    url: str | None = None
    output: OutputFormat | None = None
    times: TimeStyle | None = None

    @cached_property
    def printer(self) -> Printer:
        """Where the command writes to."""
        return Printer(self.output, self.times)

    def talk(self, work: Callable[[AsyncClient], Awaitable[T]], settings: Settings | None = None) -> T:
        """Run *work* with a client, in an event loop of its own; *settings* may name another database than the environment."""

        async def work_connected() -> T:
            async with self.connected(settings) as client:
                return await work(client)

        return run_async(work_connected())

    @asynccontextmanager
    async def connected(self, settings: Settings | None = None) -> AsyncIterator[AsyncClient]:
        """A client of the named server, or of the API in this process."""
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
    from timeball.config.servers import find_local_key
    from timeball.config.settings import load_settings
    from timeball.errors import SettingsError

    try:
        return find_local_key(url, load_settings().data_dir)
    except SettingsError:
        # The settings are the server's: a command that only calls one can do without.
        return None


@asynccontextmanager
async def _in_process(settings: Settings | None) -> AsyncIterator[AsyncClient]:
    from timeball.api.app import make_api
    from timeball.api.auth import Caller, Role, TrustedAuthenticator
    from timeball.api.server import OperationLoop
    from timeball.client import AsyncClient
    from timeball.client.in_process import InProcessTransport, with_operation_loop
    from timeball.config.settings import load_settings
    from timeball.runtime import make_server_runtime, open_runtime

    settings = resolve_database(settings or load_settings())
    async with open_runtime(settings) as runtime:
        authenticator = TrustedAuthenticator(Caller(f"cli:{user_name()}", Role.ADMIN))
        api = make_api(make_server_runtime(settings, runtime.store, runtime.commands), authenticator)
        async with (
            with_operation_loop(api, OperationLoop(runtime.commands, runtime.store.env.new_id())) as app,
            AsyncClient("http://localhost", transport=InProcessTransport(app)) as client,
        ):
            yield client


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in an event loop of its own; asyncio is imported here, because `--help` needs none."""
    import asyncio

    return asyncio.run(work)


def user_name() -> str:
    """The account that runs the command, for the audit log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        return str(os.getuid())


async def take(items: AsyncIterator[T], number: int) -> list[T]:
    """The first items of a list that may be endless."""
    taken: list[T] = []
    async for item in items:
        taken.append(item)
        if len(taken) >= number:
            break
    return taken


def load_program(reference: str | None) -> Timeball | None:
    """The program that a reference such as `app:tb` names."""
    if reference is None:
        return None
    from timeball.sdk.app_loader import load_app

    return load_app(reference)


def settings_of(program: Timeball | None) -> Settings:
    """The settings of a program, which may name its own database; without one, those of the environment."""
    if program is not None:
        return program.settings
    from timeball.config.settings import load_settings

    return load_settings()


def record_data_dir(settings: Settings) -> None:
    """Record where the embedded PostgreSQL is, for the other commands of this account."""
    if settings.database_url is not None:
        return
    import json

    # An account without a home folder, or with one that is read-only, has to name its database.
    with suppress(OSError, RuntimeError):
        file = _state_file()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replacement = file.with_suffix(f".{os.getpid()}")
        replacement.write_text(json.dumps({"data_dir": str(settings.data_dir.resolve())}))
        replacement.replace(file)


def resolve_database(settings: Settings) -> Settings:
    """The settings with the database that exists; EmbeddedServerError if none exists and none is named."""
    if settings.database_url is not None or _has_database(settings.data_dir):
        return settings
    if "data_dir" in settings.model_fields_set:
        _say(f"creating a new database in {settings.data_dir.resolve()}")
        return settings
    recorded = _recorded_data_dir()
    if recorded is None:
        from timeball.errors import EmbeddedServerError

        raise EmbeddedServerError(
            f"no database here: {settings.data_dir.resolve()} does not exist, and no other is named",
            hint="start one with: timeball up; or name one: TIMEBALL_URL, TIMEBALL_DATABASE_URL or TIMEBALL_DATA_DIR",
        )
    _say(f"using the database in {recorded}, where timeball up was started last; TIMEBALL_DATA_DIR names another")
    return settings.model_copy(update={"data_dir": recorded})


def _state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "timeball" / "current.json"


def _recorded_data_dir() -> Path | None:
    import json

    try:
        data_dir = Path(json.loads(_state_file().read_text())["data_dir"])
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None
    return data_dir if _has_database(data_dir) else None


def _has_database(data_dir: Path) -> bool:
    try:
        return (data_dir / "server.json").is_file()
    except OSError:
        return False


def _say(text: str) -> None:
    sys.stderr.write(f"timeball: {printable(text)}\n")
    sys.stderr.flush()
