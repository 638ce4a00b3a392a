"""What a scheduler holds of the next seconds: each row once, as it was last read, in the order in which they fall due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import seconds
from timeball.domain.execution import DueKind, Origin
from timeball.domain.scheduling.occurrences import DueKey, DueRow
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.engine.scheduler.scheduler import DueHeap
from timeball.testing.environment import START


def row(number: int, after: float, shard: int = 0) -> DueRow:
    return DueRow(
        id=ExecutionId(UUID(int=number)),
        job_id=JobId(UUID(int=number + 100)),
        kind=DueKind.OCCURRENCE,
        origin=Origin.SCHEDULE,
        shard=shard,
        run_at=START + seconds(after),
        scheduled_for=START,
        watermark=None,
        tzdata=None,
        version=1,
        executions_left=None,
        limit_key=None,
        queue="default",
        priority=50,
        is_paused=False,
    )


def mark_of(held: DueRow) -> DueKey:
    return DueKey(held.shard, held.id, held.run_at, held.version)


def test_rows_come_in_the_order_of_their_instants_and_no_more_than_asked_for() -> None:
    upcoming = DueHeap()
    late, early, middle = row(1, 9), row(2, 1), row(3, 5)
    for each in (late, early, middle):
        assert upcoming.add(each)

    assert upcoming.first == (early.run_at, early.id)
    assert upcoming.take(START + seconds(9), 2) == [early, middle]
    assert upcoming.take(START + seconds(8), 2) == []
    assert upcoming.take(START + seconds(9), 2) == [late]


def test_a_row_that_is_held_already_is_not_held_twice() -> None:
    upcoming = DueHeap()
    upcoming.add(row(1, 1))

    assert not upcoming.add(row(1, 1))
    assert upcoming.take(START + seconds(1), 9) == [row(1, 1)]
    assert upcoming.take(START + seconds(1), 9) == []


def test_a_row_that_was_changed_takes_the_place_of_the_old_one() -> None:
    upcoming = DueHeap()
    old, new = row(1, 1), row(1, 5)
    upcoming.add(old)

    assert upcoming.add(new)
    assert len(upcoming) == 1
    assert upcoming.take(START + seconds(5), 9) == [new]


@pytest.mark.parametrize("change", [{"run_at": START + seconds(2)}, {"version": 2}], ids=["instant", "version"])
def test_a_row_is_held_only_as_it_is(change: dict[str, Any]) -> None:
    """Else it would be moved by what is known of it, refused, and read again: too late."""
    upcoming = DueHeap()
    held = row(1, 1)
    upcoming.add(held)

    assert upcoming.holds(mark_of(held))
    assert not upcoming.holds(mark_of(replace(held, **change)))
    assert not upcoming.holds(mark_of(row(2, 1)))


def test_a_row_can_be_looked_at_at_another_instant_than_its_own() -> None:
    upcoming = DueHeap()
    held = row(1, 1)
    upcoming.put(held, START + seconds(3))

    assert upcoming.take(START + seconds(2), 9) == []
    assert upcoming.take(START + seconds(3), 9) == [held]


def test_what_belongs_to_others_is_forgotten_and_the_rest_keeps_its_order() -> None:
    """In this order the heap, with theirs left out, would be none."""
    upcoming = DueHeap()
    theirs = {1, 2}
    for after in (1, 5, 2, 6, 7, 3):
        upcoming.add(row(after, after, shard=2 if after in theirs else 1))

    upcoming.keep_only({1})

    assert upcoming.first == (START + seconds(3), row(3, 3).id)
    assert [each.run_at - START for each in upcoming.take(START + seconds(9), 9)] == [seconds(n) for n in (3, 5, 6, 7)]
