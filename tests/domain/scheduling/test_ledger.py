"""The ledger of a job reports nothing for records in order, and names every flaw precisely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.ledger import (
    JobLedger,
    LedgerBounds,
    LedgerEntry,
    LedgerFlaw,
    PendingOccurrence,
    Promise,
    VersionPeriod,
)
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once, Schedule

START = datetime(2026, 3, 20, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
OURS = "2026f"
NIGHTLY = Cron(expression="30 2 * * *", timezone="Europe/Berlin")

RULES: tuple[Schedule, ...] = (
    Every(interval_seconds=1, anchor=START),
    Every(interval_seconds=7, anchor=START + 3 * SECOND, ends_at=START + 300 * SECOND),
    Cron(expression="* * * * *"),
    Cron(expression="* * * * * *"),
    Cron(expression="0,7,9 * * * * *"),
    NIGHTLY,
    Cron(expression="*/20 1-3 * * *", timezone="America/New_York", on_repeat="both"),
)


# a history is drawn, and cut into records as the database would have them


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[VersionPeriod], list[LedgerEntry], LedgerBounds]:
    """Versions that follow one another, what was recorded of them, and how far it goes: all in order."""
    spans: list[VersionPeriod] = []
    runs: list[LedgerEntry] = []
    after = START - MICROSECOND
    for version in range(1, draw(st.integers(1, 3)) + 1):
        rule = draw(st.sampled_from(RULES))
        instants = [o.at for o in islice(rule.occurrences(after), draw(st.integers(0, 40)))]
        until = instants[-1] if instants else after
        following = rule.next_after(until)
        if draw(st.booleans()):
            until = until + SECOND if following is None else following - MICROSECOND
        spans.append(VersionPeriod(version=version, rule=rule, after=after, until=until, tzdata=OURS))
        runs += _records(draw, rule, version, instants)
        after = until
    spans[-1] = replace(spans[-1], until=None)
    following = spans[-1].rule.next_after(after)
    pending = (
        None
        if following is None
        else PendingOccurrence(scheduled_for=following, tzdata=OURS, watermark=following - MICROSECOND)
    )
    return spans, runs, LedgerBounds(pending=pending, tzdata=OURS)


def _records(draw: st.DrawFn, rule: Schedule, version: int, instants: Sequence[datetime]) -> Iterator[LedgerEntry]:
    place = 0
    while place < len(instants):
        length = draw(st.integers(1, 12))
        piece = instants[place : place + length]
        place += length
        if len(piece) > 1 and draw(st.booleans()):
            number = draw(st.sampled_from([len(piece), None]))
            yield LedgerEntry(piece[0], piece[-1], number, version, OURS, is_range=True, used=0)
        else:
            yield from _in_steps([LedgerEntry(at, at, 1, version, OURS, is_range=False, used=1) for at in piece])


def _in_steps(singles: Sequence[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Executions put together as the statement does it: those that have the same distance to the one before."""
    distances = [None, *(b.first - a.first for a, b in pairwise(singles))]
    for _, members in groupby(zip(distances, singles, strict=True), key=lambda pair: pair[0]):
        own = [single for _, single in members]
        yield own[0]._replace(last=own[-1].last, number=len(own), used=len(own))


def _singles(runs: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    apart: list[LedgerEntry] = []
    for run in runs:
        if run.is_range or run.number in (1, None):
            apart.append(run)
            continue
        step = (run.last - run.first) / (run.number - 1)
        ats = [run.first + place * step for place in range(run.number)]
        apart += [run._replace(first=at, last=at, number=1, used=1) for at in ats]
    return apart


def flaws_of(spans: Sequence[VersionPeriod], runs: Sequence[LedgerEntry], outlook: LedgerBounds) -> list[LedgerFlaw]:
    found: list[LedgerFlaw] = []
    ledger = JobLedger(spans, outlook, found.append)
    for run in sorted(runs, key=lambda run: (run.first, run.last)):
        ledger.enter(run)
    ledger.close()
    return found


def promises(found: Sequence[LedgerFlaw]) -> list[str]:
    return [flaw.promise.value for flaw in found]


@settings(deadline=None)
@given(histories())
def test_a_history_in_order_has_no_flaw(history: tuple[list[VersionPeriod], list[LedgerEntry], LedgerBounds]) -> None:
    spans, runs, outlook = history

    assert flaws_of(spans, runs, outlook) == []
    assert flaws_of(spans, _singles(runs), outlook) == []


@settings(deadline=None)
@given(histories(), st.data())
def test_a_lost_record_is_a_hole_at_its_first_instant(
    history: tuple[list[VersionPeriod], list[LedgerEntry], LedgerBounds], data: st.DataObject
) -> None:
    spans, runs, outlook = history
    singles = _singles(runs)
    if not singles:
        return
    lost = data.draw(st.sampled_from(singles))
    singles.remove(lost)

    (flaw,) = flaws_of(spans, singles, outlook)

    assert flaw.at == lost.first
    # At the very end, with nothing pending, the schedule has simply stopped.
    assert flaw.promise is Promise.RECORDED_ONCE or (flaw.promise is Promise.WATERMARK and outlook.pending is None)


@settings(deadline=None)
@given(histories(), st.data())
def test_a_second_record_is_named_once(
    history: tuple[list[VersionPeriod], list[LedgerEntry], LedgerBounds], data: st.DataObject
) -> None:
    spans, runs, outlook = history
    if not runs:
        return
    twice = data.draw(st.sampled_from(_singles(runs)))

    found = flaws_of(spans, [*_singles(runs), twice], outlook)

    assert promises(found) == ["S1"]
    assert found[0].has_record


@settings(deadline=None)
@given(histories(), st.data())
def test_a_record_between_two_instants_is_a_phantom(
    history: tuple[list[VersionPeriod], list[LedgerEntry], LedgerBounds], data: st.DataObject
) -> None:
    spans, runs, outlook = history
    singles = [run for run in _singles(runs) if not run.is_range]
    if not singles:
        return
    near = data.draw(st.sampled_from(singles))
    odd = near._replace(first=near.first - MICROSECOND, last=near.first - MICROSECOND)

    found = flaws_of(spans, [*_singles(runs), odd], outlook)

    assert promises(found) == ["S2"]
    assert found[0].at == odd.first


# one by one


def every_minute(count: int, *, version: int = 1) -> LedgerEntry:
    return LedgerEntry(
        START + 60 * SECOND, START + count * 60 * SECOND, count, version, OURS, is_range=False, used=count
    )


MINUTELY = Every(interval_seconds=60, anchor=START + 60 * SECOND)


def test_a_hole_is_named_by_its_edges_and_number() -> None:
    runs = [
        every_minute(3),
        LedgerEntry(START + 600 * SECOND, START + 600 * SECOND, 1, 1, OURS, is_range=False, used=1),
    ]
    outlook = LedgerBounds(
        pending=PendingOccurrence(scheduled_for=START + 660 * SECOND, tzdata=OURS, watermark=START + 659 * SECOND),
        tzdata=OURS,
    )

    (flaw,) = flaws_of([VersionPeriod(version=1, rule=MINUTELY, after=START, until=None)], runs, outlook)

    assert flaw.why == "6 occurrences have no record, the last of them at 2026-03-20T00:09:00Z"
    assert (flaw.at, flaw.version, flaw.has_record) == (START + 240 * SECOND, 1, False)


def test_an_entry_that_leaves_the_schedule_is_judged_one_by_one() -> None:
    halves = LedgerEntry(START + 60 * SECOND, START + 180 * SECOND, 5, 1, OURS, is_range=False, used=5)
    outlook = LedgerBounds(
        pending=PendingOccurrence(scheduled_for=START + 240 * SECOND, tzdata=OURS, watermark=START + 239 * SECOND),
        tzdata=OURS,
    )

    found = flaws_of([VersionPeriod(version=1, rule=MINUTELY, after=START, until=None)], [halves], outlook)

    assert [(flaw.promise.value, flaw.at) for flaw in found] == [
        ("S2", START + 90 * SECOND),
        ("S2", START + 150 * SECOND),
    ]


def test_a_job_without_a_pending_occurrence_has_stopped() -> None:
    span = VersionPeriod(version=1, rule=MINUTELY, after=START, until=None)

    (flaw,) = flaws_of([span], [every_minute(3)], LedgerBounds(tzdata=OURS))

    assert (flaw.promise, flaw.at) == (Promise.WATERMARK, START + 240 * SECOND)


def test_a_job_that_used_up_its_executions_has_not_stopped() -> None:
    span = VersionPeriod(version=1, rule=MINUTELY, after=START, until=None, max_executions=3)

    assert flaws_of([span], [every_minute(3)], LedgerBounds(tzdata=OURS)) == []
    assert promises(flaws_of([span], [every_minute(2)], LedgerBounds(tzdata=OURS))) == ["S3"]
    assert promises(flaws_of([span], [every_minute(4)], LedgerBounds(tzdata=OURS))) == ["S7"]


def test_a_paused_job_owes_nothing_after_the_start_of_the_pause() -> None:
    span = VersionPeriod(version=1, rule=MINUTELY, after=START, until=None)
    at = START + 240 * SECOND

    assert flaws_of([span], [every_minute(3)], LedgerBounds(paused_from=at - SECOND, tzdata=OURS)) == []
    assert promises(flaws_of([span], [every_minute(3)], LedgerBounds(paused_from=at, tzdata=OURS))) == ["S1"]
    assert promises(flaws_of([span], [every_minute(5)], LedgerBounds(paused_from=at, tzdata=OURS))) == ["S3"]


def test_occurrences_older_than_the_history_are_not_missed() -> None:
    span = VersionPeriod(version=1, rule=MINUTELY, after=START - 400 * DAY, until=None)
    late = LedgerEntry(START + 300 * SECOND, START + 300 * SECOND, 1, 1, OURS, is_range=False, used=1)
    kept = LedgerBounds(
        pending=PendingOccurrence(scheduled_for=START + 360 * SECOND, tzdata=OURS, watermark=START + 359 * SECOND),
        history_from=START + 200 * SECOND,
        tzdata=OURS,
    )

    (flaw,) = flaws_of([span], [late], kept)

    assert (flaw.why, flaw.at) == ("an occurrence has no record", START + 240 * SECOND)


def test_other_time_zone_data_are_not_judged_but_their_agreement_counts() -> None:
    first, second, third = (o.at for o in islice(NIGHTLY.occurrences(START), 3))
    span = VersionPeriod(version=1, rule=NIGHTLY, after=START, until=None)
    outlook = LedgerBounds(
        pending=PendingOccurrence(scheduled_for=third, tzdata=OURS, watermark=third - MICROSECOND), tzdata=OURS
    )
    agreeing, moved = (
        LedgerEntry(at, at, 1, 1, "1999a", is_range=False, used=1) for at in (first, second + 3600 * SECOND)
    )
    found: list[LedgerFlaw] = []
    ledger = JobLedger([span], outlook, found.append)

    ledger.enter(agreeing)
    ledger.enter(moved)
    ledger.close()

    assert found == []
    assert ledger.not_checkable == {Promise.RECORDED_ONCE: 1, Promise.NO_PHANTOM: 1, Promise.WATERMARK: 0}


def not_checkable(spans: Sequence[VersionPeriod], runs: Sequence[LedgerEntry], outlook: LedgerBounds) -> dict[str, int]:
    """The number of instants that could not be judged; asserts that there is no flaw."""
    found: list[LedgerFlaw] = []
    ledger = JobLedger(spans, outlook, found.append)
    for run in runs:
        ledger.enter(run)
    ledger.close()
    assert found == []
    return {promise.value: number for promise, number in ledger.not_checkable.items() if number}


def test_the_end_of_a_version_is_judged_by_its_own_time_zone_data() -> None:
    """Newer time-zone data may name an instant near the end that no scheduler knew."""
    first, second, third = (o.at for o in islice(NIGHTLY.occurrences(START), 3))
    closed = VersionPeriod(version=1, rule=NIGHTLY, after=START, until=second, tzdata=OURS)
    spans = [closed, VersionPeriod(version=2, rule=NIGHTLY, after=second, until=None)]
    outlook = LedgerBounds(
        pending=PendingOccurrence(scheduled_for=third, tzdata=OURS, watermark=third - MICROSECOND), tzdata=OURS
    )
    ours, theirs = (LedgerEntry(first, first, 1, 1, tzdata, is_range=False, used=1) for tzdata in (OURS, "1999a"))

    assert promises(flaws_of(spans, [], outlook)) == ["S1"]
    assert promises(flaws_of(spans, [ours], outlook)) == ["S1"]
    for left_off_by in ("1999a", None):
        spans[0] = replace(closed, tzdata=left_off_by)
        assert not_checkable(spans, [], outlook) == {"S1": 2}
        assert not_checkable(spans, [theirs], outlook) == {"S1": 1}
    # It does not say so itself; then the last record may.
    assert promises(flaws_of(spans, [ours], outlook)) == ["S1"]
    spans[0] = replace(closed, rule=replace(NIGHTLY, timezone="UTC"), tzdata="1999a")
    assert promises(flaws_of(spans, [], outlook)) == ["S1"], "a clock that is never changed needs no data"


def test_a_pause_without_earlier_records_is_not_judged() -> None:
    first = next(NIGHTLY.occurrences(START)).at
    span = VersionPeriod(version=1, rule=NIGHTLY, after=START, until=None)

    assert not_checkable([span], [], LedgerBounds(paused_from=first, tzdata=OURS)) == {"S1": 1}


def test_the_end_of_a_schedule_is_judged_by_the_data_that_brought_it() -> None:
    """An end too far away to depend on the time-zone data is a flaw."""
    first, second = (o.at for o in islice(NIGHTLY.occurrences(START), 2))
    span = VersionPeriod(version=1, rule=replace(NIGHTLY, ends_at=second), after=START, until=None)
    ours, theirs = (LedgerEntry(first, first, 1, 1, tzdata, is_range=False, used=1) for tzdata in (OURS, "1999a"))
    noted = replace(span, tzdata="1999a")
    outlook = LedgerBounds(tzdata=OURS)

    assert not_checkable([span], [theirs], outlook) == not_checkable([noted], [ours], outlook) == {"S3": 1}
    assert promises(flaws_of([span], [ours], outlook)) == ["S3"]
    assert promises(flaws_of([replace(span, tzdata=OURS)], [theirs], outlook)) == ["S3"]
    assert promises(flaws_of([span], [], outlook)) == ["S3"]
    for rule in (NIGHTLY, replace(NIGHTLY, ends_at=second + timedelta(hours=26))):
        assert promises(flaws_of([replace(noted, rule=rule)], [theirs], outlook)) == ["S3"]


def test_versions_must_follow_one_another() -> None:
    one = VersionPeriod(version=1, rule=Manual(), after=START, until=START + DAY)
    two = VersionPeriod(version=2, rule=Manual(), after=START + 2 * DAY, until=None)

    assert flaws_of([one, replace(two, after=START + DAY)], [], LedgerBounds(tzdata=OURS)) == []
    assert promises(flaws_of([one, two], [], LedgerBounds(tzdata=OURS))) == ["S3"]
    assert promises(flaws_of([one], [], LedgerBounds(tzdata=OURS))) == ["S3"]
    assert flaws_of([one], [], LedgerBounds(is_deleted=True, tzdata=OURS)) == []


def test_a_one_off_is_owed_once_whatever_version_runs_it() -> None:
    rule = Once(scheduled_at=START)
    one = VersionPeriod(version=1, rule=rule, after=START - DAY, until=START + DAY)
    two = VersionPeriod(version=2, rule=rule, after=START + DAY, until=None)
    ran_late = LedgerEntry(START, START, 1, 2, OURS, is_range=False, used=1)

    assert flaws_of([one, two], [ran_late], LedgerBounds(tzdata=OURS)) == []
    assert (
        flaws_of([one, two], [], LedgerBounds(pending=PendingOccurrence(scheduled_for=START, tzdata=OURS), tzdata=OURS))
        == []
    )
    assert promises(flaws_of([one, two], [], LedgerBounds(tzdata=OURS))) == ["S1"]


def test_a_one_off_that_is_set_to_a_past_instant_is_owed() -> None:
    one = VersionPeriod(version=1, rule=Manual(), after=START - DAY, until=START + DAY)
    two = VersionPeriod(version=2, rule=Once(scheduled_at=START), after=START + DAY, until=None)
    ran = LedgerEntry(START, START, 1, 2, OURS, is_range=False, used=1)

    assert flaws_of([one, two], [ran], LedgerBounds(tzdata=OURS)) == []
    assert promises(flaws_of([one, two], [], LedgerBounds(tzdata=OURS))) == ["S1"]
    assert flaws_of([one, two], [], LedgerBounds(paused_from=START - SECOND, tzdata=OURS)) == []
