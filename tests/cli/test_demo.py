"""What `timeball up --demo` shows: something that runs, and something that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cli.conftest import Cli
from tests.support.pace import patience
from timeball import Client
from timeball.client.types import Execution

T = TypeVar("T")


@pytest.fixture
def demo(cli: Cli, tmp_path: Path) -> Iterator[str]:
    """The address of a demo."""
    process = subprocess.Popen(
        [sys.executable, "-m", "timeball", "up", "--demo"],
        cwd=tmp_path,
        env=os.environ | {"TIMEBALL_PORT": "0", "TIMEBALL_LOG_FORMAT": "json"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        events = (json.loads(line) for line in process.stderr)
        yield next(event["address"] for event in events if event["event"] == "api.started")
    finally:
        process.terminate()
        process.communicate(timeout=patience(60))


@pytest.mark.slow
def test_the_demo_beats_and_its_failing_job_dies(demo: str) -> None:
    with Client(demo) as timeball:
        assert {job.name for job in timeball.jobs.iterate(tag="demo") if job.name} == {
            "demo-heartbeat",
            "demo-report",
            "demo-failing",
        }
        # One try is enough to see: back-off is tested elsewhere.
        timeball.jobs.update("demo-failing", max_retries=0)

        failed = timeball.executions.wait(timeball.jobs.trigger("demo-failing").id, timeout=120)
        beat = timeball.executions.wait(timeball.jobs.trigger("demo-heartbeat").id, timeout=120)

        assert (beat.state, first_words(timeball, beat.id)) == ("succeeded", "still alive")
        assert (failed.state, failed.error) == ("dead", "the demo fails on purpose")
        assert failed.id in [one.id for one in timeball.dead_letters.iterate()]
        assert scheduled_beat(timeball).state == "succeeded"


def scheduled_beat(timeball: Client) -> Execution:
    """The first beat that came by itself."""
    beats = "demo-heartbeat"
    return awaited(lambda: timeball.jobs.executions(beats, status="succeeded", origin="schedule").data, "beat")[-1]


def first_words(timeball: Client, execution_id: str) -> str:
    """What it said first: written beside the outcome, and perhaps a moment after it."""
    return awaited(lambda: timeball.executions.logs(execution_id).data, "line")[0].message


def awaited(look: Callable[[], Sequence[T]], what: str) -> Sequence[T]:
    """What is there once something is there."""
    deadline = time.monotonic() + patience(120)
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"no {what} in two minutes")
