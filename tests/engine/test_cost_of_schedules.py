"""What an occurrence costs from the schedule to the history, and what a schedule costs that is only held: counted, not timed."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import PATIENCE_SECONDS, ManualScheduler, create, start_scheduler
from tests.engine.test_cost import commits_in, finished
from tests.support.factories import HANDLER, seconds, table
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.domain.job_fields import JobSpec
from timeball.domain.scheduling.occurrences import DueKey
from timeball.engine.worker.node import WorkerNode
from timeball.env import Env
from timeball.store.store import Store
from timeball.testing import VirtualClock
from timeball.testing.environment import START

MANY = 2_000


async def schedule(store: Store, number: int, interval_seconds: int, first: datetime | None = None) -> None:
    await Commands(store, store.env).jobs.create_all(
        [
            JobSpec(name=f"job-{place}", handler=HANDLER, interval_seconds=interval_seconds, scheduled_at=first)
            for place in range(number)
        ]
    )


def asked_of(env: Env) -> Counter[str]:
    """The statements that are asked from now on, by their names."""
    asked: Counter[str] = Counter()
    env.fault = lambda point: asked.update([point.removesuffix(".before")] if point.endswith(".before") else [])
    return asked


async def test_an_occurrence_takes_a_few_hundredths_of_a_commit(
    fresh_database: FreshDatabase,
    store: Store,
    env: Env,
    clock: VirtualClock,
    worker_node: WorkerNode,
) -> None:
    """Made, promoted, claimed, finished: every commit that the server has counted."""
    await schedule(store, MANY, 60)
    node = await start_scheduler(store)
    clock.advance("60s")

    asked = asked_of(env)
    await node.tick()
    await worker_node.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await finished(store) < MANY:
            # Seldom, because this is a commit, too.
            await asyncio.sleep(0.5)
    await worker_node.abandon("all is done")
    await store.close()

    assert asked["promote"] == asked["busy_jobs"] == MANY / 1_000
    assert commits_in(fresh_database) / MANY <= 0.1


async def test_what_is_held_is_not_read_again(store: Store, env: Env, node: ManualScheduler) -> None:
    """Once a second all that is near is looked through, but of what is held only where it stands."""
    await schedule(store, 20, 1, START + seconds(1))
    await node.run_for(1)
    asked = asked_of(env)

    await node.run_for(5)

    assert asked["look_ahead"] >= 4
    assert asked["due_rows"] == asked["timetables"] == 0
    assert len(await table(store, "ready")) == 20, "the others were skipped: the first was not run"


async def test_a_full_page_is_not_looked_through_again_for_every_batch(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_scheduler(store, page=2, batch=10)
    await schedule(store, 500, 60)
    clock.advance("60s")
    seen, look_ahead = [], store.executions.look_ahead

    async def counted(*arguments: Any) -> list[DueKey]:
        marks = await look_ahead(*arguments)
        seen.extend(marks)
        return marks

    monkeypatch.setattr(store.executions, "look_ahead", counted)
    await node.tick()

    assert len(await table(store, "ready")) == 500
    assert len(seen) <= 2 * 500


async def test_looking_through_all_that_is_held_leaves_time_to_move_it(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd takes long to look through; done every second as with a few, that was most of what a scheduler did."""
    look_ahead = store.executions.look_ahead

    async def slow(*arguments: Any) -> list[DueKey]:
        clock.advance("500ms")
        return await look_ahead(*arguments)

    monkeypatch.setattr(store.executions, "look_ahead", slow)
    await schedule(store, 20, 1, START + seconds(1))
    asked = asked_of(env)

    await node.run_for(60)

    assert 5 < asked["look_ahead"] <= 15


async def test_daily_schedules_cost_a_look_a_second_however_many_they_are(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler
) -> None:
    """A schedule for every user, made by a program: until it is due, it is a row in an index."""
    jobs = Commands(store, env).jobs
    asked: list[Counter[str]] = []
    for number in (1, MANY):
        await jobs.define_all(
            [JobSpec(name=f"digest-{user}", handler=HANDLER, schedule=f"{user % 60} 7 * * *") for user in range(number)]
        )
        await node.tick()
        counted = asked_of(env)
        for _ in range(10):
            clock.advance("1s")
            await node.tick()
        asked.append(counted.copy())

    assert asked[0] == asked[1]
    assert asked[1]["look_ahead"] == asked[1].total() == 10
    assert len(node.scheduler._due_heap) == 0


async def test_what_lies_further_ahead_is_not_held(store: Store, clock: VirtualClock, node: ManualScheduler) -> None:
    """Or a scheduler would hold, in the end, every job that ever ran."""
    await schedule(store, 50, 60)

    await node.run_for(60)

    assert len(await table(store, "ready")) == 50
    assert len(node.scheduler._due_heap) == 0
    await node.run_for(58)
    assert len(node.scheduler._due_heap) == 50


async def test_a_schedule_that_is_held_takes_little_memory(store: Store, node: ManualScheduler) -> None:
    """Where and when it stands, and by which rule it goes on; neither its payload nor anything twice."""
    await create(store, interval_seconds=2)
    await node.tick()
    await schedule(store, MANY, 3_600, START + seconds(2.5))
    node.scheduler.reload()
    gc.collect()
    tracemalloc.start()
    try:
        await node.tick()
        # Connections keep the last piece that they have received, however large it is.
        await asyncio.gather(*(store.nodes.read_clock() for _ in range(10)))
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(node.scheduler._due_heap) == MANY + 1
    assert held / MANY <= 1_600
    assert most / MANY <= 2_200


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    """A scheduler that owns everything."""
    return await start_scheduler(store)


async def test_calendars_cost_nothing_where_no_job_has_any(store: Store, env: Env, node: ManualScheduler) -> None:
    asked = asked_of(env)

    await schedule(store, 20, 1, START + seconds(1))
    await node.run_for(5)

    assert asked["promote"] >= 5
    assert not [name for name in asked if "calendar" in name]


async def test_the_days_of_a_calendar_are_read_once_for_all_jobs_that_cite_them(
    store: Store, env: Env, node: ManualScheduler
) -> None:
    commands = Commands(store, env)
    await commands.calendars.create("closed", DaysRequest(days=["2026-03-03"]))
    asked = asked_of(env)

    await commands.jobs.create_all(
        [
            JobSpec(name=f"job-{place}", handler=HANDLER, interval_seconds=1, skip_on=("closed",), overlap="allow")
            for place in range(20)
        ]
    )
    await node.run_for(5)

    of_calendars = {name: number for name, number in asked.items() if "calendar" in name}
    assert of_calendars == {"present_calendars": 1, "calendar_versions": 1}
