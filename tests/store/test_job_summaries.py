"""What the latest runs of a recurring job tell, as the fold keeps it for /metrics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.store.test_rollups import fold_all, put_finished
from tests.support.factories import (
    FAILURE,
    claim_all,
    enqueue,
    found,
    make_job,
    make_owner,
    make_recurring,
    promote_due,
    record,
    table,
)
from timeball.domain.execution import Failed
from timeball.domain.job import Job
from timeball.domain.job_changes import delete_job
from timeball.domain.rollup import JobSummary
from timeball.store.diagnostics import GaugeStore
from timeball.store.store import Store
from timeball.store.types import AuditEntry
from timeball.testing import VirtualClock


async def end(store: Store, job: Job, ends_at: datetime, state: str = "succeeded", **columns: Any) -> UUID:
    """A run of a job that ended so, two seconds after it began and three after its instant; `expected` is dead, of such an error."""
    run_id = store.env.new_id()
    own = {"job_id": job.id, "origin": "schedule", "state": "dead" if state == "expected" else state}
    async with store.database.transaction() as connection:
        await put_finished(connection, store, ends_at, **own | {"id": run_id} | columns)
        if state == "expected":
            await connection.execute(
                "INSERT INTO timeball.settled (execution_id, how, settled_at) VALUES ($1, 'expected', $2)",
                run_id,
                ends_at,
            )
    return run_id


async def only_summary(store: Store) -> dict[str, Any]:
    (row,) = await table(store, "job_summary")
    return row


def failures_after_last(runs: Sequence[tuple[datetime, str]]) -> int:
    """How many died since the last run that was no failure: the oracle."""
    failures = 0
    for _, state in sorted(runs):
        failures = failures + 1 if state == "dead" else 0 if state in ("succeeded", "expected") else failures
    return failures


@pytest.mark.parametrize("seed", range(4))
async def test_a_summary_equals_a_recount_however_often_the_history_is_folded(
    store: Store, clock: VirtualClock, seed: int
) -> None:
    chance = Random(seed)
    job = await make_recurring(store)
    runs: list[tuple[datetime, str]] = []
    for _ in range(25):
        state = chance.choice(["succeeded", "dead", "dead", "expected", "cancelled", "skipped"])
        started = {"started_at": None, "attempts": 0} if state == "skipped" else {}
        await end(store, job, clock.now(), state, **started)
        runs.append((clock.now(), state))
        if chance.random() < 0.4:
            await fold_all(store)
        clock.advance(f"{chance.randint(1, 90)}s")
    await fold_all(store)

    summary = await only_summary(store)

    assert summary["failures_in_a_row"] == failures_after_last(runs)
    assert summary["succeeded_at"] == max((at for at, state in runs if state == "succeeded"), default=None)
    assert summary["failed_at"] == max((at for at, state in runs if state == "dead"), default=None)
    assert summary["duration_at"] == max(at for at, state in runs if state not in ("skipped", "cancelled"))
    assert (summary["duration_seconds"], summary["lateness_seconds"]) == (2, 1)


async def test_the_latest_run_is_told_and_not_the_one_that_was_folded_last(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store)
    late = clock.now() - timedelta(seconds=3)
    await end(store, job, clock.now(), started_at=late + timedelta(seconds=2), scheduled_for=late)
    await fold_all(store)
    hour_ago = clock.now() - timedelta(hours=1)
    await end(
        store,
        job,
        hour_ago,
        started_at=hour_ago - timedelta(seconds=50),
        scheduled_for=hour_ago - timedelta(seconds=99),
    )
    await fold_all(store)

    summary = await only_summary(store)

    assert summary["succeeded_at"] == clock.now()
    assert (summary["duration_seconds"], summary["lateness_seconds"]) == (1, 2)


async def test_a_failure_behind_a_success_that_is_folded_later_counts(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store)
    for before in (30, 20, 5):
        await end(store, job, clock.now() - timedelta(seconds=before), "dead")
    await fold_all(store)
    assert (await only_summary(store))["failures_in_a_row"] == 3

    await end(store, job, clock.now() - timedelta(seconds=10))
    await fold_all(store)

    assert (await only_summary(store))["failures_in_a_row"] == 1


async def test_an_error_that_the_handler_expects_ends_a_row_of_failures_and_is_no_success(
    store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store)
    await end(store, job, clock.now() - timedelta(seconds=9), "dead")
    await end(store, job, clock.now(), "expected")
    await fold_all(store)

    summary = await only_summary(store)

    assert (summary["failures_in_a_row"], summary["succeeded_at"]) == (0, None)


async def test_backfills_and_one_offs_leave_no_summary(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store)
    await end(store, job, clock.now(), origin="backfill")
    await enqueue(store)
    await record(store, [found(one) for one in await claim_all(store)])
    await fold_all(store)

    assert await table(store, "job_summary") == []


async def test_the_lateness_is_that_of_the_first_attempt(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 3600, max_retries=1, initial_backoff_ms=60_000)
    owner = await make_owner(store)
    clock.advance("3604s")
    await promote_due(store, owner)
    await record(store, [found(one, Failed(FAILURE), started_at=clock.now()) for one in await claim_all(store)])
    await fold_all(store)
    first = (await only_summary(store))["lateness_seconds"]
    clock.advance("5m")
    await promote_due(store, owner)
    await record(store, [found(one, started_at=clock.now()) for one in await claim_all(store)])
    await fold_all(store)

    summary = await only_summary(store)

    assert summary["job_id"] == job.id
    assert (first, summary["lateness_seconds"]) == (4, 4)
    assert summary["succeeded_at"] is not None


async def test_a_summary_outlives_the_history_and_ends_with_its_job(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store)
    await end(store, job, clock.now())
    await fold_all(store)
    async with store.database.connection() as connection:
        await connection.execute("DELETE FROM timeball.finished")
    assert (await only_summary(store))["succeeded_at"] == clock.now()

    await store.jobs.change(job.id, lambda snapshot: delete_job(snapshot, None), AuditEntry("me"))

    assert await table(store, "job_summary") == []


# what /metrics reads


async def test_the_first_named_jobs_are_told_and_the_worst_of_the_others(store: Store, clock: VirtualClock) -> None:
    jobs: list[Job] = []
    for name in ("job-9", "job-8", "job-7", "job-6", "job-5", None):
        jobs.append(await make_recurring(store, 3600, name=name))
        clock.advance("1s")
    await make_job(store, name="once", scheduled_at=clock.now())
    for number, job in enumerate(jobs[1:], start=1):
        await end(store, job, clock.now() - timedelta(minutes=number))
        for later in range(number):
            await end(store, job, clock.now() - timedelta(seconds=50 - later), "dead")
    await fold_all(store)
    gauges = GaugeStore(store.database)

    summaries = await gauges.jobs(3)

    # The first job has not run yet.
    assert [(summary.name, summary.failures_in_a_row) for summary in summaries] == [
        ("job-7", 2),
        ("job-8", 1),
        (None, 5),
    ]
    assert summaries[-1] == JobSummary(
        name=None,
        succeeded_at=clock.now() - timedelta(minutes=5),
        failures_in_a_row=5,
        duration_seconds=2,
        lateness_seconds=1,
    )
    assert await gauges.jobs(3) == summaries, "the same jobs have a name in each scrape"
    assert [summary.name for summary in await gauges.jobs(0)] == [None]
    assert [summary.name for summary in await gauges.jobs(10)] == ["job-5", "job-6", "job-7", "job-8", None]


async def test_nothing_is_told_before_a_recurring_job_has_run(store: Store) -> None:
    await make_recurring(store, name="new")

    assert await GaugeStore(store.database).jobs(10) == []
