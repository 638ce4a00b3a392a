"""What is looked at to explain an execution: where it is, and what stands around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from timeball.domain.execution import Execution
from timeball.domain.facts import Rival, Room, Usual
from timeball.domain.ids import ExecutionId, Incarnation, JobId
from timeball.domain.occurrences import DueKind
from timeball.store.database import Database
from timeball.store.durations import Durations, usual_durations
from timeball.store.rooms import PARKED_AT

MOST_RIVALS = 20
MOST_AHEAD = 1_000
_NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The room of an execution, and what is known of it only there."""

    room: Room
    due_kind: DueKind | None = None
    stop: str | None = None
    progress: float | None = None
    progress_note: str | None = None


class Survey:
    """The surroundings of one execution."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def whereabouts(self, execution_id: ExecutionId) -> Whereabouts:
        """Where an execution is; what is in no room has ended."""
        row = await self._database.fetch_row("whereabouts", id=execution_id)
        if row is None:
            return Whereabouts(Room.FINISHED)
        kind = None if row["due_kind"] is None else DueKind(row["due_kind"])
        return Whereabouts(Room(row["room"]), kind, row["stop"], row["progress"], row["progress_note"])

    async def gate_facts(self, queue: str, limit_key: str | None, unique_key: str | None) -> Mapping[str, Any]:
        """The queue, the limit and the key of an execution, as they stand."""
        row = await self._database.fetch_row("gate_facts", queue=queue, limit_key=limit_key, unique_key=unique_key)
        assert row is not None
        return dict(row)

    async def rivals(
        self, execution_id: ExecutionId | None, job_id: JobId, queue: str, limit_key: str | None
    ) -> dict[str, list[Rival]]:
        """Who may stand in the way, by relation: `job`, `limit`, `queue`."""
        rows = await self._database.fetch(
            "rivals",
            id=execution_id or _NOBODY,
            job_id=job_id,
            queue=queue,
            limit_key=limit_key,
            most=MOST_RIVALS,
        )
        usual = await self._usual_of(rows)
        found: dict[str, list[Rival]] = {"job": [], "limit": [], "queue": []}
        for row in rows:
            found[row["relation"]].append(_rival(row, usual))
        return found

    async def on_workers(self, holders: Collection[Incarnation]) -> list[Rival]:
        """What these workers run, the longest running first."""
        rows = await self._database.fetch("on_workers", holders=list(holders), most=MOST_RIVALS)
        usual = await self._usual_of(rows)
        return [_rival(row, usual) for row in rows]

    async def place_in_line(self, execution: Execution) -> int:
        """How many stand before an execution that is ready."""
        ahead: int = await self._database.fetch_value(
            "place_in_line",
            queue=execution.queue,
            priority=execution.priority,
            run_at=execution.run_at,
            most=MOST_AHEAD,
        )
        return min(ahead, MOST_AHEAD)

    async def usual(self, job_id: JobId, handler: str) -> Usual | None:
        """How long executions of a job usually take."""
        return (await usual_durations(self._database, [job_id])).of(job_id, handler)

    async def _usual_of(self, rows: Sequence[Any]) -> Durations:
        job_ids = {JobId(row["job_id"]) for row in rows}
        return await usual_durations(self._database, job_ids) if rows else Durations({}, {})


def is_parked(run_at: datetime | None) -> bool:
    """Whether a row waits for a person, not for a time."""
    return run_at is not None and run_at >= PARKED_AT


def _rival(row: Any, durations: Durations) -> Rival:
    job_id = JobId(row["job_id"])
    return Rival(
        id=ExecutionId(row["id"]),
        job_id=job_id,
        room=Room(row["room"]),
        started_at=row["started_at"],
        usual=durations.of(job_id, row["handler"]),
    )
