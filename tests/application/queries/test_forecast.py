"""Demand against slots, hour by hour, on the clock of a zone; and where jobs collide."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.application.queries.support import ran
from tests.support.factories import HANDLER, enqueue, make_job, make_node, make_recurring
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.application.queries.forecast import Forecast, ForecastRequest, Hour, SpreadRequest
from timeball.domain.freeze import Afterwards, FreezeScope
from timeball.domain.node import Lease
from timeball.store.store import Store
from timeball.testing import VirtualClock

ANA = Actor("ana")
FOREVER = Lease(span=timedelta(days=90), interval=timedelta(days=1))


def hour(forecast: Forecast, day: date, number: int) -> Hour:
    (found,) = [found for found in forecast.days if found.date == day]
    return found.hours[number]


async def test_demand_is_expected_durations_over_time(store: Store, queries: Queries, clock: VirtualClock) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *")
    await ran(store, clock.now() - timedelta(days=2), 5400, job.id)
    often = await make_recurring(store, every=60, name="often")
    await ran(store, clock.now() - timedelta(days=2), 30, often.id)
    await make_node(store, slots=8, handlers=(HANDLER,))

    forecast = await queries.forecast.demand(ForecastRequest())

    tomorrow = date(2026, 3, 3)
    assert len(forecast.days) == 7
    assert forecast.slots == 8
    assert hour(forecast, tomorrow, 2).busy == pytest.approx(0.5)
    assert hour(forecast, tomorrow, 3).busy == pytest.approx(1.5)
    assert hour(forecast, tomorrow, 4).busy == pytest.approx(1.0)
    assert hour(forecast, tomorrow, 3).starts == 61
    assert hour(forecast, date(2026, 3, 2), 11).note == "past"
    (peak,) = [day.peak for day in forecast.days if day.date == tomorrow]
    assert peak is not None
    assert peak.hour == 3
    assert forecast.without_history == []


async def test_durations_are_remembered_for_a_minute_and_say_since_when(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    read_at = clock.now()
    ages = []

    for seconds in (0, 40, 40):
        clock.advance(timedelta(seconds=seconds))
        forecast = await queries.forecast.demand(ForecastRequest(days=1))
        assert forecast.durations_at is not None
        ages.append((forecast.durations_at - read_at).total_seconds())

    assert ages == [0, 0, 80]


async def test_one_offs_count_too(store: Store, queries: Queries, clock: VirtualClock) -> None:
    await ran(store, clock.now() - timedelta(days=2), 1800)
    await enqueue(store, after=3 * 3600)

    forecast = await queries.forecast.demand(ForecastRequest(days=1))

    assert hour(forecast, date(2026, 3, 2), 15).busy == pytest.approx(0.5)
    assert hour(forecast, date(2026, 3, 2), 15).starts == 1


async def test_what_falls_into_a_freeze_is_no_demand_before_it_is_over(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands
) -> None:
    job = await make_recurring(store, every=600, name="often")
    await ran(store, clock.now() - timedelta(days=2), 60, job.id)
    await enqueue(store, after=2 * 3600)
    until = clock.now() + timedelta(hours=3)
    await commands.freezes.add(FreezeScope.INSTALLATION, until=until, afterwards=Afterwards.LATEST)

    forecast = await queries.forecast.demand(ForecastRequest(days=1))

    # The latest occurrence and the one-off start when it is over, beside the six of the hour.
    starts = [hour(forecast, date(2026, 3, 2), number).starts for number in range(12, 17)]
    assert starts == [0, 0, 0, 8, 6]


async def test_hours_that_a_clock_change_skips_or_repeats_are_noted(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    clock.advance_to(datetime(2026, 3, 27, 12, tzinfo=UTC))
    await make_job(store, name="at-half-past-two", schedule="30 2 * * *", timezone="Europe/Berlin", handler="h:new")
    spring = await queries.forecast.demand(ForecastRequest(days=4, timezone="Europe/Berlin"))
    clock.advance_to(datetime(2026, 10, 24, 12, tzinfo=UTC))
    autumn = await queries.forecast.demand(ForecastRequest(days=3, timezone="Europe/Berlin"))

    assert hour(spring, date(2026, 3, 29), 2).note == "gap"
    assert hour(spring, date(2026, 3, 29), 2).busy is None
    # What was meant for the hour that does not exist runs at its end.
    assert hour(spring, date(2026, 3, 29), 3).starts == 1
    assert hour(spring, date(2026, 3, 28), 2).starts == 1
    assert hour(autumn, date(2026, 10, 25), 2).note == "repeat"
    assert spring.without_history == ["at-half-past-two"]


async def test_the_forecast_of_yesterday_is_compared_with_the_measured_load(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *")
    await ran(store, datetime(2026, 3, 2, 3, tzinfo=UTC), 3600, job.id)
    await ran(store, datetime(2026, 3, 2, 3, tzinfo=UTC), 1800)
    clock.advance("1d")

    hindsight = (await queries.forecast.demand(ForecastRequest(days=1))).hindsight

    # The job was made after three that morning: nobody could have foreseen it.
    assert (hindsight.date, hindsight.predicted_peak, hindsight.measured_peak) == (date(2026, 3, 2), 0.0, 1.5)
    clock.advance("1d")
    await ran(store, datetime(2026, 3, 3, 3, tzinfo=UTC), 2700, job.id)
    hindsight = (await queries.forecast.demand(ForecastRequest(days=1))).hindsight
    assert (hindsight.predicted_peak, hindsight.measured_peak) == (0.88, 0.75)


async def test_jobs_that_collide(store: Store, queries: Queries, clock: VirtualClock, commands: Commands) -> None:
    await make_node(store, slots=2, handlers=(HANDLER,), lease=FOREVER)
    for number in range(3):
        job = await make_job(store, name=f"batch-{number}", schedule="0 3 * * *", queue="batch")
        await ran(store, clock.now() - timedelta(days=1), 600, job.id)
    alone = await make_job(store, name="alone", schedule="0 9 * * *")
    await ran(store, clock.now() - timedelta(days=1), 600, alone.id)

    (collision,) = await queries.forecast.collisions(ForecastRequest(timezone="Europe/Berlin"))

    assert (collision.need, collision.pool.slots, collision.times) == (3, 2, 7)
    assert collision.start == datetime(2026, 3, 3, 3, tzinfo=UTC)
    assert collision.end - collision.start == timedelta(minutes=10)
    # One of three finds no slot for ten minutes; two slots share that.
    assert collision.delay == timedelta(minutes=5)
    assert [label for _, label in collision.jobs] == ["batch-0", "batch-1", "batch-2"]
    assert collision.sentence == (
        "7 times at 04:00, queue batch, default: 3 jobs want 3 of 2 slots for 10 min, which adds about 5 min: "
        "batch-0, batch-1, batch-2"
    )

    await make_node(store, slots=1, handlers=(HANDLER,), lease=FOREVER)
    assert await queries.forecast.collisions(ForecastRequest()) == []
    await commands.queues.limit("batch", 1, ANA)
    (limited,) = await queries.forecast.collisions(ForecastRequest())
    assert (limited.pool.queues, limited.pool.slots) == (("batch",), 1)


async def test_a_collision_is_spread_by_typical_durations(
    store: Store, queries: Queries, clock: VirtualClock, commands: Commands
) -> None:
    await make_node(store, slots=2, handlers=(HANDLER,), lease=FOREVER)
    for number in range(3):
        job = await make_job(store, name=f"batch-{number}", schedule="0 3 * * *", queue="batch")
        await ran(store, clock.now() - timedelta(days=1), 600, job.id)

    advice = await queries.forecast.spread(SpreadRequest(queues=["batch"], timezone="Europe/Berlin"))

    assert advice is not None
    (move,) = advice.moves
    assert move.sentence == "batch-0 0 3 * * * → 10 3 * * * (10 min later), peak 3 → 2"
    # Somebody changed the job while we looked.
    await commands.jobs.update(move.job.job_id, {"schedule": "0 4 * * *"}, ANA)
    changed = replace(advice, jobs=await store.jobs.find([move.job.job_id]))
    assert (changed.moves, replace(advice, jobs={}).moves) == ([], [])
    assert await queries.forecast.spread(SpreadRequest()) is None


async def test_a_frequent_job_takes_a_constant_share_of_slots(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    await make_node(store, slots=2, handlers=(HANDLER,), lease=FOREVER)
    often = await make_recurring(store, every=60, name="often")
    await ran(store, clock.now() - timedelta(days=1), 61, often.id)
    for number in range(2):
        job = await make_job(store, name=f"batch-{number}", schedule="0 3 * * *")
        await ran(store, clock.now() - timedelta(days=1), 600, job.id)

    (collision,) = await queries.forecast.collisions(ForecastRequest())

    assert (collision.need, collision.pool.slots) == (3, 2)
