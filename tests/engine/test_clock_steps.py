"""The database's clock is set, by an hour or by centuries, while nodes go on: nothing is recorded twice, nothing starts early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random

import pytest

from tests.engine.simulation.swarm import Swarm
from tests.engine.simulation.swarm_plan import LOOPS, Deed, What, draw
from tests.engine.support import check_promises, create, ranges, start_scheduler, start_worker, states
from tests.support.factories import enqueue, seconds, table
from timeball.domain.values.ids import JobId
from timeball.store.store import Store
from timeball.testing import VirtualClock

HOUR, CENTURIES = timedelta(hours=1), timedelta(days=178 * 365)


class SteppingClock(VirtualClock):
    """Monotonic time goes on as it is told to; the database's clock, which all statements go by, can be set besides."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = timedelta(0)

    def step(self, span: timedelta) -> None:
        self._ahead += span

    def now(self) -> datetime:
        return super().now() + self._ahead

    def statement_now(self) -> datetime:
        return self.now()

    def monotonic(self) -> float:
        return super().earliest(super().now())

    def earliest(self, instant: datetime) -> float:
        return super().earliest(instant - self._ahead)

    def instant_at(self, monotonic: float) -> datetime:
        return super().instant_at(monotonic) + self._ahead


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


async def pass_time(swarm: Swarm, number: int) -> None:
    """Some seconds, in each of which every loop of every node has a turn."""
    rng = Random(number)
    for _ in range(number):
        swarm.clock.advance("1s")
        for node in swarm.nodes.values():
            loops = LOOPS[node.kind.value]
            for _ in range(2 + len(loops)):
                await node.act(Deed(what=What.TURN, loop=rng.choice(loops)), rng)


async def succeeded(store: Store, job_id: JobId) -> set[datetime]:
    return {at for at, state in (await states(store, job_id)).items() if state == "succeeded"}


async def test_a_clock_that_is_set_neither_doubles_nor_loses_an_occurrence(
    store: Store, clock: SteppingClock, open_store: Callable[..., Awaitable[Store]]
) -> None:
    """Fault 20. Leases run out with a step ahead, and other nodes start in their place; a step back makes instants come a second time."""
    swarm = Swarm(draw(20), clock)
    await swarm.gather(open_store)
    job = await create(store, interval_seconds=5, overlap="allow")
    one_off = await enqueue(store, after=HOUR.total_seconds())
    await pass_time(swarm, 8)
    assert len(await succeeded(store, job.id)) == 1

    for step in (seconds(1), -seconds(1), HOUR):
        clock.step(step)
        await pass_time(swarm, 12)
    before = await succeeded(store, job.id)
    assert max(before) > clock.now() - seconds(10), "the schedule has gone on after each step"
    assert [row["state"] for row in await table(store, "finished") if row["id"] == one_off] == ["succeeded"]

    clock.step(-HOUR)
    await pass_time(swarm, 12)
    assert await succeeded(store, job.id) == before, "what has been is not run again when its time comes again"
    clock.advance(HOUR)
    await pass_time(swarm, 12)

    assert len(await succeeded(store, job.id)) > len(before)
    finished = await table(store, "finished")
    assert set(Counter(row["id"] for row in finished).values()) == {1}
    assert all(row["started_at"] >= row["scheduled_for"] for row in finished if row["started_at"] is not None)
    await check_promises(store)


async def test_a_clock_that_is_centuries_ahead_costs_one_range_and_one_run(store: Store, clock: SteppingClock) -> None:
    """Fault 20. Two hundred million missed occurrences are neither walked through nor kept in memory."""
    node, worker = await start_scheduler(store), await start_worker(store)
    job = await create(store, interval_seconds=30)

    clock.step(CENTURIES)
    clock.advance("2s")
    await node.tick()

    assert [state for state in (await states(store, job.id)).values() if state != "due"] == ["ready"]
    ((first, last, number, reason),) = await ranges(store, job.id)
    assert (number, reason) == ((last - first) // seconds(30) + 1, "misfire")
    assert len(await worker.work()) == 1
    await check_promises(store)

    clock.step(-CENTURIES)
    clock.advance("60s")
    await node.tick()
    assert await worker.work() == [], "the time of what has been recorded comes again, and nothing runs"
    await check_promises(store)
