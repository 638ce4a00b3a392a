"""Jobs with calendars: scheduled, missed, edited and verified by the same days, whichever version of a calendar decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.engine.support import (
    Hands,
    Heard,
    ManualScheduler,
    check_ledger,
    check_promises,
    create,
    ranges,
    start_scheduler,
    start_worker,
    states,
)
from tests.support.factories import OPERATOR, due_row, read_job, seconds, table
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.domain.job import Job, calendar_of
from timeball.domain.scheduling.calendars import parse_days
from timeball.engine.scheduler.housekeeping import CalendarFollower
from timeball.env import Env
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock
from timeball.testing.environment import START

DAY = 86_400.0


@pytest.fixture
def commands(store: Store, env: Env) -> Commands:
    return Commands(store, env)


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    """A scheduler that owns everything."""
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


async def make_calendar(commands: Commands, name: str, *days: str) -> None:
    await commands.calendars.create(name, DaysRequest(days=days))


async def set_days(commands: Commands, name: str, *days: str) -> bool:
    return (await commands.calendars.update(name, {}, DaysRequest(days=days))).is_followed


async def ran_on(store: Store, job: Job) -> list[str]:
    return [f"{at:%a %d %H:%M}" for at, state in (await states(store, job.id)).items() if state == "succeeded"]


def versions(job: Job) -> dict[str, int]:
    calendar = calendar_of(job.rule)
    assert calendar is not None
    return calendar.versions


async def test_a_job_runs_on_the_days_that_its_calendars_leave(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    # START is Monday the 2nd of March 2026, at noon.
    await make_calendar(commands, "closed", "sat", "sun", "2026-03-04")
    job = await create(store, schedule="0 9 * * *", skip_on=("closed",))

    await node.run_for(9 * DAY, worker.work)

    assert await ran_on(store, job) == [
        f"{day} 09:00" for day in ("Tue 03", "Thu 05", "Fri 06", "Mon 09", "Tue 10", "Wed 11")
    ]
    assert not await ranges(store, job.id)
    await check_ledger(store, job, clock.now())


async def test_a_day_that_is_left_out_moves_in_the_zone_of_the_job(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "weekend", "sat", "sun")
    # The clock of Berlin goes forward on Sunday the 29th of March.
    job = await create(
        store, schedule="30 2 28,29 * *", timezone="Europe/Berlin", skip_on=("weekend",), shift="next", name="payroll"
    )

    await node.run_for(35 * DAY, worker.work)

    assert await ran_on(store, job) == ["Mon 30 00:30"]
    await check_ledger(store, job, clock.now())


async def test_an_interval_rests_on_the_days_of_a_calendar(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "open", "2026-03-03", "2026-03-05")
    job = await create(store, interval_seconds=21_600, only_on=("open",), timezone="Asia/Tokyo")

    await node.run_for(6 * DAY, worker.work)

    # A day in Tokyo begins at 15:00 UTC of the day before.
    expected = ["Mon 02 18:00", "Tue 03 00:00", "Tue 03 06:00", "Tue 03 12:00"]
    assert await ran_on(store, job) == [*expected, "Wed 04 18:00", "Thu 05 00:00", "Thu 05 06:00", "Thu 05 12:00"]
    assert (await commands.jobs.existing(job.id)).version == 1
    await check_ledger(store, job, clock.now())


async def test_what_was_missed_is_counted_without_the_days_that_are_left_out(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "weekend", "sat", "sun")
    job = await create(store, schedule="0 * * * *", skip_on=("weekend",), misfire="skip")

    clock.advance(timedelta(days=14))
    await node.run_for(3600, worker.work)

    ((first, last, number, reason),) = await ranges(store, job.id)
    # Ten days, from noon to noon; the last hour is not late yet.
    assert (first, last) == (START + seconds(3600), START + timedelta(days=14, hours=-1))
    assert (number, reason) == (10 * 24 - 1, "misfire")
    await check_ledger(store, job, clock.now())


async def test_a_changed_calendar_gives_every_job_a_new_version_and_the_next_occurrence_anew(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "closed", "2026-03-04")
    await make_calendar(commands, "other", "2026-03-05")
    daily = await create(store, schedule="0 9 * * *", skip_on=("closed", "other"), name="daily")
    paused = await create(store, interval_seconds=7_200, skip_on=("closed",), name="paused")
    plain = await create(store, schedule="0 9 * * *", name="plain")
    await commands.jobs.pause(paused.id)
    await node.run_for(DAY, worker.work)

    is_followed = await set_days(commands, "closed", "2026-03-06")

    assert is_followed
    jobs = [await read_job(store, job.id) for job in (daily, paused, plain)]
    assert [job.version for job in jobs] == [2, 2, 1]
    assert [versions(job) for job in jobs[:2]] == [{"closed": 2, "other": 1}, {"closed": 2}]
    assert (await due_row(store, daily.id)).scheduled_for == datetime(2026, 3, 4, 9, tzinfo=UTC)
    await commands.jobs.resume(paused.id)
    await node.run_for(6 * DAY, worker.work)
    days = ("Tue 03", "Wed 04", "Sat 07", "Sun 08", "Mon 09")
    assert await ran_on(store, daily) == [f"{day} 09:00" for day in days]
    await check_promises(store)


async def test_the_same_days_are_no_new_version(store: Store, commands: Commands) -> None:
    await make_calendar(commands, "closed", "2026-03-04", "sat")
    job = await create(store, schedule="0 9 * * *", skip_on=("closed",))

    written = await commands.calendars.update("closed", {}, DaysRequest(days=["sat", "2026-03-04..2026-03-04"]))

    assert written.calendar.version == 1
    assert (await read_job(store, job.id)).version == 1


async def test_what_is_owed_runs_before_a_job_follows_its_calendar(
    store: Store, env: Env, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "closed", "2026-03-04")
    job = await create(store, schedule="0 9 * * *", skip_on=("closed",), misfire_grace_seconds=7_200)
    clock.advance_to(datetime(2026, 3, 3, 10, tzinfo=UTC))

    is_followed = await set_days(commands, "closed", "2026-03-03", "2026-03-05")
    before = await read_job(store, job.id)
    await node.run_for(1, worker.work)
    await follower(store, env).tick()

    assert (is_followed, before.version) == (False, 1)
    assert versions(await read_job(store, job.id)) == {"closed": 2}
    await node.run_for(3 * DAY, worker.work)
    assert await ran_on(store, job) == ["Tue 03 09:00", "Wed 04 09:00", "Fri 06 09:00"]
    await check_promises(store)


def follower(store: Store, env: Env) -> CalendarFollower:
    return CalendarFollower(env, Heard(), store.calendars, store.jobs, lambda: True)


async def test_the_follower_goes_on_where_a_request_has_died(
    store: Store, env: Env, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "closed", "2026-03-04")
    jobs = [await create(store, schedule="0 9 * * *", skip_on=("closed",)) for _ in range(3)]
    # The calendar is committed, and no job follows yet.
    await store.calendars.change("closed", lambda one: replace(one, days=parse_days(["2026-03-03"])), OPERATOR)

    await follower(store, env).tick()

    assert [versions(await read_job(store, job.id)) for job in jobs] == [{"closed": 2}] * 3
    assert await store.calendars.to_follow() == []
    await node.run_for(2 * DAY, worker.work)
    assert [await ran_on(store, job) for job in jobs] == [["Wed 04 09:00"]] * 3
    await check_promises(store)


async def test_a_follower_that_is_not_the_housekeeper_does_nothing(store: Store, env: Env, commands: Commands) -> None:
    await make_calendar(commands, "closed", "2026-03-04")
    await store.calendars.change("closed", lambda one: replace(one, days=parse_days(["2026-03-03"])), OPERATOR)
    idle = CalendarFollower(env, Heard(), store.calendars, store.jobs, lambda: False)

    await idle.tick()

    assert await store.calendars.to_follow() == [("closed", 2)]


async def test_a_job_whose_calendar_leaves_no_day_comes_to_its_end(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await make_calendar(commands, "open", "2026-03-03", "2026-03-05")
    job = await create(store, schedule="0 9 * * *", only_on=("open",))
    await node.run_for(DAY, worker.work)

    await set_days(commands, "open", "2026-03-03")

    assert not await table(store, "due")
    await node.run_for(5 * DAY, worker.work)
    assert await ran_on(store, job) == ["Tue 03 09:00"]
    await check_promises(store)


async def test_verify_sees_a_run_on_a_day_that_was_left_out(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """The records of a job prove its calendars: another version of the days would name other instants."""
    await make_calendar(commands, "closed", "2026-03-04")
    await create(store, schedule="0 9 * * *", skip_on=("closed",))
    await node.run_for(4 * DAY, worker.work)
    await check_promises(store)
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.calendar_version SET days = '{2026-03-05}'")
    store.database.calendars._kept.clear()

    report = await verify(store.database, clock.now(), second_look=timedelta(0))

    found = {(check.code, violation.row["at"]) for check in report.checks for violation in check.violations}
    assert ("S1", "2026-03-04T09:00:00Z") in found
    assert ("S2", "2026-03-05T09:00:00Z") in found
