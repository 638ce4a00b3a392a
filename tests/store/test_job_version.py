"""A queued execution runs with the handler and the payload of one version of its job, whatever is edited, and however it is claimed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.factories import (
    FAILURE,
    FROM_THE_FIRST,
    OPERATOR,
    claim_all,
    define_job,
    enqueue,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    moves_of,
    promote_due,
    read_job,
    record,
    table,
    tables_of,
)
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.domain import job_changes
from timeball.domain.backfill import Backfill, BackfillSelection, BackfillSource
from timeball.domain.execution import ClaimedExecution, Failed, Lost, Origin, Released, Succeeded
from timeball.domain.policies import Delivery
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId
from timeball.errors import Conflict
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ExecutionRequest, OwnWords, ShardOwnership
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

OLD, NEW = "app:old", "app:new"
Claim = Callable[[Store, ExecutionId], Awaitable[ClaimedExecution]]


async def edit(store: Store, job_id: JobId, **fields: Any) -> None:
    await store.jobs.change(job_id, lambda seen: job_changes.edit_job(seen, fields, store.shards), OPERATOR)


async def edit_both(store: Store, job_id: JobId) -> None:
    """Two edits, of the handler and of the payload: a queued execution may have neither."""
    await edit(store, job_id, payload={"of": "between"})
    await edit(store, job_id, handler=NEW, payload={"of": "new"})


async def trigger(store: Store, job_id: JobId, payload: str | None = None) -> ExecutionId:
    wanted = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job_id, origin=Origin.TRIGGER, payload=payload)
    return (await store.jobs.request([wanted], OPERATOR, "job.trigger"))[0]


def what_runs(claimed: ClaimedExecution) -> tuple[str, Any]:
    return claimed.handler, json.loads(claimed.payload)


# ways to claim


async def by_lane(store: Store, execution_id: ExecutionId) -> ClaimedExecution:
    (claimed,) = await claim_all(store, handlers=[OLD, NEW])
    assert claimed.id == execution_id
    return claimed


async def by_name(store: Store, execution_id: ExecutionId) -> ClaimedExecution:
    request = ClaimRequest(await make_node(store), [OLD, NEW], 1, 0)
    (claimed,) = await store.executions.claim_by_id(request, execution_id, None, ClaimId(store.env.new_id()))
    return claimed


async def by_ticket(store: Store, execution_id: ExecutionId) -> ClaimedExecution:
    request = ClaimRequest(await make_node(store), [OLD, NEW], 1, 0)
    claims = await store.tickets.claim(request, [execution_id], None, ClaimId(store.env.new_id()))
    (claimed,) = claims.executions
    return claimed


async def of_a_limited_queue(store: Store, execution_id: ExecutionId) -> ClaimedExecution:
    await store.queues.change(
        "default", is_paused=False, max_running=3, reason=None, audit=OPERATOR, action="queue.set"
    )
    request = ClaimRequest(await make_node(store), [OLD, NEW], 1, 0)
    lanes = dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST)
    claims = await store.executions.claim_limited(request, "default", lanes, ClaimId(store.env.new_id()))
    (claimed,) = claims.executions
    assert claimed.id == execution_id
    return claimed


async def read_back(store: Store, execution_id: ExecutionId) -> ClaimedExecution:
    worker, claim_id = await make_node(store), ClaimId(store.env.new_id())
    await claim_all(store, handlers=[OLD, NEW], worker=worker, claim_id=claim_id)
    (claimed,) = await store.executions.read_back_claim(worker, claim_id)
    assert claimed.id == execution_id
    return claimed


EVERY_WAY = pytest.mark.parametrize("claim", [by_lane, by_name, by_ticket, of_a_limited_queue, read_back])


@pytest.fixture
async def owner(store: Store) -> ShardOwnership:
    return await make_owner(store)


# ready


@EVERY_WAY
async def test_a_ready_occurrence_keeps_its_version(
    store: Store, clock: VirtualClock, owner: ShardOwnership, claim: Claim
) -> None:
    job = await make_recurring(store, 60, handler=OLD, payload={"of": "old"})
    occurrence = (await table(store, "due"))[0]["id"]
    clock.advance("60s")
    await promote_due(store, owner)

    await edit_both(store, job.id)

    assert what_runs(await claim(store, occurrence)) == (OLD, {"of": "old"})


@EVERY_WAY
async def test_a_ready_one_off_keeps_its_version(store: Store, claim: Claim) -> None:
    execution_id = await enqueue(store, handler=OLD, payload={"of": "old"})

    await edit_both(store, JobId(execution_id))

    assert what_runs(await claim(store, execution_id)) == (OLD, {"of": "old"})
    assert (await verify(store.database, store.env.clock.now())).holds


@EVERY_WAY
async def test_an_edit_does_not_change_the_payload_of_an_execution(store: Store, claim: Claim) -> None:
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    triggered = await trigger(store, job.id, '{"of": "trigger"}')

    await edit_both(store, job.id)

    assert what_runs(await claim(store, triggered)) == (OLD, {"of": "trigger"})


async def test_an_execution_promoted_or_requested_after_an_edit_has_the_new_version(
    store: Store, clock: VirtualClock, owner: ShardOwnership
) -> None:
    """An edit that was committed before the promotion wins."""
    job = await make_recurring(store, 60, handler=OLD, payload={"of": "old"}, overlap="allow")
    later = await enqueue(store, after=60, handler=OLD, payload={"of": "old"})
    await edit_both(store, job.id)
    await edit_both(store, JobId(later))
    clock.advance("60s")
    await promote_due(store, owner)
    await trigger(store, job.id)

    claims = await claim_all(store, handlers=[OLD, NEW])

    assert [what_runs(claimed) for claimed in claims] == [(NEW, {"of": "new"})] * 3


# the other tables


@EVERY_WAY
async def test_a_blocked_execution_keeps_its_version(store: Store, claim: Claim) -> None:
    job = await make_job(store, handler=OLD, payload={"of": "old"}, max_running=1)
    await trigger(store, job.id)
    blocked = await trigger(store, job.id)
    (first,) = await claim_all(store, handlers=[OLD])
    assert await tables_of(store, blocked) == ["blocked"]

    await edit_both(store, job.id)
    await record(store, [found(first)])

    assert what_runs(await claim(store, blocked)) == (OLD, {"of": "old"})


@EVERY_WAY
@pytest.mark.parametrize("edits_first", [True, False], ids=["edited while it ran", "edited while it waited"])
async def test_a_retry_keeps_its_version(
    store: Store, clock: VirtualClock, owner: ShardOwnership, claim: Claim, *, edits_first: bool
) -> None:
    """Fault 28."""
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    triggered = await trigger(store, job.id)
    (first,) = await claim_all(store, handlers=[OLD])
    if edits_first:
        await edit_both(store, job.id)
    await record(store, [found(first, Failed(FAILURE))])
    if not edits_first:
        await edit_both(store, job.id)
    clock.advance("1h")
    await promote_due(store, owner)

    again = await claim(store, triggered)

    assert (again.attempt, what_runs(again)) == (2, (OLD, {"of": "old"}))


@EVERY_WAY
@pytest.mark.parametrize("outcome", [Released(), Lost(FAILURE)], ids=["given back", "lost"])
async def test_a_released_execution_keeps_its_version(store: Store, claim: Claim, outcome: Released | Lost) -> None:
    execution_id = await enqueue(store, handler=OLD, payload={"of": "old"}, delivery=Delivery.AT_LEAST_ONCE)
    (first,) = await claim_all(store, handlers=[OLD])
    moves = await moves_of(store, [found(first, outcome)])

    await edit_both(store, JobId(execution_id))
    await store.executions.record_transitions(moves)

    assert what_runs(await claim(store, execution_id)) == (OLD, {"of": "old"})


@EVERY_WAY
async def test_a_parked_execution_keeps_its_version(
    store: Store, clock: VirtualClock, owner: ShardOwnership, claim: Claim
) -> None:
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    parked = await trigger(store, job.id)
    await store.jobs.change(job.id, lambda seen: job_changes.pause_job(seen, None, None), OPERATOR)
    assert await tables_of(store, parked) == ["due"]

    await edit_both(store, job.id)
    await store.jobs.change(job.id, job_changes.resume_job, OPERATOR)
    clock.advance("1s")
    await promote_due(store, owner)

    assert what_runs(await claim(store, parked)) == (OLD, {"of": "old"})


async def test_a_waiting_backfill_keeps_its_version(store: Store, clock: VirtualClock, owner: ShardOwnership) -> None:
    job = await make_recurring(store, 60, handler=OLD, payload={"of": "old"}, overlap="allow")
    start = clock.now()
    clock.advance("1h")
    await promote_due(store, owner)
    await claim_all(store, handlers=[OLD])
    commands = Commands(store, store.env)
    wanted = Backfill(
        job_id=job.id,
        since=start,
        until=clock.now(),
        by=BackfillSource.PRESENT,
        only=BackfillSelection.ALL,
        max_running=60,
    )
    await commands.backfills.start(wanted)
    await OperationLoop(commands, store.env.new_id()).round()
    ids = [row["id"] for row in await table(store, "ready") if row["origin"] == "backfill"]

    await edit_both(store, job.id)
    clock.advance("10s")
    await promote_due(store, owner)

    claims = [claimed for claimed in await claim_all(store, handlers=[OLD, NEW]) if claimed.id in ids]
    assert len(claims) == len(ids) > 0
    assert {(claimed.handler, claimed.payload) for claimed in claims} == {(OLD, '{"of": "old"}')}


# what people ask for afterwards, and see


async def test_a_retry_by_a_person_has_the_present_version(store: Store) -> None:
    """The job is repaired, and its dead execution is retried: wholly with the repaired version."""
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    triggered = await trigger(store, job.id)
    (first,) = await claim_all(store, handlers=[OLD])
    await edit_both(store, job.id)
    await record(store, [found(first, Succeeded())])

    again = await Commands(store, store.env).executions.retry(triggered)

    (claimed,) = await claim_all(store, handlers=[OLD, NEW])
    assert (claimed.id, what_runs(claimed)) == (again, (NEW, {"of": "new"}))


async def test_the_payload_of_an_execution_is_retried_only_with_the_same_handler(store: Store) -> None:
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    triggered = await trigger(store, job.id, '{"of": "trigger"}')
    (first,) = await claim_all(store, handlers=[OLD])
    await record(store, [found(first, Succeeded())])
    commands = Commands(store, store.env)

    await edit(store, job.id, payload={"of": "new"})
    again = await commands.executions.retry(triggered)
    await edit(store, job.id, handler=NEW)

    with pytest.raises(Conflict, match=f"overrode the payload of {OLD}, and its job runs {NEW} now"):
        await commands.executions.retry(triggered)
    (claimed,) = await claim_all(store, handlers=[OLD, NEW])
    assert (claimed.id, what_runs(claimed)) == (again, (OLD, {"of": "trigger"}))
    anew = await commands.executions.retry(triggered, {"of": "retry"})
    (claimed,) = await claim_all(store, handlers=[OLD, NEW])
    assert (claimed.id, what_runs(claimed)) == (anew, (NEW, {"of": "retry"}))


async def test_an_execution_shows_the_payload_of_its_version(store: Store) -> None:
    execution_id = await enqueue(store, handler=OLD, payload={"of": "old"})
    job = await make_job(store, handler=OLD, payload={"of": "old"})
    triggered = await trigger(store, job.id)
    for job_id in (JobId(execution_id), job.id):
        await edit_both(store, job_id)
    await record(store, [found(claimed) for claimed in await claim_all(store, handlers=[OLD])])

    shown = [await store.history.payload(each) for each in (execution_id, triggered)]

    assert [json.loads(payload or "") for payload in shown] == [{"of": "old"}] * 2
    assert [await store.history.own_words(each) for each in (execution_id, triggered)] == [OwnWords()] * 2


@EVERY_WAY
async def test_a_queued_execution_has_the_meta_of_its_version(store: Store, claim: Claim) -> None:
    execution_id = await enqueue(store, handler=OLD, meta={"tenant": "acme"})

    await edit(store, JobId(execution_id), meta={"tenant": "globex"})

    assert (await claim(store, execution_id)).meta == '{"tenant": "acme"}'
    shown = await store.history.find(execution_id)
    assert shown is not None
    assert shown.meta == {"tenant": "acme"}


async def test_a_job_that_is_given_meta_later_gives_none_to_what_was_queued_before(store: Store) -> None:
    execution_id = await enqueue(store, handler=OLD)

    await edit(store, JobId(execution_id), meta={"tenant": "globex"})

    (claimed,) = await claim_all(store, handlers=[OLD])
    assert claimed.meta is None
    shown = await store.history.find(execution_id)
    assert shown is not None
    assert shown.meta is None


@EVERY_WAY
async def test_an_execution_with_meta_of_its_own_has_not_that_of_its_job(store: Store, claim: Claim) -> None:
    job = await make_job(store, handler=OLD, meta={"tenant": "acme", "of": "job"})

    id_ = await Commands(store, store.env).executions.trigger(job.id, meta={"tenant": "globex"})

    assert (await claim(store, id_)).meta == '{"tenant": "globex"}'


async def test_retries_carry_meta_on(store: Store, clock: VirtualClock) -> None:
    """Timeball's own, and that of an operator."""
    commands = Commands(store, store.env).executions
    job = await make_job(store, handler=OLD, max_retries=1)
    first = await commands.trigger(job.id, meta={"tenant": "globex"})
    await record(store, [found(claimed, Failed(error=FAILURE)) for claimed in await claim_all(store, handlers=[OLD])])
    clock.advance("1h")
    owner = await make_owner(store)
    await promote_due(store, owner)
    (again,) = await claim_all(store, handlers=[OLD])
    assert (again.id, again.meta) == (first, '{"tenant": "globex"}')

    await record(store, [found(again, Failed(error=FAILURE))])
    anew = await commands.retry(first)

    (claimed,) = await claim_all(store, handlers=[OLD])
    assert (claimed.id, claimed.meta) == (anew, '{"tenant": "globex"}')


@pytest.mark.parametrize("more", [{}, {"max_running": 1}], ids=["ready", "blocked"])
async def test_what_follows_the_executions_of_a_job_follows_each_of_them(store: Store, more: dict[str, Any]) -> None:
    """The mark is carried from the job to the history: a trigger of `finished` reads it there."""
    job = replace(define_job(store, handler=OLD, **more), on_success={"handler": OLD, "payload": {}})
    await store.enqueuer.create([job], [])
    await edit(store, job.id, description="edited")

    await trigger(store, job.id)
    await store.executions.unblock([f"job:{job.id}"])
    await record(store, [found(claimed) for claimed in await claim_all(store, handlers=[OLD])])

    assert {row["has_follow_ups"] for row in await table(store, "finished")} == {True}


async def test_the_versions_of_an_edited_one_off_are_deleted_with_it(store: Store, clock: VirtualClock) -> None:
    execution_id = await enqueue(store, handler=OLD, payload={"of": "old"})
    untouched = await enqueue(store, handler=OLD)
    await edit_both(store, JobId(execution_id))
    await record(store, [found(claimed) for claimed in await claim_all(store, handlers=[OLD])])
    assert [row["version"] for row in await table(store, "job_version")] == [1, 2]
    assert (await read_job(store, JobId(execution_id))).version == 3
    day = clock.now().replace(hour=0, minute=0, second=0, microsecond=0)

    deleted = await store.database.fetch_row(
        "delete_finished", day_start=day, day_end=day.replace(year=day.year + 1), states=["succeeded"], batch=10
    )

    assert deleted is not None
    assert deleted["deleted"] == 2
    assert (await table(store, "job"), await table(store, "job_version")) == ([], [])
    assert await store.jobs.find([JobId(execution_id), JobId(untouched)]) == {}
