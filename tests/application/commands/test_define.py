"""Jobs that are created or changed by their names, one or very many: the statements that it takes, counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import orjson
import pytest

from tests.support.factories import HANDLER, make_owner, promote_due, table
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.domain import job_changes
from timeball.domain.job_changes import SyncAction
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import JobId
from timeball.env import Env
from timeball.errors import Conflict, InvalidInput
from timeball.store.db.database import CallerConnection
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

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
    assert partly.asked["write_jobs"] == partly.asked["write_audit"] == 1
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


# many that change

_CHANGES_OF_250 = ("jobs_to_change", "take_occurrences", "promoted_until", "write_jobs", "open_versions")


async def change_hour(store: Store, commands: Commands, number: int, **fields: Any) -> CountedConnection:
    """Make so many daily schedules, and move all to another hour: the statements of the second call."""
    before, after = (
        [
            JobSpec(**{name: getattr(daily(n, hour), name) for name in ("name", "handler", "schedule")} | fields)
            for n in range(number)
        ]
        for hour in (7, 9)
    )
    await commands.jobs.define_all(before)
    async with store.database.transaction() as own:
        connection = CountedConnection(own)
        defined = await commands.jobs.define_all(after, connection=connection)
    assert [(each.action, each.job.version) for each in defined] == [(SyncAction.CHANGE, 2)] * number
    assert [each.job.name for each in defined] == [spec.name for spec in after]
    return connection


async def test_a_thousand_changes_take_forty_statements(store: Store, commands: Commands) -> None:
    connection = await change_hour(store, commands, 1_000)

    assert connection.asked == {
        "find_jobs_by_name": 1,
        **dict.fromkeys((*_CHANGES_OF_250, "drop_resumptions", "put_occurrences", "write_audit"), 4),
    }
    assert {row["scheduled_for"].hour for row in await table(store, "due")} == {9}
    assert Counter(row["action"] for row in await table(store, "audit")) == {"job.create": 1, "job.update": 1_000}
    versions = await table(store, "job_version")
    assert Counter((row["version"], row["effective_until"] is None) for row in versions) == {
        (1, False): 1_000,
        (2, True): 1_000,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"max_running": 1},
        {"max_running": 1, "limit_key": "shared"},
        {"skip_on": ("closed",)},
        {"on_success": {"handler": "after", "payload": {}}},
        {"schedule": None, "scheduled_at": "2026-03-09T09:00:00Z"},
        {"overlap": "queue"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_schedules_have_beside_their_rhythm_costs_no_statement_for_each(
    store: Store, commands: Commands, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await commands.calendars.create("closed", DaysRequest(days=["sat"]))
    before = [JobSpec(name=f"job-{n}", handler=HANDLER, schedule="0 7 * * *") for n in range(500)]
    after = [JobSpec(**{"name": spec.name, "handler": HANDLER, "schedule": "0 7 * * *"} | fields) for spec in before]
    again = [
        JobSpec(**{"name": spec.name, "handler": HANDLER, "schedule": "0 7 * * *", "priority": 7} | fields)
        for spec in before
    ]
    await commands.jobs.define_all(before)
    beside: Counter[str] = Counter()
    fetch_alone = store.database._fetch_alone

    async def counted(name: str, given: dict[str, Any]) -> list[Any]:
        beside[name] += 1
        return await fetch_alone(name, given)

    monkeypatch.setattr(store.database, "_fetch_alone", counted)
    async with store.database.transaction() as own:
        connection = CountedConnection(own)
        done = [await commands.jobs.define_all(specs, connection=connection) for specs in (after, again)]

    assert [Counter(each.action for each in defined) for defined in done] == [{SyncAction.CHANGE: 500}] * 2
    assert connection.asked.total() + beside.total() <= 2 * (2 * 14 + 10)


@pytest.mark.parametrize("verb", ["pause_all", "resume_all", "delete_all"])
async def test_what_is_done_with_all_of_an_owner_takes_a_few_statements(
    store: Store, commands: Commands, verb: str
) -> None:
    await commands.jobs.define_all(
        [JobSpec(name=f"job-{n}", handler=HANDLER, schedule="0 7 * * *", owner="all") for n in range(1_000)]
    )
    if verb == "resume_all":
        await commands.jobs.pause_all("all")

    async with store.database.transaction() as own:
        connection = CountedConnection(own)
        number = await getattr(commands.jobs, verb)("all", connection=connection)

    assert number == 1_000
    assert connection.asked.total() <= 1 + 4 * 14
    assert (await verify(store.database, store.env.clock.now())).holds


async def test_a_transaction_is_not_idle_while_thousands_are_decided_about(
    store: Store, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session that is idle in its transaction for ten seconds, and a caller's server may do so earlier."""
    order: list[str] = []
    edit_job = job_changes.edit_job

    class Noted(CountedConnection):
        async def run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
            order.append("statement")
            return await super().run(name, values)

    monkeypatch.setattr(job_changes, "edit_job", lambda *given: order.append("decide") or edit_job(*given))
    await commands.jobs.define_all([daily(number) for number in range(1_000)])
    async with store.database.transaction() as own:
        await commands.jobs.define_all([daily(number, hour=9) for number in range(1_000)], connection=Noted(own))

    runs = [(what, len(list(each))) for what, each in groupby(order)]
    assert [number for what, number in runs if what == "decide"] == [250] * 4


async def test_a_change_that_does_not_fit_names_its_job_and_nothing_is_written(
    store: Store, commands: Commands
) -> None:
    await commands.jobs.define_all([daily(number) for number in range(600)])
    changed = [daily(number, hour=9) for number in range(599)]

    with pytest.raises(InvalidInput, match="0-59") as caught:
        await commands.jobs.define_all([*changed, JobSpec(name="digest-599", handler=HANDLER, schedule="60 * * * *")])

    assert (caught.value.field or "").startswith("digest-599/")
    with pytest.raises(InvalidInput, match="there is no job of this name") as caught:
        await commands.jobs.define_all([*changed, JobSpec(name="digest-599", handler=HANDLER, after="nothing")])
    assert caught.value.field == "digest-599/after"
    assert {job["version"] for job in await table(store, "job")} == {1}


async def test_a_job_that_is_deleted_in_between_is_made_anew(store: Store, commands: Commands) -> None:
    first, second = await commands.jobs.define_all([daily(0), daily(1)])

    class Overtaken(CountedConnection):
        async def run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
            if name == "jobs_to_change" and not self.asked[name]:
                await commands.jobs.delete(second.job.id)
            return await super().run(name, values)

    async with store.database.transaction() as own:
        defined = await commands.jobs.define_all([daily(0, hour=9), daily(1, hour=9)], connection=Overtaken(own))

    assert [each.action for each in defined] == [SyncAction.CHANGE, SyncAction.CREATE]
    assert defined[0].job.id == first.job.id
    assert defined[1].job.id != second.job.id


async def test_jobs_that_come_after_each_other_in_a_circle_are_refused(store: Store, commands: Commands) -> None:
    """Neither change closes a circle by itself."""
    specs = [daily(number) for number in range(4)]
    await commands.jobs.define_all(specs)
    await commands.jobs.define(JobSpec(name="digest-1", handler=HANDLER, after="digest-2"))
    await commands.jobs.define(JobSpec(name="digest-3", handler=HANDLER, after="digest-0"))

    with pytest.raises(InvalidInput, match="makes a circle"):
        await commands.jobs.define_all(
            [
                JobSpec(name="digest-0", handler=HANDLER, after="digest-1"),
                JobSpec(name="digest-2", handler=HANDLER, after="digest-3"),
            ]
        )

    assert {job["name"]: job["after"] for job in await table(store, "job") if job["after"]} == {
        "digest-1": "digest-2",
        "digest-3": "digest-0",
    }


# what one call with many jobs writes is what a call for each writes

_BEFORE: dict[str, dict[str, Any]] = {
    "cron": {"schedule": "*/7 * * * *"},
    "owes-one": {"interval_seconds": 600},
    "owes-many": {"interval_seconds": 45},
    "paused": {"interval_seconds": 45},
    "manual": {"schedule": "manual"},
    "reminder": {"scheduled_at": "2026-03-02T20:00:00Z"},
    "counted": {"interval_seconds": 300, "max_executions": 9},
    "limited": {"schedule": "0 * * * *", "max_running": 2, "limit_key": "shared"},
    "alone": {"schedule": "0 * * * *", "overlap": "queue"},
    "working-days": {"schedule": "*/5 * * * *", "skip_on": ("closed",)},
    "calls": {"schedule": "0 * * * *", "on_success": {"handler": "after", "payload": {"of": 1}}},
    "keyed": {"interval_seconds": 90, "unique_key": "key"},
    "triggered": {"schedule": "manual", "payload": {"n": 1}},
    "follower": {"after": "cron"},
    "unchanged": {"schedule": "0 * * * *"},
}
_AFTER: dict[str, dict[str, Any]] = {
    "cron": {"schedule": "*/11 * * * *", "timezone": "Europe/Rome", "description": "why"},
    "owes-one": {"interval_seconds": 700},
    "owes-many": {"schedule": "0 5 * * *"},
    "paused": {"interval_seconds": 30, "payload": {"n": 2}},
    "manual": {"interval_seconds": 60},
    "reminder": {"scheduled_at": "2026-03-03T20:00:00Z"},
    "counted": {"interval_seconds": 120, "max_executions": 5},
    "limited": {"schedule": "0 * * * *", "max_running": 1, "limit_key": "shared"},
    "alone": {"schedule": "0 * * * *", "overlap": "skip"},
    "working-days": {"schedule": "*/5 * * * *", "only_on": ("open",)},
    "calls": {"schedule": "0 * * * *", "on_failure": {"handler": "after", "payload": {"of": 2}}},
    "keyed": {"schedule": "30 * * * *", "unique_key": "another"},
    "triggered": {"schedule": "manual", "payload": {"n": 2}, "max_running": 1},
    "follower": {"after": "owes-many", "priority": 9},
    "unchanged": {"schedule": "0 * * * *"},
}
_WRITTEN = ("job", "job_version", *("due", "ready", "blocked", "finished"), "skip_range", "running_limit", "audit")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Family:
    """One of two families of jobs that differ in their names alone."""

    def __init__(self, store: Store, commands: Commands, prefix: str) -> None:
        self.store = store
        self.jobs = commands.jobs
        self.executions = commands.executions
        self.prefix = prefix
        self.ids: dict[UUID, str] = {}

    def specs(self, each: Mapping[str, Mapping[str, Any]]) -> list[JobSpec]:
        return [self._spec(name, dict(fields)) for name, fields in each.items()]

    def _spec(self, name: str, fields: dict[str, Any]) -> JobSpec:
        for reference in ("after", "limit_key", "unique_key"):
            if reference in fields:
                fields[reference] = f"{self.prefix}-{fields[reference]}"
        return JobSpec(name=f"{self.prefix}-{name}", handler=HANDLER, owner=self.prefix, **fields)

    async def begin(self) -> None:
        made = await self.jobs.define_all(self.specs(_BEFORE))
        self.ids = {each.job.id: each.job.name or "" for each in made}
        for _ in range(3):
            await self.executions.trigger(self.id_of("triggered"))

    def id_of(self, name: str) -> JobId:
        return next(JobId(id_) for id_, known in self.ids.items() if known == f"{self.prefix}-{name}")

    async def written(self) -> dict[str, list[str]]:
        """What the tables say of these jobs, without what is random in it."""
        return {name: sorted(filter(None, map(self._text, await table(self.store, name)))) for name in _WRITTEN}

    def _text(self, row: dict[str, Any]) -> str | None:
        text = orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS).decode().replace("\\", "")
        text = _UUID.sub(lambda match: self.ids.get(UUID(match[0]), "-"), text)
        if f'"{self.prefix}-' not in text and f":{self.prefix}-" not in text:
            return None
        return re.sub(r'"shard": ?\d+', "", text).replace(f"{self.prefix}-", "").replace(f'"{self.prefix}"', "")


Step = Callable[[Family], Awaitable[object]]


def one_by_one(verb: str) -> Step:
    async def step(family: Family) -> None:
        for job_id in sorted(family.ids):
            await getattr(family.jobs, verb)(JobId(job_id))

    return step


async def define_each(family: Family) -> None:
    for spec in family.specs(_AFTER):
        await family.jobs.define(spec)


_STEPS: Sequence[tuple[Step, Step]] = (
    (define_each, lambda family: family.jobs.define_all(family.specs(_AFTER))),
    (one_by_one("pause"), lambda family: family.jobs.pause_all(family.prefix)),
    (one_by_one("resume"), lambda family: family.jobs.resume_all(family.prefix)),
    (one_by_one("delete"), lambda family: family.jobs.delete_all(family.prefix)),
)


async def test_many_changes_at_once_write_what_a_call_for_each_writes(
    store: Store, commands: Commands, clock: VirtualClock
) -> None:
    await commands.calendars.create("closed", DaysRequest(days=["sat"]))
    await commands.calendars.create("open", DaysRequest(days=["mon", "tue"]))
    owner = await make_owner(store)
    singly, together = Family(store, commands, "a"), Family(store, commands, "b")
    for family in (singly, together):
        await family.begin()
        await family.jobs.pause(family.id_of("paused"))
    assert await singly.written() == await together.written()
    compared: set[str] = set()
    for one, many in _STEPS:
        clock.advance("10m")
        await one(singly)
        await many(together)
        # A call for each does so after its commit; what many leave is found by the next sweep.
        await store.executions.unblock([row["key"] for row in await table(store, "running_limit")])

        written = await singly.written()
        assert written == await together.written()
        compared |= {name for name, rows in written.items() if rows}
        clock.advance("10m")
        await promote_due(store, owner)
        assert (await verify(store.database, clock.now())).holds
    assert compared == set(_WRITTEN)
