"""Instants and intervals as Timeball accepts them: aware, in UTC, from 1970 to 2199; whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from timeball.errors import ScheduleError

MIN_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
MAX_INSTANT = datetime(2199, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)

MIN_INTERVAL_SECONDS = 1
MAX_INTERVAL_SECONDS = int((MAX_INSTANT - MIN_INSTANT).total_seconds())

_YEAR = timedelta(days=366)


def accept_instant(instant: datetime, field: str) -> datetime:
    """*instant* in UTC, or a ScheduleError if it has no offset or lies outside of 1970 to 2199."""
    if instant.utcoffset() is None:
        raise ScheduleError(
            f"{field} is {instant.isoformat()}, expected an instant with an offset; add Z for UTC", field=field
        )
    utc = to_utc(instant)
    if not MIN_INSTANT <= utc <= MAX_INSTANT:
        raise ScheduleError(
            f"{field} is {instant.isoformat()}, expected an instant from {stamp(MIN_INSTANT)} to {stamp(MAX_INSTANT)}",
            field=field,
        )
    return utc


def accept_interval(seconds: int | float) -> int:
    """A number of whole seconds, at least one; also as a float such as 60.0."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # Within the range means finite, so that it has a whole part.
    if is_number and MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS and seconds == int(seconds):
        return int(seconds)
    raise ScheduleError(
        f"interval_seconds is {shown(repr(seconds), 30)}, "
        f"expected whole seconds from {MIN_INTERVAL_SECONDS} to {MAX_INTERVAL_SECONDS}",
        field="interval_seconds",
    )


def to_utc(instant: datetime) -> datetime:
    """*instant* in UTC; one far outside of the accepted years stays outside, but within reach of arithmetic."""
    if instant.year < MIN_INSTANT.year - 1:
        return MIN_INSTANT - _YEAR
    if instant.year > MAX_INSTANT.year + 1:
        return MAX_INSTANT + _YEAR
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no offset; instants are aware")
    return instant.astimezone(UTC)


def stamp(instant: datetime) -> str:
    """An instant as it stands in messages: ISO 8601, in UTC, ending in Z."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def spell_seconds(seconds: int) -> str:
    """A number of seconds in words: `1 hour 30 minutes`; a single unit stands alone: `hour`."""
    parts = []
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {name}" + ("s" if number > 1 else ""))
    return " ".join(parts) if len(parts) > 1 else parts[0].removeprefix("1 ")


def shown(text: str, limit: int = 60) -> str:
    """*text* as it may stand in a message: short, and without control characters."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)
