"""What a request may cost: nothing is read before the caller may send it, and what is read is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message

from tests.api.conftest import ROLES
from tests.api.test_access import ROUTES
from tests.api.test_conventions import check_problem
from timeball.api.app import make_api
from timeball.api.door import DEEPEST, _has_more_values, _is_too_deep
from timeball.dashboard.app import make_front
from timeball.dashboard.pages import every_page
from timeball.wiring import FrontParts

MakeKey = Callable[[str], Awaitable[dict[str, str]]]


async def ask_without_body(
    app: ASGIApp, method: str, path: str, headers: dict[str, str], content_type: str = "application/json"
) -> tuple[int, bool]:
    """The status of an answer, and whether the body was asked for; its first byte never comes."""
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
    """The path of a route, with something in its places."""
    names = ("job", "execution", "queue", "node", "handler", "template", "operation")
    return pattern.format(**dict.fromkeys(names, "x"), action="pause")


async def test_security_3_no_byte_of_a_body_is_read_before_the_role_is_known(
    parts: FrontParts, make_key: MakeKey
) -> None:
    keys = {role: await make_key(role) for role in ROLES} | {"none": {}}
    app = make_api(parts)
    order = ["none", *ROLES]

    for method, pattern, _, least, _ in ROUTES:
        if method not in ("POST", "PUT", "PATCH"):
            continue
        for role in order[: order.index(least)]:
            status, asked = await ask_without_body(app, method, f"/api/v1{filled(pattern)}", keys[role])
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
async def test_no_byte_is_read_of_a_body_that_no_route_takes(
    parts: FrontParts, method: str, path: str, status: int
) -> None:
    answered, asked = await ask_without_body(make_api(parts), method, path, {})

    assert (answered, asked) == (status, False)


async def test_security_3_no_form_is_read_before_the_role_is_known(parts: FrontParts, make_key: MakeKey) -> None:
    await make_key("admin")
    viewer = (await make_key("viewer"))["Authorization"].removeprefix("Bearer ")
    session = await parts.sessions.begin(viewer.split("_")[1])
    app = make_front(parts)
    # These two are how strangers come in and go.
    posts = [route for route in every_page() if "POST" in (route.methods or ()) and route.path[:4] != "/log"]
    refused = 0

    for route in posts:
        path = route.path.replace("{", "").replace("}", "")
        form = "application/x-www-form-urlencoded"
        stranger = await ask_without_body(app, "POST", path, {}, form)
        assert stranger == (401, False), route.path
        low = await ask_without_body(app, "POST", path, {"cookie": f"timeball_session={session}"}, form)
        # Previews are for viewers: their forms are asked for.
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
    monkeypatch.setattr("timeball.api.door.orjson.loads", lambda body: parsed.append(body))

    ordinary = await client.post("/jobs", content=b"[" + b"1," * 300_000 + b"1]")
    bulk = await client.post("/jobs/bulk", content=b"[" + b"[]," * 600_000 + b"1]")

    check_problem(ordinary, 413, "too_many_values")
    check_problem(bulk, 413, "too_many_values")
    assert parsed == []


async def test_texts_full_of_commas_are_no_values(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs", json={"handler": "h", "payload": {"a": "," * 250_000}})

    assert response.status_code == 201


@pytest.mark.parametrize("excess", [0, 1])
def test_depth_is_counted_outside_of_texts(excess: int) -> None:
    depth = DEEPEST + excess
    body = b"[" * depth + b'"]}[["' + b"]" * depth

    assert _is_too_deep(body) is bool(excess)
