"""The ledger: whether every occurrence of a job is recorded, and recorded once.

A job's versions say which instants there should be: version n answers for the instants of its own rule in (after, until],
and the spans follow one another without a gap. The database says what there is: executions, and ranges of skipped
occurrences. `JobLedger` is given both in the order of time and walks them side by side, like two sorted lists; it holds
no more than one of each in memory. Executions that follow one another at equal steps come as one `Run`, so that a job
which ran every second for a month is one comparison.

    the rule      |    |    |    |    |    |    |    |    |
    the records   x    x    [---------]    x         x    x    x
                                                ^hole          ^phantom

Nothing is walked through that was skipped or lost as a whole: of a range and of a hole only the edges are looked for.
How far the records must reach is told by the `Outlook`: to the pending occurrence, to the beginning of a pause, or to the
end of the rule. What is older than the history that is kept is no longer expected, and a job that has used up
`max_executions` owes nothing more.

A one-off keeps to other rules: its one instant may have passed when it was set ("a past instant runs now"), and it stays
owed when another field is edited, so it is matched by its instant alone, whatever version is cited.

An instant that was computed by other time-zone data than ours cannot be judged: unless our data agree with it, it is
counted as not checkable. So is one that is missing where a version left off, unless it did so by our data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from timeball.domain.scheduling.civil_time import MAX_INSTANT, MICROSECOND, MIN_INSTANT, SECOND, format_instant
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Occurrence, Once, Schedule

# No two editions of the time-zone data put one wall time further apart: a clock may be set across the date line.
_EDITIONS_APART = timedelta(hours=26)
# Limits of `QuickLedgerCheck`: cron rules in its cache, and occurrences of a cron rule that it iterates over.
_MAX_CACHED_RULES = 10_000
_MAX_ITERATED = 10


class Promise(StrEnum):
    """The promises that a ledger can break (docs/explanation/promises.md)."""

    RECORDED_ONCE = "S1"
    NO_PHANTOM = "S2"
    WATERMARK = "S3"
    BOUNDED = "S7"


class LedgerEntry(NamedTuple):
    """Records that are alike: executions of origin `schedule` at equal steps, or one range of skipped occurrences."""

    first: datetime
    last: datetime
    # How many occurrences these are; a range may not know.
    number: int | None
    version: int
    tzdata: str | None
    is_range: bool
    # How many of them were to run, and so count towards `max_executions`.
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPeriod:
    """The instants one version of a job answers for: those of its rule in (after, until]; without *until*, from now on."""

    version: int
    rule: Schedule
    after: datetime
    until: datetime | None
    max_executions: int | None = None
    # The time-zone data by which it owed nothing more, where it left off; None if that is not known.
    tzdata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOccurrence:
    """The occurrence of a job that waits in `due`."""

    scheduled_for: datetime
    tzdata: str | None
    # Everything that a recurring job owed up to here is recorded, and nothing behind it.
    watermark: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBounds:
    """How far the records of a job must reach."""

    pending: PendingOccurrence | None = None
    is_deleted: bool = False
    # The watermark of a paused job.
    paused_from: datetime | None = None
    # Nothing up to here is expected any more: its history was dropped.
    history_from: datetime | None = None
    # The time-zone data in use here.
    tzdata: str


@dataclass(frozen=True, slots=True)
class LedgerFlaw:
    """A promise that is broken: why, and at which instant; *has_record* if it is the records of that instant that break it."""

    promise: Promise
    why: str
    at: datetime
    version: int | None
    has_record: bool = False


class JobLedger:
    """The account of one job. `enter` its records by (first, last), then `close`; what is wrong is handed to *report*."""

    def __init__(
        self, spans: Sequence[VersionPeriod], outlook: LedgerBounds, report: Callable[[LedgerFlaw], None]
    ) -> None:
        self.checked = 0
        self.not_checkable = {Promise.RECORDED_ONCE: 0, Promise.NO_PHANTOM: 0, Promise.WATERMARK: 0}
        self._spans = spans
        self._by_version = {span.version: span for span in spans}
        self._outlook = outlook
        self._report = report
        self._previous: LedgerEntry | None = None
        self._used = 0
        self._used_by: dict[int, int] = {}
        # The instants of one-offs, and whether they have been met.
        self._answered = {span.rule.scheduled_at: False for span in spans if isinstance(span.rule, Once)}
        self._index = -1
        self._span: VersionPeriod | None = None
        self._line = _NOTHING
        self._check_spans()
        self._open_next()

    def enter(self, run: LedgerEntry) -> None:
        """Take the next records into account."""
        if run.is_range or run.number == 1 or run.number is None:
            self._enter_one(run)
        elif not self._follows_the_line(run):
            step = (run.last - run.first) / (run.number - 1)
            for place in range(run.number):
                at = run.first + place * step
                self._enter_one(run._replace(first=at, last=at, number=1, used=0))
        self._used += run.used
        self._used_by[run.version] = self._used_by.get(run.version, 0) + run.used

    def close(self) -> None:
        """Say what is missing at the end."""
        while self._span is not None and self._span.until is not None:
            self._close_span(self._span, self._span.until)
        if self._span is not None:
            self._close_open_span(self._span)
        self._check_one_offs()
        for span in self._spans:
            if span.max_executions is not None and self._used_by.get(span.version, 0) > span.max_executions:
                why = f"{self._used_by[span.version]} executions were to run, max_executions is {span.max_executions}"
                self._report(LedgerFlaw(Promise.BOUNDED, why, span.after, span.version))

    # records

    def _follows_the_line(self, run: LedgerEntry) -> bool:
        """Whether a run is just what comes next; if so, it is done with."""
        previous, span = self._previous, self._span
        is_in_place = (
            span is not None
            and span.version == run.version
            and (span.until is None or run.last <= span.until)
            and (previous is None or previous.last < run.first)
        )
        if not is_in_place or not self._line.passes(run):
            return False
        self.checked += run.number or 0
        self._previous = run
        return True

    def _enter_one(self, run: LedgerEntry) -> None:
        previous = self._previous
        if previous is not None and run.first <= previous.last:
            self._report(
                LedgerFlaw(
                    Promise.RECORDED_ONCE, "an occurrence is recorded twice", run.first, run.version, has_record=True
                )
            )
            if run.last > previous.last:
                self._previous = run
                self._line.seek(run.last)
            return
        is_named = self._cover(run)
        self._previous = run
        self.checked += run.number or 1
        if run.first in self._answered:
            self._answered[run.first] = True
        if not is_named or self._span is None or run.version != self._span.version:
            self._judge_odd(run)

    def _judge_odd(self, run: LedgerEntry) -> None:
        """A record that is not simply at an instant of the version that answers for it."""
        span, cited = self._span, self._by_version.get(run.version)
        if cited is None:
            self._phantom(run, f"cites version {run.version}, which does not exist")
        elif isinstance(cited.rule, Once):
            if run.is_range or run.first != cited.rule.scheduled_at:
                self._phantom(
                    run, f"is not at {format_instant(cited.rule.scheduled_at)}, the one instant of its version"
                )
        elif span is None or run.first <= span.after:
            self._phantom(run, "is at an instant for which no version answers")
        elif cited is not span:
            self._phantom(run, f"cites version {run.version}, but version {span.version} answers for its instant")
        elif self._is_sure(run.tzdata):
            self._phantom(run, "is not at an instant of its version's schedule")
        else:
            self.not_checkable[Promise.NO_PHANTOM] += 1

    def _phantom(self, run: LedgerEntry, why: str) -> None:
        what = "a skip range" if run.is_range else "an execution"
        self._report(LedgerFlaw(Promise.NO_PHANTOM, f"{what} {why}", run.first, run.version, has_record=True))

    def _cover(self, run: LedgerEntry) -> bool:
        """Go on to the instant of a record, and past it; whether the schedule names that instant."""
        first = run.first
        while self._span is not None and self._span.until is not None and self._span.until < first:
            self._close_span(self._span, self._span.until)
        line = self._line
        if line.upcoming is not None and line.upcoming < first:
            self._hole(line.upcoming, first - MICROSECOND, run.tzdata)
            line.seek(first - MICROSECOND)
        is_named = line.upcoming == first
        if run.is_range:
            return self._cover_range(run) and is_named
        if is_named:
            line.step()
        return is_named

    def _cover_range(self, run: LedgerEntry) -> bool:
        line, span = self._line, self._span
        line.seek(run.last - MICROSECOND)
        is_named = line.upcoming == run.last and (span is None or span.until is None or run.last <= span.until)
        if not is_named or span is None:
            return False
        line.step()
        number = span.rule.count_between(run.first - MICROSECOND, run.last)
        if None not in (number, run.number) and number != run.number and self._is_sure(run.tzdata):
            why = f"a skip range says that it holds {run.number} occurrences, its schedule names {number}"
            self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, run.first, run.version, has_record=True))
        return True

    # spans

    def _check_spans(self) -> None:
        for older, newer in pairwise(self._spans):
            if older.until != newer.after or older.after > newer.after:
                until = "now on" if older.until is None else format_instant(older.until)
                why = f"version {older.version} answers until {until}, version {newer.version} from {format_instant(newer.after)}"
                self._report(LedgerFlaw(Promise.WATERMARK, why, newer.after, newer.version))
        if self._spans and self._spans[-1].until is not None and not self._outlook.is_deleted:
            last = self._spans[-1]
            why = f"no version answers after {format_instant(last.until or last.after)}, though the job is not deleted"
            self._report(LedgerFlaw(Promise.WATERMARK, why, last.until or last.after, last.version))

    def _open_next(self) -> None:
        self._index += 1
        self._span = span = self._spans[self._index] if self._index < len(self._spans) else None
        is_walked = span is not None and span.rule.is_recurring
        self._line = LedgerCursor(span.rule, span.after) if span and is_walked else _NOTHING

    def _close_span(self, span: VersionPeriod, until: datetime) -> None:
        upcoming = self._line.upcoming
        if upcoming is not None and upcoming <= until and not self._is_used_up():
            self._hole(upcoming, until, self._left_off_by(span))
        self._open_next()

    def _left_off_by(self, span: VersionPeriod) -> str | None:
        """The time-zone data by which a version owed nothing more: if it does not say so, those of the last record, perhaps."""
        return span.tzdata or (None if self._previous is None else self._previous.tzdata)

    def _close_open_span(self, span: VersionPeriod) -> None:
        pending, paused_from, upcoming = self._outlook.pending, self._outlook.paused_from, self._line.upcoming
        if pending is not None:
            self._meet_pending(span, pending)
        elif paused_from is not None:
            self._refuse_records_beyond(paused_from, "the watermark of the pause", span)
            if upcoming is not None and upcoming <= paused_from and not self._is_used_up():
                self._hole(upcoming, paused_from, self._left_off_by(span))
        elif upcoming is not None and not self._is_used_up():
            floor = self._outlook.history_from
            at = upcoming if floor is None or upcoming > floor else span.rule.next_after(floor)
            if at is not None:
                self._stopped(span, at)

    def _stopped(self, span: VersionPeriod, at: datetime) -> None:
        """Nothing is pending: by other data it may have been the end, if that is so near."""
        left_off_by, end = self._left_off_by(span), span.rule.ends_at
        if (
            end is not None
            and end - at < _EDITIONS_APART
            and left_off_by is not None
            and not self._is_sure(left_off_by)
        ):
            self.not_checkable[Promise.WATERMARK] += 1
            return
        why = "nothing is pending, though the schedule goes on: this occurrence will not be recorded"
        self._report(LedgerFlaw(Promise.WATERMARK, why, at, span.version))

    def _meet_pending(self, span: VersionPeriod, pending: PendingOccurrence) -> None:
        at = pending.scheduled_for
        if self._refuse_records_beyond(at - MICROSECOND, "the pending occurrence", span):
            return
        if span.rule.is_recurring:
            self._check_watermark(span, pending)
        upcoming = span.rule.scheduled_at if isinstance(span.rule, Once) else self._line.upcoming
        if upcoming is not None and upcoming < at and span.rule.is_recurring:
            self._hole(upcoming, at - MICROSECOND, pending.tzdata)
            self._line.seek(at - MICROSECOND)
            upcoming = self._line.upcoming
        if upcoming != at:
            if not self._is_sure(pending.tzdata):
                self.not_checkable[Promise.NO_PHANTOM] += 1
                return
            why = "the pending occurrence is not at an instant of its version's schedule"
            self._report(LedgerFlaw(Promise.NO_PHANTOM, why, at, span.version, has_record=True))

    def _check_watermark(self, span: VersionPeriod, pending: PendingOccurrence) -> None:
        """It stands at the last record or behind it, and not before its version began to answer."""
        reached = span.after if self._previous is None else max(span.after, self._previous.last)
        if pending.watermark is None:
            self._report(
                LedgerFlaw(Promise.WATERMARK, "the pending occurrence has no watermark", reached, span.version)
            )
        elif pending.watermark < reached:
            why = f"the watermark is {format_instant(pending.watermark)}, though all up to this instant is recorded: it has moved back"
            self._report(LedgerFlaw(Promise.WATERMARK, why, reached, span.version))

    def _refuse_records_beyond(self, watermark: datetime, what: str, span: VersionPeriod) -> bool:
        previous = self._previous
        if previous is None or previous.last <= watermark or isinstance(span.rule, Once):
            return False
        why = f"what lies beyond {what} is recorded already: the watermark has moved back"
        self._report(LedgerFlaw(Promise.WATERMARK, why, previous.last, span.version, has_record=True))
        return True

    def _hole(self, first: datetime, until: datetime, revealed_by: str | None) -> None:
        """Occurrences from *first* to *until* have no record; what is older than the history is not missed."""
        span = self._span
        assert span is not None
        start: datetime | None = first
        floor = self._outlook.history_from
        if floor is not None and first <= floor:
            start = span.rule.next_after(floor)
        if start is None or start > until:
            return
        number = span.rule.count_between(start - MICROSECOND, until)
        previous = self._previous
        if not (self._is_sure(revealed_by) and (previous is None or self._is_sure(previous.tzdata))):
            self.not_checkable[Promise.RECORDED_ONCE] += number or 1
            return
        last = span.rule.last_at_or_before(until, start - MICROSECOND) or start
        self.checked += number or 1
        why = "an occurrence has no record"
        if last != start:
            many = "many" if number is None else number
            why = f"{many} occurrences have no record, the last of them at {format_instant(last)}"
        self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, start, span.version))

    def _is_used_up(self) -> bool:
        """Whether the job may have ended for having run `max_executions` times."""
        limit = None if self._span is None else self._span.max_executions
        if limit is None:
            return False
        floor = self._outlook.history_from
        return self._used >= limit or (floor is not None and floor > self._spans[0].after)

    def _is_sure(self, tzdata: str | None) -> bool:
        rule = None if self._span is None else self._span.rule
        return not isinstance(rule, Cron) or rule.timezone == "UTC" or tzdata == self._outlook.tzdata

    # one-offs

    def _check_one_offs(self) -> None:
        before: Schedule | None = None
        for span in self._spans:
            rule, earlier, before = span.rule, before, span.rule
            if not isinstance(rule, Once) or self._is_answered(rule.scheduled_at):
                continue
            was_set_here = not isinstance(earlier, Once) or earlier.scheduled_at != rule.scheduled_at
            if self._is_owed(span, rule.scheduled_at) and (was_set_here or rule.scheduled_at > span.after):
                self.checked += 1
                why = "the one occurrence has no record"
                self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, rule.scheduled_at, span.version))

    def _is_answered(self, instant: datetime) -> bool:
        pending, floor = self._outlook.pending, self._outlook.history_from
        is_pending = pending is not None and pending.scheduled_for == instant
        return self._answered[instant] or is_pending or (floor is not None and instant <= floor)

    def _is_owed(self, span: VersionPeriod, instant: datetime) -> bool:
        until = span.until or self._outlook.paused_from
        return until is None or instant <= until


class LedgerCursor:
    """What a schedule names next: by steps, and by leaps over what need not be looked at."""

    def __init__(self, rule: Schedule, after: datetime) -> None:
        self._rule = rule
        # Elapsed time needs no walk: a step is an addition.
        self._interval = rule.interval if isinstance(rule, Every) else None
        self._end = rule.ends_at or MAX_INSTANT
        self._walk: Iterator[Occurrence] = iter(())
        self.upcoming: datetime | None = None
        if not isinstance(rule, Manual):
            self.seek(after)

    def step(self) -> None:
        """Go on to the next instant."""
        if self._interval is not None and self.upcoming is not None:
            following = self.upcoming + self._interval
            self.upcoming = following if following <= self._end else None
            return
        occurrence = next(self._walk, None)
        self.upcoming = None if occurrence is None else occurrence.at

    def seek(self, after: datetime) -> None:
        """Go to the first instant after this one, backwards as well as forwards."""
        if self._interval is not None:
            self.upcoming = self._rule.next_after(after)
            return
        self._walk = self._rule.occurrences(after)
        self.step()

    def passes(self, run: LedgerEntry) -> bool:
        """Go past a run if its instants, all of them and no others, come next; else stay."""
        if self.upcoming != run.first or run.number is None:
            return False
        step = (run.last - run.first) / max(run.number - 1, 1)
        if step == self._interval and run.last <= self._end:
            self.upcoming = run.last
            self.step()
            return True
        if step == self._finest_step() and self._rule.count_between(run.first - MICROSECOND, run.last) == run.number:
            # No two instants are closer than that, so as many of them as the span can hold are just those of the run.
            self.seek(run.last)
            return True
        for place in range(run.number):
            if self.upcoming != run.first + place * step:
                self.seek(run.first - MICROSECOND)
                return False
            self.step()
        return True

    def _finest_step(self) -> timedelta | None:
        if not isinstance(self._rule, Cron):
            return None
        has_seconds = len(self._rule.expression.split()) > 5
        return SECOND if has_seconds else 60 * SECOND


# The line of what names nothing.
_NOTHING = LedgerCursor(Manual(), MIN_INSTANT)


class QuickLedgerCheck:
    """Looks at one job after the other; *history_from* as in an `Outlook`."""

    def __init__(self, history_from: datetime | None) -> None:
        self._history_from = history_from
        # Of cron rules, which many jobs share: whatever lies between an instant and the first one after it has the same first one.
        self._known: dict[Cron, tuple[datetime, datetime]] = {}

    def sees_order(self, span: VersionPeriod, runs: Sequence[LedgerEntry], pending_for: datetime | None) -> bool:
        """Whether a job of this one version has just these records, in order, and rightly waits for *pending_for*."""
        if span.until is not None or span.max_executions is not None:
            return False
        match span.rule:
            case Every() as rule:
                return pending_for is not None and self._is_regular(rule, span, runs, pending_for)
            case Cron() as rule:
                return pending_for is not None and self._is_walked(rule, span, runs, pending_for)
            case Once() as rule:
                return not runs and pending_for == rule.scheduled_at
            case Manual():
                return not runs and pending_for is None

    def _is_regular(self, rule: Every, span: VersionPeriod, runs: Sequence[LedgerEntry], pending_for: datetime) -> bool:
        """Whether all stand one interval apart: no walk is needed, however many there are."""
        interval = rule.interval
        expected = rule.next_after(span.after)
        begins_at = runs[0].first if runs else pending_for
        if expected is None or (begins_at != expected and not self._is_forgotten(rule, expected, begins_at)):
            return False
        expected = begins_at
        for run in runs:
            is_next = run.first == expected and run.version == span.version
            if not is_next or run.number is None or run.last - run.first != (run.number - 1) * interval:
                return False
            expected = run.last + interval
        return expected == pending_for and (rule.ends_at is None or pending_for <= rule.ends_at)

    def _is_forgotten(self, rule: Every, expected: datetime, begins_at: datetime) -> bool:
        """Whether all that lies before the first record is older than the history that is kept."""
        floor, interval = self._history_from, rule.interval
        if floor is None or begins_at < expected or begins_at - interval > floor:
            return False
        return not (begins_at - expected) % interval

    def _is_walked(self, rule: Cron, span: VersionPeriod, runs: Sequence[LedgerEntry], pending_for: datetime) -> bool:
        """Whether all stand where a walk from the first instant comes by."""
        expected = self._first_after(rule, span.after)
        for run in runs:
            if run.first != expected or run.version != span.version:
                return False
            expected = _following(rule, run)
        return expected == pending_for

    def _first_after(self, rule: Cron, instant: datetime) -> datetime | None:
        since, first = self._known.get(rule, (instant, instant))
        if since <= instant < first:
            return first
        found = rule.next_after(instant)
        if len(self._known) >= _MAX_CACHED_RULES:
            self._known.clear()
        if found is not None:
            self._known[rule] = (instant, found)
        return found


def _following(rule: Cron, run: LedgerEntry) -> datetime | None:
    """What comes after a short run, if its instants, all of them and no others, are named from its first on."""
    if run.number is None or run.number > _MAX_ITERATED:
        return None
    step = (run.last - run.first) / max(run.number - 1, 1)
    at: datetime | None = run.first
    for place in range(1, run.number):
        at = None if at is None else rule.next_after(at)
        if not run.is_range and at != run.first + place * step:
            return None
    return rule.next_after(run.last) if at == run.last else None
