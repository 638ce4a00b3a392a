"""How long executions usually take. The one place that knows where this is read from.

Every time line and every forecast asks for all jobs there are, and one more run hardly changes a median: what was read of a
job for them is remembered for a minute, in this process. A job that has not run yet is asked for each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from timeball.domain.facts import Usual
from timeball.domain.ids import JobId
from timeball.store.database import Database

# So many of the latest executions tell how long the next one will take.
_HISTORY_OF_A_JOB = 50
_HISTORY_OF_HANDLERS = 2_000
# Of very many jobs at once, fewer of each.
_MOST_READ = 10_000
REMEMBERED_SECONDS = 60.0
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things usually take, by job; for jobs that have not run yet, by handler. Nothing of it is older than *read_at*."""

    of_jobs: Mapping[JobId, Usual]
    of_handlers: Mapping[str, Usual]
    read_at: datetime | None = None

    def of(self, job_id: JobId, handler: str) -> Usual | None:
        """What is known of a job, or else of its handler."""
        return self.of_jobs.get(job_id) or self.of_handlers.get(handler)


NO_DURATIONS = Durations({}, {})


async def usual_durations(database: Database, job_ids: Collection[JobId]) -> Durations:
    """How long executions of these jobs usually take, as of now."""
    return Durations(await _of_jobs(database, job_ids), await _of_handlers(database))


@dataclass(slots=True)
class _Memory:
    """What was read, and since when."""

    since: float
    read_at: datetime
    of_jobs: dict[JobId, Usual]
    of_handlers: Mapping[str, Usual]


class UsualDurations:
    """How long executions usually take, at most a minute old."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._memory: _Memory | None = None

    async def of(self, job_ids: Collection[JobId]) -> Durations:
        """How long executions of these jobs usually take."""
        memory = await self._fresh()
        unknown = [job_id for job_id in job_ids if job_id not in memory.of_jobs]
        if unknown:
            memory.of_jobs |= await _of_jobs(self._database, unknown)
        return Durations(memory.of_jobs, memory.of_handlers, memory.read_at)

    async def _fresh(self) -> _Memory:
        clock = self._database.env.clock
        now = clock.monotonic()
        memory = self._memory
        if memory is None or now - memory.since > REMEMBERED_SECONDS or len(memory.of_jobs) > _MOST_REMEMBERED:
            memory = self._memory = _Memory(now, clock.now(), {}, await _of_handlers(self._database))
        return memory


async def _of_jobs(database: Database, job_ids: Collection[JobId]) -> dict[JobId, Usual]:
    ids = sorted(job_ids, key=lambda id_: id_.bytes)
    most = min(_HISTORY_OF_A_JOB, max(_MOST_READ // max(len(ids), 1), 1))
    rows = await database.fetch("usual_durations_of_jobs", ids=ids, most=most)
    return {JobId(row["id"]): _usual(row) for row in rows}


async def _of_handlers(database: Database) -> dict[str, Usual]:
    rows = await database.fetch("usual_durations_of_handlers", most=_HISTORY_OF_HANDLERS)
    return {row["handler"]: _usual(row) for row in rows}


def _usual(row: Any) -> Usual:
    median, p95 = row["durations"]
    return Usual(timedelta(seconds=max(median, 0)), timedelta(seconds=max(p95, 0)), row["executions"])
