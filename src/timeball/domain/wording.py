"""Spans, moments and lists as sentences say them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

# What a spreadsheet takes for the beginning of a formula; the last four are full-width forms.
FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span_words(span: timedelta) -> str:
    """A span as people say it, in its two largest units: `3 h 5 min`, `12 s`, `8 ms`."""
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


def moment_words(at: datetime, now: datetime) -> str:
    """An instant beside *now*: the time alone if it is the same day, always with its zone."""
    here, there = at.astimezone(UTC), now.astimezone(UTC)
    if here.date() == there.date():
        return f"{here:%H:%M:%S} UTC"
    return f"{here:%d %b %H:%M:%S} UTC" if here.year == there.year else f"{here:%d %b %Y %H:%M:%S} UTC"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: `1 worker`, `3 workers`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names, and how many are left out: `a, b and 4 more`."""
    shown = ", ".join(names[:most])
    left = len(names) - most
    return f"{shown} and {left} more" if left > 0 else shown


def ordinal(number: int) -> str:
    """A place in line: `1st`, `2nd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
