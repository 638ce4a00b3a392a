"""Groups: parts that end, and what is written when the last of them has, once, whichever transaction comes last."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import FAILURE, HANDLER, OPERATOR, claim_all, enqueue, found, record, seconds, table
from timeball.application.commands import Commands
from timeball.domain.execution import ClaimedExecution, Failed
from timeball.domain.follow_ups import GroupState
from timeball.domain.job import check_group_work
from timeball.domain.values.ids import ClaimId
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

PART = {"handler": HANDLER, "payload": {}}
THEN = {"handler": "then", "payload": {}}
FAILED = {"handler": "failed", "payload": {}}
WORK: dict[str, Any] = {"then": THEN, "on_failure": FAILED}


# Ends of single calls are written for all of a statement at once, those of chains one by one.
each_kind_of_part = pytest.mark.parametrize("part", [PART, {"chain": [PART]}], ids=["call", "chain"])


async def begin(store: Store, parts: int, part: dict[str, Any] = PART) -> UUID:
    return await Commands(store, store.env).groups.begin({"group": [part] * parts, **WORK})


async def begin_and_claim(store: Store, part: dict[str, Any] = PART) -> tuple[UUID, list[ClaimedExecution]]:
    """A group of two parts, both claimed."""
    return await begin(store, 2, part), await claim_all(store)


async def state_of(store: Store, group_id: UUID) -> GroupState:
    status = await store.follow_ups.find_group(group_id)
    assert status is not None
    return status.state


async def following(store: Store) -> list[str]:
    return [job["handler"] for job in await table(store, "job") if job["follows"] is not None]


async def finish(store: Store, claims: list[ClaimedExecution], connection: Any = None) -> None:
    assert await store.executions.finish_succeeded([found(claimed) for claimed in claims], connection) == []


@each_kind_of_part
async def test_the_last_part_closes_the_group_and_writes_what_follows(store: Store, part: dict[str, Any]) -> None:
    group_id = await begin(store, 3, part)
    claims = await claim_all(store)

    for claimed in claims[:2]:
        await finish(store, [claimed])
    before = (await state_of(store, group_id), await following(store))
    await finish(store, claims[2:])

    assert before == (GroupState.OPEN, [])
    assert (await state_of(store, group_id), await following(store)) == (GroupState.SUCCEEDED, ["then"])
    assert (await verify(store.database)).check("follow-ups").holds


async def finish_in_one_statement(store: Store, claims: list[ClaimedExecution]) -> None:
    values = [found(claimed) for claimed in sorted(claims, key=lambda claimed: claimed.id.int)]
    await store.database.fetch(
        "finish_succeeded",
        ids=[each.claimed.id for each in values],
        fences=[each.claimed.fence for each in values],
        claim_ids=[each.claimed.claim_id for each in values],
        started=[each.started_at for each in values],
        finished=[each.finished_at for each in values],
        results=None,
    )


@each_kind_of_part
async def test_what_follows_is_written_by_the_statement_that_ends_the_last_part(
    store: Store, part: dict[str, Any]
) -> None:
    """A crash after it loses nothing: no other statement has run."""
    group_id = await begin(store, 2, part)

    await finish_in_one_statement(store, await claim_all(store))

    assert (await state_of(store, group_id), await following(store)) == (GroupState.SUCCEEDED, ["then"])


async def test_one_statement_ends_parts_of_all_kinds_and_other_work(store: Store) -> None:
    """Parts that nothing else follows are ended by the statement, the others by the trigger, and each but once."""
    beside = {"handler": "beside", "payload": {}}
    calls, mixed, open_one = await begin(store, 3), await store_mixed_group(store, beside), await begin(store, 2)
    await enqueue(store)
    await enqueue(store, on_success=beside)
    claims = await claim_all(store)
    groups = [await group_of(store, claimed) for claimed in claims]

    await finish_in_one_statement(store, [*claims[: (kept := groups.index(open_one))], *claims[kept + 1 :]])

    states = [await state_of(store, group) for group in (calls, mixed, open_one)]
    assert states == [GroupState.SUCCEEDED, GroupState.SUCCEEDED, GroupState.OPEN]
    assert sorted(await following(store)) == ["beside", "beside", "then", "then"]
    assert Counter(row["has_ended_part"] for row in await table(store, "finished")) == {True: 5, False: 3, None: 1}
    assert (await verify(store.database)).check("follow-ups").holds


async def store_mixed_group(store: Store, beside: dict[str, Any]) -> UUID:
    """A group of a call, a call that is followed by another one, and a chain."""
    parts = [PART, {**PART, "on_success": beside}, {"chain": [PART]}]
    return await Commands(store, store.env).groups.begin({"group": parts, **WORK})


async def group_of(store: Store, claimed: ClaimedExecution) -> UUID | None:
    return (await store.follow_ups.part_of(claimed.id, claimed.job_id))[0]


async def test_a_part_is_followed_by_the_calls_of_the_version_that_ran(store: Store) -> None:
    group_id = await Commands(store, store.env).groups.begin({"group": [{**PART, "on_success": FAILED}], **WORK})
    claims = await claim_all(store)
    async with store.database.connection() as connection:
        await connection.execute(
            "INSERT INTO timeball.job_version (job_id, version, definition, effective_from, recorded_at) "
            "SELECT id, version, to_jsonb(job), now(), now() FROM timeball.job; "
            "UPDATE timeball.job SET version = 2, on_success = NULL"
        )

    await finish(store, claims)

    assert (await state_of(store, group_id), sorted(await following(store))) == (
        GroupState.SUCCEEDED,
        ["failed", "then"],
    )


async def test_a_part_that_fails_fails_the_group_when_all_have_ended(store: Store) -> None:
    group_id = await begin(store, 3)
    claims = await claim_all(store)

    await record(store, [found(claims[0], Failed(FAILURE, is_retryable=False))])
    before = await following(store)
    await finish(store, claims[1:])

    assert (before, await following(store)) == ([], ["failed"])
    assert await state_of(store, group_id) is GroupState.FAILED


async def test_a_stale_outcome_ends_no_part(store: Store) -> None:
    group_id = await begin(store, 1)
    (claimed,) = await claim_all(store)
    stale = claimed._replace(claim_id=ClaimId(store.env.new_id()))

    assert len(await store.executions.finish_succeeded([found(stale)])) == 1

    assert (await state_of(store, group_id), await following(store)) == (GroupState.OPEN, [])


@each_kind_of_part
async def test_parts_that_end_at_once_close_the_group_once(store: Store, part: dict[str, Any]) -> None:
    group_id = await begin(store, 40, part)
    claims = await claim_all(store)

    async def finish_some(start: int) -> None:
        for claimed in claims[start::8]:
            await finish(store, [claimed])

    await asyncio.gather(*map(finish_some, range(8)))

    assert (await state_of(store, group_id), await following(store)) == (GroupState.SUCCEEDED, ["then"])


@each_kind_of_part
async def test_batches_that_end_parts_of_the_same_groups_in_different_orders_do_not_wait(
    store: Store, part: dict[str, Any]
) -> None:
    """With a lock on each group these two would meet a deadlock."""
    (first, (a, b)), (second, (c, d)) = [await begin_and_claim(store, part) for _ in range(2)]

    async with store.database.transaction() as one, store.database.transaction() as other:
        await finish(store, [a], one)
        await finish(store, [c], other)
        await finish(store, [d], one)
        await finish(store, [b], other)
    before = await following(store)
    await store.executions.announce_follow_ups([a.id, c.id])

    assert before == []
    assert [await state_of(store, group) for group in (first, second)] == [GroupState.SUCCEEDED] * 2
    assert await following(store) == ["then"] * 2
    assert (await verify(store.database)).check("follow-ups").holds


@each_kind_of_part
@pytest.mark.parametrize("closer", ["recorder", "reaper"])
async def test_a_large_group_whose_last_parts_ended_in_two_transactions_is_closed_after_them(
    store: Store, clock: VirtualClock, closer: str, part: dict[str, Any]
) -> None:
    """Each sees hundreds of parts that the other ends."""
    group_id = await begin(store, 1_200, part)
    claims = sorted(await claim_all(store, slots=1_200), key=lambda claimed: claimed.id.int)

    async with store.database.transaction() as one, store.database.transaction() as other:
        await finish(store, claims[:600], one)
        await finish(store, claims[600:], other)
    before = (await state_of(store, group_id), await following(store))
    if closer == "recorder":
        # As it is told: of single calls the group, of chains their last steps.
        await store.executions.announce_follow_ups([group_id if part is PART else claims[0].id])
    else:
        await store.queues.tend(OPERATOR)
        await store.queues.tend(OPERATOR)

    assert before == (GroupState.OPEN, [])
    assert (await state_of(store, group_id), await following(store)) == (GroupState.SUCCEEDED, ["then"])
    assert (await verify(store.database)).check("follow-ups").holds


async def test_a_group_that_is_closed_is_not_closed_again(store: Store, clock: VirtualClock) -> None:
    group_id = await begin(store, 2)
    claims = await claim_all(store)
    await finish(store, claims[:1])
    too_early = await store.database.fetch_value("close_group", id=group_id)
    await finish(store, claims[1:])
    clock.advance(seconds(60))

    again = await store.database.fetch_value("close_group", id=group_id)

    assert (too_early, again) == (False, False)
    assert await following(store) == ["then"]


CHAIN: dict[str, Any] = {"chain": [PART, {**PART, "queue": "second"}]}


@pytest.mark.parametrize("part", [CHAIN, {"chain": [{"group": [CHAIN]}, PART]}], ids=["chain", "chain in a group"])
async def test_a_chain_whose_group_was_cancelled_begins_no_further_step(store: Store, part: dict[str, Any]) -> None:
    """What runs is asked to stop; it may succeed all the same."""
    commands = Commands(store, store.env)
    group_id = await commands.groups.begin({"group": [part], **WORK})
    claims = await claim_all(store)

    cancelled = await commands.groups.cancel(group_id)
    await finish(store, claims)

    assert (cancelled, await state_of(store, group_id), await following(store)) == (1, GroupState.FAILED, ["failed"])
    (failed,) = [job["id"] for job in await table(store, "job") if job["follows"] is not None]
    cause = await store.follow_ups.cause_of(failed)
    assert cause is not None
    assert cause.error == ("1 of 1 failed; part 1: cancelled" if part is CHAIN else "1 of 1 failed; part 1: failed")
    assert (await verify(store.database)).check("follow-ups").holds


async def test_a_step_of_a_cancelled_chain_that_is_retried_by_hand_goes_on(store: Store) -> None:
    commands = Commands(store, store.env)
    group_id = await commands.groups.begin({"group": [CHAIN], **WORK})
    (waiting,) = await table(store, "ready")
    await commands.groups.cancel(group_id)

    await commands.executions.retry(waiting["id"])
    await finish(store, [one for one in await claim_all(store) if one.job_id == waiting["id"]])

    assert [row["queue"] for row in await table(store, "ready")] == ["default", "second"]


async def test_a_group_is_begun_once_under_one_root(store: Store, clock: VirtualClock) -> None:
    root, work = store.env.new_id(), check_group_work({"group": [PART] * 3})

    ids = {await store.follow_ups.begin_group(work, root, clock.now(), "me") for _ in range(2)}

    assert len(ids) == 1
    assert len(await table(store, "ready")) == 3


async def test_a_retry_by_hand_of_a_failed_part_does_not_open_its_group_again(store: Store) -> None:
    group_id = await begin(store, 1)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])

    await Commands(store, store.env).executions.retry(claimed.id)
    (again,) = await claim_all(store)
    await finish(store, [again])

    assert (await state_of(store, group_id), await following(store)) == (GroupState.FAILED, ["failed"])


async def test_closed_groups_are_deleted_when_the_history_is(store: Store, clock: VirtualClock) -> None:
    closed = await begin(store, 1)
    await finish(store, await claim_all(store))
    waiting = await begin(store, 2)

    assert await store.retention.groups(clock.now() - seconds(60)) == 0
    assert await store.retention.groups(clock.now() + seconds(60)) == 1

    assert await store.follow_ups.find_group(closed) is None
    assert await state_of(store, waiting) is GroupState.OPEN


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM timeball.job WHERE handler = 'then'", "nothing follows a group that then was to follow"),
        ("UPDATE timeball.execution_group SET state = 'failed'", "a group is closed, and its state is not that of its parts"),
        ("UPDATE timeball.group_part SET state = NULL, ended_by = NULL WHERE number = 1", "its state is not that of its parts"),
        ("UPDATE timeball.group_part SET state = 'failed' WHERE number = 1", "ended otherwise than what it ended with"),
        ("UPDATE timeball.group_part SET ended_by = (SELECT ended_by FROM timeball.group_part WHERE number = 1)", "the same"),
        ("UPDATE timeball.execution_group SET state = 'open'", "something follows a group that has not ended"),
        ("UPDATE timeball.finished SET has_follow_ups = NULL", "something is to follow an execution, and it is not marked"),
    ],
)  # fmt: skip
async def test_verify_names_a_group_that_is_not_as_its_parts_are(store: Store, change: str, why: str) -> None:
    await begin(store, 3)
    await finish(store, await claim_all(store))
    assert (await verify(store.database)).check("follow-ups").holds

    async with store.database.connection() as connection:
        await connection.execute(change)

    violations = (await verify(store.database)).check("follow-ups").violations
    assert any(why in str(violation) for violation in violations)


async def test_verify_names_a_chain_without_its_next_step(store: Store) -> None:
    await Commands(store, store.env).groups.begin({"group": [{"chain": [PART, {**PART, "queue": "second"}]}]})
    await finish(store, await claim_all(store))

    async with store.database.connection() as connection:
        await connection.execute("DELETE FROM timeball.job WHERE queue = 'second'")

    (violation,) = (await verify(store.database)).check("follow-ups").violations
    assert "the next step does not follow an execution of a chain" in str(violation)


@pytest.mark.parametrize("part", [PART, {"chain": [PART]}, {"group": [PART]}, {"chain": [{"group": [PART]}]}], ids=str)
async def test_verify_names_a_part_that_has_not_ended_though_the_last_of_it_has(
    store: Store, part: dict[str, Any]
) -> None:
    await Commands(store, store.env).groups.begin({"group": [part, {**PART, "queue": "second"}]})
    await finish(store, [one for one in await claim_all(store) if one.queue == "default"])
    sound = (await verify(store.database)).check("follow-ups")

    async with store.database.connection() as connection:
        await connection.execute(
            "UPDATE timeball.group_part SET state = NULL, ended_by = NULL "
            "WHERE group_id = (SELECT id FROM timeball.execution_group WHERE group_id IS NULL)"
        )

    assert sound.holds
    (violation,) = (await verify(store.database)).check("follow-ups").violations
    assert "the last of a part of a group has ended, and the part has not" in str(violation)


async def test_a_group_that_cannot_be_closed_keeps_the_reaper_from_nothing(store: Store) -> None:
    (broken, (a, b)), (sound, (c, d)) = [await begin_and_claim(store) for _ in range(2)]
    async with store.database.connection() as connection:
        await connection.execute(
            """UPDATE timeball.execution_group SET next_step = next_step || '{"priority": 1000}' WHERE id = $1""",
            broken,
        )
    async with store.database.transaction() as one, store.database.transaction() as other:
        await finish(store, [a, c], one)
        await finish(store, [b, d], other)

    await store.executions.announce_follow_ups([a.id])
    await store.queues.tend(OPERATOR)

    assert (await state_of(store, broken), await state_of(store, sound)) == (GroupState.OPEN, GroupState.SUCCEEDED)
    assert await following(store) == ["then"]
