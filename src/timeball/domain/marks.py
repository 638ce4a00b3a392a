"""What a time line draws: marks, merged where they would lie on top of each other, and never across now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

# A screen cannot show more, and no reader could tell them apart.
MOST_MARKS = 2_000
PIXELS_A_MARK = 4


class MarkKind(StrEnum):
    """Solid, striped or outlined."""

    PAST = "past"
    RUNNING = "running"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One run, or several that lie too close to be told apart; *states* counts how those that ended did."""

    kind: MarkKind
    start: datetime
    end: datetime
    count: int = 1
    states: Mapping[str, int] = field(default_factory=dict)
    execution_id: str | None = None
    is_guess: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the drawing; *cut_before* says that older runs than this were not read."""

    key: str
    label: str
    kind: str
    marks: Sequence[Mark]
    cut_before: datetime | None = None


def merge(marks: Iterable[Mark], apart: timedelta) -> list[Mark]:
    """Join marks of one kind whose beginnings are less than *apart* from each other."""
    merged: list[Mark] = []
    for kind in MarkKind:
        last: Mark | None = None
        for mark in sorted((mark for mark in marks if mark.kind is kind), key=lambda mark: mark.start):
            if last is not None and mark.start - last.start < apart:
                last = _joined(last, mark)
                merged[-1] = last
            else:
                last = mark
                merged.append(mark)
    return merged


def fitted(rows: Sequence[Row], span: timedelta, width: int) -> list[Row]:
    """Rows whose marks are about four pixels apart, and no more of them in all than a view may have."""
    apart = span * (PIXELS_A_MARK / max(width, PIXELS_A_MARK))
    drawn = [replace(row, marks=merge(row.marks, apart)) for row in rows]
    while sum(len(row.marks) for row in drawn) > MOST_MARKS:
        apart *= 2
        drawn = [replace(row, marks=merge(row.marks, apart)) for row in drawn]
    return drawn


def _joined(one: Mark, other: Mark) -> Mark:
    states = dict(one.states)
    for state, count in other.states.items():
        states[state] = states.get(state, 0) + count
    return replace(
        one,
        end=max(one.end, other.end),
        count=one.count + other.count,
        states=states,
        execution_id=None,
        is_guess=one.is_guess or other.is_guess,
    )
