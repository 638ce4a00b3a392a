"""Pauses and limits of queues, and their purge; every change is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.explain.facts import QueueInterval
from timeball.domain.freeze import FreezeId
from timeball.domain.values.ids import JobId
from timeball.domain.wakeup import Wakeup
from timeball.store.db.columns import write_audit
from timeball.store.db.pool import REFUSED

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection
    from timeball.store.executions import ExecutionStore
    from timeball.store.freezes import FreezeStore
    from timeball.store.types import AuditEntry

_PURGE_BATCH = 2_000


class QueueStore:
    """The pauses and limits of queues."""

    def __init__(
        self, database: Database, notifier: Notifier, executions: ExecutionStore, freezes: FreezeStore
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._executions = executions
        self._freezes = freezes

    async def change(
        self,
        name: str,
        *,
        is_paused: bool | None = None,
        until: datetime | None = None,
        max_running: int | EllipsisType | None = ...,
        reason: str | None,
        audit: AuditEntry,
        action: str,
    ) -> None:
        """Pause or limit a queue, from the next claim on. Executions that were claimed before count for the limit.

        A value that is not given stays as it is, also if another caller changes it at the same moment. *reason* and *until* are those of
        the pause.
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
                until=until,
                reason=reason,
                limits=limits,
                max_running=max_running if limits else None,
            )
            await self._note(connection, note, before, after, audit, action)
            if is_paused is not None:
                await self._record(connection, name, "pause", None, audit, lasts=is_paused)
            if not isinstance(max_running, EllipsisType):
                await self._record(connection, name, "limit", max_running, audit, lasts=max_running is not None)
            await self._executions.mark_queue_limited(connection)

        await self._database.once(work, note)
        self._notifier.tell(Wakeup(look_everywhere=True))

    async def expect(
        self,
        name: str,
        *,
        max_oldest_wait_seconds: int | EllipsisType | None = ...,
        must_be_served: bool | None,
        audit: AuditEntry,
    ) -> None:
        """Say what is expected of a queue; a value that is not given stays as it is."""
        waits = not isinstance(max_oldest_wait_seconds, EllipsisType)
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = await self._database.fetch_row("queue_to_set", connection, name=name)
            after = await self._database.fetch_row(
                "set_queue_expectation",
                connection,
                name=name,
                waits=waits,
                max_oldest_wait_seconds=max_oldest_wait_seconds if waits else None,
                must_be_served=must_be_served,
            )
            assert after is not None
            old = None if before is None else _expectation_facts(before)
            subject, facts = f"queue:{name}", _expectation_facts(after)
            await write_audit(self._database, connection, note, audit, "queue.expect", subject, old, facts)

        await self._database.once(work, note)

    async def tend(self, audit: AuditEntry) -> list[JobId]:
        """Make executions count for the limits of their queues, resume the queues whose pause is over, note which freezes are, and close
        groups whose parts have all ended.

        Each is resumed and noted once, however many nodes try. Returns the jobs of which an execution has died, if they are to be
        paused after some: see `JobStore.pause_if_failing`.
        """
        failing: list[JobId] = []
        for row in await self._database.fetch("tend_queues"):
            if row["freeze_id"] is not None:
                await self._freezes.note_end(FreezeId(row["freeze_id"]), audit)
            elif row["group_id"] is not None:
                # One that cannot be closed must not keep this from the others; `verify` names it.
                with suppress(*REFUSED):
                    await self._database.fetch("close_group", id=row["group_id"])
            elif row["job_id"] is not None:
                failing.append(JobId(row["job_id"]))
            else:
                await self._resume_if_over(row["name"], audit)
        return failing

    async def _resume_if_over(self, name: str, audit: AuditEntry) -> None:
        note = self._database.env.new_id()

        async def work(connection: Connection) -> bool:
            before = await self._database.fetch_row("queue_to_resume", connection, name=name)
            if before is None:
                return False
            after = await self._database.fetch_row(
                "set_queue",
                connection,
                name=name,
                is_paused=False,
                until=None,
                reason=None,
                limits=False,
                max_running=None,
            )
            await self._note(connection, note, before, after, audit, "queue.resume")
            await self._record(connection, name, "pause", None, audit, lasts=False)
            return True

        if await self._database.once(work, note):
            self._notifier.tell(Wakeup(look_everywhere=True))

    async def _note(
        self, connection: Connection, note: UUID, before: Any, after: Any, audit: AuditEntry, action: str
    ) -> None:
        old = None if before is None else _queue_facts(before)
        await write_audit(
            self._database, connection, note, audit, action, f"queue:{after['name']}", old, _queue_facts(after)
        )

    async def _record(
        self, connection: Connection, name: str, kind: str, value: int | None, audit: AuditEntry, *, lasts: bool
    ) -> None:
        """Write down when a pause or limit began and ended, by whom and why."""
        await self._database.fetch("close_queue_interval", connection, queue=name, kind=kind)
        if lasts:
            await self._database.fetch(
                "open_queue_interval",
                connection,
                queue=name,
                kind=kind,
                value=value,
                actor=audit.actor,
                reason=audit.reason,
            )

    async def intervals(self, name: str, since: datetime, until: datetime) -> list[QueueInterval]:
        """The pauses and limits of a queue that touch a span, the earliest first; one that lasts has no end."""
        rows = await self._database.fetch("queue_intervals", queue=name, since=since, until=until)
        return [QueueInterval(*row) for row in rows]

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


def _expectation_facts(row: Any) -> dict[str, Any]:
    return {"max_oldest_wait_seconds": row["max_oldest_wait_seconds"], "must_be_served": row["must_be_served"]}


def _queue_facts(row: Any) -> dict[str, Any]:
    until = {} if row["paused_until"] is None else {"until": row["paused_until"].isoformat()}
    return {"is_paused": row["paused_at"] is not None, **until, "max_running": row["max_running"]}
