"""What follows executions, what they follow, and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.follow_ups import ExecutionLinks, GroupState, GroupStatus
from timeball.domain.payload_references import CauseRecord
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.values.json_text import MAX_PAYLOAD_BYTES, dropped_result, missing_result
from timeball.domain.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.db.notifier import Notifier

_MOST_NAMED = 5


class FollowUpStore:
    """Begins groups, and reads the links between executions.

    The statement that ends an execution writes what follows it (`timeball.follow_up`), and what follows its group (`timeball.end_part`).
    """

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier

    async def begin_group(
        self,
        work: Mapping[str, Any],
        root: UUID,
        at: datetime,
        created_by: str,
        connection: WithinConnection | None = None,
    ) -> UUID:
        """Write a group and what can start of it now, in one statement; once under the same *root* and instant. Returns its id."""
        rows = await self._database.fetch(
            "begin_group", connection, work=orjson.dumps(work).decode(), root=root, at=at, created_by=created_by
        )
        if connection is None:
            self._notifier.tell(Wakeup(look_everywhere=True))
        return UUID(str(rows[0]["id"]))

    async def find_group(self, group_id: UUID) -> GroupStatus | None:
        """A group as it stands; None if there is none."""
        row = await self._database.fetch_row("find_group", id=group_id)
        return None if row is None else _group_from(row)

    async def unfinished_of_group(self, group_id: UUID) -> list[ExecutionId]:
        """The unfinished executions of a group, and of the groups in it."""
        return [ExecutionId(row["id"]) for row in await self._database.fetch("unfinished_of_group", id=group_id)]

    async def results(self, group_id: UUID) -> str:
        """What the parts of a group returned, as a JSON list in their order; a note in its place if it is too large, or one is missing."""
        size = await self._database.fetch_value("size_of_results", id=group_id)
        if size > MAX_PAYLOAD_BYTES:
            return dropped_result(
                f"the results of its parts have {size:,} bytes, expected at most {MAX_PAYLOAD_BYTES:,}"
            )
        try:
            return orjson.dumps(await self._results(group_id)).decode()
        except _ResultMissing as missing:
            return dropped_result(str(missing))

    async def _results(self, group_id: UUID) -> list[Any]:
        results: list[Any] = []
        for row in await self._database.fetch("ends_of_group", id=group_id):
            if row["is_group"]:
                results.append(await self._results(row["ended_by"]))
                continue
            result = None if row["result"] is None else orjson.loads(row["result"])
            why = "its record is gone" if row["state"] is None else missing_result(result)
            if why is not None:
                raise _ResultMissing(f"that of part {row['number']} is missing: {why}")
            results.append(result)
        return results

    async def cause_of(self, job_id: JobId) -> CauseRecord | None:
        """The execution or group that a one-off follows; None if it follows none."""
        row = await self._database.fetch_row("cause_of", job_id=job_id)
        if row is None:
            return None
        id_, group_state = UUID(str(row["cause_id"])), row["group_state"]
        if group_state is not None:
            has_succeeded = group_state == GroupState.SUCCEEDED
            return CauseRecord(
                id=id_,
                state=group_state,
                result=await self.results(id_) if has_succeeded else None,
                error=None if has_succeeded else await self._errors(id_),
                is_group=True,
            )
        error = f"{row['error_type']}: {row['error']}" if row["error_type"] and row["error"] else row["error"]
        return CauseRecord(id=id_, state=row["state"], result=row["result"], error=error)

    async def _errors(self, group_id: UUID) -> str:
        rows = await self._database.fetch("ends_of_group", id=group_id)
        failed = [row for row in rows if row["part_state"] == GroupState.FAILED]
        named = [f"part {row['number']}: {row['error'] or row['state'] or 'failed'}" for row in failed[:_MOST_NAMED]]
        return f"{len(failed)} of {len(rows)} failed; {'; '.join(named)}"

    async def links(self, execution_id: ExecutionId, job_id: JobId) -> ExecutionLinks:
        """The execution that one follows, and those that follow it."""
        rows = await self._database.fetch("links_of_execution", id=execution_id, job_id=job_id)
        before = next((ExecutionId(row["id"]) for row in rows if row["link"] == "follows"), None)
        return ExecutionLinks(before, [ExecutionId(row["id"]) for row in rows if row["link"] != "follows"])


class _ResultMissing(Exception):
    """A part of a group has a result that was not kept."""


def _group_from(row: Any) -> GroupStatus:
    return GroupStatus(
        id=UUID(str(row["id"])),
        state=GroupState(row["state"]),
        total=row["total"],
        succeeded=row["succeeded"],
        failed=row["failed"],
        created_at=row["created_at"],
        closed_at=row["closed_at"],
    )
