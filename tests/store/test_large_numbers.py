"""Counters near the ends of their ranges, and near those of 32 and 53 bits: nothing fails."""

from __future__ import annotations

import pytest

from tests.support.factories import (
    FAILURE,
    claim_all,
    enqueue,
    found,
    make_node,
    make_recurring,
    only_row,
    promote_due,
    record,
    table,
)
from timeball.domain.execution import Failed, Lost
from timeball.domain.node import NodeKind
from timeball.store.store import Store
from timeball.store.types import ShardOwnership
from timeball.testing import VirtualClock

INT4, DOUBLE, INT8 = 2**31 - 1, 2**53, 2**63 - 1


async def set_all(store: Store, table: str, **columns: int) -> None:
    settings = ", ".join(f"{column} = {value}" for column, value in columns.items())
    async with store.database.transaction() as connection:
        await connection.execute(f"UPDATE timeball.{table} SET {settings}")


@pytest.mark.parametrize("fence", [INT4, DOUBLE])
async def test_a_fence_grows_beyond_32_and_53_bits(store: Store, clock: VirtualClock, fence: int) -> None:
    """Fault 32."""
    execution = await enqueue(store)
    await set_all(store, "ready", fence=fence)

    (first,) = await claim_all(store)
    await record(store, [found(first, Lost(FAILURE))])
    (second,) = await claim_all(store)
    await record(store, [found(second, Failed(FAILURE, is_retryable=False))])

    assert (first.fence, second.fence) == (fence + 1, fence + 2)
    ended = await store.history.find(execution)
    assert ended is not None
    assert (ended.state, ended.fence) == ("dead", fence + 2)
    assert [attempt.fence for attempt in await store.history.attempts(execution)] == [fence + 1, fence + 2]


async def test_counters_stay_at_their_maximum(store: Store) -> None:
    """Fault 32. One row with a full counter must not stop the claims of all others."""
    await enqueue(store)
    await set_all(store, "ready", fence=INT8, attempts=INT4, lost=INT4)
    await enqueue(store)

    claims = await claim_all(store)
    await store.executions.finish_succeeded([found(claimed) for claimed in claims])

    assert sorted(row["attempts"] for row in await table(store, "finished")) == [1, INT4]
    assert sorted(row["fence"] for row in await table(store, "finished")) == [1, INT8]


async def test_epochs_grow_beyond_32_and_53_bits(store: Store, clock: VirtualClock) -> None:
    """Fault 32."""
    await make_recurring(store, 60)
    await set_all(store, "shard", epoch=DOUBLE)
    scheduler = await make_node(store, NodeKind.SCHEDULER)
    epochs = await store.nodes.take_shards(scheduler, range(store.shards))
    clock.advance("60s")

    await promote_due(store, ShardOwnership(scheduler, epochs))

    assert set(epochs.values()) == {DOUBLE + 1}
    assert (await only_row(store, "ready"))["fence"] == 0
