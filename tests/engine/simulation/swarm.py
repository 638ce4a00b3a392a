"""Schedulers and workers in one process, their loops ticked one at a time in the order of a plan, on real SQL.

Nodes die, between two rounds or between two statements, freeze and come back, and lose the connection before a statement or the reply
behind its commit; one execution kills its worker; and the database may fall back to what it was some time ago, as a failover does that
loses the last commits. One clock, one statement at a time, nothing by chance but what the plan says: the same plan gives the same run,
statement by statement and value by value, and `trace` tells two runs apart.

Three things outside of a plan could decide what happens, and none of them may:

- How often the event loop turns while a statement is under way. So each statement is sent only when no task has anything left to do.
- How long a statement takes. So the timers of the event loop go by the clock of the swarm.
- The order of rows that no ORDER BY decides: PostgreSQL returns them as they lie on their pages, which depends on what was cleaned up
  when. So the second run of a plan gets those rows in reverse (`reverses_rows`), and must be the same run all the same.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any, assert_never

from tests.engine.simulation.swarm_plan import (
    AFTER,
    CUT,
    GROUP,
    KILL,
    NARROW,
    PLAIN,
    POISON,
    QUEUE,
    SCHEDULER,
    SCHEDULES,
    Deed,
    Fault,
    Plan,
    What,
)
from tests.engine.support import MORTAL, ManualRunner, create, make_executor, registry
from tests.support.factories import FAILURE, HANDLER, make_node
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.config.settings import HousekeepingSettings, SchedulerSettings, WorkerSettings
from timeball.current import AttemptContext
from timeball.domain.backfill import Backfill, BackfillSelection
from timeball.domain.execution import ClaimedExecution, Failed, FinishedAttempt, Outcome, Succeeded
from timeball.domain.freeze import Afterwards, FreezeScope
from timeball.domain.handler import Handler
from timeball.domain.job_fields import JobSpec
from timeball.domain.lifecycle import Decision, Postpone
from timeball.domain.node import NodeKind
from timeball.domain.policies import SkipReason
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.engine.lease import Peers
from timeball.engine.node import Service, Signal
from timeball.engine.runners.outcome import outcome_of_halt
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.worker.admission import ClaimableHandlers
from timeball.engine.worker.claimer import Claimer, ClaimReconciler, Sweeper
from timeball.engine.worker.executor import CancellationPoller
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.errors import NotFound, StoreUnavailable
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.telemetry.events import ExecutionsPromoted, OutcomeRefused, TelemetryEvent
from timeball.testing import VirtualClock
from timeball.testing.environment import START

OpenStore = Callable[[Env], Awaitable[Store]]

# The payload that kills its worker.
_POISONED = '{"poison": true}'
# How late an occurrence of a schedule may be before it is missed: freezes and dead schedulers are longer than that.
_GRACE_SECONDS = 3
_WORK = {
    PLAIN: (JobSpec(handler=HANDLER, max_retries=20, max_lost=20), "{}"),
    NARROW: (JobSpec(handler=HANDLER, queue=NARROW, max_lost=20), "{}"),
    POISON: (JobSpec(handler=HANDLER, max_lost=3), _POISONED),
}
# What must be met by a batch of seeds, or it proves less than it seems to.
TO_BE_MET = frozenset(
    {
        "killed",
        "killed between two statements",
        "frozen",
        "cut",
        "lease lost",
        "outcome refused",
        "promotion refused",
        "claim found committed",
        "claim found absent",
        "outcome found committed",
        "failed over",
        "poison dead-lettered",
        "retried",
        "stopped",
        f"skipped: {SkipReason.MISFIRE}",
        f"skipped: {SkipReason.OVERLAP}",
        f"skipped: {SkipReason.EXPIRED}",
        f"skipped: {SkipReason.FREEZE}",
        "work frozen",
        "freeze ended early",
        "queue paused",
        "calendar followed",
        "calendar not followed at once",
        "filled in",
        "run again by a backfill",
        "feeder killed",
        "group succeeded",
        "group failed",
        "came after another",
    }
)
_KEPT = (
    *("job", "job_version", "due", "ready", "blocked", "running", "finished", "attempt", "skip_range"),
    *("node", "shard", "queue", "queue_interval", "freeze_period", "failing_job", "running_limit", "live_key", "audit"),
    *("calendar", "calendar_version", "operation", "operation_item"),
    *("follow_up", "followed_success", "execution_group", "group_part"),
)


_PARENTHESES = re.compile(r"\([^()]*\)")
# More than any chain of tasks takes.
_MOST_TURNS = 10_000


class KilledError(StoreUnavailable):
    """As by kill -9, between two statements."""


class NotingExecutions:
    """The rooms, as a node uses them; notes on the way until when each execution is to wait that failed."""

    def __init__(self, executions: Any, swarm: Swarm) -> None:
        self._executions = executions
        self._swarm = swarm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executions, name)

    async def record_transitions(self, moves: Sequence[Decision]) -> list[FinishedAttempt]:
        for finding, _, transition in moves:
            # Noted before it is known to be committed: if it is not, the same attempt will be decided about again.
            waits_until = transition.run_at if isinstance(transition, Postpone) else None
            self._swarm.retries[finding.claimed.id, finding.claimed.fence] = waits_until
        return await self._executions.record_transitions(moves)


class NotingRunner(ManualRunner):
    """Tells of every attempt that begins before its time."""

    def __init__(self, swarm: Swarm) -> None:
        super().__init__()
        self._swarm = swarm

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        self._swarm.note_start(context.claimed)
        return await super().run(handler, context)


class SwarmNode:
    """One node, started again each time it was killed or lost its lease."""

    def __init__(self, swarm: Swarm, store: Store, name: str) -> None:
        self.swarm = swarm
        self.store = store
        self.name = name
        self.services: dict[str, Service] = {}
        self.incarnation: Incarnation | None = None
        self.frozen_until = 0.0
        # How often, just woken, it goes on where it was, before it looks at any clock.
        self.numb_for = 0
        # How often it acts before it notices that the database is another one.
        self.notices_in: int | None = None
        self._lost_reply: str | None = None
        self._faults: list[Fault] = []
        self._points = 0
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

    def make_services(self, incarnation: Incarnation) -> dict[str, Service]:
        raise NotImplementedError

    def die(self) -> None:
        """As by kill -9: nothing is said, nothing is written."""
        self.incarnation = None
        self.services = {}
        self.numb_for = 0
        self.notices_in = self._lost_reply = None

    async def act(self, turn: Deed, rng: Random) -> None:
        """One round of one loop, or a renewal; whatever the database refuses is tried again another time."""
        self._faults, self._points = list(turn.faults), 0
        try:
            if self.incarnation is None:
                await self.begin()
            elif self.numb_for:
                self.numb_for -= 1
                await self.services[turn.loop].tick()
            elif self.swarm.clock.monotonic() >= self._lease_ends:
                self.swarm.seen["lease lost"] += 1
                self.die()
            elif self.swarm.clock.monotonic() >= self._renew_at:
                await self._renew(self.incarnation)
            else:
                await self.services[turn.loop].tick()
        except KilledError:
            self.swarm.seen["killed between two statements"] += 1
            self.die()
        except StoreUnavailable:
            self.swarm.seen["cut"] += 1
        self._notice_failover()
        await quiet()
        self._faults = []

    def _notice_failover(self) -> None:
        if self.notices_in is not None:
            self.notices_in -= 1
            if self.notices_in < 0:
                self.die()

    def fault(self, point: str) -> None:
        """What the plan does to the statement that is to be sent, or has just been committed."""
        self.swarm.note(self.name, point)
        here = next((fault for fault in self._faults if fault[1] in (self._points, point)), None)
        self._points += 1
        if here is None:
            self._see_what_was_found(point)
            return
        self._faults.remove(here)
        self.swarm.struck(here[0], point)
        if here[0] == KILL:
            raise KilledError("killed")
        assert here[0] == CUT
        self._lost_reply = point
        raise StoreUnavailable("the connection was cut")

    def _see_what_was_found(self, point: str) -> None:
        lost = self._lost_reply
        if point == "read_back_claim.after_commit" and lost in ("claim.before", "claim.after_commit"):
            self.swarm.seen[f"claim found {'absent' if lost == 'claim.before' else 'committed'}"] += 1
            self._lost_reply = None
        if point == "already_recorded.after_commit" and lost in ("finish_succeeded.after_commit",):
            self.swarm.seen["outcome found committed"] += 1
            self._lost_reply = None

    def emit(self, event: TelemetryEvent) -> None:
        """Take note of what must be met."""
        if isinstance(event, OutcomeRefused):
            self.swarm.seen["outcome refused"] += 1
        elif isinstance(event, ExecutionsPromoted) and event.refused:
            self.swarm.seen["promotion refused"] += 1

    async def _renew(self, incarnation: Incarnation) -> None:
        sent = self.swarm.clock.monotonic()
        if await self.store.nodes.renew(incarnation, 0) is None:
            self.die()
            return
        self._lease_ends = sent + MORTAL.span.total_seconds() - 1
        self._renew_at = sent + MORTAL.interval.total_seconds()


class SwarmScheduler(SwarmNode):
    """Promotes, and keeps house if the first shard is its own."""

    kind = NodeKind.SCHEDULER

    def make_services(self, incarnation: Incarnation) -> dict[str, Service]:
        env, store, emit = self.store.env, self.store, self.emit
        shards = ShardBalancer(env, emit, store.nodes, incarnation, lambda: None)
        scheduler = Scheduler(env, emit, store.executions, store.jobs, store.freezes, shards, SchedulerSettings())
        housekeeping = HousekeepingSettings()
        reaper = Reaper(
            env,
            emit,
            store.nodes,
            NotingExecutions(store.executions, self.swarm),
            store.jobs,
            store.queues,
            housekeeping,
            lambda: shards.is_housekeeper,
        )
        return {"shards": shards, "scheduler": scheduler, "reaper": reaper}


class SwarmWorker(SwarmNode):
    """Claims, runs and records; a run fails or succeeds as the plan says, and is noted outside of the system."""

    kind = NodeKind.WORKER

    def make_services(self, incarnation: Incarnation) -> dict[str, Service]:
        env, store, emit = self.store.env, self.store, self.emit
        settings = WorkerSettings(slots=500, hold_limit=0)
        recorder = Recorder(env, emit, NotingExecutions(store.executions, self.swarm))
        self._runner = NotingRunner(self.swarm)
        executor = make_executor(env, self._runner, settings.slots, registry(), recorder.hand_over)
        handlers, peers = ClaimableHandlers((HANDLER,)), Peers(env.clock, incarnation)
        claimer = Claimer(env, emit, store.executions, executor, incarnation, handlers, settings, peers, Signal())
        sweeper = Sweeper(env, emit, store.executions, claimer)
        reconciler = ClaimReconciler(env, emit, store.executions, incarnation, claimer, executor, recorder)
        return {
            "recorder": recorder,
            "claimer": claimer,
            "sweeper": sweeper,
            "reconciler": reconciler,
            "cancellation poller": CancellationPoller(
                env, emit, store.executions, incarnation, executor, lambda: False
            ),
        }

    async def act(self, turn: Deed, rng: Random) -> None:
        if self.numb_for and self.incarnation is not None:
            # What it ran went on to its end as if no time had passed.
            await self._end_some(rng, turn.fails)
        await super().act(turn, rng)
        if self.incarnation is None:
            return
        if any(context.claimed.payload == _POISONED for context in self._runner.started):
            self.die()
        else:
            await self._end_some(rng, turn.fails)

    async def _end_some(self, rng: Random, fails: float) -> None:
        for context in [context for context in self._runner.started if rng.random() < self.swarm.plan.ends]:
            self._runner.started.remove(context)
            outcome = self._outcome(context, rng, fails)
            self.swarm.runs.append((context.claimed.id, context.claimed.claim_id, outcome))
            self._runner.end(context.claimed, outcome)
        await quiet()

    def _outcome(self, context: AttemptContext, rng: Random, fails: float) -> Outcome:
        """What is told to stop does so, or comes to its end before it notices."""
        outcome: Outcome = Failed(FAILURE) if rng.random() < fails else Succeeded()
        if context.is_halted and rng.random() < 0.5:
            self.swarm.seen["stopped"] += 1
            outcome = outcome_of_halt(context)
        return outcome


class Feeder:
    """What carries operations out; started again each time it was killed. Its lease has to run out before another may go on."""

    def __init__(self, swarm: Swarm, store: Store) -> None:
        self._swarm = swarm
        self._store = store
        self._commands = Commands(store, store.env)
        self._holder = store.env.new_id()
        self._faults: list[Fault] = []
        self._points = 0
        store.env.fault = self._fault

    async def act(self, faults: Sequence[Fault]) -> None:
        """One operation, or one step of a backfill, if there is one."""
        self._faults, self._points = list(faults), 0
        try:
            await self._commands.operations.work(self._holder)
        except KilledError:
            self._swarm.seen["feeder killed"] += 1
            self._holder = self._store.env.new_id()
        except StoreUnavailable:
            self._swarm.seen["cut"] += 1
        await quiet()
        self._faults = []

    def _fault(self, point: str) -> None:
        self._swarm.note("feeder", point)
        struck = next((fault for fault in self._faults if fault[1] in (self._points, point)), None)
        self._points += 1
        if struck is None:
            return
        self._faults.remove(struck)
        self._swarm.struck(struck[0], point)
        raise KilledError("killed") if struck[0] == KILL else StoreUnavailable("the connection was cut")


class Swarm:
    """All nodes, their clock, what happens to them, and what they have done."""

    def __init__(
        self,
        plan: Plan,
        clock: VirtualClock,
        tell: Callable[[str], None] | None = None,
        *,
        reverses_rows: bool = False,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self._reverses_rows = reverses_rows
        self.nodes: dict[str, SwarmNode] = {}
        self._feeder: Feeder | None = None
        self.seen: Counter[str] = Counter()
        # The ledger, outside of what is tested: every run that has ended, and every one-off that was acknowledged and not lost since.
        self.runs: list[tuple[ExecutionId, ClaimId, Outcome]] = []
        self.acknowledged: list[ExecutionId] = []
        # Until when an execution was to wait after an attempt; and those that did not.
        self.retries: dict[tuple[ExecutionId, int], datetime | None] = {}
        self.early: list[str] = []
        # Executions that began although they had expired.
        self.expired: list[str] = []
        # The deeds as they went: with faults that have struck, by the names of the points where they did.
        self.done: list[Deed] = []
        self._struck: list[Fault] = []
        self._saved: int | None = None
        self._saved_retries: dict[tuple[ExecutionId, int], datetime | None] = {}
        self._tell = tell
        self._trace = blake2b(digest_size=16)

    def note(self, *facts: object) -> None:
        """One line of the trace, with the time it was."""
        line = f"{self.clock.now()} {facts}"
        self._trace.update(f"{line}\n".encode())
        if self._tell is not None:
            self._tell(line)

    def struck(self, kind: str, point: str) -> None:
        self.note("struck", kind, point)
        self._struck.append((kind, point))

    def note_start(self, claimed: ClaimedExecution) -> None:
        """An attempt begins: not before its instant, nor before any time that was set for a retry of it, nor after it has expired."""
        self.note("begins", claimed.id, claimed.fence)
        set_for = [at for (id_, _), at in self.retries.items() if id_ == claimed.id and at is not None]
        if self.clock.now() < max((claimed.scheduled_for, *set_for)):
            self.early.append(f"{claimed.id} under fence {claimed.fence} at {self.clock.now()}")
        if claimed.expires_at is not None and self.clock.now() >= claimed.expires_at:
            self.expired.append(f"{claimed.id} under fence {claimed.fence} at {self.clock.now()}")
        if set_for:
            self.seen["retried"] += 1

    @property
    def trace(self) -> str:
        """What tells this run from any other."""
        return self._trace.hexdigest()

    async def gather(self, open_store: OpenStore) -> None:
        """The nodes of the plan, each with connections of its own."""
        for name in self.plan.nodes:
            env = Env(self.clock, self.plan.chance(name))
            kind = SwarmScheduler if name.startswith(SCHEDULER) else SwarmWorker
            node = self.nodes[name] = kind(self, await open_store(env), name)
            self.watch(node.store, name)
            env.fault = node.fault
        if any(deed.what is What.FEED for deed in self.plan.deeds):
            store = await open_store(Env(self.clock, self.plan.chance("feeder")))
            self._feeder = Feeder(self, store)
            self.watch(store, "feeder")

    async def feed(self, faults: Sequence[Fault] = ()) -> None:
        """A step of the operations that are there; nothing in a plan without them."""
        if self._feeder is not None:
            await self._feeder.act(faults)

    def watch(self, store: Store, name: str) -> None:
        """Note every statement with its values; each is sent when the loop is quiet."""
        run = store.database._run

        async def noted_run(connection: Any, statement: str, given: dict[str, Any]) -> list[Any]:
            await quiet()
            self.note(name, statement, given)
            rows = await run(connection, statement, given)
            return rows[::-1] if self._reverses_rows and not _decides_order(statement) else rows

        async def no_notification(_payload: str) -> None:
            """Nothing listens here; and a notification that is under way beside a statement would change what the next one announces."""

        store.database._run = noted_run  # type: ignore[method-assign]
        store.database.notify = no_notification  # type: ignore[method-assign]

    async def do(self, deed: Deed, store: Store) -> None:
        """One node does one thing; or something happens to it, or to the database, or there is more to do."""
        if self._tell is not None:
            self._tell(str(deed))
        self._struck = []
        match deed.what:
            case What.TURN:
                await self._turn(deed)
            case What.WAIT:
                self.clock.advance(deed.seconds)
            case What.WORK:
                await self._work(store, deed)
            case What.KILL:
                self.seen["killed"] += 1
                self.nodes[deed.node].die()
            case What.FREEZE:
                self._freeze(deed)
            case What.HOLD:
                await self._hold(store, deed)
            case What.LET_GO:
                await self._let_go(store)
            case What.PAUSE:
                self.seen["queue paused"] += 1
                until = self.clock.now() + timedelta(seconds=deed.seconds)
                await Commands(store, store.env).queues.pause("default", until=until)
            case What.SAVE:
                await _remember(store)
                self._saved = len(self.acknowledged)
                self._saved_retries = dict(self.retries)
            case What.FALL_BACK if self._saved is not None:
                await self._fall_back(store, self._saved)
            case What.FALL_BACK:
                pass
            case What.BACKFILL:
                await self._backfill(store, deed)
            case What.FEED:
                await self.feed(deed.faults)
            case What.CALENDAR:
                await self._change_calendar(store, deed)
            case _ as never:
                assert_never(never)
        self.done.append(replace(deed, faults=tuple(self._struck)))

    async def _turn(self, turn: Deed) -> None:
        self.clock.advance(turn.seconds)
        node = self.nodes[turn.node]
        if self.clock.monotonic() >= node.frozen_until:
            await node.act(turn, self.plan.chance(turn.number))

    async def _work(self, store: Store, deed: Deed) -> None:
        if deed.work in SCHEDULES:
            policies = {"overlap": deed.work, "misfire": deed.misfire, "misfire_grace_seconds": _GRACE_SECONDS}
            policies["start_within_seconds"] = deed.within or None
            if deed.closed:
                await Commands(store, store.env).calendars.create(deed.work, DaysRequest(days=[deed.closed]))
                policies["skip_on"] = (deed.work,)
            await create(store, name=deed.work, interval_seconds=7, max_executions=deed.amount, **policies)
            return
        if deed.work == GROUP:
            await Commands(store, store.env).groups.begin(group_work(deed))
            return
        if deed.work == AFTER:
            if await store.jobs.find_by_name(deed.cause) is not None:
                await create(store, name=f"after {deed.cause}", after=deed.cause, max_retries=20, max_lost=20)
            return
        spec, payload = _WORK[deed.work]
        spec = replace(spec, start_within_seconds=deed.within or None)
        if deed.work == NARROW:
            await Commands(store, store.env).queues.limit(NARROW, 2)
        self.acknowledged += await Commands(store, store.env).jobs.enqueue_many(spec, [payload] * deed.amount)

    async def _hold(self, store: Store, deed: Deed) -> None:
        """A freeze of everything, of the usual queue, or of a schedule, if it is there."""
        scope, target, job_id = FreezeScope.JOB, None, None
        if deed.work in SCHEDULES:
            job = await store.jobs.find_by_name(deed.work)
            if job is None:
                return
            job_id = job.id
        elif deed.work == QUEUE:
            scope, target = FreezeScope.QUEUE, "default"
        else:
            scope = FreezeScope.INSTALLATION
        self.seen["work frozen"] += 1
        until, afterwards = self.clock.now() + timedelta(seconds=deed.seconds), Afterwards(deed.afterwards)
        await Commands(store, store.env).freezes.add(scope, target, job_id, until=until, afterwards=afterwards)

    async def _let_go(self, store: Store) -> None:
        """End the freeze that would end last."""
        freezes = (await store.freezes.list()).freezes
        last = max(freezes, key=lambda freeze: (freeze.until_at, freeze.id), default=None)
        if last is not None and last.until_at > self.clock.now():
            self.seen["freeze ended early"] += 1
            await Commands(store, store.env).freezes.end(last.id)

    async def _change_calendar(self, store: Store, deed: Deed) -> None:
        """Other days for a schedule; a job that owes an occurrence does not follow at once."""
        try:
            written = await Commands(store, store.env).calendars.update(deed.work, {}, DaysRequest(days=[deed.closed]))
        except NotFound:
            # The work was left out of a smaller plan.
            return
        self.seen["calendar followed" if written.is_followed else "calendar not followed at once"] += 1

    async def backfill_again(self, store: Store) -> bool:
        """The backfills of the plan once more, when all is healed: most occurrences have their end only then. False without any."""
        backfills = [deed for deed in self.plan.deeds if deed.what is What.BACKFILL]
        for deed in backfills:
            await self._backfill(store, deed)
        return bool(backfills)

    async def _backfill(self, store: Store, deed: Deed) -> None:
        """Run again what is missing of a schedule, if it is there, or all of it."""
        job = await store.jobs.find_by_name(deed.work)
        if job is None:
            return
        now = self.clock.now()
        backfill = Backfill(
            job_id=job.id, since=START, until=now, only=BackfillSelection(deed.only), max_running=deed.amount
        )
        await Commands(store, store.env).backfills.start(backfill)

    def _freeze(self, deed: Deed) -> None:
        self.seen["frozen"] += 1
        node = self.nodes[deed.node]
        node.frozen_until = self.clock.monotonic() + deed.seconds
        node.numb_for = deed.amount

    async def _fall_back(self, store: Store, saved: int) -> None:
        """The last commits are lost, as a failover loses them; some notice at once, others have sent something before."""
        self.seen["failed over"] += 1
        await _fall_back(store)
        del self.acknowledged[saved:]
        self._saved = None
        self.retries = self._saved_retries
        for node in self.nodes.values():
            node.notices_in = self.plan.chance("notices", node.name).randint(0, 5)


def group_work(deed: Deed) -> dict[str, Any]:
    """So many calls, a chain and a group, and what follows their end; each call says which it is."""

    def call(label: str) -> dict[str, Any]:
        payload = {"group": deed.number, "call": label}
        return {"handler": HANDLER, "payload": payload, "max_retries": 1, "max_lost": 20}

    inner = {"group": [call("inner 1"), call("inner 2")], "then": call("inner then")}
    parts = [*(call(f"part {number}") for number in range(deed.amount)), {"chain": [call("step 1"), inner]}]
    return {"group": parts, "then": call("then"), "on_failure": call("failed")}


async def quiet() -> None:
    """Let the event loop turn until no task has anything left to do."""
    loop: Any = asyncio.get_running_loop()
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if not loop._ready:
            return
    raise AssertionError(f"the loop is not quiet after {_MOST_TURNS} turns")


@contextmanager
def timers_by(clock: VirtualClock) -> Iterator[None]:
    """Let the timers of the running loop go by *clock*: none of them fires because a statement takes long."""
    loop: Any = asyncio.get_running_loop()
    real_time, began_at, clock_began_at = loop.time, loop.time(), clock.monotonic()
    loop.time = lambda: began_at + clock.monotonic() - clock_began_at
    try:
        yield
    finally:
        # The time of a loop never goes back: what waits would wait as long again.
        ahead = max(loop.time() - real_time(), 0)
        loop.time = lambda: real_time() + ahead


@cache
def _decides_order(statement: str) -> bool:
    """Whether the statement itself, and not only a part in parentheses, says in which order its rows come."""
    text = all_statements()[statement].text
    while (shorter := _PARENTHESES.sub("", text)) != text:
        text = shorter
    return "ORDER BY" in text


async def _remember(store: Store) -> None:
    async with store.database.transaction() as connection:
        await connection.execute("CREATE SCHEMA saved")
        for table in _KEPT:
            await connection.execute(f"CREATE TABLE saved.{table} AS TABLE timeball.{table}")


async def _fall_back(store: Store) -> None:
    async with store.database.transaction() as connection:
        # Triggers would write once more what follows.
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(f"TRUNCATE {', '.join(f'timeball.{table}' for table in _KEPT)}")
        for table in _KEPT:
            await connection.execute(f"INSERT INTO timeball.{table} SELECT * FROM saved.{table}")
        await connection.execute("DROP SCHEMA saved CASCADE")
