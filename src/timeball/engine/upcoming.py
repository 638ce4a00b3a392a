"""What a scheduler holds of the next seconds: rows of `due`, in the order in which they fall due."""

from __future__ import annotations

import heapq
from collections.abc import Container
from datetime import datetime
from typing import TypeAlias

from timeball.domain.ids import ExecutionId
from timeball.domain.occurrences import DueMark, DueRow

# Where a row stands in that order.
Place: TypeAlias = tuple[datetime, ExecutionId]


class Upcoming:
    """Rows by their id, and a heap of when to look at each.

    A place whose row is gone is passed over. One whose row was replaced brings the new one, perhaps before its time: then it is not moved.
    """

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._rows: dict[ExecutionId, DueRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first(self) -> Place | None:
        """The place that comes next."""
        return self._heap[0] if self._heap else None

    def holds(self, mark: DueMark) -> bool:
        """Whether the row that stands there is held as it is."""
        row = self._rows.get(mark.id)
        return row is not None and row.run_at == mark.run_at and row.version == mark.version

    def add(self, row: DueRow) -> bool:
        """Hold a row until its time; False if it is held already, just as it is."""
        if self._rows.get(row.id) == row:
            return False
        self.put(row, row.run_at)
        return True

    def put(self, row: DueRow, at: datetime) -> None:
        """Hold a row, and look at it at another instant than its own."""
        self._rows[row.id] = row
        heapq.heappush(self._heap, (at, row.id))

    def take(self, edge: datetime, most: int) -> list[DueRow]:
        """The rows up to an instant, at most so many, first come first; they are held no longer."""
        rows: list[DueRow] = []
        while self._heap and self._heap[0][0] <= edge and len(rows) < most:
            _, id_ = heapq.heappop(self._heap)
            row = self._rows.pop(id_, None)
            if row is not None:
                rows.append(row)
        return rows

    def keep_only(self, shards: Container[int]) -> None:
        """Forget what belongs to others."""
        self._rows = {id_: row for id_, row in self._rows.items() if row.shard in shards}
        self._heap = [(at, id_) for at, id_ in self._heap if id_ in self._rows]
        heapq.heapify(self._heap)
