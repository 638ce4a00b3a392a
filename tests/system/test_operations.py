"""An operation outlives the API process that works it off."""

from __future__ import annotations

import re
import signal

import pytest

from tests.system.cluster import Cluster, Process
from timeball import AsyncClient
from timeball.client.types import Operation

# A hundred are many here, and a process that is silent for two seconds is dead.
SMALL = """
from datetime import timedelta
import timeball.api.resources.operations, timeball.store.operations
timeball.api.resources.operations.MAX_INLINE = 100
timeball.store.operations.OPERATION_LEASE = timedelta(seconds=2)
"""
# It dies in the middle of its second batch, behind a retry that is committed and not yet written down.
DIES = """
import os, signal
from timeball.application.commands.bulk import OperationCommands
retry_once, done = OperationCommands.retry_once, []

async def retry_and_die(self, item, actor):
    await retry_once(self, item, actor)
    done.append(item)
    if len(done) == 70:
        os.kill(os.getpid(), signal.SIGKILL)

OperationCommands.retry_once = retry_and_die
"""


async def address_of(cluster: Cluster, api: Process) -> str:
    found = await cluster.eventually(
        lambda: re.search(r"http://127\.0\.0\.1:\d+", api.log.read_text()), "it listens", 60
    )
    assert found is not None
    return found[0]


@pytest.mark.slow
async def test_another_api_ends_what_a_killed_one_began_and_does_nothing_twice(cluster: Cluster) -> None:
    first = cluster.start("api", "--port", "0", patch=SMALL + DIES)
    async with AsyncClient(await address_of(cluster, first)) as doomed:
        made = await doomed.jobs.create_many([{"handler": "test.echo", "payload": {"n": n}} for n in range(120)])
        ids = [item.execution_id or "" for item in made.results]
        for some in (ids[:60], ids[60:]):
            await doomed.executions.bulk("cancel", ids=some)
        begun = await doomed.executions.bulk("retry", ids=ids, reason="again")
        assert isinstance(begun, Operation)

    assert await first.exit_code(60) == -signal.SIGKILL
    second = cluster.start("api", "--port", "0", patch=SMALL)
    async with AsyncClient(await address_of(cluster, second)) as survivor:
        ended = await survivor.operations.wait(begun.id, timeout=60)

        assert (ended.state, ended.done, ended.failed) == ("succeeded", 120, 0)
        retried = [run.retry_of async for run in survivor.executions.iterate(status="queued")]
        assert sorted(map(str, retried)) == sorted(ids)
