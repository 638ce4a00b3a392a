"""Many at once: a crowd of jobs at one instant, and a crowd of schedulers over the same jobs."""

from __future__ import annotations

import asyncio
import os

from tests.engine.support import check_promises, settle, start_scheduler, start_worker
from tests.support.factories import HANDLER, define_job, first_execution_of, seconds, table
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.store.store import Store
from timeball.testing import VirtualClock
from timeball.testing.environment import START

# `make soak` lets a hundred thousand come.
CROWD = int(os.environ.get("CROWD", "5000"))
SCHEDULERS, MINUTELY = 8, 200


async def test_a_crowd_that_is_due_at_one_instant_is_all_there_in_time(store: Store, clock: VirtualClock) -> None:
    """Fault 25. Everything has been promoted before the instant has come, and all of it is given to workers."""
    node, worker = await start_scheduler(store), await start_worker(store)
    spec = JobSpec(handler=HANDLER, scheduled_at=START + seconds(60))
    await Commands(store, store.env).jobs.enqueue_many(spec, ["{}"] * CROWD)
    clock.advance("59.6s")

    await node.tick()
    assert len(await table(store, "ready")) == CROWD

    clock.advance("400ms")
    claimed = 0
    while done := await worker.work():
        claimed += len(done)
    assert claimed == CROWD
    assert {row["started_at"] - row["scheduled_for"] for row in await table(store, "finished")} == {seconds(0)}
    await check_promises(store)


async def test_a_crowd_of_schedulers_records_every_occurrence_once(store: Store, clock: VirtualClock) -> None:
    """Fault 1. Eight of them at the same time, and half believe to own what the others own."""
    jobs = [define_job(store, interval_seconds=60, overlap="allow") for _ in range(MINUTELY)]
    openings = [first_execution_of(job, clock.now()) for job in jobs]
    await store.enqueuer.create(jobs, [opening for opening in openings if opening is not None])
    nodes = [await start_scheduler(store) for _ in range(SCHEDULERS)]
    for _ in range(2):
        for node in nodes:
            await settle(node.shards)
    for believer, owner in zip(nodes[::2], nodes[1::2], strict=True):
        believer.shards.epochs |= owner.shards.epochs

    for _ in range(3):
        clock.advance("60s")
        await asyncio.gather(*(node.tick() for node in nodes))

    ready = [(row["job_id"], row["scheduled_for"]) for row in await table(store, "ready")]
    assert len(set(ready)) == len(ready) == 3 * MINUTELY
    await check_promises(store)
