"""The cost of a request: no body is read before the role is checked, and what is read is bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message

from tests.api.conftest import ROLES
from tests.api.test_access import ROUTES
from tests.api.test_conventions import check_problem
from timeball.api.app import make_api
from timeball.api.errors import HttpProblem
from timeball.api.limits import HeavyRequestLimiter
from timeball.api.middleware import MAX_DEPTH
from timeball.client.in_process import InProcessTransport
from timeball.dashboard.app import every_page, make_web_app
from timeball.domain.forecast import timeline
from timeball.domain.values import field_errors
from timeball.domain.values.json_text import _depth, _has_more_values
from timeball.runtime import ServerRuntime
from timeball.store.types import AuditEntry

MakeKey = Callable[[str], Awaitable[dict[str, str]]]


async def ask_without_body(
    app: ASGIApp, method: str, path: str, headers: dict[str, str], content_type: str = "application/json"
) -> tuple[int, bool]:
    """The status of a response, and whether the body was requested; its first byte never arrives."""
    answers: list[Message] = []
    asked = False

    async def receive() -> Message:
        nonlocal asked
        asked = True
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answers.append(message)

    pairs = {"host": "localhost:8080", "content-type": content_type, "content-length": "33000000", **headers}
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    await app(scope, receive, send)
    return answers[0]["status"], asked


def filled(pattern: str) -> str:
    """The path of a route, with values for its parameters."""
    return re.sub(r"{\w+}", "x", pattern.replace("{action}", "pause"))


async def test_security_3_no_byte_of_a_body_is_read_before_the_role_is_checked(
    parts: ServerRuntime, make_key: MakeKey
) -> None:
    keys = {role: await make_key(role) for role in ROLES} | {"none": {}}
    app = make_api(parts)
    order = ["none", *ROLES]

    for method, pattern, _, least, _ in ROUTES:
        if method not in ("POST", "PUT", "PATCH"):
            continue
        for role in order[: order.index(least)]:
            path = filled(pattern)
            url = path if path.startswith("/api/") else f"/api/v1{path}"
            status, asked = await ask_without_body(app, method, url, keys[role])
            assert (status, asked) == (401 if role == "none" else 403, False), f"{method} {pattern} as {role}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/v1/nothing", 404),
        ("POST", "/nothing", 404),
        ("PUT", "/api/v1/jobs", 405),
        ("POST", "/api/v1/health/live", 405),
        ("POST", "/docs", 405),
        ("PATCH", "/metrics", 405),
    ],
)
async def test_a_body_without_a_route_is_not_read(
    parts: ServerRuntime, make_key: MakeKey, method: str, path: str, status: int
) -> None:
    answered, asked = await ask_without_body(make_api(parts), method, path, await make_key("admin"))

    assert (answered, asked) == (status, False)


async def test_security_3_no_form_is_read_before_the_role_is_checked(parts: ServerRuntime, make_key: MakeKey) -> None:
    await make_key("admin")
    viewer = (await make_key("viewer"))["Authorization"].removeprefix("Bearer ")
    session = await parts.sessions.begin(viewer.split("_")[1], AuditEntry("test"))
    app = make_web_app(parts)
    # Login and logout need no role.
    posts = [route for route in every_page() if "POST" in (route.methods or ()) and route.path[:4] != "/log"]
    refused = 0

    for route in posts:
        path = route.path.replace("{", "").replace("}", "")
        form = "application/x-www-form-urlencoded"
        stranger = await ask_without_body(app, "POST", path, {}, form)
        assert stranger == (401, False), route.path
        low = await ask_without_body(app, "POST", path, {"cookie": f"timeball_session={session}"}, form)
        # Previews are for viewers: their forms are read.
        assert low in ((403, False), (400, True)), route.path
        refused += low == (403, False)
    assert refused > 20


# how many values


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"1", 1),
        (b"[1,2,3]", 4),
        (b"[[],[],[]]", 7),
        (b'{"a":1,"b":[1,2]}', 6),
        (b'["a,[{,","b,,,"]', 3),
        (b'["\\",[","x"]', 3),
    ],
)
def test_values_are_counted_outside_of_texts(body: bytes, values: int) -> None:
    assert not _has_more_values(body, values)
    assert _has_more_values(body, values - 2)


async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr("timeball.domain.values.json_text.orjson.loads", lambda body: parsed.append(body))

    ordinary = await client.post("/jobs", content=b"[" + b"1," * 300_000 + b"1]")
    bulk = await client.post("/jobs/bulk", content=b"[" + b"[]," * 600_000 + b"1]")

    check_problem(ordinary, 413, "too_many_values")
    check_problem(bulk, 413, "too_many_values")
    assert parsed == []


async def test_commas_in_texts_do_not_count_as_values(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs", json={"handler": "h", "payload": {"a": "," * 250_000}})

    assert response.status_code == 201


@pytest.mark.parametrize("excess", [0, 1])
def test_depth_is_counted_outside_of_texts(excess: int) -> None:
    depth = MAX_DEPTH + excess
    body = b"[" * depth + b'"]}[["' + b"]" * depth

    assert (_depth(body) > MAX_DEPTH) is bool(excess)


# payloads in lists


async def test_a_list_leaves_large_payloads_out_and_the_job_shows_them(client: httpx.AsyncClient) -> None:
    large, small = {"a": "x" * 9_000}, {"a": "x" * 1_000, "password": "hidden"}
    for name, payload in (("large", large), ("small", small)):
        assert (await client.post("/jobs", json={"handler": "h", "name": name, "payload": payload})).status_code == 201

    jobs = {job["name"]: job for job in (await client.get("/jobs")).json()["data"]}
    exported = (await client.get("/jobs/export?format=jsonl")).text

    assert set(jobs["large"]["payload"]) == {"$timeball"}
    assert "left out of lists" in jobs["large"]["payload"]["$timeball"]
    assert jobs["small"]["payload"] == small | {"password": "••••••"}
    assert (await client.get("/jobs/large")).json()["payload"] == large
    assert "x" * 9_000 in exported


async def test_the_note_in_place_of_a_payload_cannot_be_stored(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "large", "payload": {"a": "x" * 9_000}})
    shown = (await client.get("/jobs")).json()["data"][0]["payload"]

    check_problem(await client.patch("/jobs/large", json={"payload": shown}), 422, "invalid_payload")


async def test_only_selected_fields_are_redacted(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a", "payload": {"token": "x"}})
    looked_at: list[Any] = []
    monkeypatch.setattr("timeball.api.models.jobs.redact_in_list", looked_at.append)

    page = await client.get("/jobs?fields=name")

    assert page.json()["data"] == [{"name": "a"}]
    assert looked_at == []


async def test_large_fields_are_left_out_of_audit_and_revisions(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a", "payload": {"a": "x" * 9_000}})
    await client.patch("/jobs/a", json={"payload": {"a": "y" * 9_000}, "priority": 7})

    rows = (await client.get("/audit")).json()["data"]
    audit = next(row for row in rows if row["action"] == "job.update")
    revisions = (await client.get("/jobs/a/revisions")).json()["data"]
    changes = {one["field"]: one for revision in revisions for one in revision["changes"] if revision["version"] == 2}

    assert "left out" in audit["after"]["payload"]["$timeball"]
    assert audit["after"]["priority"] == 7
    assert "left out" in changes["payload"]["before"]["$timeball"]
    assert changes["priority"]["after"] == 7


# unknown fields


async def test_only_the_listed_problems_are_worded(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[str] = []
    original = field_errors.nearest_names
    monkeypatch.setattr(
        "timeball.domain.values.field_errors.nearest_names",
        lambda name, known: worded.append(name) or original(name, known),
    )

    some = await client.post("/schedules/preview", json={f"field{number}": 1 for number in range(99)})
    many = await client.post("/schedules/preview", json={f"field{number}": 1 for number in range(5_000)})

    check_problem(some, 422, "invalid_input")
    assert len(some.json()["errors"]) == 50
    assert len(worded) <= 50
    check_problem(many, 422, "invalid_input")
    assert [error["pointer"] for error in many.json()["errors"]] == ["/"]
    assert "5000 fields were given" in many.json()["detail"]


async def test_problems_of_a_bulk_point_to_their_jobs(client: httpx.AsyncClient) -> None:
    jobs: list[Any] = [{"handler": "h", "priority": number % 100} for number in range(250)]
    jobs[7] |= {"name": 5}
    jobs[249] |= {"unknown": 1}

    response = await client.post("/jobs/bulk", json={"jobs": jobs})

    check_problem(response, 422, "invalid_input")
    assert [error["pointer"] for error in response.json()["errors"]] == ["/jobs/7/name", "/jobs/249/unknown"]
    check_problem(await client.post("/jobs/bulk", json={"jobs": jobs * 50}), 422, "invalid_input")


async def test_a_bulk_that_is_read_in_batches_is_created_whole(client: httpx.AsyncClient) -> None:
    jobs = [{"handler": "h", "priority": number % 100} for number in range(250)]

    response = await client.post("/jobs/bulk", json={"jobs": jobs})

    assert (response.status_code, response.json()["created"]) == (201, 250)


# many queues


async def test_many_queues_are_paged_and_their_numbers_bounded(client: httpx.AsyncClient, parts: ServerRuntime) -> None:
    jobs = [{"handler": "h", "queue": f"q{number:03}"} for number in range(250)]
    assert (await client.post("/jobs/bulk", json={"jobs": jobs})).json()["created"] == 250

    names: list[str] = []
    cursor: str | None = None
    while True:
        page = (await client.get("/queues", params={"limit": 100} | ({"cursor": cursor} if cursor else {}))).json()
        names += [queue["name"] for queue in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    metrics = (await client.get("/metrics")).json()
    told = (await client.get("http://localhost:8080/metrics")).text
    by_need = (await client.get("/queues?sort=need&limit=5")).json()

    assert names == [f"q{number:03}" for number in range(250)]
    assert (len(metrics["queues"]), metrics["queues_total"]) == (100, 250)
    assert told.count("timeball_queue_depth{") == 101
    assert 'timeball_queue_depth{queue="(other)"} 150.0' in told
    assert "timeball_queues 250.0" in told
    assert (len(by_need["data"]), by_need["total"], by_need["has_more"]) == (5, 250, True)
    transport = InProcessTransport(make_web_app(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as browser:
        shown = (await browser.get("/queues")).text
    assert shown.count('data-href="/queues/one') == 100
    assert "150 more queues" in shown


# expensive requests


async def test_expensive_requests_run_one_at_a_time_for_each_caller() -> None:
    turns, order = HeavyRequestLimiter(), []
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work(name: str, number: int) -> None:
        async with turns.of(name):
            order.append((name, number))
            inside.set()
            await go_on.wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(work("a", number))
        await inside.wait()
        tasks.create_task(work("b", 0))
        tasks.create_task(work("c", 0))
        await asyncio.sleep(0)
        with pytest.raises(HttpProblem, match="expensive requests in progress"):
            await work("a", 8)
        assert order == [("a", 0), ("b", 0)]
        go_on.set()

    assert len(order) == 10
    assert [number for name, number in order if name == "a"] == list(range(8))


async def test_a_timeline_has_no_more_marks_than_it_can_show(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"handler": "h", "name": f"job{number}", "interval_seconds": 60} for number in range(100)]
    assert (await client.post("/jobs/bulk", json={"jobs": jobs})).json()["created"] == 100
    made = 0
    original = timeline.fit_rows

    def counted(rows: Any, *others: Any) -> Any:
        nonlocal made
        made = sum(len(row.marks) for row in rows)
        return original(rows, *others)

    monkeypatch.setattr("timeball.application.queries.timeline.fit_rows", counted)
    now = (await client.get("/metrics")).json()["at"]
    end = (datetime.fromisoformat(now) + timedelta(days=30)).isoformat()

    drawn = await client.get("/timeline", params={"from": now, "to": end, "limit": 200, "width": 10_000})

    assert drawn.status_code == 200
    assert len(drawn.json()["rows"]) == 100
    assert 0 < made <= 20_000
