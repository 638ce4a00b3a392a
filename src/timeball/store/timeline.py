"""Past and future runs of all jobs and their typical durations, for timelines and forecasts; every read is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from timeball.domain.forecast.demand import ForecastJob
from timeball.domain.freeze import FreezeList, FrozenWindow, window_at
from timeball.domain.rollup import TypicalDuration
from timeball.domain.values.ids import ExecutionId, JobId, first_id_at, format_job_id, jitter_of
from timeball.store.db.rows import CitedCalendars, rule_from
from timeball.store.freezes import read_freezes, read_tags

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# The number of latest executions from which a typical duration is computed.
_HISTORY_OF_A_JOB = 50
_HISTORY_OF_HANDLERS = 2_000


# The most executions that are read at once: of very many jobs, fewer of each.
_MAX_READ = 10_000
CACHED_SECONDS = 60.0
_MAX_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class TypicalDurations:
    """Typical durations by job, and by handler for jobs that have not run yet. None of them is older than *read_at*."""

    of_jobs: Mapping[JobId, TypicalDuration]
    of_handlers: Mapping[str, TypicalDuration]
    read_at: datetime | None = None

    def of(self, job_id: JobId, handler: str) -> TypicalDuration | None:
        """The typical duration of a job, or else of its handler."""
        return self.of_jobs.get(job_id) or self.of_handlers.get(handler)


NO_DURATIONS = TypicalDurations({}, {})


async def read_typical_durations(database: Database, job_ids: Collection[JobId]) -> TypicalDurations:
    """Read the typical durations of these jobs."""
    return TypicalDurations(await _of_jobs(database, job_ids), await _of_handlers(database))


@dataclass(slots=True)
class _CachedDurations:
    """Durations that were read, and when."""

    since: float
    read_at: datetime
    of_jobs: dict[JobId, TypicalDuration]
    of_handlers: Mapping[str, TypicalDuration]


class DurationCache:
    """Typical durations, at most a minute old.

    Timelines and forecasts ask for all jobs, and one more run hardly changes a median. A job that has not run yet is read each time.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._memory: _CachedDurations | None = None

    async def of(self, job_ids: Collection[JobId]) -> TypicalDurations:
        """The typical durations of these jobs."""
        memory = await self._fresh()
        unknown = [job_id for job_id in job_ids if job_id not in memory.of_jobs]
        if unknown:
            memory.of_jobs |= await _of_jobs(self._database, unknown)
        return TypicalDurations(memory.of_jobs, memory.of_handlers, memory.read_at)

    async def _fresh(self) -> _CachedDurations:
        clock = self._database.env.clock
        now = clock.monotonic()
        memory = self._memory
        if memory is None or now - memory.since > CACHED_SECONDS or len(memory.of_jobs) > _MAX_CACHED:
            memory = self._memory = _CachedDurations(now, clock.now(), {}, await _of_handlers(self._database))
        return memory


async def _of_jobs(database: Database, job_ids: Collection[JobId]) -> dict[JobId, TypicalDuration]:
    ids = sorted(job_ids, key=lambda id_: id_.bytes)
    limit = min(_HISTORY_OF_A_JOB, max(_MAX_READ // max(len(ids), 1), 1))
    rows = await database.fetch("typical_durations_of_jobs", ids=ids, limit=limit)
    return {JobId(row["id"]): _typical_from(row) for row in rows}


async def _of_handlers(database: Database) -> dict[str, TypicalDuration]:
    rows = await database.fetch("typical_durations_of_handlers", limit=_HISTORY_OF_HANDLERS)
    return {row["handler"]: _typical_from(row) for row in rows}


def _typical_from(row: Any) -> TypicalDuration:
    median, p95 = row["durations"]
    return TypicalDuration(timedelta(seconds=max(median, 0)), timedelta(seconds=max(p95, 0)), row["executions"])


# An execution that ended within a span may have an earlier instant: after retries, or a long wait.
_EARLIER = timedelta(days=1)
MAX_LINES = 2_000
_ONE_OFFS_A_SHARD = 40
_MAX_RUNNING = 2_000


class TimelineRun(NamedTuple):
    """A past, present or future run; a tuple, because a view reads thousands of them."""

    id: ExecutionId
    job_id: JobId
    handler: str
    queue: str
    started_at: datetime
    worker: UUID | None = None
    finished_at: datetime | None = None
    state: str | None = None
    # How many occurrences a skip stands for; its state is the reason.
    number: int = 1

    @property
    def is_enqueued(self) -> bool:
        """Whether it has the id of its job: it is the only run of that job, which has no name."""
        return self.job_id == self.id


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Past runs; *cut_before* means that there are more before that instant."""

    runs: Sequence[TimelineRun] = ()
    cut_before: datetime | None = None


class FutureLines(NamedTuple):
    """The future of jobs with a schedule, whether there are more of them, and when their durations were read."""

    lines: list[ForecastJob]
    has_more: bool
    durations_at: datetime | None


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A named job."""

    name: str
    handler: str
    queue: str
    kind: str


class TimelineStore:
    """Reads for timelines and forecasts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._usual = DurationCache(database)

    async def futures(self, queue: str | None, limit: int = MAX_LINES) -> FutureLines:
        """The future of every job with a schedule, with its typical duration."""
        rows = await self._database.fetch("futures", limit=limit + 1)
        scheduled = [row for row in rows[:limit] if row["due_kind"] == "occurrence" and queue in (None, row["queue"])]
        durations = await self.durations([JobId(row["id"]) for row in scheduled])
        calendars = await self._database.calendars.of(scheduled)
        freezes = await read_freezes(self._database)
        # In a thread: this parses thousands of schedules, and would block the event loop.
        lines = await asyncio.to_thread(lambda: [_line_from(row, durations, calendars, freezes) for row in scheduled])
        return FutureLines(lines, len(rows) > limit, durations.read_at)

    async def future_of(self, job_id: JobId) -> ForecastJob | None:
        """The future of one job, recurring or not; None if it has no next occurrence."""
        row = next(iter(await self._database.fetch("future_of_job", job_id=job_id)), None)
        if row is None:
            return None
        durations, calendars = await self.durations([job_id]), await self._database.calendars.of([row])
        return _line_from(row, durations, calendars, await read_freezes(self._database))

    async def durations(self, job_ids: Collection[JobId]) -> TypicalDurations:
        """The typical durations of these jobs, at most a minute old."""
        return await self._usual.of(job_ids)

    async def durations_of(self, runs: Iterable[TimelineRun]) -> TypicalDurations:
        """The typical durations of these runs; an enqueued one has no history of its own."""
        runs = list(runs)
        return await self.durations({run.job_id for run in runs if not run.is_enqueued}) if runs else NO_DURATIONS

    async def one_offs(self, start: datetime, until: datetime, queue: str | None) -> list[TimelineRun]:
        """Other executions that start within a span; the first ones, if there are very many. What a freeze holds starts when it is over."""
        freezes = await read_freezes(self._database)
        first = min(
            (one.from_at for one in freezes.freezes if one.from_at < start <= one.until_at < until), default=start
        )
        rows = await self._database.fetch("one_offs", start=first, until=until, queue=queue, each=_ONE_OFFS_A_SHARD)
        runs = [_run_from(row, started_at=row["run_at"]) for row in rows]
        if freezes.between(first, until):
            tags = await read_tags(self._database, [run.job_id for run in runs], freezes.tags)
            runs = [_thawed(run, freezes.windows_of(run.queue, run.job_id, tags)) for run in runs]
        return [run for run in runs if start <= run.started_at < until]

    async def running(self, queue: str | None) -> list[TimelineRun]:
        """The present runs."""
        rows = await self._database.fetch("running_now", queue=queue, limit=_MAX_RUNNING)
        return [_run_from(row, started_at=row["started_at"])._replace(worker=row["worker"]) for row in rows]

    async def past(self, start: datetime, until: datetime, queue: str | None, limit: int) -> PastRuns:
        """The runs that ended within a span, among its latest *limit* executions."""
        rows = await self._database.fetch("past", limit=limit, **_window(start, until))
        runs = rows if queue is None else [row for row in rows if row["queue"] == queue]
        return _past_from(runs, until, is_cut=len(rows) >= limit)

    async def past_of_jobs(
        self, ids: Sequence[JobId], start: datetime, until: datetime, each: int
    ) -> dict[JobId, PastRuns]:
        """The runs of these jobs that ended within a span: the latest *each* of every job."""
        rows = await self._database.fetch("past_of_jobs", ids=list(ids), each=each, **_window(start, until))
        by_job: dict[JobId, list[Any]] = {}
        for row in rows:
            by_job.setdefault(JobId(row["job_id"]), []).append(row)
        return {id_: _past_from(own, until, is_cut=len(own) >= each) for id_, own in by_job.items()}

    async def skips(self, start: datetime, until: datetime, queue: str | None, limit: int) -> list[TimelineRun]:
        """The latest skipped occurrences of a span, as runs from their first to their last instant with their reasons as states."""
        rows = await self._database.fetch(
            "skips",
            start=start,
            until=until,
            first_id=first_id_at(start),
            last_id=first_id_at(until + timedelta(milliseconds=1)),
            limit=limit,
        )
        return [TimelineRun._make(row) for row in rows if queue in (None, row["queue"])]

    async def next_due(self, limit: int) -> list[dict[str, Any]]:
        """The executions that are due next, the first one first."""
        return [dict(row) for row in await self._database.fetch("next_due", limit=limit)]

    async def names(self, ids: Collection[JobId]) -> dict[JobId, NamedJob]:
        """Those of the jobs that have a name."""
        rows = await self._database.fetch("named_jobs", ids=list(ids))
        return {JobId(row["id"]): NamedJob(row["name"], row["handler"], row["queue"], row["kind"]) for row in rows}

    async def queue_limits(self) -> dict[str, int]:
        """The limits of limited queues."""
        rows = await self._database.fetch("queue_limits")
        return {row["name"]: row["max_running"] for row in rows}


def _window(start: datetime, until: datetime) -> dict[str, Any]:
    return {
        "start": start,
        "first_id": first_id_at(start - _EARLIER),
        "last_id": first_id_at(until + timedelta(milliseconds=1)),
    }


def _past_from(rows: Sequence[Any], until: datetime, *, is_cut: bool) -> PastRuns:
    # The statements return their columns in the order of the fields of a run.
    ended = starmap(TimelineRun, rows)
    runs = [run for run in ended if run.started_at is not None and run.started_at < until]
    return PastRuns(runs, min((run.started_at for run in runs), default=until) if is_cut else None)


def _thawed(run: TimelineRun, windows: Sequence[FrozenWindow]) -> TimelineRun:
    window = window_at(windows, run.started_at)
    return run if window is None else run._replace(started_at=window.end)


def _line_from(row: Any, durations: TypicalDurations, calendars: CitedCalendars, freezes: FreezeList) -> ForecastJob:
    job_id = JobId(row["id"])
    return ForecastJob(
        job_id=job_id,
        label=row["name"] or format_job_id(job_id),
        handler=row["handler"],
        queue=row["queue"],
        rule=rule_from(row, calendars),
        pending=row["scheduled_for"],
        since=row["created_at"],
        jitter=jitter_of(job_id, row["jitter_seconds"] or 0),
        left=row["executions_left"],
        typical=durations.of(job_id, row["handler"]),
        execution_id=ExecutionId(row["execution_id"]),
        windows=freezes.windows_of(row["queue"], job_id, {job_id: row["tags"] or ()}),
        misfire_cap=row["misfire_cap"] or 1,
    )


def _run_from(row: Any, *, started_at: datetime) -> TimelineRun:
    return TimelineRun(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        handler=row["handler"],
        queue=row["queue"],
        started_at=started_at,
    )
