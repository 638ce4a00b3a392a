"""Who owns which shard: shared fairly, taken over from the dead, handed over by the leaving, each acquisition a new epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.engine.support import IMMORTAL, MORTAL, ManualScheduler, start_scheduler, start_worker
from tests.support.factories import table
from timeball.domain.node import fair_share
from timeball.domain.values.ids import Incarnation
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.telemetry.events import ShardsChanged
from timeball.testing import VirtualClock


async def owners(store: Store) -> dict[int, Incarnation | None]:
    return {row["id"]: row["owner"] for row in await table(store, "shard")}


async def epochs(store: Store) -> dict[int, int]:
    return {row["id"]: row["epoch"] for row in await table(store, "shard")}


async def share_out(*nodes: ManualScheduler) -> None:
    """Two rounds: one to give up, one to take."""
    for _ in range(2):
        for node in nodes:
            await node.shards.tick()


async def renew(*nodes: ManualScheduler) -> None:
    for node in nodes:
        assert await node.store.nodes.renew(node.incarnation, 0) is not None


async def test_a_single_scheduler_owns_everything_and_keeps_house(store: Store) -> None:
    node = await start_scheduler(store)

    assert set((await owners(store)).values()) == {node.incarnation}
    assert node.shards.epochs == await epochs(store) == dict.fromkeys(range(store.shards), 1)
    assert node.shards.is_housekeeper
    assert node.heard.of(ShardsChanged) == [ShardsChanged(64, 0, 64)]


@pytest.mark.parametrize("number", [2, 3, 5])
async def test_several_share_fairly_and_nothing_is_left_over(store: Store, number: int) -> None:
    nodes = [await start_scheduler(store) for _ in range(number)]

    await share_out(*nodes)

    sizes = [len(node.shards.epochs) for node in nodes]
    assert sum(sizes) == store.shards
    assert max(sizes) - min(sizes) <= 1
    assert sum(node.shards.is_housekeeper for node in nodes) == 1
    by_row = Counter((await owners(store)).values())
    assert by_row == {node.incarnation: len(node.shards.epochs) for node in nodes}


async def test_what_they_believe_is_what_the_database_says(store: Store) -> None:
    nodes = [await start_scheduler(store) for _ in range(3)]

    await share_out(*nodes)

    rows = await table(store, "shard")
    for node in nodes:
        assert node.shards.epochs == {row["id"]: row["epoch"] for row in rows if row["owner"] == node.incarnation}


async def test_a_settled_share_is_left_alone(store: Store) -> None:
    nodes = [await start_scheduler(store) for _ in range(2)]
    await share_out(*nodes)
    before = await epochs(store)
    for node in nodes:
        node.heard.clear()

    await share_out(*nodes)

    assert await epochs(store) == before
    assert [node.heard for node in nodes] == [[], []]


async def test_the_share_is_computed_when_a_scheduler_comes_or_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_scheduler(store)
    computed: list[int] = []

    def counted(shards: Sequence[int], living: Sequence[Incarnation]) -> dict[int, Incarnation]:
        computed.append(len(living))
        return fair_share(shards, living)

    monkeypatch.setattr("timeball.engine.scheduler.shards.fair_share", counted)
    await share_out(node, node)
    newcomer = await start_scheduler(store, takes=False)
    await share_out(node, node)
    await store.nodes.remove(newcomer.incarnation)
    await share_out(node, node)

    assert computed == [2, 1]


async def test_what_could_not_be_taken_is_asked_for_again_though_nothing_has_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_scheduler(store, takes=False)

    async def nothing(_incarnation: Incarnation, _ids: Sequence[int]) -> dict[int, int]:
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(store.nodes, "take_shards", nothing)
        await node.shards.tick()
    assert node.shards.epochs == {}

    await node.shards.tick()
    assert len(node.shards.epochs) == store.shards


async def test_a_newcomer_is_given_its_share_and_little_else_moves(store: Store) -> None:
    nodes = [await start_scheduler(store) for _ in range(3)]
    await share_out(*nodes)
    before = await owners(store)

    newcomer = await start_scheduler(store, takes=False)
    await share_out(*nodes, newcomer)

    after = await owners(store)
    moved = [shard for shard in after if after[shard] not in (before[shard], newcomer.incarnation)]
    assert len(newcomer.shards.epochs) == 16
    assert len(moved) < 12


async def test_nothing_is_taken_from_the_living(store: Store) -> None:
    first = await start_scheduler(store)

    second = await start_scheduler(store)

    assert second.shards.epochs == {}, "what is its share is still owned: it has to be given up first"
    assert await store.nodes.take_shards(second.incarnation, range(store.shards)) == {}, "even if it did not know that"
    assert set((await owners(store)).values()) == {first.incarnation}


async def test_the_dead_take_nothing(store: Store, clock: VirtualClock) -> None:
    dead = await start_scheduler(store, MORTAL, takes=False)
    clock.advance("11s")

    assert await store.nodes.take_shards(dead.incarnation, range(store.shards)) == {}


async def test_the_shards_of_the_dead_are_taken_over_when_their_lease_has_passed(
    store: Store, clock: VirtualClock
) -> None:
    doomed, survivor = await start_scheduler(store, MORTAL), await start_scheduler(store, IMMORTAL)
    await share_out(doomed, survivor)
    half = len(survivor.shards.epochs)

    clock.advance(MORTAL.span - timedelta(milliseconds=1))
    await survivor.shards.tick()
    assert len(survivor.shards.epochs) == half

    clock.advance(timedelta(milliseconds=1))
    await survivor.shards.tick()
    assert len(survivor.shards.epochs) == store.shards
    assert set((await owners(store)).values()) == {survivor.incarnation}


async def test_a_renewed_lease_keeps_its_shards(store: Store, clock: VirtualClock) -> None:
    alive, other = await start_scheduler(store, MORTAL), await start_scheduler(store)
    await share_out(alive, other)

    for _ in range(5):
        clock.advance("9s")
        await renew(alive)
        await other.shards.tick()

    assert len(other.shards.epochs) == store.shards / 2


async def test_shards_of_removed_nodes_are_free(store: Store, clock: VirtualClock) -> None:
    doomed, survivor = await start_scheduler(store, MORTAL), await start_scheduler(store)
    await share_out(doomed, survivor)
    clock.advance("11s")

    await store.nodes.remove_expired()
    await survivor.shards.tick()

    assert len(survivor.shards.epochs) == store.shards


async def test_a_clean_leave_hands_over_at_once(store: Store) -> None:
    leaver, other = await start_scheduler(store), await start_scheduler(store)
    await share_out(leaver, other)

    await store.nodes.remove(leaver.incarnation)
    assert set((await owners(store)).values()) == {other.incarnation, None}
    await other.shards.tick()

    assert len(other.shards.epochs) == store.shards


async def test_a_draining_scheduler_gives_its_shards_up(store: Store) -> None:
    draining, other = await start_scheduler(store), await start_scheduler(store)
    await share_out(draining, other)

    await store.nodes.drain(draining.incarnation)
    await share_out(draining, other)

    assert draining.shards.epochs == {}
    assert len(other.shards.epochs) == store.shards


async def test_one_that_slept_through_its_own_death_lets_go(store: Store, clock: VirtualClock) -> None:
    sleeper = await start_scheduler(store, MORTAL)
    clock.advance("11s")

    await sleeper.shards.tick()

    assert sleeper.shards.epochs == {}
    assert set((await owners(store)).values()) == {None}


async def test_every_acquisition_is_a_new_epoch(store: Store) -> None:
    seen = []
    for _ in range(3):
        node = await start_scheduler(store)
        seen.append(node.shards.epochs[7])
        await store.nodes.remove(node.incarnation)

    assert seen == [1, 2, 3]


async def test_workers_have_no_share(store: Store) -> None:
    node = await start_scheduler(store)
    await start_worker(store)

    await node.shards.tick()

    assert len(node.shards.epochs) == store.shards


async def test_what_is_to_be_given_up_is_forgotten_even_if_the_release_fails(store: Store, env: Env) -> None:
    """Between the decision and its record another may already have been told to take it."""
    first = await start_scheduler(store)
    await start_scheduler(store, takes=False)

    def cut(point: str) -> None:
        if point == "release_shards.before":
            raise StoreUnavailable("the connection was cut")

    env.fault = cut
    with pytest.raises(StoreUnavailable):
        await first.shards.tick()

    assert len(first.shards.epochs) == store.shards / 2
    env.fault = lambda _: None
    await first.shards.tick()
    assert len([owner for owner in (await owners(store)).values() if owner is None]) == store.shards / 2


async def test_the_scheduler_is_told_when_it_has_gained_something_and_only_then(store: Store) -> None:
    node = await start_scheduler(store)
    gains = []
    shards = ShardBalancer(store.env, node.heard, store.nodes, node.incarnation, lambda: gains.append(1))

    await shards.tick()
    await shards.tick()
    assert len(gains) == 1

    guest = await start_scheduler(store, takes=False)
    await share_out(guest)
    await shards.tick()
    await store.nodes.remove(guest.incarnation)
    await shards.tick()
    assert len(gains) == 2
