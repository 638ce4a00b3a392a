"""Timeball inside another web application."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.app.conftest import ON_ONE_SERVER
from timeball import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
STAFF = {"x-staff": "ada@example.com"}

pytestmark = ON_ONE_SERVER


@pytest.fixture
def web(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The example, on the test's database."""
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", settings.database_url or "")
    monkeypatch.setenv("TIMEBALL_MIGRATE", "false")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.delitem(sys.modules, "web_app", raising=False)
    import web_app

    with TestClient(web_app.app, base_url="http://localhost") as client:
        yield client
    sys.modules.pop("web_app", None)


def test_an_application_runs_its_own_work_and_shows_it_under_a_prefix(web: TestClient) -> None:
    ordered = web.post("/orders/42")
    assert ordered.json()["receipt"] == "receipt 42 -> a@b.co"

    seen = web.get(f"/timeball/api/v1/executions/{ordered.json()['execution']}", headers=STAFF)
    assert seen.json()["state"] == "succeeded"
    made = web.post("/timeball/api/v1/jobs", json={"handler": "test.echo", "name": "x"}, headers=STAFF)
    assert made.status_code == 201
    page = web.get("/timeball/jobs", headers=STAFF)
    assert page.status_code == 200
    assert "/timeball/static/" in page.text


def test_nothing_is_open_in_an_application_whose_address_we_do_not_know(web: TestClient) -> None:
    assert web.get("/timeball/api/v1/jobs").status_code == 401
    assert web.get("/timeball/api/v1/jobs", headers={"Authorization": "Bearer tb_wrong"}).status_code == 401
    assert "daily" not in web.get("/timeball/jobs", follow_redirects=False).text


def test_people_of_the_host_application_have_names_of_their_own(web: TestClient) -> None:
    grace = {"x-staff": "grace@example.com"}
    made = {"handler": "test.echo", "name": "named", "interval_seconds": 3600}
    once = {"Idempotency-Key": "the same word"}

    first = web.post("/timeball/api/v1/jobs", json=made, headers=STAFF | once)
    # Another person may use the same key for something else.
    second = web.post("/timeball/api/v1/jobs", json=made | {"name": "other"}, headers=grace | once)
    token = re.search(r'name="form-token" content="([0-9a-f]+)"', web.get("/timeball/jobs", headers=grace).text)
    assert token is not None
    paused = web.post("/timeball/jobs/named/pause", data={"token": token[1]}, headers=grace, follow_redirects=False)

    assert (first.status_code, second.status_code, paused.status_code) == (201, 201, 303)
    rows = web.get("/timeball/api/v1/audit", headers=STAFF).json()["data"]
    told = {(row["action"], row["actor"], row["place"].partition(" ")[0]) for row in rows}
    assert told >= {
        ("job.create", "host:ada@example.com", "http"),
        ("job.create", "host:grace@example.com", "http"),
        ("job.pause", "host:grace@example.com", "dashboard"),
    }
