"""The next occurrence of a job, and what becomes of one whose time has come.

`plan` is what the scheduler asks about each row that falls due: which executions run, which are skipped and why, and which occurrence
follows. It is pure; the store then does what it says in one guarded statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from timeball.domain.civil_time import tzdata_version
from timeball.domain.execution import Origin
from timeball.domain.ids import ExecutionId, JobId, occurrence_id
from timeball.domain.instants import MICROSECOND
from timeball.domain.job import Job, jitter_of
from timeball.domain.misfire import MisfireRule, Overlap, Owed, SkippedRange, SkipReason, apart, judge
from timeball.domain.schedule import Cron, Once, Schedule

# Catching up goes at ten a second, so that new work is not crowded out by old.
CATCH_UP_INTERVAL = timedelta(milliseconds=100)
# The last look at a busy job before its instant.
_LAST_LOOK = timedelta(milliseconds=20)


class DueKind(StrEnum):
    """Why a row waits in `due`."""

    OCCURRENCE = "occurrence"
    LATER = "later"
    SNOOZE = "snooze"
    RETRY = "retry"
    RESUME = "resume"


class Target(StrEnum):
    """The room an execution is put into."""

    READY = "ready"
    BLOCKED = "blocked"
    DUE = "due"


class DueMark(NamedTuple):
    """Where a row of `due` stands, and which state of it: all that must be read of one that is held already."""

    shard: int
    id: ExecutionId
    run_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """A row of `due`, as the scheduler holds it in its heap."""

    id: ExecutionId
    job_id: JobId
    kind: DueKind
    origin: Origin
    shard: int
    run_at: datetime
    scheduled_for: datetime
    watermark: datetime | None
    tzdata: str | None
    version: int
    executions_left: int | None
    limit_key: str | None
    queue: str
    priority: int
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """What planning must know of a job: a scheduler keeps these by the hundred thousand, and so without payload and the rest."""

    id: JobId
    version: int
    rule: Schedule
    misfire: MisfireRule
    overlap: Overlap
    jitter_seconds: int
    max_executions: int | None
    is_enqueued: bool

    @property
    def jitter(self) -> timedelta:
        """How far behind its exact instants the job runs."""
        return jitter_of(self.id, self.jitter_seconds)


Plannable: TypeAlias = Job | Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class NextOccurrence:
    """The pending occurrence of a job: its exact instant, when to run it, and up to where all is recorded."""

    id: ExecutionId
    run_at: datetime
    scheduled_for: datetime
    watermark: datetime
    executions_left: int | None
    tzdata: str


@dataclass(frozen=True, slots=True)
class Run:
    """One execution to put into a room."""

    id: ExecutionId
    scheduled_for: datetime
    run_at: datetime
    target: Target


@dataclass(frozen=True, slots=True)
class Skip:
    """One occurrence that is recorded as a skipped execution."""

    id: ExecutionId
    scheduled_for: datetime
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoist:
    """What becomes of one row of `due`."""

    row: DueRow
    runs: tuple[Run, ...] = ()
    skips: tuple[Skip, ...] = ()
    ranges: tuple[SkippedRange, ...] = ()
    following: NextOccurrence | None = None
    stop_running: bool = False


@dataclass(frozen=True, slots=True)
class LookAgain:
    """The row stays where it is until then: an earlier execution of its job is unfinished, and overlap is judged at the instant itself."""

    at: datetime


def first_occurrence(job: Plannable, after: datetime, executions_left: int | None = None) -> NextOccurrence | None:
    """The first occurrence of a job after an instant; a one-off in the past is still due."""
    left = job.max_executions if executions_left is None else executions_left
    if left is not None and left <= 0:
        return None
    instant = job.rule.scheduled_at if isinstance(job.rule, Once) else job.rule.next_after(after)
    if instant is None:
        return None
    execution_id = ExecutionId(job.id) if job.is_enqueued else occurrence_id(job.id, instant)
    return NextOccurrence(
        id=execution_id,
        run_at=instant + job.jitter,
        scheduled_for=instant,
        watermark=after,
        executions_left=left,
        tzdata=tzdata_version(),
    )


def recomputed(row: DueRow, job: Plannable) -> NextOccurrence | None:
    """What our time-zone data name in the place of a pending occurrence; None if nothing is left, before the job ends."""
    if isinstance(job.rule, Cron):
        return first_occurrence(job, row.watermark or row.scheduled_for - MICROSECOND, row.executions_left)
    # Elapsed time knows no zones: it stays as it is.
    return NextOccurrence(
        id=row.id,
        run_at=row.run_at,
        scheduled_for=row.scheduled_for,
        watermark=row.watermark or row.scheduled_for - MICROSECOND,
        executions_left=row.executions_left,
        tzdata=tzdata_version(),
    )


def plan(row: DueRow, job: Plannable | None, now: datetime, *, is_busy: bool) -> Hoist | LookAgain:
    """Decide about a row whose time has come, or comes within the hoist window.

    *job* is needed for scheduled occurrences only. *is_busy* says whether an earlier execution of the job is unfinished.
    """
    if job is None or row.origin is not Origin.SCHEDULE or row.kind in (DueKind.RETRY, DueKind.SNOOZE):
        return Hoist(row=row, runs=(_as_it_is(row),))
    overlaps = does_overlap(job, is_busy=is_busy)
    if overlaps and row.run_at > now:
        last_look = row.run_at - _LAST_LOOK
        return LookAgain(last_look if now < last_look else row.run_at)
    owed = owed_by(job, row.kind, row.run_at, row.scheduled_for, now)
    if overlaps and job.overlap is Overlap.SKIP:
        return _skip_all(row, job, owed)
    return _run_owed(row, job, owed, now, stop_running=overlaps and job.overlap is Overlap.CANCEL_RUNNING)


def does_overlap(job: Plannable, *, is_busy: bool) -> bool:
    """Whether an occurrence may not simply run beside an earlier execution that is unfinished."""
    return is_busy and job.overlap is not Overlap.ALLOW


def owed_by(job: Plannable, kind: DueKind, run_at: datetime, scheduled_for: datetime, now: datetime) -> Owed:
    """What is owed of a pending occurrence by now: itself while it is in time or within the grace, past it by the job's policy."""
    if kind is DueKind.LATER or not job.rule.is_recurring:
        return Owed(run=(scheduled_for,), skipped=(), next_at=None)
    if now - run_at <= job.misfire.grace:
        return Owed(run=(scheduled_for,), skipped=(), next_at=job.rule.next_after(scheduled_for))
    return judge(job.rule, scheduled_for, now - job.jitter, job.misfire)


def _as_it_is(row: DueRow) -> Run:
    return Run(row.id, row.scheduled_for, row.run_at, _room(row))


def _room(row: DueRow) -> Target:
    return Target.BLOCKED if row.limit_key is not None else Target.READY


def _run_owed(row: DueRow, job: Plannable, owed: Owed, now: datetime, *, stop_running: bool) -> Hoist:
    if row.executions_left is not None and job.overlap is Overlap.SKIP and len(owed.run) > 1:
        # One by one: those behind may yet be skipped because the first still runs, and then they must not have used up an execution.
        owed = replace(owed, run=owed.run[:1], next_at=owed.run[1])
    affordable = owed.run if row.executions_left is None else owed.run[: row.executions_left]
    skips, ranges = _recorded(row, job, (*owed.skipped, *_not_run(owed.run[len(affordable) :], SkipReason.ENDED)))
    return Hoist(
        row=row,
        runs=tuple(_at_catch_up_rate(row, job, affordable, now)),
        skips=skips,
        ranges=ranges,
        following=_following(row, job, owed, used=len(affordable)),
        stop_running=stop_running,
    )


def _skip_all(row: DueRow, job: Plannable, owed: Owed) -> Hoist:
    """What is skipped does not use up an execution."""
    skips, ranges = _recorded(row, job, (*owed.skipped, *_not_run(owed.run, SkipReason.OVERLAP)))
    return Hoist(row=row, skips=skips, ranges=ranges, following=_following(row, job, owed, used=0))


def _at_catch_up_rate(row: DueRow, job: Plannable, instants: Iterable[datetime], now: datetime) -> Iterable[Run]:
    """The first run goes its way at once; those behind it follow at the catch-up rate."""
    for number, instant in enumerate(instants):
        target = _room(row) if number == 0 else Target.DUE
        own_time = row.run_at if instant == row.scheduled_for else instant + job.jitter
        run_at = own_time if number == 0 else max(own_time, now + number * CATCH_UP_INTERVAL)
        yield Run(_id(row, job, instant), instant, run_at, target)


def _id(row: DueRow, job: Plannable, instant: datetime) -> ExecutionId:
    return row.id if instant == row.scheduled_for else occurrence_id(job.id, instant)


def _skip(job: Plannable, instant: datetime, reason: SkipReason) -> Skip:
    return Skip(occurrence_id(job.id, instant), instant, reason)


def _not_run(instants: Sequence[datetime], reason: SkipReason) -> Iterable[SkippedRange]:
    """What was to run, and follows one another on the schedule, as one range."""
    if instants:
        yield SkippedRange(first=instants[0], last=instants[-1], count=len(instants), reason=reason)


def _recorded(
    row: DueRow, job: Plannable, ranges: Iterable[SkippedRange]
) -> tuple[tuple[Skip, ...], tuple[SkippedRange, ...]]:
    """A single skipped occurrence is a skipped execution, consecutive ones are a range; never both."""
    if isinstance(job.rule, Cron) and row.tzdata not in (None, tzdata_version()):
        ranges = [part for r in ranges for part in (apart(job.rule, r) if r.first == row.scheduled_for else (r,))]
    singles = tuple(_skip(job, r.first, r.reason) for r in ranges if r.first == r.last)
    return singles, tuple(r for r in ranges if r.first != r.last)


def _following(row: DueRow, job: Plannable, owed: Owed, *, used: int) -> NextOccurrence | None:
    left = None if row.executions_left is None else row.executions_left - used
    if owed.next_at is None or (left is not None and left <= 0):
        return None
    judged = [*owed.run, *(skipped.last for skipped in owed.skipped)]
    return NextOccurrence(
        id=occurrence_id(job.id, owed.next_at),
        run_at=owed.next_at + job.jitter,
        scheduled_for=owed.next_at,
        watermark=max(judged),
        executions_left=left,
        tzdata=tzdata_version(),
    )
