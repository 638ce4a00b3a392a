"""Failed tests once more, each alone: for `.ci/run`, so that one unsteady test does not cost a whole run, and is named all the same.

    make test ARGS="-p tools.rerun_failed --failed-to FILE"      runs the tests and notes which failed
    python -m tools.rerun_failed FILE                            repeats them; exits 0 if the run passes

A run passes if no more than three tests failed and each of them passes when it is repeated, in a process of its own. The last lines then
name them as flaky, with the seeds that they printed. `make test` repeats nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

# More than so many failed tests are no chance any more.
MOST = 3
# What a failed test says of its seed: the swarm, the system tests and Hypothesis each in their own words.
_SEEDS = re.compile(r"SOAK_SEED=\d+|--hypothesis-seed=\d+|@reproduce_failure\([^)]*\)|\bseed[ =]\d+")
_TESTS_FAILED = 1


@dataclass(frozen=True)
class Run:
    """What came of a test run: pytest's exit code, how many tests passed, and each that failed with the seeds it printed."""

    exit_code: int
    passed: int = 0
    failed: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Run | None:
        """None if the run ended before it could say anything."""
        try:
            return cls(**json.loads(file.read_text()))
        except FileNotFoundError:
            return None

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))


# noting


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to note what failed."""
    parser.addoption("--failed-to", type=Path, help="write the failed tests to this file, for tools/rerun_failed.py")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Note what failed, with all processes of this run."""
    file: Path | None = config.getoption("failed_to")
    if file is not None:
        stats = terminalreporter.stats
        failed = noted_failures([*stats.get("failed", ()), *stats.get("error", ())])
        Run(int(exitstatus), len(stats.get("passed", ())), failed).write(file)


def noted_failures(reports: Iterable[Any]) -> dict[str, list[str]]:
    """The tests of these reports, each once, with the seeds that the reports contain."""
    failed: dict[str, list[str]] = {}
    for report in reports:
        text = "\n".join([report.longreprtext, *(text for _, text in getattr(report, "sections", ()))])
        seeds = failed.setdefault(report.nodeid, [])
        seeds += [seed for seed in dict.fromkeys(_SEEDS.findall(text)) if seed not in seeds]
    return failed


# repeating


def verdict(run: Run | None, passes: Callable[[str], bool]) -> Iterator[tuple[bool, str]]:
    """Judge a run line by line: whether it still passes, and what is to be said. *passes* runs one test alone."""
    if run is None:
        yield False, "The tests ended before they were all run."
    elif run.exit_code not in (0, _TESTS_FAILED) or (run.exit_code == _TESTS_FAILED and not run.failed):
        yield False, f"pytest ended with exit code {run.exit_code}: there is nothing that could be repeated."
    elif len(run.failed) > MOST:
        yield False, f"{len(run.failed)} tests failed, more than {MOST}: none is repeated."
    elif run.failed:
        yield from _repeated(run, passes)


def _repeated(run: Run, passes: Callable[[str], bool]) -> Iterator[tuple[bool, str]]:
    outcomes = {test: passes(test) for test in run.failed}
    again = [test for test, has_passed in outcomes.items() if not has_passed]
    for test in again:
        yield False, f"failed twice: {_named(test, run)}"
    for test in [test for test, has_passed in outcomes.items() if has_passed]:
        yield True, f"flaky, failed once and passed alone: {_named(test, run)}"
    if not again:
        yield True, f"{run.passed + len(run.failed)} passed, {len(run.failed)} of them only when repeated"


def _named(test: str, run: Run) -> str:
    return " ".join([test, *(f"({seed})" for seed in run.failed[test])])


def passes_alone(test: str) -> bool:
    """Run one test in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", test]
    return subprocess.run(command).returncode == 0


def main(file: Path) -> int:
    """Repeat what failed; 0 if the run passes."""
    lines = list(verdict(Run.read(file), passes_alone))
    if lines:
        print()
    for _, line in lines:
        print(line)
    return 0 if all(is_well for is_well, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
