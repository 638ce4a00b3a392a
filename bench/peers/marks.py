"""What the handlers have marked: read once, at the end; until then only counted, by the size of the file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers.driver.marks import MARK

_GLANCE = 0.02


@dataclass(frozen=True, slots=True)
class Mark:
    """One start of a handler, on the monotonic clock; the instant is on the wall clock, None if the peer tells none."""

    number: int
    instant: float | None
    at: float


class Marks:
    """The file of marks of one stage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def count(self) -> int:
        """How many there are by now."""
        return self.path.stat().st_size // MARK.size

    def __iter__(self) -> Iterator[Mark]:
        for number, instant, at in MARK.iter_unpack(self.path.read_bytes()):
            yield Mark(number, instant / 1e6 if instant else None, at / 1e9)

    def of(self, first: int, count: int) -> list[Mark]:
        """Those of jobs with numbers from *first* on, the earliest first."""
        return sorted((mark for mark in self if first <= mark.number < first + count), key=lambda mark: mark.at)

    def wait_for(self, number: int, patience: float) -> bool:
        """Wait until there are so many; gives up, and says False, when none is added for so many seconds."""
        seen, deadline = self.count(), time.monotonic() + patience
        while seen < number:
            time.sleep(_GLANCE)
            now = self.count()
            if now > seen:
                seen, deadline = now, time.monotonic() + patience
            elif time.monotonic() > deadline:
                return False
        return True

    def wait_until(self, number: int, deadline: float) -> bool:
        """Wait until there are so many; gives up, and says False, at an instant of the monotonic clock."""
        while self.count() < number:
            if time.monotonic() > deadline:
                return False
            time.sleep(_GLANCE)
        return True

    def finished(self, first: int, count: int) -> int:
        """How many different jobs of these have come to their end."""
        return len(self._ends(first, count))

    def last_end(self, first: int, count: int) -> float:
        """When the last of these jobs had come to its end for the first time."""
        return max(self._ends(first, count).values())

    def _ends(self, first: int, count: int) -> dict[int, float]:
        ends: dict[int, float] = {}
        for mark in self.of(first, count):
            ends.setdefault(mark.number, mark.at)
        return ends


def wall_offset() -> float:
    """What has to be added to the monotonic clock to get seconds since 1970."""
    return time.time() - time.monotonic()
