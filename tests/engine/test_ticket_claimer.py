"""Tickets become claims; what loses its ticket is swept; without tickets workers claim as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.support import IMMORTAL, Heard, ManualRunner, make_executor, registry, settle, until
from tests.support.factories import HANDLER, OPERATOR, claim_all, enqueue, make_node, tables_of
from timeball.brokers.base import BrokerHealth, Inbox, Ticket
from timeball.brokers.redis import RedisBroker
from timeball.config.settings import WorkerSettings
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.domain.wakeup import Wakeup
from timeball.engine import tickets as module
from timeball.engine.node import AT_ONCE, LONGEST_REST, Signal
from timeball.engine.tickets import TicketClaimer, TicketReceiver
from timeball.engine.worker.admission import ClaimableHandlers
from timeball.engine.worker.claimer import Sweeper
from timeball.engine.worker.executor import Executor
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.telemetry.events import BrokerLost, BrokerRecovered, BrokerSilent, TicketsUsed
from timeball.testing import VirtualClock

INBOX = Inbox.of(None, [HANDLER])


@dataclass
class TicketWorker:
    """A worker on a broker, ticked by hand."""

    store: Store
    broker: Any
    runner: ManualRunner
    executor: Executor
    claimer: TicketClaimer
    sweeper: Sweeper
    receiver: TicketReceiver
    heard: Heard

    async def publish(self, *ids: ExecutionId) -> None:
        now = self.store.env.clock.now()
        await self.broker.publish(INBOX.name, [Ticket(id_, "default", now) for id_ in ids])

    async def receive(self) -> None:
        await self.receiver.tick()
        await settle(self.claimer)
        await until(lambda: len(self.runner.started) >= self.executor.busy)

    async def sweep(self) -> None:
        await self.sweeper.tick()
        await settle(self.claimer)
        await until(lambda: len(self.runner.started) >= self.executor.busy)

    def wakeup(self, queue: str = "default") -> None:
        wakeup = Wakeup()
        wakeup.add_lane(queue, 50, self.store.env.clock.now())
        self.claimer.on_wakeup(wakeup)


@pytest.fixture
async def start(store: Store, redis_port: int) -> AsyncIterator[Callable[..., Awaitable[TicketWorker]]]:
    brokers: list[RedisBroker] = []

    async def start_one(
        slots: int = 20, url: str = f"redis://127.0.0.1:{redis_port}/0", **settings: Any
    ) -> TicketWorker:
        broker = RedisBroker(url, await store.tickets.namespace())
        brokers.append(broker)
        incarnation = await make_node(store, lease=IMMORTAL)
        heard, runner = Heard(), ManualRunner()
        executor = make_executor(store.env, runner, slots, registry(HANDLER))
        wanted = WorkerSettings(slots=slots, **settings)
        claimer = TicketClaimer(
            store.env,
            heard,
            store.executions,
            store.tickets,
            executor,
            incarnation,
            ClaimableHandlers([HANDLER]),
            wanted,
            Signal(),
        )
        sweeper = Sweeper(store.env, heard, store.executions, claimer)
        health = BrokerHealth(heard, broker.kind)
        receiver = TicketReceiver(store.env, heard, broker, health, INBOX, claimer, sweeper)
        return TicketWorker(store, broker, runner, executor, claimer, sweeper, receiver, heard)

    yield start_one
    for broker in brokers:
        await broker.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits two real seconds for a ticket that does not come."""
    monkeypatch.setattr(module, "_WAIT", timedelta(milliseconds=20))


@pytest.fixture
async def worker(start: Callable[..., Awaitable[TicketWorker]]) -> TicketWorker:
    """A worker that has reached its broker."""
    made = await start()
    await made.receive()
    assert made.heard.of(BrokerRecovered) == [BrokerRecovered("redis")]
    return made


async def test_a_ticket_is_claimed_and_run(worker: TicketWorker, store: Store) -> None:
    one, two = await enqueue(store), await enqueue(store)

    await worker.publish(one, two)
    await worker.receive()

    assert sorted(worker.runner.ids) == sorted([one, two])


async def test_while_tickets_arrive_wakeups_and_sweeps_leave_young_rows_alone(
    worker: TicketWorker, store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = await enqueue(store)

    async def fail(*_: Any) -> Any:
        raise AssertionError("this is what every worker would ask at every wake-up")

    with monkeypatch.context() as patched:
        patched.setattr(store.executions, "claim", fail)
        worker.wakeup()
        await worker.sweep()

    assert worker.runner.ids == []
    clock.advance(2)
    await enqueue(store)
    await worker.sweep()
    assert worker.runner.ids == [young], "after two seconds its ticket must be lost; the other's may come"


async def test_limited_queues_are_claimed_as_ever(worker: TicketWorker, store: Store) -> None:
    await store.queues.change(
        "limited", is_paused=False, max_running=1, reason=None, audit=OPERATOR, action="queue.set"
    )
    ids = [await enqueue(store, queue="limited") for _ in range(2)]

    await worker.sweep()

    assert len(worker.runner.ids) == 1
    assert set(worker.runner.ids) < set(ids)


async def test_an_unreachable_broker_is_done_without(
    start: Callable[..., Awaitable[TicketWorker]], store: Store
) -> None:
    worker = await start(url="redis://127.0.0.1:1/0")
    young = await enqueue(store)

    await worker.receiver.tick()
    worker.wakeup()
    await settle(worker.claimer)
    await until(lambda: worker.runner.ids)

    assert worker.runner.ids == [young]
    assert len(worker.heard.of(BrokerLost)) == 1
    assert worker.receiver._health.status.error


async def test_silence_is_noticed_by_what_it_leaves_and_ends_with_the_next_ticket(
    worker: TicketWorker, store: Store, clock: VirtualClock
) -> None:
    await enqueue(store)
    await worker.receive()
    clock.advance(2.5)

    await worker.sweep()

    assert worker.heard.of(BrokerSilent) == [BrokerSilent("redis")]
    young = await enqueue(store)
    worker.wakeup()
    await settle(worker.claimer)
    await until(lambda: young in worker.runner.ids)
    await worker.receive()
    assert len(worker.heard.of(BrokerRecovered)) == 1, "to be heard is not enough"
    await worker.publish(await enqueue(store))
    await worker.receive()
    assert len(worker.heard.of(BrokerRecovered)) == 2


async def test_a_leftover_locked_by_another_worker_is_found_by_the_next_sweep(
    worker: TicketWorker, store: Store, clock: VirtualClock
) -> None:
    leftover = await enqueue(store)
    clock.advance(3)
    async with store.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM timeball.ready WHERE id = $1 FOR UPDATE", leftover)
        await worker.sweep()

    await worker.sweep()

    assert worker.runner.ids == [leftover]


async def test_leftovers_of_a_busy_moment_are_no_silence(
    worker: TicketWorker, store: Store, clock: VirtualClock
) -> None:
    left = await enqueue(store)
    clock.advance(2.5)
    await worker.publish(await enqueue(store))
    await worker.receive()

    await worker.sweep()

    assert left in worker.runner.ids
    assert worker.heard.of(BrokerSilent) == []


async def test_a_receiver_that_has_hardly_waited_does_not_call_the_broker_silent(
    worker: TicketWorker, store: Store, clock: VirtualClock
) -> None:
    await worker.publish(await enqueue(store))
    await worker.receive()
    await enqueue(store)
    clock.advance(2.5)
    await worker.receive()

    await worker.sweep()

    assert len(worker.runner.ids) == 2
    assert worker.heard.of(BrokerSilent) == []


async def test_a_broker_that_goes_away_is_done_without_from_then_on(worker: TicketWorker, store: Store) -> None:
    worker.receiver._broker = RedisBroker("redis://127.0.0.1:1/0", "x")
    await worker.receiver.tick()
    young = await enqueue(store)

    worker.wakeup()
    await settle(worker.claimer)
    await until(lambda: worker.runner.ids)

    assert worker.runner.ids == [young]


async def test_a_worker_without_slots_receives_no_tickets(
    start: Callable[..., Awaitable[TicketWorker]], store: Store
) -> None:
    worker = await start(slots=1, hold_limit=0)
    await worker.publish(await enqueue(store))
    await worker.receive()
    worker.claimer._window._size = 0
    worker.receiver._broker = RedisBroker("redis://127.0.0.1:1/0", "x")

    await worker.receiver.tick()

    assert worker.heard.of(BrokerLost) == [], "the broker was not asked"


async def test_no_more_tickets_are_asked_for_than_there_are_slots(
    start: Callable[..., Awaitable[TicketWorker]], store: Store
) -> None:
    first, second = await start(slots=2, hold_limit=0), await start(slots=2, hold_limit=0)
    ids = [await enqueue(store) for _ in range(5)]
    await first.publish(*ids)

    await first.receive()
    await second.receive()

    assert len(first.runner.ids) == len(second.runner.ids) == 2
    assert len({*first.runner.ids, *second.runner.ids}) == 4


async def test_a_ticket_without_a_slot_is_kept_until_there_is_one(
    start: Callable[..., Awaitable[TicketWorker]], store: Store, clock: VirtualClock
) -> None:
    worker = await start(slots=5, hold_limit=1)
    soon = [await enqueue(store, after=0.2) for _ in range(3)]
    await worker.publish(*soon)

    await worker.receiver.tick()
    await worker.claimer.tick()
    assert worker.executor.held == 1
    clock.advance(0.3)
    await worker.receive()
    await until(lambda: len(worker.runner.ids) >= 2)

    assert set(worker.runner.ids) <= set(soon)
    assert not await claim_all(store), "the others were claimed by their tickets"


async def test_tickets_for_which_nothing_more_can_be_held_are_not_asked_for_without_a_rest(
    start: Callable[..., Awaitable[TicketWorker]], store: Store
) -> None:
    worker = await start(slots=5, hold_limit=1)
    worker.claimer.deliver([await enqueue(store, after=0.2) for _ in range(3)])
    await worker.claimer.tick()
    assert worker.executor.held == 1

    assert AT_ONCE < await worker.claimer.tick() < LONGEST_REST


async def test_a_ticket_that_was_used_is_not_asked_for_again(worker: TicketWorker, store: Store) -> None:
    worker.claimer.deliver([await enqueue(store) for _ in range(3)])

    await worker.claimer.tick()
    await worker.claimer.tick()

    assert worker.heard.of(TicketsUsed) == [TicketsUsed(3, 3)]


async def test_without_a_lease_no_ticket_is_claimed(worker: TicketWorker, store: Store) -> None:
    worker.executor.lease.lose()
    execution = await enqueue(store)
    worker.claimer.deliver([execution])

    await worker.claimer.tick()

    assert await tables_of(store, execution) == ["ready"]


async def test_tickets_survive_a_claim_whose_reply_was_lost(
    worker: TicketWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await enqueue(store)
    await worker.publish(one)
    claim, replies = store.tickets.claim, [StoreUnavailable("cut")]

    async def claim_and_cut(*request: Any) -> Any:
        claims = await claim(*request)
        if replies:
            raise replies.pop()
        return claims

    monkeypatch.setattr(store.tickets, "claim", claim_and_cut)
    await worker.receiver.tick()
    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    await settle(worker.claimer)
    await until(lambda: worker.runner.ids)

    assert worker.runner.ids == [one], "read back by its claim id, and begun once"


async def test_a_claim_that_never_reached_the_database_is_made_again(
    worker: TicketWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await enqueue(store)
    await worker.publish(one)
    claim, cuts = store.tickets.claim, [StoreUnavailable("cut")]

    async def cut_and_claim(*request: Any) -> Any:
        if cuts:
            raise cuts.pop()
        return await claim(*request)

    monkeypatch.setattr(store.tickets, "claim", cut_and_claim)
    await worker.receiver.tick()
    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    await settle(worker.claimer)
    await until(lambda: worker.runner.ids)

    assert worker.runner.ids == [one]


async def test_doubled_reordered_and_outdated_tickets_change_nothing(worker: TicketWorker, store: Store) -> None:
    """Fault 36."""
    gone = await enqueue(store)
    await claim_all(store)
    one, two = await enqueue(store, priority=90), await enqueue(store, priority=10)

    await worker.publish(two, gone, ExecutionId(Incarnation(store.env.new_id())), one)
    await worker.receive()
    await worker.publish(one, two, gone)
    await worker.receive()

    assert worker.runner.ids == [one, two]
