"""The short way for whoever waits anyway: a line to the database that he uses by himself, and no other thread is woken.

On the way through the portal two threads wake each other, which takes a quarter of the time of a durable enqueue and more. So a program
that enqueues one after the other gets a line that its threads use as they are, and another for its coroutines.

- One at a time: who finds it taken goes through the portal, where those that come together share a commit.
- Not for everybody: it is there for a program that enqueues in a row, not for one that does so now and then, or many at a time.
- Nobody waits for it to be opened. A keeper does that, in a thread of its own; it also hangs up on a server that does not answer, and
  takes leave of one that nobody has asked for a while.
- A signal may raise an error at any point of what a thread does, here in the midst of a driver, where nobody can say what it leaves
  behind; a coroutine may be cancelled there. So the line is thrown away then, and the error goes its way; the next one finds none.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from timeball.errors import StoreError, StoreUnavailable, TimeballError

# A program that has sent so many, none of them long after the one before, will send more.
_FEW = 10
_LONG_SECONDS = 1.0
# Where no line can be had, so many are sent before it is tried again.
_MANY = 1_000
# For a statement that should answer at once, as on any other connection of ours.
_PATIENCE_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_LOOK_SECONDS = 5.0


class DirectConnection(Protocol):
    """A connection for one at a time."""

    def is_sound(self) -> bool:
        """Whether nothing has come in since it was used last: that could only be its end."""

    def close(self) -> None:
        """Take leave."""

    def hang_up(self) -> None:
        """Cut off whoever is on the line, from any thread."""


L = TypeVar("L", bound=DirectConnection)
Answer = TypeVar("Answer")


class DirectPath(Generic[L]):
    """A line that the threads or the coroutines of a program use by themselves, one at a time; *connect* opens it once it is worth it.

    *monotonic* tells the seconds that pass.
    """

    def __init__(self, connect: Callable[[], L], monotonic: Callable[[], float]) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self.is_closed = False
        # From here on, written by whoever has the seat.
        self._sent = 0
        self._last_sent = float("-inf")
        self._under_way_since: float | None = None
        self._kept: _OpenConnection[L] | None = None

    def run(self, work: Callable[[L], Answer]) -> Answer | None:
        """Do *work* on the line and give its answer; None, and nothing is done, if it is not to be had."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            line = self._connection_if_ready()
            return None if line is None else work(line)
        except BaseException as error:
            self._on_error(error)
            raise
        finally:
            self._release()

    async def arun(self, work: Callable[[L], Awaitable[Answer]]) -> Answer | None:
        """The same, for coroutines."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            line = self._connection_if_ready()
            return None if line is None else await work(line)
        except BaseException as error:
            self._on_error(error)
            raise
        finally:
            self._release()

    def reset_streak(self) -> None:
        """Many come at a time: whoever is alone in a row is to show it again."""
        self._sent = 0

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, TimeballError) and not isinstance(error, StoreError):
            return
        self._discard()
        if self.is_closed and isinstance(error, StoreError):
            raise StoreUnavailable("Timeball was closed while this call was under way") from None

    def _release(self) -> None:
        self._under_way_since = None
        self._mutex.release()

    def close(self) -> None:
        """Hang up; whoever is on the line is cut off. Nothing is opened again."""
        self.is_closed = True
        kept = self._kept
        if kept is not None and kept.line is not None and self._under_way_since is not None:
            kept.line.hang_up()
        # Without the seat there is nothing that could be done: a signal struck where it was about to be given back.
        if not self._mutex.acquire(timeout=_LOOK_SECONDS):
            return
        try:
            self._discard()
        finally:
            self._mutex.release()

    def _connection_if_ready(self) -> L | None:
        now = self._monotonic()
        has_paused = now - self._last_sent > _LONG_SECONDS
        self._last_sent = now
        if self._sent <= _FEW:
            self._sent = 1 if has_paused and self._sent > 0 else self._sent + 1
        if self._sent <= _FEW:
            return None
        if self._kept is None:
            if not self.is_closed:
                self._open()
            return None
        line = self._kept.line
        if line is not None and has_paused and not line.is_sound():
            self._discard()
            return None
        self._under_way_since = now
        return line

    def _open(self) -> None:
        # A bare thread: what `threading` makes of one must not be struck by a signal. There are none when a program is about to end.
        with suppress(RuntimeError):
            self._kept = _OpenConnection()
            _thread.start_new_thread(self._watch_connection, (self._kept,))

    def _discard(self) -> None:
        kept, self._kept = self._kept, None
        self._sent = 0
        if kept is not None:
            kept.end()

    # the keeper's, in a thread of its own

    def _watch_connection(self, kept: _OpenConnection[L]) -> None:
        try:
            kept.begin(self._connect())
        except (TimeballError, ImportError):
            # Of a database that is away, or that this driver cannot reach, the portal knows what to say; and it does without this driver.
            self._sent = -_MANY
            self._kept = None
            return
        while not kept.has_ended.wait(_LOOK_SECONDS):
            self._check_connection(kept)

    def _check_connection(self, kept: _OpenConnection[L]) -> None:
        now, since = self._monotonic(), self._under_way_since
        if since is not None and now - since > _PATIENCE_SECONDS and kept.line is not None:
            kept.line.hang_up()
        elif now - self._last_sent > _IDLE_SECONDS and self._mutex.acquire(blocking=False):
            try:
                self._discard()
            finally:
                self._mutex.release()


class _OpenConnection(Generic[L]):
    """A line from before it is open until after it is closed."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.line: L | None = None
        self.has_ended = threading.Event()

    def begin(self, line: L) -> None:
        """Here it is; but it may be wanted no more."""
        with self._mutex:
            if not self.has_ended.is_set():
                self.line = line
                return
        line.close()

    def end(self) -> None:
        with self._mutex:
            self.has_ended.set()
            line, self.line = self.line, None
        if line is not None:
            line.close()
