"""`tb.jobs`: the jobs of the installation from a program, without a server, also inside the caller's own transaction."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER, SOURCES
from tests.sdk.drivers import AsyncDriver, Driver, every_async_driver, every_driver
from tests.support.pace import patience
from timeball import Conflict, InvalidInput, NotFound, Timeball
from timeball.sdk.handlers import SyncHandlerHandle

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]
Digest = SyncHandlerHandle[..., None]


@pytest.fixture
def dsn(fresh_database: FreshDatabase) -> str:
    return fresh_database.dsn


@pytest.fixture
def digest(tb: Timeball) -> Digest:
    @tb.handler(name="digest", queue="mail")
    def send_digest(user_id: int) -> None: ...

    return send_digest


@pytest.fixture
def job_id(digest: Digest) -> str:
    """The job `d`, daily at seven."""
    return digest.schedule("0 7 * * *", name="d", arguments={"user_id": 17}).id


# reading


def test_a_job_is_found_by_name_and_by_id(tb: Timeball, job_id: str) -> None:
    by_name, by_id = tb.jobs.get("d"), tb.jobs.get(job_id)

    assert by_name == by_id
    assert (by_id.name, by_id.status, by_id.payload, by_id.queue) == ("d", "active", {"user_id": 17}, "mail")
    with pytest.raises(NotFound, match="e"):
        tb.jobs.get("e")


def test_a_program_sees_the_secrets_of_its_own_payloads(tb: Timeball) -> None:
    tb.schedule("elsewhere", every="1h", name="s", arguments={"password": "x"})

    assert tb.jobs.get("s").payload == {"password": "x"}


def test_jobs_are_listed_lazily_by_search(tb: Timeball, digest: Digest) -> None:
    digest.schedule_many({"every": "1h", "name": f"d-{n:03}", "arguments": {"user_id": n}} for n in range(250))
    tb.schedule("elsewhere", every="1h", name="other")

    names = [job.name for job in tb.jobs.list("name:d-* handler:digest", sort="name")]
    first = next(tb.jobs.list("name:d-*", sort="-name"))

    assert names == [f"d-{n:03}" for n in range(250)]
    assert first.name == "d-249"
    assert len(list(tb.jobs.list())) == 251
    with pytest.raises(InvalidInput, match="nam"):
        next(tb.jobs.list("nam:d"))
    with pytest.raises(InvalidInput, match="sort is"):
        next(tb.jobs.list(sort="size"))


def test_the_next_instants_of_a_job(tb: Timeball, job_id: str) -> None:
    times = tb.jobs.next("d", 3)

    assert [time.at.hour for time in times] == [7, 7, 7]
    assert [later.at - time.at for time, later in pairwise(times)] == [timedelta(days=1)] * 2
    assert times[0].at == tb.jobs.get("d").next_run_at
    with pytest.raises(InvalidInput, match="count is 0"):
        tb.jobs.next("d", 0)


def test_a_job_is_explained(tb: Timeball, job_id: str) -> None:
    explanation = tb.jobs.explain("d")

    assert explanation.job_name == "d"
    assert explanation.headline
    assert any(gate.verdict == "stopped" for gate in explanation.gates)


def test_a_job_is_explained_at_an_instant(tb: Timeball, job_id: str) -> None:
    due_at = tb.jobs.next("d", 1)[0].at

    ahead, between = tb.jobs.explain("d", at=due_at), tb.jobs.explain("d", at=due_at + timedelta(minutes=1))

    assert (ahead.at, ahead.verdict) == (due_at, "expected")
    assert between.verdict is None
    assert between.before is not None
    assert between.before.at == due_at
    with pytest.raises(InvalidInput, match=r'at is "soon", expected ISO 8601'):
        tb.jobs.explain("d", at="soon")


# changing


def test_an_update_changes_what_is_given_and_nothing_else(tb: Timeball, rows: Rows, job_id: str) -> None:
    job = tb.jobs.update("d", "0 8 * * *", timezone="Asia/Tokyo", retries=1, reason="moved")

    assert (job.id, job.version, job.schedule, job.timezone, job.max_retries) == (
        job_id,
        2,
        "0 8 * * *",
        "Asia/Tokyo",
        1,
    )
    assert (job.queue, job.payload) == ("mail", {"user_id": 17})
    assert rows("SELECT reason FROM timeball.audit WHERE action = 'job.update'") == [{"reason": "moved"}]

    job = tb.jobs.update("d", arguments={"user_id": 18}, version=2)
    assert (job.payload, job.schedule) == ({"user_id": 18}, "0 8 * * *")
    job = tb.jobs.update("d", every="15m")
    assert (job.kind, job.schedule, job.interval_seconds) == ("every", None, 900)


def test_a_wrong_update_is_refused(tb: Timeball, job_id: str) -> None:
    with pytest.raises(Conflict, match="the job has version 1, the change was made for version 7"):
        tb.jobs.update("d", priority=9, version=7)
    with pytest.raises(InvalidInput, match="user_id"):
        tb.jobs.update("d", arguments={"user": 1})
    with pytest.raises(InvalidInput, match="nothing to change"):
        tb.jobs.update("d")
    with pytest.raises(InvalidInput, match=r"update\(\) has no option 'prio'"):
        tb.jobs.update("d", prio=9)
    with pytest.raises(NotFound):
        tb.jobs.update("e", priority=9)

    assert tb.jobs.get("d").version == 1


def test_a_job_is_paused_resumed_and_deleted(tb: Timeball, digest: Digest, rows: Rows, job_id: str) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)

    paused = tb.jobs.pause("d", until, reason="holidays")
    assert (paused.status, paused.paused_until, paused.pause_reason) == ("paused", until, "holidays")
    assert tb.jobs.resume("d").status == "active"
    tb.jobs.delete("d")

    with pytest.raises(NotFound):
        tb.jobs.delete("d")
    tb.jobs.delete("d", missing_ok=True)
    assert rows("SELECT FROM timeball.due") == []
    assert digest.schedule("0 7 * * *", name="d", arguments={"user_id": 17}).action == "create"


def test_a_pause_ends_on_the_clock_of_the_job(tb: Timeball, digest: Digest) -> None:
    digest.schedule("0 7 * * *", name="d", timezone="Asia/Tokyo", arguments={"user_id": 1})

    assert tb.jobs.pause("d", "2098-01-02T09:00").paused_until == datetime(2098, 1, 2, tzinfo=UTC)


# running


def test_a_job_is_triggered(tb: Timeball, node: Callable[[], AbstractContextManager[None]], rows: Rows) -> None:
    @tb.handler(name="double")
    def double(n: int) -> int:
        return 2 * n

    double.schedule("0 * * * *", name="hourly", arguments={"n": 1}, overlap="allow")
    with node():
        assert tb.jobs.trigger("hourly", reason="now").result(patience(60)) == 2
        assert tb.jobs.trigger("hourly", {"n": 21}).result(patience(60)) == 42

    origins = rows(
        "SELECT origin, count(*) AS n FROM timeball.execution WHERE origin <> 'schedule' GROUP BY 1 ORDER BY 1"
    )
    assert origins == [{"origin": "trigger", "n": 2}]
    assert rows("SELECT reason FROM timeball.audit WHERE reason IS NOT NULL ORDER BY id") == [
        {"reason": "now"},
    ]


def test_a_backfill_becomes_an_operation(tb: Timeball, job_id: str, rows: Rows) -> None:
    since = datetime.now(UTC) - timedelta(days=3)

    operation = tb.jobs.backfill("d", since, by="present", only="all", max_running=2, payload={"n": 1}, reason="missed")

    assert (operation.action, operation.state, operation.reason) == ("backfill", "pending", "missed")
    (row,) = rows(
        "SELECT backfill ->> 'only' AS only, backfill ->> 'by' AS by, backfill -> 'max_running' AS n FROM timeball.operation"
    )
    assert (row["only"], row["by"], row["n"]) == ("all", "present", 2)
    with pytest.raises(InvalidInput, match="only is"):
        tb.jobs.backfill("d", since, only="some")  # type: ignore[arg-type]


async def test_every_verb_has_a_twin_for_coroutines(tb: Timeball, job_id: str) -> None:
    assert (await tb.jobs.aget("d")).id == job_id
    assert [job.name async for job in tb.jobs.alist("name:d")] == ["d"]
    assert len(await tb.jobs.anext("d", 2)) == 2
    assert (await tb.jobs.aexplain("d")).job_name == "d"
    assert (await tb.jobs.aupdate("d", priority=9)).priority == 9
    assert (await tb.jobs.apause("d")).status == "paused"
    assert (await tb.jobs.aresume("d")).status == "active"
    assert await (await tb.jobs.atrigger("d")).acancel()
    day = timedelta(days=1)
    assert (await tb.jobs.abackfill("d", datetime.now(UTC) - day)).state == "pending"
    await tb.jobs.adelete("d")
    with pytest.raises(NotFound):
        await tb.jobs.aget("d")


# inside the caller's transaction


@every_driver
def test_a_schedule_is_deleted_with_the_callers_row(
    tb: Timeball, rows: Rows, dsn: str, driver: Driver, digest: Digest
) -> None:
    digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1})
    tb.jobs.trigger("d")

    for has_committed in (False, True):
        with driver(dsn) as opened:
            tb.jobs.delete("d", connection=opened.connection)
            with pytest.raises(NotFound):
                tb.jobs.get("d", connection=opened.connection)
            assert tb.jobs.get("d").status == "active"
            opened.commit() if has_committed else opened.rollback()

        left = [len(rows(f"SELECT FROM timeball.{table}")) for table in ("due", "ready", "finished")]
        assert left == ([0, 0, 1] if has_committed else [1, 1, 0])
    assert rows("SELECT state FROM timeball.finished") == [{"state": "cancelled"}]


@every_driver
def test_every_change_is_part_of_the_callers_transaction(
    tb: Timeball, rows: Rows, dsn: str, driver: Driver, digest: Digest
) -> None:
    with driver(dsn) as opened:
        inside = opened.connection
        digest.schedule("0 7 * * *", name="d", arguments={"user_id": 1}, connection=inside)
        assert tb.jobs.update("d", "0 9 * * *", arguments={"user_id": 2}, connection=inside).version == 2
        assert tb.jobs.update("d", max_running=1, limit_key="l", connection=inside).version == 3
        assert tb.jobs.pause("d", datetime(2098, 1, 1, tzinfo=UTC), "r", connection=inside).status == "paused"
        assert tb.jobs.resume("d", connection=inside).next_run_at is not None
        assert rows("SELECT FROM timeball.job") == []
        opened.commit()

    assert tb.jobs.get("d").payload == {"user_id": 2}
    assert [row["action"] for row in rows("SELECT action FROM timeball.audit ORDER BY id")] == [
        "job.create",
        "job.update",
        "job.update",
        "job.pause",
        "job.resume",
    ]
    assert len(rows("SELECT FROM timeball.due")) == 1


@every_async_driver
async def test_every_change_of_a_coroutine_is_part_of_its_transaction(
    tb: Timeball, rows: Rows, dsn: str, driver: AsyncDriver, digest: Digest
) -> None:
    await digest.aschedule("0 7 * * *", name="d", arguments={"user_id": 1})

    async with driver(dsn) as opened:
        inside = opened.connection
        assert (await tb.jobs.aupdate("d", "0 9 * * *", connection=inside)).version == 2
        assert (await tb.jobs.apause("d", connection=inside)).status == "paused"
        assert (await tb.jobs.aresume("d", connection=inside)).status == "active"
        await tb.jobs.adelete("d", connection=inside)
        await tb.jobs.adelete("d", missing_ok=True, connection=inside)
        assert (await tb.jobs.aget("d")).version == 1
        await opened.commit()

    assert rows("SELECT FROM timeball.job WHERE deleted_at IS NULL") == []
    assert rows("SELECT FROM timeball.due") == []


def test_a_name_that_is_taken_leaves_the_callers_transaction_intact(tb: Timeball, dsn: str, digest: Digest) -> None:
    digest.schedule_many({"every": "1h", "name": name, "arguments": {"user_id": 1}} for name in ("a", "b"))

    with psycopg.connect(dsn) as connection:
        with pytest.raises(Conflict, match="there is already a job named 'b'"):
            tb.jobs.update("a", name="b", connection=connection)
        tb.jobs.update("a", name="c", connection=connection)

    assert sorted(job.name or "" for job in tb.jobs.list()) == ["b", "c"]


# imports

LIGHT = """
import sys
from tests.support.pace import patience
from timeball import Timeball
tb = Timeball()
@tb.handler
def work(n: int) -> None: ...
work.enqueue(1)
assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)
assert 'timeball.sdk.jobs' not in sys.modules
work.schedule(every='1h', name='w', arguments={'n': 1})
assert tb.jobs.pause('w').status == 'paused'
tb.jobs.explain('w')
assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)
"""


def test_schedules_and_jobs_need_no_web_server(dsn: str) -> None:
    code = "HEAVY = {'fastapi', 'starlette', 'typer', 'httpx', 'uvicorn', 'jinja2'}\n" + LIGHT
    environment = {"PYTHONPATH": str(SOURCES), "TIMEBALL_DATABASE_URL": dsn}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=patience(120)
    )

    assert done.returncode == 0, done.stderr
