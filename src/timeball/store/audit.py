"""The audit: who changed what, written in the transaction of the change; values that look like secrets are redacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.values.redaction import redact
from timeball.store.db.columns import job_columns

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry


async def write_audit(
    database: Database,
    connection: Connection,
    audit_id: UUID,
    entry: AuditEntry,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Insert an audit row. By its id a repeated write sees whether the first one was committed (`Database.once`)."""
    await database.fetch("write_audit", connection, **_audit_columns(audit_id, entry, action, subject, before, after))


def creation_audit(job: Job, audit_id: UUID, entry: AuditEntry) -> dict[str, Any]:
    """The parameters of the statement that audits a new job, also for callers that write in a transaction of their own."""
    fields = {name: value for name, value in job_columns(job).items() if value is not None}
    fields["payload"] = orjson.loads(job.payload)
    return _audit_columns(audit_id, entry, "job.create", f"job:{job.id}", None, fields)


def changed_fields(old: Job, new: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that an edit changed, before and after it."""
    before = job_columns(old) | {"payload": orjson.loads(old.payload)}
    after = job_columns(new) | {"payload": orjson.loads(new.payload)}
    changed = [name for name in after if before[name] != after[name]]
    return {name: before[name] for name in changed}, {name: after[name] for name in changed}


def _audit_columns(
    audit_id: UUID,
    entry: AuditEntry,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "id": audit_id,
        "actor": entry.actor,
        "place": entry.place,
        "action": action,
        "subject": subject,
        "reason": entry.reason,
        "before": _redacted_json(before),
        "after": _redacted_json(after),
    }


def _redacted_json(fields: Mapping[str, Any] | None) -> str | None:
    return None if fields is None else orjson.dumps(redact(dict(fields)), default=str).decode()
