"""The SQL of docs/howto/database-roles.md, applied as it is: each process works with its own role, which permits no more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from tests.support.servers import VERSIONS, PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.api.app import make_api
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings
from timeball.env import Env
from timeball.handlers.registry import Registry, make_handler
from timeball.runtime import make_server_runtime, make_supervisor, open_runtime
from timeball.store.types import AuditEntry
from timeball.telemetry.events import ignore

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "database-roles.md"
ROLES = ("owner", "worker", "api", "reader")


class Roles:
    """A database with the four roles; their names end differently, because roles belong to the whole server."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.database = server.create_database()
        self.before, self.after = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)

    def name(self, role: str) -> str:
        return f"{self.database}_{role}"

    def dsn(self, role: str) -> str:
        parts = urlsplit(self.server.dsn(self.database))
        return parts._replace(netloc=f"{self.name(role)}@").geturl()

    def here(self, statements: str) -> str:
        """The page's SQL, for this database."""
        own = re.sub(r"\btimeball_(owner|worker|api|reader)\b", lambda found: self.name(found[1]), statements)
        return own.replace("DATABASE timeball", f"DATABASE {self.database}")

    async def run(self, statements: str, role: str | None = None) -> None:
        connection = await asyncpg.connect(self.server.dsn(self.database) if role is None else self.dsn(role))
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    def settings(self, role: str) -> Settings:
        return Settings(database_url=self.dsn(role), migrate=role == "owner", shards=4)

    def drop(self) -> None:
        self.server.drop_database(self.database)
        for role in ROLES:
            self.server.execute(f"DROP ROLE IF EXISTS {self.name(role)}")


@pytest.fixture(params=VERSIONS)
def roles(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Roles]:
    try:
        server = servers.postgres(request.param)
    except ServiceMissing as error:
        give_up_on(error)
        raise
    made = Roles(server)
    yield made
    made.drop()


async def prepared(roles: Roles) -> None:
    await roles.run(roles.here(roles.before))
    async with open_runtime(roles.settings("owner")):
        pass
    # Twice: the page says that it can be repeated.
    for _ in range(2):
        await roles.run(roles.here(roles.after), "owner")


async def test_each_process_does_its_work_with_its_own_role(roles: Roles) -> None:
    await prepared(roles)
    registry = Registry()
    said: list[str] = []

    async def greet(name: str) -> str:
        said.append(name)
        return f"hello {name}"

    registry.add(make_handler(greet, name="greet"))

    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(open_runtime(roles.settings("owner"), Env()))
        worker = await stack.enter_async_context(open_runtime(roles.settings("worker"), Env()))
        api = await stack.enter_async_context(open_runtime(roles.settings("api"), Env()))
        front = make_server_runtime(roles.settings("api"), api.store, api.commands)
        _, key = await front.keys.create("admin", "first", None, AuditEntry("test"))
        nodes = [
            make_supervisor(scheduler, ignore, with_scheduler=True),
            make_supervisor(worker, ignore, registry=registry, with_worker=True),
        ]
        running = [asyncio.ensure_future(node.run()) for node in nodes]
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        client = httpx.AsyncClient(
            transport=InProcessTransport(make_api(front)),
            base_url="http://localhost/api/v1",
            headers=headers,
            timeout=60,
        )
        async with client, asyncio.timeout(120):
            wishes = (
                {"handler": "greet", "payload": {"name": "now"}},
                {"name": "often", "handler": "greet", "payload": {"name": "often"}, "interval_seconds": 1},
            )
            for wish in wishes:
                assert (await client.post("/jobs", json=wish)).status_code == 201
            while len({"now", "often"} & set(said)) < 2:
                await asyncio.sleep(0.05)
            while (await client.get("/executions", params={"status": "succeeded"})).json()["data"] == []:
                await asyncio.sleep(0.05)
            assert (await client.post("/jobs/often/pause", json={"reason": "enough"})).status_code == 200
            assert (await client.get("/audit")).json()["data"][0]["action"] == "job.pause"
            template = {"name": "t", "job": {"handler": "greet", "payload": {"name": "again"}}}
            assert (await client.post("/templates", json=template)).status_code == 201
            cancelled = await client.post("/executions/bulk", json={"action": "cancel", "filter": {"queue": "default"}})
            assert cancelled.status_code < 300
        for node in nodes:
            node.stop()
        await asyncio.gather(*running)

    reading = await asyncpg.connect(roles.dsn("reader"))
    assert await reading.fetchval("SELECT count(*) FROM timeball.execution WHERE state = 'succeeded'") >= 2
    await reading.close()


DENIED = [
    ("worker", "SELECT * FROM timeball.api_key"),
    ("worker", "INSERT INTO timeball.api_key SELECT * FROM timeball.api_key"),
    ("worker", "SELECT * FROM timeball.dashboard_session"),
    ("worker", "SELECT * FROM timeball.dashboard_secret"),
    ("worker", "UPDATE timeball.audit SET actor = 'somebody else'"),
    ("worker", "DELETE FROM timeball.audit"),
    ("worker", "DELETE FROM timeball.template"),
    ("worker", "DROP TABLE timeball.job"),
    ("worker", "CREATE TABLE timeball.mine ()"),
    ("api", "UPDATE timeball.audit SET actor = 'somebody else'"),
    ("api", "DELETE FROM timeball.audit"),
    ("api", "TRUNCATE timeball.audit"),
    ("api", "DELETE FROM timeball.migration"),
    ("api", "DROP SCHEMA timeball CASCADE"),
    ("api", "CREATE SCHEMA mine"),
    ("api", "CREATE TABLE timeball.mine ()"),
    ("reader", "SELECT * FROM timeball.api_key"),
    ("reader", "SELECT * FROM timeball.idempotency_key"),
    ("reader", "DELETE FROM timeball.job"),
    ("reader", "UPDATE timeball.queue SET max_running = 1"),
    ("owner", "CREATE ROLE another"),
    ("owner", "COPY timeball.queue TO PROGRAM 'true'"),
]


async def test_no_role_may_do_more(roles: Roles) -> None:
    await prepared(roles)

    for role, statement in DENIED:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await roles.run(statement, role)
