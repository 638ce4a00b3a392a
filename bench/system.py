"""A private system for one question: the embedded PostgreSQL (durable, as shipped) and nodes started by the documented commands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timeball.settings import load_settings
from timeball.store.embedded import EmbeddedServer
from timeball.wiring import Parts, opened

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class System:
    """An open store, and the processes beside it."""

    parts: Parts
    dsn: str
    folder: Path
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `timeball ...` with default settings, its log in a file."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMEBALL_")}
        environment["TIMEBALL_DATABASE_URL"] = self.dsn
        log = (self.folder / f"node-{len(self.nodes)}.log").open("wb")
        node = subprocess.Popen(
            [sys.executable, "-m", "timeball", *arguments], cwd=ROOT, env=environment, stderr=log, stdout=log
        )
        self.nodes.append(node)
        return node

    async def wait_for_nodes(self, kind: str, number: int) -> None:
        """Wait until so many nodes of a kind have registered."""
        while await self.value("SELECT count(*) FROM timeball.node WHERE kind = $1", kind) < number:
            await asyncio.sleep(0.05)

    async def value(self, query: str, *values: Any) -> Any:
        """The one value of a query."""
        async with self.parts.store.database.connection() as connection:
            return await connection.fetchval(query, *values)

    async def row(self, query: str, *values: Any) -> Any:
        """The one row of a query."""
        async with self.parts.store.database.connection() as connection:
            return await connection.fetchrow(query, *values)

    async def wait_for_finished(self, number: int) -> None:
        """Wait until so many executions have ended; counted seldom, because counting costs what is measured."""
        while await self.value("SELECT count(*) FROM timeball.finished") < number:
            await asyncio.sleep(0.5)

    def stop(self) -> None:
        """Let all nodes leave."""
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait(timeout=60)
        self.nodes.clear()

    def verify(self) -> None:
        """A number without a proof is worth nothing."""
        environment = dict(os.environ, TIMEBALL_DATABASE_URL=self.dsn)
        done = subprocess.run(
            [sys.executable, "-m", "timeball", "verify"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"verify does not hold:\n{done.stdout}{done.stderr}")


@asynccontextmanager
async def system() -> AsyncIterator[System]:
    """A fresh system, thrown away afterwards."""
    with tempfile.TemporaryDirectory(prefix="timeball-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "data")
        dsn = await asyncio.to_thread(server.start)
        try:
            async with opened(load_settings(database_url=dsn)) as parts:
                made = System(parts, dsn, folder)
                try:
                    yield made
                finally:
                    made.stop()
        finally:
            await asyncio.to_thread(server.leave)
