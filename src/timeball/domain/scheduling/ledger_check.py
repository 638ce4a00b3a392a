"""A quick check that the records of a job are in order, before its whole ledger is compared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from timeball.domain.scheduling.ledger import LedgerEntry, VersionPeriod
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once

_RULES_KEPT = 10_000
# Occurrences of a cron rule that are walked through; what is more, the ledger leaps over.
_WALKED = 10


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
        if len(self._known) >= _RULES_KEPT:
            self._known.clear()
        if found is not None:
            self._known[rule] = (instant, found)
        return found


def _following(rule: Cron, run: LedgerEntry) -> datetime | None:
    """What comes after a short run, if its instants, all of them and no others, are named from its first on."""
    if run.number is None or run.number > _WALKED:
        return None
    step = (run.last - run.first) / max(run.number - 1, 1)
    at: datetime | None = run.first
    for place in range(1, run.number):
        at = None if at is None else rule.next_after(at)
        if not run.is_range and at != run.first + place * step:
            return None
    return rule.next_after(run.last) if at == run.last else None
