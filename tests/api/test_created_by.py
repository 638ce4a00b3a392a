"""Jobs and executions name their author in responses, searches and exports; dangerous one-offs are audited."""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.factories import HANDLER, claim_all, found, make_job, make_owner, make_recurring, promote_due
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.application.commands.requests import current_program
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import format_job_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
SHELL = {"handler": "shell.command", "payload": {"command": "id"}}
CLEANUP = {"handler": "system.cleanup", "payload": {"older_than_days": 30}}


async def test_a_job_names_the_key_that_created_it(client: httpx.AsyncClient, make_key: MakeKey) -> None:
    admin, editor = await make_key("admin"), await make_key("editor")
    await client.post("/jobs", json={"handler": "h", "name": "mine"}, headers=editor)
    await client.patch("/jobs/mine", json={"priority": 3}, headers=admin)
    await client.post("/jobs", json={"handler": "h", "name": "other"}, headers=admin)
    bulk = {"jobs": [{"handler": "h", "payload": {"n": number}} for number in range(3)]}
    await client.post("/jobs/bulk", json=bulk, headers=editor)
    await client.post(
        "/jobs/bulk", json={"jobs": [{"handler": "h", "scheduled_at": "2030-01-01T00:00Z"}] * 2}, headers=editor
    )

    mine = (await client.get("/jobs/mine", headers=admin)).json()

    author = mine["created_by"]
    assert author.startswith("key:")
    assert author.endswith(" editor")
    for q in (
        f'created_by:"{author}"',
        "created_by:editor",
        f"created_by:{author.partition(' ')[0]}",
        "created_by:*edi*",
    ):
        answer = await client.get("/jobs", params={"q": q}, headers=admin)
        assert (len(answer.json()["data"]), {job["created_by"] for job in answer.json()["data"]}) == (6, {author}), q
    revisions = (await client.get("/jobs/mine/revisions", headers=admin)).json()["data"]
    assert {entry["action"]: entry["actor"] for entry in revisions}["job.create"] == author


async def test_an_execution_names_the_key_that_requested_it(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store, clock: VirtualClock
) -> None:
    admin, editor, operator = await make_key("admin"), await make_key("editor"), await make_key("operator")
    job = await make_recurring(store, 60, name="beat", overlap="allow")
    start = clock.now()
    clock.advance("60s")
    await promote_due(store, await make_owner(store))
    enqueued = (await client.post("/jobs", json={"handler": HANDLER}, headers=admin)).json()["execution_id"]
    triggered = (await client.post("/jobs/beat/trigger", headers=operator)).json()["id"]
    await store.executions.finish_succeeded([found(claimed) for claimed in await claim_all(store)])
    retried = (await client.post(f"/executions/{triggered}/retry", headers=operator)).json()["id"]
    again = await client.post("/executions/bulk", json={"action": "retry", "ids": [enqueued]}, headers=operator)
    bulk = again.json()["results"][0]["execution_id"]
    again = {"from": start.isoformat(), "only": "all"}
    await client.post("/jobs/beat/backfill", json=again, headers=editor)
    await OperationLoop(Commands(store, store.env), store.env.new_id()).round()
    listed = (await client.get("/executions", params={"q": "origin:backfill"}, headers=admin)).json()["data"]
    filled = [each["id"] for each in listed]

    async def author(execution: str) -> str | None:
        one = (await client.get(f"/executions/{execution}", headers=admin)).json()
        (many,) = [
            each for each in (await client.get("/executions", headers=admin)).json()["data"] if each["id"] == execution
        ]
        assert one["created_by"] == many["created_by"]
        return None if one["created_by"] is None else one["created_by"].partition(" ")[2]

    assert await author(enqueued) == "admin"
    assert {await author(each) for each in (triggered, retried, bulk)} == {"operator"}
    assert [await author(each) for each in filled] == ["editor"]
    found_by = await client.get("/executions", params={"q": "created_by:operator"}, headers=admin)
    assert {triggered, retried, bulk} == {each["id"] for each in found_by.json()["data"]}
    by_admin = await client.get("/executions", params={"q": "created_by:admin"}, headers=admin)
    assert [each["id"] for each in by_admin.json()["data"]] == [enqueued]
    scheduled = await client.get("/executions", params={"q": "origin:schedule"}, headers=admin)
    assert {each["created_by"] for each in scheduled.json()["data"]} == {None}
    assert format_job_id(job.id) in {each["job_id"] for each in scheduled.json()["data"]}


async def test_a_program_is_the_author_of_its_jobs(client: httpx.AsyncClient, store: Store) -> None:
    """By an enqueue, by a definition, and by the API of the same process without keys."""
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="h"))
    assert prepared is not None
    (created,) = await commands.jobs.enqueue(prepared, ["{}"])
    many = await commands.jobs.enqueue_many(JobSpec(handler="h"), ["{}"] * 3)
    named = await commands.jobs.create(JobSpec(handler="h", name="named"))
    local = (await client.post("/jobs", json={"handler": "h"})).json()

    jobs = await store.jobs.find([created.job_id, *many, named.job_id])  # type: ignore[list-item]

    assert {job.created_by for job in jobs.values()} == {current_program()}
    assert current_program().startswith("program:")
    assert (local["created_by"], len(jobs)) == ("local", 5)


async def test_exports_name_the_author(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a", "schedule": "manual"})
    await client.post("/jobs/a/trigger")

    for path in ("/jobs/export", "/executions/export"):
        text = (await client.get(path)).text
        assert [row["created_by"] for row in csv.DictReader(io.StringIO(text))] == ["local"], path


async def test_system_cleanup_is_for_administrators(client: httpx.AsyncClient, make_key: MakeKey) -> None:
    admin, editor = await make_key("admin"), await make_key("editor")

    refused = await client.post("/jobs", json=CLEANUP, headers=editor)

    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await client.post("/jobs", json=CLEANUP, headers=admin)).status_code == 201


@pytest.mark.parametrize("job", [SHELL, CLEANUP], ids=["command", "cleanup"])
async def test_security_14_a_one_off_of_an_administrators_handler_is_audited(
    client: httpx.AsyncClient, make_key: MakeKey, store: Store, job: dict[str, Any]
) -> None:
    admin = await make_key("admin")
    one = (await client.post("/jobs", json=job, headers=admin)).json()
    later = (await client.post("/jobs", json=job | {"scheduled_at": "2030-01-01T00:00Z"}, headers=admin)).json()
    commands = Commands(store, store.env)
    local = await commands.jobs.create(JobSpec(**job))
    await commands.jobs.enqueue_many(JobSpec(handler=job["handler"]), ['{"command": "id"}'] * 2)
    assert commands.jobs.prepared_job(JobSpec(**job)) is None, "a program's own enqueues do not go past the audit"

    rows = (await client.get("/audit", headers=admin)).json()["data"]

    noted = {
        row["subject"]: row["actor"].partition(" ")[2] or row["actor"] for row in rows if row["action"] == "job.create"
    }
    ids = {format_job_id(job.id): f"job:{job.id}" for job in (await store.jobs.find([local.job_id])).values()}
    assert {noted[subject] for subject in ids.values()} == {"local"}
    assert noted["2 jobs"] == "local"
    assert list(noted.values()).count("admin") == 2
    assert one["created_by"] == later["created_by"]


async def test_an_enqueue_of_anything_else_is_not_audited(client: httpx.AsyncClient, store: Store) -> None:
    await client.post("/jobs", json={"handler": "h"})
    await make_job(store)

    assert (await client.get("/audit")).json()["data"] == []
