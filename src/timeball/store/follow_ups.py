"""What follows executions, what they follow, and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState
from timeball.domain.follow_ups import ExecutionLinks, GroupState, GroupStatus, calls_in
from timeball.domain.job import CauseJob
from timeball.domain.payload_references import CauseRecord
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.values.ids import ExecutionId, JobId, first_id_at, format_job_id
from timeball.domain.values.json_text import MAX_PAYLOAD_BYTES, dropped_result, missing_result
from timeball.domain.wakeup import Wakeup
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry

_MOST_NAMED = 5
_MOST_AUDITED = 20


async def hold_causes(
    database: Database, names: Collection[str], connection: WithinConnection | None
) -> dict[str, CauseJob]:
    """The jobs of these names, locked until the end of the transaction; what they run from their next occurrence on is followed.

    No other transaction gives a job a cause meanwhile, so that two of them cannot close a circle.
    """
    await database.fetch("lock_out_other_causes", connection)
    return {
        row["name"]: await _hold_cause(database, row, connection)
        for row in await database.fetch("lock_causes", connection, names=sorted(names))
    }


async def _hold_cause(database: Database, row: Any, connection: WithinConnection | None) -> CauseJob:
    await database.fetch("mark_followed", connection, id=row["id"])
    # Repeated: a promotion that is under way writes the next occurrence, which only the next statement sees.
    while await database.fetch_value("is_occurrence_unmarked", connection, id=row["id"]):
        await database.fetch("mark_occurrence_followed", connection, id=row["id"])
    promoted = await database.fetch_row(
        "promoted_until", connection, job_ids=[row["id"]], first_ahead=first_id_at(row["moment"])
    )
    chain = await database.fetch("chain_of_causes", connection, id=row["id"])
    return CauseJob(
        id=JobId(row["id"]),
        name=row["name"],
        kind=ScheduleKind(row["kind"]),
        since=row["moment"] if promoted is None else max(row["moment"], promoted["scheduled_for"]),
        chain=tuple((JobId(step["id"]), step["name"] or format_job_id(step["id"])) for step in chain[1:]),
    )


class FollowUpStore:
    """Begins groups, and reads the links between executions.

    The statement that ends an execution writes what follows it (`timeball.follow_up`), and what follows its group (`timeball.end_part`, and
    `timeball.end_parts` for all successes of a statement at once).
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
        meta: Mapping[str, Any] | None = None,
    ) -> UUID:
        """Write a group and what can start of it now, in one statement; once under the same *root* and instant. Returns its id.

        All of its calls have the *meta*, beside their own.
        """
        rows = await self._database.fetch(
            "begin_group",
            connection,
            work=orjson.dumps(work).decode(),
            root=root,
            at=at,
            created_by=created_by,
            meta=None if meta is None else orjson.dumps(meta).decode(),
        )
        if connection is None:
            self._notifier.tell(Wakeup(look_everywhere=True))
        return UUID(str(rows[0]["id"]))

    async def begin_audited_group(
        self,
        work: Mapping[str, Any],
        root: UUID,
        at: datetime,
        created_by: str,
        *,
        meta: Mapping[str, Any] | None,
        note: UUID,
        audit: AuditEntry,
    ) -> UUID:
        """The same, with the line of the audit that has the id *note*, in one transaction; once under the same root and note."""

        async def write(connection: Connection) -> UUID:
            group_id = await self.begin_group(work, root, at, created_by, connection, meta)
            if await self._database.fetch_row("find_note", connection, id=note) is None:
                kind = "chain" if "chain" in work else "group"
                facts = {
                    "parts": len(work[kind]),
                    "handlers": sorted({call["handler"] for _, call in calls_in(work)})[:_MOST_AUDITED],
                }
                subject = f"group:{group_id}"
                await write_audit(self._database, connection, note, audit, "group.create", subject, None, facts)
            return group_id

        group_id: UUID = await self._database.once(write, note)
        self._notifier.tell(Wakeup(look_everywhere=True))
        return group_id

    async def find_group(self, group_id: UUID) -> GroupStatus | None:
        """A group as it stands; None if there is none."""
        row = await self._database.fetch_row("read_groups", ids=[group_id])
        return None if row is None else group_from(row)

    async def cancel_group(self, group_id: UUID) -> list[ExecutionId]:
        """Let the chains of a group, and of the groups in it, begin no further step; returns the unfinished executions of all of them."""
        await self._database.fetch("cancel_group", id=group_id)
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
        named = [f"part {row['number']}: {_why_failed(row)}" for row in failed[:_MOST_NAMED]]
        return f"{len(failed)} of {len(rows)} failed; {'; '.join(named)}"

    async def links(self, execution_id: ExecutionId, job_id: JobId) -> ExecutionLinks:
        """What an execution follows, the executions that follow it, and the part of a group that it belongs to."""
        rows = await self._database.fetch("links_of_execution", id=execution_id, job_id=job_id)
        causes = {row["link"]: row["id"] for row in rows if row["link"] in ("follows", "follows_group")}
        group_id, part = await self.part_of(execution_id, job_id)
        return ExecutionLinks(
            follows=ExecutionId(causes["follows"]) if "follows" in causes else None,
            followed_by=[ExecutionId(row["id"]) for row in rows if row["link"] not in causes],
            follows_group=causes.get("follows_group"),
            group_id=group_id,
            part=part,
        )

    async def part_of(self, execution_id: ExecutionId, job_id: JobId) -> tuple[UUID | None, int | None]:
        """The innermost group that an execution belongs to, and the number of its part; a retry by hand belongs to none."""
        row = await self._database.fetch_row("group_of_execution", job_id=job_id) if job_id == execution_id else None
        return (None, None) if row is None else (row["group_id"], row["number"])


def _why_failed(row: Any) -> str:
    # The last step of a chain that was cancelled may have succeeded.
    state = "cancelled" if row["state"] == ExecutionState.SUCCEEDED else row["state"]
    return str(row["error"] or state or "failed")


class _ResultMissing(Exception):
    """A part of a group has a result that was not kept."""


def group_from(row: Any) -> GroupStatus:
    """A group as `read_groups` reads it."""
    return GroupStatus(
        id=UUID(str(row["id"])),
        state=GroupState(row["state"]),
        total=row["total"],
        succeeded=row["succeeded"],
        failed=row["failed"],
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        outer=row["group_id"],
        meta=None if row["meta"] is None else orjson.loads(row["meta"]),
        created_by=row["created_by"],
        handler=row["handler"],
    )
