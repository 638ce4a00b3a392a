"""Does a page of the dashboard cost the same with a million executions as with none?"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial

import httpx

from bench.lab import Lab
from bench.million import MILLION, furnish
from bench.notebook import MILLISECONDS
from bench.system import System
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings
from timeball.dashboard.app import make_web_app
from timeball.runtime import make_server_runtime

TITLE = "server time of the dashboard's pages"
LIMIT = "empty"
PAGES = {
    "Live": "/",
    "Timeline": "/timeline",
    "Forecast": "/forecast",
    "Jobs": "/jobs",
    "Jobs, active": "/jobs?status=active",
    "Jobs, last dead": "/jobs?status=dead",
    "Jobs, by name": "/jobs?q=job-7",
    "Job": "/jobs/job-7",
    "Job, executions": "/jobs/job-7?tab=executions",
    "Job, history": "/jobs/job-7?tab=activity",
    "Executions": "/executions",
    "Executions, dead": "/executions?status=dead",
    "Executions of a job": "/executions?q=job:job-7",
    "Execution": "/executions/{execution}",
    "Why": "/executions/{execution}/why",
    "Dead letters": "/dead",
    "Queues": "/queues",
    "Queue": "/queues/one?name=queue-7",
    "Workers": "/workers",
    "Templates": "/templates",
    "Audit": "/audit",
    "Doctor": "/doctor",
    "About": "/about",
}
FULL = "1,000,000 executions"
TARGETS = {(FULL, page): "below 50 ms" for page in PAGES}
_ROUNDS = 7


async def ask(lab: Lab) -> None:
    """Each page of both databases in turn; a page is asked for once before it is measured."""
    async with AsyncExitStack() as stack:
        fronts: dict[str, httpx.AsyncClient] = {}
        for name, number in ((LIMIT, 0), (FULL, MILLION)):
            system = await stack.enter_async_context(lab.system())
            await furnish(system, number)
            fronts[name] = await stack.enter_async_context(_front(system))
        paths = {name: await _paths(front) for name, front in fronts.items()}
        for page in PAGES:
            ways = {name: partial(_measured, front, paths[name][page]) for name, front in fronts.items()}
            for measure in ways.values():
                await measure()
            await lab.interleave(ways, page, _ROUNDS, MILLISECONDS)


async def _paths(front: httpx.AsyncClient) -> dict[str, str]:
    """The pages, with an execution that is there."""
    latest = (await front.get("/api/v1/executions", params={"limit": 1})).json()["data"][0]["id"]
    return {page: path.format(execution=latest) for page, path in PAGES.items()}


def _front(system: System) -> httpx.AsyncClient:
    parts = system.parts
    app = make_web_app(make_server_runtime(Settings(), parts.store, parts.commands))
    return httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://localhost:8080", timeout=60)


async def _measured(front: httpx.AsyncClient, path: str) -> float:
    begun = time.perf_counter()
    answer = await front.get(path)
    seconds = time.perf_counter() - begun
    answer.raise_for_status()
    return seconds * 1_000
