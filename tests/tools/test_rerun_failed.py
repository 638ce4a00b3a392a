"""What failed once is repeated alone; a run passes by that only within bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.rerun_failed import MOST, Run, verdict

from tests.support.pace import patience

ROOT = Path(__file__).parents[2]
SUITE = """
import pathlib
import pytest

RUNS = pathlib.Path(__file__).with_name("runs")

def test_steady():
    pass

def test_unsteady():
    RUNS.touch()
    runs = RUNS.read_text()
    RUNS.write_text(runs + "x")
    print(f"SOAK_SEED={8 + 9}")
    assert runs, "seed 199: the first time it fails"

@pytest.mark.parametrize("number", range(4))
def test_broken(number):
    assert False
"""


def judged(run: Run | None, *passing: str) -> tuple[bool, list[str], list[str]]:
    """Whether the run passes, what was said, and which tests were repeated."""
    repeated: list[str] = []

    def passes(test: str) -> bool:
        repeated.append(test)
        return test in passing

    lines = list(verdict(run, passes))
    return all(is_well for is_well, _ in lines), [line for _, line in lines], repeated


def failed(*tests: str, exit_code: int = 1) -> Run:
    return Run(exit_code, passed=10, failed={test: [] for test in tests})


def test_a_run_in_which_all_passed_says_nothing_more() -> None:
    assert judged(failed(exit_code=0)) == (True, [], [])


def test_what_passes_alone_is_named_as_flaky_with_its_seeds() -> None:
    run = Run(1, passed=10, failed={"a": ["SOAK_SEED=17"], "b": []})

    assert judged(run, "a", "b") == (
        True,
        [
            "flaky, failed once and passed alone: a (SOAK_SEED=17)",
            "flaky, failed once and passed alone: b",
            "12 passed, 2 of them only when repeated",
        ],
        ["a", "b"],
    )


def test_what_fails_twice_fails_the_run() -> None:
    passes, said, repeated = judged(failed("a", "b"), "b")

    assert (passes, repeated) == (False, ["a", "b"])
    assert said == ["failed twice: a", "flaky, failed once and passed alone: b"]


def test_too_many_are_not_repeated() -> None:
    tests = [str(number) for number in range(MOST + 1)]

    assert judged(failed(*tests[:-1]), *tests)[0]
    passes, _, repeated = judged(failed(*tests), *tests)
    assert (passes, repeated) == (False, [])


@pytest.mark.parametrize("run", [None, failed(exit_code=2), failed(exit_code=1), failed("a", exit_code=3)])
def test_a_run_that_did_not_come_to_its_end_fails(run: Run | None) -> None:
    assert judged(run, "a")[::2] == (False, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "code", "last"),
    [
        ("test_steady", 0, None),
        ("test_unsteady or test_steady", 0, "2 passed, 1 of them only when repeated"),
        ("broken and 1", 1, "failed twice: test_it.py::test_broken[1]"),
        ("broken", 1, "4 tests failed, more than 3: none is repeated."),
        ("nothing", 1, "pytest ended with exit code 5: there is nothing that could be repeated."),
    ],
)
def test_a_real_run(tmp_path: Path, chosen: str, code: int, last: str | None) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    notes = tmp_path / "failed.json"
    path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False, timeout=patience(60)
        )

    call("pytest", "-n", "2", "-k", chosen, "-p", "tools.rerun_failed", "--failed-to", str(notes))
    repeated = call("tools.rerun_failed", str(notes))

    assert repeated.returncode == code, repeated.stdout + repeated.stderr
    said = repeated.stdout.splitlines()
    assert said[-1:] == ([last] if last else [])
    if "unsteady" in chosen:
        assert "test_it.py::test_unsteady (seed 199) (SOAK_SEED=17)" in said[-2]
