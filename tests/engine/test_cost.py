"""What an execution costs, in numbers that no busy machine can blur: statements, commits, and rows that are looked at."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.engine.conftest import node_factory
from tests.engine.support import PATIENCE_SECONDS, Heard, make_executor, until
from tests.engine.worker.test_executor import claim
from tests.support.factories import HANDLER, make_node
from timeball.application.commands import Commands
from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimedExecution
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ClaimId
from timeball.domain.wakeup import Lane, LanePosition
from timeball.engine import node as node_module
from timeball.engine.runners.in_process import CoroutineRunner
from timeball.engine.worker import claimer
from timeball.engine.worker.admission import RetryGate
from timeball.engine.worker.executor import Executor
from timeball.engine.worker.node import WorkerNode
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.handlers.registry import Registry, make_handler
from timeball.store.store import Store
from timeball.store.types import ClaimRequest
from timeball.telemetry.events import ListenerChanged, NodeStarted
from timeball.testing import VirtualClock
from timeball.testing.environment import START

MANY = 3_000
LANE: Lane = ("default", 50)
TraceFunction = Callable[[FrameType, str, Any], Any]
OURS = "/src/timeball/"


async def finished(store: Store) -> int:
    async with store.database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM timeball.finished"))


async def test_a_thousand_executions_take_a_few_statements(
    store: Store, env: Env, heard: Heard, worker_node: WorkerNode
) -> None:
    """Each is a commit: claims and outcomes go by the hundred, whatever else the worker does."""
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * MANY)
    asked: Counter[str] = Counter()
    env.fault = lambda point: asked.update([point.removesuffix(".before")] if point.endswith(".before") else [])

    await worker_node.start()
    await until(lambda: heard.of(NodeStarted))
    async with asyncio.timeout(60):
        while await finished(store) < MANY:
            await asyncio.sleep(0.02)

    thousands = MANY / 1_000
    assert asked["claim"] / thousands <= 25
    assert asked["finish_succeeded"] / thousands <= 25
    assert asked["record_transitions"] == asked["attempt_facts"] == 0, "nothing was given back"


@pytest.mark.parametrize(
    ("payload", "reads"),
    [
        ('{"price": "$5", "$ref": 1}', 0),
        ('{"key": {"$text": "{execution_id}-{attempt}"}}', 0),
        ('{"day": {"$now": "scheduled_date"}}', 1),
    ],
)
async def test_a_schedule_is_read_only_for_payloads_that_refer_to_it(
    store: Store, env: Env, heard: Heard, worker_node: WorkerNode, payload: str, reads: int
) -> None:
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), [payload] * 10)
    asked: Counter[str] = Counter()
    env.fault = lambda point: asked.update([point.removesuffix(".before")] if point.endswith(".before") else [])

    await worker_node.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await finished(store) < 10:
            await asyncio.sleep(0.02)

    assert asked["schedule_of_version"] == 10 * reads


async def test_an_execution_takes_a_few_hundredths_of_a_commit(
    fresh_database: FreshDatabase, store: Store, env: Env, worker_node: WorkerNode
) -> None:
    """Enqueued, claimed, finished: every commit that the server has counted."""
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * MANY)

    await worker_node.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await finished(store) < MANY:
            # Seldom, because this is a commit, too.
            await asyncio.sleep(0.5)
    await worker_node.abandon("all is done")
    await store.close()

    assert commits_in(fresh_database) / MANY <= 0.08


def commits_in(database: FreshDatabase) -> int:
    """All commits that were ever made in a database without connections: a session reports its counts when it ends."""
    ((commits,),) = database.server.execute(
        f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{database.name}'"
    )
    return int(commits)


@pytest.fixture
def _only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """No service polls: on a busy machine that would be counted as well."""
    for module, name in ((node_module, "LONGEST_REST"), (claimer, "LONGEST_REST"), (claimer, "_SWEEP_INTERVAL")):
        monkeypatch.setattr(module, name, timedelta(hours=1))


@pytest.mark.usefixtures("_only_hints")
@pytest.mark.parametrize("number", [1, 8])
async def test_an_execution_enqueued_by_itself_takes_three_statements_however_many_workers_wait_for_it(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, number: int
) -> None:
    """It is written, claimed and recorded: its wake-up calls upon one of the workers, and no other asks."""
    engine_nodes = [node_factory(store, env, heard) for _ in range(number)]
    try:
        for engine_node in engine_nodes:
            await engine_node.start()
        await until(lambda: len(heard.of(ListenerChanged)) == number)
        await until(
            lambda: all(len(engine_node.heartbeat.peers._election._line) == number for engine_node in engine_nodes)
        )
        for engine_node in engine_nodes:
            # Or the first one might be found by the first look of a new worker.
            engine_node.sweeper.stop()
            await asyncio.wait([task for task in engine_node._tasks if task.get_name() == engine_node.sweeper.name])
        asked: Counter[str] = Counter()
        env.fault = lambda point: asked.update([point.removesuffix(".before")] if point.endswith(".before") else [])
        for ended in range(1, 21):
            clock.advance("10ms")
            await Commands(store, env).jobs.create(JobSpec(handler=HANDLER))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await finished(store) < ended:
                    await asyncio.sleep(0.005)
    finally:
        for engine_node in engine_nodes:
            await engine_node._cut_services()
            engine_node.heartbeat.stop()

    assert asked["enqueue_one"] == asked["claim_by_id"] == asked["finish_succeeded"] == 20
    assert asked["claim"] == 0, "what a wake-up names need not be looked for"


async def test_a_claim_does_not_look_at_what_lies_behind_it(store: Store, env: Env) -> None:
    """A foreign snapshot keeps the rows that were claimed from being removed; each claim begins behind them, in the same instant."""
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 5_000)
    worker = await make_node(store)
    foreign = await store.database.connect()
    holding = foreign.transaction(isolation="repeatable_read")
    await holding.start()
    await foreign.fetch("SELECT 1 FROM timeball.ready LIMIT 1")
    mark, request = LanePosition(START), ClaimRequest(worker, [HANDLER], 100, 0)

    reads = []
    for _ in range(40):
        before = await index_reads(store)
        claims = await store.executions.claim(request, {LANE: mark}, ClaimId(env.new_id()))
        assert len(claims.executions) == 100
        mark = LanePosition(claims.executions[-1].run_at, claims.executions[-1].id)
        reads.append(await index_reads(store) - before)

    await holding.rollback()
    await foreign.close()
    assert 100 <= max(reads) <= 300, reads


async def test_a_claim_reads_the_head_of_a_lane_even_if_the_table_is_believed_to_be_empty(
    store: Store, env: Env
) -> None:
    """So vacuum leaves an empty room behind; then a batch comes, and the planner must not sort all of it at every claim."""
    worker = await make_node(store)
    async with store.database.connection() as connection:
        await connection.execute(
            "INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at) "
            "SELECT gen_random_uuid(), gen_random_uuid(), 'enqueue', 1, 'default', 50, 'h', now(), now(), now() "
            "FROM generate_series(1, 20000)"
        )
        for done in ("ANALYZE", "DELETE FROM", "VACUUM"):
            await connection.execute(f"{done} timeball.ready")
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 3_000)
    request = ClaimRequest(worker, [HANDLER], 100, 50, has_competitors=False)

    before = await index_reads(store)
    claims = await store.executions.claim(
        request, {LANE: LanePosition(START - timedelta(days=1))}, ClaimId(env.new_id())
    )

    assert len(claims.executions) == 100
    assert await index_reads(store) - before <= 300


async def test_an_execution_leaves_next_to_nothing_behind(store: Store, env: Env, heard: Heard) -> None:
    """Until its outcome is written, a Finding; after that, nothing."""
    recorder, executor = quick_executor(store, env, heard)
    claims = [claim(START, number, handler="quick", timeout_ms=60_000) for number in range(2_000)]
    await run(executor, claims[:500])
    recorder.forget_all()

    before = blocks()
    await run(executor, claims[500:])
    kept = blocks() - before
    recorder.forget_all()
    left = blocks() - before
    executor.abandon()

    # Kept is a Finding for each, whose instants are the virtual clock's own.
    assert 1 <= kept / 1_500 <= 1.5
    assert left / 1_500 <= 0.1


async def test_an_execution_takes_little_memory_while_it_is_on_its_way(store: Store, env: Env, heard: Heard) -> None:
    """At their most, a thousand that were claimed together: a Finding each that is kept, and what is made besides and thrown away."""
    recorder, executor = quick_executor(store, env, heard)
    claims = [claim(START, number, handler="quick", timeout_ms=60_000) for number in range(2_000)]
    tracemalloc.start()
    try:
        await run(executor, claims[:1_000])
        recorder.forget_all()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await run(executor, claims[1_000:])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        executor.abandon()

    assert (most - before) / 1_000 <= 220


async def test_an_execution_takes_a_few_calls(store: Store, env: Env, heard: Heard) -> None:
    """From the claim to the Finding, for a handler that does nothing: functions of ours and of the interpreter, counted one by one."""
    _, executor = quick_executor(store, env, heard)
    claims = [claim(START, number, handler="quick", timeout_ms=60_000) for number in range(2_000)]
    await run(executor, claims[:1_000])
    made: Counter[str] = Counter()

    sys.setprofile(lambda _frame, event, _argument: made.update((event,)))
    try:
        await run(executor, claims[1_000:])
    finally:
        sys.setprofile(None)
        executor.abandon()

    assert made["call"] / 1_000 <= 50
    assert made["c_call"] / 1_000 <= 32


async def test_an_execution_takes_a_few_hundred_instructions(store: Store, env: Env, heard: Heard) -> None:
    """The same way, instruction by instruction of the interpreter: a loop or a condition more is no call."""
    _, executor = quick_executor(store, env, heard)
    claims = [claim(START, number, handler="quick", timeout_ms=60_000) for number in range(2_000)]
    await run(executor, claims[:1_000])
    number = 0

    def count(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        nonlocal number
        if OURS not in frame.f_code.co_filename:
            # The event loop turns more often on a busy machine.
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        number += event == "opcode"
        return count

    sys.settrace(count)
    try:
        await run(executor, claims[1_000:])
    finally:
        sys.settrace(None)
        executor.abandon()

    # 873 with Python 3.11, every time.
    assert 400 <= number / 1_000 <= 900


async def run(executor: Executor, claims: list[ClaimedExecution]) -> None:
    executor.accept(claims)
    await until(lambda: not executor.waiting and not executor.busy)


def blocks() -> int:
    """How many blocks of memory are taken, without those that lie ready for the next tuples."""
    gc.collect()
    return sys.getallocatedblocks()


def quick_executor(store: Store, env: Env, heard: Heard) -> tuple[Recorder, Executor]:
    """An executor as a worker has it, and the recorder that is handed what came of its executions."""
    recorder = Recorder(env, heard, store.executions)
    gate = RetryGate(env, heard, WorkerSettings())
    executor = make_executor(env, CoroutineRunner(), 20, quick_registry(), recorder.hand_over, gate)
    return recorder, executor


def quick_registry() -> Registry:
    async def quick() -> None:
        return None

    known = Registry([make_handler(quick, name="quick")])
    known.prepare()
    return known


async def test_attempts_that_do_not_wait_take_no_tasks(store: Store, env: Env, heard: Heard) -> None:
    recorder = Recorder(env, heard, store.executions)
    executor = make_executor(env, CoroutineRunner(), 20, quick_registry(), recorder.hand_over)
    loop, made = asyncio.get_running_loop(), []
    create_task = loop.create_task
    loop.create_task = lambda *args, **kwargs: made.append(1) or create_task(*args, **kwargs)  # type: ignore[method-assign,func-returns-value]

    try:
        await run(executor, [claim(START, number, handler="quick") for number in range(1_000)])
    finally:
        loop.create_task = create_task  # type: ignore[method-assign]
        executor.abandon()

    assert len(made) <= 2


async def index_reads(store: Store) -> int:
    """How many entries of the lanes' index have been read so far, by all sessions."""
    async with store.database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        return int(
            await connection.fetchval(
                "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ready_by_lane'"
            )
        )
