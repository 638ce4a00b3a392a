"""Reads over a store whose time the test moves; one kind of server is enough here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import FreshDatabase
from tests.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.commands import Commands
from timeball.insights import Insights
from timeball.settings import Settings
from timeball.store.postgres import Store
from timeball.wiring import front_parts


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
def insights(store: Store, commands: Commands) -> Insights:
    """Every read there is, over the test's store."""
    return front_parts(Settings(), store, commands).insights
