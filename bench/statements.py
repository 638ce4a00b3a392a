"""How many statements a database is sent, counted one by one: for a while the server writes each into its log."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.system import System

# A line for each statement of the simple protocol, and for each execution of a prepared one.
_STATEMENT = re.compile(rb"LOG: {2}(?:statement|execute [^:]*): ")
# The sessions hear of a new setting when they are next idle, and the log is written by each of them.
_SETTLE_SECONDS = 1.0


@dataclass
class Count:
    """What was counted, and over how many seconds."""

    number: int = 0
    seconds: float = 0.0


@asynccontextmanager
async def counted_statements(system: System) -> AsyncIterator[Count]:
    """Counts the statements of all sessions of the server, which nothing else uses meanwhile."""
    count = Count()
    await _log(system, "all")
    before, begun = system.log.stat().st_size, time.monotonic()
    try:
        yield count
        count.seconds = time.monotonic() - begun
        count.number = len(_STATEMENT.findall(_tail(system.log, before)))
    finally:
        await _log(system, "none")


async def _log(system: System, which: str) -> None:
    await system.value(f"ALTER SYSTEM SET log_statement = '{which}'")
    await system.value("SELECT pg_reload_conf()")
    await asyncio.sleep(_SETTLE_SECONDS)


def _tail(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()
