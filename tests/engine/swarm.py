"""Schedulers and workers in one process, their loops ticked one at a time in an order that a seed draws, on real SQL.

Nodes die, freeze and come back, and lose the connection before a statement or the reply behind its commit. One clock, one statement at a
time, nothing by chance but what the seed says: the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from tests.engine.support import MORTAL, ManualRunner, make_executor, registry
from tests.factories import FAILURE, HANDLER, make_node
from timeball.domain.events import ignore
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.ids import Incarnation
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


class SwarmNode:
    """One node: a life after the other, each until it is killed or finds its lease gone."""

    def __init__(self, swarm: Swarm, store: Store) -> None:
        self.swarm = swarm
        self.store = store
        self.services: list[Service] = []
        self.incarnation: Incarnation | None = None
        self.frozen_until = 0.0
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

    async def act(self, rng: Random) -> None:
        """One round of one loop, or a renewal; whatever the database refuses is tried again another time."""
        try:
            if self.incarnation is None:
                await self.begin()
            elif self.swarm.clock.monotonic() >= self._lease_ends:
                self.swarm.seen["life lost"] += 1
                self.die()
            elif self.swarm.clock.monotonic() >= self._renew_at:
                await self._renew(self.incarnation)
            else:
                await rng.choice(self.services).tick()
        except StoreUnavailable:
            self.swarm.seen["cut"] += 1
        for _ in range(3):
            await asyncio.sleep(0)

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
        env, store = self.store.env, self.store
        keeper = ShardKeeper(env, ignore, store.nodes, incarnation, lambda: None)
        scheduler = Scheduler(env, ignore, store.rooms, store.jobs, keeper, SchedulerSettings())
        housekeeping = HousekeepingSettings()
        reaper = Reaper(env, ignore, store.nodes, store.rooms, housekeeping, lambda: keeper.is_housekeeper)
        return [keeper, scheduler, scheduler, reaper]


class SwarmWorker(SwarmNode):
    """Claims, runs and records; a run fails or succeeds as the seed says, and is noted outside of the system."""

    kind = NodeKind.WORKER

    def make_services(self, incarnation: Incarnation) -> list[Service]:
        env, store, settings = self.store.env, self.store, WorkerSettings(slots=500, hold_limit=0)
        recorder = Recorder(env, ignore, store.rooms)
        self._runner = ManualRunner()
        executor = make_executor(env, self._runner, settings.slots, registry(), recorder.hand_over)
        claimer = Claimer(env, ignore, store.rooms, executor, incarnation, (HANDLER,), settings)
        sweeper = Sweeper(env, ignore, store.rooms, claimer)
        stocktaker = Stocktaker(env, ignore, store.rooms, incarnation, claimer, executor, recorder.unrecorded)
        return [recorder, recorder, claimer, claimer, sweeper, stocktaker]

    async def act(self, rng: Random) -> None:
        await super().act(rng)
        if self.incarnation is not None:
            self._end_some(rng)

    def _end_some(self, rng: Random) -> None:
        for context in [context for context in self._runner.started if rng.random() < 0.5]:
            self._runner.started.remove(context)
            self.swarm.runs[context.claimed.id, context.claimed.fence] += 1
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
        self.is_healed = False
        self._cut_rate = self.rng.choice((0, 0.01, 0.05))
        self._trouble_rate = self.rng.choice((0.005, 0.02))

    def _fault(self, _point: str) -> None:
        if not self.is_healed and self.rng.random() < self._cut_rate:
            raise StoreUnavailable("the connection was cut")

    async def gather(self, open_store: OpenStore) -> None:
        """As many nodes of each kind as the seed says, each with connections of its own."""
        kinds = [SwarmScheduler] * self.rng.randint(1, 3) + [SwarmWorker] * self.rng.randint(1, 3)
        for kind in kinds:
            env = Env(self.clock, Random(self.rng.getrandbits(32)))
            self.nodes.append(kind(self, await open_store(env)))
            env.fault = self._fault

    async def step(self) -> None:
        """A moment passes, and one node does one thing; or something happens to it."""
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

    def heal(self) -> None:
        """No more trouble: from here on everything has to come to its end."""
        self.is_healed = True
        for node in self.nodes:
            node.frozen_until = 0.0
