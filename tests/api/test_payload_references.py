"""References in payloads through every door: what is wrong is refused where it is written, what is right is shown with its values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import FAILURE, HANDLER, claim_all, found, record
from timeball.domain.execution import Failed
from timeball.domain.values.redaction import REDACTED
from timeball.store.store import Store

RIGHT = {"file": {"$text": "report-{scheduled_date}.csv"}, "try": {"$now": "attempt"}}
WRONG = {"file": {"$text": "report-{yesterday}.csv"}}
JOB = {"name": "report", "handler": "app:report", "schedule": "30 23 * * *", "timezone": "Europe/Berlin"}

Door = Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[httpx.Response]]


async def create(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/jobs", json=JOB | {"payload": payload})


async def create_unchecked(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/jobs", json=JOB | {"payload": payload, "unchecked": True})


async def edit(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    await client.post("/jobs", json=JOB)
    return await client.patch("/jobs/report", json={"payload": payload})


async def enqueue_many(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    one_offs = [{"handler": "app:report", "payload": {}}, {"handler": "app:report", "payload": payload}]
    return await client.post("/jobs/bulk", json={"jobs": one_offs})


async def create_several(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/jobs/bulk", json={"jobs": [{"handler": "app:other"}, JOB | {"payload": payload}]})


async def sync(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/jobs/sync", json={"declared_by": "file", "jobs": [JOB | {"payload": payload}]})


async def keep_template(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/templates", json={"name": "t", "job": JOB | {"payload": payload}})


async def keep_open_template(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    left_open = payload | {"region": {"$text": "{{region}}-{scheduled_date}"}, "which": {"$now": "{{which}}"}}
    return await client.post("/templates", json={"name": "t", "job": JOB | {"payload": left_open}})


async def fill_template(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    text = payload["file"]["$text"]
    await client.post("/templates", json={"name": "t", "job": JOB | {"payload": {"file": {"$text": "{{text}}"}}}})
    return await client.post("/templates/t/use", json={"variables": {"text": text}})


async def trigger(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    await client.post("/jobs", json=JOB)
    return await client.post("/jobs/report/trigger", json={"payload": payload})


async def retry(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    one_off = (await client.post("/jobs", json={"handler": "app:report"})).json()["execution_id"]
    await client.post(f"/executions/{one_off}/cancel", json={})
    return await client.post(f"/executions/{one_off}/retry", json={"payload": payload})


async def preview(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/schedules/preview", json={"schedule": "30 23 * * *", "payload": payload})


DOORS: dict[Door, str] = {
    create: "/payload",
    create_unchecked: "/payload",
    edit: "/payload",
    enqueue_many: "/jobs/1/payload",
    create_several: "/jobs/1/payload",
    sync: "/jobs/0/payload",
    keep_template: "/job/payload",
    keep_open_template: "/job/payload",
    fill_template: "/payload",
    trigger: "/payload",
    retry: "/payload",
    preview: "/payload",
}


@pytest.mark.parametrize(("door", "place"), DOORS.items(), ids=[door.__name__ for door in DOORS])
async def test_a_wrong_reference_is_refused_at_every_door(client: httpx.AsyncClient, door: Door, place: str) -> None:
    problem = check_problem(await door(client, WRONG), 422, "invalid_input")

    (error,) = problem["errors"]
    assert error["pointer"] == f"{place}/file/$text"
    assert "names yesterday, expected scheduled_for, scheduled_date, previous_scheduled_for" in error["detail"]


@pytest.mark.parametrize("door", DOORS, ids=[door.__name__ for door in DOORS])
async def test_a_right_reference_is_taken_at_every_door(client: httpx.AsyncClient, door: Door) -> None:
    response = await door(client, RIGHT)

    assert response.is_success, response.text


async def test_a_job_keeps_its_references_as_they_were_written(client: httpx.AsyncClient) -> None:
    await create(client, RIGHT)

    assert (await client.get("/jobs/report")).json()["payload"] == RIGHT


# what handlers take


@pytest.mark.parametrize(
    "payload",
    [
        {"url": {"$text": "https://example.com/{scheduled_date}"}, "headers": {"X-Day": {"$now": "scheduled_date"}}},
        {"url": "https://example.com", "json": {"since": {"$now": "previous_scheduled_for"}}},
        {"url": "https://example.com", "timeout": {"$now": "attempt"}},
    ],
)
async def test_a_built_in_handler_takes_references_where_their_values_fit(
    client: httpx.AsyncClient, payload: dict[str, Any]
) -> None:
    response = await client.post("/jobs", json=JOB | {"handler": "http.webhook", "payload": payload})

    assert response.status_code == 201, response.text


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [
        ({"url": {"$now": "scheduled_for"}}, "/payload/url"),
        ({"url": "https://example.com", "timeout": {"$now": "scheduled_date"}}, "/payload/timeout"),
        ({"url": "https://example.com", "headers": {"X": {"$now": "fence"}}}, "/payload/headers/X"),
        ({"url": {"$text": "https://{execution_id}@example.com"}}, "/payload/url"),
        ({"url": "https://example.com", "headers": {"X": {"$now": "previous_scheduled_for"}}}, "/payload/headers/X"),
    ],
)
async def test_a_built_in_handler_refuses_references_where_their_values_do_not_fit(
    client: httpx.AsyncClient, payload: dict[str, Any], pointer: str
) -> None:
    response = await client.post("/jobs", json=JOB | {"handler": "http.webhook", "payload": payload})

    problem = check_problem(response, 422, "payload_mismatch")
    assert problem["errors"][0]["pointer"] == pointer


# shown with their values


async def test_a_preview_shows_the_payload_of_the_next_occurrence(client: httpx.AsyncClient) -> None:
    body = {"schedule": "30 23 * * *", "timezone": "Pacific/Kiritimati", "since": "2026-11-03T12:00:00Z"}
    payload = {"day": {"$now": "scheduled_date"}, "since": {"$now": "previous_scheduled_for"}, "password": "x"}

    shown = (await client.post("/schedules/preview", json=body | {"payload": payload})).json()
    without = (await client.post("/schedules/preview", json=body | {"payload": {"day": 1}})).json()

    assert shown["payload"] == {"day": "2026-11-04", "since": "2026-11-03T09:30:00Z", "password": REDACTED}
    assert without["payload"] is None


async def test_the_next_times_of_a_job_come_with_the_payload_of_the_first(client: httpx.AsyncClient) -> None:
    await create(client, RIGHT | {"id": {"$now": "execution_id"}})

    shown = (await client.get("/jobs/report/next?count=1")).json()

    (first,) = shown["next"]
    execution = (await client.get(f"/executions/{shown['payload']['id']}")).json()
    assert shown["payload"] | {"id": ""} == {"file": f"report-{first['local'][:10]}.csv", "try": 1, "id": ""}
    assert (execution["state"], execution["scheduled_for"]) == ("scheduled", first["at"])


async def test_an_execution_shows_what_its_attempt_gets_and_what_changes_with_the_attempt(
    client: httpx.AsyncClient,
) -> None:
    waiting = (await client.post("/jobs", json={"handler": "app:report", "payload": RIGHT})).json()["execution_id"]
    plain = (await client.post("/jobs", json={"handler": "app:report"})).json()["execution_id"]
    unstarted = (await client.post("/jobs", json={"handler": "app:report", "payload": RIGHT})).json()["execution_id"]
    await client.post(f"/executions/{unstarted}/cancel", json={})

    document = (await client.get(f"/executions/{waiting}")).json()

    day = document["scheduled_for"][:10]
    assert document["payload"] == RIGHT
    assert document["resolved"] == {
        "payload": {"file": f"report-{day}.csv", "try": 1},
        "attempt": 1,
        "changes_by_attempt": ["attempt"],
    }
    assert (await client.get(f"/executions/{plain}")).json()["resolved"] is None
    assert (await client.get(f"/executions/{unstarted}")).json()["resolved"] is None


async def test_an_execution_shows_the_last_attempt_while_it_runs_and_the_next_one_while_it_waits(
    client: httpx.AsyncClient, store: Store
) -> None:
    created = (await client.post("/jobs", json={"handler": HANDLER, "payload": RIGHT})).json()["execution_id"]
    (claimed,) = await claim_all(store)

    running = (await client.get(f"/executions/{created}")).json()
    await record(store, [found(claimed, Failed(FAILURE))])
    retrying = (await client.get(f"/executions/{created}")).json()

    assert [
        (each["state"], each["resolved"]["attempt"], each["resolved"]["payload"]["try"]) for each in (running, retrying)
    ] == [
        ("running", 1, 1),
        ("retrying", 2, 2),
    ]
