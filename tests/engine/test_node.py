"""Lives: how a node begins, works, leaves in good order, or is lost and begins again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.engine.support import (
    IMMORTAL,
    MORTAL,
    PATIENCE_SECONDS,
    HaltingRunner,
    Heard,
    ManualRunner,
    create,
    evaluation,
    never_post,
    registry,
    settle,
    until,
)
from tests.support.factories import HANDLER, enqueue, only_row, seconds, table, tables_of
from timeball.application.commands import Commands
from timeball.config.settings import HousekeepingSettings, SchedulerSettings, WorkerSettings
from timeball.current import StopReason
from timeball.domain.execution import Succeeded
from timeball.domain.handler import RunStyle
from timeball.domain.node import Lease, Node, NodeKind
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.domain.wakeup import Wakeup
from timeball.engine import lease as heartbeat_module
from timeball.engine.node import BaseNode
from timeball.engine.scheduler.node import SchedulerNode
from timeball.engine.supervisor import Supervisor
from timeball.engine.worker.node import WorkerNode
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.telemetry.events import NodeLost, NodeStarted, NodeStopped, ServiceFailed, WorkerDraining
from timeball.testing import VirtualClock


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "_LOOK_SECONDS", 0.005)


class Nodes:
    """Makes nodes, and ends those that a test has left running."""

    def __init__(self, store: Store, env: Env, heard: Heard) -> None:
        self.store = store
        self.env = env
        self.heard = heard
        self.engine_nodes: list[BaseNode] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def worker(self, runner: ManualRunner, **settings: Any) -> WorkerNode:
        node = self._node(NodeKind.WORKER, handlers=(HANDLER,))
        chosen = WorkerSettings(**{"slots": 2, "grace_seconds": 5} | settings)
        runners = {RunStyle.COROUTINE: runner}
        engine_node = WorkerNode(self.env, self.heard, self.store, node, chosen, registry(), runners)
        self.engine_nodes.append(engine_node)
        return engine_node

    def scheduler(self, lease: Lease = MORTAL) -> SchedulerNode:
        node = self._node(NodeKind.SCHEDULER, lease=lease)
        engine_node = SchedulerNode(
            self.env,
            self.heard,
            self.store,
            node,
            SchedulerSettings(),
            HousekeepingSettings(),
            Commands(self.store, self.env).operations.work,
            never_post,
            evaluation(self.store),
        )
        self.engine_nodes.append(engine_node)
        return engine_node

    def _node(self, kind: NodeKind, **fields: Any) -> Node:
        chosen = {"incarnation": Incarnation(self.env.new_id()), "kind": kind, "name": "n", "lease": MORTAL} | fields
        return Node(**chosen)

    def begin(self, engine_node: BaseNode | Supervisor) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(engine_node.run())
        self.tasks.append(task)
        return task

    async def end_all(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for engine_node in self.engine_nodes:
            await engine_node._cut_services()
            engine_node.heartbeat.stop()


@pytest.fixture
async def nodes(store: Store, env: Env, heard: Heard) -> AsyncIterator[Nodes]:
    made = Nodes(store, env, heard)
    yield made
    await made.end_all()


async def node_rows(store: Store) -> set[Incarnation]:
    return {row["incarnation"] for row in await table(store, "node")}


async def until_done(clock: VirtualClock, task: asyncio.Task[Any]) -> Any:
    """Let time pass until a node has ended by itself."""
    for _ in range(100):
        if task.done():
            break
        clock.advance("100ms")
        await asyncio.sleep(0.01)
    return await asyncio.wait_for(task, PATIENCE_SECONDS)


async def until_in(store: Store, execution_id: ExecutionId, room: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await tables_of(store, execution_id) != [room]:
            await asyncio.sleep(0.01)


# living


async def test_a_worker_claims_runs_and_records(store: Store, heard: Heard, nodes: Nodes) -> None:
    runner = ManualRunner(Succeeded("7"))
    engine_node = nodes.worker(runner)
    nodes.begin(engine_node)
    await until(lambda: heard.of(NodeStarted))

    execution_id = await enqueue(store)

    await until_in(store, execution_id, "finished")
    row = await only_row(store, "finished")
    assert (row["state"], row["result"], row["worker"]) == ("succeeded", "7", engine_node.node.incarnation)
    assert heard.of(NodeStarted) == [NodeStarted(engine_node.node.incarnation, "worker", "n")]


async def test_a_worker_has_planned_its_claims_before_it_has_work(store: Store, heard: Heard, nodes: Nodes) -> None:
    nodes.begin(nodes.worker(ManualRunner()))
    await until(lambda: heard.of(NodeStarted))

    async with store.database.connection() as connection:
        planned = await connection.fetchval(
            "SELECT generic_plans FROM pg_prepared_statements WHERE statement = $1",
            all_statements()["claim"].numbered(),
        )
    assert planned, "one plan serves all claims from now on"


async def test_a_queue_at_its_limit_goes_on_as_its_places_become_free(
    store: Store, env: Env, heard: Heard, nodes: Nodes
) -> None:
    """At once, not with the next sweep: there is none here any more."""
    await Commands(store, env).queues.limit("default", 1)
    for _ in range(10):
        await enqueue(store)
    runner = ManualRunner()
    engine_node = nodes.worker(runner)
    nodes.begin(engine_node)
    await until(lambda: runner.started)
    engine_node.sweeper.stop()

    for number in range(1, 11):
        await until(lambda number=number: len(runner.started) == number)
        runner.end(runner.started[-1].claimed)

    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await table(store, "finished")) < 10:
            await asyncio.sleep(0.01)


async def test_a_scheduler_takes_its_shards_and_promotes(
    store: Store, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    job = await create(store, interval_seconds=60)
    engine_node = nodes.scheduler(IMMORTAL)
    nodes.begin(engine_node)
    await until(lambda: len(engine_node.shards.epochs) == store.shards)

    clock.advance("60s")
    engine_node.scheduler.reload()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await table(store, "ready"):
            await asyncio.sleep(0.01)
    assert (await only_row(store, "ready"))["job_id"] == job.id


async def test_only_the_owner_of_the_first_shard_keeps_house(nodes: Nodes) -> None:
    engine_node = nodes.scheduler()
    housekeepers = (engine_node.reaper, engine_node.janitor, engine_node.rollup_writer)
    assert not any(service._is_housekeeper() for service in housekeepers)

    engine_node.shards.epochs = {0: 1}
    assert all(service._is_housekeeper() for service in housekeepers)


def woken(engine_node: SchedulerNode | WorkerNode) -> set[str]:
    """The services of a node that were woken since the last call."""
    found = {service.name for service in engine_node.services() if service._woken.is_set()}
    for service in engine_node.services():
        service._woken.clear()
    return found


async def test_a_scheduler_tells_its_services_what_it_hears(nodes: Nodes) -> None:
    engine_node = nodes.scheduler()

    engine_node.on_wakeup(Wakeup(look_everywhere=True))
    assert woken(engine_node) == {"scheduler"}
    engine_node.on_wakeup(Wakeup(nodes_changed=True))
    assert woken(engine_node) == {"shardbalancer"}
    engine_node._on_shards()
    assert woken(engine_node) == {"scheduler", "janitor"}


async def test_a_worker_tells_its_services_what_it_hears(nodes: Nodes) -> None:
    engine_node = nodes.worker(ManualRunner())
    renewals: list[str] = []
    engine_node.heartbeat.renew_soon = lambda: renewals.append("soon")

    engine_node.on_wakeup(Wakeup(look_everywhere=True))
    assert woken(engine_node) == {"claimer", "sweeper"}
    engine_node.on_wakeup(Wakeup(holders={engine_node.node.incarnation}))
    assert woken(engine_node) == {"cancellationpoller"}
    engine_node.on_wakeup(Wakeup(holders={Incarnation(UUID(int=7))}))
    assert (woken(engine_node), renewals) == (set(), [])
    engine_node.on_wakeup(Wakeup(nodes_changed=True))
    assert (woken(engine_node), renewals) == (set(), ["soon"])


async def test_a_scheduler_has_no_peers_to_learn_of(nodes: Nodes) -> None:
    engine_node = nodes.scheduler()
    renewals: list[str] = []
    engine_node.heartbeat.renew_soon = lambda: renewals.append("soon")

    engine_node.on_wakeup(Wakeup(nodes_changed=True))

    assert renewals == []


async def test_a_leaving_scheduler_promotes_nothing_and_takes_nothing_more(nodes: Nodes) -> None:
    engine_node = nodes.scheduler()

    await engine_node.wind_down()

    assert (engine_node.scheduler.is_stopping, engine_node.shards.is_stopping) == (True, True)


async def test_a_cancellation_reaches_what_runs(store: Store, env: Env, nodes: Nodes) -> None:
    runner = HaltingRunner()
    nodes.begin(nodes.worker(runner))
    execution_id = await enqueue(store)
    await until(lambda: runner.started)

    await Commands(store, env).executions.cancel([execution_id])

    await until_in(store, execution_id, "finished")
    assert (await only_row(store, "finished"))["state"] == "cancelled"


async def test_a_held_execution_is_cancelled_before_its_start_without_a_wakeup(
    store: Store, env: Env, clock: VirtualClock, nodes: Nodes
) -> None:
    """Behind PgBouncer, or with a listener that was cut off: the next look comes while it is still held."""
    engine_node = nodes.worker(runner := ManualRunner())
    await store.nodes.register(engine_node.node)
    engine_node.heartbeat.lease.extend(clock.monotonic())
    execution_id = await enqueue(store, after=0.4)
    await settle(engine_node.sweeper)
    await settle(engine_node.claimer)
    assert engine_node.executor.held == 1
    rest = await engine_node.cancellation_poller.tick()
    assert rest < seconds(0.4), "it will look again before the drop"
    await Commands(store, env).executions.cancel([execution_id])

    clock.advance(rest)
    await engine_node.cancellation_poller.tick()
    await settle(engine_node.recorder)

    assert await tables_of(store, execution_id) == ["finished"]
    assert runner.started == []


async def test_a_node_that_gets_wakeups_polls_seldom_for_stops(nodes: Nodes) -> None:
    engine_node = nodes.worker(ManualRunner())

    await engine_node.listener.tick()

    assert await engine_node.cancellation_poller.tick() == seconds(1)


# leaving


async def test_a_leaving_worker_gives_back_what_has_not_begun_and_waits_for_the_rest(
    store: Store, heard: Heard, nodes: Nodes
) -> None:
    runner = ManualRunner()
    engine_node = nodes.worker(runner, slots=1, grace_seconds=30)
    task = nodes.begin(engine_node)
    running = await enqueue(store)
    await until(lambda: runner.started)
    held = await enqueue(store, after=0.4)
    await until(lambda: engine_node.executor.held == 1)

    engine_node.end()
    await until(lambda: heard.of(WorkerDraining))
    await until_in(store, held, "ready")
    assert await tables_of(store, running) == ["running"]
    runner.end(runner.started[0].claimed)

    assert await asyncio.wait_for(task, PATIENCE_SECONDS) is False
    assert await tables_of(store, running) == ["finished"]
    assert heard.of(NodeStopped) == [NodeStopped(engine_node.node.incarnation, "worker", 1)]
    assert (await only_row(store, "ready"))["attempts"] == 0
    assert await node_rows(store) == set()
    assert runner.is_stopped


async def test_what_does_not_end_within_the_grace_is_halted_and_given_back_uncounted(
    store: Store, heard: Heard, nodes: Nodes
) -> None:
    runner = HaltingRunner()
    engine_node = nodes.worker(runner, grace_seconds=5)
    task = nodes.begin(engine_node)
    execution_id = await enqueue(store)
    await until(lambda: runner.started)

    engine_node.end()
    await asyncio.wait_for(task, PATIENCE_SECONDS)

    assert runner.started[0].halted is StopReason.SHUTDOWN
    row = await only_row(store, "ready")
    assert (row["id"], row["attempts"], row["lost"]) == (execution_id, 0, 0)
    assert heard.of(NodeStopped)[0].given_back == 1


async def test_a_worker_in_a_hurry_does_not_wait(store: Store, heard: Heard, nodes: Nodes) -> None:
    runner = HaltingRunner()
    engine_node = nodes.worker(runner, grace_seconds=600)
    task = nodes.begin(engine_node)
    await enqueue(store)
    await until(lambda: runner.started)

    engine_node.end()
    await until(lambda: heard.of(WorkerDraining))
    assert not task.done()
    engine_node.hurry()

    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert len(await table(store, "ready")) == 1


async def test_a_leaving_scheduler_hands_its_shards_over_at_once(store: Store, nodes: Nodes) -> None:
    leaver, heir = nodes.scheduler(), nodes.scheduler()
    task = nodes.begin(leaver)
    await until(lambda: len(leaver.shards.epochs) == store.shards)

    leaver.end()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    nodes.begin(heir)

    await until(lambda: len(heir.shards.epochs) == store.shards)


async def test_a_node_that_is_asked_to_drain_leaves(
    store: Store, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    engine_node = nodes.worker(ManualRunner())
    task = nodes.begin(engine_node)
    await until(lambda: heard.of(NodeStarted))

    await store.nodes.drain(engine_node.node.incarnation)

    assert await until_done(clock, task) is False
    assert await node_rows(store) == set()


async def test_a_worker_can_leave_a_database_that_does_not_answer(
    store: Store, env: Env, heard: Heard, nodes: Nodes
) -> None:
    engine_node = nodes.worker(ManualRunner())
    task = nodes.begin(engine_node)
    await until(lambda: heard.of(NodeStarted))

    def unreachable(point: str) -> None:
        raise StoreUnavailable("gone")

    env.fault = unreachable
    engine_node.end()

    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert len(heard.of(NodeStopped)) == 1


# lost


async def test_a_lost_node_lets_go_of_everything_and_writes_nothing(
    store: Store, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    runner = ManualRunner()
    engine_node = nodes.worker(runner, slots=1)
    task = nodes.begin(engine_node)
    running, held = await enqueue(store), await enqueue(store, after=0.4)
    await until(lambda: runner.started and engine_node.executor.held == 1)
    before = [await table(store, room) for room in ("ready", "running", "finished", "attempt")]

    clock.advance("1h")
    assert await asyncio.wait_for(task, PATIENCE_SECONDS) is True

    # By its own deadline; or by a renewal that was under way while the hour passed, for another service or on a new connection.
    (lost,) = heard.of(NodeLost)
    assert lost.incarnation == engine_node.node.incarnation
    assert lost.reason in (
        "no renewal was accepted in time",
        "the lease had run out, or the node was removed as expired",
    )
    assert runner.started[0].halted is StopReason.SHUTDOWN
    assert [await table(store, room) for room in ("ready", "running", "finished", "attempt")] == before
    assert {await only(tables_of(store, id_)) for id_ in (running, held)} == {"running"}
    assert heard.of(NodeStopped) == []
    assert await node_rows(store) == {engine_node.node.incarnation}, "its row is for the reaper to remove"


async def only(executions: Any) -> str:
    (room,) = await executions
    return room


async def test_a_worker_begins_nothing_from_the_moment_its_lease_may_have_run_out(
    clock: VirtualClock, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even before its heartbeat has noticed: a machine that slept wakes to everything at once."""
    engine_node = nodes.worker(ManualRunner())
    monkeypatch.setattr(engine_node.heartbeat, "_beat_in_thread", lambda: None)
    await engine_node.heartbeat.start()
    assert engine_node.executor.lease.is_held

    clock.advance(MORTAL.span)

    assert not engine_node.executor.lease.is_held


async def test_an_unwritten_outcome_is_lost_with_its_node(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    runner = ManualRunner()
    engine_node = nodes.worker(runner)
    task = nodes.begin(engine_node)
    execution_id = await enqueue(store)
    await until(lambda: runner.started)

    def cut(point: str) -> None:
        if point == "finish_succeeded.before":
            raise StoreUnavailable("gone")

    env.fault = cut
    runner.end(runner.started[0].claimed)
    await until(lambda: heard.of(ServiceFailed))
    clock.advance("1h")
    assert await asyncio.wait_for(task, PATIENCE_SECONDS) is True
    env.fault = lambda _: None
    await engine_node.recorder.tick()

    assert await tables_of(store, execution_id) == ["running"]


async def cut_off(observer: Store, *, buries: bool) -> None:
    """End every connection but the observer's own; and, before a node can open a new one, the nodes."""
    async with observer.database.transaction() as connection:
        if buries:
            await connection.execute("DELETE FROM timeball.node")
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


@pytest.fixture
async def observer(open_store: Callable[..., Awaitable[Store]], clock: VirtualClock) -> Store:
    """Another party, with connections of its own."""
    return await open_store(Env(clock, Random(7)))


async def test_a_node_that_was_cut_off_asks_for_its_lease_before_anything_else(
    store: Store, clock: VirtualClock, heard: Heard, nodes: Nodes, observer: Store
) -> None:
    """Fault 14. Its heartbeat would not have asked yet."""
    engine_node = nodes.worker(ManualRunner(Succeeded()))
    # Or it would ask because the nodes may have changed while it did not listen.
    engine_node.heartbeat.renew_soon = lambda: None
    nodes.begin(engine_node)
    await until(lambda: heard.of(NodeStarted))
    clock.advance("1s")

    await cut_off(observer, buries=False)
    execution_id = await enqueue(observer)

    await until_in(observer, execution_id, "finished")
    assert (await only_row(observer, "node"))["renewed_at"] == clock.now()
    assert heard.of(NodeLost) == []


async def test_a_node_that_was_cut_off_and_expired_does_nothing_more(
    store: Store, heard: Heard, nodes: Nodes, observer: Store
) -> None:
    """Fault 14. Time stands still, so by its own clock it would live on, and claim."""
    engine_node = nodes.worker(ManualRunner())
    # Or it would hear of the burial as of any change among the nodes.
    engine_node.heartbeat.renew_soon = lambda: None
    task = nodes.begin(engine_node)
    await until(lambda: heard.of(NodeStarted))

    await cut_off(observer, buries=True)
    execution_id = await enqueue(observer)

    assert await asyncio.wait_for(task, PATIENCE_SECONDS) is True
    assert [event.reason for event in heard.of(NodeLost)] == [
        "the lease had run out, or the node was removed as expired"
    ]
    assert await tables_of(observer, execution_id) == ["ready"]


async def test_after_a_lost_node_another_one_starts(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    runner = ManualRunner(Succeeded())
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(runner)], schedulers=[])
    task = nodes.begin(supervisor)
    await until(lambda: heard.of(NodeStarted))

    clock.advance("1h")
    await until(lambda: len(heard.of(NodeStarted)) == 2)
    execution_id = await enqueue(store)

    await until_in(store, execution_id, "finished")
    first, second = (event.incarnation for event in heard.of(NodeStarted))
    assert first != second
    assert (await only_row(store, "finished"))["worker"] == second
    supervisor.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_node_that_cannot_register_tries_again(
    store: Store, env: Env, heard: Heard, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever slower, but once a second at least: so soon is a database found that is there again."""
    failures = 5
    waits: list[float] = []

    async def no_time(_node: object, seconds: float) -> None:
        waits.append(seconds)

    def cut(point: str) -> None:
        nonlocal failures
        if point == "register_node.before" and failures:
            failures -= 1
            raise StoreUnavailable("gone")

    env.fault = cut
    monkeypatch.setattr("timeball.engine.supervisor._SupervisedNode._wait", no_time)
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(ManualRunner())], schedulers=[])
    task = nodes.begin(supervisor)

    await until(lambda: heard.of(NodeStarted))

    assert waits == [0.2, 0.4, 0.8, 1, 1]
    assert [event.pause.total_seconds() for event in heard.of(ServiceFailed) if event.service == "node"] == waits
    supervisor.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_workers_leave_before_schedulers(store: Store, env: Env, heard: Heard, nodes: Nodes) -> None:
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(ManualRunner())], schedulers=[nodes.scheduler])
    task = nodes.begin(supervisor)
    await until(lambda: len(heard.of(NodeStarted)) == 2)

    supervisor.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)

    assert [event.kind for event in heard.of(NodeStopped)] == ["worker", "scheduler"]


async def test_a_second_stop_hurries(store: Store, env: Env, heard: Heard, nodes: Nodes) -> None:
    runner = HaltingRunner()
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(runner, grace_seconds=600)], schedulers=[])
    task = nodes.begin(supervisor)
    await enqueue(store)
    await until(lambda: runner.started)

    supervisor.stop()
    await until(lambda: heard.of(WorkerDraining))
    assert not task.done()
    supervisor.stop()

    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert len(await table(store, "ready")) == 1


async def test_a_supervisor_whose_nodes_have_all_been_drained_is_done(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, nodes: Nodes
) -> None:
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(ManualRunner())], schedulers=[])
    task = nodes.begin(supervisor)
    await until(lambda: heard.of(NodeStarted))

    await store.nodes.drain(heard.of(NodeStarted)[0].incarnation)

    await until_done(clock, task)
    assert len(heard.of(NodeStarted)) == 1


async def test_a_supervisor_does_not_outlive_a_node_that_broke(store: Store, env: Env, heard: Heard) -> None:
    """Better a process that ends, and is started again, than one that only seems to work."""

    def broken() -> BaseNode:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(Supervisor(env, heard, workers=[broken], schedulers=[]).run(), PATIENCE_SECONDS)


@pytest.mark.parametrize("name", ["claimer", "recorder", "loopmonitor", "listener"])
async def test_a_node_whose_service_was_cancelled_is_lost_and_another_one_starts(
    name: str, env: Env, heard: Heard, nodes: Nodes
) -> None:
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(ManualRunner())], schedulers=[])
    nodes.begin(supervisor)
    await until(lambda: heard.of(NodeStarted))

    next(task for task in nodes.engine_nodes[0]._tasks if task.get_name() == name).cancel()

    await until(lambda: len(heard.of(NodeStarted)) == 2)
    (lost,) = heard.of(NodeLost)
    assert lost.reason == f"the task of the {name} was cancelled, by a handler most likely"


async def test_a_node_whose_service_failed_is_lost_with_the_error(
    env: Env, heard: Heard, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(env, heard, workers=[lambda: nodes.worker(ManualRunner())], schedulers=[])
    nodes.begin(supervisor)
    await until(lambda: heard.of(NodeStarted))

    def fail(_rest: object) -> None:
        raise ZeroDivisionError("a bug")

    engine_node = nodes.engine_nodes[0]
    assert isinstance(engine_node, WorkerNode)
    monkeypatch.setattr(engine_node.sweeper, "_rest", fail)
    engine_node.sweeper.wake()

    await until(lambda: len(heard.of(NodeStarted)) == 2)
    assert [lost.reason for lost in heard.of(NodeLost)] == ["the sweeper ended: ZeroDivisionError: a bug"]
