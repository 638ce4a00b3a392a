"""A disk that is full: clear errors, nothing given up, and all of it done once there is room again."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from tests.support.servers import ServiceMissing, give_up_on, wait_until
from tests.system.cluster import LONG_LEASES, Cluster, DurableServer, enqueue, make_server
from timeball.application.commands import Commands
from timeball.errors import StoreError

pytestmark = pytest.mark.slow

SIZE = "160m"
LARGE = 200_000
OFTEN_RENEWED = LONG_LEASES | {"TIMEBALL_SCHEDULER__RENEW_SECONDS": "0.5", "TIMEBALL_WORKER__RENEW_SECONDS": "0.5"}
RENEWALS = 20


class SmallDisk:
    """A PostgreSQL whose tables lie on a small volume; its log of changes lies elsewhere, as it should, or there too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._volume = folder / "volume"
        self._filler = self._volume / "filler"
        self.server: DurableServer

    def mount(self) -> None:
        self._volume.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=711", "tmpfs", self._volume],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode != 0:
            pytest.skip(f"a volume of its own can be mounted by root only: {mounted.stderr.strip()}")

    def start(self, *, holds_log: bool = False) -> None:
        self.server = make_server(self._volume / "pg")
        self.server._initialise()
        if not holds_log:
            self._move_log()
        self.server.start()

    def _move_log(self) -> None:
        changes = self.server.folder / "data" / "pg_wal"
        elsewhere = self._folder / "wal"
        shutil.move(changes, elsewhere)
        for path in (elsewhere, *elsewhere.rglob("*")):
            shutil.chown(path, self.server._account.uid, self.server._account.gid)
        changes.symlink_to(elsewhere)

    def fill(self) -> None:
        """Leave no space at all."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def use_up_log(self) -> None:
        """Write useless changes until the server cannot write any more, and stops."""
        wait_until(self._has_stopped, "the server stops", 60)

    def _has_stopped(self) -> bool:
        with suppress(psycopg.Error):
            self.server.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))")
        return not self.server.is_running

    def make_room(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self._volume], check=False, capture_output=True)


@pytest.fixture
def disk(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("a volume of its own can be mounted by root only")
    disk = SmallDisk(short_folder)
    disk.mount()
    try:
        disk.start(holds_log=getattr(request, "param", False))
        yield disk
        disk.server.stop()
    except ServiceMissing as error:
        give_up_on(error)
    finally:
        disk.unmount()


async def renewed_often(cluster: Cluster) -> None:
    """Wait until every node has renewed its lease so often that a page could not hold what that leaves behind."""
    ends: dict[str, set[datetime]] = {"scheduler": set(), "worker": set()}

    def is_often() -> bool:
        for kind, lease_until in cluster.sql("SELECT kind, lease_until FROM timeball.node"):
            ends[kind].add(lease_until)
        return all(len(seen) > RENEWALS for seen in ends.values())

    await cluster.eventually(is_often, "the leases are renewed on a full disk", 120)


async def enqueue_much(commands: Commands, ids: list[UUID]) -> None:
    for _ in range(1_000):
        ids.append(await enqueue(commands, "work", {"label": os.urandom(LARGE // 2).hex()}))


async def test_with_a_full_disk_nothing_is_lost_and_all_is_done_when_there_is_room(
    disk: SmallDisk, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 31."""
    cluster = make_cluster(disk.server.dsn(disk.server.create_database()), **OFTEN_RENEWED)
    scheduler, worker = await cluster.nodes(schedulers=1, workers=1)
    async with cluster.commands() as commands:
        ids = [await enqueue(commands, "large", {"gate": "a", "size": LARGE}) for _ in range(15)]
        await cluster.begins("a", len(ids))
        disk.fill()

        # Who wants to add something is told why not.
        with pytest.raises(StoreError, match="No space left on device"):
            await enqueue_much(commands, ids)
        # What has run cannot be written down, and is not forgotten.
        cluster.open_gate("a")
        failed = await worker.event("service.failed", 60, service="recorder")
        assert "No space left on device" in failed["error"]
        # Handlers go on to their end all the same, and no node loses its lease meanwhile, however long that lasts.
        await cluster.eventually(lambda: all(run.ended for run in cluster.ledger.runs("a")), "the handlers end")
        await renewed_often(cluster)
        assert cluster.live()["running"] >= 15
        disk.make_room()

        await worker.event("service.recovered", 60, service="recorder")
        after = await enqueue(commands, "work", {"label": "after"})
        ends = [await cluster.ends(id_, 60) for id_ in [*ids, after]]

    assert {(end["state"], end["attempts"], end["lost"]) for end in ends} == {("succeeded", 1, 0)}
    assert len(cluster.ledger.runs("a")) == 15
    assert not [*scheduler.events("node.lost"), *worker.events("node.lost"), *worker.events("stale_outcome")]
    cluster.check_books()


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_a_server_that_a_full_disk_stops_finds_all_outcomes_when_it_runs_again(
    disk: SmallDisk, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 31. The log of changes lies on the same volume, and PostgreSQL cannot go on without it."""
    cluster = make_cluster(disk.server.dsn(disk.server.create_database()), **LONG_LEASES)
    _, worker = await cluster.nodes(schedulers=1, workers=1)
    async with cluster.commands() as commands:
        ids = [await enqueue(commands, "large", {"gate": "a", "size": LARGE}) for _ in range(15)]
        await cluster.begins("a", len(ids))
        disk.fill()

        await asyncio.to_thread(disk.use_up_log)
        cluster.open_gate("a")
        await worker.event("service.failed", 60, service="recorder")
        disk.make_room()
        disk.server.start()

        ends = [await cluster.ends(id_, 60) for id_ in ids]

    assert {(end["state"], end["attempts"], end["lost"]) for end in ends} == {("succeeded", 1, 0)}
    assert len(cluster.ledger.runs("a")) == len(ids)
    assert not worker.events("node.lost")
    cluster.check_books()
