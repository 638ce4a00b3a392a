"""Tests that run side by side: families stay together, and who waits does so beside those who work."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.xdist_order import FAMILIES, family_of, spread

from tests.support.pace import patience

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tools.xdist_order import HandingOut

def pytest_xdist_make_scheduler(config, log):
    return HandingOut(config, log)
"""
CRASH = """
import os
import time
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(60))
def test_one(number):
    time.sleep(0.02)
    if number == 30 and not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(3)
"""


def made(name: str, *, is_slow: bool = False) -> Any:
    return SimpleNamespace(name=name, get_closest_marker=lambda marker: is_slow if marker == "slow" else None)


@pytest.mark.parametrize(
    ("nodeid", "family"),
    [
        ("tests/dashboard/test_live_in_chromium.py::test_a_stream", "a browser"),
        ("tests/brokers/test_delivery.py::test_everything_runs_once_on_two_workers[rabbitmq]", "a RabbitMQ"),
        ("tests/brokers/test_delivery.py::test_everything_runs_once_on_two_workers[redis]", None),
        ("tests/store/test_plans.py::test_a_hot_statement_touches_little[fresh statistics-claim]", "a million rows"),
        ("tests/domain/scheduling/test_cron.py::test_any_text_is_read_or_refused", None),
    ],
)
def test_a_family_is_known_by_the_names_of_its_tests(nodeid: str, family: str | None) -> None:
    assert family_of(nodeid) == family


def test_every_family_has_members() -> None:
    ids = [f"{path.relative_to(ROOT)}::{path.read_text()}" for path in (ROOT / "tests").rglob("test_*.py")]

    assert {family for family, members in FAMILIES.items() if any(map(members.search, ids))} == set(FAMILIES)


@pytest.mark.parametrize(("slow", "others"), [(0, 5), (3, 100), (20, 100), (100, 100), (7, 3), (2, 0)])
def test_slow_ones_are_spread_among_the_others_and_nobody_is_forgotten(slow: int, others: int) -> None:
    items = [made(f"quick {n}") for n in range(others)] + [made(f"slow {n}", is_slow=True) for n in range(slow)]

    handed_out = [item.name for item in spread(items)]

    assert sorted(handed_out) == sorted(item.name for item in items)
    if 0 < slow <= others // 2:
        places = [place for place, name in enumerate(handed_out) if name.startswith("slow")]
        assert max(places) < len(items) * 0.95, "none of them is waited for in the end"
        assert min(there - here for here, there in pairwise(places)) > 1, "no two stand together"


def test_each_kind_keeps_its_order() -> None:
    items = [made(f"{n}", is_slow=n % 3 == 0) for n in range(30)]

    handed_out = [int(item.name) for item in spread(items)]

    assert [n for n in handed_out if n % 3 == 0] == list(range(0, 30, 3))
    assert [n for n in handed_out if n % 3] == [n for n in range(30) if n % 3]


def test_a_process_that_replaces_a_crashed_one_runs_its_share_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_crash.py").write_text(CRASH)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=patience(60),
    )

    # The test that crashed is a failure, and is run again by another process.
    assert "1 failed, 60 passed" in done.stdout, done.stdout
