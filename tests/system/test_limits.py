"""Limits and keys, exact across processes that know nothing of each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.system.cluster import LONG_LEASES, Cluster, enqueue
from tests.system.handler_journal import most_together
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import format_execution_id

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """No node dies here: what the database says is running is running."""
    cluster.environment |= LONG_LEASES
    return cluster


async def test_a_job_runs_no_more_often_at_once_than_its_limit(cluster: Cluster, commands: Commands) -> None:
    # Three slots each: no worker can fill the limit alone, so others must be let in.
    await cluster.nodes(1, 3, "--slots", "3")
    payload = {"seconds": 0.05, "label": "narrow", "gate": "a"}
    spec = JobSpec(name="narrow", handler="work", payload=payload, max_running=4, schedule="manual")
    job = await commands.jobs.create(spec)

    triggered = await asyncio.gather(*(commands.executions.trigger(job.job_id) for _ in range(60)))
    # The same handler, without a limit: it must not be held up.
    free = [await enqueue(commands, "work", {"label": "free", "gate": "a"}) for _ in range(5)]
    await cluster.begins("narrow", 4)
    await cluster.begins("free", 5)
    cluster.open_gate("a")

    await cluster.drained()
    runs = cluster.ledger.runs("narrow")
    assert {run.execution for run in runs} == set(triggered)
    assert most_together(runs) == 4
    assert len({run.pid for run in runs}) > 1
    assert most_together(cluster.ledger.runs("free")) == len(free) == len(cluster.ledger.runs("free"))
    cluster.check_books()


async def test_one_offs_of_several_jobs_share_a_limit(cluster: Cluster, commands: Commands) -> None:
    await cluster.nodes(schedulers=1, workers=3)

    fields = {"max_running": 3, "limit_key": "the printer"}
    for number in range(45):
        # Some fail and come back through the schedule: then they need a place again.
        payload = {"seconds": 0.05, "label": "shared", "failures": int(number % 5 == 0), "gate": "a"}
        await enqueue(commands, "work", payload, initial_backoff_ms=50, max_backoff_ms=200, **fields)
    await cluster.begins("shared", 3)
    cluster.open_gate("a")

    await cluster.drained()
    runs = cluster.ledger.runs("shared")
    assert len(runs) == 45 + 9
    assert most_together(runs) == 3
    cluster.check_books()


async def test_a_queue_runs_no_more_at_once_than_its_limit(cluster: Cluster, commands: Commands) -> None:
    # Three slots each: no worker can fill the limit alone, so others must be let in.
    await cluster.nodes(1, 3, "--slots", "3")
    await commands.queues.limit("narrow", 4)

    payload = '{"seconds": 0.05, "label": "narrow", "gate": "a"}'
    ids = await commands.jobs.enqueue_many(JobSpec(handler="work", queue="narrow"), [payload] * 30)
    await cluster.begins("narrow", 4)
    # Only now: what waits at the gate keeps its slot, and these could take them all.
    others = await commands.jobs.enqueue_many(JobSpec(handler="work"), ['{"label": "wide", "gate": "a"}'] * 12)
    await cluster.begins("wide", 5)
    cluster.open_gate("a")

    await cluster.drained()
    runs = cluster.ledger.runs("narrow")
    assert {run.execution for run in runs} == set(ids)
    assert most_together(runs) == 4
    assert len({run.pid for run in runs}) > 1
    assert most_together(cluster.ledger.runs("wide")) > 4
    assert len(cluster.ledger.runs("wide")) == len(others)
    cluster.check_books()


# One of several programs that enqueue under the same few keys. It prints which execution each enqueue returned.
ENQUEUER = """
from app import work
for number in range(60):
    key = f"key-{number % 4}"
    # Long enough that the same key is enqueued again meanwhile, on a slow machine too.
    run = work.options(key=key).enqueue(seconds=0.5, label=key)
    print(key, run.id, flush=True)
"""


async def test_a_key_has_one_unfinished_execution_however_many_ask(cluster: Cluster) -> None:
    await cluster.nodes(schedulers=1, workers=3)

    programs = [
        subprocess.Popen(
            [sys.executable, "-c", ENQUEUER],
            cwd=cluster.folder,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [await asyncio.to_thread(program.communicate, None, 240) for program in programs]
    assert [(program.returncode, errors) for program, (_, errors) in zip(programs, outputs, strict=True)] == [
        (0, "")
    ] * 4
    await cluster.drained()

    enqueued = [line.split() for output, _ in outputs for line in output.splitlines()]
    assert len(enqueued) == 4 * 60
    for key in sorted({key for key, _ in enqueued}):
        runs = cluster.ledger.runs(key)
        executions = {execution for other, execution in enqueued if other == key}
        # Each enqueue returned an execution that ran, and many returned the same.
        assert {format_execution_id(run.execution) for run in runs} == executions
        assert len(runs) == len(executions) < 60
        assert all(before.ended is not None and before.ended <= after.began for before, after in pairwise(runs))
    assert cluster.value("SELECT count(*) FROM timeball.live_key") == 0
    cluster.check_books()
