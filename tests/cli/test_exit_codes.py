"""Every exit code, and what leads to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_terminal import on_a_terminal
from tests.client.conftest import running_api
from tests.conftest import FreshDatabase
from tests.sdk.conftest import running_node
from tests.support.pace import patience
from timeball import Timeball
from timeball.cli.session import CliSession
from timeball.config.settings import load_settings

__all__ = ["running_api"]


def test_0_done(cli: Cli) -> None:
    assert cli("jobs").code == 0


def test_1_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")

    done = cli("jobs")

    assert done.code == 1
    assert len(done.err.splitlines()) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "create"],
        ["jobs", "frobnicate"],
        ["run", "test.echo", "--every", "never"],
        ["next", "25 * *"],
        ["next", "0 6 * * *", "--after", "rubbish"],
        ["next", "0 6 * * *", "--count", "many"],
    ],
)
def test_2_the_command_or_a_value_is_wrong(cli: Cli, words: list[str]) -> None:
    done = cli(*words)

    assert done.code == 2
    what, _, advice = done.err.splitlines()
    assert what.startswith("timeball: ")
    assert "--help" in advice


def test_2_the_program_alone_tells_what_there_is(cli: Cli) -> None:
    done = cli()

    assert done.code == 2
    assert "Examples:" in done.err


@pytest.mark.parametrize("words", [["jobs", "show", "nobody"], ["runs", "show", "exe_01JCV3V1KC8M2T4QZ5R7N9X0AB"]])
def test_3_not_found(cli: Cli, words: list[str]) -> None:
    done = cli(*words)

    assert done.code == 3
    what, _, advice = done.err.splitlines()
    assert "there is no" in what
    assert advice.strip() == f"look for it with: timeball {words[0]}"


def test_4_not_allowed(cli: Cli, running_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token = cli("keys", "create", "--role", "viewer").out.split()[-1]

    without = cli("jobs", "--url", running_api)
    monkeypatch.setenv("TIMEBALL_API_KEY", token)
    looking = cli("jobs", "--url", running_api)
    changing = cli("jobs", "create", "a", "test.echo", "--url", running_api)

    assert (without.code, looking.code, changing.code) == (4, 0, 4)
    assert "TIMEBALL_API_KEY" in without.err


def test_5_a_conflict(cli: Cli) -> None:
    assert cli("jobs", "create", "a", "test.echo").code == 0

    done = cli("jobs", "create", "a", "test.echo")

    assert done.code == 5
    assert len(done.err.splitlines()) == 3


def test_6_the_awaited_execution_failed(cli: Cli, fresh_database: FreshDatabase) -> None:
    settings = load_settings(database_url=fresh_database.dsn, migrate=False)
    with running_node(Timeball(settings=settings), settings):
        done = cli("run", "test.delay", "duration_ms=1", "should_fail=true", "--retries", "0", "--wait")

    assert done.code == 6
    assert "is dead" in done.err
    assert "timeball runs retry exe_" in done.err


@pytest.mark.parametrize(("words", "first_sight"), [(["tail"], b"Ctrl-C stops"), (["top", "--every", "60"], b"dead 0")])
def test_130_enough_was_seen(cli: Cli, tmp_path: Path, words: list[str], first_sight: bytes) -> None:
    code, seen = on_a_terminal(*words, folder=tmp_path, interrupt_at=first_sight)

    assert code == 130
    assert "Traceback" not in seen
    assert "Aborted" not in seen


def test_130_interrupted(cli: Cli, tmp_path: Path) -> None:
    """Ctrl-C ends the wait for an execution that no worker ever runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "timeball", "run", "test.echo", "--wait"],
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("exe_")
        assert process.stderr.readline().strip() == "queued"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()

    assert process.returncode == 130
    assert "Traceback" not in out + err
    # What was begun goes on without us.
    (run,) = CliSession().talk(lambda client: client.executions.list()).data
    assert run.state == "queued"
