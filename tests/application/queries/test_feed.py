"""Upcoming runs as calendar entries."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest

from tests.application.queries.support import ran
from tests.support.factories import enqueue, make_job, make_recurring
from timeball.application.commands import Commands
from timeball.application.queries import Queries, feed
from timeball.application.queries.feed import FeedEntry
from timeball.application.queries.forecast import ForecastRequest
from timeball.domain.forecast.demand import FireTimeBudget
from timeball.domain.values.ids import ExecutionId
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def entries(queries: Queries, **wish: object) -> list[FeedEntry]:
    return list((await queries.feed.of_all(ForecastRequest(**wish))).entries)  # type: ignore[arg-type]


async def test_entries_start_at_their_instants_and_last_the_typical_duration(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *")
    await ran(store, clock.now() - timedelta(days=2), 540, job.id)

    found = await entries(queries, days=3)

    assert [(one.start, one.what.length, one.times, one.day) for one in found] == [
        (datetime(2026, 3, day, 3, tzinfo=UTC), timedelta(seconds=540), 1, None) for day in (3, 4)
    ]
    assert found[0].what.job_id == job.id
    assert found[0].what.schedule == job.rule.describe()


async def test_an_entry_has_the_id_of_its_future_execution(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await make_job(store, name="six-hourly", schedule="0 */6 * * *", jitter_seconds=300)
    before = {one.start: one.execution_id for one in await entries(queries, days=3)}

    clock.advance("1d")
    after = {one.start: one.execution_id for one in await entries(queries, days=2)}

    shared = before.keys() & after.keys()
    assert len(shared) >= 5
    assert all(before[at] == after[at] for at in shared)
    assert len(set(before.values())) == len(before)


async def test_the_first_entry_has_the_id_of_the_pending_occurrence(store: Store, queries: Queries) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *", jitter_seconds=3600)
    pending = await queries.executions.current_of(job.id)

    (first, *_) = await entries(queries)

    assert pending is not None
    assert first.execution_id == pending.id


async def test_a_frequent_job_is_one_entry_a_day(store: Store, queries: Queries) -> None:
    await make_recurring(store, every=30, name="ping-partners")
    await make_job(store, name="office-hours", schedule="*/5 9-10 * * mon-fri")
    await make_job(store, name="eight-a-day", schedule="0 */3 * * *")

    found = await entries(queries, days=7)

    pings = [one for one in found if one.what.label == "ping-partners"]
    assert [one.day for one in pings] == [date(2026, 3, day) for day in range(2, 9)]
    assert [one.times for one in pings] == [1439, *[2880] * 6]
    office = [one for one in found if one.what.label == "office-hours"]
    assert [(one.day, one.times) for one in office] == [(date(2026, 3, day), 24) for day in (3, 4, 5, 6)]
    eight = [one for one in found if one.what.label == "eight-a-day"]
    assert {one.times for one in eight} == {1}
    assert len(eight) == 3 + 6 * 8


async def test_days_are_those_of_the_zone(store: Store, queries: Queries, clock: VirtualClock) -> None:
    clock.advance_to(datetime(2026, 3, 27, 22, 30, tzinfo=UTC))
    await make_recurring(store, every=60, name="minutely")
    await make_job(store, name="half-past-two", schedule="30 2 * * *", timezone="Europe/Berlin")

    found = await entries(queries, days=3, timezone="Europe/Berlin")

    minutely = {one.day: one.times for one in found if one.what.label == "minutely"}
    # The clock is put forward on the 29th, so that day has 23 hours.
    assert minutely == {date(2026, 3, 27): 29, date(2026, 3, 28): 24 * 60, date(2026, 3, 29): 23 * 60}
    assert [one.start for one in found if one.what.label == "half-past-two"] == [
        datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
    ]


async def test_one_offs_are_in_the_calendar(store: Store, queries: Queries) -> None:
    campaign = await make_job(store, name="campaign", scheduled_at="2026-03-03T12:30:00Z", queue="mail")
    alone = await enqueue(store, after=3600, queue="mail")
    for number in range(9):
        await enqueue(store, after=7200 + number, queue="bulk", handler="app:send")

    found = {one.what.label: one for one in await entries(queries, days=2)}

    assert found["campaign"].start == datetime(2026, 3, 3, 12, 30, tzinfo=UTC)
    assert found["campaign"].what.job_id == campaign.id
    assert (found["app:send"].times, found["app:send"].day, found["app:send"].what.job_id) == (
        9,
        date(2026, 3, 2),
        None,
    )
    ids = {one.execution_id for one in await entries(queries, days=2, queue="mail")}
    assert ExecutionId(alone) in ids
    assert len(ids) == 2


async def test_paused_and_manual_jobs_are_not_in_the_calendar(
    store: Store, queries: Queries, commands: Commands
) -> None:
    paused = await make_job(store, name="paused", schedule="0 3 * * *")
    await commands.jobs.pause(paused.id)
    await make_job(store, name="manual")
    await make_job(store, name="twice", schedule="0 3 * * *", max_executions=2)

    found = await entries(queries, days=7)

    assert [one.what.label for one in found] == ["twice", "twice"]
    assert (await queries.feed.of_job(await queries.jobs.find("paused"), 7)).entries == []
    assert (await queries.feed.of_job(await queries.jobs.find("manual"), 7)).entries == []


async def test_the_calendar_of_a_job_reaches_for_a_year_on_its_own_clock(store: Store, queries: Queries) -> None:
    await make_job(store, name="yearly", schedule="0 9 2 1 *", timezone="Europe/Berlin")
    await make_job(store, name="once", scheduled_at="2026-06-01T00:00:00Z")
    await make_job(store, name="minutely", schedule="* * * * *", timezone="Asia/Tokyo")

    yearly = await queries.feed.of_job(await queries.jobs.find("yearly"), 366)
    once = await queries.feed.of_job(await queries.jobs.find("once"), 366)
    minutely = await queries.feed.of_job(await queries.jobs.find("minutely"), 2)

    assert [one.start for one in yearly.entries] == [datetime(2027, 1, 2, 8, tzinfo=UTC)]
    assert [one.start for one in once.entries] == [datetime(2026, 6, 1, tzinfo=UTC)]
    # It is nine in the evening there.
    assert [one.times for one in minutely.entries] == [179, 1440]


async def test_too_many_entries_are_cut_and_reported(
    store: Store, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_ENTRIES", 3)
    monkeypatch.setattr(feed, "MOST_OF_A_JOB", 2)
    await make_job(store, name="early", schedule="0 3 * * *")
    await make_job(store, name="late", schedule="0 4 * * *")

    whole = await queries.feed.of_all(ForecastRequest(days=2))
    cut = await queries.feed.of_all(ForecastRequest(days=7))
    of_job = await queries.feed.of_job(await queries.jobs.find("late"), 7)

    assert whole.cut_after is None
    assert [one.what.label for one in cut.entries] == ["early", "late", "early"]
    assert cut.cut_after == datetime(2026, 3, 4, 3, tzinfo=UTC)
    assert len(of_job.entries) == 2
    assert of_job.cut_after == datetime(2026, 3, 4, 4, tzinfo=UTC)


async def test_jobs_that_the_budget_leaves_out_are_counted(
    store: Store, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FireTimeBudget", partial(FireTimeBudget, budget=10))
    for number in range(3):
        await make_job(store, name=f"job-{number}", schedule=f"{number} 3 * * *")

    found = await queries.feed.of_all(ForecastRequest(days=7))

    assert (len(found.entries), found.left_out) == (6, 2)
