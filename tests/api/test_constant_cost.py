"""A page costs the same with a hundred executions and with a hundred thousand."""

from __future__ import annotations

import re
from uuid import UUID

import httpx
import orjson
import pytest

from tests.support.factories import claim_all, enqueue, found, make_job, record
from tests.support.query_plans import rows_touched
from timeball.domain.execution import ExecutionState
from timeball.domain.search import ExecutionFilter, PageRequest, where
from timeball.domain.values.ids import JobId
from timeball.runtime import ServerRuntime
from timeball.store.db.statements import all_statements
from timeball.store.store import Store

ROWS = 60_000
MOST_BUFFERS = 900

_FILL = """
INSERT INTO timeball.finished (
    id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at, attempts, lost, fence
)
SELECT ('0193' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid, '01930000-0000-7000-8000-00000000ffff',
       CASE n % 1000 WHEN 0 THEN 'dead' ELSE 'succeeded' END, 'schedule', 1, 'default', 50, 'h', $1::timestamptz,
       $1::timestamptz - (n % 5) * interval '1 day', 1, 0, 1
FROM generate_series(1, $2) AS n
"""
_FILL_DUE = """
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler)
SELECT given.id, given.id, CASE n % 10000 WHEN 0 THEN 'retry' ELSE 'occurrence' END, 'enqueue', n % 64, $1, $1, 1, 'default', 50, 'h'
FROM generate_series(1, $2) AS n
CROSS JOIN LATERAL (SELECT ('0293' || lpad(to_hex(n), 8, '0') || '70008000000000000000')::uuid AS id) AS given
"""

FILTERS = {
    "all": ExecutionFilter(),
    "succeeded": ExecutionFilter(where(status=(ExecutionState.SUCCEEDED,))),
    "dead": ExecutionFilter(where(status=(ExecutionState.DEAD,))),
    "dead letters": ExecutionFilter(where(status=(ExecutionState.DEAD,), settled="no")),
    "retrying": ExecutionFilter(where(status=(ExecutionState.RETRYING,))),
    "scheduled": ExecutionFilter(where(status=(ExecutionState.SCHEDULED,))),
    "running": ExecutionFilter(where(status=(ExecutionState.RUNNING,))),
    "of a job": ExecutionFilter(job_id=JobId(UUID("01930000-0000-7000-8000-00000000ffff"))),
}


@pytest.mark.slow
async def test_pages_of_executions_are_read_in_the_order_of_an_index(store: Store, parts: ServerRuntime) -> None:
    now = store.env.clock.now()
    async with store.database.connection() as connection:
        await connection.execute(_FILL, now, ROWS)
        await connection.execute(_FILL_DUE, now, ROWS)
        await connection.execute("ANALYZE timeball.finished, timeball.due")

    for name, wanted in FILTERS.items():
        first = await parts.queries.executions.page(wanted, PageRequest(limit=50))
        request = PageRequest(limit=50, cursor=first.next_cursor)
        plan = await parts.dead_letters.explain_executions(wanted, request)

        buffers = max(sum(map(int, re.findall(r"(?:hit|read)=(\d+)", line))) for line in plan.splitlines())
        assert "Seq Scan on finished" not in plan, f"{name}:\n{plan}"
        assert buffers < MOST_BUFFERS, f"{name}: {buffers} buffers\n{plan}"

    # The latest execution of a job that has none is looked up by index, not by reading the history of other jobs.
    jobs = [(await make_job(store)).id for _ in range(10)]
    statement = all_statements()["job_situations"].numbered()
    async with store.database.connection() as connection:
        rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {statement}", jobs)
    buffers = max(sum(map(int, re.findall(r"(?:hit|read)=(\d+)", row[0]))) for row in rows)
    assert buffers < MOST_BUFFERS, f"{buffers} buffers\n" + "\n".join(row[0] for row in rows)


async def test_dead_letters_are_grouped_without_reading_the_history(store: Store) -> None:
    async with store.database.connection() as connection:
        await connection.execute(_FILL, store.env.clock.now(), 5_000)
        await connection.execute("UPDATE timeball.finished SET state = 'dead', fingerprint = substr(id::text, 13, 1)")
        await connection.execute("VACUUM ANALYZE timeball.finished")
        statement = all_statements()["dead_groups"]
        given = {"by": "error", "no_fingerprint": "none", "limit": 10_000, "groups": 10, "parts": 24, "now": None}
        explained = await connection.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.numbered()}", *(given[name] for name in statement.parameters)
        )

    scans = [scan for scan in rows_touched(orjson.loads(explained)[0]["Plan"]) if "on finished" in scan[0]]
    by_index = sum(rows for scan, rows in scans if scan.startswith("Index Only Scan"))
    of_history = sum(rows for scan, rows in scans if not scan.startswith("Index Only Scan"))
    # Every dead execution by the index, and the latest one of each listed group.
    assert (by_index, of_history) == (5_000, 10), scans


async def test_a_search_for_a_rare_value_reports_its_progress(
    store: Store, parts: ServerRuntime, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.database.connection() as connection:
        await connection.execute(_FILL, store.env.clock.now(), 5_000)
        await connection.execute(
            "UPDATE timeball.finished SET handler = 'rare' WHERE id IN (SELECT id FROM timeball.finished ORDER BY id LIMIT 1)"
        )
    monkeypatch.setattr("timeball.store.search.listing.CHUNK", 1_000)
    whole = (await client.get("/executions", params={"handler": "rare"})).json()

    monkeypatch.setattr("timeball.store.search.listing.SCAN_SECONDS", 0)
    pages = [(await client.get("/executions", params={"handler": "rare"})).json()]
    while pages[-1]["has_more"]:
        cursor = pages[-1]["next_cursor"]
        pages.append((await client.get("/executions", params={"handler": "rare", "cursor": cursor})).json())

    assert (len(whole["data"]), whole["has_more"], "searched_to" in whole) == (1, False, False)
    assert [len(page["data"]) for page in pages] == [0, 0, 0, 0, 1, 0]
    instants = [page["searched_to"] for page in pages[:-1]]
    assert instants == sorted(instants, reverse=True)
    assert pages[4]["data"] == whole["data"]


@pytest.mark.parametrize("stretch", [1, 2, 3, 7])
async def test_a_search_in_chunks_finds_what_one_scan_finds(
    store: Store, parts: ServerRuntime, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    for number in range(6):
        await enqueue(store, queue="ab"[number % 2])
    await record(store, [found(claimed) for claimed in (await claim_all(store))[:3]])
    await enqueue(store, after=3600, queue="a")
    wanted = ExecutionFilter(where(queue="a"))
    whole = await parts.queries.executions.page(wanted, PageRequest(limit=50))

    monkeypatch.setattr("timeball.store.search.listing.FIRST_CHUNK", stretch)
    monkeypatch.setattr("timeball.store.search.listing.CHUNK", stretch)
    monkeypatch.setattr("timeball.store.search.listing.SCAN_SECONDS", 0)
    found_ids: list[UUID] = []
    cursor: str | None = None
    while True:
        page = await parts.queries.executions.page(wanted, PageRequest(limit=2, cursor=cursor))
        found_ids += [execution.id for execution in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert len(whole.items) == 4
    assert found_ids == [execution.id for execution in whole.items]


async def test_totals_are_exact_to_ten_thousand_and_estimated_after(store: Store, parts: ServerRuntime) -> None:
    now = store.env.clock.now()
    async with store.database.connection() as connection:
        await connection.execute(_FILL, now, 12_000)
        await connection.execute("ANALYZE timeball.finished")

    many = await parts.queries.executions.page(ExecutionFilter(), PageRequest(limit=1, with_total=True))
    few = await parts.queries.executions.page(
        ExecutionFilter(where(status=(ExecutionState.DEAD,))), PageRequest(limit=1, with_total=True)
    )

    assert many.total is not None
    assert few.total is not None
    assert (many.total.is_exact, 10_001 <= many.total.count <= 20_000) == (False, True)
    assert (few.total.is_exact, few.total.count) == (True, 12)
