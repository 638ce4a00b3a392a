"""Durations, instants, counts and lists as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from timeball.errors import InvalidInput, quote_text

# A spreadsheet reads text that begins so as a formula; the last four are full-width forms.
FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration_in_words(span: timedelta) -> str:
    """A duration in its two largest units: `3 h 5 min`, `12 s`, `8 ms`."""
    seconds = abs(span.total_seconds())
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    whole = round(seconds)
    for (unit, size), smaller in zip(_UNITS, (*_UNITS[1:], None), strict=True):
        if whole >= size:
            number, left = divmod(whole, size)
            rest = 0 if smaller is None else left // smaller[1]
            return f"{number} {unit} {rest} {smaller[0]}" if rest and smaller else f"{number} {unit}"
    return "0 s"


def instant_in_words(at: datetime, now: datetime) -> str:
    """An instant relative to *now*: only the time on the same day, always with its zone."""
    here, there = at.astimezone(UTC), now.astimezone(UTC)
    if here.date() == there.date():
        return f"{here:%H:%M:%S} UTC"
    return f"{here:%d %b %H:%M:%S} UTC" if here.year == there.year else f"{here:%d %b %Y %H:%M:%S} UTC"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: `1 worker`, `3 workers`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names and the number of those left out: `a, b and 4 more`."""
    shown = ", ".join(names[:most])
    left = len(names) - most
    return f"{shown} and {left} more" if left > 0 else shown


def ordinal(number: int) -> str:
    """A place in line: `1st`, `2nd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


Duration = timedelta | int | float | str

_UNIT_SECONDS = (
    ("w", timedelta(weeks=1)),
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)


# At most one blank in each place: several, each of any length, could be divided in too many ways.
_PATTERN = re.compile(" ?".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?) ?{unit})?" for unit, _ in _UNIT_SECONDS))
_LONGEST_TEXT = 100
_LONGEST = timedelta(days=366 * 200)


def parse_duration(value: Duration, field: str = "span") -> timedelta:
    """A duration from a timedelta, a number of seconds, or text such as `1h30m`, largest unit first; never negative."""
    match value:
        case timedelta():
            span = value
        case str():
            span = _from_text(value, field)
        case bool():
            raise _not_a_duration(repr(value), field)
        case int() | float():
            span = _from_seconds(value, field)
        case _:
            raise _not_a_duration(type(value).__name__, field)
    if not timedelta(0) <= span <= _LONGEST:
        raise InvalidInput(f"{field} is {_shown_value(value)}, expected a span from 0 to 200 years", field=field)
    return span


def parse_seconds(value: Duration, field: str) -> int:
    """A duration of one or more whole seconds."""
    seconds, rest = divmod(parse_duration(value, field), timedelta(seconds=1))
    if rest or not 1 <= seconds < 2**31:
        raise InvalidInput(
            f"{field} is {_shown_value(value)}, expected a span of whole seconds, 1s or more", field=field
        )
    return seconds


def format_duration(span: timedelta) -> str:
    """A duration as `parse_duration` reads it, to the millisecond: `1h30m`."""
    left = span
    parts = []
    for unit, size in _UNIT_SECONDS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([kmgt])i?b", re.IGNORECASE | re.ASCII)
_SIZES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(value: object, field: str = "size") -> int:
    """A number of bytes from a number, or from text such as `512MB`: the units are KB, MB, GB and TB, each 1,024 of the one before."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        shown = f'"{quote_text(value)}"' if isinstance(value, str) else repr(value)
        raise InvalidInput(f'{field} is {shown}, expected a size like "512MB" or "1.5GB"', field=field)
    return int(float(match[1]) * _SIZES[match[2].lower()])


def format_size(size: int) -> str:
    """A number of bytes as `parse_size` reads it, rounded to what people compare: `1.5GB`."""
    for unit, number in (("TB", 2**40), ("GB", 2**30), ("MB", 2**20)):
        if size >= number:
            return f"{round(size / number, 1):g}{unit}"
    return f"{round(size / 2**10, 1):g}KB"


def _from_text(text: str, field: str) -> timedelta:
    normal = " ".join(text.lower().split())
    match = _PATTERN.fullmatch(normal) if len(normal) <= _LONGEST_TEXT else None
    if match is None or not any(match.groups()):
        raise _not_a_duration(f'"{quote_text(text)}"', field)
    total = timedelta(0)
    for number, (_, size) in zip(match.groups(), _UNIT_SECONDS, strict=True):
        if number is not None:
            total += _times(size, float(number), field)
    return total


def _from_seconds(seconds: float, field: str) -> timedelta:
    if not math.isfinite(seconds):
        raise _not_a_duration(repr(seconds), field)
    return _times(timedelta(seconds=1), seconds, field)


def _times(size: timedelta, number: float, field: str) -> timedelta:
    try:
        return size * number
    except OverflowError:
        raise InvalidInput(f"{field} is too long, expected a span from 0 to 200 years", field=field) from None


def _not_a_duration(found: str, field: str) -> InvalidInput:
    return InvalidInput(f'{field} is {found}, expected a span like "30s", "5m", "1h30m" or "2d"', field=field)


def _shown_value(value: object) -> str:
    return quote_text(str(value))
