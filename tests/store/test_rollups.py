"""Rollups equal a recount of the history, in any order of commits, in any process, and after any interruption of a fold."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from tests.support.query_plans import rows_touched
from timeball.domain.execution import CancelOutcome, Failed, Lost, Succeeded, TimeoutOutcome
from timeball.domain.rollup import COUNTED_FIELDS, DurationSketch, RollupPeriod, RollupQuery, bucket_of, sum_rollups
from timeball.env import Env
from timeball.store.db.statements import all_statements
from timeball.store.rollups import INSTALLATION_SERIES, series_of_queue
from timeball.store.store import Store
from timeball.store.types import FoldResult
from timeball.testing import VirtualClock

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
ZERO = UUID(int=0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Key = tuple[str, datetime, UUID, str, str]


# the oracle: every row of the history, counted one by one


def _truncated(at: datetime) -> list[tuple[str, datetime]]:
    minute = at.replace(second=0, microsecond=0)
    return [("minute", minute), ("hour", minute.replace(minute=0)), ("ever", EPOCH)]


async def recount(store: Store) -> dict[Key, dict[str, Any]]:
    """The expected rollups, computed from the whole history."""
    told: dict[Key, dict[str, Any]] = defaultdict(
        lambda: {"tally": Counter(), "late": [], "lasted": [], "ran": 0, "skips": Counter()}
    )
    recurring = {row["id"] for row in await table(store, "job") if row["kind"] != "once"}
    executions = {row["id"]: row for row in await table(store, "execution")}

    def note(
        row: dict[str, Any],
        at: datetime,
        what: str,
        late: float | None = None,
        lasted: float | None = None,
        verdict: str | None = None,
        times: int = 1,
    ) -> None:
        own = (row["queue"], row["handler"])
        of_queue = series_of_queue(row["queue"])
        series = [(ZERO, *own), (row["job_id"], *own), (of_queue, row["queue"], ""), (INSTALLATION_SERIES, "", "")]
        for span, start in _truncated(at):
            for job_id, queue, handler in series:
                if job_id in {ZERO, INSTALLATION_SERIES, of_queue, *recurring} and (span != "ever" or job_id == ZERO):
                    cell = told[span, start, job_id, queue, handler]
                    cell["tally"][what] += times
                    cell["ran"] += times if verdict == "ran" else 0
                    cell["skips"].update({verdict: times} if verdict not in (None, "ran") else {})
                    cell["late"] += [] if late is None else [late]
                    cell["lasted"] += [] if lasted is None else [lasted]

    def lateness(row: dict[str, Any], started_at: datetime, number: int) -> float | None:
        is_first = number == 1 and row["origin"] != "backfill"
        return max((started_at - row["scheduled_for"]).total_seconds(), 0) if is_first else None

    expected = {row["execution_id"] for row in await table(store, "settled") if row["how"] == "expected"}
    for row in await table(store, "finished"):
        started_at, finished_at = row["started_at"], row["finished_at"]
        lasted = (finished_at - started_at).total_seconds() if started_at else None
        note(row, finished_at, "expected" if row["id"] in expected else row["state"], None, lasted, _verdict(row))
        if started_at and row["error_type"] is None:
            note(row, started_at, "starts", lateness(row, started_at, row["attempts"]))
    for tried in await table(store, "attempt"):
        row = executions[tried["execution_id"]]
        note(row, tried["finished_at"], "expected_tries" if tried["is_expected"] else tried["outcome"])
        if tried["started_at"]:
            note(row, tried["started_at"], "starts", lateness(row, tried["started_at"], tried["number"]))
    jobs = {row["id"]: row for row in await table(store, "job")}
    for row in await table(store, "skip_range"):
        job = jobs[row["job_id"]]
        of_job = {"job_id": job["id"], "queue": job["queue"], "handler": job["handler"]}
        note(of_job, row["recorded_at"], "passed over", verdict=row["reason"], times=row["occurrences"])
    return told


def _verdict(row: dict[str, Any]) -> str | None:
    if row["origin"] != "schedule":
        return None
    if row["state"] == "skipped":
        return str(row["reason"])
    return "cancelled" if row["state"] == "cancelled" and row["attempts"] + row["lost"] == 0 else "ran"


async def assert_rollups_are_right(store: Store) -> None:
    rows = {
        (row["span"], row["at"], row["job_id"], row["queue"], row["handler"]): row
        for row in await table(store, "rollup")
    }
    told = await recount(store)
    assert rows.keys() == told.keys()
    for key, row in rows.items():
        cell = told[key]
        assert {name: row[name] for name in COUNTED_FIELDS} == {name: cell["tally"][name] for name in COUNTED_FIELDS}, (
            key
        )
        assert DurationSketch(row["lateness_buckets"], row["lateness_counts"]) == DurationSketch.of(cell["late"]), key
        assert DurationSketch(row["duration_buckets"], row["duration_counts"]) == DurationSketch.of(cell["lasted"]), key
        assert row["ran"] == cell["ran"], key
        assert dict(zip(row["skip_reasons"], row["skip_counts"], strict=True)) == dict(cell["skips"]), key
        assert row["lateness_seconds"] == pytest.approx(sum(cell["late"])), key
        assert row["duration_seconds"] == pytest.approx(sum(cell["lasted"])), key


async def fold_all(store: Store, most: int = 2_000) -> int:
    """Fold until nothing is left; returns the number of records."""
    records = 0
    while True:
        folded = await store.rollups.fold(most)
        records += folded.records
        if not folded.has_more:
            return records


async def put_finished(connection: Any, store: Store, finished_at: datetime, **columns: Any) -> None:
    """A row of history as some transaction wrote it."""
    given = {
        "id": store.env.new_id(),
        "job_id": store.env.new_id(),
        "state": "succeeded",
        "origin": "enqueue",
        "version": 1,
        "queue": "default",
        "priority": 50,
        "handler": "tests:noop",
        "scheduled_for": finished_at - timedelta(seconds=3),
        "started_at": finished_at - timedelta(seconds=2),
        "finished_at": finished_at,
        "attempts": 1,
        "lost": 0,
        "fence": 1,
    } | columns
    places = ", ".join(f"${number}" for number in range(1, len(given) + 1))
    await connection.execute(f"INSERT INTO timeball.finished ({', '.join(given)}) VALUES ({places})", *given.values())


async def put_skip_range(connection: Any, store: Store, job_id: UUID, recorded_at: datetime, **columns: Any) -> None:
    """A range of skipped occurrences as some transaction wrote it."""
    given = {
        "id": store.env.new_id(),
        "job_id": job_id,
        "version": 1,
        "first_at": recorded_at - timedelta(seconds=30),
        "last_at": recorded_at - timedelta(seconds=10),
        "occurrences": 5,
        "reason": "misfire",
        "recorded_at": recorded_at,
    } | columns
    places = ", ".join(f"${number}" for number in range(1, len(given) + 1))
    await connection.execute(f"INSERT INTO timeball.skip_range ({', '.join(given)}) VALUES ({places})", *given.values())


# what is counted


async def test_the_rollups_of_a_mixed_history_equal_a_recount(store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    job = await make_recurring(store, every=60, queue="mail")
    await make_job(store, scheduled_at=clock.now() + timedelta(seconds=30), queue="once")
    outcomes = [
        Succeeded(),
        Failed(FAILURE),
        TimeoutOutcome(FAILURE),
        Lost(FAILURE),
        CancelOutcome("no"),
        Failed(FAILURE, is_retryable=False),
        Failed(FAILURE, is_retryable=False, is_expected=True),
    ]
    for number in range(12):
        await enqueue(store, handler="tests:noop", queue="bulk" if number % 2 else "default")
        await promote_due(store, owner)
        for place, claimed in enumerate(await claim_all(store)):
            outcome = outcomes[(number + place) % len(outcomes)]
            started = None if isinstance(outcome, Lost) else clock.now() + timedelta(milliseconds=7 * number)
            await record(
                store, [found(claimed, outcome, started_at=started, finished_at=clock.now() + timedelta(seconds=2))]
            )
        clock.advance("21s")
        if number % 3 == 0:
            await fold_all(store)
    await fold_all(store)

    await assert_rollups_are_right(store)
    spans = {(row["span"], row["job_id"]) for row in await table(store, "rollup")}
    queues = {series_of_queue(row["queue"]) for row in await table(store, "finished")}
    assert spans == {("ever", ZERO), *product(("minute", "hour"), (ZERO, INSTALLATION_SERIES, job.id, *queues))}
    ever = [row for row in await table(store, "rollup") if row["span"] == "ever"]
    for name in COUNTED_FIELDS:
        assert name == "skipped" or sum(row[name] for row in ever) > 0, f"the history has no {name} in it"


@on_one_server
async def test_skipped_occurrences_are_counted_by_reason_and_a_range_as_many_as_it_holds(
    store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store, queue="mail")
    once = {"job_id": job.id, "queue": "mail", "started_at": None, "attempts": 0, "fence": 0}
    async with store.database.transaction() as connection:
        await put_skip_range(connection, store, job.id, clock.now())
        await put_finished(connection, store, clock.now(), origin="schedule", state="skipped", reason="overlap", **once)
        await put_finished(connection, store, clock.now(), origin="schedule", state="cancelled", reason="no", **once)
        await put_finished(
            connection, store, clock.now(), origin="trigger", state="skipped", reason="unique_key", **once
        )
        await put_finished(connection, store, clock.now(), origin="schedule", job_id=job.id, queue="mail")
    await fold_all(store)
    clock.advance("61s")
    async with store.database.transaction() as connection:
        await put_skip_range(connection, store, job.id, clock.now(), occurrences=2, reason="paused")
        await put_skip_range(connection, store, job.id, clock.now(), occurrences=3)
    assert await fold_all(store) == 2

    await assert_rollups_are_right(store)
    (ever,) = [row for row in await table(store, "rollup") if row["span"] == "ever"]
    assert ever["ran"] == 1
    assert dict(zip(ever["skip_reasons"], ever["skip_counts"], strict=True)) == {
        "cancelled": 1,
        "misfire": 8,
        "overlap": 1,
        "paused": 2,
    }
    assert ever["skipped"] == 2, "that is about executions"
    query = RollupQuery(since=clock.now() - timedelta(hours=1), until=clock.now() + timedelta(hours=1), job_id=job.id)
    hours = sum_rollups(await store.rollups.series(query, timedelta(minutes=1)), clock.now())
    groups = sum_rollups(await store.rollups.groups(query), clock.now())
    assert hours.occurrences == groups.occurrences
    assert hours.occurrences.skipped["misfire"] == 8


@on_one_server
async def test_a_range_that_was_not_counted_counts_as_two(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store)
    async with store.database.transaction() as connection:
        await put_skip_range(connection, store, job.id, clock.now(), occurrences=None)

    await fold_all(store)

    (ever,) = [row for row in await table(store, "rollup") if row["span"] == "ever"]
    assert ever["skip_counts"] == [2]


@on_one_server
async def test_a_backfill_is_not_late(store: Store, clock: VirtualClock) -> None:
    async with store.database.transaction() as connection:
        await put_finished(
            connection, store, clock.now(), origin="backfill", scheduled_for=clock.now() - timedelta(days=9)
        )

    await fold_all(store)

    (ever,) = [row for row in await table(store, "rollup") if row["span"] == "ever"]
    assert (ever["starts"], ever["lateness_counts"], ever["duration_counts"]) == (1, [], [1])


@on_one_server
async def test_buckets_are_the_same_in_sql_and_in_python(store: Store) -> None:
    spans = [0.0, 1e-5, 1e-4, 1.0001e-4, 1.05e-4, 0.001, 0.0123, 0.5, 1.0, 2.0, 59.9, 3600.0, 86_400.0, 1e7, 1e12]
    async with store.database.connection() as connection:
        told = await connection.fetchval(
            "SELECT array_agg(timeball.bucket(s) ORDER BY s) FROM unnest($1::float8[]) s", spans
        )

    assert told == [bucket_of(seconds) for seconds in spans]


# exactly once


async def test_nothing_is_folded_twice(store: Store, clock: VirtualClock) -> None:
    async with store.database.transaction() as connection:
        await put_finished(connection, store, clock.now())

    assert [await store.rollups.fold() for _ in range(3)] == [
        FoldResult(1, False),
        FoldResult(0, False),
        FoldResult(0, False),
    ]
    await assert_rollups_are_right(store)


async def test_records_that_commit_late_are_folded(store: Store, clock: VirtualClock) -> None:
    """Written first, committed last: its transaction is older than all that were folded before."""
    async with store.database.transaction() as slow:
        await put_finished(slow, store, clock.now(), queue="slow")
        for _ in range(3):
            async with store.database.transaction() as quick:
                await put_finished(quick, store, clock.now(), queue="quick")
            assert await store.rollups.fold() == FoldResult(1, False), "the fold does not wait for the slow one"
    assert await store.rollups.fold() == FoldResult(1, False)

    await assert_rollups_are_right(store)


@on_one_server
async def test_a_far_jump_never_passes_a_transaction_that_is_still_open(store: Store, clock: VirtualClock) -> None:
    async with store.database.transaction() as first:
        await put_finished(first, store, clock.now(), queue="first")
        for _ in range(5):
            async with store.database.transaction() as quick:
                await put_finished(quick, store, clock.now())
        await fold_all(store)
    async with store.database.transaction() as second:
        await put_finished(second, store, clock.now(), queue="second")
        await store.rollups.fold(limit=4)
    await fold_all(store)

    await assert_rollups_are_right(store)


@on_one_server
async def test_rolled_back_records_are_not_counted(store: Store, clock: VirtualClock) -> None:
    async with store.database.connection() as connection:
        writing = connection.transaction()
        await writing.start()
        await put_finished(connection, store, clock.now())
        await writing.rollback()

    assert await fold_all(store) == 0
    assert await table(store, "rollup") == []


STEPS = st.lists(
    st.sampled_from(["begin", "write", "commit", "abort", "fold", "fold a little", "pass time"]),
    min_size=5,
    max_size=40,
)


@on_one_server
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, chance=st.randoms(use_true_random=False))
async def test_rollups_equal_a_recount_whatever_the_order_of_commits(
    store: Store, clock: VirtualClock, steps: list[str], chance: Any
) -> None:
    """Up to three concurrent writers that commit or roll back in any order, and folds in between."""
    writers: list[tuple[Any, Any]] = []
    job = await make_recurring(store)
    connections = [await store.database.connect() for _ in range(3)]
    try:
        for step in steps:
            match step:
                case "begin" if len(writers) < 3:
                    connection = next(one for one in connections if all(one is not busy for busy, _ in writers))
                    writing = connection.transaction()
                    await writing.start()
                    writers.append((connection, writing))
                case "write" if writers:
                    connection, _ = chance.choice(writers)
                    await put_finished(connection, store, clock.now(), queue=chance.choice("ab"))
                    await put_skip_range(connection, store, job.id, clock.now(), occurrences=chance.randrange(2, 9))
                case "commit" | "abort" if writers:
                    _, writing = writers.pop(chance.randrange(len(writers)))
                    await (writing.commit() if step == "commit" else writing.rollback())
                case "fold":
                    await store.rollups.fold()
                case "fold a little":
                    await store.rollups.fold(limit=1)
                case _:
                    clock.advance("17s")
        for _, writing in writers:
            await writing.commit()
        await fold_all(store)
        await assert_rollups_are_right(store)
    finally:
        for connection in connections:
            await connection.close()


async def test_a_long_backlog_is_folded_in_pieces(store: Store, clock: VirtualClock) -> None:
    await fold_all(store)
    for _ in range(30):
        async with store.database.transaction() as connection:
            await put_finished(connection, store, clock.now())
        clock.advance("10s")

    first = await store.rollups.fold(limit=8)
    assert first.has_more
    assert 0 < first.records < 30
    assert first.records + await fold_all(store, most=8) == 30
    await assert_rollups_are_right(store)


@on_one_server
async def test_two_concurrent_folds_count_once(
    store: Store, open_store: Callable[..., Awaitable[Store]], clock: VirtualClock
) -> None:
    other = await open_store()
    for _ in range(10):
        async with store.database.transaction() as connection:
            await put_finished(connection, store, clock.now())
        await asyncio.gather(store.rollups.fold(), other.rollups.fold(), store.rollups.fold())
    await fold_all(store)

    await assert_rollups_are_right(store)


@on_one_server
async def test_a_fold_beside_another_finds_nothing_to_do(
    store: Store, open_store: Callable[..., Awaitable[Store]], clock: VirtualClock
) -> None:
    other = await open_store()
    async with store.database.transaction() as connection:
        await put_finished(connection, store, clock.now())
    async with other.database.transaction() as folding:
        assert await other.database.fetch_row("lock_fold", folding) is not None

        assert await store.rollups.fold() == FoldResult(0, has_more=False)

    assert await store.rollups.fold() == FoldResult(1, has_more=False)


async def test_a_fold_that_was_killed_before_its_commit_is_repeated(
    store: Store, env: Env, clock: VirtualClock
) -> None:
    async with store.database.transaction() as connection:
        await put_finished(connection, store, clock.now())

    def kill(point: str) -> None:
        if point == "fold.before_commit":
            raise ConnectionResetError("killed")

    env.fault = kill
    with pytest.raises(Exception, match="killed"):
        await store.rollups.fold()
    env.fault = lambda _: None
    assert await table(store, "rollup") == []

    assert await store.rollups.fold() == FoldResult(1, has_more=False)
    await assert_rollups_are_right(store)


@on_one_server
async def test_a_row_that_moves_to_the_partition_of_its_day_is_counted_once(store: Store, clock: VirtualClock) -> None:
    for _ in range(2):
        async with store.database.transaction() as connection:
            await put_finished(connection, store, clock.now())
        await store.history.add_day(clock.now().date())
        await fold_all(store)
        clock.advance("1d")

    await assert_rollups_are_right(store)


@on_one_server
async def test_a_restored_database_continues_to_count(store: Store, clock: VirtualClock) -> None:
    """A dump has the transaction numbers of the old server; the new server begins with small numbers again."""
    async with store.database.transaction() as connection:
        await put_finished(connection, store, clock.now(), recorded=4_000_000_000_000)
        await connection.execute("UPDATE timeball.fold SET seen = '4000000000000:4000000000000:'")
    assert await store.rollups.fold() == FoldResult(0, has_more=True)

    async with store.database.transaction() as connection:
        await put_finished(connection, store, clock.now(), queue="new")
    assert await fold_all(store) == 1
    assert {row["queue"] for row in await table(store, "rollup")} == {"new", ""}
    async with store.database.connection() as connection:
        assert await connection.fetchval("SELECT min(recorded) FROM timeball.finished") == 0


# keeping and reading


async def test_old_minutes_are_deleted_and_their_hours_stay(store: Store, clock: VirtualClock) -> None:
    now = clock.now()
    async with store.database.transaction() as connection:
        for days in (0, 7, 9, 401):
            at = now - timedelta(days=days)
            await put_finished(connection, store, at, started_at=at)
    await fold_all(store)

    assert not await store.rollups.trim()

    ages = Counter(
        (row["span"], (now - row["at"]).days) for row in await table(store, "rollup") if row["span"] != "ever"
    )
    # The series of its queue and handler, of its queue, and of the installation.
    assert ages == {("minute", 0): 3, ("minute", 7): 3, ("hour", 0): 3, ("hour", 7): 3, ("hour", 9): 3}
    (ever,) = [row for row in await table(store, "rollup") if row["span"] == "ever"]
    assert ever["succeeded"] == 4


async def test_a_series_has_only_its_window_and_its_subject(store: Store, clock: VirtualClock) -> None:
    now = clock.now()
    job = await make_recurring(store)
    async with store.database.transaction() as connection:
        for minute in range(10):
            at = now - timedelta(minutes=minute)
            await put_finished(connection, store, at, queue="a" if minute % 2 else "b", state="dead", error_type="E")
            await put_finished(connection, store, at, job_id=job.id, handler="tests:other")
    await fold_all(store)
    window = {"since": now - timedelta(minutes=4), "until": now + timedelta(minutes=1)}

    async def counts(step: timedelta = timedelta(minutes=1), **whose: Any) -> list[tuple[int, int]]:
        found = await store.rollups.series(RollupQuery(**window, **whose), step)
        return [(one.counts.succeeded, one.counts.dead) for one in found]

    assert await counts() == [(1, 1)] * 5
    assert await counts(job_id=job.id) == [(1, 0)] * 5
    assert await counts(queue="a") == [(0, 1)] * 2
    assert await counts(handler="tests:other") == [(1, 0)] * 5
    assert await counts(handler="tests:noop") == [(0, 1)] * 5
    assert await counts(handler="tests:noop", queue="a") == [(0, 1)] * 2
    assert await counts(job_id=job.id, handler="tests:noop") == []
    assert await counts(job_id=job.id, queue="default") == [(1, 0)] * 5
    assert await counts(span=RollupPeriod.HOUR, step=timedelta(hours=1)) != []
    groups = await store.rollups.groups(RollupQuery(**window))
    assert [(one.queue, one.handler, one.counts.ended, one.duration.total) for one in groups] == [
        ("a", "tests:noop", 2, 2),
        ("b", "tests:noop", 3, 3),
        ("default", "tests:other", 5, 5),
    ]


@on_one_server
@pytest.mark.parametrize("minutes", [30, 61, 150, 24 * 60])
async def test_whole_hours_of_a_window_equal_their_minutes(store: Store, clock: VirtualClock, minutes: int) -> None:
    now = clock.now().replace(minute=17)
    async with store.database.transaction() as connection:
        for minute in range(0, 26 * 60, 7):
            at = now - timedelta(minutes=minute, seconds=1)
            await put_finished(connection, store, at, queue="ab"[minute % 2], started_at=at - timedelta(seconds=minute))
    await fold_all(store)
    window = RollupQuery(since=now - timedelta(minutes=minutes), until=now)

    groups = await store.rollups.groups(window)

    by_minute = [await store.rollups.series(replace(window, queue=queue), timedelta(days=2)) for queue in "ab"]
    told = [(one.counts, one.duration, pytest.approx(one.duration_seconds)) for one in groups]
    parts = [sum_rollups(some, window.since) for some in by_minute]
    assert told == [(one.counts, one.duration, one.duration_seconds) for one in parts]


@on_one_server
async def test_tallies_are_those_of_the_series_each_up_to_an_instant_of_its_own(
    store: Store, clock: VirtualClock
) -> None:
    now = clock.now()
    job = await make_recurring(store)
    async with store.database.transaction() as connection:
        for minute in range(10):
            at = now - timedelta(minutes=minute)
            await put_finished(connection, store, at, queue="a", state="dead", error_type="E")
            await put_finished(connection, store, at, job_id=job.id)
    await fold_all(store)
    since, later = now - timedelta(minutes=4), now + timedelta(minutes=1)
    untils = {
        INSTALLATION_SERIES: later,
        job.id: now - timedelta(minutes=2),
        series_of_queue("a"): later,
        series_of_queue("b"): later,
    }

    found = await store.rollups.tallies(untils, since, RollupPeriod.MINUTE, timedelta(minutes=1))

    counts = {id_: [(one.counts.succeeded, one.counts.dead) for one in own] for id_, own in found.items()}
    assert counts == {INSTALLATION_SERIES: [(1, 1)] * 5, job.id: [(1, 0)] * 2, series_of_queue("a"): [(0, 1)] * 5}
    assert [one.duration_seconds for one in found[INSTALLATION_SERIES]] == [4.0] * 5
    together = await store.rollups.tallies({INSTALLATION_SERIES: later}, since, RollupPeriod.MINUTE, timedelta(days=1))
    assert sum(one.counts.dead for one in together[INSTALLATION_SERIES]) == 5


@on_one_server
async def test_a_chart_of_a_queue_reads_a_row_a_step_however_many_handlers_there_are(
    store: Store, clock: VirtualClock
) -> None:
    now = clock.now()
    async with store.database.connection() as connection:
        async with connection.transaction():
            for number in range(300):
                at = now - timedelta(minutes=number % 10)
                await put_finished(connection, store, at, started_at=at, handler=f"tests:noop_{number // 10}")
        await fold_all(store)
        await connection.execute("ANALYZE timeball.rollup")
    since, until = now - timedelta(hours=1), now + timedelta(minutes=1)
    given = {
        "span": "minute",
        "since": since,
        "until": until,
        "step": timedelta(minutes=1),
        "queue": None,
        "with_sketches": True,
    }

    async def read(series: UUID, handler: str | None) -> int:
        values = given | {"series": series, "handler": handler, "all_of_handler": handler}
        return await rollups_read(store, "rollup_series", values)

    assert await read(series_of_queue("default"), None) == 10
    assert await read(INSTALLATION_SERIES, None) == 10
    assert await read(ZERO, "tests:noop_7") == 10
    tallied = given | {"series": [series_of_queue("default")], "untils": [until]}
    assert await rollups_read(store, "rollup_tallies", tallied) == 10


async def rollups_read(store: Store, name: str, given: dict[str, Any]) -> int:
    """How many rows of the rollups a statement reads."""
    statement = all_statements()[name]
    async with store.database.connection() as connection:
        explained = await connection.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.numbered()}", *(given[name] for name in statement.parameters)
        )
    scans = list(rows_touched(orjson.loads(explained)[0]["Plan"]))
    return sum(rows for scan, rows in scans if "on rollup" in scan)


@on_one_server
async def test_a_hundred_days_of_history_are_not_read_to_fold_the_latest(store: Store, clock: VirtualClock) -> None:
    async with store.database.connection() as connection:
        plan = await connection.fetch(
            "EXPLAIN SELECT 1 FROM timeball.finished WHERE recorded >= 100 AND recorded < 200"
        )
    assert any("finished_default_recorded_idx" in line[0] for line in plan)
