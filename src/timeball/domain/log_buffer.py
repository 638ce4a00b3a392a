"""The log of one attempt, kept within a cap: its head and its tail."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from threading import Lock
from typing import NamedTuple

from timeball.domain.redaction import redacted
from timeball.domain.text import shorten

MAX_LOG_BYTES = 1024 * 1024
MAX_LINE_CHARACTERS = 16_000
# What a line costs beyond its message: instant, level, row header. Empty lines must not be free.
_LINE_OVERHEAD = 32


class LogLine(NamedTuple):
    """One line of an execution's log."""

    at: datetime
    level: str
    message: str


class LogBuffer:
    """Takes any number of lines and keeps at most *cap* bytes of them, the first half and the last.

    The first half can be taken away while the attempt runs (`drain`); the last is only known at its end (`close`), with a
    line before it that says how much is missing. Lines may be added from any thread.
    """

    def __init__(self, cap: int = MAX_LOG_BYTES) -> None:
        self._head_left = cap // 2
        self._tail_left = cap - cap // 2
        self._head: list[LogLine] = []
        self._tail: deque[tuple[LogLine, int]] = deque()
        self._is_head_full = False
        self._last_dropped: LogLine | None = None
        self._dropped_lines = 0
        self._dropped_bytes = 0
        self._lock = Lock()

    def add(self, at: datetime, level: str, message: str) -> None:
        """Add a line; an overlong one loses its middle, and passwords in addresses are hidden."""
        line = LogLine(at, level, shorten(redacted(message), MAX_LINE_CHARACTERS))
        size = len(line.message.encode("utf-8", "replace")) + _LINE_OVERHEAD
        with self._lock:
            self._is_head_full = self._is_head_full or size > self._head_left
            if self._is_head_full:
                self._add_to_tail(line, size)
            else:
                self._head.append(line)
                self._head_left -= size

    def _add_to_tail(self, line: LogLine, size: int) -> None:
        self._tail.append((line, size))
        self._tail_left -= size
        while self._tail_left < 0:
            dropped, freed = self._tail.popleft()
            self._last_dropped = dropped
            self._tail_left += freed
            self._dropped_lines += 1
            self._dropped_bytes += freed - _LINE_OVERHEAD

    def drain(self) -> list[LogLine]:
        """The lines that came since the last time and are sure to be kept."""
        with self._lock:
            lines, self._head = self._head, []
        return lines

    def close(self) -> list[LogLine]:
        """All that is left, in order. To be called once, when the attempt has ended."""
        lines = self.drain()
        with self._lock:
            kept, self._tail = [line for line, _ in self._tail], deque()
        if self._last_dropped is not None:
            note = f"… {self._dropped_lines} lines ({self._dropped_bytes} bytes) left out …"
            lines.append(LogLine(self._last_dropped.at, "warning", note))
        return lines + kept
