"""What an execution costs, in numbers that no busy machine can blur: statements, commits, and rows that are looked at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.engine.support import IMMORTAL, Heard, ManualRunner, registry, until
from tests.factories import HANDLER, make_node
from timeball.commands import Commands
from timeball.domain.events import NodeStarted
from timeball.domain.execution import Succeeded
from timeball.domain.handler import RunStyle
from timeball.domain.hints import Lane
from timeball.domain.ids import ClaimId, Incarnation
from timeball.domain.job import JobSpec
from timeball.domain.node import Node, NodeKind
from timeball.engine.worker_life import WorkerLife
from timeball.env import Env
from timeball.settings import WorkerSettings
from timeball.store.postgres import Store
from timeball.store.rooms import ClaimWish
from timeball.testing.clock import START

MANY = 3_000
LANE: Lane = ("default", 50)


@pytest.fixture
async def life(store: Store, env: Env, heard: Heard) -> AsyncIterator[WorkerLife]:
    """A worker with quick handlers and the usual settings; not started yet."""
    node = Node(
        incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="n", lease=IMMORTAL, handlers=(HANDLER,)
    )
    runners = {RunStyle.COROUTINE: ManualRunner(Succeeded("7"))}
    made = WorkerLife(env, heard, store, node, WorkerSettings(), registry(), runners)
    yield made
    await made._cut_services()
    made.heartbeat.stop()


async def finished(store: Store) -> int:
    async with store.database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM timeball.finished"))


async def test_a_thousand_executions_take_a_few_statements(
    store: Store, env: Env, heard: Heard, life: WorkerLife
) -> None:
    """Each is a commit: claims and outcomes go by the hundred, whatever else the worker does."""
    await Commands(store, env).enqueue_many(JobSpec(handler=HANDLER), ["{}"] * MANY)
    asked: Counter[str] = Counter()
    env.fault = lambda point: asked.update([point.removesuffix(".before")] if point.endswith(".before") else [])

    await life.start()
    await until(lambda: heard.of(NodeStarted))
    async with asyncio.timeout(60):
        while await finished(store) < MANY:
            await asyncio.sleep(0.02)

    thousands = MANY / 1_000
    assert asked["claim"] / thousands <= 25
    assert asked["finish_succeeded"] / thousands <= 25
    assert asked["record_transitions"] == asked["standings"] == 0, "nothing was given back"


async def test_an_idle_worker_asks_little(store: Store, env: Env, heard: Heard, life: WorkerLife) -> None:
    await life.start()
    await until(lambda: heard.of(NodeStarted))
    asked: Counter[str] = Counter()
    env.fault = lambda point: asked.update([point] if point.endswith(".before") else [])
    seconds = 3

    await asyncio.sleep(seconds)

    # The sweep once a second; it claims nothing where nothing is, and asks for no stops where nothing runs.
    assert set(asked) <= {"lanes.before", "renew_lease.before"}
    assert sum(asked.values()) <= seconds + 3


async def test_a_claim_does_not_look_at_what_lies_behind_it(store: Store, env: Env) -> None:
    """A foreign snapshot keeps the rows that were claimed from being removed; each claim begins behind them."""
    await Commands(store, env).enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 5_000)
    worker = await make_node(store)
    async with store.database.connection() as connection:
        await connection.execute(
            "UPDATE timeball.ready SET run_at = $1::timestamptz + n * interval '1 millisecond' "
            "FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM timeball.ready) AS numbered WHERE numbered.id = ready.id",
            START - timedelta(seconds=60),
        )
    foreign = await store.database.connect()
    holding = foreign.transaction(isolation="repeatable_read")
    await holding.start()
    await foreign.fetch("SELECT 1 FROM timeball.ready LIMIT 1")
    bound, wish = START - timedelta(seconds=60), ClaimWish(worker, [HANDLER], 100, 0)

    reads = []
    for _ in range(40):
        before = await index_reads(store)
        claims = await store.rooms.claim(wish, {LANE: bound}, ClaimId(env.new_id()))
        assert len(claims.executions) == 100
        bound = max(claimed.run_at for claimed in claims.executions)
        reads.append(await index_reads(store) - before)

    await holding.rollback()
    await foreign.close()
    assert 100 <= max(reads) <= 300, reads


async def index_reads(store: Store) -> int:
    """How many entries of the lanes' index have been read so far, by everybody."""
    async with store.database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        return int(
            await connection.fetchval(
                "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ready_by_lane'"
            )
        )
