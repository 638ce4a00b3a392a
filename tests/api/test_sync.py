"""Declared jobs, purged queues, and waiting for a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.api.test_conventions import check_problem
from tests.support.factories import claim_all, enqueue, found, make_job, record, table
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
DAILY: dict[str, Any] = {"name": "daily", "handler": "h", "schedule": "0 6 * * *"}
HOURLY: dict[str, Any] = {"name": "hourly", "handler": "h", "interval_seconds": 3600}


async def sync(client: httpx.AsyncClient, *jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await client.post("/jobs/sync", json={"jobs": list(jobs), **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def actions(document: dict[str, Any]) -> dict[str, str]:
    return {job["name"]: job["action"] for job in document["jobs"]}


async def test_declared_jobs_are_created_changed_or_left(client: httpx.AsyncClient) -> None:
    first = await sync(client, DAILY, HOURLY)
    again = await sync(client, DAILY, HOURLY)
    changed = await sync(client, DAILY | {"schedule": "0 7 * * *"}, HOURLY)

    assert actions(first) == {"daily": "create", "hourly": "create"}
    assert actions(again) == {"daily": "leave", "hourly": "leave"}
    assert actions(changed) == {"daily": "change", "hourly": "leave"}
    assert [(d["created"], d["changed"], d["left"], d["deleted"]) for d in (first, again, changed)] == [
        (2, 0, 0, 0),
        (0, 0, 2, 0),
        (0, 1, 1, 0),
    ]
    (daily,) = [job for job in changed["jobs"] if job["name"] == "daily"]
    assert daily["changes"] == {"schedule": {"before": "0 6 * * *", "after": "0 7 * * *"}}
    assert daily["next_before"][0].endswith("T06:00:00Z")
    assert daily["next_after"][0].endswith("T07:00:00Z")
    job = (await client.get("/jobs/daily")).json()
    assert (job["version"], job["declared_by"], job["id"]) == (2, "api", daily["id"])


async def test_a_manual_job_is_left_as_it_is_and_one_without_a_time_is_refused(client: httpx.AsyncClient) -> None:
    """A job with no time runs now: each sync would run it again."""
    by_hand = {"name": "by-hand", "handler": "h", "schedule": "manual"}
    first, again = await sync(client, by_hand), await sync(client, by_hand)

    refused = await client.post("/jobs/sync", json={"jobs": [{"name": "by-hand", "handler": "h"}]})

    assert (actions(first), actions(again)) == ({"by-hand": "create"}, {"by-hand": "leave"})
    check_problem(refused, 422, "invalid_input")
    assert "every sync would run it again" in refused.json()["detail"]
    assert '"schedule": "manual"' in refused.json()["hint"]


async def test_a_dry_run_shows_the_plan_and_does_nothing(client: httpx.AsyncClient) -> None:
    await sync(client, DAILY)

    planned = await sync(client, HOURLY, dry_run=True, prune=True)

    assert actions(planned) == {"hourly": "create", "daily": "delete"}
    assert [job["name"] for job in (await client.get("/jobs")).json()["data"]] == ["daily"]


async def test_prune_deletes_only_jobs_of_the_same_declaration(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="by hand")
    await sync(client, DAILY, HOURLY, declared_by="one")
    await sync(client, {"name": "other", "handler": "h", "schedule": "manual"}, declared_by="two")

    kept = await sync(client, DAILY, declared_by="one")
    pruned = await sync(client, DAILY, declared_by="one", prune=True)

    assert actions(kept) == {"daily": "leave"}
    assert actions(pruned) == {"daily": "leave", "hourly": "delete"}
    assert {job["name"] for job in (await client.get("/jobs")).json()["data"]} == {"daily", "other", "by hand"}


async def test_a_sync_with_an_invalid_job_changes_nothing(client: httpx.AsyncClient) -> None:
    for bad, pointer in (
        ({"name": "b", "handler": "h", "schedule": "0 25 * * *"}, "/jobs/1/schedule"),
        ({"handler": "h"}, "/jobs/1/name"),
        ({"name": "b", "handler": "h"}, "/jobs/1/schedule"),
        ({"name": "b", "handler": "http.webhook", "schedule": "manual"}, "/jobs/1/payload/url"),
        (DAILY, "/jobs/1/name"),
    ):
        response = await client.post("/jobs/sync", json={"jobs": [DAILY, bad]})

        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == pointer
    assert (await client.get("/jobs")).json()["data"] == []


async def test_security_3_commands_are_declared_by_administrators_only(
    client: httpx.AsyncClient, make_key: MakeKey
) -> None:
    editor = await make_key("editor")
    shell = {"name": "x", "handler": "shell.command", "payload": {"command": "a"}, "schedule": "manual"}

    check_problem(await client.post("/jobs/sync", json={"jobs": [shell]}, headers=editor), 403, "forbidden")


async def test_purging_a_queue_needs_its_name_as_confirmation(client: httpx.AsyncClient, store: Store) -> None:
    ours = [await enqueue(store, queue="mail") for _ in range(3)]
    theirs = await enqueue(store, queue="other")
    limited = await make_job(store, name="limited", queue="mail", max_running=1)
    for _ in range(2):
        await client.post(f"/jobs/{limited.id}/trigger")

    check_problem(await client.post("/queues/mail/purge", json={"confirm": "Mail"}), 422, "invalid_input")
    purged = await client.post("/queues/mail/purge", json={"confirm": "mail", "reason": "sent twice"})

    assert purged.json() == {"queue": "mail", "cancelled": 5}
    for execution in ours:
        document = (await client.get(f"/executions/{execution}")).json()
        assert (document["state"], document["reason"]) == ("cancelled", "sent twice")
    assert (await client.get(f"/executions/{theirs}")).json()["state"] == "queued"
    notes = [row for row in await table(store, "audit") if row["action"] == "queue.purge"]
    assert [(row["subject"], row["reason"]) for row in notes] == [("queue:mail", "sent twice")]


async def test_a_run_can_be_waited_for(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_job(store, name="a")

    waiting = asyncio.create_task(client.post("/jobs/a/trigger", params={"wait": "60s"}))
    while not (claims := await claim_all(store)):
        await asyncio.sleep(0.01)
    await record(store, [found(claim) for claim in claims])
    done = await waiting
    impatient = await client.post("/jobs/a/trigger", params={"wait": "50ms"})
    again = await client.post(f"/executions/{done.json()['id']}/retry", params={"wait": "0s"})

    assert (done.status_code, done.json()["state"]) == (200, "succeeded")
    assert (impatient.status_code, impatient.json()["state"]) == (202, "queued")
    assert again.status_code == 202
    before = len((await client.get(f"/jobs/{job.id}/executions")).json()["data"])
    for wrong in ("2m", "soon", "-1s"):
        assert (await client.post("/jobs/a/trigger", params={"wait": wrong})).status_code == 422
    assert len((await client.get(f"/jobs/{job.id}/executions")).json()["data"]) == before
