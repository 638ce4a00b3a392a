"""By when an execution must have begun: a span after its time, or an instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from timeball.domain.expiry import NEVER, Expiry, parse_expiry
from timeball.domain.values.wording import Duration
from timeball.errors import InvalidInput

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("expiry", "instant"),
    [
        (NEVER, None),
        (Expiry(start_within_seconds=90), NOON + timedelta(seconds=90)),
        (Expiry(expires_at=LATER), LATER),
        (Expiry(start_within_seconds=90, expires_at=LATER), NOON + timedelta(seconds=90)),
        (Expiry(start_within_seconds=7200, expires_at=LATER), LATER),
    ],
)
def test_the_earlier_of_span_and_instant_counts(expiry: Expiry, instant: datetime | None) -> None:
    assert expiry.instant(NOON) == instant


@pytest.mark.parametrize(
    ("value", "expiry"),
    [
        ("10m", Expiry(start_within_seconds=600)),
        (90, Expiry(start_within_seconds=90)),
        (timedelta(minutes=2), Expiry(start_within_seconds=120)),
        (LATER, Expiry(expires_at=LATER)),
        ("2026-03-02T13:00:00Z", Expiry(expires_at=LATER)),
        ("2026-03-02T14:00:00", Expiry(expires_at=LATER)),
        (LATER.replace(hour=14, tzinfo=None), Expiry(expires_at=LATER)),
    ],
)
def test_one_word_is_a_span_or_an_instant(value: Duration | datetime, expiry: Expiry) -> None:
    assert parse_expiry(value, timezone="Europe/Berlin") == expiry


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("soon", 'expires is "soon", expected a span such as 10m, or an instant'),
        (0, "expires is 0, expected a whole number of seconds, from 1 up"),
        ("1500ms", 'expires is "1500ms", expected a whole number of seconds'),
        (-5, "expires is -5"),
        (True, "expires is true, expected a span such as 10m"),
        ([], "expected a span such as 10m, or an instant"),
    ],
)
def test_anything_else_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_expiry(value)

    assert words in str(refused.value)
    assert refused.value.field == "expires"


def test_an_instant_that_has_passed_is_refused() -> None:
    Expiry(expires_at=LATER).refuse_if_over(NOON)

    with pytest.raises(InvalidInput, match="expires_at is 2026-03-02T13:00:00Z, which has passed"):
        Expiry(expires_at=LATER).refuse_if_over(LATER)
