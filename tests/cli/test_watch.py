"""`timeball watch --once`, its settings, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, run
from tests.conftest import FreshDatabase
from tests.support.factories import make_node
from timeball.domain.alerts import AlertEvaluation
from timeball.domain.node import NodeKind
from timeball.env import Env
from timeball.store.store import Store


async def bring_to_life(dsn: str) -> None:
    store = Store(dsn, Env())
    await store.open(migrates=False)
    for kind in NodeKind:
        await make_node(store, kind)
    scheduler = next(node for node in await store.nodes.list() if node.kind is NodeKind.SCHEDULER)
    await store.nodes.take_shards(scheduler.incarnation, range(store.shards))
    await store.alerts.reconcile(AlertEvaluation(await store.history.moment(), []))
    await store.close()


def test_a_dead_installation_ends_with_1_and_a_living_one_with_0(cli: Cli, fresh_database: FreshDatabase) -> None:
    dead = cli("watch", "--once")
    asyncio.run(bring_to_life(fresh_database.dsn))
    alive = cli("watch", "--once")

    assert dead.code == 1
    assert "critical\tschedulers\tschedulers: none is alive" in dead.out
    assert "start one: timeball scheduler" in dead.out
    assert (alive.code, alive.out) == (0, "all is well\n")


def test_the_embedded_server_is_not_started_by_a_watcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIMEBALL_DATA_DIR", str(tmp_path / "data"))

    done = run("watch", "--once")

    assert done.code == 1
    assert "the embedded PostgreSQL in" in done.out
    assert "does not run" in done.out
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("url", ["ftp://example.com/x", "example.com", "https://user:pw@example.com/x"])
def test_an_address_that_cannot_be_pinged_is_refused_and_not_repeated(cli: Cli, url: str) -> None:
    done = cli("watch", "--once", "--ping", url)

    assert done.code == 2
    assert "ping_url" in done.err
    assert "is not an address" in done.err
    assert url not in done.err
