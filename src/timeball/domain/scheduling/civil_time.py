"""Instants as Timeball accepts them, and the wall clocks of time zones with their gaps and repeats.

Instants are aware, in UTC, from 1970 to 2199; intervals are whole seconds.

A wall clock shows real time through a zone: `wall time = instant + offset`. Where the offset grows, wall times are skipped
(a *gap*: 02:30 does not exist in Berlin on the last Sunday of March). Where it shrinks, wall times come twice (a *repeat*:
02:30 comes in summer time and, an hour later, again in winter time).

The computation goes from instants to wall times and never the other way, since only that direction is a function. Real
time is cut into offset periods with one offset, in which every wall time is of one kind: it comes once, or it is the first
or the second of a repeat. A period that follows a gap knows its size. Periods do not overlap, so an iterator over them
yields strictly increasing instants in every zone.

The rules for a wall time that a schedule names ("at 02:30"), chosen per schedule:

    on_gap     next_valid   it fires at the first instant after the gap (several in one gap: once)
               skip         it does not fire
    on_repeat  first        it fires the first time the clock shows it
               second       it fires the second time
               both         it fires twice

Zones come from the `tzdata` package alone, not from the files of the machine, so that the nodes of one installation agree
and `tzdata_version` is true. Offset changes are found by probing every third day: no offset since 1970 has lasted less
than a week, and a test compares the result with every change of every zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from importlib import import_module, resources
from itertools import pairwise
from zoneinfo import ZoneInfo

from timeball.domain.values.field_errors import unexpected_value
from timeball.errors import ScheduleError, UnknownTimezone, quote_text

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
            f"{field} is {instant.isoformat()}, expected an instant from {format_instant(MIN_INSTANT)} to {format_instant(MAX_INSTANT)}",
            field=field,
        )
    return utc


def accept_interval(seconds: int | float) -> int:
    """A number of whole seconds, at least one; a float such as 60.0 is accepted."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # A number within the range is finite, so it has a whole part.
    if is_number and MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS and seconds == int(seconds):
        return int(seconds)
    raise ScheduleError(
        f"interval_seconds is {quote_text(repr(seconds), 30)}, "
        f"expected whole seconds from {MIN_INTERVAL_SECONDS} to {MAX_INTERVAL_SECONDS}",
        field="interval_seconds",
    )


def to_utc(instant: datetime) -> datetime:
    """*instant* in UTC; one far outside of the accepted years becomes one just outside, so that arithmetic on it works."""
    if instant.year < MIN_INSTANT.year - 1:
        return MIN_INSTANT - _YEAR
    if instant.year > MAX_INSTANT.year + 1:
        return MAX_INSTANT + _YEAR
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no offset; instants are aware")
    return instant.astimezone(UTC)


def format_instant(instant: datetime) -> str:
    """An instant as messages show it: ISO 8601, in UTC, ending in Z."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def interval_in_words(seconds: int) -> str:
    """A number of seconds in words: `1 hour 30 minutes`; a single unit stands alone: `hour`."""
    parts = []
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {name}" + ("s" if number > 1 else ""))
    return " ".join(parts) if len(parts) > 1 else parts[0].removeprefix("1 ")


ZERO = timedelta(0)
_PROBE_STEP = 3 * DAY


class WallTimeRepeat(StrEnum):
    """Whether the clock shows the wall times of a period once, or for the first or second time."""

    ONCE = "once"
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """The instant from which a zone has another offset."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def gap(self) -> timedelta:
        return max(self.after - self.before, ZERO)

    @property
    def repeat(self) -> timedelta:
        return max(self.before - self.after, ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPeriod:
    """Real time in [start, end) with one offset and one kind of wall time.

    *gap* is the wall time that is skipped at *start*; mostly zero.
    """

    start: datetime
    end: datetime
    offset: timedelta
    reading: WallTimeRepeat
    gap: timedelta

    @property
    def wall_start(self) -> datetime:
        return self.wall(self.start)

    @property
    def wall_end(self) -> datetime:
        return self.wall(self.end)

    def wall(self, instant: datetime) -> datetime:
        """The wall time at *instant*, without a zone."""
        return (instant + self.offset).replace(tzinfo=None)

    def instant(self, wall: datetime) -> datetime:
        """The instant at which this period shows *wall*."""
        return wall.replace(tzinfo=UTC) - self.offset


def tzdata_version() -> str:
    """The edition of the time zone database in use, such as `2026a`."""
    return str(import_module("tzdata").IANA_VERSION)


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every valid zone name."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """The rules of the zone *name*; UnknownTimezone if there is no such name in the IANA list."""
    # A name that is not in the list never becomes a path.
    if name not in zone_names():
        raise _unknown_timezone(name)
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def offset_at(zone: ZoneInfo, instant: datetime) -> timedelta:
    """How far the wall clock of *zone* is ahead of UTC at *instant*."""
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def changes_between(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[ClockChange]:
    """Every change of offset in (start, end], in order; both ends are whole seconds."""
    here, before = start, offset_at(zone, start)
    while here < end:
        there = min(here + _PROBE_STEP, end)
        if offset_at(zone, there) == before:
            here = there
            continue
        here = _first_second_with_another_offset(zone, here, there)
        after = offset_at(zone, here)
        yield ClockChange(at=here, before=before, after=after)
        before = after


def offset_periods_from(name: str, instant: datetime) -> Iterator[OffsetPeriod]:
    """The period of zone *name* that holds *instant*, then all later ones up to the end of 2199."""
    for year in range(max(instant.year, MIN_INSTANT.year), MAX_INSTANT.year + 1):
        for period in offset_periods_of_year(name, year):
            if period.end > instant:
                yield period


def offset_periods_back_from(name: str, instant: datetime) -> Iterator[OffsetPeriod]:
    """The period of zone *name* that holds *instant*, then all earlier ones back to 1970."""
    for year in range(min(instant.year, MAX_INSTANT.year), MIN_INSTANT.year - 1, -1):
        for period in reversed(offset_periods_of_year(name, year)):
            if period.start <= instant:
                yield period


@lru_cache(maxsize=8192)
def offset_periods_of_year(name: str, year: int) -> tuple[OffsetPeriod, ...]:
    """The periods of zone *name* that make up one UTC year, without holes."""
    zone = load_zone(name)
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    # Two more days on both sides: a repeat may begin in one year and end in the next.
    changes = list(changes_between(zone, start - 2 * DAY, end + 2 * DAY))
    cuts = {edge for change in changes for edge in _edges(change) if start < edge < end}
    bounds = sorted({start, end, *cuts})
    return tuple(
        OffsetPeriod(
            start=here,
            end=there,
            offset=offset_at(zone, here),
            reading=_reading_at(here, changes),
            gap=sum((change.gap for change in changes if change.at == here), ZERO),
        )
        for here, there in pairwise(bounds)
    )


def parse_instant(moment: datetime | str, name: str, field: str) -> datetime:
    """An instant from ISO 8601; without an offset it is a wall time of zone *name*."""
    parsed = moment if isinstance(moment, datetime) else _parse_iso(moment, field)
    if parsed.utcoffset() is not None:
        return accept_instant(parsed, field)
    # The year is checked first, because the periods cover no other years.
    accept_instant(parsed.replace(tzinfo=UTC), field)
    return accept_instant(first_instant(name, parsed), field)


def first_instant(name: str, wall: datetime) -> datetime:
    """The first instant at which a clock in zone *name* shows *wall*, or the end of the gap that *wall* falls into."""
    load_zone(name)
    for period in offset_periods_from(name, wall.replace(tzinfo=UTC) - DAY):
        # The gap before a period counts as part of it: its wall times move to the start of the period.
        if period.wall_start - period.gap <= wall < period.wall_end:
            return max(period.instant(wall), period.start)
        if period.wall_start > wall:
            break
    # A wall time at the edge of the accepted years, shown before they begin or after they end.
    return wall.replace(tzinfo=UTC) - offset_at(load_zone(name), wall.replace(tzinfo=UTC))


def _parse_iso(text: object, field: str) -> datetime:
    if not isinstance(text, str):
        raise ScheduleError(f"{field} is {type(text).__name__}, expected a datetime or ISO 8601 text", field=field)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise unexpected_value(field, text, "ISO 8601 such as 2030-01-31T09:00:00+01:00", error=ScheduleError) from None


def _first_second_with_another_offset(zone: ZoneInfo, here: datetime, there: datetime) -> datetime:
    offset = offset_at(zone, here)
    low, high = 0, int((there - here).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, here + middle * SECOND) == offset:
            low = middle
        else:
            high = middle
    return here + high * SECOND


def _edges(change: ClockChange) -> tuple[datetime, datetime, datetime]:
    return change.at - change.repeat, change.at, change.at + change.repeat


def _reading_at(instant: datetime, changes: list[ClockChange]) -> WallTimeRepeat:
    for change in changes:
        if change.at - change.repeat <= instant < change.at:
            return WallTimeRepeat.FIRST
        if change.at <= instant < change.at + change.repeat:
            return WallTimeRepeat.SECOND
    return WallTimeRepeat.ONCE


def _unknown_timezone(name: str) -> UnknownTimezone:
    near = _similar_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "use a name such as Europe/Berlin or UTC"
    return UnknownTimezone(
        f'timezone is "{quote_text(name)}", expected an IANA name such as Europe/Berlin; {hint}',
        field="timezone",
        hint=hint,
    )


def _similar_names(name: str) -> list[str]:
    import difflib  # slow to import, and needed only for misspelt names

    if len(name) > 40:
        return []
    folded = name.casefold().replace(" ", "_")
    alike = [zone for zone in zone_names() if folded in (zone.casefold(), zone.casefold().rsplit("/", 1)[-1])]
    return sorted(alike)[:3] or difflib.get_close_matches(name, sorted(zone_names()), n=2, cutoff=0.8)


class WallPattern:
    """The wall times that the text of a schedule names: without a zone, in whole seconds."""

    __slots__ = ()

    # It means a rhythm: clock changes neither move nor repeat it.
    follows_elapsed: bool

    def walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly after *wall*, in order."""
        raise NotImplementedError

    def walls_before(self, wall: datetime) -> Iterator[datetime]:
        """The named wall times strictly before *wall*, latest first."""
        raise NotImplementedError

    def count_between(self, start: datetime, end: datetime) -> int:
        """The number of named wall times in [start, end); the cost grows with the days, not with the wall times."""
        raise NotImplementedError

    def moved_from(self, wall: datetime) -> datetime | None:
        """The wall time that a calendar moved to *wall*; None if *wall* itself is named."""
        raise NotImplementedError

    def first_between(self, start: datetime, end: datetime) -> datetime | None:
        """The first named wall time in [start, end)."""
        wall = next(self.walls_after(start - MICROSECOND), None)
        return wall if wall is not None and wall < end else None

    def matches(self, wall: datetime) -> bool:
        """Whether *wall* is one of the named wall times."""
        return self.first_between(wall, wall + MICROSECOND) is not None
