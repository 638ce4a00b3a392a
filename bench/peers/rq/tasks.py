"""What RQ runs."""

import time

from marks import STARTED, mark


def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    time.sleep(seconds)
    mark(number)
