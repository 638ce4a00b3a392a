"""What must hold for a job after any race, computed from the tables alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from tests.support.factories import read_job, table, tables_of
from timeball.domain.values.ids import JobId
from timeball.store.store import Store

MICROSECOND = timedelta(microseconds=1)
FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def check_ledger(store: Store, job_id: JobId) -> None:
    """One next occurrence or none; every execution in one table; every instant of an interval job is recorded once.

    Unlike `verify`, it enumerates the instants of each version, and compares two lists.
    """
    job = await read_job(store, job_id)
    due = [row for row in await table(store, "due") if row["job_id"] == job_id]
    pending = [row for row in due if row["kind"] == "occurrence"]
    is_live = not job.is_paused and job.deleted_at is None
    assert len(pending) == (1 if is_live else 0), f"pending: {pending}"
    assert all(row["version"] == job.version for row in pending)

    reaches = pending[0]["scheduled_for"] - MICROSECOND if pending else job.paused_from or FAR
    owed = [at for version in await _versions(store, job_id) for at in _instants(version, reaches)]
    recorded = [at async for at in _recorded(store, job_id)]
    assert Counter(recorded) == Counter(owed)


async def check_rooms(store: Store) -> None:
    """No execution is in two tables."""
    for row in await table(store, "execution"):
        executions = await tables_of(store, row["id"])
        assert len(executions) == 1, f"{row['id']} is in {executions}"


async def _versions(store: Store, job_id: UUID) -> list[dict[str, Any]]:
    versions = [row for row in await table(store, "job_version") if row["job_id"] == job_id]
    versions.sort(key=lambda row: row["version"])
    for old, new in pairwise(versions):
        assert old["effective_until"] == new["effective_from"]
    return versions


def _instants(version: dict[str, Any], reaches: datetime) -> Iterator[datetime]:
    """The instants that a version of an interval job is responsible for, up to the last that must be recorded."""
    definition = json.loads(version["definition"])
    at = datetime.fromisoformat(definition["scheduled_at"])
    until = min(version["effective_until"] or FAR, reaches)
    while at <= until:
        if at > version["effective_from"]:
            yield at
        at += timedelta(seconds=definition["interval_seconds"])


async def _recorded(store: Store, job_id: UUID) -> AsyncIterator[datetime]:
    for row in await table(store, "execution"):
        is_pending = row["state"] == "scheduled" and row["attempts"] == 0
        if row["job_id"] == job_id and row["origin"] == "schedule" and not is_pending:
            yield row["scheduled_for"]
    for row in await table(store, "skip_range"):
        if row["job_id"] == job_id:
            definition = json.loads((await _versions(store, job_id))[row["version"] - 1]["definition"])
            at = row["first_at"]
            while at <= row["last_at"]:
                yield at
                at += timedelta(seconds=definition["interval_seconds"])
