"""The API as `timeball up` and `timeball api` serve it: real processes, a real socket, real curl."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.conftest import FreshDatabase
from tests.support.pace import patience

Timeball = Callable[..., subprocess.Popen[str]]

# As in the issue, except for the address.
CURL = (
    "curl -s -X POST %s/api/v1/jobs -H 'Content-Type: application/json' "
    """-d '{"name":"daily-report","description":"Generate daily sales report",\n"""
    """ "handler":"http.webhook","payload":{"url":"https://api.example.com/reports/generate","method":"POST"},"""
    """"schedule":"0 6 * * *","priority":75,"max_retries":3,"timeout_ms":60000}'"""
)


@pytest.fixture
def timeball(fresh_database: FreshDatabase, tmp_path: Path) -> Iterator[Timeball]:
    """Starts the command line on the database of the test."""
    started: list[subprocess.Popen[str]] = []
    own = {"TIMEBALL_DATABASE_URL": fresh_database.dsn, "TIMEBALL_PORT": "0"}

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "timeball", *arguments],
            cwd=tmp_path,
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"API on (http://\S+)/api/v1", line):
            assert "open to the programs of your account" in line
            return match[1]
    raise AssertionError("no address was printed")


@pytest.mark.slow
def test_up_serves_the_api_and_runs_posted_jobs(timeball: Timeball) -> None:
    process = timeball("up")
    address = address_of(process)

    if shutil.which("curl"):
        answer = subprocess.run(CURL % address, shell=True, capture_output=True, check=True).stdout
        assert orjson.loads(answer)["schedule"] == "0 6 * * *"
    with httpx.Client(base_url=f"{address}/api/v1", timeout=60) as client:
        posted = client.post("/jobs", json={"handler": "test.echo", "payload": {"x": 1}}).json()
        deadline = time.monotonic() + 30
        while (run := client.get(f"/executions/{posted['execution_id']}").json())["state"] != "succeeded":
            assert time.monotonic() < deadline, run
            time.sleep(0.05)
        assert client.get("/health").json()["status"] in ("ok", "warn")

        key = orjson.loads(
            timeball("keys", "create", "--role", "viewer", "--expires", "90d", "--json").communicate()[0]
        )
        assert client.get("/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {key['token']}"}
        assert client.get("/jobs", headers=headers).status_code == 200
        assert client.post("/jobs", json={"handler": "h"}, headers=headers).status_code == 403
        listed = timeball("keys", "list").communicate()[0]
        assert key["id"] in listed
        assert key["token"] not in listed
        assert "revoked" in timeball("keys", "revoke", key["id"]).communicate()[0]
        assert client.get("/jobs", headers=headers).status_code == 401

    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0


@pytest.mark.slow
def test_security_1_another_address_refuses_to_start_without_keys(timeball: Timeball) -> None:
    refused = timeball("api", "--host", "0.0.0.0")
    _, words = refused.communicate(timeout=patience(45))

    assert refused.returncode == 2
    assert "without any key" in words
    assert "timeball keys create" in words


@pytest.mark.slow
def test_a_port_in_use_is_reported_in_three_lines(timeball: Timeball) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = timeball("api", "--port", str(taken.getsockname()[1]))
        _, words = refused.communicate(timeout=patience(45))

    assert refused.returncode == 2
    assert "cannot listen" in words
    assert "Traceback" not in words


@pytest.mark.slow
def test_api_alone_ends_with_a_signal(timeball: Timeball) -> None:
    process = timeball("api")
    address = address_of(process)

    assert httpx.get(f"{address}/api/v1/health/ready", timeout=60).status_code == 200
    process.send_signal(signal.SIGTERM)

    assert process.wait(120) == 0


@pytest.mark.slow
def test_every_line_of_a_log_in_json_is_json_from_the_first_to_the_last(timeball: Timeball) -> None:
    process = timeball("up", TIMEBALL_LOG_FORMAT="json")
    assert process.stderr is not None
    lines: list[str] = []
    # The API has a process of its own, and may start before the nodes or after them.
    while not all(any(event in line for line in lines) for event in ("api.started", "node.started")):
        lines.append(process.stderr.readline())
        assert lines[-1], "it ended before it served"
    process.send_signal(signal.SIGTERM)
    lines += process.stderr.readlines()

    events = [orjson.loads(line)["event"] for line in lines]
    assert {"api.started", "node.started", "node.stopped", "api.stopped"} <= set(events)
    assert process.wait(120) == 0
