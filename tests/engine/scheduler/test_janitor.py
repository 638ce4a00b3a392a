"""The history kept in shape: partitions for the days ahead, none for days long past, and nothing lost in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from uuid import UUID

import pytest

from tests.engine.support import Hands, Heard, check_promises, create, start_scheduler, start_worker
from tests.support.factories import FAILURE, HANDLER, enqueue, found, put_row, record, table
from timeball.application.commands import Commands
from timeball.config.settings import HousekeepingSettings
from timeball.domain.execution import Failed
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.engine.scheduler.housekeeping import Janitor
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.db.pool import Connection
from timeball.store.store import Store
from timeball.store.types import LogRecord
from timeball.telemetry.events import HistoryTrimmed, RecordsTrimmed
from timeball.testing import VirtualClock
from timeball.testing.environment import START

DAY = timedelta(days=1)
TODAY = START.date()


@pytest.fixture
def make_janitor(store: Store, env: Env, heard: Heard) -> Callable[..., Janitor]:
    """A housekeeper's janitor, whose next round is due."""

    def make(**settings: int) -> Janitor:
        return Janitor(env, heard, store.history, store.retention, HousekeepingSettings(**settings), lambda: True)

    return make


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


async def partitions(store: Store) -> set[str]:
    async with store.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE relkind = 'r'"
        )
    return {row["name"].removeprefix("timeball.") for row in rows}


async def days(store: Store) -> set[date]:
    return set(await store.history.days())


async def rows_of(store: Store, partition: str) -> int:
    return len(await table(store, partition))


# ahead


async def test_the_days_ahead_are_made(store: Store, make_janitor: Callable[..., Janitor]) -> None:
    assert await days(store) == set()

    await make_janitor(days_ahead=3).tick()

    assert await days(store) == {TODAY + number * DAY for number in range(4)}
    assert {"finished_20260302", "attempt_20260302", "log_line_20260302"} <= await partitions(store)


async def test_a_day_later_one_more_is_made(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    await make_janitor(days_ahead=3).tick()
    clock.advance("1d")

    await make_janitor(days_ahead=3).tick()

    assert max(await days(store)) == TODAY + 4 * DAY


async def test_past_days_are_summarized_by_any_housekeeper(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    for _ in range(2):
        await make_janitor().tick()
        assert await store.history.fact("summarized_until") == str(clock.now().date() - DAY)
        clock.advance("1d")


async def test_outcomes_go_into_the_partition_of_their_day(
    store: Store, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    await make_janitor().tick()
    await enqueue(store)

    await worker.work()

    assert (await rows_of(store, "finished_20260302"), await rows_of(store, "finished_default")) == (1, 0)


async def test_what_came_into_the_default_partition_moves_to_its_day(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    """No janitor for days: nothing was refused, and nothing stays behind."""
    for number in range(3):
        execution_id = await enqueue(store, max_retries=0 if number else 9)
        (claimed,) = await worker.claim()
        now = clock.now()
        await record(store, [found(claimed, Failed(FAILURE), started_at=now, finished_at=now)])
        await store.history.write_log([LogRecord(execution_id, 1, 1, now, "info", "hello")])
        clock.advance("1d")
    assert [await rows_of(store, f"{name}_default") for name in ("finished", "attempt", "log_line")] == [2, 3, 3]

    await make_janitor().tick()

    assert [await rows_of(store, f"{name}_default") for name in ("finished", "attempt", "log_line")] == [0, 0, 0]
    assert [await rows_of(store, f"attempt_2026030{day}") for day in (2, 3, 4)] == [1, 1, 1]
    assert [await rows_of(store, f"finished_2026030{day}") for day in (2, 3, 4)] == [0, 1, 1]


async def test_todays_rows_move_even_if_the_day_is_made_late(
    store: Store, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    await enqueue(store)
    await worker.work()
    assert await rows_of(store, "finished_default") == 1

    await make_janitor().tick()

    assert (await rows_of(store, "finished_default"), await rows_of(store, "finished_20260302")) == (0, 1)
    await check_promises(store)


async def test_making_the_days_twice_does_no_harm(store: Store, make_janitor: Callable[..., Janitor]) -> None:
    await make_janitor().tick()
    before = await partitions(store)

    await make_janitor().tick()
    await store.history.add_day(TODAY)

    assert await partitions(store) == before


# past


async def old_history(store: Store, clock: VirtualClock, worker: Hands, janitor: Janitor) -> list[ExecutionId]:
    """One-offs that ran on three days, one each."""
    ids = []
    for _ in range(3):
        await janitor.tick()
        ids.append(await enqueue(store))
        await worker.work()
        clock.advance("1d")
    return ids


async def test_days_whose_retention_has_passed_are_dropped_whole(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor], heard: Heard
) -> None:
    ids = await old_history(store, clock, worker, make_janitor(keep_days=7))
    clock.advance_to(datetime.combine(TODAY + 8 * DAY, datetime.max.time(), START.tzinfo))

    await make_janitor(keep_days=7).tick()

    assert heard.of(HistoryTrimmed) == [HistoryTrimmed("2026-03-02", 1)]
    assert min(await days(store)) == TODAY + DAY, "a day is kept as long as any of it is within the retention"
    assert "log_line_20260302" not in await partitions(store)
    assert "attempt_20260302" not in await partitions(store)
    assert await store.history.find(ids[0]) is None
    assert await store.history.find(ids[1]) is not None


async def test_one_off_jobs_go_with_their_history_and_the_others_stay(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    ids = await old_history(store, clock, worker, make_janitor(keep_days=7))
    named = await create(store, scheduled_at=clock.now())
    clock.advance_to(START + 9 * DAY)

    await make_janitor(keep_days=7).tick()

    assert {row["id"] for row in await table(store, "job")} == {*ids[2:], named.id}


async def test_a_one_off_that_was_asked_to_run_again_keeps_its_job(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    (first, *_) = await old_history(store, clock, worker, make_janitor(keep_days=7))
    clock.advance_to(START + 7 * DAY)
    await make_janitor(keep_days=7).tick()
    again = await Commands(store, env).executions.retry(first)
    clock.advance_to(START + 8 * DAY)

    await make_janitor(keep_days=7).tick()

    assert await store.history.find(first) is None
    assert [claimed.id for claimed in await worker.work()] == [again]


async def test_it_is_noted_from_when_on_the_history_is_complete(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    janitor = make_janitor(keep_days=2)
    await janitor.tick()
    await create(store, interval_seconds=6 * 3600)
    node = await start_scheduler(store)

    async def work() -> None:
        await worker.work()
        await janitor.tick()

    await node.run_for(5 * 86_400, work)

    noted = await store.history.fact("history_from")
    assert noted is not None
    assert datetime.fromisoformat(noted) == datetime(2026, 3, 5, tzinfo=START.tzinfo)
    await check_promises(store)


async def test_the_note_covers_what_was_scheduled_long_before_it_ended(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    """An instant of the 3rd that ended on the 2nd (called off ahead of its time): with the 2nd, its record goes."""
    await make_janitor(keep_days=2).tick()
    ahead = START + 2 * DAY
    execution_id = await enqueue(store, after=2 * 86_400)
    await Commands(store, store.env).executions.cancel([execution_id])
    clock.advance_to(START + 3 * DAY)

    await make_janitor(keep_days=2).tick()

    assert await store.history.fact("history_from") == ahead.isoformat()


async def test_the_note_never_moves_back(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    await make_janitor().tick()
    await store.history.add_day(TODAY - 5 * DAY)
    await store.history.add_day(TODAY - 3 * DAY)

    await store.history.drop_day(TODAY - 3 * DAY)
    before = await store.history.fact("history_from")
    await store.history.drop_day(TODAY - 5 * DAY)

    assert await store.history.fact("history_from") == before


async def test_what_came_into_the_default_partition_is_not_kept_for_ever(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor], heard: Heard
) -> None:
    execution_id = await enqueue(store)
    await worker.work()
    clock.advance_to(START + 40 * DAY)

    await make_janitor().tick()

    assert heard.of(HistoryTrimmed) == [HistoryTrimmed("2026-03-02", 1)]
    assert await store.history.find(execution_id) is None
    assert await table(store, "job") == []
    await check_promises(store)


async def test_a_one_off_goes_with_the_last_of_its_executions(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    first = await enqueue(store)
    await worker.work()
    clock.advance("1d")
    await Commands(store, env).executions.retry(first)
    await worker.work()

    clock.advance_to(START + 31 * DAY)
    await make_janitor().tick()
    assert [row["id"] for row in await table(store, "job")] == [first]

    clock.advance("1d")
    await make_janitor().tick()
    assert await table(store, "job") == []


async def test_a_one_off_that_is_triggered_before_it_ran_keeps_its_job(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    ahead = await enqueue(store, after=50 * 86_400)
    await Commands(store, env).executions.trigger(JobId(ahead))
    await worker.work()
    clock.advance_to(START + 40 * DAY)

    await make_janitor().tick()

    assert [row["id"] for row in await table(store, "job")] == [ahead]


# what stands beside the history


KEPT = timedelta(days=30)


async def test_settled_executions_are_trimmed_with_the_history(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor], heard: Heard
) -> None:
    for number, age in enumerate((KEPT + 2 * DAY, KEPT - DAY)):
        await put_row(store, "settled", execution_id=UUID(int=number), how="discarded", settled_at=clock.now() - age)

    await make_janitor().tick()

    assert [row["execution_id"].int for row in await table(store, "settled")] == [1]
    assert heard.of(RecordsTrimmed) == [RecordsTrimmed("settled", 1)]


async def test_a_dead_execution_stays_dealt_with_as_long_as_it_can_be_seen(
    store: Store, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    """Or it would be on the dead-letter list again."""
    execution_id = await enqueue(store, max_retries=0)
    (claimed,) = await worker.claim()
    await record(store, [found(claimed, Failed(FAILURE), started_at=clock.now(), finished_at=clock.now())])
    await put_row(store, "settled", execution_id=execution_id, how="retried", settled_at=clock.now())

    for number in range(25, 45):
        clock.advance_to(START + number * DAY)
        await make_janitor().tick()
        settled, seen = await table(store, "settled"), await store.history.find(execution_id)
        assert len(settled) >= (seen is not None), f"after {number} days"

    assert (settled, seen) == ([], None)


async def test_skips_are_forgotten_once_the_history_begins_behind_them(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    worker, begun = await start_worker(store), clock.now()
    await make_janitor(keep_days=2).tick()
    job = await create(store, interval_seconds=3600, misfire="skip")
    clock.advance("1d")

    async def work() -> None:
        await worker.work()
        await make_janitor(keep_days=2).tick()

    node = await start_scheduler(store)
    await node.run_for(60, work)
    assert len(await table(store, "skip_range")) == 1
    await node.run_until(begun + 3 * DAY, work)
    assert len(await table(store, "skip_range")) == 1, "the job's ledger still needs it"
    await check_promises(store)
    await node.run_until(begun + 5 * DAY, work)

    assert await table(store, "skip_range") == []
    assert (await table(store, "job"))[0]["id"] == job.id
    await check_promises(store)


async def test_the_audit_is_kept_for_a_year(
    store: Store, env: Env, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    await Commands(store, env).queues.pause("old")
    clock.advance("2d")
    await Commands(store, env).queues.pause("young")

    clock.advance_to(START + 364 * DAY)
    await make_janitor().tick()
    assert len(await table(store, "audit")) == 2

    clock.advance("3d")
    await make_janitor().tick()
    assert [row["subject"] for row in await table(store, "audit")] == ["queue:young"]


async def test_answers_to_requests_are_forgotten_when_their_keys_have_run_out(
    store: Store, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    for number, age in enumerate((timedelta(hours=50), timedelta(hours=5))):
        made = {"caller": "c", "key": str(number), "request_hash": b"", "created_at": clock.now() - age}
        await put_row(store, "idempotency_key", **made)

    await make_janitor().tick()

    assert [row["key"] for row in await table(store, "idempotency_key")] == ["1"]


async def test_a_deleted_job_goes_with_the_last_of_its_history(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    job = await create(store, max_running=3)
    kept = await create(store, max_running=3)
    await Commands(store, env).executions.trigger(job.id)
    await worker.work()
    clock.advance("1d")
    await Commands(store, env).jobs.delete(job.id)

    clock.advance_to(START + 31 * DAY)
    await make_janitor().tick()
    assert len(await table(store, "job")) == 2

    clock.advance("2d")
    await make_janitor().tick()
    for name, column in (("job", "id"), ("job_version", "job_id")):
        assert {row[column] for row in await table(store, name)} == {kept.id}
    assert [row["key"] for row in await table(store, "running_limit")] == [f"job:{kept.id}"]
    await check_promises(store)


async def test_a_deleted_job_of_which_something_still_runs_stays(
    store: Store, env: Env, clock: VirtualClock, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    job = await create(store)
    await Commands(store, env).executions.trigger(job.id)
    await worker.claim()
    await Commands(store, env).jobs.delete(job.id)
    clock.advance_to(START + 40 * DAY)

    await make_janitor().tick()

    assert [row["id"] for row in await table(store, "job")] == [job.id]


async def test_a_limit_goes_when_nothing_names_it(
    store: Store, env: Env, worker: Hands, make_janitor: Callable[..., Janitor]
) -> None:
    job = await create(store, limit_key="shared", max_running=1)
    await create(store, limit_key="kept", max_running=1)
    await Commands(store, env).executions.trigger(job.id)
    claims = await worker.claim()
    await Commands(store, env).jobs.update(job.id, {"limit_key": "other"})

    await make_janitor().tick()
    assert {row["key"] for row in await table(store, "running_limit")} == {"shared", "kept", "other"}, "one still runs"

    await worker.succeed(claims)
    await make_janitor().tick()
    assert {row["key"] for row in await table(store, "running_limit")} == {"kept", "other"}
    await check_promises(store)


async def test_it_forgets_once_a_day(
    store: Store, env: Env, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    janitor, asked = make_janitor(), Counter[str]()
    env.fault = lambda point: asked.update([point])

    for _ in range(24):  # two days, of three dates
        await janitor.tick()
        clock.advance("2h")

    assert asked["trim_settled.before"] == 3


# whose business it is


async def test_only_the_housekeeper_cleans(store: Store, env: Env, heard: Heard) -> None:
    janitor = Janitor(env, heard, store.history, store.retention, HousekeepingSettings(), lambda: False)

    await janitor.tick()

    assert await days(store) == set()


async def test_waking_does_not_clean_more_often(
    store: Store, env: Env, clock: VirtualClock, make_janitor: Callable[..., Janitor]
) -> None:
    janitor = make_janitor()
    await janitor.tick()
    asked: list[str] = []
    env.fault = asked.append

    clock.advance("299s")
    await janitor.tick()
    assert asked == []

    clock.advance("1s")
    await janitor.tick()
    assert asked != []


async def test_a_round_that_failed_is_made_again_at_once(
    store: Store, env: Env, make_janitor: Callable[..., Janitor]
) -> None:
    janitor = make_janitor()

    def cut(point: str) -> None:
        if point == "days_kept.after_commit":
            raise StoreUnavailable("the connection was cut")

    env.fault = cut
    with pytest.raises(StoreUnavailable):
        await janitor.tick()
    env.fault = lambda _: None
    await janitor.tick()

    assert len(await days(store)) == 8


async def test_the_deleted_jobs_are_found_without_reading_all_of_them(store: Store, env: Env) -> None:
    """Every housekeeper looks for them when it begins, and there may be ten million others."""
    await Commands(store, env).jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 1_000)
    asked = {"before": START, "after": UUID(int=0), "limit": 500}

    async with store.database.transaction() as connection:
        await connection.execute(
            "UPDATE timeball.job SET deleted_at = $1 WHERE id = (SELECT id FROM timeball.job LIMIT 1)",
            START - timedelta(days=1),
        )
        before = await jobs_read(connection)
        rows = await store.database.fetch("deleted_jobs", connection, **asked)
        read = await jobs_read(connection) - before

    assert len(rows) == 1
    assert read <= 5


async def jobs_read(connection: Connection) -> int:
    """How many rows of jobs this transaction has read so far."""
    return int(
        await connection.fetchval(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'timeball.job'::regclass"
        )
    )
