"""Demand against slots for the next days, hour by hour; where jobs collide; and how good yesterday's forecast was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from timeball.domain.capacity import pools, slots_of
from timeball.domain.civil_time import first_instant, load_zone
from timeball.domain.collisions import Collision, find_collisions
from timeball.domain.foresight import GUESS, Fires, Foresight, Line, Load, load_of
from timeball.domain.node import NodeKind, NodeStatus
from timeball.insights.dense_past import DensePast, whole_minute_after
from timeball.insights.explain import living
from timeball.store.interface import Store
from timeball.store.outlook import Outlook

HOUR = timedelta(hours=1)
# More of yesterday than this is not read run by run.
_MOST_MEASURED = 2_000


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
    """The next days. *left_out* jobs were too many to foresee; those *without_history* are guessed at."""

    now: datetime
    wish: ForecastWish
    slots: int
    days: Sequence[Day]
    left_out: int
    without_history: Sequence[str]
    hindsight: Hindsight


class Forecasts:
    """Looks ahead."""

    def __init__(self, store: Store, outlook: Outlook) -> None:
        self._store = store
        self._outlook = outlook
        self._dense = DensePast(store)

    async def forecast(self, wish: ForecastWish) -> Forecast:
        """Busy slots and starts of every hour."""
        now = await self._store.history.moment()
        zone = load_zone(wish.timezone)
        lines, has_more = await self._outlook.lines(wish.queue)
        grid = _Grid(wish.timezone, now.astimezone(zone).date(), wish.days)
        foresight = Foresight(grid.edges)
        fires = await asyncio.to_thread(foresight.of, lines)
        load = await self._load(grid, fires, now, wish.queue)
        limits = await self._outlook.queue_limits()
        return Forecast(
            now=now,
            wish=wish,
            slots=slots_of(await self._workers(now), wish.queue, limits),
            days=list(grid.days(load, now)),
            left_out=foresight.left_out + has_more,
            without_history=sorted({some.line.label for some in fires if some.line.is_guess}),
            hindsight=await self._hindsight(wish, lines, grid.first - timedelta(days=1)),
        )

    async def collisions(self, wish: ForecastWish) -> list[Collision]:
        """Where jobs want more slots than there are."""
        now = await self._store.history.moment()
        lines, _ = await self._outlook.lines(wish.queue)
        end = now + wish.days * timedelta(days=1)
        steps = wish.days * 24
        foresight = Foresight([now + (end - now) * (number / steps) for number in range(steps)] + [end])
        fires = await asyncio.to_thread(foresight.of, lines)
        queues = {line.queue for line in lines}
        limits = await self._outlook.queue_limits()
        shared = pools(await self._workers(now), queues, limits)
        return await asyncio.to_thread(find_collisions, fires, shared, load_zone(wish.timezone), end - now)

    async def _workers(self, now: datetime) -> list[NodeStatus]:
        return [node for node in living(await self._store.nodes.list(), now) if node.kind is NodeKind.WORKER]

    async def _load(self, grid: _Grid, fires: Sequence[Fires], now: datetime, queue: str | None) -> Load:
        load = await asyncio.to_thread(load_of, grid.edges, fires)
        running, coming = await self._outlook.running(queue), await self._outlook.one_offs(now, grid.edges[-1], queue)
        durations = await self._outlook.durations({run.job_id for run in (*running, *coming)})
        for run in (*running, *coming):
            usual = durations.of(run.job_id, run.handler)
            length = GUESS if usual is None else usual.median
            load.add_span(max(run.started_at, now), max(run.started_at + length, now), is_start=run.started_at >= now)
        return load

    async def _hindsight(self, wish: ForecastWish, lines: Sequence[Line], day: date) -> Hindsight:
        grid = _Grid(wish.timezone, day, 1)
        earlier = [line for one in lines if (line := one.from_the_start(grid.edges[0])) is not None]
        fires = await asyncio.to_thread(Foresight(grid.edges).of, earlier)
        predicted = await asyncio.to_thread(load_of, grid.edges, fires)
        measured = await self._measured(grid, wish.queue)
        return Hindsight(
            date=day,
            predicted_peak=_peak(predicted),
            predicted_hours=sum(predicted.seconds) / 3600,
            measured_peak=_peak(measured),
            measured_hours=sum(measured.seconds) / 3600,
        )

    async def _measured(self, grid: _Grid, queue: str | None) -> Load:
        """Run by run as far as that goes, before that by what was counted."""
        past = await self._outlook.past(grid.edges[0], grid.edges[-1], queue, _MOST_MEASURED)
        load = Load(grid.edges)
        edge = None if past.cut_before is None else whole_minute_after(past.cut_before)
        for run in past.runs:
            end = run.finished_at or run.started_at
            if edge is None or end >= edge:
                load.add_span(run.started_at, end)
        if past.cut_before is not None:
            await self._dense.load(load, past.cut_before, queue)
        return load


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
