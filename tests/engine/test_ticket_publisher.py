"""Tickets for what is ready: of the queues that are ours, at most so many, and again for what stays unclaimed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.engine.support import IMMORTAL, Heard, start_scheduler
from tests.support.factories import HANDLER, OPERATOR, claim_all, enqueue, found, make_node, record
from timeball.brokers.base import BrokerHealth, Inbox
from timeball.brokers.redis import RedisBroker
from timeball.domain.execution import Released
from timeball.domain.values.ids import ExecutionId
from timeball.domain.wakeup import Wakeup
from timeball.engine import tickets as module
from timeball.engine.tickets import TicketPublisher, shard_of_queue
from timeball.store.store import Store
from timeball.telemetry.events import BrokerLost, BrokerRecovered, TicketsPublished
from timeball.testing import VirtualClock

MINE = Inbox.of(None, [HANDLER])
AT_ONCE = timedelta(milliseconds=20)


@dataclass
class Post:
    """A dispatcher, its broker, and what workers would receive."""

    ticket_publisher: TicketPublisher
    broker: RedisBroker
    heard: Heard

    async def received(self, inbox: Inbox = MINE) -> list[ExecutionId]:
        return [ticket.id for ticket in await self.broker.receive(inbox.name, 100, AT_ONCE)]

    async def sweep(self) -> list[ExecutionId]:
        """What a sweep publishes."""
        self.ticket_publisher.on_wakeup(Wakeup(look_everywhere=True))
        await self.ticket_publisher.tick()
        return await self.received()


@pytest.fixture
async def open_post(store: Store, redis_port: int) -> AsyncIterator[Callable[..., Awaitable[Post]]]:
    brokers: list[RedisBroker] = []

    async def open_one(port: int = redis_port) -> Post:
        broker = RedisBroker(f"redis://127.0.0.1:{port}/0", await store.tickets.namespace())
        brokers.append(broker)
        scheduler, heard = await start_scheduler(store), Heard()
        return Post(
            TicketPublisher(store.env, heard, store, broker, BrokerHealth(heard, broker.kind), scheduler.shards),
            broker,
            heard,
        )

    yield open_one
    for broker in brokers:
        await broker.close()


@pytest.fixture
async def post(open_post: Callable[..., Awaitable[Post]], store: Store) -> Post:
    """A dispatcher that owns every queue, and a worker on its broker."""
    await make_worker(store)
    return await open_post()


async def make_worker(store: Store, *handlers: str, **fields: Any) -> None:
    await make_node(store, broker="redis", handlers=handlers or (HANDLER,), lease=IMMORTAL, **fields)


async def test_what_is_ready_gets_one_ticket_the_most_urgent_first(post: Post, store: Store) -> None:
    low, high = await enqueue(store, priority=10), await enqueue(store, priority=90)

    assert await post.sweep() == [high, low]
    assert await post.sweep() == []
    assert post.heard.of(TicketsPublished) == [TicketsPublished(2, 0)]


async def test_a_wakeup_is_enough(post: Post, store: Store, clock: VirtualClock) -> None:
    await post.sweep()
    soon = await enqueue(store, after=0.2)
    wakeup = Wakeup()
    wakeup.add_lane("default", 50, clock.now())

    post.ticket_publisher.on_wakeup(wakeup)
    await post.ticket_publisher.tick()

    assert await post.received() == [soon], "what is promoted gets its ticket before its time"


async def test_of_two_wakeups_for_a_lane_the_earlier_instant_counts(
    post: Post, store: Store, clock: VirtualClock
) -> None:
    await post.sweep()
    ready = await enqueue(store)

    for after in (0, 60):
        wakeup = Wakeup()
        wakeup.add_lane("default", 50, clock.now() + timedelta(seconds=after))
        post.ticket_publisher.on_wakeup(wakeup)
    await post.ticket_publisher.tick()

    assert await post.received() == [ready]


async def test_a_wakeup_for_a_queue_of_another_scheduler_is_left_to_it(post: Post, clock: VirtualClock) -> None:
    await post.sweep()
    post.ticket_publisher._shards.epochs.clear()
    post.ticket_publisher._woken.clear()
    wakeup = Wakeup()
    wakeup.add_lane("default", 50, clock.now())

    post.ticket_publisher.on_wakeup(wakeup)

    assert not post.ticket_publisher._woken.is_set()


async def test_a_new_worker_gets_tickets_with_the_wakeup_about_it(
    open_post: Callable[..., Awaitable[Post]], store: Store
) -> None:
    post = await open_post()
    ready = await enqueue(store)
    assert await post.sweep() == []
    await make_worker(store)

    post.ticket_publisher.on_wakeup(Wakeup(nodes_changed=True))
    await post.ticket_publisher.tick()

    assert await post.received() == [ready]


async def test_what_stays_unclaimed_gets_another_ticket_with_doubling_delay(
    post: Post, store: Store, clock: VirtualClock
) -> None:
    unlucky = await enqueue(store)
    published_after = []

    for second in range(40):
        if await post.sweep() == [unlucky]:
            published_after.append(second)
        clock.advance(1)

    assert published_after == [0, 2, 6, 14, 30]


async def test_what_was_claimed_and_given_back_gets_another_ticket_at_once(post: Post, store: Store) -> None:
    await enqueue(store)
    (first,) = await post.sweep()
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Released(), started_at=None)])

    assert await post.sweep() == [first]


async def test_no_more_than_the_first_of_a_queue_have_a_ticket(
    post: Post, store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TICKETS", 3)
    ids = [await enqueue(store, priority=90 - place) for place in range(5)]
    other = await enqueue(store, queue="other", priority=0)

    assert await post.sweep() == [*ids[:3], other]
    wakeup = Wakeup()
    wakeup.add_lane("default", 86, clock.now())
    post.ticket_publisher.on_wakeup(wakeup)
    await post.ticket_publisher.tick()
    assert await post.received() == [], "a wake-up does not open the window"
    await claim_all(store, slots=2)
    assert await post.sweep() == ids[3:]


async def test_claimed_executions_do_not_count_against_the_window(
    post: Post, store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TICKETS", 1)
    await enqueue(store)
    await post.sweep()
    await claim_all(store)
    await post.sweep()
    next_one = await enqueue(store)
    wakeup = Wakeup()
    wakeup.add_lane("default", 50, clock.now())

    post.ticket_publisher.on_wakeup(wakeup)
    await post.ticket_publisher.tick()

    assert await post.received() == [next_one]


async def test_queues_of_other_schedulers_are_left_to_them(
    post: Post, open_post: Callable[..., Awaitable[Post]], store: Store
) -> None:
    second = await open_post()
    first_shards, second_shards = post.ticket_publisher._shards, second.ticket_publisher._shards
    for shards in (first_shards, second_shards, first_shards):
        await shards.tick()
    ids = {await enqueue(store, queue=f"queue-{number}"): f"queue-{number}" for number in range(12)}

    mine, theirs = await post.sweep(), await second.sweep()

    assert sorted(mine + theirs) == sorted(ids)
    assert mine
    assert theirs
    assert all(shard_of_queue(ids[id_], store.shards) in first_shards.epochs for id_ in mine)


async def test_only_workers_that_can_run_it_get_a_ticket(
    open_post: Callable[..., Awaitable[Post]], store: Store
) -> None:
    post = await open_post()
    await make_worker(store, HANDLER, "tests:mail")
    await make_worker(store, HANDLER, queues=("default",))
    both, mail = await enqueue(store), await enqueue(store, handler="tests:mail")
    elsewhere = await enqueue(store, queue="elsewhere")
    await enqueue(store, handler="tests:unknown")

    await post.ticket_publisher.tick()

    assert set(await post.received(Inbox.of(None, [HANDLER, "tests:mail"]))) == {both, mail, elsewhere}
    assert await post.received(Inbox.of(["default"], [HANDLER])) == [both]


async def test_paused_and_limited_queues_get_no_tickets(post: Post, store: Store) -> None:
    for queue, state in {"paused": {"is_paused": True}, "limited": {"max_running": 3}}.items():
        wanted: dict[str, Any] = {"is_paused": False, "max_running": None} | state
        await store.queues.change(queue, **wanted, reason=None, audit=OPERATOR, action="queue.set")
        await enqueue(store, queue=queue)

    assert await post.sweep() == []


async def test_without_a_worker_on_the_broker_nothing_is_published(
    open_post: Callable[..., Awaitable[Post]], store: Store
) -> None:
    post = await open_post()
    await make_node(store, handlers=(HANDLER,))
    await enqueue(store)

    assert await post.sweep() == []


async def test_a_flushed_broker_is_filled_again(post: Post, store: Store, clock: VirtualClock, redis_port: int) -> None:
    waiting = await enqueue(store)
    post.ticket_publisher.on_wakeup(Wakeup(look_everywhere=True))
    await post.ticket_publisher.tick()
    async with Redis.from_url(f"redis://127.0.0.1:{redis_port}/0") as redis:
        for key in await redis.keys(f"timeball:{await store.tickets.namespace()}:*"):
            await redis.delete(key)
    clock.advance(2)

    assert await post.sweep() == [waiting]


async def test_an_unreachable_broker_is_told_once_and_nothing_is_thought_to_be_out(
    open_post: Callable[..., Awaitable[Post]], store: Store, redis_port: int
) -> None:
    await make_worker(store)
    waiting = await enqueue(store)
    post = await open_post()
    good, bad = post.broker, RedisBroker("redis://127.0.0.1:1/0", await store.tickets.namespace())

    for broker in (good, bad, bad, good):
        post.ticket_publisher._broker = broker
        post.ticket_publisher.on_wakeup(Wakeup(look_everywhere=True))
        await post.ticket_publisher.tick()

    told = [type(event) for event in post.heard if not isinstance(event, TicketsPublished)]
    assert told == [BrokerRecovered, BrokerLost, BrokerRecovered]
    assert post.heard.of(TicketsPublished) == [TicketsPublished(1, 0)] * 2, "whether the first arrived is unknown"
    assert await post.received() == [waiting]
