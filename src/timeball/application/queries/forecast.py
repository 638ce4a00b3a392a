"""Slot demand of the next days hour by hour, collisions of jobs, how to spread them, and the load at one instant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from timeball.application.queries.metrics import RollupHistory
from timeball.domain.forecast.demand import (
    ASSUMED_DURATION,
    Collision,
    FireTimeBudget,
    FireTimes,
    ForecastJob,
    SlotPool,
    find_collisions,
    slot_pools,
    slots_of,
)
from timeball.domain.forecast.suggestions import ScheduleShift, ShiftInput, ShiftPlan, suggest_shifts
from timeball.domain.forecast.timeline import BucketLoad, bucket_load
from timeball.domain.node import NodeKind, NodeStatus, alive_nodes
from timeball.domain.scheduling.civil_time import first_instant, load_zone

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.domain.values.ids import JobId
    from timeball.store.store import Store
    from timeball.store.timeline import TimelineStore

_HOUR = timedelta(hours=1)
_TICK = timedelta(microseconds=1)
# More of yesterday than this is not read run by run.
_MAX_MEASURED = 500
# A one-off that started longer ago than this is assumed to have ended.
_LOOK_BACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """The number of days, the queue and the time zone of a forecast."""

    days: int = 7
    queue: str | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One local hour of a day; its note is `gap` (skipped by the clock), `repeat` (comes twice) or `past`."""

    hour: int
    at: datetime | None
    busy: float | None
    starts: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """A local day with its 24 hours."""

    date: date
    hours: Sequence[Hour]

    @property
    def peak(self) -> Hour | None:
        """The busiest hour."""
        busy = [hour for hour in self.hours if hour.busy]
        return max(busy, key=lambda hour: hour.busy or 0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """The forecast for yesterday beside what was measured."""

    date: date
    predicted_peak: float
    measured_peak: float
    predicted_hours: float
    measured_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next days. *left_out* jobs exceeded the budget; durations of jobs *without_history* are guesses.

    *durations_at* is when the typical durations of the others were read.
    """

    now: datetime
    request: ForecastRequest
    slots: int
    days: Sequence[Day]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None
    hindsight: Hindsight


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRequest:
    """Identifies a collision in a forecast of some days by its queues and an instant; the worst, if several match."""

    queues: Sequence[str] = ()
    at: datetime | None = None
    days: int = 7
    timezone: str = "UTC"

    def choose(self, collisions: Sequence[Collision]) -> Collision | None:
        """The matching collision of a list that has the worst first; of several with these queues, the one with the fewest."""
        matching = [collision for collision in collisions if self._matches(collision)]
        if self.queues:
            return min(matching, key=lambda collision: len(collision.pool.queues), default=None)
        return next(iter(matching), None)

    def _matches(self, collision: Collision) -> bool:
        is_then = self.at is None or any(start <= self.at < end for start, end in collision.spans)
        return is_then and set(self.queues) <= set(collision.pool.queues)


@dataclass(frozen=True, slots=True)
class SpreadAdvice:
    """How a collision could be spread; *jobs* are the jobs to move, as they are now."""

    spread: ShiftPlan
    jobs: Mapping[JobId, Job]

    @property
    def moves(self) -> list[ScheduleShift]:
        """The moves up to the first whose job has changed meanwhile: later moves depend on it."""
        return list(takewhile(self._holds, self.spread.moves))

    def _holds(self, move: ScheduleShift) -> bool:
        job = self.jobs.get(move.job.job_id)
        return job is not None and job.deleted_at is None and job.rule == move.job.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantLoadRequest:
    """An instant and a queue; the job whose schedule is checked does not count itself."""

    at: datetime
    queue: str
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantLoad:
    """The jobs that run at an instant in the queues of one pool, the longest first; *need* includes the new run.

    *left_out* says that there are more jobs than were read.
    """

    at: datetime
    jobs: Sequence[ForecastJob]
    one_offs: int
    need: int
    slots: int
    left_out: bool


@dataclass(frozen=True, slots=True)
class _Horizon:
    """Everything that was read for one forecast."""

    now: datetime
    request: ForecastRequest
    grid: _HourGrid
    jobs: Sequence[ForecastJob]
    fires: Sequence[FireTimes]
    left_out: int
    durations_at: datetime | None
    workers: Sequence[NodeStatus]
    limits: Mapping[str, int]

    def prospect(self) -> ShiftInput:
        """The input of the search for collisions: as many whole days from now on."""
        end = self.now + self.request.days * timedelta(days=1)
        return ShiftInput(
            fires=[replace(times, at=tuple(at for at in times.at if at < end)) for times in self.fires],
            pools=slot_pools(self.workers, {job.queue for job in self.jobs}, self.limits),
            now=self.now,
            end=end,
            span=self.grid.edges[-1] - self.now,
        )


class ForecastQueries:
    """Forecasts the demand for slots."""

    def __init__(self, store: Store, timelines: TimelineStore) -> None:
        self._store = store
        self._timelines = timelines

    async def demand(self, request: ForecastRequest) -> Forecast:
        """Busy slots and starts of every hour."""
        return await self._forecast(await self._look(request))

    async def collisions(self, request: ForecastRequest) -> list[Collision]:
        """The periods in which jobs need more slots than there are, the worst first."""
        return await self._collisions(await self._look(request))

    async def with_collisions(self, request: ForecastRequest) -> tuple[Forecast, list[Collision]]:
        """The forecast and its collisions, from one read."""
        ahead = await self._look(request)
        return await self._forecast(ahead), await self._collisions(ahead)

    async def spread(self, request: SpreadRequest) -> SpreadAdvice | None:
        """How the jobs of a collision could be spread; None if there is no such collision."""
        ahead = await self._look(ForecastRequest(days=request.days, timezone=request.timezone))
        collision = request.choose(await self._collisions(ahead))
        if collision is None:
            return None
        plan = await asyncio.to_thread(suggest_shifts, collision, ahead.prospect())
        return SpreadAdvice(plan, await self._store.jobs.find([move.job.job_id for move in plan.moves]))

    async def _look(self, request: ForecastRequest) -> _Horizon:
        now = await self._store.history.moment()
        jobs, has_more, durations_at = await self._timelines.futures(request.queue)
        # One day more than is shown: collisions are searched for as many whole days from now on.
        grid = _HourGrid(request.timezone, now.astimezone(load_zone(request.timezone)).date(), request.days + 1)
        budget = FireTimeBudget(grid.edges)
        fires = await asyncio.to_thread(budget.of, jobs)
        nodes = alive_nodes(await self._store.nodes.list(), now)
        return _Horizon(
            now=now,
            request=request,
            grid=grid,
            jobs=jobs,
            fires=fires,
            left_out=budget.left_out + has_more,
            durations_at=durations_at,
            workers=[node for node in nodes if node.kind is NodeKind.WORKER],
            limits=await self._timelines.queue_limits(),
        )

    async def _forecast(self, ahead: _Horizon) -> Forecast:
        return Forecast(
            now=ahead.now,
            request=ahead.request,
            slots=slots_of(ahead.workers, ahead.request.queue, ahead.limits),
            days=list(islice(ahead.grid.days(await self._load(ahead), ahead.now), ahead.request.days)),
            left_out=ahead.left_out,
            without_history=sorted({times.job.label for times in ahead.fires if times.job.is_guess}),
            durations_at=ahead.durations_at,
            hindsight=await self._hindsight(ahead),
        )

    async def _collisions(self, ahead: _Horizon) -> list[Collision]:
        prospect, zone = ahead.prospect(), load_zone(ahead.request.timezone)
        return await asyncio.to_thread(find_collisions, prospect.fires, prospect.pools, zone, prospect.span)

    async def _load(self, ahead: _Horizon) -> BucketLoad:
        now, grid, queue = ahead.now, ahead.grid, ahead.request.queue
        load = await asyncio.to_thread(bucket_load, grid.edges, ahead.fires)
        runs = [*await self._timelines.running(queue), *await self._timelines.one_offs(now, grid.edges[-1], queue)]
        durations = await self._timelines.durations_of(runs)
        for run in runs:
            typical = durations.of(run.job_id, run.handler)
            length = ASSUMED_DURATION if typical is None else typical.median
            load.add_span(max(run.started_at, now), max(run.started_at + length, now), is_start=run.started_at >= now)
        return load

    async def _hindsight(self, ahead: _Horizon) -> Hindsight:
        day = ahead.grid.first - timedelta(days=1)
        grid = _HourGrid(ahead.request.timezone, day, 1)
        predicted = await asyncio.to_thread(_backtested_load, ahead.jobs, grid.edges)
        measured = await self._measured(grid, ahead)
        return Hindsight(
            date=day,
            predicted_peak=_peak(predicted),
            predicted_hours=sum(predicted.seconds) / 3600,
            measured_peak=_peak(measured),
            measured_hours=sum(measured.seconds) / 3600,
        )

    async def _measured(self, grid: _HourGrid, ahead: _Horizon) -> BucketLoad:
        """The measured load: from single runs as far as they were read, before that from rollups."""
        queue = ahead.request.queue
        past = await self._timelines.past(grid.edges[0], grid.edges[-1], queue, _MAX_MEASURED)
        load = BucketLoad(grid.edges)
        rollups = RollupHistory(self._store, grid.edges[0], ahead.now)
        edge = grid.edges[0] if past.cut_before is None else rollups.edge_after(past.cut_before)
        for run in past.runs:
            end = run.finished_at or run.started_at
            if end >= edge:
                load.add_span(run.started_at, end)
        if past.cut_before is not None:
            await rollups.load(load, edge, queue)
        return load

    async def load_at(self, request: InstantLoadRequest) -> InstantLoad:
        """The load that a run would meet if it started at an instant in a queue."""
        jobs, has_more, _ = await self._timelines.futures(None)
        pool = await self._pool(request.queue, {job.queue for job in jobs})
        others = [job for job in jobs if job.queue in pool.queues and job.job_id != request.job_id]
        # In a thread: thousands of cron expressions would hold up the event loop.
        running = await asyncio.to_thread(_running_at, others, request.at)
        one_offs = await self._running_one_offs(request, pool)
        return InstantLoad(
            at=request.at,
            jobs=sorted((job for job, _ in running), key=lambda job: job.duration, reverse=True),
            one_offs=one_offs,
            need=1 + one_offs + sum(runs for _, runs in running),
            slots=pool.slots,
            left_out=has_more,
        )

    async def _pool(self, queue: str, queues: set[str]) -> SlotPool:
        now = await self._store.history.moment()
        nodes = alive_nodes(await self._store.nodes.list(), now)
        workers = [node for node in nodes if node.kind is NodeKind.WORKER and not node.draining]
        shared = slot_pools(workers, queues | {queue}, await self._timelines.queue_limits())
        return min((pool for pool in shared if queue in pool.queues), key=lambda pool: pool.slots)

    async def _running_one_offs(self, request: InstantLoadRequest, pool: SlotPool) -> int:
        due = await self._timelines.one_offs(request.at - _LOOK_BACK, request.at + _TICK, None)
        runs = [run for run in due if run.queue in pool.queues and run.job_id != request.job_id]
        durations = await self._timelines.durations_of(runs)
        typical = [durations.of(run.job_id, run.handler) for run in runs]
        ends = [
            run.started_at + (ASSUMED_DURATION if duration is None else duration.median)
            for run, duration in zip(runs, typical, strict=True)
        ]
        return sum(end > request.at for end in ends)


def _backtested_load(jobs: Sequence[ForecastJob], edges: Sequence[datetime]) -> BucketLoad:
    """The load of a day as a forecast at its start would have shown it."""
    earlier = [past for job in jobs if (past := job.from_the_start(edges[0])) is not None]
    return bucket_load(edges, FireTimeBudget(edges).of(earlier))


class _HourGrid:
    """The hours of some local days, as the instants at which they begin."""

    def __init__(self, timezone: str, first: date, days: int) -> None:
        self.first = first
        self._zone = load_zone(timezone)
        self._days = [first + timedelta(days=number) for number in range(days + 1)]
        midnights = [first_instant(timezone, datetime.combine(day, time.min)) for day in self._days]
        self.edges = list(_hours(midnights))

    def days(self, load: BucketLoad, now: datetime) -> Iterator[Day]:
        """Each day with its 24 hours; an hour that does not exist or comes twice has a note."""
        shown: dict[date, dict[int, list[int]]] = {day: {} for day in self._days[:-1]}
        for number, start in enumerate(self.edges[:-1]):
            local = start.astimezone(self._zone)
            shown[local.date()].setdefault(local.hour, []).append(number)
        for day, hours in shown.items():
            yield Day(day, [self._hour(hour, hours.get(hour, []), load, now) for hour in range(24)])

    def _hour(self, hour: int, numbers: Sequence[int], load: BucketLoad, now: datetime) -> Hour:
        if not numbers:
            return Hour(hour=hour, at=None, busy=None, starts=None, note="gap")
        at = self.edges[numbers[0]]
        if self.edges[numbers[-1] + 1] <= now:
            return Hour(hour=hour, at=at, busy=None, starts=None, note="past")
        busy = max(load.busy(number) for number in numbers)
        starts = sum(load.starts[number] for number in numbers)
        return Hour(hour=hour, at=at, busy=round(busy, 3), starts=starts, note="repeat" if len(numbers) > 1 else None)


def _hours(midnights: Sequence[datetime]) -> Iterator[datetime]:
    at = midnights[0]
    for midnight in midnights[1:]:
        while at < midnight:
            yield at
            at += _HOUR
        at = midnight
    yield midnights[-1]


def _peak(load: BucketLoad) -> float:
    return round(max((load.busy(number) for number in range(len(load.seconds))), default=0.0), 2)


def _running_at(jobs: Iterable[ForecastJob], at: datetime) -> list[tuple[ForecastJob, int]]:
    """The jobs that start at an instant or still run then, and the number of runs of each."""
    counted = ((job, job.count(at - max(job.duration, _TICK) + _TICK, at + _TICK)) for job in jobs)
    return [(job, runs) for job, runs in counted if runs]
