"""Rehearsals of small programs, on a database that the tests have anyway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import FreshDatabase
from timeball.testing import TimeballHarness


@pytest.fixture
def rehearsal(fresh_database: FreshDatabase) -> Iterator[TimeballHarness]:
    """What the plugin gives to a test."""
    made = TimeballHarness(fresh_database.dsn)
    yield made
    made.close()
