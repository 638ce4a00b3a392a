"""Tests that run side by side: families stay together, and who waits does so beside those who work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.xdist_order import FAMILIES, family_of, spread

ROOT = Path(__file__).parents[2]


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
