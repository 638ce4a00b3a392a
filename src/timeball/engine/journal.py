"""What handlers say while they run: log lines and progress, written in batches behind their backs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from timeball.current import RunContext, RunSink
from timeball.domain import log_buffer
from timeball.domain.events import Emit
from timeball.domain.execution import Claimed
from timeball.domain.ids import ExecutionId
from timeball.domain.log_buffer import LogBuffer
from timeball.domain.redaction import redacted
from timeball.domain.text import clean
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service
from timeball.env import Env
from timeball.errors import Unwritable
from timeball.store.interface import HistoryStore, LogLine, RoomStore

_BATCH = 500
_MOST_WAITING = 100_000
_GATHER = timedelta(milliseconds=200)


class Journal(Service):
    """Writes log lines and progress. Work never waits for it, and never fails because of it."""

    def __init__(self, env: Env, emit: Emit, rooms: RoomStore, history: HistoryStore) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[ExecutionId, int], _Sink] = {}
        # Bounded: with the database away, old words are worth less than the memory they take.
        self._lines: deque[LogLine] = deque(maxlen=_MOST_WAITING)
        self._progress: dict[ExecutionId, tuple[Claimed, float, str | None]] = {}
        # The last flush comes while the service may be writing: each would take away what the other has written.
        self._writing = asyncio.Lock()

    def open_sink(self, context: RunContext) -> RunSink:
        """A place for the words of one attempt; may be called from any thread."""
        self._loop.call_soon_threadsafe(self.wake)
        claimed = context.claimed
        sink = self._open[claimed.id, claimed.fence] = _Sink(self, claimed)
        return sink

    def close_sink(self, claimed: Claimed) -> None:
        """The attempt has ended: what it said last is known now."""
        sink = self._open.pop((claimed.id, claimed.fence), None)
        if sink is not None:
            self.wake()
            self._lines.extend(sink.last_lines())

    def add_progress(self, claimed: Claimed, fraction: float, note: str | None) -> None:
        """Keep the last report of an attempt; may be called from any thread."""
        self._progress[claimed.id] = (claimed, fraction, redacted(note))

    async def tick(self) -> timedelta:
        for sink in list(self._open.values()):
            self._lines.extend(sink.new_lines())
        async with self._writing:
            await self._write_lines()
        progress, self._progress = self._progress, {}
        for claimed, fraction, note in progress.values():
            # One report that cannot be kept must not cost those of the others.
            with suppress(Unwritable):
                await self._rooms.report_progress(claimed, fraction, note)
        if self._lines:
            return AT_ONCE
        return _GATHER if self._open else LONGEST_REST

    async def _write_lines(self) -> None:
        batch = [self._lines[number] for number in range(min(_BATCH, len(self._lines)))]
        if batch:
            await self._write_sound(batch)
            for _ in batch:
                self._lines.popleft()

    async def _write_sound(self, lines: Sequence[LogLine]) -> None:
        """Write lines; if the database cannot hold one of them, the others are written, and in its place a line that says so."""
        try:
            await self._history.write_log(lines)
        except Unwritable as error:
            if len(lines) > 1:
                middle = len(lines) // 2
                await self._write_sound(lines[:middle])
                await self._write_sound(lines[middle:])
                return
            note = f"a line of the log could not be kept: {clean(error)}"
            with suppress(Unwritable):
                await self._history.write_log([replace(lines[0], level="warning", message=note)])

    async def flush(self) -> None:
        """Write what is left."""
        while self._lines:
            await self.tick()


class _Sink:
    """The words of one attempt, numbered; their head and their tail are kept."""

    def __init__(self, journal: Journal, claimed: Claimed) -> None:
        self._journal = journal
        self._claimed = claimed
        self._buffer = LogBuffer()
        self._number = 0

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        self._buffer.add(at, level, message)

    def report_progress(self, fraction: float, note: str | None) -> None:
        self._journal.add_progress(self._claimed, fraction, note)

    def new_lines(self) -> list[LogLine]:
        """What was said since the last time, and is sure to be kept."""
        return self._numbered(self._buffer.drain())

    def last_lines(self) -> list[LogLine]:
        """All that is left, at the end."""
        return self._numbered(self._buffer.close())

    def _numbered(self, lines: Iterable[log_buffer.LogLine]) -> list[LogLine]:
        numbered = []
        for line in lines:
            self._number += 1
            numbered.append(
                LogLine(self._claimed.id, self._claimed.fence, self._number, line.at, line.level, line.message)
            )
        return numbered
