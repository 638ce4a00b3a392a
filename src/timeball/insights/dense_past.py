"""The part of the past that is too much to be read run by run: what the rollups know of it, by the minute.

Rollups count what ended in a minute, so the two parts meet at a whole minute: what ended before it is counted, what ended
after it is read. Beyond eight days only hours are kept, and the parts meet at a whole hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from timeball.domain.load import Load
from timeball.domain.marks import MOST_MARKS, Mark, MarkKind, Row
from timeball.domain.rollup import MINUTES_KEPT, Rollup, Span
from timeball.store.interface import Store
from timeball.store.rollups import WHOLE, series_of_queue

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = ("succeeded", "dead", "cancelled")
# Steps of rollups that a bucket of a load is made of, if it is long enough.
_STEPS_A_BUCKET = 4


@dataclass(frozen=True, slots=True)
class DensePast:
    """Completes what was cut off of a past that begins at *start*."""

    store: Store
    start: datetime
    now: datetime

    @property
    def _unit(self) -> timedelta:
        return _HOUR if self.start < self.now - MINUTES_KEPT else _MINUTE

    def edge_after(self, cut_before: datetime) -> datetime:
        """Where the two parts meet."""
        return cut_before + (_EPOCH - cut_before) % self._unit

    async def complete(self, rows: Sequence[Row], apart: timedelta, series_of: Callable[[str], UUID]) -> list[Row]:
        """Rows whose older past is drawn by what was counted; nothing is cut off any more."""
        edges = {series_of(row.key): self.edge_after(row.cut_before) for row in rows if row.cut_before is not None}
        if not edges:
            return list(rows)
        # All together no more marks than a view may have: reading more of them would be in vain.
        step = self._whole(max(apart, (max(edges.values()) - self.start) * (len(edges) / MOST_MARKS)))
        counted = await self._tallies(edges, step)
        return [
            row if row.cut_before is None else self._completed(row, series_of(row.key), counted, step) for row in rows
        ]

    def _completed(self, row: Row, series: UUID, counted: Mapping[UUID, Sequence[Rollup]], step: timedelta) -> Row:
        assert row.cut_before is not None
        edge = self.edge_after(row.cut_before)
        read = [mark for mark in row.marks if mark.kind is not MarkKind.PAST or mark.end >= edge]
        marks = [mark for one in counted.get(series, ()) if (mark := _mark(one, step, edge)) is not None]
        return replace(row, marks=[*marks, *read], cut_before=None)

    async def load(self, load: Load, until: datetime, queue: str | None) -> None:
        """Add to a load what ended before an instant at which the parts may meet."""
        series = WHOLE if queue is None else series_of_queue(queue)
        step = max(timedelta(seconds=load.width / _STEPS_A_BUCKET) // self._unit * self._unit, self._unit)
        for one in (await self._tallies({series: until}, step)).get(series, ()):
            tally = one.tally
            ended = tally.succeeded + tally.dead + tally.cancelled
            load.add_ended(min(one.at + step, until), one.duration_seconds, one.duration_seconds / max(ended, 1))
            load.starts[load.bucket(one.at)] += tally.starts

    async def _tallies(self, untils: Mapping[UUID, datetime], step: timedelta) -> Mapping[UUID, Sequence[Rollup]]:
        span = Span.HOUR if self._unit == _HOUR else Span.MINUTE
        return await self.store.rollups.tallies(untils, self.start, span, step)

    def _whole(self, step: timedelta) -> timedelta:
        return max(step + (-step) % self._unit, self._unit)


def _mark(one: Rollup, step: timedelta, edge: datetime) -> Mark | None:
    states = {state: number for state in _SHOWN if (number := getattr(one.tally, state))}
    if not states:
        return None
    end = min(one.at + step, edge)
    return Mark(kind=MarkKind.PAST, start=one.at, end=end, count=sum(states.values()), states=states)
