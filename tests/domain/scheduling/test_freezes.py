"""Freezes: which windows they make, and what becomes of the occurrences that fall into them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.execution import DueKind, Origin
from timeball.domain.freeze import Afterwards, Freeze, FreezeId, FreezeScope, FrozenWindow, frozen_windows
from timeball.domain.policies import Misfire, MisfireRule, Overlap, SkipReason
from timeball.domain.scheduling.occurrences import (
    DueRow,
    HeldByFreeze,
    JobTiming,
    OwedOccurrences,
    Promotion,
    plan_promotion,
    resolve_frozen,
)
from timeball.domain.scheduling.schedule import Every
from timeball.domain.scheduling.verdicts import frozen_spans
from timeball.domain.values.ids import ExecutionId, JobId

BEGIN = datetime(2026, 11, 20, 18, tzinfo=UTC)
EVERY = Every(interval_seconds=60, anchor=BEGIN)


def minute(number: float) -> datetime:
    return BEGIN + timedelta(minutes=number)


def freeze(start: float, end: float, afterwards: Afterwards = Afterwards.SKIP) -> Freeze:
    return Freeze(
        id=FreezeId(UUID(int=1)),
        scope=FreezeScope.INSTALLATION,
        from_at=minute(start),
        until_at=minute(end),
        afterwards=afterwards,
        actor="ana",
        created_at=BEGIN,
        epoch=1,
    )


def window(start: float, end: float, afterwards: Afterwards = Afterwards.SKIP) -> FrozenWindow:
    return FrozenWindow(minute(start), minute(end), afterwards)


def owed(
    first: float, now: float, *windows: FrozenWindow, misfire: Misfire = Misfire.LATEST, cap: int = 100
) -> OwedOccurrences:
    return resolve_frozen(EVERY, minute(first), minute(now), MisfireRule(policy=misfire, cap=cap), windows)


# windows


def test_freezes_that_overlap_are_one_window_and_the_last_to_end_decides() -> None:
    assert frozen_windows([freeze(0, 10, Afterwards.ALL), freeze(5, 20, Afterwards.LATEST)]) == (
        window(0, 20, Afterwards.LATEST),
    )
    assert frozen_windows([freeze(0, 30, Afterwards.ALL), freeze(5, 20, Afterwards.LATEST)]) == (
        window(0, 30, Afterwards.ALL),
    )


def test_the_stricter_of_two_freezes_that_end_together_decides() -> None:
    assert frozen_windows([freeze(0, 10, Afterwards.ALL), freeze(5, 10, Afterwards.SKIP)]) == (window(0, 10),)


def test_freezes_that_touch_are_two_windows() -> None:
    assert frozen_windows([freeze(10, 20, Afterwards.ALL), freeze(0, 10)]) == (
        window(0, 10),
        window(10, 20, Afterwards.ALL),
    )


def test_a_freeze_that_ended_before_it_began_has_no_window() -> None:
    assert frozen_windows([freeze(5, 5)]) == ()


@pytest.mark.parametrize(
    ("scope", "target", "job", "is_held"),
    [
        (FreezeScope.INSTALLATION, None, None, True),
        (FreezeScope.QUEUE, "mail", None, True),
        (FreezeScope.QUEUE, "other", None, False),
        (FreezeScope.TAG, "billing", None, True),
        (FreezeScope.TAG, "mail", None, False),
        (FreezeScope.JOB, None, JobId(UUID(int=7)), True),
        (FreezeScope.JOB, None, JobId(UUID(int=8)), False),
    ],
)
def test_a_freeze_holds_what_is_in_its_scope(
    scope: FreezeScope, target: str | None, job: JobId | None, is_held: bool
) -> None:
    one = Freeze(
        id=FreezeId(UUID(int=1)),
        scope=scope,
        target=target,
        job_id=job,
        from_at=BEGIN,
        until_at=minute(1),
        afterwards=Afterwards.SKIP,
        actor="ana",
        created_at=BEGIN,
        epoch=1,
    )

    assert one.holds("mail", JobId(UUID(int=7)), ["billing"]) is is_held


# occurrences afterwards


def test_skip_records_everything_that_fell_into_the_freeze() -> None:
    result = owed(2, 10 - 0.001, window(2, 10))

    assert result.run == ()
    (gone,) = result.skipped
    assert (gone.first, gone.last, gone.count, gone.reason) == (minute(2), minute(9), 8, SkipReason.FREEZE)
    assert result.next_at == minute(10)


def test_latest_runs_the_last_one_under_its_own_instant() -> None:
    result = owed(2, 10 - 0.001, window(2, 10, Afterwards.LATEST))

    assert result.run == (minute(9),)
    assert [(gone.first, gone.last, gone.reason) for gone in result.skipped] == [
        (minute(2), minute(8), SkipReason.FREEZE)
    ]


def test_all_runs_each_of_them_up_to_the_cap_of_the_job() -> None:
    result = owed(2, 10 - 0.001, window(2, 10, Afterwards.ALL), cap=3)

    assert result.run == (minute(7), minute(8), minute(9))
    assert [(gone.first, gone.last, gone.reason) for gone in result.skipped] == [
        (minute(2), minute(6), SkipReason.CAPPED)
    ]


def test_what_was_missed_around_a_freeze_follows_the_misfire_policy() -> None:
    result = owed(0, 20.1, window(5, 10, Afterwards.LATEST), misfire=Misfire.LATEST)

    assert result.run == (minute(9), minute(20))
    assert [(gone.first, gone.last, gone.reason) for gone in result.skipped] == [
        (minute(0), minute(4), SkipReason.MISFIRE),
        (minute(5), minute(8), SkipReason.FREEZE),
        (minute(10), minute(19), SkipReason.MISFIRE),
    ]


@given(
    first=st.integers(0, 20),
    span=st.floats(0, 60),
    edges=st.lists(st.floats(0, 90), min_size=2, max_size=6, unique=True),
    policies=st.lists(st.sampled_from(Afterwards), min_size=3, max_size=3),
    misfire=st.sampled_from(Misfire),
    grace=st.sampled_from([0, 30, 600]),
    max_age=st.sampled_from([None, 120, 1800]),
    cap=st.integers(1, 5),
)
def test_every_occurrence_runs_or_is_skipped_exactly_once(
    first: int,
    span: float,
    edges: list[float],
    policies: list[Afterwards],
    misfire: Misfire,
    grace: int,
    max_age: int | None,
    cap: int,
) -> None:
    edges = sorted(edges)
    now = minute(first + span)
    windows = [
        frozen
        for (start, end), policy in zip(zip(edges[::2], edges[1::2], strict=False), policies, strict=False)
        if (frozen := window(start, end, policy)).end <= now and frozen.end > minute(first)
    ]
    rule = MisfireRule(
        policy=misfire,
        grace=timedelta(seconds=grace),
        cap=cap,
        max_age=None if max_age is None else timedelta(seconds=max_age),
    )

    result = resolve_frozen(EVERY, minute(first), now, rule, windows)

    skipped = [
        gone.first + timedelta(minutes=number)
        for gone in result.skipped
        for number in range(int((gone.last - gone.first) / timedelta(minutes=1)) + 1)
    ]
    assert sorted([*result.run, *skipped]) == [minute(number) for number in range(first, int(first + span) + 1)]
    assert list(result.run) == sorted(result.run)
    assert [gone.first for gone in result.skipped] == sorted(gone.first for gone in result.skipped)
    assert all(gone.count == (gone.last - gone.first) / timedelta(minutes=1) + 1 for gone in result.skipped)
    for frozen in windows:
        inside = [at for at in result.run if frozen.covers(at)]
        assert len(inside) <= {Afterwards.SKIP: 0, Afterwards.LATEST: 1, Afterwards.ALL: cap}[frozen.afterwards]
    for gone in result.skipped:
        if gone.reason is SkipReason.FREEZE:
            assert any(frozen.covers(gone.first) and frozen.covers(gone.last) for frozen in windows)


@given(
    first=st.integers(0, 20),
    edges=st.lists(st.floats(0, 400), min_size=2, max_size=6, unique=True),
    policies=st.lists(st.sampled_from(Afterwards), min_size=3, max_size=3),
    cap=st.sampled_from([1, 4, 150]),
    jitter=st.sampled_from([0, 45]),
)
def test_what_freezes_will_skip_is_what_they_skip(
    first: int, edges: list[float], policies: list[Afterwards], cap: int, jitter: int
) -> None:
    edges, late = sorted(edges), timedelta(seconds=jitter)
    windows = [
        window(start, end, policy)
        for (start, end), policy in zip(zip(edges[::2], edges[1::2], strict=False), policies, strict=False)
    ]

    ahead = frozen_spans(EVERY, windows, late, cap, minute(first))

    moved = [FrozenWindow(one.start - late, one.end - late, one.afterwards) for one in windows]
    over = [one for one in moved if one.end > minute(first)]
    end = max([minute(first), *(one.end for one in over)])
    rule = MisfireRule(grace=timedelta(days=1), cap=cap)
    judged = resolve_frozen(EVERY, minute(first), end, rule, over)
    for one in over:
        kept = [at for at in judged.run if one.covers(at)]
        named = [at for number in range(first, 401) if one.covers(at := minute(number))]
        assert [at for at in named if not any(span.covers(at) for span in ahead)] == kept
    gone = [(one.last, one.reason) for one in judged.skipped]
    assert [(span.last, span.reason) for span in ahead] == gone


# promotions


def row_at(first: float, run_at: float, *, is_frozen: bool = False, left: int | None = None) -> DueRow:
    return DueRow(
        id=ExecutionId(UUID(int=3)),
        job_id=JobId(UUID(int=7)),
        kind=DueKind.OCCURRENCE,
        origin=Origin.SCHEDULE,
        shard=0,
        run_at=minute(run_at),
        scheduled_for=minute(first),
        watermark=minute(first - 1),
        tzdata=None,
        version=1,
        executions_left=left,
        limit_key=None,
        queue="default",
        priority=50,
        is_paused=False,
        is_frozen=is_frozen,
    )


def timing(**fields: Any) -> JobTiming:
    usual = {
        "id": JobId(UUID(int=7)),
        "version": 1,
        "rule": EVERY,
        "misfire": MisfireRule(),
        "overlap": Overlap.SKIP,
        "jitter_seconds": 0,
        "max_executions": None,
        "is_enqueued": False,
    }
    return JobTiming(**usual | fields)


def test_a_row_whose_time_lies_in_a_freeze_waits_for_its_end() -> None:
    row = row_at(5, 5)

    assert plan_promotion(row, timing(), minute(4.99), is_busy=False, frozen=[window(5, 10)]) == HeldByFreeze(
        row, minute(10)
    )
    assert isinstance(
        plan_promotion(row, timing(), minute(4.99), is_busy=False, frozen=[window(5.1, 10)]), Promotion
    ), "it begins after its instant"
    late = plan_promotion(row_at(4, 4), timing(), minute(5), is_busy=False, frozen=[window(5, 10)])
    assert isinstance(late, HeldByFreeze), "it would start in the freeze, although it was due before"


@given(
    first=st.integers(0, 20),
    span=st.floats(1, 60),
    edges=st.lists(st.floats(0, 60), min_size=2, max_size=6, unique=True),
    policies=st.lists(st.sampled_from(Afterwards), min_size=3, max_size=3),
    misfire=st.sampled_from(Misfire),
    overlap=st.sampled_from(Overlap),
    is_busy=st.booleans(),
    left=st.sampled_from([None, 1, 3]),
    start_within=st.sampled_from([None, 90, 600]),
)
def test_a_promotion_after_freezes_records_each_occurrence_once(
    first: int,
    span: float,
    edges: list[float],
    policies: list[Afterwards],
    misfire: Misfire,
    overlap: Overlap,
    is_busy: bool,
    left: int | None,
    start_within: int | None,
) -> None:
    edges, now = sorted(edges), minute(first + span)
    windows = [
        window(start, end, policy)
        for (start, end), policy in zip(zip(edges[::2], edges[1::2], strict=False), policies, strict=False)
    ]
    row = row_at(first, first, left=left)
    if start_within is not None:
        row = replace(row, expires_at=row.scheduled_for + timedelta(seconds=start_within))
    job = timing(overlap=overlap, misfire=MisfireRule(policy=misfire, cap=3))

    planned = plan_promotion(row, job, now, is_busy=is_busy, frozen=windows)

    if isinstance(planned, HeldByFreeze):
        assert any(frozen.covers(now) for frozen in windows)
        return
    assert isinstance(planned, Promotion)
    ranged = [
        gone.first + timedelta(minutes=number)
        for gone in planned.ranges
        for number in range(int((gone.last - gone.first) / timedelta(minutes=1)) + 1)
    ]
    recorded = sorted(
        [*(run.scheduled_for for run in planned.runs), *(skip.scheduled_for for skip in planned.skips), *ranged]
    )
    until = now if planned.following is None else planned.following.scheduled_for - timedelta(seconds=1)
    if planned.following is None and left is not None:
        until = recorded[-1]
    expected = [minute(number) for number in range(first, 200) if minute(number) <= until]
    assert recorded == expected
    if planned.following is not None:
        assert planned.following.watermark == recorded[-1]
