"""The change stream: all events since a position, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from tests.support.factories import FAILURE, claim_all, enqueue, found, make_recurring, record, seconds
from timeball.application.commands import Commands
from timeball.domain.execution import Failed
from timeball.domain.values.ids import ExecutionId, format_execution_id
from timeball.store.db.pool import Connection
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


async def succeed(store: Store, **fields: object) -> ExecutionId:
    execution_id = await enqueue(store, **fields)
    await record(store, [found(claimed) for claimed in await claim_all(store)])
    return execution_id


async def fail(store: Store, **fields: object) -> ExecutionId:
    """It waits for its retry."""
    execution_id = await enqueue(store, **fields)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    return execution_id


async def pause(store: Store) -> None:
    await Commands(store, store.env).jobs.pause((await make_recurring(store)).id)


SOURCES: dict[str, tuple[Callable[[Store], Awaitable[object]], str]] = {
    "finished": (succeed, "execution.succeeded"),
    "attempt": (fail, "attempt.failed"),
    "audit": (pause, "job.pause"),
}


async def types_since(store: Store, position: str) -> list[str]:
    return [one.type for one in (await store.changes.since(position, 100)).events]


@pytest.mark.parametrize("source", SOURCES)
async def test_events_are_not_repeated(store: Store, source: str) -> None:
    happen, what = SOURCES[source]
    position = await store.changes.position()
    await happen(store)

    told = await store.changes.since(position, 100)

    assert what in [one.type for one in told.events]
    assert await types_since(store, told.position) == []


@pytest.mark.parametrize("source", SOURCES)
async def test_events_that_commit_after_the_position_are_read(store: Store, source: str) -> None:
    """Although its transaction is older than others that were seen."""
    happen, what = SOURCES[source]
    async with store.database.transaction() as slow:
        await slow.execute("SELECT pg_current_xact_id()")
        await happen(store)
        position = await store.changes.position()
        await belongs_to(slow, source)

    assert [one for one in await types_since(store, position) if one != "execution.started"] == [what]


async def belongs_to(transaction: Connection, source: str) -> None:
    """Set the transaction that recorded the rows."""
    await transaction.execute(f"UPDATE timeball.{source} SET recorded = pg_current_xact_id()::text::bigint")


async def test_the_limit_holds_for_each_kind_of_event(store: Store) -> None:
    position = await store.changes.position()
    for happen, _ in SOURCES.values():
        for _ in range(4):
            await happen(store)

    rows = await store.database.fetch("changes", position=position, limit=3, transactions=None)

    assert Counter(row["source"] for row in rows) == dict.fromkeys(SOURCES, 3)
    told = await store.changes.since(position, 3)
    assert (told.is_complete, told.events) == (False, [])


async def test_an_attempt_event_names_its_execution(store: Store) -> None:
    await enqueue(store, after=60, queue="other")
    position = await store.changes.position()
    failed = await fail(store, queue="mail")

    started, ended = (await store.changes.since(position, 100)).events

    assert {(one.subject, one.queue) for one in (started, ended)} == {(format_execution_id(failed), "mail")}


async def test_the_start_of_the_last_attempt_is_one_event(store: Store) -> None:
    position = await store.changes.position()
    await fail(store, max_retries=0)

    assert await types_since(store, position) == ["execution.started", "attempt.failed", "execution.dead"]


async def test_events_are_in_the_order_of_time(store: Store, clock: VirtualClock) -> None:
    position = await store.changes.position()
    for happen in (fail, pause, succeed):
        clock.advance("1m")
        await happen(store)

    told = (await store.changes.since(position, 100)).events

    ends = [one for one in told if one.type != "execution.started"]
    assert [one.type for one in ends] == ["attempt.failed", "job.pause", "execution.succeeded"]
    assert [one.at for one in ends] == sorted(one.at for one in ends)


async def test_started_returns_the_latest_running_executions(store: Store, clock: VirtualClock) -> None:
    held = await enqueue(store, after=0.4)
    await claim_all(store, slots=0, holds=1)
    clock.advance("100ms")
    begun = await enqueue(store)
    await claim_all(store)
    assert await begun_now(store) == [(format_execution_id(begun), clock.now())], "what is held has not begun"

    clock.advance("1s")

    dropped_at = clock.now() - seconds(0.7)
    told = [(format_execution_id(begun), dropped_at - seconds(0.3)), (format_execution_id(held), dropped_at)]
    assert await begun_now(store) == told, "when it was dropped, and not when it was claimed"
    assert await begun_now(store, most=1) == told[1:]


async def begun_now(store: Store, most: int = 100) -> list[tuple[str, datetime]]:
    return [(one.subject, one.at) for one, _ in await store.changes.started(most)]
