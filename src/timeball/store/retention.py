"""What has outlived its use: forgotten in small steps, so that nobody waits for it.

Days of history are dropped whole (`history.py`). Here is what stands beside them: who was dealt with, what was skipped, who changed
what, which requests were answered, the jobs that have nothing left to show, and the limits that nobody shares any more. Queues that
people paused or limited stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from uuid import UUID

from timeball.store.connections import Connection
from timeball.store.database import Database
from timeball.store.idempotency import KEEP

_BATCH = 2_000
_FIRST_ID = UUID(int=0)


class Retention:
    """Forgets. Each verb returns how many rows went."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def days_outside(self, limit: int) -> list[date]:
        """Days gone by that have records outside partitions of their own."""
        return [row["day"] for row in await self._database.fetch("days_outside", limit=limit)]

    async def settled(self, before: datetime) -> int:
        """Forget which dead executions were dealt with; their history has gone by then."""
        return await self._trim("trim_settled", before)

    async def skip_ranges(self, before: datetime) -> int:
        """Forget what was skipped before the history begins, and recorded before that instant."""
        return await self._trim("trim_skip_range", before)

    async def audit(self, before: datetime) -> int:
        """Forget who changed what."""
        return await self._trim("trim_audit", before)

    async def requests(self, now: datetime) -> int:
        """Forget the answers to requests whose idempotency keys have run out."""
        return await self._trim("trim_idempotency_key", now - KEEP)

    async def _trim(self, statement: str, before: datetime) -> int:
        forgotten = 0
        while True:
            rows = await self._database.fetch(statement, before=before, limit=_BATCH)
            forgotten += len(rows)
            if len(rows) < _BATCH:
                return forgotten

    async def deleted_jobs(self, before: datetime) -> int:
        """Remove jobs that were deleted, with their versions, once no execution of them is left."""
        forgotten, last = 0, _FIRST_ID
        while True:
            rows = await self._database.fetch("deleted_jobs", before=before, after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["id"]
            forgotten += await self._spent_jobs([row["id"] for row in rows], before, partition=0, own_is_there=False)

    async def limits(self) -> int:
        """Forget the limits that no job and no execution names."""
        forgotten, last = 0, ""
        while True:
            rows = await self._database.fetch("unused_limits", after=last, limit=_BATCH)
            if not rows:
                return forgotten
            last = rows[-1]["key"]
            forgotten += await self._unused_limits([row["key"] for row in rows])

    async def _unused_limits(self, keys: Sequence[str]) -> int:
        async def work(connection: Connection) -> int:
            await self._database.fetch("lock_limits", connection, keys=list(keys))
            return len(await self._database.fetch("trim_limits", connection, keys=list(keys)))

        removed: int = await self._database.repeat(work)
        return removed

    async def one_offs(self, ids: Sequence[UUID], partition: int, *, own_is_there: bool) -> int:
        """Remove those of the jobs that are nameless one-offs, and have no execution outside of a partition.

        *own_is_there*: the execution that each of them was enqueued with is known to lie in that partition.
        """
        return await self._spent_jobs(ids, None, partition=partition, own_is_there=own_is_there)

    async def _spent_jobs(
        self, ids: Sequence[UUID], before: datetime | None, *, partition: int, own_is_there: bool
    ) -> int:
        async def work(connection: Connection) -> int:
            locked = await self._database.fetch("lock_jobs", connection, ids=list(ids), before=before)
            own = [row["id"] for row in locked]
            gone = await self._database.fetch(
                "delete_spent_jobs", connection, ids=own, partition=partition, own_is_there=own_is_there
            )
            return len(gone)

        removed: int = await self._database.repeat(work)
        return removed
