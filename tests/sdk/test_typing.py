"""Strict type checkers accept right programs and refuse the marked lines of wrong ones."""

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
CACHE = ROOT / ".mypy_cache"
MARK = re.compile(r"# refused: (?P<mypy>[\w, -]+) \| (?P<pyright>[\w, ]+)$")

# File -> line -> reasons.
Findings = dict[str, dict[int, set[str]]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that uses Timeball."""
    for case in CASES.glob("*.py"):
        shutil.copy(case, tmp_path)
    return tmp_path


def expected(checker: str) -> Findings:
    """The marked lines, with the reasons that this checker must give."""
    findings: Findings = {}
    for case in CASES.glob("*.py"):
        for number, line in enumerate(case.read_text().splitlines(), start=1):
            if mark := MARK.search(line):
                findings.setdefault(case.name, {})[number] = set(mark[checker].split(", "))
    return findings


def gathered(problems: Iterable[tuple[str, int, str]]) -> Findings:
    findings: Findings = {}
    for file, line, reason in problems:
        findings.setdefault(Path(file).name, {}).setdefault(line, set()).add(reason)
    return findings


@pytest.mark.slow
def test_mypy_accepts_right_programs_and_refuses_wrong_lines(project: Path) -> None:
    # Strict like `make types`, so that its cache of our own sources can be used.
    if CACHE.is_dir():
        shutil.copytree(CACHE, project / "cache")
    command = [sys.executable, "-m", "mypy", "--output=json", "--cache-dir", project / "cache", *project.glob("*.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    problems = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 1, done.stderr
    errors = [each for each in problems if each["severity"] == "error" and Path(each["file"]).parent == project]
    assert gathered((each["file"], each["line"], each["code"]) for each in errors) == expected("mypy")


@pytest.mark.slow
def test_pyright_accepts_right_programs_and_refuses_wrong_lines(project: Path) -> None:
    if shutil.which("node") is None:
        give_up_on(ServiceMissing("pyright needs node: apt-get install nodejs"))
    settings = {"extraPaths": [str(SOURCES)], "typeCheckingMode": "strict"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))

    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    problems = json.loads(done.stdout)["generalDiagnostics"]

    findings = gathered((each["file"], each["range"]["start"]["line"] + 1, each["rule"]) for each in problems)
    assert findings == expected("pyright")
