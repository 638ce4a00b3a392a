"""An enqueue that meets its key: it changes what waits, comes after what has begun, and respects how long a key is held."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.support.factories import (
    FAILURE,
    HANDLER,
    OPERATOR,
    claim_all,
    define_job,
    enqueue,
    first_execution_of,
    found,
    make_owner,
    make_recurring,
    only_row,
    promote_due,
    record,
    seconds,
    table,
    tables_of,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.execution import ClaimedExecution, Failed, Lost
from timeball.domain.job import Job
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId
from timeball.domain.wakeup import Wakeup
from timeball.errors import Conflict
from timeball.store.db.database import Database
from timeball.store.store import Store
from timeball.store.types import CreatedJob, FirstExecution
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock


@pytest.fixture
def commands(store: Store) -> Commands:
    return Commands(store, store.env)


async def again(store: Store, after: float = 0, connection: Any = None, **fields: Any) -> CreatedJob:
    """Enqueue one more with the key `k`."""
    due_at = store.env.clock.now() + seconds(after)
    job = define_job(store, name=None, scheduled_at=due_at, unique_key="k", **fields)
    first = first_execution_of(job, store.env.clock.now())
    assert first is not None
    (created,) = await store.enqueuer.create([job], [first], connection)
    return created


def replace(store: Store, number: int, after: float = 0, **fields: Any) -> Any:
    return again(store, after, payload={"n": number}, if_exists="replace", **fields)


def extend(store: Store, number: int, after: float = 0, **fields: Any) -> Any:
    return again(store, after, payload={"n": number}, if_exists="extend", **fields)


async def begin(store: Store) -> ClaimedExecution:
    (claimed,) = await claim_all(store)
    return claimed


async def payloads_run(store: Store) -> list[Any]:
    """Run what is ready to its end; what each was given."""
    claims = await claim_all(store)
    await store.executions.finish_succeeded([found(claim) for claim in claims])
    return [json.loads(claim.payload) for claim in claims]


async def proven(store: Store) -> None:
    report = await verify(store.database, store.env.clock.now(), second_look=timedelta(0))
    assert report.holds, "\n".join(report.lines())


# what waits


@pytest.mark.parametrize("state_table", ["due", "ready", "blocked"])
async def test_replace_gives_what_waits_the_newest_arguments(
    store: Store, clock: VirtualClock, state_table: str
) -> None:
    limit: dict[str, Any] = {"max_running": 1, "limit_key": "l"} if state_table == "blocked" else {}
    if limit:
        await enqueue(store, **limit)
    after = 60 if state_table == "due" else 0
    first = await replace(store, 1, after, **limit)
    assert await tables_of(store, first.execution_id) == [state_table]
    before = next(row for row in await table(store, state_table) if row["id"] == first.execution_id)

    second = await replace(store, 2, 999, meta={"tenant": "acme"})

    assert (second.execution_id, second.is_new) == (first.execution_id, False)
    (row,) = [row for row in await table(store, state_table) if row["id"] == first.execution_id]
    assert row == before | {"payload": row["payload"], "meta": row["meta"]}
    assert (json.loads(row["payload"]), json.loads(row["meta"])) == ({"n": 2}, {"tenant": "acme"})
    (job,) = [row for row in await table(store, "job") if row["id"] == first.execution_id]
    assert json.loads(job["payload"]) == {"n": 2}
    await proven(store)


@pytest.mark.parametrize("state_table", ["due", "ready", "blocked"])
async def test_extend_pushes_what_waits_back_and_gives_it_the_newest_arguments(
    store: Store, clock: VirtualClock, state_table: str
) -> None:
    limit: dict[str, Any] = {"max_running": 1, "limit_key": "l"} if state_table == "blocked" else {}
    if limit:
        await enqueue(store, **limit)
    owner = await make_owner(store)
    first = await extend(
        store, 1, 10 if state_table == "due" else 0, start_within_seconds=20, unique_for_seconds=5, **limit
    )
    assert await tables_of(store, first.execution_id) == [state_table]
    clock.advance("6s")

    second = await extend(store, 2, 10)

    assert (second.execution_id, second.is_new) == (first.execution_id, False)
    row = await only_row(store, "due")
    at = clock.now() + seconds(10)
    assert (row["id"], row["run_at"], row["scheduled_for"], row["expires_at"]) == (
        first.execution_id,
        at,
        at,
        at + seconds(20),
    )
    assert (await only_row(store, "live_key"))["held_until"] == at + seconds(5)
    await proven(store)
    clock.advance("9s")
    assert await promote_due(store, owner) == set()
    clock.advance("1s")
    assert await promote_due(store, owner) == {first.execution_id}
    if not limit:
        assert await payloads_run(store) == [{"n": 2}]
    await proven(store)


async def test_keep_leaves_what_waits_as_it_is(store: Store) -> None:
    first = await replace(store, 1)

    second = await again(store, payload={"n": 2})

    assert (second.execution_id, second.is_new) == (first.execution_id, False)
    assert await payloads_run(store) == [{"n": 1}]


async def test_of_several_in_one_batch_the_last_counts(store: Store, clock: VirtualClock) -> None:
    jobs = [
        define_job(
            store, name=None, scheduled_at=clock.now(), unique_key="k", if_exists="replace", payload={"n": number}
        )
        for number in range(4)
    ]
    firsts = [first for job in jobs if (first := first_execution_of(job, clock.now()))]

    created = await store.enqueuer.create(jobs, firsts)

    assert sorted(each.is_new for each in created) == [False, False, False, True]
    assert len({each.execution_id for each in created}) == 1
    assert await payloads_run(store) == [{"n": 3}]
    await proven(store)


def one_offs(store: Store, *fields: dict[str, Any]) -> tuple[list[Job], list[FirstExecution]]:
    """One-offs with the key `k`, some seconds ahead if they say `after`, and their first executions."""
    now = store.env.clock.now()
    jobs = [
        define_job(store, **{"name": None, "unique_key": "k", "scheduled_at": now + seconds(own.pop("after", 0))} | own)
        for own in map(dict, fields)
    ]
    return jobs, [first for job in jobs if (first := first_execution_of(job, now))]


async def test_of_two_handlers_with_one_key_in_one_batch_the_second_runs_after_the_first(store: Store) -> None:
    jobs, firsts = one_offs(
        store,
        {"if_exists": "replace", "payload": {"n": 1}},
        {"if_exists": "replace", "payload": {"n": 2}, "handler": "other"},
        {"if_exists": "replace", "payload": {"n": 3}},
    )

    created = await store.enqueuer.create(jobs, firsts)

    assert [each.is_new for each in created] == [False, True, True]
    assert created[0].execution_id == created[2].execution_id != created[1].execution_id
    assert await payloads_run(store) == [{"n": 3}]
    await promote_due(store, await make_owner(store))
    (other,) = await claim_all(store, handlers=["other"])
    assert (other.id, json.loads(other.payload)) == (created[1].execution_id, {"n": 2})
    await proven(store)


async def test_what_waits_is_changed_although_another_handler_waits_for_its_key(store: Store) -> None:
    first = await replace(store, 1)
    after_it = await replace(store, 2, handler="other")

    third = await replace(store, 3)

    assert after_it.is_new
    assert (third.execution_id, third.is_new) == (first.execution_id, False)
    assert await payloads_run(store) == [{"n": 3}]


@pytest.mark.parametrize("policies", [("extend", "replace"), ("replace", "extend")])
async def test_one_batch_may_extend_and_replace(store: Store, clock: VirtualClock, policies: tuple[str, str]) -> None:
    waiting = await again(store, 10, payload={"n": 0})
    jobs, firsts = one_offs(
        store,
        *({"if_exists": policy, "payload": {"n": n}, "after": 90 - n} for n, policy in enumerate(policies, start=1)),
    )

    created = await store.enqueuer.create(jobs, firsts)

    assert [each.execution_id for each in created] == [waiting.execution_id] * 2
    row = await only_row(store, "due")
    extended = firsts[policies.index("extend")]
    assert (json.loads(row["payload"]), row["run_at"]) == ({"n": 2}, extended.run_at)


# all or none


async def two_that_cannot_both_be(store: Store) -> tuple[list[Job], list[FirstExecution]]:
    """A plain one-off, one that keeps, one that replaces, and one that is refused: another handler waits for its key."""
    await replace(store, 1)
    await begin(store)
    await replace(store, 2)
    return one_offs(
        store,
        {"unique_key": None},
        {"unique_key": "free"},
        {"unique_key": "also-free", "if_exists": "replace"},
        {"if_exists": "replace", "handler": "other"},
    )


async def test_nothing_of_several_is_written_if_one_of_them_is_refused(store: Store) -> None:
    jobs, firsts = await two_that_cannot_both_be(store)
    before = {name: await table(store, name) for name in ("job", "execution", "live_key", "audit")}

    with pytest.raises(Conflict, match="is awaited by"):
        await store.enqueuer.create(jobs, firsts, audit=OPERATOR)

    assert {name: await table(store, name) for name in before} == before


async def test_several_of_which_one_changes_what_waits_are_announced(
    fresh_database: FreshDatabase, store: Store, clock: VirtualClock
) -> None:
    """Else a worker would find them with its next poll only."""
    await replace(store, 0, 60)
    jobs, firsts = one_offs(
        store,
        {"unique_key": None, "queue": "plain"},
        {"unique_key": "free", "queue": "kept"},
        {"unique_key": "also-free", "if_exists": "replace", "queue": "met"},
        {"unique_key": "later", "if_exists": "replace", "after": 60},
        {"if_exists": "extend", "after": 90},
    )
    told = []
    # Listening needs a session of its own, so never through PgBouncer.
    connection = await Database(fresh_database.server.dsn(fresh_database.name), store.env).connect()
    await connection.add_listener("timeball", lambda *message: told.append(message[-1]))

    await store.enqueuer.create(jobs, firsts)

    await store.notifier.flush()
    await connection.close()
    lanes = {lane for text in told for lane, _ in Wakeup.decode(text).lanes}
    assert lanes == {"plain", "kept", "met"}


# audit


async def audited(store: Store) -> list[tuple[str, str]]:
    return sorted((row["action"], row["subject"]) for row in await table(store, "audit"))


async def test_what_replaces_in_a_bulk_is_not_audited_as_a_new_job(store: Store, commands: Commands) -> None:
    first = await replace(store, 1)
    specs = [
        JobSpec(handler=HANDLER, unique_key=key, if_exists="replace", payload={"n": 2}) for key in ("k", "k2", "k2")
    ]

    created = await commands.jobs.create_all(specs, actor=Actor("someone"))

    new = [each.job_id for each in created if each.is_new]
    assert (created[0].execution_id, len(new)) == (first.execution_id, 1)
    assert await audited(store) == [("job.create", f"job:{new[0]}"), ("job.update", f"job:{first.job_id}")]


async def test_new_arguments_of_an_administrators_handler_are_audited(store: Store, commands: Commands) -> None:
    spec = JobSpec(handler="shell.command", unique_key="k", if_exists="replace", payload={"command": "true"})
    created = await commands.jobs.create(spec, actor=Actor("admin"))
    await commands.jobs.create(dataclasses.replace(spec, payload={"command": "false"}), actor=Actor("admin"))

    assert await audited(store) == [
        ("job.create", f"job:{created.job_id}"),
        ("job.update", f"job:{created.job_id}"),
    ]
    update = next(row for row in await table(store, "audit") if row["action"] == "job.update")
    assert json.loads(update["after"])["payload"] == {"command": "false"}


async def test_an_edit_keeps_the_newest_arguments(store: Store, commands: Commands) -> None:
    first = await replace(store, 1, 60)
    await replace(store, 2)

    await commands.jobs.update(first.job_id, {"priority": 9}, Actor())

    (row,) = await table(store, "job")
    assert (json.loads(row["payload"]), row["priority"]) == ({"n": 2}, 9)


async def test_extend_leaves_what_is_parked_until_its_job_is_resumed(
    store: Store, clock: VirtualClock, commands: Commands
) -> None:
    first = await extend(store, 1, 10)
    await commands.jobs.pause(first.job_id)
    await extend(store, 2, 30)
    await proven(store)

    await commands.jobs.resume(first.job_id)

    assert (await only_row(store, "due"))["run_at"] == clock.now() + seconds(30)
    await proven(store)


# what has begun


@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_what_has_begun_stays_as_it_is_and_another_runs_after_it(
    store: Store, clock: VirtualClock, policy: str
) -> None:
    owner = await make_owner(store)
    await replace(store, 1)
    running = await begin(store)

    second = await again(store, payload={"n": 2}, if_exists=policy)
    third = await again(store, payload={"n": 3}, if_exists=policy)

    assert (second.is_new, third.is_new) == (True, False)
    assert second.execution_id == third.execution_id != running.id
    await proven(store)
    for _ in range(3):
        await promote_due(store, owner)
        assert await tables_of(store, second.execution_id) == ["due"]
        await proven(store)
        clock.advance("2s")
    await store.executions.finish_succeeded([found(running)])
    await promote_due(store, owner)
    clock.advance("2s")
    assert await payloads_run(store) == [{"n": 3}]
    assert await table(store, "live_key") == []
    await proven(store)


async def test_what_waits_for_its_retry_has_begun(store: Store, clock: VirtualClock) -> None:
    first = await replace(store, 1, max_retries=5)
    await record(store, [found(await begin(store), Failed(FAILURE))])

    second = await replace(store, 2)

    assert second.is_new
    assert second.execution_id != first.execution_id
    await proven(store)


async def test_a_released_attempt_has_begun(store: Store, clock: VirtualClock) -> None:
    """What was started and lost is ready again, and has begun."""
    first = await replace(store, 1)
    await record(store, [found(await begin(store), Lost(FAILURE))])
    assert await tables_of(store, first.execution_id) in (["ready"], ["due"])

    assert (await replace(store, 2)).is_new


async def test_a_key_that_became_free_is_not_waited_for(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    await replace(store, 1)
    running = await begin(store)
    second = await replace(store, 2)
    await store.executions.finish_succeeded([found(running)])

    third = await replace(store, 3)

    assert (third.execution_id, third.is_new) == (second.execution_id, False)
    await promote_due(store, owner)
    assert await payloads_run(store) == [{"n": 3}]


async def test_a_kept_enqueue_may_come_before_the_one_that_waits_for_the_key(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    await replace(store, 1)
    running = await begin(store)
    second = await replace(store, 2)
    await store.executions.finish_succeeded([found(running)])
    between = await again(store, payload={"n": 9})
    assert between.is_new

    await promote_due(store, owner)

    assert await tables_of(store, second.execution_id) == ["due"]
    assert await payloads_run(store) == [{"n": 9}]
    clock.advance("2s")
    await promote_due(store, owner)
    clock.advance("1s")
    assert await payloads_run(store) == [{"n": 2}]
    await proven(store)


async def test_a_cancellation_frees_the_key_for_the_one_that_waits(store: Store, commands: Commands) -> None:
    owner = await make_owner(store)
    first = await enqueue(store, unique_key="k", handler="other")
    second = await replace(store, 2)
    assert second.is_new  # another handler's execution is left as it is

    await commands.executions.cancel([first])

    await promote_due(store, owner)
    assert await payloads_run(store) == [{"n": 2}]
    await proven(store)


async def test_the_one_that_waits_for_a_key_can_be_cancelled(store: Store, commands: Commands) -> None:
    await replace(store, 1)
    running = await begin(store)
    second = await replace(store, 2)

    await commands.executions.cancel([second.execution_id])

    assert [row["execution_id"] for row in await table(store, "live_key")] == [running.id]
    third = await replace(store, 3)
    assert third.is_new
    await proven(store)


async def test_an_edit_of_the_one_that_waits_for_a_key_lets_it_wait(store: Store, commands: Commands) -> None:
    await replace(store, 1)
    await begin(store)
    second = await replace(store, 2, 60)

    await commands.jobs.update(second.job_id, {"priority": 9}, Actor())

    row = await only_row(store, "due")
    assert (row["awaits_key"], row["priority"]) == (True, 9)
    await proven(store)


async def test_two_handlers_cannot_wait_for_one_key(store: Store) -> None:
    await replace(store, 1)
    await begin(store)
    await replace(store, 2)

    with pytest.raises(Conflict, match=r"the unique_key 'k' is awaited by exe_.* of .*, expected one of other"):
        await replace(store, 3, handler="other")


async def test_an_occurrence_that_has_the_key_is_left_as_it_is(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, 60, unique_key="k", payload={"n": 0})
    owner = await make_owner(store)
    clock.advance("60s")
    await promote_due(store, owner)

    second = await replace(store, 2)

    assert second.is_new
    assert await payloads_run(store) == [{"n": 0}]
    await promote_due(store, owner)
    assert await payloads_run(store) == [{"n": 2}]
    await proven(store)


# how long a key is held


async def test_a_key_is_held_after_the_end_of_its_execution(store: Store, clock: VirtualClock) -> None:
    first = await again(store, unique_for_seconds=600)
    await payloads_run(store)
    clock.advance("599s")

    for policy in ("keep", "replace", "extend"):
        given = await again(store, if_exists=policy)
        assert (given.execution_id, given.is_new) == (first.execution_id, False)
    await proven(store)

    clock.advance("1s")
    late = await again(store)
    assert late.is_new
    assert await only_row(store, "live_key") == {
        "key": "k",
        "execution_id": late.execution_id,
        "held_until": None,
        "has_ended": False,
    }
    await proven(store)


async def test_a_key_is_held_after_its_execution_has_begun(store: Store, clock: VirtualClock) -> None:
    first = await replace(store, 1, unique_for_seconds=600)
    await begin(store)

    given = await replace(store, 2)
    clock.advance("600s")
    later = await replace(store, 3)

    assert (given.execution_id, given.is_new) == (first.execution_id, False)
    assert later.is_new
    await proven(store)


async def test_a_key_is_held_for_as_long_as_its_execution_is_unfinished(store: Store, clock: VirtualClock) -> None:
    first = await again(store, unique_for_seconds=5)
    running = await begin(store)
    clock.advance("300s")

    assert (await again(store)).execution_id == first.execution_id
    await store.executions.finish_succeeded([found(running)])
    assert (await again(store, if_exists="replace")).is_new


async def test_only_what_has_ended_forgets_its_key(store: Store, clock: VirtualClock) -> None:
    """Between the look at a key and this statement another enqueue may have taken it."""
    await again(store, unique_for_seconds=5)
    clock.advance("300s")

    await store.database.fetch("free_keys", keys=["k"])

    assert not (await only_row(store, "live_key"))["has_ended"]


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired"])
async def test_a_key_is_held_whatever_ends_its_execution(
    store: Store, clock: VirtualClock, commands: Commands, end: str
) -> None:
    first = await again(store, unique_for_seconds=600, max_retries=0, start_within_seconds=5)
    if end == "failed":
        await record(store, [found(await begin(store), Failed(FAILURE))])
    elif end == "cancelled":
        await commands.executions.cancel([ExecutionId(first.job_id)])
    else:
        clock.advance("5s")
        await store.executions.expire_waiting(10)
    assert await tables_of(store, first.execution_id) == ["finished"]

    assert not (await again(store)).is_new
    await proven(store)


async def test_a_held_key_holds_occurrences_and_requests_off_until_its_instant(
    store: Store, clock: VirtualClock, commands: Commands
) -> None:
    await again(store, unique_for_seconds=90)
    await payloads_run(store)
    job = await make_recurring(store, 60, unique_key="k")
    owner = await make_owner(store)
    clock.advance("60s")

    await promote_due(store, owner)
    assert [row["reason"] for row in await table(store, "finished") if row["state"] == "skipped"] == ["unique_key"]
    with pytest.raises(Conflict, match=r"the job has the unique_key 'k', which exe_\w+ holds until 2026"):
        await commands.executions.trigger(job.id)

    clock.advance("60s")
    await promote_due(store, owner)
    assert len(await table(store, "ready")) == 1
    await proven(store)


async def test_a_request_takes_a_key_that_is_held_no_longer(
    store: Store, clock: VirtualClock, commands: Commands
) -> None:
    await again(store, unique_for_seconds=90)
    await payloads_run(store)
    job = await make_recurring(store, 600, unique_key="k")
    clock.advance("90s")

    await commands.executions.trigger(job.id)

    assert len(await table(store, "ready")) == 1


async def test_the_one_that_waited_for_a_key_holds_it_as_long_as_it_says(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    await replace(store, 1)
    running = await begin(store)
    at = clock.now()
    await replace(store, 2, unique_for_seconds=600)
    await store.executions.finish_succeeded([found(running)])

    await promote_due(store, owner)

    assert (await only_row(store, "live_key"))["held_until"] == at + seconds(600)


# any number of callers


@pytest.mark.parametrize("policy", ["replace", "extend"])
async def test_any_number_of_callers_leave_one_execution_that_runs_and_one_after_it(store: Store, policy: str) -> None:
    async def call(number: int) -> CreatedJob:
        return await again(store, payload={"n": number}, if_exists=policy)

    created = await asyncio.gather(*(call(number) for number in range(12)))

    assert len({each.execution_id for each in created}) == 1
    assert sum(each.is_new for each in created) == 1
    assert len(await table(store, "execution")) == 1
    await promote_due(store, await make_owner(store))
    running = await begin(store)
    created = await asyncio.gather(*(call(number) for number in range(20, 32)))
    assert len({each.execution_id for each in created}) == 1
    assert sum(each.is_new for each in created) == 1
    assert running.id not in {each.execution_id for each in created}
    await proven(store)
