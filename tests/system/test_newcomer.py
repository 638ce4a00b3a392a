"""The walk of a newcomer: an empty folder, a few lines of Python, one command, and a scheduled run to be seen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.pace import patience
from timeball import Client

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-steps.md"


def program_of_the_tutorial() -> str:
    """The first Python in the tutorial."""
    found = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_from_an_empty_folder_to_a_visible_scheduled_run(short_folder: Path) -> None:
    program = program_of_the_tutorial()
    assert len(program.splitlines()) < 20
    (short_folder / "app.py").write_text(program)
    environment = {**os.environ, "TIMEBALL_PORT": "0"}

    up = subprocess.Popen(
        [sys.executable, "-m", "timeball", "up", "app:tb"],
        cwd=short_folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with Client(_address(up)) as timeball:
            run = _first_success(timeball)
            assert run.origin == "schedule"
            assert _first_words(timeball, run.id) == ["good morning"]
            assert timeball.jobs.list().data[0].name == "app:greet"
    finally:
        up.send_signal(signal.SIGINT)
        _, words = up.communicate(timeout=patience(45))
    assert up.returncode == 0, words


@pytest.mark.slow
def test_the_example_of_the_readme_runs_in_the_order_that_it_names(short_folder: Path) -> None:
    program, *commands = _readme_blocks()
    (short_folder / "app.py").write_text(program)
    state = {"XDG_STATE_HOME": str(short_folder / "state")}
    environment = {**os.environ, **state, "TIMEBALL_PORT": "0"}
    assert commands == ["timeball up app:tb", "python app.py    # exe_... receipt 42 -> a@b.co"]

    up = subprocess.Popen(
        [sys.executable, "-m", *commands[0].split()],
        cwd=short_folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _address(up)
        told = subprocess.run(
            [sys.executable, "app.py"], cwd=short_folder, env=environment, capture_output=True, text=True, timeout=120
        )
        elsewhere = short_folder / "elsewhere"
        elsewhere.mkdir()
        listed = subprocess.run(
            [sys.executable, "-m", "timeball", "runs", "--status", "succeeded", "--json"],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        up.send_signal(signal.SIGINT)
        _, words = up.communicate(timeout=patience(45))
    assert re.fullmatch(r"exe_\w+ receipt 42 -> a@b\.co\n", told.stdout), told.stdout + told.stderr
    assert (told.returncode, told.stderr, up.returncode) == (0, "", 0), words
    # A command in another folder finds the same database, says so, and makes none.
    assert "send_receipt" in listed.stdout, listed.stderr
    assert f"using the database in {short_folder.resolve() / '.timeball'}" in listed.stderr
    assert not (elsewhere / ".timeball").exists()


def _readme_blocks() -> list[str]:
    """The fifteen lines of the README, and the commands below them."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    chapter = readme.partition("## Fifteen lines")[2].partition("\n## ")[0]
    return [block.rstrip("\n") for block in re.findall(r"```\w+\n(.*?)```", chapter, re.DOTALL)]


def test_a_command_without_a_database_makes_none(short_folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMEBALL_")}
    environment["XDG_STATE_HOME"] = str(short_folder / "state")

    for command in (["run", "test.echo"], ["jobs"], ["verify"], ["check"], ["db", "status"]):
        told = subprocess.run(
            [sys.executable, "-m", "timeball", *command],
            cwd=short_folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert told.returncode != 0
        assert f"no database here: {short_folder.resolve() / '.timeball'} does not exist" in told.stderr
        assert "start one with: timeball up" in told.stderr
    assert list(short_folder.iterdir()) == []


def _address(up: subprocess.Popen[str]) -> str:
    """Where the greeting says that it listens."""
    assert up.stderr is not None
    said: list[str] = []
    for line in up.stderr:
        said.append(line)
        if match := re.search(r"http://127\.0\.0\.1:\d+", line):
            return match[0]
    raise AssertionError("it ended:\n" + "".join(said))


def _first_success(timeball: Client) -> Any:
    return _first(lambda: timeball.executions.list(status="succeeded").data, "a run")[0]


def _first_words(timeball: Client, execution_id: str) -> list[str]:
    """What it said: written beside the outcome, and perhaps a moment after it."""
    return [line.message for line in _first(lambda: timeball.executions.logs(execution_id).data, "a line")]


def _first(look: Callable[[], Sequence[Any]], what: str) -> Sequence[Any]:
    deadline = time.monotonic() + patience(120)
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} never came")
