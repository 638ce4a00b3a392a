"""The part of the past that is too much to be read run by run: what the rollups know of it, by the minute.

Rollups count what ended in a minute, so the two parts meet at a whole minute: what ended before it is counted, what ended
after it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from timeball.domain.foresight import Load
from timeball.domain.ids import JobId
from timeball.domain.marks import Mark, MarkKind, Row
from timeball.domain.rollup import MINUTES_KEPT, Rollup, RollupQuery, Span
from timeball.store.interface import Store

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = ("succeeded", "dead", "cancelled")


def whole_minute_after(moment: datetime) -> datetime:
    """Where the two parts meet."""
    return moment + (_EPOCH - moment) % _MINUTE


class DensePast:
    """Completes what was cut off."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def complete(
        self, row: Row, start: datetime, apart: timedelta, *, job_id: JobId | None = None, queue: str | None = None
    ) -> Row:
        """A row whose older past is drawn by what was counted; nothing is cut off any more."""
        if row.cut_before is None:
            return row
        edge = whole_minute_after(row.cut_before)
        step = max(apart + (-apart) % _MINUTE, _MINUTE)
        counted = await self._series(start, edge, step, job_id, queue)
        read = [mark for mark in row.marks if mark.kind is not MarkKind.PAST or mark.end >= edge]
        marks = [mark for one in counted if (mark := _mark(one, step, edge)) is not None]
        return replace(row, marks=[*marks, *read], cut_before=None)

    async def load(self, load: Load, cut_before: datetime, queue: str | None) -> None:
        """Add to a load what ended before the cut."""
        edge = whole_minute_after(cut_before)
        for one in await self._series(load.edges[0], edge, _MINUTE, None, queue):
            number = load.bucket(one.at)
            load.seconds[number] += one.duration_seconds
            load.starts[number] += one.tally.starts

    async def _series(
        self, start: datetime, until: datetime, step: timedelta, job_id: JobId | None, queue: str | None
    ) -> Iterable[Rollup]:
        now = await self._store.history.moment()
        is_old = start < now - MINUTES_KEPT
        query = RollupQuery(
            since=start, until=until, job_id=job_id, queue=queue, span=Span.HOUR if is_old else Span.MINUTE
        )
        return await self._store.rollups.series(query, max(step, _HOUR) if is_old else step)


def _mark(one: Rollup, step: timedelta, edge: datetime) -> Mark | None:
    states = {state: number for state in _SHOWN if (number := getattr(one.tally, state))}
    if not states:
        return None
    end = min(one.at + step, edge)
    return Mark(kind=MarkKind.PAST, start=one.at, end=end, count=sum(states.values()), states=states)
