"""`verify` on a healthy history, and on one where each promise is broken by hand."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import (
    FAILURE,
    HANDLER,
    OPERATOR,
    claim_all,
    due_row,
    enqueue,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    plan_row,
    promote,
    promote_due,
    record,
)
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.application.commands import Commands
from timeball.domain import job_changes
from timeball.domain.execution import ExecutionState, Failed, Lost
from timeball.domain.job import Job
from timeball.domain.node import NodeKind
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_job_id, occurrence_id
from timeball.env import Env
from timeball.store.db.database import _SESSION_SETTINGS, Database, Record
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.store.verify import checks as verify_module
from timeball.store.verify.checks import LISTED, VerifyReport, VerifySnapshot
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

ON_ONE_SERVER = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class History:
    """A history with every kind of record, all in order."""

    store: Store
    clock: VirtualClock
    start: datetime
    ticker: Job
    edited: Job
    nightly: Job
    limited: Job
    dead: ExecutionId
    retried: ExecutionId
    done: ExecutionId
    waiting: ExecutionId
    keyed: ExecutionId

    def tick(self, number: int) -> ExecutionId:
        """The execution of the nth occurrence of the ticker."""
        return occurrence_id(self.ticker.id, self.start + number * MINUTE)

    async def sql(self, statement: str, *values: Any) -> None:
        """Run SQL that changes exactly one row."""
        async with self.store.database.transaction() as connection:
            done = await connection.execute(statement, *values)
        assert done.split()[-1] == "1", f"{done}: a break must touch exactly one row"

    async def verify(self) -> VerifyReport:
        return await verify(self.store.database)

    async def broken(self) -> dict[str, list[str]]:
        """The broken promises, each with its violations."""
        report = await self.verify()
        return {c.code: [str(violation) for violation in c.violations] for c in report.checks if not c.holds}

    async def warned(self) -> dict[str, list[str]]:
        report = await self.verify()
        assert report.holds, "\n".join(report.lines())
        return {c.code: [str(warning) for warning in c.warnings] for c in report.checks if c.warnings}


async def pass_time(store: Store, clock: VirtualClock, span: timedelta, step: timedelta = MINUTE) -> None:
    """Run a scheduler and a worker for a while, a minute at a time."""
    end = clock.now() + span
    while clock.now() < end:
        clock.advance_to(min(clock.now() + step, end))
        await renew_nodes(store)
        await promote_due(store, await make_owner(store))
        await record(store, [found(claimed) for claimed in await claim_all(store)])


async def renew_nodes(store: Store) -> None:
    """Replace the old nodes by new ones."""
    for node in await store.nodes.list():
        await store.nodes.remove(node.incarnation)


async def edit(store: Store, job: Job, **fields: Any) -> None:
    await store.jobs.change(job.id, lambda snapshot: job_changes.edit_job(snapshot, fields, store.shards), OPERATOR)


async def pause(store: Store, job: Job, until: datetime | None = None) -> None:
    await store.jobs.change(job.id, lambda snapshot: job_changes.pause_job(snapshot, until, None), OPERATOR)


async def resume(store: Store, job: Job) -> None:
    await store.jobs.change(job.id, job_changes.resume_job, OPERATOR)


async def delete(store: Store, job: Job) -> None:
    await store.jobs.change(job.id, lambda snapshot: job_changes.delete_job(snapshot, None), OPERATOR)


async def make_history(store: Store, clock: VirtualClock) -> History:
    start = clock.now()
    ticker = await make_recurring(store, 60, name="ticker", overlap="skip")
    edited = await make_recurring(store, 120, name="edited", overlap="allow")
    nightly = await make_job(store, name="nightly", schedule="30 2 * * *", timezone="Europe/Berlin")
    done, dead, retried = await enqueue(store), await enqueue(store, max_retries=0), await enqueue(store, max_retries=1)
    claims = {claimed.id: claimed for claimed in await claim_all(store)}
    outcomes = {done: None, dead: Failed(FAILURE), retried: Failed(FAILURE)}
    await record(store, [found(claims[id_], outcome) for id_, outcome in outcomes.items()])
    await pass_time(store, clock, 5 * MINUTE)
    await edit(store, edited, interval_seconds=90)
    clock.advance("1h")  # without any node: occurrences are skipped
    await pass_time(store, clock, 3 * MINUTE)
    lost = await enqueue(store, max_lost=2)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, Lost(FAILURE))])
    (claimed,) = await claim_all(store)
    assert claimed.id == lost
    await record(store, [found(claimed, Lost(FAILURE))])
    await pause(store, edited, until=clock.now() + timedelta(days=1))
    limited = await make_job(store, name="limited", max_running=1)
    await trigger(store, limited)
    await trigger(store, limited)
    waiting = await enqueue(store, 3600)
    keyed = await enqueue(store, 7200, unique_key="invoice-7")
    await renew_nodes(store)
    await make_owner(store)
    return History(store, clock, start, ticker, edited, nightly, limited, dead, retried, done, waiting, keyed)


async def trigger(store: Store, job: Job) -> ExecutionId:
    return await Commands(store, store.env).executions.trigger(job.id)


@pytest.fixture
async def healthy(store: Store, clock: VirtualClock) -> History:
    """The history on each kind of server."""
    return await make_history(store, clock)


@pytest.fixture(scope="module")
def made_before() -> dict[str, tuple[str, History]]:
    """The database with the history, created by the first test that needs a copy."""
    return {}


@pytest.fixture
async def history(
    servers: Servers,
    template_of: Callable[[PostgresServer], str],
    made_before: dict[str, tuple[str, History]],
) -> AsyncIterator[History]:
    """A copy of the history, to be broken."""
    try:
        server = servers.postgres("pg18")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    if "pg18" not in made_before:
        made_before["pg18"] = await make_template(server, server.create_database(template_of(server)))
    template, made = made_before["pg18"]
    name = server.create_database(template)
    clock = VirtualClock(made.clock.now())
    store = Store(server.dsn(name), Env(clock, random.Random(2)))
    await store.open(migrates=False)
    yield replace(made, store=store, clock=clock)
    await store.close()
    server.drop_database(name)


async def make_template(server: PostgresServer, name: str) -> tuple[str, History]:
    clock = VirtualClock()
    store = Store(server.dsn(name), Env(clock, random.Random(1)))
    await store.open(migrates=False)
    made = await make_history(store, clock)
    await store.close()
    return name, made


# a healthy history


async def test_a_healthy_history_holds_every_promise(healthy: History) -> None:
    report = await healthy.verify()

    assert report.holds, "\n".join(report.lines())
    assert all(check.warnings == [] for check in report.checks)
    assert {check.code: check.checked for check in report.checks if check.code in ("S1", "S3", "tables")} == {
        "S1": 68 + 2 + 42,
        "S3": 4,
        "tables": 23,
    }


async def test_the_report_is_for_people_and_for_programs(healthy: History) -> None:
    report = await healthy.verify()

    lines = list(report.lines())
    assert lines[0] == "S1       Every occurrence is recorded exactly once: holds (112 occurrences)"
    assert lines[-1] == f"Every promise holds, as of {healthy.clock.now():%Y-%m-%dT%H:%M:%SZ}."
    data = json.loads(json.dumps(report.as_dict()))
    assert data["holds"] is True
    assert [check["code"] for check in data["checks"]] == [check.code for check in report.checks]


async def test_an_empty_database_holds_every_promise(store: Store) -> None:
    report = await verify(store.database)

    assert report.holds
    assert sum(check.checked for check in report.checks) == 0


# S1 to S3: the ledger


async def test_an_occurrence_without_a_record_is_a_hole(history: History) -> None:
    await history.sql("DELETE FROM timeball.finished WHERE id = $1", history.tick(2))

    assert await history.broken() == {
        "S1": [
            (
                f"an occurrence has no record: job ticker, job_id {format_job_id(history.ticker.id)}, "
                "version 1, at 2026-03-02T12:02:00Z"
            )
        ]
    }


async def test_a_lost_skip_range_is_a_hole_named_by_its_edges(history: History) -> None:
    await history.sql("DELETE FROM timeball.skip_range WHERE job_id = $1", history.ticker.id)

    (row,) = (await history.broken())["S1"]
    assert row.startswith("60 occurrences have no record, the last of them at 2026-03-02T13:05:00Z: job ticker")
    assert row.endswith("at 2026-03-02T12:06:00Z")


async def test_an_execution_inside_a_skip_range_is_recorded_twice(history: History) -> None:
    phantom = await add_skipped(history, history.start + 30 * MINUTE)

    broken = await history.broken()
    assert list(broken) == ["S1"]
    assert broken["S1"][0].startswith("an occurrence is recorded twice: job ticker")
    assert f"records {format_execution_id(phantom)}, skp_" in broken["S1"][0]


async def test_two_executions_of_one_instant_are_recorded_twice(history: History) -> None:
    other = await add_skipped(history, history.start + 2 * MINUTE, id_=history.store.env.new_id())

    broken = await history.broken()
    assert list(broken) == ["S1"]
    assert format_execution_id(other) in broken["S1"][0]
    assert format_execution_id(history.tick(2)) in broken["S1"][0]


async def test_a_skip_range_has_the_number_of_its_occurrences(history: History) -> None:
    await history.sql(
        "UPDATE timeball.skip_range SET occurrences = occurrences + 1 WHERE job_id = $1", history.ticker.id
    )

    broken = await history.broken()
    assert list(broken) == ["S1"]
    assert "says that it holds 61 occurrences, its schedule names 60" in broken["S1"][0]


async def test_a_named_one_off_without_a_record_is_a_hole(history: History) -> None:
    job = await make_job(history.store, name="reminder", scheduled_at=history.clock.now())
    assert await history.broken() == {}

    await history.sql("DELETE FROM timeball.ready WHERE job_id = $1", job.id)

    broken = await history.broken()
    assert list(broken) == ["S1"]
    assert broken["S1"][0].startswith("the one occurrence has no record: job reminder")


async def test_an_execution_between_two_occurrences_is_a_phantom(history: History) -> None:
    phantom = await add_skipped(history, history.start + 2.5 * MINUTE)

    assert await history.broken() == {
        "S2": [
            (
                "an execution is not at an instant of its version's schedule: job ticker, "
                f"job_id {format_job_id(history.ticker.id)}, version 1, at 2026-03-02T12:02:30Z, records {format_execution_id(phantom)}"
            )
        ]
    }


@pytest.mark.parametrize("at", [timedelta(minutes=-5), timedelta(days=400)])
async def test_an_execution_outside_every_version_is_a_phantom(history: History, at: timedelta) -> None:
    await delete(history.store, history.ticker)
    await add_skipped(history, history.start + at)

    broken = await history.broken()
    assert list(broken) == ["S2"]
    assert "at an instant for which no version answers" in broken["S2"][0]


@pytest.mark.parametrize(
    ("version", "why"), [(9, "cites version 9, which does not exist"), (2, "but version 1 answers for its instant")]
)
async def test_an_execution_that_cites_a_wrong_version_is_a_phantom(history: History, version: int, why: str) -> None:
    first = occurrence_id(history.edited.id, history.start + 2 * MINUTE)
    await history.sql("UPDATE timeball.finished SET version = $2 WHERE id = $1", first, version)

    broken = await history.broken()
    assert list(broken) == ["S2"]
    assert why in broken["S2"][0]
    assert format_execution_id(first) in broken["S2"][0]


async def test_a_pending_occurrence_outside_the_schedule_is_a_phantom(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.due SET scheduled_for = scheduled_for - interval '1 s', run_at = run_at - interval '1 s', tzdata = $2
        WHERE job_id = $1 AND kind = 'occurrence'
        """,
        history.nightly.id,
        tzdata_version(),
    )

    broken = await history.broken()
    assert list(broken) == ["S2"]
    assert broken["S2"][0].startswith(
        "the pending occurrence is not at an instant of its version's schedule: job nightly"
    )


async def test_occurrences_of_other_time_zone_data_are_not_checked(history: History) -> None:
    """Fault 23."""
    await history.sql(
        """
        UPDATE timeball.due SET scheduled_for = scheduled_for + interval '1 h', run_at = run_at + interval '1 h', tzdata = '1999z'
        WHERE job_id = $1 AND kind = 'occurrence'
        """,
        history.nightly.id,
    )

    report = await history.verify()
    assert report.holds
    assert (report.check("S1").not_checkable, report.check("S2").not_checkable) == (1, 1)
    assert "1 not checkable with these time-zone data" in next(iter(report.lines()))


async def test_a_watermark_that_moved_back_is_named(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.due SET scheduled_for = $2, run_at = $3, watermark = $2::timestamptz - interval '1 s'
        WHERE job_id = $1 AND kind = 'occurrence'
        """,
        history.ticker.id,
        history.start + 2 * MINUTE,
        history.clock.now(),
    )

    broken = await history.broken()
    assert list(broken) == ["S3"]
    assert broken["S3"][0].startswith("what lies beyond the pending occurrence is recorded already")


async def test_a_job_that_lost_its_pending_occurrence_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.due WHERE job_id = $1", history.ticker.id)

    broken = await history.broken()
    assert list(broken) == ["S3"]
    assert broken["S3"][0].startswith("nothing is pending, though the schedule goes on")
    assert "job ticker" in broken["S3"][0]


async def test_a_gap_between_two_versions_is_named(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.job_version SET effective_from = effective_from + interval '1 s'
        WHERE job_id = $1 AND version = 2
        """,
        history.edited.id,
    )

    broken = await history.broken()
    assert list(broken) == ["S3"]
    assert broken["S3"][0].startswith(
        "version 1 answers until 2026-03-02T12:05:00Z, version 2 from 2026-03-02T12:05:01Z"
    )


async def test_records_beyond_the_watermark_of_a_pause_are_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.job SET paused_from = paused_from - interval '3 min' WHERE id = $1", history.edited.id
    )

    broken = await history.broken()
    assert list(broken) == ["S3"]
    assert "beyond the watermark of the pause" in broken["S3"][0]


# rows that were edited by hand


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("watermark = watermark - interval '1 h'", "though all up to this instant is recorded: it has moved back"),
        ("watermark = watermark - interval '1 microsecond'", "it has moved back"),
        ("watermark = NULL", "the pending occurrence has no watermark"),
    ],
)
@pytest.mark.parametrize("job", ["ticker", "nightly"])
async def test_a_watermark_that_was_edited_is_named(history: History, job: str, change: str, why: str) -> None:
    """One job has records, the other has none yet and one version."""
    id_ = getattr(history, job).id
    await history.sql(f"UPDATE timeball.due SET {change} WHERE job_id = $1 AND kind = 'occurrence'", id_)

    broken = await history.broken()
    assert list(broken) == ["S3"]
    assert why in broken["S3"][0]
    assert f"job {job}" in broken["S3"][0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("state = 'dead'", "an execution is dead without a reason"),
        ("state = 'dead', reason = 'failed 1 times, max_retries is 0'", "an execution is dead, but has no error"),
        (
            "state = 'dead', reason = 'failed 1 times, max_retries is 0', error_type = 'ValueError'",
            "the attempts of an execution are not those it counts",
        ),
        ("state = 'skipped'", "an execution was skipped, but had started"),
        ("state = 'skipped', reason = 'overlap'", "an execution was skipped, but had started"),
        ("state = 'skipped', started_at = NULL", "an execution is skipped without a reason"),
        ("started_at = NULL", "an execution succeeded, but never started"),
        ("attempts = 0", "an execution succeeded without an attempt"),
        ("attempts = 2, fence = 2", "the attempts of an execution are not those it counts"),
        ("error_type = 'ValueError'", "an execution succeeded, but has an error or a reason"),
        ("started_at = finished_at + interval '1 s'", "an execution ended before it started"),
    ],
)
async def test_a_success_that_was_edited_is_named(history: History, change: str, why: str) -> None:
    await history.sql(f"UPDATE timeball.finished SET {change} WHERE id = $1", history.tick(2))

    broken = await history.broken()
    assert list(broken) == ["ends"]
    assert broken["ends"][0].startswith(f"{why}: execution_id {format_execution_id(history.tick(2))}")
    assert "job ticker" in broken["ends"][0]


async def test_missing_attempts_of_a_dead_execution_are_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.attempt WHERE execution_id = $1", history.dead)

    broken = await history.broken()
    assert list(broken) == ["ends"]
    assert broken["ends"][0].startswith(
        f"the attempts of an execution are not those it counts: execution_id {format_execution_id(history.dead)}"
    )
    assert "attempts 1, attempts_kept 0" in broken["ends"][0]


async def test_an_attempt_that_ended_before_it_started_is_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.attempt SET started_at = finished_at + interval '1 s' WHERE execution_id = $1", history.dead
    )

    broken = await history.broken()
    assert list(broken) == ["ends"]
    assert broken["ends"][0].startswith("an attempt ended before it started")


@pytest.mark.parametrize(("first", "last"), [(1, 5), (2, 2), (0, 6)])
async def test_a_skip_range_over_recorded_runs_is_named(history: History, first: int, last: int) -> None:
    await history.sql(
        """
        INSERT INTO timeball.skip_range (id, job_id, version, first_at, last_at, occurrences, reason, recorded_at)
        VALUES (gen_random_uuid(), $1, 1, $2, $3, $4, 'misfire', $3)
        """,
        history.ticker.id,
        history.start + first * MINUTE,
        history.start + last * MINUTE,
        last - first + 1,
    )

    broken = await history.broken()
    assert "S1" in broken
    assert "recorded twice" in " ".join(broken["S1"])


async def test_a_skip_range_that_was_extended_over_runs_is_named(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.skip_range SET last_at = last_at + interval '2 min', occurrences = occurrences + 2
        WHERE id = (SELECT id FROM timeball.skip_range WHERE job_id = $1 ORDER BY first_at LIMIT 1)
        """,
        history.ticker.id,
    )

    broken = await history.broken()
    assert list(broken) == ["S1"]
    assert "recorded twice" in broken["S1"][0]


@pytest.mark.parametrize(
    ("row", "change", "why"),
    [
        ("waiting", "run_at = '2100-01-01Z'", "an execution waits for longer than until its instant"),
        ("waiting", "run_at = run_at - interval '1 h'", "an execution is to run before its instant"),
        ("ticker", "run_at = '2100-01-01Z'", "an execution waits for longer than until its instant"),
        ("ticker", "run_at = run_at - interval '1 h'", "an execution is to run before its instant"),
        ("nightly", "shard = 999", "what waits is in a shard that does not exist, where no scheduler looks"),
        ("waiting", "shard = 999", "what waits is in a shard that does not exist, where no scheduler looks"),
    ],
)
async def test_a_waiting_row_that_was_edited_is_named(history: History, row: str, change: str, why: str) -> None:
    found = getattr(history, row)
    where = "id = $1" if row == "waiting" else "job_id = $1 AND kind = 'occurrence'"
    await history.sql(f"UPDATE timeball.due SET {change} WHERE {where}", getattr(found, "id", found))

    broken = await history.broken()
    assert list(broken) == ["waiting"] or (list(broken) == ["waiting", "stuck"] and "- interval" in change)
    assert broken["waiting"][0].startswith(f"{why}: execution_id ")


async def test_an_occurrence_may_wait_for_its_share_of_the_jitter(store: Store, clock: VirtualClock) -> None:
    await make_recurring(store, 3600, name="spread", jitter_seconds=1800)
    parked = await enqueue(store, 60)
    async with store.database.transaction() as connection:
        moved = "UPDATE timeball.due SET run_at = $2 WHERE id = $1"
        clock.advance("1h")
        await connection.execute(moved, parked, clock.now() - MINUTE)

    report = await verify(store.database, clock.now(), second_look=timedelta(0))

    assert report.check("waiting").holds, "\n".join(report.lines())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("job_id = $2", "an enqueued execution names another job than its own"),
        ("version = 9", "an execution cites a version that its job has not reached"),
        ("handler = 'another'", "an execution names another handler than its job"),
        ("scheduled_for = run_at + interval '1 s'", "an execution is to run before its instant"),
    ],
)
async def test_a_ready_row_that_was_edited_is_named(history: History, change: str, why: str) -> None:
    ready = await enqueue(history.store)
    values = [history.limited.id] if "$2" in change else []
    await history.sql(f"UPDATE timeball.ready SET {change} WHERE id = $1", ready, *values)

    broken = await history.broken()
    assert "waiting" in broken
    assert broken["waiting"][0].startswith(f"{why}: execution_id {format_execution_id(ready)}")


async def test_a_triggered_row_that_names_another_job_is_named(history: History) -> None:
    """It has an id of its own; its handler, which is not that of the job, shows it."""
    other = await make_job(history.store, name="other", handler="another")
    async with history.store.database.connection() as connection:
        triggered = await connection.fetchval("SELECT id FROM timeball.ready WHERE origin = 'trigger' LIMIT 1")

    await history.sql("UPDATE timeball.ready SET job_id = $2 WHERE id = $1", triggered, other.id)

    broken = await history.broken()
    assert broken["waiting"][0].startswith("an execution names another handler than its job")


# the ledger, when there is nothing to complain about


async def test_changes_of_a_job_leave_no_hole(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, name="changed")
    await pass_time(store, clock, 3 * MINUTE)
    await pause(store, job)
    clock.advance("10m")
    await edit(store, job, interval_seconds=45)
    clock.advance("10m")
    await resume(store, job)
    await pass_time(store, clock, 3 * MINUTE)
    await edit(store, job, schedule="*/2 * * * *", timezone="America/New_York")
    await pass_time(store, clock, 5 * MINUTE)
    clock.advance("2m")
    await edit(store, job, queue="another")
    await pass_time(store, clock, 5 * MINUTE)
    await delete(store, job)
    clock.advance("1d")

    report = await verify(store.database)

    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked > 30


async def test_an_edited_paused_job_keeps_its_skipped_occurrences(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 3600, name="called-off")
    commands = Commands(store, store.env)
    await commands.jobs.skip_next(job.id)
    await pause(store, job)
    clock.advance("1m")

    await edit(store, job, queue="another")
    await resume(store, job)

    assert (await due_row(store, job.id)).scheduled_for == clock.now() - MINUTE + 2 * HOUR
    clock.advance("59m")
    await pass_time(store, clock, 3 * HOUR, step=HOUR)
    report = await verify(store.database)
    assert report.holds, "\n".join(report.lines())


async def test_a_job_that_has_used_up_its_executions_owes_nothing(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 60, name="thrice", max_executions=3)
    await pass_time(store, clock, 10 * MINUTE)
    await pause(store, job)

    report = await verify(store.database)

    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked == 3


async def test_one_offs_of_every_kind_are_accounted_for(store: Store, clock: VirtualClock) -> None:
    past = await make_job(store, name="past", scheduled_at=clock.now() - MINUTE)
    future = await make_job(store, name="future", scheduled_at=clock.now() + 3 * MINUTE)
    moved = await make_job(store, name="moved", scheduled_at=clock.now() + 3 * MINUTE)
    await edit(store, past, description="it is still to run")
    await edit(store, moved, scheduled_at=clock.now() - MINUTE)
    await pause(store, future)
    await pass_time(store, clock, 5 * MINUTE)
    await resume(store, future)
    await edit(store, moved, description="it has run")
    await pass_time(store, clock, 5 * MINUTE)

    report = await verify(store.database)

    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked == 3


async def test_a_paused_one_off_is_not_missing(store: Store, clock: VirtualClock) -> None:
    ahead, due_now = await enqueue(store, 60), await enqueue(store)
    for execution in (ahead, due_now):
        await store.jobs.change(JobId(execution), lambda found: job_changes.pause_job(found, None, None), OPERATOR)
    assert (await verify(store.database)).holds
    clock.advance("10m")

    for execution in (ahead, due_now):
        await store.jobs.change(JobId(execution), job_changes.resume_job, OPERATOR)
    await pass_time(store, clock, 2 * MINUTE)

    report = await verify(store.database)
    assert report.holds, "\n".join(report.lines())
    assert (await store.history.find(ahead)).state == "succeeded"  # type: ignore[union-attr]


async def test_dropped_history_is_not_missing(store: Store, clock: VirtualClock) -> None:
    await store.history.add_day(clock.now().date())
    await make_recurring(store, 3600, name="hourly")
    await make_recurring(store, 3600, name="limited", max_executions=2)
    await enqueue(store)
    await pass_time(store, clock, 15 * HOUR, step=HOUR)
    assert (await verify(store.database)).holds

    dropped = await store.history.drop_day((clock.now() - timedelta(days=1)).date())

    assert dropped > 10
    report = await verify(store.database)
    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked == 4


async def test_executions_deleted_by_state_are_not_missing_and_the_others_count(
    store: Store, clock: VirtualClock
) -> None:
    await store.history.add_day(clock.now().date())
    await make_recurring(store, 3600, name="hourly")
    await enqueue(store)
    await pass_time(store, clock, 15 * HOUR, step=HOUR)

    day = (clock.now() - timedelta(days=1)).date()
    deleted = await store.history.trim_day(day, [ExecutionState.SUCCEEDED], batch=3)

    assert deleted > 10
    assert await store.history.trim_day(day, [ExecutionState.SUCCEEDED]) == 0
    report = await verify(store.database)
    assert report.holds, "\n".join(report.lines())


async def test_verify_reads_one_snapshot_while_others_write(healthy: History) -> None:
    before = await healthy.verify()

    await pass_time(healthy.store, healthy.clock, 3 * MINUTE)
    after = await healthy.verify()

    assert before.holds
    assert after.holds, "\n".join(after.lines())


# tables


async def test_an_execution_in_two_tables_is_named(history: History) -> None:
    await history.sql(
        """
        INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at)
        SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, run_at
        FROM timeball.due WHERE id = $1
        """,
        history.waiting,
    )

    assert await history.broken() == {
        "tables": [
            f"an execution is in more than one place: execution_id {format_execution_id(history.waiting)}, tables due and ready"
        ]
    }


async def test_an_execution_that_ended_twice_is_named(history: History) -> None:
    await history.store.history.add_day((history.clock.now() + timedelta(days=1)).date())
    columns = await copied_columns(history.store, "finished", "finished_at")
    await history.sql(
        f"""
        INSERT INTO timeball.finished ({columns}, finished_at)
        SELECT {columns}, finished_at + interval '1 day' FROM timeball.finished WHERE id = $1
        """,
        history.done,
    )

    broken = await history.broken()
    assert list(broken) == ["tables"]
    assert broken["tables"][0].endswith(f"{format_execution_id(history.done)}, tables finished and finished")


# S4, S5: claims


async def test_a_fence_behind_its_attempts_is_named(history: History) -> None:
    await history.sql("UPDATE timeball.attempt SET fence = 5 WHERE execution_id = $1", history.retried)

    assert await history.broken() == {
        "S4": [
            (
                "an execution is behind the fence of its attempts: "
                f"execution_id {format_execution_id(history.retried)}, fence 2, other_fence 5"
            )
        ]
    }


@pytest.mark.parametrize(
    ("fence", "number", "why"),
    [
        ("fence", "number + 1", "two attempts have the same fence"),
        ("fence + 1", "number", "an attempt with a higher fence is not a later one"),
    ],
)
async def test_fences_that_do_not_increase_are_named(history: History, fence: str, number: str, why: str) -> None:
    await history.sql(
        f"""
        INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, finished_at, outcome)
        SELECT execution_id, {fence}, {number}, gen_random_uuid(), finished_at + interval '1 s', outcome
        FROM timeball.attempt WHERE execution_id = $1
        """,
        history.retried,
    )

    broken = await history.broken()
    assert list(broken) == ["S4", "ends"], "nor are the attempts those that the execution counts"
    assert broken["S4"][0].startswith(f"{why}: execution_id {format_execution_id(history.retried)}")


async def test_a_running_execution_with_a_used_fence_is_named(history: History) -> None:
    (claimed,) = await claim_all(history.store)
    await history.sql(
        """
        INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, finished_at, outcome)
        VALUES ($1, $2, 1, gen_random_uuid(), $3, 'failed')
        """,
        claimed.id,
        claimed.fence,
        history.clock.now(),
    )

    broken = await history.broken()
    assert list(broken) == ["S4"]
    assert "an execution runs under a fence that was used" in broken["S4"][0]


async def test_more_attempts_than_claims_are_named(history: History) -> None:
    await history.sql("UPDATE timeball.finished SET fence = 0 WHERE id = $1", history.done)

    broken = await history.broken()
    assert list(broken) == ["S4"]
    assert "tried more often than it was claimed" in broken["S4"][0]


async def test_a_claim_with_two_outcomes_is_named(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.finished SET claim_id = attempt.claim_id
        FROM timeball.attempt WHERE attempt.execution_id = finished.id AND finished.id = $1
        """,
        history.retried,
    )

    broken = await history.broken()
    assert list(broken) == ["S5"]
    assert broken["S5"][0].startswith("an execution succeeded under a claim that had failed: execution_id")
    assert format_execution_id(history.retried) in broken["S5"][0]


async def test_a_claim_that_failed_twice_is_named(history: History) -> None:
    await history.sql(
        """
        INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, finished_at, outcome)
        SELECT execution_id, fence + 1, number + 1, claim_id, finished_at, outcome
        FROM timeball.attempt WHERE execution_id = $1
        """,
        history.retried,
    )

    broken = await history.broken()
    assert list(broken) == ["S5", "ends"]
    assert broken["S5"][0].startswith("a claim has two failed attempts")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("claim_id = NULL", "an execution died under another claim than its last attempt"),
        ("claim_id = gen_random_uuid()", "an execution died under another claim than its last attempt"),
    ],
)
async def test_a_death_under_a_foreign_claim_is_named(history: History, change: str, why: str) -> None:
    await history.sql(f"UPDATE timeball.finished SET {change} WHERE id = $1", history.dead)

    broken = await history.broken()
    assert list(broken) == ["S5"]
    assert any(row.startswith(f"{why}: execution_id {format_execution_id(history.dead)}") for row in broken["S5"])


async def test_an_end_without_a_claim_is_named(history: History) -> None:
    await history.sql("UPDATE timeball.finished SET claim_id = NULL WHERE id = $1", history.done)

    broken = await history.broken()
    assert list(broken) == ["S5"]
    assert broken["S5"][0].startswith("an execution ended without a claim")


# S6, S7: time and tries


async def test_an_early_start_is_named_to_the_microsecond(history: History) -> None:
    await history.sql(
        "UPDATE timeball.finished SET started_at = scheduled_for - interval '1 microsecond' WHERE id = $1",
        history.tick(2),
    )

    assert await history.broken() == {
        "S6": [
            (
                f"an execution started early: execution_id {format_execution_id(history.tick(2))}, "
                f"job_id {format_job_id(history.ticker.id)}, scheduled_for 2026-03-02T12:02:00Z, "
                "started_at 2026-03-02T12:01:59.999999Z, job ticker"
            )
        ]
    }


async def test_an_early_attempt_is_named(history: History) -> None:
    await history.sql("UPDATE timeball.attempt SET started_at = '2001-01-01Z' WHERE execution_id = $1", history.retried)

    broken = await history.broken()
    assert list(broken) == ["S6"]
    assert broken["S6"][0].startswith("an attempt started early")


async def test_a_retry_that_succeeded_before_it_was_due_is_named_to_the_microsecond(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.finished
        SET started_at = attempt.finished_at - interval '1 microsecond'
        FROM timeball.attempt
        WHERE id = $1 AND execution_id = id
        """,
        history.retried,
    )

    broken = await history.broken()
    assert list(broken) == ["S6"]
    assert len(broken["S6"]) == 1
    assert broken["S6"][0].startswith("a retry started before the attempt before it had ended")
    assert "failed_at 2026-03-02T12:00:02Z, started_at 2026-03-02T12:00:01.999999Z" in broken["S6"][0]


async def test_a_retry_that_failed_again_before_it_was_due_is_named(history: History) -> None:
    """By the failed attempt before it, although it was lost with a worker in between."""
    job = await make_job(history.store, name="weak")
    await trigger(history.store, job)
    for outcome in (Failed(FAILURE), Lost(FAILURE), Failed(FAILURE)):
        (claimed,) = [each for each in await claim_all(history.store) if each.job_id == job.id]
        await record(history.store, [found(claimed, outcome)])
        history.clock.advance("10s")
        await promote_due(history.store, await make_owner_anew(history.store))
    assert await history.broken() == {}

    await history.sql(
        """
        UPDATE timeball.attempt
        SET started_at = first.finished_at - interval '1 microsecond'
        FROM timeball.attempt AS first
        WHERE attempt.execution_id = $1 AND attempt.fence = 3 AND first.execution_id = $1 AND first.fence = 1
        """,
        claimed.id,
    )

    broken = await history.broken()
    assert list(broken) == ["S6"]
    assert [text.split(":")[0] for text in broken["S6"]] == ["a retry started before the attempt before it had ended"]


@pytest.mark.parametrize("state_table", ["due", "ready", "running"])
async def test_a_retry_that_is_to_start_before_it_is_due_is_named(history: History, state_table: str) -> None:
    store, clock = history.store, history.clock
    job = await make_job(store, name="weak")
    await trigger(store, job)
    (claimed,) = [each for each in await claim_all(store) if each.job_id == job.id]
    await record(store, [found(claimed, Failed(FAILURE))])
    if state_table != "due":
        clock.advance("10s")
        await promote_due(store, await make_owner_anew(store))
    if state_table == "running":
        await claim_all(store)
    assert await history.broken() == {}

    await history.sql(f"UPDATE timeball.{state_table} SET run_at = scheduled_for WHERE id = $1", claimed.id)

    broken = await history.broken()
    assert list(broken) == ["S6"]
    assert [text.split(":")[0] for text in broken["S6"]] == [
        "a retry is to start before the attempt before it had ended"
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("attempts = 5, fence = 5", "an execution was tried too often"),
        ("attempts = 5, lost = 4, fence = 5", "an execution was lost too often"),
    ],
)
async def test_too_many_attempts_are_named(history: History, change: str, why: str) -> None:
    await history.sql(f"UPDATE timeball.finished SET {change} WHERE id = $1", history.done)

    broken = await history.broken()
    assert list(broken) == ["ends", "S7"], "nor are the attempts there"
    assert broken["S7"][0].startswith(f"{why}: execution_id {format_execution_id(history.done)}")


async def test_a_budget_that_was_lowered_by_an_edit_is_not_broken(history: History) -> None:
    await history.sql("UPDATE timeball.finished SET attempts = 4, fence = 4 WHERE id = $1", history.tick(2))
    for number in range(1, 4):
        await history.sql(
            """
            INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, finished_at, outcome)
            SELECT id, $2::integer, $2::integer, gen_random_uuid(), started_at, 'failed' FROM timeball.finished WHERE id = $1
            """,
            history.tick(2),
            number,
        )

    await edit(history.store, history.ticker, max_retries=0)

    assert await history.broken() == {}


async def test_more_runs_than_max_executions_are_named(history: History) -> None:
    await history.sql(
        """
        UPDATE timeball.job_version SET definition = jsonb_set(definition, '{max_executions}', '7')
        WHERE job_id = $1
        """,
        history.ticker.id,
    )

    broken = await history.broken()
    assert list(broken) == ["S7"]
    assert broken["S7"][0].startswith("8 executions were to run, max_executions is 7: job ticker")


# S8: nothing vanishes


async def test_a_one_off_without_an_execution_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.due WHERE id = $1", history.waiting)

    broken = await history.broken()
    assert list(broken) == ["S8"]
    assert broken["S8"][0].startswith(
        f"a one-off has no execution: execution_id {format_execution_id(history.waiting)}"
    )


async def test_an_execution_whose_job_is_gone_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.job WHERE id = $1", history.waiting)

    broken = await history.broken()
    assert list(broken) == ["S8"]
    assert broken["S8"][0].startswith("an execution waits or runs, but its job is gone")


async def test_an_attempt_whose_execution_is_gone_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.finished WHERE id = $1", history.retried)

    broken = await history.broken()
    assert list(broken) == ["S8"]
    assert sorted(row.split(":")[0] for row in broken["S8"]) == [
        "a one-off has no execution",
        "an attempt is kept, but its execution is gone",
    ]


# S9: limits, overlap, keys


async def test_more_than_a_limit_allows_is_named(history: History) -> None:
    await let_all_pass(history)

    assert await history.broken() == {
        "S9": [
            (
                "more executions share a limit than it allows: "
                f"limit_key job:{history.limited.id}, ready_or_running 2, max_running 1"
            )
        ]
    }


async def test_a_lowered_limit_is_a_warning(history: History) -> None:
    """Only running executions exceed it: ready ones are blocked again."""
    await edit(history.store, history.limited, max_running=2)
    await claim_all(history.store)
    history.clock.advance("1s")

    await edit(history.store, history.limited, max_running=1)

    (warning,) = (await history.warned())["S9"]
    assert warning.startswith("more executions share a limit than it allows")


async def test_a_limit_lowered_by_a_new_job_is_a_warning(history: History) -> None:
    for _ in range(2):
        await enqueue(history.store, max_running=2, limit_key="l")
    await claim_all(history.store)
    history.clock.advance("1s")

    await enqueue(history.store, after=60, max_running=1, limit_key="l")

    assert list(await history.warned()) == ["S9"]


@pytest.mark.parametrize("says", [1, 2])
async def test_a_new_job_that_did_not_lower_the_limit_changes_nothing(history: History, says: int) -> None:
    """Neither a job that allows more than the limit, nor one that allows the same as the others."""
    for _ in range(2):
        await enqueue(history.store, max_running=says, limit_key="l")
    await history.sql("UPDATE timeball.running_limit SET max_running = 2 WHERE key = 'l'")
    await history.store.executions.unblock(["l"])
    await claim_all(history.store)

    await history.sql("UPDATE timeball.running_limit SET max_running = 1 WHERE key = 'l'")

    (why,) = (await history.broken())["S9"]
    assert why == "more executions share a limit than it allows: limit_key l, ready_or_running 2, max_running 1"


async def test_a_missing_limit_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.running_limit")

    broken = await history.broken()
    assert list(broken) == ["S9"]
    assert broken["S9"][0].startswith("executions wait for a limit that does not exist")


@pytest.mark.parametrize("is_audited", [False, True])
async def test_more_than_a_queue_allows_is_named(history: History, is_audited: bool) -> None:
    await enqueue(history.store, queue="narrow")
    await enqueue(history.store, queue="narrow")
    worker = await make_node(history.store)
    await claim_all(history.store, worker=worker)
    if is_audited:
        await Commands(history.store, history.store.env).queues.limit("narrow", 1)
        assert list(await history.warned()) == ["S9"]
        return
    await history.sql("INSERT INTO timeball.queue (name, max_running) VALUES ('narrow', 1)")

    await history.store.executions.mark_queue_limited()

    broken = await history.broken()
    assert broken == {
        "S9": ["more executions of a queue run than it allows: queue narrow, ready_or_running 2, max_running 1"]
    }


# expiry


async def skipped_as_expired(history: History) -> ExecutionId:
    """A one-off that nobody claimed in time."""
    store, clock = history.store, history.clock
    execution_id = await enqueue(store, queue="nobody", start_within_seconds=1)
    clock.advance(1)
    assert list(await store.executions.expire_waiting(10)) == [execution_id]
    assert "expiry" not in await history.broken()
    return execution_id


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("expires_at = NULL", "an execution expired that could not"),
        ("expires_at = finished_at + interval '11 ms'", "an execution expired too early"),
        ("attempts = 1", "an execution expired, but had begun"),
        ("started_at = finished_at", "an execution expired, but had begun"),
    ],
)
async def test_an_expired_execution_that_was_edited_is_named(history: History, change: str, why: str) -> None:
    execution_id = await skipped_as_expired(history)

    await history.sql(f"UPDATE timeball.finished SET {change} WHERE id = $1", execution_id)

    assert (await history.broken())["expiry"][0].startswith(f"{why}: execution_id {format_execution_id(execution_id)}")


async def test_an_expired_execution_with_an_attempt_is_named(history: History) -> None:
    execution_id = await skipped_as_expired(history)

    await history.sql(
        "INSERT INTO timeball.attempt (execution_id, fence, number, finished_at, outcome) VALUES ($1, 1, 1, $2, 'failed')",
        execution_id,
        history.clock.now(),
    )

    assert (await history.broken())["expiry"][0].startswith("an execution expired, but had begun")


async def test_occurrences_that_expired_too_early_are_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.skip_range SET reason = 'expired' WHERE job_id = $1 AND reason = 'misfire'", history.ticker.id
    )

    assert (await history.broken())["expiry"][0].startswith("occurrences expired too early")


async def test_a_begun_execution_that_would_expire_is_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.due SET attempts = 1, fence = 1, expires_at = run_at WHERE id = $1", history.waiting
    )

    assert (await history.broken())["expiry"][0].startswith("an execution that has begun would expire")


async def test_a_pending_occurrence_that_expires_at_another_instant_is_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.due SET expires_at = run_at WHERE job_id = $1 AND kind = 'occurrence'", history.ticker.id
    )

    assert (await history.broken())["expiry"][0].startswith(
        "a pending occurrence expires at another instant than its job says"
    )


async def test_an_expired_execution_that_no_scheduler_records_is_stuck(history: History) -> None:
    await enqueue(history.store, queue="nobody", start_within_seconds=1)
    history.clock.advance(62)
    await renew_nodes(history.store)
    await make_owner_anew(history.store)

    assert "an execution has expired, and no scheduler records it" in str((await history.broken())["stuck"])


async def test_runs_that_overlap_are_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.finished SET finished_at = finished_at + interval '1 minute' WHERE id = $1", history.tick(2)
    )

    broken = await history.broken()
    assert list(broken) == ["overlap"]
    assert broken["overlap"][0].startswith(
        f"two executions of a job ran at the same time: execution_id {format_execution_id(history.tick(3))}, "
        f"other_execution_id {format_execution_id(history.tick(2))}"
    )


@pytest.mark.parametrize(("limit_key", "is_broken"), [("of its own", True), ("shared", False)])
async def test_serial_runs_are_checked_by_their_own_limit(history: History, limit_key: str, is_broken: bool) -> None:
    """A shared limit has the last value that any of its jobs has set."""
    await history.sql(
        """UPDATE timeball.job_version SET definition = definition || jsonb_build_object(
               'overlap', 'queue', 'limit_key', CASE WHEN $1::text = 'shared' THEN $1 ELSE 'job:' || job_id END)
           WHERE job_id = $2""",
        limit_key,
        history.ticker.id,
    )
    await history.sql(
        "UPDATE timeball.finished SET finished_at = finished_at + interval '1 minute' WHERE id = $1", history.tick(2)
    )

    assert ("overlap" in await history.broken()) == is_broken


async def test_two_unfinished_executions_of_a_job_that_skips_are_named(history: History) -> None:
    store, clock = history.store, history.clock
    job = await make_recurring(store, 60, name="twice", overlap="allow")
    for _ in range(2):
        clock.advance(60)
        row = await due_row(store, job.id)
        await promote(store, [await plan_row(store, row)], await make_owner_anew(store))
    assert "overlap" not in await history.broken()

    await history.sql(
        """UPDATE timeball.job_version SET definition = jsonb_set(definition, '{overlap}', '"skip"') WHERE job_id = $1""",
        job.id,
    )

    assert (await history.broken())["overlap"][0].startswith("two executions of a job are unfinished")


async def test_an_occurrence_that_waits_behind_the_newest_is_named(history: History) -> None:
    store, clock = history.store, history.clock
    job = await make_recurring(store, 60, name="newest", overlap="latest")
    owner = await make_owner_anew(store)
    for _ in range(3):
        clock.advance(60)
        await promote(store, [await plan_row(store, await due_row(store, job.id))], owner)
    assert "overlap" not in await history.broken()

    await history.sql(
        """WITH gone AS (DELETE FROM timeball.finished WHERE job_id = $1 AND reason = 'overlap' RETURNING *)
           INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                         attempts, lost, fence, tzdata, limit_key)
           SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, scheduled_for, queued_at,
                  0, 0, 0, tzdata, 'job:' || job_id
           FROM gone""",
        job.id,
    )

    assert (await history.broken())["overlap"][0].startswith(
        "two occurrences of a job wait, and only the newest should"
    )


async def test_a_key_of_a_finished_execution_is_named(history: History) -> None:
    await history.sql("INSERT INTO timeball.live_key (key, execution_id) VALUES ('old', $1)", history.done)

    assert await history.broken() == {
        "keys": [
            f"a key is held by what is not unfinished: unique_key old, execution_id {format_execution_id(history.done)}"
        ]
    }


async def test_a_missing_key_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.live_key")

    broken = await history.broken()
    assert list(broken) == ["keys"]
    assert format_execution_id(history.keyed) in broken["keys"][0]


async def test_a_key_that_is_held_after_the_end_breaks_no_promise(history: History) -> None:
    await history.sql(
        "INSERT INTO timeball.live_key (key, execution_id, held_until, has_ended) VALUES ('old', $1, now(), true)",
        history.done,
    )

    assert await history.broken() == {}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "UPDATE timeball.live_key SET has_ended = true, held_until = now()",
            "an unfinished execution does not hold its key",
        ),
        ("UPDATE timeball.live_key SET has_ended = true", "a key is held for ever by what has ended"),
    ],
)
async def test_a_key_that_is_taken_from_what_is_unfinished_is_named(history: History, statement: str, why: str) -> None:
    await history.sql(statement)

    assert any(line.startswith(why) for line in (await history.broken())["keys"])


async def test_one_that_awaits_the_key_that_it_has_is_named(history: History) -> None:
    await history.sql(
        "UPDATE timeball.due SET unique_key = 'mine', awaits_key = true, origin = 'enqueue' WHERE id = $1",
        history.waiting,
    )
    await history.sql("INSERT INTO timeball.live_key (key, execution_id) VALUES ('mine', $1)", history.waiting)

    broken = await history.broken()
    assert any(line.startswith("an execution awaits a key that it has") for line in broken["keys"])


async def test_two_executions_of_one_key_are_named(history: History) -> None:
    await history.sql("UPDATE timeball.due SET unique_key = 'invoice-7' WHERE id = $1", history.waiting)

    broken = await history.broken()
    assert list(broken) == ["keys"]
    assert broken["keys"][0].startswith("two unfinished executions share a key: unique_key invoice-7")


# what is pending


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "UPDATE timeball.due SET version = 7 WHERE job_id = $1 AND kind = 'occurrence'",
            "an occurrence of an older version is pending",
        ),
        (
            "UPDATE timeball.due SET watermark = scheduled_for WHERE job_id = $1 AND kind = 'occurrence'",
            "an occurrence is pending, but the watermark has passed it",
        ),
        (
            "UPDATE timeball.job SET paused_at = created_at WHERE id = $1",
            "an occurrence is pending, but its job is paused",
        ),
        (
            "UPDATE timeball.job SET deleted_at = created_at WHERE id = $1",
            "an occurrence is pending, but its job is deleted",
        ),
    ],
)
async def test_a_pending_occurrence_agrees_with_its_job(history: History, statement: str, why: str) -> None:
    await history.sql(statement, history.ticker.id)

    broken = await history.broken()
    assert list(broken) == (["due", "waiting"] if "version" in statement else ["due"])
    assert broken["due"][0].startswith(f"{why}: execution_id")
    assert "job ticker" in broken["due"][0]


async def test_a_parked_execution_without_a_pause_is_named(history: History) -> None:
    await history.sql("UPDATE timeball.due SET run_at = '9999-01-01Z' WHERE id = $1", history.waiting)

    broken = await history.broken()
    assert list(broken) == ["due"]
    assert broken["due"][0].startswith("an execution is parked, but its job is not paused")


async def test_a_pause_without_its_resumption_is_named(history: History) -> None:
    await history.sql("DELETE FROM timeball.due WHERE kind = 'resume'")

    broken = await history.broken()
    assert list(broken) == ["due"]
    assert broken["due"][0].startswith("a job is paused until an instant, but nothing will resume it")


async def test_a_resumption_without_its_pause_is_named(history: History) -> None:
    await history.sql("UPDATE timeball.due SET run_at = run_at + interval '1 s' WHERE kind = 'resume'")

    broken = await history.broken()
    assert list(broken) == ["due"]
    assert broken["due"][0].startswith("a resumption waits, but its job is not paused until then")


# nothing is stuck


async def test_an_overdue_execution_is_stuck_while_a_scheduler_lives(history: History) -> None:
    await make_overdue(history)

    broken = await history.broken()
    assert list(broken) == ["stuck"]
    assert broken["stuck"][0].startswith(
        f"an execution is overdue, and no scheduler takes it up: execution_id {format_execution_id(history.waiting)}"
    )


async def test_a_queue_that_no_scheduler_resumes_is_stuck(history: History) -> None:
    await history.sql(
        "INSERT INTO timeball.queue (name, paused_at, paused_until)"
        " SELECT 'late', min(renewed_at) - interval '1 h', min(renewed_at) - interval '5 min' FROM timeball.node"
    )

    broken = await history.broken()
    assert list(broken) == ["stuck"]
    assert broken["stuck"][0].startswith("the pause of a queue is over, and no scheduler resumes it: what late")


async def test_a_stuck_execution_without_a_living_node_is_a_warning(history: History) -> None:
    await make_overdue(history)
    await renew_nodes(history.store)

    warned = await history.warned()

    assert list(warned) == ["stuck"]
    assert "an execution is overdue" in warned["stuck"][0]
    report = await history.verify()
    assert list(report.lines())[-1].endswith("; 1 warnings.")


async def test_an_execution_that_moves_on_was_not_stuck(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_overdue(history)

    async def act_meanwhile(_seconds: float) -> None:
        await promote_due(history.store, await make_owner_anew(history.store))

    monkeypatch.setattr(history.clock, "sleep", act_meanwhile)

    assert await history.broken() == {}


async def test_an_execution_of_a_removed_node_is_stuck(history: History) -> None:
    await enqueue(history.store)
    claims = await claim_all(history.store)
    history.clock.advance("61s")
    await make_owner_anew(history.store)

    broken = await history.broken()

    assert list(broken) == ["stuck"]
    assert all(row.startswith("an execution is held by a node that is gone") for row in broken["stuck"])
    assert len(broken["stuck"]) == len(claims)


async def test_an_execution_past_its_deadline_is_stuck(history: History) -> None:
    await enqueue(history.store, timeout_ms=1000, priority=99)
    worker = await make_node(history.store)
    await claim_all(history.store, worker=worker, slots=1)
    history.clock.advance("70s")
    await history.sql("UPDATE timeball.node SET lease_until = '2100-01-01Z' WHERE incarnation = $1", worker)
    for node in await history.store.nodes.list():
        if node.kind is NodeKind.SCHEDULER:
            await history.store.nodes.remove(node.incarnation)
    await make_owner(history.store)

    broken = await history.broken()

    assert list(broken) == ["stuck"]
    assert broken["stuck"][0].startswith("an execution has run past its deadline")


async def test_an_expired_node_that_is_not_removed_is_stuck(history: History) -> None:
    await make_node(history.store, name="forgotten")
    await history.sql("UPDATE timeball.node SET lease_until = '2001-01-01Z' WHERE name = 'forgotten'")

    broken = await history.broken()

    assert broken == {
        "stuck": [
            "the lease of a node has expired, and no scheduler removes it: what worker forgotten, since 2001-01-01T00:00:00Z"
        ]
    }


async def test_a_free_place_with_a_blocked_execution_is_stuck(history: History) -> None:
    await history.sql("UPDATE timeball.running_limit SET max_running = 2")
    assert await history.broken() == {}

    history.clock.advance("61s")
    await make_owner_anew(history.store)

    broken = await history.broken()
    assert list(broken) == ["stuck"]
    assert broken["stuck"][0].startswith("an execution waits for a place, and its limit has one: execution_id")


async def test_ready_executions_beside_idle_workers_are_stuck(history: History) -> None:
    await make_node(history.store, slots=3, handlers=(HANDLER,), name="idle")
    await history.sql("UPDATE timeball.node SET lease_until = '2100-01-01Z' WHERE name = 'idle'")
    history.clock.advance("70s")
    for node in await history.store.nodes.list():
        if node.kind is NodeKind.SCHEDULER:
            await history.store.nodes.remove(node.incarnation)

    broken = await history.broken()

    assert list(broken) == ["stuck"]
    assert broken["stuck"][0].startswith(
        f"executions are ready, and idle workers leave them: what 1 of {HANDLER} in queue default"
    )


async def test_ready_executions_without_a_worker_are_a_warning(history: History) -> None:
    await make_node(history.store, slots=3, handlers=("something:else",), name="other")
    history.clock.advance("61s")
    await make_owner_anew(history.store)

    (warning,) = (await history.warned())["stuck"]

    assert warning.startswith("executions are ready, and no living worker takes them")


# many


async def test_many_violations_are_counted_and_the_first_are_listed(history: History) -> None:
    async with history.store.database.transaction() as connection:
        await connection.execute(
            "INSERT INTO timeball.live_key (key, execution_id) SELECT 'k' || n, $1 FROM generate_series(1, 50) AS n",
            history.done,
        )

    report = await history.verify()

    check = report.check("keys")
    assert (check.total_violations, len(check.violations)) == (50, LISTED)
    lines = list(report.lines())
    assert "    ! and 30 more" in lines
    assert lines[-1].startswith("Promises are broken, as of ")
    assert lines[-1].endswith(": keys, by 50 in all.")
    assert report.as_dict()["holds"] is False


@ON_ONE_SERVER
async def test_a_long_history_is_read_in_pages(store: Store, clock: VirtualClock) -> None:
    regular = await make_recurring(store, 1, name="regular")
    uneven = await make_job(store, name="uneven", schedule="0,7,9 * * * * *")
    await fill(store, regular, clock.now(), 60_000)
    await fill(store, uneven, clock.now(), 40_000)
    pages: list[int] = []

    report = await verify(CountingDatabase(store.database, pages))

    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked == 100_000
    # Regular records are returned as a few runs, others in pages.
    assert max(pages) <= 5_000
    assert 40_000 <= sum(pages) <= 40_010


async def test_verify_may_be_idle_for_longer_than_other_transactions(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_SESSION_SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    in_order = VerifySnapshot.suspects

    async def think_first(look: VerifySnapshot) -> list[Record]:
        await asyncio.sleep(0.5)
        return await in_order(look)

    monkeypatch.setattr(VerifySnapshot, "suspects", think_first)

    assert (await verify(history.store.database)).holds


@ON_ONE_SERVER
async def test_one_missing_second_is_found_in_a_long_run(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 1, name="regular")
    await fill(store, job, clock.now(), 5_000)
    missing = clock.now() + timedelta(seconds=2_500)
    async with store.database.transaction() as connection:
        await connection.execute("DELETE FROM timeball.finished WHERE scheduled_for = $1", missing)

    report = await verify(store.database)

    (violation,) = report.check("S1").violations
    assert violation.why == "an occurrence has no record"
    assert violation.row["at"] == f"{missing:%Y-%m-%dT%H:%M:%SZ}"
    assert report.check("S2").holds


@ON_ONE_SERVER
async def test_a_month_of_downtime_is_checked_without_enumerating_it(store: Store, clock: VirtualClock) -> None:
    job = await make_recurring(store, 1, name="second")
    clock.advance("30d")
    await promote(store, [await plan_row(store, await due_row(store, job.id))], await make_owner(store))

    report = await verify(store.database)

    assert report.holds, "\n".join(report.lines())
    assert report.check("S1").checked == 30 * 86_400


# helpers


async def add_skipped(history: History, at: datetime, id_: UUID | None = None) -> UUID:
    """A skipped occurrence of the ticker that should not be there."""
    phantom = id_ or occurrence_id(history.ticker.id, at)
    await history.sql(
        """
        INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for,
                                       finished_at, attempts, lost, fence, reason)
        VALUES ($1, $2, 'skipped', 'schedule', 1, 'default', 50, 'h', $3, $3, 0, 0, 0, 'misfire')
        """,
        phantom,
        history.ticker.id,
        at,
    )
    return phantom


async def copied_columns(store: Store, table: str, *left_out: str) -> str:
    async with store.database.transaction() as connection:
        rows = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'timeball' AND table_name = $1",
            table,
        )
    return ", ".join(row["column_name"] for row in rows if row["column_name"] not in left_out)


async def let_all_pass(history: History) -> None:
    """Move blocked executions to ready beyond their limit."""
    columns = await copied_columns(history.store, "ready")
    await history.sql(
        f"""
        WITH gone AS (DELETE FROM timeball.blocked RETURNING {columns})
        INSERT INTO timeball.ready ({columns}) SELECT {columns} FROM gone
        """
    )


async def make_overdue(history: History) -> None:
    await history.sql(
        "UPDATE timeball.due SET run_at = $2, scheduled_for = $2 WHERE id = $1",
        history.waiting,
        history.clock.now() - 2 * MINUTE,
    )


async def make_owner_anew(store: Store) -> Any:
    """A living scheduler that owns every shard, instead of all other nodes."""
    await renew_nodes(store)
    return await make_owner(store)


async def fill(store: Store, job: Job, after: datetime, count: int) -> None:
    """Insert so many successful runs of a job, up to its pending occurrence."""
    *instants, following = (occurrence.at for occurrence in islice(job.rule.occurrences(after), count + 1))
    async with store.database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for,
                                           queued_at, started_at, finished_at, attempts, lost, fence, claim_id)
            SELECT gen_random_uuid(), $1, 'succeeded', 'schedule', 1, 'default', 50, 'h', at, at, at, at, 1, 0, 1, $2
            FROM unnest($3::timestamptz[]) AS at
            """,
            job.id,
            store.env.new_id(),
            instants,
        )
        await connection.execute(
            "UPDATE timeball.due SET scheduled_for = $2, run_at = $2, watermark = $3 WHERE job_id = $1",
            job.id,
            following,
            instants[-1],
        )


class CountingDatabase(Database):
    """The same database, with cursors that record the sizes of their pages."""

    def __init__(self, database: Database, pages: list[int]) -> None:
        super().__init__(database.dsn, database.env)
        self._pages = pages

    async def connect(self, **options: Any) -> Any:
        connection = await super().connect(**options)
        return CountingConnection(connection, self._pages)


class CountingConnection:
    def __init__(self, connection: Any, pages: list[int]) -> None:
        self._connection = connection
        self._pages = pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def cursor(self, *arguments: Any) -> Any:
        return CountingCursor(await self._connection.cursor(*arguments), self._pages)


class CountingCursor:
    def __init__(self, cursor: Any, pages: list[int]) -> None:
        self._cursor = cursor
        self._pages = pages

    async def fetch(self, number: int) -> Any:
        rows = await self._cursor.fetch(number)
        self._pages.append(len(rows))
        return rows


@pytest.mark.parametrize(
    "statement",
    [
        "verify_state_tables",
        "verify_fences",
        "verify_outcomes",
        "verify_never_early",
        "verify_conservation",
        "verify_keys",
    ],
)
async def test_tables_without_statistics_are_not_searched_row_by_row(store: Store, statement: str) -> None:
    """Right after a million jobs were inserted, the planner still takes the tables for empty."""
    parameters = dict.fromkeys(all_statements()[statement].parameters, "NULL")
    parameters |= {"listed": "20", "patience": "interval '1 hour'", "tolerance": "interval '1 second'"}
    text = all_statements()[statement].numbered()
    for number, value in reversed(list(enumerate(parameters.values(), start=1))):
        text = text.replace(f"${number}", value)

    async with store.database.transaction() as connection:
        await connection.execute(verify_module.PLANNER_SETTINGS)
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {text}"))

    assert "Join" in plan
    assert "Nested Loop" not in plan
