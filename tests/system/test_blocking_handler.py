"""Handlers that do what handlers should not: block the event loop, or keep every statement waiting."""

from __future__ import annotations

import pytest

from tests.system.cluster import Cluster, enqueue, eventually
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

# Much longer than what it is renewed in: it must not expire because the machine is busy.
LEASE_SECONDS = 8


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.environment["TIMEBALL_SCHEDULER__LEASE_SECONDS"] = str(LEASE_SECONDS)
    cluster.environment["TIMEBALL_WORKER__LEASE_SECONDS"] = str(LEASE_SECONDS)
    return cluster


async def outlived(cluster: Cluster) -> None:
    """Wait until all nodes have renewed their leases once more when those they have now would be over."""
    end = cluster.value("SELECT max(lease_until) FROM timeball.node")
    await eventually(lambda: cluster.value("SELECT min(renewed_at) FROM timeball.node") > end, "they live on", 60)


async def test_a_handler_that_blocks_the_loop_does_not_cost_the_lease(cluster: Cluster, commands: Commands) -> None:
    """Fault 8."""
    _, worker = await cluster.nodes(schedulers=1, workers=1)

    execution = await enqueue(commands, "block", {"gate": "a"})
    blocked = await worker.event("loop.blocked")
    await outlived(cluster)
    cluster.open_gate("a")

    ended = await cluster.ends(execution)
    assert (ended["state"], ended["attempts"], ended["lost"], ended["fence"]) == ("succeeded", 1, 0, 1)
    assert "in block" in blocked["stack"]
    assert not worker.events("node.lost")
    assert len(worker.events("node.started")) == 1
    cluster.check_books()


async def test_statements_that_all_wait_do_not_cost_the_lease(cluster: Cluster, commands: Commands) -> None:
    """Fault 9."""
    scheduler, worker = await cluster.nodes(schedulers=1, workers=1, TIMEBALL_DATABASE_POOL="2")

    execution = await enqueue(commands, "hold_tables", {"gate": "a"})
    await eventually(lambda: any(line["what"] == "locked" for line in cluster.ledger.lines()), "the tables are locked")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'timeball'"
    await eventually(lambda: cluster.value(waiting) >= 2, "the statements of the nodes wait")
    await outlived(cluster)
    cluster.open_gate("a")

    await cluster.drained()
    ended = cluster.row(execution)
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 1, 0)
    assert not worker.events("node.lost")
    assert not scheduler.events("node.lost")
    cluster.check_books()


async def test_a_handler_that_forks_harms_nobody(cluster: Cluster, commands: Commands) -> None:
    """Fault 12."""
    (worker,) = await cluster.nodes(0, 1)

    forked = [await enqueue(commands, f"fork_{where}") for where in ("on_the_loop", "in_a_thread", "isolated")]
    ends = [await cluster.ends(execution) for execution in forked]
    after = await cluster.ends(await enqueue(commands, "work", {"label": "after"}))

    assert [(ended["state"], ended["attempts"]) for ended in ends] == [("succeeded", 1)] * 3
    results = cluster.sql("SELECT result FROM timeball.finished WHERE id = ANY (%s)", forked)
    assert results == [([42, 70],)] * 3, "the one was told, the other ended"
    assert after["state"] == "succeeded"
    assert len(worker.events("node.started")) == 1
    assert not worker.events("stale_outcome")
    assert not cluster.sql("SELECT message FROM timeball.log_line WHERE message = 'from the copy'")
    cluster.check_books()
