"""Connections stay at hand, and nobody goes short of one, or gets one that is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import FreshDatabase
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.connections import Connections, _is_open
from timeball.store.database import Database

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

_BACKEND = "SELECT pg_backend_pid()"


@pytest.fixture
async def database(fresh_database: FreshDatabase) -> AsyncIterator[Database]:
    """A database that may have two connections."""
    opened = Database(fresh_database.dsn, Env(), pool_size=2)
    await opened.open()
    yield opened
    await opened.close()


async def ask(database: Database, question: str = _BACKEND) -> object:
    async with database.connection() as connection:
        return await connection.fetchval(question)


async def test_the_connection_used_last_is_used_again(database: Database) -> None:
    assert len({await ask(database) for _ in range(5)}) == 1


async def test_who_waits_gets_what_is_given_back(database: Database) -> None:
    """Ten want one of two: those at hand are not kept from them."""
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


async def test_a_statement_that_was_cut_off_leaves_nothing_to_the_next(database: Database) -> None:
    """Its connection goes through the pool, which waits until the server has given the statement up."""
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask(database, "SELECT pg_sleep(30)")
        assert await ask(database, "SELECT 'next'") == "next"


async def leave_in_the_middle(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("BEGIN; CREATE TABLE half_done (id integer)")
        raise RuntimeError("in the middle")


async def test_a_transaction_that_was_left_open_is_over(database: Database) -> None:
    with pytest.raises(RuntimeError, match="in the middle"):
        await leave_in_the_middle(database)
    async with database.connection() as connection:
        assert not connection.is_in_transaction()
        assert await connection.fetchval("SELECT to_regclass('half_done')::text") is None


async def test_a_database_closes_without_cutting_anybody_off(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off: list[Connections] = []
    monkeypatch.setattr(Connections, "terminate", cut_off.append)
    await ask(database)
    await database.close()
    assert not cut_off
    with pytest.raises(StoreUnavailable, match="not open"):
        await ask(database)
