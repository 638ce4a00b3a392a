"""How slow this machine is just now, and deadlines that stretch with it.

A deadline in a test ends a wait that is in vain; it says nothing about speed. On a machine with six processes for each core, everything
takes six times as long, and a wait of half a minute for something of five seconds is over before that. So waits ask `patience`.
"""

from __future__ import annotations

import os
import time

# The longest wait of a test stays below the time that pytest gives the test (pyproject.toml).
_MOST = 6.0
_KEPT_SECONDS = 2.0
_SAMPLE_SECONDS = 0.005


class Pace:
    """Measures how many times longer things take than on a machine that does nothing else."""

    def __init__(self) -> None:
        self._measured_at = float("-inf")
        self._slowness = 1.0

    def slowness(self) -> float:
        """At least 1; measured anew every few seconds."""
        if time.monotonic() - self._measured_at > _KEPT_SECONDS:
            self._slowness = min(max(1.0, _crowding(), _delay()), _MOST)
            self._measured_at = time.monotonic()
        return self._slowness


def _crowding() -> float:
    """Processes that want to run, for each core: of the last minute, so it is slow to notice what has just begun."""
    return os.getloadavg()[0] / len(os.sched_getaffinity(0))


def _delay() -> float:
    """How long a few milliseconds of work take on the clock of the wall: of this moment, and therefore coarse."""
    began_at, ends_at = time.monotonic(), time.thread_time() + _SAMPLE_SECONDS
    while time.thread_time() < ends_at:
        pass
    return (time.monotonic() - began_at) / _SAMPLE_SECONDS


_PACE = Pace()


def patience(seconds: float) -> float:
    """How long to wait here and now for what takes less than *seconds* on a machine that does nothing else."""
    return seconds * _PACE.slowness()
