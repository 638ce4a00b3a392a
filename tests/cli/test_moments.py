"""Instants to come, as people type them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from timeball.cli.job_options import read_moment_ahead
from timeball.env import SystemClock
from timeball.errors import InvalidInput

NOW = datetime(2026, 11, 18, 14, 30, tzinfo=UTC)  # a Wednesday, 15:30 in Berlin


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SystemClock, "now", lambda _: NOW)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("mon-08:00", datetime(2026, 11, 23, 7, 0, tzinfo=UTC)),
        ("MON-08:00", datetime(2026, 11, 23, 7, 0, tzinfo=UTC)),
        ("wed-18:00", datetime(2026, 11, 18, 17, 0, tzinfo=UTC)),
        ("wed-15:30", datetime(2026, 11, 25, 14, 30, tzinfo=UTC)),
        ("18:30", datetime(2026, 11, 18, 17, 30, tzinfo=UTC)),
        ("08:00", datetime(2026, 11, 19, 7, 0, tzinfo=UTC)),
        ("2h", NOW + timedelta(hours=2)),
        ("2027-01-04T06:00", datetime(2027, 1, 4, 5, 0, tzinfo=UTC)),
        ("2027-01-04T06:00Z", datetime(2027, 1, 4, 6, 0, tzinfo=UTC)),
    ],
)
def test_a_day_a_time_a_span_and_an_instant_are_understood(text: str, instant: datetime) -> None:
    assert read_moment_ahead(text, "--until") == instant


@pytest.mark.parametrize("text", ["", "mon", "foo-08:00", "mon-25:00", "mon-08:00:00x", "soon"])
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--until is .*expected mon-08:00, 18:30"):
        read_moment_ahead(text, "--until")
