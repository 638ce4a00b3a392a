"""Occurrences owed after downtime: each is judged exactly once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from timeball.domain.policies import Misfire, MisfireRule, SkipReason
from timeball.domain.scheduling import occurrences
from timeball.domain.scheduling.occurrences import OwedOccurrences, SkippedRange, resolve_missed, skipped_between
from timeball.domain.scheduling.schedule import Cron, Every, Once, OnGap, OnRepeat, Schedule

NOW = utc(2024, 3, 31, 12)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Verdict:
    """The result of a plain iteration over all occurrences."""

    run: list[datetime]
    skipped: dict[datetime, SkipReason]


def walk(schedule: Schedule, first_owed: datetime, now: datetime, rule: MisfireRule) -> Verdict:
    owed = [first_owed, *(o.at for o in schedule.occurrences(first_owed, now))]
    stale = [at for at in owed if now - at > rule.grace]
    fresh = owed[len(stale) :]
    ages = rule.max_age is not None and rule.policy is not Misfire.SKIP
    old = [at for at in stale if ages and now - at > rule.max_age]
    rest = stale[len(old) :]
    if rule.policy is Misfire.ALL:
        kept = rest[-rule.cap :] if rule.cap else []
    else:
        kept = rest[-1:] if rule.policy is Misfire.LATEST and not fresh else []
    reason = SkipReason.CAPPED if rule.policy is Misfire.ALL else SkipReason.MISFIRE
    skipped = dict.fromkeys(old, SkipReason.TOO_OLD) | {at: reason for at in rest if at not in kept}
    return Verdict(kept + fresh, skipped)


def unfold(schedule: Schedule, first_owed: datetime, skipped: tuple[SkippedRange, ...]) -> dict[datetime, SkipReason]:
    """The single occurrences of skipped ranges; each range must know its count."""
    found: dict[datetime, SkipReason] = {}
    for part in skipped:
        line = [first_owed, *(o.at for o in schedule.occurrences(first_owed, part.last))]
        inside = [at for at in line if part.first <= at <= part.last]
        assert part.first == inside[0]
        assert part.last == inside[-1]
        assert part.count == len(inside)
        assert not found.keys() & set(inside)
        found |= dict.fromkeys(inside, part.reason)
    return found


schedules = st.one_of(
    st.builds(
        Every,
        interval_seconds=st.sampled_from([1, 7, 20, 60, 90, 3600]),
        anchor=st.integers(0, 5000).map(lambda n: utc(2024, 3, 31) + n * SECOND / 4),
        ends_at=st.sampled_from([None, None, NOW - 5 * MINUTE, NOW + MINUTE]),
    ),
    st.builds(
        Cron,
        expression=st.sampled_from(["* * * * *", "*/13 * * * * *", "30 1-3 * * *", "0 */2 * * *", "15,45 * * * *"]),
        timezone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Beirut", "America/New_York"]),
        on_gap=st.sampled_from(OnGap),
        on_repeat=st.sampled_from(OnRepeat),
        ends_at=st.sampled_from([None, None, NOW - 5 * MINUTE]),
    ),
)
rules = st.builds(
    MisfireRule,
    policy=st.sampled_from(Misfire),
    grace=st.sampled_from([0, 1, 30, 300]).map(lambda n: n * SECOND),
    cap=st.sampled_from([0, 1, 3, 100]),
    max_age=st.sampled_from([None, 0 * SECOND, 10 * SECOND, 5 * MINUTE, timedelta(hours=9)]),
)
silences = st.one_of(st.integers(-2, 120), st.integers(0, 3_000)).map(lambda n: n * SECOND)


@given(schedules, rules, silences, st.integers(0, 7200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_occurrence_is_judged_exactly_once(
    schedule: Schedule, rule: MisfireRule, silence: timedelta, ago: int, is_promised: bool
):
    now = NOW - ago * SECOND
    first_owed = schedule.next_after(now - silence)
    if is_promised or first_owed is None:
        # An instant that the schedule no longer names is still owed.
        first_owed = now - silence - SECOND / 3

    owed = resolve_missed(schedule, first_owed, now, rule)

    expected = walk(schedule, first_owed, now, rule)
    assert list(owed.run) == expected.run
    assert unfold(schedule, first_owed, owed.skipped) == expected.skipped
    assert owed.next_at == schedule.next_after(max(now, first_owed))


@given(schedules, st.integers(0, 5_000))
@settings(max_examples=80, deadline=None)
def test_repeated_resolution_covers_every_occurrence_once(schedule: Schedule, silence: int):
    """A scheduler that checks at irregular moments accounts for the same occurrences as one that is always up."""
    start = NOW - silence * SECOND
    pending = schedule.next_after(start)
    seen: list[datetime] = []
    now = start
    while pending is not None and now < NOW:
        now = min(max(now, pending) + 77 * SECOND, NOW)
        if pending > now:
            break
        owed = resolve_missed(schedule, pending, now, MisfireRule(policy=Misfire.SKIP))
        seen += sorted([*owed.run, *unfold(schedule, pending, owed.skipped)])
        pending = owed.next_at

    assert seen == [o.at for o in schedule.occurrences(start, now)]


def minutely(policy: Misfire, silence: timedelta, **rule) -> OwedOccurrences:
    schedule = Cron(expression="* * * * *")
    return resolve_missed(schedule, NOW - silence, NOW + 10 * SECOND, MisfireRule(policy=policy, **rule))


def test_an_occurrence_within_its_grace_runs():
    for policy in Misfire:
        owed = minutely(policy, 0 * SECOND)

        assert owed == OwedOccurrences(run=(NOW,), skipped=(), next_at=NOW + MINUTE)


def test_an_occurrence_ahead_runs_alone():
    owed = resolve_missed(Cron(expression="* * * * *"), NOW + MINUTE, NOW)

    assert owed == OwedOccurrences(run=(NOW + MINUTE,), skipped=(), next_at=NOW + 2 * MINUTE)


def test_lateness_equal_to_the_grace_is_within_it():
    schedule = Every(interval_seconds=3600, anchor=NOW)

    on_time = resolve_missed(schedule, NOW, NOW + 30 * SECOND, MisfireRule(policy=Misfire.SKIP))
    late = resolve_missed(schedule, NOW, NOW + 31 * SECOND, MisfireRule(policy=Misfire.SKIP))

    assert on_time.run == (NOW,)
    assert late.run == ()
    assert late.skipped == (SkippedRange(first=NOW, last=NOW, count=1, reason=SkipReason.MISFIRE),)


def test_latest_runs_the_newest_and_skips_the_others():
    owed = resolve_missed(Cron(expression="0 * * * *"), NOW - timedelta(hours=5), NOW + 10 * MINUTE)

    assert owed.run == (NOW,)
    assert owed.skipped == (
        SkippedRange(first=NOW - timedelta(hours=5), last=NOW - timedelta(hours=1), count=5, reason=SkipReason.MISFIRE),
    )
    assert owed.next_at == NOW + timedelta(hours=1)


def test_all_runs_the_newest_up_to_the_cap():
    owed = minutely(Misfire.ALL, 200 * MINUTE, cap=100)

    assert owed.run == tuple(NOW - n * MINUTE for n in range(100, -1, -1))
    assert owed.skipped == (
        SkippedRange(first=NOW - 200 * MINUTE, last=NOW - 101 * MINUTE, count=100, reason=SkipReason.CAPPED),
    )


def test_an_occurrence_past_max_age_is_skipped_as_too_old():
    owed = minutely(Misfire.ALL, 60 * MINUTE, max_age=10 * MINUTE + 10 * SECOND, cap=4)

    assert [(part.reason, part.count) for part in owed.skipped] == [
        (SkipReason.TOO_OLD, 50),
        (SkipReason.CAPPED, 6),
    ]
    assert len(owed.run) == 5


def test_a_one_off_runs_late_unless_misfire_is_skip():
    schedule = Once(scheduled_at=utc(2020, 1, 1))

    assert resolve_missed(schedule, utc(2020, 1, 1), NOW).run == (utc(2020, 1, 1),)
    assert resolve_missed(schedule, utc(2020, 1, 1), NOW, MisfireRule(policy=Misfire.SKIP)).run == ()
    assert resolve_missed(schedule, utc(2020, 1, 1), NOW).next_at is None


@pytest.mark.parametrize("policy", list(Misfire))
@pytest.mark.parametrize(
    "schedule",
    [
        Cron(expression="* * * * * *", timezone="America/New_York"),
        Cron(expression="* * 0-23 * * *", timezone="Europe/Berlin"),
        Every(interval_seconds=1, anchor=utc(2000, 1, 1)),
    ],
)
def test_ten_years_of_seconds_are_judged_at_once(schedule: Schedule, policy: Misfire):
    first_owed = utc(2014, 3, 31, 12)
    started = time.process_time()

    owed = resolve_missed(schedule, first_owed, NOW, MisfireRule(policy=policy))

    assert time.process_time() - started < 1
    assert sum(part.count for part in owed.skipped) + len(owed.run) == schedule.count_between(first_owed, NOW) + 1
    assert owed.run[-1] == NOW
    assert owed.next_at == NOW + SECOND


def test_a_long_grace_is_planned_in_portions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(occurrences, "RUN_LIMIT", 10)
    schedule, rule = Every(interval_seconds=1, anchor=NOW), MisfireRule(grace=timedelta(days=1))
    now, pending, seen = NOW + 24 * SECOND, NOW, []

    while pending <= now:
        owed = resolve_missed(schedule, pending, now, rule)
        assert len(owed.run) <= 10
        seen += owed.run
        pending = owed.next_at

    assert seen == [NOW + n * SECOND for n in range(25)]


def test_a_pause_is_one_range():
    schedule = Every(interval_seconds=60, anchor=NOW)

    assert skipped_between(schedule, NOW, NOW + 5 * MINUTE, SkipReason.PAUSED) == SkippedRange(
        first=NOW, last=NOW + 5 * MINUTE, count=6, reason=SkipReason.PAUSED
    )
    assert skipped_between(schedule, NOW, NOW - SECOND, SkipReason.PAUSED) is None
