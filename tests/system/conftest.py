"""Clusters of processes, ended with the test; when it fails, their last words are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from tests.system.cluster import SHORT_LEASES, Cluster, DurableServer, make_server
from timeball.application.commands import Commands


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    made = getattr(item, "funcargs", {}).get("make_cluster")
    if report.when == "call" and report.failed and isinstance(made, MakeCluster):
        for process in [process for cluster in made.clusters for process in cluster.processes]:
            report.sections.append((f"the end of {process.log}", process.tail()))
    return report


class MakeCluster:
    """Makes clusters, and knows which."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clusters: list[Cluster] = []

    def __call__(self, dsn: str | None, **environment: str) -> Cluster:
        self.clusters.append(Cluster(self._folder, dsn, **environment))
        return self.clusters[-1]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes the cluster of a test that has its own idea of a database."""
    make = MakeCluster(tmp_path)
    yield make
    for cluster in make.clusters:
        cluster.end()


@pytest.fixture
def database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[str]:
    """The address of a migrated, empty database."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield server.dsn(name)
    server.drop_database(name)


@pytest.fixture
def cluster(make_cluster: MakeCluster, database: str) -> Cluster:
    """Processes with short leases on a database of their own; none is started yet."""
    return make_cluster(database, **SHORT_LEASES)


@pytest.fixture
async def commands(cluster: Cluster) -> AsyncIterator[Commands]:
    """What a front would use."""
    async with cluster.commands() as opened:
        yield opened


@pytest.fixture
def durable_server(short_folder: Path) -> Iterator[DurableServer]:
    """A PostgreSQL of the test's own, which it may stop and kill."""
    try:
        server = make_server(short_folder / "pg")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    server.start()
    yield server
    server.stop()
