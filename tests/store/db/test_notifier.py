"""Wake-ups: the first is sent at once, those right after it together; losing one costs time, never work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from tests.conftest import FreshDatabase
from tests.support.factories import (
    HANDLER,
    OPERATOR,
    claim_all,
    define_job,
    due_row,
    enqueue,
    first_execution_of,
    found,
    make_node,
    make_owner,
    make_recurring,
    promote_due,
    seconds,
)
from timeball.application.commands import Commands
from timeball.domain import job_changes
from timeball.domain.execution import Released
from timeball.domain.job_fields import JobSpec
from timeball.domain.wakeup import MANY, Wakeup
from timeball.engine.worker.recorder import record_now
from timeball.errors import StoreError
from timeball.store.db.database import Database
from timeball.store.db.notifier import Notifier
from timeball.store.enqueue import prepare_job
from timeball.store.store import Store
from timeball.telemetry.events import ignore
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15", "pgbouncer"], indirect=True)


class Ear:
    """Receives the notifications."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heard.put_nowait(payload)

    async def next(self) -> Wakeup:
        return Wakeup.decode(await asyncio.wait_for(self._heard.get(), 10))

    async def all(self, store: Store) -> Wakeup:
        """All wake-ups so far: a message of its own marks the end."""
        await store.notifier.flush()
        await store.database.notify("end")
        together = Wakeup()
        while (payload := await asyncio.wait_for(self._heard.get(), 10)) != "end":
            together.merge(Wakeup.decode(payload))
        return together


@pytest.fixture
async def ear(fresh_database: FreshDatabase, store: Store) -> AsyncIterator[Ear]:
    # Listening needs a session of its own, so never through PgBouncer.
    connection = await Database(fresh_database.server.dsn(fresh_database.name), store.env).connect()
    ear = Ear()
    await connection.add_listener("timeball", ear.hear)
    yield ear
    await connection.close()


async def test_wakeups_reach_the_listener(store: Store, clock: VirtualClock, ear: Ear) -> None:
    told = Wakeup(nodes_changed=True)
    told.add_lane("q", 61, clock.now())
    told.add_shard(5, clock.now() + seconds(1))

    store.notifier.tell(told)

    assert await ear.next() == told


async def test_an_empty_wakeup_is_not_sent(store: Store, ear: Ear) -> None:
    store.notifier.tell(Wakeup())

    assert not await ear.all(store)


async def test_wakeups_close_together_are_one_message(store: Store, clock: VirtualClock, ear: Ear) -> None:
    for shard in range(50):
        wakeup = Wakeup()
        wakeup.add_shard(shard, clock.now())
        store.notifier.tell(wakeup)

    assert set((await ear.next()).shards) == set(range(50))


async def test_wakeups_of_threads_are_sent_by_the_loop_of_the_store(store: Store, ear: Ear) -> None:
    """Some threads run a loop of their own, which ends with their statement."""

    async def tell(first: int) -> None:
        for shard in range(first, first + 25):
            wakeup = Wakeup()
            wakeup.add_shard(shard, store.env.clock.now())
            store.notifier.tell(wakeup)

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, tell(first)) for first in (0, 25)))

    assert set((await ear.all(store)).shards) == set(range(50))


async def test_a_signal_in_a_thread_does_not_stop_the_wakeups_of_others(
    store: Store, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(Exception): ...

    def strike() -> None:
        raise Struck

    with monkeypatch.context() as patched:
        patched.setattr(store.notifier, "_call_sender", strike)
        with pytest.raises(Struck):
            await asyncio.to_thread(store.notifier.tell, Wakeup(nodes_changed=True))
    store.notifier.tell(Wakeup(look_everywhere=True))

    assert (await ear.all(store)).look_everywhere


async def test_a_statement_carries_wakeups_and_then_none_for_a_while(store: Store, clock: VirtualClock) -> None:
    notifier = Notifier(store.database)

    assert notifier.take_pending(Wakeup(nodes_changed=True)) == Wakeup(nodes_changed=True)
    assert notifier.take_pending(Wakeup(nodes_changed=True)) is None
    clock.advance("10ms")
    assert notifier.take_pending(Wakeup(nodes_changed=True)) is not None


async def test_the_next_statement_carries_pending_wakeups(store: Store, clock: VirtualClock, ear: Ear) -> None:
    """A message of its own would cost a commit."""
    notifier = Notifier(store.database)
    notifier.take_pending(Wakeup(look_everywhere=True))
    waiting = Wakeup()
    waiting.add_shard(5, clock.now())
    notifier.tell(waiting)
    await asyncio.sleep(0)  # the sender looks, and waits for a while

    clock.advance("6ms")
    carried = notifier.take_pending(Wakeup(nodes_changed=True))

    assert carried is not None
    assert carried == Wakeup(shards={5: clock.now() - seconds(0.006)}, nodes_changed=True, nonce=carried.nonce)
    await notifier.flush()
    assert not await ear.all(store)


async def test_the_last_wakeups_of_a_stream_are_sent(
    store: Store, clock: VirtualClock, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check would take time of the statements, which carry all wake-ups anyway."""
    waits: list[float] = []

    async def let_one_pass(wait: float) -> None:
        waits.append(wait)
        clock.advance(seconds(wait))
        if len(waits) <= 10:
            assert store.notifier.take_pending(Wakeup(shards={len(waits): clock.now()})) is not None
            store.notifier.tell(Wakeup(shards={100 + len(waits): clock.now()}))

    assert store.notifier.take_pending(Wakeup(shards={0: clock.now()})) is not None
    monkeypatch.setattr(
        "timeball.store.db.notifier.asyncio",
        SimpleNamespace(sleep=let_one_pass, wait=asyncio.wait, get_running_loop=asyncio.get_running_loop),
    )
    store.notifier.tell(Wakeup(shards={100: clock.now()}))
    wakeup = await ear.next()

    assert wakeup.shards.keys() == {110}
    assert len(waits) == 11
    assert all(wait <= 0.0075 for wait in waits[:4])
    assert all(0.0075 < wait <= 0.025 for wait in waits[4:])


async def test_the_wakeups_of_a_failed_statement_are_sent(store: Store, clock: VirtualClock, ear: Ear) -> None:
    """They announce the work of other statements, too."""
    store.notifier.take_pending(Wakeup(nodes_changed=True))
    waiting = Wakeup()
    waiting.add_shard(5, clock.now())
    store.notifier.tell(waiting)
    await asyncio.sleep(0)
    clock.advance("6ms")
    job = define_job(store, name=None, scheduled_at=clock.now())
    prepared = prepare_job(job)
    assert prepared is not None

    with pytest.raises(StoreError):
        await store.enqueuer.enqueue(prepared, [(job.id, job.shard, "no JSON")])

    assert 5 in (await ear.all(store)).shards


async def test_a_wakeup_that_cannot_be_sent_is_dropped(store: Store) -> None:
    notifier = Notifier(Database(store.database.dsn, store.env))  # which is not open

    notifier.tell(Wakeup(look_everywhere=True))
    await notifier.flush()

    notifier.tell(Wakeup(look_everywhere=True))
    await notifier.flush()


async def test_each_method_wakes_the_nodes_that_can_act(store: Store, clock: VirtualClock, ear: Ear) -> None:
    """The wake-up names the lane, shard or holder, and an instant that is not too late."""

    async def wakeups_of(deed: Awaitable[object]) -> Wakeup:
        await deed
        return await ear.all(store)

    now = clock.now()
    told = await wakeups_of(enqueue(store, queue="q", priority=61))
    assert told.lanes[("q", 61)] <= now
    clock.advance("1s")
    later = await wakeups_of(enqueue(store, after=60))
    assert set(later.shards.values()) == {now + seconds(61)}
    assert later.lanes == {}, "no worker has anything to look for yet"

    worker = await make_node(store)
    assert (await ear.all(store)).nodes_changed
    (claimed,) = await claim_all(store, worker=worker)
    assert (await wakeups_of(store.jobs.cancel([claimed.id], "no", OPERATOR))).holders == {worker}

    job = await make_recurring(store, 60, queue="r", priority=62)
    pending = await due_row(store, job.id)
    assert (await ear.all(store)).shards == {job.shard: pending.run_at}
    owner = await make_owner(store)
    clock.advance("60s")
    told = await wakeups_of(promote_due(store, owner))
    assert told.lanes[("r", 62)] == pending.run_at

    def change(decide: Callable[..., job_changes.JobChange]) -> Awaitable[object]:
        return store.jobs.change(job.id, decide, OPERATOR)

    await change(lambda snapshot: job_changes.pause_job(snapshot, None, None))
    resumed = await wakeups_of(change(job_changes.resume_job))
    assert resumed.shards[job.shard] <= clock.now()

    told = await wakeups_of(
        store.queues.change("q", is_paused=True, max_running=None, reason=None, audit=OPERATOR, action="x")
    )
    assert told.look_everywhere


async def test_an_unblock_sends_a_wakeup(store: Store, clock: VirtualClock, ear: Ear) -> None:
    await enqueue(store, max_running=1, limit_key="l")
    await enqueue(store, queue="q", priority=61, max_running=1, limit_key="l")
    (claimed,) = await claim_all(store)
    await ear.all(store)

    await store.executions.finish_succeeded([found(claimed)])

    assert (await ear.all(store)).lanes == {("q", 61): clock.now()}


async def test_the_transaction_of_a_caller_sends_no_wakeup(store: Store, ear: Ear) -> None:
    job = define_job(store, name=None, scheduled_at=store.env.clock.now())
    first = first_execution_of(job, store.env.clock.now())
    assert first is not None
    async with store.database.transaction() as connection:
        await store.enqueuer.create([job], [first], connection)

    assert not await ear.all(store)


async def test_every_message_has_a_nonce(store: Store, clock: VirtualClock) -> None:
    """The nonce decides which worker claims: with a constant, it would always be the same worker."""
    notifier = Notifier(store.database)
    lots = []
    for _ in range(3):
        clock.advance("6ms")
        carried = notifier.take_pending(Wakeup(nodes_changed=True))
        assert carried is not None
        lots.append(carried.nonce)

    assert len(set(lots)) == 3


async def test_wakeups_count_enqueued_and_promoted_executions(store: Store, clock: VirtualClock, ear: Ear) -> None:
    """So that one execution does not wake all workers."""
    await enqueue(store)
    assert (await ear.all(store)).executions == 1

    clock.advance("1s")
    await Commands(store, store.env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 7)
    assert (await ear.all(store)).executions == 7

    await make_recurring(store)
    await ear.all(store)
    clock.advance("1h")
    await promote_due(store, await make_owner(store))
    assert (await ear.all(store)).executions == 1


async def test_a_released_execution_wakes_any_worker(store: Store, ear: Ear) -> None:
    """The worker that released it had no slot, and the nonce might choose the same worker again."""
    await enqueue(store)
    (claimed,) = await claim_all(store)
    await ear.all(store)

    await record_now(store.env, ignore, store.executions, [found(claimed, Released())])

    heard = await ear.all(store)
    assert heard.lanes
    assert heard.executions == MANY
