"""Free slots become claimed executions: only what this worker may run, most urgent first, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from tests.engine.support import settle, start_worker, until
from tests.engine.worker.manual_worker import ManualWorker, cut, start
from tests.support.factories import enqueue, seconds, table, tables_of
from timeball.application.commands import Commands
from timeball.domain.execution import CancelOutcome
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.domain.wakeup import Lane, LanePosition, Wakeup
from timeball.engine.node import AT_ONCE, LONGEST_REST
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.db.pool import Connection
from timeball.store.store import Store
from timeball.testing import VirtualClock
from timeball.testing.environment import START

LANE: Lane = ("default", 50)


async def holders(store: Store) -> dict[ExecutionId, Incarnation]:
    return {row["id"]: row["holder"] for row in await table(store, "running")}


# what it may run


async def test_a_worker_claims_only_what_its_handlers_can_run(store: Store) -> None:
    worker = await start(store, handlers=["app:a", "app:b"])
    mine = [await enqueue(store, handler=name) for name in ("app:a", "app:b")]
    foreign = await enqueue(store, handler="app:c")

    await worker.sweep_and_claim()

    assert sorted(worker.runner.ids) == sorted(mine)
    assert await tables_of(store, foreign) == ["ready"]


async def test_a_worker_claims_only_from_the_queues_it_serves(store: Store) -> None:
    worker = await start(store, queues=("mail", "reports"))
    mine = [await enqueue(store, queue=queue) for queue in ("mail", "reports")]
    foreign = await enqueue(store, queue="default")

    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    await worker.sweep_and_claim()

    assert sorted(worker.runner.ids) == sorted(mine)
    assert await tables_of(store, foreign) == ["ready"]


async def test_without_named_queues_it_serves_all(store: Store) -> None:
    worker = await start(store)
    ids = [await enqueue(store, queue=queue) for queue in ("a", "b")]

    await worker.sweep_and_claim()

    assert sorted(worker.runner.ids) == sorted(ids)


async def test_a_paused_queue_gives_nothing(store: Store, env: Env) -> None:
    worker, commands = await start(store), Commands(store, env)
    execution_id = await enqueue(store)
    await commands.queues.pause("default")

    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    await worker.sweep_and_claim()
    assert await tables_of(store, execution_id) == ["ready"]

    await commands.queues.resume("default")
    await worker.sweep_and_claim()
    assert await tables_of(store, execution_id) == ["running"]


# in which order


async def test_the_most_urgent_is_claimed_first_and_waiting_makes_urgent(store: Store, clock: VirtualClock) -> None:
    """A point of priority is worth twelve seconds of waiting."""
    worker = await start(store, slots=1)
    old = await enqueue(store, priority=50)
    clock.advance("13s")
    low, same, high = [await enqueue(store, priority=priority) for priority in (49, 50, 51)]
    higher = await enqueue(store, priority=52)

    order = []
    for _ in range(5):
        await worker.sweep_and_claim()
        order += worker.runner.ids
        await worker.end_all()

    assert order[:2] == [higher, old]
    assert order[2:] == [high, same, low]


async def test_an_endless_stream_of_what_is_more_urgent_does_not_starve_the_others(
    store: Store, clock: VirtualClock
) -> None:
    """Fault 35. Ten points of priority are two minutes: whatever comes later than that comes behind."""
    worker = await start_worker(store)
    patient = await enqueue(store, priority=50)

    overtaken = -1
    claimed: set[ExecutionId] = set()
    while patient not in claimed:
        overtaken += 1
        await enqueue(store, priority=60)
        claimed = {each.id for each in await worker.claim(slots=1)}
        clock.advance("10s")

    assert 12 <= overtaken <= 13


async def test_what_is_due_takes_the_slots_and_what_is_coming_is_held(store: Store, clock: VirtualClock) -> None:
    worker = await start(store, slots=2)
    coming = [await enqueue(store, after=0.4, priority=100) for _ in range(3)]
    due = [await enqueue(store, priority=0) for _ in range(2)]

    await worker.sweep_and_claim()

    assert sorted(worker.runner.ids) == sorted(due)
    assert worker.executor.held == 3
    assert set(await holders(store)) == {*coming, *due}


async def test_no_more_is_held_than_may_be(store: Store) -> None:
    worker = await start(store, hold_limit=2)
    for _ in range(5):
        await enqueue(store, after=0.4)

    await worker.sweep_and_claim()
    await worker.sweep_and_claim()

    assert worker.executor.held == 2
    assert len(await table(store, "ready")) == 3


async def test_with_all_slots_taken_what_is_coming_is_still_held(store: Store) -> None:
    worker = await start(store, slots=1)
    await enqueue(store)
    await worker.sweep_and_claim()
    await enqueue(store, after=0.4)
    await enqueue(store)

    await worker.sweep_and_claim()

    assert (worker.executor.busy, worker.executor.held) == (1, 1)


async def test_with_all_slots_taken_and_the_window_full_there_is_no_claim(store: Store) -> None:
    worker = await start(store, slots=1)
    for _ in range(9):
        await enqueue(store)
    await worker.sweep_and_claim()
    asked = len(worker.executions.requests)

    rests = [await worker.claimer.tick() for _ in range(5)]

    assert len(worker.executions.requests) == asked
    assert rests == [LONGEST_REST] * 5


async def fill(worker: ManualWorker) -> None:
    """More than the worker can run, or have at hand: it may only hold what is coming."""
    for _ in range(9):
        await enqueue(worker.store, after=-10)
    await worker.sweep_and_claim()


def announce(worker: ManualWorker, after: float = 0) -> None:
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: worker.store.env.clock.now() + seconds(after)}))


async def test_a_worker_that_can_only_hold_does_so_and_looks_no_further_ahead_for_what_is_due(store: Store) -> None:
    worker = await start(store, slots=1)
    await fill(worker)
    bound = worker.claimer._lanes.position(LANE)
    await enqueue(store, after=0.4)

    for _ in range(2):
        announce(worker, after=0.4)
        await worker.claimer.tick()

    assert worker.executor.held == 1
    assert [request.slots for request in worker.executions.requests[-2:]] == [0, 0], (
        "nor does it ask for more than before"
    )
    assert worker.claimer._lanes.position(LANE) == bound, "what is due was not asked for: it is still there"


async def test_a_worker_that_can_neither_run_nor_hold_anything_does_not_claim(store: Store) -> None:
    worker = await start(store, slots=1, hold_limit=1)
    await enqueue(store, after=0.4)
    await fill(worker)
    asked = len(worker.executions.requests)

    announce(worker)

    assert await worker.claimer.tick() == LONGEST_REST
    assert len(worker.executions.requests) == asked


@pytest.mark.parametrize("held", [0, 1])
async def test_what_was_announced_without_a_free_slot_is_claimed_with_the_next_slot(store: Store, held: int) -> None:
    worker = await start(store, slots=1, hold_limit=1)
    for _ in range(held):
        await enqueue(store, after=0.4)
    await enqueue(store)
    await worker.sweep_and_claim()
    worker.claimer._window._size = 0
    assert not worker.claimer._reasons.has_reason
    announce(worker)
    assert await worker.claimer.tick() == LONGEST_REST
    worker.claimer._woken.clear()

    await worker.end_all()

    await until(worker.claimer._woken.is_set)


async def test_a_worker_with_long_handlers_takes_little_beyond_its_slots(store: Store) -> None:
    """It would only give it back, after having kept it from others."""
    worker = await start(store, slots=5)
    for _ in range(200):
        await enqueue(store)

    await worker.sweep_and_claim()

    assert worker.executor.busy == 5
    assert worker.executor.waiting <= 10


async def test_without_known_lanes_there_is_no_claim(store: Store) -> None:
    worker = await start(store)

    assert await worker.claimer.tick() == LONGEST_REST
    assert worker.executions.requests == []


# bounds and the sweep


async def test_a_claim_begins_where_the_last_one_ended(store: Store, clock: VirtualClock) -> None:
    """Fault 29."""
    worker = await start(store)
    await enqueue(store)
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    clock.advance("10s")

    await settle(worker.claimer)
    await worker.claimer.tick()

    assert worker.executions.asked[0] == {LANE: LanePosition(START)}
    assert worker.executions.asked[-1] == {LANE: LanePosition(clock.now() - timedelta(milliseconds=50))}


async def test_a_full_claim_ends_at_its_last_row(store: Store, clock: VirtualClock) -> None:
    worker = await start(store, slots=2)
    ids = []
    for _ in range(6):
        ids.append(await enqueue(store))
        clock.advance("1s")
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))

    await worker.claimer.tick()
    await worker.end_all()
    await worker.claimer.tick()

    assert worker.executions.asked == [{LANE: LanePosition(START)}, {LANE: LanePosition(START + seconds(1), ids[1])}]


async def test_a_crowd_of_one_instant_is_claimed_in_parts(store: Store) -> None:
    """Fault 29. Not by its instant alone: each part would be looked for among the dead rows of all parts before it."""
    worker = await start(store, slots=2)
    crowd = sorted([await enqueue(store) for _ in range(6)])

    begun = []
    for _ in range(3):
        await worker.sweep_and_claim()
        begun += sorted(worker.runner.ids)
        await worker.end_all()

    assert begun[:2] == crowd[:2], "in the order of their ids"
    assert sorted(begun) == crowd
    marks = [asked[LANE] for asked in worker.executions.asked]
    assert marks[0] == LanePosition(START, crowd[0])
    assert marks == sorted(marks)
    assert marks[-1] >= LanePosition(START, crowd[1])


async def join_the_crowd(store: Store, execution_id: ExecutionId) -> None:
    await enqueue(store)
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.ready SET id = $1, job_id = $1", execution_id)


async def test_what_comes_late_into_a_crowd_is_found(store: Store) -> None:
    """It has the instant of the others and a smaller id: its wake-up leads to it, or the sweep if that was lost."""
    worker = await start(store, slots=2)
    early, late = (ExecutionId(UUID(int=number)) for number in (1, 2))
    for _ in range(2):
        await enqueue(store)
    await worker.sweep_and_claim()
    await worker.end_all()

    await join_the_crowd(store, early)
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    await settle(worker.claimer)
    await worker.started()
    assert worker.runner.ids == [early]
    await worker.end_all()

    await join_the_crowd(store, late)
    await worker.sweep_and_claim()
    assert worker.runner.ids == [late]


async def test_a_row_behind_the_bound_is_found_by_the_sweep(store: Store, clock: VirtualClock) -> None:
    worker = await start(store)
    await enqueue(store)
    clock.advance("10s")
    await worker.sweep_and_claim()
    late = await enqueue(
        store, after=-8
    )  # committed late, by a transaction that took its time; and its wake-up was lost

    await settle(worker.claimer)
    assert await tables_of(store, late) == ["ready"]

    await worker.sweep_and_claim()
    assert await tables_of(store, late) == ["running"]


async def test_a_wakeup_moves_the_position_back(store: Store, clock: VirtualClock) -> None:
    worker = await start(store)
    await enqueue(store)
    clock.advance("10s")
    await worker.sweep_and_claim()
    late = await enqueue(store, after=-8)

    worker.claimer.on_wakeup(Wakeup(lanes={LANE: clock.now() - seconds(8)}))
    await settle(worker.claimer)

    assert await tables_of(store, late) == ["running"]


async def test_a_later_wakeup_does_not_move_the_position_forward(store: Store) -> None:
    worker = await start(store)

    announce(worker)
    announce(worker, after=5)
    await worker.claimer.tick()

    assert worker.executions.asked == [{LANE: LanePosition(START)}]


async def test_what_is_held_does_not_raise_the_bound(store: Store) -> None:
    worker = await start(store)
    await enqueue(store, after=0.4)
    announce(worker)
    await worker.claimer.tick()
    assert worker.executor.held == 1
    due = await enqueue(store)

    await worker.claimer.tick()

    assert await tables_of(store, due) == ["running"]


async def test_a_wakeup_during_a_claim_is_not_forgotten(store: Store, clock: VirtualClock) -> None:
    worker = await start(store)
    await enqueue(store)
    clock.advance("10s")
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    worker.executions.after.append(lambda: worker.claimer.on_wakeup(Wakeup(lanes={LANE: START - seconds(5)})))

    await worker.claimer.tick()
    worker.executions.after.clear()
    await worker.claimer.tick()

    assert worker.executions.asked[-1] == {LANE: LanePosition(START - seconds(5))}


async def test_a_lane_announced_during_a_sweep_is_kept(store: Store) -> None:
    worker = await start(store)

    worker.claimer.on_wakeup(Wakeup(lanes={("mail", 7): START}))
    worker.claimer.learn_all({})
    await worker.claimer.tick()

    assert worker.executions.asked == [{("mail", 7): LanePosition(START)}]


async def test_an_empty_lane_is_forgotten_by_and_by(store: Store, clock: VirtualClock) -> None:
    worker = await start(store)
    await enqueue(store)
    await worker.sweep_and_claim()

    for _ in range(3):
        await worker.sweeper.tick()
    asked = len(worker.executions.asked)
    await worker.claimer.tick()

    assert len(worker.executions.asked) == asked


async def test_look_everywhere_wakes_the_claimer(store: Store) -> None:
    worker = await start(store)

    worker.claimer.on_wakeup(Wakeup(look_everywhere=True))

    assert worker.claimer._woken.is_set()


async def test_without_a_lease_nothing_is_claimed(store: Store) -> None:
    worker = await start(store)
    await enqueue(store)
    await worker.sweeper.tick()
    worker.executor.lease.lose()

    await worker.claimer.tick()

    assert worker.executions.requests == []
    assert len(await table(store, "ready")) == 1


# the window


async def grow(worker: ManualWorker, rounds: int) -> int:
    """Let quick handlers empty their slots at once, and say how much the worker asks for in the end."""
    await worker.sweeper.tick()
    for _ in range(rounds):
        await worker.claimer.tick()
        while worker.executor.busy:
            await worker.started()
            await worker.end_all()
    await worker.claimer.tick()
    return worker.executions.requests[-1].slots


async def test_the_window_doubles_while_everything_claimed_is_started_at_once(store: Store) -> None:
    worker = await start(store, slots=2)
    for _ in range(100):
        await enqueue(store)

    await grow(worker, rounds=4)

    assert [request.slots for request in worker.executions.requests] == [2, 4, 6, 10, 18]


async def test_the_window_has_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeball.engine.worker.claim_state._LARGEST_WINDOW", 5)
    worker = await start(store, slots=2)
    for _ in range(40):
        await enqueue(store)

    assert await grow(worker, rounds=4) == 2 + 5


async def test_the_window_shrinks_when_something_had_to_wait_long_for_its_slot(
    store: Store, clock: VirtualClock
) -> None:
    worker = await start(store, slots=2)
    for _ in range(100):
        await enqueue(store)
    assert await grow(worker, rounds=4) == 2 + 16

    clock.advance("200ms")
    while worker.executor.busy:
        await worker.started()
        await worker.end_all()
    await worker.claimer.tick()

    assert worker.executions.requests[-1].slots == 2 + 32 // 2


async def test_the_window_shrinks_when_something_had_to_be_given_back(store: Store, clock: VirtualClock) -> None:
    """Else a worker with long handlers would take and return the work of others, second after second."""
    worker = await start(store, slots=2)
    for _ in range(100):
        await enqueue(store)
    assert await grow(worker, rounds=4) == 2 + 16
    await until(lambda: worker.executor.waiting == 16)

    clock.advance("30ms")
    await until(lambda: len(worker.given_back) == 16)
    await worker.claimer.tick()

    assert worker.executions.requests[-1].slots == 32 // 2


# limits


async def test_a_limited_queue_gives_no_more_than_its_limit_across_workers(store: Store, env: Env) -> None:
    workers = [await start(store), await start(store)]
    await Commands(store, env).queues.limit("default", 3)
    for _ in range(10):
        await enqueue(store)
    unlimited = await enqueue(store, queue="other")

    for worker in workers:
        await worker.sweeper.tick()
    await asyncio.gather(*(settle(worker.claimer) for worker in workers))

    running = await table(store, "running")
    assert sum(row["queue"] == "default" for row in running) == 3
    assert unlimited in {row["id"] for row in running}


async def test_a_limited_queue_counts_what_is_held_as_well(store: Store, env: Env) -> None:
    worker = await start(store)
    await Commands(store, env).queues.limit("default", 3)
    for _ in range(5):
        await enqueue(store, after=0.4)
    await enqueue(store)

    await worker.sweep_and_claim()

    assert (worker.executor.busy, worker.executor.held) == (1, 2)


async def test_a_lifted_limit_is_heard_of(store: Store, env: Env) -> None:
    worker, commands = await start(store), Commands(store, env)
    await commands.queues.limit("default", 1)
    for _ in range(5):
        await enqueue(store)
    await worker.sweep_and_claim()
    assert worker.executor.busy == 1

    await commands.queues.limit("default", None)
    await worker.sweep_and_claim()

    assert worker.executor.busy == 5


async def test_places_that_are_freed_here_are_asked_for_again_without_a_sweep(
    store: Store, env: Env, clock: VirtualClock
) -> None:
    worker = await start(store)
    await Commands(store, env).queues.limit("default", 3)
    for _ in range(8):
        await enqueue(store)
    clock.advance("10s")
    await worker.sweep_and_claim()
    assert worker.executor.busy == 3

    await worker.end_all()
    await store.executions.finish_succeeded(worker.findings)
    worker.claimer._woken.clear()
    worker.outcomes_recorded.send()

    assert worker.claimer._woken.is_set()
    await settle(worker.claimer)
    assert worker.executor.busy == 3


async def test_without_a_limit_outcomes_do_not_wake_the_claimer(store: Store, env: Env) -> None:
    worker = await start(store)
    await Commands(store, env).queues.limit("default", 3)
    await enqueue(store)
    await worker.sweep_and_claim()
    worker.claimer._woken.clear()

    worker.outcomes_recorded.send()

    assert not worker.claimer._woken.is_set()


async def test_of_a_limited_queue_no_more_is_taken_than_can_run_at_once(store: Store, env: Env) -> None:
    """What waited here for a slot would take a place from a worker that has one."""
    worker = await start(store, slots=2)
    for _ in range(100):
        await enqueue(store, queue="free")
    assert await grow(worker, rounds=4) == 2 + 16
    await settle(worker.claimer)
    await Commands(store, env).queues.limit("default", 50)
    for _ in range(20):
        await enqueue(store)
    while worker.executor.busy:
        await worker.started()
        await worker.end_all()

    await worker.sweep_and_claim()

    asked = [
        request.slots
        for request, lanes in zip(worker.executions.requests, worker.executions.asked, strict=True)
        if LANE in lanes
    ]
    assert asked
    assert max(asked) <= 2


async def test_a_limited_queue_is_not_starved_by_an_endless_stream_of_others(store: Store, env: Env) -> None:
    worker = await start(store, slots=2)
    await Commands(store, env).queues.limit("narrow", 5)
    narrow = await enqueue(store, queue="narrow")
    for _ in range(50):
        await enqueue(store)
    await worker.sweeper.tick()

    for _ in range(2):
        await worker.claimer.tick()
        while worker.executor.busy:
            await worker.started()
            await worker.end_all()

    assert narrow in {finding.claimed.id for finding in worker.findings}


async def test_a_limit_set_since_the_last_sweep_is_kept_all_the_same(store: Store, env: Env) -> None:
    """The claimer does not know yet; the statement does."""
    worker = await start(store)
    await enqueue(store)
    await worker.sweep_and_claim()
    await Commands(store, env).queues.limit("default", 1)
    await enqueue(store)

    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    await settle(worker.claimer)

    assert worker.executor.busy == 1


# contention


async def test_rows_that_another_worker_is_just_taking_are_passed_over_and_asked_for_again(
    store: Store, clock: VirtualClock
) -> None:
    worker = await start(store)
    locked = await enqueue(store)
    free = await enqueue(store)
    clock.advance("10s")
    await worker.sweeper.tick()

    async with store.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM timeball.ready WHERE id = $1 FOR UPDATE", locked)
        assert await worker.claimer.tick() == AT_ONCE
        rest = await worker.claimer.tick()

    assert await tables_of(store, free) == ["running"]
    assert timedelta(0) < rest < timedelta(milliseconds=10), "the other may give it back any moment"
    await settle(worker.claimer)
    assert await tables_of(store, locked) == ["running"], "and it was looked for again"


async def lock(connection: Connection, *ids: ExecutionId) -> None:
    await connection.execute("SELECT 1 FROM timeball.ready WHERE id = ANY ($1) FOR UPDATE", ids)


async def test_while_others_take_what_there_is_it_looks_at_more_and_from_the_same_place(store: Store) -> None:
    worker = await start(store)
    taken = await enqueue(store, after=-10)
    announce(worker, after=-10)

    async with store.database.transaction() as connection:
        await lock(connection, taken)
        for _ in range(2):
            await worker.claimer.tick()
    await worker.claimer.tick()

    assert [request.has_competitors for request in worker.executions.requests] == [False, True, True]
    assert worker.executions.asked == [{LANE: LanePosition(START - seconds(10))}] * 3
    assert not worker.claimer._request().has_competitors


async def test_what_was_passed_over_twice_is_looked_for_from_the_first_on(store: Store) -> None:
    worker = await start(store)
    first, free, last = [await enqueue(store, after=after) for after in (-30, -20, -10)]
    announce(worker, after=-30)

    async with store.database.transaction() as connection:
        await lock(connection, first, last)
        for _ in range(2):
            await worker.claimer.tick()
    await settle(worker.claimer)

    assert set(await holders(store)) == {first, free, last}


async def test_returning_to_passed_rows_does_not_forget_a_wakeup(store: Store) -> None:
    worker = await start(store)
    taken = await enqueue(store)
    announce(worker)
    async with store.database.transaction() as connection:
        await lock(connection, taken)
        await worker.claimer.tick()
    worker.executions.after.append(lambda: announce(worker, after=-5))

    await worker.claimer.tick()
    worker.executions.after.clear()
    await worker.claimer.tick()

    assert worker.executions.asked[-1] == {LANE: LanePosition(START - seconds(5))}


async def test_what_is_coming_and_was_passed_over_is_asked_for_again_without_a_slot(store: Store) -> None:
    worker = await start(store, slots=1)
    await fill(worker)
    coming = await enqueue(store, after=0.4)
    announce(worker, after=0.4)
    async with store.database.transaction() as connection:
        await lock(connection, coming)
        await worker.claimer.tick()

    await worker.claimer.tick()

    assert worker.executor.held == 1


async def test_after_a_partial_claim_the_claimer_rests(store: Store) -> None:
    """One claim for each execution that comes by itself, and not two."""
    worker = await start(store)
    for number in range(1, 4):
        await enqueue(store)
        announce(worker)

        assert await worker.claimer.tick() == LONGEST_REST

        await worker.started()
        await worker.end_all()
        assert worker.claimer._gathering is None, "nor because a slot is free again"
        assert len(worker.executions.asked) == number


async def test_what_could_not_be_held_any_more_is_looked_for_when_slots_come_free(
    store: Store, clock: VirtualClock
) -> None:
    """Its wake-up came when it was promoted, and no other comes at its instant."""
    worker = await start(store, hold_limit=2)
    for _ in range(5):
        await enqueue(store, after=0.1)
    announce(worker)
    await settle(worker.claimer)
    assert worker.executor.held == 2
    worker.claimer._on_slot_free()
    assert worker.claimer._gathering is None, "nothing more can be held before something is dropped"

    clock.advance("1s")
    worker.executor._start_due()
    await worker.started()
    await worker.end_all()

    assert worker.claimer._gathering is not None
    await worker.claimer.tick()
    assert worker.executor.busy + worker.executor.waiting == 3


async def test_after_an_unannounced_execution_the_claimer_looks_for_more(store: Store) -> None:
    """Programs that enqueue in their own transactions send no wake-ups: while such work comes, no sweep is waited for."""
    worker = await start(store)
    await enqueue(store)
    await worker.sweeper.tick()
    assert await worker.claimer.tick() == AT_ONCE

    await enqueue(store)
    assert await worker.claimer.tick() == AT_ONCE
    assert await worker.claimer.tick() == LONGEST_REST, "nothing came"
    assert worker.executor.busy + worker.executor.waiting == 2


async def test_what_was_passed_over_in_a_lane_is_forgotten_with_the_lane(store: Store) -> None:
    """Queues come and go; nothing may be kept for each that there ever was."""
    worker = await start(store)
    locked = await enqueue(store)
    await worker.sweeper.tick()
    async with store.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM timeball.ready WHERE id = $1 FOR UPDATE", locked)
        await worker.claimer.tick()
        assert worker.claimer._lanes.has_passed_rows

        for _ in range(2):
            worker.claimer.learn_all({})

    assert not worker.claimer._lanes.has_passed_rows


async def test_two_workers_are_never_given_the_same(store: Store) -> None:
    workers = [await start(store, slots=50) for _ in range(3)]
    ids = {await enqueue(store) for _ in range(60)}
    for worker in workers:
        await worker.sweeper.tick()

    while await table(store, "ready"):
        await asyncio.gather(*(settle(worker.claimer) for worker in workers))
    for worker in workers:
        await worker.started()

    started = [id_ for worker in workers for id_ in worker.runner.ids]
    assert len(started) == len(set(started))
    assert sum(worker.executor.busy + worker.executor.waiting for worker in workers) == 60
    assert set(await holders(store)) == ids


# faults


@pytest.mark.parametrize("is_limited", [False, True])
async def test_a_claim_whose_reply_was_lost_is_read_back(store: Store, env: Env, is_limited: bool) -> None:
    worker = await start(store)
    if is_limited:
        await Commands(store, env).queues.limit("default", 10)
    ids = [await enqueue(store) for _ in range(3)]
    held = await enqueue(store, after=0.4)
    await worker.sweeper.tick()
    worker.executions.after.append(cut)

    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    assert set(await holders(store)) == {*ids, held}, "the claim was committed"
    assert (worker.executor.busy, worker.executor.held) == (0, 0), "but the worker does not know"
    worker.executions.after.clear()
    await settle(worker.claimer)
    await worker.started()

    assert sorted(worker.runner.ids) == sorted(ids)
    assert worker.executor.held == 1
    claimed = worker.runner.started[0].claimed
    assert (claimed.fence, claimed.attempt, claimed.payload) == (1, 1, "{}")
    assert worker.claimer.in_flight.has_lost_a_reply, "so that stock is taken"


async def test_a_claim_that_never_arrived_is_made_again(store: Store) -> None:
    worker = await start(store)
    ids = [await enqueue(store) for _ in range(3)]
    await worker.sweeper.tick()
    worker.executions.before.append(cut)

    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    worker.executions.before.clear()
    await settle(worker.claimer)
    await worker.started()

    assert sorted(worker.runner.ids) == sorted(ids)
    assert {row["fence"] for row in await table(store, "running")} == {1}


async def test_a_claim_stays_in_doubt_until_it_has_been_read_back(store: Store, env: Env) -> None:
    worker = await start(store)
    execution_id = await enqueue(store)
    await worker.sweeper.tick()
    worker.executions.after.append(cut)
    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    worker.executions.after.clear()

    def still_away(point: str) -> None:
        if point == "read_back_claim.before":
            cut()

    env.fault = still_away
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await worker.claimer.tick()
    env.fault = lambda _: None
    await settle(worker.claimer)
    await worker.started()

    assert worker.runner.ids == [execution_id]


async def test_a_stop_that_came_while_the_claim_was_in_doubt_is_heeded(store: Store) -> None:
    worker = await start(store)
    execution_id = await enqueue(store)
    await worker.sweeper.tick()
    worker.executions.after.append(cut)
    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    worker.executions.after.clear()

    await store.executions.stop([execution_id], "enough")
    await settle(worker.claimer)

    assert worker.runner.ids == []
    (finding,) = worker.findings
    assert finding.outcome == CancelOutcome("enough")


# room


async def test_a_free_slot_wakes_the_claimer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # No poll comes to the rescue.
    monkeypatch.setattr("timeball.engine.worker.claimer.LONGEST_REST", timedelta(days=1))
    monkeypatch.setattr("timeball.engine.node.LONGEST_REST", timedelta(days=1))
    worker = await start(store, slots=1)
    first, second = await enqueue(store), await enqueue(store)
    running = asyncio.ensure_future(worker.claimer.run())
    worker.claimer.on_wakeup(Wakeup(lanes={LANE: START}))
    await until(lambda: worker.runner.ids == [first])

    worker.runner.end(worker.runner.started[0].claimed)

    await until(lambda: worker.runner.ids == [first, second])
    worker.claimer.stop()
    await running


async def test_a_free_slot_does_not_wake_a_claimer_that_found_nothing_meanwhile(store: Store) -> None:
    worker = await start(store, slots=2)
    for _ in range(2):
        await enqueue(store)
    await worker.sweeper.tick()
    assert await worker.claimer.tick() == AT_ONCE
    worker.claimer._window._size = 0
    await worker.started()
    await worker.end_all()

    worker.executor.slots.freed.send()
    assert worker.claimer._gathering is not None
    assert await worker.claimer.tick() == LONGEST_REST
    worker.claimer._woken.clear()
    await until(lambda: worker.claimer._gathering is None)

    assert not worker.claimer._woken.is_set()


# by name


def announced(execution_id: ExecutionId, lane: Lane = LANE) -> Wakeup:
    wakeup = Wakeup()
    wakeup.add_lane(*lane, START, 1, execution_id)
    return wakeup


async def test_what_is_announced_alone_is_taken_without_reading_its_lane(store: Store) -> None:
    worker = await start(store)
    other, named = [await enqueue(store) for _ in range(2)]

    worker.claimer.on_wakeup(announced(named))
    await settle(worker.claimer)
    await worker.started()

    assert (worker.executions.named, worker.executions.asked) == ([named], [])
    assert worker.runner.ids == [named]
    assert await tables_of(store, other) == ["ready"]


async def test_what_cannot_be_had_by_its_name_is_looked_for_in_its_lane(store: Store, env: Env) -> None:
    """Places of a limited queue are counted; what comes is held; what another has taken may have company."""
    worker, commands = await start(store), Commands(store, env)
    await commands.queues.limit("limited", 1)
    limited, early, gone = (
        await enqueue(store, queue="limited"),
        await enqueue(store, after=0.4),
        ExecutionId(env.new_id()),
    )

    for execution_id, lane in ((limited, ("limited", 50)), (early, LANE), (gone, LANE)):
        worker.executions.asked.clear()
        worker.claimer.on_wakeup(announced(execution_id, lane))
        await settle(worker.claimer)
        assert worker.executions.asked, "its lane was not looked at"

    assert await tables_of(store, early) == ["running"]
    assert worker.executor.held == 1
    await worker.sweep_and_claim()
    assert await tables_of(store, limited) == ["running"]


async def test_a_claimer_that_knows_of_more_claims_the_most_urgent_first(store: Store) -> None:
    worker = await start(store, slots=1)
    urgent, named = await enqueue(store, priority=90), await enqueue(store)

    worker.claimer.on_wakeup(Wakeup(lanes={("default", 90): START}))
    worker.claimer.on_wakeup(announced(named))
    await settle(worker.claimer)
    await worker.started()

    assert worker.executions.named == []
    assert worker.runner.ids == [urgent]


async def test_work_announced_during_a_claim_by_id_is_claimed_as_well(store: Store) -> None:
    worker = await start(store)
    named, urgent = await enqueue(store), await enqueue(store, priority=90)
    worker.executions.before = [lambda: worker.claimer.on_wakeup(Wakeup(lanes={("default", 90): START}))]

    worker.claimer.on_wakeup(announced(named))
    await worker.claimer.tick()
    await worker.started()

    assert sorted(worker.runner.ids) == sorted([named, urgent])


async def test_two_that_are_announced_one_after_the_other_are_both_taken(store: Store) -> None:
    worker = await start(store)
    ids = [await enqueue(store) for _ in range(2)]

    for execution_id in ids:
        worker.claimer.on_wakeup(announced(execution_id))
    await settle(worker.claimer)
    await worker.started()

    assert sorted(worker.runner.ids) == sorted(ids)


async def test_without_a_free_slot_nothing_is_taken_by_its_name(store: Store) -> None:
    worker = await start(store, slots=1)
    busy, named = [await enqueue(store) for _ in range(2)]
    worker.claimer.on_wakeup(announced(busy))
    await settle(worker.claimer)

    worker.claimer.on_wakeup(announced(named))
    await settle(worker.claimer)
    await worker.started()

    assert worker.executions.named == [busy]
    assert await tables_of(store, named) == ["ready"]


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_claim_by_name_that_was_cut_off_is_read_back_or_made_again(store: Store, where: str) -> None:
    worker = await start(store)
    named = await enqueue(store)
    setattr(worker.executions, where, [cut])

    worker.claimer.on_wakeup(announced(named))
    with pytest.raises(StoreUnavailable):
        await worker.claimer.tick()
    setattr(worker.executions, where, [])
    await settle(worker.claimer)
    await worker.started()

    assert worker.runner.ids == [named]
    assert await tables_of(store, named) == ["running"]


async def test_unannounced_work_is_still_found_after_a_claim_by_id(store: Store) -> None:
    """A wakeup that was served by its name says nothing of what a sweep finds afterwards."""
    worker = await start(store)
    worker.claimer.on_wakeup(announced(await enqueue(store)))
    await settle(worker.claimer)
    await enqueue(store)
    await worker.sweeper.tick()

    rest = await worker.claimer.tick()

    assert rest == AT_ONCE
