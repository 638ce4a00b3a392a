"""Freezes: written while claims and promotions are shut out, so that none of them misses one; audited in their own transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from timeball.domain.freeze import Afterwards, Freeze, FreezeId, FreezeList, FreezeScope
from timeball.domain.values.ids import JobId
from timeball.domain.wakeup import Wakeup
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry


async def read_freezes(database: Database) -> FreezeList:
    """Every freeze that is kept, those that are over included."""
    freezes = [_freeze_from(row) for row in await database.fetch("all_freezes")]
    return FreezeList(max((freeze.epoch for freeze in freezes), default=0), freezes)


async def read_tags(database: Database, job_ids: Collection[JobId], tags: Collection[str]) -> Mapping[JobId, set[str]]:
    """Which of these tags the jobs have; jobs with none of them are missing."""
    found: dict[JobId, set[str]] = {}
    if tags:
        for row in await database.fetch("tags_of_jobs", job_ids=list(job_ids), tags=list(tags)):
            found.setdefault(JobId(row["job_id"]), set()).add(row["tag"])
    return found


class FreezeStore:
    """The freezes of this installation."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier

    async def list(self) -> FreezeList:
        """Every freeze that is kept, those that are over included."""
        return await read_freezes(self._database)

    async def find(self, freeze_id: FreezeId) -> Freeze | None:
        """One freeze."""
        row = await self._database.fetch_row("find_freeze", id=freeze_id)
        return None if row is None else _freeze_from(row)

    async def tags_of(self, job_ids: Sequence[JobId], tags: Collection[str]) -> Mapping[JobId, set[str]]:
        """Which of these tags the jobs have; jobs with none of them are missing."""
        return await read_tags(self._database, job_ids, tags)

    async def add(
        self,
        freeze_id: FreezeId,
        scope: FreezeScope,
        target: str | None,
        job_id: JobId | None,
        *,
        since: datetime | None,
        until: datetime,
        afterwards: Afterwards,
        audit: AuditEntry,
    ) -> Freeze | None:
        """Write a freeze; None if its end has passed. From its commit on nothing in its scope is promoted or claimed.

        It begins at *since*, or now if that has passed or is not given.
        """

        async def work(connection: Connection) -> Freeze | None:
            await self._lock(connection)
            row = await self._database.fetch_row(
                "add_freeze",
                connection,
                **{
                    "id": freeze_id,
                    "queue": target if scope is FreezeScope.QUEUE else None,
                    "tag": target if scope is FreezeScope.TAG else None,
                    "job_id": job_id,
                    "from": since,
                    "until": until,
                    "afterwards": afterwards.value,
                    "actor": audit.actor,
                    "reason": audit.reason,
                },
            )
            if row is None:
                return None
            freeze = _freeze_from(row)
            await self._note(connection, audit, "freeze.create", freeze, None)
            return freeze

        freeze: Freeze | None = await self._database.once(work, freeze_id, found_by="find_freeze")
        self._notifier.tell(Wakeup(look_everywhere=True))
        return freeze

    async def end(self, freeze_id: FreezeId, audit: AuditEntry) -> Freeze | None:
        """End a freeze before its time; None if it is over, or unknown. What it held back goes on."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Freeze | None:
            await self._lock(connection)
            before = await self._database.fetch_row("find_freeze", connection, id=freeze_id)
            row = await self._database.fetch_row("end_freeze", connection, id=freeze_id, actor=audit.actor)
            if before is None or row is None:
                return None
            await self._database.fetch("thaw", connection, until=before["until_at"])
            freeze = _freeze_from(row)
            await self._note(connection, audit, "freeze.end", freeze, _freeze_from(before), note)
            return freeze

        freeze: Freeze | None = await self._database.once(work, note)
        self._notifier.tell(Wakeup(look_everywhere=True))
        return freeze

    async def note_end(self, freeze_id: FreezeId, audit: AuditEntry) -> bool:
        """Write into the audit that a freeze is over, once; False if another node did."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> bool:
            row = await self._database.fetch_row("note_ended_freeze", connection, id=freeze_id)
            if row is not None:
                await self._note(connection, audit, "freeze.end", _freeze_from(row), None, note)
            return row is not None

        is_noted: bool = await self._database.once(work, note)
        if is_noted:
            self._notifier.tell(Wakeup(look_everywhere=True))
        return is_noted

    async def _lock(self, connection: Connection) -> None:
        await self._database.fetch("lock_out_claims", connection)
        await self._database.fetch("lock_out_promotions", connection)

    async def _note(
        self,
        connection: Connection,
        audit: AuditEntry,
        action: str,
        freeze: Freeze,
        before: Freeze | None,
        note: Any = None,
    ) -> None:
        old = None if before is None else _freeze_facts(before)
        note = note or self._database.env.new_id()
        await write_audit(
            self._database, connection, note, audit, action, f"freeze:{freeze.id}", old, _freeze_facts(freeze)
        )


def _freeze_facts(freeze: Freeze) -> dict[str, Any]:
    return {
        "scope": freeze.scope.value,
        "target": freeze.target or (None if freeze.job_id is None else str(freeze.job_id)),
        "from": freeze.from_at.isoformat(),
        "until": freeze.until_at.isoformat(),
        "afterwards": freeze.afterwards.value,
    }


def _freeze_from(row: Any) -> Freeze:
    scope = FreezeScope.INSTALLATION
    for word in (FreezeScope.QUEUE, FreezeScope.TAG):
        if row[word.value] is not None:
            scope = word
    if row["job_id"] is not None:
        scope = FreezeScope.JOB
    return Freeze(
        id=FreezeId(row["id"]),
        scope=scope,
        target=row["queue"] or row["tag"],
        job_id=None if row["job_id"] is None else JobId(row["job_id"]),
        from_at=row["from_at"],
        until_at=row["until_at"],
        afterwards=Afterwards(row["afterwards"]),
        actor=row["actor"],
        reason=row["reason"],
        created_at=row["created_at"],
        ended_by=row["ended_by"],
        epoch=row["epoch"],
    )
