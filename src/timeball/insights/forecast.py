"""Demand against slots for the next days, hour by hour; where jobs collide; and how good yesterday's forecast was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from itertools import islice

from timeball.domain.capacity import pools, slots_of
from timeball.domain.civil_time import first_instant, load_zone
from timeball.domain.collisions import Collision, find_collisions
from timeball.domain.foresight import GUESS, Fires, Foresight, Line
from timeball.domain.load import Load, load_of
from timeball.domain.node import NodeKind, NodeStatus
from timeball.domain.spreading import Prospect, spread
from timeball.insights.dense_past import DensePast
from timeball.insights.explain import living
from timeball.insights.spread import Advice, SpreadWish
from timeball.store.interface import Store
from timeball.store.outlook import Outlook

HOUR = timedelta(hours=1)
# More of yesterday than this is not read run by run.
_MOST_MEASURED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastWish:
    """For how many days, of which queue, on whose clock."""

    days: int = 7
    queue: str | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a day as its clock shows it: `gap` is jumped over, `repeat` comes twice, `past` is over."""

    hour: int
    at: datetime | None
    busy: float | None
    starts: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the zone, with its 24 hours."""

    date: date
    hours: Sequence[Hour]

    @property
    def peak(self) -> Hour | None:
        """The busiest hour."""
        known = [hour for hour in self.hours if hour.busy]
        return max(known, key=lambda hour: hour.busy or 0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Yesterday, as it would have been foreseen and as it was."""

    date: date
    predicted_peak: float
    measured_peak: float
    predicted_hours: float
    measured_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next days. *left_out* jobs were too many to foresee; those *without_history* are guessed at.

    *durations_at* says when it was read how long the others usually take.
    """

    now: datetime
    wish: ForecastWish
    slots: int
    days: Sequence[Day]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None
    hindsight: Hindsight


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What lies ahead, as it was read once for all that is told about it."""

    now: datetime
    wish: ForecastWish
    grid: _Grid
    lines: Sequence[Line]
    fires: Sequence[Fires]
    left_out: int
    durations_at: datetime | None
    workers: Sequence[NodeStatus]
    limits: Mapping[str, int]

    def prospect(self) -> Prospect:
        """What collisions are looked for in: from now on, for as many whole days."""
        end = self.now + self.wish.days * timedelta(days=1)
        return Prospect(
            fires=[replace(some, at=tuple(at for at in some.at if at < end)) for some in self.fires],
            pools=pools(self.workers, {line.queue for line in self.lines}, self.limits),
            now=self.now,
            end=end,
            span=self.grid.edges[-1] - self.now,
        )


class Forecasts:
    """Looks ahead."""

    def __init__(self, store: Store, outlook: Outlook) -> None:
        self._store = store
        self._outlook = outlook

    async def forecast(self, wish: ForecastWish) -> Forecast:
        """Busy slots and starts of every hour."""
        return await self._forecast(await self._look(wish))

    async def collisions(self, wish: ForecastWish) -> list[Collision]:
        """Where jobs want more slots than there are."""
        return await self._collisions(await self._look(wish))

    async def both(self, wish: ForecastWish) -> tuple[Forecast, list[Collision]]:
        """The forecast and its collisions, from one look."""
        ahead = await self._look(wish)
        return await self._forecast(ahead), await self._collisions(ahead)

    async def spread(self, wish: SpreadWish) -> Advice | None:
        """How the jobs of a collision could be spread; None if nothing collides there."""
        ahead = await self._look(ForecastWish(days=wish.days, timezone=wish.timezone))
        collision = wish.choose(await self._collisions(ahead))
        if collision is None:
            return None
        found = await asyncio.to_thread(spread, collision, ahead.prospect())
        return Advice(found, await self._store.jobs.find([move.line.job_id for move in found.moves]))

    async def _look(self, wish: ForecastWish) -> _Ahead:
        now = await self._store.history.moment()
        lines, has_more, durations_at = await self._outlook.futures(wish.queue)
        # A day more than is shown: collisions are told from now on, for as many whole days.
        grid = _Grid(wish.timezone, now.astimezone(load_zone(wish.timezone)).date(), wish.days + 1)
        foresight = Foresight(grid.edges)
        fires = await asyncio.to_thread(foresight.of, lines)
        nodes = living(await self._store.nodes.list(), now)
        return _Ahead(
            now=now,
            wish=wish,
            grid=grid,
            lines=lines,
            fires=fires,
            left_out=foresight.left_out + has_more,
            durations_at=durations_at,
            workers=[node for node in nodes if node.kind is NodeKind.WORKER],
            limits=await self._outlook.queue_limits(),
        )

    async def _forecast(self, ahead: _Ahead) -> Forecast:
        return Forecast(
            now=ahead.now,
            wish=ahead.wish,
            slots=slots_of(ahead.workers, ahead.wish.queue, ahead.limits),
            days=list(islice(ahead.grid.days(await self._load(ahead), ahead.now), ahead.wish.days)),
            left_out=ahead.left_out,
            without_history=sorted({some.line.label for some in ahead.fires if some.line.is_guess}),
            durations_at=ahead.durations_at,
            hindsight=await self._hindsight(ahead),
        )

    async def _collisions(self, ahead: _Ahead) -> list[Collision]:
        found, zone = ahead.prospect(), load_zone(ahead.wish.timezone)
        return await asyncio.to_thread(find_collisions, found.fires, found.pools, zone, found.span)

    async def _load(self, ahead: _Ahead) -> Load:
        now, grid, queue = ahead.now, ahead.grid, ahead.wish.queue
        load = await asyncio.to_thread(load_of, grid.edges, ahead.fires)
        runs = [*await self._outlook.running(queue), *await self._outlook.one_offs(now, grid.edges[-1], queue)]
        durations = await self._outlook.durations_of(runs)
        for run in runs:
            usual = durations.of(run.job_id, run.handler)
            length = GUESS if usual is None else usual.median
            load.add_span(max(run.started_at, now), max(run.started_at + length, now), is_start=run.started_at >= now)
        return load

    async def _hindsight(self, ahead: _Ahead) -> Hindsight:
        day = ahead.grid.first - timedelta(days=1)
        grid = _Grid(ahead.wish.timezone, day, 1)
        predicted = await asyncio.to_thread(_as_foreseen, ahead.lines, grid.edges)
        measured = await self._measured(grid, ahead)
        return Hindsight(
            date=day,
            predicted_peak=_peak(predicted),
            predicted_hours=sum(predicted.seconds) / 3600,
            measured_peak=_peak(measured),
            measured_hours=sum(measured.seconds) / 3600,
        )

    async def _measured(self, grid: _Grid, ahead: _Ahead) -> Load:
        """Run by run as far as that goes, before that by what was counted."""
        queue = ahead.wish.queue
        past = await self._outlook.past(grid.edges[0], grid.edges[-1], queue, _MOST_MEASURED)
        load = Load(grid.edges)
        dense = DensePast(self._store, grid.edges[0], ahead.now)
        edge = grid.edges[0] if past.cut_before is None else dense.edge_after(past.cut_before)
        for run in past.runs:
            end = run.finished_at or run.started_at
            if end >= edge:
                load.add_span(run.started_at, end)
        if past.cut_before is not None:
            await dense.load(load, edge, queue)
        return load


def _as_foreseen(lines: Sequence[Line], edges: Sequence[datetime]) -> Load:
    """The load of a day as it would have been foreseen when it began."""
    earlier = [line for one in lines if (line := one.from_the_start(edges[0])) is not None]
    return load_of(edges, Foresight(edges).of(earlier))


class _Grid:
    """The hours of some days of a zone, as the instants they begin at."""

    def __init__(self, timezone: str, first: date, days: int) -> None:
        self.first = first
        self._zone = load_zone(timezone)
        self._days = [first + timedelta(days=number) for number in range(days + 1)]
        midnights = [first_instant(timezone, datetime.combine(day, time.min)) for day in self._days]
        self.edges = list(_hours(midnights))

    def days(self, load: Load, now: datetime) -> Iterator[Day]:
        """Each day with its 24 hours; those of its clock that do not exist, or come twice, are noted."""
        shown: dict[date, dict[int, list[int]]] = {day: {} for day in self._days[:-1]}
        for number, start in enumerate(self.edges[:-1]):
            local = start.astimezone(self._zone)
            shown[local.date()].setdefault(local.hour, []).append(number)
        for day, hours in shown.items():
            yield Day(day, [self._hour(hour, hours.get(hour, []), load, now) for hour in range(24)])

    def _hour(self, hour: int, numbers: Sequence[int], load: Load, now: datetime) -> Hour:
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
            at += HOUR
        at = midnight
    yield midnights[-1]


def _peak(load: Load) -> float:
    return round(max((load.busy(number) for number in range(len(load.seconds))), default=0.0), 2)
