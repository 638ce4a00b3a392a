"""Handlers for trying things out."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import ConfigDict, Field

from timeball.current import current
from timeball.domain.handler import Handler
from timeball.handlers.registry import make_handler
from timeball.handlers.typed import Payload, typed_handler

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
