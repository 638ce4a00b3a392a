"""How a job came to be as it is: who changed what, and which version answered for which time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from timeball.domain.job import Job
from timeball.domain.search import Page, PageRequest
from timeball.store.inspection import Inspection
from timeball.store.listing import Listing

# What the engine keeps for itself, or what the revision says elsewhere.
_INTERNAL = frozenset({"id", "shard", "version", "paused_left", "paused_from"})


@dataclass(frozen=True, slots=True)
class Change:
    """One field, before and after."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One change of a job. The instants say for which occurrences its version answers, where that is kept."""

    at: datetime | None
    actor: str | None
    action: str
    reason: str | None
    version: int | None
    changes: tuple[Change, ...] = ()
    effective_from: datetime | None = None
    effective_until: datetime | None = None


class Revisions:
    """Reads the history of definitions."""

    def __init__(self, listing: Listing, inspection: Inspection) -> None:
        self._listing = listing
        self._inspection = inspection

    async def of(self, job: Job, request: PageRequest) -> Page[Revision]:
        """The changes of a job, the latest first; the last of all is its creation."""
        page = await self._listing.audit(f"job:{job.id}", None, request)
        spans = await self._inspection.versions(job.id)
        # Triggers and backfills stand in the audit of their job, too, and change nothing of it.
        found = [_revision(row, spans) for row in page.items if _is_change(row)]
        is_last = page.next_cursor is None
        if is_last and not any(revision.action == "job.create" for revision in found):
            found.append(_creation(job, spans))
        # Ids made within one millisecond are in no order; versions are. A pause has none, and comes after the creation.
        found.sort(key=lambda revision: (revision.at or job.created_at, revision.version or math.inf), reverse=True)
        return Page(found, page.next_cursor, page.total)


def _is_change(row: Mapping[str, Any]) -> bool:
    return row["before"] is not None or row["action"] == "job.create"


def _revision(row: Mapping[str, Any], spans: Mapping[int, Mapping[str, Any]]) -> Revision:
    before, after = (_read(row[side]) for side in ("before", "after"))
    version = after.get("version") if isinstance(after.get("version"), int) else None
    span = spans.get(version or 0, {})
    return Revision(
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        reason=row["reason"],
        version=version,
        changes=tuple(
            Change(name, before.get(name), after.get(name))
            for name in dict.fromkeys((*before, *after))
            if name not in _INTERNAL
        ),
        effective_from=span.get("effective_from"),
        effective_until=span.get("effective_until"),
    )


def _creation(job: Job, spans: Mapping[int, Mapping[str, Any]]) -> Revision:
    first = spans.get(1, {})
    return Revision(
        at=job.created_at,
        actor=job.created_by or job.declared_by,
        action="job.create",
        reason=None,
        version=1,
        effective_from=first.get("effective_from"),
        effective_until=first.get("effective_until"),
    )


def _read(text: str | None) -> dict[str, Any]:
    value = None if text is None else orjson.loads(text)
    return value if isinstance(value, dict) else {}
