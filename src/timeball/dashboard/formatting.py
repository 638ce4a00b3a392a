"""Text for people: instants, durations, numbers, states, JSON. They are the filters of the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from timeball.domain.freeze import Afterwards, Freeze
from timeball.domain.search import EXACT_UP_TO
from timeball.domain.values.redaction import REDACTED

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class StateStyle:
    """The look of a state: an icon and a colour, always beside its word."""

    icon: str
    tone: str


STATES = {
    "scheduled": StateStyle("clock", "calm"),
    "queued": StateStyle("queue", "wait"),
    "running": StateStyle("play", "live"),
    "retrying": StateStyle("retry", "warn"),
    "succeeded": StateStyle("check", "good"),
    "cancelled": StateStyle("slash", "calm"),
    "dead": StateStyle("cross", "bad"),
    "skipped": StateStyle("skip", "calm"),
    "active": StateStyle("check", "good"),
    "paused": StateStyle("pause", "warn"),
    "finished": StateStyle("flag", "calm"),
    # Verdicts of the ledger about occurrences and days.
    "ran": StateStyle("check", "good"),
    "late": StateStyle("clock", "wait"),
    "missed": StateStyle("alert", "warn"),
    "waiting": StateStyle("queue", "wait"),
    "expected": StateStyle("clock", "calm"),
    # Outcomes of an attempt.
    "failed": StateStyle("cross", "bad"),
    "timed_out": StateStyle("clock", "bad"),
    "lost": StateStyle("plug", "bad"),
    "snoozed": StateStyle("clock", "calm"),
    "not_dropped": StateStyle("slash", "calm"),
    # Findings of a check.
    "ok": StateStyle("check", "good"),
    "warn": StateStyle("alert", "warn"),
    "fail": StateStyle("cross", "bad"),
}


def parse_instant(value: Any) -> datetime | None:
    """An instant from a value that is one already, or that is its text in JSON."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value).replace("Z", "+00:00"))


def iso(value: Any) -> str:
    """An instant for machines."""
    at = parse_instant(value)
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_instant(value: Any) -> str:
    """An instant for people, marked as UTC; the browser replaces it by the chosen zone."""
    at = parse_instant(value)
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_clock(local: datetime) -> str:
    """The time of a clock, with seconds only if they are not zero."""
    return f"{local:%H:%M}" if local.second == 0 else f"{local:%H:%M:%S}"


def format_local(local: datetime) -> str:
    """Date and time of a clock."""
    return f"{local:%a %d %b %Y} {format_clock(local)}"


def format_day(day: date | str) -> str:
    """A day of a calendar: `Sat 21 Nov 2026`."""
    return f"{date.fromisoformat(day) if isinstance(day, str) else day:%a %-d %b %Y}"


def format_milliseconds(milliseconds: float | None) -> str:
    """A duration: `4 ms`, `1.3 s`, `12 min 4 s`, `3 h 20 min`, `2 d 5 h`."""
    if milliseconds is None:
        return "–"
    sign, rest = ("−", -milliseconds) if milliseconds < 0 else ("", milliseconds)
    if rest < 1_000:
        return f"{sign}{rest:.0f} ms" if rest >= 10 or rest == 0 else f"{sign}{rest:.1f} ms"
    if rest < 60_000:
        return f"{sign}{rest / 1_000:.1f} s" if rest < 10_000 else f"{sign}{rest / 1_000:.0f} s"
    seconds = round(rest / 1_000)
    for unit, smaller, size, part in (("min", "s", 60, 1), ("h", "min", 3_600, 60), ("d", "h", 86_400, 3_600)):
        if seconds < size * (24 if unit == "h" else 60) or unit == "d":
            left = seconds % size // part
            return f"{sign}{seconds // size} {unit}" + (f" {left} {smaller}" if left else "")
    raise AssertionError("unreachable")


def format_seconds(value: float | None) -> str:
    """A duration, from seconds."""
    return format_milliseconds(None if value is None else value * 1_000)


def format_seconds_short(value: float | None) -> str:
    """A duration, from seconds; from a minute on only its largest unit, for narrow places."""
    return format_seconds(value) if value is None or value < 60 else " ".join(format_seconds(value).split(" ")[:2])


def format_number(value: float | None) -> str:
    """A number with commas between thousands."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def format_number_short(value: int) -> str:
    """A number for a narrow place; counts stop at ten thousand, and more is shown as `> 10,000`."""
    return format_number(value) if value <= EXACT_UP_TO else f"> {format_number(EXACT_UP_TO)}"


def pluralize(value: int, one: str, many: str | None = None) -> str:
    """`1 job`, `41 jobs`."""
    return f"{format_number(value)} {one if value == 1 else many or one + 's'}"


def pretty_json(value: Any) -> str:
    """A JSON value over several lines."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def count_redacted(value: Any) -> int:
    """The number of hidden values in a document."""
    return pretty_json(value).count(REDACTED)


def short_id(text: str | None) -> str:
    """An id cut to its last characters, in which neighbours differ: `exe_…X0AB`."""
    if not text:
        return "–"
    prefix, _, body = text.rpartition("_")
    return f"{prefix}_…{body[-6:]}" if prefix else text


def short_subject(text: str) -> str:
    """The subject of an audit entry with a short id: `job:…4ecc1a`."""
    kind, _, name = text.partition(":")
    return f"{kind}:…{name[-6:]}" if _UUID.fullmatch(name) else text


def short_type(name: str | None) -> str:
    """The name of an error without its module."""
    return (name or "").rpartition(".")[2]


def actor_name(text: str | None) -> str:
    """An actor without the id of its key and without the prefix `host:`."""
    if text is None:
        return "unknown"
    return text.partition(" ")[2] or text if text.startswith("key:") else text.removeprefix("host:")


def without_suffix(text: str, end: str | None) -> str:
    """A text without its end, and without the colon before that."""
    return text.removesuffix(end).rstrip(": ") if end else text


def state_tone(state: str) -> str:
    """The colour of a state, as a class."""
    return f"tone-{STATES[state].tone}"


def log_height(milliseconds: float) -> float:
    """The height of a run in a small strip: logarithmic, so that long runs do not hide short ones."""
    return math.log10(milliseconds + 10)


def search_term(value: str, field: str) -> str:
    """A search term for exactly this value, `queue:mail`; empty for a value with quotes, which cannot be searched."""
    return "" if '"' in value else f'{field}:"{value}"' if not value.isidentifier() else f"{field}:{value}"


_AFTERWARDS = {
    Afterwards.SKIP: "Occurrences in it are skipped",
    Afterwards.LATEST: "Afterwards the latest occurrence of each job runs",
    Afterwards.ALL: "Afterwards all occurrences run",
}


def frozen_words(freeze: Freeze, name: str | None, zone: ZoneInfo) -> str:
    """A freeze in words: `Frozen: queue billing until Mon 23 Nov 08:00, release, by ana`. *name* is that of its queue, tag or job."""
    what = "everything" if name is None else f"{freeze.scope} {name}"
    from_ = f"{freeze.from_at.astimezone(zone):%a %-d %b %H:%M}"
    until = f"{freeze.until_at.astimezone(zone):%a %-d %b %H:%M}"
    because = f", {freeze.reason}" if freeze.reason else ""
    return (
        f"Frozen: {what} from {from_} until {until}{because}, by {actor_name(freeze.actor)}. "
        f"{_AFTERWARDS[freeze.afterwards]}; what else is due waits."
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "iso": iso,
    "stamp": format_instant,
    "span": format_milliseconds,
    "seconds": format_seconds,
    "day": format_day,
    "brief": format_seconds_short,
    "number": format_number,
    "counted": pluralize,
    "pretty": pretty_json,
    "hidden": count_redacted,
    "short_id": short_id,
    "short_subject": short_subject,
    "actor_name": actor_name,
    "term": search_term,
    "tone": state_tone,
    "before": without_suffix,
    "short_type": short_type,
    "wall": format_local,
    "wall_clock": format_clock,
    "bar_height": log_height,
}
