"""`timeball up` as a person runs it: in a terminal or a pipe, with handlers that do what handlers should not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.broker_servers import free_port
from tests.support.servers import IN_CI
from tests.system.cluster import LONG_LEASES, Cluster, enqueue, eventually
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

BLOCKING = """
import time
from timeball import Timeball

tb = Timeball()

@tb.every("5s")
async def block():
    time.sleep(3)

@tb.every("1s")
async def neighbour():
    pass
"""


CHATTY = """
from timeball import Timeball

tb = Timeball()

@tb.every("1s")
async def chatter():
    for number in range(4000):
        print(f"{number:0100d}")

@tb.every("1s")
async def neighbour():
    pass
"""


def count(cluster: Cluster, handler: str) -> int:
    found: int = cluster.value(
        "SELECT count(*) FROM timeball.finished WHERE handler = %s AND state = 'succeeded'", f"app:{handler}"
    )
    return found


async def test_a_handler_that_blocks_the_loop_ends_nothing_in_a_terminal(cluster: Cluster) -> None:
    """Fault 8."""
    cluster.environment |= LONG_LEASES
    (cluster.folder / "app.py").write_text(BLOCKING)

    up = cluster.start("up", "app:tb", in_terminal=True, TIMEBALL_LOG_FORMAT="auto")
    await eventually(lambda: "loop.blocked" in up.text, "the block is told", 60)
    # The heart of a node that was told of a block beats on.
    told_at = cluster.value("SELECT now()")
    await eventually(
        lambda: cluster.value("SELECT min(renewed_at) FROM timeball.node") > told_at, "the leases are renewed"
    )
    before = count(cluster, "neighbour")
    await eventually(lambda: count(cluster, "neighbour") > before + 3, "other jobs run")
    await eventually(lambda: count(cluster, "block") >= 2, "it blocks again")
    up.press_ctrl_c()

    assert await up.exit_code() == 0
    assert "time.sleep(3)" in up.text
    assert "node.lost" not in up.text
    assert up.text.count("node.started") == 2
    assert "Traceback" not in up.text
    cluster.verify()


class Reader:
    """Reads a pipe only while it is told to."""

    def __init__(self) -> None:
        self.outlet, self.inlet = os.pipe()
        self.text = ""
        self._reading = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        self._reading.start()

    def _read(self) -> None:
        while found := os.read(self.outlet, 65536):
            self.text += found.decode(errors="replace")


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    os.close(made.inlet)


def lost_lines(address: str) -> bool:
    try:
        shown = httpx.get(f"{address}/metrics", timeout=5).text
    except httpx.TransportError:
        return False
    return any(line.startswith("timeball_output_lines_lost_total{") for line in shown.splitlines())


@pytest.mark.parametrize("target", ["blocked", "closed", "full"])
async def test_an_output_that_takes_nothing_costs_its_lines_and_nothing_else(
    cluster: Cluster, reader: Reader, target: str
) -> None:
    cluster.environment |= LONG_LEASES
    (cluster.folder / "app.py").write_text(CHATTY)
    address = f"http://127.0.0.1:{(port := free_port())}"
    output = os.open("/dev/full", os.O_WRONLY) if target == "full" else os.dup(reader.inlet)
    if target == "closed":
        os.close(reader.outlet)

    up = cluster.start("up", "app:tb", output=output, TIMEBALL_PORT=str(port))
    os.close(output)
    await eventually(lambda: lost_lines(address), "lines are lost and counted", 120)
    before, lost_at = count(cluster, "neighbour"), cluster.value("SELECT now()")
    await eventually(lambda: count(cluster, "neighbour") > before + 3, "jobs run")
    await eventually(
        lambda: cluster.value("SELECT min(renewed_at) FROM timeball.node") > lost_at, "the leases are renewed"
    )
    if target == "blocked":
        reader.begin()
        await eventually(
            lambda: '"event": "output.lost"' in reader.text, "the loss is reported once the output is read"
        )
    up.terminate()

    assert await up.exit_code(60) == 0
    assert cluster.value("SELECT count(*) FROM timeball.node") == 0
    cluster.verify()


def outcomes(cluster: Cluster) -> dict[tuple[str, str], int]:
    """How many executions of each handler ended how."""
    rows = cluster.sql("SELECT handler, state, count(*) FROM timeball.finished GROUP BY 1, 2")
    return {(handler, state): number for handler, state, number in rows}


# A handler that blocks the loop under a terminal has a test of its own, above.
@pytest.mark.parametrize(
    "in_terminal", [True, False] if IN_CI else [False], ids=lambda it: "in a terminal" if it else "in a pipe"
)
async def test_handlers_that_misbehave_harm_nothing_but_themselves(
    cluster: Cluster, commands: Commands, in_terminal: bool
) -> None:
    """MISBEHAVING_SECONDS=120 lets them do so for longer, and prints what came of it."""
    cluster.environment |= LONG_LEASES | {
        "TIMEBALL_WORKER__LEASE_SECONDS": "6",
        "TIMEBALL_SCHEDULER__LEASE_SECONDS": "6",
    }
    (cluster.folder / "app.py").write_text(Path(__file__).with_name("misbehaving.py").read_text())
    seconds = float(os.environ.get("MISBEHAVING_SECONDS", "15"))
    address = f"http://127.0.0.1:{(port := free_port())}"
    environment = {"TIMEBALL_LOG_FORMAT": "auto", "TIMEBALL_PORT": str(port)}

    up = cluster.start("up", "app:tb", in_terminal=in_terminal, **environment)
    await eventually(lambda: count(cluster, "neighbour") > 3 or not up.is_running, "it runs", 120)
    killer = await enqueue(commands, "app:kill_the_worker", max_lost=1)
    dead = await cluster.ends(killer, 120)
    began = time.monotonic()
    requested_at = cluster.value("SELECT now()")
    await eventually(lambda: time.monotonic() - began >= seconds, "they had their time", seconds + 60)
    before = count(cluster, "neighbour")
    await eventually(lambda: count(cluster, "neighbour") > before + 3, "the neighbour runs on", 60)
    said = {line["code"] for line in httpx.get(f"{address}/api/v1/doctor", timeout=60).json()["lines"]}
    troubles = {node["trouble"] for node in httpx.get(f"{address}/api/v1/workers", timeout=60).json()["data"]}
    page = httpx.get(f"{address}/", timeout=60)
    if in_terminal:
        up.press_ctrl_c()
    else:
        up.terminate()

    assert await up.exit_code(90) == 0, up.tail()
    ended = outcomes(cluster)
    late = cluster.value(
        "SELECT max(started_at - scheduled_for) FROM timeball.finished WHERE handler = 'app:neighbour' AND scheduled_for > %s",
        requested_at,
    )
    skipped = cluster.sql(
        "SELECT skip_range.* FROM timeball.skip_range JOIN timeball.job ON job.id = job_id WHERE job.name = 'neighbour'"
    )
    print(f"{seconds:g} s: {ended}; neighbour at most {late} late; {troubles}; {sorted(said)}")
    assert {state for handler, state in ended if handler == "app:neighbour"} == {"succeeded"}
    assert skipped == []
    assert (dead["state"], dead["lost"]) == ("dead", 1)
    assert ended["app:crash", "dead"] >= 3
    assert "process.restarted" in up.text
    assert "was ended by SIGKILL" in up.text
    assert "loop.blocked" in up.text
    assert "Traceback" not in up.text
    assert "trouble" in said
    assert any("its event loop stood still" in trouble for trouble in troubles)
    assert page.status_code == 200
    assert "its event loop stood still" in page.text
    cluster.verify()
