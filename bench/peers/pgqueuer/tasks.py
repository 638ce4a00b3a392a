"""The program PgQueuer runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from marks import STARTED, mark, schedules
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job, Schedule


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """Made by the command `pgq run`."""
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    pgq = PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        assert job.payload is not None
        mark(int(job.payload))

    @pgq.entrypoint("slow")
    async def slow(job: Job) -> None:
        assert job.payload is not None
        number, _, seconds = job.payload.decode().partition(" ")
        mark(STARTED + int(number))
        await asyncio.sleep(float(seconds))
        mark(int(number))

    for number in schedules():
        _schedule(pgq, number)
    yield pgq
    await connection.close()


def _schedule(pgq: PgQueuer, number: int) -> None:
    @pgq.schedule(f"tick-{number}", "* * * * * */1")
    async def tick(_schedule: Schedule) -> None:
        mark(number)
