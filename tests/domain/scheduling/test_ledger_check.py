"""The quick check accepts only records in order, and nearly all of those."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.scheduling import ledger
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.ledger import (
    JobLedger,
    LedgerBounds,
    LedgerEntry,
    PendingOccurrence,
    QuickLedgerCheck,
    VersionPeriod,
)
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once, Schedule

START = datetime(2026, 3, 20, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OURS = "2026f"
EVERY = Every(interval_seconds=7, anchor=START + 3 * SECOND)
UNEVEN = Cron(expression="0,7,9 * * * * *")
RULES: tuple[Schedule, ...] = (
    EVERY,
    replace(EVERY, ends_at=START + 100 * SECOND),
    Cron(expression="* * * * * *"),
    UNEVEN,
    Cron(expression="30 2 * * *", timezone="Europe/Berlin"),
)
Account = tuple[VersionPeriod, list[LedgerEntry], datetime | None]


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    """One version, its records in pieces, and what is pending: all in order."""
    rule = draw(st.sampled_from(RULES))
    after = START + draw(st.integers(-20, 20)) * SECOND
    instants = [occurrence.at for occurrence in islice(rule.occurrences(after), draw(st.integers(0, 12)))]
    runs: list[LedgerEntry] = []
    while instants:
        length = draw(st.integers(1, 5))
        piece, instants = instants[:length], instants[length:]
        step = (piece[-1] - piece[0]) / max(len(piece) - 1, 1)
        is_range = any(at != piece[0] + place * step for place, at in enumerate(piece)) or draw(st.booleans())
        runs.append(LedgerEntry(piece[0], piece[-1], len(piece), 1, OURS, is_range, used=0 if is_range else len(piece)))
    span = VersionPeriod(version=1, rule=rule, after=after, until=None)
    return span, runs, rule.next_after(runs[-1].last if runs else after)


def damaged(draw: st.DrawFn, account: Account) -> Account:
    """The records with a small flaw or oddity."""
    span, runs, pending = account
    place = draw(st.integers(0, max(len(runs) - 1, 0)))
    nudge = draw(st.sampled_from([MICROSECOND, -MICROSECOND, SECOND, 7 * SECOND, -7 * SECOND, timedelta(minutes=1)]))
    match draw(st.sampled_from(["first", "last", "number", "version", "lost", "twice", "pending", "gone", "until"])):
        case "first" if runs:
            runs[place] = runs[place]._replace(first=min(runs[place].first + nudge, runs[place].last))
        case "last" if runs:
            runs[place] = runs[place]._replace(last=max(runs[place].last + nudge, runs[place].first))
        case "number" if runs:
            runs[place] = runs[place]._replace(number=draw(st.sampled_from([1, 2, 3, None])))
        case "version" if runs:
            runs[place] = runs[place]._replace(version=2)
        case "lost" if runs:
            del runs[place]
        case "twice" if runs:
            runs.insert(place, runs[place])
        case "pending" if pending is not None:
            pending += nudge
        case "gone":
            pending = None
        case _:
            span = replace(span, until=START + 30 * SECOND)
    return span, sorted(runs, key=lambda run: (run.first, run.last)), pending


def one_run(at: datetime) -> LedgerEntry:
    return LedgerEntry(at, at, 1, 1, OURS, is_range=False, used=1)


damaged_accounts = accounts().flatmap(lambda account: st.composite(damaged)(account))


def judged(account: Account, history_from: datetime | None) -> tuple[int, int]:
    """How many flaws the ledger finds, and how many occurrences it looked at."""
    span, runs, pending_for = account
    # Where the watermark stands is looked at before a glance (store/verify/ledger): here it stands where it should.
    watermark = max([span.after, *(run.last for run in runs)])
    pending = (
        None if pending_for is None else PendingOccurrence(scheduled_for=pending_for, tzdata=OURS, watermark=watermark)
    )
    found: list[object] = []
    ledger = JobLedger([span], LedgerBounds(pending=pending, history_from=history_from, tzdata=OURS), found.append)
    for run in runs:
        ledger.enter(run)
    ledger.close()
    return len(found), ledger.checked


@given(accounts())
def test_records_in_order_pass_the_quick_check(account: Account) -> None:
    has_pending = account[2] is not None

    assert QuickLedgerCheck(None).sees_order(*account) is has_pending


@settings(max_examples=400)
@given(damaged_accounts, st.one_of(st.none(), st.integers(-30, 90).map(lambda seconds: START + seconds * SECOND)))
def test_nothing_is_called_in_order_that_the_ledger_would_not(account: Account, history_from: datetime | None) -> None:
    if QuickLedgerCheck(history_from).sees_order(*account):
        assert judged(account, history_from) == (0, sum(run.number or 0 for run in account[1]))


@given(st.lists(st.tuples(st.sampled_from(RULES), st.integers(-1_000_000, 1_000_000)), min_size=1, max_size=20))
def test_the_cache_of_one_job_is_valid_for_the_next(jobs: list[tuple[Schedule, int]]) -> None:
    glance = QuickLedgerCheck(None)

    for rule, offset in jobs:
        span = VersionPeriod(version=1, rule=rule, after=START + offset * timedelta(milliseconds=10), until=None)
        first = rule.next_after(span.after)
        assert first is None or glance.sees_order(span, [], first)
        assert first is None or not glance.sees_order(span, [], rule.next_after(first) or START)


@pytest.mark.parametrize("rule", RULES)
def test_a_job_that_never_ran_waits_for_its_first_occurrence_and_no_later_one(rule: Schedule) -> None:
    first = rule.next_after(START)
    assert first is not None
    span = VersionPeriod(version=1, rule=rule, after=START, until=None)

    assert QuickLedgerCheck(None).sees_order(span, [], first)
    assert not QuickLedgerCheck(None).sees_order(span, [], rule.next_after(first))
    assert not QuickLedgerCheck(None).sees_order(span, [], None)


def test_the_quick_check_misses_only_occurrences_within_the_history() -> None:
    span = VersionPeriod(version=1, rule=EVERY, after=START, until=None)
    record = one_run(EVERY.anchor + 70 * SECOND)
    pending = EVERY.anchor + 77 * SECOND

    assert QuickLedgerCheck(EVERY.anchor + 63 * SECOND).sees_order(span, [record], pending)
    assert not QuickLedgerCheck(EVERY.anchor + 62 * SECOND).sees_order(span, [record], pending)
    assert not QuickLedgerCheck(EVERY.anchor + 63 * SECOND).sees_order(span, [], pending + SECOND)


@pytest.mark.parametrize("begins_after", [timedelta(seconds=69), timedelta(seconds=-7)])
def test_old_history_excuses_no_record_at_an_instant_that_is_not_named(begins_after: timedelta) -> None:
    """Neither between two occurrences, nor before the first of them."""
    span = VersionPeriod(version=1, rule=EVERY, after=START, until=None)
    first = EVERY.anchor + begins_after

    assert not QuickLedgerCheck(START + timedelta(days=1)).sees_order(span, [one_run(first)], first + 7 * SECOND)


def test_one_offs_and_manual_jobs_are_checked_too() -> None:
    once = VersionPeriod(version=1, rule=Once(scheduled_at=START - SECOND), after=START, until=None)
    manual = VersionPeriod(version=1, rule=Manual(), after=START, until=None)

    assert QuickLedgerCheck(None).sees_order(once, [], START - SECOND)
    assert not QuickLedgerCheck(None).sees_order(once, [], START)
    assert not QuickLedgerCheck(None).sees_order(once, [], None)
    assert not QuickLedgerCheck(None).sees_order(once, [one_run(START - SECOND)], START - SECOND), (
        "it has run, and waits"
    )
    assert QuickLedgerCheck(None).sees_order(manual, [], None)
    assert not QuickLedgerCheck(None).sees_order(manual, [], START)
    assert not QuickLedgerCheck(None).sees_order(manual, [one_run(START)], None), "no schedule has named that"


def test_a_budget_of_executions_is_left_to_the_ledger() -> None:
    span = VersionPeriod(version=1, rule=EVERY, after=START, until=None, max_executions=1)

    assert not QuickLedgerCheck(None).sees_order(span, [], EVERY.anchor)


def test_a_pending_occurrence_after_the_end_is_not_in_order() -> None:
    rule = replace(EVERY, ends_at=EVERY.anchor + 7 * SECOND)
    span = VersionPeriod(version=1, rule=rule, after=START, until=None)
    runs = [LedgerEntry(EVERY.anchor, EVERY.anchor + 7 * SECOND, 2, 1, None, is_range=False, used=2)]

    assert not QuickLedgerCheck(None).sees_order(span, runs, EVERY.anchor + 14 * SECOND)
    assert QuickLedgerCheck(None).sees_order(span, [one_run(EVERY.anchor)], EVERY.anchor + 7 * SECOND), (
        "the end is included"
    )


@pytest.mark.parametrize("rule", [EVERY, UNEVEN])
def test_a_record_after_the_end_of_the_schedule_is_not_in_order(rule: Every | Cron) -> None:
    ended, glance = replace(rule, ends_at=START - SECOND), QuickLedgerCheck(START)
    span = VersionPeriod(version=1, rule=ended, after=START, until=None)

    # Twice: many jobs share a rule, and what is remembered of it serves the next.
    for _ in range(2):
        assert not glance.sees_order(span, [], START + 7 * SECOND)


def test_a_skip_range_beyond_the_end_of_its_schedule_is_not_in_order() -> None:
    span = VersionPeriod(version=1, rule=replace(UNEVEN, ends_at=START + 9 * SECOND), after=START - SECOND, until=None)
    skipped = one_run(START)._replace(last=START + 20 * SECOND, number=6, is_range=True, used=0)

    assert not QuickLedgerCheck(None).sees_order(span, [skipped], START + timedelta(minutes=1))


def test_uncounted_records_are_left_to_the_ledger() -> None:
    for rule in (EVERY, UNEVEN):
        first = rule.next_after(START - SECOND)
        assert first is not None
        span = VersionPeriod(version=1, rule=rule, after=START - SECOND, until=None)

        assert not QuickLedgerCheck(None).sees_order(
            span, [one_run(first)._replace(number=None)], rule.next_after(first)
        )


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_long_entry_of_a_cron_rule_is_left_to_the_ledger(is_pending: bool) -> None:
    """The ledger leaps over a long entry; and a job without its pending occurrence is not in order."""
    rule = Cron(expression="* * * * * *")
    span = VersionPeriod(version=1, rule=rule, after=START - SECOND, until=None)
    run = one_run(START)._replace(last=START + 10 * SECOND, number=11, used=11)

    assert not QuickLedgerCheck(None).sees_order(span, [run], START + 11 * SECOND if is_pending else None)


def test_the_cache_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_MAX_CACHED_RULES", 3)
    glance = QuickLedgerCheck(None)

    for minute in range(10):
        rule = Cron(expression=f"{minute} * * * *")
        assert glance.sees_order(
            VersionPeriod(version=1, rule=rule, after=START, until=None), [], rule.next_after(START)
        )

    assert len(glance._first_after_cache) <= 3


def test_executions_between_the_edges_of_a_run_stand_at_named_instants() -> None:
    span = VersionPeriod(version=1, rule=UNEVEN, after=START - SECOND, until=None)
    run = LedgerEntry(START, START + 9 * SECOND, 3, 1, None, is_range=False, used=3)
    pending = START + timedelta(minutes=1)

    assert not QuickLedgerCheck(None).sees_order(span, [run], pending)
    assert QuickLedgerCheck(None).sees_order(span, [run._replace(is_range=True)], pending)
