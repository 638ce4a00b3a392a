"""One hint calls upon one worker; whatever becomes of that one, another looks a few milliseconds later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.support import settle, until
from tests.engine.worker.manual_worker import ManualWorker, start
from tests.support.factories import enqueue, table, tables_of
from timeball.application.commands import Commands
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.domain.wakeup import ELECTED, MANY, Lane, LanePosition, PeerWorker, Wakeup, WakeupElection
from timeball.engine.worker.reconciler import WakeupBackstop
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.telemetry.events import ignore
from timeball.testing import VirtualClock
from timeball.testing.environment import START

LANE: Lane = ("default", 50)
SLOTS = 4


@dataclass
class Member:
    """A worker among its peers."""

    worker: ManualWorker
    backstop: WakeupBackstop

    @property
    def claims(self) -> int:
        return len(self.worker.executions.wishes)

    @property
    def is_awake(self) -> bool:
        return self.worker.claimer._woken.is_set()

    async def act(self) -> None:
        """What its loops would do now."""
        await self.backstop.tick()
        while self.is_awake:
            self.worker.claimer._woken.clear()
            await settle(self.worker.claimer)
        await self.worker.started()


class Team:
    """Workers that can stand in for each other, and hear the same hints."""

    def __init__(self, store: Store, workers: list[ManualWorker]) -> None:
        self._store = store
        peers = [PeerWorker(worker.incarnation, SLOTS, 0) for worker in workers]
        self.members = [self._join(worker, peers) for worker in workers]

    def _join(self, worker: ManualWorker, peers: list[PeerWorker]) -> Member:
        backstop = WakeupBackstop(self._store.env, ignore, worker.executions, worker.claimer)  # type: ignore[arg-type]
        worker.claimer.turn_of = WakeupElection(worker.incarnation, peers).of
        worker.claimer.on_deferred = backstop.expect
        return Member(worker, backstop)

    @property
    def claims(self) -> int:
        return sum(member.claims for member in self.members)

    def in_turn(self, hints: Wakeup) -> list[Member]:
        """Who is called upon, and who stands in line behind that one."""
        return sorted(self.members, key=lambda member: member.worker.claimer.turn_of(hints))

    def hear(self, hints: Wakeup) -> None:
        for member in self.members:
            member.worker.claimer.on_wakeup(hints)

    async def act(self, but: tuple[Member, ...] = ()) -> None:
        for member in self.members:
            if member not in but:
                await member.act()

    async def end_all(self) -> None:
        for member in self.members:
            await member.worker.end_all()


async def make_team(store: Store, number: int, slots: int = SLOTS, **settings: Any) -> Team:
    return Team(store, [await start(store, slots=slots, **settings) for _ in range(number)])


def hint(nonce: int = 0, executions: int = 1, lane: Lane = LANE) -> Wakeup:
    return Wakeup(lanes={lane: START}, executions=executions, nonce=nonce)


async def holders(store: Store) -> dict[ExecutionId, Incarnation]:
    return {row["id"]: row["holder"] for row in await table(store, "running")}


async def holder(store: Store) -> Incarnation:
    (found,) = (await holders(store)).values()
    return found


@pytest.mark.parametrize("number", [1, 8])
async def test_an_execution_is_one_claim_however_many_workers_there_are(
    store: Store, clock: VirtualClock, number: int
) -> None:
    team = await make_team(store, number)

    for nonce in range(10):
        await enqueue(store)
        team.hear(hint(nonce * 10_007))
        await team.act()
        await team.end_all()
        clock.advance("30ms")
        await team.act()

    assert team.claims == 10
    assert not await table(store, "ready")


async def test_many_call_upon_everybody(store: Store) -> None:
    team = await make_team(store, 3)
    for _ in range(3 * SLOTS):
        await enqueue(store)

    team.hear(hint(executions=MANY))

    assert all(member.is_awake for member in team.members)


async def test_the_next_in_line_takes_over_from_a_dead_worker(store: Store, clock: VirtualClock) -> None:
    """Frozen, killed, cut off or without a lease: it does not come."""
    team, looks = await make_team(store, 3), watch_looks(store)
    dead, second, third = team.in_turn(hint())
    await enqueue(store)
    team.hear(hint())

    clock.advance("20ms")
    await team.act(but=(dead,))
    assert team.claims == 0

    clock.advance("6ms")
    await team.act(but=(dead,))
    assert await holder(store) == second.worker.incarnation
    assert third.claims == 0
    assert len(looks) == 1, "the others are not even curious yet"


@pytest.mark.parametrize(("dead", "after"), [(2, "101ms"), (3, "401ms"), (7, "401ms")])
async def test_somebody_is_left_whoever_is_dead(store: Store, clock: VirtualClock, dead: int, after: str) -> None:
    team = await make_team(store, 8)
    first = team.in_turn(hint())[:dead]
    await enqueue(store)
    team.hear(hint())

    clock.advance(after)
    await team.act(but=tuple(first))

    assert await holder(store) in {member.worker.incarnation for member in team.members if member not in first}


async def test_who_had_to_take_over_relies_on_nobody_for_a_while(store: Store, clock: VirtualClock) -> None:
    team = await make_team(store, 2)
    dead, living = team.in_turn(hint())
    await enqueue(store)
    team.hear(hint())
    clock.advance("26ms")
    await team.act(but=(dead,))
    await team.end_all()

    living.worker.claimer.on_wakeup(hint())
    assert living.is_awake, "at once"

    await living.act()
    clock.advance("2s")
    living.worker.claimer.on_wakeup(hint())
    assert not living.is_awake, "the other has another chance"


async def test_the_next_in_line_takes_what_a_full_worker_cannot(store: Store, clock: VirtualClock) -> None:
    team = await make_team(store, 2, slots=1, hold_limit=0)
    full, free = team.in_turn(hint())
    await fill(store, full)
    waiting = await enqueue(store)

    team.hear(hint())
    await team.act()
    assert await tables_of(store, waiting) == ["ready"]

    clock.advance("26ms")
    await team.act()
    assert free.worker.runner.ids == [waiting]


async def test_where_all_are_full_the_first_free_slot_takes_what_was_for_another(store: Store) -> None:
    team = await make_team(store, 2, slots=1, hold_limit=0)
    _, other = team.in_turn(hint())
    for member in team.members:
        await fill(store, member)
    waiting = await enqueue(store)
    team.hear(hint())
    await team.act()

    await other.worker.end_all()
    await until(lambda: other.is_awake)
    await other.act()

    assert (await holders(store))[waiting] == other.worker.incarnation


async def fill(store: Store, member: Member) -> None:
    """Have a worker take all it can."""
    while member.worker.claimer._slots() > 0:
        await enqueue(store)
        member.worker.claimer.learn(LANE, LanePosition(START))
        await member.act()


async def test_one_look_serves_all_hints_that_came_before_it(store: Store, clock: VirtualClock) -> None:
    team, looks = await make_team(store, 3), watch_looks(store)

    for nonce in range(100):
        team.hear(hint(nonce * 10_007))
        await team.act()
        clock.advance("1ms")

    # In a tenth of a second: the first in line four times, the second once, the third not at all, unless one before it is called upon.
    assert 4 <= len(looks) <= 12


async def test_a_look_that_found_nothing_is_not_made_again(store: Store, clock: VirtualClock) -> None:
    team, looks = await make_team(store, 2), watch_looks(store)
    _, other = team.in_turn(hint())
    other.worker.claimer.on_wakeup(hint())

    for _ in range(5):
        clock.advance("26ms")
        await other.act()

    assert len(looks) == 1


async def test_a_look_is_made_by_a_timer_that_may_come_a_little_early(store: Store, clock: VirtualClock) -> None:
    """Who sent it to sleep again would see it a second later."""
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    await enqueue(store)
    other.worker.claimer.on_wakeup(hint())

    await until(other.backstop._woken.is_set)
    clock.advance("24ms")
    await other.act()

    assert other.claims == 1


async def test_what_is_announced_in_the_moment_of_a_claim_is_looked_after(store: Store, clock: VirtualClock) -> None:
    """The claim may have been under way already."""
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    other.worker.claimer.learn(LANE, LanePosition(START))
    await other.act()
    await enqueue(store)
    other.worker.claimer.on_wakeup(hint())

    clock.advance("26ms")
    await other.act()

    assert other.claims == 2


async def test_of_two_hints_about_a_lane_the_earlier_instant_counts(store: Store, clock: VirtualClock) -> None:
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    await enqueue(store)
    other.worker.claimer.on_wakeup(hint())
    other.worker.claimer.on_wakeup(Wakeup(lanes={LANE: START + timedelta(minutes=1)}, executions=1))

    clock.advance("26ms")
    await other.act()

    assert other.claims == 1


async def test_what_has_just_come_is_not_taken_from_whom_it_is_for(store: Store, clock: VirtualClock) -> None:
    """A look that an older hint asked for does not race the one who was called upon by the latest; it is made again."""
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    other.worker.claimer.on_wakeup(hint())
    clock.advance("20ms")
    await enqueue(store)
    other.worker.claimer.on_wakeup(hint())

    clock.advance("6ms")
    await other.act()
    assert other.claims == 0

    clock.advance("20ms")
    await other.act()
    assert other.claims == 1


async def test_a_claim_of_its_own_makes_a_look_needless(store: Store, clock: VirtualClock) -> None:
    team, looks = await make_team(store, 2), watch_looks(store)
    _, other = team.in_turn(hint())
    other.worker.claimer.on_wakeup(hint())
    clock.advance("10ms")
    await enqueue(store)

    other.worker.claimer.on_wakeup(hint(executions=MANY))
    await other.act()
    clock.advance("20ms")
    await other.act()

    assert other.claims == 1
    assert not looks


async def test_what_nobody_here_can_run_is_not_claimed(store: Store, clock: VirtualClock) -> None:
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    await enqueue(store, handler="app:foreign")

    other.worker.claimer.on_wakeup(hint())
    clock.advance("30ms")
    await other.act()

    assert other.claims == 0


async def test_a_queue_at_its_limit_is_known_to_everybody(store: Store, env: Env) -> None:
    """Places are freed in silence: each worker asks for the next one when its own execution has ended, if it knows that one waits."""
    await Commands(store, env).queues.limit("default", 1)
    team = await make_team(store, 2)
    for _ in range(2):
        await enqueue(store)
    for member in team.members:
        await member.worker.sweeper.tick()
        await member.act()

    team.hear(hint())

    assert all(member.is_awake for member in team.members)


async def test_a_look_that_fails_is_not_the_last(store: Store, env: Env, clock: VirtualClock) -> None:
    """The sweep finds what it would have found; the next hint is looked after as ever."""
    team = await make_team(store, 2)
    _, other = team.in_turn(hint())
    await enqueue(store)
    other.worker.claimer.on_wakeup(hint())
    clock.advance("26ms")
    env.fault = cut_looks
    with pytest.raises(StoreUnavailable):
        await other.act()
    env.fault = lambda _point: None

    other.worker.claimer.on_wakeup(hint())
    clock.advance("26ms")
    await other.act()

    assert other.claims == 1
    assert other.worker.claimer.turn_of(hint()) != ELECTED


def cut_looks(point: str) -> None:
    if point.startswith("has_unclaimed"):
        raise StoreUnavailable("the connection was cut")


def watch_looks(store: Store) -> list[str]:
    looks: list[str] = []
    store.env.fault = lambda point: looks.append(point) if point == "has_unclaimed.before" else None
    return looks
