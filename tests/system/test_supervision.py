"""Several processes as one: what dies is started again, and what ends, ends together."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.system.cluster import LONG_LEASES, Cluster, Process, enqueue, eventually
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

# Deaths are told and counted as ever, only sooner.
IMPATIENT = "from timeball.cli import supervisor\nsupervisor._FIRST_PAUSE = 0.05\nsupervisor._MAX_DEATHS = 3\n"
HURRIED = "from timeball.cli import supervisor\nsupervisor._KILL_AFTER_SECONDS = 1\n"


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pid_of_nodes(process: Process, life: int = -1) -> int:
    return int(process.events("node.started")[life]["name"].rpartition("/")[2])


def pid_of_api(process: Process) -> int:
    (found,) = set(children_of(process.pid)) - {pid_of_nodes(process)}
    return found


def address_of(process: Process) -> str:
    return str(process.events("api.started")[0]["address"])


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/v1/health/ready", timeout=5).is_success
    except httpx.TransportError:
        return False


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.fixture
async def up(cluster: Cluster) -> Process:
    process = cluster.start("up", "app:tb")
    await process.event("node.started", 60, count=2)
    return process


async def test_the_api_has_a_process_of_its_own_and_is_started_again_where_it_listened(
    cluster: Cluster, commands: Commands, up: Process
) -> None:
    address, killed = address_of(up), pid_of_api(up)
    assert answers(address)

    os.kill(killed, signal.SIGKILL)
    told = await up.event("process.restarted", process="api")
    await eventually(lambda: answers(address), "the API answers again", 60)

    assert (told["reason"], told["deaths"]) == ("was ended by SIGKILL", 1)
    assert pid_of_api(up) != killed
    assert (await cluster.ends(await enqueue(commands, "work")))["state"] == "succeeded"
    assert len(up.events("node.started")) == 2, "the nodes took no notice"
    up.terminate()
    assert await up.exit_code() == 0


async def test_nodes_that_were_killed_are_started_again_while_the_api_answers(
    cluster: Cluster, commands: Commands, up: Process
) -> None:
    address = address_of(up)
    lost = await enqueue(commands, "wait", {"gate": "a"})
    await cluster.begins("a")

    os.kill(pid_of_nodes(up), signal.SIGKILL)
    await up.event("node.started", 60, count=4)
    assert answers(address)
    cluster.open_gate("a")

    assert (await cluster.ends(lost, 60))["lost"] == 1
    assert up.events("process.restarted", process="nodes")
    await eventually(
        lambda: 'timeball_process_restarts_total{process="nodes"} 1.0' in httpx.get(f"{address}/metrics").text,
        "what the nodes count is shown by the API",
    )
    up.terminate()
    assert await up.exit_code() == 0
    cluster.check_books()


async def test_children_of_a_supervisor_that_was_killed_end_in_good_order(cluster: Cluster, up: Process) -> None:
    children = children_of(up.pid)
    assert len(children) == 2

    up.kill()

    await eventually(lambda: all(is_gone(pid) for pid in children), "they are gone")
    assert cluster.value("SELECT count(*) FROM timeball.node") == 0, "they took their leave"


@pytest.mark.parametrize("victim", [pid_of_nodes, pid_of_api], ids=["nodes", "API"])
async def test_what_dies_too_often_ends_everything_and_says_so(
    cluster: Cluster, victim: Callable[[Process], int]
) -> None:
    up = cluster.start("up", "app:tb", patch=IMPATIENT)
    await up.event("node.started", 60, count=2)

    for deaths in range(1, 4):
        pid = await eventually(lambda: len(children_of(up.pid)) == 2 and victim(up), "both run")
        os.kill(pid, signal.SIGKILL)
        if deaths < 3:
            await up.event("process.restarted", deaths=deaths)
            await eventually(lambda: answers(address_of(up)), "the API answers", 60)
            if victim is pid_of_nodes:
                await up.event("node.started", 60, count=2 * (deaths + 1))

    assert await up.exit_code() == 1
    assert re.search(r"timeball: the (nodes|api) process died 3 times within 300 s", up.text)
    assert "the last time it was ended by SIGKILL" in up.text


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("stop_the_loop", r"the event loop of this process was stopped by stop_the_loop \(.*app\.py:\d+\)"),
        ("cancel_everything", "all tasks of this process were cancelled"),
        ("exit_in_a_task", r"a task of this process called sys\.exit\(0\)"),
    ],
)
@pytest.mark.parametrize("arguments", [["up", "app:tb"], ["worker", "app:tb", "--processes", "2"]], ids=lambda a: a[0])
async def test_a_handler_that_ends_the_loop_is_named_and_the_process_is_started_again(
    cluster: Cluster, commands: Commands, arguments: list[str], handler: str, said: str
) -> None:
    process = cluster.start(*arguments)
    await process.event("node.started", 60, count=2)

    bad = await enqueue(commands, handler, max_lost=1)
    restarted = await process.event("process.restarted", 60)
    after = await enqueue(commands, "work", {"label": "after"})

    assert (await cluster.ends(after))["state"] == "succeeded"
    assert restarted["reason"] == "exited with code 1"
    assert re.search(f"timeball: {said}", process.text), process.tail()
    if arguments[0] == "up":
        assert (await cluster.ends(bad, 60))["state"] == "dead"
    process.terminate()
    assert await process.exit_code() == 0


async def test_a_worker_alone_whose_loop_was_stopped_says_so_and_fails(cluster: Cluster, commands: Commands) -> None:
    (worker,) = await cluster.nodes(0, 1)

    await enqueue(commands, "stop_the_loop")

    assert await worker.exit_code() == 1
    assert "was stopped by stop_the_loop" in worker.text


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_a_process_from_leaving(
    cluster: Cluster, commands: Commands
) -> None:
    (worker,) = await cluster.nodes(0, 1, TIMEBALL_WORKER__GRACE_SECONDS="1")
    await enqueue(commands, "ignore_cancellation")
    await cluster.begins("ignoring")

    worker.terminate()

    assert await worker.exit_code(60) == 0
    assert cluster.value("SELECT count(*) FROM timeball.node") == 0, "others may have what it ran"


async def test_a_loop_that_never_turns_again_does_not_keep_up_from_leaving(
    cluster: Cluster, commands: Commands
) -> None:
    cluster.environment |= LONG_LEASES
    up = cluster.start("up", "app:tb", patch=HURRIED)
    await up.event("node.started", 60, count=2)
    await enqueue(commands, "block", {"gate": "never"})
    await up.event("loop.blocked")

    up.terminate()
    # Signals that come together count as one.
    status = Path(f"/proc/{up.pid}/status")
    await eventually(lambda: "ShdPnd:\t0000000000000000" in status.read_text(), "it has heard the first")
    up.terminate()

    assert await up.exit_code() == 128 + signal.SIGKILL


async def test_a_port_that_is_taken_is_told_once_and_nothing_runs(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = cluster.start("up", "app:tb", TIMEBALL_PORT=str(taken.getsockname()[1]))
        assert await up.exit_code(60) == 2

    assert up.text.count("timeball: the API cannot listen on") == 1
    assert not up.events("node.started")


@pytest.mark.parametrize(
    ("reference", "environment", "said"),
    [
        ("absent:tb", {}, "absent"),
        ("app:tb", {"TIMEBALL_WORKER__SLOTS": "many"}, "many"),
        ("app:tb", {"TIMEBALL_DATABASE_URL": "postgresql://127.0.0.1:1/none"}, "cannot be reached"),
    ],
    ids=["no program", "a wrong setting", "no database"],
)
async def test_a_mistake_is_told_once(cluster: Cluster, reference: str, environment: dict[str, str], said: str) -> None:
    up = cluster.start("up", reference, **environment)

    assert await up.exit_code(60) not in (0, None)

    assert up.text.count("timeball: ") == 1, up.tail()
    assert said in up.text
    assert "Traceback" not in up.text


async def test_drained_nodes_end_up(cluster: Cluster, up: Process) -> None:
    cluster.sql("UPDATE timeball.node SET draining = true")

    assert await up.exit_code(60) == 0


async def test_ctrl_c_before_anything_runs_ends_it(cluster: Cluster) -> None:
    up = cluster.start("up", "app:tb", in_terminal=True, TIMEBALL_LOG_FORMAT="auto")
    await eventually(lambda: len(children_of(up.pid)) == 2, "it starts")

    up.press_ctrl_c()

    assert await up.exit_code() == 130
    assert "Traceback" not in up.text


async def test_a_worker_that_has_grown_too_large_drains_and_another_takes_its_place(
    cluster: Cluster, commands: Commands
) -> None:
    worker = cluster.start("worker", "app:tb", "--max-memory", "350MB")
    await worker.event("node.started", 60)
    before = pid_of_nodes(worker)

    grown = await enqueue(commands, "grow", {"megabytes": 400})
    told = await worker.event("worker.over_memory", 60)
    await worker.event("node.started", 60, count=2)

    assert told["allowed"] == "350MB"
    assert (await cluster.ends(grown))["state"] == "succeeded", "what it ran came to its end"
    assert pid_of_nodes(worker) != before
    assert not worker.events("process.restarted"), "that was no death"
    assert (await cluster.ends(await enqueue(commands, "work")))["state"] == "succeeded"
    worker.terminate()
    assert await worker.exit_code() == 0


async def test_a_whole_worker_may_run_its_handlers_in_children(cluster: Cluster, commands: Commands) -> None:
    worker = cluster.start("worker", "app:tb", "--isolate", "--runs-per-child", "1")
    await worker.event("node.started", 60)

    for _ in range(2):
        await cluster.ends(await enqueue(commands, "grow", {"megabytes": 1}))
    pids = {int(result) for (result,) in cluster.sql("SELECT result::text FROM timeball.finished")}

    assert len(pids) == 2
    assert worker.pid not in pids
    worker.terminate()
    assert await worker.exit_code() == 0


async def test_a_bound_that_a_worker_exceeds_from_the_start_is_refused(cluster: Cluster) -> None:
    worker = cluster.start("worker", "app:tb", "--max-memory", "20MB")

    assert await worker.exit_code() == 2
    assert "max_memory is 20MB, but this worker takes" in worker.text
