"""Values as words: instants, spans, lists; and words that do no harm on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

_SIZES = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_FAR = timedelta(days=30)


def read_instant(value: Any) -> datetime | None:
    """An instant out of a document: text of RFC 3339, or a datetime already."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value))


def instant_words(instant: datetime, style: str, now: datetime) -> str:
    """An instant as `relative`, `local` or `utc`; beyond a month, relative is a date."""
    if style == "relative" and abs(instant - now) < _FAR:
        return relative_words(instant - now)
    if style == "utc":
        return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") + _fraction(instant) + "Z"
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def relative_words(distance: timedelta) -> str:
    """`in 5m`, `12s ago`, `now`."""
    words = _largest_two(abs(distance))
    if words is None:
        return "now"
    return f"in {words}" if distance > timedelta(0) else f"{words} ago"


def span_words(milliseconds: float) -> str:
    """A duration as people read it: `4 ms`, `1.3 s`, `2m 5s`."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:.0f} ms" if abs(milliseconds) >= 10 else f"{milliseconds:.1f} ms"
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1_000:.1f} s"
    words = _largest_two(timedelta(milliseconds=abs(milliseconds))) or "0s"
    return f"-{words}" if milliseconds < 0 else words


def plain_words(value: Any) -> str:
    """Any value of a document as text: nothing for null, lists with commas, the rest as JSON."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case float():
            return f"{value:g}"
        case Mapping():
            return _json(value)
        case Sequence():
            return ",".join(plain_words(item) for item in value)
        case _:
            return str(value)


def harmless(text: str) -> str:
    """A text of several lines that moves no cursor: control characters of a hostile name or log do not reach the terminal."""
    return text if text.isprintable() else "\n".join(one_line(line) for line in text.split("\n"))


def one_line(cell: str) -> str:
    """A cell on one line of a table, as harmless."""
    return "".join(char if char.isprintable() else " " if char in "\n\t\r" else "\ufffd" for char in cell)


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, default=str).decode()


def _fraction(instant: datetime) -> str:
    return f".{instant.microsecond // 1000:03d}" if instant.microsecond else ""


def _largest_two(span: timedelta) -> str | None:
    parts: list[str] = []
    for unit, size in _SIZES:
        number, span = divmod(span, size)
        if number:
            parts.append(f"{number}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or None
