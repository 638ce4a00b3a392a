"""A page of the ledger costs the same whether its span is an hour or the whole history of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest

from tests.support.factories import make_recurring
from timeball.domain.values.ids import first_id_at
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.testing import VirtualClock

DAYS, ADAY = 20, 1_440
# An index has a few levels, and a page of fifty rows lies on a few pages of each day that it touches.
MOST_PAGES = 12 * DAYS + 60

FILL = """
INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, started_at, finished_at,
                               attempts, lost, fence, reason)
SELECT encode(substring(int8send((extract(epoch FROM at) * 1000)::bigint) FROM 3) || '\\x800080000000000000ff'::bytea, 'hex')::uuid,
       $1, CASE WHEN n % 1000 = 0 THEN 'skipped' ELSE 'succeeded' END, 'schedule', 1, 'default', 50, 'tests:noop', at, at, at, 1, 0, 1,
       CASE WHEN n % 1000 = 0 THEN 'overlap' END
FROM generate_series(1, $2) AS n
CROSS JOIN LATERAL (SELECT $3::timestamptz + n * interval '1 minute' AS at) AS instant
"""


async def pages_read(store: Store, name: str, given: dict[str, Any]) -> int:
    """How many pages of tables and indexes a statement reads, once it is planned."""
    statement = all_statements()[name]
    values = [given.get(parameter) for parameter in statement.parameters]
    async with store.database.connection() as connection:
        for _ in range(2):
            told = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.numbered()}", *values)
    plan = orjson.loads(told)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
async def test_a_page_reads_as_much_of_all_days_as_of_one(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, every=60)
    begin = clock.now()
    for day in range(DAYS + 1):
        await store.history.add_day((begin + timedelta(days=day)).date())
    async with store.database.connection() as connection:
        await connection.execute(FILL, job.id, DAYS * ADAY, begin)

    def window(days: int) -> dict[str, Any]:
        since, until = begin, begin + timedelta(days=days)
        ids = {"low": UUID(int=first_id_at(since).int - 1), "high": first_id_at(until)}
        return {"job_id": job.id, "limit": 51, "since": since, "until": until} | ids

    for name in ("ledger_records", "ledger_records_back", "ledger_skips", "ledger_skips_back"):
        day, everything = [await pages_read(store, name, window(days)) for days in (1, DAYS)]

        assert everything <= MOST_PAGES, name
        assert everything <= 2 * day + 60, name
