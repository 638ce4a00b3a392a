"""Schedules that a program makes as it goes: `handler.schedule(...)`, also inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER
from tests.sdk.drivers import AsyncDriver, Driver, every_async_driver, every_driver, with_psycopg
from tests.support.pace import patience
from timeball import Conflict, ConnectionUnknown, InvalidInput, PayloadError, ScheduleError, Settings, Timeball
from timeball.sdk.handlers import SyncHandlerHandle

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]
Digest = SyncHandlerHandle[..., None]


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database.dsn


@pytest.fixture
def digest(tb: Timeball) -> Digest:
    @tb.handler(name="digest", queue="mail", retries=5)
    def send_digest(user_id: int, since: datetime | None = None) -> None: ...

    return send_digest


# one schedule


def test_a_schedule_is_a_job_with_the_options_of_its_handler(rows: Rows, digest: Digest) -> None:
    job = digest.schedule("0 7 * * *", name="digest-17", timezone="Europe/Rome", arguments={"user_id": 17}, priority=70)

    assert (job.action, job.name, job.kind, job.version) == ("create", "digest-17", "cron", 1)
    assert job.payload == {"user_id": 17}
    assert job.next_run_at is not None
    assert job.created_by is not None
    assert job.created_by.startswith("program:")
    (stored,) = rows(
        "SELECT name, handler, schedule, timezone, queue, priority, max_retries, declared_by FROM timeball.job"
    )
    assert stored == {
        "name": "digest-17",
        "handler": "digest",
        "schedule": "0 7 * * *",
        "timezone": "Europe/Rome",
        "queue": "mail",
        "priority": 70,
        "max_retries": 5,
        "declared_by": None,
    }
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": job.next_run_at}]
    assert rows("SELECT action, subject FROM timeball.audit") == [
        {"action": "job.create", "subject": f"job:{rows('SELECT id FROM timeball.job')[0]['id']}"}
    ]


def test_an_interval_and_an_instant_are_schedules_too(digest: Digest) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)

    every = digest.schedule(every="15m", name="often", arguments={"user_id": 1})
    once = digest.schedule(at=at, name="later", arguments={"user_id": 2})

    assert (every.kind, every.interval_seconds) == ("every", 900)
    assert (once.kind, once.scheduled_at, once.next_run_at) == ("once", at, at)


async def test_a_coroutine_schedules_with_the_same_words(rows: Rows, digest: Digest) -> None:
    job = await digest.aschedule(every=60, name="often", arguments={"user_id": 1})
    again = await digest.aschedule_many([{"every": 60, "name": "often", "arguments": {"user_id": 1}}])

    assert job.action == "create"
    assert again == {"often": "leave"}
    assert len(rows("SELECT FROM timeball.job")) == 1


def test_arguments_are_converted_as_those_of_a_call_are(rows: Rows, digest: Digest) -> None:
    digest.schedule(every="1d", name="d", arguments={"user_id": 1, "since": datetime(2026, 1, 2, tzinfo=UTC)})

    assert rows("SELECT payload FROM timeball.job") == [
        {"payload": {"user_id": 1, "since": "2026-01-02T00:00:00+00:00"}}
    ]


def test_without_a_name_each_call_makes_a_job(rows: Rows, digest: Digest) -> None:
    jobs = [digest.schedule(every="15m", arguments={"user_id": n}) for n in (1, 2)]

    assert [job.action for job in jobs] == ["create", "create"]
    assert len({job.id for job in jobs}) == 2
    assert rows("SELECT name, count(*) AS n FROM timeball.job GROUP BY 1") == [{"name": None, "n": 2}]


def test_a_handler_that_only_workers_have_is_scheduled_by_its_name(
    tb: Timeball, rows: Rows, node: Callable[[], AbstractContextManager[None]], settings: Settings
) -> None:
    @tb.handler(name="report", queue="reports", max_running=2)
    def report(size: int) -> None: ...

    with node():
        pass
    with Timeball(settings=settings) as other:
        job = other.schedule("report", every="1h", name="r", arguments={"size": 1}, overlap="allow")
        unknown = other.schedule("repost", every="1h", name="u")
        with pytest.raises(InvalidInput, match="size"):
            other.schedule("report", every="1h", name="r", arguments={"size": "big"})

    assert (job.action, job.queue, job.max_running, job.warnings) == ("create", "reports", 2, [])
    assert unknown.warnings == [
        "no worker provides the handler repost; its executions wait until one does. Did you mean report?"
    ]


def test_a_schedule_runs(tb: Timeball, node: Callable[[], AbstractContextManager[None]]) -> None:
    greeted: list[str] = []
    has_run = threading.Event()

    @tb.handler
    def greet(whom: str) -> None:
        greeted.append(whom)
        has_run.set()

    with node():
        greet.schedule(every=1, name="greeting", arguments={"whom": "world"})
        assert has_run.wait(patience(60))

    assert greeted[0] == "world"


# a name that is taken


def test_the_same_schedule_again_changes_nothing(rows: Rows, digest: Digest) -> None:
    first = digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})

    again = digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})

    assert (again.action, again.id, again.version) == ("leave", first.id, 1)
    assert len(rows("SELECT FROM timeball.audit")) == 1


def test_a_recurrence_rule_is_a_schedule_that_may_be_said_again(digest: Digest) -> None:
    rules = ["RRULE:FREQ=DAILY;INTERVAL=3;BYHOUR=9"] * 2 + ["RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"]

    jobs = [digest.schedule(rule, name="r", arguments={"user_id": 1}) for rule in rules]

    assert [job.action for job in jobs] == ["create", "leave", "change"]
    assert {job.kind for job in jobs} == {"rrule"}
    starts = {(job.schedule or "").partition(" ")[0] for job in jobs}
    assert len(starts) == 1, "it counts from where it counted before"


def test_another_schedule_under_the_name_changes_the_job(rows: Rows, digest: Digest) -> None:
    first = digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1}, priority=90)

    changed = digest.schedule("0 8 * * *", name="d", timezone="Asia/Tokyo", arguments={"user_id": 1})

    assert (changed.action, changed.id, changed.version) == ("change", first.id, 2)
    assert (changed.schedule, changed.timezone, changed.priority) == ("0 8 * * *", "Asia/Tokyo", 50)
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": changed.next_run_at}]


def test_a_paused_schedule_stays_paused(tb: Timeball, digest: Digest) -> None:
    digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})
    tb.jobs.pause("d")

    changed = digest.schedule("0 8 * * *", name="d", arguments={"user_id": 1})

    assert (changed.action, changed.status, changed.next_run_at) == ("change", "paused", None)


def test_the_name_of_another_handlers_job_is_refused(tb: Timeball, digest: Digest, rows: Rows) -> None:
    @tb.handler(name="report")
    def report() -> None: ...

    digest.schedule("0 7 * * *", name="user-1", arguments={"user_id": 1})

    with pytest.raises(Conflict, match="job 'user-1' runs digest, and report is to be scheduled under its name"):
        report.schedule("0 9 * * *", name="user-1")
    with pytest.raises(Conflict, match="runs digest"):
        report.schedule_many([{"cron": "0 9 * * *", "name": "user-0"}, {"cron": "0 9 * * *", "name": "user-1"}])

    assert rows("SELECT name, handler FROM timeball.job") == [{"name": "user-1", "handler": "digest"}]


def test_the_name_of_a_declared_job_is_refused(tb: Timeball) -> None:
    @tb.cron("@daily", name="nightly")
    def clean() -> None: ...

    tb.sync_schedules()

    with pytest.raises(Conflict, match=r"job 'nightly' is declared by tests\.sdk\.test_schedule_calls") as caught:
        clean.schedule("@hourly", name="nightly")

    assert caught.value.hint == "choose another name, or change it in its declaration"


def test_a_worker_does_not_miss_schedules_that_the_program_made(tb: Timeball, digest: Digest) -> None:
    digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})

    missed = tb._enqueue_client.background_loop.call(lambda runtime: tb.declare_with(runtime.commands))

    assert missed == []


def test_of_many_callers_one_creates_the_job_and_the_others_change_or_leave_it(rows: Rows, digest: Digest) -> None:
    def make(hour: int) -> str:
        return digest.schedule(f"0 {hour} * * *", name="d", arguments={"user_id": 1}).action

    with ThreadPoolExecutor(8) as threads:
        actions = list(threads.map(make, [hour % 4 for hour in range(40)]))

    assert actions.count("create") == 1
    (job,) = rows("SELECT version, schedule FROM timeball.job")
    assert job["version"] == 1 + actions.count("change")
    assert len(rows("SELECT FROM timeball.due")) == 1


def test_a_caller_waits_for_a_transaction_that_creates_the_same_name(rows: Rows, dsn: str, digest: Digest) -> None:
    for has_committed in (False, True):
        name = f"d-{has_committed}"
        with with_psycopg(dsn) as opened, ThreadPoolExecutor(1) as threads:
            digest.schedule("0 7 * * *", name=name, arguments={"user_id": 1}, connection=opened.connection)
            other = threads.submit(digest.schedule, "0 9 * * *", name=name, arguments={"user_id": 1})
            wait_for_a_lock(rows)
            opened.commit() if has_committed else opened.rollback()

            assert other.result(patience(60)).action == ("change" if has_committed else "create")

    assert [job["schedule"] for job in rows("SELECT schedule FROM timeball.job")] == ["0 9 * * *"] * 2


def wait_for_a_lock(rows: Rows) -> None:
    while not rows("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"):
        pass


# many


def test_many_schedules_are_written_all_or_none(rows: Rows, digest: Digest) -> None:
    digest.schedule("0 7 * * *", name="d-1", arguments={"user_id": 1})
    digest.schedule("0 7 * * *", name="d-2", arguments={"user_id": 0})

    done = digest.schedule_many(
        {"cron": "0 7 * * *", "name": f"d-{n}", "arguments": {"user_id": n}} for n in range(1, 2_501)
    )

    assert list(done) == [f"d-{n}" for n in range(1, 2_501)]
    assert (done["d-1"], done["d-2"], done["d-3"]) == ("leave", "change", "create")
    assert rows("SELECT count(*) AS n, count(DISTINCT name) AS names FROM timeball.job") == [
        {"n": 2_500, "names": 2_500}
    ]
    assert rows("SELECT count(*) AS n FROM timeball.due") == [{"n": 2_500}]


def test_of_many_schedules_none_is_written_if_one_is_wrong(rows: Rows, digest: Digest) -> None:
    good: Any = {"cron": "0 7 * * *", "name": "a", "arguments": {"user_id": 1}}

    with pytest.raises(InvalidInput, match="two of the jobs are named 'a'") as caught:
        digest.schedule_many([good, good])
    assert caught.value.field == "1/name"
    with pytest.raises(InvalidInput, match="a job has no name") as caught:
        digest.schedule_many([good, {"cron": "0 7 * * *", "arguments": {"user_id": 1}}])
    assert caught.value.field == "1/name"
    with pytest.raises(InvalidInput, match="hour is 25") as caught:
        digest.schedule_many([good, {"cron": "0 25 * * *", "name": "b", "arguments": {"user_id": 1}}])
    assert caught.value.field == "b/schedule"
    with pytest.raises(InvalidInput, match=r"schedule_many\(\) has no option 'crom'") as caught:
        digest.schedule_many([{"crom": "0 7 * * *", "name": "b"}])
    assert caught.value.field == "0/crom"

    assert rows("SELECT FROM timeball.job") == []


# bad input


def test_one_rhythm_is_expected(digest: Digest) -> None:
    with pytest.raises(InvalidInput, match="none of cron, every, at and after is given, expected one of"):
        digest.schedule(name="d")
    with pytest.raises(InvalidInput, match="cron and every are given, expected one of cron, every, at and after"):
        digest.schedule("0 7 * * *", every="1h", name="d")


def test_a_bad_schedule_is_refused_as_a_declaration_is(rows: Rows, digest: Digest) -> None:
    with pytest.raises(ScheduleError, match="hour"):
        digest.schedule("0 25 * * *", name="d", arguments={"user_id": 1})
    with pytest.raises(InvalidInput, match="user_id"):
        digest.schedule("0 7 * * *", name="d")
    with pytest.raises(PayloadError):
        digest.schedule("0 7 * * *", name="d", arguments={"user_id": object()})
    with pytest.raises(InvalidInput, match=r"schedule\(\) has no option 'retires'") as caught:
        digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1}, retires=3)
    assert caught.value.hint == "did you mean retries?"
    with pytest.raises(InvalidInput, match="timezone"):
        digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1}, timezone="Europe/Rom")

    assert rows("SELECT FROM timeball.job") == []


def test_a_connection_for_the_other_kind_of_call_is_refused(dsn: str, digest: Digest) -> None:
    right = r"it is not asynchronous: call schedule\(...\) instead"
    with with_psycopg(dsn) as opened, pytest.raises(ConnectionUnknown, match=right):
        asyncio.run(digest.aschedule(every=60, name="d", connection=opened.connection, arguments={"user_id": 1}))


# inside the caller's transaction

TABLES = ("job", "due", "job_version", "audit", "running_limit")


@every_driver
def test_a_schedule_exists_exactly_if_the_callers_row_does(
    rows: Rows, dsn: str, driver: Driver, digest: Digest
) -> None:
    for has_committed in (False, True):
        with driver(dsn) as opened:
            job = digest.schedule(
                "0 7 * * *", name="d", arguments={"user_id": 1}, connection=opened.connection, overlap="queue"
            )
            assert (job.action, job.status) == ("create", "active")
            assert [rows(f"SELECT FROM timeball.{table}") for table in TABLES] == [[]] * 5
            opened.commit() if has_committed else opened.rollback()

        assert [len(rows(f"SELECT FROM timeball.{table}")) for table in TABLES] == [int(has_committed)] * 5
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": job.next_run_at}]


@every_async_driver
async def test_a_schedule_of_a_coroutine_exists_exactly_if_the_callers_row_does(
    rows: Rows, dsn: str, driver: AsyncDriver, digest: Digest
) -> None:
    for has_committed in (False, True):
        async with driver(dsn) as opened:
            job = await digest.aschedule("0 7 * * *", name="d", arguments={"user_id": 1}, connection=opened.connection)
            assert (job.action, job.status) == ("create", "active")
            assert rows("SELECT FROM timeball.job") == []
            await (opened.commit() if has_committed else opened.rollback())

        assert [len(rows(f"SELECT FROM timeball.{table}")) for table in TABLES[:4]] == [int(has_committed)] * 4
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": job.next_run_at}]


@every_driver
def test_a_change_of_a_schedule_holds_exactly_if_the_transaction_commits(
    rows: Rows, dsn: str, driver: Driver, digest: Digest
) -> None:
    digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})

    for has_committed in (False, True):
        with driver(dsn) as opened:
            job = digest.schedule("0 8 * * *", name="d", arguments={"user_id": 2}, connection=opened.connection)
            assert (job.action, job.version) == ("change", 2)
            opened.commit() if has_committed else opened.rollback()

        assert rows("SELECT version, schedule, payload FROM timeball.job") == [
            {"version": 2, "schedule": "0 8 * * *", "payload": {"user_id": 2}}
            if has_committed
            else {"version": 1, "schedule": "0 7 * * *", "payload": {"user_id": 1}}
        ]
        assert len(rows("SELECT FROM timeball.due")) == 1
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": job.next_run_at}]


@every_async_driver
async def test_a_change_of_a_coroutine_holds_exactly_if_the_transaction_commits(
    rows: Rows, dsn: str, driver: AsyncDriver, digest: Digest
) -> None:
    await digest.aschedule("0 7 * * *", name="d", arguments={"user_id": 1})

    async with driver(dsn) as opened:
        job = await digest.aschedule("0 8 * * *", name="d", arguments={"user_id": 2}, connection=opened.connection)
        assert job.action == "change"
        await opened.commit()

    assert rows("SELECT version, schedule FROM timeball.job") == [{"version": 2, "schedule": "0 8 * * *"}]
    assert rows("SELECT run_at FROM timeball.due") == [{"run_at": job.next_run_at}]


@every_driver
def test_many_schedules_of_a_transaction_exist_exactly_if_it_commits(
    rows: Rows, dsn: str, driver: Driver, digest: Digest
) -> None:
    with driver(dsn) as opened:
        done = digest.schedule_many(
            ({"every": "1d", "name": f"d-{n}", "arguments": {"user_id": n}} for n in range(3)),
            connection=opened.connection,
        )
        assert rows("SELECT FROM timeball.job") == []
        opened.commit()

    assert done == {"d-0": "create", "d-1": "create", "d-2": "create"}
    assert len(rows("SELECT FROM timeball.due")) == 3


def test_a_refused_name_leaves_the_callers_transaction_intact(
    tb: Timeball, rows: Rows, dsn: str, digest: Digest
) -> None:
    @tb.handler(name="report")
    def report() -> None: ...

    report.schedule("@daily", name="taken")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE own (id int)")
        with pytest.raises(Conflict):
            digest.schedule("@daily", name="taken", arguments={"user_id": 1}, connection=connection)
        connection.execute("INSERT INTO own VALUES (1)")

    assert len(rows("SELECT FROM own")) == 1
    assert len(rows("SELECT FROM timeball.job")) == 1


def test_an_error_of_the_callers_driver_reaches_the_caller(dsn: str, digest: Digest) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION READ ONLY")

        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            digest.schedule("@daily", name="d", arguments={"user_id": 1}, connection=connection)
