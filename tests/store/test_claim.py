"""From ready to running: the most urgent first, never beyond the limit, never the same execution twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import (
    FROM_THE_FIRST,
    HANDLER,
    OPERATOR,
    claim_all,
    enqueue,
    found,
    make_job,
    make_node,
    only_row,
    put_row,
    seconds,
    table,
    tables_of,
)
from timeball.domain.execution import ClaimedExecution
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import Lane, LanePosition
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ClaimResult
from timeball.testing import VirtualClock

EXECUTION, ENDED = UUID(int=0xE), UUID(int=0xEE)


async def claim(store: Store, lanes: dict[Lane, LanePosition], slots: int = 10, holds: int = 0) -> ClaimResult:
    request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], slots, holds)
    return await store.executions.claim(request, lanes, ClaimId(store.env.new_id()))


async def claim_limited(store: Store, queue: str, slots: int = 10, holds: int = 0) -> list[ClaimedExecution]:
    request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], slots, holds)
    claims = await store.executions.claim_limited(
        request, queue, {(queue, 50): FROM_THE_FIRST}, ClaimId(store.env.new_id())
    )
    return claims.executions


async def set_queue(store: Store, name: str, *, is_paused: bool = False, max_running: int | None = None) -> None:
    await store.queues.change(
        name, is_paused=is_paused, max_running=max_running, reason=None, audit=OPERATOR, action="queue.set"
    )


# what a claim writes and returns


@pytest.mark.parametrize("way", ["by lane", "by ticket", "by name"])
async def test_a_claim_keeps_every_column_and_adds_its_own(store: Store, clock: VirtualClock, way: str) -> None:
    now = clock.now()
    job = await make_job(store, name="nightly", payload={"of": "job"}, timeout_ms=4000)
    before: dict[str, Any] = {
        "id": EXECUTION,
        "job_id": job.id,
        "origin": "trigger",
        "version": 4,
        "queue": "q",
        "priority": 61,
        "handler": HANDLER,
        "scheduled_for": now - seconds(20),
        "run_at": now - seconds(1),
        "queued_at": now - seconds(10),
        "attempts": 3,
        "lost": 2,
        "fence": 7,
        "tzdata": "2025z",
        "limit_key": "l",
        "unique_key": "k",
        "payload": '{"of": "execution"}',
        "retry_of": ENDED,
        "created_by": "key:k deploy",
        "bound_secrets_only": True,
        "meta": '{"of": "execution"}',
        "has_follow_ups": True,
        "expires_at": now + seconds(40),
    }
    await put_row(store, "ready", **before)
    worker, claim_id = await make_node(store), ClaimId(store.env.new_id())

    request = ClaimRequest(worker, [HANDLER], 1, 0)
    if way == "by ticket":
        (claimed,) = (await store.tickets.claim(request, [ExecutionId(EXECUTION)], None, claim_id)).executions
    elif way == "by name":
        (claimed,) = await store.executions.claim_by_id(request, ExecutionId(EXECUTION), None, claim_id)
    else:
        (claimed,) = await claim_all(store, worker=worker, claim_id=claim_id)

    assert claimed == ClaimedExecution(
        id=ExecutionId(EXECUTION),
        job_id=job.id,
        fence=8,
        attempt=4,
        lost=2,
        handler=HANDLER,
        payload='{"of": "execution"}',
        run_at=now - seconds(1),
        scheduled_for=now - seconds(20),
        timeout_ms=4000,
        queue="q",
        priority=61,
        origin="trigger",
        version=4,
        job_name="nightly",
        expires_at=now + seconds(40),
        meta='{"of": "execution"}',
        claim_id=claim_id,
        stop=None,
    )
    assert await only_row(store, "running") == before | {
        "attempts": 4,
        "fence": 8,
        "holder": worker,
        "claim_id": claim_id,
        "claimed_at": now,
        "deadline": now + seconds(4 + 5),
        "stop": None,
        "queue_limited": False,
        "progress": None,
        "progress_note": None,
    }
    assert await table(store, "ready") == []


async def test_an_execution_without_a_payload_gets_that_of_its_job(store: Store) -> None:
    await enqueue(store, payload={"of": "job"}, timeout_ms=None)

    (claimed,) = await claim_all(store)

    assert (json.loads(claimed.payload), claimed.timeout_ms) == ({"of": "job"}, None)
    assert (await only_row(store, "running"))["deadline"] is None


async def test_a_claim_whose_reply_was_lost_is_read_back(store: Store) -> None:
    await enqueue(store, payload={"a": 1}, queue="q", priority=61)
    await enqueue(store)
    worker, claim_id = await make_node(store), ClaimId(store.env.new_id())
    claimed = await claim_all(store, slots=1, worker=worker, claim_id=claim_id)
    await claim_all(store, slots=1, worker=worker)

    assert await store.executions.read_back_claim(worker, claim_id) == claimed
    assert await store.executions.read_back_claim(await make_node(store), claim_id) == []


async def test_a_claim_that_is_read_back_is_in_the_order_of_its_reply(store: Store) -> None:
    ids = {priority: await enqueue(store, priority=priority) for priority in (10, 90, 50)}
    worker, claim_id = await make_node(store), ClaimId(store.env.new_id())
    claimed = await claim_all(store, worker=worker, claim_id=claim_id)

    assert [each.id for each in claimed] == [ids[90], ids[50], ids[10]]
    assert await store.executions.read_back_claim(worker, claim_id) == claimed


# in which order


async def test_the_most_urgent_come_first_by_rank(store: Store) -> None:
    """Twelve seconds of waiting are worth one point of priority."""
    waits = [(0, 50), (11, 49), (13, 49), (602, 0), (599, 0), (3, 50), (30, 51)]
    by_rank = sorted(waits, key=lambda wait: -(wait[0] + 12 * wait[1]))
    for waited, priority in waits:
        await enqueue(store, after=-waited, priority=priority)

    claimed = [(await claim_all(store, slots=1))[0] for _ in waits]

    now = store.env.clock.now()
    assert [((now - each.run_at).total_seconds(), each.priority) for each in claimed] == by_rank


async def test_a_claim_returns_executions_in_the_order_of_rank(store: Store) -> None:
    for waited, priority in [(1, 10), (2, 90), (3, 50), (4, 90), (5, 10)]:
        await enqueue(store, after=-waited, priority=priority)

    claimed = await claim_all(store)

    assert [each.priority for each in claimed] == [90, 90, 50, 10, 10]
    assert [(store.env.clock.now() - each.run_at).seconds for each in claimed] == [4, 2, 3, 5, 1]


async def test_a_claim_never_exceeds_its_limit(store: Store) -> None:
    for number in range(8):
        await enqueue(store, after=-number, priority=50 + number % 3)
        await enqueue(store, after=0.1 + number / 100, priority=50 + number % 3)

    claims = await claim_all(store, slots=3, holds=2)

    assert len(claims) == 5
    assert len(await table(store, "running")) == 5
    assert len([each for each in claims if each.run_at > store.env.clock.now()]) == 2
    assert await claim_all(store, slots=0, holds=0) == []


async def test_no_execution_is_claimed_twice(store: Store) -> None:
    ids = {await enqueue(store) for _ in range(5)}

    first = {each.id for each in await claim_all(store, slots=3)}
    second = {each.id for each in await claim_all(store, slots=3)}

    assert (len(first), len(second), first | second) == (3, 2, ids)


# holding


async def test_an_execution_before_its_instant_is_held(store: Store, clock: VirtualClock) -> None:
    near = await enqueue(store, after=0.2, timeout_ms=1000)
    far = await enqueue(store, after=0.4)

    assert await claim_all(store, slots=5, holds=0) == []
    (claimed,) = await claim_all(store, slots=5, holds=1)

    assert claimed.id == near
    # The timeout of an execution begins with its start, not with its claim.
    assert (await only_row(store, "running"))["deadline"] == clock.now() + seconds(0.2 + 1 + 5)
    assert await tables_of(store, far) == ["ready"]


# what was left


async def test_has_unclaimed_sees_runnable_executions_that_have_been_ready_for_a_while(
    store: Store, clock: VirtualClock
) -> None:
    ready_at, lane = clock.now(), ("default", 50)
    await enqueue(store)
    clock.advance("10ms")
    left = store.executions.has_unclaimed

    assert await left({("reports", 1): ready_at, lane: ready_at}, [HANDLER], seconds(0.01))
    assert not await left({lane: ready_at}, [HANDLER], seconds(0.011))
    assert not await left({lane: ready_at}, ["app:foreign"], seconds(0.01))
    assert not await left({lane: ready_at + seconds(0.001)}, [HANDLER], seconds(0.01))
    assert not await left({("default", 51): ready_at, ("mail", 50): ready_at}, [HANDLER], seconds(0.01))


async def test_has_unclaimed_sees_executions_before_their_instant(store: Store, clock: VirtualClock) -> None:
    await enqueue(store, after=0.4)

    assert await store.executions.has_unclaimed({("default", 50): clock.now()}, [HANDLER], seconds(0))


# lanes


async def test_a_claim_holds_executions_before_the_position_of_their_lane(store: Store, clock: VirtualClock) -> None:
    """A position that was set by the wake-up of a later execution says nothing about earlier ones."""
    coming = await enqueue(store, after=0.1)

    claims = await claim(store, {("default", 50): LanePosition(clock.now() + seconds(10))}, holds=1)

    assert [each.id for each in claims.executions] == [coming]


async def test_lanes_are_read_with_their_first_execution(store: Store, clock: VirtualClock) -> None:
    now = clock.now()
    ids = {}
    for queue, priority, waited in [("a", 50, 3), ("a", 50, 9), ("a", 51, 1), ("b", 50, 2), ("paused", 50, 1)]:
        ids[queue, priority] = await enqueue(store, after=-waited, queue=queue, priority=priority)
    await set_queue(store, "b", max_running=1)
    await set_queue(store, "paused", is_paused=True)

    assert await store.executions.lanes() == {
        ("a", 50): (LanePosition(now - seconds(9), ids["a", 50]), False),
        ("a", 51): (LanePosition(now - seconds(1), ids["a", 51]), False),
        ("b", 50): (LanePosition(now - seconds(2), ids["b", 50]), True),
    }


async def test_a_lane_is_read_from_its_bound_on_and_others_not_at_all(store: Store, clock: VirtualClock) -> None:
    old, young = await enqueue(store, after=-10), await enqueue(store, after=-5)
    for other in ({"queue": "other"}, {"priority": 51}):
        await enqueue(store, **other)

    claims = await claim(store, {("default", 50): LanePosition(clock.now() - seconds(5))})

    assert [each.id for each in claims.executions] == [young]
    claims = await claim(store, {("default", 50): FROM_THE_FIRST})
    assert [each.id for each in claims.executions] == [old]


async def test_executions_of_one_instant_are_read_from_an_id_on(store: Store, clock: VirtualClock) -> None:
    crowd = sorted([await enqueue(store) for _ in range(5)])

    claims = await claim(store, {("default", 50): LanePosition(clock.now(), crowd[2])})

    assert [each.id for each in claims.executions] == crowd[2:], "in the order of their ids"


async def test_a_claim_gives_only_executions_of_the_handlers_of_the_worker(store: Store) -> None:
    await enqueue(store, handler="app:other")
    known = await enqueue(store, handler="app:known")
    held = await enqueue(store, after=0.1, handler="app:other")

    claimed = await claim_all(store, holds=5, handlers=["app:known", "app:unused"])

    assert [each.id for each in claimed] == [known]
    assert await tables_of(store, held) == ["ready"]


async def test_a_claim_is_contended_while_another_takes_the_rest(store: Store) -> None:
    await enqueue(store)
    lanes = {("default", 50): FROM_THE_FIRST}
    async with store.database.transaction() as connection:
        await connection.execute("SELECT FROM timeball.ready FOR UPDATE")
        await enqueue(store, after=0.1)

        contended = await claim(store, lanes, holds=1)

    assert (len(contended.executions), contended.is_contended) == (1, True)
    claims = await claim(store, lanes)
    assert (len(claims.executions), claims.is_contended) == (1, False)
    assert not (await claim(store, lanes)).is_contended


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_claim_skips_rows_that_another_has_locked(store: Store, lanes: int) -> None:
    first, second = sorted([await enqueue(store) for _ in range(2)])
    coming, following = sorted([await enqueue(store, after=0.1) for _ in range(2)])
    asked = {("default", 50 + place): FROM_THE_FIRST for place in range(lanes)}
    async with store.database.transaction() as connection:
        await connection.execute("SELECT FROM timeball.ready WHERE id = ANY ($1) FOR UPDATE", [first, coming])

        claims = await claim(store, asked, slots=1, holds=2)

    assert [each.id for each in claims.executions] == [second, following]
    assert claims.is_contended, "another claim was taking what comes next"


async def test_a_claim_is_contended_while_another_takes_what_comes_next(store: Store) -> None:
    await enqueue(store, after=0.1)
    lanes = {("default", 50): FROM_THE_FIRST}
    async with store.database.transaction() as connection:
        await connection.execute("SELECT FROM timeball.ready FOR UPDATE")

        contended = await claim(store, lanes, holds=1)

    assert (len(contended.executions), contended.is_contended) == (0, True)
    claims = await claim(store, lanes, holds=1)
    assert (len(claims.executions), claims.is_contended) == (1, False)


async def test_a_row_that_was_committed_too_late_for_a_claim_makes_it_contended(store: Store) -> None:
    """lock_ready has a newer snapshot than the claim itself, and a row may have been committed in between."""
    waiting = await enqueue(store)
    async with store.database.connection() as connection:
        definition = await connection.fetchval("SELECT pg_get_functiondef('timeball.lock_ready'::regproc)")
        await connection.execute(definition.replace("BEGIN\n", "BEGIN\n    PERFORM pg_advisory_xact_lock(7);\n", 1))
    async with store.database.transaction() as gatekeeper:
        await gatekeeper.execute("SELECT pg_advisory_xact_lock(7)")
        claiming = asyncio.create_task(claim(store, {("default", 50): FROM_THE_FIRST}, slots=1))
        await until_somebody_waits(gatekeeper)
        late = await enqueue(store)
        async with store.database.connection() as connection:
            await connection.execute("UPDATE timeball.ready SET run_at = run_at - interval '1 s' WHERE id = $1", late)
    claims = await claiming

    assert (claims.executions, claims.is_contended) == ([], True)
    assert {each.id for each in await claim_all(store)} == {late, waiting}


async def until_somebody_waits(connection: Any) -> None:
    while not await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
    ):
        await asyncio.sleep(0.01)


async def test_a_full_claim_is_not_contended(store: Store) -> None:
    for _ in range(3):
        await enqueue(store)

    assert not (await claim(store, {("default", 50): FROM_THE_FIRST}, slots=2)).is_contended


# queues


async def test_a_paused_queue_gives_nothing(store: Store) -> None:
    await enqueue(store, queue="q")
    await enqueue(store, after=0.1, queue="q")
    await set_queue(store, "q", is_paused=True)

    assert (await claim(store, {("q", 50): FROM_THE_FIRST}, holds=5)).executions == []
    assert await claim_limited(store, "q") == []

    await set_queue(store, "q")

    assert len((await claim(store, {("q", 50): FROM_THE_FIRST}, holds=5)).executions) == 2


async def test_a_paused_queue_does_not_stop_claims_of_others(store: Store) -> None:
    await enqueue(store, queue="paused")
    wanted = [await enqueue(store, queue="open"), await enqueue(store, queue="open", after=0.1)]
    await set_queue(store, "paused", is_paused=True)

    claims = await claim(store, {("paused", 50): FROM_THE_FIRST, ("open", 50): FROM_THE_FIRST}, holds=5)

    assert ([each.id for each in claims.executions], claims.is_contended) == (wanted, False)


async def test_a_claim_of_a_limited_queue_keeps_the_limit(store: Store) -> None:
    await set_queue(store, "q", max_running=3)
    for _ in range(5):
        await enqueue(store, queue="q")

    assert (await claim(store, {("q", 50): FROM_THE_FIRST})).executions == []
    first = await claim_limited(store, "q", slots=2)
    second = await claim_limited(store, "q", slots=2)

    assert (len(first), len(second), len(await claim_limited(store, "q"))) == (2, 1, 0)
    assert {row["queue_limited"] for row in await table(store, "running")} == {True}

    await store.executions.finish_succeeded([found(first[0])])

    assert len(await claim_limited(store, "q")) == 1


async def test_held_executions_count_for_the_limit_of_a_queue(store: Store) -> None:
    await set_queue(store, "q", max_running=2)
    for after in (0, 0.1, 0.2):
        await enqueue(store, after=after, queue="q")

    assert len(await claim_limited(store, "q", slots=5, holds=5)) == 2


async def test_executions_claimed_before_the_limit_count_for_it(store: Store) -> None:
    for _ in range(3):
        await enqueue(store, queue="q")
    await claim_all(store, slots=2)

    await set_queue(store, "q", max_running=2)

    assert await claim_limited(store, "q") == []


async def test_an_unlimited_queue_is_not_claimed_as_a_limited_one(store: Store) -> None:
    await enqueue(store, queue="q")

    assert await claim_limited(store, "q") == []
    await set_queue(store, "q", max_running=2)
    await set_queue(store, "q", max_running=None)
    assert await claim_limited(store, "q") == []


# by name


async def claim_by_id(store: Store, execution_id: ExecutionId, *queues: str) -> list[ClaimedExecution]:
    request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], 1, 1)
    return await store.executions.claim_by_id(request, execution_id, queues or None, ClaimId(store.env.new_id()))


async def test_a_claim_by_id_gives_that_execution_alone(store: Store) -> None:
    more_urgent, named = await enqueue(store, priority=90), await enqueue(store, queue="mail")

    (claimed,) = await claim_by_id(store, named, "default", "mail")

    assert claimed.id == named
    assert await tables_of(store, more_urgent) == ["ready"]


async def test_a_claim_by_id_follows_the_rules_of_lanes(store: Store) -> None:
    """Any program that may connect may send wake-ups: an id proves nothing."""
    gone = await enqueue(store)
    await claim_all(store)
    foreign = await enqueue(store, handler="tests:other")
    elsewhere = await enqueue(store, queue="elsewhere")
    early = await enqueue(store, after=0.1)
    paused, limited = await enqueue(store, queue="paused"), await enqueue(store, queue="limited")
    await set_queue(store, "paused", is_paused=True)
    await set_queue(store, "limited", max_running=5)

    for named in (foreign, elsewhere, early, paused, limited, gone, ExecutionId(store.env.new_id())):
        assert await claim_by_id(store, named, "default", "paused", "limited") == []

    assert len(await table(store, "ready")) == 5
    assert len(await table(store, "running")) == 1
