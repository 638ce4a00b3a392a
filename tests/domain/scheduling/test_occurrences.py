"""The promotion of a row whose time has come: each owed occurrence runs or is skipped once, and the schedule goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from tests.support.factories import or_manual
from timeball.domain.execution import DueKind, Origin
from timeball.domain.job import Job, define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import Misfire, Overlap, SkipReason
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.occurrences import (
    CATCH_UP_INTERVAL,
    CheckAgain,
    DueRow,
    NextOccurrence,
    PlannedRun,
    PlannedSkip,
    Promotion,
    PromotionTarget,
    SkippedRange,
    first_occurrence,
    plan_promotion,
)
from timeball.domain.scheduling.schedule import Every
from timeball.domain.values.ids import ExecutionId, JobId, occurrence_id

START = utc(2026, 3, 2, 12)
JOB = JobId(UUID("0193c8a2-5d1e-7abc-8def-0123456789ab"))
MICROSECOND = timedelta(microseconds=1)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def make(**fields: Any) -> Job:
    return define_job(JobSpec(**{"handler": "app:work", "name": "a-job"} | or_manual(fields)), JOB, START, 64)


def row_of(job: Job, **columns: Any) -> DueRow:
    """The first occurrence of a job, as it waits in `due`."""
    first = first_occurrence(job, START)
    assert first is not None
    row = DueRow(
        id=first.id,
        job_id=JOB,
        kind=DueKind.OCCURRENCE,
        origin=Origin.SCHEDULE,
        shard=job.shard,
        run_at=first.run_at,
        scheduled_for=first.scheduled_for,
        watermark=first.watermark,
        tzdata=first.tzdata,
        version=job.version,
        executions_left=first.executions_left,
        limit_key=job.limit_key,
        queue=job.queue,
        priority=job.priority,
        is_paused=False,
        expires_at=job.expiry_of(first.scheduled_for),
    )
    return replace(row, **columns)


def planned(job: Job, now: datetime, *, is_busy: bool = False, **columns: Any) -> Promotion:
    promotion = plan_promotion(row_of(job, **columns), job, now, is_busy=is_busy)
    assert isinstance(promotion, Promotion)
    return promotion


# the first occurrence


def test_the_first_occurrence_has_a_watermark() -> None:
    job = make(interval_seconds=60, max_executions=5)

    assert first_occurrence(job, START) == NextOccurrence(
        id=occurrence_id(JOB, START + seconds(60)),
        run_at=START + seconds(60),
        scheduled_for=START + seconds(60),
        watermark=START,
        executions_left=5,
        tzdata=tzdata_version(),
    )


def test_jitter_delays_the_run_and_not_the_instant() -> None:
    job = make(interval_seconds=60, jitter_seconds=30)

    first = first_occurrence(job, START)

    assert first is not None
    assert first.scheduled_for == START + seconds(60)
    assert first.run_at == START + seconds(60) + job.jitter > first.scheduled_for


def test_a_one_off_in_the_past_is_due() -> None:
    first = first_occurrence(make(scheduled_at=START - seconds(500)), START)

    assert first is not None
    assert first.scheduled_for == START - seconds(500)


def test_a_one_off_without_a_name_has_the_id_of_its_job() -> None:
    first = first_occurrence(make(name=None, scheduled_at=START), START)

    assert first is not None
    assert first.id == ExecutionId(JOB)


@pytest.mark.parametrize(("fields", "left"), [({}, None), ({"interval_seconds": 60, "max_executions": 5}, 0)])
def test_a_manual_or_used_up_job_has_no_next_occurrence(fields: dict[str, Any], left: int | None) -> None:
    assert first_occurrence(make(**fields), START, left) is None


# every case

rules = st.one_of(
    st.fixed_dictionaries({"interval_seconds": st.sampled_from([1, 3, 60])}),
    st.fixed_dictionaries(
        {"schedule": st.sampled_from(["*/5 * * * * *", "* * * * *"]), "timezone": st.just("Europe/Berlin")}
    ),
)
policies = st.fixed_dictionaries(
    {
        "misfire": st.sampled_from(Misfire),
        "misfire_grace_seconds": st.integers(0, 40),
        "misfire_cap": st.integers(1, 5),
        "misfire_max_age_seconds": st.none() | st.integers(0, 60),
        "overlap": st.sampled_from(Overlap),
        "jitter_seconds": st.sampled_from([0, 7]),
        "max_executions": st.none() | st.integers(1, 4),
        "start_within_seconds": st.none() | st.integers(1, 60),
        "ends_at": st.none() | st.integers(70, 200).map(lambda number: START + seconds(number)),
    }
)


@given(rules, policies, st.floats(0, 300), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_owed_occurrence_runs_or_is_skipped_once(
    rule: dict[str, Any], policy: dict[str, Any], late: float, is_busy: bool
) -> None:
    job = make(**rule, **policy)
    row = row_of(job)
    now = row.run_at + seconds(late)

    promotion = plan_promotion(row, job, now, is_busy=is_busy)

    assert isinstance(promotion, Promotion)
    recorded = [run.scheduled_for for run in promotion.runs] + [skip.scheduled_for for skip in promotion.skips]
    for skipped in promotion.ranges:
        assert skipped.first < skipped.last, "a single occurrence is an execution, not a range"
        inside = [o.at for o in job.rule.occurrences(skipped.first - MICROSECOND, skipped.last)]
        assert (inside[0], inside[-1], len(inside)) == (skipped.first, skipped.last, skipped.count)
        recorded += inside
    until = max(recorded)
    named = [o.at for o in job.rule.occurrences(row.scheduled_for - MICROSECOND, until)]
    assert sorted(recorded) == named
    if promotion.following is None:
        is_over = job.rule.next_after(until) is None
        is_used_up = job.max_executions is not None and len(promotion.runs) == job.max_executions
        assert is_over or is_used_up
    else:
        assert promotion.following.scheduled_for == job.rule.next_after(until)
        assert promotion.following.watermark == until
        assert promotion.following.run_at == promotion.following.scheduled_for + job.jitter
        assert promotion.following.id == occurrence_id(JOB, promotion.following.scheduled_for)
        left = None if job.max_executions is None else job.max_executions - len(promotion.runs)
        assert promotion.following.executions_left == left


@given(rules, policies, st.floats(0, 300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_runs_never_come_before_their_instant_and_catch_up_at_their_rate(
    rule: dict[str, Any], policy: dict[str, Any], late: float, is_busy: bool
) -> None:
    job = make(**rule, **policy)
    row = row_of(job)
    now = row.run_at + seconds(late)

    promotion = plan_promotion(row, job, now, is_busy=is_busy)

    assert isinstance(promotion, Promotion)
    target = PromotionTarget.BLOCKED if job.limit_key else PromotionTarget.READY
    assert [run.target for run in promotion.runs] == [target, *[PromotionTarget.DUE] * (len(promotion.runs) - 1)][
        : len(promotion.runs)
    ]
    for run in promotion.runs:
        assert run.run_at >= run.scheduled_for + job.jitter
        assert run.id == occurrence_id(JOB, run.scheduled_for)
    for one, other in pairwise(promotion.runs[1:]):
        assert other.run_at - one.run_at >= CATCH_UP_INTERVAL


@given(rules, policies, st.floats(0, 300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_promoted_has_not_expired_and_what_expired_had_its_time(
    rule: dict[str, Any], policy: dict[str, Any], late: float, is_busy: bool
) -> None:
    job = make(**rule, **policy)
    row = row_of(job)
    now = row.run_at + seconds(late)

    promotion = plan_promotion(row, job, now, is_busy=is_busy)

    assert isinstance(promotion, Promotion)
    for run in promotion.runs:
        assert job.expiry_of(run.scheduled_for) is None or job.expiry_of(run.scheduled_for) > now
    expired = [skip.scheduled_for for skip in promotion.skips if skip.reason is SkipReason.EXPIRED]
    expired += [skipped.last for skipped in promotion.ranges if skipped.reason is SkipReason.EXPIRED]
    assert all(job.expiry_of(instant) <= now for instant in expired)
    assert not promotion.stop_running or promotion.runs


# expiry


def test_an_occurrence_expires_at_its_instant_and_not_before() -> None:
    job = make(interval_seconds=60, start_within_seconds=20, jitter_seconds=9)
    instant = START + seconds(60)
    expires_at = instant + job.jitter + seconds(20)

    in_time, too_late = planned(job, expires_at - MICROSECOND), planned(job, expires_at)

    assert [run.scheduled_for for run in in_time.runs] == [instant]
    assert too_late.runs == ()
    assert too_late.skips == (PlannedSkip(occurrence_id(JOB, instant), instant, SkipReason.EXPIRED),)
    assert too_late.following is not None
    assert too_late.following.scheduled_for == START + seconds(120)


def test_what_the_misfire_policy_would_run_expires_as_one_range() -> None:
    job = make(interval_seconds=10, misfire="all", misfire_cap=4, misfire_grace_seconds=0, start_within_seconds=15)

    promotion = planned(job, START + seconds(65))

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(60)]
    assert [(skipped.first, skipped.last, skipped.reason) for skipped in promotion.ranges] == [
        (START + seconds(10), START + seconds(20), SkipReason.CAPPED),
        (START + seconds(30), START + seconds(50), SkipReason.EXPIRED),
    ]


def test_the_latest_of_what_was_missed_may_have_expired() -> None:
    job = make(interval_seconds=3_600, start_within_seconds=600)

    promotion = planned(job, START + seconds(3_600 * 3 + 1_800))

    assert promotion.runs == ()
    assert [(skipped.count, skipped.reason) for skipped in promotion.ranges] == [(2, SkipReason.MISFIRE)]
    assert [skip.reason for skip in promotion.skips] == [SkipReason.EXPIRED]


def test_an_expired_occurrence_stops_no_running_execution() -> None:
    job = make(interval_seconds=60, overlap="cancel_running", start_within_seconds=5)

    assert planned(job, START + seconds(64), is_busy=True).stop_running
    assert not planned(job, START + seconds(65), is_busy=True).stop_running


def test_an_expired_occurrence_does_not_use_up_an_execution() -> None:
    job = make(interval_seconds=60, max_executions=5, start_within_seconds=5)

    promotion = planned(job, START + seconds(65))

    assert promotion.following is not None
    assert promotion.following.executions_left == 5


def test_a_caught_up_run_expires_too() -> None:
    job = make(interval_seconds=60, start_within_seconds=20)

    promotion = planned(job, START + seconds(80), kind=DueKind.LATER)

    assert (promotion.runs, promotion.following) == ((), None)
    assert [skip.reason for skip in promotion.skips] == [SkipReason.EXPIRED]


# overlap


def test_a_job_that_is_not_busy_is_promoted_ahead_of_its_time() -> None:
    job = make(interval_seconds=60)

    promotion = planned(job, START + seconds(59.6))

    instant = START + seconds(60)
    assert promotion.runs == (PlannedRun(occurrence_id(JOB, instant), instant, instant, PromotionTarget.READY),)
    assert not promotion.stop_running


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL_RUNNING, Overlap.LATEST])
@pytest.mark.parametrize("ahead", [0.5, 0.3, 0.019, 0.000001])
def test_overlap_is_not_judged_before_the_instant(overlap: Overlap, ahead: float) -> None:
    job = make(interval_seconds=60, overlap=overlap)
    now = START + seconds(60 - ahead)

    verdict = plan_promotion(row_of(job), job, now, is_busy=True)

    assert isinstance(verdict, CheckAgain)
    assert now < verdict.at <= START + seconds(60)


def test_a_busy_job_is_checked_a_few_times_before_its_instant() -> None:
    job = make(interval_seconds=60)
    now, looks = START + seconds(59.5), 0

    while now < START + seconds(60):
        verdict = plan_promotion(row_of(job), job, now, is_busy=True)
        assert isinstance(verdict, CheckAgain)
        now, looks = verdict.at, looks + 1

    assert now == START + seconds(60)
    assert looks == 2


def test_at_its_instant_a_busy_job_is_skipped() -> None:
    job = make(interval_seconds=60, max_executions=5)
    instant = START + seconds(60)

    promotion = planned(job, instant, is_busy=True)

    assert (promotion.runs, promotion.ranges) == ((), ())
    assert promotion.skips == (PlannedSkip(occurrence_id(JOB, instant), instant, SkipReason.OVERLAP),)
    assert promotion.following is not None
    assert promotion.following.executions_left == 5, "what is skipped does not use up an execution"


def test_several_owed_instants_of_a_busy_job_are_one_range() -> None:
    job = make(interval_seconds=10, misfire="all")

    promotion = planned(job, START + seconds(55), is_busy=True)

    assert (promotion.runs, promotion.skips) == ((), ())
    first, last = START + seconds(10), START + seconds(50)
    assert promotion.ranges == (SkippedRange(first=first, last=last, count=5, reason=SkipReason.OVERLAP),)
    assert promotion.following is not None
    assert (promotion.following.scheduled_for, promotion.following.watermark) == (START + seconds(60), last)


def test_at_its_instant_a_busy_job_queues() -> None:
    job = make(interval_seconds=60, overlap="queue")

    promotion = planned(job, START + seconds(60), is_busy=True)

    assert [run.target for run in promotion.runs] == [PromotionTarget.BLOCKED]
    assert not promotion.stop_running


def test_at_its_instant_a_busy_job_is_superseded() -> None:
    job = make(interval_seconds=60, overlap="cancel_running")

    assert planned(job, START + seconds(60), is_busy=True).stop_running
    assert not planned(job, START + seconds(60), is_busy=False).stop_running


def test_of_several_owed_instants_of_a_busy_job_only_the_newest_waits() -> None:
    job = make(interval_seconds=10, misfire="all", overlap="latest", max_executions=4)

    promotion = planned(job, START + seconds(55), is_busy=True)

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(50)]
    assert promotion.replaces_waiting
    first, last = START + seconds(10), START + seconds(40)
    assert promotion.ranges == (SkippedRange(first=first, last=last, count=4, reason=SkipReason.OVERLAP),)
    assert promotion.following is not None
    assert (promotion.following.scheduled_for, promotion.following.executions_left) == (START + seconds(60), 3)


def test_of_several_owed_instants_of_an_idle_job_the_newest_may_yet_replace_the_others() -> None:
    job = make(interval_seconds=10, misfire="all", overlap="latest")

    promotion = planned(job, START + seconds(55))

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(10)]
    assert promotion.following is not None
    assert promotion.following.scheduled_for == START + seconds(20)


def test_only_the_policy_that_says_so_replaces_what_waits() -> None:
    for overlap in Overlap:
        job = make(interval_seconds=60, overlap=overlap)

        assert planned(job, START + seconds(60)).replaces_waiting == (overlap is Overlap.LATEST)


def test_where_overlap_is_allowed_a_busy_job_is_promoted_ahead() -> None:
    job = make(interval_seconds=60, overlap="allow")

    promotion = planned(job, START + seconds(59.6), is_busy=True)

    assert [run.target for run in promotion.runs] == [PromotionTarget.READY]


def test_a_policy_without_a_rule_does_not_behave_as_another_one() -> None:
    job = make(interval_seconds=60)
    word: Any = "perhaps"
    unruled = replace(job, overlap=word)

    with pytest.raises(AssertionError, match="perhaps"):
        plan_promotion(row_of(job), unruled, START + seconds(60), is_busy=True)


@pytest.mark.parametrize("kind", [DueKind.RETRY, DueKind.SNOOZE, DueKind.PUT_BACK])
def test_a_second_attempt_is_no_overlap(kind: DueKind) -> None:
    job = make(interval_seconds=60)

    promotion = planned(job, START + seconds(60), is_busy=True, kind=kind)

    assert [run.target for run in promotion.runs] == [PromotionTarget.READY]
    assert promotion.following is None


@pytest.mark.parametrize("origin", [Origin.ENQUEUE, Origin.TRIGGER, Origin.BACKFILL, Origin.RETRY])
def test_a_triggered_execution_runs_as_it_is(origin: Origin) -> None:
    job = make(interval_seconds=60)
    row = row_of(job, origin=origin, kind=DueKind.LATER, id=ExecutionId(UUID(int=7)))

    promotion = plan_promotion(row, None, START + seconds(600), is_busy=True)

    assert promotion == Promotion(
        row=row, runs=(PlannedRun(row.id, row.scheduled_for, row.run_at, PromotionTarget.READY),)
    )


def test_a_caught_up_run_has_no_next_occurrence() -> None:
    job = make(interval_seconds=60)

    promotion = planned(job, START + seconds(600), kind=DueKind.LATER)

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(60)]
    assert promotion.following is None


# after a silence


def test_within_the_grace_an_occurrence_runs_late() -> None:
    job = make(interval_seconds=60, misfire="skip")

    promotion = planned(job, START + seconds(90))

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(60)]
    assert (promotion.skips, promotion.ranges) == ((), ())
    assert promotion.following is not None
    assert promotion.following.scheduled_for == START + seconds(120)


def test_jitter_is_no_lateness() -> None:
    job = make(interval_seconds=60, jitter_seconds=60, misfire="skip", misfire_grace_seconds=1)
    assert job.jitter > seconds(2)

    promotion = planned(job, START + seconds(60) + job.jitter)

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(60)]


def test_latest_runs_the_newest_and_records_the_others_as_one_range() -> None:
    job = make(interval_seconds=60)

    promotion = planned(job, START + seconds(605))

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(600)]
    assert promotion.ranges == (
        SkippedRange(first=START + seconds(60), last=START + seconds(540), count=9, reason=SkipReason.MISFIRE),
    )
    assert promotion.following is not None
    assert (promotion.following.scheduled_for, promotion.following.watermark) == (
        START + seconds(660),
        START + seconds(600),
    )


def test_one_skipped_occurrence_is_an_execution() -> None:
    job = make(interval_seconds=60)

    promotion = planned(job, START + seconds(125))

    assert promotion.ranges == ()
    assert promotion.skips == (
        PlannedSkip(occurrence_id(JOB, START + seconds(60)), START + seconds(60), SkipReason.MISFIRE),
    )


def test_skip_runs_nothing_that_is_stale() -> None:
    job = make(interval_seconds=60, misfire="skip")

    promotion = planned(job, START + seconds(650))

    assert promotion.runs == ()
    assert [skipped.count for skipped in promotion.ranges] == [10]


def test_all_runs_the_newest_up_to_the_cap_a_tenth_of_a_second_apart() -> None:
    job = make(interval_seconds=60, misfire="all", misfire_cap=3, overlap="allow")
    now = START + seconds(650)

    promotion = planned(job, now)

    assert [(run.scheduled_for, run.run_at, run.target) for run in promotion.runs] == [
        (START + seconds(480), START + seconds(480), PromotionTarget.READY),
        (START + seconds(540), now + CATCH_UP_INTERVAL, PromotionTarget.DUE),
        (START + seconds(600), now + 2 * CATCH_UP_INTERVAL, PromotionTarget.DUE),
    ]
    assert [skipped.reason for skipped in promotion.ranges] == [SkipReason.CAPPED]


def test_catching_up_does_not_exceed_what_is_left() -> None:
    job = make(interval_seconds=60, misfire="all", misfire_cap=5, max_executions=2, overlap="allow")

    promotion = planned(job, START + seconds(650))

    assert len(promotion.runs) == 2
    assert promotion.skips == ()
    assert [(skipped.count, skipped.reason) for skipped in promotion.ranges][-1] == (3, SkipReason.ENDED)
    assert promotion.following is None


def test_an_occurrence_that_may_be_skipped_uses_up_no_execution() -> None:
    job = make(interval_seconds=60, misfire="all", misfire_cap=5, max_executions=3, overlap="skip")

    promotion = planned(job, START + seconds(650))

    assert [run.scheduled_for for run in promotion.runs] == [START + seconds(360)]
    assert promotion.following is not None
    assert (promotion.following.scheduled_for, promotion.following.executions_left) == (START + seconds(420), 2)


def test_ten_years_of_downtime_are_resolved_without_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make(interval_seconds=1, misfire_grace_seconds=0)
    steps = 0
    original = Every._forward

    def counted(self: Any, after: datetime) -> Any:
        nonlocal steps
        for occurrence in original(self, after):
            steps += 1
            yield occurrence

    monkeypatch.setattr(Every, "_forward", counted)

    promotion = planned(job, START + timedelta(days=3653))

    assert len(promotion.runs) == 1
    assert promotion.ranges[0].count == 3653 * 86_400 - 1
    assert steps < 20
