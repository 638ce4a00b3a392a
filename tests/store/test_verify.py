"""`verify` on a healthy history, and on one where each promise is broken by hand."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.factories import (
    FAILURE,
    HANDLER,
    SOMEBODY,
    TZDATA,
    claim_all,
    due_row,
    enqueue,
    found,
    hoist,
    hoist_due,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    plan_row,
    record,
    seconds,
)
from timeball.commands import Commands
from timeball.domain import changes
from timeball.domain.civil_time import tzdata_version
from timeball.domain.execution import Failed, Lost
from timeball.domain.ids import ExecutionId, JobId, occurrence_id, show_execution, show_job
from timeball.domain.job import Job
from timeball.domain.node import NodeKind
from timeball.env import Env
from timeball.store.database import Database
from timeball.store.postgres import Store
from timeball.store.verify import LISTED, Report, verify
from timeball.testing import VirtualClock

ON_ONE_SERVER = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class History:
    """A little of everything, all of it in order."""

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
        """The execution of the ticker's nth occurrence."""
        return occurrence_id(self.ticker.id, self.start + number * MINUTE)

    async def sql(self, statement: str, *values: Any) -> None:
        """Break something: exactly one row."""
        async with self.store.database.transaction() as connection:
            done = await connection.execute(statement, *values)
        assert done.split()[-1] == "1", f"{done}: a break must touch exactly one row"

    async def verify(self) -> Report:
        return await verify(self.store.database)

    async def broken(self) -> dict[str, list[str]]:
        """The promises that are broken, each with the rows that break it."""
        report = await self.verify()
        return {c.code: [str(violation) for violation in c.violations] for c in report.checks if not c.holds}

    async def warned(self) -> dict[str, list[str]]:
        report = await self.verify()
        assert report.holds, "\n".join(report.lines())
        return {c.code: [str(warning) for warning in c.warnings] for c in report.checks if c.warnings}


async def pass_time(store: Store, clock: VirtualClock, span: timedelta) -> None:
    """Let a scheduler and a worker do their duty for a while, a minute at a time."""
    end = clock.now() + span
    while clock.now() < end:
        clock.advance_to(min(clock.now() + MINUTE, end))
        await renew_nodes(store)
        await hoist_due(store, await make_owner(store))
        await record(store, [found(claimed) for claimed in await claim_all(store)])


async def renew_nodes(store: Store) -> None:
    """The old nodes leave; whoever is needed comes anew."""
    for node in await store.nodes.list():
        await store.nodes.remove(node.incarnation)


async def edit(store: Store, job: Job, **fields: Any) -> None:
    await store.jobs.change(job.id, lambda snapshot: changes.edit(snapshot, fields, store.shards), SOMEBODY)


async def pause(store: Store, job: Job, until: datetime | None = None) -> None:
    await store.jobs.change(job.id, lambda snapshot: changes.pause(snapshot, until, None), SOMEBODY)


async def resume(store: Store, job: Job) -> None:
    await store.jobs.change(job.id, changes.resume, SOMEBODY)


async def delete(store: Store, job: Job) -> None:
    await store.jobs.change(job.id, lambda snapshot: changes.delete(snapshot, None), SOMEBODY)


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
    clock.advance("1h")  # nobody is there: occurrences are skipped
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
    return await Commands(store, store.env).trigger(job.id)


@pytest.fixture
async def history(store: Store, clock: VirtualClock) -> History:
    return await make_history(store, clock)


# a healthy history


async def test_a_healthy_history_holds_every_promise(history: History) -> None:
    report = await history.verify()

    assert report.holds, "\n".join(report.lines())
    assert all(check.warnings == [] for check in report.checks)
    assert {check.code: check.checked for check in report.checks if check.code in ("S1", "S3", "rooms")} == {
        "S1": 68 + 2 + 40,
        "S3": 4,
        "rooms": 100,
    }


async def test_the_report_is_for_people_and_for_programs(history: History) -> None:
    report = await history.verify()

    lines = list(report.lines())
    assert lines[0] == "S1       Every occurrence is recorded exactly once: holds (110 occurrences)"
    assert lines[-1] == f"Every promise holds, as of {history.clock.now():%Y-%m-%dT%H:%M:%SZ}."
    data = json.loads(json.dumps(report.as_dict()))
    assert data["holds"] is True
    assert [check["code"] for check in data["checks"]] == [check.code for check in report.checks]


async def test_an_empty_database_holds_every_promise(store: Store) -> None:
    report = await verify(store.database)

    assert report.holds
    assert sum(check.checked for check in report.checks) == 0
