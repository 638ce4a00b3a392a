"""Templates over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.api.test_conventions import check_problem
from tests.support.factories import table
from timeball.domain.values.redaction import REDACTED
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
JOB: dict[str, Any] = {
    "handler": "http.webhook",
    "payload": {"url": "https://example.com/{{path}}", "json": {"n": "{{number}}"}},
    "tags": ["report"],
    "priority": 75,
}


async def kept(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/templates", json={"name": "report", "job": JOB} | fields)
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_template_is_stored_and_found_by_id_and_name(client: httpx.AsyncClient) -> None:
    made = await client.post("/templates", json={"name": "report", "description": "d", "job": JOB})

    document = made.json()
    assert document.pop("warnings") == []
    assert (document["job"], document["variables"], document["version"]) == (JOB, ["number", "path"], 1)
    assert document["id"].startswith("tpl_")
    assert (made.headers["etag"], made.headers["location"]) == ('"1"', f"/api/v1/templates/{document['id']}")
    for reference in (document["id"], "report"):
        assert (await client.get(f"/templates/{reference}")).json() == document
    check_problem(await client.get("/templates/nobody"), 404, "not_found")
    check_problem(await client.post("/templates", json={"name": "report", "job": JOB}), 409, "conflict")


async def test_a_template_creates_jobs_with_other_values(client: httpx.AsyncClient) -> None:
    await kept(client)

    used = await client.post(
        "/templates/report/use",
        json={"scheduled_at": "2099-01-01T00:00:00Z", "priority": 5, "variables": {"path": "a", "number": 7}},
    )

    job = used.json()
    assert used.status_code == 201
    assert job["payload"] == {"url": "https://example.com/a", "json": {"n": 7}}
    assert (job["kind"], job["priority"], job["tags"]) == ("once", 5, ["report"])
    assert job["execution_id"].startswith("exe_")


async def test_using_a_template_needs_all_its_variables(client: httpx.AsyncClient) -> None:
    await kept(client)

    missing = await client.post("/templates/report/use", json={"variables": {"path": "a"}})
    surplus = await client.post("/templates/report/use", json={"variables": {"path": "a", "number": 1, "x": 1}})
    unfit = await client.post("/templates/report/use", json={"payload": {"url": "{{path}}"}, "variables": {"path": 7}})

    assert [response.status_code for response in (missing, surplus, unfit)] == [422] * 3
    assert unfit.json()["errors"][0]["pointer"] == "/payload/url"


async def test_a_template_is_checked_like_a_job(client: httpx.AsyncClient) -> None:
    bad_payload = await client.post("/templates", json={"name": "a", "job": {"handler": "http.webhook"}})
    bad_schedule = await client.post(
        "/templates", json={"name": "a", "job": {"handler": "h", "schedule": "0 25 * * *"}}
    )
    no_handler = await client.post("/templates", json={"name": "a", "job": {}})

    assert bad_payload.json()["errors"][0]["pointer"] == "/job/payload/url"
    assert bad_schedule.json()["errors"][0]["pointer"] == "/job/schedule"
    assert no_handler.json()["errors"][0]["pointer"] == "/job/handler"


async def test_a_change_for_an_outdated_version_is_refused(client: httpx.AsyncClient) -> None:
    await kept(client)

    changed = await client.patch("/templates/report", json={"description": "new"}, headers={"If-Match": '"1"'})
    stale = await client.put("/templates/report", json={"name": "other"}, headers={"If-Match": '"1"'})
    not_deleted = await client.delete("/templates/report", headers={"If-Match": '"1"'})

    assert (changed.json()["description"], changed.json()["job"], changed.headers["etag"]) == ("new", JOB, '"2"')
    check_problem(stale, 412, "precondition_failed")
    check_problem(not_deleted, 412, "precondition_failed")
    renamed = await client.put("/templates/report", json={"name": "other", "job": {"handler": "h"}})
    assert (renamed.json()["name"], renamed.json()["job"]) == ("other", {"handler": "h"})
    assert (await client.delete("/templates/other")).status_code == 204
    check_problem(await client.get("/templates/other"), 404, "not_found")


async def test_templates_are_listed_by_name_page_by_page(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await kept(client, name=name)

    first = (await client.get("/templates", params={"limit": 2})).json()
    second = (await client.get("/templates", params={"limit": 2, "cursor": first["next_cursor"]})).json()

    assert [template["name"] for template in first["data"] + second["data"]] == ["a", "b", "c"]
    assert (first["has_more"], second["has_more"]) == (True, False)


async def test_secrets_in_templates_are_hidden_and_changes_audited(client: httpx.AsyncClient, store: Store) -> None:
    job = {"handler": "h", "payload": {"token": "hunter2", "ref": {"$secret": "A"}}}
    shown = await kept(client, job=job)
    await client.patch("/templates/report", json={"description": "d"})
    await client.post("/templates/report/use", json={"name": "made"})
    await client.delete("/templates/report")

    audit = (await client.get("/audit")).text

    assert shown["job"]["payload"] == {"token": REDACTED, "ref": {"$secret": "A"}}
    assert sorted(row["action"] for row in (await client.get("/audit")).json()["data"]) == [
        "job.create",
        "template.create",
        "template.delete",
        "template.update",
    ]
    assert "hunter2" not in audit + str(await table(store, "audit"))
    check_problem(await client.post("/templates", json={"name": "x", "job": shown["job"]}), 422, "invalid_payload")


async def test_security_3_templates_of_commands_are_for_administrators(
    client: httpx.AsyncClient, make_key: MakeKey
) -> None:
    admin, editor = await make_key("admin"), await make_key("editor")
    shell = {"name": "backup", "job": {"handler": "shell.command", "payload": {"command": "backup.sh"}}}
    open_shell = {"name": "any", "job": {"handler": "shell.command", "payload": {"command": "{{program}}"}}}

    assert (await client.post("/templates", json=shell, headers=editor)).status_code == 403
    assert (await client.post("/templates", json=open_shell, headers=editor)).status_code == 403
    assert (await client.post("/templates", json=shell, headers=admin)).status_code == 201
    assert (
        await client.post("/templates", json={"name": "t", "job": {"handler": "h"}}, headers=editor)
    ).status_code == 201

    into = {"handler": "shell.command", "payload": {"command": "rm"}}
    assert (await client.post("/templates/backup/use", headers=editor)).status_code == 403
    assert (await client.post("/templates/t/use", json=into, headers=editor)).status_code == 403
    assert (await client.patch("/templates/t", json={"job": into}, headers=editor)).status_code == 403
    assert (await client.patch("/templates/backup", json={"job": {"handler": "h"}}, headers=editor)).status_code == 403
    assert (await client.post("/templates/backup/use", headers=admin)).status_code == 201
