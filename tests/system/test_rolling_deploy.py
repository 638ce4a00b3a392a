"""Two versions of a program beside each other: no execution dies because the other version claimed it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.system.cluster import LONG_LEASES, Cluster, Process, enqueue
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

_HEAD = "from timeball import Timeball\n\ntb = Timeball()\n\n\n"
OLD = _HEAD + '@tb.handler(name="pay", retries=5)\ndef pay(order: int) -> str:\n    return f"old {order}"\n'
NEW = _HEAD + (
    '@tb.handler(name="pay", retries=5)\n'
    'def pay(order: int, currency: str = "EUR") -> str:\n    return f"new {order} {currency}"\n'
)
# A version that takes no payload of the old one.
STRICT = _HEAD + '@tb.handler(name="pay", retries=5)\ndef pay(currency: str) -> str:\n    return f"strict {currency}"\n'


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """No node is meant to be lost here, however busy the machine."""
    cluster.environment |= LONG_LEASES
    return cluster


async def start(cluster: Cluster, program: str, name: str) -> Process:
    """A worker with this version of the program, ready to claim."""
    folder: Path = cluster.folder / name
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(program)
    worker = cluster.start("worker", f"{name}:tb", PYTHONPATH=str(folder))
    await worker.event("node.started", kind="worker")
    return worker


async def stop(worker: Process) -> None:
    worker.terminate()
    assert await worker.exit_code() == 0


async def results(cluster: Cluster, executions: list[UUID]) -> list[str]:
    """What these executions returned, each at its first try; one that did not succeed fails the test."""
    found: list[str] = []
    for execution in executions:
        ended = await cluster.ends(execution, 60)
        assert (ended["state"], ended["attempts"]) == ("succeeded", 1), ended
        found.append(cluster.value("SELECT result #>> '{}' FROM timeball.finished WHERE id = %s", execution))
    return found


async def test_a_rolling_deploy_and_its_roll_back_kill_no_execution(cluster: Cluster, commands: Commands) -> None:
    cluster.launch_scheduler()
    old = await start(cluster, OLD, "old")
    assert await results(cluster, [await enqueue(commands, "pay", {"order": 1})]) == ["old 1"]

    new = await start(cluster, NEW, "new")
    mixed = [
        await enqueue(commands, "pay", {"order": number} | ({"currency": "CHF"} if number % 2 else {}))
        for number in range(40)
    ]
    done = await results(cluster, mixed)

    assert {done[number] for number in range(1, 40, 2)} == {f"new {number} CHF" for number in range(1, 40, 2)}
    assert all(done[number] in (f"old {number}", f"new {number} EUR") for number in range(0, 40, 2))

    # The old worker left the handler to the new one; when that one is gone, it takes it up again.
    await stop(new)
    await old.event("handler.resumed", 60)
    assert await results(cluster, [await enqueue(commands, "pay", {"order": 50})]) == ["old 50"]

    # A deploy again, and a roll-back: the old version is the newest now, and what the new one alone takes is left to it.
    new = await start(cluster, NEW, "new")
    again = await start(cluster, OLD, "again")
    both = [
        await enqueue(commands, "pay", {"order": 60}),
        await enqueue(commands, "pay", {"order": 61, "currency": "CHF"}),
    ]
    assert (await results(cluster, both))[1] == "new 61 CHF"
    await stop(new)
    assert await results(cluster, [await enqueue(commands, "pay", {"order": 70})]) == ["old 70"]
    orphan = await cluster.ends(await enqueue(commands, "pay", {"order": 71, "currency": "CHF"}), 60)
    assert (orphan["state"], orphan["attempts"]) == ("dead", 1)
    await stop(again)
    cluster.verify()


async def test_what_no_living_worker_takes_waits_for_the_newest_version(cluster: Cluster, commands: Commands) -> None:
    cluster.launch_scheduler()
    await start(cluster, OLD, "old")
    await stop(await start(cluster, NEW, "new"))

    waits = await enqueue(commands, "pay", {"order": 1, "currency": "CHF"})
    runs = await enqueue(commands, "pay", {"order": 2})

    assert await results(cluster, [runs]) == ["old 2"]
    await cluster.eventually(lambda: cluster.state(waits) == "scheduled", "it is given back")
    await start(cluster, NEW, "new")
    assert await results(cluster, [waits]) == ["new 1 CHF"]


async def test_what_only_old_workers_take_is_left_to_them_and_dies_with_the_last(
    cluster: Cluster, commands: Commands
) -> None:
    cluster.launch_scheduler()
    old = await start(cluster, OLD, "old")
    await start(cluster, STRICT, "strict")

    executions = [await enqueue(commands, "pay", {"order": number}) for number in range(6)]
    assert await results(cluster, executions) == [f"old {number}" for number in range(6)]

    await stop(old)
    ended = await cluster.ends(await enqueue(commands, "pay", {"order": 9}), 60)
    assert (ended["state"], ended["attempts"]) == ("dead", 1)
