"""Suggestions for a collision: which of its jobs to run some minutes earlier or later, so that fewer run at once.

Each step moves the job that lowers the peak most, to the nearest time at which every run of it within the forecast finds
a free slot. A move therefore never causes a collision elsewhere, nor a worse one. The next run of the job moves by as
much as its schedule, and there are as many runs as before: the change neither loses nor doubles one. Every step builds
on those before it. The peak is the most runs at once in the spans of the collision, as they were before any move.

A schedule is moved only where a clear rule says what that means. `every` is moved by its anchor. `cron` is moved by its
minute, which must be a single one; the hours move along when the minute passes the hour, if they are numbers, and past
midnight only if every day is meant. A moved schedule fires as often a day as before, and the rest of an expression stays
as it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeAlias

from timeball.domain.forecast.demand import Collision, FireTimes, ForecastJob, SlotPool, steady_slots
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MIN_INSTANT, format_instant
from timeball.domain.scheduling.cron import NICKNAMES
from timeball.domain.scheduling.schedule import Cron, Every, Rrule, Schedule
from timeball.domain.values.ids import JobId
from timeball.domain.values.wording import counted, duration_in_words, format_duration

MAX_SHIFTS = 8
_MAX_TRIED = 20
_MINUTE = timedelta(minutes=1)
_STEP = timedelta(minutes=5)
_STEPS_TRIED = range(11)
_FARTHEST = timedelta(hours=6)
# The moments that may be checked while times are tried: about a second of work at most.
_BUDGET = 200_000
_MOMENTS_A_FIRE = 5

Period: TypeAlias = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShift:
    """A job that could run at another time, and the peak before and after."""

    job: ForecastJob
    rule: Schedule
    by: timedelta
    peak_before: int
    peak_after: int

    @property
    def sentence(self) -> str:
        shift = f"{duration_in_words(self.by)} {'later' if self.by > timedelta(0) else 'earlier'}"
        schedules = f"{spell_schedule(self.job.rule)} → {spell_schedule(self.rule)}"
        return f"{self.job.label} {schedules} ({shift}), peak {self.peak_before} → {self.peak_after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshiftableJob:
    """A job that stays where it is, and why."""

    job_id: JobId
    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftPlan:
    """How a collision could be spread: moves, one after the other, and the jobs that cannot be moved."""

    collision: Collision
    moves: Sequence[ScheduleShift]
    stays: Sequence[UnshiftableJob]

    @property
    def peak_after(self) -> int:
        return self.moves[-1].peak_after if self.moves else self.collision.need

    @property
    def sentence(self) -> str:
        slots = counted(self.collision.pool.slots, "slot")
        if not self.moves:
            return f"no job of this collision can be moved so that fewer than {self.collision.need} run at once"
        moved = counted(len(self.moves), "job")
        verdict = "fits into" if self.peak_after <= self.collision.pool.slots else "is still more than"
        return f"with {moved} moved the peak is {self.peak_after}, which {verdict} {slots}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftInput:
    """The runs from *now* to *end*, and the pools; *span* is the period over which frequent jobs were counted."""

    fires: Sequence[FireTimes]
    pools: Sequence[SlotPool]
    now: datetime
    end: datetime
    span: timedelta


def suggest_shifts(collision: Collision, prospect: ShiftInput, budget: int = _BUDGET) -> ShiftPlan:
    """The moves that lower the peak of a collision, until it fits or nothing more helps."""
    return _ShiftSearch(collision, prospect, budget).run()


@dataclass(frozen=True, slots=True)
class _Concurrency:
    """How many run at once: each level holds from the moment at its index on."""

    moments: Sequence[datetime]
    levels: Sequence[int]

    @classmethod
    def of(cls, spans: Iterable[Period]) -> _Concurrency:
        changes: Counter[datetime] = Counter()
        for start, end in spans:
            changes[start] += 1
            changes[end] -= 1
        moments = sorted(changes)
        return cls(moments, list(accumulate(changes[moment] for moment in moments)))

    def at(self, moment: datetime) -> int:
        place = bisect_right(self.moments, moment) - 1
        return self.levels[place] if place >= 0 else 0

    def changes_within(self, start: datetime, end: datetime) -> Sequence[datetime]:
        return self.moments[bisect_right(self.moments, start) : bisect_left(self.moments, end)]


_NOTHING = _Concurrency((), ())


@dataclass(frozen=True, slots=True)
class _ConcurrencyDelta:
    """How many run at once when one job leaves its old runs for new ones."""

    total: _Concurrency
    gone: _Concurrency = _NOTHING
    come: _Concurrency = _NOTHING

    def at(self, moment: datetime) -> int:
        return self.total.at(moment) - self.gone.at(moment) + self.come.at(moment)

    def moments(self, span: Period) -> list[datetime]:
        """The start of a span, and the moments within it at which the number changes."""
        return [span[0], *self.total.changes_within(*span), *self.come.changes_within(*span)]


@dataclass(slots=True)
class _PoolUsage:
    """The slots of a pool, moment by moment."""

    pool: SlotPool
    steady: int
    levels: _Concurrency

    @classmethod
    def of(cls, pool: SlotPool, fires: Iterable[FireTimes], span: timedelta) -> _PoolUsage:
        inside = [times for times in fires if times.job.queue in pool.queues]
        return cls(pool, steady_slots(inside, span), _Concurrency.of(run for times in inside for run in _spans(times)))

    @property
    def free(self) -> int:
        return max(self.pool.slots - self.steady, 0)


@dataclass(slots=True)
class _ShiftSearch:
    collision: Collision
    prospect: ShiftInput
    budget: int
    _fires: dict[JobId, FireTimes] = field(default_factory=dict)
    _places: dict[tuple[JobId, timedelta], tuple[Schedule, FireTimes] | None] = field(default_factory=dict)

    def run(self) -> ShiftPlan:
        self._fires = {times.job.job_id: times for times in self.prospect.fires}
        stays = {job_id: why for job_id, _ in self.collision.jobs if (why := self._why_fixed(job_id)) is not None}
        movable = [job_id for job_id, _ in self.collision.jobs if job_id not in stays]
        moves = list(self._moves(movable[:_MAX_TRIED]))
        if len(moves) < MAX_SHIFTS and not self._fits(moves):
            moved = {move.job.job_id for move in moves}
            stays |= {job_id: self._why_stuck(job_id, movable) for job_id in movable if job_id not in moved}
        labels = dict(self.collision.jobs)
        return ShiftPlan(
            collision=self.collision,
            moves=moves,
            stays=[UnshiftableJob(job_id=job_id, label=labels[job_id], why=why) for job_id, why in stays.items()],
        )

    def _why_fixed(self, job_id: JobId) -> str | None:
        job = self._fires[job_id].job
        return "it is due just now" if job.pending <= self.prospect.now else why_not_shiftable(job.rule)

    def _why_stuck(self, job_id: JobId, movable: Sequence[JobId]) -> str:
        if job_id not in movable[:_MAX_TRIED]:
            return f"only the first {_MAX_TRIED} jobs are tried"
        if self.budget <= 0:
            return "there are too many runs to search for a time for it"
        farthest = max(map(abs, _offsets(self._fires[job_id].job, self.collision)))
        tried = f"none of the times that were tried, up to {duration_in_words(farthest)} away,"
        return f"{tried} has a free slot for each of its runs and lowers the peak"

    def _fits(self, moves: Sequence[ScheduleShift]) -> bool:
        return bool(moves) and moves[-1].peak_after <= self.collision.pool.slots

    def _moves(self, movable: Sequence[JobId]) -> Iterator[ScheduleShift]:
        left = list(movable)
        for _ in range(MAX_SHIFTS):
            capacities = self._capacities()
            peak = self._peak(capacities, _ConcurrencyDelta(capacities[self.collision.pool].levels))
            candidates = [self._move_of(self._fires[job_id], capacities, peak) for job_id in left]
            best = min((move for move in candidates if move is not None), key=_preference, default=None)
            if best is None:
                return
            yield best
            self._take(best)
            left.remove(best.job.job_id)
            if best.peak_after <= self.collision.pool.slots:
                return

    def _capacities(self) -> Mapping[SlotPool, _PoolUsage]:
        """The usage of every pool whose slots the colliding jobs use; a queue with a limit is a pool of its own."""
        queues = set(self.collision.pool.queues)
        touched = [pool for pool in self.prospect.pools if pool.slots and queues & set(pool.queues)]
        return {pool: _PoolUsage.of(pool, self._fires.values(), self.prospect.span) for pool in touched}

    def _peak(self, capacities: Mapping[SlotPool, _PoolUsage], balance: _ConcurrencyDelta) -> int:
        return self._most(balance, self.collision.spans) + capacities[self.collision.pool].steady

    def _most(self, balance: _ConcurrencyDelta, spans: Iterable[Period]) -> int:
        most = 0
        for span in spans:
            moments = balance.moments(span)
            self.budget -= len(moments)
            most = max(most, *map(balance.at, moments))
        return most

    def _move_of(self, fires: FireTimes, capacities: Mapping[SlotPool, _PoolUsage], peak: int) -> ScheduleShift | None:
        """The nearest time for a job that lowers the peak."""
        job, gone = fires.job, _Concurrency.of(_spans(fires))
        total = capacities[self.collision.pool].levels
        if self._peak(capacities, _ConcurrencyDelta(total, gone)) >= peak:
            return None
        for by in _offsets(job, self.collision):
            place = self._place(job, by)
            if place is None or not self._finds_slots(place[1], gone, capacities):
                continue
            after = self._peak(capacities, _ConcurrencyDelta(total, gone, _Concurrency.of(_spans(place[1]))))
            if after < peak:
                return ScheduleShift(job=job, rule=place[0], by=by, peak_before=peak, peak_after=after)
        return None

    def _finds_slots(self, fires: FireTimes, gone: _Concurrency, capacities: Mapping[SlotPool, _PoolUsage]) -> bool:
        """Whether every run finds a slot in each of its pools, also beside other runs of its own job."""
        come = _Concurrency.of(_spans(fires))
        needed = [usage for pool, usage in capacities.items() if fires.job.queue in pool.queues]
        return all(
            self.budget > 0 and self._most(_ConcurrencyDelta(usage.levels, gone, come), [run]) <= usage.free
            for usage in needed
            for run in _spans(fires)
        )

    def _place(self, job: ForecastJob, by: timedelta) -> tuple[Schedule, FireTimes] | None:
        """The schedule and the runs of a moved job; None if it cannot be moved, or if its runs would not just shift."""
        key = (job.job_id, by)
        if key not in self._places and self.budget > 0:
            self._places[key] = self._computed(job, by)
        return self._places.get(key)

    def _computed(self, job: ForecastJob, by: timedelta) -> tuple[Schedule, FireTimes] | None:
        rule = shift_schedule(job.rule, by)
        if rule is None or rule.next_after(self.prospect.now) != job.pending + by:
            return None
        now, end = self.prospect.now, self.prospect.end
        moved = replace(job, rule=rule, pending=job.pending + by)
        # Near a clock change a shift may lose a run or double one.
        if moved.count(now, end + by) != job.count(now, end):
            return None
        fires = FireTimes(moved, at=tuple(moved.fires(now, end)))
        self.budget -= len(fires.at) * _MOMENTS_A_FIRE
        return rule, fires

    def _take(self, move: ScheduleShift) -> None:
        place = self._places[(move.job.job_id, move.by)]
        assert place is not None
        self._fires[move.job.job_id] = place[1]


def _spans(fires: FireTimes) -> Iterator[Period]:
    return ((at, at + fires.job.duration) for at in fires.at)


def _offsets(job: ForecastJob, collision: Collision) -> list[timedelta]:
    """The offsets to try: some minutes, after the busy span, or so early that the job ends before it; nearest first."""
    busy = collision.end - collision.start
    later = {by for step in _STEPS_TRIED for by in ((step + 1) * _STEP, _rounded(busy) + step * _STEP)}
    earlier = {-by for step in _STEPS_TRIED for by in ((step + 1) * _STEP, _rounded(job.duration) + step * _STEP)}
    near = (by for by in later | earlier if abs(by) <= _FARTHEST)
    return sorted(near, key=lambda by: (abs(by), by < timedelta(0)))


def _rounded(span: timedelta) -> timedelta:
    """Up to whole steps, at least one."""
    return max(-(-span // _STEP), 1) * _STEP


def _preference(move: ScheduleShift) -> tuple[int, timedelta, bool, str]:
    return move.peak_after, abs(move.by), move.by < timedelta(0), move.job.label


def why_not_shiftable(rule: Schedule) -> str | None:
    """Why a schedule cannot be shifted at all; None if it can."""
    match rule:
        case Every():
            return None
        case Rrule():
            return "it is a recurrence rule, and only cron expressions and intervals can be moved"
        case Cron(expression=expression):
            minute = _fields(expression)[-5]
            return None if minute.isdigit() else f'its minutes are "{minute}", and only a single minute can be moved'
    return "it does not recur"


def shift_schedule(rule: Schedule, by: timedelta) -> Schedule | None:
    """The schedule moved by whole minutes; None where no rule says what that means."""
    match rule:
        case Every(anchor=anchor):
            return replace(rule, anchor=anchor + by) if MIN_INSTANT <= anchor + by <= MAX_INSTANT else None
        case Rrule():
            return None
        case Cron(expression=expression):
            moved = _moved(_fields(expression), by // _MINUTE)
            return None if moved is None else replace(rule, expression=moved)
    return None


def spell_schedule(rule: Schedule) -> str:
    """The part of a schedule that a shift changes, as text."""
    match rule:
        case Cron(expression=expression):
            return expression
        case Every(anchor=anchor):
            return f"every {format_duration(rule.interval)} from {format_instant(anchor)}"
    return rule.describe()


def timing_fields(rule: Schedule) -> dict[str, str]:
    """The fields of a job that a shift changes."""
    match rule:
        case Cron(expression=expression):
            return {"schedule": expression}
        case Every(anchor=anchor):
            return {"scheduled_at": format_instant(anchor)}
    return {}


def _fields(expression: str) -> list[str]:
    return NICKNAMES.get(expression.strip().lower(), expression).split()


def _moved(fields: list[str], minutes: int) -> str | None:
    *seconds, minute, hour, day, month, weekday = fields
    if not minute.isdigit():
        return None
    hours_over, moved = divmod(int(minute) + minutes, 60)
    hours = _moved_hours(hour, hours_over, is_daily=day == month == weekday == "*")
    return None if hours is None else " ".join([*seconds, str(moved), hours, day, month, weekday])


def _moved_hours(field: str, by: int, *, is_daily: bool) -> str | None:
    if by == 0 or field == "*":
        return field
    hours = field.split(",")
    if not all(hour.isdigit() for hour in hours):
        return None
    moved = [int(hour) + by for hour in hours]
    if not is_daily and not all(0 <= hour < 24 for hour in moved):
        return None
    return ",".join(str(hour % 24) for hour in moved)
