"""The attacks of SECURITY.md's table on the API, repeated: hostile parameters, forged cursors, hostile bodies, broken HTTP."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import orjson
import pytest

from tests.api.conftest import checking_commands
from tests.support.factories import enqueue, make_job
from timeball.api.app import make_api
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store

HOSTILE = (
    "'",
    "' OR '1'='1",
    "'; DROP TABLE timeball.job; --",
    "\\",
    "%",
    "$1",
    ":name",
    "{{7*7}}",
    "${7*7}",
    "../../etc/passwd",
    "\x00",
    "\x1b[2J",
    "\u202e",
    "a" * 5_000,
    "-1",
    "0",
    "1e309",
    "99999999999999999999",
    "NaN",
    "null",
    "[]",
    "{}",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "status:dead AND (",
    "payload.a.b.c=1",
)
FORGED = (
    "x",
    "AAAA",
    "eyJhIjoxfQ==",
    orjson.dumps({"v": 1}).decode(),
    "../..",
    "'",
    "%00",
    "0" * 3_000,
    "1:2:3:4",
    "-1:-1:",
)


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """A client without rate limits, which would otherwise respond instead of the routes."""
    settings = Settings(api=ApiSettings(request_burst=1e9, requests_per_second=1e9))
    api = make_api(make_server_runtime(settings, store, checking_commands(settings, store)))
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(
        transport=InProcessTransport(api), base_url="http://localhost:8080/api/v1", headers=headers
    ) as opened:
        yield opened


def reads(parts: ServerRuntime) -> list[tuple[str, list[str]]]:
    """Every GET route with its parameters."""
    return [
        (
            path.removeprefix("/api/v1"),
            [one["name"] for one in verbs["get"].get("parameters", []) if one["in"] == "query"],
        )
        for path, verbs in make_api(parts).openapi()["paths"].items()
        if "get" in verbs
    ]


async def test_hostile_parameters_break_no_read(client: httpx.AsyncClient, parts: ServerRuntime, store: Store) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *")
    execution = await enqueue(store)
    known = {"job": str(job.id), "execution": str(execution), "queue": "default", "handler": "test.echo"}
    tried = 0

    for pattern, parameters in reads(parts):
        path = "/".join(
            known.get(step.strip("{}").partition(":")[0], "x") if step.startswith("{") else step
            for step in pattern.split("/")
        )
        for parameter in parameters:
            for value in HOSTILE:
                wait = {"wait": "0s"} if path == "/events" and parameter != "wait" else {}
                answered = await client.get(
                    path, params={parameter: value, **wait}, headers={"Accept": "application/json"}
                )
                assert answered.status_code < 500, (path, parameter, value, answered.text)
                tried += 1
        unknown = await client.get(path, params={"no_such_parameter": "1"})
        assert unknown.status_code < 500
    assert tried > 1_000
    assert (await client.get("/jobs/nightly")).status_code == 200


async def test_hostile_paths_are_taken_as_names(client: httpx.AsyncClient, parts: ServerRuntime) -> None:
    for pattern, _ in reads(parts):
        if "{" in pattern:
            for value in HOSTILE:
                path = "/".join(quote(value, safe="") if step.startswith("{") else step for step in pattern.split("/"))
                assert (await client.get(path)).status_code < 500, path


async def test_a_forged_cursor_is_refused(client: httpx.AsyncClient, parts: ServerRuntime) -> None:
    tried = 0
    for pattern, parameters in reads(parts):
        for parameter in {"cursor", "since"} & set(parameters):
            if "{" in pattern:
                continue
            for value in FORGED:
                given = {parameter: value} | ({"wait": "0s"} if pattern == "/events" else {})
                answered = await client.get(pattern, params=given, headers={"Accept": "application/json"})
                assert 400 <= answered.status_code < 500, (pattern, value, answered.text)
                tried += 1
    assert tried > 50


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"handler":' * 20_000,
        b'{"handler": "h", "payload": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"handler": "h", "priority": 1e400}',
        b'{"handler": "h", "priority": 99999999999999999999999}',
        b'{"handler": "h", "priority": ' + b"9" * 10_000 + b"}",
        b'{"handler": "h", "priority": {"a": [99999999999999999999999]}}',
        b'{"handler": "h", "payload": NaN}',
        b'{"handler": "h", "name": "\\ud800"}',
        b'{"handler": "h", "name": "\\u0000"}',
        b'{"handler": ["h"]}',
        b'{"handler": {"$ne": null}}',
        b'"text"',
        b"null",
        b"7",
        b"",
        b"\xff\xfe",
        b"{" + b",".join(b'"k%d": 1' % number for number in range(20_000)) + b"}",
    ],
)
async def test_a_hostile_body_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/jobs", "/jobs/bulk", "/jobs/sync", "/schedules/preview", "/executions/bulk"):
        answered = await client.post(path, content=body)

        assert 400 <= answered.status_code < 500, (path, answered.text[:300])


# below HTTP


def sent(address: str, raw: bytes) -> bytes:
    """Everything that a server responds to some bytes, until it closes or stays silent."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 80), 30) as connection:
        # The server may close before it has read all; closing then fails with a plain OSError.
        with suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        heard = b""
        deadline = time.monotonic() + 30
        # The server may close while there is more to read.
        with suppress(ConnectionResetError):
            while time.monotonic() < deadline and (chunk := connection.recv(65_536)):
                heard += chunk
    return heard


POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"handler":"test.echo","name":"smuggled"}'
SMUGGLED = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.mark.parametrize(
    "raw",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        POST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n29\r\n" + BODY + b"\r\n0\r\n\r\n",
        POST + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\x0b\r\n\r\n",
        b"GET /api/v1/jobs HTTP/1.1\r\n\r\n",
        b"GET http://evil.example/api/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /static/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /static//etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
)
def test_broken_http_is_refused_without_effect(running_api: str, raw: bytes) -> None:
    heard = sent(running_api, raw)

    assert b" 200 " not in heard.partition(b"\r\n")[0]
    assert b"root:" not in heard
    jobs: list[dict[str, Any]] = httpx.get(f"{running_api}/api/v1/jobs").json()["data"]
    assert [job["name"] for job in jobs] == []
