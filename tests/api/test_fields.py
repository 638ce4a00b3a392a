"""Selected fields, expansions, attempts and revisions."""

from __future__ import annotations

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import (
    FAILURE,
    claim_all,
    enqueue,
    found,
    make_job,
    make_owner,
    make_recurring,
    promote_due,
    put_row,
    record,
)
from timeball.domain.execution import Failed
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def test_fields_selects_the_fields_of_a_response(client: httpx.AsyncClient, store: Store) -> None:
    await make_recurring(store, name="a")

    jobs = (await client.get("/jobs", params={"fields": "id,name"})).json()
    job = (await client.get("/jobs/a", params={"fields": "status, queue"})).json()
    executions = (await client.get("/executions", params={"fields": "state"})).json()
    of_job = (await client.get("/jobs/a/executions", params={"fields": "state"})).json()
    execution_id = (await client.get("/executions")).json()["data"][0]["id"]
    execution = (await client.get(f"/executions/{execution_id}", params={"fields": "timeline"})).json()

    assert [set(item) for item in jobs["data"]] == [{"id", "name"}]
    assert jobs["has_more"] is False
    assert job == {"status": "active", "queue": "default"}
    assert executions["data"] == of_job["data"] == [{"state": "scheduled"}]
    assert set(execution) == {"timeline"}


async def test_expand_adds_jobs_attempts_and_next_times(client: httpx.AsyncClient, store: Store) -> None:
    await make_recurring(store, every=60, name="a")

    job = (await client.get("/jobs/a", params={"expand": "next", "fields": "name"})).json()
    listed = (await client.get("/jobs", params={"expand": "next"})).json()["data"][0]
    (execution,) = (await client.get("/executions", params={"expand": "job,attempts"})).json()["data"]
    single = (await client.get(f"/executions/{execution['id']}", params={"expand": "job"})).json()

    assert set(job) == {"name", "next"}
    assert [time["at"] for time in job["next"]] == [f"2026-03-02T12:0{minute}:00Z" for minute in range(1, 6)]
    assert listed["next"] == job["next"]
    assert (execution["job"]["name"], execution["attempts"]) == ("a", [])
    assert single["job"]["name"] == "a"


@pytest.mark.parametrize("query", ["fields=nme", "fields=", "fields=%00", "expand=payload", "expand=next,x"])
async def test_an_unknown_field_is_refused(client: httpx.AsyncClient, query: str) -> None:
    problem = check_problem(await client.get(f"/jobs?{query}"), 422, "invalid_input")

    assert "expected some of" in problem["detail"]


async def test_every_attempt_is_listed(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    execution = await enqueue(store, max_retries=2)
    (first,) = await claim_all(store)
    await record(store, [found(first, Failed(FAILURE))])
    clock.advance("1h")
    await promote_due(store, await make_owner(store))
    (second,) = await claim_all(store)
    running = (await client.get(f"/executions/{execution}/attempts")).json()["data"]
    await record(store, [found(second)])

    ended = (await client.get(f"/executions/{execution}/attempts")).json()["data"]

    assert [(one["number"], one["outcome"], one["error_type"]) for one in running] == [
        (1, "failed", "ValueError"),
        (2, "running", None),
    ]
    assert running[1]["finished_at"] is None
    assert [(one["number"], one["outcome"]) for one in ended] == [(1, "failed"), (2, "succeeded")]
    check_problem(await client.get("/executions/nobody/attempts"), 404, "not_found")


async def test_revisions_show_the_changes_of_a_job(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    await make_job(store, name="a", schedule="0 3 * * *", payload={"password": "canary", "x": 1})
    clock.advance("1m")
    await client.patch("/jobs/a", json={"schedule": "0 4 * * *", "priority": 60})
    clock.advance("1m")
    await client.patch("/jobs/a", json={"payload": {"password": "canary-2", "x": 2}})
    clock.advance("1m")
    await client.post("/jobs/a/trigger", json={})
    clock.advance("1m")
    await client.post("/jobs/a/pause", json={"reason": "maintenance"})

    response = await client.get("/jobs/a/revisions")
    first_page = (await client.get("/jobs/a/revisions", params={"limit": 1})).json()

    paused, payload, edited, created = response.json()["data"]
    assert (paused["action"], paused["reason"], paused["actor"]) == ("job.pause", "maintenance", "local")
    assert {change["field"] for change in edited["changes"]} == {"schedule", "priority"}
    assert {"field": "schedule", "before": "0 3 * * *", "after": "0 4 * * *"} in edited["changes"]
    assert (edited["version"], edited["effective_from"]) == (2, "2026-03-02T12:01:00Z")
    (change,) = payload["changes"]
    assert (change["before"]["x"], change["after"]["x"]) == (1, 2)
    assert "canary" not in response.text
    assert (created["action"], created["version"]) == ("job.create", 1)
    assert created["effective_until"] == edited["effective_from"]
    assert first_page["has_more"]
    assert [one["action"] for one in first_page["data"]] == ["job.pause"]


async def test_secrets_in_old_audit_records_are_hidden(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_job(store, name="a")
    sides = {"before": '{"payload": {"password": "canary"}}', "after": '{"payload": {"password": "canary-2"}}'}
    when = {"id": store.env.new_id(), "at": store.env.clock.now()}
    await put_row(store, "audit", **when, actor="ana", action="job.update", subject=f"job:{job.id}", **sides)

    response = await client.get("/jobs/a/revisions")

    assert response.json()["data"][0]["changes"][0]["field"] == "payload"
    assert "canary" not in response.text
