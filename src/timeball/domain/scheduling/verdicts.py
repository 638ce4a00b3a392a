"""What became of each occurrence of a job, and what lies ahead of it: the ledger as people read it.

A `LedgerLine` is one occurrence, or a range of consecutive ones with the same verdict. Lines of the past are records: executions and
skip ranges. `JobOutlook` makes the lines for which there is no record yet, from the schedule's own iterator:

    the pending occurrence       waiting once its time has come, expected before that
    behind it, up to now         waiting, as one range: they are due, and no scheduler has judged them
    both, while a freeze holds   waiting, with the reason `freeze`: what becomes of them is decided when it is over
    after now                    expected, one by one, as many as `max_executions` and `ends_at` leave
    in a freeze, after now       expected; with the reason `freeze` (or `capped`) if `afterwards` does not let it run
    a pause, up to now           skipped (`paused`), as one range: that is how they will be recorded, whatever ends the pause
    a pause, after now           expected, with the reason `paused`: it will be skipped unless the job is resumed before

What a version of the job leaves out, by its calendars or at a clock change (`left_out_lines`), is no record either: it is proven by the
version. It is told as skipped once its time has come, and as expected with its reason before that.

Lines are in the order of their keys. The key of an execution is its id, which begins with its instant. That of a range is the smallest
id of its first instant, and that of a gap the one before. So one id says how far a reader has come, in the records as well as in the
schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import assert_never
from uuid import UUID

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.freeze import Afterwards, Freeze, FrozenWindow
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MICROSECOND, tzdata_version
from timeball.domain.scheduling.ledger import VersionPeriod
from timeball.domain.scheduling.occurrences import NextOccurrence, skipped_between
from timeball.domain.scheduling.schedule import COUNT_BUDGET, LeftOut, Schedule
from timeball.domain.values.ids import ExecutionId, JobId, first_id_at, occurrence_id

# Up to so many occurrences are found by walking.
_FEW = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One occurrence, or the consecutive ones from *first* to *last*; *count* is None if they were not counted.

    An expected line with a *reason* will be skipped for that reason, unless something changes before. A waiting one is held by the
    *freeze*, if that is known, and an expected one will be. A line of origin `backfill` is an execution that a backfill created for
    the instant; what it fills in keeps its own line, which says how many of it were *filled* in.
    """

    key: UUID
    first: datetime
    last: datetime
    count: int | None
    verdict: Verdict
    version: int
    tzdata: str | None
    is_range: bool = False
    reason: str | None = None
    execution_id: ExecutionId | None = None
    state: ExecutionState | None = None
    origin: Origin = Origin.SCHEDULE
    filled: int = 0
    freeze: Freeze | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether its time has come, and a freeze holds it."""
        return self.verdict is Verdict.WAITING and self.reason == SkipReason.FREEZE

    def held_by(self, freeze: Freeze) -> LedgerLine:
        """The same line, told of the freeze that holds its job: what a waiting one waits for, or an expected one will."""
        is_waiting = self.verdict is Verdict.WAITING
        return replace(self, reason=SkipReason.FREEZE if is_waiting else self.reason, freeze=freeze)

    @property
    def is_left_out(self) -> bool:
        """Whether the schedule itself leaves it out, so that there is no record of it."""
        return self.execution_id is None and self.reason in _LEFT_OUT

    @property
    def is_gap(self) -> bool:
        """Whether it is what a clock change skips: something may be due at that instant all the same."""
        return self.reason == SkipReason.CLOCK_GAP


# Plain texts: a reason is read from the database.
_LEFT_OUT = frozenset(reason.value for reason in SkipReason if reason.is_left_out)


def verdict_of(state: ExecutionState, skip_reason: str | None) -> Verdict:
    """The verdict about an occurrence with an execution in this state; a skipped one never began, and has a reason."""
    if skip_reason is not None:
        return Verdict.SKIPPED
    if state.is_final:
        return Verdict.RAN
    return Verdict.RUNNING if state is ExecutionState.RUNNING else Verdict.WAITING


def describe_skips(counts: Mapping[str, int]) -> str:
    """Skipped occurrences in words, those that were missed first: `5 missed, misfire; 2 skipped, overlap`."""
    missed = {reason.value for reason in SkipReason if reason.is_missed}
    ordered = sorted(counts.items(), key=lambda item: (item[0] not in missed, item[0]))
    return "; ".join(f"{count:,} {'missed' if reason in missed else 'skipped'}, {reason}" for reason, count in ordered)


def key_of_range(first: datetime) -> UUID:
    """The place of a range among the ids of executions."""
    return first_id_at(first)


def _key_left_out(part: LeftOut) -> UUID:
    """The place of what is left out. A gap is told at its end, before the range or the execution that may begin there."""
    key = key_of_range(part.first)
    return UUID(int=key.int - 1) if part.reason is SkipReason.CLOCK_GAP else key


def instants_of(line: LedgerLine, periods: Sequence[VersionPeriod]) -> Iterator[datetime]:
    """The occurrences of a line in order: those of a range by the schedule of its version. What is left out is none."""
    if line.is_left_out:
        return
    period = next((period for period in periods if period.version == line.version), None)
    if not line.is_range or period is None:
        yield line.first
        return
    for occurrence in period.rule.occurrences(line.first - MICROSECOND, line.last):
        yield occurrence.at


@dataclass(frozen=True, slots=True)
class FrozenSpan:
    """The occurrences ahead that a freeze will skip: those of a schedule from *start* to *last*."""

    start: datetime
    last: datetime
    reason: SkipReason

    def covers(self, instant: datetime) -> bool:
        """Whether an occurrence at this instant will be skipped."""
        return self.start <= instant <= self.last


def frozen_spans(
    rule: Schedule, windows: Iterable[FrozenWindow], jitter: timedelta, cap: int, owed_from: datetime
) -> tuple[FrozenSpan, ...]:
    """What some windows will skip of a schedule, in order. Nothing before *owed_from* is owed.

    Windows hold starts, which come at the jitter of the job after their instants.
    """
    spans = []
    for window in windows:
        kept, reason = _kept_after(window.afterwards, cap)
        start, end = max(window.start - jitter, owed_from), window.end - jitter - MICROSECOND
        last = _last_but(rule, kept, start, end) if start <= end else None
        if last is not None:
            spans.append(FrozenSpan(start, last, reason))
    return tuple(spans)


def _last_but(rule: Schedule, number: int, start: datetime, end: datetime) -> datetime | None:
    """The last occurrence of [start, end] but so many that come after it."""
    after = start - MICROSECOND
    count = rule.count_between(after, end) if number > _FEW else None
    if count is None:
        return next(islice(rule.occurrences_back(end, after), number, None), None)
    return rule.last_at_or_before(_last_of(rule, after, count - number, end)) if count > number else None


def _kept_after(afterwards: Afterwards, cap: int) -> tuple[int, SkipReason]:
    """How many occurrences of a window run when it is over, and why the others do not."""
    match afterwards:
        case Afterwards.SKIP:
            return 0, SkipReason.FREEZE
        case Afterwards.LATEST:
            return 1, SkipReason.FREEZE
        case Afterwards.ALL:
            return cap, SkipReason.CAPPED
        case _:
            assert_never(afterwards)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPause:
    """A pause: nothing up to *since* is part of it, and without *until* a person ends it; *left* executions come after it."""

    since: datetime
    until: datetime | None
    left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutlook:
    """What a job has ahead: a pending occurrence, a pause, or nothing."""

    job_id: JobId
    rule: Schedule
    version: int
    now: datetime
    pending: NextOccurrence | None = None
    # A freeze holds the pending occurrence, whose time has come.
    is_frozen: bool = False
    pause: JobPause | None = None
    # What lies ahead and will be skipped by freezes.
    frozen: Sequence[FrozenSpan] = ()

    def in_freezes(self, windows: Iterable[FrozenWindow], jitter: timedelta, cap: int) -> JobOutlook:
        """The same with what freezes will skip: windows that hold the job, its jitter, and how many run after one at most."""
        resumed_at = self.now if self.pause is None or self.pause.until is None else max(self.pause.until, self.now)
        owed_from = resumed_at if self.pending is None else self.pending.scheduled_for
        return replace(self, frozen=frozen_spans(self.rule, windows, jitter, cap, owed_from))

    def certain(self, since: datetime, until: datetime) -> list[LedgerLine]:
        """The few lines before the expected ones, as far as they touch [since, until]: what is pending, overdue, or skipped by a pause."""
        return [line for line in self._certain_lines(until) if line.last >= since and line.first <= until]

    def expected(self, since: datetime, until: datetime, reasons: Collection[str] = ()) -> Iterator[LedgerLine]:
        """The expected lines of [since, until] behind the certain ones, the earliest first, lazily: there may be any number of them.

        With *reasons*, those that will be skipped for one of them.
        """
        for after, before in self._expected_spans(since, until, reasons):
            for occurrence in self.rule.occurrences(after, before):
                yield self._expected(occurrence.at)

    def expected_back(self, since: datetime, until: datetime, reasons: Collection[str] = ()) -> Iterator[LedgerLine]:
        """The same lines, the latest first."""
        for after, before in reversed(self._expected_spans(since, until, reasons)):
            for instant in self.rule.occurrences_back(before, after):
                yield self._expected(instant)

    def last_before(self, until: datetime) -> datetime | None:
        """The last occurrence that the job has an execution left for, if that is before *until*."""
        last = self._expected_ends(until)[1]
        return last if last < until else None

    def _certain_lines(self, until: datetime) -> list[LedgerLine]:
        pending = self.pending
        if pending is not None:
            reason = SkipReason.FREEZE if self.is_frozen else None
            is_overdue = self._is_overdue(pending)
            overdue = self._range(pending.scheduled_for, self.now, Verdict.WAITING, reason) if is_overdue else []
            return [self._pending(pending), *overdue]
        if self.pause is None or self.pause.left == 0:
            return []
        since, reason = self.pause.since, SkipReason.PAUSED
        ahead_until = min(until, self.pause.until or MAX_INSTANT)
        return [
            *self._range(since, self.now, Verdict.SKIPPED, reason),
            *self._range(max(since, self.now), ahead_until, Verdict.EXPECTED, reason),
        ]

    def _is_overdue(self, pending: NextOccurrence) -> bool:
        return self.is_frozen or pending.run_at <= self.now

    def _pending(self, pending: NextOccurrence) -> LedgerLine:
        is_overdue = self._is_overdue(pending)
        held = SkipReason.FREEZE if self.is_frozen else None
        return LedgerLine(
            key=pending.id,
            first=pending.scheduled_for,
            last=pending.scheduled_for,
            count=1,
            verdict=Verdict.WAITING if is_overdue else Verdict.EXPECTED,
            version=self.version,
            tzdata=pending.tzdata or None,
            reason=held if is_overdue else self._skipped_for(pending.scheduled_for),
            execution_id=pending.id,
            state=ExecutionState.SCHEDULED,
        )

    def _range(
        self, after: datetime, until: datetime, verdict: Verdict, reason: SkipReason | None = None
    ) -> list[LedgerLine]:
        """The occurrences in (after, until] as one line, if there are any."""
        first = self.rule.next_after(after)
        span = None if first is None or first > until else skipped_between(self.rule, first, until, SkipReason.PAUSED)
        if span is None:
            return []
        is_range = span.first != span.last
        return [
            LedgerLine(
                key=key_of_range(span.first) if is_range else occurrence_id(self.job_id, span.first),
                first=span.first,
                last=span.last,
                count=span.count,
                verdict=verdict,
                version=self.version,
                tzdata=tzdata_version(),
                is_range=is_range,
                reason=reason,
            )
        ]

    def _expected(self, instant: datetime) -> LedgerLine:
        return LedgerLine(
            key=occurrence_id(self.job_id, instant),
            first=instant,
            last=instant,
            count=1,
            verdict=Verdict.EXPECTED,
            version=self.version,
            tzdata=tzdata_version(),
            reason=self._skipped_for(instant),
        )

    def _skipped_for(self, instant: datetime) -> SkipReason | None:
        """Why an occurrence that lies ahead will be skipped."""
        return next((span.reason for span in self.frozen if span.covers(instant)), None)

    def _expected_spans(
        self, since: datetime, until: datetime, reasons: Collection[str]
    ) -> list[tuple[datetime, datetime]]:
        """The expected occurrences of [since, until] are those in each (after, before]."""
        after, before = self._expected_ends(until)
        after = max(after, since - MICROSECOND)
        spans = [(after, before)]
        if reasons:
            skipped = (span for span in self.frozen if span.reason in reasons)
            spans = [(max(after, span.start - MICROSECOND), min(before, span.last)) for span in skipped]
        return [(start, end) for start, end in spans if start < end]

    def _expected_ends(self, until: datetime) -> tuple[datetime, datetime]:
        """The expected occurrences are those in (after, before]."""
        pending, pause = self.pending, self.pause
        if pending is not None:
            after = max(pending.scheduled_for, self.now) if self._is_overdue(pending) else pending.scheduled_for
            left = None if pending.executions_left is None else pending.executions_left - self._used_by(pending, after)
        elif pause is not None and pause.until is not None:
            after, left = max(pause.since, pause.until, self.now), pause.left
        else:
            return until, until
        return after, until if left is None else _last_of(self.rule, after, left, until, self.frozen)

    def _used_by(self, pending: NextOccurrence, until: datetime) -> int:
        """How many executions the pending occurrence uses up, or those that a freeze holds up to an instant."""
        if self.is_frozen:
            return _count_run(self.rule, pending.scheduled_for - MICROSECOND, until, self.frozen) or 0
        return int(self._skipped_for(pending.scheduled_for) is None)


def left_out_lines(
    period: VersionPeriod, since: datetime, until: datetime, now: datetime, *, newest_first: bool
) -> Iterator[LedgerLine]:
    """What a version leaves out, as far as it touches [since, until], lazily in order: ranges without an occurrence, cut at *now*.

    A range is told whole, if it crosses the edge of the span.
    """
    rule, low, end = period.rule, period.after, MAX_INSTANT if period.until is None else period.until
    if end < since or until <= low:
        return iter(())
    low = rule.last_at_or_before(since - MICROSECOND, low) or low
    following = rule.next_after(until)
    high = min(end, until if following is None else following - MICROSECOND)
    spans = [(low, min(high, now)), (max(low, now), high)]
    if newest_first:
        parts: Iterable[LeftOut] = (part for start, end in reversed(spans) for part in rule.left_out_back(end, start))
    else:
        parts = (part for start, end in spans for part in rule.left_out(start, end))
    return (_left_out_line(period, part, now) for part in parts)


def _left_out_line(period: VersionPeriod, part: LeftOut, now: datetime) -> LedgerLine:
    return LedgerLine(
        key=_key_left_out(part),
        first=part.first,
        last=part.last,
        count=part.count,
        verdict=Verdict.SKIPPED if part.first <= now else Verdict.EXPECTED,
        version=period.version,
        tzdata=period.tzdata or tzdata_version(),
        is_range=part.first != part.last,
        reason=part.reason,
    )


def _count_run(rule: Schedule, after: datetime, until: datetime, frozen: Sequence[FrozenSpan]) -> int | None:
    """The number of occurrences in (after, until] that freezes do not skip; None if it is too large to be counted."""
    count = rule.count_between(after, until)
    for span in frozen if count is not None else ():
        low, high = max(after, span.start - MICROSECOND), min(until, span.last)
        if count is not None and low < high:
            count -= rule.count_between(low, high) or 0
    return count


def _last_of(
    rule: Schedule, after: datetime, number: int, until: datetime, frozen: Sequence[FrozenSpan] = ()
) -> datetime:
    """The occurrence of this number behind *after*, not counting what freezes skip, or *until* if there are fewer."""
    until = min(until, after + timedelta(days=COUNT_BUDGET)) if until > after else until
    if number <= 0 or until <= after:
        return after
    count = _count_run(rule, after, until, frozen)
    if count is None or count <= number:
        return until
    # By halves: to walk there would take as many steps as there are executions left.
    low, high = after, until
    while high - low > timedelta(milliseconds=1):
        middle = low + (high - low) / 2
        if (_count_run(rule, after, middle, frozen) or 0) >= number:
            high = middle
        else:
            low = middle
    return high
