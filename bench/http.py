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

import httpx
import orjson

from bench.lab import Lab
from bench.load import fill
from bench.notebook import MILLISECONDS
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "jobs over HTTP"
LIMIT = "Python face"
TARGETS = {("HTTP", "in bulk"): "half of the Python face's rate"}
_BULK = 10_000
_ROUNDS = 5
_PAGES = 30


async def ask(lab: Lab) -> None:
    """The limit is the Python face, which needs no HTTP: ten thousand jobs in one call, to the same database."""
    async with lab.system() as system, _api(system) as address, httpx.AsyncClient(timeout=120) as client:
        ways = {LIMIT: partial(_in_process, system), "HTTP": partial(_over_http, client, address)}
        await lab.interleave(ways, "in bulk", _ROUNDS)
        lab.note("HTTP", "a page of 50 among few", await _page(client, address), MILLISECONDS)
        await fill(system, 1_000_000 if lab.is_full else 200_000)
        lab.note("HTTP", "a page of 50 among many", await _page(client, address), MILLISECONDS)


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
    begun = time.perf_counter()
    for _ in range(_PAGES):
        (await client.get(f"{address}/api/v1/executions", params={"limit": 50})).raise_for_status()
    return (time.perf_counter() - begun) / _PAGES * 1000


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
        yield found[1]
    finally:
        process.terminate()
        await process.wait()
