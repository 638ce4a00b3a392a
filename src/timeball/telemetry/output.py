"""Standard output and standard error that never block and never fail.

A log that is read too slowly, a full disk, a closed pipe: none of them may hold up the event loop or the heartbeat of a node, or raise
in the middle of it. What a process writes goes into a queue of bounded size, in its order, and a thread writes it out. What finds no
room, or cannot be written, is lost and counted; when writing works again, the number of missing lines is reported.

A forked copy of the process has no such thread and writes by itself, as any other program does.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LARGEST_QUEUE = 1024 * 1024
_LONGEST_LINE = 64 * 1024
_WRITE_BYTES = 64 * 1024
_POLL_MILLISECONDS = 1_000
# How long an exiting process waits for its last lines to be written.
_DRAIN_SECONDS = 2.0


class QueuedOutput(io.RawIOBase):
    """Writes to a file descriptor, whole lines at a time, from a thread of its own; may be used from any thread."""

    def __init__(self, descriptor: int, name: str, *, limit: int = _LARGEST_QUEUE) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._unfinished = b""
        self._is_writing = False
        self._is_mid_line = False
        self._thread: threading.Thread | None = None
        self._untold = 0
        self._reason = ""
        self.name = name
        self._on_lost: Callable[[int], object] = lambda _lines: None
        self._on_recovered: Callable[[int, str], object] = lambda _lines, _reason: None

    def report_losses(
        self, on_recovered: Callable[[int, str], object], on_lost: Callable[[int], object] | None = None
    ) -> None:
        """Call these from now on, with the number of lines: at each loss, and when writing works again; from any thread."""
        self._on_recovered = on_recovered
        if on_lost is not None:
            self._on_lost = on_lost

    # as a file

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor, for programs that are started with it."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it ends in a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Queue what is complete of it, at once."""
        chunk = bytes(data)
        if os.getpid() != self._pid:
            with suppress(OSError):
                _write_all(self._descriptor, chunk)
            return len(chunk)
        with self._changed:
            text = self._unfinished + chunk
            end = len(text) if len(text) > _LONGEST_LINE else text.rfind(b"\n") + 1
            self._unfinished = text[end:]
            lost = self._put(text[:end])
        self._count(lost)
        return len(chunk)

    def flush(self) -> None:
        """Queue the unfinished line too; nothing is waited for."""
        if os.getpid() == self._pid and self._unfinished:
            with self._changed:
                text, self._unfinished = self._unfinished, b""
                lost = self._put(text)
            self._count(lost)

    # the queue

    def _put(self, text: bytes) -> int:
        """Queue it if there is room; returns how many lines are lost otherwise."""
        if not text:
            return 0
        if self._size + len(text) > self._limit:
            return self._note_loss(text, "what reads it is too slow, or has stopped reading")
        self._queue.append(text)
        self._size += len(text)
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"output-{self.name}", daemon=True)
            # The machine may have no room for a thread just now; the next line tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._changed.notify_all()
        return 0

    def _note_loss(self, text: bytes, reason: str) -> int:
        lines = max(text.count(b"\n"), 1)
        self._untold += lines
        self._reason = reason
        return lines

    def _count(self, lost: int) -> None:
        if lost:
            with suppress(Exception):
                self._on_lost(lost)

    # the thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._queue:
                    self._changed.wait()
                text = b"".join(self._queue)
                self._queue.clear()
                self._is_writing = True
            self._write_out(text)
            with self._changed:
                # Only now: what is being written counts as waiting.
                self._size -= len(text)

    def _write_out(self, text: bytes) -> None:
        left = b"\n" + text if self._is_mid_line else text
        try:
            while left:
                number = _write_some(self._descriptor, left)
                self._is_mid_line = left[number - 1 : number] != b"\n"
                left = left[number:]
        except OSError as error:
            with self._changed:
                lost = self._note_loss(left, error.strerror or str(error))
            self._count(lost)
            return
        self._is_mid_line = False
        self._tell_recovery()

    def _tell_recovery(self) -> None:
        with self._changed:
            lines, self._untold = self._untold, 0
        if lines:
            with suppress(Exception):
                self._on_recovered(lines, self._reason)

    def drain(self, seconds: float = _DRAIN_SECONDS) -> bool:
        """Wait until all is written, for a bounded time. What comes after that is written without the thread, or not at all."""
        if os.getpid() != self._pid:
            return True
        self.flush()
        with self._changed:
            is_empty = self._changed.wait_for(lambda: not self._queue and not self._is_writing, seconds)
        if is_empty:
            self._pid = -1
        else:
            self._limit = 0
        return is_empty


def _write_some(descriptor: int, text: bytes) -> int:
    while True:
        try:
            return os.write(descriptor, text[:_WRITE_BYTES])
        except BlockingIOError:
            # Another program that shares it has made it so.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll(_POLL_MILLISECONDS)


def _write_all(descriptor: int, text: bytes) -> None:
    while text:
        text = text[_write_some(descriptor, text) :]


def queued(stream: TextIO, name: str) -> tuple[TextIO, QueuedOutput | None]:
    """The same output behind a queue; unchanged if it is not a file of the system or has a queue already."""
    buffer = getattr(stream, "buffer", None)
    if isinstance(buffer, QueuedOutput):
        return stream, buffer
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream, None
    with suppress(OSError, ValueError):
        stream.flush()
    output = QueuedOutput(descriptor, name)
    atexit.register(output.drain)
    wrapped = io.TextIOWrapper(
        cast("io.BufferedWriter", output), encoding=stream.encoding, errors=stream.errors, write_through=True
    )
    return wrapped, output


def queue_standard_output() -> list[QueuedOutput]:
    """Put standard output and standard error of this process behind queues, for whatever writes to them from now on."""
    outputs = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            stream, output = queued(stream, name)
            setattr(sys, name, stream)
            outputs += [] if output is None else [output]
    return outputs


def drain_standard_output() -> None:
    """Wait until what was written to them is out, for a bounded time: before an end that leaves no time for it."""
    for stream in (sys.stdout, sys.stderr):
        buffer = getattr(stream, "buffer", None)
        if isinstance(buffer, QueuedOutput):
            buffer.drain()
