"""What every test may ask for."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tools.xdist_order import HandingOut, spread

from tests.support.broker_servers import Rabbitmq, running_rabbitmq, running_redis
from tests.support.servers import (
    STORE_SERVERS,
    VERSIONS,
    PgBouncer,
    PostgresServer,
    Servers,
    ServiceMissing,
    give_up_on,
    running_servers,
)
from timeball.env import Env
from timeball.store.db.database import Database
from timeball.store.db.migrate import migrate
from timeball.store.store import DEFAULT_SHARDS, Store
from timeball.testing import VirtualClock

# How long an example takes says how busy the machine is: no reason to call it slow, nor unreliable.
settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure() -> None:
    """Forget the settings of whoever runs the tests: no test may reach a database of theirs, and each hears of Ctrl-C."""
    for name in [name for name in os.environ if name.startswith("TIMEBALL_")]:
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what is to run in the background; programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect garbage only of what the tests leave: to look through all modules and tests again and again costs as much as to load them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> HandingOut | None:
    """Who runs tests side by side has them handed out our way, unless another way is asked for."""
    return HandingOut(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One after the other they keep their order; only side by side is there anything to gain."""
    if hasattr(config, "workerinput"):
        items[:] = spread(items)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, and that other accounts may enter."""
    # On the disk and not in memory: what is written through should reach something.
    folder = Path(tempfile.mkdtemp(prefix="tb-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The real servers of this test process, each started when first asked for."""
    with running_servers() as started:
        yield started


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    """The port of a running Redis, shared by all tests of this process: they keep to keys of their own."""
    try:
        with running_redis() as port:
            yield port
    except ServiceMissing as error:
        give_up_on(error)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Rabbitmq]:
    """A running RabbitMQ, shared by all tests of this process: they keep to queues of their own."""
    try:
        with running_rabbitmq() as server:
            yield server
    except ServiceMissing as error:
        give_up_on(error)


@pytest.fixture(params=VERSIONS)
def postgres_server(request: pytest.FixtureRequest, servers: Servers) -> PostgresServer:
    """A running PostgreSQL; the test runs on each of `VERSIONS`, unless it parametrizes this fixture itself (`indirect`)."""
    try:
        return servers.postgres(request.param)
    except ServiceMissing as error:
        give_up_on(error)
        raise


@pytest.fixture
def pgbouncer(servers: Servers) -> PgBouncer:
    """PgBouncer in transaction mode in front of PostgreSQL 15."""
    try:
        return servers.pgbouncer("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise


@dataclass(frozen=True)
class FreshDatabase:
    """A migrated, empty database of one test, and how to get there."""

    server: PostgresServer
    name: str
    dsn: str
    behind_pgbouncer: bool = False


@pytest.fixture(scope="session")
def template_of() -> Callable[[PostgresServer], str]:
    """The migrated database of a server that those of the tests are copied from, made when first asked for."""
    made: dict[str, str] = {}

    def template(server: PostgresServer) -> str:
        if server.host not in made:
            name = server.create_database()
            with ThreadPoolExecutor(1) as aside:  # the loop of the test is none of our business
                aside.submit(lambda: asyncio.run(_migrate(server.dsn(name)))).result()
            made[server.host] = name
        return made[server.host]

    return template


async def _migrate(dsn: str) -> None:
    await migrate(Database(dsn, Env()), shards=DEFAULT_SHARDS)


@pytest.fixture(params=STORE_SERVERS)
def fresh_database(
    request: pytest.FixtureRequest, servers: Servers, template_of: Callable[[PostgresServer], str]
) -> Iterator[FreshDatabase]:
    """A database of the test's own on each of `STORE_SERVERS`; some tests choose theirs (`indirect`)."""
    through_pgbouncer = request.param == "pgbouncer"
    try:
        server = servers.postgres("pg15" if through_pgbouncer else request.param)
        front = servers.pgbouncer("pg15") if through_pgbouncer else server
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, front.dsn(name), through_pgbouncer)
    if through_pgbouncer:
        # It keeps its connections; DROP would end them too, but looks only every 100 ms whether they have gone.
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    server.drop_database(name)


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the test: it stands still until the test moves it."""
    return VirtualClock()


@pytest.fixture
def env(clock: VirtualClock) -> Env:
    """Virtual time, and the same ids in every run."""
    return Env(clock, random.Random(1833))  # the year of the first time ball at Greenwich


@pytest.fixture
async def open_store(fresh_database: FreshDatabase, env: Env) -> AsyncIterator[Callable[..., Awaitable[Store]]]:
    """Opens stores on the test's database: as many as it wants, each with connections of its own."""
    opened: list[Store] = []

    async def open_another(env: Env = env) -> Store:
        store = Store(fresh_database.dsn, env, behind_pgbouncer=fresh_database.behind_pgbouncer)
        opened.append(store)
        await store.open(migrates=False)
        return store

    yield open_another
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[Store]]) -> Store:
    """A store on an empty database."""
    opened = await open_store()
    # A copy has its template's mark, and other tests have used up transactions since.
    async with opened.database.connection() as connection:
        await connection.execute("UPDATE timeball.fold SET seen = pg_current_snapshot()")
    return opened
