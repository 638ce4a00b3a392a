"""Reads over a store whose time the test moves; one kind of server is enough here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.application.commands import Commands
from timeball.application.queries import Queries
from timeball.config.settings import Settings
from timeball.runtime import make_server_runtime
from timeball.store.store import Store


@pytest.fixture
def fresh_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[FreshDatabase]:
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


@pytest.fixture
def commands(store: Store) -> Commands:
    return Commands(store, store.env)


@pytest.fixture
def queries(store: Store, commands: Commands) -> Queries:
    """All queries over the test's store."""
    return make_server_runtime(Settings(), store, commands).queries
