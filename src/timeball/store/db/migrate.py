"""Apply and check migrations: numbered SQL, forward only.

The first process takes an advisory lock and applies the missing migrations, each in the same transaction as its entry. Others wait for the
lock and find the work done. A database that is newer than this program is an error, and stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import asyncpg

from timeball.errors import SchemaMismatch, StoreError
from timeball.store.db.pool import Connection, translated_errors

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# Any number that no other program uses: the bytes of "timeball".
_LOCK = int.from_bytes(b"timeball", "big") >> 1
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")

# Checked first: CREATE SCHEMA IF NOT EXISTS needs the right to create one, even if an administrator has created it.
_HAS_SCHEMA = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'timeball')"
_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS timeball.migration (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration."""

    number: int
    name: str
    text: str


@cache
def all_migrations() -> tuple[Migration, ...]:
    """The migrations of this program, in order."""
    return migrations_in(files("timeball.store") / "migrations")


def migrations_in(folder: Traversable) -> tuple[Migration, ...]:
    """The numbered files of *folder*, in order."""
    migrations = []
    for source in folder.iterdir():
        if match := _FILE.match(source.name):
            migrations.append(Migration(int(match[1]), match[2], source.read_text(encoding="utf-8")))
    return tuple(sorted(migrations, key=lambda migration: migration.number))


def newest_known() -> int:
    """The schema version of this program."""
    return all_migrations()[-1].number


async def migrate(database: Database, *, shards: int) -> list[Migration]:
    """Apply the missing migrations, and return them."""
    connection = await database.connect(without_timeout=True)
    try:
        with translated_errors(database.dsn):
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                applied = await _apply_missing(connection)
                await _fill_shards(connection, shards)
                return applied
    finally:
        await connection.close()


async def _apply_missing(connection: Connection) -> list[Migration]:
    present = await installed_version(connection)
    _refuse_newer(present)
    missing = [migration for migration in all_migrations() if migration.number > present]
    if missing:
        await _create_schema(connection)
        await connection.execute(_CREATE_TABLE)
    for migration in missing:
        await connection.execute(migration.text)
        await connection.execute(
            "INSERT INTO timeball.migration (number, name) VALUES ($1, $2)", migration.number, migration.name
        )
    return missing


async def _create_schema(connection: Connection) -> None:
    if await connection.fetchval(_HAS_SCHEMA):
        return
    try:
        async with connection.transaction():
            await connection.execute("CREATE SCHEMA timeball")
    except asyncpg.InsufficientPrivilegeError as error:
        role = await connection.fetchval("SELECT quote_ident(current_user)")
        raise StoreError(
            f"PostgreSQL refused to create the schema timeball: {error}; let an administrator of the database run: "
            f"CREATE SCHEMA timeball AUTHORIZATION {role}"
        ) from error


async def _fill_shards(connection: Connection, shards: int) -> None:
    await connection.execute(
        """
        INSERT INTO timeball.shard (id)
        SELECT number FROM generate_series(0, $1 - 1) AS number
        WHERE NOT EXISTS (SELECT 1 FROM timeball.shard)
        """,
        shards,
    )


async def check(connection: Connection) -> None:
    """Raise SchemaMismatch unless the database has the schema version of this program."""
    present = await installed_version(connection)
    _refuse_newer(present)
    if present < newest_known():
        raise SchemaMismatch(
            f"the database has schema {present}, this program needs {newest_known()}; run: timeball db migrate"
        )


async def installed_version(connection: Connection) -> int:
    """The schema version of the database; 0 without any."""
    try:
        async with connection.transaction():
            number = await connection.fetchval("SELECT max(number) FROM timeball.migration")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return 0
    return int(number or 0)


def _refuse_newer(present: int) -> None:
    if present > newest_known():
        raise SchemaMismatch(
            f"the database has schema {present}, this program knows only {newest_known()}; install a newer Timeball"
        )
