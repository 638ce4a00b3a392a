"""Schedules that belong to a row of the program: listed, paused, resumed and deleted by their owner, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import ON_ONE_SERVER
from tests.sdk.drivers import AsyncDriver, Driver, every_async_driver, every_driver
from timeball import InvalidInput, Timeball
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
def owned(tb: Timeball, digest: Digest) -> Iterator[None]:
    """Three schedules of one row, of two handlers, and one of another row."""
    digest.schedule("0 7 * * *", name="a", owner="query:17", arguments={"user_id": 1})
    digest.schedule(every="1h", name="b", owner="query:17", arguments={"user_id": 1})
    tb.schedule("another.program", at=datetime(2098, 1, 1, tzinfo=UTC), owner="query:17", arguments={"of": 17})
    digest.schedule("0 7 * * *", name="d", owner="query:170", arguments={"user_id": 2})
    digest.schedule("0 7 * * *", name="e", arguments={"user_id": 3})
    return iter(())


def names(tb: Timeball, owner: str = "query:17", status: str = "active") -> list[str | None]:
    return sorted((job.name for job in tb.jobs.list(f"status:{status}", owner=owner)), key=lambda name: name or "")


@pytest.mark.usefixtures("owned")
def test_the_schedules_of_an_owner_are_listed(tb: Timeball) -> None:
    assert names(tb) == [None, "a", "b"]
    assert names(tb, "query:170") == ["d"]
    assert [job.name for job in tb.jobs.list("owner:query:17 name:a")] == ["a"]
    assert len(list(tb.jobs.list("owner:query:*"))) == 4
    assert len(list(tb.jobs.list("-owner:query:*"))) == 1
    assert {job.owner for job in tb.jobs.list(owner="query:17")} == {"query:17"}


@pytest.mark.usefixtures("owned")
def test_all_schedules_of_an_owner_are_paused_resumed_and_deleted(tb: Timeball, rows: Rows) -> None:
    assert tb.jobs.pause_all("query:17", datetime(2098, 1, 1, tzinfo=UTC), "archived") == 3
    assert (names(tb), names(tb, status="paused"), names(tb, "query:170")) == ([], [None, "a", "b"], ["d"])
    assert {job.pause_reason for job in tb.jobs.list(owner="query:17")} == {"archived"}

    assert tb.jobs.resume_all("query:17") == 3
    assert tb.jobs.resume_all("query:17") == 0, "none of them is paused"
    assert names(tb) == [None, "a", "b"]

    assert tb.jobs.delete_all("query:17", "gone") == 3
    assert list(tb.jobs.list(owner="query:17")) == []
    assert names(tb, "query:170") == ["d"]
    done = rows("SELECT action, count(*) AS number, min(reason) AS reason FROM timeball.audit GROUP BY 1 ORDER BY 1")
    assert [(row["action"], row["number"], row["reason"]) for row in done if row["action"] != "job.create"] == [
        ("job.delete", 3, "gone"),
        ("job.pause", 3, "archived"),
        ("job.resume", 3, None),
    ]


def test_a_one_off_that_has_run_is_not_paused_but_deleted(tb: Timeball, digest: Digest, rows: Rows) -> None:
    digest.schedule(at=datetime(2098, 1, 1, tzinfo=UTC), name="once", owner="query:17", arguments={"user_id": 1})
    rows("WITH gone AS (DELETE FROM timeball.due RETURNING id) SELECT id FROM gone")

    assert tb.jobs.pause_all("query:17") == 0
    assert tb.jobs.delete_all("query:17") == 1


@pytest.mark.usefixtures("owned")
@every_driver
def test_what_happens_to_the_row_happens_to_its_schedules(tb: Timeball, rows: Rows, dsn: str, driver: Driver) -> None:
    for has_committed in (False, True):
        with driver(dsn) as opened:
            assert tb.jobs.pause_all("query:17", connection=opened.connection) == 3
            assert tb.jobs.resume_all("query:17", connection=opened.connection) == 3
            assert tb.jobs.delete_all("query:17", connection=opened.connection) == 3
            assert names(tb) == [None, "a", "b"], "nobody else sees it yet"
            opened.commit() if has_committed else opened.rollback()

        assert names(tb) == ([] if has_committed else [None, "a", "b"])
    assert len(rows("SELECT FROM timeball.due")) == 2


@pytest.mark.usefixtures("owned")
@every_async_driver
async def test_coroutines_have_the_same_verbs(tb: Timeball, dsn: str, driver: AsyncDriver) -> None:
    async with driver(dsn) as opened:
        assert await tb.jobs.apause_all("query:17", connection=opened.connection) == 3
        assert await tb.jobs.aresume_all("query:17", connection=opened.connection) == 3
        assert await tb.jobs.adelete_all("query:17", connection=opened.connection) == 3
        await opened.commit()

    assert [job.name async for job in tb.jobs.alist(owner="query:17")] == []


@pytest.mark.usefixtures("owned")
def test_of_the_schedules_of_an_owner_all_change_or_none(tb: Timeball, dsn: str) -> None:
    """The database refuses the last of the three."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''refused''; END'"
        )
        connection.execute(
            """CREATE TRIGGER refuse BEFORE UPDATE ON timeball.job FOR EACH ROW
               WHEN (NEW.deleted_at IS NOT NULL AND NEW.name IS NULL) EXECUTE FUNCTION refuse()"""
        )

    with pytest.raises(Exception, match="refused"):
        tb.jobs.delete_all("query:17")

    assert names(tb) == [None, "a", "b"]


@pytest.mark.parametrize("owner", ["", "x" * 201])
def test_an_owner_that_no_job_can_have_is_refused(tb: Timeball, owner: str) -> None:
    with pytest.raises(InvalidInput, match=r"owner has \d+ characters, expected 1 to 200"):
        tb.jobs.delete_all(owner)


def test_a_schedule_that_is_said_again_may_change_hands(tb: Timeball, digest: Digest) -> None:
    actions = [
        digest.schedule("0 7 * * *", name="a", owner=owner, arguments={"user_id": 1}).action
        for owner in ("query:1", "query:1", "query:2", None)
    ]

    assert actions == ["create", "leave", "change", "change"]


@pytest.mark.usefixtures("owned")
def test_only_jobs_with_an_owner_are_in_its_index(tb: Timeball, digest: Digest, dsn: str) -> None:
    digest.enqueue_many([digest.call(user) for user in range(100)])

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE timeball.job")
        (indexed,) = (
            connection.execute("SELECT reltuples FROM pg_class WHERE relname = 'job_by_owner'").fetchone() or ()
        )
    assert indexed == 4
