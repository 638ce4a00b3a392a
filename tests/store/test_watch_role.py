"""The SQL of docs/howto/watch.md, applied as it is: a watcher works with a role that may not write, and reads no more than it needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import Heard
from timeball.config.settings import Settings
from timeball.runtime import open_watcher

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "watch.md"
pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


class Role:
    """The role of the page; its name ends differently, because roles belong to the whole server."""

    def __init__(self, database: FreshDatabase) -> None:
        self.database = database
        self.name = f"{database.name}_watcher"
        self.statements = [
            text.replace("timeball_watcher", self.name).replace("DATABASE timeball", f"DATABASE {database.name}")
            for text in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
        ]
        self.dsn = urlsplit(database.dsn)._replace(netloc=f"{self.name}@").geturl()

    def sql(self, statement: str) -> None:
        self.database.server.execute(statement, self.database.name)

    async def run(self, statement: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture
def role(fresh_database: FreshDatabase) -> Iterator[Role]:
    made = Role(fresh_database)
    for statement in made.statements:
        made.sql(statement)
    yield made
    made.sql(f"DROP OWNED BY {made.name}")
    fresh_database.server.execute(f"DROP ROLE {made.name}")


async def kinds_seen(role: Role) -> set[str]:
    async with open_watcher(Settings(database_url=role.dsn), Heard()) as watcher, asyncio.timeout(60):
        return {fact.kind for fact in (await watcher.look_once()).facts}


async def test_a_watcher_looks_with_a_role_that_may_not_write(role: Role) -> None:
    assert await kinds_seen(role) == {"schedulers", "workers"}


async def test_the_role_of_a_watcher_cannot_write_even_where_it_may_read(role: Role) -> None:
    for statement in (
        "UPDATE timeball.queue SET max_running = 1",
        "DELETE FROM timeball.alert",
        "INSERT INTO timeball.channel SELECT * FROM timeball.channel",
        "DELETE FROM timeball.due",
        "SET default_transaction_read_only = off; DELETE FROM timeball.due",
        "CREATE TABLE timeball.mine ()",
    ):
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)):
            await role.run(statement)


async def test_the_role_of_a_watcher_reads_no_payloads_keys_or_secrets(role: Role) -> None:
    for table in (
        "job",
        "job_version",
        "api_key",
        "dashboard_session",
        "idempotency_key",
        "webhook",
        "audit",
        "log_line",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await role.run(f"SELECT * FROM timeball.{table}")


async def test_each_right_of_the_page_is_needed(role: Role) -> None:
    """What a migration or a change of a statement makes superfluous, the page is not to grant."""
    granted = re.findall(r"timeball\.(\w+)", role.statements[1].partition("api_key")[0])
    tables = [table for table in granted if table != "api_key"]

    superfluous = []
    for table in tables:
        role.sql(f"REVOKE SELECT ON timeball.{table} FROM {role.name}")
        if await kinds_seen(role) != {"unreachable"}:
            superfluous.append(table)
        role.sql(f"GRANT SELECT ON timeball.{table} TO {role.name}")

    assert len(tables) > 10
    assert not superfluous
