"""What holds for every route: problems, limits, ids, compression, idempotency, the OpenAPI document."""

from __future__ import annotations

import asyncio
import gzip
from datetime import timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import jsonschema_rs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.factories import FAILURE, claim_all, enqueue, found, record, table
from timeball.api.app import make_api
from timeball.api.middleware import READ_ONLY_POSTS
from timeball.api.openapi import served_below
from timeball.api.responses import cell
from timeball.application.commands.bulk import OperationCommands
from timeball.application.commands.executions import ExecutionCommands
from timeball.application.commands.jobs import JobCommands
from timeball.application.commands.templates import TemplateCommands
from timeball.domain.execution import Failed
from timeball.domain.values.ids import format_execution_id, format_id
from timeball.domain.values.redaction import REDACTED
from timeball.errors import StoreUnavailable
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

PROBLEM_FIELDS = {"type", "title", "status", "detail", "instance", "code", "errors", "hint", "request_id"}


def check_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert set(problem) >= PROBLEM_FIELDS
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == response.headers["x-request-id"]
    return problem


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nowhere", None, 404, "not_found"),
        ("DELETE", "/queues", None, 405, "method_not_allowed"),
        ("GET", "/jobs/nobody", None, 404, "not_found"),
        ("GET", "/jobs?limit=0", None, 422, "invalid_input"),
        ("GET", "/jobs?cursor=x", None, 422, "invalid_input"),
        ("GET", "/jobs?search=%00", None, 422, "invalid_input"),
        ("GET", "/jobs?staus=dead", None, 422, "unknown_parameter"),
        ("GET", "/queues?x", None, 422, "unknown_parameter"),
        ("POST", "/jobs", b"{", 400, "invalid_json"),
        ("POST", "/jobs", b'{"handler": "\\ud800"}', 400, "invalid_json"),
        ("POST", "/jobs", b'{"handler": NaN}', 400, "invalid_json"),
        ("POST", "/jobs", b"\xff", 400, "invalid_json"),
        ("POST", "/jobs", b"", 422, "invalid_input"),
        ("POST", "/jobs", b"[]", 422, "invalid_input"),
        ("POST", "/jobs", b'{"handler": "h", "payload": ' + b"[" * 200 + b"]" * 200 + b"}", 400, "too_deep"),
        ("POST", "/jobs", b'{"handler": "h", "payload": "' + b"x" * 2**20 + b'"}', 413, "body_too_large"),
        ("POST", "/jobs", b'{"handler": "h", "payload": "' + b"x" * 300_000 + b'"}', 422, "invalid_payload"),
        ("POST", "/jobs", b'{"handler": "h", "schedule": "0 25 * * *"}', 422, "invalid_cron"),
        ("POST", "/jobs", b'{"handler": "h", "schedule": "0 6 * * *", "timezone": "Mars"}', 422, "unknown_timezone"),
        ("POST", "/jobs", b'{"handler": "h", "priority": "high"}', 422, "invalid_input"),
        ("POST", "/jobs/bulk", b"{}", 422, "invalid_input"),
        ("POST", "/jobs/bulk", b'{"jobs": [{"handler": "h"}, {"handler": "h", "x": 1}]}', 422, "invalid_input"),
    ],
)
async def test_every_error_is_a_problem(
    client: httpx.AsyncClient, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    check_problem(await client.request(method, path, content=body), status, code)


async def test_a_problem_points_at_the_fields(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs", json={"handler": "h", "priority": 101, "tags": ["x", ""]})

    problem = check_problem(response, 422, "invalid_input")

    assert {error["pointer"] for error in problem["errors"]} == {"/priority", "/tags/1"}


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({"interval_seconds": 0}, "/interval_seconds", "interval_seconds is 0, expected 1 or more"),
        (
            {"interval_seconds": "60"},
            "/interval_seconds",
            'interval_seconds is "60", expected a whole number or a number',
        ),
        ({"misfire": "now"}, "/misfire", 'misfire is "now", expected latest, skip or all'),
        ({"shedule": "@daily"}, "/shedule", "shedule is unknown: did you mean schedule?"),
        ({"handler": None}, "/handler", "handler is null, expected text"),
    ],
)
async def test_a_problem_says_what_was_found_and_what_was_expected(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str, detail: str
) -> None:
    problem = check_problem(await client.post("/jobs", json={"handler": "h", **body}), 422, "invalid_input")

    assert problem["errors"] == [{"pointer": pointer, "detail": detail}]
    assert problem["detail"] == detail


async def test_a_problem_points_into_many_jobs(client: httpx.AsyncClient) -> None:
    body = {"jobs": [{"handler": "h"}, {"handler": "h", "priorty": 1, "max_lost": 0}]}

    problem = check_problem(await client.post("/jobs/bulk", json=body), 422, "invalid_input")

    assert problem["errors"] == [
        {"pointer": "/jobs/1/max_lost", "detail": "jobs.1.max_lost is 0, expected 1 or more"},
        {"pointer": "/jobs/1/priorty", "detail": "jobs.1.priorty is unknown"},
    ]


async def test_a_problem_names_the_parameter(client: httpx.AsyncClient) -> None:
    problem = check_problem(await client.get("/jobs?limit=0"), 422, "invalid_input")

    assert problem["errors"] == [{"pointer": "query:limit", "detail": 'limit is "0", expected 1 or more'}]


async def test_security_3_unknown_fields_are_refused(client: httpx.AsyncClient, store: Store) -> None:
    bodies = {
        "/jobs": {"handler": "h", "name": "a", "comand": "x"},
        "/jobs/bulk": {"jobs": [{"handler": "h", "user": "root"}]},
        "/schedules/preview": {"schedule": "0 6 * * *", "zone": "UTC"},
        "/executions/bulk": {"action": "cancel", "ids": ["x"], "force": True},
        "/dead-letter/discard": {"all": True, "x": 1},
    }
    for path, body in bodies.items():
        problem = check_problem(await client.post(path, json=body), 422, "invalid_input")
        assert "spelling" in problem["hint"]
    assert await table(store, "job") == []


async def test_request_ids_are_kept_or_generated(client: httpx.AsyncClient) -> None:
    kept = await client.get("/health/live", headers={"X-Request-Id": "abc-1"})
    made = await client.get("/health/live", headers={"X-Request-Id": "no spaces, please"})

    assert kept.headers["x-request-id"] == "abc-1"
    assert made.headers["x-request-id"].startswith("req_")


async def test_long_responses_are_compressed(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "http://localhost/openapi.json", headers={"Accept-Encoding": "gzip"}) as response:
        raw = b"".join([part async for part in response.aiter_raw()])

    assert response.headers["content-encoding"] == "gzip"
    assert orjson.loads(gzip.decompress(raw))["info"]["title"] == "Timeball"


async def test_responses_may_not_be_framed_sniffed_or_cached(client: httpx.AsyncClient) -> None:
    headers = (await client.get("/health/live")).headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


# idempotency


async def test_a_post_with_an_idempotency_key_is_carried_out_once(client: httpx.AsyncClient, store: Store) -> None:
    body, headers = {"handler": "h"}, {"Idempotency-Key": "k-1"}

    first = await client.post("/jobs", json=body, headers=headers)
    again = await client.post("/jobs", json=body, headers=headers)
    other = await client.post("/jobs", json={"handler": "g"}, headers=headers)

    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert (again.headers["location"], again.headers["etag"]) == (first.headers["location"], first.headers["etag"])
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    check_problem(other, 422, "idempotency_key_reused")
    assert len(await table(store, "job")) == 1


async def test_a_request_whose_key_is_in_flight_is_refused(
    client: httpx.AsyncClient, parts: ServerRuntime, store: Store
) -> None:
    body = orjson.dumps({"handler": "h"})
    await parts.requests.begin("local", "k", sha256(b"\0".join((b"/api/v1/jobs", b"", body))).digest())

    response = await client.post("/jobs", content=body, headers={"Idempotency-Key": "k"})

    check_problem(response, 409, "request_in_flight")
    assert await table(store, "job") == []


async def test_a_request_that_was_cut_off_is_not_carried_out_twice(client: httpx.AsyncClient, store: Store) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a", "schedule": "manual"})

    async def trigger() -> httpx.Response:
        return await client.post("/jobs/a/trigger?wait=60s", json={}, headers={"Idempotency-Key": "k"})

    cut_off = asyncio.create_task(trigger())
    while not await table(store, "ready"):
        await asyncio.sleep(0.01)
    cut_off.cancel()
    await asyncio.wait([cut_off])

    check_problem(await trigger(), 409, "request_in_flight")
    assert len(await table(store, "ready")) == 1


async def test_a_wait_ends_with_the_process_and_its_response_is_recorded(
    client: httpx.AsyncClient, parts: ServerRuntime, store: Store
) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a", "schedule": "manual"})
    parts.live.close()

    answers = [
        await client.post("/jobs/a/trigger?wait=60s", json={}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].content == answers[1].content
    assert len(await table(store, "ready")) == 1


async def test_one_of_many_concurrent_requests_with_one_key_is_carried_out(
    client: httpx.AsyncClient, store: Store
) -> None:
    headers = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(client.post("/jobs", json={"handler": "h"}, headers=headers) for _ in range(8)))

    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len(await table(store, "job")) == 1


async def test_a_key_whose_request_failed_may_be_used_again(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k"}

    refused = await client.post("/jobs", json={"handler": "h", "schedule": "x"}, headers=headers)
    accepted = await client.post("/jobs", json={"handler": "h"}, headers=headers)

    assert (refused.status_code, accepted.status_code) == (422, 201)


def lose_first_answer(monkeypatch: pytest.MonkeyPatch, command: tuple[type, str]) -> None:
    """Carry out a command, but raise StoreUnavailable the first time."""
    kind, name = command
    done = getattr(kind, name)
    failures = [StoreUnavailable("gone")]

    async def fails_once(*given: Any, **named: Any) -> Any:
        result = await done(*given, **named)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(kind, name, fails_once)


UNANSWERED: dict[str, tuple[tuple[type, str], str, dict[str, Any]]] = {
    "trigger": ((ExecutionCommands, "trigger"), "/jobs/minutely/trigger", {}),
    "retry": ((ExecutionCommands, "retry"), "/jobs/enqueued/retry", {}),
    "create": ((JobCommands, "create"), "/jobs", {"handler": "h"}),
    "create_all": ((JobCommands, "create_all"), "/jobs/bulk", {"jobs": [{"handler": "h"}, {"handler": "g"}]}),
    "enqueue_many": ((JobCommands, "enqueue_many"), "/jobs/bulk", {"jobs": [{"handler": "h"}, {"handler": "h"}]}),
    "create each": (
        (JobCommands, "create"),
        "/jobs/bulk",
        {"mode": "per_item", "jobs": [{"handler": "h"}, {"handler": "h"}]},
    ),
    "use_template": ((TemplateCommands, "use"), "/templates/t/use", {}),
}


@pytest.mark.parametrize("case", UNANSWERED)
async def test_a_change_whose_response_failed_is_not_repeated_with_the_same_key(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "minutely", "interval_seconds": 60})
    await client.post("/templates", json={"name": "t", "job": {"handler": "h"}})
    command, path, body = UNANSWERED[case]
    if case == "retry":
        ended = await enqueue(store)
        await record(store, [found(claimed) for claimed in await claim_all(store)])
        path = f"/executions/{ended}/retry"
    clock.advance("5m")
    lose_first_answer(monkeypatch, command)

    async def ask(key: str) -> httpx.Response:
        return await client.post(path, json=body, headers={"Idempotency-Key": key})

    first = await ask("k")
    made = await executions(store)
    clock.advance("2m")
    again = await ask("k")

    check_problem(first, 503, "store_unavailable")
    assert again.is_success
    after = await executions(store)
    assert set(made) <= set(after)
    assert [one for one in after if format_execution_id(one) not in again.text] == []
    assert (await ask("k")).headers["idempotent-replayed"] == "true"
    assert (await ask("another")).is_success
    assert len(await executions(store)) >= 2 * len(after) > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs/bulk/trigger", {"ids": ["a"]}),
        ("/jobs/bulk/trigger", {"filter": {"q": "a"}}),
        ("/executions/bulk", {"action": "retry", "ids": ["ended"]}),
        ("/dead-letter/retry", {"ids": ["ended"]}),
    ],
)
@pytest.mark.parametrize(("failing", "most_at_once"), [("start", 500), ("run", 500), ("start", 0)])
async def test_an_operation_whose_response_failed_is_not_started_again_with_the_same_key(
    client: httpx.AsyncClient,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    failing: str,
    most_at_once: int,
) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "a"})
    ended = await enqueue(store, max_retries=0)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    if body.get("ids") == ["ended"]:
        body = body | {"ids": [format_execution_id(ended)]}
    monkeypatch.setattr("timeball.api.resources.operations.MAX_INLINE", most_at_once)
    lose_first_answer(monkeypatch, (OperationCommands, failing))

    async def ask() -> httpx.Response:
        return await client.post(path, json=body, headers={"Idempotency-Key": "k"})

    first, again = await ask(), await ask()

    check_problem(first, 503, "store_unavailable")
    (operation,) = await table(store, "operation")
    assert (again.status_code, again.json()["id"]) == (202, format_id("op", operation["id"]))
    assert len(await executions(store)) == (1 if failing == "run" else 0)


async def executions(store: Store) -> list[UUID]:
    rows = [*await table(store, "ready"), *await table(store, "due")]
    return sorted(row["id"] for row in rows if row["origin"] != "schedule")


async def test_an_idempotency_key_is_valid_for_a_day(
    client: httpx.AsyncClient, clock: VirtualClock, store: Store
) -> None:
    headers = {"Idempotency-Key": "k"}
    await client.post("/jobs", json={"handler": "h"}, headers=headers)
    clock.advance(timedelta(hours=23, minutes=59))
    await client.post("/jobs", json={"handler": "h"}, headers=headers)
    assert len(await table(store, "job")) == 1

    clock.advance(timedelta(minutes=2))
    await client.post("/jobs", json={"handler": "h"}, headers=headers)

    assert len(await table(store, "job")) == 2


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\there"])
async def test_an_invalid_idempotency_key_is_refused(client: httpx.AsyncClient, key: str) -> None:
    response = await client.post("/jobs", json={"handler": "h"}, headers={"Idempotency-Key": key})

    check_problem(response, 422, "invalid_idempotency_key")


# exports and secrets


async def test_security_12_exports_are_harmless_in_a_spreadsheet(client: httpx.AsyncClient) -> None:
    names = ("=1+1", "+1", "-1", "@SUM(A1)", "＝1+1", "＋1", "－1", "＠SUM(A1)", "fine")
    for name in names:
        response = await client.post("/jobs", json={"handler": "h", "name": name, "description": name})
        assert response.status_code == 201
    for number, text in enumerate(("\tx", "\rx", "\nx")):
        response = await client.post("/jobs", json={"handler": "h", "name": f"b{number}", "description": text})
        assert response.status_code == 201

    text = (await client.get("/jobs/export")).text
    lines = (await client.get("/jobs/export", params={"format": "jsonl"})).text.splitlines()

    for name in names:
        shown = name if name == "fine" else f"'{name}"
        assert f",{shown},{shown}," in text
    for shown in ("'\tx", '"\'\rx"', '"\'\nx"'):
        assert f",{shown}," in text
    assert ",=1" not in text
    assert {orjson.loads(line)["name"] for line in lines} >= {"=1+1", "fine"}


@pytest.mark.parametrize(
    ("value", "expected"), [(-1, "-1"), ("-1", "'-1"), (None, ""), (["=x"], '["=x"]'), ("a=b", "a=b")]
)
def test_a_cell_of_csv_is_no_formula(value: Any, expected: str) -> None:
    assert cell(value) == expected


async def test_an_export_has_every_job(client: httpx.AsyncClient) -> None:
    await client.post("/jobs/bulk", json={"jobs": [{"handler": "h"}] * 450})

    executions = (await client.get("/executions/export", params={"format": "jsonl"})).text.splitlines()
    table_lines = (await client.get("/executions/export")).text.splitlines()

    assert len({orjson.loads(line)["id"] for line in executions}) == 450
    assert len(table_lines) == 451
    whole = (await client.get("/executions/export", params={"format": "json"})).json()
    assert len({execution["id"] for execution in whole}) == 450
    assert (await client.get("/executions/export", params={"format": "json", "queue": "none"})).json() == []
    assert (await client.get("/executions/export", params={"format": "xml"})).status_code == 422


async def test_secrets_are_hidden_everywhere_and_survive_an_edit(client: httpx.AsyncClient, store: Store) -> None:
    payload = {"password": "canary-1", "nested": [{"Authorization": "canary-2", "note": "seen"}], "api_key": None}
    created = await client.post("/jobs", json={"handler": "h", "name": "a", "payload": payload})
    triggered = await client.post("/jobs/a/trigger", json={"payload": {"access_token": "canary-3"}})
    await client.patch("/jobs/a", json={"priority": 60})

    answers = [created, triggered]
    for path in ("/jobs", "/jobs/a", "/jobs/export", "/jobs/export?format=jsonl", "/audit", "/executions/export"):
        answers.append(await client.get(path))
    answers.append(await client.get(f"/executions/{triggered.json()['id']}"))
    sent_back = await client.patch("/jobs/a", json={"payload": created.json()["payload"]})

    assert all("canary" not in response.text for response in answers)
    assert created.json()["payload"]["nested"][0] == {"Authorization": REDACTED, "note": "seen"}
    check_problem(sent_back, 422, "invalid_payload")
    assert "canary-1" in (await table(store, "job"))[0]["payload"]


async def test_the_instance_of_a_problem_is_a_uri_reference(client: httpx.AsyncClient) -> None:
    problem = await client.get("/jobs/ä <b>%25")

    assert problem.json()["instance"] == "/api/v1/jobs/%C3%A4%20%3Cb%3E%25"


@pytest.mark.parametrize("path", ["/api/v1/health/live", "/api/v1/health/ready", "/api/v1/health", "/metrics"])
async def test_probes_may_ask_with_head(client: httpx.AsyncClient, path: str) -> None:
    asked, got = await client.head(f"http://localhost{path}"), await client.get(f"http://localhost{path}")

    assert asked.status_code == got.status_code
    assert asked.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/jobs", "GET, POST"),
        ("DELETE", "/jobs", "GET, POST"),
        ("DELETE", "/executions/bulk", "GET, POST"),
        ("POST", "/health/live", "GET, HEAD"),
    ],
)
async def test_a_405_names_the_allowed_methods(client: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    refused = await client.request(method, path)

    check_problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/jobs/a/trigger", "/jobs/a/pause", "/jobs/a/resume", "/queues/q/pause"])
async def test_an_optional_body_may_be_left_out_with_its_media_type(client: httpx.AsyncClient, path: str) -> None:
    await client.post("/jobs", json={"name": "a", "handler": "test.echo"})
    del client.headers["content-type"]

    without = await client.post(path)
    other = await client.post(path, content=b"{}", headers={"Content-Type": "text/plain"})

    assert without.is_success, without.text
    check_problem(other, 415, "unsupported_media_type")


# description


def test_every_route_is_described_with_an_example_and_a_role(parts: ServerRuntime) -> None:
    schema = make_api(parts).openapi()

    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["x-role"] in ("none", "viewer", "operator", "editor", "admin"), where
            assert operation["description"], where
            assert operation["tags"], where
            (success,) = [code for code in operation["responses"] if code in ("201", "202", "204")] or ["200"]
            content = operation["responses"][success].get("content", {})
            assert success == "204" or all("example" in media for media in content.values()), where
            if method in ("post", "put", "patch"):
                assert "example" in operation["requestBody"]["content"]["application/json"], where
            if method == "post":
                assert any(p["name"].lower() == "idempotency-key" for p in operation["parameters"]), where
    assert len(schema["paths"]) >= 35


def test_every_example_fits_its_own_schema(parts: ServerRuntime) -> None:
    document = make_api(parts).openapi()
    examples = [
        (f"{method} {path} {status}", media)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status, described in [("request", operation.get("requestBody", {})), *operation["responses"].items()]
        for media in described.get("content", {}).values()
        if "example" in media and "schema" in media
    ]

    wrong = [
        (where, error.message)
        for where, media in examples
        for error in jsonschema_rs.Draft202012Validator(
            {"components": document["components"], **media["schema"]}
        ).iter_errors(media["example"])
    ]

    assert wrong == []
    assert len(examples) > 500


def test_bounds_servers_and_tags_are_valid_openapi(parts: ServerRuntime) -> None:
    document = served_below(make_api(parts).openapi(), "/jobs")

    interval = document["components"]["schemas"]["JobIn"]["properties"]["interval_seconds"]
    bodies = [
        media["schema"]
        for operations in document["paths"].values()
        for operation in operations.values()
        for media in operation.get("requestBody", {}).get("content", {}).values()
    ]
    assert [choice.get("minimum") for choice in interval["anyOf"]] == [1, 1, None]
    assert document["servers"] == [{"url": "/jobs"}]
    assert {tag["name"] for tag in document["tags"]} == {
        tag
        for operations in document["paths"].values()
        for operation in operations.values()
        for tag in operation["tags"]
    }
    assert not any({"type": "null"} in schema.get("anyOf", ()) for schema in bodies)


async def test_the_docs_page_loads_nothing_from_other_sites(client: httpx.AsyncClient) -> None:
    page = await client.get("http://localhost/docs")

    assert page.status_code == 200
    assert "/api/v1/jobs/{job}/backfill" in page.text
    assert "<script" not in page.text
    assert "src=" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


# bytes


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=st.binary(max_size=60)
    | st.sampled_from([b'{"handler":"\\udc00x"}', b"null", b"1e999", b'{"handler":"h","handler":"g"}'])
)
async def test_any_body_gets_a_response_below_500(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/jobs", content=body)

    assert response.status_code in (201, 400, 422)


# labels


@pytest.mark.parametrize("label", ["a\x1b[2Jb", "a\nb", "a\tb", "a\x7fb", "a\x9bb", "a\u202eb", "a\u2066b", "a\u2028b"])
async def test_a_label_with_control_or_bidi_characters_is_refused_everywhere(
    client: httpx.AsyncClient, label: str
) -> None:
    await client.post("/jobs", json={"handler": "h", "name": "there"})
    wishes: list[dict[str, Any]] = [
        {"name": label},
        {"handler": label},
        {"queue": label},
        {"tags": ["fine", label]},
        {"limit_key": label, "max_running": 1},
        {"unique_key": label},
    ]
    tries = [("POST", "/jobs", {"handler": "h"} | wish) for wish in wishes]
    tries += [("POST", "/jobs/bulk", {"jobs": [{"handler": "h"} | wish]}) for wish in wishes]
    tries += [("PATCH", "/jobs/there", wish) for wish in wishes[:4]]
    tries += [
        ("POST", "/jobs/sync", {"jobs": [{"handler": "h", "name": label}], "declared_by": "app"}),
        ("POST", "/jobs/sync", {"jobs": [{"handler": "h", "name": "a"}], "declared_by": label}),
        ("POST", "/jobs/there/duplicate", {"name": label}),
        ("POST", "/templates", {"name": label, "job": {"handler": "h"}}),
        ("POST", f"/queues/{quote(label, safe='')}/pause", {}),
        ("PATCH", f"/queues/{quote(label, safe='')}", {"max_running": 3}),
    ]

    for method, path, body in tries:
        refused = await client.request(method, path, json=body)
        assert refused.status_code == 422, (method, path, body, refused.text)
    assert [job["name"] for job in (await client.get("/jobs")).json()["data"]] == ["there"]


# read-only posts with an Idempotency-Key


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/schedules/preview", {"schedule": "0 3 * * *"}),
        ("/schedules/suggest", {"queues": ["default"]}),
        (
            "/jobs/sync",
            {"jobs": [{"handler": "h", "name": "a", "schedule": "manual"}], "declared_by": "a", "dry_run": True},
        ),
        ("/executions/bulk", {"action": "cancel", "filter": {"queue": "q"}, "dry_run": True}),
        ("/jobs/bulk/pause", {"filter": {"queue": "q"}, "dry_run": True}),
    ],
)
async def test_read_only_posts_are_not_recorded(
    client: httpx.AsyncClient, store: Store, path: str, body: dict[str, Any]
) -> None:
    for _ in range(2):
        answered = await client.post(path, json=body, headers={"Idempotency-Key": "once"})
        assert answered.status_code < 300, answered.text
        assert "idempotent-replayed" not in answered.headers

    assert await table(store, "idempotency_key") == []


def test_every_post_for_viewers_is_read_only(parts: ServerRuntime) -> None:
    paths = make_api(parts).openapi()["paths"]
    asked = {path for path, verbs in paths.items() if verbs.get("post", {}).get("x-role") == "viewer"}

    assert asked | {"/api/v1/handlers/check"} == READ_ONLY_POSTS
