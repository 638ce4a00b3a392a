"""PostgreSQL 15 is enough for the loops: what differs between servers is tested with the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import IMMORTAL, Heard, ManualRunner, registry
from tests.support.factories import HANDLER
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.config.settings import WorkerSettings
from timeball.domain.execution import Succeeded
from timeball.domain.handler import RunStyle
from timeball.domain.node import Node, NodeKind
from timeball.domain.values.ids import Incarnation
from timeball.engine.worker.node import WorkerNode
from timeball.env import Env
from timeball.store.store import Store


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


@pytest.fixture
async def worker_node(store: Store, env: Env, heard: Heard) -> AsyncIterator[WorkerNode]:
    """A worker with quick handlers and the usual settings; not started yet."""
    made = node_factory(store, env, heard)
    yield made
    await made._cut_services()
    made.heartbeat.stop()


def node_factory(store: Store, env: Env, heard: Heard) -> WorkerNode:
    """A worker like all others of its kind."""
    settings = WorkerSettings()
    node = Node(
        incarnation=Incarnation(env.new_id()),
        kind=NodeKind.WORKER,
        name="n",
        lease=IMMORTAL,
        slots=settings.slots,
        handlers=(HANDLER,),
    )
    runners = {RunStyle.COROUTINE: ManualRunner(Succeeded("7"))}
    return WorkerNode(env, heard, store, node, settings, registry(), runners)


@pytest.fixture
def make_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[Callable[[], str]]:
    """Makes empty databases, each for one run."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    made: list[str] = []

    def make() -> str:
        # Its predecessor has been closed; hundreds of them would not fit on a small disk.
        while made:
            server.drop_database(made.pop())
        made.append(server.create_database(template_of(server)))
        return server.dsn(made[-1])

    yield make
    for name in made:
        server.drop_database(name)
