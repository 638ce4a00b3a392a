"""The fire times of a job come from its own schedule, within a budget, and the demand for slots is right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.forecast.demand import FireTimeBudget, FireTimes, ForecastJob, even_edges
from timeball.domain.forecast.timeline import BucketLoad
from timeball.domain.freeze import Afterwards, FrozenWindow
from timeball.domain.rollup import TypicalDuration
from timeball.domain.scheduling.schedule import Cron, Every, Once, Schedule
from timeball.domain.values.ids import JobId

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def job(rule: Schedule, **fields: object) -> ForecastJob:
    pending = rule.next_after(NOW - timedelta(microseconds=1))
    assert pending is not None
    given: dict[str, object] = {
        "job_id": JobId(UUID(int=1)),
        "label": "a",
        "handler": "h",
        "queue": "q",
        "rule": rule,
        "pending": pending,
        "since": NOW - timedelta(days=30),
        "typical": TypicalDuration(timedelta(minutes=3), timedelta(minutes=4), 9),
    }
    return ForecastJob(**given | fields)  # type: ignore[arg-type]


RULES = [
    Cron(expression="*/7 * * * *", timezone="Europe/Berlin"),
    Cron(expression="30 2 * * *", timezone="Europe/Berlin"),
    Every(interval_seconds=61, anchor=NOW - timedelta(days=3)),
    Every(interval_seconds=7200, anchor=NOW + timedelta(seconds=5)),
    Once(scheduled_at=NOW + timedelta(hours=5)),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("jitter", [0, 90])
def test_counts_and_fire_times_say_the_same(rule: Schedule, jitter: int) -> None:
    some = job(rule, jitter=timedelta(seconds=jitter))
    edges = even_edges(NOW, NOW + 24 * HOUR, 24)

    one_by_one = [sum(low <= at < high for at in some.fires(NOW, NOW + 24 * HOUR)) for low, high in pairwise(edges)]

    assert one_by_one == [some.count(low, high) for low, high in pairwise(edges)]
    assert sum(one_by_one) > 0


def test_the_executions_left_bound_the_fire_times() -> None:
    some = job(Every(interval_seconds=60, anchor=NOW), left=3)

    (fires,) = FireTimeBudget(even_edges(NOW, NOW + HOUR, 6)).of([some])

    assert fires.at == (NOW, NOW + timedelta(minutes=1), NOW + timedelta(minutes=2))


def test_a_frequent_job_is_counted_and_equal_schedules_only_once() -> None:
    minutely = Every(interval_seconds=10, anchor=NOW)
    foresight = FireTimeBudget(even_edges(NOW, NOW + HOUR, 60), budget=100)

    found = foresight.of([job(minutely), job(minutely, job_id=JobId(UUID(int=2)))])

    assert [fires.counts for fires in found] == [(6,) * 60] * 2
    assert (foresight.budget, foresight.left_out) == (40, 0)


def test_jobs_beyond_the_budget_are_left_out_and_counted() -> None:
    foresight = FireTimeBudget(even_edges(NOW, NOW + HOUR, 60), budget=10)

    found = foresight.of([job(Every(interval_seconds=60, anchor=NOW)), job(Every(interval_seconds=1200, anchor=NOW))])

    assert [len(fires.at) for fires in found] == [3]
    assert foresight.left_out == 1


def test_a_job_as_seen_from_yesterday() -> None:
    some = job(Every(interval_seconds=3600, anchor=NOW - timedelta(days=5)), since=NOW - timedelta(hours=12))

    earlier = some.from_the_start(NOW - 24 * HOUR)

    assert earlier is not None
    assert list(earlier.fires(NOW - 24 * HOUR, NOW)) == [NOW - number * HOUR for number in range(12, 0, -1)]


# load


def test_work_is_spread_over_the_buckets_it_touches() -> None:
    load = BucketLoad(even_edges(NOW, NOW + 4 * HOUR, 4))

    load.add_span(NOW + 0.5 * HOUR, NOW + 2.25 * HOUR)

    assert [load.busy(number) for number in range(4)] == [0.5, 1.0, 0.25, 0.0]
    assert load.starts == [1, 0, 0, 0]
    assert load.peaks() == [1, 1, 1, 0]


def test_counted_runs_bring_their_whole_work() -> None:
    load = BucketLoad(even_edges(NOW, NOW + 4 * HOUR, 4))

    load.add(FireTimes(job(Every(interval_seconds=60, anchor=NOW)), counts=(60, 0, 0, 0)))

    assert load.busy(0) == 3.0
    assert load.starts == [60, 0, 0, 0]


def test_counted_work_ends_at_its_instant() -> None:
    load = BucketLoad(even_edges(NOW, NOW + 4 * HOUR, 4))

    # One run of two hours, and a hundred of a minute each.
    load.add_ended(NOW + 2.5 * HOUR, 7_200.0, 7_200.0)
    load.add_ended(NOW + 3.5 * HOUR, 6_000.0, 60.0)
    # Half of this was done before the load begins.
    load.add_ended(NOW + 0.25 * HOUR, 1_800.0, 1_800.0)

    assert [load.busy(number) for number in range(4)] == pytest.approx([0.75, 1.0, 0.5, 6_000 / 3_600])
    assert load.starts == [0, 0, 0, 0]


SPANS = st.lists(st.tuples(st.integers(-100, 500), st.integers(1, 300)), max_size=12)


@given(SPANS)
def test_peaks_and_seconds_are_those_of_a_recount(spans: list[tuple[int, int]]) -> None:
    minute = timedelta(minutes=1)
    load = BucketLoad(even_edges(NOW, NOW + 400 * minute, 8))
    for start, length in spans:
        load.add_span(NOW + start * minute, NOW + (start + length) * minute)

    minutes = [sum(start <= at < start + length for start, length in spans) for at in range(400)]

    assert load.peaks() == [max(minutes[50 * number : 50 * number + 50]) for number in range(8)]
    assert [round(seconds / 60) for seconds in load.seconds] == [
        sum(minutes[50 * number : 50 * number + 50]) for number in range(8)
    ]


def frozen(afterwards: Afterwards) -> tuple[FrozenWindow, ...]:
    """From half past one to half past three."""
    return (FrozenWindow(NOW + 1.5 * HOUR, NOW + 3.5 * HOUR, afterwards),)


AFTER_THE_FREEZE = {
    Afterwards.SKIP: [],
    Afterwards.LATEST: [NOW + 3.5 * HOUR],
    Afterwards.ALL: [NOW + 3.5 * HOUR, NOW + 3.5 * HOUR + timedelta(milliseconds=100)],
}


@pytest.mark.parametrize("afterwards", Afterwards)
def test_what_falls_into_a_freeze_starts_after_it_as_far_as_it_may(afterwards: Afterwards) -> None:
    # Eight occurrences fall into it; two of them may be caught up with.
    some = job(Every(interval_seconds=900, anchor=NOW), windows=frozen(afterwards), misfire_cap=2)

    at = list(some.fires(NOW, NOW + 5 * HOUR))

    ahead = [NOW + number * 0.25 * HOUR for number in range(20)]
    assert at == sorted([each for each in ahead if not 1.5 <= (each - NOW) / HOUR < 3.5] + AFTER_THE_FREEZE[afterwards])


def test_a_one_off_waits_for_the_end_of_a_freeze_whatever_becomes_of_occurrences() -> None:
    some = job(Once(scheduled_at=NOW + 2 * HOUR), windows=frozen(Afterwards.SKIP))

    assert list(some.fires(NOW, NOW + 5 * HOUR)) == [NOW + 3.5 * HOUR]


def test_what_a_freeze_has_held_before_a_view_starts_in_it() -> None:
    some = job(Every(interval_seconds=900, anchor=NOW), windows=frozen(Afterwards.LATEST))

    assert list(some.fires(NOW + 3 * HOUR, NOW + 3.75 * HOUR)) == [NOW + 3.5 * HOUR, NOW + 3.5 * HOUR]


@pytest.mark.parametrize("afterwards", Afterwards)
@pytest.mark.parametrize("rule", RULES)
def test_counts_and_fire_times_say_the_same_around_a_freeze(rule: Schedule, afterwards: Afterwards) -> None:
    some = job(rule, windows=frozen(afterwards), misfire_cap=3, jitter=timedelta(seconds=20))
    edges = even_edges(NOW, NOW + 24 * HOUR, 24)

    one_by_one = [sum(low <= at < high for at in some.fires(NOW, NOW + 24 * HOUR)) for low, high in pairwise(edges)]

    assert one_by_one == [some.count(low, high) for low, high in pairwise(edges)]


def test_a_job_that_is_counted_counts_nothing_in_a_freeze() -> None:
    frequent = job(Every(interval_seconds=10, anchor=NOW), windows=frozen(Afterwards.LATEST))

    (fires,) = FireTimeBudget(even_edges(NOW, NOW + 5 * HOUR, 10)).of([frequent])

    # 13:30 to 15:30 is frozen; one runs when it is over.
    assert fires.counts == (180, 180, 180, 0, 0, 0, 0, 181, 180, 180)
