"""The program SAQ runs."""

import asyncio
import os
from typing import Any

from marks import STARTED, mark, schedules
from saq import CronJob, Queue

queue = Queue.from_url(os.environ["REDIS_URL"])


async def noop(_context: dict[str, Any], *, number: int) -> None:
    """Only mark the start."""
    mark(number)


async def slow(_context: dict[str, Any], *, number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    await asyncio.sleep(seconds)
    mark(number)


def _make_tick(number: int) -> Any:
    async def tick(context: dict[str, Any]) -> None:
        mark(number, context["job"].scheduled)

    tick.__name__ = tick.__qualname__ = f"tick_{number}"
    return tick


ticks = [_make_tick(number) for number in schedules()]
settings = {
    "queue": queue,
    "functions": [noop, slow],
    "concurrency": int(os.environ.get("CONCURRENCY", "10")),
    "cron_jobs": [CronJob(tick, cron="* * * * * */1") for tick in ticks],
}
if "QUICK" in os.environ:
    settings |= {"timers": {"schedule": 1, "worker_info": 10, "sweep": 2, "abort": 1}, "dequeue_timeout": 0.1}
