"""`system.cleanup`: delete old history now, and not when the janitor would."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Protocol

from pydantic import ConfigDict, Field, field_validator

from timeball.current import current
from timeball.domain.execution import ExecutionState, parse_states
from timeball.errors import InvalidInput
from timeball.handlers.typed import Payload, Refused


class OldHistory(Protocol):
    """The history by days, as the store keeps it."""

    async def moment(self) -> datetime:
        """The database's time."""

    async def days(self) -> list[date]:
        """The days that have partitions of their own."""

    async def drop_day(self, day: date) -> int:
        """Drop a day of history; returns how many executions went."""

    async def trim_day(self, day: date, states: Sequence[ExecutionState]) -> int:
        """Delete what ended in these states on a day; returns how many executions went."""


class CleanupPayload(Payload):
    """Which history to delete: that of whole days, all of it or what ended in some states.

    Whatever is deleted, `timeball verify` proves the ledger from the day after the last one that was touched.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"older_than_days": 30, "statuses": ["succeeded"]}]})

    older_than_days: int = Field(ge=1, le=36_500, description="Days before that many days ago are cleaned up.")
    statuses: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="succeeded, cancelled, dead or skipped; without them, everything of those days goes.",
        examples=[["succeeded"]],
    )

    @field_validator("statuses")
    @classmethod
    def _check_statuses(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            states = parse_states(value or (), "statuses")
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        for state in states:
            if not state.is_final:
                raise ValueError(f"{state} is not an end, expected some of succeeded, cancelled, dead, skipped")
        return value

    @property
    def states(self) -> tuple[ExecutionState, ...]:
        """The states to be deleted; none named means all."""
        return parse_states(self.statuses or (), "statuses")


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
            gone = await _clean(history, day, payload.states)
            current.log(f"{day}: {gone} executions deleted")
            deleted += gone
        current.progress(1, "done")
        return {"days": len(old), "executions": deleted}


async def _clean(history: OldHistory, day: date, states: Sequence[ExecutionState]) -> int:
    # A day without anything to keep goes in one piece, however large it is.
    return await (history.trim_day(day, states) if states else history.drop_day(day))
