"""`timeball up` as a person runs it: in a terminal, with handlers that do what handlers should not."""

from __future__ import annotations

import pytest

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
