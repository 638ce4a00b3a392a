"""Schedulers that are killed, stopped and frozen while the schedule goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.system.cluster import LEASE_SECONDS, LONG_LEASES, Cluster, Process, eventually
from tests.system.handler_journal import every
from timeball.application.commands import Commands
from timeball.config.settings import SchedulerSettings
from timeball.domain.job_fields import JobSpec

pytestmark = pytest.mark.slow

JOBS = 12
# A scheduler looks once a second whose shards it should have, and once a second at what is due in them.
LOOKS_SECONDS = 2
# Statements that a takeover needs for each that an ordinary promotion needs.
STATEMENTS_MORE = 4


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """No worker dies here: what ran twice, a scheduler would have promoted twice."""
    cluster.environment["TIMEBALL_WORKER__LEASE_SECONDS"] = LONG_LEASES["TIMEBALL_WORKER__LEASE_SECONDS"]
    return cluster


class Timetable:
    """Some jobs that run every second until a known instant."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._targets: dict[UUID, set[datetime]] = {}

    @classmethod
    async def begin(cls, cluster: Cluster, commands: Commands, seconds: int) -> Timetable:
        timetable = cls(cluster)
        anchor = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
        until = anchor + timedelta(seconds=seconds)
        specs = [
            JobSpec(
                name=f"job-{number}",
                handler="work",
                interval_seconds=1,
                scheduled_at=anchor,
                ends_at=until,
                overlap="allow",
            )
            for number in range(JOBS)
        ]
        # All at once: one by one, on a busy machine, the last would come behind its own first instant.
        for created in await commands.jobs.create_all(specs):
            timetable._targets[created.job_id] = every(1, anchor, anchor - timedelta(seconds=1), until)
        return timetable

    def check(self) -> None:
        """Every occurrence was recorded once, and was run."""
        rows = self._cluster.sql("SELECT job_id, scheduled_for, state FROM timeball.finished")
        recorded = Counter((job, instant) for job, instant, _ in rows)
        expected = {(job, instant) for job, instants in self._targets.items() for instant in instants}
        assert {key for key, count in recorded.items() if count > 1} == set()
        assert set(recorded) == expected
        assert {state for _, _, state in rows} == {"succeeded"}
        assert len(self._cluster.ledger.runs()) == len(expected)
        self._cluster.check_books()

    def check_gap(self, left: set[int], lease_seconds: float) -> None:
        """In the shards of a dead scheduler, nothing was promoted later than the shards could be taken over.

        By the database's records alone; and a busy machine is allowed the lateness of the shards that kept their scheduler.
        """
        ordinary = self._slowest(shard for shard in range(64) if shard not in left)
        assert self._slowest(left) < lease_seconds + LOOKS_SECONDS + STATEMENTS_MORE * ordinary

    def _slowest(self, shards: Iterable[int]) -> float:
        """How long it took at worst to promote what could be promoted in these shards."""
        rows = self._cluster.sql(
            "SELECT queued_at - finished.scheduled_for FROM timeball.finished JOIN timeball.job ON job.id = job_id WHERE shard = ANY (%s)",
            list(shards),
        )
        return max(
            (late + SchedulerSettings().promotion_window for (late,) in rows), default=timedelta()
        ).total_seconds()


def shards_of(cluster: Cluster) -> Counter[str]:
    """How many shards each living scheduler owns, by the process id in its name."""
    rows = cluster.sql("SELECT node.name FROM timeball.shard JOIN timeball.node ON node.incarnation = shard.owner")
    return Counter(name.rsplit("/", 1)[1] for (name,) in rows)


def owned_by(cluster: Cluster, *processes: Process) -> set[int]:
    """The shards of these schedulers."""
    names = [f"%/{process.pid}" for process in processes]
    rows = cluster.sql(
        "SELECT id FROM timeball.shard JOIN timeball.node ON incarnation = owner WHERE name LIKE ANY (%s)", names
    )
    return {shard for (shard,) in rows}


async def shared_out(cluster: Cluster, among: list[Process], seconds: float) -> None:
    """Wait until these schedulers own all shards between them."""
    pids = {str(process.pid) for process in among}

    def is_shared_out() -> bool:
        shares = shards_of(cluster)
        return set(shares) == pids and shares.total() == 64

    await eventually(is_shared_out, f"{len(among)} schedulers share the shards", seconds)


async def test_a_killed_scheduler_is_replaced_within_its_lease_without_gap_or_double(
    cluster: Cluster, commands: Commands
) -> None:
    """Fault 2."""
    *schedulers, _ = await cluster.nodes(schedulers=3, workers=1)
    await shared_out(cluster, schedulers, 30)
    timetable = await Timetable.begin(cluster, commands, seconds=9)
    await eventually(lambda: len(cluster.ledger.runs()) > JOBS, "the schedule runs")

    # The one that does the housekeeping: its other duties pass on as well.
    owner = cluster.value("SELECT name FROM timeball.shard JOIN timeball.node ON incarnation = owner WHERE id = 0")
    victim = cluster.of_pid(int(owner.rsplit("/", 1)[1]))
    left = owned_by(cluster, victim)
    victim.kill()
    await shared_out(cluster, [s for s in schedulers if s is not victim], 30)

    await cluster.drained()
    timetable.check_gap(left, LEASE_SECONDS)
    timetable.check()


async def test_a_scheduler_that_leaves_hands_over_at_once(cluster: Cluster, commands: Commands) -> None:
    # This lease is too long to wait for.
    *schedulers, _ = await cluster.nodes(schedulers=3, workers=1, **LONG_LEASES)
    await shared_out(cluster, schedulers, 30)
    timetable = await Timetable.begin(cluster, commands, seconds=6)
    await eventually(lambda: len(cluster.ledger.runs()) > JOBS, "the schedule runs")

    left = owned_by(cluster, *schedulers[:2])
    for leaving in schedulers[:2]:
        leaving.terminate()
        assert await leaving.exit_code() == 0
    await shared_out(cluster, schedulers[2:], 30)

    await cluster.drained()
    timetable.check_gap(left, lease_seconds=0)
    timetable.check()


async def test_a_scheduler_frozen_through_its_own_death_changes_nothing_when_it_wakes(
    cluster: Cluster, commands: Commands
) -> None:
    """Fault 3."""
    *schedulers, _ = await cluster.nodes(schedulers=2, workers=1)
    frozen, other = schedulers
    await shared_out(cluster, schedulers, 30)
    timetable = await Timetable.begin(cluster, commands, seconds=10)
    await eventually(lambda: len(cluster.ledger.runs()) > JOBS, "the schedule runs")

    frozen.freeze()
    await shared_out(cluster, [other], 30)
    frozen.thaw()
    await frozen.event("node.lost")
    await frozen.event("node.started", count=2)

    await shared_out(cluster, schedulers, 30)
    await cluster.drained()
    timetable.check()
