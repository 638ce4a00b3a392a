"""How fast are jobs created over HTTP, and does a page cost the same with few executions and with many?"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import median

import httpx
import orjson

from bench.lab import Lab
from bench.million import MILLION, furnish
from bench.notebook import MILLISECONDS, RATIO, Unit
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "jobs over HTTP"
LIMIT = "Python face"
TARGETS = {("HTTP", "in bulk"): "half of the Python face's rate"}
_BULK = 10_000
_ROUNDS = 5
_MANY = 200_000
_PAGES = 15
_TIMES = Unit(" times", RATIO.digits, is_more_better=False)
LISTS = {
    "executions": "executions",
    "dead executions": "executions?status=dead",
    "jobs": "jobs",
    "jobs by name": "jobs?sort=name",
    "active jobs": "jobs?status=active",
    "dead letters": "dead-letter",
    "a numbered page": "executions?page=3",
}


async def ask(lab: Lab) -> None:
    """The limit is the Python face, which needs no HTTP: ten thousand jobs in one call, to the same database."""
    async with lab.system() as system, _api(system) as address, httpx.AsyncClient(timeout=120) as client:
        ways = {LIMIT: partial(_in_process, system), "HTTP": partial(_over_http, client, address)}
        await lab.interleave(ways, "in bulk", _ROUNDS)
    number = MILLION if lab.is_full else _MANY
    few, many = await _listed(lab, 0), await _listed(lab, number)
    for name in LISTS:
        lab.note("HTTP", f"{name}, among few", few[name], MILLISECONDS)
        lab.note("HTTP", f"{name}, among {number:,}", many[name], MILLISECONDS)
        lab.note("HTTP", f"{name}, many to few", many[name] / few[name], _TIMES)


async def _listed(lab: Lab, number: int) -> dict[str, float]:
    """What a page of each list takes, with so many jobs and executions."""
    async with lab.system() as system:
        await furnish(system, number)
        async with _api(system) as address, httpx.AsyncClient(timeout=120) as client:
            return {name: await _page(client, f"{address}/api/v1/{path}") for name, path in LISTS.items()}


async def _in_process(system: System) -> float:
    payloads = [f'{{"number":{number},"to":"somebody@example.com"}}' for number in range(_BULK)]
    begun = time.perf_counter()
    await system.parts.commands.enqueue_many(JobSpec(handler="bench.noop"), payloads)
    return _BULK / (time.perf_counter() - begun)


async def _over_http(client: httpx.AsyncClient, address: str) -> float:
    jobs = [
        {"handler": "bench.noop", "payload": {"number": number, "to": "somebody@example.com"}}
        for number in range(_BULK)
    ]
    body = orjson.dumps({"jobs": jobs})
    begun = time.perf_counter()
    response = await client.post(
        f"{address}/api/v1/jobs/bulk", content=body, headers={"Content-Type": "application/json"}
    )
    seconds = time.perf_counter() - begun
    response.raise_for_status()
    return _BULK / seconds


async def _page(client: httpx.AsyncClient, address: str) -> float:
    """The median: one that met a checkpoint tells nothing."""
    times = []
    for _ in range(_PAGES + 1):
        begun = time.perf_counter()
        (await client.get(address)).raise_for_status()
        times.append((time.perf_counter() - begun) * 1_000)
    return median(times[1:])


@asynccontextmanager
async def _api(system: System) -> AsyncIterator[str]:
    """`timeball api` as a process of its own, as it is in production."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "timeball",
        "api",
        env=os.environ | {"TIMEBALL_DATABASE_URL": system.dsn, "TIMEBALL_PORT": "0"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while line := (await process.stderr.readline()).decode():
            if found := re.search(r"API on (http://\S+)/api/v1", line):
                break
        else:
            raise RuntimeError("the API did not start")
        # Its log goes on: nobody may have to wait for a pipe that is full.
        rest = asyncio.ensure_future(process.stderr.read())
        yield found[1]
    finally:
        process.terminate()
        await process.wait()
    await rest
