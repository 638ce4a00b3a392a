"""Schedulers and workers in one process, their loops ticked one at a time in an order that a seed draws, on real SQL.

Nodes die, between two rounds or between two statements, freeze and come back, and lose the connection before a statement or the reply
behind its commit; one execution kills whoever runs it; and the database may fall back to what it was some time ago, as a failover does that
loses the last commits. One clock, one statement at a time, nothing by chance but what the seed says: the same seed gives the same run,
statement by statement, and `trace` tells two runs apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from hashlib import blake2b
from random import Random
from typing import Any

from tests.engine.support import MORTAL, ManualRunner, make_executor, registry
from tests.factories import FAILURE, HANDLER, make_node
from timeball.current import RunContext
from timeball.domain.events import Event, Hoisted, OutcomeRefused
from timeball.domain.execution import Claimed, Failed, Finding, Outcome, Succeeded
from timeball.domain.handler import Handler
from timeball.domain.ids import ExecutionId, Incarnation
from timeball.domain.lifecycle import Move, Wait
from timeball.domain.node import NodeKind
from timeball.engine.claimer import Claimer, Sweeper
from timeball.engine.reaper import Reaper
from timeball.engine.recorder import Recorder
from timeball.engine.scheduler import Scheduler
from timeball.engine.service import Service
from timeball.engine.shards import ShardKeeper
from timeball.engine.stocktaker import Stocktaker
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.settings import HousekeepingSettings, SchedulerSettings, WorkerSettings
from timeball.store.postgres import Store
from timeball.testing import VirtualClock

OpenStore = Callable[[Env], Awaitable[Store]]

# What kills whoever runs it.
POISON = '{"poison": true}'
# What must be met by a batch of seeds, or it proves less than it seems to.
TO_BE_MET = frozenset(
    {
        "killed",
        "killed between two statements",
        "frozen",
        "cut",
        "life lost",
        "outcome refused",
        "hoist refused",
        "claim found committed",
        "claim found absent",
        "outcome found committed",
        "failed over",
        "poison dead-lettered",
        "retried",
    }
)
_KEPT = (
    *("job", "job_version", "due", "ready", "blocked", "running", "finished", "attempt", "skip_range"),
    *("node", "shard", "queue", "running_limit", "live_key", "audit"),
)


class KilledError(StoreUnavailable):
    """As by kill -9, between two statements."""


class NotingRooms:
    """The rooms, as a node uses them; notes on the way until when each execution is to wait that failed."""

    def __init__(self, rooms: Any, swarm: Swarm) -> None:
        self._rooms = rooms
        self._swarm = swarm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rooms, name)

    async def record_transitions(self, moves: Sequence[Move]) -> list[Finding]:
        for finding, _, transition in moves:
            # Noted before it is known to be committed: if it is not, somebody will decide about the same attempt again.
            waits_until = transition.run_at if isinstance(transition, Wait) else None
            self._swarm.retries[finding.claimed.id, finding.claimed.fence] = waits_until
        return await self._rooms.record_transitions(moves)


class NotingRunner(ManualRunner):
    """Tells of every attempt that begins before its time."""

    def __init__(self, swarm: Swarm) -> None:
        super().__init__()
        self._swarm = swarm

    async def run(self, handler: Handler, context: RunContext) -> Outcome:
        self._swarm.note_start(context.claimed)
        return await super().run(handler, context)


class SwarmNode:
    """One node: a life after the other, each until it is killed or finds its lease gone."""

    def __init__(self, swarm: Swarm, store: Store, number: int) -> None:
        self.swarm = swarm
        self.store = store
        self.number = number
        self.services: list[Service] = []
        self.incarnation: Incarnation | None = None
        self.frozen_until = 0.0
        # Just woken, it goes on where it was, before it looks at any clock.
        self.is_numb = False
        # How often it acts before it notices that the database is another one.
        self.notices_in: int | None = None
        self._lost_reply: str | None = None
        self._lease_ends = 0.0
        self._renew_at = 0.0

    async def begin(self) -> None:
        self.incarnation = await make_node(self.store, self.kind, lease=MORTAL)
        self._lease_ends = self.swarm.clock.monotonic() + MORTAL.span.total_seconds() - 1
        self._renew_at = self.swarm.clock.monotonic() + MORTAL.interval.total_seconds()
        self.services = self.make_services(self.incarnation)

    @property
    def kind(self) -> NodeKind:
        raise NotImplementedError

    def make_services(self, incarnation: Incarnation) -> list[Service]:
        raise NotImplementedError

    def die(self) -> None:
        """As by kill -9: nothing is said, nothing is written."""
        self.incarnation = None
        self.services = []
        self.is_numb = False
        self.notices_in = self._lost_reply = None

    async def act(self, rng: Random) -> None:
        """One round of one loop, or a renewal; whatever the database refuses is tried again another time."""
        try:
            if self.incarnation is None:
                await self.begin()
            elif self.is_numb:
                self.is_numb = False
                await rng.choice(self.services).tick()
            elif self.swarm.clock.monotonic() >= self._lease_ends:
                self.swarm.seen["life lost"] += 1
                self.die()
            elif self.swarm.clock.monotonic() >= self._renew_at:
                await self._renew(self.incarnation)
            else:
                await rng.choice(self.services).tick()
        except KilledError:
            self.swarm.seen["killed between two statements"] += 1
            self.die()
        except StoreUnavailable:
            self.swarm.seen["cut"] += 1
        self._notice_failover()
        for _ in range(3):
            await asyncio.sleep(0)

    def _notice_failover(self) -> None:
        if self.notices_in is not None:
            self.notices_in -= 1
            if self.notices_in < 0:
                self.die()

    def fault(self, point: str) -> None:
        """What the seed does to the statement that is to be sent, or has just been committed."""
        self.swarm.note(self.number, point)
        if self.swarm.is_healed:
            return
        chance = self.swarm.rng.random()
        if chance < self.swarm.kill_rate:
            raise KilledError("killed")
        if chance < self.swarm.kill_rate + self.swarm.cut_rate:
            self._lost_reply = point
            raise StoreUnavailable("the connection was cut")
        self._see_what_was_found(point)

    def _see_what_was_found(self, point: str) -> None:
        lost = self._lost_reply
        if point == "read_back_claim.after_commit" and lost in ("claim.before", "claim.after_commit"):
            self.swarm.seen[f"claim found {'absent' if lost == 'claim.before' else 'committed'}"] += 1
            self._lost_reply = None
        if point == "already_recorded.after_commit" and lost in ("finish_succeeded.after_commit",):
            self.swarm.seen["outcome found committed"] += 1
            self._lost_reply = None

    def emit(self, event: Event) -> None:
        """Take note of what must be met."""
        if isinstance(event, OutcomeRefused):
            self.swarm.seen["outcome refused"] += 1
        elif isinstance(event, Hoisted) and event.refused:
            self.swarm.seen["hoist refused"] += 1

    async def _renew(self, incarnation: Incarnation) -> None:
        sent = self.swarm.clock.monotonic()
        if await self.store.nodes.renew(incarnation, 0) is None:
            self.die()
            return
        self._lease_ends = sent + MORTAL.span.total_seconds() - 1
        self._renew_at = sent + MORTAL.interval.total_seconds()


class SwarmScheduler(SwarmNode):
    """Hoists, and keeps house if the first shard is its own."""

    kind = NodeKind.SCHEDULER

    def make_services(self, incarnation: Incarnation) -> list[Service]:
        env, store, emit = self.store.env, self.store, self.emit
        keeper = ShardKeeper(env, emit, store.nodes, incarnation, lambda: None)
        scheduler = Scheduler(env, emit, store.rooms, store.jobs, keeper, SchedulerSettings())
        housekeeping = HousekeepingSettings()
        rooms = NotingRooms(store.rooms, self.swarm)
        reaper = Reaper(env, emit, store.nodes, rooms, housekeeping, lambda: keeper.is_housekeeper)
        return [keeper, scheduler, scheduler, reaper]


class SwarmWorker(SwarmNode):
    """Claims, runs and records; a run fails or succeeds as the seed says, and is noted outside of the system."""

    kind = NodeKind.WORKER

    def make_services(self, incarnation: Incarnation) -> list[Service]:
        env, store, emit = self.store.env, self.store, self.emit
        settings = WorkerSettings(slots=500, hold_limit=0)
        recorder = Recorder(env, emit, NotingRooms(store.rooms, self.swarm))
        self._runner = NotingRunner(self.swarm)
        executor = make_executor(env, self._runner, settings.slots, registry(), recorder.hand_over)
        claimer = Claimer(env, emit, store.rooms, executor, incarnation, (HANDLER,), settings)
        sweeper = Sweeper(env, emit, store.rooms, claimer)
        stocktaker = Stocktaker(env, emit, store.rooms, incarnation, claimer, executor, recorder.unrecorded)
        return [recorder, recorder, claimer, claimer, sweeper, stocktaker]

    async def act(self, rng: Random) -> None:
        await super().act(rng)
        if self.incarnation is None:
            return
        if any(context.claimed.payload == POISON for context in self._runner.started):
            self.die()
        else:
            self._end_some(rng)

    def _end_some(self, rng: Random) -> None:
        for context in [context for context in self._runner.started if rng.random() < 0.5]:
            self._runner.started.remove(context)
            self.swarm.runs[context.claimed.id, context.claimed.claim_id] += 1
            fails = not self.swarm.is_healed and rng.random() < 0.2
            self._runner.end(context.claimed, Failed(FAILURE) if fails else Succeeded())


class Swarm:
    """All nodes, their clock, and what happens to them."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.rng = Random(seed)
        self.clock = clock
        self.nodes: list[SwarmNode] = []
        self.seen: Counter[str] = Counter()
        self.runs: Counter[object] = Counter()
        # Until when an execution was to wait after an attempt; and those that did not.
        self.retries: dict[tuple[ExecutionId, int], datetime | None] = {}
        self.early: list[str] = []
        self._saved_retries: dict[tuple[ExecutionId, int], datetime | None] = {}
        self.is_healed = False
        self.cut_rate = self.rng.choice((0, 0.02, 0.1))
        self.kill_rate = self.rng.choice((0, 0.002, 0.01))
        self._trouble_rate = self.rng.choice((0.005, 0.02))
        self._is_lossy = self.rng.random() < 0.4
        self._saves_at, self._fails_over_at = (250, 250 + self.rng.randint(10, 100)) if self._is_lossy else (None, None)
        self._steps = 0
        self._trace = blake2b(digest_size=16)

    def __str__(self) -> str:
        kinds = Counter(node.kind.value for node in self.nodes)
        return f"{dict(kinds)}, cuts {self.cut_rate}, kills {self.kill_rate}, trouble {self._trouble_rate}, failover {self._fails_over_at}"

    def note(self, *facts: object) -> None:
        """One line of the trace, with the time it was."""
        self._trace.update(f"{self.clock.now()} {facts}\n".encode())

    def note_start(self, claimed: Claimed) -> None:
        """An attempt begins: not before its instant, nor before any time that was set for a retry of it."""
        set_for = [at for (id_, _), at in self.retries.items() if id_ == claimed.id and at is not None]
        if self.clock.now() < max((claimed.scheduled_for, *set_for)):
            self.early.append(f"{claimed.id} under fence {claimed.fence} at {self.clock.now()}")
        if set_for:
            self.seen["retried"] += 1

    @property
    def trace(self) -> str:
        """What tells this run from any other."""
        return self._trace.hexdigest()

    async def gather(self, open_store: OpenStore) -> None:
        """As many nodes of each kind as the seed says, each with connections of its own."""
        kinds = [SwarmScheduler] * self.rng.randint(1, 3) + [SwarmWorker] * self.rng.randint(1, 3)
        for number, kind in enumerate(kinds):
            env = Env(self.clock, Random(self.rng.getrandbits(32)))
            node = kind(self, await open_store(env), number)
            self.nodes.append(node)
            env.fault = node.fault

    async def step(self) -> None:
        """A moment passes, and one node does one thing; or something happens to it."""
        self._steps += 1
        if self._steps == self._saves_at:
            await _remember(self.nodes[0].store)
            self._saved_retries = dict(self.retries)
        elif self._steps == self._fails_over_at:
            await self._fail_over()
        self.clock.advance(self.rng.choice((0, 0.01, 0.1, 0.5)))
        node = self.rng.choice(self.nodes)
        if not self.is_healed and self.rng.random() < self._trouble_rate:
            self._trouble(node)
        if self.clock.monotonic() >= node.frozen_until:
            await node.act(self.rng)

    def _trouble(self, node: SwarmNode) -> None:
        if self.rng.random() < 0.5:
            self.seen["killed"] += 1
            node.die()
        else:
            self.seen["frozen"] += 1
            node.frozen_until = self.clock.monotonic() + self.rng.choice((2, 15, 40))
            node.is_numb = True

    async def _fail_over(self) -> None:
        """The last commits are lost; some notice at once, others have sent something before."""
        self.seen["failed over"] += 1
        await _fall_back(self.nodes[0].store)
        self.retries = self._saved_retries
        for node in self.nodes:
            node.notices_in = self.rng.randint(0, 2)

    def heal(self) -> None:
        """No more trouble: from here on everything has to come to its end."""
        self.is_healed = True
        for node in self.nodes:
            node.frozen_until = 0.0


async def _remember(store: Store) -> None:
    async with store.database.transaction() as connection:
        await connection.execute("CREATE SCHEMA saved")
        for table in _KEPT:
            await connection.execute(f"CREATE TABLE saved.{table} AS TABLE timeball.{table}")


async def _fall_back(store: Store) -> None:
    async with store.database.transaction() as connection:
        await connection.execute(f"TRUNCATE {', '.join(f'timeball.{table}' for table in _KEPT)}")
        for table in _KEPT:
            await connection.execute(f"INSERT INTO timeball.{table} SELECT * FROM saved.{table}")
        await connection.execute("DROP SCHEMA saved CASCADE")
