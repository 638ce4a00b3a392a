"""What does each broker cost and bring, with 2 and with 16 worker processes that mostly wait?

A steady stream of single jobs, which is where brokers differ: without one, every hint wakes every worker, and each asks
the database. Statements are counted one by one, from the server's own log; CPU time is that of the kernel's books. Neither
depends on who else is busy, as the rate of a backlog does. What the nodes do anyway, while there is nothing to do, is
measured first, told apart and taken off.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker_servers import running_rabbitmq, running_redis

from bench.lab import Lab
from bench.load import fill
from bench.notebook import MICROSECONDS, MILLISECONDS, PERCENT, RATE, Unit
from bench.processes import family_cpu_seconds
from bench.statements import counted_statements
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "brokers, with 2 and 16 worker processes"
PER_JOB = Unit(" a job", 2, is_more_better=False)
PER_SECOND = Unit("/s", 1, is_more_better=False)
BROKERS = ("PostgreSQL", "Redis", "RabbitMQ")
_WARM_UP, _COUNTED, _STREAM, _PAUSE = 100, 200, 300, 0.02
_BACKLOG = 5_000
_IDLE_SECONDS = 4.0
# What a job of the stream waits for, and how long after the last one everything has surely come to its end.
_SLEEP_SECONDS, _REST_SECONDS = 0.2, 2.0
_WAITED = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - scheduled_for) * 1000)
FROM timeball.finished
WHERE handler = 'bench.sleep'
"""
_DRAINED = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))
FROM timeball.finished
WHERE handler = 'bench.noop'
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


@dataclass(frozen=True)
class Spent:
    """CPU seconds of the nodes, the database and the broker."""

    nodes: float
    database: float
    broker: float

    def less(self, idle: Spent, seconds: float) -> Spent:
        """Without what would have been spent anyway; *idle* is for a second."""
        return Spent(
            self.nodes - idle.nodes * seconds,
            self.database - idle.database * seconds,
            self.broker - idle.broker * seconds,
        )

    def each(self, number: float) -> Spent:
        """The share of one."""
        return Spent(self.nodes / number, self.database / number, self.broker / number)


class Trial:
    """One broker with one number of workers."""

    def __init__(self, lab: Lab, system: System, server: Server, subject: str) -> None:
        self._lab = lab
        self._system = system
        self._server = server
        self._subject = subject
        self._finished = 0

    async def run(self, workers: int) -> None:
        await self._system.start_nodes(schedulers=1, workers=workers, **self._server.settings)
        # New connections ask many questions of their own: let all of them be opened before anything is counted.
        await self._stream(_WARM_UP)
        await self._until_calm()
        await self._count_statements()
        await self._weigh_cpu()
        await self._drain()
        self._system.stop()

    async def _until_calm(self) -> None:
        """All have registered; give the slowest time to reach its broker, and to say so."""
        async with asyncio.timeout(60):
            while await self._system.value("SELECT count(*) FROM timeball.node WHERE broker_state <> 'works'"):
                await asyncio.sleep(0.5)
        await asyncio.sleep(_REST_SECONDS)

    async def _count_statements(self) -> None:
        async with counted_statements(self._system) as idle:
            await asyncio.sleep(_IDLE_SECONDS)
        async with counted_statements(self._system) as busy:
            await self._stream(_COUNTED)
        a_second = idle.number / idle.seconds
        self._note("statements while idle", a_second, PER_SECOND)
        self._note("statements", (busy.number - a_second * busy.seconds) / _COUNTED, PER_JOB)

    async def _weigh_cpu(self) -> None:
        """Single jobs, one after the other; then how long each of them waited."""
        idle, seconds = await self._spent(asyncio.sleep(_IDLE_SECONDS))
        idle = idle.each(seconds)
        self._note("CPU of nodes while idle", idle.nodes * 100, PERCENT)
        self._note("CPU of database while idle", idle.database * 100, PERCENT)
        busy, seconds = await self._spent(self._stream(_STREAM))
        self._note_cpu("", busy.less(idle, seconds).each(_STREAM))
        self._note("enqueue to start, median", float(await self._system.value(_WAITED)), MILLISECONDS)

    async def _drain(self) -> None:
        """Many at once, to be run by all."""
        busy, _ = await self._spent(self._fill_and_wait())
        self._note("backlog", float(await self._system.value(_DRAINED)), RATE)
        self._note_cpu(" in a backlog", busy.each(_BACKLOG))

    async def _fill_and_wait(self) -> None:
        await fill(self._system, _BACKLOG)
        self._finished += _BACKLOG
        await self._system.wait_for_finished(self._finished)

    async def _stream(self, number: int) -> None:
        """Enqueue jobs one by one; the database is not asked about them before all must have ended."""
        for _ in range(number):
            spec = JobSpec(handler="bench.sleep", payload={"seconds": _SLEEP_SECONDS})
            await self._system.parts.commands.jobs.create(spec)
            await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_REST_SECONDS)
        self._finished += number
        await self._system.wait_for_finished(self._finished)

    async def _spent(self, work: Awaitable[None]) -> tuple[Spent, float]:
        """The CPU seconds that some work takes, and how long it lasts."""
        begun, broker = time.monotonic(), self._server.cpu()
        with self._system.cpu() as used:
            await work
        return Spent(used.nodes, used.server, self._server.cpu() - broker), time.monotonic() - begun

    def _note_cpu(self, when: str, spent: Spent) -> None:
        self._note(f"CPU of nodes{when}", spent.nodes * 1e6, MICROSECONDS)
        self._note(f"CPU of database{when}", spent.database * 1e6, MICROSECONDS)
        self._note(f"CPU of broker{when}", spent.broker * 1e6, MICROSECONDS)

    def _note(self, figure: str, value: float, unit: Unit) -> None:
        self._lab.note(self._subject, figure, value, unit)


async def ask(lab: Lab) -> None:
    """Each broker in turn, with few workers and with many."""
    sizes = tuple(int(size) for size in os.environ.get("WORKERS", "2,16").split(","))
    for workers in sizes:
        for name in BROKERS:
            async with _server(name) as server, lab.system() as system:
                await Trial(lab, system, server, f"{name}, {workers} workers").run(workers)


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
    raise RuntimeError(f"nothing listens on port {port}")
