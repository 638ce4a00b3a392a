"""Connections stay open; no caller waits for one in vain, or gets a broken one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import FreshDatabase
from timeball.domain.values.ids import Incarnation
from timeball.env import Env
from timeball.errors import SettingsError, StoreUnavailable
from timeball.store.db.database import Database
from timeball.store.db.notifier import Notifier
from timeball.store.db.pool import Connection, ConnectionPool, LeaseConfirmation, _is_open
from timeball.store.nodes import NodeStore

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

_BACKEND = "SELECT pg_backend_pid()"


@pytest.fixture
async def database(fresh_database: FreshDatabase) -> AsyncIterator[Database]:
    """A database with a pool of two connections."""
    opened = Database(fresh_database.dsn, Env(), pool_size=2)
    await opened.open()
    yield opened
    await opened.close()


async def ask(database: Database, question: str = _BACKEND) -> object:
    async with database.connection() as connection:
        return await connection.fetchval(question)


async def test_the_connection_used_last_is_used_again(database: Database) -> None:
    assert len({await ask(database) for _ in range(5)}) == 1


async def test_a_waiting_caller_gets_the_next_free_connection(database: Database) -> None:
    """Ten callers share two connections."""
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*(ask(database, "SELECT pg_sleep(0.01)::text") for _ in range(10)))
    assert len(answers) == 10
    async with asyncio.timeout(20), database.connection() as one, database.connection() as other:
        assert await one.fetchval(_BACKEND) != await other.fetchval(_BACKEND)


async def test_a_connection_that_the_server_closed_is_replaced(database: Database) -> None:
    async with database.connection() as killer:
        async with database.connection() as connection:
            victim = await connection.fetchval(_BACKEND)
        await killer.fetchval("SELECT pg_terminate_backend($1)", victim)
    async with asyncio.timeout(20):
        while _is_open(connection):
            await asyncio.sleep(0.01)
        async with database.connection() as one, database.connection() as other:
            assert victim not in {await one.fetchval(_BACKEND), await other.fetchval(_BACKEND)}


async def test_a_cancelled_statement_does_not_affect_the_next(database: Database) -> None:
    """The pool waits until the server has cancelled the statement."""
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask(database, "SELECT pg_sleep(30)")
        assert await ask(database, "SELECT 'next'") == "next"


@pytest.mark.parametrize("behind_pgbouncer", [True, False])
async def test_a_statement_on_a_direct_connection_is_one_transaction_behind_pgbouncer(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, *, behind_pgbouncer: bool
) -> None:
    """In transaction mode, different server connections could otherwise parse and execute it, and a heartbeat would fail."""
    database = Database(fresh_database.dsn, Env(), behind_pgbouncer=behind_pgbouncer)
    nodes = NodeStore(database, Notifier(database))
    run, held_together = database._run, []

    async def watched(connection: Connection, *arguments: Any) -> Any:
        held_together.append(connection.is_in_transaction())
        return await run(connection, *arguments)

    monkeypatch.setattr(database, "_run", watched)
    connection = await database.connect()
    await nodes.identity(connection)
    await nodes.renew(Incarnation(UUID(int=1)), 0, connection)
    await connection.close()

    assert held_together == [behind_pgbouncer] * 2


# leases


async def test_a_node_confirms_every_new_connection_before_its_use(database: Database) -> None:
    asked: list[int] = []

    async def confirm(connection: Connection) -> None:
        asked.append(connection.get_server_pid())

    context = LeaseConfirmation(confirm).context()
    in_its_name = [asyncio.create_task(ask(database), context=context.copy()) for _ in range(2)]
    first = await asyncio.gather(*in_its_name)
    again = [await asyncio.create_task(ask(database), context=context.copy()) for _ in range(5)]
    own = await asyncio.create_task(database.connect(), context=context.copy())

    assert set(again) <= set(first)
    assert sorted(asked) == sorted({*first, own.get_server_pid()}), "each once"
    await own.close()

    victims = set(first)
    async with database.connection() as one, database.connection() as other:
        for connection in (one, other):
            connection.terminate()
    fresh = await asyncio.create_task(ask(database), context=context.copy())

    assert fresh not in victims
    assert asked[-1] == fresh


async def test_tasks_without_a_lease_do_not_confirm_connections(database: Database) -> None:
    async def confirm(_connection: Connection) -> None:
        raise AssertionError("not in our name")

    LeaseConfirmation(confirm).context()

    assert await ask(database)


async def test_an_unconfirmed_connection_is_not_used_and_not_leaked(database: Database) -> None:
    async def refuse(_connection: Connection) -> None:
        raise StoreUnavailable("no lease")

    context = LeaseConfirmation(refuse).context()
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="no lease"):
            await asyncio.create_task(ask(database, "CREATE TABLE forbidden ()"), context=context.copy())
        with pytest.raises(StoreUnavailable, match="no lease"):
            await asyncio.create_task(database.connect(), context=context.copy())

    assert await ask(database, "SELECT to_regclass('forbidden')") is None
    assert await ask(database, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") <= 2


async def leave_in_the_middle(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("BEGIN; CREATE TABLE half_done (id integer)")
        raise RuntimeError("in the middle")


async def test_an_abandoned_transaction_is_rolled_back(database: Database) -> None:
    with pytest.raises(RuntimeError, match="in the middle"):
        await leave_in_the_middle(database)
    async with database.connection() as connection:
        assert not connection.is_in_transaction()
        assert await connection.fetchval("SELECT to_regclass('half_done')::text") is None


async def test_a_transaction_whose_commit_may_be_lost_is_not_repeated(database: Database) -> None:
    """The connection breaks during COMMIT: the caller looks up by key whether it was done."""
    tries = 0

    async def work(connection: Any) -> None:
        nonlocal tries
        tries += 1
        await connection.execute("CREATE TABLE done_or_not (id integer)")
        await cut_at_commit(database, connection)

    with pytest.raises(StoreUnavailable):
        await database.repeat(work)

    assert tries == 1


async def test_a_statement_whose_reply_was_lost_is_not_repeated(database: Database) -> None:
    points: list[str] = []

    def cut(point: str) -> None:
        points.append(point)
        if point.endswith("after_commit"):
            raise StoreUnavailable("the reply was lost")

    database.env.fault = cut
    with pytest.raises(StoreUnavailable):
        await database.fetch("remove_expired_nodes")

    assert points == ["remove_expired_nodes.before", "remove_expired_nodes.after_commit"]


async def cut_at_commit(database: Database, connection: Any) -> None:
    """Let the server close a connection while its COMMIT is on the way."""
    victim = connection.get_server_pid()
    async with database.connection() as killer:
        await killer.fetchval("SELECT pg_terminate_backend($1)", victim)


async def test_a_database_closes_after_running_statements(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off: list[ConnectionPool] = []
    monkeypatch.setattr(ConnectionPool, "terminate", cut_off.append)
    await ask(database)
    await database.close()
    assert not cut_off
    with pytest.raises(StoreUnavailable, match="not open"):
        await ask(database)


async def test_an_address_that_the_driver_cannot_use_is_a_wrong_setting_and_no_outage(database: Database) -> None:
    other = Database("postgresql://user:canary@127.0.0.1:9/none?sslmode=verify-ca", database.env)

    with pytest.raises(SettingsError, match="root certificate file") as refused:
        await other.open()

    assert "canary" not in str(refused.value)
