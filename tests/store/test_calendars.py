"""Calendars in the store: their versions, the jobs that use them, and the races between both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.store.racing import Race, stoppable
from tests.support.factories import OPERATOR, define_job, read_job, table
from tests.support.servers import VERSIONS
from timeball.application.commands import Commands
from timeball.domain.calendar import Calendar
from timeball.domain.job import Job, calendar_of
from timeball.domain.job_fields import JobSpec
from timeball.domain.scheduling.calendars import parse_days
from timeball.env import Env
from timeball.errors import Conflict, NotFound
from timeball.store.enqueue import CalendarChanged
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)


@pytest.fixture
async def race(fresh_database: FreshDatabase, store: Store, env: Env, clock: VirtualClock) -> AsyncIterator[Race]:
    ahead = stoppable(Store(fresh_database.dsn, Env(clock, Random(1))))
    await ahead.open(migrates=False)
    observer = await store.database.connect()
    yield Race(ahead, store, observer)
    await observer.close()
    await ahead.close()


async def add(store: Store, name: str, *days: str) -> Calendar:
    calendar = Calendar(name=name, description="why", source={"kind": "list"}, days=parse_days(days))
    return await store.calendars.add(calendar, OPERATOR)


async def set_days(store: Store, name: str, *days: str) -> Calendar:
    return await store.calendars.change(name, lambda one: replace(one, days=parse_days(days)), OPERATOR)


async def create(store: Store, **fields: object) -> Job:
    spec = JobSpec(name="daily", handler="h", schedule="0 9 * * *", **fields)
    created = await Commands(store, store.env).jobs.create(spec)
    return await read_job(store, created.job_id)


def cited(job: Job) -> dict[str, int]:
    calendar = calendar_of(job.rule)
    return {} if calendar is None else calendar.versions


async def test_every_version_of_a_calendar_is_kept(store: Store, clock: VirtualClock) -> None:
    first = await add(store, "closed", "sat", "12-25", "2026-03-04")
    clock.advance("1h")
    second = await set_days(store, "closed", "sun")

    assert await store.calendars.find("closed") == second
    assert (await store.calendars.find("closed", 1)).days == first.days
    assert await store.calendars.find("closed", 3) is None
    assert (second.version, second.created_at, second.updated_at) == (2, first.created_at, clock.now())


async def test_a_calendar_that_comes_back_goes_on_with_its_versions(store: Store) -> None:
    await add(store, "closed", "sat")
    await set_days(store, "closed", "sun")
    await store.calendars.delete("closed", lambda _: None, OPERATOR)

    again = await add(store, "closed", "mon")

    assert again.version == 3
    assert (await store.calendars.find("closed", 1)).days == parse_days(["sat"])


async def test_a_name_is_taken_until_its_calendar_is_deleted(store: Store) -> None:
    await add(store, "closed", "sat")

    with pytest.raises(Conflict, match="there is already a calendar named 'closed'"):
        await add(store, "closed", "sun")
    await store.calendars.delete("closed", lambda _: None, OPERATOR)

    with pytest.raises(NotFound):
        await set_days(store, "closed", "sun")
    assert await store.calendars.present(["closed"]) == {}


async def test_a_calendar_in_use_is_not_deleted(store: Store) -> None:
    await add(store, "closed", "sat")
    job = await create(store, skip_on=("closed",))

    with pytest.raises(Conflict, match="the calendar 'closed' is used by daily"):
        await store.calendars.delete("closed", lambda _: None, OPERATOR)
    await Commands(store, store.env).jobs.delete(job.id)
    await store.calendars.delete("closed", lambda _: None, OPERATOR)

    assert await store.calendars.find("closed") is None


async def test_a_job_is_not_written_with_days_that_have_changed(store: Store) -> None:
    await add(store, "closed", "sat")
    job = define_job(
        store, schedule="0 9 * * *", skip_on=("closed",), known_calendars=await store.calendars.present(["closed"])
    )
    await set_days(store, "closed", "sun")

    with pytest.raises(CalendarChanged):
        await store.enqueuer.create([job], [])

    assert not await table(store, "job")


async def test_a_creation_is_repeated_with_the_days_that_have_changed(store: Store, env: Env) -> None:
    await add(store, "closed", "sat")
    stale = await store.calendars.present(["closed"])
    await set_days(store, "closed", "sun")
    present, answers = store.calendars.present, [stale]

    async def late(names: Collection[str], connection: Any = None) -> object:
        return answers.pop() if answers else await present(names, connection)

    store.calendars.present = late

    assert cited(await create(store, skip_on=("closed",))) == {"closed": 2}


async def test_an_unknown_calendar_cannot_be_cited_by_a_row(store: Store) -> None:
    """A job whose calendars were not looked up has no days; it is compared and copied, and never written."""
    job = define_job(store, schedule="0 9 * * *", skip_on=("closed",), known_calendars=None)

    with pytest.raises(AssertionError, match="looked up"):
        await store.enqueuer.create([job], [])


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_change_waits_for_a_job_that_is_being_written(race: Race, store: Store, *, commits: bool) -> None:
    await add(store, "closed", "sat")

    async def change() -> bool:
        calendar = await set_days(race.behind, "closed", "sun")
        return await race.behind.jobs.follow_calendar("closed", calendar.version, OPERATOR, 10)

    result = await race.run(create(race.ahead, skip_on=("closed",)), change(), commits=commits)

    assert result.second_waited
    jobs = [await read_job(store, row["id"]) for row in await table(store, "job")]
    assert [cited(job) for job in jobs] == ([{"closed": 2}] if commits else [])


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_job_is_written_by_the_days_that_a_change_leaves(race: Race, store: Store, *, commits: bool) -> None:
    await add(store, "closed", "sat")

    await race.run(set_days(race.ahead, "closed", "sun"), create(race.behind, skip_on=("closed",)), commits=commits)

    (row,) = await table(store, "job")
    assert cited(await read_job(store, row["id"])) == {"closed": 2 if commits else 1}


async def test_a_deletion_waits_for_a_job_that_is_being_written(race: Race, store: Store) -> None:
    await add(store, "closed", "sat")

    async def refused() -> str:
        with pytest.raises(Conflict) as error:
            await race.behind.calendars.delete("closed", lambda _: None, OPERATOR)
        return str(error.value)

    result = await race.run(create(race.ahead, skip_on=("closed",)), refused(), commits=True)

    assert result.second_waited
    assert "is used by daily" in result.second


async def test_an_edit_takes_the_present_days(race: Race, store: Store) -> None:
    """Whatever is edited, the new version of the job cites what is there, and waits for a change that is under way."""
    await add(store, "closed", "sat")
    job = await create(store, skip_on=("closed",))
    edit = Commands(race.behind, race.behind.env).jobs.update(job.id, {"priority": 7})

    result = await race.run(set_days(race.ahead, "closed", "sun"), edit, commits=True)

    assert result.second_waited
    assert cited(await read_job(store, job.id)) == {"closed": 2}


async def test_days_are_kept_by_what_a_job_cites(store: Store) -> None:
    """A failover loses a version, and another one gets its number: what was kept of the first must not be used."""
    await add(store, "closed", "sat")
    first = await create(store, skip_on=("closed",))
    async with store.database.transaction() as connection:
        await connection.execute("DELETE FROM timeball.due")
        await connection.execute("DELETE FROM timeball.job")
        await connection.execute("DELETE FROM timeball.calendar_version")
        await connection.execute("DELETE FROM timeball.calendar")
    await add(store, "closed", "sun")

    second = await create(store, skip_on=("closed",))

    assert cited(first) == cited(second) == {"closed": 1}
    assert calendar_of(second.rule).skip_on[0].days == parse_days(["sun"])
