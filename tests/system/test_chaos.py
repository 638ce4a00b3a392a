"""Everything fails, again and again, while everything runs. Afterwards nothing may be missing and nothing be there twice.

A seed decides which faults strike whom and when; it is printed, and `SOAK_SEED=...` repeats it as far as real processes
repeat anything. `SOAK_MINUTES=60` (`make soak`) goes on for that long.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.system.cluster import LEASE_SECONDS, SHORT_LEASES, Cluster, DurableServer
from tests.system.faults import FREEZES, KILLS, MINUTES, NODES, RESTARTS, SECONDS, SEED, Faults
from tests.system.handler_journal import every
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import Misfire, Overlap
from timeball.domain.values.ids import JobId
from timeball.errors import Conflict, StoreError, StoreUnavailable

pytestmark = pytest.mark.slow

# Faults are no failures of the jobs: they may lose as many workers as it takes.
PATIENT = {"max_lost": 1_000_000, "initial_backoff_ms": 50, "max_backoff_ms": 500}


@pytest.fixture
def cluster(durable_server: DurableServer, make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(durable_server.dsn(durable_server.create_database()), **SHORT_LEASES)


class Load:
    """One-offs without end, and schedules that end at a known instant."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.acknowledged: set[UUID] = set()
        self.refused = 0
        self.targets: dict[UUID, set[datetime]] = {}
        self.overlap: dict[UUID, Overlap] = {}
        self._restless: list[JobId] = []

    async def create_schedules(self, commands: Commands, seconds: int) -> None:
        """Some tens of them: every second or two, by interval and by cron, with each rule for overlaps."""
        anchor = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
        until = anchor + timedelta(seconds=seconds)
        rules = (Overlap.ALLOW, *Overlap)
        misfires = (*Misfire,)
        specs: list[JobSpec] = []
        targets: list[set[datetime]] = []
        for number in range(30):
            period = 1 + number % 2
            is_cron = number % 3 == 0
            rhythm = {"schedule": f"*/{period} * * * * *"} if is_cron else {"interval_seconds": period}
            overlap = rules[number % len(rules)]
            spec = JobSpec(
                name=f"schedule-{number}",
                handler="work",
                # One behind the other: those that queue must be able to catch up.
                payload={
                    "seconds": self._rng.choice((0, 0.1, 0.1 if overlap is Overlap.QUEUE else 0.8)),
                    "label": overlap,
                },
                starts_at=anchor,
                ends_at=until,
                scheduled_at=None if is_cron else anchor,
                overlap=overlap,
                misfire=misfires[number % len(misfires)],
                # However late: as long as the faults go on, and while everything catches up.
                misfire_grace_seconds=24 * 3600,
                **rhythm,  # type: ignore[arg-type]
                **PATIENT,  # type: ignore[arg-type]
            )
            specs.append(spec)
            midnight = anchor.replace(hour=0, minute=0, second=0)
            instants = every(period, midnight if is_cron else anchor, anchor - timedelta(seconds=1), until)
            targets.append({instant for instant in instants if instant >= anchor})
        # All at once: one by one, on a busy machine, the last would come behind its own first instant.
        for spec, instants, created in zip(specs, targets, await commands.jobs.create_all(specs), strict=True):
            self.targets[created.job_id] = instants
            self.overlap[created.job_id] = Overlap(spec.overlap)

    async def create_restless(self, commands: Commands) -> None:
        """Schedules that people cannot leave alone; what is right for them only `verify` can tell."""
        await commands.queues.limit("narrow", 8)
        overlaps = (*Overlap,)
        for number in range(2 * len(overlaps)):
            spec = JobSpec(
                name=f"restless-{number}",
                handler="work",
                interval_seconds=1,
                overlap=overlaps[number // 2 % len(overlaps)],
                queue="narrow" if number % 2 else "default",
                **PATIENT,  # type: ignore[arg-type]
            )
            self._restless.append((await commands.jobs.create(spec)).job_id)

    async def operate_until(self, commands: Commands, deadline: float) -> None:
        """Pause, resume, edit, trigger and skip, at random; in the end let them rest."""
        while time.monotonic() < deadline:
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))
            job = self._rng.choice(self._restless)
            verb: Callable[[], Awaitable[object]] = self._rng.choice(
                (
                    lambda job=job: commands.jobs.pause(job),
                    lambda job=job: commands.jobs.resume(job),
                    lambda job=job: commands.jobs.resume(job),
                    lambda job=job: commands.jobs.update(job, {"interval_seconds": self._rng.choice((1, 2, 3))}),
                    lambda job=job: commands.jobs.update(
                        job, {"schedule": self._rng.choice(("*/2 * * * * *", "* * * * * *"))}
                    ),
                    lambda job=job: commands.executions.trigger(job),
                    lambda job=job: commands.jobs.skip_next(job),
                )
            )
            with suppress(StoreError, Conflict):
                await verb()

    async def let_them_rest(self, commands: Commands) -> None:
        for job in self._restless:
            await commands.jobs.delete(job)

    async def enqueue_until(self, commands: Commands, deadline: float) -> None:
        """One-offs, singly and in bulk, for now and for a little later; some fail at first."""
        while time.monotonic() < deadline:
            try:
                await (self._enqueue_many(commands) if self._rng.random() < 0.3 else self._enqueue_one(commands))
            except StoreUnavailable:
                # Not acknowledged: it may be there or not.
                self.refused += 1
            await asyncio.sleep(self._rng.uniform(0, 0.1))

    async def _enqueue_one(self, commands: Commands) -> None:
        later = self._rng.choice((None, None, datetime.now(UTC) + timedelta(seconds=self._rng.uniform(0, 3))))
        limit = self._rng.choice(({}, {}, {"max_running": 5, "limit_key": "a few"}, {"queue": "narrow"}))
        spec = JobSpec(handler="work", payload=self._payload(), scheduled_at=later, **limit, **PATIENT)  # type: ignore[arg-type]
        created = await commands.jobs.create(spec)
        assert created.execution_id is not None
        self.acknowledged.add(created.execution_id)

    async def _enqueue_many(self, commands: Commands) -> None:
        payload = '{"label": "bulk"}'
        spec = JobSpec(handler="work", priority=self._rng.choice((10, 50, 90)), **PATIENT)  # type: ignore[arg-type]
        self.acknowledged |= set(await commands.jobs.enqueue_many(spec, [payload] * self._rng.randrange(20, 60)))

    def _payload(self) -> dict[str, object]:
        seconds = self._rng.choice((0, 0, 0.05, 0.3, 1.0))
        return {"label": "single", "seconds": seconds, "failures": int(self._rng.random() < 0.1)}


@pytest.mark.timeout(600 + 60 * MINUTES)
async def test_nothing_is_lost_and_nothing_counts_twice_whatever_fails(
    cluster: Cluster, durable_server: DurableServer
) -> None:
    """Fault 4."""
    print(f"SOAK_SEED={SEED}")
    faults = Faults(cluster, random.Random(SEED), [*KILLS, *FREEZES] * 2 + ["kill worker", *RESTARTS], durable_server)
    load = Load(cluster, random.Random(SEED + 1))
    await faults.start_nodes()

    async with cluster.commands() as commands:
        await load.create_schedules(commands, SECONDS)
        await load.create_restless(commands)
        deadline = time.monotonic() + SECONDS
        await asyncio.gather(
            load.enqueue_until(commands, deadline),
            load.operate_until(commands, deadline),
            faults.strike_until(deadline - LEASE_SECONDS),
        )
        await faults.heal()
        await load.let_them_rest(commands)

    await cluster.drained(120 + 30 * MINUTES)
    print(f"struck: {dict(faults.struck)}; acknowledged: {len(load.acknowledged)}; refused: {load.refused}")
    check_one_offs(cluster, load)
    check_schedules(cluster, load)
    check_was_hard(cluster)
    cluster.check_books()


def check_one_offs(cluster: Cluster, load: Load) -> None:
    """Every one that was acknowledged has succeeded, once; and of the others nothing is half there."""
    rows = cluster.sql("SELECT id, state FROM timeball.finished WHERE origin = 'enqueue'")
    ended = {id_ for id_, state in rows if state == "succeeded"}
    assert len(rows) == len(ended), f"SOAK_SEED={SEED}: not all one-offs succeeded, or some ended twice"
    assert not load.acknowledged - ended, f"SOAK_SEED={SEED}: lost {load.acknowledged - ended}"
    created = cluster.value("SELECT count(*) FROM timeball.job WHERE name IS NULL")
    assert created == len(rows), f"SOAK_SEED={SEED}: {created} were created, {len(rows)} have ended"


def check_schedules(cluster: Cluster, load: Load) -> None:
    """Every occurrence of every schedule is recorded once, and was run unless its rule for overlaps says otherwise."""
    records: dict[UUID, Counter[datetime]] = {job: Counter() for job in load.targets}
    ran = {run.execution for run in cluster.ledger.runs()}
    for id_, job, instant, state, reason in cluster.sql(
        "SELECT id, job_id, scheduled_for, state, reason FROM timeball.finished"
        " WHERE origin = 'schedule' AND job_id = ANY (%s)",
        list(load.targets),
    ):
        records[job][instant] += 1
        if state == "succeeded":
            assert id_ in ran, f"SOAK_SEED={SEED}: {id_} succeeded without having run"
        else:
            allowed = {
                Overlap.SKIP: {"skipped"},
                Overlap.LATEST: {"skipped"},
                Overlap.CANCEL_RUNNING: {"cancelled"},
            }.get(load.overlap[job], set())
            assert state in allowed, f"SOAK_SEED={SEED}: {id_} of an {load.overlap[job]} job is {state} ({reason})"
    for job, first, last, count in cluster.sql(
        "SELECT job_id, first_at, last_at, occurrences FROM timeball.skip_range WHERE job_id = ANY (%s)",
        list(load.targets),
    ):
        inside = [instant for instant in load.targets[job] if first <= instant <= last]
        assert len(inside) == count
        records[job].update(inside)
    for job, targets in load.targets.items():
        assert records[job] == Counter(targets), f"SOAK_SEED={SEED}: {load.overlap[job]} job {job}"


def check_was_hard(cluster: Cluster) -> None:
    """A run in which nothing went wrong proves nothing."""
    lost = cluster.value("SELECT count(*) FROM timeball.attempt WHERE outcome = 'lost'")
    lives = sum(len(process.events("node.started")) for process in cluster.processes)
    print(f"lives: {lives}; attempts lost: {lost}; runs: {len(cluster.ledger.runs())}")
    assert lost > 0
    assert lives > 2 * NODES
