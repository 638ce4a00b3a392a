"""`system.cleanup`: delete old history now, and not when the janitor would."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any, Protocol

from pydantic import Field

from timeball.current import current
from timeball.handlers.typed import Payload, Refused


class OldHistory(Protocol):
    """The history by days, as the store keeps it."""

    async def moment(self) -> datetime:
        """The database's time."""

    async def days(self) -> list[date]:
        """The days that have partitions of their own."""

    async def drop_day(self, day: date) -> int:
        """Drop a day of history; returns how many executions went."""


class CleanupPayload(Payload):
    """Which history to delete: whole days, of any state, so that the ledger stays without holes."""

    older_than_days: int = Field(ge=1, le=36_500, description="Days before that many days ago are deleted.")


class Cleanup:
    """Delete the history of days long past, with the one-off jobs that ran on them."""

    def __init__(self, history: OldHistory | None) -> None:
        self._history = history

    async def __call__(self, payload: CleanupPayload) -> dict[str, Any]:
        history = self._history
        if history is None:
            raise Refused("this process has no history to clean up")
        cutoff = (await history.moment()).date() - timedelta(days=payload.older_than_days)
        old = sorted(day for day in await history.days() if day < cutoff)
        deleted = 0
        for number, day in enumerate(old):
            current.progress(number / len(old), f"{day}")
            gone = await history.drop_day(day)
            current.log(f"{day}: {gone} executions deleted")
            deleted += gone
        current.progress(1, "done")
        return {"days": len(old), "executions": deleted}
