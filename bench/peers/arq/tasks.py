"""The program arq runs."""

import asyncio
import os
from typing import Any

from arq import cron, func
from arq.connections import RedisSettings
from marks import STARTED, mark, schedules


async def noop(_context: dict[str, Any], number: int) -> None:
    """Only mark the start."""
    mark(number)


async def slow(_context: dict[str, Any], number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    await asyncio.sleep(seconds)
    mark(number)


async def tick(context: dict[str, Any]) -> None:
    """Mark which occurrence this is: the id of a cron job holds its name and its instant in milliseconds."""
    name, milliseconds = context["job_id"].rsplit(":", 1)
    mark(int(name.rpartition("-")[2]), int(milliseconds) / 1000)


class WorkerSettings:
    """Read by the command `arq`."""

    functions = (func(noop, max_tries=5), func(slow, max_tries=5))
    cron_jobs = tuple(cron(tick, name=f"tick-{number}", second=set(range(60)), keep_result=0) for number in schedules())
    redis_settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])
    max_jobs = int(os.environ.get("MAX_JOBS", "10"))
    poll_delay = float(os.environ.get("POLL_DELAY", "0.5"))
    keep_result = int(os.environ.get("KEEP_RESULT", "3600"))
    job_timeout = int(os.environ.get("JOB_TIMEOUT", "300"))
