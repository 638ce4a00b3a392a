"""Every field of a job can be written in every way and read back: a way that forgets a field fails here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.factories import WHOLE_CALL
from timeball.api.models.jobs import JobIn, JobOut
from timeball.cli.files import read_jobs
from timeball.domain.job_fields import SPEC_FIELDS, TIME_FIELDS, JobSpec
from timeball.store.store import Store

# A value for each field that differs from its default; texts that look like numbers must stay texts.
ALWAYS: dict[str, Any] = {
    "name": "2024",
    "description": "=what it is for",
    "handler": "test.log",
    "payload": {"message": "-1,\n", "level": "info"},
    "queue": "7",
    "priority": 81,
    "max_retries": 5,
    "max_lost": 2,
    "initial_backoff_ms": 250,
    "max_backoff_ms": 9_000,
    "backoff_ms": [5_000, 30_000],
    "timeout_ms": None,
    "delivery": "at_most_once",
    "max_running": 4,
    "limit_key": "2026",
    "start_within_seconds": 71,
    "pause_after_failures": 6,
    "tags": ["1", "b,c"],
    "owner": "17",
    "meta": {"tenant": "acme", "depth": 3},
    "on_success": WHOLE_CALL | {"handler": "after.success", "on_failure": WHOLE_CALL},
    "on_failure": WHOLE_CALL,
}
RECURRING = {
    "timezone": "Europe/Berlin",
    "skip_on": ["closed", "5"],
    "only_on": ["open"],
    "starts_at": "2098-01-01T00:00:00Z",
    "ends_at": "2099-01-01T00:00:00Z",
    "max_executions": 12,
    "jitter_seconds": 3,
    "misfire": "all",
    "misfire_grace_seconds": 31,
    "misfire_cap": 17,
    "misfire_max_age_seconds": 3_600,
    "overlap": "allow",
    "expect": {"start_within": "1m", "succeed_every": "26h", "max_dead": 4, "severity": "warning"},
}
JOBS: dict[str, dict[str, Any]] = {
    "cron": {**ALWAYS, **RECURRING, "schedule": "30 2 * * *", "on_gap": "skip", "on_repeat": "both", "shift": "next"},
    "rrule": {
        **ALWAYS,
        **RECURRING,
        "schedule": "DTSTART:20970105T093000 RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9",
        "on_gap": "skip",
        "on_repeat": "both",
        "shift": "next",
    },
    "every": {**ALWAYS, **RECURRING, "interval_seconds": 77, "scheduled_at": "2098-02-01T00:00:00Z"},
    "once": {**ALWAYS, "scheduled_at": "2098-02-01T00:00:00Z", "expires_at": "2098-02-02T00:00:00Z"},
    "manual": {**ALWAYS, "schedule": "manual"},
    "after": {**ALWAYS, "after": "123"},
}
# Only one-offs without a name, which are enqueued, can have a unique key.
ENQUEUED: dict[str, Any] = {name: value for name, value in ALWAYS.items() if name != "name"} | {
    "unique_key": "31",
    "if_exists": "extend",
    "unique_for_seconds": 73,
}

MOMENTS = ("scheduled_at", "starts_at", "ends_at", "expires_at")

# The job that one of them comes after.
CAUSE = {"name": "123", "handler": "test.echo", "schedule": "@daily", "tags": ["cause"]}

# The calendars that they name.
CALENDARS = {"closed": ["01-06"], "5": ["12-25", "2098-02-03"], "open": ["mon", "tue", "wed", "thu", "fri"]}


@pytest.fixture(autouse=True)
async def calendars(client: httpx.AsyncClient) -> None:
    for name, days in CALENDARS.items():
        assert (await client.post("/calendars", json={"name": name, "days": days})).is_success
    assert (await client.post("/jobs", json=CAUSE)).is_success


Door = Callable[[httpx.AsyncClient, dict[str, Any], Path], Awaitable[str]]


async def created(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    return id_of(await client.post("/jobs", json=fields))


async def created_in_bulk(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    answer = await client.post("/jobs/bulk", json={"jobs": [fields]})
    assert answer.is_success, answer.text
    return str(answer.json()["results"][0]["job_id"])


async def edited(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    """By changing a job that has the default of every field."""
    schedule = {name: fields[name] for name in TIME_FIELDS if name in fields}
    before = id_of(await client.post("/jobs", json={"name": "before", "handler": "test.echo"} | schedule))
    return id_of(await client.patch(f"/jobs/{before}", json=fields))


async def duplicated(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    original = id_of(await client.post("/jobs", json=fields | {"name": "original"}))
    return id_of(await client.post(f"/jobs/{original}/duplicate", json={"name": fields["name"]}))


async def made_by_a_template(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    # A template has no job name; that is given when it is used.
    when = ("name",)
    job = {name: value for name, value in fields.items() if name not in when}
    template = await client.post("/templates", json={"name": "pattern", "job": job})
    assert template.is_success, template.text
    use = {name: fields[name] for name in when if name in fields}
    return id_of(await client.post("/templates/pattern/use", json=use))


async def synced(client: httpx.AsyncClient, fields: dict[str, Any], _folder: Path) -> str:
    answer = await client.post("/jobs/sync", json={"jobs": [fields], "declared_by": "file"})
    assert answer.is_success, answer.text
    return id_of(await client.get(f"/jobs/{fields['name']}"))


async def synced_again(client: httpx.AsyncClient, fields: dict[str, Any], folder: Path) -> str:
    schedule = {name: fields[name] for name in TIME_FIELDS if name in fields}
    await synced(client, {"name": fields["name"], "handler": "test.echo"} | schedule, folder)
    return await synced(client, fields, folder)


def exported_as(kind: str) -> Door:
    async def door(client: httpx.AsyncClient, fields: dict[str, Any], folder: Path) -> str:
        before = id_of(await client.post("/jobs", json=fields))
        file = folder / f"jobs.{kind}"
        file.write_bytes((await client.get("/jobs/export", params={"format": kind, "q": "-tag:cause"})).content)
        assert (await client.delete(f"/jobs/{before}")).is_success
        (job,), _paused = read_jobs(file, kind)
        return await created_in_bulk(client, job, folder)

    door.__name__ = f"exported_as_{kind}"
    return door


DOORS: list[Door] = [
    created,
    created_in_bulk,
    edited,
    duplicated,
    made_by_a_template,
    synced,
    synced_again,
    exported_as("csv"),
    exported_as("jsonl"),
    exported_as("json"),
]


def id_of(answer: httpx.Response) -> str:
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def comparable(document: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """These fields of a job, with instants parsed."""
    return {name: datetime.fromisoformat(document[name]) if name in MOMENTS else document[name] for name in names}


def test_every_field_is_tested_with_another_value_than_its_default() -> None:
    defaults = {name: field.default for name, field in JobSpec.__dataclass_fields__.items()}
    given = {name: value for fields in (*JOBS.values(), ENQUEUED) for name, value in fields.items()}

    assert set(given) == SPEC_FIELDS.keys() == set(JobIn.model_fields) - {"unchecked"}
    assert set(JobOut.model_fields) >= SPEC_FIELDS.keys()
    assert not [name for name, value in given.items() if value == defaults[name]]


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_every_field_is_kept_however_a_job_is_written(
    client: httpx.AsyncClient, door: Door, kind: str, tmp_path: Path
) -> None:
    fields = JOBS[kind]

    job = await door(client, fields, tmp_path)

    told = (await client.get(f"/jobs/{job}")).json()
    assert comparable(told, fields) == comparable(fields, fields)


# A one-off with a key is written by other statements than one without.
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("in_bulk", [False, True])
@pytest.mark.parametrize("moment", [{}, {"scheduled_at": "2098-02-01T00:00:00Z"}], ids=["now", "later"])
async def test_every_field_of_an_enqueue_is_kept(
    client: httpx.AsyncClient, tmp_path: Path, moment: dict[str, Any], in_bulk: bool, has_key: bool
) -> None:
    of_key = {"unique_key", "if_exists", "unique_for_seconds"}
    fields = {name: value for name, value in ENQUEUED.items() if has_key or name not in of_key} | moment
    sent = fields if moment else fields | {"scheduled_at": "2020-01-01T00:00:00Z"}

    job = await (created_in_bulk if in_bulk else created)(client, sent, tmp_path)

    told = (await client.get(f"/jobs/{job}")).json()
    assert comparable(told, fields) == comparable(fields, fields)


# The ways in which the first execution of a job is placed, and fields that are not stored because they mean nothing to the job.
PLACED: dict[str, dict[str, Any]] = {
    **JOBS,
    "once, now": {"handler": "test.echo"},
    "once, now, with an unusual payload": {"handler": "test.echo", "payload": {"b": 1e16, "a": [0.1, "é", None]}},
    "once, now, with every field": ENQUEUED,
    "once, in the past": {"handler": "test.echo", "scheduled_at": "2020-01-01T00:00:00Z"},
    "once, later": ENQUEUED | {"scheduled_at": "2098-02-01T00:00:00Z"},
    "once, now, limited": {"handler": "test.echo", "max_running": 1, "limit_key": "k"},
    "once, without a use for its time zone": {"handler": "test.echo", "timezone": "Europe/Berlin", "misfire": "all"},
    "manual, without a use for its time zone": {"name": "m", "handler": "test.echo", "timezone": "Europe/Berlin"},
    "every, without a use for its gaps": {
        "name": "e",
        "handler": "test.echo",
        "interval_seconds": 60,
        "on_gap": "skip",
    },
    "cron, every second": {"name": "c", "handler": "test.echo", "schedule": "* * * * * *"},
    "cron, serial": {"name": "c", "handler": "test.echo", "schedule": "@daily", "overlap": "queue"},
}


@pytest.mark.parametrize("sent", PLACED.values(), ids=PLACED)
async def test_the_answer_to_a_post_is_what_a_get_says_and_reads_no_job_back(
    client: httpx.AsyncClient, store: Store, sent: dict[str, Any]
) -> None:
    asked: list[str] = []
    store.database.env.fault = asked.append

    answer = await client.post("/jobs", json=sent)

    assert not {"find_jobs.before", "find_job_by_name.before", "job_situations.before"}.intersection(asked)
    told = (await client.get(f"/jobs/{answer.json()['id']}")).json()
    beside = {"execution_id": answer.json()["execution_id"], "warnings": []}
    assert answer.json() == told | beside
    executions = (await client.get(f"/jobs/{told['id']}/executions")).json()["data"]
    assert [execution["id"] for execution in executions] == list(filter(None, [beside["execution_id"]]))


@pytest.mark.parametrize("door", [duplicated, made_by_a_template], ids=lambda door: door.__name__)
@pytest.mark.parametrize("kind", JOBS)
async def test_a_copy_and_a_job_of_a_template_are_answered_as_a_get_says(
    client: httpx.AsyncClient, kind: str, door: Door, tmp_path: Path
) -> None:
    answers: list[httpx.Response] = []
    client.event_hooks["response"].append(lambda response: _keep(answers, response))

    job = await door(client, JOBS[kind], tmp_path)

    (created_with,) = [answer for answer in answers if answer.json().get("id") == job]
    told = (await client.get(f"/jobs/{job}")).json()
    assert created_with.json() == told | {
        "execution_id": created_with.json()["execution_id"],
        "warnings": created_with.json()["warnings"],
    }


async def _keep(answers: list[httpx.Response], response: httpx.Response) -> None:
    await response.aread()
    answers.append(response)
