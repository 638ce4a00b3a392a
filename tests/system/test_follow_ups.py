"""Chains and groups while their workers are killed: each step follows as often as the one before it ended, which is once."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.system.cluster import LONG_LEASES, Cluster
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

_CHAINS, _STEPS = 12, 4
_GROUPS, _PARTS = 6, 8
_KILLS = 8


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


def executions_by_label(cluster: Cluster) -> dict[str, set[UUID]]:
    """The executions that ran under each label, as their handlers wrote it."""
    found: dict[str, set[UUID]] = defaultdict(set)
    for run in cluster.ledger.runs():
        found[run.label].add(run.execution)
    return found
