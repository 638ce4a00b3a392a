"""Under an encoding that lacks a character: something stands in for it, JSON loses nothing, and nothing ends in a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tests.cli.conftest import Cli
from timeball.cli.app import replace_unencodable
from timeball.cli.app import run as run_command

NAME = "café → ✓ 🎈"


def run(encoding: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "timeball", *words],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def a_job(cli: Cli) -> str:
    made = cli("run", "test.echo", "--every", "1h", "--name", NAME)
    assert made.code == 0, made.err
    return NAME


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "café > + ?"), ("ascii", "caf? > + ?")])
def test_a_table_shows_what_stands_in(a_job: str, encoding: str, shown: str) -> None:
    done = run(encoding, "jobs", "-o", "table")

    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout.decode(encoding)


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_json_escapes_and_loses_nothing(a_job: str, output: str) -> None:
    done = run("ascii", "jobs", "-o", output)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.decode("ascii"))
    assert (found[0] if output == "json" else found)["name"] == NAME


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["jobs", "-o", "csv"],
        ["jobs", "show", NAME],
        ["jobs", "export"],
        ["why", NAME],
        ["top", "--once"],
        ["forecast"],
        ["doctor"],
        ["workers"],
        ["--help"],
        ["jobs", "--help"],
        ["jobs", "show", "naïve → nobody"],
        ["näxt"],
        ["next", "0 9 * * → ✓"],
        ["next", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2027-03-27T00:00:00Z"],
        ["verify"],
        ["check"],
    ],
    ids=lambda words: "-".join(words)[:20].encode("ascii", "replace").decode(),
)
def test_no_command_ends_in_a_traceback(a_job: str, words: list[str]) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict") for _ in range(2))

    with redirect_stdout(out), redirect_stderr(err):
        replace_unencodable()
        run_command(words)
        out.flush()
        err.flush()

    assert out.buffer.getvalue() or err.buffer.getvalue()  # type: ignore[attr-defined]
