"""Block range summaries, by which a fold skips old days: rebuilt once a day is over, because an interrupted vacuum damages them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.store.verify.test_verify import ON_ONE_SERVER
from timeball.store.db.pool import Connection
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = ON_ONE_SERVER
DAY = timedelta(days=1)
_INDEX = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = $1::text::regclass AND pg_get_indexdef(indexrelid) LIKE '%brin%'"


@pytest.fixture
async def connection(store: Store) -> AsyncIterator[Connection]:
    made = await store.database.connect(without_timeout=True)
    yield made
    await made.close()


async def make_day(store: Store, clock: VirtualClock, connection: Connection) -> str:
    """The partition of today, with twenty block ranges of history without summaries."""
    today = clock.now().date()
    await store.history.add_day(today)
    partition = f"timeball.finished_{today:%Y%m%d}"
    await connection.execute(f"ALTER TABLE {partition} SET (autovacuum_enabled = off)")
    await connection.execute(
        """
        INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at,
                                       attempts, lost, fence, reason)
        SELECT gen_random_uuid(), gen_random_uuid(), 'skipped', 'schedule', 1, 'default', 50, 'h', $1, $1, 0, 0, 0, repeat('x', 100)
        FROM generate_series(1, 10000)
        """,
        clock.now(),
    )
    return partition


async def read_in_vain(connection: Connection, partition: str) -> int:
    """How many rows are read to find that none was recorded before all others."""
    await connection.execute("SET enable_seqscan = off")
    plan = await connection.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT FROM {partition} WHERE recorded < 0 AND recorded > -9"
    )
    return int(_recheck(json.loads(plan)[0]["Plan"]))


def _recheck(node: dict[str, Any]) -> int:
    below = sum(_recheck(child) for child in node.get("Plans", []))
    return below + node.get("Rows Removed by Index Recheck", 0)


async def interrupt_a_summary(connection: Connection, partition: str) -> None:
    """Interrupt the summarization until an index is damaged: then summarizing the rest does not help."""
    index = await connection.fetchval(_INDEX, partition)
    for attempt in range(200):
        await connection.execute(f"REINDEX INDEX {index}")
        await connection.execute(f"SELECT brin_desummarize_range('{index}', n) FROM generate_series(0, 400, 16) AS n")
        await connection.execute(f"SET statement_timeout = {1 + attempt % 5}")
        try:
            await connection.execute(f"SELECT brin_summarize_new_values('{index}')")
        except asyncpg.QueryCanceledError:
            pass
        finally:
            await connection.execute("SET statement_timeout = 0")
        await connection.execute(f"SELECT brin_summarize_range('{index}', n) FROM generate_series(0, 400, 16) AS n")
        if await read_in_vain(connection, partition):
            return
    raise AssertionError("no summarization could be interrupted")


async def test_the_summaries_of_a_past_day_are_rebuilt_once(
    store: Store, clock: VirtualClock, connection: Connection
) -> None:
    assert await store.history.summarize_until(clock.now().date()) == []
    partition = await make_day(store, clock, connection)
    await interrupt_a_summary(connection, partition)
    await connection.execute(f"VACUUM {partition}")
    assert await read_in_vain(connection, partition) > 0
    today = clock.now().date()
    assert await store.history.summarize_until(today) == []

    assert await store.history.summarize_until(today + DAY) == [today]

    assert await read_in_vain(connection, partition) == 0
    assert await store.history.summarize_until(today + DAY) == []


async def test_rebuilding_summaries_begins_with_the_present_day(
    store: Store, clock: VirtualClock, connection: Connection
) -> None:
    today = clock.now().date()
    for ago in range(3):
        await store.history.add_day(today - ago * DAY)

    assert await store.history.summarize_until(today) == []
    assert await store.history.summarize_until(today + 2 * DAY) == [today]


async def test_a_new_partition_ends_no_vacuum_of_another(
    store: Store, clock: VirtualClock, connection: Connection
) -> None:
    """A vacuum holds this lock; a transaction that waits for it cancels the vacuum."""
    partition = await make_day(store, clock, connection)
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {partition} IN SHARE UPDATE EXCLUSIVE MODE")

        await store.history.add_day(clock.now().date() + DAY)
