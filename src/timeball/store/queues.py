"""Queues: paused, limited."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

from timeball.domain.hints import Hints
from timeball.store.connections import Connection
from timeball.store.placing import AuditEntry, Placing

_PURGED_AT_ONCE = 2_000


class Queues(Placing):
    """What people say about queues."""

    async def set_queue(
        self,
        name: str,
        *,
        is_paused: bool | None = None,
        max_running: int | EllipsisType | None = ...,
        reason: str | None,
        audit: AuditEntry,
        action: str,
    ) -> None:
        """Pause or limit a queue; takes effect with the next claim, and what was claimed before counts.

        What is not given stays as it is, whoever else is changing it at the same moment; *reason* goes with the pause.
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
            old = None if before is None else _facts(before)
            await self.audit(connection, note, audit, action, f"queue:{name}", old, _facts(after))
            await self._rooms.mark_queue_limited(connection)

        await self._database.once(work, note)
        hints = Hints(look_everywhere=True)
        self._hinter.tell(hints)

    async def purge(self, name: str, reason: str, audit: AuditEntry) -> int:
        """Cancel everything that is queued in a queue and has not been claimed, all or nothing; returns how much that was."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> tuple[int, set[str]]:
            cancelled, freed = 0, set[str]()
            while rows := await self._database.fetch("waiting_in_queue", connection, queue=name, limit=_PURGED_AT_ONCE):
                ids = [row["id"] for row in rows]
                gone = await self._database.fetch("cancel_waiting", connection, ids=ids, reason=reason)
                if not gone:  # claimed meanwhile, all of them
                    break
                cancelled += len(gone)
                freed |= {row["limit_key"] for row in gone if row["limit_key"] is not None}
            await self.audit(connection, note, audit, "queue.purge", f"queue:{name}", None, {"cancelled": cancelled})
            return cancelled, freed

        cancelled, freed = await self._database.once(work, note)
        await self._let_in(sorted(freed))
        return int(cancelled)

    async def queue(self, name: str) -> Mapping[str, Any] | None:
        """A queue's pause and limit, if it has either."""
        row = await self._database.fetch_row("find_queue", name=name)
        return None if row is None else dict(row)


def _facts(row: Any) -> dict[str, Any]:
    return {"is_paused": row["paused_at"] is not None, "max_running": row["max_running"]}
