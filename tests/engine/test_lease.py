"""The lease: renewed from a thread of its own, lost when a renewal is refused or does not come in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.engine.runners.support import Attempt
from tests.engine.support import MORTAL, PATIENCE_SECONDS, Heard, until
from tests.support.factories import make_node, only_row
from timeball.config.life_signs import LifeSign
from timeball.domain.node import Node, NodeKind
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.domain.wakeup import Wakeup
from timeball.engine import lease as module
from timeball.engine.lease import Heartbeat
from timeball.engine.worker.attempts import Slots
from timeball.env import ClockReading, Env, SystemClock
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.store.types import LeaseRenewal
from timeball.telemetry.events import ClockStepped, LoopBlocked, ServiceFailed
from timeball.testing import VirtualClock
from timeball.testing.environment import START


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread looks at the clock so often that a test need not wait for it."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.005)


@pytest.fixture
def losses() -> list[str]:
    """The reason of each loss of the lease."""
    return []


@pytest.fixture
def drains() -> list[int]:
    """One entry each time the node was asked to drain."""
    return []


@pytest.fixture
def slots() -> Slots:
    return Slots(20)


@pytest.fixture
async def beating(
    store: Store, env: Env, heard: Heard, losses: list[str], drains: list[int], slots: Slots
) -> AsyncIterator[Heartbeat]:
    """The heartbeat of a worker with a lease of ten seconds, renewed every three."""
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=MORTAL, slots=5)
    heartbeat = Heartbeat(env, heard, store, node, losses.append, lambda: drains.append(1), slots)
    await heartbeat.start()
    yield heartbeat
    heartbeat.stop()


async def node_row(store: Store) -> dict[str, Any]:
    return await only_row(store, "node")


async def pass_until(clock: VirtualClock, is_so: Callable[[], object], seconds: float = 4) -> None:
    """Let time pass, a tenth of a second after the other, until it is so."""
    end = clock.now() + timedelta(seconds=seconds)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await pass_a_moment(clock, end)


async def pass_until_renewed(store: Store, clock: VirtualClock, seconds: float = 4) -> datetime:
    """Let time pass until the lease has been renewed once more; returns the moment of that."""
    before = (await node_row(store))["renewed_at"]
    end = clock.now() + timedelta(seconds=seconds)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (renewed_at := (await node_row(store))["renewed_at"]) == before:
            await pass_a_moment(clock, end)
    return renewed_at


async def pass_a_moment(clock: VirtualClock, end: datetime) -> None:
    """Not beyond *end*: on a busy machine the thread comes later than it would have liked, but at no later time."""
    clock.advance_to(min(clock.now() + timedelta(milliseconds=100), end))
    await asyncio.sleep(0.01)


async def test_a_worker_learns_its_peers_at_once(store: Store, beating: Heartbeat) -> None:
    """When the nodes have changed it does not wait for its next renewal, for which the clock would have to move."""
    wakeups = [Wakeup(executions=1, nonce=nonce * 10_007) for nonce in range(20)]
    assert {beating.peers.turn_of(wakeup) for wakeup in wakeups} == {0}
    await make_node(store, lease=MORTAL, slots=5)

    beating.renew_soon()

    await until(lambda: {beating.peers.turn_of(wakeup) for wakeup in wakeups} == {0, 1})


async def test_every_renewal_extends_the_life_sign_and_the_end_removes_it(
    store: Store, env: Env, heard: Heard, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the deadline at which the node itself gives up, a margin before its lease is over."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=MORTAL, slots=5)
    heartbeat = Heartbeat(env, heard, store, node, lambda _: None, life_sign=LifeSign("worker"))

    def signs() -> list[float]:
        return [float(path.read_text()) for path in tmp_path.glob("timeball-*/worker-*")]

    await heartbeat.start()
    assert signs() == [pytest.approx(heartbeat.lease.deadline, abs=0.001)]
    before = signs()
    await pass_until_renewed(store, clock)
    await until(lambda: signs() != before)
    assert signs() == [pytest.approx(heartbeat.lease.deadline, abs=0.001)]
    heartbeat.stop()
    assert signs() == []


async def test_the_lease_begins_with_the_registration(store: Store, beating: Heartbeat) -> None:
    row = await node_row(store)

    assert (row["renewed_at"], row["lease_until"]) == (START, START + MORTAL.span)
    assert beating.lease.is_held


async def test_it_is_renewed_at_every_interval(
    store: Store, clock: VirtualClock, beating: Heartbeat, slots: Slots
) -> None:
    for number in range(7):
        slots.attempts[ExecutionId(UUID(int=number))] = Attempt()

    renewals = [await pass_until_renewed(store, clock) for _ in range(4)]

    assert all(MORTAL.interval <= later - earlier for earlier, later in pairwise(renewals))
    row = await node_row(store)
    assert row["lease_until"] == renewals[-1] + MORTAL.span
    assert row["busy"] == 7
    assert beating.lease.is_held


async def test_a_node_whose_row_was_removed_is_lost(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str]
) -> None:
    await store.nodes.remove(beating._node.incarnation)

    await pass_until(clock, lambda: losses)

    assert losses == ["the lease had run out, or the node was removed as expired"]
    assert beating.lease.is_lost
    assert not beating.lease.is_held


async def test_without_a_renewal_the_lease_is_lost_a_margin_before_its_end(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go by the database's clock: we must have let go before they take over."""

    async def unreachable() -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store.database, "connect", unreachable)
    for _ in range(17):
        clock.advance("500ms")
        await asyncio.sleep(0.02)
    assert losses == []
    assert beating.lease.is_held

    clock.advance("500ms")
    assert not beating.lease.is_held, "at once, even before the thread has looked"
    await until(lambda: losses)
    assert losses == ["no renewal was accepted in time"]


@pytest.mark.parametrize("verb", ["register", "renew"])
async def test_a_lease_counts_from_the_moment_it_was_asked_for(
    store: Store, env: Env, clock: VirtualClock, heard: Heard, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The answer may have been long under way: to the others the lease began when the database wrote it."""
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=MORTAL)
    heartbeat = Heartbeat(env, heard, store, node, lambda _: None)
    monkeypatch.setattr(heartbeat, "_beat_in_thread", lambda: None)
    if verb == "renew":
        await heartbeat.start()
        clock.advance("1s")
    asks = getattr(store.nodes, verb)

    async def slowly(*arguments: Any) -> Any:
        answer = await asks(*arguments)
        clock.advance("4s")
        return answer

    monkeypatch.setattr(store.nodes, verb, slowly)
    await (heartbeat.start() if verb == "register" else heartbeat._renew(None))

    clock.advance("4900ms")
    assert heartbeat.lease.is_held
    clock.advance("100ms")
    assert not heartbeat.lease.is_held


async def test_a_machine_that_slept_through_its_lease_is_lost_without_asking(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str]
) -> None:
    """Fault 21."""
    clock.advance("1h")
    await until(lambda: losses)

    assert losses == ["no renewal was accepted in time"]
    assert (await node_row(store))["renewed_at"] == START, "what was lost is not renewed any more"


async def test_a_renewal_that_finds_the_lease_run_out_is_refused(store: Store, clock: VirtualClock, env: Env) -> None:
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=MORTAL)
    await store.nodes.register(node)
    clock.advance("10s")

    assert await store.nodes.renew(node.incarnation, 0) is None
    assert (await node_row(store))["renewed_at"] == START


async def test_a_broken_connection_is_replaced_in_time(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str]
) -> None:
    renewed_at = await pass_until_renewed(store, clock)
    async with store.database.connection() as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    assert await pass_until_renewed(store, clock, seconds=8) > renewed_at
    assert losses == []


async def test_another_database_in_its_place_ends_the_lease(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str]
) -> None:
    beating._identity = "7000000000000000000/1"

    await pass_until(clock, lambda: losses)

    assert losses == ["the database is another one, or was restored or promoted"]
    beating.stop()
    assert (await node_row(store))["renewed_at"] == START, "there the lease is another one"


# other connections than the heartbeat's own


@pytest.fixture
async def silent(store: Store, env: Env, heard: Heard, losses: list[str], monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """A heartbeat whose thread does nothing."""
    node = Node(incarnation=Incarnation(env.new_id()), kind=NodeKind.WORKER, name="w", lease=MORTAL)
    heartbeat = Heartbeat(env, heard, store, node, losses.append)
    monkeypatch.setattr(heartbeat, "_beat_in_thread", lambda: None)
    await heartbeat.start()
    return heartbeat


async def confirm(store: Store, heartbeat: Heartbeat) -> None:
    async with store.database.connection() as connection:
        await heartbeat.confirm(connection)


async def test_a_lease_is_renewed_where_it_is_confirmed(store: Store, clock: VirtualClock, silent: Heartbeat) -> None:
    clock.advance("5s")

    await confirm(store, silent)

    assert (await node_row(store))["renewed_at"] == clock.now()
    clock.advance("8900ms")
    assert silent.lease.is_held


async def test_a_lease_that_is_gone_is_not_confirmed(store: Store, silent: Heartbeat, losses: list[str]) -> None:
    await store.nodes.remove(silent._node.incarnation)

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="lease"):
            await confirm(store, silent)

    assert losses == ["the lease had run out, or the node was removed as expired"]


async def test_another_database_does_not_confirm(store: Store, silent: Heartbeat, losses: list[str]) -> None:
    silent._identity = "7000000000000000000/1"

    with pytest.raises(StoreUnavailable, match="lease"):
        await confirm(store, silent)

    assert losses == ["the database is another one, or was restored or promoted"]


async def test_past_its_own_deadline_a_node_asks_for_no_renewal(
    store: Store, clock: VirtualClock, silent: Heartbeat
) -> None:
    """The lease has not run out yet, but what the node ran is being given up: it must not come back."""
    clock.advance("9500ms")

    with pytest.raises(StoreUnavailable, match="lease"):
        await confirm(store, silent)

    assert (await node_row(store))["renewed_at"] == START


async def test_an_answer_that_was_overtaken_does_not_shorten_the_lease(
    store: Store, clock: VirtualClock, silent: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = store.nodes.renew

    async def overtaken(*arguments: Any) -> Any:
        answer = await renew(*arguments)
        monkeypatch.setattr(store.nodes, "renew", renew)
        clock.advance("4s")
        await confirm(store, silent)
        return answer

    monkeypatch.setattr(store.nodes, "renew", overtaken)
    await confirm(store, silent)

    clock.advance("8900ms")
    assert silent.lease.is_held


async def test_another_server_behind_pgbouncer_ends_the_lease_though_the_connection_stayed(
    clock: VirtualClock, store: Store, beating: Heartbeat, losses: list[str]
) -> None:
    """A failover that PgBouncer has hidden: our connection goes to it, and it goes to another server."""
    store.database.behind_pgbouncer = True
    await pass_until_renewed(store, clock)
    assert losses == []

    beating._identity = "7000000000000000000/1"
    await pass_until(clock, lambda: losses)

    assert losses == ["the database is another one, or was restored or promoted"]


async def test_a_loss_is_told_once(clock: VirtualClock, store: Store, beating: Heartbeat, losses: list[str]) -> None:
    clock.advance("1h")
    await until(lambda: losses)
    for _ in range(5):
        clock.advance("1h")
        await asyncio.sleep(0.01)

    assert len(losses) == 1


async def test_a_drain_is_heard_with_the_next_renewal_and_told_once(
    store: Store, clock: VirtualClock, beating: Heartbeat, drains: list[int]
) -> None:
    await store.nodes.drain(beating._node.incarnation)

    for _ in range(2):
        await pass_until_renewed(store, clock)

    await until(lambda: drains)
    assert drains == [1]
    assert beating.is_draining


async def test_a_stopped_heartbeat_neither_renews_nor_complains(
    store: Store, clock: VirtualClock, beating: Heartbeat, losses: list[str]
) -> None:
    beating.stop()

    clock.advance("1h")
    await asyncio.sleep(0.03)

    assert losses == []
    assert (await node_row(store))["renewed_at"] == START


async def test_a_step_of_the_databases_clock_is_told_and_its_being_put_right_is_not(
    store: Store, heard: Heard, losses: list[str]
) -> None:
    node = Node(incarnation=Incarnation(UUID(int=1)), kind=NodeKind.WORKER, name="w", lease=MORTAL, slots=5)
    heartbeat = Heartbeat(Env(SystemClock()), heard, store, node, losses.append)

    for number, ahead in enumerate((0, 0.05, 3600, 3600, 0)):
        read_at = START + timedelta(seconds=number + ahead)
        heartbeat._accept(LeaseRenewal(False, ClockReading(number, number + 0.001, read_at), ()), number)

    assert [round(event.by.total_seconds()) for event in heard.of(ClockStepped)] == [3600, -3600]


async def test_a_loop_that_stands_still_is_told_once_with_its_stack(
    clock: VirtualClock, beating: Heartbeat, heard: Heard
) -> None:
    clock.advance("2100ms")
    await until(lambda: heard)
    await asyncio.sleep(0.03)

    (blocked,) = heard.of(LoopBlocked)
    assert blocked.blocked_for == timedelta(seconds=2.1)
    assert "test_heartbeat.py" in (blocked.stack or "") or "asyncio" in (blocked.stack or "")


async def test_a_loop_that_turns_is_not_told_of(clock: VirtualClock, beating: Heartbeat, heard: Heard) -> None:
    for _ in range(6):
        clock.advance("1100ms")
        beating.note_loop_alive()
        await asyncio.sleep(0.01)

    assert heard == []


async def test_an_unforeseen_error_does_not_stop_the_heartbeat(
    store: Store,
    clock: VirtualClock,
    beating: Heartbeat,
    heard: Heard,
    losses: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.005)
    failures = iter([ZeroDivisionError("a bug"), TypeError("another")])

    def fail_twice(_self: Heartbeat) -> None:
        for error in failures:
            raise error

    monkeypatch.setattr(Heartbeat, "_watch_loop", fail_twice)
    await pass_until(clock, lambda: len(heard.of(ServiceFailed)) == 2)

    await pass_until_renewed(store, clock)
    assert [(event.service, event.error, event.failures) for event in heard.of(ServiceFailed)] == [
        ("heartbeat", "ZeroDivisionError: a bug", 1),
        ("heartbeat", "TypeError: another", 2),
    ]
    assert losses == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_heartbeat_whose_thread_ends_loses_the_lease(
    clock: VirtualClock, beating: Heartbeat, losses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_self: Heartbeat) -> None:
        raise SystemExit

    monkeypatch.setattr(Heartbeat, "_watch_loop", end)

    await pass_until(clock, lambda: losses)

    assert losses == ["the thread of the heartbeat has ended"]
    assert not beating.lease.is_held


async def test_a_loop_that_stood_still_is_told_with_the_next_renewal(
    store: Store, clock: VirtualClock, beating: Heartbeat, heard: Heard
) -> None:
    clock.advance("2100ms")
    await until(lambda: heard.of(LoopBlocked))

    renewed_at = await pass_until_renewed(store, clock)

    row = await node_row(store)
    assert row["trouble"].startswith("its event loop stood still for 2.1 s in ")
    assert row["trouble_at"] == renewed_at
    await pass_until_renewed(store, clock)
    assert (await node_row(store))["trouble_at"] == renewed_at, "it is told once"
