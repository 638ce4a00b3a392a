"""A harness with a database of the test suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import FreshDatabase
from timeball.testing import TimeballHarness


@pytest.fixture
def harness(fresh_database: FreshDatabase) -> Iterator[TimeballHarness]:
    """The value of the fixture `timeball`."""
    opened = TimeballHarness(fresh_database.dsn)
    yield opened
    opened.close()
