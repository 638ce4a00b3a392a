"""Requests during an attempt: a stop, a pause, a deletion. They hold even if the holder never receives them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    claim_all,
    due_rows,
    enqueue,
    found,
    make_owner,
    make_recurring,
    only_row,
    promote_due,
    record,
    table,
    tables_of,
)
from timeball.domain import job_changes
from timeball.domain.execution import DueKind, Failed, Lost, Outcome, Released, TimeoutOutcome
from timeball.domain.job_changes import JobChange, JobSnapshot
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock


async def change(store: Store, execution: ExecutionId, decide: Callable[[JobSnapshot], JobChange]) -> None:
    """Change the one-off that an execution belongs to."""
    await store.jobs.change(JobId(execution), decide, OPERATOR)


def pause(snapshot: JobSnapshot) -> JobChange:
    return job_changes.pause_job(snapshot, None, None)


def delete(snapshot: JobSnapshot) -> JobChange:
    return job_changes.delete_job(snapshot, None)


async def check_promises(store: Store) -> None:
    report = await verify(store.database, store.env.clock.now(), second_look=timedelta(0))
    assert report.holds, "\n".join(report.lines())


async def test_attempt_facts_have_requests_of_the_meantime(store: Store) -> None:
    ids = [await enqueue(store) for _ in range(4)]
    claims = await claim_all(store)
    await store.jobs.cancel([ids[1]], "not needed", OPERATOR)
    await change(store, ids[2], pause)
    await change(store, ids[3], delete)

    standings = await store.executions.attempt_facts(claims)

    said = [(standings[id_].stop, standings[id_].is_paused, standings[id_].is_deleted) for id_ in ids]
    assert said == [(None, False, False), ("not needed", False, False), (None, True, False), (None, False, True)]


@pytest.mark.parametrize(
    "outcome", [Failed(FAILURE), TimeoutOutcome(FAILURE), Lost(FAILURE), Released(has_started=True)]
)
async def test_a_cancelled_execution_that_fails_or_is_lost_is_not_retried(store: Store, outcome: Outcome) -> None:
    execution = await enqueue(store, unique_key="k")
    (claimed,) = await claim_all(store)
    await store.jobs.cancel([execution], "not needed", OPERATOR)

    await record(store, [found(claimed, outcome)])

    row = await only_row(store, "finished")
    assert (row["id"], row["state"], row["reason"]) == (execution, "cancelled", "not needed")
    errors = [attempt["error"] for attempt in await table(store, "attempt")]
    assert errors == ([] if isinstance(outcome, Released) else [FAILURE.message])
    assert await table(store, "live_key") == []
    await check_promises(store)


async def test_a_running_execution_of_a_deleted_job_may_end_but_is_not_retried(store: Store) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)
    await change(store, execution, delete)
    assert await tables_of(store, execution) == ["running"]

    await record(store, [found(claimed, Failed(FAILURE))])

    row = await only_row(store, "finished")
    assert (row["state"], row["reason"], row["error"]) == ("cancelled", "the job was deleted", FAILURE.message)
    await check_promises(store)


async def test_a_lost_execution_waits_while_its_job_is_paused(store: Store, clock: VirtualClock) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)
    await change(store, execution, pause)

    await record(store, [found(claimed, Lost(FAILURE))])

    (row,) = await due_rows(store)
    assert (row.id, row.kind, row.is_paused) == (execution, DueKind.RETRY, True)
    await store.executions.park([row])
    await check_promises(store)

    clock.advance("60s")
    await change(store, execution, job_changes.resume_job)
    await promote_due(store, await make_owner(store))
    assert await tables_of(store, execution) == ["ready"]


async def test_a_held_execution_that_is_cancelled_and_released_is_skipped(store: Store, clock: VirtualClock) -> None:
    """Its worker stops before it knows of the pause: no other worker may run the execution then."""
    job = await make_recurring(store, 60)
    clock.advance("59.6s")
    await promote_due(store, await make_owner(store))
    (held,) = await claim_all(store, holds=5)
    await store.jobs.change(job.id, pause, OPERATOR)

    await record(store, [found(held, Released(), started_at=None)])

    row = await only_row(store, "finished")
    assert (row["state"], row["reason"], row["attempts"]) == ("skipped", "paused", 0)
    await check_promises(store)
