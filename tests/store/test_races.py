"""Each pair of methods that share rows, on two connections, in both orders, with both endings: the result is always consistent.

The first has done its work and stops before COMMIT; the second meets its locks; then the first commits or rolls back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import FreshDatabase
from tests.store.invariants import check_ledger, check_rooms
from tests.store.racing import PATIENCE_SECONDS, Race, stoppable
from tests.support.factories import (
    FAILURE,
    FROM_THE_FIRST,
    HANDLER,
    OPERATOR,
    claim_all,
    define_job,
    due_row,
    enqueue,
    first_execution_of,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    moves_of,
    only_row,
    plan_row,
    promote,
    promote_due,
    put_row,
    read_job,
    record,
    seconds,
    table,
    tables_of,
)
from tests.support.servers import VERSIONS
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain import job_changes
from timeball.domain.execution import CancelOutcome, ClaimedExecution, Failed, Lost, Origin, Outcome, Succeeded
from timeball.domain.freeze import Freeze, FreezeScope
from timeball.domain.job import Job
from timeball.domain.job_changes import JobChange
from timeball.domain.node import NodeKind
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.occurrences import DueRow, HeldByFreeze, NextOccurrence, Promotion
from timeball.domain.scheduling.schedule import After
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId
from timeball.env import Env
from timeball.errors import Conflict, InvalidInput, NotAllowed, NotFound
from timeball.store.db.columns import json_text
from timeball.store.db.pool import Connection
from timeball.store.db.rows import pending_from
from timeball.store.executions import TicketStore
from timeball.store.store import Store
from timeball.store.types import PARKED_AT, ClaimRequest, CreatedJob, ExecutionRequest, ShardOwnership
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)
both_endings = pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])


@pytest.fixture
async def race(fresh_database: FreshDatabase, store: Store, env: Env, clock: VirtualClock) -> AsyncIterator[Race]:
    ahead = stoppable(Store(fresh_database.dsn, Env(clock, Random(1))))
    await ahead.open(migrates=False)
    observer = await store.database.connect()
    yield Race(ahead, store, observer)
    await observer.close()
    await ahead.close()


class Scheduled:
    """A job with a due occurrence, its scheduler, and the promotion that the scheduler has planned."""

    def __init__(self, job: Job, owner: ShardOwnership, plan: Promotion) -> None:
        self.job = job
        self.owner = owner
        self.plan = plan

    def promote(self, store: Store) -> Awaitable[set[ExecutionId]]:
        return promote(store, [self.plan], self.owner)


@pytest.fixture
async def scheduled(store: Store, clock: VirtualClock) -> Scheduled:
    job = await make_recurring(store, 60, payload={"v": 1}, overlap="allow")
    owner = await make_owner(store)
    clock.advance("60s")
    return Scheduled(job, owner, await plan_row(store, await due_row(store, job.id)))


def edit(store: Store, job: Job, **fields: Any) -> Awaitable[JobChange]:
    return store.jobs.change(job.id, lambda found: job_changes.edit_job(found, fields, store.shards), OPERATOR)


def pause(store: Store, job: Job) -> Awaitable[JobChange]:
    return store.jobs.change(job.id, lambda found: job_changes.pause_job(found, None, None), OPERATOR)


def resume(store: Store, job: Job) -> Awaitable[JobChange]:
    return store.jobs.change(job.id, job_changes.resume_job, OPERATOR)


def delete(store: Store, job: Job) -> Awaitable[JobChange]:
    return store.jobs.change(job.id, lambda found: job_changes.delete_job(found, None), OPERATOR)


def cancel(store: Store, execution: ExecutionId) -> Awaitable[set[ExecutionId]]:
    return store.jobs.cancel([execution], "not needed", OPERATOR)


def claim(store: Store, slots: int = 10) -> Awaitable[list[ClaimedExecution]]:
    async def claims() -> list[ClaimedExecution]:
        request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], slots, 0)
        given = await store.executions.claim(request, {("default", 50): FROM_THE_FIRST}, ClaimId(store.env.new_id()))
        return given.executions

    return claims()


async def promoted_again(result: Any, again: Awaitable[set[ExecutionId]]) -> set[ExecutionId]:
    """A promotion passes over a row that is being changed, without waiting. The scheduler tries again by what it has read."""
    assert (result.second_waited, result.second) == (False, set())
    return await again


async def check(store: Store, job: Job) -> None:
    await check_ledger(store, job.id)
    await check_rooms(store)


# edit and promotion


@both_endings
async def test_a_promotion_that_comes_after_an_edit(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """Fault 28. The edit keeps the schedule, so the pending occurrence keeps its id and its instant: only its version differs."""
    job, anchor = scheduled.job, scheduled.plan.row.scheduled_for

    result = await race.run(
        edit(race.ahead, job, payload={"v": 2}, scheduled_at=anchor), scheduled.promote(race.behind), commits=commits
    )

    promoted = await promoted_again(result, scheduled.promote(race.behind))
    assert promoted == (set() if commits else {scheduled.plan.row.id})
    assert (await read_job(store, job.id)).version == (2 if commits else 1)
    assert len(await table(store, "ready")) == (0 if commits else 1)
    await check(store, job)


@both_endings
async def test_an_edit_that_comes_after_a_promotion(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """Fault 28."""
    result = await race.run(
        scheduled.promote(race.ahead), edit(race.behind, scheduled.job, interval_seconds=45), commits=commits
    )

    assert result.second_waited
    # A promoted occurrence has the old version; otherwise the edit has skipped it.
    records = [row for state_table in ("ready", "finished") for row in await table(store, state_table)]
    assert [(row["version"], row["scheduled_for"]) for row in records] == [(1, scheduled.plan.row.scheduled_for)]
    assert len(await table(store, "ready")) == (1 if commits else 0)
    await check(store, scheduled.job)


async def test_an_edit_that_misses_the_new_occurrence_is_refused_by_the_index_and_repeated(
    race: Race, store: Store, scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usually the look-up after a lock wait finds the successor; this tests the index without it."""

    async def look_once(connection: Any, job_ids: list[JobId]) -> dict[JobId, NextOccurrence]:
        rows = await store.database.fetch("take_occurrences", connection, job_ids=job_ids)
        looks.append(bool(rows))
        return {row["job_id"]: pending_from(row) for row in rows}

    looks: list[bool] = []
    monkeypatch.setattr(race.behind.jobs, "_take_occurrences", look_once)

    await race.run(scheduled.promote(race.ahead), edit(race.behind, scheduled.job, interval_seconds=45), commits=True)

    assert looks == [False, True]
    assert [(row["version"], row["kind"]) for row in await table(store, "due")] == [(2, "occurrence")]
    await check(store, scheduled.job)


async def test_a_promotion_planned_before_an_edit_is_refused(
    store: Store, scheduled: Scheduled, clock: VirtualClock
) -> None:
    """The edit is committed; its new occurrence equals the planned one in id and instant."""
    job = scheduled.job
    ahead = await make_recurring(store, 60)
    plan = await plan_row(store, await due_row(store, ahead.id))
    await edit(store, ahead, payload={"v": 2})
    after = await due_row(store, ahead.id)
    assert (after.id, after.run_at, after.version) == (plan.row.id, plan.row.run_at, 2)
    clock.advance("60s")

    assert await promote(store, [plan], scheduled.owner) == set()
    await check(store, ahead)
    await check(store, job)


@both_endings
async def test_two_edits_follow_one_another(race: Race, store: Store, scheduled: Scheduled, *, commits: bool) -> None:
    job = scheduled.job

    result = await race.run(edit(race.ahead, job, priority=10), edit(race.behind, job, queue="q"), commits=commits)

    assert result.second_waited
    edited = await read_job(store, job.id)
    assert (edited.version, edited.priority, edited.queue) == ((3, 10, "q") if commits else (2, 50, "q"))
    assert len(await table(store, "audit")) == (2 if commits else 1)
    await check(store, job)


# overlap `latest`: the promotion that replaces what waits, and what moves it meanwhile


class Waiting:
    """A job with overlap `latest`: its first occurrence runs, its second waits, and the promotion of the third is planned."""

    def __init__(
        self, job: Job, owner: ShardOwnership, running: ClaimedExecution, waiting: UUID, plan: Promotion
    ) -> None:
        self.job = job
        self.owner = owner
        self.running = running
        self.waiting = ExecutionId(waiting)
        self.plan = plan

    @property
    def newest(self) -> ExecutionId:
        return self.plan.row.id

    def promote(self, store: Store) -> Awaitable[set[ExecutionId]]:
        return promote(store, [self.plan], self.owner)

    async def check(self, store: Store) -> None:
        """Each occurrence is somewhere, at most one waits, and the newest was not dropped."""
        await store.executions.unblock([f"job:{self.job.id}"])
        assert await tables_of(store, self.newest) in (["blocked"], ["ready"])
        waiting = [row["scheduled_for"] for row in await table(store, "blocked")]
        assert len(waiting) <= 1
        await check(store, self.job)


@pytest.fixture
async def waiting(store: Store, clock: VirtualClock) -> Waiting:
    job = await make_recurring(store, 60, overlap="latest")
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)
    (running,) = await claim_all(store)
    clock.advance("60s")
    await promote_due(store, owner)
    second = (await only_row(store, "blocked"))["id"]
    clock.advance("60s")
    return Waiting(job, owner, running, second, await plan_row(store, await due_row(store, job.id), is_busy=True))


@both_endings
async def test_a_promotion_that_comes_while_what_it_would_replace_is_unblocked(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    await store.database.fetch("finish_succeeded", **_columns(waiting.running))

    result = await race.run(
        race.ahead.executions.unblock([f"job:{waiting.job.id}"]), waiting.promote(race.behind), commits=commits
    )

    assert await promoted_again(result, waiting.promote(race.behind)) == {waiting.newest}
    assert await tables_of(store, waiting.waiting) == (["ready"] if commits else ["finished"])
    await waiting.check(store)


@both_endings
async def test_an_unblocking_that_comes_while_what_waits_is_replaced(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    await store.database.fetch("finish_succeeded", **_columns(waiting.running))

    result = await race.run(
        waiting.promote(race.ahead), race.behind.executions.unblock([f"job:{waiting.job.id}"]), commits=commits
    )

    assert not result.second_waited
    if commits:
        assert await tables_of(store, waiting.waiting) == ["finished"]
        assert await tables_of(store, waiting.newest) == ["ready"], "the promotion has unblocked it after its commit"
    else:
        await store.executions.unblock([f"job:{waiting.job.id}"])  # as the reaper does
        assert await tables_of(store, waiting.waiting) == ["ready"]
        assert await waiting.promote(store) == {waiting.newest}
    await waiting.check(store)


@both_endings
async def test_a_promotion_that_comes_while_the_running_one_ends(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    ended = found(waiting.running, Succeeded())

    result = await race.run(
        race.ahead.executions.finish_succeeded([ended]), waiting.promote(race.behind), commits=commits
    )

    assert (result.second_waited, result.second) == (False, {waiting.newest})
    # After the end its place is passed on; to the one that waits by then.
    assert await tables_of(store, waiting.waiting) == ["finished"]
    await waiting.check(store)


@both_endings
async def test_a_claim_that_comes_while_the_newest_is_promoted(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    """The one that was unblocked is in the queue; it is not replaced, whoever comes first."""
    await store.database.fetch("finish_succeeded", **_columns(waiting.running))
    await store.executions.unblock([f"job:{waiting.job.id}"])

    result = await race.run(waiting.promote(race.ahead), claim_all(race.behind), commits=commits)

    assert [claimed.id for claimed in result.second] == [waiting.waiting]
    if not commits:
        assert await waiting.promote(store) == {waiting.newest}
    await waiting.check(store)


@both_endings
async def test_a_promotion_that_comes_while_what_it_would_replace_is_cancelled(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    result = await race.run(cancel(race.ahead, waiting.waiting), waiting.promote(race.behind), commits=commits)

    assert await promoted_again(result, waiting.promote(race.behind)) == {waiting.newest}
    (row,) = [row for row in await table(store, "finished") if row["id"] == waiting.waiting]
    assert row["state"] == ("cancelled" if commits else "skipped")
    await waiting.check(store)


@both_endings
async def test_a_cancellation_that_comes_while_what_waits_is_replaced(
    race: Race, store: Store, waiting: Waiting, *, commits: bool
) -> None:
    await race.run(waiting.promote(race.ahead), cancel(race.behind, waiting.waiting), commits=commits)

    (row,) = [row for row in await table(store, "finished") if row["id"] == waiting.waiting]
    assert row["state"] == ("skipped" if commits else "cancelled")
    if not commits:
        assert await waiting.promote(store) == {waiting.newest}
    await waiting.check(store)


# edit, and queued or requested executions of the job


async def what_runs(store: Store, **request: Any) -> list[tuple[str, int, Any]]:
    """Handler, version and payload of a claimed execution."""
    claims = {claimed.id: claimed for claimed in await claim_all(store, handlers=["app:old", "app:new"], **request)}
    rows = [row for row in await table(store, "running") if row["id"] in claims]
    return [(claims[row["id"]].handler, row["version"], json.loads(claims[row["id"]].payload)) for row in rows]


def edit_both(store: Store, job: Job) -> Awaitable[JobChange]:
    return edit(store, job, handler="app:new", payload={"v": 2})


@pytest.fixture
async def by_hand(store: Store) -> Job:
    return await make_job(store, handler="app:old", payload={"v": 1})


@both_endings
async def test_a_claim_that_comes_while_an_edit_is_under_way(
    race: Race, store: Store, by_hand: Job, *, commits: bool
) -> None:
    await ask_for(store, by_hand.id)

    result = await race.run(edit_both(race.ahead, by_hand), what_runs(race.behind), commits=commits)

    assert (result.second_waited, result.second) == (False, [("app:old", 1, {"v": 1})])


@both_endings
async def test_an_edit_that_comes_while_a_claim_is_under_way(
    race: Race, store: Store, clock: VirtualClock, by_hand: Job, *, commits: bool
) -> None:
    """Fault 28. The reply of the claim has the old version, and so has the next attempt, whether it took the execution or not."""
    owner, worker = await make_owner(store), await make_node(store)
    await ask_for(store, by_hand.id)
    request = ClaimRequest(worker, ["app:old", "app:new"], 1, 0)
    claim_id = ClaimId(store.env.new_id())

    result = await race.run(
        race.ahead.executions.claim(request, {("default", 50): FROM_THE_FIRST}, claim_id),
        edit_both(race.behind, by_hand),
        commits=commits,
    )

    assert not result.second_waited
    if commits:
        (claimed,) = result.first.executions
        assert (claimed.handler, json.loads(claimed.payload)) == ("app:old", {"v": 1})
        await record(store, [found(claimed, Failed(FAILURE))])
        clock.advance("1h")
        await promote_due(store, owner)
    assert await what_runs(store) == [("app:old", 1, {"v": 1})]


@both_endings
async def test_a_trigger_that_comes_while_an_edit_is_under_way(
    race: Race, store: Store, by_hand: Job, *, commits: bool
) -> None:
    result = await race.run(edit_both(race.ahead, by_hand), ask_for(race.behind, by_hand.id), commits=commits)

    assert result.second_waited
    assert await what_runs(store) == [("app:new", 2, {"v": 2}) if commits else ("app:old", 1, {"v": 1})]


@both_endings
async def test_an_edit_that_comes_while_a_trigger_is_under_way(
    race: Race, store: Store, by_hand: Job, *, commits: bool
) -> None:
    result = await race.run(ask_for(race.ahead, by_hand.id), edit_both(race.behind, by_hand), commits=commits)

    assert result.second_waited
    assert await what_runs(store) == ([("app:old", 1, {"v": 1})] if commits else [])


@both_endings
async def test_an_edit_that_comes_while_an_execution_is_unblocked(race: Race, store: Store, *, commits: bool) -> None:
    job = await make_job(store, handler="app:old", payload={"v": 1}, max_running=1)
    await ask_for(store, job.id)
    await ask_for(store, job.id)
    (first,) = await claim_all(store, handlers=["app:old"])
    await store.database.fetch("finish_succeeded", **_columns(first))
    limits = [f"job:{job.id}"]

    await race.run(race.ahead.executions.unblock(limits), edit_both(race.behind, job), commits=commits)
    await store.executions.unblock(limits)

    assert await what_runs(store) == [("app:old", 1, {"v": 1})]


@both_endings
async def test_an_edit_that_comes_while_an_attempt_fails(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    owner = await make_owner(store)
    execution_id = await enqueue(store, handler="app:old", payload={"v": 1})
    (claimed,) = await claim_all(store, handlers=["app:old"])
    moves = await moves_of(store, [found(claimed, Failed(FAILURE))])

    await race.run(
        race.ahead.executions.record_transitions(moves),
        edit_both(race.behind, await read_job(store, JobId(execution_id))),
        commits=commits,
    )
    if not commits:
        await store.executions.record_transitions(moves)
    clock.advance("1h")
    await promote_due(store, owner)

    assert await what_runs(store) == [("app:old", 1, {"v": 1})]


@both_endings
async def test_a_request_checks_the_right_to_the_handler_that_will_run(
    race: Race, store: Store, by_hand: Job, *, commits: bool
) -> None:
    """While an administrator gives the job another handler, an editor triggers it with a payload for the former one."""
    editor = Actor("editor", is_administrator=False)
    payload = {"command": "id"}

    async def trigger() -> str:
        try:
            await Commands(race.behind, race.behind.env).executions.trigger(by_hand.id, payload, editor)
        except NotAllowed:
            return "refused"
        return "triggered"

    result = await race.run(edit(race.ahead, by_hand, handler="shell.command"), trigger(), commits=commits)

    assert (result.second_waited, result.second) == (True, "refused" if commits else "triggered")
    assert len(await table(store, "ready")) == (0 if commits else 1)


@both_endings
async def test_the_payload_of_an_execution_is_not_retried_with_a_handler_that_was_edited_meanwhile(
    race: Race, store: Store, by_hand: Job, *, commits: bool
) -> None:
    wanted = ExecutionRequest(
        id=ExecutionId(store.env.new_id()), job_id=by_hand.id, origin=Origin.TRIGGER, payload='{"v": 3}'
    )
    await store.jobs.request([wanted], OPERATOR, "job.trigger")
    await record(store, [found(claimed) for claimed in await claim_all(store, handlers=["app:old"])])

    async def retry() -> bool:
        try:
            await Commands(race.behind, race.behind.env).executions.retry(wanted.id)
        except Conflict:
            return False
        return True

    result = await race.run(edit_both(race.ahead, by_hand), retry(), commits=commits)

    assert (result.second_waited, result.second) == (True, not commits)
    assert await what_runs(store) == ([] if commits else [("app:old", 1, {"v": 3})])


# the end of a job by newer time-zone data, and promotion or edit


def end(store: Store, scheduled: Scheduled) -> Awaitable[bool]:
    return store.executions.end_occurrence(scheduled.plan.row, "2999z")


async def recorded(store: Store) -> list[tuple[str, int]]:
    """The table and the version of the record with the instant of the occurrence."""
    found = [
        (state_table, row["version"])
        for state_table in ("ready", "finished")
        for row in await table(store, state_table)
    ]
    await check_rooms(store)
    return found


async def ended_by(store: Store) -> list[str | None]:
    """The time-zone data by which the versions of the job have ended."""
    return [row["tzdata"] for row in sorted(await table(store, "job_version"), key=lambda row: row["version"])]


@both_endings
async def test_a_promotion_that_comes_after_the_end(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(end(race.ahead, scheduled), scheduled.promote(race.behind), commits=commits)

    await promoted_again(result, scheduled.promote(race.behind))
    assert await recorded(store) == [("finished" if commits else "ready", 1)]
    assert len(await table(store, "due")) == (0 if commits else 1)
    assert await ended_by(store) == ["2999z" if commits else None]


@both_endings
async def test_an_end_that_comes_after_a_promotion(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(scheduled.promote(race.ahead), end(race.behind, scheduled), commits=commits)

    assert (result.second_waited, result.second) == (True, not commits)
    assert await recorded(store) == [("ready" if commits else "finished", 1)]
    assert len(await table(store, "due")) == (1 if commits else 0)
    assert await ended_by(store) == [None if commits else "2999z"]


@both_endings
async def test_an_edit_that_comes_after_the_end(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """It finds no pending occurrence, and closes a version that cites the data by which it had ended."""
    job = scheduled.job

    result = await race.run(end(race.ahead, scheduled), edit(race.behind, job, interval_seconds=45), commits=commits)

    assert result.second_waited
    (ended,) = await table(store, "finished")
    assert (ended["version"], ended["reason"]) == (1, "ended" if commits else "edited")
    assert [row["version"] for row in await table(store, "due")] == [2]
    assert await ended_by(store) == ["2999z" if commits else tzdata_version(), None]


@both_endings
async def test_an_end_that_comes_after_an_edit(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """The pending occurrence is not the one that was read, although it may have its id and its instant."""
    job, anchor = scheduled.job, scheduled.plan.row.scheduled_for
    first = edit(race.ahead, job, payload={"v": 2}, scheduled_at=anchor)

    result = await race.run(first, end(race.behind, scheduled), commits=commits)

    assert (result.second_waited, result.second) == (True, not commits)
    assert [row["version"] for row in await table(store, "due")] == ([2] if commits else [])
    (record,) = await table(store, "finished")
    assert record["reason"] == ("edited" if commits else "ended")


# pause and promotion


@both_endings
async def test_a_promotion_that_comes_after_a_pause(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(pause(race.ahead, scheduled.job), scheduled.promote(race.behind), commits=commits)

    promoted = await promoted_again(result, scheduled.promote(race.behind))
    assert promoted == (set() if commits else {scheduled.plan.row.id})
    assert len(await table(store, "ready")) == (0 if commits else 1)
    await check(store, scheduled.job)


@both_endings
async def test_a_pause_that_comes_after_a_promotion(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(scheduled.promote(race.ahead), pause(race.behind, scheduled.job), commits=commits)

    assert result.second_waited
    assert await table(store, "ready") == []
    assert len(await table(store, "finished")) == (1 if commits else 0)
    await check(store, scheduled.job)


@both_endings
async def test_a_retry_that_is_promoted_while_its_job_is_paused_is_parked(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    """It is in due when the pause reads that table, and in ready when the pause commits."""
    job = await make_job(store)
    owner = await make_owner(store)
    execution = (await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger"))[0]
    await record(store, [found(each, Failed(FAILURE)) for each in await claim_all(store)])
    clock.advance("1h")
    plan = await plan_row(store, await due_row(store, job.id))

    result = await race.run(promote(race.ahead, [plan], owner), pause(race.behind, job), commits=commits)

    assert result.second_waited
    assert await tables_of(store, execution) == ["due"]
    assert (await only_row(store, "due"))["run_at"] == PARKED_AT


@both_endings
async def test_a_parked_retry_is_not_promoted(race: Race, store: Store, clock: VirtualClock, *, commits: bool) -> None:
    """Its id and its version stay: only its instant differs."""
    job = await make_job(store)
    owner = await make_owner(store)
    execution = (await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger"))[0]
    await record(store, [found(each, Failed(FAILURE)) for each in await claim_all(store)])
    clock.advance("1h")
    plan = await plan_row(store, await due_row(store, job.id))

    result = await race.run(pause(race.ahead, job), promote(race.behind, [plan], owner), commits=commits)

    promoted = await promoted_again(result, promote(race.behind, [plan], owner))
    assert promoted == (set() if commits else {execution})
    assert await tables_of(store, execution) == ["due" if commits else "ready"]


@both_endings
async def test_a_retry_is_not_parked_after_the_resumption_of_its_job(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    """The scheduler read it while its job was paused; parked after the resumption, it would wait for ever."""
    job, row = await _retrying_of_paused(store, clock)

    result = await race.run(resume(race.ahead, job), race.behind.executions.park([row]), commits=commits)

    assert result.second_waited
    parked_until = (await only_row(store, "due"))["run_at"]
    assert (parked_until == PARKED_AT) != commits


@both_endings
async def test_a_resumption_that_comes_after_the_parking(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    job, row = await _retrying_of_paused(store, clock)

    result = await race.run(race.ahead.executions.park([row]), resume(race.behind, job), commits=commits)

    assert result.second_waited
    assert (await only_row(store, "due"))["run_at"] == (clock.now() if commits else row.run_at)


@both_endings
async def test_a_retry_that_is_parked_and_unparked_meanwhile_stays(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    job = await make_job(store)
    owner = await make_owner(store)
    execution = (await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger"))[0]
    await record(store, [found(each, Failed(FAILURE)) for each in await claim_all(store)])
    clock.advance("1h")
    plan = await plan_row(store, await due_row(store, job.id))

    async def park_and_unpark() -> None:
        async with race.ahead.database.transaction() as connection:
            for statement in ("park_waiting", "unpark"):
                await race.ahead.database.fetch(statement, connection, job_ids=[job.id], parked_at=PARKED_AT)

    result = await race.run(park_and_unpark(), promote(race.behind, [plan], owner), commits=commits)

    promoted = await promoted_again(result, promote(race.behind, [plan], owner))
    assert promoted == (set() if commits else {execution})
    assert await tables_of(store, execution) == ["due" if commits else "ready"]


# delete and promotion


@both_endings
async def test_a_promotion_that_comes_after_a_deletion(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(delete(race.ahead, scheduled.job), scheduled.promote(race.behind), commits=commits)

    promoted = await promoted_again(result, scheduled.promote(race.behind))
    assert promoted == (set() if commits else {scheduled.plan.row.id})
    assert len(await table(store, "ready")) == (0 if commits else 1)
    await check(store, scheduled.job)


@both_endings
async def test_a_deletion_that_comes_after_a_promotion(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(scheduled.promote(race.ahead), delete(race.behind, scheduled.job), commits=commits)

    assert result.second_waited
    row = await only_row(store, "finished")
    assert row["state"] == ("cancelled" if commits else "skipped")
    assert await table(store, "ready") == []
    assert await table(store, "due") == []
    await check(store, scheduled.job)


@both_endings
async def test_a_retry_that_is_promoted_while_its_job_is_deleted_is_cancelled(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    job = await make_job(store)
    owner = await make_owner(store)
    execution = (await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger"))[0]
    await record(store, [found(each, Failed(FAILURE)) for each in await claim_all(store)])
    clock.advance("1h")
    plan = await plan_row(store, await due_row(store, job.id))

    result = await race.run(promote(race.ahead, [plan], owner), delete(race.behind, job), commits=commits)

    assert result.second_waited
    assert await tables_of(store, execution) == ["finished"]


# two promotions


@both_endings
async def test_two_schedulers_promote_the_same_occurrence(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """Fault 1. Both believe that they own the shard; the row decides."""
    result = await race.run(scheduled.promote(race.ahead), scheduled.promote(race.behind), commits=commits)

    again = await promoted_again(result, scheduled.promote(race.behind))
    assert [each for each in (result.first, again) if each] == [{scheduled.plan.row.id}]
    assert len(await table(store, "ready")) == 1
    await check(store, scheduled.job)


@both_endings
async def test_a_refused_row_of_a_promotion_does_not_affect_the_others_of_its_batch(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    other = await make_recurring(store, 60, scheduled_at=store.env.clock.now() + seconds(0.2))
    theirs = await plan_row(store, await due_row(store, other.id))

    both = promote(race.behind, [theirs, scheduled.plan], scheduled.owner)
    result = await race.run(scheduled.promote(race.ahead), both, commits=commits)

    assert (result.second_waited, result.second) == (False, {theirs.row.id})
    assert await scheduled.promote(race.behind) == (set() if commits else {scheduled.plan.row.id})
    await check(store, other)
    await check(store, scheduled.job)


# claim and claim


by_ticket = pytest.mark.parametrize("by_ticket", [False, True], ids=["by lane", "by ticket"])
by_each_way = pytest.mark.parametrize("way", ["by lane", "by ticket", "by name"])


async def claim_two(store: Store, tickets: Sequence[ExecutionId]) -> list[ClaimedExecution]:
    request, claim_id = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], 2, 2), ClaimId(store.env.new_id())
    if tickets:
        return (await TicketStore(store.database).claim(request, tickets, None, claim_id)).executions
    return (await store.executions.claim(request, {("default", 50): FROM_THE_FIRST}, claim_id)).executions


@by_ticket
@pytest.mark.parametrize("after", [0, 0.4], ids=["due", "held"])
@both_endings
async def test_two_claims_take_different_executions_without_waiting(
    race: Race, store: Store, *, commits: bool, after: float, by_ticket: bool
) -> None:
    ids = [await enqueue(store, after=after) for _ in range(3)]
    tickets = ids if by_ticket else []

    result = await race.run(claim_two(race.ahead, tickets), claim_two(race.behind, tickets), commits=commits)

    assert not result.second_waited
    assert len(result.second) == 1, "the one that the first claim did not take"
    given = {each.id for each in (*(result.first or ()), *result.second)}
    assert {row["id"] for row in await table(store, "running")} == given
    assert given <= set(ids)
    await check_rooms(store)


@both_endings
async def test_two_claims_at_the_limit_of_a_queue(race: Race, store: Store, *, commits: bool) -> None:
    await store.queues.change("q", is_paused=False, max_running=1, reason=None, audit=OPERATOR, action="queue.limit")
    for _ in range(2):
        await enqueue(store, queue="q")

    async def claim_limited(store: Store) -> list[ClaimedExecution]:
        request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], 10, 10)
        claims = await store.executions.claim_limited(
            request, "q", {("q", 50): FROM_THE_FIRST}, ClaimId(store.env.new_id())
        )
        return claims.executions

    result = await race.run(claim_limited(race.ahead), claim_limited(race.behind), commits=commits)

    assert result.second_waited
    assert len(result.second) == (0 if commits else 1)
    assert len(await table(store, "running")) == 1


@both_endings
async def test_a_limit_that_comes_after_a_claim_of_its_job(race: Race, store: Store, *, commits: bool) -> None:
    job, worker = await make_job(store, overlap="allow"), await make_node(store)
    for _ in range(2):
        await Commands(store, store.env).executions.trigger(job.id)

    first = claim_all(race.ahead, slots=1, worker=worker)
    await race.run(first, edit(race.behind, job, max_running=1), commits=commits)

    running = await table(store, "running")
    assert [row["limit_key"] for row in running] == ([f"job:{job.id}"] if commits else [])
    await claim_all(store, worker=worker)
    assert len(await table(store, "running")) == 1
    assert [len(await table(store, state_table)) for state_table in ("ready", "blocked")] == [0, 1]


@both_endings
async def test_a_claim_that_comes_after_a_limit_of_its_job(race: Race, store: Store, *, commits: bool) -> None:
    job, worker = await make_job(store, overlap="allow"), await make_node(store)
    for _ in range(2):
        await Commands(store, store.env).executions.trigger(job.id)

    await race.run(edit(race.ahead, job, max_running=1), claim_all(race.behind, worker=worker), commits=commits)
    await claim_all(store, worker=worker)

    assert len(await table(store, "running")) == (1 if commits else 2)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("pause_first", [True, False])
@both_endings
async def test_a_pause_and_a_limit_of_a_queue_at_the_same_moment(
    race: Race, store: Store, *, commits: bool, pause_first: bool, is_known: bool
) -> None:
    if is_known:
        await Commands(store, store.env).queues.limit("q", 7)

    def set_pause(store: Store) -> Awaitable[None]:
        return Commands(store, store.env).queues.pause("q", Actor("ada", "for now"))

    def set_limit(store: Store) -> Awaitable[None]:
        return Commands(store, store.env).queues.limit("q", 3)

    first, second = (set_pause, set_limit) if pause_first else (set_limit, set_pause)
    result = await race.run(first(race.ahead), second(race.behind), commits=commits)

    queue = await store.queues.find("q")
    assert queue is not None
    assert result.second_waited
    assert (queue["pause_reason"], queue["paused_at"] is None) == (
        ("for now", False) if commits or not pause_first else (None, True)
    )
    assert queue["max_running"] == (3 if commits or pause_first else 7 if is_known else None)
    audited = [json.loads(row["after"]) for row in await table(store, "audit")]
    assert {"is_paused": queue["paused_at"] is not None, "max_running": queue["max_running"]} in audited


@both_endings
async def test_two_nodes_resume_a_queue_whose_pause_is_over(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    await Commands(store, store.env).queues.pause("q", until=clock.now() + seconds(5))
    clock.advance("5s")

    result = await race.run(race.ahead.queues.tend(OPERATOR), race.behind.queues.tend(OPERATOR), commits=commits)

    assert result.second_waited
    assert [row["action"] for row in await table(store, "audit")] == ["queue.pause", "queue.resume"]


@both_endings
async def test_a_pause_is_made_longer_while_a_node_resumes_its_queue(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    await Commands(store, store.env).queues.pause("q", until=clock.now() + seconds(5))
    clock.advance("5s")
    later = clock.now() + seconds(60)

    await race.run(
        Commands(race.ahead, race.ahead.env).queues.pause("q", until=later),
        race.behind.queues.tend(OPERATOR),
        commits=commits,
    )

    assert (await store.queues.find("q") or {})["paused_until"] == (later if commits else None)


# jobs that fail


@both_endings
async def test_two_nodes_pause_a_job_that_fails(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    job = await make_recurring(store, 60, pause_after_failures=1)
    clock.advance("1s")
    await Commands(store, store.env).executions.trigger(job.id)
    await record(store, [found(one, Failed(FAILURE, is_retryable=False)) for one in await claim_all(store)])

    result = await race.run(
        race.ahead.jobs.pause_if_failing(job.id, "timeball"),
        race.behind.jobs.pause_if_failing(job.id, "timeball"),
        commits=commits,
    )

    assert result.second_waited
    assert result.second is not commits
    assert [row["action"] for row in await table(store, "audit")].count("job.pause") == 1
    await check(store, job)


# freezes


def freeze_everything(store: Store) -> Awaitable[Freeze]:
    until = store.env.clock.now() + seconds(600)
    return Commands(store, store.env).freezes.add(FreezeScope.INSTALLATION, until=until)


async def test_a_promotion_that_was_planned_before_a_freeze_is_refused(store: Store, scheduled: Scheduled) -> None:
    freeze = await freeze_everything(store)

    assert await scheduled.promote(store) == set()
    held = HeldByFreeze(scheduled.plan.row, freeze.until_at)
    assert await store.executions.hold_frozen([held], freeze.epoch - 1) == set()
    assert await store.executions.hold_frozen([held], freeze.epoch) == {scheduled.plan.row.id}


async def test_a_row_is_not_held_for_a_freeze_that_has_been_ended(store: Store, scheduled: Scheduled) -> None:
    freeze = await freeze_everything(store)
    await Commands(store, store.env).freezes.end(freeze.id)

    held = HeldByFreeze(scheduled.plan.row, freeze.until_at)
    assert await store.executions.hold_frozen([held], freeze.epoch) == set()


@both_endings
async def test_a_promotion_during_the_writing_of_a_freeze_waits_and_is_refused(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(freeze_everything(race.ahead), scheduled.promote(race.behind), commits=commits)

    assert result.second_waited
    assert result.second == (set() if commits else {scheduled.plan.row.id})
    await check(store, scheduled.job)


@both_endings
async def test_a_freeze_waits_for_the_promotions_that_are_under_way(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    result = await race.run(scheduled.promote(race.ahead), freeze_everything(race.behind), commits=commits)

    assert result.second_waited
    assert len(await table(store, "ready")) == (1 if commits else 0)
    await check(store, scheduled.job)


@both_endings
async def test_a_claim_during_the_writing_of_a_freeze_waits_and_takes_nothing(
    race: Race, store: Store, *, commits: bool
) -> None:
    execution_id = await enqueue(store)

    result = await race.run(freeze_everything(race.ahead), claim(race.behind), commits=commits)

    assert result.second_waited
    assert [claimed.id for claimed in result.second] == ([] if commits else [execution_id])


@both_endings
async def test_a_freeze_waits_for_the_claims_that_are_under_way(race: Race, store: Store, *, commits: bool) -> None:
    await enqueue(store)

    result = await race.run(claim(race.ahead), freeze_everything(race.behind), commits=commits)

    assert result.second_waited
    assert len(await table(store, "running")) == (1 if commits else 0)


@both_endings
async def test_a_row_is_held_while_its_freeze_is_ended(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    """Whichever comes first, nothing waits for a freeze that is over."""
    freeze = await freeze_everything(store)
    held = HeldByFreeze(scheduled.plan.row, freeze.until_at)

    await race.run(
        race.ahead.executions.hold_frozen([held], freeze.epoch),
        Commands(race.behind, race.behind.env).freezes.end(freeze.id),
        commits=commits,
    )

    (row,) = await table(store, "due")
    assert (row["run_at"], row["frozen_run_at"]) == (scheduled.plan.row.run_at, None)


@both_endings
async def test_two_nodes_note_the_end_of_a_freeze(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    await freeze_everything(store)
    clock.advance("601s")

    result = await race.run(race.ahead.queues.tend(OPERATOR), race.behind.queues.tend(OPERATOR), commits=commits)

    assert result.second_waited
    assert [row["action"] for row in await table(store, "audit")] == ["freeze.create", "freeze.end"]


def limit_queue(store: Store) -> Awaitable[None]:
    return store.queues.change("q", is_paused=False, max_running=1, reason=None, audit=OPERATOR, action="queue.limit")


async def claim_freely(
    store: Store, worker: Incarnation, way: str, execution_id: ExecutionId
) -> list[ClaimedExecution]:
    request, claim_id = ClaimRequest(worker, [HANDLER], 1, 0), ClaimId(store.env.new_id())
    match way:
        case "by ticket":
            return (await TicketStore(store.database).claim(request, [execution_id], None, claim_id)).executions
        case "by name":
            return await store.executions.claim_by_id(request, execution_id, None, claim_id)
        case _:
            return (await store.executions.claim(request, {("q", 50): FROM_THE_FIRST}, claim_id)).executions


@by_each_way
@both_endings
async def test_a_limit_that_is_set_during_a_claim_counts_its_executions(
    race: Race, store: Store, *, commits: bool, way: str
) -> None:
    worker = await make_node(store)
    first, _ = [await enqueue(store, queue="q") for _ in range(2)]

    result = await race.run(claim_freely(race.ahead, worker, way, first), limit_queue(race.behind), commits=commits)

    assert result.second_waited
    request = ClaimRequest(worker, [HANDLER], 9, 9)
    after = await store.executions.claim_limited(request, "q", {("q", 50): FROM_THE_FIRST}, ClaimId(store.env.new_id()))
    assert len(after.executions) == (0 if commits else 1)
    assert len(await table(store, "running")) == 1


@by_each_way
@both_endings
async def test_a_claim_that_comes_while_a_limit_is_being_set_keeps_it(
    race: Race, store: Store, *, commits: bool, way: str
) -> None:
    worker = await make_node(store)
    only = await enqueue(store, queue="q")

    result = await race.run(limit_queue(race.ahead), claim_freely(race.behind, worker, way, only), commits=commits)

    assert result.second_waited
    assert len(result.second) == (0 if commits else 1)


@pytest.mark.parametrize("ahead", ["by lane", "by ticket", "by name"])
@pytest.mark.parametrize("behind", ["by ticket", "by name"])
@both_endings
async def test_two_claims_by_id_take_an_execution_once_without_waiting(
    race: Race, store: Store, *, commits: bool, ahead: str, behind: str
) -> None:
    one, other = await make_node(store), await make_node(store)
    only = await enqueue(store, queue="q")

    result = await race.run(
        claim_freely(race.ahead, one, ahead, only), claim_freely(race.behind, other, behind, only), commits=commits
    )

    assert not result.second_waited
    assert result.second == []
    assert len(await table(store, "running")) == (1 if commits else 0)
    await check_rooms(store)


async def test_a_limit_is_set_during_a_long_read(store: Store) -> None:
    """A backup or a verification blocks neither the new limit nor the claims after it."""
    await enqueue(store, queue="other")
    async with store.database.transaction() as reader:
        await reader.fetch("SELECT * FROM timeball.queue")

        await limit_queue(store)

        assert len(await claim_all(store)) == 1


@both_endings
async def test_two_unblock_at_the_limit_of_a_job(race: Race, store: Store, *, commits: bool) -> None:
    first = await enqueue(store, max_running=1, limit_key="l")
    for _ in range(3):
        await enqueue(store, max_running=1, limit_key="l")
    await store.database.fetch("cancel_waiting", ids=[first], reason="frees its place, without unblocking another")

    result = await race.run(
        race.ahead.executions.unblock(["l"]), race.behind.executions.unblock(["l"]), commits=commits
    )

    assert result.second_waited
    assert (len(await table(store, "ready")), len(await table(store, "blocked"))) == (1, 2)
    await check_rooms(store)


@both_endings
async def test_an_unblock_counts_what_another_is_unblocking(race: Race, store: Store, *, commits: bool) -> None:
    """Without the lock each would unblock another row without seeing that of the other."""
    first = await enqueue(store, max_running=1, limit_key="l")
    await enqueue(store, max_running=1, limit_key="l")
    await store.database.fetch("cancel_waiting", ids=[first], reason="frees its place, without unblocking another")
    urgent = await only_row(store, "blocked") | {"id": store.env.new_id(), "priority": 99}

    async def come_and_let_in() -> None:
        await put_row(race.behind, "blocked", **urgent)
        await race.behind.executions.unblock(["l"])

    result = await race.run(race.ahead.executions.unblock(["l"]), come_and_let_in(), commits=commits)

    assert result.second_waited
    (ready,) = await table(store, "ready")
    assert ready["priority"] == (50 if commits else 99)
    assert len(await table(store, "blocked")) == 1


@both_endings
async def test_a_claim_frees_no_place_during_an_unblock(race: Race, store: Store, *, commits: bool) -> None:
    """In any snapshot, an execution that is being claimed is in ready or in running."""
    for _ in range(2):
        await enqueue(store, max_running=1, limit_key="l")

    result = await race.run(claim(race.ahead), race.behind.executions.unblock(["l"]), commits=commits)

    assert not result.second_waited
    assert len(await table(store, "blocked")) == 1


@both_endings
async def test_a_limit_that_is_lowered_during_an_unblock(race: Race, store: Store, *, commits: bool) -> None:
    job = await make_job(store, max_running=2, limit_key="l")
    blocked = [_trigger(store, job) for _ in range(3)]
    await store.jobs.request(blocked, OPERATOR, "job.trigger")
    (running, _) = await claim_all(store)
    finished = await store.database.fetch("finish_succeeded", **_columns(running))
    assert finished[0]["accepted_count"] == 1

    result = await race.run(
        edit(race.ahead, job, max_running=1), race.behind.executions.unblock(["l"]), commits=commits
    )

    assert result.second_waited
    assert len(await table(store, "ready")) == (0 if commits else 1)


def say_less(store: Store) -> Awaitable[ExecutionId]:
    """A new job that lowers a shared limit; it is due later itself."""
    return enqueue(store, after=60, max_running=1, limit_key="l")


async def ready_and_running(store: Store) -> int:
    return len(await table(store, "ready")) + len(await table(store, "running"))


@pytest.mark.parametrize("claims_the_lazy_one", [True, False])
@both_endings
async def test_a_new_job_lowers_a_shared_limit_while_a_claim_is_under_way(
    race: Race, store: Store, *, commits: bool, claims_the_lazy_one: bool
) -> None:
    """Whichever of the two is being claimed counts, and the other is blocked."""
    worker = await make_node(store)
    urgent, lazy = [await enqueue(store, queue="q", priority=each, max_running=2, limit_key="l") for each in (99, 1)]
    first = claim_freely(race.ahead, worker, "by name", lazy if claims_the_lazy_one else urgent)

    result = await race.run(first, say_less(race.behind), commits=commits)

    # The less urgent one is blocked first: only if it is being claimed, the new job waits for the claim.
    assert result.second_waited == claims_the_lazy_one
    assert (await ready_and_running(store), len(await table(store, "blocked"))) == (1, 1)
    assert len(await table(store, "running")) == (1 if commits else 0)
    await check_rooms(store)


@both_endings
async def test_a_claim_comes_while_a_new_job_lowers_a_shared_limit(race: Race, store: Store, *, commits: bool) -> None:
    for _ in range(2):
        await enqueue(store, max_running=2, limit_key="l")

    await race.run(say_less(race.ahead), claim(race.behind), commits=commits)
    await claim(store)

    assert len(await table(store, "running")) == (1 if commits else 2)
    assert len(await table(store, "blocked")) == (1 if commits else 0)
    await check_rooms(store)


async def two_places_and_one_is_free(store: Store) -> None:
    first, *_ = [await enqueue(store, max_running=2, limit_key="l") for _ in range(3)]
    await store.database.fetch("cancel_waiting", ids=[first], reason="frees its place, without unblocking another")


@both_endings
async def test_a_new_job_lowers_a_shared_limit_during_an_unblock(race: Race, store: Store, *, commits: bool) -> None:
    """An execution that is being unblocked is seen only after the lock."""
    await two_places_and_one_is_free(store)

    result = await race.run(race.ahead.executions.unblock(["l"]), say_less(race.behind), commits=commits)

    assert result.second_waited
    assert (len(await table(store, "ready")), len(await table(store, "blocked"))) == (1, 1)
    await check_rooms(store)


@both_endings
async def test_an_unblock_comes_while_a_new_job_lowers_a_shared_limit(
    race: Race, store: Store, *, commits: bool
) -> None:
    await two_places_and_one_is_free(store)

    result = await race.run(say_less(race.ahead), race.behind.executions.unblock(["l"]), commits=commits)

    assert result.second_waited
    assert len(await table(store, "ready")) == (1 if commits else 2)
    await check_rooms(store)


@both_endings
async def test_two_new_jobs_lower_a_shared_limit(race: Race, store: Store, *, commits: bool) -> None:
    for _ in range(3):
        await enqueue(store, max_running=3, limit_key="l")

    def say_two(store: Store) -> Awaitable[ExecutionId]:
        return enqueue(store, after=60, max_running=2, limit_key="l")

    result = await race.run(say_two(race.ahead), say_less(race.behind), commits=commits)

    assert result.second_waited
    assert (len(await table(store, "ready")), len(await table(store, "blocked"))) == (1, 2)
    await check_rooms(store)


# renew and remove expired nodes


@both_endings
async def test_a_removal_of_expired_nodes_that_comes_after_a_renewal(
    race: Race, store: Store, env: Env, open_store: Callable[..., Awaitable[Store]], *, commits: bool
) -> None:
    incarnation = await make_node(store)
    env.clock.advance("14.9s")  # type: ignore[attr-defined]
    late = await open_store(Env(VirtualClock(env.clock.now() + seconds(1)), Random(2)))

    result = await race.run(race.ahead.nodes.renew(incarnation, 1), late.nodes.remove_expired(), commits=commits)

    assert result.second_waited
    assert [each for each, _, _ in result.second] == ([] if commits else [incarnation])
    assert len(await table(store, "node")) == (1 if commits else 0)


@both_endings
async def test_a_renewal_that_comes_after_a_removal(
    race: Race, store: Store, env: Env, open_store: Callable[..., Awaitable[Store]], *, commits: bool
) -> None:
    incarnation = await make_node(store)
    early = await open_store(Env(VirtualClock(env.clock.now()), Random(2)))
    env.clock.advance("15.1s")  # type: ignore[attr-defined]

    result = await race.run(race.ahead.nodes.remove_expired(), early.nodes.renew(incarnation, 1), commits=commits)

    assert result.second_waited
    assert (result.second is None) == commits
    assert len(await table(store, "node")) == (0 if commits else 1)


# take shards and take shards


@both_endings
async def test_two_schedulers_take_the_same_shard(race: Race, store: Store, *, commits: bool) -> None:
    one, other = [await make_node(store, NodeKind.SCHEDULER) for _ in range(2)]

    result = await race.run(
        race.ahead.nodes.take_shards(one, [3]), race.behind.nodes.take_shards(other, [3]), commits=commits
    )

    assert result.second == ({} if commits else {3: 1})
    row = (await table(store, "shard"))[3]
    assert (row["owner"], row["epoch"]) == (one if commits else other, 1)


# finish and cancel


@both_endings
async def test_a_request_to_stop_that_comes_after_the_finish(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)

    result = await race.run(
        race.ahead.executions.finish_succeeded([found(claimed)]), cancel(race.behind, execution), commits=commits
    )

    assert result.second_waited
    assert result.second == (set() if commits else {execution})
    assert await tables_of(store, execution) == ["finished" if commits else "running"]
    assert len(await table(store, "audit")) == (0 if commits else 1)


@both_endings
async def test_a_request_to_stop_that_comes_while_progress_is_stored(
    race: Race, store: Store, *, commits: bool
) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)

    result = await race.run(
        race.ahead.executions.report_progress(claimed, 0.5, "half"),
        race.behind.executions.stop([execution], "no"),
        commits=commits,
    )

    assert result.second_waited
    assert result.second == {execution}
    row = await only_row(store, "running")
    assert (row["stop"], row["progress"]) == ("no", 0.5 if commits else None)


@both_endings
async def test_a_finish_that_comes_after_the_request_to_stop(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)

    result = await race.run(
        cancel(race.ahead, execution), race.behind.executions.finish_succeeded([found(claimed)]), commits=commits
    )

    assert result.second_waited
    assert result.second == []  # it did succeed, and says so
    assert (await only_row(store, "finished"))["state"] == "succeeded"
    await check_rooms(store)


@both_endings
async def test_a_cancellation_reaches_an_execution_that_is_promoted_meanwhile(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, after=60)
    owner = await make_owner(store)
    clock.advance("60s")

    result = await race.run(promote_due(race.ahead, owner), cancel(race.behind, execution), commits=commits)

    assert result.second_waited
    assert result.second == {execution}
    assert (await only_row(store, "finished"))["state"] == "cancelled"
    await check_rooms(store)


@both_endings
async def test_a_cancellation_reaches_an_execution_that_is_claimed_meanwhile(
    race: Race, store: Store, *, commits: bool
) -> None:
    execution = await enqueue(store)

    result = await race.run(claim(race.ahead), cancel(race.behind, execution), commits=commits)

    assert result.second_waited
    assert result.second == {execution}
    assert await tables_of(store, execution) == ["running" if commits else "finished"]
    if commits:
        assert (await only_row(store, "running"))["stop"] == "not needed"


@both_endings
async def test_a_cancellation_reaches_an_execution_that_fails_meanwhile(
    race: Race, store: Store, *, commits: bool
) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)

    result = await race.run(
        record(race.ahead, [found(claimed, Failed(FAILURE))]), cancel(race.behind, execution), commits=commits
    )

    assert result.second_waited
    assert result.second == {execution}
    assert await tables_of(store, execution) == ["finished" if commits else "running"]


@both_endings
async def test_a_claim_that_comes_after_a_cancellation(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)

    result = await race.run(cancel(race.ahead, execution), claim(race.behind), commits=commits)

    assert not result.second_waited  # claim and cancel
    assert result.second == []
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]


# expiry


def expire(store: Store) -> Awaitable[dict[ExecutionId, JobId]]:
    return store.executions.expire_waiting(10)


@both_endings
async def test_a_claim_that_comes_while_an_execution_expires(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, start_within_seconds=5)
    clock.advance("5s")

    result = await race.run(expire(race.ahead), claim(race.behind), commits=commits)

    assert not result.second_waited
    assert result.second == []
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]


@both_endings
async def test_an_expiry_that_comes_while_an_execution_is_claimed(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, start_within_seconds=5)
    clock.advance("5s")

    result = await race.run(claim(race.ahead), expire(race.behind), commits=commits)

    assert not result.second_waited
    assert result.second == {}
    assert await tables_of(store, execution) == ["running" if commits else "ready"]
    await check_rooms(store)


@both_endings
async def test_a_promotion_that_comes_while_a_delayed_execution_expires(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, 10, start_within_seconds=5)
    owner = await make_owner(store)
    clock.advance("15s")
    plan = await plan_row(store, await due_row(store, JobId(execution)))

    result = await race.run(expire(race.ahead), promote(race.behind, [plan], owner), commits=commits)

    promoted = await promoted_again(result, promote(race.behind, [plan], owner))
    assert promoted == (set() if commits else {execution})
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]


@both_endings
async def test_an_expiry_that_comes_while_a_delayed_execution_is_promoted(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, 10, start_within_seconds=5)
    owner = await make_owner(store)
    clock.advance("15s")
    plan = await plan_row(store, await due_row(store, JobId(execution)))

    result = await race.run(promote(race.ahead, [plan], owner), expire(race.behind), commits=commits)

    assert not result.second_waited
    assert result.second == {}
    assert await tables_of(store, execution) == ["ready" if commits else "due"]


@both_endings
async def test_an_unblock_that_comes_while_an_execution_expires(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    holder = await enqueue(store, max_running=1, limit_key="l")
    execution = await enqueue(store, max_running=1, limit_key="l", start_within_seconds=5)
    (claimed,) = await claim_all(store)
    assert claimed.id == holder
    clock.advance("5s")
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.running_limit SET max_running = 2")

    result = await race.run(expire(race.ahead), race.behind.executions.unblock(["l"]), commits=commits)

    assert not result.second_waited
    await store.executions.unblock(["l"])  # as the reaper does
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]
    await check_rooms(store)


@both_endings
async def test_two_sweeps_expire_an_execution_once(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    execution = await enqueue(store, start_within_seconds=5, unique_key="k")
    clock.advance("5s")

    result = await race.run(expire(race.ahead), expire(race.behind), commits=commits)

    assert not result.second_waited
    assert result.second == {}
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]


# finish and reap


@both_endings
async def test_a_reaper_that_comes_after_the_finish(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)
    worker = await make_node(store)
    (claimed,) = await claim_all(store, worker=worker)
    await store.nodes.remove(worker)
    (orphan,) = await store.executions.orphans(10)
    lost = found(orphan.claimed, Lost(FAILURE))

    result = await race.run(
        race.ahead.executions.finish_succeeded([found(claimed)]), record(race.behind, [lost]), commits=commits
    )

    assert result.second_waited
    assert result.second == ([lost] if commits else [])
    assert await tables_of(store, execution) == ["finished" if commits else "ready"]
    assert len(await table(store, "attempt")) == (0 if commits else 1)


@both_endings
async def test_a_finish_that_comes_after_the_reaper(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)
    worker = await make_node(store)
    (claimed,) = await claim_all(store, worker=worker)
    await store.nodes.remove(worker)
    (orphan,) = await store.executions.orphans(10)
    late = found(claimed)

    result = await race.run(
        record(race.ahead, [found(orphan.claimed, Lost(FAILURE))]),
        race.behind.executions.finish_succeeded([late]),
        commits=commits,
    )

    assert result.second_waited
    assert result.second == ([late] if commits else [])
    assert await tables_of(store, execution) == ["ready" if commits else "finished"]


@both_endings
async def test_two_outcomes_of_one_claim(race: Race, store: Store, *, commits: bool) -> None:
    execution = await enqueue(store)
    (claimed,) = await claim_all(store)
    ended = found(claimed, CancelOutcome("no"))

    result = await race.run(
        record(race.ahead, [found(claimed, Failed(FAILURE))]), record(race.behind, [ended]), commits=commits
    )

    assert result.second == ([ended] if commits else [])
    assert await tables_of(store, execution) == ["due" if commits else "finished"]


# batches: in the order of ids, so that two of them do not wait for each other


async def turn_over(store: Store, state_table: str) -> list[ExecutionId]:
    """Write the rows of a table anew, so that they lie in the opposite order of their ids; returns the ids, the last first."""
    async with store.database.connection() as connection:
        await connection.execute(
            f"WITH gone AS (DELETE FROM timeball.{state_table} RETURNING *) "
            f"INSERT INTO timeball.{state_table} SELECT * FROM gone ORDER BY id DESC"
        )
        return [row["id"] for row in await connection.fetch(f"SELECT id FROM timeball.{state_table} ORDER BY id DESC")]


async def locks_the_first_before_any_other(
    race: Race, state_table: str, ids: Sequence[ExecutionId], batch: Awaitable[Any]
) -> Any:
    """Let a batch wait for its smallest id, which is locked, and check whether it has locked another one by then."""
    row = f"SELECT id FROM timeball.{state_table} WHERE id = ANY ($1) FOR UPDATE"
    async with race.ahead.database.connection() as holder:
        async with holder.transaction():
            assert await holder.fetch(row, [ids[-1]])
            task = asyncio.ensure_future(batch)
            assert await race._waits_for(holder.get_server_pid(), task)
            async with race.observer.transaction():
                free = await race.observer.fetch(f"{row} SKIP LOCKED", ids[:-1])
            assert {each["id"] for each in free} == set(ids[:-1])
        return await asyncio.wait_for(task, PATIENCE_SECONDS)


@pytest.mark.parametrize("verb", ["finish_succeeded", "record_transitions", "stop", "stop_jobs"])
async def test_a_batch_of_running_executions_is_locked_in_the_order_of_ids(race: Race, store: Store, verb: str) -> None:
    job = await make_job(store)
    for _ in range(5):
        await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger")
    claims = {claimed.id: claimed for claimed in await claim_all(store)}
    ids = await turn_over(store, "running")
    batch: dict[str, Callable[[], Awaitable[Any]]] = {
        "finish_succeeded": lambda: store.executions.finish_succeeded([found(claims[id_]) for id_ in ids]),
        "record_transitions": lambda: record(store, [found(claims[id_], Lost(FAILURE)) for id_ in ids]),
        "stop": lambda: store.executions.stop(ids, "enough"),
        "stop_jobs": lambda: store.executions.stop_jobs([job.id], "enough"),
    }

    done = await locks_the_first_before_any_other(race, "running", ids, batch[verb]())

    assert done == (set(ids) if verb.startswith("stop") else [])


async def test_both_transactions_of_a_deadlock_succeed(race: Race, store: Store) -> None:
    """A deadlock: the database cancels one of the two, which is repeated."""
    ids = [await enqueue(store) for _ in range(2)]
    both_have_one = asyncio.Barrier(2)
    tries: list[ExecutionId] = []

    async def take(party: Store, order: Sequence[ExecutionId]) -> None:
        async def work(connection: Connection) -> None:
            tries.append(order[0])
            await connection.execute("UPDATE timeball.ready SET lost = lost + 1 WHERE id = $1", order[0])
            if tries.count(order[0]) == 1:
                await both_have_one.wait()
            await connection.execute("UPDATE timeball.ready SET lost = lost + 1 WHERE id = $1", order[1])

        await party.database.repeat(work)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(take(race.ahead, ids), take(race.behind, ids[::-1]))

    # Or more: the repeated one may meet the other once more.
    assert len(tries) >= 3
    assert [row["lost"] for row in await table(store, "ready")] == [2, 2]


async def test_a_statement_that_met_a_deadlock_is_repeated(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await enqueue(store)
    (claimed,) = await claim_all(store)
    run, tries = store.database._run, 0

    async def unlucky(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        return await run(*arguments)

    monkeypatch.setattr(store.database, "_run", unlucky)

    assert await store.executions.finish_succeeded([found(claimed)]) == []
    assert tries == 4


# requests and retries


async def given_to_a_worker(store: Store) -> tuple[Job, ClaimedExecution]:
    job = await make_job(store)
    await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger")
    (claimed,) = await claim_all(store)
    return job, claimed


def say(word: str, store: Store, job: Job, claimed: ClaimedExecution) -> Awaitable[object]:
    if word == "cancel":
        return cancel(store, claimed.id)
    return pause(store, job) if word == "pause" else delete(store, job)


both_again = pytest.mark.parametrize(
    ("word", "outcome"),
    [("pause", Lost(FAILURE)), ("delete", Lost(FAILURE)), ("cancel", Lost(FAILURE)), ("delete", Failed(FAILURE))],
    ids=["pause-lost", "delete-lost", "cancel-lost", "delete-failed"],
)


@both_again
@both_endings
async def test_an_outcome_waits_for_a_request_and_is_decided_again(
    race: Race, store: Store, *, word: str, outcome: Outcome, commits: bool
) -> None:
    """Otherwise a lost execution would run again although a pause or cancellation came before."""
    job, claimed = await given_to_a_worker(store)
    finding = found(claimed, outcome)
    moves = await moves_of(store, [finding])

    result = await race.run(
        say(word, race.ahead, job, claimed), race.behind.executions.record_transitions(moves), commits=commits
    )

    assert result.second_waited
    assert result.second == ([finding] if commits else [])
    if commits:
        assert await tables_of(store, claimed.id) == ["running"]
        assert await record(store, [finding]) == []
        assert await tables_of(store, claimed.id) == ["due" if word == "pause" else "finished"]
    else:
        assert await tables_of(store, claimed.id) == ["ready" if isinstance(outcome, Lost) else "due"]


@both_again
async def test_an_outcome_decided_before_a_request_is_decided_again(
    store: Store, *, word: str, outcome: Outcome
) -> None:
    """Without any lock wait: only the comparison with the facts of the decision shows the request."""
    job, claimed = await given_to_a_worker(store)
    finding = found(claimed, outcome)
    moves = await moves_of(store, [finding])
    await say(word, store, job, claimed)

    assert await store.executions.record_transitions(moves) == [finding]
    assert await tables_of(store, claimed.id) == ["running"]


@both_again
@both_endings
async def test_a_request_during_an_outcome_finds_the_execution_in_its_new_table(
    race: Race, store: Store, *, word: str, outcome: Outcome, commits: bool
) -> None:
    job, claimed = await given_to_a_worker(store)

    result = await race.run(
        record(race.ahead, [found(claimed, outcome)]), say(word, race.behind, job, claimed), commits=commits
    )

    assert result.second_waited
    if commits:
        assert await tables_of(store, claimed.id) == ["due" if word == "pause" else "finished"]
        assert {row["run_at"] for row in await table(store, "due")} <= {PARKED_AT}
    else:
        assert await tables_of(store, claimed.id) == ["running"]


@both_endings
async def test_a_pause_reaches_an_execution_that_a_former_limit_unblocks_meanwhile(
    race: Race, store: Store, *, commits: bool
) -> None:
    job = await make_job(store, max_running=1, limit_key="l")
    first, second = _trigger(store, job), _trigger(store, job)
    await store.jobs.request([first, second], OPERATOR, "job.trigger")
    await store.database.fetch("cancel_waiting", ids=[first.id], reason="frees its place, without unblocking another")
    await edit(store, job, limit_key="other")
    assert await tables_of(store, second.id) == ["blocked"]

    result = await race.run(race.ahead.executions.unblock(["l"]), pause(race.behind, job), commits=commits)

    assert result.second_waited
    assert (await only_row(store, "due"))["run_at"] == PARKED_AT


# unique_key and finish


def enqueue_again(store: Store) -> Awaitable[list[CreatedJob]]:
    job = define_job(store, name=None, scheduled_at=store.env.clock.now(), unique_key="k")
    first = first_execution_of(job, store.env.clock.now())
    assert first is not None
    return store.enqueuer.create([job], [first])


@both_endings
async def test_an_enqueue_that_comes_after_the_holder_of_its_key_finished(
    race: Race, store: Store, *, commits: bool
) -> None:
    holder = await enqueue(store, unique_key="k")
    (claimed,) = await claim_all(store)

    result = await race.run(
        race.ahead.executions.finish_succeeded([found(claimed)]), enqueue_again(race.behind), commits=commits
    )

    (created,) = result.second
    assert result.second_waited
    assert created.is_new == commits
    assert (created.execution_id == holder) != commits
    assert (await only_row(store, "live_key"))["execution_id"] == created.execution_id
    assert await tables_of(store, created.execution_id) == ["ready" if commits else "running"]


@both_endings
async def test_a_finish_that_comes_after_an_enqueue_with_its_key(race: Race, store: Store, *, commits: bool) -> None:
    """The enqueue finds the key taken and writes nothing; when it looks up the execution of the key, the key is free."""
    await enqueue(store, unique_key="k")
    (claimed,) = await claim_all(store)

    result = await race.run(
        enqueue_again(race.ahead),
        race.behind.executions.finish_succeeded([found(claimed)]),
        commits=commits,
        at_reads=True,
    )

    assert not result.second_waited
    assert result.second == []
    made = [each.execution_id for each in result.first or () if each.is_new]
    assert len(made) == (1 if commits else 0)
    assert [row["id"] for row in await table(store, "ready")] == made
    assert [row["execution_id"] for row in await table(store, "live_key")] == made


@both_endings
async def test_a_trigger_that_comes_after_the_holder_of_its_key_finished(
    race: Race, store: Store, *, commits: bool
) -> None:
    job = await make_job(store, unique_key="k")
    await ask_for(store, job.id)
    (claimed,) = await claim_all(store)

    result = await race.run(
        race.ahead.executions.finish_succeeded([found(claimed)]), ask_for(race.behind, job.id), commits=commits
    )

    assert result.second_waited
    assert (result.second is None) != commits
    assert len(await table(store, "ready")) == (1 if commits else 0)
    holder = (await only_row(store, "live_key"))["execution_id"]
    assert (holder == claimed.id) != commits


async def ask_for(store: Store, job_id: JobId) -> list[ExecutionId] | None:
    wanted = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job_id, origin=Origin.TRIGGER)
    try:
        return await store.jobs.request([wanted], OPERATOR, "job.trigger")
    except (Conflict, NotFound):
        return None


@both_endings
async def test_two_enqueues_with_one_key(race: Race, store: Store, *, commits: bool) -> None:
    result = await race.run(enqueue_again(race.ahead), enqueue_again(race.behind), commits=commits)

    (second,) = result.second
    assert result.second_waited
    assert second.is_new != commits
    row = await only_row(store, "ready")
    assert row["id"] == second.execution_id == (await only_row(store, "live_key"))["execution_id"]


@both_endings
async def test_an_occurrence_whose_key_is_freed_meanwhile(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    await enqueue(store, unique_key="k")
    (claimed,) = await claim_all(store)
    job = await make_recurring(store, 60, unique_key="k")
    owner = await make_owner(store)
    clock.advance("60s")

    result = await race.run(
        race.ahead.executions.finish_succeeded([found(claimed, Succeeded())]),
        promote_due(race.behind, owner),
        commits=commits,
    )

    assert result.second_waited
    row = await only_row(store, "ready" if commits else "finished")
    assert (row["job_id"], row.get("reason")) == (job.id, None if commits else "unique_key")
    await check(store, job)


def _trigger(store: Store, job: Job) -> ExecutionRequest:
    return ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)


async def _retrying_of_paused(store: Store, clock: VirtualClock) -> tuple[Job, DueRow]:
    """A paused job with an attempt that has failed since, and the row that the scheduler reads."""
    job = await make_job(store)
    await store.jobs.request([_trigger(store, job)], OPERATOR, "job.trigger")
    (claimed,) = await claim_all(store)
    await pause(store, job)
    await record(store, [found(claimed, Failed(FAILURE))])
    clock.advance("1h")
    return job, await due_row(store, job.id)


def _columns(claimed: ClaimedExecution) -> dict[str, Any]:
    """The arguments of the statement `finish_succeeded`, without the unblock that follows it."""
    finding = found(claimed)
    return {
        "ids": [claimed.id],
        "fences": [claimed.fence],
        "claim_ids": [claimed.claim_id],
        "started": [finding.started_at],
        "finished": [finding.finished_at],
        "results": [None],
    }


# a requested execution, and the janitor


async def spent_one_off(store: Store) -> tuple[JobId, int]:
    """A one-off whose only execution is in a partition that is about to be dropped."""
    job_id = JobId(await enqueue(store))
    await store.executions.finish_succeeded([found(claimed) for claimed in await claim_all(store)])
    async with store.database.connection() as connection:
        return job_id, await connection.fetchval("SELECT 'timeball.finished_default'::regclass::oid")


@both_endings
async def test_the_janitor_comes_after_a_retry_of_the_job_that_it_deletes(
    race: Race, store: Store, *, commits: bool
) -> None:
    job_id, partition = await spent_one_off(store)

    result = await race.run(
        ask_for(race.ahead, job_id),
        race.behind.retention.one_offs([job_id], partition, own_is_there=True),
        commits=commits,
    )

    assert result.second_waited
    assert result.second == (0 if commits else 1)
    assert len(await table(store, "job")) == len(await table(store, "ready")) == (1 if commits else 0)


@both_endings
async def test_a_retry_comes_after_the_janitor_has_deleted_its_job(race: Race, store: Store, *, commits: bool) -> None:
    job_id, partition = await spent_one_off(store)

    result = await race.run(
        race.ahead.retention.one_offs([job_id], partition, own_is_there=True),
        ask_for(race.behind, job_id),
        commits=commits,
    )

    assert result.second_waited
    assert (result.second is None) == commits
    assert len(await table(store, "job")) == len(await table(store, "ready")) == (0 if commits else 1)


# an unused limit, and the janitor


async def unused_limit(store: Store) -> None:
    await store.database.fetch("set_limits", limits=json_text([{"key": "l", "max_running": 1}]))


def limited(store: Store) -> Awaitable[Any]:
    return enqueue(store, max_running=1, limit_key="l")


@both_endings
async def test_a_place_is_passed_on_while_a_caller_enqueues_with_the_same_limit(
    race: Race, store: Store, *, commits: bool
) -> None:
    """The caller's transaction may take long."""
    await limited(store)
    waiting = await limited(store)
    (running,) = await claim_all(store)

    result = await race.run(limited(race.ahead), finish(race.behind, running), commits=commits)

    assert not result.second_waited
    assert await tables_of(store, waiting) == ["ready"]
    assert len(await table(store, "blocked")) == (1 if commits else 0)


@both_endings
async def test_a_place_is_passed_on_while_a_caller_changes_what_waits_for_it(
    race: Race, store: Store, *, commits: bool
) -> None:
    await limited(store)
    waiting = await again(store, 1, max_running=1, limit_key="l")
    (running,) = await claim_all(store)

    result = await race.run(
        again(race.ahead, 2, max_running=1, limit_key="l"), finish(race.behind, running), commits=commits
    )

    assert not result.second_waited
    if not commits:
        await store.executions.unblock(["l"])  # as the reaper does
    assert await tables_of(store, waiting.execution_id) == ["ready"]
    assert await arguments_of_waiting(store) == [2 if commits else 1]


@both_endings
async def test_two_ends_that_are_followed_by_calls_with_one_limit_do_not_wait_for_each_other(
    race: Race, store: Store, *, commits: bool
) -> None:
    """A batch of outcomes names limits in the order of its executions. With a lock on each two batches would meet a deadlock."""
    await store.database.fetch("set_limits", limits=json_text([{"key": "l", "max_running": 1}]))
    call = {"handler": "after", "payload": {}, "max_running": 1, "limit_key": "l"}
    for _ in range(2):
        await enqueue(store, on_success=call)
    one, other = await claim_all(store)

    result = await race.run(finish(race.ahead, one), finish(race.behind, other), commits=commits)

    assert not result.second_waited
    assert len(await table(store, "ready")) == 1
    assert len(await table(store, "blocked")) == (1 if commits else 0)


@both_endings
async def test_the_janitor_comes_while_a_call_that_follows_names_a_limit(
    race: Race, store: Store, *, commits: bool
) -> None:
    await unused_limit(store)
    await enqueue(store, on_success={"handler": "after", "payload": {}, "max_running": 1, "limit_key": "l"})
    (claimed,) = await claim_all(store)

    result = await race.run(finish(race.ahead, claimed), race.behind.retention.limits(), commits=commits)

    assert result.second_waited
    assert result.second == (0 if commits else 1)
    assert len(await table(store, "ready")) == len(await table(store, "running_limit")) == (1 if commits else 0)


@both_endings
async def test_the_janitor_comes_while_a_job_begins_to_use_a_limit(race: Race, store: Store, *, commits: bool) -> None:
    await unused_limit(store)

    result = await race.run(limited(race.ahead), race.behind.retention.limits(), commits=commits)

    assert result.second_waited
    assert result.second == (0 if commits else 1)
    await race.behind.executions.unblock(["l"])
    assert len(await table(store, "ready")) == len(await table(store, "running_limit")) == (1 if commits else 0)


@both_endings
async def test_a_job_begins_to_use_a_limit_that_the_janitor_deletes(race: Race, store: Store, *, commits: bool) -> None:
    await unused_limit(store)

    result = await race.run(race.ahead.retention.limits(), limited(race.behind), commits=commits)

    assert result.second_waited
    assert len(await table(store, "ready")) == len(await table(store, "running_limit")) == 1


# enqueues with a key that is taken


async def again(store: Store, number: int, policy: str = "replace", **fields: Any) -> CreatedJob:
    """One more enqueue with the key `k`, whose argument is a number."""
    now = store.env.clock.now()
    fields = {"payload": {"n": number}, "unique_key": "k", "if_exists": policy, "scheduled_at": now} | fields
    job = define_job(store, name=None, **fields)
    first = first_execution_of(job, now)
    assert first is not None
    (created,) = await store.enqueuer.create([job], [first])
    return created


async def arguments_of_waiting(store: Store) -> list[int]:
    """What each of the executions that wait would be given."""
    waiting = [row for name in ("due", "ready") for row in await table(store, name)]
    jobs = {row["id"]: row["payload"] for row in await table(store, "job")}
    return [json.loads(row["payload"] or jobs[row["id"]])["n"] for row in waiting]


async def finish(store: Store, claimed: ClaimedExecution) -> None:
    await store.executions.finish_succeeded([found(claimed)])


@both_endings
@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_a_claim_that_comes_while_what_waits_is_given_new_arguments(
    race: Race, store: Store, policy: str, *, commits: bool
) -> None:
    await again(store, 1)

    result = await race.run(again(race.ahead, 2, policy), claim(race.behind), commits=commits)

    assert (result.second_waited, result.second) == (False, [])
    assert await arguments_of_waiting(store) == [2 if commits else 1]
    await check_rooms(store)


@both_endings
@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_new_arguments_that_come_while_what_waits_is_claimed(
    race: Race, store: Store, policy: str, *, commits: bool
) -> None:
    first = await again(store, 1)

    result = await race.run(claim(race.ahead), again(race.behind, 2, policy), commits=commits)

    assert result.second_waited
    assert result.second.is_new == commits
    assert (result.second.execution_id == first.execution_id) != commits
    assert await arguments_of_waiting(store) == [2]
    assert len(await table(store, "running")) == (1 if commits else 0)


@both_endings
@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_new_arguments_that_come_while_what_waits_is_promoted(
    race: Race, store: Store, clock: VirtualClock, policy: str, *, commits: bool
) -> None:
    first = await again(store, 1, scheduled_at=clock.now() + seconds(10))
    owner = await make_owner(store)
    clock.advance("10s")
    plan = await plan_row(store, await due_row(store, first.job_id))

    result = await race.run(promote(race.ahead, [plan], owner), again(race.behind, 2, policy), commits=commits)

    assert result.second_waited
    assert (result.second.execution_id, result.second.is_new) == (first.execution_id, False)
    assert await arguments_of_waiting(store) == [2]
    await check_rooms(store)


@both_endings
@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_a_promotion_that_comes_while_what_waits_is_given_new_arguments(
    race: Race, store: Store, clock: VirtualClock, policy: str, *, commits: bool
) -> None:
    first = await again(store, 1, scheduled_at=clock.now() + seconds(10))
    owner = await make_owner(store)
    clock.advance("10s")
    plan = await plan_row(store, await due_row(store, first.job_id))

    result = await race.run(again(race.ahead, 2, policy), promote(race.behind, [plan], owner), commits=commits)

    await promoted_again(result, promote(race.behind, [plan], owner))
    assert await tables_of(store, first.execution_id) == ["ready"]
    assert await arguments_of_waiting(store) == [2 if commits else 1]


@both_endings
async def test_new_arguments_that_come_while_what_waits_is_cancelled(
    race: Race, store: Store, *, commits: bool
) -> None:
    first = await again(store, 1)

    result = await race.run(cancel(race.ahead, first.execution_id), again(race.behind, 2), commits=commits)

    assert result.second_waited
    assert result.second.is_new == commits
    assert await arguments_of_waiting(store) == [2]
    await check_rooms(store)


@both_endings
@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_a_cancellation_that_comes_while_what_waits_is_given_new_arguments(
    race: Race, store: Store, policy: str, *, commits: bool
) -> None:
    first = await again(store, 1, unique_for_seconds=60)

    result = await race.run(again(race.ahead, 2, policy), cancel(race.behind, first.execution_id), commits=commits)

    assert result.second_waited
    assert result.second == {first.execution_id}
    assert await tables_of(store, first.execution_id) == ["finished"]
    (key,) = await table(store, "live_key")
    assert key["has_ended"]


@both_endings
async def test_new_arguments_that_come_while_what_runs_ends(race: Race, store: Store, *, commits: bool) -> None:
    await again(store, 1)
    (running,) = await claim_all(store)

    result = await race.run(finish(race.ahead, running), again(race.behind, 2), commits=commits)

    assert not result.second_waited
    assert result.second.is_new
    assert await arguments_of_waiting(store) == [2]
    await promote_due(store, await make_owner(store))
    assert await tables_of(store, result.second.execution_id) == ["ready" if commits else "due"]


@both_endings
async def test_what_runs_ends_without_waiting_for_an_enqueue_that_comes_after_it(
    race: Race, store: Store, *, commits: bool
) -> None:
    """The transaction of the enqueue may be a program's own, and take long."""
    await again(store, 1)
    (running,) = await claim_all(store)

    result = await race.run(again(race.ahead, 2), finish(race.behind, running), commits=commits)

    assert not result.second_waited
    assert await tables_of(store, running.id) == ["finished"]
    assert await table(store, "live_key") == []
    assert await arguments_of_waiting(store) == ([2] if commits else [])
    assert await promote_due(store, await make_owner(store)) == ({result.first.execution_id} if commits else set())


@both_endings
async def test_two_that_come_after_what_runs_are_one(race: Race, store: Store, *, commits: bool) -> None:
    await again(store, 1)
    await claim_all(store)

    result = await race.run(again(race.ahead, 2), again(race.behind, 3), commits=commits)

    assert result.second_waited
    assert result.second.is_new != commits
    assert await arguments_of_waiting(store) == [3]


@both_endings
async def test_two_that_meet_a_key_that_is_held_no_longer_are_one(
    race: Race, store: Store, clock: VirtualClock, *, commits: bool
) -> None:
    await again(store, 1, unique_for_seconds=60)
    await finish(store, *await claim_all(store))
    clock.advance("60s")

    result = await race.run(again(race.ahead, 2, "keep"), again(race.behind, 3, "keep"), commits=commits)

    assert result.second_waited
    (waiting,) = await table(store, "ready")
    # The first forgets the key in a transaction of its own: then either may be the one that takes it.
    made = [created for created in (result.first, result.second) if created is not None]
    assert [created.execution_id for created in made] == [waiting["id"]] * len(made)
    assert sum(created.is_new for created in made) == 1


@both_endings
async def test_an_enqueue_that_comes_while_a_key_is_about_to_be_held(
    race: Race, store: Store, *, commits: bool
) -> None:
    """Between the deletion of the key and its return there is no gap."""
    first = await again(store, 1, unique_for_seconds=60)
    (running,) = await claim_all(store)

    result = await race.run(finish(race.ahead, running), again(race.behind, 2, "keep"), commits=commits)

    assert (result.second.execution_id, result.second.is_new) == (first.execution_id, False)


@both_endings
async def test_the_one_that_waits_for_a_key_and_another_enqueue_do_not_both_get_it(
    race: Race, store: Store, *, commits: bool
) -> None:
    await again(store, 1)
    (running,) = await claim_all(store)
    second = await again(store, 2)
    owner = await make_owner(store)
    await finish(store, running)
    plan = await plan_row(store, await due_row(store, second.job_id))

    result = await race.run(promote(race.ahead, [plan], owner), again(race.behind, 3, "keep"), commits=commits)

    assert result.second_waited
    assert result.second.is_new != commits
    (key,) = await table(store, "live_key")
    assert key["execution_id"] == result.second.execution_id
    assert (result.second.execution_id == second.execution_id) == commits


@both_endings
async def test_what_waits_for_a_key_waits_on_if_another_enqueue_gets_it(
    race: Race, store: Store, *, commits: bool
) -> None:
    await again(store, 1)
    (running,) = await claim_all(store)
    second = await again(store, 2)
    owner = await make_owner(store)
    await finish(store, running)
    plan = await plan_row(store, await due_row(store, second.job_id))

    result = await race.run(again(race.ahead, 3, "keep"), promote(race.behind, [plan], owner), commits=commits)

    assert result.second_waited
    assert result.second == {second.execution_id}
    assert await tables_of(store, second.execution_id) == ["due" if commits else "ready"]
    await check_rooms(store)


# groups


@both_endings
@pytest.mark.parametrize("is_chain", [False, True], ids=["calls", "chains"])
async def test_two_ends_of_the_last_parts_of_a_group_do_not_wait_for_each_other(
    race: Race, store: Store, *, is_chain: bool, commits: bool
) -> None:
    part = {"handler": HANDLER, "payload": {}}
    work = {"group": [{"chain": [part]} if is_chain else part] * 2, "then": part | {"queue": "then"}}
    group_id = await Commands(store, store.env).groups.begin(work)
    one, other = await claim_all(store)

    result = await race.run(finish(race.ahead, one), finish(race.behind, other), commits=commits)

    assert not result.second_waited
    if not commits:
        assert await table(store, "ready") == []
        await finish(store, one)
    assert [row["queue"] for row in await table(store, "ready")] == ["then"]
    status = await store.follow_ups.find_group(group_id)
    assert status is not None
    assert (status.state, status.succeeded) == ("succeeded", 2)
    assert await holds_after(store)


async def a_chain_under_way(store: Store) -> tuple[UUID, ClaimedExecution]:
    """A chain whose first step runs."""
    step = {"handler": HANDLER, "payload": {}}
    group_id = await Commands(store, store.env).groups.begin({"group": [{"chain": [step, step]}]})
    (claimed,) = await claim_all(store)
    return group_id, claimed


@both_endings
async def test_a_cancellation_of_a_group_that_comes_while_a_step_succeeds(
    race: Race, store: Store, *, commits: bool
) -> None:
    group_id, claimed = await a_chain_under_way(store)

    result = await race.run(
        finish(race.ahead, claimed), Commands(race.behind, race.behind.env).groups.cancel(group_id), commits=commits
    )

    assert result.second_waited
    assert await table(store, "ready") == []
    if not commits:
        await finish(store, claimed)
    status = await store.follow_ups.find_group(group_id)
    assert (status.state if status else None, await table(store, "ready")) == ("failed", [])
    assert await holds_after(store)


@both_endings
async def test_a_step_that_succeeds_while_its_group_is_cancelled(race: Race, store: Store, *, commits: bool) -> None:
    group_id, claimed = await a_chain_under_way(store)

    result = await race.run(race.ahead.follow_ups.cancel_group(group_id), finish(race.behind, claimed), commits=commits)

    assert result.second_waited
    assert len(await table(store, "ready")) == (0 if commits else 1)
    status = await store.follow_ups.find_group(group_id)
    assert status is not None
    assert status.state == ("failed" if commits else "open")
    assert await holds_after(store)


# jobs that come after another


def come_after(store: Store, job: Job, cause: str) -> Awaitable[JobChange]:
    fields = {"after": cause}
    return store.jobs.change(
        job.id, lambda found: job_changes.edit_job(found, fields, store.shards), OPERATOR, cause=cause
    )


async def refused(change: Awaitable[JobChange]) -> str | None:
    """Why a change is refused; None if it is made."""
    try:
        await change
    except InvalidInput as error:
        return str(error)
    return None


async def instants_after(store: Store, job: Job) -> list[tuple[str, str]]:
    """The state tables of the executions of a job that came by a success, each with its origin."""
    return [
        (name, row["origin"])
        for name in ("due", "ready", "blocked", "running", "finished")
        for row in await table(store, name)
        if row["job_id"] == job.id
    ]


async def holds_after(store: Store) -> bool:
    return (await verify(store.database)).check("follow-ups").holds


@both_endings
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="".join)
async def test_two_edits_at_once_close_no_circle(
    race: Race, store: Store, order: tuple[str, str], *, commits: bool
) -> None:
    jobs = {name: await make_recurring(store, name=name) for name in order}
    first, second = order

    result = await race.run(
        come_after(race.ahead, jobs[first], second),
        refused(come_after(race.behind, jobs[second], first)),
        commits=commits,
    )

    assert result.second_waited
    assert (result.second is not None and "makes a circle" in result.second) == commits


@both_endings
async def test_three_edits_at_once_close_no_circle(race: Race, store: Store, *, commits: bool) -> None:
    a, b, c = [await make_recurring(store, name=name) for name in "abc"]
    await come_after(store, b, "a")

    result = await race.run(come_after(race.ahead, c, "b"), refused(come_after(race.behind, a, "c")), commits=commits)

    assert result.second_waited
    assert (result.second is not None) == commits


@both_endings
async def test_two_edits_that_touch_no_job_of_each_other_close_no_circle(
    race: Race, store: Store, *, commits: bool
) -> None:
    """b comes after c, and d after a: none of the rows that the one edit locks is one of the other's."""
    a, b, c, d = [await make_recurring(store, name=name) for name in "abcd"]
    await come_after(store, b, "c")
    await come_after(store, d, "a")

    result = await race.run(come_after(race.ahead, a, "b"), refused(come_after(race.behind, c, "d")), commits=commits)

    assert result.second_waited
    assert (result.second is not None and "makes a circle" in result.second) == commits


@both_endings
async def test_a_job_that_is_to_come_after_one_that_is_being_promoted(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    after = await make_job(store)

    result = await race.run(
        scheduled.promote(race.ahead), come_after(race.behind, after, scheduled.job.name or ""), commits=commits
    )

    assert result.second_waited
    assert [row["has_follow_ups"] for row in await table(store, "due")] == [True]
    # What was promoted before is not followed; what is promoted later is.
    if not commits:
        await scheduled.promote(store)
    await record(store, [found(one, Succeeded("null")) for one in await claim_all(store)])
    assert await instants_after(store, after) == ([] if commits else [("ready", "after")])
    assert await holds_after(store)


@both_endings
async def test_a_promotion_of_a_job_that_another_one_is_about_to_come_after(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    after = await make_job(store)

    await race.run(
        come_after(race.ahead, after, scheduled.job.name or ""), scheduled.promote(race.behind), commits=commits
    )

    await scheduled.promote(store)
    await record(store, [found(one, Succeeded("null")) for one in await claim_all(store)])
    assert await instants_after(store, after) == ([("ready", "after")] if commits else [])
    assert await holds_after(store)


@both_endings
async def test_a_backfill_of_a_job_that_another_one_is_about_to_come_after(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    after = await make_job(store)
    instant = scheduled.plan.row.scheduled_for
    request = ExecutionRequest(
        id=ExecutionId(store.env.new_id()), job_id=scheduled.job.id, origin=Origin.BACKFILL, scheduled_for=instant
    )

    result = await race.run(
        come_after(race.ahead, after, scheduled.job.name or ""),
        race.behind.jobs.request([request], OPERATOR, "test"),
        commits=commits,
    )

    assert result.second_waited
    await record(store, [found(one, Succeeded("null")) for one in await claim_all(store)])
    assert await instants_after(store, after) == ([("ready", "after")] if commits else [])
    assert await holds_after(store)


@pytest.fixture
async def followed(store: Store, scheduled: Scheduled) -> tuple[Job, list[ClaimedExecution]]:
    """A job that comes after another, of which an occurrence runs twice: as scheduled, and once more."""
    after = await make_job(store, after=scheduled.job.name)
    await scheduled.promote(store)
    instant = scheduled.plan.row.scheduled_for
    again = ExecutionRequest(
        id=ExecutionId(store.env.new_id()), job_id=scheduled.job.id, origin=Origin.BACKFILL, scheduled_for=instant
    )
    await store.jobs.request([again], OPERATOR, "test")
    return after, await claim_all(store)


@both_endings
@pytest.mark.parametrize("turn", [1, -1])
async def test_two_successes_of_an_occurrence_at_once_are_followed_once(
    race: Race, store: Store, followed: tuple[Job, list[ClaimedExecution]], turn: int, *, commits: bool
) -> None:
    after, running = followed
    one, other = running[::turn]

    result = await race.run(
        record(race.ahead, [found(one, Succeeded("null"))]),
        record(race.behind, [found(other, Succeeded("null"))]),
        commits=commits,
    )

    assert result.second_waited
    assert await instants_after(store, after) == [("ready", "after")]
    assert await holds_after(store)


@both_endings
@pytest.mark.parametrize("change", [pause, delete])
async def test_a_success_that_comes_while_the_job_after_it_is_changed(
    race: Race,
    store: Store,
    followed: tuple[Job, list[ClaimedExecution]],
    change: Callable[[Store, Job], Awaitable[JobChange]],
    *,
    commits: bool,
) -> None:
    after, running = followed

    result = await race.run(
        change(race.ahead, after), record(race.behind, [found(running[0], Succeeded("null"))]), commits=commits
    )

    assert result.second_waited
    skipped = [("finished", "after")] if change is pause else []
    assert await instants_after(store, after) == (skipped if commits else [("ready", "after")])
    assert await holds_after(store)


@both_endings
@pytest.mark.parametrize("change", [pause, delete])
async def test_a_change_of_a_job_that_comes_while_the_one_before_it_succeeds(
    race: Race,
    store: Store,
    followed: tuple[Job, list[ClaimedExecution]],
    change: Callable[[Store, Job], Awaitable[JobChange]],
    *,
    commits: bool,
) -> None:
    after, running = followed

    result = await race.run(
        record(race.ahead, [found(running[0], Succeeded("null"))]), change(race.behind, after), commits=commits
    )

    assert result.second_waited
    assert await instants_after(store, after) == ([("finished", "after")] if commits else [])
    assert await holds_after(store)


@both_endings
async def test_a_rename_of_a_job_that_another_one_is_about_to_come_after(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    after = await make_job(store)

    await race.run(
        edit(race.ahead, scheduled.job, name="another"),
        refused(come_after(race.behind, after, scheduled.job.name or "")),
        commits=commits,
    )

    rule = (await read_job(store, after.id)).rule
    assert isinstance(rule, After) != commits


@both_endings
async def test_a_job_that_is_about_to_come_after_one_that_is_renamed(
    race: Race, store: Store, scheduled: Scheduled, *, commits: bool
) -> None:
    after = await make_job(store)

    result = await race.run(
        come_after(race.ahead, after, scheduled.job.name or ""),
        edit(race.behind, scheduled.job, name="another"),
        commits=commits,
    )

    assert result.second_waited
    rule = (await read_job(store, after.id)).rule
    assert (isinstance(rule, After) and rule.cause == "another") == commits
