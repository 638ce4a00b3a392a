"""The program Celery runs."""

import os
import time

from celery import Celery
from marks import STARTED, mark, schedules

app = Celery("tasks", broker=os.environ["REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=int(os.environ.get("PREFETCH", "4")),
    beat_schedule={f"tick-{number}": {"task": "noop", "schedule": 1.0, "args": (number,)} for number in schedules()},
)
if "VISIBILITY_TIMEOUT" in os.environ:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={
            "visibility_timeout": int(os.environ["VISIBILITY_TIMEOUT"]),
            # Otherwise it looks for what was not acknowledged every hundred seconds.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )


@app.task(name="noop")
def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


@app.task(name="slow")
def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    time.sleep(seconds)
    mark(number)
