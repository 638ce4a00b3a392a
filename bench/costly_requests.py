"""How late do jobs start while the API of the same `timeball up` is asked for as much work as one caller can ask for?"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

import httpx

from bench.lab import Lab
from bench.notebook import MILLISECONDS, NUMBER
from bench.punctuality import note_lateness
from bench.system import System
from timeball.config.settings import Settings
from timeball.domain.job_fields import JobSpec
from timeball.runtime import make_server_runtime
from timeball.store.types import AuditEntry

TITLE = "lateness of jobs in one `timeball up`, beside costly requests"
LIMIT = "no requests"
_RATE, _SECONDS, _FULL_SECONDS = 50, 10, 60
_SCHEDULES, _QUEUES, _PAYLOADS = 3_000, 10_000, 40
_AT_ONCE, _CONNECTIONS = 4, 900
_JSON = {"Content-Type": "application/json"}

Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


async def _bomb(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("api/v1/jobs/bulk", content=_LISTS, headers=_JSON)


async def _strange_fields(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("api/v1/schedules/preview", content=_FIELDS, headers=_JSON | _VIEWER)


async def _timeline(client: httpx.AsyncClient) -> httpx.Response:
    return await client.get("api/v1/timeline?limit=200&width=10000", headers=_VIEWER)


async def _jobs(client: httpx.AsyncClient) -> httpx.Response:
    return await client.get("api/v1/jobs?limit=200&q=handler:bench.thread", headers=_VIEWER)


async def _metrics(client: httpx.AsyncClient) -> httpx.Response:
    return await client.get("metrics", headers=_VIEWER)


_LISTS = b"[" + b"[]," * 10_800_000 + b"1]"
_FIELDS = b"{" + b",".join(b'"f%d":1' % number for number in range(80_000)) + b"}"
# The key of a viewer, once there is one.
_VIEWER: dict[str, str] = {}
_KINDS: dict[str, Ask] = {
    "32 MB of lists without a key": _bomb,
    "80,000 unknown fields": _strange_fields,
    "wide time lines": _timeline,
    "lists of large payloads": _jobs,
    "metrics of 10,000 queues": _metrics,
}
_HALF_OPEN = f"{_CONNECTIONS} half-open connections"
TARGETS = {(subject, "p99 late"): "within 50 ms" for subject in (*_KINDS, _HALF_OPEN)}


async def ask(lab: Lab) -> None:
    """One `timeball up` with default settings; each kind of request four at a time, over and over, while jobs start."""
    seconds = _FULL_SECONDS if lab.is_full else _SECONDS
    async with lab.system() as system:
        await _furnish(system)
        async with _up(system) as client:
            await _measure(lab, system, LIMIT, seconds)
            for subject, request in _KINDS.items():
                async with _asked(client, request) as answered:
                    await _measure(lab, system, subject, seconds)
                lab.note(subject, "requests answered", answered[0], NUMBER)
                lab.note(subject, "slowest sign of life", answered[1], MILLISECONDS)
            with _half_open(client.base_url.port or 0):
                await _measure(lab, system, _HALF_OPEN, seconds)


async def _furnish(system: System) -> None:
    commands = system.parts.commands
    nightly = [
        JobSpec(handler="bench.noop", name=f"nightly {number}", schedule=f"{number % 60} {number % 5} * * *")
        for number in range(_SCHEDULES)
    ]
    for start in range(0, _SCHEDULES, 1_000):
        await commands.jobs.create_all(nightly[start : start + 1_000])
    payload = {"a": "://" + "?" * 250_000}
    await commands.jobs.create_all(
        [
            JobSpec(handler="bench.thread", name=f"large {number}", payload=payload, schedule="manual")
            for number in range(_PAYLOADS)
        ]
    )
    async with system.parts.store.database.connection() as connection:
        await connection.execute(
            "INSERT INTO timeball.queue (name, max_running) SELECT 'queue ' || n, 5 FROM generate_series(1, $1) AS n",
            _QUEUES,
        )
    keys = make_server_runtime(Settings(), system.parts.store, commands).keys
    _, token = await keys.create("viewer", "bench", None, AuditEntry("bench"))
    _VIEWER["Authorization"] = f"Bearer {token}"


@asynccontextmanager
async def _up(system: System) -> AsyncIterator[httpx.AsyncClient]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    system.start("up", "bench.app:tb", TIMEBALL_PORT=str(port), TIMEBALL_API__MEGABYTES_PER_SECOND="1000")
    await system.wait_for_nodes("scheduler", 1)
    await system.wait_for_nodes("worker", 1)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/", timeout=60) as client:
        while not await _is_alive(client):
            await asyncio.sleep(0.1)
        yield client


async def _is_alive(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.HTTPError):
        return (await client.get("api/v1/health/live")).status_code == 200
    return False


@asynccontextmanager
async def _asked(client: httpx.AsyncClient, request: Ask) -> AsyncIterator[list[float]]:
    """Ask over and over meanwhile; gives how many were answered, and the slowest sign of life in milliseconds."""
    answered = [0.0, 0.0]

    async def over_and_over() -> None:
        while True:
            with suppress(httpx.HTTPError):
                await request(client)
                answered[0] += 1

    async def look() -> None:
        while True:
            begun = time.perf_counter()
            await _is_alive(client)
            answered[1] = max(answered[1], (time.perf_counter() - begun) * 1_000)
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(over_and_over()) for _ in range(_AT_ONCE)] + [asyncio.create_task(look())]
    try:
        yield answered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _half_open(port: int) -> Iterator[None]:
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(_CONNECTIONS)]
    for one in opened:
        with suppress(OSError):
            one.sendall(b"GET / HTTP/1.1\r\nHost: lo")
    yield
    for one in opened:
        one.close()


async def _measure(lab: Lab, system: System, subject: str, seconds: int) -> None:
    before = await system.value("SELECT count(*) FROM timeball.finished")
    first = system.parts.env.clock.now() + timedelta(seconds=2)
    number = _RATE * seconds
    specs = [JobSpec(handler="bench.noop", scheduled_at=first + timedelta(seconds=n / _RATE)) for n in range(number)]
    await system.parts.commands.jobs.create_all(specs)
    await system.wait_for_finished(before + number)
    await note_lateness(lab, system, subject, first)
