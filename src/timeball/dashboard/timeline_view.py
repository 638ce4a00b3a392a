"""The part of time a visitor looks at: where it begins, how much it shows, and the ways on from there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

SPANS = {
    "1h": timedelta(hours=1),
    "4h": timedelta(hours=4),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
DEFAULT_SPAN = "4h"
# How much of the view lies behind now, if nobody says where it begins.
_PAST_SHARE = 0.45
_STEPS = tuple(
    timedelta(minutes=minutes) for minutes in (5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 10_080)
)
_MOST_TICKS = 10


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis; the first of a day bears its date."""

    at: datetime
    text: str
    is_day: bool


@dataclass(frozen=True, slots=True)
class View:
    """A stretch of time, as wide as the page; *follows* says that it moves on with now."""

    now: datetime
    start: datetime
    word: str
    follows: bool
    zone: ZoneInfo

    @property
    def span(self) -> timedelta:
        return SPANS[self.word]

    @property
    def end(self) -> datetime:
        return self.start + self.span

    @property
    def has_now(self) -> bool:
        return self.start <= self.now <= self.end

    def place(self, at: datetime) -> float:
        """Where an instant stands, in percent of the width."""
        return min(max((at - self.start) / self.span, 0.0), 1.0) * 100

    def shifted(self, share: float) -> str:
        """The beginning of the view after a step to the side, as an address has it."""
        return _written(self.start + self.span * share)

    def zoomed(self, word: str) -> str | None:
        """The beginning of a closer or wider view with the same middle; None if it goes on following now."""
        middle = self.start + self.span / 2
        return None if self.follows else _written(middle - SPANS[word] / 2)

    @property
    def closer(self) -> str | None:
        """The next smaller span."""
        return _neighbour(self.word, -1)

    @property
    def wider(self) -> str | None:
        """The next larger span."""
        return _neighbour(self.word, 1)

    @property
    def title(self) -> str:
        """`Tue 10:00 – 14:00`, on the visitor's clock."""
        start, end = self.start.astimezone(self.zone), self.end.astimezone(self.zone)
        last = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%a %-d %b %H:%M}"
        return f"{start:%a %-d %b %H:%M} – {last}"

    def ticks(self) -> list[Tick]:
        """Even steps on the visitor's clock, about ten of them."""
        step = next((step for step in _STEPS if self.span / step <= _MOST_TICKS), _STEPS[-1])
        found: list[Tick] = []
        at = _floor(self.start, step, self.zone)
        while at < self.end:
            if at >= self.start:
                found.append(_tick(at.astimezone(self.zone), step))
            at += step
        return found


def read_view(now: datetime, start: str, word: str, zone: ZoneInfo) -> View:
    """What an address asks for; whatever does not make sense becomes the usual view."""
    word = word if word in SPANS else DEFAULT_SPAN
    usual = now - SPANS[word] * _PAST_SHARE
    wanted = _read(start)
    return View(now, wanted or usual, word, wanted is None, zone)


def _read(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    # Far from here a week more or less does not fit into a date.
    return found.astimezone(UTC) if 1_971 <= found.year <= 9_000 else None


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _neighbour(word: str, step: int) -> str | None:
    words = list(SPANS)
    place = words.index(word) + step
    return words[place] if 0 <= place < len(words) else None


def _floor(at: datetime, step: timedelta, zone: ZoneInfo) -> datetime:
    """The last even step at or before an instant, counted from midnight on the clock of the zone."""
    local = at.astimezone(zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = local.replace(tzinfo=None) - midnight.replace(tzinfo=None)
    even = midnight.replace(tzinfo=None) + passed // step * step
    return even.replace(tzinfo=zone, fold=local.fold).astimezone(UTC)


def _tick(local: datetime, step: timedelta) -> Tick:
    is_day = local.hour == 0 and local.minute == 0
    return Tick(local, f"{local:%a %-d %b}" if is_day or step >= timedelta(days=1) else f"{local:%H:%M}", is_day)
