"""Upcoming runs as calendar entries: single runs, or one entry a day for frequent jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from timeball.domain.forecast.demand import ASSUMED_DURATION, FireTimeBudget, FireTimes, ForecastJob
from timeball.domain.scheduling.civil_time import first_instant, load_zone
from timeball.domain.scheduling.schedule import Once
from timeball.domain.values.ids import ExecutionId, format_job_id, occurrence_id

if TYPE_CHECKING:
    from timeball.application.queries.forecast import ForecastRequest
    from timeball.domain.job import Job
    from timeball.domain.values.ids import JobId
    from timeball.store.store import Store
    from timeball.store.timeline import NamedJob, TimelineRun, TimelineStore

# What runs more often than this on a day is one entry of that day.
FREQUENT_FROM = 8
MOST_ENTRIES, MOST_OF_A_JOB = 2_000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSource:
    """The source of entries: a job or, without a *job_id*, everything enqueued for a handler in a queue."""

    label: str
    handler: str
    queue: str
    length: timedelta
    is_guess: bool
    job_id: JobId | None = None
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """One run with its id; or, with a *day*, the number of runs on that day from *start* on."""

    what: FeedSource
    start: datetime
    execution_id: ExecutionId | None = None
    day: date | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeed:
    """The entries, the soonest first. *left_out* jobs exceeded the budget; there are more entries after *cut_after*."""

    now: datetime
    entries: Sequence[FeedEntry]
    left_out: int = 0
    cut_after: datetime | None = None


class FeedQueries:
    """Reads upcoming runs as calendar entries."""

    def __init__(self, store: Store, timelines: TimelineStore) -> None:
        self._store = store
        self._timelines = timelines

    async def of_all(self, request: ForecastRequest) -> RunFeed:
        """The upcoming runs of every job with a schedule, and one-offs."""
        days = _Days(await self._store.history.moment(), request.timezone, request.days)
        futures = await self._timelines.futures(request.queue)
        runs = await self._timelines.one_offs(days.edges[0], days.edges[-1], request.queue)
        entries, left_out = await asyncio.to_thread(_predicted_entries, days, futures.lines)
        entries += await self._one_offs(days, runs)
        return _cut(days, entries, left_out + futures.has_more, MOST_ENTRIES)

    async def of_job(self, job: Job, days: int) -> RunFeed:
        """The upcoming runs of one job, in its own time zone."""
        ahead = _Days(await self._store.history.moment(), job.timezone, days)
        future = await self._timelines.future_of(job.id)
        entries, left_out = await asyncio.to_thread(_predicted_entries, ahead, [] if future is None else [future])
        return _cut(ahead, entries, left_out, MOST_OF_A_JOB)

    async def _one_offs(self, days: _Days, runs: Sequence[TimelineRun]) -> list[FeedEntry]:
        names = await self._timelines.names({run.job_id for run in runs if not run.is_enqueued})
        durations = await self._timelines.durations_of(runs)
        ordered = sorted(runs, key=lambda run: (*_group_key(run), run.started_at))
        entries: list[FeedEntry] = []
        for _, group in groupby(ordered, key=_group_key):
            alike = list(group)
            typical = durations.of(alike[0].job_id, alike[0].handler)
            source = _enqueued(alike[0], names.get(alike[0].job_id), None if typical is None else typical.median)
            entries += days.entries(source, [(run.started_at, run.id) for run in alike])
        return entries


def _group_key(run: TimelineRun) -> tuple[str, str, str]:
    """What groups runs into entries: their job, or the handler and queue of enqueued ones."""
    return ("", run.handler, run.queue) if run.is_enqueued else (run.job_id.hex, "", "")


def _enqueued(run: TimelineRun, named: NamedJob | None, typical: timedelta | None) -> FeedSource:
    job_id = None if run.is_enqueued else run.job_id
    return FeedSource(
        label=run.handler if job_id is None else named.name if named is not None else format_job_id(job_id),
        handler=run.handler,
        queue=run.queue,
        length=ASSUMED_DURATION if typical is None else typical,
        is_guess=typical is None,
        job_id=job_id,
    )


def _predicted_entries(days: _Days, jobs: Iterable[ForecastJob]) -> tuple[list[FeedEntry], int]:
    """The entries of all jobs within the budget, and the number of jobs left out."""
    budget = FireTimeBudget(days.edges, singly=FREQUENT_FROM * (len(days.edges) - 1))
    fires = budget.of(jobs)
    return [entry for times in fires for entry in _of_job(days, times)], budget.left_out


def _of_job(days: _Days, fires: FireTimes) -> list[FeedEntry]:
    job = fires.job
    what = FeedSource(
        label=job.label,
        handler=job.handler,
        queue=job.queue,
        length=job.duration,
        is_guess=job.is_guess,
        job_id=job.job_id,
        schedule=None if isinstance(job.rule, Once) else job.rule.describe(),
    )
    if fires.counts:
        return days.counted(what, fires.counts)
    return days.entries(what, [(at, _identity(job, at - job.jitter)) for at in fires.at])


def _identity(job: ForecastJob, scheduled_for: datetime) -> ExecutionId:
    """The id that the execution has or will have, so that an entry keeps its id between reads."""
    if job.execution_id is not None and scheduled_for == job.pending:
        return job.execution_id
    return occurrence_id(job.job_id, scheduled_for)


class _Days:
    """The rest of today and the days after it, in a time zone."""

    def __init__(self, now: datetime, timezone: str, days: int) -> None:
        self._zone = load_zone(timezone)
        today = now.astimezone(self._zone).date()
        later = [today + timedelta(days=number) for number in range(1, days + 1)]
        self.edges = [now, *(first_instant(timezone, datetime.combine(day, time.min)) for day in later)]

    def entries(self, what: FeedSource, runs: Sequence[tuple[datetime, ExecutionId]]) -> list[FeedEntry]:
        """Entries for runs in order of time: one for each run, or one for a day with many runs."""
        entries: list[FeedEntry] = []
        for day, group in groupby(runs, key=lambda run: self._date(run[0])):
            of_day = list(group)
            if len(of_day) > FREQUENT_FROM:
                entries.append(FeedEntry(what=what, start=of_day[0][0], day=day, times=len(of_day)))
            else:
                entries += [FeedEntry(what=what, start=at, execution_id=id_) for at, id_ in of_day]
        return entries

    def counted(self, what: FeedSource, counts: Sequence[int]) -> list[FeedEntry]:
        """Entries with the number of runs of each day."""
        return [
            FeedEntry(what=what, start=start, day=self._date(start), times=times)
            for start, times in zip(self.edges[:-1], counts, strict=True)
            if times
        ]

    def _date(self, at: datetime) -> date:
        return at.astimezone(self._zone).date()


def _cut(days: _Days, entries: list[FeedEntry], left_out: int, most: int) -> RunFeed:
    entries.sort(key=lambda entry: (entry.start, entry.what.label))
    cut_after = entries[most - 1].start if len(entries) > most else None
    return RunFeed(now=days.edges[0], entries=entries[:most], left_out=left_out, cut_after=cut_after)
