"""The days of a job: each counts what was due on it, also if that was recorded later."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

import pytest

from tests.application.queries.support import ran
from tests.engine.support import Hands, ManualScheduler, create, start_scheduler, start_worker
from tests.support.factories import seconds
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.application.queries.ledger_days import DayVerdict, LedgerDay
from timeball.domain.job import Job
from timeball.store.store import Store
from timeball.testing.environment import START

SOMEBODY = Actor("somebody")
TODAY = START.date()


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


async def fold(store: Store) -> None:
    while (await store.rollups.fold()).has_more:
        pass


async def days_of(queries: Queries, job: Job, first: int, last: int, timezone: str = "UTC") -> list[LedgerDay]:
    return await queries.ledger_days.days(job, timezone, TODAY + timedelta(days=first), TODAY + timedelta(days=last))


async def test_a_day_tells_what_ran_and_what_was_missed(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    await fold(store)

    before, today, after = await days_of(queries, job, -1, 1)

    assert (today.ran, today.dead, today.skipped) == (9, 0, Counter(misfire=5))
    assert today.verdict is DayVerdict.MISSED
    assert before.verdict is after.verdict is DayVerdict.EMPTY
    assert (today.date, today.start) == (TODAY, START.replace(hour=0))


async def test_missed_occurrences_are_counted_on_their_own_days_though_they_are_recorded_together(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    """From noon, for two days and a half nothing was alive."""
    job = await create(store, interval_seconds=3_600, misfire="skip")
    node.clock.advance_to(START + timedelta(hours=60))
    await node.run_for(1, worker.work)
    await fold(store)

    days = await days_of(queries, job, 0, 3)

    assert [sum(day.skipped.values()) for day in days] == [11, 24, 24, 0]
    assert (days[3].ran, days[3].skipped) == (1, Counter())


async def test_a_range_that_is_not_folded_yet_is_counted(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5, misfire="skip")
    node.clock.advance_to(START + seconds(67))
    await node.run_for(1, worker.work)

    (today,) = await days_of(queries, job, 0, 0)

    assert today.skipped == Counter(misfire=7)


async def test_the_worst_of_a_day_is_its_verdict(store: Store, queries: Queries) -> None:
    job = await create(store, interval_seconds=60)
    await ran(store, START - timedelta(days=3), 1, job.id)
    late = START - timedelta(days=2)
    await ran(store, late, 1, job.id, started_at=late + seconds(31), finished_at=late + seconds(32))
    await ran(store, START - timedelta(days=1), 1, job.id, state="dead")
    for day in (1, 4):
        await ran(store, START - timedelta(days=day, hours=1), 1, job.id, state="skipped", reason="overlap")
    await ran(store, START - timedelta(days=5), 1, job.id, state="skipped", reason="too_old")
    await fold(store)

    days = await days_of(queries, job, -6, -1)

    assert [day.verdict.value for day in days] == ["empty", "missed", "skipped", "ran", "late", "dead"]
    assert (days[5].ran, days[5].dead, days[5].skipped) == (1, 1, Counter(overlap=1))


async def test_what_began_within_the_grace_of_its_job_is_not_late(store: Store, queries: Queries) -> None:
    job = await create(store, interval_seconds=60, misfire_grace_seconds=600)
    await ran(store, START, 1, job.id, started_at=START + seconds(500), finished_at=START + seconds(501))
    await fold(store)

    (today,) = await days_of(queries, job, 0, 0)

    assert (today.late, today.verdict) == (0, DayVerdict.RAN)


async def test_days_follow_the_clock_of_the_zone(store: Store, queries: Queries) -> None:
    job = await create(store, interval_seconds=3_600)
    at = START.replace(hour=23, minute=30)
    await ran(store, at, 1, job.id)
    await fold(store)

    today, tomorrow = await days_of(queries, job, 0, 1, "Europe/Berlin")

    assert (today.ran, tomorrow.ran) == (0, 1)
    assert tomorrow.start == START.replace(hour=23)
    assert tomorrow.date == date(START.year, START.month, START.day + 1)


async def test_a_pause_over_days_is_spread_by_the_schedule_of_its_version(
    store: Store, queries: Queries, node: ManualScheduler, commands: Commands
) -> None:
    job = await create(store, schedule="0 */6 * * *")
    await commands.jobs.pause(job.id, None, SOMEBODY)
    node.clock.advance_to(START + timedelta(days=2))
    await commands.jobs.resume(job.id, SOMEBODY)
    await commands.jobs.update(job.id, {"schedule": "0 0 * * *"}, SOMEBODY)
    await fold(store)

    days = await days_of(queries, job, 0, 2)

    assert [day.skipped for day in days] == [Counter(paused=1), Counter(paused=4), Counter(paused=3)]


async def test_what_calendars_and_clock_changes_leave_out_is_counted_on_its_days(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """The tests begin on a Monday at noon; the clock of New York jumps on the Sunday after."""
    await commands.calendars.create("closed", DaysRequest(days=("wed", "thu")))
    job = await create(store, schedule="30 2,14 * * *", timezone="America/New_York", on_gap="skip", skip_on=("closed",))
    await node.run_until(START + timedelta(days=7), worker.work)
    await fold(store)

    days = await days_of(queries, job, 0, 9, "America/New_York")

    left_out = [day.skipped for day in days]
    assert left_out[2] == left_out[3] == Counter(calendar=2)
    assert left_out[6] == Counter(clock_gap=1)
    assert [left_out[number] for number in (0, 1, 4, 5, 7, 8, 9)] == [Counter()] * 7
    assert (days[6].ran, days[6].verdict, days[2].verdict) == (1, DayVerdict.SKIPPED, DayVerdict.SKIPPED)
