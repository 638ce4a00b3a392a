"""Calls that follow a run, over HTTP: on jobs and triggers, and how executions show them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.api.test_handler_contracts import GOOD, declared, publish
from tests.support.factories import FAILURE, claim_all, found, record
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.values.ids import format_execution_id
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
SHELL = {"handler": "shell.command", "payload": {"command": "id"}}
TELL = {"handler": "tell", "payload": {"error": {"$cause": "error"}}, "queue": "alerts"}


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/jobs", json={"handler": "work", **fields})
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_failure_is_followed_and_both_runs_are_linked(client: httpx.AsyncClient, store: Store) -> None:
    job = await created(client, on_failure=TELL, meta={"tenant": "acme"})
    (claimed,) = await claim_all(store, handlers=["work"])

    await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])

    cause = (await client.get(f"/executions/{job['execution_id']}")).json()
    (following,) = cause["followed_by"]
    shown = (await client.get(f"/executions/{following}")).json()
    assert (shown["follows"], shown["queue"], shown["state"]) == (job["execution_id"], "alerts", "queued")
    assert (shown["payload"], shown["resolved"]["payload"]) == (TELL["payload"], TELL["payload"])
    assert shown["meta"] == {"tenant": "acme"}
    assert (cause["follows"], shown["followed_by"]) == (None, [])
    assert job["on_failure"].items() >= {**TELL, "max_retries": 3}.items()


async def test_a_call_has_the_options_of_its_handler_s_contract(client: httpx.AsyncClient, store: Store) -> None:
    await publish(store, declared(priority=80, queue="pay"))
    call = GOOD

    job = await created(client, name="shop", schedule="manual", on_success={**call, "queue": "own"})
    changed = await client.patch("/jobs/shop", json={"on_failure": call})
    refused = await client.post("/jobs", json={"handler": "work", "on_success": {**call, "payload": {"x": 1}}})

    assert (job["on_success"]["priority"], job["on_success"]["queue"]) == (80, "own")
    assert changed.json()["on_failure"]["queue"] == "pay"
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"].startswith("/on_success/")


async def test_a_trigger_takes_calls_of_an_editor(client: httpx.AsyncClient, store: Store, make_key: MakeKey) -> None:
    editor, operator = await make_key("editor"), await make_key("operator")
    await client.post("/jobs", json={"handler": "work", "name": "w", "schedule": "manual"}, headers=editor)

    refused = await client.post("/jobs/w/trigger", json={"on_success": TELL}, headers=operator)
    wrong = await client.post("/jobs/w/trigger", json={"on_success": TELL}, headers=editor)
    taken = await client.post("/jobs/w/trigger", json={"on_failure": TELL}, headers=editor)
    (claimed,) = await claim_all(store, handlers=["work"])
    await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])

    assert (refused.status_code, wrong.status_code, taken.status_code) == (403, 422, 202)
    assert "expected result or execution_id" in wrong.json()["detail"]
    shown = (await client.get(f"/executions/{taken.json()['id']}", headers=editor)).json()
    assert len(shown["followed_by"]) == 1


async def test_a_retry_by_hand_is_followed_by_its_own_end(client: httpx.AsyncClient, store: Store) -> None:
    job = await created(client, on_failure=TELL, on_success={"handler": "tell"})
    (claimed,) = await claim_all(store, handlers=["work"])
    await record(store, [found(claimed, Failed(FAILURE, is_retryable=False))])

    retried = await client.post(f"/executions/{job['execution_id']}/retry")
    (claimed,) = await claim_all(store, handlers=["work"])
    await record(store, [found(claimed, Succeeded())])

    assert format_execution_id(claimed.id) == retried.json()["id"]
    shown = (await client.get(f"/executions/{retried.json()['id']}")).json()
    assert (len(shown["followed_by"]), shown["follows"]) == (1, None)


async def test_only_an_administrator_lets_a_command_follow(client: httpx.AsyncClient, make_key: MakeKey) -> None:
    admin, editor = await make_key("admin"), await make_key("editor")
    body = {"handler": "work", "name": "w", "schedule": "manual"}
    nested = {"handler": "tell", "payload": {}, "on_failure": SHELL}

    made = await client.post("/jobs", json=body, headers=editor)
    refused = [
        await client.post("/jobs", json={**body, "name": "x", "on_success": nested}, headers=editor),
        await client.patch("/jobs/w", json={"on_failure": SHELL}, headers=editor),
        await client.post("/jobs/w/trigger", json={"on_success": nested}, headers=editor),
        await client.post("/jobs/bulk", json={"jobs": [{"handler": "a", "on_success": SHELL}]}, headers=editor),
    ]
    allowed = await client.patch("/jobs/w", json={"on_failure": SHELL}, headers=admin)

    assert made.status_code == 201
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 4
    assert allowed.status_code == 200
    assert (await client.patch("/jobs/w", json={"priority": 9}, headers=editor)).status_code == 200


async def test_secrets_in_calls_are_hidden_and_confined(
    client: httpx.AsyncClient, store: Store, make_key: MakeKey
) -> None:
    editor = await make_key("editor")
    call = {"handler": "tell", "payload": {"password": "hunter2", "key": {"$secret": "K"}}}

    made = await client.post("/jobs", json={"handler": "work", "on_success": call}, headers=editor)
    (claimed,) = await claim_all(store, handlers=["work"])
    await record(store, [found(claimed, Succeeded())])

    shown = (await client.get(f"/jobs/{made.json()['id']}", headers=editor)).json()["on_success"]
    assert "hunter2" not in str(shown)
    assert "bound_secrets_only" not in shown
    rows = await store.database.fetch("find_jobs", ids=[claimed.job_id])
    following = await store.follow_ups.links(claimed.id, claimed.job_id)
    (job,) = await store.database.fetch("find_jobs", ids=list(following.followed_by))
    assert (rows[0]["bound_secrets_only"], job["bound_secrets_only"]) == (False, True)
    again = await client.patch(f"/jobs/{made.json()['id']}", json={"on_success": shown}, headers=editor)
    assert again.status_code == 422


@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        ({"on_success": "x"}, "/on_success", ""),
        ({"on_success": {"payload": {}}}, "/on_success/handler", "handler is missing"),
        ({"on_failure": {"handler": "h", "payload": {"a": {"$cause": "result"}}}}, "/on_failure/payload/a/$cause", "state"),
        ({"payload": {"a": {"$cause": "result"}}}, "/payload/a/$cause", "no run comes before this one"),
        ({"on_success": {"handler": "http.webhook", "payload": {"url": 3}}}, "/on_success/payload/url", "url"),
    ],
)  # fmt: skip
async def test_a_call_that_cannot_be_made_is_refused_with_a_pointer(
    client: httpx.AsyncClient, fields: dict[str, Any], pointer: str, detail: str
) -> None:
    response = await client.post("/jobs", json={"handler": "work", **fields})

    problem = response.json()
    assert response.status_code == 422
    assert problem["errors"][0]["pointer"] == pointer
    assert detail in problem["errors"][0]["detail"]
