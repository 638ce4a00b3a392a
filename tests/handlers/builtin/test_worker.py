"""The handlers in the box as a real worker runs them: settings from the environment, payloads and results in the database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.engine.runners.support import patience, until
from tests.handlers.builtin.support import RudeServer, answer, rude_server
from tests.support import pace
from timeball.api.app import make_api
from timeball.api.server import OperationLoop
from timeball.application.commands.requests import LOCAL, Actor
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import load_settings
from timeball.domain.backfill import Backfill, BackfillSource
from timeball.domain.execution import Execution
from timeball.domain.job_fields import JobSpec
from timeball.runtime import Runtime, make_server_runtime, open_runtime

CANARY, BOUND = "S3cret-canary-4711", "S3cret-bound-4712"
pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


@pytest.fixture
async def server() -> AsyncIterator[RudeServer]:
    async with rude_server() as rude:
        yield rude


@pytest.fixture
async def parts(fresh_database) -> AsyncIterator[Runtime]:
    async with open_runtime(load_settings(database_url=fresh_database.dsn)) as made:
        yield made


@pytest.fixture
async def worker_log(fresh_database, server: RudeServer, tmp_path: Path) -> AsyncIterator[Path]:
    """A worker that may reach the server and run /bin/sh; yields its log."""
    environment = dict(
        os.environ,
        TIMEBALL_DATABASE_URL=fresh_database.dsn,
        TIMEBALL_WEBHOOK_ALLOW=f"127.0.0.1:{server.port}",
        TIMEBALL_FILES_ROOT=str(tmp_path / "files"),
        TIMEBALL_SHELL_ENABLED="true",
        TIMEBALL_SHELL_PROGRAMS="/bin/sh",
        TIMEBALL_SHELL_ENV="TOKEN",
        TIMEBALL_SECRET_CANARY=CANARY,
        TIMEBALL_SECRET_BOUND=BOUND,
        TIMEBALL_SECRET_BOUND_HOSTS="127.0.0.1",
        TIMEBALL_LOG_LEVEL="debug",
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "timeball", "worker"], env=environment, cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=pace.patience(30)) == 0, log.read_text()
        assert "Unclosed" not in log.read_text()


async def finished(parts: Runtime, handler: str, payload: dict[str, Any], actor: Actor = LOCAL) -> Execution:
    created = await parts.commands.jobs.create(JobSpec(handler=handler, payload=payload, max_retries=0), actor=actor)
    assert created.execution_id is not None
    async with patience(f"{handler} ends"):
        while True:
            found = await parts.store.history.find(created.execution_id)
            assert found is not None
            if found.state.is_final:
                return found
            await asyncio.sleep(0.02)


async def all_rows(parts: Runtime) -> str:
    """Everything the database holds, as text."""
    async with parts.store.database.connection() as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'timeball'")
        rows = [
            row["text"]
            for table in tables
            for row in await connection.fetch(f'SELECT t::text AS text FROM timeball."{table["tablename"]}" t')
        ]
    return "\n".join(rows)


async def all_answers(parts: Runtime) -> str:
    """Everything the API tells about it, as text."""
    api = make_api(make_server_runtime(parts.settings, parts.store, parts.commands))
    transport = InProcessTransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
        executions = (await client.get("/executions")).json()["data"]
        paths = [f"/executions/{one['id']}{tail}" for one in executions for tail in ("", "/logs", "/explain")]
        paths += [f"/jobs/{one['job_id']}" for one in executions]
        for format_ in ("csv", "jsonl"):
            paths += [f"/jobs/export?format={format_}", f"/executions/export?format={format_}"]
        paths += ["/jobs", "/executions", "/dead-letter", "/dead-letter/groups", "/audit", "/handlers", "/operations"]
        answers = [await client.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    return "\n".join(answer.text for answer in answers)


async def test_a_worker_runs_what_comes_in_the_box_and_keeps_no_secret(parts, server, worker_log, tmp_path):
    async def echo(request, writer):
        writer.write(answer("200 OK", request.headers["authorization"].encode()))

    async def reject(request, writer):
        writer.write(answer("403 No", request.headers["authorization"].encode()))

    secret = {"$secret": "CANARY"}
    headers = {"Authorization": secret}
    script = 'echo "$TOKEN"; echo "$TOKEN" >&2; exit 3'

    sent = await finished(parts, "http.webhook", {"url": server.on("/ok", echo), "headers": headers})
    dead = await finished(parts, "http.webhook", {"url": server.on("/no", reject), "headers": headers})
    command = {"command": "/bin/sh", "args": ["-c", script], "env": {"TOKEN": secret}}
    failed = await finished(parts, "shell.command", command)
    written = await finished(parts, "file.write", {"path": "a/b.txt", "content": "hello"})
    refused = await finished(parts, "http.webhook", {"url": "http://127.0.0.1:1/", "method": "GET"})

    states = [execution.state.value for execution in (sent, dead, failed, written, refused)]
    assert states == ["succeeded", "dead", "dead", "succeeded", "dead"]
    assert "exit code 3" in (failed.error or "")
    assert sent.result["body"] == "[secret]"
    assert "which is not public" in (refused.error or "")
    assert (tmp_path / "files/a/b.txt").read_text() == "hello"
    assert server.requests[0].headers["authorization"] == CANARY
    assert server.requests[0].headers["idempotency-key"].startswith("exe_")
    kept = await all_rows(parts) + worker_log.read_text()
    assert "CANARY" in kept
    assert CANARY not in kept
    told = await all_answers(parts)
    assert '"$secret":"CANARY"' in told
    assert CANARY not in told
    assert isinstance(sent.id, UUID)


async def test_a_backfill_of_three_days_sends_three_different_requests(parts, server, worker_log):
    url = server.on("/report", answer())
    job = JobSpec(
        name="report",
        handler="http.webhook",
        payload={
            "url": url,
            "json": {"file": {"$text": "report-{scheduled_date}.csv"}, "since": {"$now": "previous_scheduled_for"}},
        },
        schedule="30 23 * * *",
        timezone="America/New_York",
    )
    created = await parts.commands.jobs.create(job)
    days = [datetime(2026, 3, number, 12, tzinfo=UTC) for number in (7, 10)]

    await parts.commands.backfills.start(
        Backfill(job_id=created.job_id, since=days[0], until=days[1], by=BackfillSource.PRESENT, max_running=3)
    )
    await OperationLoop(parts.commands, parts.store.env.new_id()).round()
    await until(lambda: len(server.requests) == 3, "three requests arrive")

    requests = sorted(server.requests, key=lambda request: request.headers["timeball-scheduled-for"])
    assert [request.headers["timeball-scheduled-for"] for request in requests] == [
        "2026-03-08T04:30:00Z",
        "2026-03-09T03:30:00Z",
        "2026-03-10T03:30:00Z",
    ], "the clocks of New York went forward on the second day"
    assert [json.loads(request.body) for request in requests] == [
        {"file": "report-2026-03-07.csv", "since": "2026-03-07T04:30:00Z"},
        {"file": "report-2026-03-08.csv", "since": "2026-03-08T04:30:00Z"},
        {"file": "report-2026-03-09.csv", "since": "2026-03-09T03:30:00Z"},
    ]
    assert {request.headers["timeball-origin"] for request in requests} == {"backfill"}
    assert {request.headers["timeball-job"] for request in requests} == {"report"}
    assert len({request.headers["timeball-execution"] for request in requests}) == 3


async def test_an_editors_webhook_gets_no_secret_that_is_not_bound_to_its_host(parts, server, worker_log):
    async def take(_request, writer):
        writer.write(answer("200 OK"))

    editor = Actor("editor", is_administrator=False, author="editor")
    url = server.on("/x", take)

    def naming(name: str) -> dict[str, Any]:
        return {"url": url, "headers": {"X-Leak": {"$secret": name}}}

    refused = await finished(parts, "http.webhook", naming("CANARY"), editor)
    bound = await finished(parts, "http.webhook", naming("BOUND"), editor)
    own = await finished(parts, "http.webhook", naming("CANARY"))

    assert [each.state.value for each in (refused, bound, own)] == ["dead", "succeeded", "succeeded"]
    assert "the secret CANARY is bound to no hosts" in (refused.error or "")
    assert "set TIMEBALL_SECRET_CANARY_HOSTS on the worker" in (refused.error or "")
    assert [request.headers["x-leak"] for request in server.requests] == [BOUND, CANARY]
    async with parts.store.database.connection() as connection:
        notes = await connection.fetch(
            "SELECT after ->> 'name' AS name FROM timeball.audit WHERE action = 'secret.use' ORDER BY id"
        )
    assert [note["name"] for note in notes] == ["BOUND", "CANARY"]
    assert CANARY not in await all_rows(parts) + worker_log.read_text()
