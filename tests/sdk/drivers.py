"""Drivers through which a program writes in a transaction of its own, each as an open transaction."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


@dataclass
class Open:
    """An open transaction: the value for `connection=`, its commit and its rollback."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


# drivers that block


@contextmanager
def with_psycopg(dsn: str) -> Iterator[Open]:
    with psycopg.connect(dsn) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@contextmanager
def with_psycopg_of_other_tastes(dsn: str) -> Iterator[Open]:
    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@contextmanager
def engine_of(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=NullPool)
    yield engine
    engine.dispose()


@contextmanager
def with_sqlalchemy_connection(dsn: str) -> Iterator[Open]:
    with engine_of(dsn) as engine, engine.connect() as connection:
        yield Open(connection, connection.commit, connection.rollback)


@contextmanager
def with_sqlalchemy_session(dsn: str) -> Iterator[Open]:
    with engine_of(dsn) as engine, Session(engine) as session:
        yield Open(session, session.commit, session.rollback)


@contextmanager
def with_scoped_session(dsn: str) -> Iterator[Open]:
    with engine_of(dsn) as engine:
        session = scoped_session(sessionmaker(engine))
        yield Open(session, session.commit, session.rollback)
        session.remove()


DRIVERS = [
    with_psycopg,
    with_psycopg_of_other_tastes,
    with_sqlalchemy_connection,
    with_sqlalchemy_session,
    with_scoped_session,
]


# asynchronous drivers


@asynccontextmanager
async def transaction_of(connection: Any) -> AsyncIterator[Open]:
    transaction = connection.transaction()
    await transaction.start()
    yield Open(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def with_asyncpg(dsn: str) -> AsyncIterator[Open]:
    connection = await asyncpg.connect(dsn)
    async with transaction_of(connection) as transaction:
        yield transaction
    await connection.close()


@asynccontextmanager
async def with_asyncpg_and_codecs(dsn: str) -> AsyncIterator[Open]:
    connection = await asyncpg.connect(dsn)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
    async with transaction_of(connection) as transaction:
        yield transaction
    await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(dsn: str) -> AsyncIterator[Open]:
    async with (
        asyncpg.create_pool(dsn, min_size=1) as pool,
        pool.acquire() as connection,
        transaction_of(connection) as transaction,
    ):
        yield transaction


@asynccontextmanager
async def with_async_psycopg(dsn: str) -> AsyncIterator[Open]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_async_connection(dsn: str) -> AsyncIterator[Open]:
    async def connect() -> Any:
        return await asyncpg.connect(dsn)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.connect() as connection:
        yield Open(connection, connection.commit, connection.rollback)
    await engine.dispose()


@asynccontextmanager
async def with_async_session(dsn: str) -> AsyncIterator[Open]:
    async def connect() -> Any:
        return await asyncpg.connect(dsn)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Open(session, session.commit, session.rollback)
    await engine.dispose()


@asynccontextmanager
async def with_async_session_on_psycopg(dsn: str) -> AsyncIterator[Open]:
    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(dsn)

    engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Open(session, session.commit, session.rollback)
    await engine.dispose()


ASYNC_DRIVERS = [
    with_asyncpg,
    with_asyncpg_and_codecs,
    with_asyncpg_pool,
    with_async_psycopg,
    with_async_connection,
    with_async_session,
    with_async_session_on_psycopg,
]

every_driver = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
every_async_driver = pytest.mark.parametrize("driver", ASYNC_DRIVERS, ids=lambda driver: driver.__name__)

Driver = Callable[[str], AbstractContextManager[Open]]
AsyncDriver = Callable[[str], AbstractAsyncContextManager[Open]]
