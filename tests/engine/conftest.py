"""PostgreSQL 15 is enough for the loops: what differs between servers is tested with the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import Heard
from tests.servers import PostgresServer, Servers, ServiceMissing, give_up_on


@pytest.fixture
def fresh_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[FreshDatabase]:
    """A database of the test's own."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


@pytest.fixture
def heard() -> Heard:
    """Every event that was emitted."""
    return Heard()
