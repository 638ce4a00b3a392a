"""Limits of a queue, of a job and of a key at the same time, while workers claim at once and limits are set: none is ever exceeded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.support import Hands, check_promises, create, settle, start_scheduler, start_worker
from tests.support.factories import FAILURE, HANDLER, enqueue, found, record, seconds, table
from timeball.application.commands import Commands
from timeball.config.settings import HousekeepingSettings
from timeball.domain.execution import ClaimedExecution, Failed, Lost, Outcome, Released, Snoozed, Succeeded
from timeball.domain.values.ids import ClaimId
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.errors import Conflict
from timeball.store.store import Store
from timeball.store.types import ClaimRequest
from timeball.telemetry.events import ignore
from timeball.testing import VirtualClock

QUEUE, OWN, SHARED = 3, 1, 2
LIMITED_AT = 20


async def claim_everywhere(worker: Hands) -> list[ClaimedExecution]:
    """As a worker does: limited queues one by one, the others together."""
    lanes = await worker.store.executions.lanes()
    free = {lane: at for lane, (at, is_limited) in lanes.items() if not is_limited}
    narrow = {lane: at for lane, (at, is_limited) in lanes.items() if is_limited}
    request = ClaimRequest(worker.incarnation, [HANDLER], 5, 0)
    executions, new_id = worker.store.executions, worker.store.env.new_id
    given = await asyncio.gather(
        executions.claim(request, free, ClaimId(new_id())),
        *(
            executions.claim_limited(
                request, queue, {lane: narrow[lane] for lane in narrow if lane[0] == queue}, ClaimId(new_id())
            )
            for queue in {queue for queue, _ in narrow}
        ),
    )
    return [claimed for claims in given for claimed in claims.executions]


def count_of(rows: Sequence[dict[str, Any]], names: set[object]) -> int:
    """How many of these are in a queue, of a job or under a key that is named."""
    columns = ("queue", "job_id", "limit_key", "unique_key")
    return sum(not names.isdisjoint(row[column] for column in columns) for row in rows)


@pytest.mark.parametrize("seed", range(3))
async def test_no_limit_is_exceeded_whichever_else_there_is(store: Store, clock: VirtualClock, seed: int) -> None:
    chance, commands = random.Random(seed), Commands(store, store.env)
    node, workers = await start_scheduler(store), [await start_worker(store) for _ in range(3)]
    reaper = Reaper(
        store.env, ignore, store.nodes, store.executions, store.jobs, store.queues, HousekeepingSettings(), lambda: True
    )
    await commands.queues.limit("narrow", QUEUE)
    own = await create(store, queue="narrow", max_running=OWN)
    shared = [await create(store, queue=queue, max_running=SHARED, limit_key="l") for queue in ("narrow", "default")]
    keyed = await create(store, queue="narrow", unique_key="k", max_running=SHARED, limit_key="l")
    late = await create(store, queue="default")
    reached: Counter[str] = Counter()
    outcomes: list[Outcome] = [Succeeded(), Failed(FAILURE), Released(), Lost(FAILURE), Snoozed(seconds(1))]

    for step in range(40):
        for job in (own, *shared, keyed, late):
            try:
                await commands.executions.trigger(job.id)
            except Conflict:
                assert job is keyed
        await enqueue(store, queue="narrow")
        if step == LIMITED_AT:
            await commands.jobs.update(late.id, {"max_running": SHARED, "limit_key": "l"})
        sharing: set[object] = {"l"} if step < LIMITED_AT else {"l", late.id}
        before = sum([count_of(await table(store, room), sharing) for room in ("ready", "running")])
        await asyncio.gather(*(claim_everywhere(worker) for worker in workers), settle(reaper), node.tick())
        running = await table(store, "running")
        together = {
            "queue": (count_of(running, {"narrow"}), QUEUE),
            "job": (count_of(running, {own.id}), OWN),
            "key": (count_of(running, sharing), SHARED),
            "unique": (count_of(running, {"k"}), 1),
        }
        for what, (number, limit) in together.items():
            # What ran before there was a limit goes on, and nothing comes in beside it.
            inherited = before if what == "key" and step >= LIMITED_AT else 0
            assert number <= max(limit, inherited), f"{number} of the {what} run in step {step}"
            reached[what] += number == limit
        held = await still_held(store)
        now = clock.now()
        ending = [
            found(claimed, chance.choice(outcomes), started_at=now, finished_at=now)
            for claimed in held
            if chance.random() < 0.6
        ]
        await record(store, ending, chance.random())
        clock.advance(chance.choice(["0s", "1s", "20s"]))

    assert set(reached) == set(together)
    assert min(reached.values()) > 0, "each limit was reached"
    await node.tick()
    await check_promises(store)


async def still_held(store: Store) -> list[ClaimedExecution]:
    claims = {(row["holder"], row["claim_id"]) for row in await table(store, "running")}
    return [
        claimed
        for holder, claim_id in sorted(claims)
        for claimed in await store.executions.read_back_claim(holder, claim_id)
    ]
