"""History, written as it is: tests of reads need many executions and no engine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tests.support.factories import HANDLER, put_row
from timeball.domain.values.ids import new_id
from timeball.store.store import Store


async def ran(
    store: Store, at: datetime, seconds: float, job_id: UUID | None = None, state: str = "succeeded", **fields: Any
) -> UUID:
    """An execution that ran; without a job, one that was enqueued."""
    execution_id = new_id(int(at.timestamp() * 1000), store.env.random.getrandbits(74))
    columns = {
        "id": execution_id,
        "job_id": job_id or execution_id,
        "state": state,
        "origin": "schedule",
        "version": 1,
        "queue": "default",
        "priority": 50,
        "handler": HANDLER,
        "scheduled_for": at,
        "started_at": at,
        "finished_at": at + timedelta(seconds=seconds),
        "attempts": 1,
        "lost": 0,
        "fence": 1,
    }
    await put_row(store, "finished", **columns | fields)
    return execution_id
