"""Fixtures of the API: in this process, or behind a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.api.app import make_api
from timeball.api.server import ApiServer
from timeball.application.commands import Commands
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings
from timeball.dashboard.app import make_web_app
from timeball.env import Env
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.runtime import ServerRuntime, make_catalogue, make_server_runtime
from timeball.store.store import Store
from timeball.store.types import AuditEntry

ROLES = ("viewer", "operator", "editor", "admin")


@pytest.fixture
def fresh_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[FreshDatabase]:
    """One PostgreSQL is enough here: the tests of the store use all of them."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


def checking_commands(settings: Settings, store: Store) -> Commands:
    """Commands that know the built-in handlers."""
    box = BuiltinHandlers(settings, store.env.clock, settings.data_dir, store.history)
    return Commands(store, store.env, make_catalogue(box))


@pytest.fixture
def parts(store: Store) -> ServerRuntime:
    """The parts of the API over the store of the test."""
    settings = Settings()
    return make_server_runtime(settings, store, checking_commands(settings, store))


@pytest.fixture
async def client(parts: ServerRuntime) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the same machine, without a key."""
    transport = InProcessTransport(make_api(parts))
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost:8080/api/v1", headers=headers
    ) as opened:
        yield opened


@pytest.fixture
def make_key(parts: ServerRuntime) -> Callable[[str], Awaitable[dict[str, str]]]:
    """Creates a key of a role, and returns the header that carries it."""

    async def make(role: str) -> dict[str, str]:
        _, token = await parts.keys.create(role, role, None, AuditEntry("test"))
        return {"Authorization": f"Bearer {token}"}

    return make


@pytest.fixture
def running_api(fresh_database: FreshDatabase) -> Iterator[str]:
    """The address of the API behind a socket, in a thread with its own loop."""
    api = ApiThread(fresh_database.dsn)
    yield api.start()
    api.stop()


class ApiThread:
    """API and dashboard behind a real socket, in a thread with its own loop."""

    def __init__(self, dsn: str, settings: Settings | None = None) -> None:
        self._dsn = dsn
        self._settings = settings or Settings(port=0)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._server: ApiServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.greeting = ""

    def start(self) -> str:
        self._thread.start()
        assert self._started.wait(30)
        assert self._server is not None
        return self._server.address

    def stop(self) -> None:
        assert self._loop is not None
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(30)

    async def _serve(self) -> None:
        store = Store(self._dsn, Env())
        await store.open(migrates=False)
        self._loop = asyncio.get_running_loop()
        front = make_server_runtime(self._settings, store, checking_commands(self._settings, store))
        self._server = ApiServer(front, make_web_app(front))
        await self._server.open()
        self.greeting = await self._server.greeting()
        self._started.set()
        await self._server.run()
        await store.close()
