"""What APScheduler runs."""

import time

from apscheduler.events import JobExecutionEvent
from marks import STARTED, mark


def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    time.sleep(seconds)
    mark(number)


def tick() -> None:
    """Nothing: which run it was, only the event after it tells."""


def mark_tick(event: JobExecutionEvent) -> None:
    """Mark which occurrence has just been run; the id of the job ends with its number."""
    kind, _, number = event.job_id.partition("-")
    if kind == "tick":
        mark(int(number), event.scheduled_run_time.timestamp())
