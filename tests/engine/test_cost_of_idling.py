"""What a node costs that has nothing to do: how often it is woken in a minute, and what it asks. Counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.engine.conftest import node_factory
from tests.engine.simulation.leaping_loop import leaping
from tests.engine.support import IMMORTAL, Heard, evaluation, never_post, until
from timeball.application.commands import Commands
from timeball.config.settings import HousekeepingSettings, SchedulerSettings, WorkerSettings
from timeball.domain.node import Lease, Node, NodeKind
from timeball.domain.values.ids import Incarnation
from timeball.engine.lease import Heartbeat
from timeball.engine.node import BaseNode
from timeball.engine.scheduler.node import SchedulerNode
from timeball.env import Env
from timeball.store.store import Store
from timeball.telemetry.events import ListenerChanged
from timeball.testing import VirtualClock

MINUTE = 60.0
# So many beats before the counting: until then, the nodes settle.
SETTLING_SECONDS = 7.0
# What is asked on a connection that had no turn before.
CONFIRMATION = {"read_identity", "renew_lease"}


@pytest.fixture
async def engine_nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[BaseNode]]:
    """The nodes to end. Their heartbeats run in real time, and are counted apart."""
    monkeypatch.setattr(Heartbeat, "_beat_in_thread", lambda _heart: None)
    made: list[BaseNode] = []
    yield made
    for engine_node in made:
        await engine_node._cut_services()
        engine_node.heartbeat.stop()


def make_scheduler(store: Store, env: Env, heard: Heard) -> SchedulerNode:
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.SCHEDULER, name="s", lease=IMMORTAL)
    commands = Commands(store, env)
    return SchedulerNode(
        env,
        heard,
        store,
        node,
        SchedulerSettings(),
        HousekeepingSettings(),
        commands.operations.work,
        never_post,
        evaluation(store, commands),
    )


async def idle_minute(engine_node: BaseNode, clock: VirtualClock, heard: Heard) -> tuple[int, Counter[str]]:
    """How often the loop is woken in a minute, and what is asked."""
    await engine_node.start()
    await until(lambda: heard.of(ListenerChanged))
    if isinstance(engine_node, SchedulerNode):
        await until(lambda: engine_node.janitor._next_round > 0)
    with leaping(clock) as leaper:
        leaper.watch(engine_node)
        await asyncio.sleep(SETTLING_SECONDS)
        leaper.asked.clear()
        before = leaper.wakes
        await asyncio.sleep(MINUTE)
        return leaper.wakes - before, leaper.asked


async def test_an_idle_worker_is_woken_once_a_second_and_sweeps(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, engine_nodes: list[BaseNode]
) -> None:
    engine_node = node_factory(store, env, heard)
    engine_nodes.append(engine_node)

    wakes, asked = await idle_minute(engine_node, clock, heard)

    # It claims nothing where nothing is, and asks for no stops where nothing runs.
    assert set(asked) - CONFIRMATION <= {"lanes", "probe", "claim_keys"}
    assert sum(asked.values()) <= 80
    assert 45 <= asked["lanes"] <= 61
    assert 9 <= asked["probe"] <= 13
    assert asked["claim_keys"] <= 1
    # A beat, and the answer to what it asked; a little more, where that comes in pieces.
    assert wakes <= 160


async def test_an_idle_scheduler_asks_two_questions_a_second_and_keeps_house(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, engine_nodes: list[BaseNode]
) -> None:
    engine_node = make_scheduler(store, env, heard)
    engine_nodes.append(engine_node)

    wakes, asked = await idle_minute(engine_node, clock, heard)

    assert min(asked["look_ahead"], asked["read_holdings"]) >= 45
    assert max(asked["look_ahead"], asked["read_holdings"]) <= 61
    every_two_seconds = [
        asked[name] for name in ("remove_expired_nodes", "orphaned_claims", "blocked_keys", "tend_queues")
    ]
    assert 22 <= min(every_two_seconds) <= max(every_two_seconds) <= 31
    every_five_seconds = [asked[name] for name in ("lock_fold", "fold", "probe", "expire_waiting")]
    assert 9 <= min(every_five_seconds) <= max(every_five_seconds) <= 13
    assert asked["occurrences_of_other_tzdata"] <= 1
    # An evaluation of alerts asks some twenty questions, six times a minute.
    assert 5 <= asked["lock_alert_evaluation"] <= 7
    assert sum(asked.values()) <= 430
    assert wakes <= 600


async def test_an_idle_heartbeat_is_woken_once_a_second_and_renews_in_its_interval(
    store: Store, env: Env, clock: VirtualClock, heard: Heard
) -> None:
    """Also for its own sake: so it would see within a second that the lease has run out."""
    lease = Lease(span=WorkerSettings().lease.span, interval=WorkerSettings().lease.interval)
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=lease, slots=1)
    heartbeat = Heartbeat(env, heard, store, node, lambda _reason: None)
    heartbeat._beat_in_thread = lambda: None  # type: ignore[method-assign]
    await heartbeat.start()
    rests: list[float] = []
    renewals: list[float] = []
    began, accept = clock.monotonic(), heartbeat._accept

    def rest(seconds: float) -> None:
        rests.append(seconds)
        clock.advance(min(seconds, 1.0))
        # The node's loop, which turns once a second.
        heartbeat._turned_at = float(int(clock.monotonic()))
        heartbeat._stopped = clock.monotonic() - began > MINUTE

    def accepted(renewal: object, sent: float) -> None:
        renewals.append(sent)
        accept(renewal, sent)  # type: ignore[arg-type]

    heartbeat._rest_for, heartbeat._accept = rest, accepted  # type: ignore[method-assign]
    await heartbeat._beat()

    assert len(rests) <= MINUTE + 2
    assert len(renewals) == 12
    assert heard == []
