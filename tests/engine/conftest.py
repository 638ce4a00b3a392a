"""PostgreSQL 15 is enough for the loops: what differs between servers is tested with the store."""

from __future__ import annotations

import pytest

from tests.engine.support import Heard


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fresh_database" in metafunc.fixturenames:
        metafunc.parametrize("fresh_database", ["pg15"], indirect=True)


@pytest.fixture
def heard() -> Heard:
    """Every event that was emitted."""
    return Heard()
