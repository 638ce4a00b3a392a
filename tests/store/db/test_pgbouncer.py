"""Behind PgBouncer in transaction mode a session has a server connection for one transaction, and none between two messages."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.support.factories import make_node
from timeball.domain.search import ExecutionFilter, PageRequest
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store

pytestmark = pytest.mark.parametrize("fresh_database", ["pgbouncer"], indirect=True)


@pytest.fixture
def unprotected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were parsed outside of a transaction: another server connection may execute them."""
    found: list[str] = []
    execute = asyncpg.Connection._execute

    async def watched(connection: Any, query: str, *args: Any, **others: Any) -> Any:
        if not connection.is_in_transaction():
            found.append(query)
        return await execute(connection, query, *args, **others)

    monkeypatch.setattr(asyncpg.Connection, "_execute", watched)
    return found


async def test_a_heartbeat_on_its_own_connection_keeps_its_server_connection(
    store: Store, unprotected: list[str]
) -> None:
    incarnation = await make_node(store)
    connection = await store.database.connect()

    assert await store.nodes.renew(incarnation, 0, connection) is not None
    assert await store.nodes.identity(connection) is not None

    await connection.close()
    assert unprotected == []


async def test_no_statement_is_parsed_and_executed_by_different_server_connections(
    store: Store, unprotected: list[str]
) -> None:
    await store.database.notify("{}")
    await store._read_schema(checks=True)
    await store.history._drop_jobs("timeball.finished_default", 10)
    await ListingStore(store.database).executions(ExecutionFilter(), PageRequest())
    await store.nodes.list()

    assert unprotected == []
