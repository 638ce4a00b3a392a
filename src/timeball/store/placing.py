"""What all writes to jobs share: the audit, and what follows when rows have been placed in the rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import orjson

from timeball.domain.hints import Hints
from timeball.domain.job import Job
from timeball.domain.redaction import redacted
from timeball.errors import StoreUnavailable
from timeball.store.connections import Connection
from timeball.store.database import Database
from timeball.store.hinter import Hinter
from timeball.store.rooms import Rooms
from timeball.store.rows import job_columns

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who does something, why, and from where."""

    actor: str
    reason: str | None = None
    place: str | None = None


class Placing:
    """Places rows, tells those who wait for them, and writes down who did it."""

    def __init__(self, database: Database, hinter: Hinter, rooms: Rooms, hoist_window: timedelta) -> None:
        self._database = database
        self._hinter = hinter
        self._rooms = rooms
        self._hoist_window = hoist_window

    async def _carrying(self, hints: Hints | None, write: Callable[[str | None], Awaitable[Result]]) -> Result:
        """Have a statement carry hints along; if it fails, they go another way, for they announce the work of others too."""
        if hints is None:
            return await write(None)
        try:
            return await write(hints.encode())
        except Exception:
            self._hinter.tell(hints)
            raise

    async def _after_placing(self, rows: Sequence[Any], *, is_hinted: bool) -> None:
        hints = Hints()
        for row in rows:
            if row["room"] == "ready" and not is_hinted:
                hints.add_lane(row["queue"], row["priority"], row["run_at"], 1, row["execution_id"])
            elif row["room"] == "due":
                hints.add_shard(row["shard"], row["run_at"])
        self._hinter.tell(hints)
        limits = sorted({row["limit_key"] for row in rows if row["room"] == "blocked"})
        await self._let_in(limits)

    async def _let_in(self, limits: Sequence[str]) -> None:
        """Let in what waits for these limits, now that something else is committed: to fail here must not look as if that had failed."""
        if limits:
            # The reaper looks, every few seconds, for what was left waiting.
            with suppress(StoreUnavailable):
                await self._rooms.promote(limits)

    async def moment(self) -> datetime:
        """The database's time."""
        found: datetime = await self._database.fetch_value("moment")
        return found

    async def audit(
        self,
        connection: Connection,
        note: UUID,
        entry: AuditEntry,
        action: str,
        subject: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        """Write who did what, in the transaction of the deed; what looks like a secret is not written.

        By the id of the *note* it can be found out whether it was done: see `Database.once`.
        """
        await self._database.fetch(
            "write_audit", connection, **_audit_columns(note, entry, action, subject, before, after)
        )

    @staticmethod
    def note_of_new(job: Job, note: UUID, entry: AuditEntry) -> dict[str, Any]:
        """The parameters of the statement that audits the creation of a job, for those who write it themselves."""
        facts = {name: value for name, value in job_columns(job).items() if value is not None}
        facts["payload"] = orjson.loads(job.payload)
        return _audit_columns(note, entry, "job.create", f"job:{job.id}", None, facts)


def _audit_columns(
    note: UUID,
    entry: AuditEntry,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "id": note,
        "actor": entry.actor,
        "place": entry.place,
        "action": action,
        "subject": subject,
        "reason": entry.reason,
        "before": _for_the_record(before),
        "after": _for_the_record(after),
    }


def _for_the_record(facts: Mapping[str, Any] | None) -> str | None:
    return None if facts is None else orjson.dumps(redacted(dict(facts)), default=str).decode()
