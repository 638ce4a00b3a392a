"""How fast are jobs created over HTTP, and does a page cost the same with few executions and with a million?"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import httpx
import orjson

from bench.lab import Lab
from bench.million import MILLION, furnish
from bench.notebook import MILLISECONDS, RATIO, Unit
from bench.system import System
from timeball.domain.job_fields import JobSpec

TITLE = "jobs over HTTP"
LIMIT = "Python SDK"
FEW, MANY = "HTTP, few executions", f"HTTP, {MILLION:,} executions"
_IN_BULK, _ONE_BY_ONE = "created in bulk", "created one by one"
TARGETS = {(MANY, _IN_BULK): "half of the Python SDK's rate"}
_BULK, _SINGLE = 10_000, 200
_ROUNDS, _PAGES = 5, 15
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


class Front(NamedTuple):
    """A system, and a client of the API beside it."""

    system: System
    client: httpx.AsyncClient


async def ask(lab: Lab) -> None:
    """Lists of both databases in turn, then new jobs in both; the limit is the Python SDK, which needs no HTTP, on the full database."""
    async with AsyncExitStack() as stack:
        fronts = {FEW: await _front(lab, stack, 0), MANY: await _front(lab, stack, MILLION)}
        for name, path in LISTS.items():
            ways = {subject: partial(_page, front, path) for subject, front in fronts.items()}
            for measure in ways.values():
                await measure()
            await lab.interleave(ways, name, _PAGES, MILLISECONDS)
            ratio = lab.notebook.median(MANY, name) / lab.notebook.median(FEW, name)
            lab.note(MANY, f"{name}, many to few", ratio, _TIMES)
        for figure, over_http, in_process in ((_IN_BULK, _bulk, _bulk_here), (_ONE_BY_ONE, _single, _single_here)):
            ways = {subject: partial(over_http, front) for subject, front in fronts.items()}
            await lab.interleave({LIMIT: partial(in_process, fronts[MANY])} | ways, figure, _ROUNDS)


async def _front(lab: Lab, stack: AsyncExitStack, number: int) -> Front:
    system = await stack.enter_async_context(lab.system())
    await furnish(system, number, is_folded=False)
    address = await stack.enter_async_context(_api(system))
    client = httpx.AsyncClient(base_url=f"{address}/api/v1/", timeout=120)
    return Front(system, await stack.enter_async_context(client))


async def _bulk_here(front: Front) -> float:
    payloads = [f'{{"number":{number},"to":"ana@example.com"}}' for number in range(_BULK)]
    begun = time.perf_counter()
    await front.system.parts.commands.jobs.enqueue_many(JobSpec(handler="bench.noop"), payloads)
    return _BULK / (time.perf_counter() - begun)


async def _bulk(front: Front) -> float:
    body = orjson.dumps({"jobs": [_job(number) for number in range(_BULK)]})
    begun = time.perf_counter()
    await _post(front, "jobs/bulk", body)
    return _BULK / (time.perf_counter() - begun)


async def _single_here(front: Front) -> float:
    begun = time.perf_counter()
    for number in range(_SINGLE):
        await front.system.parts.commands.jobs.create(JobSpec(handler="bench.noop", payload=_job(number)["payload"]))
    return _SINGLE / (time.perf_counter() - begun)


async def _single(front: Front) -> float:
    begun = time.perf_counter()
    for number in range(_SINGLE):
        await _post(front, "jobs", orjson.dumps(_job(number)))
    return _SINGLE / (time.perf_counter() - begun)


def _job(number: int) -> dict[str, Any]:
    return {"handler": "bench.noop", "payload": {"number": number, "to": "ana@example.com"}}


async def _post(front: Front, path: str, body: bytes) -> None:
    answer = await front.client.post(path, content=body, headers={"Content-Type": "application/json"})
    answer.raise_for_status()


async def _page(front: Front, path: str) -> float:
    begun = time.perf_counter()
    (await front.client.get(path)).raise_for_status()
    return (time.perf_counter() - begun) * 1_000


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
        # Its log is read on: the server must not wait for a full pipe.
        rest = asyncio.ensure_future(process.stderr.read())
        yield found[1]
    finally:
        process.terminate()
        await process.wait()
    await rest
