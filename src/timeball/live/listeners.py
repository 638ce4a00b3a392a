"""Those who are told: of single happenings, in a ring that forgets the oldest; or of topics that have changed, in a set."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timeball.clock import Clock
from timeball.domain.happening import Happening, Interest

# What may wait for a listener that is slow; then the oldest is forgotten, and a gap is told.
MOST_WAITING = 256
# So many different topics that everything might as well be looked at again.
MOST_TOPICS = 200
EVERYTHING = "*"
_FLUSH_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class News:
    """What a listener has not been told yet; *is_gap* says that something before it was left out.

    *position* is where the stream is after the last of them. *is_over* says that nothing more will come.
    """

    happenings: Sequence[Happening]
    position: str | None
    is_gap: bool = False
    is_over: bool = False


class _Waiting:
    """Somebody who waits for something to come, or for the end."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._stirred.set()

    async def _stirs(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return
        self._stirred.clear()


class Listener(_Waiting):
    """Is told of the happenings it is interested in."""

    def __init__(self, interest: Interest) -> None:
        super().__init__()
        self._interest = interest
        self._ring: deque[Happening] = deque(maxlen=MOST_WAITING)
        self._position: str | None = None
        self._has_missed = False

    def tell(self, happenings: Iterable[Happening], position: str, *, is_gap: bool = False) -> None:
        """Take in what happened up to a position; never waits."""
        wanted = self._interest.sift(happenings)
        self._has_missed |= is_gap or len(self._ring) + len(wanted) > MOST_WAITING
        self._ring.extend(wanted)
        self._position = position
        if wanted or is_gap:
            self._stirred.set()

    async def next(self, timeout: float) -> News:
        """What has come, after waiting for it for at most *timeout* seconds."""
        if not self._ring and not self._has_missed and not self.is_over:
            await self._stirs(timeout)
        self._stirred.clear()
        told, self._has_missed, is_gap = list(self._ring), False, self._has_missed
        self._ring.clear()
        return News(told, self._position, is_gap, self.is_over)


class TopicListener(_Waiting):
    """Is told which topics have changed, as a set, four times a second at most."""

    def __init__(self, clock: Clock, topics: Iterable[str] | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._wanted = None if topics is None else frozenset(topics)
        self._changed: set[str] = set()
        self._last_told = float("-inf")

    def tell(self, happenings: Iterable[Happening], position: str, *, is_gap: bool = False) -> None:
        """Note what changed; never waits, and never grows beyond a few hundred names."""
        names: set[str] = {EVERYTHING} if is_gap else set().union(*(one.topics for one in happenings))
        self._changed |= names if self._wanted is None or is_gap else names & self._wanted
        if len(self._changed) > MOST_TOPICS:
            self._changed = {EVERYTHING}
        if self._changed:
            self._stirred.set()

    async def next(self, timeout: float) -> frozenset[str]:
        """The topics that have changed, after waiting for it; `*` stands for all. Empty after *timeout*, or at the end."""
        if not self._changed and not self.is_over:
            await self._stirs(timeout)
        rest = self._last_told + _FLUSH_SECONDS - self._clock.monotonic()
        if self._changed and rest > 0 and not self.is_over:
            await asyncio.sleep(rest)
        self._stirred.clear()
        told, self._changed = frozenset(self._changed), set()
        self._last_told = self._clock.monotonic()
        return told
