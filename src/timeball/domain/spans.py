"""Spans of time as people write them: `30s`, `5m`, `1h30m`, `2d`."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from timeball.domain.instants import shown
from timeball.errors import InvalidInput

Span = timedelta | int | float | str

_UNITS = (
    ("w", timedelta(weeks=1)),
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)
# At most one blank in each place: several, each of any length, could be divided in too many ways.
_PATTERN = re.compile(" ?".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?) ?{unit})?" for unit, _ in _UNITS))
_LONGEST_TEXT = 100
_LONGEST = timedelta(days=366 * 200)


def parse_span(value: Span, field: str = "span") -> timedelta:
    """A span given as timedelta, as a number of seconds, or as text, largest unit first; never negative."""
    match value:
        case timedelta():
            span = value
        case str():
            span = _from_text(value, field)
        case bool():
            raise _not_a_span(repr(value), field)
        case int() | float():
            span = _from_seconds(value, field)
        case _:
            raise _not_a_span(type(value).__name__, field)
    if not timedelta(0) <= span <= _LONGEST:
        raise InvalidInput(f"{field} is {_shown_value(value)}, expected a span from 0 to 200 years", field=field)
    return span


def show_span(span: timedelta) -> str:
    """A span as `parse_span` reads it, to the millisecond: `1h30m`."""
    left = span
    parts = []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def _from_text(text: str, field: str) -> timedelta:
    wanted = " ".join(text.lower().split())
    found = _PATTERN.fullmatch(wanted) if len(wanted) <= _LONGEST_TEXT else None
    if found is None or not any(found.groups()):
        raise _not_a_span(f'"{shown(text)}"', field)
    total = timedelta(0)
    for number, (_, size) in zip(found.groups(), _UNITS, strict=True):
        if number is not None:
            total += _times(size, float(number), field)
    return total


def _from_seconds(seconds: float, field: str) -> timedelta:
    if not math.isfinite(seconds):
        raise _not_a_span(repr(seconds), field)
    return _times(timedelta(seconds=1), seconds, field)


def _times(size: timedelta, number: float, field: str) -> timedelta:
    try:
        return size * number
    except OverflowError:
        raise InvalidInput(f"{field} is too long, expected a span from 0 to 200 years", field=field) from None


def _not_a_span(found: str, field: str) -> InvalidInput:
    return InvalidInput(f'{field} is {found}, expected a span like "30s", "5m", "1h30m" or "2d"', field=field)


def _shown_value(value: object) -> str:
    return shown(str(value))
