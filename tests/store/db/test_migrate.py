"""Migrations: applied once by any number of concurrent starts, checked, and never by an older program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.servers import PostgresServer, wait_until
from timeball.env import Env
from timeball.errors import SchemaMismatch, StoreError, StoreUnavailable
from timeball.store.db.database import Database
from timeball.store.db.migrate import all_migrations, check, installed_version, migrate, migrations_in, newest_known
from timeball.store.db.url import DatabaseUrl
from timeball.store.store import Store

_INSERT_JOB = """
    INSERT INTO timeball.job (id, name, handler, payload, kind, scheduled_at, queue, priority, max_retries, max_lost, initial_backoff_ms,
                              max_backoff_ms, at_most_once, shard, version, created_at, updated_at)
    VALUES (gen_random_uuid(), $1, 'work', '{}', 'once', now(), 'default', $2, 3, 3, 1000, 1000, false, 0, 1, now(), now())
"""


@pytest.fixture
def empty_database(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create_database()
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
def plain_role(postgres_server: PostgresServer, empty_database: str) -> Iterator[str]:
    """A role that may create nothing in a database."""
    role = f"plain_{os.getpid()}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN")
    yield role
    postgres_server.execute(f"DROP OWNED BY {role} CASCADE", str(DatabaseUrl.parse(empty_database).database))
    postgres_server.execute(f"DROP ROLE {role}")


@pytest.fixture
def database(empty_database: str) -> Database:
    return Database(empty_database, Env())


class Releases:
    """Later releases of this program, with further migrations."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch
        for migration in all_migrations():
            self._write(f"{migration.number:04}_{migration.name}.sql", migration.text)

    def add(self, name: str, text: str) -> None:
        self._write(name, text)
        known = migrations_in(self._folder)
        self._patch.setattr("timeball.store.db.migrate.all_migrations", lambda: known)

    def take_back(self) -> None:
        self._patch.undo()

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[Releases]:
    with pytest.MonkeyPatch.context() as patch:
        yield Releases(tmp_path, patch)


async def pretend_newer(database: Database) -> None:
    connection = await database.connect()
    await connection.execute("INSERT INTO timeball.migration (number, name) VALUES (9000, 'from the future')")
    await connection.close()


async def test_ten_concurrent_starts_apply_each_migration_once(empty_database: str) -> None:
    databases = [Database(empty_database, Env()) for _ in range(10)]

    applied = await asyncio.gather(*(migrate(database, shards=8) for database in databases))

    assert sorted(len(each) for each in applied) == [0] * 9 + [len(all_migrations())]
    connection = await databases[0].connect()
    numbers = [row["number"] for row in await connection.fetch("SELECT number FROM timeball.migration")]
    assert numbers == [migration.number for migration in all_migrations()]
    assert await connection.fetchval("SELECT count(*) FROM timeball.shard") == 8
    await connection.close()


async def test_a_schema_that_an_administrator_created_is_enough(
    postgres_server: PostgresServer, plain_role: str, empty_database: str
) -> None:
    database = Database(empty_database.replace("//timeball@", f"//{plain_role}@"), Env())

    with pytest.raises(StoreError, match=f"CREATE SCHEMA timeball AUTHORIZATION {plain_role}"):
        await migrate(database, shards=8)
    postgres_server.execute(f"CREATE SCHEMA timeball AUTHORIZATION {plain_role}", str(database.url.database))
    applied = await migrate(database, shards=8)

    assert len(applied) == len(all_migrations())
    store = Store(database.dsn, Env())
    await store.open(migrates=True)
    await store.close()


async def test_a_second_run_changes_nothing_not_even_the_number_of_shards(database: Database) -> None:
    await migrate(database, shards=8)

    assert await migrate(database, shards=16) == []

    connection = await database.connect()
    await check(connection)
    assert await connection.fetchval("SELECT count(*) FROM timeball.shard") == 8
    await connection.close()


async def test_a_release_applies_only_its_own_migrations_and_the_one_before_it_is_refused(
    database: Database, releases: Releases
) -> None:
    await migrate(database, shards=8)

    releases.add("0002_shelf.sql", "ALTER TABLE timeball.job ADD COLUMN shelf text;")
    releases.add("0003_shelved.sql", "CREATE INDEX job_shelved ON timeball.job (shelf);")
    with pytest.raises(SchemaMismatch, match="has schema 1, this program needs 3; run: timeball db migrate"):
        await Store(database.dsn, Env()).open(migrates=False)
    applied = await migrate(database, shards=8)

    assert [(migration.number, migration.name) for migration in applied] == [(2, "shelf"), (3, "shelved")]
    connection = await database.connect()
    await check(connection)
    rows = await connection.fetch("SELECT number, name FROM timeball.migration ORDER BY number")
    assert [tuple(row) for row in rows] == [(1, "initial"), (2, "shelf"), (3, "shelved")]
    await connection.close()
    releases.take_back()
    with pytest.raises(SchemaMismatch, match="has schema 3, this program knows only 1; install a newer Timeball"):
        await migrate(database, shards=8)


async def test_migrations_before_a_failing_one_are_rolled_back_too(database: Database, releases: Releases) -> None:
    await migrate(database, shards=8)
    releases.add("0002_shelf.sql", "ALTER TABLE timeball.job ADD COLUMN shelf text;")
    releases.add("0003_broken.sql", "CREATE INDEX job_shelved ON timeball.job (shelfs);")

    with pytest.raises(StoreError, match='column "shelfs" does not exist'):
        await migrate(database, shards=8)

    connection = await database.connect()
    assert await installed_version(connection) == 1
    columns = await connection.fetch("SELECT attname FROM pg_attribute WHERE attrelid = 'timeball.job'::regclass")
    assert "shelf" not in {row["attname"] for row in columns}
    await connection.close()


async def test_the_rules_of_jobs_are_one_constraint_that_every_update_checks(database: Database) -> None:
    await migrate(database, shards=8)
    connection = await database.connect()
    await connection.execute(_INSERT_JOB, None, 50)

    rules = "SELECT conname, contype::text FROM pg_constraint WHERE contype IN ('c', 'x') AND conrelid = 'timeball.job'::regclass"
    assert [tuple(row) for row in await connection.fetch(rules)] == [("job_is_sound", "x")]
    # An update of no indexed column, which an index over some columns would not check.
    for broken in ("priority = 101", "max_lost = 0", "scheduled_at = NULL"):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"UPDATE timeball.job SET {broken}")
    await connection.close()


async def test_a_rule_of_jobs_is_added_by_its_name(database: Database, releases: Releases) -> None:
    await migrate(database, shards=8)
    connection = await database.connect()
    await connection.execute(_INSERT_JOB, "before", 50)
    releases.add(
        "0002_no_haste.sql", "ALTER DOMAIN timeball.sound_job ADD CONSTRAINT no_haste CHECK ((VALUE).priority <= 60);"
    )

    await migrate(database, shards=8)

    # A session that has prepared the rules before uses the new one.
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await connection.execute(_INSERT_JOB, "after", 61)
    assert refused.value.constraint_name == "no_haste"
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("UPDATE timeball.job SET priority = 61")
    await connection.execute(_INSERT_JOB, "after", 60)
    await connection.close()


async def test_a_migration_can_check_a_new_rule_against_the_jobs_that_are_there(
    database: Database, releases: Releases
) -> None:
    await migrate(database, shards=8)
    connection = await database.connect()
    await connection.execute(_INSERT_JOB, "before", 61)
    releases.add(
        "0002_no_haste.sql",
        """
        ALTER DOMAIN timeball.sound_job ADD CONSTRAINT no_haste CHECK ((VALUE).priority <= 60);
        REINDEX INDEX timeball.job_is_sound;
        """,
    )

    with pytest.raises(Exception, match='violates check constraint "no_haste"'):
        await migrate(database, shards=8)
    await connection.execute("UPDATE timeball.job SET priority = 60")
    await migrate(database, shards=8)

    assert await installed_version(connection) == 2
    await connection.close()


async def test_a_newer_schema_is_left_alone_and_reported(database: Database) -> None:
    await migrate(database, shards=8)
    await pretend_newer(database)

    expected = f"the database has schema 9000, this program knows only {newest_known()}; install a newer Timeball"
    with pytest.raises(SchemaMismatch, match=expected):
        await migrate(database, shards=8)
    with pytest.raises(SchemaMismatch, match=expected):
        await Store(database.dsn, Env()).open(migrates=False)


async def test_an_older_schema_is_reported_to_need_a_migration(
    empty_database: str, postgres_server: PostgresServer
) -> None:
    with pytest.raises(SchemaMismatch, match=r"has schema 0, this program needs \d+; run: timeball db migrate"):
        await Store(empty_database, Env()).open(migrates=False)

    # A refused store keeps no connection.
    wait_until(lambda: not sessions_of(postgres_server, empty_database), "its connections are gone")


def sessions_of(server: PostgresServer, dsn: str) -> int:
    name = dsn.split("?")[0].rsplit("/", 1)[1]
    ((number,),) = server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'")
    return int(number)


async def test_a_failing_migration_is_rolled_back(database: Database) -> None:
    connection = await database.connect()
    await connection.execute("CREATE SCHEMA timeball; CREATE TABLE timeball.due (id integer)")

    with pytest.raises(Exception, match='relation "due" already exists'):
        await migrate(database, shards=8)

    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'timeball'")
    assert [row["tablename"] for row in tables] == ["due"]
    await connection.close()


async def test_a_missing_server_is_reported_as_unreachable(postgres_server: PostgresServer) -> None:
    nowhere = Database(postgres_server.dsn().replace(postgres_server.host.rsplit("/", 1)[1], "nowhere"), Env())

    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        await migrate(nowhere, shards=8)
