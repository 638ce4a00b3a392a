"""Marks are merged where they would overlap, and never across now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from timeball.domain.forecast.timeline import MAX_MARKS, MarkRow, TimelineMark, TimelineMarkKind, fit_rows, merge_marks

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def mark(at: float, kind: TimelineMarkKind = TimelineMarkKind.PAST, **fields: object) -> TimelineMark:
    start = NOW + at * SECOND
    return TimelineMark(kind=kind, start=start, end=start + SECOND, **fields)  # type: ignore[arg-type]


def test_near_marks_become_one_that_counts_them() -> None:
    marks = [mark(0, states={"succeeded": 1}, execution_id="a"), mark(3, states={"dead": 1}), mark(9)]

    first, second = merge_marks(marks, timedelta(seconds=5))

    assert (first.start, first.end, first.count) == (NOW, NOW + 4 * SECOND, 2)
    assert first.states == {"succeeded": 1, "dead": 1}
    assert first.execution_id is None
    assert second == marks[2]


def test_nothing_is_merged_across_now() -> None:
    kinds = [TimelineMarkKind.PAST, TimelineMarkKind.RUNNING, TimelineMarkKind.PREDICTED]
    marks = [mark(at, kind) for at, kind in zip((-1, 0, 0.5), kinds, strict=True)]

    assert [one.kind for one in merge_marks(marks, timedelta(hours=1))] == kinds


def test_a_view_has_no_more_marks_than_it_may() -> None:
    rows = [
        MarkRow(key=str(row), label="", kind="", marks=[mark(at) for at in range(0, 3600, 10)]) for row in range(30)
    ]

    drawn = fit_rows(rows, timedelta(hours=1), 10_000)

    assert sum(len(row.marks) for row in drawn) <= MAX_MARKS
    assert sum(one.count for row in drawn for one in row.marks) == 30 * 360
    assert len(fit_rows(rows[:1], timedelta(hours=1), 10_000)[0].marks) == 360
