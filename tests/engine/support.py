"""Schedulers and workers whose loops are ticked by hand, and what their tests ask of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tests.support.factories import HANDLER, STATE_TABLES, make_node, or_manual, read_job, table
from tests.support.pace import patience
from timeball.application.commands import Commands
from timeball.config.settings import SchedulerSettings, Settings
from timeball.current import AttemptContext
from timeball.domain.alerts import AlertTransition
from timeball.domain.execution import ClaimedExecution, FinishedAttempt, Outcome, Succeeded
from timeball.domain.handler import Handler, RunStyle
from timeball.domain.job import Job
from timeball.domain.job_fields import JobSpec
from timeball.domain.node import Lease, NodeKind
from timeball.domain.payload_references import CauseRecord, VersionSchedule
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId
from timeball.domain.webhook import WebhookAnswer
from timeball.engine.lease import HeldLease
from timeball.engine.node import LONGEST_REST, Service
from timeball.engine.runners.outcome import outcome_of_halt
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.worker.admission import RetryGate
from timeball.engine.worker.attempts import Slots, StartQueue
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.handlers.registry import Registry, make_handler
from timeball.runtime import make_queries
from timeball.store.store import Store
from timeball.store.types import ClaimRequest
from timeball.store.verify.proof import verify
from timeball.telemetry.events import TelemetryEvent
from timeball.testing import VirtualClock

# Tests of schedules let years pass; those about leases choose a mortal one.
# Only what waits in vain waits so long: a busy machine must not fail a test.
PATIENCE_SECONDS = 60.0

IMMORTAL = Lease(span=timedelta(days=36_500), interval=timedelta(seconds=3))
MORTAL = Lease(span=timedelta(seconds=10), interval=timedelta(seconds=3))

E = TypeVar("E")


class Heard(list[TelemetryEvent]):
    """An `emit` that keeps everything."""

    def __call__(self, event: TelemetryEvent) -> None:
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]


async def until(is_so: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Let the loop turn until it is so; a test that waits in vain fails."""
    async with asyncio.timeout(patience(seconds)):
        while not is_so():
            await asyncio.sleep(0.001)


async def settle(service: Service) -> timedelta:
    """Tick until the service wants to rest; returns how long."""
    for _ in range(1_000):
        rest = await service.tick()
        if rest > timedelta(0):
            return rest
    raise AssertionError(f"the {service.name} does not come to rest")


def evaluation(store: Store, commands: Commands | None = None) -> Callable[[], Awaitable[Sequence[AlertTransition]]]:
    """What a scheduler does to evaluate alerts."""
    queries = make_queries(Settings(), store)
    reconcile = (commands or Commands(store, store.env)).alerts.reconcile

    async def evaluate() -> Sequence[AlertTransition]:
        return await reconcile(await queries.alerts.evaluate())

    return evaluate


# schedulers


@dataclass
class ManualScheduler:
    """The loops of a scheduler, ticked by hand."""

    store: Store
    clock: VirtualClock
    incarnation: Incarnation
    shards: ShardBalancer
    scheduler: Scheduler
    heard: Heard

    async def tick(self) -> timedelta:
        """Everything there is to do at this moment."""
        return await settle(self.scheduler)

    async def run_until(self, instant: datetime, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Let time pass as the scheduler wants to rest, up to and including *instant*; times when nothing is due are leapt over."""
        while True:
            rest = await self.tick()
            if meanwhile is not None:
                await meanwhile()
            if self.clock.now() >= instant:
                return
            wakes_at = max(self.clock.now() + rest, await self._next_due() - 3 * LONGEST_REST)
            self.clock.advance_to(min(instant, wakes_at))

    async def _next_due(self) -> datetime:
        async with self.store.database.connection() as connection:
            return await connection.fetchval("SELECT coalesce(min(run_at), '9999-01-01Z') FROM timeball.due")

    async def run_for(self, span: float, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        await self.run_until(self.clock.now() + timedelta(seconds=span), meanwhile)


async def start_scheduler(
    store: Store, lease: Lease = IMMORTAL, takes: bool = True, **settings: Any
) -> ManualScheduler:
    """A living scheduler that has taken its share."""
    clock, heard = store.env.clock, Heard()
    assert isinstance(clock, VirtualClock)
    incarnation = await make_node(store, NodeKind.SCHEDULER, lease=lease)
    shards = ShardBalancer(store.env, heard, store.nodes, incarnation, lambda: None)
    scheduler = Scheduler(
        store.env, heard, store.executions, store.jobs, store.freezes, shards, SchedulerSettings(**settings)
    )
    made = ManualScheduler(store, clock, incarnation, shards, scheduler, heard)
    if takes:
        await shards.tick()
    return made


# workers


@dataclass
class Hands:
    """A worker without loops: claims what is due and ends it, when told to."""

    store: Store
    incarnation: Incarnation

    async def claim(self, slots: int = 1_000, holds: int = 0) -> list[ClaimedExecution]:
        lanes = {lane: at for lane, (at, _) in (await self.store.executions.lanes()).items()}
        request = ClaimRequest(self.incarnation, [HANDLER], slots, holds)
        return (await self.store.executions.claim(request, lanes, ClaimId(self.store.env.new_id()))).executions

    async def succeed(self, claims: Sequence[ClaimedExecution]) -> None:
        now = self.store.env.clock.now()
        if claims:
            stale = await self.store.executions.finish_succeeded(
                [
                    FinishedAttempt(claimed, Succeeded(), max(now, claimed.run_at), max(now, claimed.run_at))
                    for claimed in claims
                ]
            )
            assert not stale

    async def work(self) -> list[ClaimedExecution]:
        """Claim all that is due, and succeed at once."""
        claims = await self.claim()
        await self.succeed(claims)
        return claims


async def start_worker(store: Store, lease: Lease = IMMORTAL) -> Hands:
    return Hands(store, await make_node(store, lease=lease))


# jobs


async def create(store: Store, **fields: Any) -> Job:
    """A job, made as every front makes it. Without a time it is a manual one; without a name and a time, a one-off."""
    is_named = fields.get("name", "") is not None
    usual = {"handler": HANDLER, "name": f"job-{store.env.random.getrandbits(32):x}"}
    spec = JobSpec(**usual | (or_manual(fields) if is_named else fields))
    return await read_job(store, (await Commands(store, store.env).jobs.create(spec)).job_id)


# looking


async def states(store: Store, job_id: JobId) -> dict[datetime, str]:
    """Every single record of a job's occurrences by its instant: its room, or its state and reason in the history."""
    found: dict[datetime, str] = {}
    for room in STATE_TABLES:
        for row in await table(store, room):
            if row["job_id"] != job_id or row.get("kind") == "resume" or row["origin"] != "schedule":
                continue
            assert row["scheduled_for"] not in found, f"{row['scheduled_for']} is recorded twice"
            state = row["state"] if room == "finished" else room
            found[row["scheduled_for"]] = f"{state}: {row['reason']}" if state == "skipped" else state
    return dict(sorted(found.items()))


async def ranges(store: Store, job_id: JobId) -> list[tuple[datetime, datetime, int, str]]:
    """The skip ranges of a job: first, last, how many, why."""
    rows = sorted(await table(store, "skip_range"), key=lambda row: row["first_at"])
    return [
        (row["first_at"], row["last_at"], row["occurrences"], row["reason"]) for row in rows if row["job_id"] == job_id
    ]


async def check_ledger(store: Store, job: Job, until: datetime) -> None:
    """Every occurrence of a job that was never edited is recorded exactly once, up to *until*; and `verify` agrees."""
    recorded: Counter[datetime] = Counter((await states(store, job.id)).keys())
    for first, last, number, _ in await ranges(store, job.id):
        inside = [occurrence.at for occurrence in job.rule.occurrences(first - MICROSECOND, last)]
        assert (inside[0], inside[-1], len(inside)) == (first, last, number)
        recorded.update(inside)
    assert job.created_at is not None
    expected = {occurrence.at for occurrence in job.rule.occurrences(job.created_at, until)}
    assert expected <= recorded.keys()
    assert set(recorded.values()) <= {1}
    await check_promises(store)


async def check_promises(store: Store) -> None:
    """`verify` finds nothing to complain about."""
    report = await verify(store.database, store.env.clock.now(), second_look=timedelta(0))
    assert report.holds, "\n".join(report.lines())


# handlers


async def _never_called() -> None:
    raise AssertionError("the runners of these tests do not call handlers")


def registry(*names: str) -> Registry:
    """Handlers by these names (the usual one, if none is given), run by whatever stands for coroutines."""
    return Registry([make_handler(_never_called, name=name) for name in names or (HANDLER,)])


class ManualRunner:
    """Runs nothing: an attempt lasts until the test gives it an outcome, or it is halted."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.outcome = outcome
        self.started: list[AttemptContext] = []
        self.is_stopped = False
        self._ends: dict[tuple[ExecutionId, ClaimId], asyncio.Future[Outcome]] = {}

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        self.started.append(context)
        if self.outcome is not None:
            return self.outcome
        claimed = context.claimed
        # By the claim as well: after a failover one worker may be given the same execution twice.
        end = self._ends[claimed.id, claimed.claim_id] = asyncio.get_running_loop().create_future()
        return await end

    async def stop(self) -> None:
        self.is_stopped = True

    def end(self, claimed: ClaimedExecution, outcome: Outcome | None = None) -> None:
        self._ends.pop((claimed.id, claimed.claim_id)).set_result(outcome or Succeeded())

    @property
    def ids(self) -> list[ExecutionId]:
        return [context.claimed.id for context in self.started]


class HaltingRunner(ManualRunner):
    """Ends an attempt when it is told to."""

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        self.started.append(context)
        halted = asyncio.Event()
        context.interrupt_by(halted.set)
        await halted.wait()
        return outcome_of_halt(context)


def held_lease(env: Env) -> HeldLease:
    """A lease that outlasts every test."""
    lease = HeldLease(env.clock, IMMORTAL)
    lease.extend(env.clock.monotonic())
    return lease


def make_executor(
    env: Env,
    runner: Any,
    slots: int = 20,
    handlers: Registry | None = None,
    hand_over: Callable[[FinishedAttempt], None] = lambda _: None,
    retry_gate: RetryGate | None = None,
    lease: HeldLease | None = None,
    read_schedule: Callable[[JobId, int], Awaitable[VersionSchedule]] | None = None,
    read_cause: Callable[[JobId], Awaitable[CauseRecord | None]] | None = None,
) -> Executor:
    return Executor(
        env,
        handlers or registry(),
        {RunStyle.COROUTINE: runner},
        Slots(slots, [runner]),
        StartQueue(env.clock),
        lease or held_lease(env),
        hand_over,
        _no_sink,
        read_schedule or no_schedule,
        read_cause or no_cause,
        retry_gate=retry_gate,
    )


async def never_post(url: str, headers: Mapping[str, str], body: bytes, timeout: timedelta) -> WebhookAnswer:
    """What sends the messages of webhooks, where there are none."""
    raise AssertionError(f"a message was sent to {url}")


async def no_schedule(_job_id: JobId, _version: int) -> VersionSchedule:
    raise AssertionError("no payload of these tests needs the schedule of its job")


async def no_cause(_job_id: JobId) -> CauseRecord | None:
    raise AssertionError("no payload of these tests refers to the run before it")


def _no_sink(_context: AttemptContext) -> Any:
    raise AssertionError("nothing is said in these tests")
