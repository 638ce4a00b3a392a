"""Connections that stop answering: waits are bounded, idle connections are discarded, and new ones are used at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import POSTGRES_PORT, ROLE
from tests.system.proxy import SOCKET, Proxy, proxy_to
from timeball.brokers.rabbitmq import _with_heartbeat
from timeball.domain.values.ids import Incarnation
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.db.database import Database, DatabaseTimeouts
from timeball.store.db.pool import IDLE_CONNECTIONS, tcp_parameters
from timeball.store.db.statements import all_statements, fast_statements
from timeball.store.db.url import DatabaseUrl, TcpOptions

servers = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
IMPATIENT = DatabaseTimeouts(fast_seconds=0.5, statement_seconds=30)


@pytest.fixture
def proxy(fresh_database: FreshDatabase, short_folder: Path) -> Iterator[Proxy]:
    with proxy_to(fresh_database.server.host, short_folder / "proxy") as started:
        yield started


@pytest.fixture
async def database(fresh_database: FreshDatabase, proxy: Proxy) -> AsyncIterator[Database]:
    opened = Database(proxy.dsn(fresh_database.name), Env(), pool_size=5, patience=IMPATIENT)
    await opened.open()
    yield opened
    await opened.close()


async def ask(database: Database) -> object:
    """A fast statement."""
    return await database.fetch("claim_keys", incarnation=Incarnation(database.env.new_id()))


async def ask_all_at_once(database: Database) -> list[object]:
    return await asyncio.gather(*(ask(database) for _ in range(5)), return_exceptions=True)


@servers
async def test_a_statement_without_reply_fails_in_time_and_the_next_uses_a_new_connection(
    database: Database, proxy: Proxy
) -> None:
    """Fault 41."""
    assert await ask_all_at_once(database) == [[]] * 5
    assert proxy.silence() >= IDLE_CONNECTIONS

    async with asyncio.timeout(20):
        failure = await asyncio.gather(ask(database), return_exceptions=True)
        # The idle connections were discarded as well: none of these statements waits in vain.
        assert await ask_all_at_once(database) == [[]] * 5
        assert [await ask(database) for _ in range(20)] == [[]] * 20

    assert isinstance(failure[0], StoreUnavailable)
    assert "no answer in time" in str(failure[0])


@servers
async def test_a_transaction_without_reply_is_abandoned_without_a_rollback(database: Database, proxy: Proxy) -> None:
    async def change() -> None:
        async with database.transaction() as connection:
            proxy.silence()
            await database.fetch("claim_keys", connection, incarnation=Incarnation(database.env.new_id()))

    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await change()
        assert await ask(database) == []


@servers
async def test_a_commit_without_reply_is_abandoned(database: Database, proxy: Proxy) -> None:
    async def change() -> None:
        async with database.transaction() as connection:
            await database.fetch("claim_keys", connection, incarnation=Incarnation(database.env.new_id()))
            proxy.silence()

    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await change()
        assert await ask(database) == []


@servers
async def test_a_slow_database_is_given_more_time_and_asked_to_cancel_abandoned_statements(
    database: Database, fresh_database: FreshDatabase
) -> None:
    """A lock simulates a busy server. The timeout doubles each time, so that a slow statement succeeds in the end."""
    waits: list[float] = []
    database._fast_seconds = _noting(database._fast_seconds, waits)  # type: ignore[method-assign]
    other = await Database(fresh_database.dsn, Env()).connect()
    await other.execute("INSERT INTO timeball.queue (name) VALUES ('narrow')")
    held = other.transaction()
    await held.start()
    await other.execute("SELECT FROM timeball.queue WHERE name = 'narrow' FOR UPDATE")

    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await database.fetch("lock_queue", queue="narrow")
        _let_time_pass(database)
    async with asyncio.timeout(20):
        while await _waiting_for_locks(other):
            await asyncio.sleep(0.02)
    await held.rollback()
    await database.fetch("lock_queue", queue="narrow")
    await ask(database)
    await other.close()

    assert waits == [0.5, 1, 2, 4, 0.5]


@servers
async def test_a_statement_that_alone_is_slow_is_given_more_time(
    database: Database, fresh_database: FreshDatabase
) -> None:
    """Others return at once in between. What ends an execution may have much to write that follows it."""
    waits: list[float] = []
    database._fast_seconds = _noting(database._fast_seconds, waits)  # type: ignore[method-assign]
    other = await Database(fresh_database.dsn, Env()).connect()
    await other.execute("INSERT INTO timeball.queue (name) VALUES ('narrow')")
    held = other.transaction()
    await held.start()
    await other.execute("SELECT FROM timeball.queue WHERE name = 'narrow' FOR UPDATE")

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await database.fetch("lock_queue", queue="narrow")
        _let_time_pass(database)
        await ask(database)
    await held.rollback()
    await database.fetch("lock_queue", queue="narrow")
    await database.fetch("lock_queue", queue="narrow")
    await other.close()

    assert waits == [0.5, 1, 1, 1, 2, 0.5]


def _let_time_pass(database: Database) -> None:
    """Concurrent timeouts count once; these are one after the other."""
    database._timeouts_in_a_row = {
        name: (timeouts, float("-inf")) for name, (timeouts, _) in database._timeouts_in_a_row.items()
    }


def _noting(asked: Any, waits: list[float]) -> Any:
    def ask(*name: str) -> float:
        waits.append(asked(*name))
        return waits[-1]

    return ask


async def _waiting_for_locks(connection: Any) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@servers
async def test_waiting_for_a_connection_ends_with_an_error(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeball.store.db.pool._WAIT_SECONDS", 0.2)

    async with asyncio.timeout(20):
        holders = [database.connection() for _ in range(5)]
        for holder in holders:
            await holder.__aenter__()
        with pytest.raises(StoreUnavailable):
            await ask(database)
        for holder in holders:
            await holder.__aexit__(None, None, None)


# fast statements


def test_every_fast_statement_exists_and_none_reads_a_whole_table() -> None:
    swift = fast_statements()

    assert swift <= all_statements().keys()
    assert {
        "claim",
        "claim_by_id",
        "finish_succeeded",
        "record_transitions",
        "promote",
        "unblock",
        "renew_lease",
    } <= swift
    assert not {name for name in swift if name.startswith(("verify_", "trim_", "rollup_", "fold"))}


# TCP settings


@asynccontextmanager
async def over_tcp(fresh_database: FreshDatabase) -> AsyncIterator[str]:
    """The address of a TCP port that forwards to the socket of the server."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(f"{fresh_database.server.host}/{SOCKET}")
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert port != POSTGRES_PORT
    yield f"postgresql://{ROLE}@127.0.0.1:{port}/{fresh_database.name}"
    server.close()


def watch_of(number: int) -> tuple[int, ...]:
    with socket.socket(fileno=number) as same:
        watched = (
            same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )
        same.detach()
        return watched


@servers
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [("", (1, 4, 2, 2, 8_000)), ("?keepalives_idle=77&tcp_user_timeout=9000&keepalives_count=5", (1, 77, 2, 5, 9_000))],
)
async def test_every_connection_has_the_tcp_settings_of_the_url_or_ours(
    fresh_database: FreshDatabase, parameters: str, expected: tuple[int, ...]
) -> None:
    async with over_tcp(fresh_database) as address:
        database = Database(address + parameters, Env(), pool_size=2)
        await database.open()
        async with database.connection() as pooled:
            assert watch_of(pooled._transport.get_extra_info("socket").fileno()) == expected
        own = await database.connect()
        assert watch_of(own._transport.get_extra_info("socket").fileno()) == expected
        await own.close()
        direct = await asyncio.to_thread(database.direct_connection)
        assert watch_of(direct._connection.fileno()) == expected
        direct.close()
        await database.close()


@servers
async def test_a_url_may_switch_keepalive_off(fresh_database: FreshDatabase) -> None:
    async with over_tcp(fresh_database) as address:
        database = Database(f"{address}?keepalives=0", Env())
        connection = await database.connect()
        assert watch_of(connection._transport.get_extra_info("socket").fileno())[0] == 0
        await connection.close()


def test_without_a_silence_limit_the_kernel_defaults_apply() -> None:
    assert tcp_parameters(TcpOptions(), 0) == {"keepalives": 1}
    assert tcp_parameters(DatabaseUrl.parse("postgresql://h/d?tcp_user_timeout=7").tcp, 0) == {
        "keepalives": 1,
        "tcp_user_timeout": 7,
    }


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h/", "amqp://h/?heartbeat=5"),
        ("amqp://h/v?timeout=3", "amqp://h/v?timeout=3&heartbeat=5"),
        ("amqp://h/?heartbeat=60", "amqp://h/?heartbeat=60"),
    ],
)
def test_rabbitmq_is_asked_for_more_heartbeats_than_its_default(url: str, expected: str) -> None:
    assert _with_heartbeat(url) == expected
