"""What stands in a worker's name without its knowledge is taken in; what is only under way is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.engine.support import Heard, settle
from tests.engine.worker.manual_worker import ManualWorker, cut, start
from tests.support.factories import FROM_THE_FIRST, HANDLER, enqueue, table, tables_of
from timeball.domain.execution import ClaimKey
from timeball.domain.values.ids import ClaimId, ExecutionId
from timeball.engine.worker import executor
from timeball.engine.worker.claimer import ClaimReconciler
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.store.types import ClaimRequest
from timeball.telemetry.events import OrphanedClaimsAdopted
from timeball.testing import VirtualClock


@dataclass
class Stock:
    """A worker that takes stock when told to."""

    worker: ManualWorker
    recorder: Recorder
    taker: ClaimReconciler
    clock: VirtualClock
    heard: Heard

    async def look(self, number: int = 1) -> None:
        for _ in range(number):
            self.clock.advance("2s")
            await self.taker.tick()
        await self.worker.started()

    async def strand(self, number: int = 1) -> list[ExecutionId]:
        """A claim that the worker has given up, and read back in vain, arrives after all."""
        store, claim_id = self.worker.store, ClaimId(self.worker.store.env.new_id())
        ids = [await enqueue(store) for _ in range(number)]
        request = ClaimRequest(self.worker.incarnation, [HANDLER], number, 0)
        await store.executions.claim(request, dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST), claim_id)
        return ids


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def take_stock(store: Store, env: Env, clock: VirtualClock, heard: Heard) -> Callable[..., Stock]:
    def make(worker: ManualWorker, has_lost_a_reply: bool = True) -> Stock:
        recorder = Recorder(env, heard, store.executions)
        worker.executor._hand_over = recorder.hand_over
        worker.claimer.in_flight.has_lost_a_reply = has_lost_a_reply
        taker = ClaimReconciler(
            env, heard, store.executions, worker.incarnation, worker.claimer, worker.executor, recorder
        )
        return Stock(worker, recorder, taker, clock, heard)

    return make


@pytest.fixture
async def stock(store: Store, take_stock: Callable[..., Stock]) -> Stock:
    return take_stock(await start(store))


async def test_what_a_claim_brought_in_after_it_was_given_up_is_run(stock: Stock) -> None:
    strays = await stock.strand(3)

    await stock.look(2)

    assert sorted(stock.worker.runner.ids) == sorted(strays)
    claimed = stock.worker.runner.started[0].claimed
    assert (claimed.fence, claimed.attempt, claimed.payload) == (1, 1, "{}")
    assert stock.heard.of(OrphanedClaimsAdopted) == [OrphanedClaimsAdopted(3)]


async def test_an_orphaned_claim_is_adopted_once(stock: Stock, store: Store) -> None:
    (stray,) = await stock.strand()

    await stock.look(6)
    await stock.worker.end_all()
    await settle(stock.recorder)
    await stock.look(4)

    assert stock.heard.of(OrphanedClaimsAdopted) == [OrphanedClaimsAdopted(1)]
    assert await tables_of(store, stray) == ["finished"]


async def test_one_look_is_not_enough(stock: Stock) -> None:
    await stock.strand()

    await stock.look()

    assert stock.worker.runner.ids == []


async def test_what_runs_waits_or_is_held_is_known(
    stock: Stock, store: Store, take_stock: Callable[..., Stock], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the looks take longer than what waits for a slot would be kept.
    monkeypatch.setattr(executor, "_PATIENCE_SECONDS", 3600)
    stock = take_stock(await start(store, slots=1))
    for after in (0, 0, 30):
        await enqueue(store, after=after)
    request = ClaimRequest(stock.worker.incarnation, [HANDLER], 9, 9)
    claims = await store.executions.claim(
        request, dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST), ClaimId(store.env.new_id())
    )
    stock.worker.executor.accept(claims.executions)

    await stock.look(3)

    assert (stock.worker.executor.busy, stock.worker.executor.waiting) == (1, 1)
    assert stock.heard.of(OrphanedClaimsAdopted) == []


async def test_only_the_unknown_part_of_a_claim_is_adopted(stock: Stock, store: Store) -> None:
    ids = [await enqueue(store) for _ in range(2)]
    request = ClaimRequest(stock.worker.incarnation, [HANDLER], 9, 0)
    claims = await store.executions.claim(
        request, dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST), ClaimId(store.env.new_id())
    )
    stock.worker.executor.accept(claims.executions[:1])

    await stock.look(3)

    assert sorted(stock.worker.runner.ids) == sorted(ids)
    assert stock.heard.of(OrphanedClaimsAdopted) == [OrphanedClaimsAdopted(1)]


async def test_an_outcome_that_is_not_written_yet_is_known(stock: Stock, store: Store) -> None:
    await enqueue(store)
    await stock.worker.sweep_and_claim()
    await stock.worker.end_all()

    await stock.look(3)

    assert stock.heard.of(OrphanedClaimsAdopted) == []
    assert len(stock.recorder.unrecorded()) == 1


async def test_an_outcome_whose_reply_was_lost_is_known(stock: Stock, store: Store, env: Env) -> None:
    await enqueue(store)
    await stock.worker.sweep_and_claim()
    await stock.worker.end_all()

    def lose(point: str) -> None:
        if point == "finish_succeeded.before":
            cut()

    env.fault = lose
    with pytest.raises(StoreUnavailable):
        await stock.recorder.tick()
    await stock.look(3)

    assert stock.heard.of(OrphanedClaimsAdopted) == []


async def test_a_claim_that_is_in_doubt_is_left_to_the_claimer(stock: Stock, store: Store) -> None:
    execution_id = await enqueue(store)
    await stock.worker.sweeper.tick()
    stock.worker.executions.after.append(cut)
    with pytest.raises(StoreUnavailable):
        await stock.worker.claimer.tick()
    stock.worker.executions.after.clear()

    await stock.look(3)
    assert stock.worker.runner.ids == []

    await settle(stock.worker.claimer)
    await stock.look(3)
    assert stock.worker.runner.ids == [execution_id]
    assert stock.heard.of(OrphanedClaimsAdopted) == []


async def test_a_claim_gone_at_the_second_look_is_not_orphaned(stock: Stock, store: Store) -> None:
    """Its outcome was written while the look was under way: seen, and no longer known."""
    await enqueue(store)
    await stock.worker.sweep_and_claim()
    real_stakes = store.executions.claim_keys

    async def stakes_then_finish(incarnation: object) -> set[ClaimKey]:
        held = await real_stakes(stock.worker.incarnation)
        await stock.worker.end_all()
        await settle(stock.recorder)
        return held

    store.executions.claim_keys = stakes_then_finish  # type: ignore[method-assign, assignment]
    await stock.look()
    store.executions.claim_keys = real_stakes  # type: ignore[method-assign]
    await stock.look(2)

    assert stock.heard.of(OrphanedClaimsAdopted) == []
    assert await table(store, "running") == []


async def test_a_neighbours_executions_are_not_touched(
    stock: Stock, take_stock: Callable[..., Stock], store: Store
) -> None:
    other = take_stock(await start(store))
    await other.strand()

    await stock.look(3)

    assert stock.worker.runner.ids == []


async def test_an_orphaned_execution_that_was_cancelled_does_not_run(stock: Stock, store: Store) -> None:
    (stray,) = await stock.strand()
    await store.executions.stop([stray], "enough")

    await stock.look(2)
    await settle(stock.recorder)

    assert stock.worker.runner.ids == []
    assert [row["state"] for row in await table(store, "finished")] == ["cancelled"]


async def test_without_a_lease_nothing_is_adopted(stock: Stock) -> None:
    await stock.strand()
    stock.worker.executor.lease.lose()

    await stock.look(3)

    assert stock.heard.of(OrphanedClaimsAdopted) == []


async def test_a_worker_that_lost_no_reply_compares_seldom(
    store: Store, env: Env, take_stock: Callable[..., Stock]
) -> None:
    stock = take_stock(await start(store), has_lost_a_reply=False)
    await stock.strand()
    asked: list[str] = []
    env.fault = asked.append

    await stock.look(29)
    assert asked == []

    await stock.look(2)
    assert stock.heard.of(OrphanedClaimsAdopted) == [OrphanedClaimsAdopted(1)]
