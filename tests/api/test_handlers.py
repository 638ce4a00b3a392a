"""Payloads are checked by the schemas of their handlers; only administrators write commands."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.factories import FAILURE, claim_all, found, make_node, record
from timeball.config.settings import Settings
from timeball.domain.execution import Failed
from timeball.domain.values.ids import format_execution_id
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.runtime import ServerRuntime, make_catalogue
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
GOOD = {"handler": "http.webhook", "payload": {"url": "https://example.com"}}
BAD: dict[str, Any] = {"handler": "http.webhook", "payload": {"headers": {"a b": "c"}, "colour": "red"}}
SHELL = {"handler": "shell.command", "payload": {"command": "backup.sh"}}


def pointers(response: httpx.Response) -> set[str]:
    assert response.status_code == 422, response.text
    return {error["pointer"] for error in response.json()["errors"]}


async def test_a_payload_is_checked_when_a_job_is_created(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs", json=BAD)

    assert {"/payload/url", "/payload/colour"} <= pointers(response)
    assert response.json()["code"] == "payload_mismatch"
    assert "/handlers/http.webhook" in response.json()["hint"]
    assert (await client.get("/jobs")).json()["data"] == []


async def test_a_payload_is_checked_when_a_job_is_changed_copied_or_run_otherwise(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json=GOOD | {"name": "a", "schedule": "0 6 * * *"})
    await client.post("/jobs", json={"handler": "mine", "name": "b", "payload": {"odd": 1}})

    changed = await client.patch("/jobs/a", json={"payload": {"url": 7}})
    copied = await client.post("/jobs/a/duplicate", json={"payload": {}})
    run = await client.post("/jobs/a/trigger", json={"payload": {"method": "POST"}})
    other = await client.patch("/jobs/b", json={"handler": "http.webhook"})

    assert [pointers(each) >= {"/payload/url"} for each in (changed, copied, run, other)] == [True] * 4
    assert (await client.patch("/jobs/a", json={"priority": 1})).status_code == 200


@pytest.mark.parametrize("second", [BAD, BAD | {"priority": 3}], ids=["copied", "written"])
async def test_every_payload_of_a_bulk_is_checked(client: httpx.AsyncClient, second: dict[str, Any]) -> None:
    response = await client.post("/jobs/bulk", json={"jobs": [GOOD, second]})

    assert "/jobs/1/payload/url" in pointers(response)
    assert (await client.get("/jobs")).json()["data"] == []


@pytest.mark.parametrize("depth", [102, 250, 900, 5_000])
@pytest.mark.parametrize("field", ["payload", "tags", "colour"])
async def test_a_bulk_that_is_nested_too_deeply_is_refused(client: httpx.AsyncClient, field: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    job = f'{{"handler":"h","{field}":{nested}}}'

    response = await client.post("/jobs/bulk", content=f'{{"jobs":[{job},{job}]}}')

    assert response.status_code in (400, 422), response.text
    assert (await client.get("/jobs")).json()["data"] == []


async def test_a_bulk_per_item_names_the_payload_that_does_not_fit(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs/bulk", json={"jobs": [GOOD, BAD], "mode": "per_item"})

    assert [item["status"] for item in response.json()["results"]] == ["created", "failed"]


async def test_an_unknown_handler_accepts_any_payload(client: httpx.AsyncClient) -> None:
    assert (await client.post("/jobs", json={"handler": "app.mail:send", "payload": [1]})).status_code == 201


async def test_the_catalogue_lists_every_handler(client: httpx.AsyncClient, store: Store) -> None:
    await make_node(store, handlers=("test.delay", "app.mail:send"))

    data = {each["name"]: each for each in (await client.get("/handlers")).json()["data"]}

    assert {"http.webhook", "shell.command", "email.send", "system.cleanup", "test.echo"} <= data.keys()
    assert data["test.delay"] | {"payload_schema": None} == {
        "name": "test.delay",
        "description": "Wait for a while, then succeed, or fail if told so.",
        "run_style": "coroutine",
        "payload_schema": None,
        "example": {"durationMs": 500, "shouldFail": False},
        "is_enabled_here": True,
        "workers": 1,
        "needs_role": "editor",
        "doc": None,
        "options": None,
        "versions": [],
    }
    assert data["http.webhook"]["payload_schema"]["required"] == ["url"]
    assert (data["shell.command"]["is_enabled_here"], data["shell.command"]["needs_role"]) == (False, "admin")
    assert (data["app.mail:send"]["payload_schema"], data["app.mail:send"]["workers"]) == (None, 1)
    assert (await client.get("/handlers/test.delay")).json() == data["test.delay"]
    assert (await client.get("/handlers/nobody")).status_code == 404


def test_the_example_of_every_handler_is_valid(parts: ServerRuntime) -> None:
    settings = Settings()
    catalogue = make_catalogue(BuiltinHandlers(settings, parts.env.clock, settings.data_dir))

    for entry in catalogue.entries():
        check = catalogue.checker(entry.name)
        if check is not None:
            check(httpx.Request("POST", "http://x", json=entry.example).content.decode())
        assert entry.example or entry.name == "test.echo", entry.name


async def test_security_3_commands_are_written_by_administrators_only(
    client: httpx.AsyncClient, make_key: MakeKey
) -> None:
    admin, editor, operator = await make_key("admin"), await make_key("editor"), await make_key("operator")
    made = await client.post("/jobs", json=SHELL | {"name": "backup"}, headers=admin)
    await client.post("/jobs", json={"handler": "h", "name": "other", "payload": SHELL["payload"]}, headers=editor)
    assert made.status_code == 201

    refused = [
        await client.post("/jobs", json=SHELL, headers=editor),
        await client.post("/jobs/bulk", json={"jobs": [SHELL, SHELL]}, headers=editor),
        await client.post("/jobs/bulk", json={"jobs": [SHELL | {"name": "x"}, GOOD]}, headers=editor),
        await client.patch("/jobs/backup", json={"payload": {"command": "rm"}}, headers=editor),
        await client.patch("/jobs/other", json={"handler": "shell.command"}, headers=editor),
        await client.post("/jobs/backup/duplicate", json={"payload": {"command": "rm"}}, headers=editor),
        await client.post("/jobs/backup/duplicate", headers=editor),
        await client.post("/jobs/backup/trigger", json={"payload": {"command": "rm"}}, headers=editor),
    ]
    each = await client.post("/jobs/bulk", json={"jobs": [SHELL, GOOD], "mode": "per_item"}, headers=editor)

    assert [(response.status_code, response.json()["code"]) for response in refused] == [(403, "forbidden")] * 8
    assert [item["status"] for item in each.json()["results"]] == ["failed", "created"]
    assert (await client.patch("/jobs/backup", json={"priority": 9}, headers=editor)).status_code == 200
    assert (await client.post("/jobs/backup/trigger", headers=operator)).status_code == 202
    assert (await client.patch("/jobs/backup", json={"payload": {"command": "x"}}, headers=admin)).status_code == 200


async def test_security_3_retrying_a_command_with_another_payload_needs_an_administrator(
    client: httpx.AsyncClient, make_key: MakeKey
) -> None:
    admin, editor = await make_key("admin"), await make_key("editor")
    job = (await client.post("/jobs", json=SHELL, headers=admin)).json()
    url = f"/executions/{job['execution_id']}"
    await client.post(f"{url}/cancel", headers=admin)

    changed = await client.post(f"{url}/retry", json={"payload": {"command": "rm"}}, headers=editor)
    same = await client.post(f"{url}/retry", headers=editor)

    assert (changed.status_code, same.status_code) == (403, 202)


SHELL_JOB = SHELL | {"name": "backup", "queue": "ops"}
PLANTED = {"command": "id", "args": ["--", "root"]}


async def run_of(store: Store, execution: str) -> tuple[str, dict[str, Any]]:
    """Claim the ready execution and let it succeed; returns its handler and payload."""
    claims = {
        format_execution_id(each.id): each for each in await claim_all(store, handlers=["shell.command", "test.echo"])
    }
    await store.executions.finish_succeeded([found(claimed) for claimed in claims.values()])
    return claims[execution].handler, json.loads(claims[execution].payload)


async def test_security_3_an_editor_cannot_put_a_payload_under_a_queued_command(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store
) -> None:
    """A payload that is edited in while the command waits in a paused queue is not what the command runs."""
    admin, editor = await make_key("admin"), await make_key("editor")
    assert (await client.post("/jobs", json=SHELL_JOB, headers=admin)).status_code == 201
    await client.post("/queues/ops/pause", json={}, headers=editor)
    triggered = (await client.post("/jobs/backup/trigger", json={}, headers=editor)).json()["id"]

    swapped = await client.patch("/jobs/backup", json={"handler": "test.echo", "payload": PLANTED}, headers=editor)
    renamed = await client.patch("/jobs/backup", json={"handler": "test.echo"}, headers=editor)

    assert [(each.status_code, each.json()["code"]) for each in (swapped, renamed)] == [(403, "forbidden")] * 2
    # An edit by an administrator does not reach a queued execution either.
    edited = await client.patch("/jobs/backup", json={"handler": "test.echo", "payload": PLANTED}, headers=admin)
    assert edited.status_code == 200
    await client.post("/queues/ops/resume", json={}, headers=editor)
    assert await run_of(store, triggered) == ("shell.command", SHELL["payload"])
    shown = (await client.get(f"/executions/{triggered}", headers=editor)).json()
    assert (shown["handler"], shown["payload"]) == ("shell.command", SHELL["payload"])


async def test_security_3_a_retry_is_judged_by_the_handler_that_runs_it(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store
) -> None:
    """The job had another handler when its old run ended, and has a command now."""
    admin, editor = await make_key("admin"), await make_key("editor")
    await client.post("/jobs", json={"handler": "test.echo", "name": "nightly"}, headers=editor)
    run = (await client.post("/jobs/nightly/trigger", headers=editor)).json()["id"]
    await run_of(store, run)
    await client.patch("/jobs/nightly", json=SHELL, headers=admin)

    refused = [
        await client.post(f"/executions/{run}/retry", json={"payload": PLANTED}, headers=editor),
        await client.post("/jobs/nightly/retry", json={"payload": PLANTED}, headers=editor),
    ]
    as_it_is = await client.post(f"/executions/{run}/retry", headers=editor)

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 2
    assert await run_of(store, as_it_is.json()["id"]) == ("shell.command", SHELL["payload"])


@pytest.mark.parametrize("way", ["execution", "job", "operation", "operation on jobs", "dead letters"])
async def test_security_3_a_planted_payload_is_not_carried_over_to_a_command(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store, way: str
) -> None:
    """An editor triggers a harmless job with a payload; the job becomes a command; an operator retries that run."""
    admin, editor, operator = await make_key("admin"), await make_key("editor"), await make_key("operator")
    manual = {"handler": "test.echo", "name": "nightly", "schedule": "manual"}
    await client.post("/jobs", json=manual, headers=editor)
    made = await client.post("/jobs/nightly/trigger", json={"payload": PLANTED}, headers=editor)
    run = made.json()["id"]
    if way == "dead letters":
        (claimed,) = await claim_all(store, handlers=["test.echo"])
        await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])
    else:
        assert await run_of(store, run) == ("test.echo", PLANTED)
    await client.patch("/jobs/nightly", json=SHELL, headers=admin)

    url, body = {
        "execution": (f"/executions/{run}/retry", {}),
        "job": ("/jobs/nightly/retry", {}),
        "operation": ("/executions/bulk", {"action": "retry", "ids": [run]}),
        "operation on jobs": ("/jobs/bulk/retry", {"ids": ["nightly"]}),
        "dead letters": ("/dead-letter/retry", {"ids": [run]}),
    }[way]
    answer = await client.post(url, json=body, headers=operator)

    if way in ("execution", "job"):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "its job runs shell.command now" in answer.json()["detail"]
    else:
        assert answer.is_success, answer.text
    assert await claim_all(store, handlers=["shell.command", "test.echo"]) == []


async def test_security_14_creating_and_draining_is_audited_with_who_and_where(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store
) -> None:
    editor, admin = await make_key("editor"), await make_key("admin")
    node = await make_node(store)
    payload = {"url": "https://example.com", "headers": {"Authorization": "Bearer hunter2"}}
    await client.post("/jobs", json={"handler": "http.webhook", "name": "a", "payload": payload}, headers=editor)
    await client.post("/jobs", json={"handler": "h"}, headers=editor)
    await client.post("/jobs/bulk", json={"jobs": [{"handler": "h"}, {"handler": "h"}]}, headers=editor)
    await client.post("/jobs/bulk", json={"jobs": [{"handler": "h", "name": "n"}, {"handler": "i"}]}, headers=editor)
    await client.post(f"/workers/{node}/drain", json={"reason": "new release"}, headers=admin)

    rows = (await client.get("/audit", headers=admin)).json()["data"]
    rows = [row for row in rows if not row["action"].startswith("key.")]

    assert sorted((row["action"], row["reason"] or "") for row in rows) == [
        ("job.create", ""),
        ("job.create", ""),
        ("job.create", ""),
        ("node.drain", "new release"),
    ]
    (single,) = [row for row in rows if row["subject"].startswith("job:")]
    assert single["after"]["name"] == "a"
    assert sum(row["subject"] == "2 jobs" for row in rows) == 2
    assert all(row["actor"].endswith((" editor", " admin")) for row in rows)
    assert {row["place"] for row in rows} == {"http 127.0.0.1"}
    async with store.database.connection() as connection:
        assert "hunter2" not in await connection.fetchval("SELECT string_agg(a::text, '') FROM timeball.audit a")
