"""The commands in the README work as they are written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import ServiceMissing, give_up_on

README = Path(__file__).parents[2] / "README.md"
ISSUE: dict[str, Any] = {
    "name": "daily-report",
    "description": "Generate daily sales report",
    "handler": "http.webhook",
    "payload": {"url": "https://api.example.com/reports/generate", "method": "POST"},
    "schedule": "0 6 * * *",
    "priority": 75,
    "max_retries": 3,
    "timeout_ms": 60000,
}


@pytest.fixture(autouse=True)
def has_curl() -> None:
    if shutil.which("curl") is None:
        give_up_on(ServiceMissing("curl is not installed: apt-get install curl"))


def curls(page: Path = README) -> list[str]:
    """Every curl command of a page, with its continuation lines."""
    blocks = re.findall(r"(?s)```sh\n(.*?)```", page.read_text(encoding="utf-8"))
    commands = re.findall(r"(?ms)^curl .*?(?=^\w|\Z)", "\n".join(blocks))
    return [command.strip() for command in commands]


def run(command: str, address: str) -> Any:
    there = command.replace("localhost:8080", address.removeprefix("http://"))
    done = subprocess.run(["sh", "-c", there.replace("curl ", "curl -sS --fail-with-body ", 1)], capture_output=True)
    assert done.returncode == 0, f"{there}\n{done.stdout.decode()}{done.stderr.decode()}"
    return json.loads(done.stdout)


def post(fields: dict[str, Any]) -> str:
    body = json.dumps(fields)
    return f"curl -X POST localhost:8080/api/v1/jobs -H 'Content-Type: application/json' -d '{body}'"


def test_the_curl_lines_of_the_readme_work_one_after_the_other(running_api: str) -> None:
    commands = curls()

    answers = [run(command, running_api) for command in commands]

    assert len(commands) >= 2
    assert answers[0]["schedule"] == "0 6 * * *"


def test_one_request_creates_a_job_of_each_kind(running_api: str) -> None:
    rest = {name: value for name, value in ISSUE.items() if name != "schedule"}

    cron = run(post(ISSUE), running_api)
    once = run(post(rest | {"name": "once", "scheduled_at": "2099-01-01T06:00:00Z"}), running_api)
    every = run(post(rest | {"name": "every", "interval_seconds": 900}), running_api)

    assert [job["kind"] for job in (cron, once, every)] == ["cron", "once", "every"]
    assert {name: cron[name] for name in ISSUE} == ISSUE
    assert once["next_run_at"] == "2099-01-01T06:00:00Z"
    assert every["interval_seconds"] == 900
