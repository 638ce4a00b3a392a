"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import PgBouncer, PostgresServer, Servers, ServiceMissing, give_up_on, running_servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The real servers of this test process, each started when first asked for."""
    with running_servers() as started:
        yield started


@pytest.fixture(params=["pg15", "pg18"])
def postgres_server(request: pytest.FixtureRequest, servers: Servers) -> PostgresServer:
    """A running PostgreSQL; the test runs on each kind, unless it parametrizes this fixture itself (`indirect`)."""
    try:
        return servers.postgres(request.param)
    except ServiceMissing as error:
        give_up_on(error)
        raise


@pytest.fixture
def pgbouncer(servers: Servers) -> PgBouncer:
    """PgBouncer in transaction mode in front of PostgreSQL 15."""
    try:
        return servers.pgbouncer("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
