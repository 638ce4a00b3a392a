"""From the wall times a cron expression names to the instants at which it fires.

Two kinds of expression, told apart by the hours they name:

* An expression that names every hour (`*`, `*/1`, `0-23`) means a rhythm ("every half hour"). It *follows elapsed time*:
  it fires at every instant at which the clock shows a named wall time. Where the clock repeats itself both passes fire;
  what a gap jumps over is never shown, so it does not fire, is not moved and was never owed. `*/30 * * * *` thus fires
  every thirty minutes of real time through any change of whole half hours.
* Any other expression names times of day ("at 02:30", "every other hour"), and people count on them: `on_gap` and
  `on_repeat` decide. `*/24` is midnight and `*/2` is twelve hours of the day, however they are written. All named times
  inside one gap move to the one instant at its end, and if the expression fires there anyway, that is the same
  occurrence and not another.

Five and six fields are treated alike. The walk goes stretch by stretch (see civil_time), forwards or backwards, and
inside a stretch the offset is fixed, so a wall time is an instant. Between distant matches it leaps: see `_leap`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from timeball.domain.civil_time import (
    OnGap,
    OnRepeat,
    Reading,
    Stretch,
    stretches_back,
    stretches_from,
)
from timeball.domain.cron import CronPattern, parse_cron
from timeball.domain.instants import MICROSECOND

# Further than this from a wall time, no zone's clock can show it: offsets stay within a day.
_MARGIN = timedelta(days=2)


class NoteKind(StrEnum):
    """What a change of the clock did to an occurrence."""

    MOVED_BY_GAP = "moved_by_gap"
    SKIPPED_BY_GAP = "skipped_by_gap"
    FIRST_OF_REPEAT = "first_of_repeat"
    SECOND_OF_REPEAT = "second_of_repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why an occurrence is not simply at its wall time.

    *wall* is the local time that was named (the first one, if a gap swallowed several), *count* how many there were.
    """

    kind: NoteKind
    wall: datetime
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One instant at which a schedule is due, in UTC.

    With a note of kind `skipped_by_gap` it is not due at all: *at* is then the end of the gap.
    """

    at: datetime
    note: Note | None = None

    @property
    def is_due(self) -> bool:
        return self.note is None or self.note.kind is not NoteKind.SKIPPED_BY_GAP


@dataclass(frozen=True, slots=True)
class CronLine:
    """One expression on the clock of one zone."""

    pattern: CronPattern
    zone: str
    on_gap: OnGap
    on_repeat: OnRepeat

    def forward(self, after: datetime) -> Iterator[Occurrence]:
        """What comes strictly after *after*, in order, with what a gap skips in its place."""
        start: datetime | None = after
        while start is not None:
            start = yield from self._forward_until_leap(after, start)

    def backward(self, until: datetime) -> Iterator[datetime]:
        """The due instants at or before *until*, latest first."""
        start: datetime | None = until
        while start is not None:
            start = yield from self._backward_until_leap(until, start)

    def count(self, after: datetime, until: datetime) -> int:
        """How many due instants there are in (after, until]; costs by the number of days, not of instants."""
        total = 0
        for stretch in stretches_from(self.zone, after):
            if stretch.start > until:
                break
            total += self._count_inside(stretch, after, until)
        return total

    def _forward_until_leap(self, after: datetime, start: datetime) -> Generator[Occurrence, None, datetime | None]:
        for stretch in stretches_from(self.zone, start):
            if stretch.start > after and (jumped := self._jumped_over(stretch)):
                yield jumped
            if not self._admits(stretch):
                continue
            beyond = None
            for wall in self.pattern.walls_after(max(stretch.wall(start), stretch.wall_start - MICROSECOND)):
                if wall >= stretch.wall_end:
                    beyond = wall
                    break
                yield Occurrence(at=stretch.instant(wall), note=_note(stretch, wall))
            if beyond is None:
                return None
            leap = _leap(stretch, beyond)
            if leap is not None:
                return leap
        return None

    def _backward_until_leap(self, until: datetime, start: datetime) -> Generator[datetime, None, datetime | None]:
        for stretch in stretches_back(self.zone, start):
            beyond = None
            if self._admits(stretch):
                for wall in self.pattern.walls_before(min(stretch.wall(until) + MICROSECOND, stretch.wall_end)):
                    if wall < stretch.wall_start:
                        beyond = wall
                        break
                    yield stretch.instant(wall)
                if beyond is None:
                    return None
            if (jumped := self._jumped_over(stretch)) and jumped.is_due:
                yield jumped.at
            leap = _leap(stretch, beyond) if beyond is not None else None
            if leap is not None:
                return leap
        return None

    def _count_inside(self, stretch: Stretch, after: datetime, until: datetime) -> int:
        total = 0
        if after < stretch.start and (jumped := self._jumped_over(stretch)) and jumped.is_due:
            total += 1
        if self._admits(stretch):
            start = max(stretch.wall(after) + MICROSECOND, stretch.wall_start)
            end = min(stretch.wall(until) + MICROSECOND, stretch.wall_end)
            total += self.pattern.count_between(start, end)
        return total

    def _admits(self, stretch: Stretch) -> bool:
        if self.pattern.follows_elapsed or self.on_repeat is OnRepeat.BOTH or stretch.reading is Reading.ONCE:
            return True
        return stretch.reading.value == self.on_repeat.value

    def _jumped_over(self, stretch: Stretch) -> Occurrence | None:
        """What becomes of the named times in the gap before *stretch*, if it makes a difference."""
        if not stretch.gap or self.pattern.follows_elapsed:
            return None
        gap_start, gap_end = stretch.wall_start - stretch.gap, stretch.wall_start
        wall = self.pattern.first_between(gap_start, gap_end)
        if wall is None:
            return None
        skips = self.on_gap is OnGap.SKIP
        if not skips and self._admits(stretch) and self.pattern.matches(gap_end):
            return None
        kind = NoteKind.SKIPPED_BY_GAP if skips else NoteKind.MOVED_BY_GAP
        note = Note(kind=kind, wall=wall, count=self.pattern.count_between(gap_start, gap_end))
        return Occurrence(at=stretch.start, note=note)


@lru_cache(maxsize=4096)
def cron_line(expression: str, zone: str, on_gap: OnGap, on_repeat: OnRepeat) -> CronLine:
    """The line of an expression in a zone, read once."""
    return CronLine(parse_cron(expression), zone, on_gap, on_repeat)


def _leap(stretch: Stretch, wall: datetime) -> datetime | None:
    """Where to go on when the nearest match is *wall*, far outside of *stretch*; None: at the next stretch.

    Only from readings that come once: before or after a repeat, the wall times already seen may be shown again.
    """
    if stretch.reading is not Reading.ONCE:
        return None
    if wall > stretch.wall_end + 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) - _MARGIN
    if wall < stretch.wall_start - 2 * _MARGIN:
        return wall.replace(tzinfo=UTC) + _MARGIN
    return None


def _note(stretch: Stretch, wall: datetime) -> Note | None:
    if stretch.reading is Reading.ONCE:
        return None
    kind = NoteKind.FIRST_OF_REPEAT if stretch.reading is Reading.FIRST else NoteKind.SECOND_OF_REPEAT
    return Note(kind=kind, wall=wall)
