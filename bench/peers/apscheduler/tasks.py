"""What APScheduler runs."""

import time
from math import floor

from marks import STARTED, mark


def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    time.sleep(seconds)
    mark(number)


def tick(number: int) -> None:
    """The schedule is due at whole seconds, but does not tell at which."""
    mark(number, floor(time.time()))
