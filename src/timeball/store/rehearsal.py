"""What a test asks of the database it has for itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from timeball.domain.execution import Execution
from timeball.store.database import Database, Record
from timeball.store.rows import execution_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """An execution, and what its job says of it."""

    execution: Execution
    payload: Any
    job_name: str | None
    timezone: str


class RehearsalLog:
    """Reads everything at once: the database of a test is small."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def next_instant(self) -> datetime | None:
        """The next instant after now at which something is to happen."""
        found: datetime | None = await self._database.fetch_value("next_instant")
        return found

    async def executions(self) -> list[Rehearsed]:
        """Every execution there is, in the order of their instants."""
        return [_rehearsed(row) for row in await self._database.fetch("rehearsed_executions")]


def _rehearsed(row: Record) -> Rehearsed:
    return Rehearsed(
        execution=execution_from(row),
        payload=orjson.loads(row["payload_text"]),
        job_name=row["job_name"],
        timezone=row["job_timezone"],
    )
