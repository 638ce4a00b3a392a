"""Timeball inside another web application."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.sdk.conftest import ON_ONE_SERVER, SOURCES
from tests.support.pace import patience
from timeball import Settings, Timeball
from timeball.sdk import embedding
from timeball.telemetry.events import ServiceFailed, TelemetryEvent

EXAMPLES = Path(__file__).parents[2] / "examples"
STAFF = {"x-staff": "ada@example.com"}

pytestmark = ON_ONE_SERVER


@pytest.fixture
def web(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The application of the example, with the test's database."""
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", settings.database_url or "")
    monkeypatch.setenv("TIMEBALL_MIGRATE", "false")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.delitem(sys.modules, "web_app", raising=False)
    import web_app

    with TestClient(web_app.app, base_url="http://localhost") as client:
        yield client
    sys.modules.pop("web_app", None)


def test_an_application_runs_a_worker_and_mounts_the_dashboard(web: TestClient) -> None:
    ordered = web.post("/orders/42")
    assert ordered.json()["receipt"] == "receipt 42 -> a@b.co"

    seen = web.get(f"/timeball/api/v1/executions/{ordered.json()['execution']}", headers=STAFF)
    assert seen.json()["state"] == "succeeded"
    response = web.post("/timeball/api/v1/jobs", json={"handler": "test.echo", "name": "x"}, headers=STAFF)
    assert response.status_code == 201
    page = web.get("/timeball/jobs", headers=STAFF)
    assert page.status_code == 200
    assert "/timeball/static/" in page.text


async def test_the_hooks_of_a_process_surround_the_nodes_of_an_application(settings: Settings) -> None:
    notes: list[str] = []
    with Timeball(settings=settings) as tb:
        tb.on_worker_start(lambda: notes.append("start"))
        tb.on_worker_stop(lambda: notes.append("stop"))

        async with tb.lifespan(scheduler=True)(None):
            assert notes == [], "a scheduler runs no handlers"
        async with tb.lifespan(worker=True)(None):
            assert notes == ["start"]

    assert notes == ["start", "stop"]


async def test_a_worker_process_is_not_started_by_a_hook_that_raises(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked.py").write_text(
        "from timeball import Timeball\n"
        "tb = Timeball()\n"
        "@tb.on_worker_start\n"
        "def open_model():\n"
        "    raise ConnectionError('no model')\n"
    )
    environment = {"TIMEBALL_DATABASE_URL": settings.database_url or "", "PYTHONPATH": f"{SOURCES}:{tmp_path}"}

    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "timeball", "worker", "hooked:tb"),
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(patience(60)):
        output, _ = await worker.communicate()

    assert worker.returncode != 0
    assert b"no model" in output
    assert b"hooked:open_model, which @tb.on_worker_start has registered" in output


def test_a_mounted_dashboard_needs_authentication(web: TestClient) -> None:
    assert web.get("/timeball/api/v1/jobs").status_code == 401
    assert web.get("/timeball/api/v1/jobs", headers={"Authorization": "Bearer tb_wrong"}).status_code == 401
    assert "daily" not in web.get("/timeball/jobs", follow_redirects=False).text


def test_callers_of_the_host_application_have_their_own_names(web: TestClient) -> None:
    grace = {"x-staff": "grace@example.com"}
    job = {"handler": "test.echo", "name": "named", "interval_seconds": 3600}
    once = {"Idempotency-Key": "the same word"}

    first = web.post("/timeball/api/v1/jobs", json=job, headers=STAFF | once)
    # Another caller may use the same key for another request.
    second = web.post("/timeball/api/v1/jobs", json=job | {"name": "other"}, headers=grace | once)
    token = re.search(r'name="form-token" content="([0-9a-f]+)"', web.get("/timeball/jobs", headers=grace).text)
    assert token is not None
    paused = web.post("/timeball/jobs/named/pause", data={"token": token[1]}, headers=grace, follow_redirects=False)

    assert (first.status_code, second.status_code, paused.status_code) == (201, 201, 303)
    rows = web.get("/timeball/api/v1/audit", headers=STAFF).json()["data"]
    entries = {(row["action"], row["actor"], row["place"].partition(" ")[0]) for row in rows}
    assert entries >= {
        ("job.create", "host:ada@example.com", "http"),
        ("job.create", "host:grace@example.com", "http"),
        ("job.pause", "host:grace@example.com", "dashboard"),
    }


class Nodes:
    """Nodes that fail, are cancelled, or go on."""

    def __init__(self, ends: list[Exception | None]) -> None:
        self._ends = ends
        self.running = asyncio.Event()
        self._stopped = asyncio.Event()

    def make(self) -> Any:
        return self

    async def run(self) -> None:
        if self._ends and (error := self._ends.pop(0)) is not None:
            raise error
        self.running.set()
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


@pytest.mark.usefixtures("settings")
async def test_embedded_nodes_that_fail_or_are_cancelled_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_PAUSE", timedelta(0))
    events: list[TelemetryEvent] = []
    nodes = Nodes([ZeroDivisionError("a bug"), None])
    hosted = embedding._EmbeddedNodes(nodes.make, events.append)

    hosted.begin()
    async with asyncio.timeout(30):
        await nodes.running.wait()
        nodes.running.clear()
        # Like a handler that cancels every task of the loop.
        assert hosted._task is not None
        hosted._task.cancel()
        await nodes.running.wait()
        await hosted.stop()

    failures = [(event.service, event.error, event.failures) for event in events if isinstance(event, ServiceFailed)]
    assert failures == [
        ("nodes", "ZeroDivisionError: a bug", 1),
        ("nodes", "CancelledError: the task was cancelled", 2),
    ]
