"""Handlers for trying things out."""

from __future__ import annotations

import asyncio
from typing import Any

from timeball.current import current
from timeball.domain.handler import Handler
from timeball.handlers.registry import make_handler


async def echo(**payload: Any) -> dict[str, Any]:
    """Return the payload."""
    return payload


async def delay(**payload: Any) -> dict[str, int]:
    """Wait `durationMs`, then succeed, or fail with `failMessage` if `shouldFail`: the fields people post."""
    milliseconds = int(payload.get("durationMs", 1000))
    await asyncio.sleep(milliseconds / 1000)
    if payload.get("shouldFail"):
        raise RuntimeError(str(payload.get("failMessage", "failed as asked")))
    return {"waited_ms": milliseconds}


async def log(message: str = "hello", level: str = "info", lines: int = 1) -> None:
    """Write lines into the execution's log."""
    for number in range(lines):
        current.log(message if lines == 1 else f"{message} {number + 1}", level=level)


def testing_handlers() -> tuple[Handler, ...]:
    """`test.echo`, `test.delay` and `test.log`."""
    return (
        make_handler(echo, name="test.echo"),
        make_handler(delay, name="test.delay"),
        make_handler(log, name="test.log"),
    )
