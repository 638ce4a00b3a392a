"""Handlers that reach nothing outside Timeball: `system.cleanup`, `test.echo`, `test.delay`, `test.log`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, Field, field_validator

from timeball.current import current
from timeball.domain.execution import ExecutionState, parse_states
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput
from timeball.handlers.binding import HandlerRefused, Payload, typed_handler
from timeball.handlers.registry import make_handler

# `system.cleanup`: delete old history now, and not when the janitor would.


class HistoryTrimmer(Protocol):
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

    def __init__(self, history: HistoryTrimmer | None) -> None:
        self._history = history

    async def __call__(self, payload: CleanupPayload) -> dict[str, Any]:
        history = self._history
        if history is None:
            raise HandlerRefused("this process has no history to clean up")
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


async def _clean(history: HistoryTrimmer, day: date, states: Sequence[ExecutionState]) -> int:
    # A day without anything to keep goes in one piece, however large it is.
    return await (history.trim_day(day, states) if states else history.drop_day(day))


# Handlers for trying things out.

_LONGEST_DELAY_MS = 24 * 3_600_000


class DelayPayload(Payload):
    """How long to wait, and what to come of it: the fields people post, in either spelling."""

    model_config = ConfigDict(
        populate_by_name=True, json_schema_extra={"examples": [{"durationMs": 500, "shouldFail": False}]}
    )

    duration_ms: int = Field(default=1_000, ge=0, le=_LONGEST_DELAY_MS, alias="durationMs")
    should_fail: bool = Field(default=False, alias="shouldFail")
    fail_message: str = Field(default="failed as asked", alias="failMessage", max_length=4_000)


class LogPayload(Payload):
    """What to write into the log, and how often."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "hello", "lines": 3}]})

    message: str = Field(default="hello", max_length=16_000)
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    lines: int = Field(default=1, ge=1, le=10_000)


async def echo(**payload: Any) -> dict[str, Any]:
    """Return the payload."""
    return payload


async def delay(payload: DelayPayload) -> dict[str, int]:
    """Wait for a while, then succeed, or fail if told so."""
    await asyncio.sleep(payload.duration_ms / 1000)
    if payload.should_fail:
        raise RuntimeError(payload.fail_message)
    return {"waited_ms": payload.duration_ms}


async def log(payload: LogPayload) -> None:
    """Write lines into the execution's log."""
    for number in range(payload.lines):
        current.log(payload.message if payload.lines == 1 else f"{payload.message} {number + 1}", level=payload.level)


def testing_handlers() -> tuple[Handler, ...]:
    """`test.echo`, `test.delay` and `test.log`."""
    return (
        make_handler(echo, name="test.echo"),
        typed_handler("test.delay", delay, DelayPayload),
        typed_handler("test.log", log, LogPayload),
    )
