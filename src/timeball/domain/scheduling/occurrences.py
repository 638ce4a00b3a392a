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

from timeball.domain.execution import DueKind, Origin
from timeball.domain.job import Job, jitter_of
from timeball.domain.policies import MisfireRule, Overlap, SkipReason
from timeball.domain.scheduling.civil_time import MICROSECOND, tzdata_version
from timeball.domain.scheduling.misfire import OwedOccurrences, SkippedRange, resolve_missed, split_first
from timeball.domain.scheduling.schedule import Cron, Once, Schedule
from timeball.domain.values.ids import ExecutionId, JobId, occurrence_id

# Catching up goes at ten a second, so that new work is not crowded out by old.
CATCH_UP_INTERVAL = timedelta(milliseconds=100)


# The last look at a busy job before its instant.
_LAST_CHECK = timedelta(milliseconds=20)


class PromotionTarget(StrEnum):
    """The room an execution is put into."""

    READY = "ready"
    BLOCKED = "blocked"
    DUE = "due"


class DueKey(NamedTuple):
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
class JobTiming:
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


Plannable: TypeAlias = Job | JobTiming


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
class PlannedRun:
    """One execution to put into a room."""

    id: ExecutionId
    scheduled_for: datetime
    run_at: datetime
    target: PromotionTarget


@dataclass(frozen=True, slots=True)
class PlannedSkip:
    """One occurrence that is recorded as a skipped execution."""

    id: ExecutionId
    scheduled_for: datetime
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What becomes of one row of `due`."""

    row: DueRow
    runs: tuple[PlannedRun, ...] = ()
    skips: tuple[PlannedSkip, ...] = ()
    ranges: tuple[SkippedRange, ...] = ()
    following: NextOccurrence | None = None
    stop_running: bool = False


@dataclass(frozen=True, slots=True)
class CheckAgain:
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


def recompute_occurrence(row: DueRow, job: Plannable) -> NextOccurrence | None:
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


def plan_promotion(row: DueRow, job: Plannable | None, now: datetime, *, is_busy: bool) -> Promotion | CheckAgain:
    """Decide about a row whose time has come, or comes within the promotion window.

    *job* is needed for scheduled occurrences only. *is_busy* says whether an earlier execution of the job is unfinished.
    """
    if job is None or row.origin is not Origin.SCHEDULE or row.kind in (DueKind.RETRY, DueKind.SNOOZE):
        return Promotion(row=row, runs=(_unchanged(row),))
    overlaps = does_overlap(job, is_busy=is_busy)
    if overlaps and row.run_at > now:
        last_look = row.run_at - _LAST_CHECK
        return CheckAgain(last_look if now < last_look else row.run_at)
    owed = owed_occurrences(job, row.kind, row.run_at, row.scheduled_for, now)
    if overlaps and job.overlap is Overlap.SKIP:
        return _skip_all(row, job, owed)
    return _run_owed(row, job, owed, now, stop_running=overlaps and job.overlap is Overlap.CANCEL_RUNNING)


def does_overlap(job: Plannable, *, is_busy: bool) -> bool:
    """Whether an occurrence may not simply run beside an earlier execution that is unfinished."""
    return is_busy and job.overlap is not Overlap.ALLOW


def owed_occurrences(
    job: Plannable, kind: DueKind, run_at: datetime, scheduled_for: datetime, now: datetime
) -> OwedOccurrences:
    """What is owed of a pending occurrence by now: itself while it is in time or within the grace, past it by the job's policy."""
    if kind is DueKind.LATER or not job.rule.is_recurring:
        return OwedOccurrences(run=(scheduled_for,), skipped=(), next_at=None)
    if now - run_at <= job.misfire.grace:
        return OwedOccurrences(run=(scheduled_for,), skipped=(), next_at=job.rule.next_after(scheduled_for))
    return resolve_missed(job.rule, scheduled_for, now - job.jitter, job.misfire)


def _unchanged(row: DueRow) -> PlannedRun:
    return PlannedRun(row.id, row.scheduled_for, row.run_at, _destination(row))


def _destination(row: DueRow) -> PromotionTarget:
    return PromotionTarget.BLOCKED if row.limit_key is not None else PromotionTarget.READY


def _run_owed(row: DueRow, job: Plannable, owed: OwedOccurrences, now: datetime, *, stop_running: bool) -> Promotion:
    if row.executions_left is not None and job.overlap is Overlap.SKIP and len(owed.run) > 1:
        # One by one: those behind may yet be skipped because the first still runs, and then they must not have used up an execution.
        owed = replace(owed, run=owed.run[:1], next_at=owed.run[1])
    affordable = owed.run if row.executions_left is None else owed.run[: row.executions_left]
    skips, ranges = _skip_records(row, job, (*owed.skipped, *_not_run(owed.run[len(affordable) :], SkipReason.ENDED)))
    return Promotion(
        row=row,
        runs=tuple(_at_catch_up_rate(row, job, affordable, now)),
        skips=skips,
        ranges=ranges,
        following=_next_occurrence(row, job, owed, used=len(affordable)),
        stop_running=stop_running,
    )


def _skip_all(row: DueRow, job: Plannable, owed: OwedOccurrences) -> Promotion:
    """What is skipped does not use up an execution."""
    skips, ranges = _skip_records(row, job, (*owed.skipped, *_not_run(owed.run, SkipReason.OVERLAP)))
    return Promotion(row=row, skips=skips, ranges=ranges, following=_next_occurrence(row, job, owed, used=0))


def _at_catch_up_rate(row: DueRow, job: Plannable, instants: Iterable[datetime], now: datetime) -> Iterable[PlannedRun]:
    """The first run goes its way at once; those behind it follow at the catch-up rate."""
    for number, instant in enumerate(instants):
        target = _destination(row) if number == 0 else PromotionTarget.DUE
        own_time = row.run_at if instant == row.scheduled_for else instant + job.jitter
        run_at = own_time if number == 0 else max(own_time, now + number * CATCH_UP_INTERVAL)
        yield PlannedRun(_id(row, job, instant), instant, run_at, target)


def _id(row: DueRow, job: Plannable, instant: datetime) -> ExecutionId:
    return row.id if instant == row.scheduled_for else occurrence_id(job.id, instant)


def _skip(job: Plannable, instant: datetime, reason: SkipReason) -> PlannedSkip:
    return PlannedSkip(occurrence_id(job.id, instant), instant, reason)


def _not_run(instants: Sequence[datetime], reason: SkipReason) -> Iterable[SkippedRange]:
    """What was to run, and follows one another on the schedule, as one range."""
    if instants:
        yield SkippedRange(first=instants[0], last=instants[-1], count=len(instants), reason=reason)


def _skip_records(
    row: DueRow, job: Plannable, ranges: Iterable[SkippedRange]
) -> tuple[tuple[PlannedSkip, ...], tuple[SkippedRange, ...]]:
    """A single skipped occurrence is a skipped execution, consecutive ones are a range; never both."""
    if isinstance(job.rule, Cron) and row.tzdata not in (None, tzdata_version()):
        ranges = [part for r in ranges for part in (split_first(job.rule, r) if r.first == row.scheduled_for else (r,))]
    singles = tuple(_skip(job, r.first, r.reason) for r in ranges if r.first == r.last)
    return singles, tuple(r for r in ranges if r.first != r.last)


def _next_occurrence(row: DueRow, job: Plannable, owed: OwedOccurrences, *, used: int) -> NextOccurrence | None:
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
