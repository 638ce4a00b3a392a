"""Payloads that do not fit the code of a worker: left to newer workers, waited with, or dead; by what is published in a real store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.support import Hands, Heard, start_worker
from tests.support.factories import FAILURE, HANDLER, enqueue, make_node, record, seconds, tables_of
from timeball.domain.execution import Failed, FinishedAttempt, Outcome, Released, Snoozed
from timeball.domain.handler import HandlerContract
from timeball.domain.values.ids import Incarnation
from timeball.engine.worker.admission import ClaimableHandlers, ContractGate, WorkerContracts
from timeball.env import Env
from timeball.handlers.catalogue import contract_of
from timeball.handlers.payloads import accepts_payload
from timeball.handlers.registry import make_handler
from timeball.store.store import Store
from timeball.telemetry.events import HandlerResumed, HandlerYielded
from timeball.testing import VirtualClock

MISFIT = Failed(FAILURE, is_retryable=False, is_payload_mismatch=True)
WITH_CURRENCY = {"order": 1, "currency": "CHF"}


def old_code(order: int) -> None: ...
def new_code(order: int, currency: str) -> None: ...


def contract(function: Callable[..., Any]) -> HandlerContract:
    return contract_of(make_handler(function, name=HANDLER))


async def start(store: Store, function: Callable[..., Any]) -> Incarnation:
    """A worker process starts with this code, and stays alive."""
    published = contract(function)
    await store.handlers.publish([published], is_start=True)
    return await make_node(store, handlers=(HANDLER,), fingerprints=(published.fingerprint,))


class Watched:
    """The watch of a worker with some code, and what it keeps that worker from claiming."""

    def __init__(self, store: Store, env: Env, heard: Heard, function: Callable[..., Any]) -> None:
        self.held_back: list[frozenset[str]] = []
        contracts = WorkerContracts(store.handlers, [contract(function)], accepts_payload)
        self.handlers = ClaimableHandlers([HANDLER])
        self.handlers.changed.subscribe(self._note)
        self.watch = ContractGate(env, heard, contracts, self.handlers)

    def _note(self) -> None:
        self.held_back.append(frozenset({HANDLER}).difference(self.handlers.names))

    async def judge(self, finding: FinishedAttempt) -> Outcome:
        (judged,) = await self.watch.judge([finding])
        return judged.outcome


@pytest.fixture
async def hands(store: Store) -> Hands:
    return await start_worker(store)


async def attempt(store: Store, hands: Hands, payload: dict[str, Any], outcome: Outcome = MISFIT) -> FinishedAttempt:
    """An attempt at this payload, as it ended on the worker under test."""
    await enqueue(store, payload=payload)
    (claimed,) = await hands.claim()
    return FinishedAttempt(claimed, outcome, claimed.run_at, claimed.run_at)


async def test_an_older_worker_gives_back_what_newer_code_takes_and_leaves_the_handler_to_it(
    store: Store, env: Env, heard: Heard, hands: Hands
) -> None:
    await start(store, old_code)
    await start(store, new_code)
    older = Watched(store, env, heard, old_code)
    findings = [await attempt(store, hands, WITH_CURRENCY) for _ in range(2)]

    judged = await older.watch.judge(findings)

    assert [(one.outcome, one.started_at) for one in judged] == [(Released(), None)] * 2
    assert older.held_back == [frozenset({HANDLER})]
    assert [(event.handler, event.newest) for event in heard.of(HandlerYielded)] == [
        (HANDLER, contract(new_code).fingerprint[:8])
    ]
    assert await record(store, judged) == []
    assert [await tables_of(store, one.claimed.id) for one in judged] == [["ready"]] * 2
    assert {claimed.attempt for claimed in await hands.claim()} == {1}, "an attempt was counted"


async def test_the_handler_is_claimed_again_when_no_newer_worker_is_alive(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, hands: Hands
) -> None:
    await start(store, old_code)
    newer = await start(store, new_code)
    older = Watched(store, env, heard, old_code)
    await older.judge(await attempt(store, hands, WITH_CURRENCY))

    clock.advance(seconds(2))
    await older.watch.tick()
    assert older.held_back == [frozenset({HANDLER})], "a newer worker is alive"

    await store.nodes.remove(newer)
    clock.advance(seconds(1))
    await older.watch.tick()
    assert older.held_back == [frozenset({HANDLER})], "it is not time to look yet"

    clock.advance(seconds(1))
    await older.watch.tick()
    assert older.held_back == [frozenset({HANDLER}), frozenset()]
    assert [event.handler for event in heard.of(HandlerResumed)] == [HANDLER]


async def test_what_only_newer_code_takes_waits_uncounted_until_a_worker_with_it_starts(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, hands: Hands
) -> None:
    await start(store, old_code)
    await store.nodes.remove(await start(store, new_code))
    older = Watched(store, env, heard, old_code)
    finding = await attempt(store, hands, WITH_CURRENCY)

    judged = await older.watch.judge([finding])

    assert judged[0].outcome == Snoozed(seconds(5))
    assert older.held_back == []
    assert await record(store, judged) == []
    assert await tables_of(store, finding.claimed.id) == ["due"]


async def test_the_newest_worker_waits_while_a_living_one_takes_the_payload_and_else_it_is_dead(
    store: Store, env: Env, heard: Heard, hands: Hands
) -> None:
    older = await start(store, old_code)
    await start(store, new_code)
    newest = Watched(store, env, heard, new_code)
    finding = await attempt(store, hands, {"order": 1})

    assert await newest.judge(finding) == Snoozed(seconds(1))
    assert await newest.judge(await attempt(store, hands, {"nothing": "fits"})) == MISFIT
    await store.nodes.remove(older)
    assert await newest.judge(finding) == MISFIT

    assert newest.held_back == []
    assert await record(store, [finding]) == []
    assert await tables_of(store, finding.claimed.id) == ["finished"]


async def test_a_handler_that_raises_of_itself_has_failed_whatever_is_published(
    store: Store, env: Env, heard: Heard, hands: Hands
) -> None:
    await start(store, old_code)
    await start(store, new_code)
    older = Watched(store, env, heard, old_code)
    of_itself = Failed(FAILURE, is_retryable=False)

    assert await older.judge(await attempt(store, hands, WITH_CURRENCY, of_itself)) == of_itself
    assert older.held_back == []
