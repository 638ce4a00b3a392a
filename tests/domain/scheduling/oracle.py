"""Fire times by brute force: slow, simple, and made of other parts than the real thing.

It looks at every minute (or second) of real time, asks the zone what the clock shows, and compares that with the
fields of the expression. No cronsim, no stretches, no algebra.
"""

from __future__ import annotations

import calendar
import io
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def utc(*parts: int) -> datetime:
    """An instant."""
    return datetime(*parts, tzinfo=UTC)


def wall(*parts: int) -> datetime:
    """A reading of some wall clock."""
    return datetime(*parts)  # noqa: DTZ001


@dataclass(frozen=True)
class Change:
    """A change of offset, as the zone file has it."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def size(self) -> timedelta:
        return abs(self.after - self.before)


@lru_cache(maxsize=1024)
def zone_bytes(name: str) -> bytes:
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=1)
def distinct_zones() -> list[str]:
    """One name for each zone file with contents of its own."""
    names = resources.files("tzdata").joinpath("zones").read_text().split()
    return sorted({zone_bytes(name): name for name in sorted(names, reverse=True)}.values())


@lru_cache(maxsize=1024)
def changes(name: str) -> list[Change]:
    """Every change of offset of a zone from 1970 to 2037."""
    recorded = recorded_changes(name)
    last = max([utc(1970, 1, 1), *(change.at for change in recorded)])
    # A comma in the last line of the file means a rule for all the years that are not written down.
    ruled = ruled_changes(name, last) if b"," in zone_bytes(name).splitlines()[-1] else []
    return [change for change in [*recorded, *ruled] if change.at.year <= 2037]


def ruled_changes(name: str, after: datetime) -> Iterator[Change]:
    """Changes by looking every few days, then closer; a rule makes two changes a year, months apart."""
    tz, here = zone(name), after
    offset = here.astimezone(tz).utcoffset()
    while here.year <= 2037:
        there = here + timedelta(days=5)
        if there.astimezone(tz).utcoffset() != offset:
            yield _change_within(tz, here, there)
            offset = there.astimezone(tz).utcoffset()
        here = there


def _change_within(tz: ZoneInfo, here: datetime, there: datetime) -> Change:
    before, after = here.astimezone(tz).utcoffset(), there.astimezone(tz).utcoffset()
    for size in (86_400, 3600, 60, 1):
        while (here + timedelta(seconds=size)).astimezone(tz).utcoffset() == before:
            here += timedelta(seconds=size)
    return Change(here + timedelta(seconds=1), before, after)


@lru_cache(maxsize=1)
def distinct_changes() -> list[tuple[str, Change]]:
    """Every change there is, with one of the zones that have it."""
    found = {change: name for name in distinct_zones() for change in changes(name)}
    return sorted(((name, change) for change, name in found.items()), key=lambda pair: (pair[1].at, pair[0]))


def recorded_changes(name: str) -> list[Change]:
    """The changes of offset written down one by one in a zone file (RFC 8536), from 1970 on."""
    data = zone_bytes(name)
    body = 44 + _block_size(data[:44], 4)
    header = data[body : body + 44]
    times_count, types_count = struct.unpack(">2l", header[32:40])
    start = body + 44
    times = struct.unpack(f">{times_count}q", data[start : start + 8 * times_count])
    indices = data[start + 8 * times_count : start + 9 * times_count]
    types = start + 9 * times_count
    offsets = [struct.unpack(">l", data[types + 6 * i : types + 6 * i + 4])[0] for i in range(types_count)]
    return list(_changes(times, [offsets[index] for index in indices], offsets[0]))


def made_up_zone(change: datetime, before: int, after: int) -> ZoneInfo:
    """A zone with a single change of offset (RFC 8536, version 2)."""
    first = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", before, 0, 0) + b"AAA\0"
    second = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 1, 2, 4)
    second += struct.pack(">qb", int(change.timestamp()), 1)
    second += struct.pack(">lbb", before, 0, 0) + struct.pack(">lbb", after, 0, 0) + b"AAA\0"
    return ZoneInfo.from_file(io.BytesIO(first + second + b"\n\n"), key="Test")


def _block_size(header: bytes, width: int) -> int:
    isutc, isstd, leap, times, types, chars = struct.unpack(">6l", header[20:44])
    return times * (width + 1) + types * 6 + chars + leap * (width + 4) + isstd + isutc


def _changes(times: tuple[int, ...], offsets: list[int], initial: int) -> Iterator[Change]:
    before = initial
    for at, after in zip(times, offsets, strict=True):
        if after != before and at >= 0:
            yield Change(datetime.fromtimestamp(at, UTC), timedelta(seconds=before), timedelta(seconds=after))
        before = after


class Fields:
    """The fields of a cron expression, as sets of numbers."""

    def __init__(self, expression: str) -> None:
        parts = expression.lower().split()
        if len(parts) == 5:
            parts.insert(0, "0")
        self.seconds = numbers(parts[0], 0, 59)
        self.minutes = numbers(parts[1], 0, 59)
        self.hours = numbers(parts[2], 0, 23)
        self.months = numbers(parts[4], 1, 12, MONTHS)
        self.day_terms = parts[3].split(",")
        self.weekday_terms = parts[5].split(",")
        self.both_days = parts[3].startswith("*") or parts[5].startswith("*")
        self.is_rhythm = self.hours == set(range(24))

    def match(self, wall: datetime) -> bool:
        return (
            wall.second in self.seconds
            and wall.minute in self.minutes
            and wall.hour in self.hours
            and self.match_date(wall.date())
        )

    @lru_cache(maxsize=512)  # noqa: B019 - a handful of expressions in a test
    def match_date(self, day: date) -> bool:
        by_day = any(_is_day(term, day) for term in self.day_terms)
        by_weekday = any(_is_weekday(term, day) for term in self.weekday_terms)
        return day.month in self.months and ((by_day and by_weekday) if self.both_days else (by_day or by_weekday))


def numbers(field: str, low: int, high: int, names: list[str] | None = None) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        base, _, step = term.partition("/")
        found.update(_run(base, low, high, names or [], bool(step))[:: int(step or 1)])
    return found


def _run(base: str, low: int, high: int, names: list[str], has_step: bool) -> list[int]:
    def number(word: str) -> int:
        return names.index(word) + low if word in names else int(word)

    everything = list(range(low, high + 1))
    if base == "*":
        return everything
    first, _, last = base.partition("-")
    if not last:
        return [n for n in everything if n >= number(first)] if has_step else [number(first)]
    twice = everything + everything
    start = twice.index(number(first))
    return twice[start : twice.index(number(last), start) + 1]


def _is_day(term: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if term == "l":
        return day.day == last
    if term == "lw":
        weekdays = [d for d in range(1, last + 1) if date(day.year, day.month, d).weekday() < 5]
        return day.day == weekdays[-1]
    if term.startswith("l-"):
        return day == date(day.year, day.month, last) - timedelta(days=int(term[2:]))
    if term.endswith("w"):
        wanted = int(term[:-1])
        weekdays = [d for d in range(1, last + 1) if date(day.year, day.month, d).weekday() < 5]
        # A Saturday is nearer to its Friday, a Sunday to its Monday, and a weekday to itself: two are never equally near.
        return wanted <= last and day.day == min(weekdays, key=lambda d: abs(d - wanted))
    return day.day in numbers(term, 1, 31)


def _is_weekday(term: str, day: date) -> bool:
    same = [
        d
        for d in range(1, calendar.monthrange(day.year, day.month)[1] + 1)
        if date(day.year, day.month, d).weekday() == day.weekday()
    ]
    if "#" in term:
        term, _, nth = term.partition("#")
        return _is_weekday(term, day) and same.index(day.day) + 1 == int(nth)
    if term.endswith("l"):
        return _is_weekday(term[:-1], day) and day.day == same[-1]
    # Sunday may be written at either end of the week.
    if term == "0-7":
        term = "*"
    term = term.replace("7", "0") if "/" not in term else term
    return (day.weekday() + 1) % 7 in numbers(term, 0, 6, WEEKDAYS)


class Clock:
    """What the clock of a zone shows at every step of real time from *start* to *end*."""

    def __init__(self, name: str, start: datetime, end: datetime, step: timedelta) -> None:
        self.step = step
        self.readings: list[tuple[datetime, datetime]] = []
        self.instants: dict[datetime, list[datetime]] = defaultdict(list)
        tz, here = zone(name), start
        while here <= end:
            wall = here.astimezone(tz).replace(tzinfo=None)
            self.readings.append((here, wall))
            self.instants[wall].append(here)
            here += step

    @lru_cache(maxsize=8)  # noqa: B019 - a clock lives as long as its test
    def named(self, fields: Fields) -> list[datetime]:
        """The wall times from the lowest reading to the highest that match, shown or not."""
        low, high = min(self.instants), max(self.instants)
        walls = (low + n * self.step for n in range((high - low) // self.step + 1))
        return [wall for wall in walls if fields.match(wall)]

    def end_of_gap(self, wall: datetime) -> datetime:
        return next(instant for instant, reading in self.readings if reading > wall)


def fire_times(clock: Clock, fields: Fields, on_gap: str, on_repeat: str) -> list[datetime]:
    """Every instant on *clock* at which the expression fires."""
    if fields.is_rhythm:
        return [instant for instant, wall in clock.readings if fields.match(wall)]
    found: set[datetime] = set()
    for wall in clock.named(fields):
        found.update(_instants(clock, wall, on_gap, on_repeat))
    return sorted(found)


def _instants(clock: Clock, wall: datetime, on_gap: str, on_repeat: str) -> list[datetime]:
    instants = clock.instants.get(wall)
    if not instants:
        return [] if on_gap == "skip" else [clock.end_of_gap(wall)]
    return {"first": instants[:1], "second": instants[-1:], "both": instants}[on_repeat]
