"""Handlers that do what handlers should not: block the event loop, or keep every statement waiting."""

from __future__ import annotations

import pytest

from tests.system.cluster import Cluster, enqueue, eventually
from timeball.commands import Commands

pytestmark = pytest.mark.slow

# A little longer than elsewhere: nobody is to lose it because the machine is busy.
LEASE_SECONDS = 4


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.environment["TIMEBALL_SCHEDULER__LEASE_SECONDS"] = str(LEASE_SECONDS)
    cluster.environment["TIMEBALL_WORKER__LEASE_SECONDS"] = str(LEASE_SECONDS)
    return cluster


async def test_a_handler_that_blocks_the_loop_does_not_cost_the_lease(cluster: Cluster, commands: Commands) -> None:
    """Fault 8."""
    _, worker = await cluster.nodes(schedulers=1, workers=1)

    execution = await enqueue(commands, "block", {"seconds": 2 * LEASE_SECONDS})
    blocked = await worker.event("loop.blocked")

    ended = await cluster.ends(execution)
    assert (ended["state"], ended["attempts"], ended["lost"], ended["fence"]) == ("succeeded", 1, 0, 1)
    assert "time.sleep(seconds)" in blocked["stack"]
    assert not worker.events("node.lost")
    assert len(worker.events("node.started")) == 1
    cluster.check_books()


async def test_statements_that_all_wait_do_not_cost_the_lease(cluster: Cluster, commands: Commands) -> None:
    """Fault 9."""
    scheduler, worker = await cluster.nodes(schedulers=1, workers=1, TIMEBALL_DATABASE_POOL="2")

    execution = await enqueue(commands, "hold_tables", {"seconds": 2 * LEASE_SECONDS})
    await eventually(lambda: any(line["what"] == "locked" for line in cluster.ledger.lines()), "the tables are locked")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'timeball'"
    await eventually(lambda: cluster.value(waiting) >= 2, "the statements of the nodes wait")

    await cluster.drained()
    ended = cluster.row(execution)
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 1, 0)
    assert not worker.events("node.lost")
    assert not scheduler.events("node.lost")
    cluster.check_books()
