"""Durations as people write them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.values.wording import format_duration, parse_duration
from timeball.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("2d", timedelta(days=2)),
        ("1w 2d", timedelta(weeks=1, days=2)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        (" 10 M ", timedelta(minutes=10)),
        ("0s", timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.5, timedelta(milliseconds=500)),
        (timedelta(days=1), timedelta(days=1)),
    ],
)
def test_a_duration_is_read_in_the_usual_notations(text: str | float | timedelta, span: timedelta) -> None:
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        " ",
        "30",
        "s",
        "5 minutes",
        "30m1h",
        "5m5m",
        "-5s",
        "1e3s",
        "٣s",
        "1h\0",
        "9" * 200 + "s",
        True,
        None,
        [],
        b"5m",
    ],
)
def test_an_invalid_duration_is_refused_with_an_example(nonsense: object) -> None:
    with pytest.raises(InvalidInput, match=r"after is .* expected a span like") as refusal:
        parse_duration(nonsense, "after")  # type: ignore[arg-type]

    assert refusal.value.field == "after"


@pytest.mark.parametrize(
    "beyond", [-1, "999999w", 10**30, timedelta(seconds=-1), timedelta.max, float("nan"), float("inf")]
)
def test_a_duration_is_neither_negative_nor_endless(beyond: float | str | timedelta) -> None:
    with pytest.raises(InvalidInput, match="expected a span"):
        parse_duration(beyond)


@given(st.integers(min_value=0, max_value=6 * 10**12))
def test_a_formatted_duration_is_read_back(milliseconds: int) -> None:
    span = timedelta(milliseconds=milliseconds)

    assert parse_duration(format_duration(span)) == span


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        assert parse_duration(text) >= timedelta(0)
