"""How long executions usually take. The one place that knows where this is read from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from timeball.domain.facts import Usual
from timeball.domain.ids import JobId
from timeball.store.database import Database

# So many of the latest executions tell how long the next one will take.
_HISTORY_OF_A_JOB = 50
_HISTORY_OF_HANDLERS = 2_000


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things usually take, by job; for jobs that have not run yet, by handler."""

    of_jobs: Mapping[JobId, Usual]
    of_handlers: Mapping[str, Usual]

    def of(self, job_id: JobId, handler: str) -> Usual | None:
        """What is known of a job, or else of its handler."""
        return self.of_jobs.get(job_id) or self.of_handlers.get(handler)


async def usual_durations(database: Database, job_ids: Collection[JobId]) -> Durations:
    """How long executions of these jobs usually take."""
    ids = sorted(job_ids, key=lambda id_: id_.bytes)
    of_jobs = await database.fetch("usual_durations_of_jobs", ids=ids, most=_HISTORY_OF_A_JOB)
    of_handlers = await database.fetch("usual_durations_of_handlers", most=_HISTORY_OF_HANDLERS)
    return Durations(
        {JobId(row["id"]): _usual(row) for row in of_jobs}, {row["handler"]: _usual(row) for row in of_handlers}
    )


def _usual(row: Any) -> Usual:
    median, p95 = row["durations"]
    return Usual(timedelta(seconds=max(median, 0)), timedelta(seconds=max(p95, 0)), row["executions"])
