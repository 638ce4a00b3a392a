"""Which of the jobs that collide to move by some minutes, so that fewer of them run at once.

Step by step the job is moved that lowers the peak most, to the nearest place where every run of it within the forecast
finds a free slot: so a move never makes a collision anywhere else, nor a worse one. The next run of the job moves by
just as much as its schedule does, and there are as many runs as before: none is lost and none comes twice by the
change. Every step counts on those before it.

The peak is the most that run at once in the spans of the collision, as they were before anything moved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeAlias

from timeball.domain.capacity import Pool
from timeball.domain.collisions import Collision, steady_slots
from timeball.domain.foresight import Fires, Line
from timeball.domain.ids import JobId
from timeball.domain.schedule import Schedule
from timeball.domain.shifting import shifted, spelt, why_fixed
from timeball.domain.wording import counted, span_words

MOST_MOVES = 8
_MOST_TRIED = 20
_STEP = timedelta(minutes=5)
_PLACES = range(11)
_FARTHEST = timedelta(hours=6)
# The moments that are looked at for places that are tried: about a second of work at most.
_BUDGET = 200_000
_MOMENTS_A_FIRE = 5

Span: TypeAlias = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A job that could run at another time, and what becomes of the peak."""

    line: Line
    rule: Schedule
    by: timedelta
    peak_before: int
    peak_after: int

    @property
    def sentence(self) -> str:
        shift = f"{span_words(self.by)} {'later' if self.by > timedelta(0) else 'earlier'}"
        schedules = f"{spelt(self.line.rule)} → {spelt(self.rule)}"
        return f"{self.line.label} {schedules} ({shift}), peak {self.peak_before} → {self.peak_after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A job that stays where it is, and why."""

    job_id: JobId
    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a collision could be spread: moves, one after the other, and the jobs that cannot be moved."""

    collision: Collision
    moves: Sequence[Move]
    stays: Sequence[Stay]

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
class Prospect:
    """All that lies ahead from *now* to *end*; *span* is what dense lines were counted over."""

    fires: Sequence[Fires]
    pools: Sequence[Pool]
    now: datetime
    end: datetime
    span: timedelta


def spread(collision: Collision, prospect: Prospect, budget: int = _BUDGET) -> Spread:
    """The moves that lower the peak of a collision, until it fits or nothing more helps."""
    return _Search(collision, prospect, budget).run()


@dataclass(frozen=True, slots=True)
class _Levels:
    """How many run at once: *levels* holds from the moment at its place on."""

    moments: Sequence[datetime]
    levels: Sequence[int]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> _Levels:
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


_NOTHING = _Levels((), ())


@dataclass(frozen=True, slots=True)
class _Balance:
    """How many run at once when one job leaves its old runs for new ones."""

    total: _Levels
    gone: _Levels = _NOTHING
    come: _Levels = _NOTHING

    def at(self, moment: datetime) -> int:
        return self.total.at(moment) - self.gone.at(moment) + self.come.at(moment)

    def moments(self, span: Span) -> list[datetime]:
        """When that changes within a span, and its beginning."""
        return [span[0], *self.total.changes_within(*span), *self.come.changes_within(*span)]


@dataclass(slots=True)
class _Room:
    """The slots of a pool, moment by moment."""

    pool: Pool
    steady: int
    levels: _Levels

    @classmethod
    def of(cls, pool: Pool, fires: Iterable[Fires], span: timedelta) -> _Room:
        own = [some for some in fires if some.line.queue in pool.queues]
        return cls(pool, steady_slots(own, span), _Levels.of(run for some in own for run in _spans(some)))

    @property
    def free(self) -> int:
        return max(self.pool.slots - self.steady, 0)


@dataclass(slots=True)
class _Search:
    collision: Collision
    prospect: Prospect
    budget: int
    _fires: dict[JobId, Fires] = field(default_factory=dict)
    _places: dict[tuple[JobId, timedelta], tuple[Schedule, Fires] | None] = field(default_factory=dict)

    def run(self) -> Spread:
        self._fires = {some.line.job_id: some for some in self.prospect.fires}
        stays = {job_id: why for job_id, _ in self.collision.jobs if (why := self._why_fixed(job_id)) is not None}
        movable = [job_id for job_id, _ in self.collision.jobs if job_id not in stays]
        moves = list(self._moves(movable[:_MOST_TRIED]))
        if len(moves) < MOST_MOVES and not self._fits(moves):
            moved = {move.line.job_id for move in moves}
            stays |= {job_id: self._why_stuck(job_id, movable) for job_id in movable if job_id not in moved}
        labels = dict(self.collision.jobs)
        return Spread(
            collision=self.collision,
            moves=moves,
            stays=[Stay(job_id=job_id, label=labels[job_id], why=why) for job_id, why in stays.items()],
        )

    def _why_fixed(self, job_id: JobId) -> str | None:
        line = self._fires[job_id].line
        return "it is due just now" if line.pending <= self.prospect.now else why_fixed(line.rule)

    def _why_stuck(self, job_id: JobId, movable: Sequence[JobId]) -> str:
        if job_id not in movable[:_MOST_TRIED]:
            return f"only the first {_MOST_TRIED} jobs are tried"
        if self.budget <= 0:
            return "there are too many runs to look for a place for it"
        farthest = max(map(abs, _offsets(self._fires[job_id].line, self.collision)))
        tried = f"none of the times that were tried, up to {span_words(farthest)} away,"
        return f"{tried} has a free slot for each of its runs and lowers the peak"

    def _fits(self, moves: Sequence[Move]) -> bool:
        return bool(moves) and moves[-1].peak_after <= self.collision.pool.slots

    def _moves(self, movable: Sequence[JobId]) -> Iterator[Move]:
        left = list(movable)
        for _ in range(MOST_MOVES):
            rooms = self._rooms()
            peak = self._peak(rooms, _Balance(rooms[self.collision.pool].levels))
            found = [self._move_of(self._fires[job_id], rooms, peak) for job_id in left]
            best = min((move for move in found if move is not None), key=_preference, default=None)
            if best is None:
                return
            yield best
            self._take(best)
            left.remove(best.line.job_id)
            if best.peak_after <= self.collision.pool.slots:
                return

    def _rooms(self) -> Mapping[Pool, _Room]:
        """Of every pool whose slots the colliding jobs use; a queue with a limit is one of its own."""
        queues = set(self.collision.pool.queues)
        touched = [pool for pool in self.prospect.pools if pool.slots and queues & set(pool.queues)]
        return {pool: _Room.of(pool, self._fires.values(), self.prospect.span) for pool in touched}

    def _peak(self, rooms: Mapping[Pool, _Room], balance: _Balance) -> int:
        return self._most(balance, self.collision.spans) + rooms[self.collision.pool].steady

    def _most(self, balance: _Balance, spans: Iterable[Span]) -> int:
        most = 0
        for span in spans:
            moments = balance.moments(span)
            self.budget -= len(moments)
            most = max(most, *map(balance.at, moments))
        return most

    def _move_of(self, fires: Fires, rooms: Mapping[Pool, _Room], peak: int) -> Move | None:
        """The nearest place for a job that lowers the peak."""
        line, gone = fires.line, _Levels.of(_spans(fires))
        total = rooms[self.collision.pool].levels
        if self._peak(rooms, _Balance(total, gone)) >= peak:
            return None
        for by in _offsets(line, self.collision):
            place = self._place(line, by)
            if place is None or not self._has_room(place[1], gone, rooms):
                continue
            after = self._peak(rooms, _Balance(total, gone, _Levels.of(_spans(place[1]))))
            if after < peak:
                return Move(line=line, rule=place[0], by=by, peak_before=peak, peak_after=after)
        return None

    def _has_room(self, fires: Fires, gone: _Levels, rooms: Mapping[Pool, _Room]) -> bool:
        """Whether every run finds a slot in every pool it needs one of, also beside other runs of its own."""
        come = _Levels.of(_spans(fires))
        needed = [room for pool, room in rooms.items() if fires.line.queue in pool.queues]
        return all(
            self.budget > 0 and self._most(_Balance(room.levels, gone, come), [run]) <= room.free
            for room in needed
            for run in _spans(fires)
        )

    def _place(self, line: Line, by: timedelta) -> tuple[Schedule, Fires] | None:
        """A job's schedule and runs when it is moved; None if it cannot be, or if its runs would not just move along."""
        key = (line.job_id, by)
        if key not in self._places and self.budget > 0:
            self._places[key] = self._computed(line, by)
        return self._places.get(key)

    def _computed(self, line: Line, by: timedelta) -> tuple[Schedule, Fires] | None:
        rule = shifted(line.rule, by)
        if rule is None or rule.next_after(self.prospect.now) != line.pending + by:
            return None
        now, end = self.prospect.now, self.prospect.end
        moved = replace(line, rule=rule, pending=line.pending + by)
        # Within a change of the clock a shift may lose a run, or double one.
        if moved.count(now, end + by) != line.count(now, end):
            return None
        fires = Fires(moved, at=tuple(moved.fires(now, end)))
        self.budget -= len(fires.at) * _MOMENTS_A_FIRE
        return rule, fires

    def _take(self, move: Move) -> None:
        place = self._places[(move.line.job_id, move.by)]
        assert place is not None
        self._fires[move.line.job_id] = place[1]


def _spans(fires: Fires) -> Iterator[Span]:
    return ((at, at + fires.line.duration) for at in fires.at)


def _offsets(line: Line, collision: Collision) -> list[timedelta]:
    """By how much to try: some minutes, behind the busy span, or so early that the job is done before it; the nearest first."""
    busy = collision.end - collision.start
    tried = {one for place in _PLACES for one in ((place + 1) * _STEP, _rounded(busy) + place * _STEP)}
    tried |= {-one for place in _PLACES for one in ((place + 1) * _STEP, _rounded(line.duration) + place * _STEP)}
    return sorted((by for by in tried if abs(by) <= _FARTHEST), key=lambda by: (abs(by), by < timedelta(0)))


def _rounded(span: timedelta) -> timedelta:
    """Up to whole steps, at least one."""
    return max(-(-span // _STEP), 1) * _STEP


def _preference(move: Move) -> tuple[int, timedelta, bool, str]:
    return move.peak_after, abs(move.by), move.by < timedelta(0), move.line.label
