"""Colliding jobs are moved to times with free slots by a clear rule, and an applied move has the promised effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.forecast.demand import (
    Collision,
    FireTimeBudget,
    ForecastJob,
    SlotPool,
    even_edges,
    find_collisions,
)
from timeball.domain.forecast.suggestions import (
    MAX_SHIFTS,
    ShiftInput,
    ShiftPlan,
    shift_schedule,
    suggest_shifts,
    why_not_shiftable,
)
from timeball.domain.rollup import TypicalDuration
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once, OnGap, Schedule
from timeball.domain.values.ids import JobId

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
END = NOW + timedelta(days=2)
DAILY = Cron(expression="0 3 * * *")


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


def cron(expression: str) -> Cron:
    return Cron(expression=expression)


# one schedule


@pytest.mark.parametrize(
    ("before", "by", "after"),
    [
        ("0 3 * * *", 12, "12 3 * * *"),
        ("0 3 * * *", -5, "55 2 * * *"),
        ("50 3,15 * * mon", 15, "5 4,16 * * mon"),
        ("0 9-17/2 * * *", 10, "10 9-17/2 * * *"),
        ("0 9-17/2 * * *", -10, None),
        ("50 * * * *", 15, "5 * * * *"),
        ("55 23 * * *", 10, "5 0 * * *"),
        ("55 23 * * fri", 10, None),
        ("55 23 1 * *", 10, None),
        ("30 0 3 * * *", 5, "30 5 3 * * *"),
        ("@daily", 10, "10 0 * * *"),
        ("@weekly", -10, None),
        ("*/30 * * * *", 10, None),
        ("0,30 3 * * *", 10, None),
    ],
)
def test_a_cron_expression_is_shifted_by_its_minute(before: str, by: int, after: str | None) -> None:
    assert shift_schedule(cron(before), minutes(by)) == (None if after is None else cron(after))


def test_an_interval_is_shifted_by_its_anchor_within_the_years_there_are() -> None:
    rule = Every(interval_seconds=3600, anchor=datetime(1970, 1, 1, tzinfo=UTC))

    assert shift_schedule(rule, minutes(5)) == replace(rule, anchor=rule.anchor + minutes(5))
    assert shift_schedule(rule, minutes(-5)) is None


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (DAILY, None),
        (Every(interval_seconds=60, anchor=NOW), None),
        (cron("*/30 * * * *"), 'its minutes are "*/30", and only a single minute can be moved'),
        (Once(scheduled_at=NOW), "it does not recur"),
        (Manual(), "it does not recur"),
    ],
)
def test_an_unshiftable_schedule_has_a_reason(rule: Schedule, why: str | None) -> None:
    assert why_not_shiftable(rule) == why
    if why is not None:
        assert shift_schedule(rule, minutes(5)) is None


@settings(deadline=None)
@given(
    minute=st.integers(0, 59),
    hours=st.one_of(st.just("*"), st.sets(st.integers(0, 23), min_size=1).map(lambda them: ",".join(map(str, them)))),
    days=st.sampled_from(["* * *", "* * mon-fri", "1,15 * *"]),
    by=st.integers(-72, 72).map(lambda step: 5 * step),
)
def test_a_shifted_schedule_fires_as_often_a_day(minute: int, hours: str, days: str, by: int) -> None:
    before = cron(f"{minute} {hours} {days}")

    after = shift_schedule(before, minutes(by))

    if after is not None:
        assert fires_by_day(after) == fires_by_day(before)


def fires_by_day(rule: Schedule) -> Counter[object]:
    midnight = datetime(2026, 3, 1, tzinfo=UTC) - timedelta(microseconds=1)
    return Counter(one.at.date() for one in rule.occurrences(midnight, midnight + timedelta(days=14)))


# a collision


def job(number: int, rule: Schedule = DAILY, lasts: int = 10, queue: str = "q") -> ForecastJob:
    pending = rule.next_after(NOW)
    assert pending is not None
    return ForecastJob(
        job_id=JobId(UUID(int=number)),
        label=f"job-{number}",
        handler="h",
        queue=queue,
        rule=rule,
        pending=pending,
        since=NOW - timedelta(days=30),
        typical=TypicalDuration(minutes(lasts), minutes(lasts), 9),
    )


def ahead(jobs: Iterable[ForecastJob], slots: int, pools: Sequence[SlotPool] = ()) -> ShiftInput:
    fires = FireTimeBudget(even_edges(NOW, END, 48)).of(jobs)
    return ShiftInput(fires=fires, pools=pools or [SlotPool(("q",), slots)], now=NOW, end=END, span=END - NOW)


def collisions_of(prospect: ShiftInput) -> list[Collision]:
    return find_collisions(prospect.fires, prospect.pools, ZoneInfo("UTC"), prospect.span)


def spread_worst(prospect: ShiftInput, **more: int) -> ShiftPlan:
    return suggest_shifts(collisions_of(prospect)[0], prospect, **more)


def moved(one: ForecastJob, rule: Schedule) -> ForecastJob:
    """The job after its schedule was changed."""
    return replace(job(one.job_id.int, rule, queue=one.queue), typical=one.typical)


def most_at_once(jobs: Iterable[ForecastJob], spans: Sequence[tuple[datetime, datetime]]) -> int:
    """The most runs at once, counted by brute force."""
    runs = [(at, at + one.duration) for one in jobs for at in one.fires(NOW, END)]
    moments = {low for low, _ in spans} | {at for at, _ in runs if any(low <= at < high for low, high in spans)}
    return max(sum(start <= moment < end for start, end in runs) for moment in moments)


def test_the_nearest_free_time_is_taken_until_all_fit() -> None:
    found = spread_worst(ahead([job(number) for number in range(1, 5)], slots=2))

    assert [move.sentence for move in found.moves] == [
        "job-1 0 3 * * * → 10 3 * * * (10 min later), peak 4 → 3",
        "job-2 0 3 * * * → 10 3 * * * (10 min later), peak 3 → 2",
    ]
    assert found.stays == []
    assert found.sentence == "with 2 jobs moved the peak is 2, which fits into 2 slots"


def test_the_job_that_lowers_the_peak_most_goes_first() -> None:
    """Only the long job runs all the time; without one of the others there are still two at once."""
    jobs = [job(1, lasts=5), job(2, lasts=10), job(3, cron("5 3 * * *"), lasts=5)]

    (move,) = spread_worst(ahead(jobs, slots=1)).moves

    assert (move.job.label, move.peak_before, move.peak_after) == ("job-2", 2, 1)


def test_jobs_that_cannot_be_moved_are_listed_with_the_reason() -> None:
    jobs = [job(1, cron("*/30 3 * * *")), job(2, cron("0,20 3 * * *"))]

    found = spread_worst(ahead(jobs, slots=1))

    assert not found.moves
    assert [(stay.label, stay.why) for stay in found.stays] == [
        ("job-1", 'its minutes are "*/30", and only a single minute can be moved'),
        ("job-2", 'its minutes are "0,20", and only a single minute can be moved'),
    ]
    assert found.sentence == "no job of this collision can be moved so that fewer than 2 run at once"


def test_nothing_is_moved_without_free_slots() -> None:
    """Both jobs run around the clock, so there is no free time."""
    jobs = [job(number, Every(interval_seconds=3600, anchor=NOW + minutes(30)), lasts=60) for number in (1, 2)]

    found = spread_worst(ahead(jobs, slots=1))

    assert not found.moves
    assert {stay.why for stay in found.stays} == {
        "none of the times that were tried, up to 1 h 50 min away, has a free slot for each of its runs and lowers the peak"
    }


def test_no_run_is_lost_and_none_comes_twice() -> None:
    """Both run in three minutes: five minutes earlier is in the past, so the move must be later."""
    (move,) = spread_worst(ahead([job(number, cron("3 12 * * *"), lasts=4) for number in (1, 2)], slots=1)).moves

    assert move.by == minutes(5)
    before, after = list(move.job.fires(NOW, END)), list(moved(move.job, move.rule).fires(NOW, END))
    assert [at + move.by for at in before] == after
    # Later is taken for good, and earlier has passed.
    taken = [job(number, cron("3 12 * * *"), lasts=4) for number in (1, 2)]
    taken.append(job(3, cron("7 12 * * *"), lasts=600))
    assert not spread_worst(ahead(taken, slots=1)).moves


def test_an_hourly_job_is_not_moved_so_that_it_runs_once_more() -> None:
    """A quarter of an hour later is five past, and the first such time comes before the next run."""
    jobs = [job(number, cron("50 * * * *")) for number in (1, 2)]
    jobs += [job(3, cron("0 * * * *"), lasts=5), job(4, cron("25 * * * *"), lasts=25)]

    (move,) = spread_worst(ahead(jobs, slots=1)).moves

    assert (move.by, move.rule) == (minutes(-35), cron("15 * * * *"))
    assert moved(move.job, move.rule).pending == move.job.pending + move.by


def test_a_run_is_not_moved_into_a_clock_gap() -> None:
    """Five minutes later a slot is free, except on the day on which the clock skips that time."""
    now = datetime(2026, 3, 27, 12, tzinfo=UTC)
    end = now + timedelta(days=3)
    rule = Cron(expression="55 1 * * *", timezone="Europe/Berlin", on_gap=OnGap.SKIP)
    jobs = [replace(job(number, rule, lasts=4), pending=datetime(2026, 3, 28, 0, 55, tzinfo=UTC)) for number in (1, 2)]
    fires = FireTimeBudget(even_edges(now, end, 72)).of(jobs)
    prospect = ShiftInput(fires=fires, pools=[SlotPool(("q",), 1)], now=now, end=end, span=end - now)

    (move,) = spread_worst(prospect).moves

    assert move.rule == replace(rule, expression="50 1 * * *")


def test_a_queue_with_a_limit_keeps_to_it() -> None:
    """At ten past three a slot is free, but the limit of this queue is used up."""
    jobs = [job(1, queue="narrow"), job(2, cron("*/30 3 * * *")), job(3, cron("10 3 * * *"), queue="narrow")]
    wide, narrow = SlotPool(("narrow", "q"), 2), SlotPool(("narrow",), 1)
    jobs.append(job(4, cron("*/30 3 * * *")))

    (move,) = spread_worst(ahead(jobs, 0, [wide, narrow])).moves

    assert move.job.label == "job-1"
    assert spread_worst(ahead(jobs, 0, [wide])).moves[0].by == minutes(10)
    assert move.by != minutes(10)


def test_the_search_is_bounded() -> None:
    prospect = ahead([job(number) for number in range(1, 41)], slots=2)

    found = spread_worst(prospect)
    hurried = spread_worst(prospect, budget=0)

    assert len(found.moves) == MAX_SHIFTS
    assert (found.peak_after, found.stays) == (40 - MAX_SHIFTS, [])
    assert found.sentence == "with 8 jobs moved the peak is 32, which is still more than 2 slots"
    assert not hurried.moves
    assert [stay.why for stay in hurried.stays[19:21]] == [
        "there are too many runs to search for a time for it",
        "only the first 20 jobs are tried",
    ]


RULES: list[Schedule] = [
    DAILY,
    cron("0 3,15 * * *"),
    cron("5 3 * * *"),
    cron("0 * * * *"),
    cron("50 2 * * mon-fri"),
    cron("*/30 3 * * *"),
    Cron(expression="0 4 * * *", timezone="Europe/Berlin"),
    Every(interval_seconds=7200, anchor=datetime(2026, 1, 1, 1, tzinfo=UTC)),
    Every(interval_seconds=5400, anchor=NOW + minutes(7)),
]


@settings(max_examples=30, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.sampled_from(RULES), st.integers(1, 70)), min_size=2, max_size=7),
    slots=st.integers(1, 3),
)
def test_an_applied_suggestion_has_the_promised_peak(jobs: list[tuple[Schedule, int]], slots: int) -> None:
    jobs = {number: job(number, rule, lasts) for number, (rule, lasts) in enumerate(jobs, start=1)}
    before = ahead(jobs.values(), slots)
    crowded = [span for one in collisions_of(before) for span in one.spans]
    for collision in collisions_of(before)[:1]:
        found = suggest_shifts(collision, before)
        for move in found.moves:
            assert move.peak_before == most_at_once(jobs.values(), collision.spans)
            jobs[move.job.job_id.int] = moved(move.job, move.rule)
            assert move.peak_after == most_at_once(jobs.values(), collision.spans) < move.peak_before
        left = collisions_of(ahead(jobs.values(), slots))
        # No collision is new or longer, and no moved job takes part in one.
        assert all(
            any(low <= start and end <= high for low, high in crowded) for one in left for start, end in one.spans
        )
        assert not {job_id for one in left for job_id, _ in one.jobs} & {move.job.job_id for move in found.moves}
        assert suggest_shifts(collision, before) == found
