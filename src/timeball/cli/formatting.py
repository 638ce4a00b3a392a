"""Values as text: instants, durations, lists, JSON; control characters never reach a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from timeball.domain.values.wording import FORMULA_BEGINNINGS

Document = Mapping[str, Any]


def as_document(item: Any) -> Document:
    """A model, a dataclass or a mapping as JSON would have it."""
    if isinstance(item, Mapping):
        return item
    document: Document = item.model_dump(mode="json")
    return document


def to_json(value: Any) -> str:
    """JSON on one line."""
    import orjson

    return orjson.dumps(value, default=str, option=orjson.OPT_UTC_Z).decode()


def encodable_json(text: str, stream: object) -> str:
    """The same JSON for a stream whose encoding may lack some of its characters: those are escaped, so nothing is lost."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "".join(char if char.isascii() else _escaped(char) for char in text)
    return text


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def spreadsheet_safe(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA_BEGINNINGS) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_RELATIVE_LIMIT = timedelta(days=30)


def parse_instant(value: Any) -> datetime | None:
    """An instant out of a document: text of RFC 3339, or a datetime already."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value))


def format_instant(instant: datetime, style: str, now: datetime) -> str:
    """An instant as `relative`, `local` or `utc`; beyond a month, relative is a date."""
    if style == "relative" and abs(instant - now) < _RELATIVE_LIMIT:
        return format_relative(instant - now)
    if style == "utc":
        return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") + _fraction(instant) + "Z"
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_relative(distance: timedelta) -> str:
    """`in 5m`, `12s ago`, `now`."""
    words = _two_units(abs(distance))
    if words is None:
        return "now"
    return f"in {words}" if distance > timedelta(0) else f"{words} ago"


def format_duration(milliseconds: float) -> str:
    """A duration as people read it: `4 ms`, `1.3 s`, `2m 5s`."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:.0f} ms" if abs(milliseconds) >= 10 else f"{milliseconds:.1f} ms"
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1_000:.1f} s"
    words = _two_units(timedelta(milliseconds=abs(milliseconds))) or "0s"
    return f"-{words}" if milliseconds < 0 else words


def format_value(value: Any) -> str:
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
            return ",".join(format_value(item) for item in value)
        case _:
            return str(value)


def printable(text: str) -> str:
    """A text of several lines that moves no cursor: control characters of a hostile name or log do not reach the terminal."""
    return text if text.isprintable() else "\n".join(single_line(line) for line in text.split("\n"))


def single_line(cell: str) -> str:
    """A cell on one line of a table, as harmless."""
    return "".join(char if char.isprintable() else " " if char in "\n\t\r" else "\ufffd" for char in cell)


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, default=str).decode()


def _fraction(instant: datetime) -> str:
    return f".{instant.microsecond // 1000:03d}" if instant.microsecond else ""


def _two_units(span: timedelta) -> str | None:
    parts: list[str] = []
    for unit, size in _UNITS:
        number, span = divmod(span, size)
        if number:
            parts.append(f"{number}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or None
