"""Where a question is asked: one durable PostgreSQL for all of them, a fresh database for each system."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from bench.notebook import RATE, Notebook, Unit
from bench.system import System
from bench.warm_up import warm_up
from timeball.config.settings import load_settings
from timeball.runtime import open_runtime
from timeball.store.embedded.data_directory import SYSTEM_DIRECTORY
from timeball.store.embedded.server import EmbeddedServer

Variant = Callable[[], Awaitable[float]]
_TEMPLATE = "bench_template"


class Lab:
    """Gives a question its systems, and keeps what it finds."""

    def __init__(self, folder: Path, dsn: str, server_pid: int, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.server_pid = server_pid
        self.is_full = os.environ.get("FULL", "") not in ("", "0")
        self._dsn = dsn
        self._numbers = count(1)
        self.notebook = Notebook("", "", None, {})

    @asynccontextmanager
    async def system(self) -> AsyncIterator[System]:
        """A fresh database without nodes; at the end its promises are verified, and it is dropped."""
        name = f"bench_{next(self._numbers)}"
        await self._run(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        dsn = self._dsn_of(name)
        folder = self.folder / name
        folder.mkdir()
        try:
            async with open_runtime(load_settings(database_url=dsn)) as parts:
                made = System(parts, dsn, folder, self.server_pid, self.log)
                # A copy has its template's mark: who folds would go through all transactions of the server since.
                await made.value("UPDATE timeball.fold SET seen = pg_current_snapshot()")
                try:
                    yield made
                finally:
                    # In a thread: beside it another system may be waited for.
                    await asyncio.to_thread(made.stop)
            await asyncio.to_thread(made.verify)
        finally:
            await self._run(f"DROP DATABASE {name} WITH (FORCE)")

    async def prepare(self) -> None:
        """Migrate a database that all others are copies of: that takes the time once."""
        await self._run(f"CREATE DATABASE {_TEMPLATE}")
        async with open_runtime(load_settings(database_url=self._dsn_of(_TEMPLATE))):
            pass

    def _dsn_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{name}"))

    async def _run(self, statement: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def note(self, subject: str, figure: str, value: float, unit: Unit = RATE) -> None:
        """Write down one value."""
        self.notebook.note(subject, figure, value, unit)

    async def interleave(self, variants: Mapping[str, Variant], figure: str, rounds: int, unit: Unit = RATE) -> None:
        """Measure all variants in turn, several times: a machine that is slow for a while is slow for all of them."""
        for _ in range(rounds):
            for subject, measure in variants.items():
                self.note(subject, figure, await measure(), unit)


@asynccontextmanager
async def open_lab() -> AsyncIterator[Lab]:
    """A lab with a server of its own, thrown away afterwards."""
    with tempfile.TemporaryDirectory(prefix="timeball-bench-") as name:
        server = EmbeddedServer(Path(name) / "data")
        dsn = await asyncio.to_thread(server.start)
        try:
            await asyncio.to_thread(warm_up, dsn)
            lab = Lab(Path(name), dsn, await _postmaster(dsn), server.log)
            await lab.prepare()
            yield lab
        finally:
            await asyncio.to_thread(server.leave)
            clear_shelter(server.data_dir)


def clear_shelter(data_dir: Path) -> None:
    """For root the cluster lies outside its data directory, and would outlive it."""
    for origin in SYSTEM_DIRECTORY.glob("database-*/origin"):
        if origin.read_text().strip() == str(data_dir):
            shutil.rmtree(origin.parent)


async def _postmaster(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        backend = await connection.fetchval("SELECT pg_backend_pid()")
    finally:
        stat = Path(f"/proc/{backend}/stat").read_text()
        await connection.close()
    return int(stat.rpartition(")")[2].split()[1])
