"""A clock that stands still until it is told to move.

Every statement of the store takes its `now` from the clock it was given, so with this one a week of schedules passes in
milliseconds, on the real SQL. Nothing happens by itself: advance the clock, then tick what you want to see at work.

    clock = VirtualClock()
    clock.advance("3d")
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from timeball.domain.instants import to_utc
from timeball.domain.spans import Span, parse_span

# An ordinary Monday noon.
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class VirtualClock:
    """A `Clock` whose time only moves when somebody moves it: a test by `advance`, or a sleeper by sleeping."""

    def __init__(self, start: datetime = START) -> None:
        self._start = to_utc(start)
        self._now = self._start

    def advance(self, span: Span) -> datetime:
        """Move on by a span ("3d", "1h30m", seconds or a timedelta), and return the new time."""
        return self.advance_to(self._now + parse_span(span))

    def advance_to(self, instant: datetime) -> datetime:
        """Move on to an instant, and return it; a clock that is there already stays, and none goes back."""
        self._now = max(self._now, to_utc(instant))
        return self._now

    def now(self) -> datetime:
        return self._now

    def statement_now(self) -> datetime:
        """The time all statements go by: never the database's own."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self.earliest(self._now)

    def epoch_milliseconds(self) -> int:
        return (self._now - _EPOCH) // _MILLISECOND

    def earliest(self, instant: datetime) -> float:
        return (to_utc(instant) - self._start).total_seconds()

    def instant_at(self, monotonic: float) -> datetime:
        return self._start + timedelta(seconds=monotonic)

    async def sleep(self, seconds: float) -> None:
        """Let everybody else have a turn, then move the clock to where this sleep ends, unless it is past that already.

        So whoever sleeps is never stuck, and sleeping costs no time. Several sleepers wake in the order they went to sleep in.
        """
        wakes_at = self._now + timedelta(seconds=seconds)
        await asyncio.sleep(0)
        self.advance_to(wakes_at)
