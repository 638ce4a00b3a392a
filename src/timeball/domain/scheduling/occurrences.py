"""The occurrences of a job: which is next, which are owed after downtime, and what becomes of one whose time has come.

`plan_promotion` is what the scheduler asks for each row of `due` whose time has come: which executions run, which are
skipped and why, and which occurrence follows. It is pure; the store then carries out the answer in one guarded statement.

`resolve_missed` decides about the occurrences between the pending one and now. Each of them either runs or belongs to
exactly one skipped range with a reason:

    first_owed                    now - max_age             now - grace            now
        |------- too old -------------|-------- stale -----------|------ fresh ------|--- next_at
                skipped                     by the policy           runs, only late

Every fresh occurrence runs. For stale ones the misfire policy decides:

    latest   the newest occurrence that is owed runs; the stale ones before it are skipped (`misfire`)
    skip     all are skipped (`misfire`)
    all      the newest *cap* of them run; the ones before are skipped (`capped`)

Age matters only under `latest` and `all`, and only past the grace. Nothing here iterates over the downtime: the schedule
computes its edges, forwards from one instant or backwards from another.

*first_owed* counts as an occurrence even if the schedule no longer names it, because the job was edited or its zone
changed: it was promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from timeball.domain.execution import DueKind, Origin
from timeball.domain.freeze import Afterwards, FrozenWindow, window_at
from timeball.domain.policies import Misfire, MisfireRule, Overlap, SkipReason
from timeball.domain.scheduling.civil_time import MICROSECOND, tzdata_version
from timeball.domain.scheduling.schedule import Cron, Every, Once, Schedule
from timeball.domain.values.ids import ExecutionId, JobId, jitter_of, occurrence_id

if TYPE_CHECKING:
    from timeball.domain.job import Job

# A long grace on a short interval could owe millions of fresh runs; they are planned in portions of this size.
RUN_LIMIT = 1_000
# Ten missed occurrences are caught up each second, so that old work does not crowd out new work.
CATCH_UP_INTERVAL = timedelta(milliseconds=100)
# The last check of a busy job before its instant.
_LAST_CHECK = timedelta(milliseconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRange:
    """The occurrences from *first* to *last*, both included, that do not run; *count* is None if it is unknown."""

    first: datetime
    last: datetime
    count: int | None
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedOccurrences:
    """What to run, in order, what is skipped, and the next occurrence.

    Together *run* and *skipped* hold every occurrence before *next_at*, each once. *next_at* is mostly in the future;
    when more than RUN_LIMIT fresh occurrences are owed, it is the next of them.
    """

    run: tuple[datetime, ...]
    skipped: tuple[SkippedRange, ...]
    next_at: datetime | None


def resolve_missed(
    schedule: Schedule, first_owed: datetime, now: datetime, rule: MisfireRule | None = None
) -> OwedOccurrences:
    """Decide about every occurrence from *first_owed* to *now*; if *first_owed* lies ahead, only that one runs."""
    rule = rule or MisfireRule()
    fresh_from = now - rule.grace
    following = schedule.next_after(first_owed)
    if first_owed >= fresh_from and (following is None or following > now):
        return OwedOccurrences(run=(first_owed,), skipped=(), next_at=following)
    line = _OwedLine(schedule, first_owed)
    fresh = tuple(islice(line.between(fresh_from, now), RUN_LIMIT))
    caught_up, skipped = _resolve_stale(line, rule, now, has_fresh=bool(fresh))
    judged_until = fresh[-1] if len(fresh) == RUN_LIMIT else now
    return OwedOccurrences(run=caught_up + fresh, skipped=skipped, next_at=schedule.next_after(judged_until))


def resolve_frozen(
    schedule: Schedule, first_owed: datetime, now: datetime, rule: MisfireRule, windows: Sequence[FrozenWindow]
) -> OwedOccurrences:
    """Decide about every occurrence from *first_owed* to *now*, when some of them fell into windows in which nothing starts.

    All windows have ended by *now*. Their occurrences follow `afterwards`; the ones between follow the misfire rule, as after downtime.
    """
    line = _OwedLine(schedule, first_owed)
    run: tuple[datetime, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()
    # The latest first: under `latest`, an occurrence runs only if there is none after it that the rule decides about.
    has_newer = False
    for start, end, window in reversed(_parts(first_owed, now + MICROSECOND, windows)):
        first, last = line.first_from(start), line.last_before(end)
        if first is None or last is None or last < first:
            continue
        if window is not None:
            kept, gone = _after_freeze(line, rule, first, last, window.afterwards)
        else:
            kept, gone = _between_freezes(line, rule, first, last, now, has_newer=has_newer)
            has_newer = True
        run, skipped = kept + run, gone + skipped
    return OwedOccurrences(run=run, skipped=skipped, next_at=schedule.next_after(max(now, first_owed)))


def _parts(
    start: datetime, end: datetime, windows: Sequence[FrozenWindow]
) -> list[tuple[datetime, datetime, FrozenWindow | None]]:
    """The span from *start* to before *end* in order: each part is within one window, or between two."""
    parts: list[tuple[datetime, datetime, FrozenWindow | None]] = []
    at = start
    for window in windows:
        if window.end <= at or window.start >= end:
            continue
        if window.start > at:
            parts.append((at, window.start, None))
        at = min(window.end, end)
        parts.append((max(window.start, start), at, window))
    return [*parts, (at, end, None)] if at < end else parts


def _after_freeze(
    line: _OwedLine, rule: MisfireRule, first: datetime, last: datetime, afterwards: Afterwards
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    match afterwards:
        case Afterwards.SKIP:
            return _keep_newest(line, first, last, 0, SkipReason.FREEZE)
        case Afterwards.LATEST:
            return _keep_newest(line, first, last, 1, SkipReason.FREEZE)
        case Afterwards.ALL:
            return _keep_newest(line, first, last, rule.cap, SkipReason.CAPPED)
        case _:
            assert_never(afterwards)


def _between_freezes(
    line: _OwedLine, rule: MisfireRule, first: datetime, last: datetime, now: datetime, *, has_newer: bool
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    """As after downtime: fresh ones run, the policy decides about stale ones, and those that are too old are skipped."""
    run: tuple[datetime, ...] = ()
    late: tuple[SkippedRange, ...] = ()
    fresh_first = line.first_from(max(first, now - rule.grace))
    if fresh_first is not None and fresh_first <= last:
        run, late = _keep_newest(line, fresh_first, last, RUN_LIMIT, SkipReason.CAPPED)
        stale_last = line.last_before(fresh_first)
    else:
        stale_last = last
    if stale_last is None or stale_last < first:
        return run, late
    too_old = _too_old(_OwedLine(line.schedule, first), rule, now)
    before: tuple[SkippedRange, ...] = ()
    stale_first: datetime | None = first
    if too_old is not None:
        before = (line.skip(first, min(too_old.last, stale_last), SkipReason.TOO_OLD),)
        stale_first = line.following(too_old.last)
    if stale_first is None or stale_first > stale_last:
        return run, before + late
    kept, gone = _apply_policy(line, rule, stale_first, stale_last, has_fresh=has_newer or bool(run))
    return kept + run, before + gone + late


def skipped_between(
    schedule: Schedule, first_owed: datetime, until: datetime, reason: SkipReason
) -> SkippedRange | None:
    """The occurrences from *first_owed* to *until* as one skipped range (for a pause or a deletion); None if there are none."""
    line = _OwedLine(schedule, first_owed)
    last = line.last_before(until + MICROSECOND)
    return line.skip(first_owed, last, reason) if last else None


def split_first(schedule: Schedule, skipped: SkippedRange) -> tuple[SkippedRange, ...]:
    """A skipped range with its first occurrence apart: older time-zone data named that one, ours the rest."""
    second = schedule.next_after(skipped.first)
    if second is None or second > skipped.last:
        return (skipped,)
    first = replace(skipped, last=skipped.first, count=1)
    return first, replace(skipped, first=second, count=None if skipped.count is None else skipped.count - 1)


def _resolve_stale(
    line: _OwedLine, rule: MisfireRule, now: datetime, *, has_fresh: bool
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    too_old = _too_old(line, rule, now)
    first = line.following(too_old.last) if too_old else line.first
    last = line.last_before(now - rule.grace)
    before = (too_old,) if too_old else ()
    if first is None or last is None or last < first:
        return (), before
    run, skipped = _apply_policy(line, rule, first, last, has_fresh=has_fresh)
    return run, before + skipped


def _too_old(line: _OwedLine, rule: MisfireRule, now: datetime) -> SkippedRange | None:
    if rule.max_age is None or rule.policy is Misfire.SKIP:
        return None
    last = line.last_before(now - max(rule.max_age, rule.grace))
    return line.skip(line.first, last, SkipReason.TOO_OLD) if last else None


def _apply_policy(
    line: _OwedLine, rule: MisfireRule, first: datetime, last: datetime, *, has_fresh: bool
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    """Apply the misfire policy to the stale occurrences from *first* to *last*."""
    match rule.policy:
        case Misfire.SKIP:
            return _keep_newest(line, first, last, 0, SkipReason.MISFIRE)
        case Misfire.LATEST:
            return _keep_newest(line, first, last, 0 if has_fresh else 1, SkipReason.MISFIRE)
        case Misfire.ALL:
            return _keep_newest(line, first, last, rule.cap, SkipReason.CAPPED)
        case _:
            assert_never(rule.policy)


def _keep_newest(
    line: _OwedLine, first: datetime, last: datetime, number: int, reason: SkipReason
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    kept = tuple(reversed(tuple(islice(line.back(last, first), number))))
    last_skipped = line.last_before(kept[0]) if kept else last
    if last_skipped is None or last_skipped < first:
        return kept, ()
    return kept, (line.skip(first, last_skipped, reason),)


@dataclass(frozen=True, slots=True)
class _OwedLine:
    """The occurrences of a schedule from the first owed one on."""

    schedule: Schedule
    first: datetime

    def following(self, instant: datetime) -> datetime | None:
        return self.schedule.next_after(max(instant, self.first))

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The occurrences in [start, end], in order."""
        if start <= self.first <= end:
            yield self.first
        for occurrence in self.schedule.occurrences(max(start - MICROSECOND, self.first), end):
            yield occurrence.at

    def back(self, last: datetime, first: datetime) -> Iterator[datetime]:
        """The occurrences in [first, last], latest first."""
        yield from self.schedule.occurrences_back(last, max(first - MICROSECOND, self.first))
        if first <= self.first <= last:
            yield self.first

    def first_from(self, start: datetime) -> datetime | None:
        """The first occurrence at or after an instant."""
        return self.first if start <= self.first else self.schedule.next_after(start - MICROSECOND)

    def last_before(self, cut: datetime) -> datetime | None:
        if cut <= self.first:
            return None
        return self.schedule.last_at_or_before(cut - MICROSECOND, self.first) or self.first

    def skip(self, first: datetime, last: datetime, reason: SkipReason) -> SkippedRange:
        after_first = self.schedule.count_between(first, last)
        number = None if after_first is None else 1 + after_first
        return SkippedRange(first=first, last=last, count=number, reason=reason)


class PromotionTarget(StrEnum):
    """The state table that a promotion puts an execution into."""

    READY = "ready"
    BLOCKED = "blocked"
    DUE = "due"


class DueKey(NamedTuple):
    """The position and version of a row of `due`: all that must be read of a row that the heap already holds."""

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
    # A freeze has held it until its `run_at`.
    is_frozen: bool = False
    # If it has not begun by then, it is skipped.
    expires_at: datetime | None = None

    def expiry_of(self, instant: datetime) -> datetime | None:
        """When another occurrence of the job expires: all of them have as long to begin, after their instants."""
        return None if self.expires_at is None else instant + (self.expires_at - self.scheduled_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """What planning needs of a job. A scheduler caches hundreds of thousands of these, so there is no payload in it."""

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
        """The delay of the job's runs after their exact instants."""
        return jitter_of(self.id, self.jitter_seconds)


Plannable: TypeAlias = "Job | JobTiming"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextOccurrence:
    """The pending occurrence of a job: its exact instant, when to run it, and the watermark up to which all is recorded."""

    id: ExecutionId
    run_at: datetime
    scheduled_for: datetime
    watermark: datetime
    executions_left: int | None
    tzdata: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One execution to put into a state table."""

    id: ExecutionId
    scheduled_for: datetime
    run_at: datetime
    target: PromotionTarget


@dataclass(frozen=True, slots=True)
class PlannedSkip:
    """One occurrence to record as a skipped execution."""

    id: ExecutionId
    scheduled_for: datetime
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Everything that the promotion of one row of `due` does."""

    row: DueRow
    runs: tuple[PlannedRun, ...] = ()
    skips: tuple[PlannedSkip, ...] = ()
    ranges: tuple[SkippedRange, ...] = ()
    following: NextOccurrence | None = None
    stop_running: bool = False
    # Of the occurrences of the job that no worker has ever claimed, only the newest waits for its limit.
    replaces_waiting: bool = False


@dataclass(frozen=True, slots=True)
class HeldByFreeze:
    """The row stays in `due` until a freeze is over."""

    row: DueRow
    until: datetime


@dataclass(frozen=True, slots=True)
class CheckAgain:
    """The row stays in `due` until *at*: an earlier execution of its job is unfinished, and overlap is decided at the instant itself."""

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
    """The occurrence that our time-zone data name instead of a pending one; None if none is left before the job ends."""
    if isinstance(job.rule, Cron | Every) and job.rule.is_zoned:
        return first_occurrence(job, row.watermark or row.scheduled_for - MICROSECOND, row.executions_left)
    # Elapsed time does not depend on zones, so the occurrence stays.
    return NextOccurrence(
        id=row.id,
        run_at=row.run_at,
        scheduled_for=row.scheduled_for,
        watermark=row.watermark or row.scheduled_for - MICROSECOND,
        executions_left=row.executions_left,
        tzdata=tzdata_version(),
    )


_BEGUN_OR_QUEUED = (DueKind.RETRY, DueKind.SNOOZE, DueKind.PUT_BACK)


def plan_promotion(
    row: DueRow, job: Plannable | None, now: datetime, *, is_busy: bool, frozen: Sequence[FrozenWindow] = ()
) -> Promotion | CheckAgain | HeldByFreeze:
    """Decide about a row whose time has come, or comes within the promotion window.

    *job* is needed for scheduled occurrences only. *is_busy* says whether an earlier execution of the job is unfinished. *frozen* are
    the windows in which nothing of it starts, those that are over included.
    """
    window = window_at(frozen, max(now, row.run_at))
    if window is not None:
        return HeldByFreeze(row, window.end)
    if job is None or row.origin is not Origin.SCHEDULE or row.kind in _BEGUN_OR_QUEUED:
        # An occurrence that a freeze has put back may find that a newer one waits.
        is_replacing = row.origin is Origin.SCHEDULE and _replaces_waiting(job)
        return Promotion(row=row, runs=(_unchanged(row),), replaces_waiting=is_replacing)
    # Where no earlier execution is unfinished, every policy lets the occurrence run.
    policy = job.overlap if is_busy else Overlap.ALLOW
    overlaps = policy is not Overlap.ALLOW
    if overlaps and row.run_at > now:
        last_look = row.run_at - _LAST_CHECK
        return CheckAgain(last_look if now < last_look else row.run_at)
    owed = _expire(row, _owed_by(row, job, now, frozen), now)
    match policy:
        case Overlap.SKIP:
            return _skip_all(row, job, owed)
        case Overlap.ALLOW | Overlap.QUEUE:
            return _run_owed(row, job, owed, now, stop_running=False)
        case Overlap.CANCEL_RUNNING:
            return _run_owed(row, job, owed, now, stop_running=True)
        case Overlap.LATEST:
            return _run_owed(row, job, _newest_of(owed), now, stop_running=False)
        case _:
            assert_never(policy)


def _owed_by(row: DueRow, job: Plannable, now: datetime, frozen: Sequence[FrozenWindow]) -> OwedOccurrences:
    """What a row owes: also what fell into the windows that are over, each window moved by the jitter of the job."""
    over = [
        FrozenWindow(window.start - job.jitter, window.end - job.jitter, window.afterwards)
        for window in frozen
        if window.end <= max(now, row.run_at) and window.end - job.jitter > row.scheduled_for
    ]
    if not over or row.kind is DueKind.LATER or not job.rule.is_recurring:
        return owed_occurrences(job, row.kind, row.run_at, row.scheduled_for, now)
    # A row that a freeze held is promoted shortly before the end of it: what falls due at the end itself comes after.
    moment = max(now - job.jitter, over[-1].end - MICROSECOND)
    return resolve_frozen(job.rule, row.scheduled_for, moment, job.misfire, over)


def owed_occurrences(
    job: Plannable, kind: DueKind, run_at: datetime, scheduled_for: datetime, now: datetime
) -> OwedOccurrences:
    """The occurrences owed by now: the pending one within its grace, otherwise by the misfire policy of the job."""
    if kind is DueKind.LATER or not job.rule.is_recurring:
        return OwedOccurrences(run=(scheduled_for,), skipped=(), next_at=None)
    if now - run_at <= job.misfire.grace:
        return OwedOccurrences(run=(scheduled_for,), skipped=(), next_at=job.rule.next_after(scheduled_for))
    return resolve_missed(job.rule, scheduled_for, now - job.jitter, job.misfire)


def _expire(row: DueRow, owed: OwedOccurrences, now: datetime) -> OwedOccurrences:
    """Skip the occurrences among those to run that have expired: the earliest ones, because all have as long to begin."""
    if row.expires_at is None or row.expires_at > now:
        return owed
    expired = [instant for instant in owed.run if (expiry := row.expiry_of(instant)) is not None and expiry <= now]
    skipped = (*owed.skipped, *_not_run(owed, expired, SkipReason.EXPIRED))
    return replace(owed, run=owed.run[len(expired) :], skipped=skipped)


def _unchanged(row: DueRow) -> PlannedRun:
    return PlannedRun(row.id, row.scheduled_for, row.run_at, _destination(row))


def _destination(row: DueRow) -> PromotionTarget:
    return PromotionTarget.BLOCKED if row.limit_key is not None else PromotionTarget.READY


def _run_owed(row: DueRow, job: Plannable, owed: OwedOccurrences, now: datetime, *, stop_running: bool) -> Promotion:
    is_limited_skip = job.overlap is Overlap.SKIP and row.executions_left is not None
    if len(owed.run) > 1 and (is_limited_skip or job.overlap is Overlap.LATEST):
        # One by one: later ones may be skipped because the first still runs, and a skipped one must not use up an execution.
        second = owed.run[1]
        owed = replace(
            owed, run=owed.run[:1], skipped=tuple(gone for gone in owed.skipped if gone.first < second), next_at=second
        )
    affordable = owed.run if row.executions_left is None else owed.run[: row.executions_left]
    skips, ranges = _skip_records(
        row, job, (*owed.skipped, *_not_run(owed, owed.run[len(affordable) :], SkipReason.ENDED))
    )
    return Promotion(
        row=row,
        runs=tuple(_at_catch_up_rate(row, job, affordable, now)),
        skips=skips,
        ranges=ranges,
        following=_next_occurrence(row, job, owed, used=len(affordable)),
        stop_running=stop_running and bool(affordable),
        replaces_waiting=_replaces_waiting(job) and bool(affordable),
    )


def _replaces_waiting(job: Plannable | None) -> bool:
    return job is not None and job.overlap is Overlap.LATEST


def _newest_of(owed: OwedOccurrences) -> OwedOccurrences:
    """Of several that would wait, the newest; the others are skipped."""
    older = _not_run(owed, owed.run[:-1], SkipReason.OVERLAP)
    return replace(owed, run=owed.run[-1:], skipped=(*owed.skipped, *older))


def _skip_all(row: DueRow, job: Plannable, owed: OwedOccurrences) -> Promotion:
    """Skip every owed occurrence; a skipped one does not use up an execution."""
    skips, ranges = _skip_records(row, job, (*owed.skipped, *_not_run(owed, owed.run, SkipReason.OVERLAP)))
    return Promotion(row=row, skips=skips, ranges=ranges, following=_next_occurrence(row, job, owed, used=0))


def _at_catch_up_rate(row: DueRow, job: Plannable, instants: Iterable[datetime], now: datetime) -> Iterable[PlannedRun]:
    """The first run goes to its target at once; the others follow at the catch-up rate."""
    for number, instant in enumerate(instants):
        target = _destination(row) if number == 0 else PromotionTarget.DUE
        planned_at = row.run_at if instant == row.scheduled_for else instant + job.jitter
        run_at = planned_at if number == 0 else max(planned_at, now + number * CATCH_UP_INTERVAL)
        if row.is_frozen:
            run_at = max(run_at, row.run_at + number * CATCH_UP_INTERVAL)
        yield PlannedRun(_id(row, job, instant), instant, run_at, target)


def _id(row: DueRow, job: Plannable, instant: datetime) -> ExecutionId:
    return row.id if instant == row.scheduled_for else occurrence_id(job.id, instant)


def _skip(job: Plannable, instant: datetime, reason: SkipReason) -> PlannedSkip:
    return PlannedSkip(occurrence_id(job.id, instant), instant, reason)


def _not_run(owed: OwedOccurrences, instants: Sequence[datetime], reason: SkipReason) -> list[SkippedRange]:
    """Occurrences that do not run, as ranges: one for all, unless others that were skipped lie between them."""
    ranges: list[SkippedRange] = []
    for instant in instants:
        last = ranges[-1] if ranges else None
        if last is None or any(last.last < gone.first < instant for gone in owed.skipped):
            ranges.append(SkippedRange(first=instant, last=instant, count=1, reason=reason))
        else:
            ranges[-1] = replace(last, last=instant, count=(last.count or 0) + 1)
    return ranges


def _skip_records(
    row: DueRow, job: Plannable, ranges: Iterable[SkippedRange]
) -> tuple[tuple[PlannedSkip, ...], tuple[SkippedRange, ...]]:
    """Skips as records: a single occurrence is a skipped execution, consecutive ones are a range; never both."""
    is_zoned = isinstance(job.rule, Cron | Every) and job.rule.is_zoned
    if is_zoned and row.tzdata not in (None, tzdata_version()):
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
