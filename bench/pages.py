"""Does a page of the dashboard cost the same with a million executions as with none?"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial

import httpx

from bench.lab import Lab
from bench.notebook import MILLISECONDS
from bench.system import System
from timeball.dashboard.app import make_front
from timeball.domain.job import JobSpec
from timeball.settings import Settings
from timeball.wiring import front_parts

TITLE = "server time of the dashboard's pages"
LIMIT = "empty"
_MILLION = 1_000_000
PAGES = {
    "Live": "/",
    "Timeline": "/timeline",
    "Forecast": "/forecast",
    "Jobs": "/jobs",
    "Executions": "/executions",
    "Dead letters": "/dead",
    "Queues": "/queues",
    "Workers": "/workers",
    "Doctor": "/doctor",
}
FULL = "1,000,000 executions"
TARGETS = {(FULL, page): "below 50 ms" for page in PAGES}
_ROUNDS = 7

# A day of history of a hundred jobs; one in a thousand is dead.
_HISTORY = """
INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at,
                               finished_at, attempts, lost, fence, error_type, error, fingerprint)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8'
        || lpad(to_hex(n), 15, '0'))::uuid,
       job.id, CASE WHEN n % 1000 = 0 THEN 'dead' ELSE 'succeeded' END, 'trigger', 1, 'default', 50, 'bench.noop', at, at,
       at + interval '2 ms', at + interval '30 ms', 1, 0, 1,
       CASE WHEN n % 1000 = 0 THEN 'ValueError' END, CASE WHEN n % 1000 = 0 THEN 'no' END, CASE WHEN n % 1000 = 0 THEN 'abc' END
FROM (SELECT n, now() - n * interval '80 ms' AS at FROM generate_series(1, $1::bigint) AS n) AS made
JOIN (SELECT id, row_number() OVER () AS number FROM timeball.job) AS job ON job.number = 1 + made.n % 100
"""


async def ask(lab: Lab) -> None:
    """Each page of both databases in turn; a page is asked for once before it is measured."""
    async with AsyncExitStack() as stack:
        fronts: dict[str, httpx.AsyncClient] = {}
        for name, number in ((LIMIT, 0), (FULL, _MILLION)):
            system = await stack.enter_async_context(lab.system())
            await _furnish(system, number)
            fronts[name] = await stack.enter_async_context(_front(system))
        for page, path in PAGES.items():
            for front in fronts.values():
                await _measured(front, path)
            ways = {name: partial(_measured, front, path) for name, front in fronts.items()}
            await lab.interleave(ways, page, _ROUNDS, MILLISECONDS)


async def _furnish(system: System, number: int) -> None:
    jobs = [JobSpec(name=f"job-{place}", handler="bench.noop", interval_seconds=86_400) for place in range(100)]
    await system.parts.commands.create_all(jobs)
    async with system.parts.store.database.connection() as connection:
        await connection.execute(_HISTORY, number, timeout=600)
        await connection.execute("ANALYZE timeball.finished", timeout=600)
    while (await system.parts.store.rollups.fold()).has_more:
        pass


def _front(system: System) -> httpx.AsyncClient:
    parts = system.parts
    app = make_front(front_parts(Settings(), parts.store, parts.commands))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost:8080", timeout=60)


async def _measured(front: httpx.AsyncClient, path: str) -> float:
    begun = time.perf_counter()
    answer = await front.get(path)
    seconds = time.perf_counter() - begun
    answer.raise_for_status()
    return seconds * 1_000
