"""Chains, groups and jobs that come after others while nodes are killed: each follows as often as its cause ended, which is once."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.system.cluster import LONG_LEASES, Cluster, Process
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec

pytestmark = pytest.mark.slow

_CHAINS, _STEPS = 12, 4
_GROUPS, _PARTS = 6, 8
_KILLS = 8
_OCCURRENCES = 20


def work(label: str, **more: Any) -> dict[str, Any]:
    """A call that takes a moment; its worker may be killed over it any number of times."""
    return {"handler": "work", "payload": {"label": label, "seconds": 0.02}, "max_lost": 1_000, **more}


async def test_what_follows_comes_once_however_often_workers_are_killed(cluster: Cluster, commands: Commands) -> None:
    """The ledger is a file that the handlers write outside of the database."""
    cluster.environment |= LONG_LEASES
    await cluster.nodes(schedulers=1, workers=0)
    workers = await cluster.nodes(0, 2)
    for number in range(_CHAINS):
        steps = [work(f"chain {number} step {step}") for step in range(_STEPS)]
        await commands.groups.begin({"group": [{"chain": steps}], "then": work(f"after chain {number}")})
    for number in range(_GROUPS):
        parts: list[Any] = [work(f"group {number} part {part}") for part in range(_PARTS)]
        parts.append({"chain": [work(f"group {number} first"), work(f"group {number} second")]})
        join = work(f"join {number}", on_success=work(f"after join {number}"))
        await commands.groups.begin({"group": parts, "then": join, "on_failure": work("never")})
    random = Random(4)

    expected = _CHAINS * (_STEPS + 1) + _GROUPS * (_PARTS + 4)
    for kill in range(_KILLS):
        enough = (kill + 1) * expected // (_KILLS + 2)
        await cluster.eventually(lambda enough=enough: len(executions_by_label(cluster)) >= enough, "more has begun")  # type: ignore[misc]
        killed = workers.pop(random.randrange(len(workers)))
        killed.kill()
        cluster.end_lease(killed)
        workers += await cluster.nodes(0, 1)
    await cluster.eventually(
        lambda: cluster.value("SELECT count(*) FROM timeball.execution_group WHERE state = 'open'") == 0,
        "all groups are closed",
        60,
    )
    await cluster.drained()

    by_label = executions_by_label(cluster)
    assert len(by_label) == expected
    assert {label: len(ids) for label, ids in by_label.items() if len(ids) != 1} == {}
    assert "never" not in by_label
    # Something was lost, or nothing was tried.
    assert cluster.value("SELECT sum(lost) FROM timeball.finished") > 0
    cluster.check_books()


async def test_a_job_comes_once_after_each_success_however_often_nodes_are_killed(
    cluster: Cluster, commands: Commands
) -> None:
    """Two jobs come after a schedule, one of them after the other; some occurrences fail, and those are followed by nothing."""
    cluster.environment |= LONG_LEASES
    nodes = {"scheduler": (await cluster.nodes(1, 0)), "worker": (await cluster.nodes(0, 2))}
    kinds = {"overlap": "allow", "misfire": "all", "max_lost": 1_000}
    even = {"label": "tick", "seconds": 0.3, "fails_on_odd_seconds": True}
    first = cluster.value("SELECT date_trunc('second', now()) + interval '4 seconds'")
    specs = [
        JobSpec(
            name="tick",
            handler="work",
            payload=even,
            interval_seconds=1,
            scheduled_at=first,
            max_executions=_OCCURRENCES,
            max_retries=0,
            **kinds,
        ),
        JobSpec(
            name="second", handler="work", payload={"label": "second", "seconds": 0.3}, after="tick", max_lost=1_000
        ),
        JobSpec(
            name="third", handler="work", payload={"label": "third", "seconds": 0.3}, after="second", max_lost=1_000
        ),
    ]
    await commands.jobs.create_all(specs)
    random = Random(5)

    for kill in range(_KILLS):
        enough = (kill + 1) * 2 * _OCCURRENCES // (_KILLS + 2)
        await cluster.eventually(lambda enough=enough: len(cluster.ledger.runs()) >= enough, "more has begun", 60)  # type: ignore[misc]
        kind = random.choice(("scheduler", "worker", "worker"))
        killed: Process = nodes[kind].pop(random.randrange(len(nodes[kind])))
        killed.kill()
        cluster.end_lease(killed)
        nodes[kind] += await (cluster.nodes(1, 0) if kind == "scheduler" else cluster.nodes(0, 1))
    await cluster.eventually(lambda: _ended(cluster, "tick") == _OCCURRENCES, "the schedule has ended", 60)
    await cluster.drained()

    succeeded = {first + timedelta(seconds=number) for number in range(_OCCURRENCES)} - _odd(first)
    for label in ("second", "third"):
        by_instant = defaultdict(set)
        for run in cluster.ledger.runs(label=label):
            by_instant[run.scheduled_for].add(run.execution)
        assert {instant: len(ids) for instant, ids in by_instant.items()} == dict.fromkeys(succeeded, 1)
    assert cluster.value("SELECT sum(lost) FROM timeball.finished") > 0
    cluster.check_books()


def _odd(first: datetime) -> set[datetime]:
    return {at for number in range(_OCCURRENCES) if (at := first + timedelta(seconds=number)).second % 2}


def _ended(cluster: Cluster, name: str) -> int:
    query = "SELECT count(*) FROM timeball.finished JOIN timeball.job ON job.id = finished.job_id WHERE job.name = %s"
    return int(cluster.value(query, name))


def executions_by_label(cluster: Cluster) -> dict[str, set[UUID]]:
    """The executions that ran under each label, as their handlers wrote it."""
    found: dict[str, set[UUID]] = defaultdict(set)
    for run in cluster.ledger.runs():
        found[run.label].add(run.execution)
    return found
