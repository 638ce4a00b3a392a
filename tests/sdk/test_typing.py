"""Strict type checkers accept what is right and refuse what is wrong, line by line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.sdk.conftest import SOURCES
from tests.support.servers import ServiceMissing, give_up_on

CASES = Path(__file__).parent / "typing_cases"
ROOT = Path(__file__).parents[2]
KNOWN = ROOT / ".mypy_cache"
MARK = re.compile(r"# refused: (?P<mypy>[\w, -]+) \| (?P<pyright>[\w, ]+)$")

# File -> line -> reasons.
Findings = dict[str, dict[int, set[str]]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of somebody who uses Timeball."""
    for case in CASES.glob("*.py"):
        shutil.copy(case, tmp_path)
    return tmp_path


def expected(checker: str) -> Findings:
    """The marked lines, with the reasons this checker is to give."""
    found: Findings = {}
    for case in CASES.glob("*.py"):
        for number, line in enumerate(case.read_text().splitlines(), start=1):
            if mark := MARK.search(line):
                found.setdefault(case.name, {})[number] = set(mark[checker].split(", "))
    return found


def gathered(problems: Iterable[tuple[str, int, str]]) -> Findings:
    found: Findings = {}
    for file, line, reason in problems:
        found.setdefault(Path(file).name, {}).setdefault(line, set()).add(reason)
    return found


@pytest.mark.slow
def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong(project: Path) -> None:
    # Strict, as our own sources are checked: what `make types` has found out about them need not be found out again.
    if KNOWN.is_dir():
        shutil.copytree(KNOWN, project / "known")
    command = [sys.executable, "-m", "mypy", "--output=json", "--cache-dir", project / "known", *project.glob("*.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    problems = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 1, done.stderr
    errors = [each for each in problems if each["severity"] == "error" and Path(each["file"]).parent == project]
    assert gathered((each["file"], each["line"], each["code"]) for each in errors) == expected("mypy")


@pytest.mark.slow
def test_pyright_accepts_what_is_right_and_refuses_what_is_wrong(project: Path) -> None:
    if shutil.which("node") is None:
        give_up_on(ServiceMissing("pyright needs node: apt-get install nodejs"))
    settings = {"extraPaths": [str(SOURCES)], "typeCheckingMode": "strict"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))

    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    problems = json.loads(done.stdout)["generalDiagnostics"]

    found = gathered((each["file"], each["range"]["start"]["line"] + 1, each["rule"]) for each in problems)
    assert found == expected("pyright")
