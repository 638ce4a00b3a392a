"""A disk that is full: clear errors, nothing given up, and all of it done once there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tests.servers import ServiceMissing, give_up_on
from tests.system.cluster import LONG_LEASES, Cluster, DurableServer, enqueue, make_server
from timeball.commands import Commands
from timeball.errors import StoreError

pytestmark = pytest.mark.slow

SIZE = "160m"
LARGE = 200_000


class SmallDisk:
    """A PostgreSQL whose tables lie on a small volume; its log of changes lies elsewhere, as it should."""

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

    def start(self) -> None:
        self.server = make_server(self._volume / "pg")
        self.server._initialise()
        changes = self.server.folder / "data" / "pg_wal"
        elsewhere = self._folder / "wal"
        shutil.move(changes, elsewhere)
        for path in (elsewhere, *elsewhere.rglob("*")):
            shutil.chown(path, self.server._account.uid, self.server._account.gid)
        changes.symlink_to(elsewhere)
        self.server.start()

    def fill(self) -> None:
        """Leave no room at all."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def make_room(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self._volume], check=False, capture_output=True)


@pytest.fixture
def disk(short_folder: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("a volume of its own can be mounted by root only")
    disk = SmallDisk(short_folder)
    disk.mount()
    try:
        disk.start()
        yield disk
        disk.server.stop()
    except ServiceMissing as error:
        give_up_on(error)
    finally:
        disk.unmount()


async def enqueue_much(commands: Commands, ids: list[UUID]) -> None:
    for _ in range(1_000):
        ids.append(await enqueue(commands, "work", {"label": os.urandom(LARGE // 2).hex()}))


async def test_with_a_full_disk_nothing_is_lost_and_all_is_done_when_there_is_room(
    disk: SmallDisk, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 31."""
    cluster = make_cluster(disk.server.dsn(disk.server.create_database()), **LONG_LEASES)
    _, worker = await cluster.nodes(schedulers=1, workers=1)
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
        disk.make_room()

        await worker.event("service.recovered", 60, service="recorder")
        after = await enqueue(commands, "work", {"label": "after"})
        ends = [await cluster.ends(id_, 60) for id_ in [*ids, after]]

    assert {(end["state"], end["attempts"], end["lost"]) for end in ends} == {("succeeded", 1, 0)}
    assert len(cluster.ledger.runs("a")) == 15
    cluster.check_books()
