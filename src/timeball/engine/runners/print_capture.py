"""What handlers print becomes lines of their executions' logs, and goes where it went before.

`sys.stdout` and `sys.stderr` of a worker are replaced by streams that pass everything on, and look whose it is: a context variable says
which attempt prints, in a task, in a thread, and in what these call. Another thread of the program has none, and its prints belong to
nothing. What is written past Python, by a program that a handler starts or by code in C, is not seen here; of an isolated child all
output is read (`engine.runners.process`).

A flood of prints is cut like a flood of log lines: both are lines of the same bounded buffer.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from threading import RLock
from typing import Any

from timeball.current import RUNNING

# A record is captured as one, with its level; what this writes of it to a stream is not a line more.
_WRITES_RECORDS = logging.StreamHandler.emit.__code__


class PrintCapture:
    """A text stream that tells the attempt that writes to it; in everything else the stream that it was made of."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name
        # Threads of a handler may share its attempt. The holder may be interrupted by a signal whose handler prints.
        self._lock = RLock()

    def write(self, text: str) -> int:
        """Write it, and keep it with the attempt that runs here."""
        count: int = self._stream.write(text)
        context = RUNNING.get(None)
        if context is not None and not context.is_forked_copy and sys._getframe(1).f_code is not _WRITES_RECORDS:
            with self._lock:
                context.emit_print(self._name, text)
        return count

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of them."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def capture_prints() -> None:
    """Begin, if it has not begun: a second capture would keep every line twice."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintCapture):
            setattr(sys, name, PrintCapture(stream, name))


def release_prints() -> None:
    """Give the streams back that were there before, unless something has replaced ours."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, PrintCapture):
            setattr(sys, name, stream._stream)
