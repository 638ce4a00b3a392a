"""Commands about a database can be told of a program: it may name its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, run
from tests.conftest import FreshDatabase
from timeball.cli.processes import report_unknown_settings
from timeball.telemetry.events import UnknownSetting

PROGRAM = """
from timeball import Timeball

tb = Timeball(database_url={dsn!r})


@tb.handler
def work() -> None: ...
"""


@pytest.fixture
def told(fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cli]:
    """Runs commands where only the program knows the database."""
    (tmp_path / "own_database.py").write_text(PROGRAM.format(dsn=fresh_database.dsn))
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    monkeypatch.chdir(tmp_path)
    yield run
    sys.modules.pop("own_database", None)


@pytest.mark.parametrize(
    "command", [["verify"], ["check"], ["db", "migrate"], ["keys", "list"], ["keys", "create", "--role", "admin"]]
)
def test_a_command_looks_into_the_database_that_the_program_names(told: Cli, command: list[str]) -> None:
    elsewhere = told(*command)
    assert elsewhere.code != 0
    assert "cannot be reached" in elsewhere.err

    done = told(*command, "own_database:tb")

    assert done.code == 0, done.err


def test_a_key_can_be_revoked_there(told: Cli) -> None:
    told("keys", "create", "own_database:tb", "--role", "viewer")
    (line,) = told("keys", "list", "own_database:tb").out.splitlines()

    done = told("keys", "revoke", line.split()[0], "own_database:tb")

    assert done.code == 0, done.err
    assert "revoked" in told("keys", "list", "own_database:tb").out


def test_check_tells_how_many_handlers_the_program_has(told: Cli) -> None:
    assert "own_database:tb: 1 handlers" in told("check", "own_database:tb").out


def test_a_misspelt_variable_is_told_by_check_doctor_and_the_log_of_a_start(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEBALL_WOKER_SLOTS", "50")
    logged: list[object] = []

    checked, looked = cli("check"), cli("doctor", "--problems")
    report_unknown_settings(logged.append)

    told = "TIMEBALL_WOKER_SLOTS is set, and nothing reads it"
    assert (checked.code, f"{told}: did you mean TIMEBALL_WORKER__SLOTS?" in checked.out) == (0, True)
    assert told in looked.out
    assert logged == [UnknownSetting("TIMEBALL_WOKER_SLOTS", "did you mean TIMEBALL_WORKER__SLOTS?")]


def test_a_misspelt_name_in_the_file_is_an_error_in_three_lines(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "timeball.toml").write_text("[worker]\nslotz = 3\n")

    done = cli("check")

    assert done.code == 2
    what, *_, advice = done.err.splitlines()
    assert what == "timeball: worker.slotz in timeball.toml is unknown: did you mean worker.slots?"
    assert advice.strip() == "correct what is named above, then: timeball check"


BLOCKING_PROGRAM = """
import time

from timeball import Timeball

tb = Timeball(database_url={dsn!r})


@tb.handler(name="nap")
async def nap() -> None:
    time.sleep(1)
"""


def test_check_tells_what_the_handlers_will_stumble_over(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "blocking_program.py").write_text(BLOCKING_PROGRAM.format(dsn=fresh_database.dsn))
    monkeypatch.chdir(tmp_path)

    done = run("check", "blocking_program:tb")
    sys.modules.pop("blocking_program", None)

    assert done.code == 0, done.err
    assert "nap: line 11: time.sleep() blocks the event loop of the worker" in done.out
