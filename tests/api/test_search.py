"""`q=`: one search language for jobs and executions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.factories import FAILURE, claim_all, found, make_job, record
from timeball.application.commands import Commands
from timeball.domain.execution import Failed
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

Names = set[str | None]


async def names(client: httpx.AsyncClient, q: str) -> Names:
    answer = await client.get("/jobs", params={"q": q})
    assert answer.status_code == 200, answer.text
    return {job["name"] for job in answer.json()["data"]}


@pytest.fixture
async def some_jobs(client: httpx.AsyncClient) -> None:
    """Jobs that differ in every field of the search."""
    for job in (
        {"name": "daily_report", "schedule": "0 9 * * *", "queue": "reports", "tags": ["billing"], "priority": 80},
        {
            "name": "Receipts",
            "handler": "app.mail:send",
            "queue": "mail",
            "payload": {"user": {"id": 42}},
            "meta": {"tenant": "acme"},
        },
        {"name": "sync%crm", "interval_seconds": 60, "queue": "mail", "tags": ["test", "crm"]},
    ):
        answer = await client.post("/jobs", json={"handler": "test.echo", **job})
        assert answer.status_code == 201, answer.text


JOB_SEARCHES: list[tuple[str, Names]] = [
    ("", {"daily_report", "Receipts", "sync%crm"}),
    ("queue:mail", {"Receipts", "sync%crm"}),
    ("queue:mail,reports -tag:test", {"Receipts", "daily_report"}),
    ("queue:m*", {"Receipts", "sync%crm"}),
    ("handler:app.mail:*", {"Receipts"}),
    ("receipt", {"Receipts"}),
    ("y_r", {"daily_report"}),
    ("c%c", {"sync%crm"}),
    ("tag:crm", {"sync%crm"}),
    ("tag:b*", {"daily_report"}),
    ("kind:cron,every", {"daily_report", "sync%crm"}),
    ("priority:>60", {"daily_report"}),
    ("payload.user.id:42", {"Receipts"}),
    ("-payload.user.id:42", {"daily_report", "sync%crm"}),
    ("meta.tenant:acme", {"Receipts"}),
    ("-meta.tenant:a*", {"daily_report", "sync%crm"}),
    ("status:active", {"daily_report", "Receipts", "sync%crm"}),
    ("status:paused", set()),
    ("status:scheduled name:daily*", {"daily_report"}),
    ("after:-1h", {"daily_report", "Receipts", "sync%crm"}),
    ("before:-1h", set()),
    ("name:RECEIPTS", set()),
    ("name:receipt*", {"Receipts"}),
]


async def test_jobs_are_found_by_their_fields(client: httpx.AsyncClient, some_jobs: None) -> None:
    assert [(q, await names(client, q)) for q, _ in JOB_SEARCHES] == JOB_SEARCHES


@pytest.fixture
async def some_executions(store: Store, clock: VirtualClock) -> dict[str, Any]:
    """A succeeded execution, a dead one and a waiting one."""
    jobs = {
        "good": await make_job(
            store, name="good", queue="mail", tags=("a",), payload={"n": 1}, meta={"tenant": "acme"}
        ),
        "bad": await make_job(store, name="bad", queue="mail", max_retries=0),
        "waits": await make_job(store, name="waits", schedule="0 0 1 1 *"),
    }
    commands = Commands(store, store.env)
    for name, meta in (("good", None), ("bad", {"tenant": "globex"})):
        await commands.executions.trigger(jobs[name].id, meta=meta)
    claimed = {one.job_id: one for one in await claim_all(store)}
    started, ended = clock.now(), clock.advance("5s")
    await record(
        store,
        [
            found(claimed[jobs["good"].id], started_at=started, finished_at=ended),
            found(claimed[jobs["bad"].id], Failed(error=FAILURE), started_at=started, finished_at=ended),
        ],
    )
    return jobs


EXECUTION_SEARCHES: list[tuple[str, Names]] = [
    ("", {"good", "bad", "waits"}),
    ("status:dead", {"bad"}),
    ("-status:dead", {"good", "waits"}),
    ("status:dead status:running", set()),
    ("status:scheduled", {"waits"}),
    ("error:Value*", {"bad"}),
    ("-error:Value*", {"good", "waits"}),
    ("fingerprint:abc", {"bad"}),
    ("status:dead settled:no", {"bad"}),
    ("settled:yes", set()),
    ("queue:mail", {"good", "bad"}),
    ("job:good", {"good"}),
    ("goo", {"good"}),
    ("tag:a", {"good"}),
    ("payload.n:1", {"good"}),
    ("meta.tenant:acme", {"good"}),
    ("meta.tenant:globex", {"bad"}),
    ("-meta.tenant:acme", {"bad", "waits"}),
    ("took:>1s", {"good", "bad"}),
    ("took:>1m", set()),
    ("late:>1h", set()),
    ("origin:trigger", {"good", "bad"}),
    ("attempts:>0", {"good", "bad"}),
    ("after:-1h before:+1m", {"good", "bad"}),
]


async def test_executions_are_found_in_every_state_table(
    client: httpx.AsyncClient, some_executions: dict[str, Any]
) -> None:
    ids = {format_job_id(job.id): name for name, job in some_executions.items()}

    async def jobs_of(q: str) -> Names:
        answer = await client.get("/executions", params={"q": q})
        assert answer.status_code == 200, answer.text
        return {ids[one["job_id"]] for one in answer.json()["data"]}

    assert [(q, await jobs_of(q)) for q, _ in EXECUTION_SEARCHES] == EXECUTION_SEARCHES


async def test_settled_dead_letters_are_found_by_search(
    client: httpx.AsyncClient, some_executions: dict[str, Any]
) -> None:
    await client.post("/dead-letter/discard", json={"all": True})

    assert len((await client.get("/executions", params={"q": "settled:yes"})).json()["data"]) == 1
    assert (await client.get("/executions", params={"q": "status:dead settled:no"})).json()["data"] == []


async def test_an_execution_is_found_by_its_id(client: httpx.AsyncClient, some_executions: dict[str, Any]) -> None:
    first = (await client.get("/executions", params={"q": "status:dead"})).json()["data"][0]["id"]

    again = (await client.get("/executions", params={"q": first})).json()["data"]

    assert [one["id"] for one in again] == [first]


async def test_an_invalid_search_is_refused_with_the_reason(client: httpx.AsyncClient) -> None:
    answer = await client.get("/executions", params={"q": "stauts:dead"})

    assert answer.status_code == 422
    assert "did you mean status" in answer.json()["hint"]


@pytest.mark.parametrize("hidden", ["payload", "meta"])
async def test_a_viewer_cannot_guess_payloads_by_searching(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]], hidden: str
) -> None:
    operator, editor = await make_key("operator"), await make_key("editor")
    asked = {"q": f"{hidden}.password:a*"}

    for path in ("/jobs", "/executions", "/jobs/export", "/executions/export", "/dead-letter"):
        assert (await client.get(path, params=asked, headers=operator)).status_code == 403, path
        assert (await client.get(path, params=asked, headers=editor)).status_code == 200, path


async def test_an_operator_cannot_guess_payloads_by_a_bulk_action(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    body = {"action": "cancel", "filter": {"q": "payload.password:a*"}, "dry_run": True}

    assert (await client.post("/executions/bulk", json=body, headers=await make_key("operator"))).status_code == 403


async def test_a_bulk_action_takes_a_search(client: httpx.AsyncClient, some_executions: dict[str, Any]) -> None:
    body = {"action": "retry", "filter": {"q": "status:dead queue:mail"}, "dry_run": True}

    assert (await client.post("/executions/bulk", json=body)).json()["done"] == 1


async def test_a_running_execution_has_its_progress_everywhere(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_job(store, name="import")
    execution_id = await Commands(store, store.env).executions.trigger(job.id)
    path = f"/executions/{format_execution_id(execution_id)}"
    assert (await client.get(path)).json()["progress"] is None
    (claimed,) = await claim_all(store)
    await store.executions.report_progress(claimed, 0.42, "page 42")

    told = {"fraction": 0.42, "note": "page 42"}
    assert (await client.get(path)).json()["progress"] == told
    assert [one["progress"] for one in (await client.get("/executions")).json()["data"]] == [told]
    assert [one["progress"] for one in (await client.get(f"/jobs/{job.id}/executions")).json()["data"]] == [told]

    await store.executions.finish_succeeded([found(claimed)])
    assert (await client.get(path)).json()["progress"] is None
