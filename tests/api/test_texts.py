"""Any text in any field comes back unchanged, or is refused with a reason; nothing breaks.

A text is put into all fields of a request at once. What is refused has to be named, is taken out, and the rest is sent again:
so every field is kept or refused for itself, in two or three requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.api.conftest import checking_commands
from tests.conftest import FreshDatabase
from timeball.api.app import make_api
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings
from timeball.domain.job_fields import SPEC_FIELDS, Label, Text
from timeball.env import Env
from timeball.runtime import make_server_runtime
from timeball.store.store import Store

NASTY = [
    "\0",
    "a\0b",
    "\ud800",
    "\udfff tail",
    "\u202egnissap\u202c",
    "שלום عالم",
    "👩‍👩‍👧‍👦",
    "\ufeff\ufffe\uffff",
    "\x1b[31mred\x1b[0m\x07",
    "' OR 1=1 --",
    "%00%s{0}{{x}}${x}",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "\r\nX-Evil: 1",
    " ",
    "x" * 201,
    "x" * 20_000,
]
MOMENTS = ("timezone", "schedule", "scheduled_at", "starts_at", "misfire")
# Fields that come back unchanged if they are accepted.
KEPT = [n for n, line in SPEC_FIELDS.items() if isinstance(line.rule, Label | Text) and n not in MOMENTS]
QUERIES = {
    "/jobs": ["search", "payload", "handler", "queue", "tag", "status", "start_date", "cursor", "q"],
    "/executions": ["handler", "queue", "status", "origin", "end_date", "cursor", "q"],
    "/dead-letter": ["fingerprint"],
    "/audit": ["subject", "actor"],
}
PATHS = [
    *("/jobs/{}", "/executions/{}", "/queues/{}", "/workers/{}", "/templates/{}", "/operations/{}", "/handlers/{}"),
    "/calendars/{}",
    *("/executions/{}/logs", "/jobs/{}/next", "/jobs/{}/calendar.ics"),
]
# The route, the other fields of the body, and the fields that get the text.
BODIES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("/templates", {"name": "t", "job": {"handler": "h"}}, ["name", "description"]),
    ("/calendars", {"name": "c", "days": ["sat"]}, ["name", "description"]),
    ("/calendars", {"name": "c"}, ["ics", "country"]),
    ("/jobs/sync", {"jobs": [], "prune": True}, ["declared_by"]),
    ("/jobs/there/pause", {}, ["reason", "until"]),
    ("/queues/q/pause", {}, ["reason"]),
    ("/queues/q/purge", {}, ["confirm"]),
    ("/dead-letter/retry", {}, ["fingerprint"]),
    ("/schedules/preview", {}, ["schedule", "timezone"]),
]
# Refused for other reasons than the text: the name does not exist, or is in use.
OF_THE_WORLD = frozenset({404, 409})

texts = st.text(st.characters(codec=None), max_size=300) | st.text(
    "\0\u202e\u2066\u200f\x1b\r\n\t'\"\\;%_=+-@<>&🎲ß", max_size=40
)


class Asking:
    """Sends requests to the API in this process."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(self, method: str, url: str, body: Any = None) -> httpx.Response:
        """Send a request; checks that the response is a success or a complete problem."""
        # Encoded by hand: half a surrogate pair can be written in JSON, but not in UTF-8.
        content = None if body is None else json.dumps(body).encode()
        response = await self._client.request(
            method, url, content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code < 500, f"{method} {url} {body!r}: {response.text}"
        if response.status_code >= 400:
            problem = response.json()
            assert problem["code"], problem
            assert problem["detail"], problem
        return response

    async def offer(
        self, method: str, url: str, fields: dict[str, Any], rest: Mapping[str, Any] | None = None
    ) -> tuple[httpx.Response, dict[str, Any]]:
        """Send all fields, and again without the refused ones; returns the last response and the accepted fields."""
        while True:
            if method == "GET":
                answer = await self.send(method, str(httpx.URL(url, params=fields)))
            else:
                answer = await self.send(method, url, {**(rest or {}), **fields})
            refused = _refused(answer, fields)
            if not refused:
                return answer, fields
            fields = {name: value for name, value in fields.items() if name not in refused}


def has_half_a_pair(text: str) -> bool:
    return "\\ud" in text or any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def _refused(answer: httpx.Response, fields: Mapping[str, Any]) -> set[str]:
    """The fields that a response refuses; a refusal must name at least one."""
    if answer.is_success or answer.status_code in OF_THE_WORLD or not fields:
        return set()
    if answer.json()["code"] == "invalid_json":
        assert has_half_a_pair(repr(fields)), "only half a surrogate pair is no JSON"
        return set(fields)
    pointers = [error["pointer"] for error in answer.json()["errors"]]
    named = {pointer.removeprefix("query:").strip("/").split("/")[0] for pointer in pointers} & set(fields)
    assert named, f"refused without saying which field: {answer.text}"
    return named


@asynccontextmanager
async def opened_api(dsn: str) -> AsyncIterator[Asking]:
    store = Store(dsn, Env())
    await store.open(migrates=False)
    # More requests than a fast machine sends in a second.
    settings = Settings(api=ApiSettings(requests_per_second=1_000_000, request_burst=1_000_000))
    app = make_api(make_server_runtime(settings, store, checking_commands(settings, store)))
    transport = InProcessTransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080/api/v1", timeout=60) as client:
        yield Asking(client)
    await store.close()


def with_examples(check: Any) -> Any:
    for text in NASTY:
        check = example(text)(check)
    return check


@pytest.mark.slow
def test_any_text_in_any_field_is_kept_or_refused(fresh_database: FreshDatabase) -> None:
    """Fault 33."""
    with asyncio.Runner() as runner:
        api = opened_api(fresh_database.dsn)
        ask = runner.run(api.__aenter__())
        runner.run(ask.send("POST", "/jobs", {"handler": "h", "name": "there"}))

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @with_examples
        @given(text=texts)
        def check(text: str) -> None:
            runner.run(check_everywhere(ask, text))

        check()
        runner.run(api.__aexit__(None, None, None))


async def check_everywhere(ask: Asking, text: str) -> None:
    await check_jobs(ask, text)
    sendable = text.encode("utf-8", "replace").decode()[:300]
    for url, names in QUERIES.items():
        await ask.offer("GET", url, dict.fromkeys(names, sendable))
    quoted = httpx.URL("/", params={"x": sendable}).query.decode().removeprefix("x=").replace("+", "%20")
    for pattern in PATHS:
        await ask.send("GET", pattern.format(quoted or "x"))
    for url, rest, fields in BODIES:
        await ask.offer("POST", url, dict.fromkeys(fields, text), rest)


async def check_jobs(ask: Asking, text: str) -> None:
    rest = {"handler": "h", "max_running": 1}
    wish = dict.fromkeys(KEPT, text) | {"payload": {"a": [text], "b": text}, "tags": [text]}

    made, taken = await ask.offer("POST", "/jobs", wish, rest)

    assert made.status_code == 201, made.text
    assert {name: made.json()[name] for name in taken} == taken
    # A payload is not a label: it may hold everything that the database can.
    assert ("payload" in taken) == ("\0" not in text and not has_half_a_pair(text))
    await ask.send("DELETE", f"/jobs/{made.json()['id']}")
    await ask.offer("POST", "/jobs", dict.fromkeys(MOMENTS, text), rest)
