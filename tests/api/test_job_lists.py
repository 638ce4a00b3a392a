"""Lists of jobs: rare values are found by an index or by a scan in chunks; a request ends soon either way."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.support.factories import claim_all, enqueue, found, make_job, record
from timeball.application.commands import Commands
from timeball.domain.execution import ErrorInfo, ExecutionState, Failed
from timeball.domain.job import JobStatus
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.search import (
    JOB_FIELDS,
    JobFilter,
    JobOrder,
    PageRequest,
    ResultPage,
    SearchRelation,
    parse_query,
    where,
)
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.runtime import ServerRuntime
from timeball.store.search import jobs, listing
from timeball.store.search.jobs import JobListQuery, candidate_jobs
from timeball.store.search.query import QueryReader
from timeball.store.store import Store

RUNNING, DEAD = ExecutionState.RUNNING, ExecutionState.DEAD


async def furnish(store: Store) -> None:
    """A job of every kind; its description is its name in the test."""

    async def one_off(called: str, after: float = 0, **fields: Any) -> JobId:
        return JobId(await enqueue(store, after, description=called, **fields))

    commands = Commands(store, store.env)
    await one_off("succeeded", handler="app:one")
    await record(store, [found(one) for one in await claim_all(store, handlers=["app:one"])])
    await one_off("dead", handler="app:two", max_retries=0, payload={"user": 42})
    error = ErrorInfo(type="ValueError", message="no")
    await record(store, [found(one, Failed(error)) for one in await claim_all(store, handlers=["app:two"])])
    await one_off("retrying", handler="app:three", max_retries=3)
    await record(store, [found(one, Failed(error)) for one in await claim_all(store, handlers=["app:three"])])
    await one_off("cancelled", after=50)
    cancelled = (await claimed_id(store, "cancelled"),)
    await commands.executions.cancel(cancelled)
    await one_off("running", handler="app:four")
    await claim_all(store, handlers=["app:four"])
    await one_off("ready", queue="mail")
    await one_off("blocked", max_running=1, limit_key="k")
    await one_off("blocked too", max_running=1, limit_key="k")
    await one_off("later", after=7_200, tags=("red", "blue"))
    store.env.clock.advance(timedelta(days=40))  # type: ignore[attr-defined]
    await make_job(store, name="report-daily", description="cron", schedule="0 6 * * *", tags=("red",))
    await make_job(store, name="report-hourly", description="every", interval_seconds=3600)
    await make_job(store, name="by-hand", description="manual")
    paused = await make_job(store, name="resting", description="paused", interval_seconds=60)
    await commands.jobs.pause(paused.id)
    gone = await make_job(store, name="gone", description="deleted", interval_seconds=60, tags=("red",))
    await commands.jobs.delete(gone.id)


async def claimed_id(store: Store, called: str) -> ExecutionId:
    async with store.database.connection() as connection:
        return ExecutionId(await connection.fetchval("SELECT id FROM timeball.job WHERE description = $1", called))


ALIVE = {"retrying", "running", "ready", "blocked", "blocked too", "later", "cron", "every", "manual"}
NAMED = {"cron", "every", "manual", "paused"}
ALL = ALIVE | {"succeeded", "dead", "cancelled", "paused"}

FILTERS: dict[str, tuple[JobFilter, set[str]]] = {
    "everything": (JobFilter(), ALL),
    "active": (JobFilter(where(status=JobStatus.ACTIVE)), ALIVE),
    "paused": (JobFilter(where(status=JobStatus.PAUSED)), {"paused"}),
    "finished": (JobFilter(where(status=JobStatus.FINISHED)), {"succeeded", "dead", "cancelled"}),
    "last dead": (JobFilter(where(status=(DEAD,))), {"dead"}),
    "last dead or running": (JobFilter(where(status=(DEAD, RUNNING))), {"dead", "running"}),
    "last cancelled": (JobFilter(where(status=(ExecutionState.CANCELLED,))), {"cancelled"}),
    "last succeeded": (JobFilter(where(status=(ExecutionState.SUCCEEDED,))), {"succeeded"}),
    "queued": (JobFilter(where(status=(ExecutionState.QUEUED,))), {"ready", "blocked", "blocked too"}),
    "retrying": (JobFilter(where(status=(ExecutionState.RETRYING,))), {"retrying"}),
    "scheduled": (JobFilter(where(status=(ExecutionState.SCHEDULED,))), {"later", "cron", "every"}),
    "cron": (JobFilter(where(kind=ScheduleKind.CRON)), {"cron"}),
    "handler": (JobFilter(where(handler="app:two")), {"dead"}),
    "queue": (JobFilter(where(queue="mail")), {"ready"}),
    "tag": (JobFilter(where(tag="red")), {"later", "cron"}),
    "named": (JobFilter(is_named=True), NAMED),
    "name": (JobFilter(where(SearchRelation.CONTAINS, name="REPORT")), {"cron", "every"}),
    "payload": (JobFilter(where(SearchRelation.CONTAINS, payload='"user": 42')), {"dead"}),
    "tag and kind": (JobFilter(where(tag="red", kind=ScheduleKind.CRON)), {"cron"}),
    "in words": (JobFilter(terms=parse_query("tag:red -kind:cron", JOB_FIELDS)), {"later"}),
    "status in words": (JobFilter(terms=parse_query("status:paused,dead", JOB_FIELDS)), {"paused", "dead"}),
    "a bare word": (JobFilter(terms=parse_query("report", JOB_FIELDS)), {"cron", "every"}),
    "a name in words": (JobFilter(terms=parse_query("name:report-*", JOB_FIELDS)), {"cron", "every"}),
    "payload in words": (JobFilter(terms=parse_query("payload.user:42", JOB_FIELDS)), {"dead"}),
}


async def walk(parts: ServerRuntime, wanted: JobFilter, order: JobOrder, limit: int) -> list[str]:
    """The items of all pages, read by following the cursors."""
    shown: list[str] = []
    cursor: str | None = None
    while True:
        page = await parts.queries.jobs.page(wanted, order, PageRequest(limit=limit, cursor=cursor))
        shown += [view.job.description or "" for view in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return shown


async def test_every_filter_finds_the_same_by_index_by_scan_and_by_page_number(
    store: Store, parts: ServerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(store)
    now = store.env.clock.now()
    dated = {
        "created": (JobFilter(where(after=now - timedelta(days=1))), NAMED),
        "created before": (JobFilter(where(before=now - timedelta(days=39))), ALL - NAMED),
        "due": (JobFilter(where(due_after=now, due_before=now + timedelta(hours=2))), {"every"}),
    }
    for name, (wanted, expected) in (FILTERS | dated).items():
        newest = await walk(parts, wanted, JobOrder.NEWEST, 5)
        assert (set(newest), len(newest)) == (expected, len(expected)), name
        assert await walk(parts, wanted, JobOrder.OLDEST, 5) == newest[::-1], name
        assert set(await walk(parts, wanted, JobOrder.NAME, 5)) == expected & NAMED, name

        with monkeypatch.context() as patch:
            patch.setattr(listing, "SCAN_SECONDS", 0)
            patch.setattr(listing, "FIRST_CHUNK", 3)
            patch.setattr(listing, "CHUNK", 4)
            patch.setattr(jobs, "MAX_CANDIDATES", 0)
            assert await walk(parts, wanted, JobOrder.NEWEST, 2) == newest, name
            assert set(await walk(parts, wanted, JobOrder.NAME_BACKWARDS, 1)) == expected & NAMED, name


@pytest.mark.parametrize(("stretch", "longest"), [(10_000, 10_000), (2, 0)])
async def test_numbered_pages_and_totals_do_not_depend_on_the_plan(
    store: Store, parts: ServerRuntime, monkeypatch: pytest.MonkeyPatch, stretch: int, longest: int
) -> None:
    await furnish(store)
    monkeypatch.setattr(listing, "FIRST_CHUNK", stretch)
    monkeypatch.setattr(listing, "CHUNK", stretch)
    monkeypatch.setattr(jobs, "MAX_CANDIDATES", longest)

    async def numbered(page: int) -> ResultPage[Any]:
        request = PageRequest(limit=4, page=page, with_total=True)
        return await parts.queries.jobs.page(JobFilter(where(status=JobStatus.ACTIVE)), JobOrder.NEWEST, request)

    pages = [await numbered(page) for page in (1, 2, 3, 4)]

    assert [len(page.items) for page in pages] == [4, 4, 1, 0]
    assert {view.job.description for page in pages for view in page.items} == ALIVE
    for page in pages:
        assert page.total is not None
        assert (page.total.count, page.total.is_exact) == (len(ALIVE), True)


@pytest.mark.parametrize(("exact_up_to", "is_exact"), [(len(ALIVE), True), (len(ALIVE) - 1, False)])
async def test_a_total_alone_reads_few_rows(
    store: Store, parts: ServerRuntime, monkeypatch: pytest.MonkeyPatch, exact_up_to: int, is_exact: bool
) -> None:
    await furnish(store)
    monkeypatch.setattr(jobs, "_SAMPLE", 3)
    request = PageRequest(limit=2, with_total=True, exact_up_to=exact_up_to)

    total = (await parts.queries.jobs.page(JobFilter(where(status=JobStatus.ACTIVE)), JobOrder.NEWEST, request)).total

    assert total is not None
    assert (total.count, total.is_exact) == (len(ALIVE), is_exact)


_MANY = """
INSERT INTO timeball.job (id, handler, payload, kind, scheduled_at, queue, priority, max_retries, max_lost,
                          initial_backoff_ms, max_backoff_ms, at_most_once, shard, version, created_at, updated_at)
SELECT ('0183' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid, 'h', '{}', 'once', $1, 'default', 50, 3, 3,
       1000, 1000, false, n % 64, 1, $1, $1
FROM generate_series(1, $2) AS n
"""
_AHEAD = """
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler)
SELECT given.id, given.id, 'occurrence', 'enqueue', n % 64, $1, $1, 1, 'default', 50, 'h'
FROM generate_series(1, $2) AS n
CROSS JOIN LATERAL (SELECT ('0173' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid AS id) AS given
"""


async def fill(store: Store, number: int) -> None:
    """Very many finished one-offs without history, older than all others."""
    async with store.database.connection() as connection:
        await connection.execute(_MANY, store.env.clock.now(), number)


async def test_a_search_among_very_many_jobs_reports_its_progress(
    store: Store, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 2_500)
    await enqueue(store, handler="test.echo")
    monkeypatch.setattr(listing, "SCAN_SECONDS", 0)
    monkeypatch.setattr(listing, "CHUNK", 1_000)

    pages = [(await client.get("/jobs", params={"handler": "nobody"})).json()]
    while pages[-1]["has_more"]:
        cursor = pages[-1]["next_cursor"]
        pages.append((await client.get("/jobs", params={"handler": "nobody", "cursor": cursor})).json())
    numbered = (await client.get("/jobs", params={"handler": "test.echo", "page": 1})).json()

    assert [len(page["data"]) for page in pages] == [0, 0, 0]
    assert [page.get("looked_at") for page in pages] == [1_000, 1_000, None]
    instants = [page["searched_to"] for page in pages[:-1]]
    assert instants == sorted(instants, reverse=True)
    assert [job["handler"] for job in numbered["data"]] == ["test.echo"]
    assert (numbered["total"], numbered["total_is_exact"]) == (1, False)


_FORGET = """
DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'timeball'::regnamespace);
UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE relnamespace = 'timeball'::regnamespace AND relkind = 'r';
"""
ROWS = 20_000
# A stretch of a thousand jobs, each with up to eight looks into rooms and history, of a few buffers each.
MOST_BUFFERS = 40 * 1_000


@pytest.mark.parametrize("belief", ["fresh statistics", "no statistics"])
async def test_a_chunk_of_a_scan_reads_only_its_rows(store: Store, belief: str) -> None:
    await fill(store, ROWS)
    async with store.database.connection() as connection:
        await connection.execute(_AHEAD, store.env.clock.now(), ROWS)
        await connection.execute("ANALYZE" if belief == "fresh statistics" else _FORGET)
    reader = QueryReader(store.database)

    for name, (wanted, _) in FILTERS.items():
        search = JobListQuery(reader, wanted, JobOrder.NEWEST, None)
        end = await search.end(None, 1_000)
        plan = await search.explain(None, end, 51)
        touched = sum(int(rows) * int(loops) for rows, loops in re.findall(r"rows=(\d+)(?:\.\d+)? loops=(\d+)", plan))
        removed = sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan)))
        buffers = max(sum(map(int, re.findall(r"(?:hit|read)=(\d+)", line))) for line in plan.splitlines())
        assert removed + touched <= 3_000, f"{name}:\n{plan}"
        assert buffers <= MOST_BUFFERS, f"{name}: {buffers} buffers\n{plan}"


@pytest.mark.parametrize("belief", ["fresh statistics", "no statistics"])
async def test_a_rare_value_is_found_by_an_index(store: Store, belief: str) -> None:
    await fill(store, ROWS)
    await furnish(store)
    async with store.database.connection() as connection:
        await connection.execute("ANALYZE" if belief == "fresh statistics" else _FORGET)
    reader = QueryReader(store.database)
    without = {"everything", "finished", "last succeeded", "handler", "queue", "payload", "payload in words"}

    for name, (wanted, expected) in FILTERS.items():
        led_to = await candidate_jobs(reader, wanted)
        assert (led_to is None) == (name in without), name
        assert led_to is None or len(expected) <= len(led_to) < 20, name
