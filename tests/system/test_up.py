"""`timeball up` as a person runs it: in a terminal or a pipe, with handlers that do what handlers should not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.queues import free_port
from tests.system.cluster import LONG_LEASES, Cluster, eventually

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
        await eventually(lambda: '"event": "output.lost"' in reader.text, "it is told when there is somebody to tell")
    up.terminate()

    assert await up.exit_code(60) == 0
    assert cluster.value("SELECT count(*) FROM timeball.node") == 0
    cluster.verify()
