"""Jobs that are created or changed by their names, one or very many: the statements that it takes, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.factories import HANDLER, table
from timeball.application.commands import Commands
from timeball.domain.job_changes import SyncAction
from timeball.domain.job_fields import JobSpec
from timeball.env import Env
from timeball.errors import Conflict
from timeball.store.db.database import CallerConnection
from timeball.store.db.statements import all_statements
from timeball.store.store import Store

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


class CountedConnection(CallerConnection):
    """A connection of a caller, which counts the statements by name."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.asked: Counter[str] = Counter()

    async def run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        self.asked[name] += 1
        statement = all_statements()[name]
        rows: list[Any] = await self._connection.fetch(
            statement.numbered(), *(values[parameter] for parameter in statement.parameters)
        )
        return rows


@pytest.fixture
def commands(store: Store, env: Env) -> Commands:
    return Commands(store, env)


def daily(number: int, hour: int = 7) -> JobSpec:
    return JobSpec(
        name=f"digest-{number}", handler=HANDLER, schedule=f"{number % 60} {hour} * * *", payload={"n": number}
    )


async def test_a_thousand_schedules_take_three_statements(store: Store, commands: Commands) -> None:
    specs = [daily(number) for number in range(3_000)]

    async with store.database.transaction() as own:
        connection = CountedConnection(own)
        first = await commands.jobs.define_all(specs, connection=connection)

    assert connection.asked == {"find_jobs_by_name": 3, "create_jobs": 3, "write_audit": 3}
    assert {defined.action for defined in first} == {SyncAction.CREATE}
    assert [defined.job.name for defined in first] == [spec.name for spec in specs]
    assert len(await table(store, "due")) == 3_000


async def test_schedules_that_are_as_asked_for_are_only_read(store: Store, commands: Commands) -> None:
    specs = [daily(number) for number in range(1_500)]
    await commands.jobs.define_all(specs)
    changed = [*specs[1:], daily(0, hour=9)]

    async with store.database.transaction() as own:
        again, partly = CountedConnection(own), CountedConnection(own)
        left = await commands.jobs.define_all(specs, connection=again)
        one = await commands.jobs.define_all(changed, connection=partly)

    assert again.asked == {"find_jobs_by_name": 2}
    assert {defined.action for defined in left} == {SyncAction.LEAVE}
    assert [defined.action for defined in one].count(SyncAction.CHANGE) == 1
    assert partly.asked["write_job"] == partly.asked["write_audit"] == 1
    assert partly.asked.total() <= 15


async def test_one_schedule_takes_three_statements_and_one_if_it_is_there(store: Store, commands: Commands) -> None:
    async with store.database.transaction() as own:
        first, again = CountedConnection(own), CountedConnection(own)
        await commands.jobs.define(daily(1), connection=first)
        await commands.jobs.define(daily(1), connection=again)

    assert first.asked == {"find_job_by_name": 1, "create_and_show_jobs": 1, "write_audit": 1}
    assert again.asked == {"find_job_by_name": 1}


async def test_a_name_that_appears_in_between_is_changed(store: Store, commands: Commands) -> None:
    """The look-up has found nothing, and another caller has created the job before the insert."""

    class Overtaken(CountedConnection):
        async def run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
            if name == "create_jobs":
                await commands.jobs.define(daily(1, hour=5))
            return await super().run(name, values)

    async with store.database.transaction() as own:
        defined = await commands.jobs.define_all([daily(0), daily(1)], connection=Overtaken(own))

    assert [each.action for each in defined] == [SyncAction.CREATE, SyncAction.CHANGE]
    assert {job["name"]: job["version"] for job in await table(store, "job")} == {"digest-0": 1, "digest-1": 2}


async def test_of_many_none_is_written_if_one_cannot_be(store: Store, commands: Commands) -> None:
    await commands.jobs.define(JobSpec(name="digest-1999", handler="another", schedule="@daily"))

    with pytest.raises(Conflict, match="job 'digest-1999' runs another"):
        await commands.jobs.define_all([daily(number) for number in range(2_000)])

    assert len(await table(store, "job")) == 1


async def test_nothing_is_computed_between_the_statements_of_the_transaction(
    store: Store, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session that is idle in its transaction for ten seconds. A busy machine needs them for a thousand jobs."""
    order: list[str] = []
    prepare = commands.jobs.prepare_one
    monkeypatch.setattr(commands.jobs, "prepare_one", lambda *given: order.append("prepare") or prepare(*given))
    repeat = store.database.repeat
    monkeypatch.setattr(
        store.database, "repeat", lambda *given, **named: order.append("write") or repeat(*given, **named)
    )

    await commands.jobs.define_all([daily(number) for number in range(1_200)])

    assert order == ["prepare"] * 1_200 + ["write"]
