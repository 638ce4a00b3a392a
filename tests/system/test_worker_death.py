"""Workers that are killed, frozen, buried alive, or killed by what they run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.system.cluster import LONG_LEASES, SHORT_LEASES, Cluster, Process, enqueue, eventually
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Only the nodes that a test kills die here, however busy the machine; a node whose lease must expire has a short one."""
    cluster.environment |= LONG_LEASES
    return cluster


async def test_what_a_killed_worker_ran_is_lost_and_run_again_elsewhere(cluster: Cluster, commands: Commands) -> None:
    """Fault 4."""
    await cluster.nodes(schedulers=1, workers=2)
    # No retries: what is lost with a worker is not a failure of the job.
    execution = await enqueue(commands, "wait", {"gate": "a"}, max_retries=0)
    (first,) = await cluster.begins("a")

    killed = cluster.of_pid(first.pid)
    killed.kill()
    cluster.end_lease(killed)
    _, second = await cluster.begins("a", 2)
    cluster.open_gate("a")

    ended = await cluster.ends(execution)
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 2, 1)
    assert second.pid != first.pid
    assert (second.fence, second.attempt) == (2, 2)
    attempts = cluster.sql("SELECT fence, outcome, error_type FROM timeball.attempt")
    assert attempts == [(1, "lost", "WorkerLost")]
    cluster.check_books()


async def test_an_execution_that_may_run_once_only_ends_dead_with_its_worker(
    cluster: Cluster, commands: Commands
) -> None:
    await cluster.nodes(schedulers=1, workers=0)
    (worker,) = await cluster.nodes(0, 1, **SHORT_LEASES)
    execution = await enqueue(commands, "wait", {"gate": "a"}, delivery="at_most_once")
    await cluster.begins("a")

    worker.kill()
    await cluster.nodes(0, 1)

    ended = await cluster.ends(execution)
    assert (ended["state"], ended["lost"]) == ("dead", 1)
    assert len(cluster.ledger.runs("a")) == 1
    cluster.check_books()


async def test_a_child_process_does_not_outlive_its_worker(cluster: Cluster, commands: Commands) -> None:
    await cluster.nodes(schedulers=1, workers=0)
    (worker,) = await cluster.nodes(0, 1, **SHORT_LEASES)
    execution = await enqueue(commands, "isolated", {"gate": "a"})
    (first,) = await cluster.begins("a")
    assert first.pid != worker.pid

    worker.kill()
    await eventually(lambda: not Path(f"/proc/{first.pid}").exists(), "the child is gone")
    await cluster.nodes(0, 1)
    await cluster.begins("a", 2)
    cluster.open_gate("a")

    ended = await cluster.ends(execution)
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 2, 1)
    cluster.check_books()


async def test_a_job_that_kills_its_workers_ends_dead_and_its_neighbours_do_not(
    cluster: Cluster, commands: Commands
) -> None:
    """Fault 10."""
    await cluster.nodes(schedulers=1, workers=0)
    (worker,) = await cluster.nodes(0, 1, **SHORT_LEASES)
    neighbours = [await enqueue(commands, "wait", {"gate": "a"}, max_retries=0) for _ in range(3)]
    await cluster.begins("a", 3)

    poison = await enqueue(commands, "poison", {}, max_lost=2)
    for _ in range(2):
        assert await worker.exit_code() == -9
        (worker,) = await cluster.nodes(0, 1, **SHORT_LEASES)
    dead = await cluster.ends(poison)
    cluster.open_gate("a")
    ended = [await cluster.ends(neighbour) for neighbour in neighbours]

    assert (dead["state"], dead["lost"], dead["error_type"]) == ("dead", 2, "WorkerLost")
    assert "max_lost" in dead["reason"]
    assert [row["state"] for row in ended] == ["succeeded"] * 3
    assert all(row["lost"] == row["attempts"] - 1 for row in ended)
    cluster.check_books()


async def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing(cluster: Cluster, commands: Commands) -> None:
    """Fault 5."""
    await cluster.nodes(schedulers=1, workers=2)
    execution = await enqueue(commands, "wait", {"gate": "a"})
    (first,) = await cluster.begins("a")
    frozen = cluster.of_pid(first.pid)

    frozen.freeze()
    cluster.end_lease(frozen)
    _, second = await cluster.begins("a", 2)
    cluster.open_gate("a")
    accepted = await cluster.ends(execution)
    frozen.thaw()

    await frozen.event("node.lost")
    await frozen.event("node.started", count=2)
    assert (accepted["state"], accepted["fence"], accepted["lost"]) == ("succeeded", second.fence, 1)
    assert cluster.row(execution) == accepted
    await _is_of_use_again(cluster, commands, frozen)
    cluster.check_books()


async def _is_of_use_again(cluster: Cluster, commands: Commands, worker: Process) -> None:
    """In its new life the worker runs what the others have no room for."""
    for process in cluster.processes:
        if process is not worker and process.log.stem.startswith("worker"):
            process.terminate()
            await process.exit_code()
    again = await enqueue(commands, "work", {"label": "again"})
    assert (await cluster.ends(again))["state"] == "succeeded"
    assert [run.pid for run in cluster.ledger.runs("again")] == [worker.pid]


async def test_a_worker_that_wakes_after_its_lease_begins_nothing_of_what_it_held(
    cluster: Cluster, commands: Commands
) -> None:
    """Fault 21."""
    await cluster.nodes(1, 0, TIMEBALL_SCHEDULER__PROMOTION_WINDOW_MS="10000")
    (frozen,) = await cluster.nodes(0, 1, **SHORT_LEASES)
    # Far enough away that they are held before it comes, on a busy machine too.
    soon = datetime.now(UTC) + timedelta(seconds=8)
    executions = await commands.jobs.enqueue_many(JobSpec(handler="work", scheduled_at=soon), ['{"label": "a"}'] * 20)
    await eventually(lambda: cluster.live().get("running") == 20, "the worker holds them")

    frozen.freeze()
    await cluster.nodes(0, 1)
    for execution in executions:
        assert (await cluster.ends(execution))["state"] == "succeeded"
    frozen.thaw()
    await frozen.event("node.started", count=2)

    assert frozen.pid not in {run.pid for run in cluster.ledger.runs("a")}
    cluster.check_books()


async def test_an_outcome_that_comes_after_the_burial_is_refused_and_logged(
    cluster: Cluster, commands: Commands
) -> None:
    # It renews so seldom that it finishes its work before it hears of its death; its only slot is taken till then.
    # And it hears no hints, as behind PgBouncer: one that says that the nodes have changed would have it renew at once.
    """Fault 5."""
    seldom = {"TIMEBALL_WORKER__LEASE_SECONDS": "600", "TIMEBALL_WORKER__RENEW_SECONDS": "200"}
    buried = cluster.launch_worker("--slots", "1", **seldom, TIMEBALL_BEHIND_PGBOUNCER="true")
    execution = await enqueue(commands, "wait", {"gate": "a"})
    await cluster.begins("a")
    await cluster.nodes(schedulers=1, workers=1)

    cluster.sql("DELETE FROM timeball.node WHERE kind = 'worker' AND lease_seconds = 600")
    _, second = await cluster.begins("a", 2)
    cluster.open_gate("a")

    refused = await buried.event("stale_outcome")
    accepted = await cluster.ends(execution)
    assert (refused["handler"], refused["fence"]) == ("wait", 1)
    assert (accepted["state"], accepted["attempts"], accepted["lost"]) == ("succeeded", 2, 1)
    assert accepted["fence"] == second.fence > 1
    assert {run.was_cut for run in cluster.ledger.runs("a")} == {False}
    cluster.check_books()


# A node's name is its host and its process id, which a container gives to every process it starts.
SAME_NAME = """
import os, types, timeball.runtime
timeball.runtime.os = types.SimpleNamespace(**(vars(os) | {"getpid": lambda: 1}))
"""


async def test_a_worker_that_restarts_under_the_same_name_is_somebody_else(
    cluster: Cluster, commands: Commands
) -> None:
    """Fault 6."""
    await cluster.nodes(1, 0)
    execution = await enqueue(commands, "wait", {"gate": "a"}, max_lost=10)
    for life in (1, 2, 3):
        (worker,) = await cluster.nodes(0, 1, patch=SAME_NAME, **(SHORT_LEASES if life < 3 else {}))
        await cluster.begins("a", life)
        if life < 3:
            worker.kill()
    cluster.open_gate("a")

    ended = await cluster.ends(execution)
    names = {event["name"] for process in cluster.processes[1:] for event in process.events("node.started")}
    assert len(names) == 1
    assert (ended["state"], ended["attempts"], ended["lost"]) == ("succeeded", 3, 2)
    assert [run.fence for run in cluster.ledger.runs("a")] == [1, 2, 3]
    assert not worker.events("node.lost")
    cluster.check_books()
