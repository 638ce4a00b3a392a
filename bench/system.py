"""A system to measure: an open store, and nodes started by the documented commands with default settings, logs on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.processes import family_cpu_seconds
from timeball.runtime import Runtime

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Cpu:
    """CPU seconds that were used between two moments: by the nodes, and by the database."""

    nodes: float = 0.0
    server: float = 0.0


@dataclass
class System:
    """An open store, the processes beside it, and what the database server says in its log."""

    parts: Runtime
    dsn: str
    folder: Path
    server_pid: int
    log: Path
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start `timeball ...`, its log in a file."""
        log = (self.folder / f"node-{len(list(self.folder.iterdir()))}.log").open("wb")
        command = [sys.executable, "-m", "timeball", *arguments]
        node = subprocess.Popen(command, cwd=ROOT, env=self.environment(**settings), stderr=log, stdout=log)
        self.nodes.append(node)
        return node

    def environment(self, **settings: str) -> dict[str, str]:
        """The environment of a node: nothing of ours but the database and what is given."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMEBALL_")}
        return kept | {"TIMEBALL_DATABASE_URL": self.dsn} | settings

    async def start_nodes(self, schedulers: int = 0, workers: int = 0, **settings: str) -> None:
        """Start nodes, and wait until they have registered."""
        for _ in range(schedulers):
            self.start("scheduler", **settings)
        for _ in range(workers):
            self.start("worker", "bench.app:tb", **settings)
        await self.wait_for_nodes("scheduler", schedulers)
        await self.wait_for_nodes("worker", workers)

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

    async def rows(self, query: str, *values: Any) -> list[Any]:
        """All rows of a query."""
        async with self.parts.store.database.connection() as connection:
            return list(await connection.fetch(query, *values))

    async def wait_for_finished(self, number: int) -> None:
        """Wait until so many executions have ended; counted seldom, because counting costs what is measured."""
        while await self.value("SELECT count(*) FROM timeball.finished") < number:
            await asyncio.sleep(0.5)

    @contextmanager
    def cpu(self) -> Iterator[Cpu]:
        """What CPU time the present nodes and the database use meanwhile."""
        used, nodes = Cpu(), list(self.nodes)
        before = sum(family_cpu_seconds(node.pid) for node in nodes), family_cpu_seconds(self.server_pid)
        yield used
        used.nodes = sum(family_cpu_seconds(node.pid) for node in nodes) - before[0]
        used.server = family_cpu_seconds(self.server_pid) - before[1]

    def stop(self) -> None:
        """Let all nodes leave."""
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait(timeout=60)
        self.nodes.clear()

    def verify(self) -> None:
        """A number without a proof is worth nothing."""
        command = [sys.executable, "-m", "timeball", "verify"]
        done = subprocess.run(command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"verify does not hold:\n{done.stdout}{done.stderr}")
