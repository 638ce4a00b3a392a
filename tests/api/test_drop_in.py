"""Drop-in routes: clients of home-made schedulers keep working, under the rules of every other route."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import checking_commands
from tests.api.test_conventions import check_problem
from tests.api.test_readme import curls
from tests.api.test_readme import run as run_curl
from tests.engine.runners.support import patience
from tests.handlers.builtin.test_email import PostOffice, running
from tests.support.factories import FAILURE, claim_all, found, make_job, record, table
from timeball.api.app import make_api
from timeball.api.resources.drop_in import _HANDLERS, _PATH_PARTS, _SPELLINGS, _STATES, handler_of, payload_of
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings, load_settings
from timeball.domain.execution import Failed
from timeball.errors import InvalidInput, SettingsError
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store
from timeball.testing import VirtualClock

SWITCH = Path(__file__).parents[2] / "docs" / "howto" / "switch.md"
ORIGIN = "http://localhost:8080"
MAIL = {"to": "ada@example.com", "subject": "Hello", "message": "How are you?"}
LATER = "2099-01-01T00:00:00Z"


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose zone is Berlin."""
    settings = Settings(api=ApiSettings(timezone="Europe/Berlin"))
    parts = make_server_runtime(settings, store, checking_commands(settings, store))
    async with httpx.AsyncClient(transport=InProcessTransport(make_api(parts)), base_url=ORIGIN) as opened:
        yield opened


async def posted(client: httpx.AsyncClient, type_: str = "test.echo", data: Any = None, at: str | None = None) -> Any:
    """A job of the dialect with tasks."""
    answer = await client.post("/api/job", json={"task": {"type": type_, "data": data or {}}, "scheduled_at": at})
    assert answer.status_code == 201, answer.text
    assert answer.json()["success"] is True
    return answer.json()["job"]


async def ended(client: httpx.AsyncClient, store: Store, *, well: bool = True, **fields: Any) -> Any:
    """A job that has come to its end."""
    job = await posted(client, **fields)
    (claimed,) = await claim_all(store, handlers=["test.echo"])
    await record(store, [found(claimed, None if well else Failed(FAILURE, is_retryable=False))])
    return job


async def listed(client: httpx.AsyncClient, **filters: Any) -> list[str]:
    answer = await client.get("/api/jobs", params=filters)
    assert answer.status_code == 200, answer.text
    return [job["_id"] for job in answer.json()["jobs"]]


# words


@pytest.mark.parametrize(
    ("type_", "handler"),
    [
        ("email", "email.send"),
        ("send_email", "email.send"),
        ("create_folder", "folder.create"),
        ("write_file", "file.write"),
        ("http.webhook", "http.webhook"),
        ("app.mail:send", "app.mail:send"),
    ],
)
def test_a_type_means_a_handler(type_: str, handler: str) -> None:
    assert handler_of(type_) == handler


@pytest.mark.parametrize(
    ("type_", "data", "payload"),
    [
        ("email", MAIL, MAIL),
        (
            "email",
            {"recipient": "a@b.co", "subject": "s", "body": "t"},
            {"to": "a@b.co", "subject": "s", "message": "t"},
        ),
        ("send_email", {"email": "a@b.co", "text": "t"}, {"to": "a@b.co", "message": "t"}),
        ("create_folder", {"path": "a/b"}, {"path": "a/b"}),
        ("create_folder", {"folderName": "b"}, {"path": "b"}),
        ("create_folder", {"path": "a/", "folderName": "b"}, {"path": "a/b"}),
        ("write_file", {"path": "a.txt", "content": "x"}, {"path": "a.txt", "content": "x", "mode": "overwrite"}),
        ("write_file", {"fileName": "a.txt", "data": "x"}, {"path": "a.txt", "content": "x", "mode": "overwrite"}),
        (
            "write_file",
            {"folderPath": "in", "filename": "a.txt", "text": "x", "mode": "append"},
            {"path": "in/a.txt", "content": "x", "mode": "append"},
        ),
        ("file.write", {"fileName": "a.txt"}, {"fileName": "a.txt"}),
        ("app:work", [1, 2], [1, 2]),
    ],
)
def test_the_usual_spellings_of_data_become_a_payload(type_: str, data: Any, payload: Any) -> None:
    assert payload_of(type_, data) == payload


@pytest.mark.parametrize(
    ("type_", "data", "words", "field"),
    [
        ("email", {"message": "a", "body": "b"}, "message and body are both given", "data/body"),
        ("write_file", {"fileName": "a", "file_name": "b"}, "fileName and file_name are both given", "data/file_name"),
        ("write_file", {"path": 7, "fileName": "b"}, "path is int, expected text", "data/path"),
        ("email", "hello", "data of the type email is not an object", "data"),
        ("test.echo", {"token": "••••••"}, "••••••", "data"),
    ],
)
def test_data_that_could_mean_two_things_are_refused(type_: str, data: Any, words: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        payload_of(type_, data)

    assert words in str(refusal.value)
    assert (refusal.value.field or "").startswith(field)


def test_the_zone_of_the_server_has_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_API__TIMEZONE", "Europe/Berlim")

    with pytest.raises(SettingsError, match="TIMEBALL_API__TIMEZONE"):
        load_settings()


# create and read


async def test_a_typed_job_is_created_and_read(client: httpx.AsyncClient) -> None:
    made = await client.post("/api/v1/create-job", json={"type": "email", "data": MAIL, "scheduledTime": LATER})

    assert made.status_code == 201
    job = made.json()["job"]
    assert made.json() == {
        "success": True,
        "job": {
            "_id": job["_id"],
            "type": "email",
            "data": MAIL,
            "status": "pending",
            "scheduledTime": LATER,
            "createdAt": job["createdAt"],
        },
    }
    read = await client.get(f"/api/v1/job/{job['_id']}")
    assert (read.status_code, read.json()) == (200, made.json())
    native = (await client.get(f"/api/v1/executions/{job['_id']}")).json()
    assert (native["handler"], native["payload"], native["state"]) == ("email.send", MAIL, "scheduled")


async def test_a_task_is_created_with_the_words_of_its_dialect(client: httpx.AsyncClient) -> None:
    job = await posted(client, "send_email", MAIL, LATER)

    assert job["task"] == {"type": "send_email", "data": MAIL}
    assert (job["status"], job["scheduled_at"], job["attempts"]) == ("pending", LATER, 0)
    assert (job["error"], job["retry_of"], job["finished_at"]) == (None, None, None)


async def test_a_job_without_a_time_runs_now(client: httpx.AsyncClient, store: Store) -> None:
    job = await posted(client)

    assert job["status"] == "picked"
    assert len(await table(store, "ready")) == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2099-07-01T12:00:00", "2099-07-01T10:00:00Z"),
        ("2099-07-01 12:00", "2099-07-01T10:00:00Z"),
        ("2099-01-01T12:00", "2099-01-01T11:00:00Z"),
        ("2099-07-01T12:00:00Z", "2099-07-01T12:00:00Z"),
        ("2099-07-01T12:00:00-02:00", "2099-07-01T14:00:00Z"),
    ],
)
async def test_a_time_without_an_offset_is_in_the_zone_of_the_server(
    client: httpx.AsyncClient, given: str, shown: str
) -> None:
    typed = await client.post("/api/v1/create-job", json={"type": "test.echo", "scheduledTime": given})

    assert typed.json()["job"]["scheduledTime"] == shown
    assert (await posted(client, at=given))["scheduled_at"] == shown


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/api/v1/create-job", {}, "/type"),
        ("/api/v1/create-job", {"type": ""}, "/type"),
        ("/api/v1/create-job", {"type": "email", "data": {"to": "a@b.co", "subject": "s"}}, "/data/message"),
        ("/api/v1/create-job", {"type": "email", "data": MAIL | {"to": "nobody"}}, "/data/to"),
        ("/api/v1/create-job", {"type": "test.echo", "scheduledTime": "soon"}, "/scheduledTime"),
        ("/api/v1/create-job", {"type": "test.echo", "scheduled_time": LATER}, "/scheduled_time"),
        ("/api/v1/create-job", {"type": "x" * 201}, "/type"),
        ("/api/job", {"type": "email", "data": MAIL}, "/task"),
        ("/api/job", {"task": {"type": "write_file", "data": {"fileName": "a"}}}, "/task/data/content"),
        ("/api/job", {"task": {"type": "create_folder", "data": {"path": "../up"}}}, "/task/data/path"),
        ("/api/job", {"task": {"type": "email", "data": 7}}, "/task/data"),
        ("/api/job", {"task": {"type": "test.echo"}, "scheduled_at": "2099-13-01"}, "/scheduled_at"),
        ("/api/templates", {"name": "t", "task": {"type": "email", "data": {"to": "a@b.co"}}}, "/task/data/subject"),
        ("/api/templates", {"name": "t"}, "/task"),
        ("/api/bulk/cancel", {"ids": "all"}, "/ids"),
        ("/api/bulk/retry", {"ids": ["exe_01JCV3V1KC8M2T4QZ5R7N9X0AB"] * 501}, "/ids"),
    ],
)
async def test_a_wrong_body_is_a_problem_that_points_to_it(
    client: httpx.AsyncClient, store: Store, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = await client.post(path, json=body)

    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert pointer in [error["pointer"] for error in answer.json()["errors"]], answer.text
    assert await table(store, "job") == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/job/{id}"),
        ("POST", "/api/retry/{id}"),
        ("POST", "/api/cancel/{id}"),
        ("POST", "/api/duplicate/{id}"),
        ("DELETE", "/api/templates/{id}"),
        ("POST", "/api/templates/{id}/use"),
    ],
)
@pytest.mark.parametrize("id_", ["nothing", "exe_01JCV3V1KC8M2T4QZ5R7N9X0AB"])
async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient, method: str, path: str, id_: str) -> None:
    check_problem(await client.request(method, path.format(id=id_)), 404, "not_found")


async def test_secrets_in_data_are_hidden_and_large_data_are_left_out_of_lists(client: httpx.AsyncClient) -> None:
    secret = await posted(client, data={"password": "hunter2", "user": "ada"})
    await posted(client, data={"text": "x" * 9_000})

    assert secret["task"]["data"] == {"password": "••••••", "user": "ada"}
    jobs = (await client.get("/api/jobs")).json()["jobs"]
    assert "characters are left out" in str([job["task"]["data"] for job in jobs])
    assert "hunter2" not in (await client.get("/api/jobs/export")).text


# lists


async def test_jobs_are_listed_by_page_status_type_name_and_date(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="nightly", schedule="0 3 * * *", handler="app:night")
    failed = (await ended(client, store, well=False))["_id"]
    done = (await ended(client, store))["_id"]
    waiting = (await posted(client, "send_email", MAIL, "2099-07-01T00:30"))["_id"]

    page = (await client.get("/api/jobs", params={"page": 2, "limit": 1})).json()
    assert [page[name] for name in ("page", "limit", "total", "totalPages", "success")] == [2, 1, 4, 4, True]
    assert await listed(client, status="failed") == [failed]
    assert await listed(client, status="completed") == [done]
    assert set(await listed(client, status="completed,failed")) == {done, failed}
    assert waiting in await listed(client, status="pending")
    assert await listed(client, status="picked") == await listed(client, status="running") == []
    assert await listed(client, taskType="email") == await listed(client, taskType="send_email") == [waiting]
    assert len(await listed(client, search="night")) == 1
    assert await listed(client, search=done) == [done]
    assert len(await listed(client, status="", taskType="", search="", startDate="", endDate="")) == 4


async def test_a_date_is_a_day_on_the_clock_of_the_server(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    """22:30 in UTC is the next day in Berlin."""
    clock.advance_to(datetime(2098, 7, 1, 22, 30, tzinfo=UTC))
    job = (await posted(client))["_id"]

    assert await listed(client, startDate="2098-07-02", endDate="2098-07-02") == [job]
    assert await listed(client, endDate="2098-07-01") == await listed(client, startDate="2098-07-03") == []
    assert await listed(client, startDate="2098-07-02T00:30", endDate="2098-07-01T22:30:00Z") == [job]
    assert await listed(client, endDate="2098-07-01T22:29:59Z") == []


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"status": "dead"}, 'status is "dead", expected pending, picked'),
        ({"endDate": "9999-12-31"}, "endDate"),
        ({"startDate": "yesterday"}, 'startDate is "yesterday"'),
        ({"tasktype": "email"}, "parameter tasktype is unknown"),
    ],
)
async def test_a_filter_that_cannot_be_read_is_refused(
    client: httpx.AsyncClient, params: dict[str, Any], words: str
) -> None:
    for path in ("/api/jobs", "/api/jobs/export"):
        answer = await client.get(path, params=params)
        assert answer.status_code == 422
        assert words in answer.json()["detail"]


async def test_jobs_are_exported(client: httpx.AsyncClient) -> None:
    job = await posted(client, "email", MAIL, LATER)
    await posted(client)

    text = (await client.get("/api/jobs/export", params={"taskType": "email"})).text
    documents = (await client.get("/api/jobs/export", params={"format": "json"})).json()

    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["_id"], row["type"], row["status"], row["scheduled_at"]) == (job["_id"], "send_email", "pending", LATER)
    assert {document["type"]: document["data"] for document in documents} == {"test.echo": {}, "send_email": MAIL}


async def test_stats_count_what_waits_and_what_has_ended(client: httpx.AsyncClient, store: Store) -> None:
    await ended(client, store)
    await ended(client, store, well=False)
    await posted(client, at=LATER)
    await posted(client)
    await store.rollups.fold()

    stats = (await client.get("/api/stats")).json()

    assert stats == {
        "success": True,
        "stats": {
            "total": 4,
            "pending": 1,
            "picked": 1,
            "running": 0,
            "completed": 1,
            "failed": 1,
            "cancelled": 0,
        },
    }


# actions


async def test_a_failed_job_is_retried_as_a_new_one(client: httpx.AsyncClient, store: Store) -> None:
    failed = await ended(client, store, well=False, data={"n": 1})

    again = (await client.post(f"/api/retry/{failed['_id']}")).json()["job"]
    refused = await client.post(f"/api/retry/{again['_id']}")

    assert (again["retry_of"], again["status"], again["task"]["data"]) == (failed["_id"], "picked", {"n": 1})
    read = (await client.get(f"/api/v1/job/{failed['_id']}")).json()["job"]
    assert (read["_id"], read["status"]) == (failed["_id"], "failed")
    check_problem(refused, 409, "conflict")


async def test_a_waiting_job_is_cancelled_once(client: httpx.AsyncClient) -> None:
    job = await posted(client, at=LATER)

    cancelled = await client.post(f"/api/cancel/{job['_id']}")

    assert (cancelled.status_code, cancelled.json()["job"]["status"]) == (200, "cancelled")
    check_problem(await client.post(f"/api/cancel/{job['_id']}"), 409, "conflict")


async def test_many_are_cancelled_and_retried_with_a_result_for_each(client: httpx.AsyncClient) -> None:
    waiting = [(await posted(client, at=LATER))["_id"] for _ in range(2)]

    cancelled = (await client.post("/api/bulk/cancel", json={"ids": waiting})).json()
    again = (await client.post("/api/bulk/cancel", json={"ids": waiting[:1]})).json()
    retried = (await client.post("/api/bulk/retry", json={"ids": waiting})).json()

    assert (cancelled["success"], cancelled["done"], cancelled["failed"]) == (True, 2, 0)
    assert [result["_id"] for result in cancelled["results"]] == waiting
    assert (again["success"], again["failed"], bool(again["results"][0]["error"])) == (False, 1, True)
    assert retried["done"] == 2
    new = [result["job"] for result in retried["results"]]
    assert set(await listed(client, status="picked")) == set(new)
    assert (await client.post("/api/bulk/cancel", json={"ids": []})).json()["results"] == []


async def test_a_copy_runs_at_the_instant_of_its_original_or_now(client: httpx.AsyncClient, store: Store) -> None:
    ahead = await posted(client, data={"n": 1}, at=LATER)
    past = await ended(client, store, data={"n": 2})
    nightly = await make_job(store, name="nightly", interval_seconds=60, handler="test.echo", payload={"n": 3})
    (occurrence,) = [job for job in await listed(client, status="pending") if job != ahead["_id"]]

    copies = [(await client.post(f"/api/duplicate/{id_}")).json()["job"] for id_ in (ahead["_id"], past["_id"])]
    moved = (await client.post(f"/api/duplicate/{occurrence}", json={"scheduled_at": LATER})).json()["job"]

    assert [copy["scheduled_at"] for copy in (copies[0], moved)] == [LATER, LATER]
    assert [copy["status"] for copy in (*copies, moved)] == ["pending", "picked", "pending"]
    assert [copy["task"]["data"]["n"] for copy in (*copies, moved)] == [1, 2, 3]
    native = (await client.get(f"/api/v1/executions/{moved['_id']}")).json()
    copied = (await client.get(f"/api/v1/jobs/{native['job_id']}")).json()
    assert (copied["kind"], copied["name"], str(nightly.id) in copied["id"]) == ("once", None, False)


async def test_a_template_is_stored_used_and_deleted(client: httpx.AsyncClient) -> None:
    task = {"type": "write_file", "data": {"fileName": "a.txt", "content": "x"}}
    made = (await client.post("/api/templates", json={"name": "note", "task": task})).json()["template"]

    shown = (await client.get("/api/templates")).json()["templates"]
    now = (await client.post(f"/api/templates/{made['_id']}/use")).json()["job"]
    later = await client.post(
        "/api/templates/note/use", json={"scheduled_at": LATER, "data": {"fileName": "b.txt", "text": "y"}}
    )
    twice = await client.post("/api/templates", json={"name": "note", "task": task})
    deleted = await client.delete(f"/api/templates/{made['_id']}")

    stored = {"path": "a.txt", "content": "x", "mode": "overwrite"}
    assert shown == [made]
    assert made["task"] == now["task"] == {"type": "write_file", "data": stored}
    assert now["status"] == "picked"
    assert later.json()["job"]["task"]["data"] == {"path": "b.txt", "content": "y", "mode": "overwrite"}
    assert later.json()["job"]["scheduled_at"] == LATER
    check_problem(twice, 409, "conflict")
    assert (deleted.status_code, deleted.json()) == (200, {"success": True})
    assert (await client.get("/api/templates")).json()["templates"] == []


async def test_a_template_of_a_schedule_makes_one_job_each_time_it_is_used_here(client: httpx.AsyncClient) -> None:
    job = {"handler": "test.echo", "schedule": "0 6 * * *", "name": "report", "ends_at": "2098-01-01T00:00:00Z"}
    await client.post("/api/v1/templates", json={"name": "report", "job": job})

    used = [(await client.post("/api/templates/report/use")).json()["job"] for _ in range(2)]

    assert [one["status"] for one in used] == ["picked", "picked"]
    assert len({one["_id"] for one in used}) == 2


# the rules of every route


async def test_a_request_that_is_repeated_with_its_key_is_carried_out_once(
    client: httpx.AsyncClient, store: Store
) -> None:
    for path, body in (
        ("/api/v1/create-job", {"type": "test.echo"}),
        ("/api/job", {"task": {"type": "test.echo"}}),
    ):
        answers = [await client.post(path, json=body, headers={"Idempotency-Key": path}) for _ in range(2)]
        assert answers[0].content == answers[1].content
        assert answers[1].headers["idempotent-replayed"] == "true"

    assert len(await table(store, "ready")) == 2


async def test_changes_are_audited(client: httpx.AsyncClient, store: Store) -> None:
    job = await posted(client, at=LATER)
    await client.post(f"/api/cancel/{job['_id']}")
    await client.post(f"/api/retry/{job['_id']}")
    await client.post("/api/templates", json={"name": "t", "task": {"type": "test.echo"}})

    audit = {(row["actor"], row["action"]) for row in await table(store, "audit")}

    assert audit == {("local", action) for action in ("execution.cancel", "execution.retry", "template.create")}


async def test_a_command_is_for_administrators_here_too(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    editor = await make_key("editor")
    data = {"command": "/bin/true"}

    for path, body in (
        ("/api/v1/create-job", {"type": "shell.command", "data": data}),
        ("/api/job", {"task": {"type": "shell.command", "data": data}}),
        ("/api/templates", {"name": "t", "task": {"type": "shell.command", "data": data}}),
    ):
        check_problem(await client.post(path, json=body, headers=editor), 403, "forbidden")


async def test_the_key_is_checked_before_the_body_and_bodies_have_limits(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    viewer, editor = await make_key("viewer"), await make_key("editor")
    for path in ("/api/v1/create-job", "/api/job", "/api/templates", "/api/bulk/cancel"):
        check_problem(await client.post(path, content=b"{"), 401, "unauthenticated")
        check_problem(await client.post(path, content=b"{", headers=viewer), 403, "forbidden")
        check_problem(await client.post(path, content=b"{", headers=editor), 415, "unsupported_media_type")
        huge = {"type": "test.echo", "data": "x" * 1_100_000}
        check_problem(await client.post(path, json=huge, headers=editor), 413, "body_too_large")


# the work itself


@pytest.mark.slow
async def test_mail_a_folder_and_a_file_that_are_posted_so_are_really_made(
    store: Store, fresh_database: Any, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    office = PostOffice()
    with running(office) as port:
        environment = os.environ | {
            "TIMEBALL_DATABASE_URL": fresh_database.dsn,
            "TIMEBALL_SMTP_URL": f"smtp://127.0.0.1:{port}",
            "TIMEBALL_SMTP_FROM": "timeball@example.com",
            "TIMEBALL_FILES_ROOT": str(tmp_path / "files"),
        }
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, "-m", "timeball", "worker"]
            worker = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
        try:
            jobs = [
                (await client.post("/api/v1/create-job", json={"type": "email", "data": MAIL})).json()["job"],
                await posted(client, "create_folder", {"folderName": "reports"}),
                await posted(client, "write_file", {"folderPath": "notes", "fileName": "a.txt", "data": "hello"}),
            ]
            async with patience("all three are completed"):
                while {(await read(client, job["_id"]))["status"] for job in jobs} != {"completed"}:
                    await asyncio.sleep(0.05)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=30) == 0, (tmp_path / "log").read_text()

    letter = office.letter()
    assert (letter["To"], letter["Subject"], letter.get_content().strip()) == tuple(MAIL.values())
    assert (tmp_path / "files" / "reports").is_dir()
    assert (tmp_path / "files" / "notes" / "a.txt").read_text() == "hello"


async def read(client: httpx.AsyncClient, id_: str) -> Any:
    return (await client.get(f"/api/v1/job/{id_}")).json()["job"]


def test_the_curl_lines_of_the_page_on_switching_work(running_api: str) -> None:
    answers = [run_curl(command, running_api) for command in curls(SWITCH)]

    mail, file, jobs = answers
    assert (mail["job"]["type"], mail["job"]["scheduledTime"]) == ("email", "2030-01-31T09:00:00Z")
    assert file["job"]["scheduled_at"] == "2030-01-31T08:00:00Z"
    assert [job["_id"] for job in jobs["jobs"]] == [file["job"]["_id"]]


def test_the_page_on_switching_names_every_spelling() -> None:
    page = SWITCH.read_text(encoding="utf-8")
    spellings = {name for fields in _SPELLINGS.values() for names in fields.values() for name in names}
    parts = {name for pair in _PATH_PARTS.values() for names in pair for name in names}

    assert [name for name in sorted(spellings | parts | set(_HANDLERS) | set(_STATES)) if f"`{name}`" not in page] == []


def test_the_document_tags_them(parts: ServerRuntime) -> None:
    paths = make_api(parts).openapi()["paths"]

    tagged = {path for path, operations in paths.items() for one in operations.values() if one["tags"] == ["drop-in"]}
    assert len(tagged) == 14
    assert all(path.startswith("/api/") for path in tagged)
