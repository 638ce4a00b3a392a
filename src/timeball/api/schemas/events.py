"""What happened."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class EventOut(BaseModel):
    """Something that happened; the same happening always has the same id."""

    id: str
    type: str
    at: datetime
    subject: str
    job_id: str | None
    queue: str | None
    handler: str | None
    data: dict[str, Any]


class EventsOut(BaseModel):
    """What happened since a cursor; `has_gap` says that there was too much to tell, or that the cursor was too old."""

    data: list[EventOut]
    next_cursor: str
    has_gap: bool
