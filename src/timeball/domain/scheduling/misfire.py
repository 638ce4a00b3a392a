"""Which occurrences are owed after a silence, and what is not run.

Given the pending occurrence of a job and the time it is now, every occurrence from the one to the other is judged,
exactly once: it runs, or it is part of exactly one skipped range with a reason.

    first_owed                    now - max_age             now - grace            now
        |------- too old -------------|-------- stale -----------|------ fresh ------|--- next_at
                skipped                     by the policy           runs, only late

Fresh occurrences run, each of them. For stale ones the policy decides:

    latest   the newest of all that is owed runs; the stale ones before it are skipped (`misfire`)
    skip     all are skipped (`misfire`)
    all      the newest *cap* of them run; the ones before are skipped (`over_cap`)

Age counts only under `latest` and `all`, and only past the grace. Nothing here walks through the silence: its edges
are found from the schedule's own algebra, forwards from one instant or backwards from another.

*first_owed* is taken as an occurrence even if the schedule no longer names it (a job was edited, a zone has changed):
it was promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import assert_never

from timeball.domain.policies import Misfire, MisfireRule, SkipReason
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.schedule import Schedule

# A long grace on a short interval could owe millions of fresh runs: they are handed out in portions.
RUN_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRange:
    """Every occurrence from *first* to *last*, both included, is not run; *count* is None if it is not known."""

    first: datetime
    last: datetime
    count: int | None
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedOccurrences:
    """The verdict: what to run, in order, what was skipped, and where the line goes on.

    Together *run* and *skipped* hold every occurrence before *next_at*, each once. *next_at* is mostly in the future;
    when more than RUN_LIMIT fresh occurrences were owed, it is the next of them.
    """

    run: tuple[datetime, ...]
    skipped: tuple[SkippedRange, ...]
    next_at: datetime | None


def resolve_missed(
    schedule: Schedule, first_owed: datetime, now: datetime, rule: MisfireRule | None = None
) -> OwedOccurrences:
    """Decide about every occurrence from *first_owed* to *now*; if that one is still ahead, it alone is to run."""
    rule = rule or MisfireRule()
    fresh_from = now - rule.grace
    following = schedule.next_after(first_owed)
    if first_owed >= fresh_from and (following is None or following > now):
        return OwedOccurrences(run=(first_owed,), skipped=(), next_at=following)
    line = _OccurrenceLine(schedule, first_owed)
    fresh = tuple(islice(line.between(fresh_from, now), RUN_LIMIT))
    caught_up, skipped = _resolve_stale(line, rule, now, has_fresh=bool(fresh))
    judged_until = fresh[-1] if len(fresh) == RUN_LIMIT else now
    return OwedOccurrences(run=caught_up + fresh, skipped=skipped, next_at=schedule.next_after(judged_until))


def skipped_between(
    schedule: Schedule, first_owed: datetime, until: datetime, reason: SkipReason
) -> SkippedRange | None:
    """All from *first_owed* to *until* as one skipped range (for a pause, a deletion); None if there is none."""
    line = _OccurrenceLine(schedule, first_owed)
    last = line.last_before(until + MICROSECOND)
    return line.skip(first_owed, last, reason) if last else None


def split_first(schedule: Schedule, skipped: SkippedRange) -> tuple[SkippedRange, ...]:
    """A skipped range, and its first occurrence by itself: other time-zone data named that than those which named the rest."""
    second = schedule.next_after(skipped.first)
    if second is None or second > skipped.last:
        return (skipped,)
    first = replace(skipped, last=skipped.first, count=1)
    return first, replace(skipped, first=second, count=None if skipped.count is None else skipped.count - 1)


def _resolve_stale(
    line: _OccurrenceLine, rule: MisfireRule, now: datetime, *, has_fresh: bool
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    too_old = _too_old(line, rule, now)
    first = line.following(too_old.last) if too_old else line.first
    last = line.last_before(now - rule.grace)
    before = (too_old,) if too_old else ()
    if first is None or last is None or last < first:
        return (), before
    run, skipped = _apply_policy(line, rule, first, last, has_fresh=has_fresh)
    return run, before + skipped


def _too_old(line: _OccurrenceLine, rule: MisfireRule, now: datetime) -> SkippedRange | None:
    if rule.max_age is None or rule.policy is Misfire.SKIP:
        return None
    last = line.last_before(now - max(rule.max_age, rule.grace))
    return line.skip(line.first, last, SkipReason.TOO_OLD) if last else None


def _apply_policy(
    line: _OccurrenceLine, rule: MisfireRule, first: datetime, last: datetime, *, has_fresh: bool
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    """Judge the stale occurrences from *first* to *last*."""
    match rule.policy:
        case Misfire.SKIP:
            return _keep_newest(line, first, last, 0, SkipReason.MISFIRE)
        case Misfire.LATEST:
            return _keep_newest(line, first, last, 0 if has_fresh else 1, SkipReason.MISFIRE)
        case Misfire.ALL:
            return _keep_newest(line, first, last, rule.cap, SkipReason.OVER_CAP)
        case _:
            assert_never(rule.policy)


def _keep_newest(
    line: _OccurrenceLine, first: datetime, last: datetime, number: int, reason: SkipReason
) -> tuple[tuple[datetime, ...], tuple[SkippedRange, ...]]:
    kept = tuple(reversed(tuple(islice(line.back(last, first), number))))
    last_skipped = line.last_before(kept[0]) if kept else last
    if last_skipped is None or last_skipped < first:
        return kept, ()
    return kept, (line.skip(first, last_skipped, reason),)


@dataclass(frozen=True, slots=True)
class _OccurrenceLine:
    """The occurrences of a schedule from the first owed one on."""

    schedule: Schedule
    first: datetime

    def following(self, instant: datetime) -> datetime | None:
        return self.schedule.next_after(max(instant, self.first))

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """What is in [start, end], in order."""
        if start <= self.first <= end:
            yield self.first
        for occurrence in self.schedule.occurrences(max(start - MICROSECOND, self.first), end):
            yield occurrence.at

    def back(self, last: datetime, first: datetime) -> Iterator[datetime]:
        """What is in [first, last], latest first."""
        yield from self.schedule.occurrences_back(last, max(first - MICROSECOND, self.first))
        if first <= self.first <= last:
            yield self.first

    def last_before(self, cut: datetime) -> datetime | None:
        if cut <= self.first:
            return None
        return self.schedule.last_at_or_before(cut - MICROSECOND, self.first) or self.first

    def skip(self, first: datetime, last: datetime, reason: SkipReason) -> SkippedRange:
        after_first = self.schedule.count_between(first, last)
        number = None if after_first is None else 1 + after_first
        return SkippedRange(first=first, last=last, count=number, reason=reason)
