"""Nodes: their leases, and the owners of shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tests.support.factories import LEASE, make_node, make_owner, only_row, seconds, table
from timeball.domain.node import Lease, Node, NodeKind, NodeStatus
from timeball.domain.values.ids import Incarnation
from timeball.store.store import DEFAULT_SHARDS, Store
from timeball.store.types import ShardHolding
from timeball.testing import VirtualClock


async def own(store: Store, *shards: int) -> tuple[Incarnation, dict[int, int]]:
    """A living scheduler, and the shards that it took."""
    incarnation = await make_node(store, NodeKind.SCHEDULER)
    return incarnation, await store.nodes.take_shards(incarnation, shards)


class Shard(NamedTuple):
    """A shard, its owner, and whether the owner is alive."""

    owner: Incarnation | None
    epoch: int
    owner_lives: bool


async def shard(store: Store, number: int) -> Shard:
    (holding,) = [holding for holding in await store.nodes.holdings() if number in holding.epochs]
    return Shard(holding.owner, holding.epochs[number], holding.is_alive)


# leases


async def test_a_node_is_listed_as_it_registered(store: Store, clock: VirtualClock) -> None:
    node = Node(
        incarnation=Incarnation(store.env.new_id()),
        kind=NodeKind.WORKER,
        name="red",
        lease=Lease(span=seconds(21), interval=seconds(7)),
        slots=5,
        queues=("mail", "reports"),
        handlers=("app:h", "app:i"),
        version="1.2.3",
    )

    await store.nodes.register(node)

    registered_at = clock.now()
    expected = NodeStatus(
        incarnation=node.incarnation,
        kind=NodeKind.WORKER,
        name="red",
        started_at=registered_at,
        renewed_at=registered_at,
        lease_until=registered_at + seconds(21),
        slots=5,
        busy=0,
        queues=("mail", "reports"),
        handlers=("app:h", "app:i"),
        version="1.2.3",
        draining=False,
        shards=(),
    )
    assert await store.nodes.list() == [expected]

    clock.advance("20s")
    renewal = await store.nodes.renew(node.incarnation, busy=3)

    assert renewal is not None
    assert not renewal.is_draining
    renewed = replace(expected, renewed_at=clock.now(), lease_until=clock.now() + seconds(21), busy=3)
    assert await store.nodes.list() == [renewed]


async def test_a_node_that_serves_every_queue_names_none(store: Store) -> None:
    await make_node(store, queues=None)

    (status,) = await store.nodes.list()
    assert status.queues is None


async def test_a_renewal_returns_the_peers_of_a_worker(store: Store, clock: VirtualClock) -> None:
    """Including itself; no worker with other queues, handlers or broker, and none that drains or is dead."""
    alike: dict[str, Any] = {"slots": 5, "queues": ("mail", "reports"), "handlers": ("app:h", "app:i")}
    await make_node(store, **alike)
    clock.advance(LEASE.span)
    others = [{"queues": None}, {"queues": ("mail",)}, {"handlers": ("app:h",)}, {"broker": "redis"}]
    for other in others:
        await make_node(store, **alike | other)
    await store.nodes.drain(await make_node(store, **alike))
    await make_node(store, NodeKind.SCHEDULER, **alike)
    one, two = await make_node(store, **alike), await make_node(store, **alike | {"slots": 6})
    await store.nodes.renew(two, busy=4)

    renewal = await store.nodes.renew(one, busy=3)

    assert renewal is not None
    assert {peer.incarnation: (peer.slots, peer.busy) for peer in renewal.peers} == {one: (5, 0), two: (6, 4)}


async def test_workers_of_all_queues_are_peers(store: Store) -> None:
    one, two = await make_node(store), await make_node(store)

    renewal = await store.nodes.renew(one, busy=0)

    assert renewal is not None
    assert {peer.incarnation for peer in renewal.peers} == {one, two}


async def test_a_scheduler_has_no_peers(store: Store) -> None:
    await make_node(store)
    renewal = await store.nodes.renew(await make_node(store, NodeKind.SCHEDULER), busy=0)

    assert renewal is not None
    assert renewal.peers == []


async def test_an_expired_lease_is_not_renewed(store: Store, clock: VirtualClock) -> None:
    incarnation = await make_node(store)
    clock.advance(LEASE.span)

    assert await store.nodes.renew(incarnation, busy=0) is None
    assert (await only_row(store, "node"))["renewed_at"] < clock.now()


async def test_a_removed_node_does_not_come_back(store: Store, clock: VirtualClock) -> None:
    incarnation = await make_node(store, name="late")
    clock.advance(LEASE.span)
    assert await store.nodes.remove_expired() == []  # at its very last instant

    clock.advance("1ms")

    assert await store.nodes.remove_expired() == [(incarnation, NodeKind.WORKER, "late")]
    assert await store.nodes.renew(incarnation, busy=0) is None
    assert await store.nodes.list() == []


async def test_only_expired_nodes_are_removed(store: Store, clock: VirtualClock) -> None:
    await make_node(store, NodeKind.SCHEDULER, name="old")
    clock.advance("10s")
    young = await make_node(store)
    clock.advance("10s")

    assert [(kind, name) for _, kind, name in await store.nodes.remove_expired()] == [(NodeKind.SCHEDULER, "old")]
    assert [node.incarnation for node in await store.nodes.list()] == [young]


async def test_a_renewal_does_not_affect_other_nodes(store: Store, clock: VirtualClock) -> None:
    silent, renewing = await make_node(store), await make_node(store)
    clock.advance(LEASE.span / 2)

    await store.nodes.renew(renewing, busy=3)

    standing = {node.incarnation: (node.lease_until - clock.now(), node.busy) for node in await store.nodes.list()}
    assert standing == {silent: (LEASE.span / 2, 0), renewing: (LEASE.span, 3)}


async def test_an_inbox_is_served_by_living_workers_that_stay_and_use_the_broker(
    store: Store, clock: VirtualClock
) -> None:
    served = {"handlers": ("app:h",), "broker": "redis"}
    dead = await make_node(store, **served | {"handlers": ("app:dead",)})
    clock.advance(LEASE.span)
    for _ in range(2):
        await make_node(store, **served, queues=("mail",))
    leaving = await make_node(store, **served | {"handlers": ("app:leaving",)})
    await store.nodes.drain(leaving)
    await make_node(store, **served | {"broker": "rabbitmq"})
    await make_node(store, NodeKind.SCHEDULER, **served)

    assert dead in {node.incarnation for node in await store.nodes.list()}
    assert await store.nodes.inboxes("redis") == [(["mail"], ["app:h"])]


async def test_a_node_reads_its_draining_with_the_next_renewal(store: Store) -> None:
    incarnation = await make_node(store)

    assert await store.nodes.drain(incarnation)

    renewal = await store.nodes.renew(incarnation, busy=0)
    assert renewal is not None
    assert renewal.is_draining
    assert not await store.nodes.drain(Incarnation(store.env.new_id()))


async def test_a_reading_of_the_clock_lies_between_request_and_reply(store: Store) -> None:
    reading = await store.nodes.read_clock()

    assert reading.sent <= reading.received
    assert reading.database_time.utcoffset() == seconds(0)


# shards


async def test_a_new_database_has_its_number_of_shards_without_owners(store: Store) -> None:
    assert await store.nodes.holdings() == [ShardHolding(None, False, False, dict.fromkeys(range(DEFAULT_SHARDS), 0))]
    assert store.shards == DEFAULT_SHARDS


async def test_a_living_scheduler_takes_free_shards_each_with_a_new_epoch(store: Store) -> None:
    first, epochs = await own(store, 3, 4)

    assert epochs == {3: 1, 4: 1}
    assert await shard(store, 3) == Shard(first, 1, True)
    assert await shard(store, 5) == Shard(None, 0, False)
    assert await store.nodes.take_shards(first, [3]) == {}  # it is ours already
    (status,) = await store.nodes.list()
    assert status.shards == (3, 4)


async def test_a_living_scheduler_keeps_its_shards(store: Store) -> None:
    first, _ = await own(store, 3)

    _, epochs = await own(store, 3, 4)

    assert epochs == {4: 1}
    assert (await shard(store, 3)).owner == first


async def test_the_shards_of_a_dead_scheduler_are_taken(store: Store, clock: VirtualClock) -> None:
    dead, _ = await own(store, 3)
    clock.advance(LEASE.span)
    assert await shard(store, 3) == Shard(dead, 1, False)

    heir, epochs = await own(store, 3)

    assert epochs == {3: 2}
    assert await shard(store, 3) == Shard(heir, 2, True)


async def test_a_dead_scheduler_takes_no_shards(store: Store, clock: VirtualClock) -> None:
    incarnation = await make_node(store, NodeKind.SCHEDULER)
    clock.advance(LEASE.span)

    assert await store.nodes.take_shards(incarnation, [3]) == {}
    assert await store.nodes.take_shards(Incarnation(store.env.new_id()), [3]) == {}


async def test_a_released_shard_is_free_at_once_and_its_epoch_goes_on(store: Store) -> None:
    first, _ = await own(store, 3, 4)

    await store.nodes.release_shards(first, [3])

    assert await shard(store, 3) == Shard(None, 1, False)
    second, epochs = await own(store, 3, 4)
    assert epochs == {3: 2}
    await store.nodes.release_shards(first, [3])  # not its own any more
    assert (await shard(store, 3)).owner == second


async def test_a_deregistered_node_releases_everything_at_once(store: Store) -> None:
    owner = await make_owner(store)

    await store.nodes.remove(owner.incarnation)

    assert await table(store, "node") == []
    assert [holding.owner for holding in await store.nodes.holdings()] == [None]


async def test_a_deregistered_node_leaves_the_shards_of_others_alone(store: Store) -> None:
    leaving, _ = await own(store, 1)
    staying, _ = await own(store, 2)

    await store.nodes.remove(leaving)

    assert [(await shard(store, number)).owner for number in (1, 2)] == [None, staying]


async def test_living_schedulers_that_do_not_drain_take_shards(store: Store, clock: VirtualClock) -> None:
    await make_node(store, NodeKind.SCHEDULER)
    clock.advance("10s")
    await make_node(store, NodeKind.WORKER)
    drained = await make_node(store, NodeKind.SCHEDULER)
    await store.nodes.drain(drained)
    staying = await make_node(store, NodeKind.SCHEDULER)
    clock.advance("5s")

    holdings = await store.nodes.holdings()
    assert [holding.owner for holding in holdings if holding.takes_shards] == [staying]


async def test_holdings_have_every_owner_and_every_scheduler(store: Store, clock: VirtualClock) -> None:
    dead, _ = await own(store, 1, 7)
    clock.advance(LEASE.span)
    drained, _ = await own(store, 2)
    await store.nodes.drain(drained)
    busy, _ = await own(store, 4, 3)
    poor, _ = await own(store)
    await make_node(store, NodeKind.WORKER)

    holdings = {holding.owner: holding for holding in await store.nodes.holdings()}

    free = dict.fromkeys(set(range(DEFAULT_SHARDS)) - {1, 2, 3, 4, 7}, 0)
    assert holdings == {
        None: ShardHolding(None, False, False, free),
        dead: ShardHolding(dead, False, False, {1: 1, 7: 1}),
        drained: ShardHolding(drained, True, False, {2: 1}),
        busy: ShardHolding(busy, True, True, {3: 1, 4: 1}),
        poor: ShardHolding(poor, True, True, {}),
    }
