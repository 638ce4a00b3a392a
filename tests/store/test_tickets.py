"""Claims by ticket, which follow every rule of claims; and the executions that get a ticket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.support.factories import (
    ALWAYS,
    FROM_THE_FIRST,
    HANDLER,
    OPERATOR,
    claim_all,
    enqueue,
    found,
    make_node,
    record,
    seconds,
    tables_of,
)
from timeball.domain.execution import Released
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ReadyExecution, TicketClaimResult
from timeball.testing import VirtualClock


async def claim(
    store: Store,
    ids: Sequence[ExecutionId],
    slots: int = 10,
    holds: int = 0,
    queues: list[str] | None = None,
    **request: Any,
) -> TicketClaimResult:
    wanted = ClaimRequest(Incarnation(store.env.new_id()), request.pop("handlers", [HANDLER]), slots, holds)
    return await store.tickets.claim(wanted, ids, queues, ClaimId(store.env.new_id()))


async def read(store: Store, limit: int = 10, handlers: Sequence[str] = (HANDLER,)) -> list[ReadyExecution]:
    lanes = dict.fromkeys(await store.executions.lanes(), ALWAYS)
    return await store.tickets.read(lanes, handlers, limit)


async def set_queue(store: Store, name: str, *, is_paused: bool = False, max_running: int | None = None) -> None:
    await store.queues.change(
        name, is_paused=is_paused, max_running=max_running, reason=None, audit=OPERATOR, action="queue.set"
    )


# claims


async def test_tickets_for_what_is_gone_claim_nothing(store: Store) -> None:
    running, finished = [await enqueue(store) for _ in range(2)]
    claims = {claimed.id: claimed for claimed in await claim_all(store)}
    await store.executions.finish_succeeded([found(claims[finished])])

    again = await claim(store, [running, finished, ExecutionId(store.env.new_id())])

    assert again == TicketClaimResult([], [])
    assert await tables_of(store, running) == ["running"]
    assert await tables_of(store, finished) == ["finished"]


async def test_a_ticket_for_what_has_expired_claims_nothing(store: Store, clock: VirtualClock) -> None:
    expired = await enqueue(store, start_within_seconds=5)
    clock.advance("5s")
    await store.executions.expire_waiting(10)

    assert await claim(store, [expired]) == TicketClaimResult([], [])
    assert await tables_of(store, expired) == ["finished"]


async def test_the_same_ticket_twice_is_one_claim(store: Store) -> None:
    one, two = [await enqueue(store) for _ in range(2)]

    claims = await claim(store, [one, one, two, one], slots=2)

    assert sorted(claimed.id for claimed in claims.executions) == sorted([one, two])


async def test_many_workers_with_the_same_tickets_share_them(store: Store) -> None:
    ids = [await enqueue(store) for _ in range(30)]

    all_claims = await asyncio.gather(*(claim(store, ids) for _ in range(5)))
    all_claims += [await claim(store, ids, slots=30)]

    given = [claimed.id for claims in all_claims for claimed in claims.executions]
    assert sorted(given) == sorted(ids)


async def test_the_most_urgent_tickets_get_the_slots_and_the_others_are_returned(store: Store) -> None:
    low, high, middle = [await enqueue(store, priority=priority) for priority in (10, 90, 50)]

    claims = await claim(store, [low, high, middle], slots=2)

    assert [claimed.id for claimed in claims.executions] == [high, middle]
    assert claims.left == [low]


async def test_a_ticket_before_its_instant_is_held_and_takes_no_slot(store: Store, clock: VirtualClock) -> None:
    now, soon, later = [await enqueue(store, after=after) for after in (0, 0.1, 0.2)]

    claims = await claim(store, [later, soon, now], slots=1, holds=1)

    assert {claimed.id for claimed in claims.executions} == {now, soon}
    assert claims.left == [later]
    assert await claim(store, [later], slots=1, holds=0) == TicketClaimResult([], [later])


async def test_only_handlers_and_queues_of_the_worker_are_claimed(store: Store) -> None:
    foreign, elsewhere = await enqueue(store, handler="tests:other"), await enqueue(store, queue="elsewhere")

    claims = await claim(store, [foreign, elsewhere], queues=["default", "mail"])

    assert claims == TicketClaimResult([], [])
    assert len((await claim(store, [elsewhere], queues=["elsewhere"])).executions) == 1


@pytest.mark.parametrize("state", [{"is_paused": True}, {"max_running": 5}])
async def test_paused_and_limited_queues_give_nothing_by_ticket(store: Store, state: dict[str, Any]) -> None:
    held_up = await enqueue(store, queue="special")
    await set_queue(store, "special", **state)

    assert await claim(store, [held_up]) == TicketClaimResult([], [])
    assert await read(store) == []


async def test_a_claim_by_lane_can_leave_recent_executions_alone(store: Store, clock: VirtualClock) -> None:
    old = await enqueue(store)
    clock.advance(2)
    await enqueue(store)
    lanes = dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST)
    request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], 10, 0, timedelta(seconds=2))

    claims = await store.executions.claim(request, lanes, ClaimId(store.env.new_id()))

    assert [claimed.id for claimed in claims.executions] == [old]


# executions that get a ticket


async def test_the_most_urgent_of_each_queue_get_a_ticket(store: Store, clock: VirtualClock) -> None:
    first = await enqueue(store, priority=90)
    second = await enqueue(store, priority=50)
    await enqueue(store, priority=10)
    other = await enqueue(store, queue="other", priority=0)

    rows = await read(store, limit=2)

    assert [row.id for row in rows] == [first, second, other]
    assert [row.rank for row in rows] == [clock.now() - seconds(12 * priority) for priority in (90, 50, 0)]
    assert {(row.handler, row.fence) for row in rows} == {(HANDLER, 0)}


async def test_executions_without_a_worker_take_no_place_among_tickets(store: Store) -> None:
    for _ in range(3):
        await enqueue(store, handler="tests:unknown", priority=100)
    known = await enqueue(store)

    assert [row.id for row in await read(store, limit=1)] == [known]


async def test_a_lane_is_read_from_its_bound_on(store: Store, clock: VirtualClock) -> None:
    await enqueue(store)
    clock.advance(5)
    young = await enqueue(store)

    rows = await store.tickets.read({("default", 50): clock.now()}, [HANDLER], 10)

    assert [row.id for row in rows] == [young]


async def test_a_released_execution_has_another_fence(store: Store) -> None:
    await enqueue(store)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Released(), started_at=None)])

    (row,) = await read(store)

    assert row.fence == claimed.fence


# sharing a broker


async def test_inboxes_are_those_of_living_workers_on_that_broker(store: Store, clock: VirtualClock) -> None:
    for _ in range(2):
        await make_node(store, broker="redis", handlers=("a", "b"))
    await make_node(store, broker="redis", handlers=("a",), queues=("mail",))
    await make_node(store, broker="rabbitmq", handlers=("c",))
    await make_node(store, handlers=("d",))
    draining = await make_node(store, broker="redis", handlers=("e",))
    await store.nodes.drain(draining)

    known = await store.nodes.inboxes("redis")

    assert sorted((queues, handlers) for queues, handlers in known if queues) == [(["mail"], ["a"])]
    assert [handlers for queues, handlers in known if not queues] == [["a", "b"]]
    clock.advance(3600)
    assert await store.nodes.inboxes("redis") == []


async def test_each_database_has_a_namespace_of_its_own(store: Store) -> None:
    namespace = await store.tickets.namespace()

    assert namespace == await store.tickets.namespace()
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.installation SET id = gen_random_uuid()")
    assert namespace != await store.tickets.namespace()
