"""What follows executions, and what they follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeball.domain.follow_ups import ExecutionLinks
from timeball.domain.payload_references import CauseRecord
from timeball.domain.values.ids import ExecutionId, JobId

if TYPE_CHECKING:
    from timeball.store.db.database import Database


class FollowUpStore:
    """Reads the links between executions. The statement that ends an execution writes what follows it (`timeball.follow_up`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cause_of(self, job_id: JobId) -> CauseRecord | None:
        """The execution that a one-off follows; None if it follows none."""
        row = await self._database.fetch_row("cause_of", job_id=job_id)
        if row is None:
            return None
        error = f"{row['error_type']}: {row['error']}" if row["error_type"] and row["error"] else row["error"]
        return CauseRecord(id=ExecutionId(row["cause_id"]), state=row["state"], result=row["result"], error=error)

    async def links(self, execution_id: ExecutionId, job_id: JobId) -> ExecutionLinks:
        """The execution that one follows, and those that follow it."""
        rows = await self._database.fetch("links_of_execution", id=execution_id, job_id=job_id)
        before = next((ExecutionId(row["id"]) for row in rows if row["link"] == "follows"), None)
        return ExecutionLinks(before, [ExecutionId(row["id"]) for row in rows if row["link"] != "follows"])
