"""Pauses and limits of queues, and their purge; every change is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from timeball.domain.wakeup import Wakeup
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore
    from timeball.store.types import AuditEntry

_PURGE_BATCH = 2_000


class QueueStore:
    """The pauses and limits of queues."""

    def __init__(self, database: Database, notifier: Notifier, executions: ExecutionStore) -> None:
        self._database = database
        self._notifier = notifier
        self._executions = executions

    async def change(
        self,
        name: str,
        *,
        is_paused: bool | None = None,
        max_running: int | EllipsisType | None = ...,
        reason: str | None,
        audit: AuditEntry,
        action: str,
    ) -> None:
        """Pause or limit a queue, from the next claim on. Executions that were claimed before count for the limit.

        A value that is not given stays as it is, also if another caller changes it at the same moment. *reason* is that of the pause.
        """
        limits = not isinstance(max_running, EllipsisType)
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            if limits and max_running is not None:
                await self._database.fetch("lock_out_claims", connection)
            before = await self._database.fetch_row("queue_to_set", connection, name=name)
            after = await self._database.fetch_row(
                "set_queue",
                connection,
                name=name,
                is_paused=is_paused,
                reason=reason,
                limits=limits,
                max_running=max_running if limits else None,
            )
            old = None if before is None else _queue_facts(before)
            await write_audit(
                self._database, connection, note, audit, action, f"queue:{name}", old, _queue_facts(after)
            )
            await self._executions.mark_queue_limited(connection)

        await self._database.once(work, note)
        wakeup = Wakeup(look_everywhere=True)
        self._notifier.tell(wakeup)

    async def purge(self, name: str, reason: str, audit: AuditEntry) -> int:
        """Cancel all executions of a queue that are queued and not claimed, all or none; returns their number."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> tuple[int, set[str]]:
            cancelled, freed = 0, set[str]()
            while rows := await self._database.fetch("waiting_in_queue", connection, queue=name, limit=_PURGE_BATCH):
                ids = [row["id"] for row in rows]
                gone = await self._database.fetch("cancel_waiting", connection, ids=ids, reason=reason)
                if not gone:  # all of them were claimed in between
                    break
                cancelled += len(gone)
                freed |= {row["limit_key"] for row in gone if row["limit_key"] is not None}
            await write_audit(
                self._database, connection, note, audit, "queue.purge", f"queue:{name}", None, {"cancelled": cancelled}
            )
            return cancelled, freed

        cancelled, freed = await self._database.once(work, note)
        await self._executions.unblock_after_commit(sorted(freed))
        return int(cancelled)

    async def find(self, name: str) -> Mapping[str, Any] | None:
        """The pause and limit of a queue; None if it has neither."""
        row = await self._database.fetch_row("find_queue", name=name)
        return None if row is None else dict(row)


def _queue_facts(row: Any) -> dict[str, Any]:
    return {"is_paused": row["paused_at"] is not None, "max_running": row["max_running"]}
