"""The rollups kept up to date: every few seconds, by the housekeeper alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.support import Heard, settle, start_worker
from tests.support.factories import enqueue, table
from timeball.config.settings import HousekeepingSettings
from timeball.engine.scheduler.housekeeping import RollupWriter
from timeball.env import Env
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


@pytest.fixture
def make_bookkeeper(store: Store, env: Env, heard: Heard) -> Callable[..., RollupWriter]:
    def make(*, is_housekeeper: bool = True) -> RollupWriter:
        return RollupWriter(env, heard, store.rollups, HousekeepingSettings(), lambda: is_housekeeper)

    return make


async def test_what_has_ended_is_in_the_rollups_within_seconds(
    store: Store, clock: VirtualClock, make_bookkeeper: Callable[..., RollupWriter]
) -> None:
    worker = await start_worker(store)
    rollup_writer = make_bookkeeper()
    await settle(rollup_writer)
    await enqueue(store)
    await worker.work()

    await settle(rollup_writer)
    assert await table(store, "rollup") == [], "not before its time: folding costs something too"
    clock.advance("5s")
    await settle(rollup_writer)

    assert {row["span"]: row["succeeded"] for row in await table(store, "rollup")} == {
        "minute": 1,
        "hour": 1,
        "ever": 1,
    }


async def test_only_the_housekeeper_folds(store: Store, make_bookkeeper: Callable[..., RollupWriter]) -> None:
    await enqueue(store)
    await (await start_worker(store)).work()

    await settle(make_bookkeeper(is_housekeeper=False))

    assert await table(store, "rollup") == []


async def test_old_minutes_go_in_passing(
    store: Store, clock: VirtualClock, make_bookkeeper: Callable[..., RollupWriter]
) -> None:
    await enqueue(store)
    await (await start_worker(store)).work()
    rollup_writer = make_bookkeeper()
    await settle(rollup_writer)

    clock.advance("9d")
    await settle(rollup_writer)

    assert {row["span"] for row in await table(store, "rollup")} == {"hour", "ever"}
