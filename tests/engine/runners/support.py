"""What the tests of the runners share: attempts, and sinks that remember."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from timeball.current import AttemptContext
from timeball.domain.execution import ClaimedExecution
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId
from timeball.env import SystemClock

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
PATIENCE = 60.0


class RememberingSink:
    """Keeps what an attempt says."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.progress: list[tuple[float, str | None]] = []
        self.trace: dict[str, str] = {}

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        assert at.tzinfo is UTC
        self.lines.append((level, message))

    def report_progress(self, fraction: float, note: str | None) -> None:
        self.progress.append((fraction, note))

    def keep_trace(self, words: dict[str, str]) -> None:
        self.trace = words


class Attempt(AttemptContext):
    """A running attempt whose sink can be looked into."""

    __slots__ = ("sink",)

    def __init__(
        self, handler: str = "handler", payload: str = "{}", *, timeout_ms: int | None = None, **columns: Any
    ) -> None:
        self.sink = RememberingSink()
        claimed = ClaimedExecution(
            id=ExecutionId(UUID(int=1)),
            job_id=JobId(UUID(int=2)),
            fence=7,
            attempt=3,
            lost=0,
            handler=handler,
            payload=payload,
            run_at=NOON,
            scheduled_for=NOON,
            timeout_ms=timeout_ms,
            queue="mail",
            priority=50,
            origin="schedule",
            version=1,
            job_name="nightly",
            expires_at=None,
            meta=None,
            claim_id=ClaimId(UUID(int=4)),
            stop=None,
        )
        super().__init__(claimed._replace(**columns), SystemClock(), lambda _: self.sink)


@asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Whatever is awaited inside must happen in reasonable time."""
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE} s in vain: {what}") from None


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something another thread or process brings about."""
    async with patience(what):
        while not is_so():
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def read_pid(file: Path) -> int:
    """The process id that a process is going to write into a file."""
    await until(lambda: file.exists() and file.read_text().endswith("\n"), f"{file.name} is written")
    return int(file.read_text())


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))
