"""What handlers say while they run: log lines and progress, written in batches behind their backs."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime, timedelta

from timeball.current import RunContext, RunSink
from timeball.domain.events import Emit
from timeball.domain.execution import Claimed
from timeball.domain.ids import ExecutionId
from timeball.engine.service import AT_ONCE, Service
from timeball.env import Env
from timeball.store.interface import HistoryStore, LogLine, RoomStore

_BATCH = 500
_GATHER = timedelta(milliseconds=200)
# Per attempt, as RELIABILITY has it: the head and the tail of its words.
_HEAD_BYTES = 512 * 1024
_TAIL_BYTES = 512 * 1024
_LONGEST_LINE = 16 * 1024


class Journal(Service):
    """Writes log lines and progress. Work never waits for it, and never fails because of it."""

    def __init__(self, env: Env, emit: Emit, rooms: RoomStore, history: HistoryStore) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._lines: deque[LogLine] = deque(maxlen=100_000)
        self._progress: dict[ExecutionId, tuple[Claimed, float, str | None]] = {}

    def open_sink(self, context: RunContext) -> RunSink:
        """A place for the words of one attempt."""
        return _Sink(self, context.claimed)

    def add_line(self, line: LogLine) -> None:
        """Keep a line; may be called from any thread."""
        self._lines.append(line)

    def add_progress(self, claimed: Claimed, fraction: float, note: str | None) -> None:
        """Keep the last report of an attempt; may be called from any thread."""
        self._progress[claimed.id] = (claimed, fraction, note)

    async def tick(self) -> timedelta:
        if not self._lines and not self._progress:
            return _GATHER
        batch = [self._lines.popleft() for _ in range(min(_BATCH, len(self._lines)))]
        if batch:
            await self._history.write_log(batch)
        progress, self._progress = self._progress, {}
        for claimed, fraction, note in progress.values():
            await self._rooms.report_progress(claimed, fraction, note)
        return AT_ONCE if self._lines else _GATHER

    async def flush(self) -> None:
        """Write what is left."""
        while self._lines:
            await self.tick()


class _Sink:
    """Numbers the lines of one attempt, and keeps their head and their tail."""

    def __init__(self, journal: Journal, claimed: Claimed) -> None:
        self._journal = journal
        self._claimed = claimed
        self._number = 0
        self._bytes = 0
        self._dropped = 0

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        message = message if len(message) <= _LONGEST_LINE else message[:_LONGEST_LINE] + " … (cut)"
        self._bytes += len(message)
        if self._bytes > _HEAD_BYTES + _TAIL_BYTES:
            self._dropped += 1
            if self._dropped == 1:
                self._add(at, "warning", "more than 1 MiB of output: the rest of this attempt's log is not kept")
            return
        self._add(at, level, message)

    def _add(self, at: datetime, level: str, message: str) -> None:
        self._number += 1
        claimed = self._claimed
        self._journal.add_line(LogLine(claimed.id, claimed.fence, self._number, at, level, message))

    def report_progress(self, fraction: float, note: str | None) -> None:
        self._journal.add_progress(self._claimed, fraction, note)
