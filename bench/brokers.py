"""What does each broker cost and bring, with 2 and with 16 worker processes that mostly wait?

A steady stream of single jobs, which is where brokers differ: without one, every hint wakes every worker, and each asks
the database. Transactions and CPU time are counted, and do not depend on who else is busy; the rate of a backlog does.
A statement is a transaction, and so is the delivery of a hint to a node that listens: each job's hint goes to all nodes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.queues import running_rabbitmq, running_redis

from bench.lab import Lab
from bench.load import fill
from bench.notebook import MICROSECONDS, MILLISECONDS, RATE, Unit
from bench.processes import family_cpu_seconds
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "brokers, with 2 and 16 worker processes"
PER_JOB = Unit(" a job", 2, is_more_better=False)
PER_SECOND = Unit("/s", 1, is_more_better=False)
BROKERS = ("PostgreSQL", "Redis", "RabbitMQ")
_STREAM, _WARM_UP, _PAUSE = 400, 200, 0.02
_BACKLOG = 10_000
_IDLE_SECONDS = 10.0
# The server's own counters lag behind by up to a second.
_COUNTERS_SECONDS = 2.0
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
_WAITED = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - scheduled_for) * 1000)
FROM timeball.finished
WHERE handler = 'bench.sleep'
"""


@dataclass(frozen=True)
class Server:
    """A broker's address and process; PostgreSQL has neither."""

    url: str | None = None
    pid: int | None = None

    @property
    def settings(self) -> dict[str, str]:
        return {} if self.url is None else {"TIMEBALL_BROKER_URL": self.url}

    def cpu(self) -> float:
        return 0.0 if self.pid is None else family_cpu_seconds(self.pid)


async def ask(lab: Lab) -> None:
    """Each broker in turn, with few workers and with many."""
    sizes = tuple(int(size) for size in os.environ.get("WORKERS", "2,16").split(","))
    for workers in sizes:
        for name in BROKERS:
            async with _server(name) as server, lab.system() as system:
                await _measure(lab, system, server, f"{name}, {workers} workers", workers)


@asynccontextmanager
async def _server(name: str) -> AsyncIterator[Server]:
    if name == "Redis":
        with running_redis() as port:
            yield Server(f"redis://127.0.0.1:{port}/0", _listener(port))
    elif name == "RabbitMQ":
        with running_rabbitmq() as rabbitmq:
            yield Server(rabbitmq.url(), _listener(rabbitmq.port))
    else:
        yield Server()


def _listener(port: int) -> int:
    """The process that listens on a port of loopback."""
    inodes = {
        fields[9]
        for fields in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"
    }
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link).removeprefix("socket:[").rstrip("]") in inodes:
                return int(link.parts[2])
        except OSError:
            continue
    raise RuntimeError(f"nobody listens on port {port}")


async def _measure(lab: Lab, system: System, server: Server, subject: str, workers: int) -> None:
    await system.start_nodes(schedulers=1, workers=workers, **server.settings)
    # New connections ask many questions of their own: let all of them be opened before anything is counted.
    await _enqueue_one_by_one(system, _WARM_UP)
    await _until_calm(system)
    idle = await _idle_transactions(system)
    lab.note(subject, "transactions while idle", idle, PER_SECOND)
    await _stream(lab, system, server, subject, idle)
    await _backlog(lab, system, subject)
    system.stop()


async def _until_calm(system: System) -> None:
    """All have registered; give the slowest time to reach its broker, and to say so."""
    await asyncio.sleep(_IDLE_SECONDS)
    if await system.value("SELECT count(*) FROM timeball.node WHERE broker_state <> 'works'"):
        raise SystemExit("a node does not reach its broker")


async def _idle_transactions(system: System) -> float:
    before, begun = await _transactions(system), time.monotonic()
    await asyncio.sleep(_IDLE_SECONDS)
    return (await _transactions(system) - before) / (time.monotonic() - begun)


async def _transactions(system: System) -> int:
    await asyncio.sleep(_COUNTERS_SECONDS)
    return int(await system.value(_TRANSACTIONS))


async def _stream(lab: Lab, system: System, server: Server, subject: str, idle: float) -> None:
    """Single jobs, one after the other; what the nodes do anyway is taken off."""
    before, begun, busy = await _transactions(system), time.monotonic(), server.cpu()
    with system.cpu() as used:
        await _enqueue_one_by_one(system, _STREAM)
        await system.wait_for_finished(_WARM_UP + _STREAM)
    transactions = await _transactions(system) - before - idle * (time.monotonic() - begun)
    lab.note(subject, "transactions", transactions / _STREAM, PER_JOB)
    lab.note(subject, "CPU of nodes", used.nodes / _STREAM * 1e6, MICROSECONDS)
    lab.note(subject, "CPU of database", used.server / _STREAM * 1e6, MICROSECONDS)
    lab.note(subject, "CPU of broker", (server.cpu() - busy) / _STREAM * 1e6, MICROSECONDS)
    lab.note(subject, "enqueue to start, median", float(await system.value(_WAITED)), MILLISECONDS)


async def _enqueue_one_by_one(system: System, number: int) -> None:
    for _ in range(number):
        await system.parts.commands.create(JobSpec(handler="bench.sleep", payload={"seconds": 0.2}))
        await asyncio.sleep(_PAUSE)


async def _backlog(lab: Lab, system: System, subject: str) -> None:
    """Many at once, to be run by all."""
    begun = time.monotonic()
    await fill(system, _BACKLOG)
    await system.wait_for_finished(_WARM_UP + _STREAM + _BACKLOG)
    lab.note(subject, "backlog", _BACKLOG / (time.monotonic() - begun), RATE)
