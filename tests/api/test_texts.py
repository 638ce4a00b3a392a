"""Whatever text is sent, in whatever field: it comes back as it was, or is refused with a reason; nothing breaks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
# Where a text goes in, how it comes back (None: it need not).
JOB_TEXTS = {
    "name": "name",
    "description": "description",
    "handler": "handler",
    "queue": "queue",
    "limit_key": "limit_key",
    "unique_key": "unique_key",
    "timezone": None,
    "schedule": None,
    "scheduled_at": None,
    "starts_at": None,
    "misfire": None,
}
QUERIES = {
    "/jobs": ["search", "payload", "handler", "queue", "tag", "status", "start_date", "cursor", "q"],
    "/executions": ["handler", "queue", "status", "origin", "end_date", "cursor", "q"],
    "/dead-letter": ["fingerprint"],
    "/audit": ["subject", "actor"],
}
PATHS = ["/jobs/{}", "/executions/{}", "/queues/{}", "/workers/{}", "/templates/{}", "/operations/{}", "/handlers/{}"]
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("/templates", "name", {"job": {"handler": "h"}}),
    ("/templates", "description", {"name": "t", "job": {"handler": "h"}}),
    ("/jobs/sync", "declared_by", {"jobs": [], "prune": True}),
    ("/jobs/there/pause", "reason", {}),
    ("/jobs/there/pause", "until", {}),
    ("/queues/q/pause", "reason", {}),
    ("/queues/q/purge", "confirm", {}),
    ("/dead-letter/retry", "fingerprint", {}),
    ("/schedules/preview", "schedule", {}),
    ("/schedules/preview", "timezone", {"schedule": "0 6 * * *"}),
]

texts = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(NASTY)


def send(client: httpx.Client, method: str, url: str, body: Any = None) -> httpx.Response:
    # By hand: half a surrogate pair can be written in JSON, though not in UTF-8.
    content = None if body is None else json.dumps(body).encode()
    response = client.request(method, url, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code < 500, f"{method} {url} {body!r}: {response.text}"
    if response.status_code >= 400:
        problem = response.json()
        assert problem["code"], problem
        assert problem["detail"], problem
    return response


def with_examples(check: Any) -> Any:
    for text in NASTY:
        check = example(text)(check)
    return check


@pytest.mark.slow
def test_any_text_in_any_field_is_kept_or_refused(running_api: str) -> None:
    with httpx.Client(base_url=f"{running_api}/api/v1", timeout=60) as client:
        send(client, "POST", "/jobs", {"handler": "h", "name": "there"})

        @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @with_examples
        @given(text=texts)
        def check(text: str) -> None:
            check_jobs(client, text)
            check_reads(client, text)
            for url, field, rest in BODIES:
                send(client, "POST", url, rest | {field: text})

        check()


def check_jobs(client: httpx.Client, text: str) -> None:
    for field, shown_as in JOB_TEXTS.items():
        made = send(client, "POST", "/jobs", {"handler": "h", "max_running": 1, field: text})
        if made.status_code == 201 and shown_as is not None:
            assert made.json()[shown_as] == text
            client.delete(f"/jobs/{made.json()['id']}")
    for field, value in (("payload", {"a": [text], "b": text}), ("tags", [text])):
        made = send(client, "POST", "/jobs", {"handler": "h", field: value})
        if made.status_code == 201:
            assert made.json()[field] == value


def check_reads(client: httpx.Client, text: str) -> None:
    sendable = text.encode("utf-8", "replace").decode()
    for url, names in QUERIES.items():
        for name in names:
            send(client, "GET", str(httpx.URL(url, params={name: sendable[:300]})))
    for pattern in PATHS:
        quoted = httpx.URL("/", params={"x": sendable[:300]}).query.decode().removeprefix("x=").replace("+", "%20")
        send(client, "GET", pattern.format(quoted or "x"))
