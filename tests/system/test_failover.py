"""A failover that loses the last seconds: what survives is the truth, and everything in it comes to an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import ServiceMissing, give_up_on
from tests.system.cluster import LONG_LEASES, Cluster, enqueue
from tests.system.failover import Pair, running_pair
from timeball.domain.job_fields import JobSpec

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(short_folder: Path) -> Iterator[Pair]:
    try:
        with running_pair(short_folder) as pair:
            yield pair
    except ServiceMissing as error:
        give_up_on(error)


async def test_after_a_failover_that_loses_the_last_seconds_everything_in_the_surviving_history_ends(
    pair: Pair, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 19."""
    cluster = make_cluster(pair.dsn(pair.primary.create_database()), **LONG_LEASES)
    nodes = await cluster.nodes(schedulers=1, workers=2)
    async with cluster.commands() as commands:
        ticks = await commands.jobs.create(JobSpec(name="ticks", handler="work", interval_seconds=1, overlap="allow"))
        # It runs while the failover happens, and ends in the time that is lost.
        ended_in_vain = await enqueue(commands, "wait", {"gate": "a"})
        await cluster.begins("a")
        waiting = await enqueue(commands, "wait", {"gate": "b"})
        await cluster.begins("b")
        pair.catch_up()
        pair.cut_off_standby()

        cluster.open_gate("a")
        assert (await cluster.ends(ended_in_vain))["state"] == "succeeded"
        lost = await enqueue(commands, "work", {"label": "lost"})
        assert (await cluster.ends(lost))["state"] == "succeeded"
    pair.fail_over()

    # Its end was lost: by the surviving history it is running still, by a holder that is through with it.
    for node in nodes:
        told = await node.event("node.lost", 60)
        assert told["reason"] == "the database is another one, or was restored or promoted"
        await node.event("node.started", 60, count=2)
        # Its former node has a lease in the surviving history, which is never renewed.
        cluster.end_lease(node)
    cluster.open_gate("b")
    again = await cluster.ends(ended_in_vain, 60)
    other = await cluster.ends(waiting, 60)

    assert (again["state"], other["state"]) == ("succeeded", "succeeded")
    assert len(cluster.ledger.runs("a")) >= 2, "it was run again, as its loss in the database demands"
    assert cluster.sql("SELECT id FROM timeball.execution WHERE id = %s", lost) == []
    async with cluster.commands() as commands:
        await commands.jobs.pause(ticks.job_id)
    await cluster.drained()
    cluster.verify()
