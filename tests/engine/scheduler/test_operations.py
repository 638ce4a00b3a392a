"""The housekeeping scheduler carries out the operations that no API process does."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import UUID

from tests.engine.support import Hands, Heard, ManualScheduler, check_promises, create, start_scheduler, start_worker
from tests.support.factories import seconds, table
from timeball.application.commands import Commands
from timeball.domain.backfill import Backfill
from timeball.domain.bulk_operation import Operation, OperationState
from timeball.engine.scheduler.housekeeping import OperationRunner
from timeball.env import Env
from timeball.store.store import Store
from timeball.testing.environment import START


async def has_operations(store: Store) -> bool:
    return (await store.housekeeping_work()).has_operations


def runner(store: Store, env: Env, *, is_housekeeper: bool = True) -> OperationRunner:
    work = Commands(store, env).operations.work
    return OperationRunner(env, Heard(), partial(has_operations, store), work, lambda: is_housekeeper)


async def missed(store: Store) -> tuple[ManualScheduler, Hands, Backfill]:
    """A job of every five seconds for which nothing was alive from the beginning to 30 s, and a backfill of that time."""
    node, worker = await start_scheduler(store), await start_worker(store)
    job = await create(store, interval_seconds=5, misfire="skip", misfire_grace_seconds=1)
    node.clock.advance_to(START + seconds(31.5))
    await node.run_for(1, worker.work)
    return node, worker, Backfill(job_id=job.id, since=START, until=START + seconds(31), max_running=2)


async def state_of(store: Store, operation: Operation) -> Operation:
    current = await store.operations.find(operation.id)
    assert current is not None
    return current


async def test_a_backfill_without_an_api_process_is_fed_by_the_housekeeper(store: Store, env: Env) -> None:
    node, worker, backfill = await missed(store)
    operation = await Commands(store, env).backfills.start(backfill)
    idle, busy = runner(store, env, is_housekeeper=False), runner(store, env)

    await idle.tick()
    untouched = await state_of(store, operation)
    while not (over := await state_of(store, operation)).is_over:
        node.clock.advance(await busy.tick())
        await worker.work()

    assert untouched.state is OperationState.PENDING
    assert (over.state, over.done, over.failed) == (OperationState.SUCCEEDED, 6, 0)
    assert len([row for row in await table(store, "finished") if row["origin"] == "backfill"]) == 6
    await check_promises(store)


async def test_an_operation_that_a_living_process_holds_is_left_to_it(store: Store, env: Env) -> None:
    _, _, backfill = await missed(store)
    await Commands(store, env).backfills.start(backfill)
    assert await store.operations.take(env.new_id()) is not None

    rest = await runner(store, env).tick()

    assert rest == timedelta(seconds=30)
    assert not await has_operations(store)


async def test_a_housekeeper_without_operations_asks_once_in_half_a_minute_and_loads_nothing(
    store: Store, env: Env
) -> None:
    node = await start_scheduler(store)
    asked: list[UUID] = []

    async def work(holder: UUID) -> Operation | None:
        asked.append(holder)
        return None

    idle = OperationRunner(env, Heard(), partial(has_operations, store), work, lambda: True)

    assert [await idle.tick(), await idle.tick()] == [timedelta(seconds=30)] * 2
    node.clock.advance(seconds(30))
    assert await idle.tick() == timedelta(seconds=30)
    assert asked == []
