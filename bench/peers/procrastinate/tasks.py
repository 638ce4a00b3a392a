"""The program Procrastinate runs."""

import asyncio
import os

import procrastinate
from marks import STARTED, mark, schedules

STALLED_SECONDS = float(os.environ.get("STALLED_SECONDS", "30"))
HEARTBEAT_SECONDS = float(os.environ.get("HEARTBEAT_SECONDS", "10"))
CONNECTIONS = int(os.environ.get("CONNECTIONS", "4"))  # as the pool has by itself

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"], max_size=CONNECTIONS),
    worker_defaults={"update_heartbeat_interval": HEARTBEAT_SECONDS, "stalled_worker_timeout": STALLED_SECONDS},
)


@app.task(name="noop")
async def noop(number: int) -> None:
    """Only mark the start."""
    mark(number)


@app.task(name="slow")
async def slow(number: int, seconds: float) -> None:
    """Take some time."""
    mark(STARTED + number)
    await asyncio.sleep(seconds)
    mark(number)


def _make_tick(number: int) -> None:
    @app.periodic(cron="* * * * * *")
    @app.task(name=f"tick-{number}")
    async def tick(timestamp: int) -> None:
        mark(number, timestamp)


for _number in schedules():
    _make_tick(_number)


# As the documentation shows for stalled jobs; it looks every ten minutes there.
@app.periodic(cron=os.environ.get("STALLED_CRON", "*/10 * * * *"))
@app.task(name="retry_stalled", queueing_lock="retry_stalled", pass_context=True)
async def retry_stalled(context: procrastinate.JobContext, timestamp: int) -> None:
    """Have the jobs of dead workers run again."""
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
        await app.job_manager.retry_job(job)
