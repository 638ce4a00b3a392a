"""Requests under an Idempotency-Key: for how long a key is reserved, and by which caller."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.factories import table
from timeball.domain.values.ids import IdempotentRequest
from timeball.store.access import IN_FLIGHT_TIMEOUT, IdempotencyKeyStore, IdempotencyRecord
from timeball.store.history import IDEMPOTENCY_KEYS_KEPT_FOR
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

IN_FLIGHT = IdempotencyRecord(b"first", None, {}, b"")
ANSWERED = IdempotencyRecord(b"first", 201, {"a": "b"}, b"made")


def is_fresh(begun: object) -> bool:
    return isinstance(begun, IdempotentRequest) and not begun.is_repeated


@pytest.fixture
async def requests(store: Store) -> IdempotencyKeyStore:
    """One request is in flight, another of the same caller, and another caller's with the same key."""
    made = IdempotencyKeyStore(store.database)
    assert is_fresh(await made.begin("ann", "k", b"first"))
    assert is_fresh(await made.begin("ann", "l", b"next"))
    assert is_fresh(await made.begin("bob", "k", b"other"))
    return made


async def answer(requests: IdempotencyKeyStore) -> None:
    await requests.finish("ann", "k", 201, {"a": "b"}, b"made")


async def test_a_request_in_flight_keeps_its_key_until_the_timeout(
    requests: IdempotencyKeyStore, clock: VirtualClock
) -> None:
    clock.advance(IN_FLIGHT_TIMEOUT)
    assert await requests.begin("ann", "k", b"again") == IN_FLIGHT

    clock.advance("1s")
    assert is_fresh(await requests.begin("ann", "k", b"again"))
    assert await requests.begin("ann", "k", b"third") == IdempotencyRecord(b"again", None, {}, b""), (
        "its time begins anew"
    )


async def test_an_answer_is_kept_for_a_day(requests: IdempotencyKeyStore, clock: VirtualClock) -> None:
    await answer(requests)
    clock.advance(IDEMPOTENCY_KEYS_KEPT_FOR)
    assert await requests.begin("ann", "k", b"again") == ANSWERED

    clock.advance("1s")
    assert is_fresh(await requests.begin("ann", "k", b"again"))
    assert await requests.begin("ann", "k", b"third") == IdempotencyRecord(b"again", None, {}, b""), (
        "nothing of the old answer"
    )


async def test_keys_belong_to_their_callers(requests: IdempotencyKeyStore) -> None:
    await requests.forget("bob", "k")
    assert is_fresh(await requests.begin("bob", "k", b"again"))
    assert await requests.begin("ann", "k", b"again") == IN_FLIGHT

    await answer(requests)
    assert await requests.begin("ann", "k", b"again") == ANSWERED
    assert await requests.begin("bob", "k", b"third") == IdempotencyRecord(b"again", None, {}, b"")


async def test_keys_do_not_affect_each_other(requests: IdempotencyKeyStore) -> None:
    await answer(requests)
    assert await requests.begin("ann", "l", b"again") == IdempotencyRecord(b"next", None, {}, b"")

    await requests.forget("ann", "k")
    assert await requests.begin("ann", "l", b"again") == IdempotencyRecord(b"next", None, {}, b"")


async def test_an_answered_request_is_kept(requests: IdempotencyKeyStore) -> None:
    await answer(requests)

    await requests.forget("ann", "k")

    assert await requests.begin("ann", "k", b"again") == ANSWERED


async def test_a_new_server_deletes_old_keys_only(
    requests: IdempotencyKeyStore, store: Store, clock: VirtualClock
) -> None:
    await IdempotencyKeyStore(store.database).begin("eve", "k", b"young")
    assert await requests.begin("ann", "k", b"again") == IN_FLIGHT

    clock.advance(IDEMPOTENCY_KEYS_KEPT_FOR)
    clock.advance("1s")
    await IdempotencyKeyStore(store.database).begin("eve", "k", b"young")

    assert [row["caller"] for row in await table(store, "idempotency_key")] == ["eve"]


@pytest.mark.parametrize("statement", ["forget_old_requests", "trim_idempotency_key"])
async def test_a_key_that_is_reserved_again_at_that_moment_is_not_deleted(
    requests: IdempotencyKeyStore, store: Store, clock: VirtualClock, statement: str
) -> None:
    clock.advance(IDEMPOTENCY_KEYS_KEPT_FOR + timedelta(seconds=1))
    database, old = store.database, clock.now() - IDEMPOTENCY_KEYS_KEPT_FOR

    async with database.transaction() as connection:
        again = {
            "caller": "ann",
            "key": "k",
            "request_hash": b"again",
            "seed": "s",
            "keep": IDEMPOTENCY_KEYS_KEPT_FOR,
            "patience": IN_FLIGHT_TIMEOUT,
        }
        assert await database.fetch("begin_request", connection, **again)
        forgetting = asyncio.create_task(
            database.fetch(statement, keep=IDEMPOTENCY_KEYS_KEPT_FOR, before=old, limit=10)
        )
        # Either it is done, or it waits for this transaction and continues after the commit.
        await asyncio.wait([forgetting], timeout=0.5)
    await forgetting

    assert [(row["caller"], row["key"]) for row in await table(store, "idempotency_key")] == [("ann", "k")]


async def test_a_repeated_request_without_an_answer_keeps_its_ids(
    requests: IdempotencyKeyStore, clock: VirtualClock
) -> None:
    first = await requests.begin("zoe", "k", b"wish")
    assert isinstance(first, IdempotentRequest)

    await requests.leave_open("zoe", "k")
    at_once = await requests.begin("zoe", "k", b"wish")
    clock.advance(IN_FLIGHT_TIMEOUT + timedelta(seconds=1))
    later = await requests.begin("zoe", "k", b"wish")

    assert at_once == later == IdempotentRequest(first.seed, is_repeated=True)


async def test_another_request_has_other_ids(requests: IdempotencyKeyStore, clock: VirtualClock) -> None:
    await requests.leave_open("ann", "k")
    assert is_fresh(await requests.begin("ann", "k", b"another"))

    await requests.leave_open("ann", "k")
    clock.advance(IDEMPOTENCY_KEYS_KEPT_FOR)
    assert is_fresh(await requests.begin("ann", "k", b"another")), "the same, but as old as an answer that is not kept"


async def test_an_answered_request_is_not_left_open(requests: IdempotencyKeyStore) -> None:
    await answer(requests)

    await requests.leave_open("ann", "k")

    assert await requests.begin("ann", "k", b"first") == ANSWERED


async def test_an_open_request_does_not_affect_other_keys(requests: IdempotencyKeyStore) -> None:
    await requests.leave_open("ann", "k")

    assert await requests.begin("ann", "l", b"next") == IdempotencyRecord(b"next", None, {}, b"")
    assert await requests.begin("bob", "k", b"other") == IdempotencyRecord(b"other", None, {}, b"")
