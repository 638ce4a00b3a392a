"""The ledger: whether every occurrence of a job is recorded exactly once.

The versions of a job say which instants there should be: version n answers for the instants of its rule in
(after, until], and these periods follow one another without a gap. The database says what there is: executions, and ranges
of skipped occurrences. `JobLedger` is given both in order of time and goes through them side by side, like a merge of two
sorted lists; it keeps no more than one of each in memory. Executions at equal steps come as one `LedgerEntry`, so that a
job that ran every second for a month is one comparison.

    the rule      |    |    |    |    |    |    |    |    |
    the records   x    x    [---------]    x         x    x    x
                                                ^hole          ^phantom

Nothing iterates over what was skipped or lost as a whole: only the edges of a range and of a hole are computed.
`LedgerBounds` say how far the records must reach: to the pending occurrence, to the start of a pause, or to the end of the
rule. Occurrences older than the kept history are no longer expected, and a job that has used up `max_executions` owes
nothing more.

A one-off has other rules: its one instant may have passed when it was set ("a past instant runs now"), and it stays owed
when another field is edited. It is therefore matched by its instant alone, whatever version a record cites.

An instant that was computed with other time-zone data cannot be judged: unless our data agree with it, it counts as not
checkable. So does an instant that is missing where a version ends, unless the version ended by our data.

`QuickLedgerCheck` recognises the common case of a job whose records are plainly in order, before its whole ledger is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from timeball.domain.scheduling.calendars import CalendarRule
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MICROSECOND, MIN_INSTANT, SECOND, format_instant
from timeball.domain.scheduling.schedule import After, Cron, Every, Manual, Occurrence, Once, Rrule, Schedule

# No two editions of the time-zone data put one wall time further apart: a clock may be set across the date cursor.
_EDITIONS_APART = timedelta(hours=26)
# Limits of `QuickLedgerCheck`: cron rules in its cache, and occurrences of a cron rule that it iterates over.
_MAX_CACHED_RULES = 10_000
_MAX_ITERATED = 10


class Promise(StrEnum):
    """The promises that a ledger checks (docs/explanation/promises.md)."""

    RECORDED_ONCE = "S1"
    NO_PHANTOM = "S2"
    WATERMARK = "S3"
    BOUNDED = "S7"


class LedgerEntry(NamedTuple):
    """Consecutive records: executions of origin `schedule` at equal steps, or one range of skipped occurrences."""

    first: datetime
    last: datetime
    # The number of occurrences; None for a range that does not know it.
    number: int | None
    version: int
    tzdata: str | None
    is_range: bool
    # How many of them count towards `max_executions`.
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPeriod:
    """The instants one version of a job answers for: those of its rule in (after, until]; without *until*, from now on."""

    version: int
    rule: Schedule
    after: datetime
    until: datetime | None
    max_executions: int | None = None
    # The time-zone data in use when the version ended; None if unknown.
    tzdata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOccurrence:
    """The occurrence of a job that waits in `due`."""

    scheduled_for: datetime
    tzdata: str | None
    # Everything that a recurring job owed up to here is recorded, and nothing after it.
    watermark: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBounds:
    """How far the records of a job must reach."""

    pending: PendingOccurrence | None = None
    is_deleted: bool = False
    # The watermark of a paused job.
    paused_from: datetime | None = None
    # Nothing up to here is expected any more, because its history was deleted.
    history_from: datetime | None = None
    # The time-zone data in use here.
    tzdata: str


@dataclass(frozen=True, slots=True)
class LedgerFlaw:
    """A broken promise: the reason and the instant; *has_record* says that a record at that instant breaks it."""

    promise: Promise
    why: str
    at: datetime
    version: int | None
    has_record: bool = False


class JobLedger:
    """The ledger of one job. `enter` its records by (first, last), then `close`; flaws go to *report*."""

    def __init__(
        self, periods: Sequence[VersionPeriod], bounds: LedgerBounds, report: Callable[[LedgerFlaw], None]
    ) -> None:
        self.checked = 0
        self.not_checkable = {Promise.RECORDED_ONCE: 0, Promise.NO_PHANTOM: 0, Promise.WATERMARK: 0}
        self._periods = periods
        self._by_version = {period.version: period for period in periods}
        self._bounds = bounds
        self._report = report
        self._previous: LedgerEntry | None = None
        self._used = 0
        self._used_by: dict[int, int] = {}
        # The instants of one-offs, and whether a record was found.
        self._answered = {period.rule.scheduled_at: False for period in periods if isinstance(period.rule, Once)}
        self._index = -1
        self._period: VersionPeriod | None = None
        self._cursor = _NOTHING
        self._check_periods()
        self._open_next()

    def enter(self, entry: LedgerEntry) -> None:
        """Compare the next records with the rule."""
        if entry.is_range or entry.number == 1 or entry.number is None:
            self._enter_one(entry)
        elif not self._follows_the_cursor(entry):
            step = (entry.last - entry.first) / (entry.number - 1)
            for index in range(entry.number):
                at = entry.first + index * step
                self._enter_one(entry._replace(first=at, last=at, number=1, used=0))
        self._used += entry.used
        self._used_by[entry.version] = self._used_by.get(entry.version, 0) + entry.used

    def close(self) -> None:
        """Report what is missing at the end."""
        while self._period is not None and self._period.until is not None:
            self._close_period(self._period, self._period.until)
        if self._period is not None:
            self._close_open_period(self._period)
        self._check_one_offs()
        for period in self._periods:
            if period.max_executions is not None and self._used_by.get(period.version, 0) > period.max_executions:
                why = (
                    f"{self._used_by[period.version]} executions were to run, max_executions is {period.max_executions}"
                )
                self._report(LedgerFlaw(Promise.BOUNDED, why, period.after, period.version))

    # records

    def _follows_the_cursor(self, entry: LedgerEntry) -> bool:
        """Whether an entry is exactly what comes next; if so, it is accounted for."""
        previous, period = self._previous, self._period
        is_in_place = (
            period is not None
            and period.version == entry.version
            and (period.until is None or entry.last <= period.until)
            and (previous is None or previous.last < entry.first)
        )
        if not is_in_place or not self._cursor.passes(entry):
            return False
        self.checked += entry.number or 0
        self._previous = entry
        return True

    def _enter_one(self, entry: LedgerEntry) -> None:
        previous = self._previous
        if previous is not None and entry.first <= previous.last:
            self._report(
                LedgerFlaw(
                    Promise.RECORDED_ONCE,
                    "an occurrence is recorded twice",
                    entry.first,
                    entry.version,
                    has_record=True,
                )
            )
            if entry.last > previous.last:
                self._previous = entry
                self._cursor.seek(entry.last)
            return
        is_named = self._cover(entry)
        self._previous = entry
        self.checked += entry.number or 1
        if entry.first in self._answered:
            self._answered[entry.first] = True
        if not is_named or self._period is None or entry.version != self._period.version:
            self._judge_odd(entry)

    def _judge_odd(self, entry: LedgerEntry) -> None:
        """Judge a record that is not at an instant of the version that answers for it."""
        period, cited = self._period, self._by_version.get(entry.version)
        if cited is None:
            self._phantom(entry, f"cites version {entry.version}, which does not exist")
        elif isinstance(cited.rule, Once):
            if entry.is_range or entry.first != cited.rule.scheduled_at:
                self._phantom(
                    entry, f"is not at {format_instant(cited.rule.scheduled_at)}, the one instant of its version"
                )
        elif period is None or entry.first <= period.after:
            self._phantom(entry, "is at an instant for which no version answers")
        elif cited is not period:
            self._phantom(entry, f"cites version {entry.version}, but version {period.version} answers for its instant")
        elif self._is_sure(entry.tzdata):
            self._phantom(entry, "is not at an instant of its version's schedule")
        else:
            self.not_checkable[Promise.NO_PHANTOM] += 1

    def _phantom(self, entry: LedgerEntry, why: str) -> None:
        what = "a skip range" if entry.is_range else "an execution"
        self._report(LedgerFlaw(Promise.NO_PHANTOM, f"{what} {why}", entry.first, entry.version, has_record=True))

    def _cover(self, entry: LedgerEntry) -> bool:
        """Advance to the instant of a record and past it; returns whether the schedule names that instant."""
        first = entry.first
        while self._period is not None and self._period.until is not None and self._period.until < first:
            self._close_period(self._period, self._period.until)
        cursor = self._cursor
        if cursor.upcoming is not None and cursor.upcoming < first:
            # At the very end of a version that has used up its executions, the next version may have a record.
            if not (self._is_used_up() and self._period is not None and entry.version > self._period.version):
                self._hole(cursor.upcoming, first - MICROSECOND, entry.tzdata)
            cursor.seek(first - MICROSECOND)
        is_named = cursor.upcoming == first
        if entry.is_range:
            return self._cover_range(entry) and is_named
        if is_named:
            cursor.step()
        return is_named

    def _cover_range(self, entry: LedgerEntry) -> bool:
        cursor, period = self._cursor, self._period
        cursor.seek(entry.last - MICROSECOND)
        is_named = cursor.upcoming == entry.last and (
            period is None or period.until is None or entry.last <= period.until
        )
        if not is_named or period is None:
            return False
        cursor.step()
        number = period.rule.count_between(entry.first - MICROSECOND, entry.last)
        if None not in (number, entry.number) and number != entry.number and self._is_sure(entry.tzdata):
            why = f"a skip range says that it holds {entry.number} occurrences, its schedule names {number}"
            self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, entry.first, entry.version, has_record=True))
        return True

    # periods

    def _check_periods(self) -> None:
        for older, newer in pairwise(self._periods):
            if older.until != newer.after or older.after > newer.after:
                until = "now on" if older.until is None else format_instant(older.until)
                why = f"version {older.version} answers until {until}, version {newer.version} from {format_instant(newer.after)}"
                self._report(LedgerFlaw(Promise.WATERMARK, why, newer.after, newer.version))
        if self._periods and self._periods[-1].until is not None and not self._bounds.is_deleted:
            last = self._periods[-1]
            why = f"no version answers after {format_instant(last.until or last.after)}, though the job is not deleted"
            self._report(LedgerFlaw(Promise.WATERMARK, why, last.until or last.after, last.version))

    def _open_next(self) -> None:
        self._index += 1
        self._period = period = self._periods[self._index] if self._index < len(self._periods) else None
        is_walked = period is not None and period.rule.is_recurring
        self._cursor = LedgerCursor(period.rule, period.after) if period and is_walked else _NOTHING

    def _close_period(self, period: VersionPeriod, until: datetime) -> None:
        upcoming = self._cursor.upcoming
        if upcoming is not None and upcoming <= until and not self._is_used_up():
            self._hole(upcoming, until, self._left_off_by(period))
        self._open_next()

    def _left_off_by(self, period: VersionPeriod) -> str | None:
        """The time-zone data in use when a version ended: its own, or else those of the last record."""
        return period.tzdata or (None if self._previous is None else self._previous.tzdata)

    def _close_open_period(self, period: VersionPeriod) -> None:
        pending, paused_from, upcoming = self._bounds.pending, self._bounds.paused_from, self._cursor.upcoming
        if pending is not None:
            self._meet_pending(period, pending)
        elif paused_from is not None:
            self._refuse_records_beyond(paused_from, "the watermark of the pause", period)
            if upcoming is not None and upcoming <= paused_from and not self._is_used_up():
                self._hole(upcoming, paused_from, self._left_off_by(period))
        elif upcoming is not None and not self._is_used_up():
            floor = self._bounds.history_from
            at = upcoming if floor is None or upcoming > floor else period.rule.next_after(floor)
            if at is not None:
                self._stopped(period, at)

    def _stopped(self, period: VersionPeriod, at: datetime) -> None:
        """Report that nothing is pending, unless the end is so near that other time-zone data may have reached it."""
        left_off_by, end = self._left_off_by(period), period.rule.ends_at
        if (
            end is not None
            and end - at < _EDITIONS_APART
            and left_off_by is not None
            and not self._is_sure(left_off_by)
        ):
            self.not_checkable[Promise.WATERMARK] += 1
            return
        why = "nothing is pending, though the schedule goes on: this occurrence will not be recorded"
        self._report(LedgerFlaw(Promise.WATERMARK, why, at, period.version))

    def _meet_pending(self, period: VersionPeriod, pending: PendingOccurrence) -> None:
        at = pending.scheduled_for
        if self._refuse_records_beyond(at - MICROSECOND, "the pending occurrence", period):
            return
        if period.rule.is_recurring:
            self._check_watermark(period, pending)
        upcoming = period.rule.scheduled_at if isinstance(period.rule, Once) else self._cursor.upcoming
        if upcoming is not None and upcoming < at and period.rule.is_recurring:
            self._hole(upcoming, at - MICROSECOND, pending.tzdata)
            self._cursor.seek(at - MICROSECOND)
            upcoming = self._cursor.upcoming
        if upcoming != at:
            if not self._is_sure(pending.tzdata):
                self.not_checkable[Promise.NO_PHANTOM] += 1
                return
            why = "the pending occurrence is not at an instant of its version's schedule"
            self._report(LedgerFlaw(Promise.NO_PHANTOM, why, at, period.version, has_record=True))

    def _check_watermark(self, period: VersionPeriod, pending: PendingOccurrence) -> None:
        """The watermark must be at or after the last record, and not before the start of its version."""
        reached = period.after if self._previous is None else max(period.after, self._previous.last)
        if pending.watermark is None:
            self._report(
                LedgerFlaw(Promise.WATERMARK, "the pending occurrence has no watermark", reached, period.version)
            )
        elif pending.watermark < reached:
            why = f"the watermark is {format_instant(pending.watermark)}, though all up to this instant is recorded: it has moved back"
            self._report(LedgerFlaw(Promise.WATERMARK, why, reached, period.version))

    def _refuse_records_beyond(self, watermark: datetime, what: str, period: VersionPeriod) -> bool:
        previous = self._previous
        if previous is None or previous.last <= watermark or isinstance(period.rule, Once):
            return False
        why = f"what lies beyond {what} is recorded already: the watermark has moved back"
        self._report(LedgerFlaw(Promise.WATERMARK, why, previous.last, period.version, has_record=True))
        return True

    def _hole(self, first: datetime, until: datetime, revealed_by: str | None) -> None:
        """Report that occurrences from *first* to *until* have no record, except those older than the kept history."""
        period = self._period
        assert period is not None
        start: datetime | None = first
        floor = self._bounds.history_from
        if floor is not None and first <= floor:
            start = period.rule.next_after(floor)
        if start is None or start > until:
            return
        number = period.rule.count_between(start - MICROSECOND, until)
        previous = self._previous
        if not (self._is_sure(revealed_by) and (previous is None or self._is_sure(previous.tzdata))):
            self.not_checkable[Promise.RECORDED_ONCE] += number or 1
            return
        last = period.rule.last_at_or_before(until, start - MICROSECOND) or start
        self.checked += number or 1
        why = "an occurrence has no record"
        if last != start:
            many = "many" if number is None else number
            why = f"{many} occurrences have no record, the last of them at {format_instant(last)}"
        self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, start, period.version))

    def _is_used_up(self) -> bool:
        """Whether the job may have ended because it ran `max_executions` times."""
        limit = None if self._period is None else self._period.max_executions
        if limit is None:
            return False
        floor = self._bounds.history_from
        return self._used >= limit or (floor is not None and floor > self._periods[0].after)

    def _is_sure(self, tzdata: str | None) -> bool:
        rule = None if self._period is None else self._period.rule
        return rule is None or not _depends_on_zone(rule) or tzdata == self._bounds.tzdata

    # one-offs

    def _check_one_offs(self) -> None:
        before: Schedule | None = None
        for period in self._periods:
            rule, earlier, before = period.rule, before, period.rule
            if not isinstance(rule, Once) or self._is_answered(rule.scheduled_at):
                continue
            was_set_here = not isinstance(earlier, Once) or earlier.scheduled_at != rule.scheduled_at
            if self._is_owed(period, rule.scheduled_at) and (was_set_here or rule.scheduled_at > period.after):
                self.checked += 1
                why = "the one occurrence has no record"
                self._report(LedgerFlaw(Promise.RECORDED_ONCE, why, rule.scheduled_at, period.version))

    def _is_answered(self, instant: datetime) -> bool:
        pending, floor = self._bounds.pending, self._bounds.history_from
        is_pending = pending is not None and pending.scheduled_for == instant
        return self._answered[instant] or is_pending or (floor is not None and instant <= floor)

    def _is_owed(self, period: VersionPeriod, instant: datetime) -> bool:
        until = period.until or self._bounds.paused_from
        return until is None or instant <= until


def _depends_on_zone(rule: Schedule) -> bool:
    """Whether another edition of the time-zone data may move the instants of a rule."""
    match rule:
        case Cron(timezone=zone) | Every(calendar=CalendarRule(zone=zone)):
            return zone != "UTC"
        case _:
            return False


class LedgerCursor:
    """The next instant of a schedule; moves by steps, or leaps over instants that need no check."""

    def __init__(self, rule: Schedule, after: datetime) -> None:
        self._rule = rule
        # For elapsed time a step is an addition, unless calendars take days away.
        self._interval = rule.interval if isinstance(rule, Every) and rule.calendar is None else None
        self._end = rule.ends_at or MAX_INSTANT
        self._walk: Iterator[Occurrence] = iter(())
        self.upcoming: datetime | None = None
        if not isinstance(rule, Manual | After):
            self.seek(after)

    def step(self) -> None:
        """Advance to the next instant."""
        if self._interval is not None and self.upcoming is not None:
            following = self.upcoming + self._interval
            self.upcoming = following if following <= self._end else None
            return
        occurrence = next(self._walk, None)
        self.upcoming = None if occurrence is None else occurrence.at

    def seek(self, after: datetime) -> None:
        """Move to the first instant after *after*, backwards or forwards."""
        if self._interval is not None:
            self.upcoming = self._rule.next_after(after)
            return
        self._walk = self._rule.occurrences(after)
        self.step()

    def passes(self, entry: LedgerEntry) -> bool:
        """Advance past an entry if exactly its instants come next; otherwise stay."""
        if self.upcoming != entry.first or entry.number is None:
            return False
        step = (entry.last - entry.first) / max(entry.number - 1, 1)
        if step == self._interval and entry.last <= self._end:
            self.upcoming = entry.last
            self.step()
            return True
        if (
            step == self._finest_step()
            and self._rule.count_between(entry.first - MICROSECOND, entry.last) == entry.number
        ):
            # No two instants are closer than that, so if the count agrees, the instants are those of the entry.
            self.seek(entry.last)
            return True
        for index in range(entry.number):
            if self.upcoming != entry.first + index * step:
                self.seek(entry.first - MICROSECOND)
                return False
            self.step()
        return True

    def _finest_step(self) -> timedelta | None:
        if isinstance(self._rule, Every):
            return self._rule.interval
        if not isinstance(self._rule, Cron):
            return None
        has_seconds = isinstance(self._rule, Rrule) or len(self._rule.expression.split()) > 5
        return SECOND if has_seconds else 60 * SECOND


# The cursor of a schedule without instants.
_NOTHING = LedgerCursor(Manual(), MIN_INSTANT)


class QuickLedgerCheck:
    """Checks one job after the other; *history_from* as in `LedgerBounds`."""

    def __init__(self, history_from: datetime | None) -> None:
        self._history_from = history_from
        # By cron rule, which many jobs share: an instant and the first occurrence after it. All instants between have the same.
        self._first_after_cache: dict[Cron, tuple[datetime, datetime]] = {}

    def sees_order(self, period: VersionPeriod, entries: Sequence[LedgerEntry], pending_for: datetime | None) -> bool:
        """Whether a job with one version has exactly these records, in order, and waits for the right *pending_for*."""
        if period.until is not None or period.max_executions is not None:
            return False
        match period.rule:
            case Every(calendar=CalendarRule()):
                # Its records have holes that only its days explain.
                return False
            case Every() as rule:
                return pending_for is not None and self._is_regular(rule, period, entries, pending_for)
            case Cron() as rule:
                return pending_for is not None and self._is_walked(rule, period, entries, pending_for)
            case Once() as rule:
                return not entries and pending_for == rule.scheduled_at
            case Manual() | After():
                return not entries and pending_for is None

    def _is_regular(
        self, rule: Every, period: VersionPeriod, entries: Sequence[LedgerEntry], pending_for: datetime
    ) -> bool:
        """Whether all records are one interval apart; needs no iteration over them."""
        interval = rule.interval
        expected = rule.next_after(period.after)
        begins_at = entries[0].first if entries else pending_for
        if expected is None or (begins_at != expected and not self._is_forgotten(rule, expected, begins_at)):
            return False
        expected = begins_at
        for entry in entries:
            is_next = entry.first == expected and entry.version == period.version
            if not is_next or entry.number is None or entry.last - entry.first != (entry.number - 1) * interval:
                return False
            expected = entry.last + interval
        return expected == pending_for and (rule.ends_at is None or pending_for <= rule.ends_at)

    def _is_forgotten(self, rule: Every, expected: datetime, begins_at: datetime) -> bool:
        """Whether everything before the first record is older than the kept history."""
        floor, interval = self._history_from, rule.interval
        if floor is None or begins_at < expected or begins_at - interval > floor:
            return False
        return not (begins_at - expected) % interval

    def _is_walked(
        self, rule: Cron, period: VersionPeriod, entries: Sequence[LedgerEntry], pending_for: datetime
    ) -> bool:
        """Whether all records are at the instants that the rule names from the first on."""
        expected = self._first_after(rule, period.after)
        for entry in entries:
            if entry.first != expected or entry.version != period.version:
                return False
            expected = _following(rule, entry)
        return expected == pending_for

    def _first_after(self, rule: Cron, instant: datetime) -> datetime | None:
        since, first = self._first_after_cache.get(rule, (instant, instant))
        if since <= instant < first:
            return first
        following = rule.next_after(instant)
        if len(self._first_after_cache) >= _MAX_CACHED_RULES:
            self._first_after_cache.clear()
        if following is not None:
            self._first_after_cache[rule] = (instant, following)
        return following


def _following(rule: Cron, entry: LedgerEntry) -> datetime | None:
    """The instant after a short entry, if the rule names exactly its instants from its first on."""
    if entry.number is None or entry.number > _MAX_ITERATED:
        return None
    step = (entry.last - entry.first) / max(entry.number - 1, 1)
    at: datetime | None = entry.first
    for index in range(1, entry.number):
        at = None if at is None else rule.next_after(at)
        if not entry.is_range and at != entry.first + index * step:
            return None
    return rule.next_after(entry.last) if at == entry.last else None
