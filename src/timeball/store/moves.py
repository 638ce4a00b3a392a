"""What all moves between rooms share: the way from `blocked` to `ready`, which every move may open for another, and wishes to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, Incarnation, JobId
from timeball.store.connections import Connection
from timeball.store.database import Database
from timeball.store.hinter import Hinter

SUPERSEDED = "superseded by the next occurrence"


class Moves:
    """Lets in what waited for a place, and asks holders to stop."""

    def __init__(self, database: Database, hinter: Hinter, shards: int) -> None:
        self._database = database
        self._hinter = hinter
        self._shards = shards

    async def promote(self, keys: Sequence[str]) -> None:
        """Let blocked executions of these limits into `ready` while there are places."""

        async def work(connection: Connection) -> list[Any]:
            await self._database.fetch("lock_limits", connection, keys=list(keys))
            return await self._database.fetch("promote", connection, keys=list(keys))

        hints = Hints()
        for row in await self._database.repeat(work):
            hints.add_lane(row["queue"], row["priority"], row["run_at"], 1)
        self._hinter.tell(hints)

    async def blocked_keys(self, behind: str, limit: int) -> list[str]:
        """The limits somebody waits for, in their order: the first few behind one of them."""
        rows = await self._database.fetch("blocked_keys", behind=behind, limit=limit)
        return [row["limit_key"] for row in rows]

    async def stop(self, ids: Sequence[ExecutionId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these to stop; returns those that are running."""
        return self._hint_holders(await self._database.fetch("request_stop", ids=list(ids), reason=reason))

    async def stop_jobs(self, job_ids: Sequence[JobId], reason: str) -> set[ExecutionId]:
        """Ask the holders of these jobs' executions to stop."""
        rows = await self._database.fetch("request_stop_of_jobs", job_ids=list(job_ids), reason=reason)
        return self._hint_holders(rows)

    async def stop_superseded(self, keys: Sequence[str]) -> set[ExecutionId]:
        """Ask the holders of those to stop for which a later occurrence waits behind one of these limits, where their job wants that."""
        rows = await self._database.fetch("request_stop_of_superseded", keys=list(keys), reason=SUPERSEDED)
        return self._hint_holders(rows)

    def _hint_holders(self, rows: Sequence[Any]) -> set[ExecutionId]:
        hints = Hints()
        hints.add_holders(row["holder"] for row in rows)
        self._hinter.tell(hints)
        return {ExecutionId(row["id"]) for row in rows}

    async def stops(self, incarnation: Incarnation) -> dict[ExecutionId, str]:
        """What this holder has been asked to stop, and why."""
        rows = await self._database.fetch("stops", incarnation=incarnation)
        return {ExecutionId(row["id"]): row["stop"] for row in rows}
