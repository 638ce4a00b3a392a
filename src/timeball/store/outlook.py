"""The past and the future of all jobs, for those who draw them: bounded reads, whatever the size of the history."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from timeball.domain.foresight import Line
from timeball.domain.ids import ExecutionId, JobId, first_id_at, show_job
from timeball.domain.job import jitter_of
from timeball.store.database import Database
from timeball.store.durations import NO_DURATIONS, Durations, UsualDurations
from timeball.store.rows import rule_from

# What ended within a span may have been made for an earlier time: retries, and what waited.
_EARLIER = timedelta(days=1)
MOST_LINES = 2_000
_ONE_OFFS_A_SHARD = 40
_MOST_RUNNING = 2_000


class Run(NamedTuple):
    """Something that ran, runs or is to run; a tuple, because a view reads them by the thousand."""

    id: ExecutionId
    job_id: JobId
    handler: str
    queue: str
    started_at: datetime
    worker: UUID | None = None
    finished_at: datetime | None = None
    state: str | None = None

    @property
    def is_enqueued(self) -> bool:
        """Whether it bears its job's id: it is the only run of that job, which has no name and never gets one."""
        return self.job_id == self.id


@dataclass(frozen=True, slots=True)
class Past:
    """What was read of the past; *cut_before* says that there is more, before that."""

    runs: Sequence[Run] = ()
    cut_before: datetime | None = None


class Futures(NamedTuple):
    """The jobs that have a schedule; whether there are more of them; and when it was read how long they usually take."""

    lines: list[Line]
    has_more: bool
    durations_at: datetime | None


@dataclass(frozen=True, slots=True)
class Named:
    """A job that bears a name."""

    name: str
    handler: str
    queue: str
    kind: str


class Outlook:
    """Reads for time lines and forecasts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._usual = UsualDurations(database)

    async def futures(self, queue: str | None, most: int = MOST_LINES) -> Futures:
        """The future of every job that has a schedule, with how long it usually takes."""
        rows = await self._database.fetch("futures", most=most + 1)
        wanted = [row for row in rows[:most] if row["due_kind"] == "occurrence" and queue in (None, row["queue"])]
        durations = await self.durations([JobId(row["id"]) for row in wanted])
        # Aside: thousands of schedules are read here, and others wait for this loop.
        lines = await asyncio.to_thread(lambda: [_line(row, durations) for row in wanted])
        return Futures(lines, len(rows) > most, durations.read_at)

    async def future_of(self, job_id: JobId) -> Line | None:
        """The future of one job, whether it recurs or runs once; None if nothing of it is to come by itself."""
        row = next(iter(await self._database.fetch("future_of_job", job_id=job_id)), None)
        return None if row is None else _line(row, await self.durations([job_id]))

    async def durations(self, job_ids: Collection[JobId]) -> Durations:
        """How long executions of these jobs usually take, at most a minute old."""
        return await self._usual.of(job_ids)

    async def durations_of(self, runs: Iterable[Run]) -> Durations:
        """How long these runs usually take; one that was enqueued has no history of its own."""
        runs = list(runs)
        return await self.durations({run.job_id for run in runs if not run.is_enqueued}) if runs else NO_DURATIONS

    async def one_offs(self, start: datetime, until: datetime, queue: str | None) -> list[Run]:
        """What else is due within a span; the soonest, if there is very much."""
        rows = await self._database.fetch("one_offs", start=start, until=until, queue=queue, each=_ONE_OFFS_A_SHARD)
        return [_run(row, started_at=row["run_at"]) for row in rows]

    async def running(self, queue: str | None) -> list[Run]:
        """What runs now."""
        rows = await self._database.fetch("running_now", queue=queue, most=_MOST_RUNNING)
        return [_run(row, started_at=row["started_at"])._replace(worker=row["worker"]) for row in rows]

    async def past(self, start: datetime, until: datetime, queue: str | None, most: int) -> Past:
        """What ran and ended within a span, among its latest *most* executions."""
        rows = await self._database.fetch("past", most=most, **_window(start, until))
        wanted = rows if queue is None else [row for row in rows if row["queue"] == queue]
        return _past(wanted, until, is_cut=len(rows) >= most)

    async def past_of_jobs(
        self, ids: Sequence[JobId], start: datetime, until: datetime, each: int
    ) -> dict[JobId, Past]:
        """What of these jobs ran and ended within a span: the latest *each* of every one."""
        rows = await self._database.fetch("past_of_jobs", ids=list(ids), each=each, **_window(start, until))
        by_job: dict[JobId, list[Any]] = {}
        for row in rows:
            by_job.setdefault(JobId(row["job_id"]), []).append(row)
        return {id_: _past(own, until, is_cut=len(own) >= each) for id_, own in by_job.items()}

    async def next_due(self, most: int) -> list[dict[str, Any]]:
        """What falls due next, the soonest first."""
        return [dict(row) for row in await self._database.fetch("next_due", most=most)]

    async def names(self, ids: Collection[JobId]) -> dict[JobId, Named]:
        """Those of the jobs that bear a name."""
        rows = await self._database.fetch("named_jobs", ids=list(ids))
        return {JobId(row["id"]): Named(row["name"], row["handler"], row["queue"], row["kind"]) for row in rows}

    async def queue_limits(self) -> dict[str, int]:
        """The queues that let only so many run together."""
        rows = await self._database.fetch("queue_limits")
        return {row["name"]: row["max_running"] for row in rows}


def _window(start: datetime, until: datetime) -> dict[str, Any]:
    return {
        "start": start,
        "first_id": first_id_at(start - _EARLIER),
        "last_id": first_id_at(until + timedelta(milliseconds=1)),
    }


def _past(rows: Sequence[Any], until: datetime, *, is_cut: bool) -> Past:
    # The statements name their columns in the order of a run's fields.
    ended = map(Run._make, rows)
    runs = [run for run in ended if run.started_at is not None and run.started_at < until]
    return Past(runs, min((run.started_at for run in runs), default=until) if is_cut else None)


def _line(row: Any, durations: Durations) -> Line:
    job_id = JobId(row["id"])
    return Line(
        job_id=job_id,
        label=row["name"] or show_job(job_id),
        handler=row["handler"],
        queue=row["queue"],
        rule=rule_from(row),
        pending=row["scheduled_for"],
        since=row["created_at"],
        jitter=jitter_of(job_id, row["jitter_seconds"] or 0),
        left=row["executions_left"],
        usual=durations.of(job_id, row["handler"]),
        execution_id=ExecutionId(row["execution_id"]),
    )


def _run(row: Any, *, started_at: datetime) -> Run:
    return Run(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        handler=row["handler"],
        queue=row["queue"],
        started_at=started_at,
    )
