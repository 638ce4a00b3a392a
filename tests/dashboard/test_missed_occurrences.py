"""Everything was stopped for 55 seconds under a job that runs every five: every door says that five were missed, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import run
from tests.conftest import FreshDatabase
from tests.dashboard.conftest import Browser
from tests.engine.support import create, start_scheduler, start_worker
from tests.support.factories import seconds
from timeball.client.in_process import InProcessTransport
from timeball.dashboard.app import make_web_app
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing.environment import START

SPAN = {"from": START.isoformat(), "until": (START + seconds(72)).isoformat()}


@pytest.fixture
async def silence(store: Store) -> None:
    node, worker = await start_scheduler(store), await start_worker(store)
    await create(store, name="beat", interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    await store.rollups.fold()


@pytest.fixture
async def http(parts: ServerRuntime) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=InProcessTransport(make_web_app(parts)), base_url="http://localhost:8080"
    ) as client:
        yield client


@pytest.mark.usefixtures("silence")
async def test_every_door_says_that_five_were_missed(
    store: Store,
    http: httpx.AsyncClient,
    browser: Browser,
    fresh_database: FreshDatabase,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", fresh_database.dsn)
    monkeypatch.setenv("TIMEBALL_MIGRATE", "false")
    monkeypatch.chdir(tmp_path)

    entries = (await http.get("/api/v1/jobs/beat/occurrences", params=SPAN | {"verdict": "skipped"})).json()["data"]
    span = ("--since", SPAN["from"], "--until", SPAN["until"])
    command = await asyncio.to_thread(run, "ledger", "beat", *span, "--verdict", "skipped", "-o", "json")
    page = (await browser.get("/jobs/beat", params={"tab": "ledger"})).text
    timeline = (await http.get("/api/v1/timeline", params={"from": SPAN["from"], "to": SPAN["until"]})).json()
    drawing = (await browser.get("/timeline", params={"span": "1h"})).text
    stats = (await http.get("/api/v1/stats", params={"job": "beat"})).json()
    metrics = (await http.get("/metrics")).text
    attention = (await http.get("/api/v1/attention")).json()["data"]
    live = (await browser.get("/")).text

    assert [(entry["count"], entry["reason"]) for entry in entries] == [(5, "misfire")]
    assert [(entry["count"], entry["reason"]) for entry in json.loads(command.out)] == [(5, "misfire")]
    assert "5 missed, misfire" in page
    (row,) = timeline["rows"]
    skips = [mark for mark in row["marks"] if mark["kind"] == "skipped"]
    assert [(mark["count"], mark["states"]) for mark in skips] == [(5, {"misfire": 5})]
    assert "5 missed, misfire" in drawing
    assert stats["total"]["occurrences"] == {"ran": 9, "skipped": {"misfire": 5}}
    assert 'timeball_occurrences_total{reason="misfire",verdict="skipped"} 5.0' in metrics
    (concern,) = [one for one in attention if one["code"] == "missed"]
    assert concern["sentence"] == "beat: 5 missed, misfire, in the last 24 hours"
    assert concern["sentence"] in live
    assert (await verify(store.database, store.env.clock.now(), second_look=seconds(0))).holds
