"""The servers of the tests themselves: they start, copy databases, restart and recover."""

from __future__ import annotations

import asyncpg

from tests.support.servers import PgBouncer, PostgresServer


def test_a_database_is_copied_from_its_template(postgres_server: PostgresServer) -> None:
    template = postgres_server.create_database()
    postgres_server.execute("CREATE TABLE mark AS SELECT 7 AS number", template)

    copy = postgres_server.create_database(template=template)

    assert postgres_server.execute("SELECT number FROM mark", copy) == [(7,)]


def test_a_server_comes_back_after_restart_and_kill(postgres_server: PostgresServer) -> None:
    name = postgres_server.create_database()
    postgres_server.execute("CREATE TABLE mark AS SELECT 8 AS number", name)

    postgres_server.restart()
    postgres_server.kill()
    postgres_server.start()

    assert postgres_server.execute("SELECT number FROM mark", name) == [(8,)]


async def test_pgbouncer_stands_in_front(pgbouncer: PgBouncer) -> None:
    name = pgbouncer.server.create_database()

    connection = await asyncpg.connect(pgbouncer.dsn(name), statement_cache_size=0)

    assert await connection.fetchval("SELECT current_database()") == name
    await connection.close()
