"""Creating and finding jobs: one statement writes the definition, and the first execution into its state table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.support.factories import (
    FROM_THE_FIRST,
    HANDLER,
    OPERATOR,
    TZDATA,
    WHOLE_CALL,
    claim_all,
    define_job,
    enqueue,
    first_execution_of,
    found,
    make_job,
    make_node,
    make_recurring,
    only_row,
    read_job,
    seconds,
    table,
    tables_of,
)
from timeball.domain import job_changes
from timeball.domain.calendar import Calendar
from timeball.domain.execution import Origin
from timeball.domain.job import Job
from timeball.domain.job_fields import LIST_FIELDS, SPEC_FIELDS
from timeball.domain.policies import Delivery, OnGap, OnRepeat, Shift
from timeball.domain.scheduling.calendars import CalendarVersion, parse_days
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId, new_id
from timeball.env import Env
from timeball.errors import Conflict
from timeball.store import enqueue as enqueue_module
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, FirstExecution
from timeball.testing import VirtualClock
from timeball.testing.environment import START

# A distinct value for each field, so that swapped columns are noticed.
EVERYTHING: dict[str, Any] = {
    "name": "nightly report",
    "description": "for the board",
    "handler": "app.reports:nightly",
    "payload": {"pages": 3},
    "schedule": "5 4 * * *",
    "timezone": "Europe/Berlin",
    "on_gap": OnGap.SKIP,
    "on_repeat": OnRepeat.BOTH,
    "skip_on": ("holidays", "weekend"),
    "only_on": ("open",),
    "shift": Shift.NEXT,
    "starts_at": datetime(2026, 3, 4, tzinfo=UTC),
    "ends_at": datetime(2031, 5, 6, tzinfo=UTC),
    "max_executions": 1001,
    "pause_after_failures": 102,
    "jitter_seconds": 7,
    "misfire": "all",
    "misfire_grace_seconds": 41,
    "misfire_cap": 42,
    "misfire_max_age_seconds": 43,
    "overlap": "allow",
    "queue": "reports",
    "priority": 61,
    "max_retries": 11,
    "max_lost": 12,
    "initial_backoff_ms": 1300,
    "max_backoff_ms": 14_000,
    "backoff_ms": (17, 18_000),
    "timeout_ms": 15_000,
    "delivery": "at_most_once",
    "max_running": 16,
    "limit_key": "printers",
    "unique_key": "the report",
    "start_within_seconds": 71,
    "tags": ("red", "blue"),
    "owner": "query:17",
    "meta": {"tenant": "acme", "depth": {"of": [1, None]}},
    "on_success": {**WHOLE_CALL, "on_failure": WHOLE_CALL},
    "on_failure": WHOLE_CALL,
    "expect": {
        "start_within": "1m",
        "finish_within": "2h",
        "succeed_every": "26h",
        "max_failures_in_a_row": 3,
        "max_dead": 4,
    },
}


JSON_FIELDS = ("payload", "meta", "on_success", "on_failure", "expect")


async def make_calendars(store: Store) -> dict[str, CalendarVersion]:
    """The calendars that it names, one of them in its second version."""
    days = {"holidays": ["12-25"], "weekend": ["sat", "sun"], "open": ["mon", "tue", "wed", "thu", "fri", "2030-01-05"]}
    for name, entries in days.items():
        await store.calendars.add(
            Calendar(name=name, description=None, source={"kind": "list"}, days=parse_days(entries)), OPERATOR
        )
    await store.calendars.change("holidays", lambda one: replace(one, days=parse_days(["12-26"])), OPERATOR)
    return await store.calendars.present(list(days))


def test_everything_has_every_field() -> None:
    # These belong to other kinds of jobs.
    others = {"interval_seconds", "scheduled_at", "after", "expires_at", "if_exists", "unique_for_seconds"}
    assert EVERYTHING.keys() == SPEC_FIELDS.keys() - others


async def test_every_field_comes_back_as_it_was_written(store: Store, clock: VirtualClock) -> None:
    known = await make_calendars(store)
    wanted = replace(define_job(store, known_calendars=known, **EVERYTHING), declared_by="app:tb", version=3)

    await store.enqueuer.create([wanted], [])

    stored = (await store.jobs.find([wanted.id]))[wanted.id]
    assert json.loads(stored.payload) == {"pages": 3}
    assert stored == replace(wanted, payload=stored.payload, created_at=clock.now(), updated_at=clock.now())
    assert await store.jobs.find_by_name("nightly report") == stored


async def test_every_field_has_the_column_of_its_name(store: Store) -> None:
    wanted = define_job(store, known_calendars=await make_calendars(store), **EVERYTHING)

    await store.enqueuer.create([wanted], [])

    row = await only_row(store, "job")
    named = {name: value for name, value in EVERYTHING.items() if name not in (*JSON_FIELDS, "delivery", *LIST_FIELDS)}
    assert {name: row[name] for name in named} == named
    assert (json.loads(row["payload"]), row["tags"]) == ({"pages": 3}, ["red", "blue"])
    assert {name: json.loads(row[name]) for name in JSON_FIELDS} == {name: EVERYTHING[name] for name in JSON_FIELDS}
    assert (row["skip_on"], row["only_on"]) == (["holidays", "weekend"], ["open"])
    assert row["backoff_ms"] == [17, 18_000]
    cited = {name: one["version"] for name, one in json.loads(row["calendars"]).items()}
    assert cited == {"holidays": 2, "weekend": 1, "open": 1}
    assert (row["at_most_once"], row["kind"], row["shard"]) == (True, "cron", wanted.shard)


async def test_the_kinds_of_schedules_come_back(store: Store, clock: VirtualClock) -> None:
    now = clock.now()
    rules: list[dict[str, Any]] = [
        {"interval_seconds": 61, "scheduled_at": now + seconds(5)},
        {"scheduled_at": now + seconds(6), "expires_at": now + seconds(8)},
        {"starts_at": now + seconds(7)},
        {"schedule": "@daily"},
    ]

    jobs = [await make_job(store, **rule) for rule in rules]

    assert [job.kind.value for job in jobs] == ["every", "once", "manual", "cron"]
    assert jobs[0].rule == define_job(store, **rules[0]).rule
    assert jobs[0].delivery is Delivery.AT_LEAST_ONCE
    assert await store.jobs.find([JobId(new_id(1, 1))]) == {}


async def test_a_one_off_due_now_is_ready(store: Store, clock: VirtualClock) -> None:
    due_at = clock.now() - seconds(3)

    job = await make_job(
        store,
        name=None,
        scheduled_at=due_at,
        handler="app:send",
        queue="mail",
        priority=77,
        unique_key="k",
        start_within_seconds=71,
    )

    row = await only_row(store, "ready")
    assert row == {
        "id": job.id,
        "job_id": job.id,
        "origin": "enqueue",
        "version": 1,
        "queue": "mail",
        "priority": 77,
        "handler": "app:send",
        "scheduled_for": due_at,
        "run_at": due_at,
        "queued_at": clock.now(),
        "attempts": 0,
        "lost": 0,
        "fence": 0,
        "tzdata": None,
        "limit_key": None,
        "unique_key": "k",
        "payload": None,
        "retry_of": None,
        "created_by": None,
        "bound_secrets_only": None,
        "meta": None,
        "has_follow_ups": None,
        "expires_at": due_at + seconds(71),
    }
    assert await table(store, "job_version") == []


async def test_a_one_off_without_an_instant_is_due_by_the_clock_of_the_database(
    store: Store, clock: VirtualClock
) -> None:
    job = define_job(store, name=None, scheduled_at=clock.now())
    clock.advance("5s")

    await store.enqueuer.create([job], [FirstExecution(id=ExecutionId(job.id), job_id=job.id, origin=Origin.ENQUEUE)])

    row = await only_row(store, "ready")
    assert (row["run_at"], row["scheduled_for"]) == (clock.now(), clock.now())


async def test_a_plain_one_off_is_written_like_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual enqueue has statements of its own: for one job, for several that are alike, for several that are not."""
    plain = {name: EVERYTHING[name] for name in EVERYTHING if name in enqueue_module.PLAIN_COLUMNS | {"delivery"}}
    asked: list[str] = []
    store.database.env.fault = asked.append

    def one() -> Job:
        return define_job(store, **plain, name=None, scheduled_at=store.database.env.clock.now())

    job = one()
    prepared = enqueue_module.prepare_job(job)
    assert prepared is not None
    await _create_now(store, job)
    await store.enqueuer.enqueue(prepared, [(new_id(1, bits), 1, job.payload) for bits in range(2)])
    await _create_now(store, one(), one())
    monkeypatch.setattr(enqueue_module, "prepare_job", lambda job: None)
    monkeypatch.setattr(enqueue_module, "is_plain", lambda job, columns: False)
    await _create_now(store, one())

    used = [point.removesuffix(".before") for point in asked if point.endswith(".before")]
    assert used == ["enqueue_one", "enqueue_alike", "create_plain_jobs", "create_jobs"]
    for state_table in ("job", "ready"):
        rows = [{**row, "id": None, "job_id": None, "shard": None} for row in await table(store, state_table)]
        assert rows == [rows[0]] * 6


@pytest.mark.parametrize(
    "own",
    [{"unique_key": "k"}, {"max_running": 2}, {"name": "named"}, {"starts_at": "2020-01-01T00:00Z"}],
    ids=lambda own: next(iter(own)),
)
async def test_a_job_with_special_fields_is_not_plain(store: Store, own: dict[str, Any]) -> None:
    assert (
        enqueue_module.prepare_job(define_job(store, **{"name": None, "scheduled_at": "2030-01-01T00:00Z"} | own))
        is None
    )


async def _create_now(store: Store, *jobs: Job) -> None:
    firsts = [FirstExecution(id=ExecutionId(job.id), job_id=job.id, origin=Origin.ENQUEUE) for job in jobs]
    await store.enqueuer.create(jobs, firsts)


async def test_a_one_off_due_within_the_promotion_window_is_ready_at_once(store: Store) -> None:
    near = await enqueue(store, after=0.5)
    far = await enqueue(store, after=0.501)

    assert await tables_of(store, near) == ["ready"]
    assert await tables_of(store, far) == ["due"]


async def test_a_one_off_ahead_waits_in_due(store: Store, clock: VirtualClock) -> None:
    due_at = clock.now() + seconds(90)

    job = await make_job(
        store,
        name=None,
        scheduled_at=due_at,
        handler="app:send",
        queue="mail",
        priority=77,
        unique_key="k",
        max_running=2,
        limit_key="l",
        start_within_seconds=71,
        expires_at=due_at + seconds(70),
    )

    row = await only_row(store, "due")
    assert row == {
        "id": job.id,
        "job_id": job.id,
        "kind": "occurrence",
        "origin": "enqueue",
        "shard": job.shard,
        "run_at": due_at,
        "scheduled_for": due_at,
        "watermark": None,
        "tzdata": None,
        "version": 1,
        "queue": "mail",
        "priority": 77,
        "handler": "app:send",
        "executions_left": None,
        "queued_at": None,
        "attempts": 0,
        "lost": 0,
        "fence": 0,
        "limit_key": "l",
        "unique_key": "k",
        "payload": None,
        "retry_of": None,
        "created_by": None,
        "bound_secrets_only": None,
        "meta": None,
        "has_follow_ups": None,
        "frozen_run_at": None,
        "awaits_key": False,
        "expires_at": due_at + seconds(70),
    }


async def test_a_recurring_job_has_its_next_occurrence_in_due_and_its_version_on_record(
    store: Store, clock: VirtualClock
) -> None:
    start = clock.now()

    job = await make_recurring(store, 90, jitter_seconds=20, max_executions=5, unique_key="k")

    row = await only_row(store, "due")
    assert (row["kind"], row["origin"], row["shard"], row["tzdata"]) == ("occurrence", "schedule", job.shard, TZDATA)
    assert (row["scheduled_for"], row["run_at"]) == (start + seconds(90), start + seconds(90) + job.jitter)
    assert (row["watermark"], row["executions_left"], row["unique_key"]) == (start, 5, "k")
    version = await only_row(store, "job_version")
    assert (version["job_id"], version["version"], version["recorded_at"]) == (job.id, 1, start)
    assert (version["effective_from"], version["effective_until"]) == (start, None)
    assert json.loads(version["definition"])["interval_seconds"] == 90
    assert await table(store, "live_key") == []


async def test_a_recurring_job_that_is_due_at_once_still_goes_through_due(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, scheduled_at=clock.now() - seconds(60))

    assert (await only_row(store, "due"))["job_id"] == job.id
    assert await table(store, "ready") == []


async def test_a_manual_job_has_no_execution(store: Store) -> None:
    await make_job(store, schedule="manual")

    row = await only_row(store, "job")
    assert (row["kind"], row["schedule"]) == ("manual", None)
    assert await table(store, "execution") == []


async def test_a_name_that_is_taken_refuses_the_whole_batch(store: Store) -> None:
    await make_job(store, name="taken")
    fresh, doubled = define_job(store, name="fresh"), define_job(store, name="taken")

    with pytest.raises(Conflict, match="there is already a job named 'taken'") as caught:
        await store.enqueuer.create([fresh, doubled], [])

    assert caught.value.facts["names"] == ["taken"]
    assert await store.jobs.find_by_name("fresh") is None


async def test_the_name_of_a_deleted_job_is_free_again(store: Store) -> None:
    old = await make_job(store, name="phoenix")
    await store.jobs.change(old.id, lambda snapshot: job_changes.delete_job(snapshot, None), OPERATOR)

    young = await make_job(store, name="phoenix")

    assert await store.jobs.find_by_name("phoenix") == young
    assert set(await store.jobs.find([old.id, young.id])) == {old.id, young.id}


async def test_a_unique_key_admits_one_unfinished_execution(store: Store, clock: VirtualClock) -> None:
    first = await enqueue(store, unique_key="only one")
    second = define_job(store, name=None, scheduled_at=clock.now(), unique_key="only one")
    execution = first_execution_of(second, clock.now())
    assert execution is not None

    (created,) = await store.enqueuer.create([second], [execution])

    assert (created.job_id, created.execution_id, created.is_new) == (second.id, first, False)
    assert await store.jobs.find([second.id]) == {}

    (claimed,) = await claim_all(store)
    await store.executions.finish_succeeded([found(claimed)])
    (created,) = await store.enqueuer.create([second], [execution])

    assert (created.execution_id, created.is_new) == (ExecutionId(second.id), True)


async def test_two_of_one_batch_with_one_key_give_one_execution(store: Store, clock: VirtualClock) -> None:
    jobs = [define_job(store, name=None, scheduled_at=clock.now(), unique_key="k") for _ in range(2)]
    firsts = [first for job in jobs if (first := first_execution_of(job, clock.now()))]

    created = await store.enqueuer.create(jobs, firsts)

    (row,) = await table(store, "ready")
    assert {each.execution_id for each in created} == {row["id"]}
    assert sorted(each.is_new for each in created) == [False, True]


async def test_a_key_whose_execution_finishes_meanwhile_is_taken(
    fresh_database: FreshDatabase, open_store: Callable[..., Awaitable[Store]], env: Env
) -> None:
    """The execution of a key may finish before it is looked up: then the job is created after all."""

    def end_holder(point: str) -> None:
        if point == "live_keys.before":
            with psycopg.connect(fresh_database.server.dsn(fresh_database.name), autocommit=True) as aside:
                aside.execute("DELETE FROM timeball.live_key")

    env.fault = end_holder
    store = await open_store()
    await enqueue(store, unique_key="k")
    late = define_job(store, name=None, scheduled_at=env.clock.now(), unique_key="k")
    first = first_execution_of(late, env.clock.now())
    assert first is not None

    (created,) = await store.enqueuer.create([late], [first])

    assert (created.execution_id, created.is_new) == (ExecutionId(late.id), True)


async def test_limited_one_offs_wait_for_a_place(store: Store) -> None:
    ids = [await enqueue(store, after=-number, max_running=2, limit_key="printer") for number in range(3)]

    assert [await tables_of(store, id_) for id_ in ids] == [["ready"], ["ready"], ["blocked"]]
    assert await table(store, "running_limit") == [{"key": "printer", "max_running": 2}]
    blocked = await only_row(store, "blocked")
    assert (blocked["limit_key"], blocked["run_at"]) == ("printer", store.env.clock.now() - seconds(2))


async def test_the_newest_job_of_a_shared_limit_sets_it(store: Store) -> None:
    await enqueue(store, max_running=2, limit_key="printer")
    await enqueue(store, max_running=5, limit_key="printer")

    assert await table(store, "running_limit") == [{"key": "printer", "max_running": 5}]


@pytest.mark.parametrize("fields", [{"scheduled_at": START + timedelta(days=1)}, {"interval_seconds": 60}, {}])
async def test_a_new_job_with_a_lower_limit_blocks_the_excess(store: Store, fields: dict[str, Any]) -> None:
    """Of all executions of the limit, the least urgent waits again; running ones go on and count."""
    running, middle, urgent, lazy = [
        await enqueue(store, queue=queue, priority=priority, max_running=4, limit_key="printer")
        for queue, priority in (("first", 1), ("default", 50), ("default", 99), ("default", 0))
    ]
    await enqueue(store, max_running=4, limit_key="another")
    request = ClaimRequest(await make_node(store), [HANDLER], 1, 0)
    await store.executions.claim(request, {("first", 1): FROM_THE_FIRST}, ClaimId(store.env.new_id()))
    before = {row["id"]: row for row in await table(store, "ready")}

    await make_job(store, **fields, max_running=2, limit_key="printer")

    assert [await tables_of(store, id_) for id_ in (running, urgent)] == [["running"], ["ready"]]
    blocked = {row["id"]: row for row in await table(store, "blocked")}
    assert blocked == {id_: before[id_] for id_ in (middle, lazy)}, "as they were"
    assert len(await table(store, "ready")) == 2, "those of other limits stay"


async def test_a_limit_with_places_for_all_blocks_nothing(store: Store) -> None:
    ids = [await enqueue(store, max_running=2, limit_key="printer") for _ in range(2)]

    for said in (2, 3, 2):
        await make_job(store, max_running=said, limit_key="printer")

    assert [await tables_of(store, id_) for id_ in ids] == [["ready"], ["ready"]]


async def test_a_job_whose_runs_must_not_overlap_has_a_limit_of_one(store: Store) -> None:
    job = await make_recurring(store, overlap="queue", max_running=9)

    assert await table(store, "running_limit") == [{"key": f"job:{job.id}", "max_running": 1}]


async def test_a_job_created_in_the_callers_transaction_shares_its_fate(store: Store, clock: VirtualClock) -> None:
    job = define_job(store, name="mine", interval_seconds=60)
    first = first_execution_of(job, clock.now())
    assert first is not None

    async def create_and_fail() -> None:
        async with store.database.transaction() as connection:
            (created,) = await store.enqueuer.create([job], [first], connection)
            assert created.is_new
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await create_and_fail()

    assert await store.jobs.find_by_name("mine") is None
    assert await table(store, "due") == []


async def test_many_one_offs_are_written_at_once(store: Store, clock: VirtualClock) -> None:
    template = define_job(
        store,
        name=None,
        description="what they have in common",
        timezone="Europe/Berlin",
        scheduled_at=clock.now(),
        handler="app:send",
        queue="mail",
        priority=77,
        max_retries=11,
        max_lost=12,
        initial_backoff_ms=1300,
        max_backoff_ms=14_000,
        timeout_ms=15_000,
        delivery="at_most_once",
        tags=("red",),
    )
    rows = [(UUID(int=number + 1), number, json.dumps({"n": number})) for number in range(3)]

    await store.enqueuer.create_many(template, rows, None)

    for id_, shard, payload in rows:
        job = await read_job(store, JobId(id_))
        expected = replace(template, id=job.id, shard=shard, payload=job.payload)
        assert job == replace(expected, created_at=clock.now(), updated_at=clock.now())
        assert json.loads(job.payload) == json.loads(payload)
    ready = await table(store, "ready")
    assert [(row["id"], row["job_id"]) for row in ready] == [(id_, id_) for id_, _, _ in rows]
    same = {(r["origin"], r["version"], r["queue"], r["priority"], r["handler"]) for r in ready}
    assert same == {("enqueue", 1, "mail", 77, "app:send")}
    assert {(r["run_at"], r["scheduled_for"], r["queued_at"]) for r in ready} == {(clock.now(),) * 3}


async def test_many_one_offs_for_later_wait_in_due(store: Store, clock: VirtualClock) -> None:
    due_at = clock.now() + timedelta(hours=1)
    template = define_job(store, name=None, scheduled_at=due_at, handler="app:send", queue="mail", priority=77)

    await store.enqueuer.create_many(template, [(UUID(int=5), 9, "{}")], due_at)

    row = await only_row(store, "due")
    assert (row["id"], row["job_id"], row["kind"], row["origin"]) == (UUID(int=5), UUID(int=5), "occurrence", "enqueue")
    assert (row["shard"], row["run_at"], row["scheduled_for"], row["version"]) == (9, due_at, due_at, 1)
    assert (row["queue"], row["priority"], row["handler"]) == ("mail", 77, "app:send")
    assert await table(store, "ready") == []


async def test_many_one_offs_for_the_next_moment_are_ready(store: Store, clock: VirtualClock) -> None:
    due_at = clock.now() + store.promotion_window
    template = define_job(store, name=None, scheduled_at=due_at, queue="mail", priority=77)

    await store.enqueuer.create_many(template, [(UUID(int=5), 9, "{}")], due_at)

    row = await only_row(store, "ready")
    assert (row["id"], row["queue"], row["priority"]) == (UUID(int=5), "mail", 77)
    assert (row["run_at"], row["scheduled_for"], row["queued_at"]) == (due_at, due_at, clock.now())
    assert await table(store, "due") == []


@pytest.mark.parametrize("rows_at_once", [1, 2, 20_000])
async def test_a_bulk_write_is_all_or_nothing(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", rows_at_once)
    template = define_job(store, name=None, scheduled_at=clock.now())
    doubled = [(UUID(int=1), 1, "{}"), (UUID(int=2), 2, "{}"), (UUID(int=1), 1, "{}")]

    with pytest.raises(Exception, match="duplicate key"):
        await store.enqueuer.create_many(template, doubled, None)

    assert await table(store, "job") == []
    assert await table(store, "ready") == []


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_abandoned_bulk_write_leaves_nothing_and_affects_no_other(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """The first rows are written while the next ones are made."""
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", 2)
    template, at_work = define_job(store, name=None, scheduled_at=clock.now()), asyncio.current_task()
    assert at_work is not None

    def rows() -> Iterator[tuple[UUID, int, str]]:
        for number in range(1, 6):
            yield UUID(int=number), 1, "{}"
        if not is_cancelled:
            raise ZeroDivisionError
        at_work.cancel()

    with pytest.raises(asyncio.CancelledError if is_cancelled else ZeroDivisionError):
        await store.enqueuer.create_many(template, rows(), None)

    assert at_work.uncancel() == 0
    assert await table(store, "job") == []
    assert await table(store, "ready") == []


async def test_the_schema_refuses_invalid_schedules(store: Store) -> None:
    """Fault 27. The schema stops writes that bypass every API."""
    await make_recurring(store, 60)
    impossible = [
        *("interval_seconds = 0", "interval_seconds = -1", "interval_seconds = NULL"),
        *("scheduled_at = '1969-12-31Z'", "scheduled_at = '2200-01-01Z'", "scheduled_at = NULL"),
        *("kind = 'cron'", "kind = 'sometimes'", "priority = 101", "max_retries = -1", "max_lost = 0"),
        *("timeout_ms = 0", "max_running = 0", "max_executions = 0", "jitter_seconds = -1", "name = ''"),
    ]

    for assignment in impossible:
        with pytest.raises(asyncpg.CheckViolationError):
            async with store.database.transaction() as connection:
                await connection.execute(f"UPDATE timeball.job SET {assignment}")


# Each rule of the schema by its name, and values that break this rule alone.
_BREACHES = {
    "job_kind_check": ["kind = 'sometimes'", "kind = ''"],
    "once_has_instant": ["scheduled_at = NULL"],
    "every_has_interval": ["kind = 'every'", "kind = 'every', interval_seconds = 1, scheduled_at = NULL"],
    "cron_has_schedule": ["kind = 'cron'", "kind = 'cron', schedule = '* * * * *', timezone = NULL"],
    "job_name_check": ["name = ''", "name = repeat('n', 201)"],
    "job_handler_check": ["handler = ''", "handler = repeat('h', 201)"],
    "job_interval_seconds_check": ["interval_seconds = 0", "interval_seconds = -1"],
    "job_scheduled_at_check": [
        *("scheduled_at = '1969-12-31T23:59:59Z'", "scheduled_at = '2200-01-01Z'"),
        *("scheduled_at = 'infinity'", "scheduled_at = '-infinity'"),
    ],
    "job_owner_check": ["owner = ''", "owner = repeat('o', 201)"],
    "job_on_gap_check": ["on_gap = 'jump'"],
    "job_on_repeat_check": ["on_repeat = 'third'"],
    "job_shift_check": ["shift = 'after'"],
    "calendars_of_recurrence": [
        "skip_on = '{a}', calendars = '{\"a\": 1}'",
        "only_on = '{a}', calendars = '{\"a\": 1}'",
    ],
    "calendars_are_cited": ["skip_on = '{a}'", "calendars = '{\"a\": 1}'"],
    "shift_of_cron": ["shift = 'next'"],
    "job_max_executions_check": ["max_executions = 0"],
    "job_pause_after_failures_check": ["pause_after_failures = 0"],
    "job_jitter_seconds_check": ["jitter_seconds = -1"],
    "job_misfire_check": ["misfire = 'first'"],
    "job_misfire_grace_seconds_check": ["misfire_grace_seconds = -1"],
    "job_misfire_cap_check": ["misfire_cap = 0"],
    "job_misfire_max_age_seconds_check": ["misfire_max_age_seconds = -1"],
    "job_overlap_check": ["overlap = 'perhaps'"],
    "job_queue_check": ["queue = ''", "queue = repeat('q', 201)"],
    "job_priority_check": ["priority = -1", "priority = 101"],
    "job_max_retries_check": ["max_retries = -1"],
    "job_max_lost_check": ["max_lost = 0", "max_lost = -1"],
    "job_initial_backoff_ms_check": ["initial_backoff_ms = -1"],
    "job_max_backoff_ms_check": ["max_backoff_ms = -1"],
    "job_backoff_ms_check": ["backoff_ms = '{}'", "backoff_ms = '{5,-1}'"],
    "job_timeout_ms_check": ["timeout_ms = 0"],
    "job_max_running_check": ["max_running = 0"],
    "job_if_exists_check": ["if_exists = 'keep', unique_key = 'k'"],
    "job_unique_for_seconds_check": ["unique_for_seconds = 0, unique_key = 'k'"],
    "only_an_enqueue_meets_a_key": [
        "if_exists = 'replace'",
        "unique_for_seconds = 5, unique_key = 'k', name = 'n'",
        "if_exists = 'extend', unique_key = 'k', kind = 'manual'",
    ],
    "job_start_within_seconds_check": ["start_within_seconds = 0"],
    "meta_is_an_object": ["meta = '[]'", "meta = 'null'", "meta = '\"text\"'"],
    "expect_is_an_object": ["expect = '[]', kind = 'manual'"],
    "nothing_is_expected_of_a_one_off": ["expect = '{}'"],
    "follow_ups_are_calls": [
        "has_follow_ups = true, on_success = '{}'",
        "has_follow_ups = true, on_failure = '[]'",
    ],
    "follow_ups_are_noted": ["has_follow_ups = true", "is_followed = true", 'on_success = \'{"handler": "h"}\''],
    "after_has_a_cause": [
        "kind = 'after'",
        "after = 'etl'",
        "after_id = gen_random_uuid(), after_since = now()",
        "kind = 'after', after = 'etl', after_id = gen_random_uuid()",
        "kind = 'after', after = 'etl', after_since = now()",
    ],
    "after_is_another_job": ["kind = 'after', after = 'etl', after_id = id, after_since = now()"],
    "a_one_off_follows": [
        "follows = id",
        "follows_as = 'on_success'",
        "kind = 'manual', follows = id, follows_as = 'on_success'",
    ],
    "only_a_one_off_expires_at_an_instant": ["kind = 'manual', expires_at = now()"],
}


@pytest.mark.parametrize("rule", _BREACHES)
async def test_the_schema_names_the_rule_that_a_one_off_breaks(store: Store, clock: VirtualClock, rule: str) -> None:
    """Fault 27. The shortcut for usual one-offs must not accept a wrong one."""
    await store.enqueuer.create([define_job(store, name=None, scheduled_at=clock.now())], [])

    for assignment in _BREACHES[rule]:
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            async with store.database.transaction() as connection:
                await connection.execute(f"UPDATE timeball.job SET {assignment}")
        assert (refused.value.constraint_name, refused.value.data_type_name) == (rule, "sound_job")


async def test_every_rule_of_jobs_in_the_schema_is_tried_here(store: Store) -> None:
    async with store.database.connection() as connection:
        rules = await connection.fetch(
            "SELECT conname FROM pg_constraint WHERE contypid = 'timeball.sound_job'::regtype"
        )

    assert {row["conname"] for row in rules} == set(_BREACHES)


@pytest.mark.parametrize(
    "assignment",
    [
        *(
            "name = repeat('n', 200)",
            "handler = repeat('h', 200), queue = repeat('q', 200)",
            "handler = 'h', queue = 'q'",
        ),
        *("scheduled_at = '1970-01-01Z'", "scheduled_at = '2199-12-31T23:59:59.999999Z'"),
        *("kind = 'manual', scheduled_at = NULL", "kind = 'cron', schedule = '@daily', timezone = 'UTC'"),
        *(
            "max_retries = 0",
            "max_lost = 1",
            "priority = 0",
            "priority = 100",
            "initial_backoff_ms = 0",
            "max_backoff_ms = 0",
        ),
        *(
            "timeout_ms = 1",
            "max_running = 1",
            "interval_seconds = 1",
            "jitter_seconds = 0",
            "misfire_max_age_seconds = 0",
        ),
    ],
)
async def test_the_schema_accepts_the_bounds_of_its_rules(store: Store, clock: VirtualClock, assignment: str) -> None:
    await store.enqueuer.create([define_job(store, name=None, scheduled_at=clock.now())], [])

    async with store.database.transaction() as connection:
        assert await connection.execute(f"UPDATE timeball.job SET {assignment}") == "UPDATE 1"
