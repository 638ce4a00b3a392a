"""The short way for a thread that waits anyway: it drives a connection's event loop by itself, and wakes nobody.

On the way through the portal two threads wake each other, which takes a quarter of the time of a durable enqueue. So there is one
connection with a loop of its own, and whoever comes while it is free drives that loop for as long as his statement takes.

- One at a time: who finds it taken goes through the portal, where those that come together share a commit.
- Not for everybody: it is opened for a program that enqueues one after the other, not for one that does so now and then.
- A signal may raise an error at any point of what a thread does, here in the midst of a loop and a driver, where nobody can say what
  it leaves behind. So both are thrown away then, and the error goes its way; the next one finds the shortcut closed.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import selectors
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from timeball.errors import StoreError, StoreUnavailable, TimeballError
from timeball.loops import running_loop

# A program that has sent so many, none of them long after the one before, will send more.
_FEW = 10
_LONG_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0

_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Line(Protocol):
    """A connection that belongs to one event loop."""

    def is_closed(self) -> bool:
        """Whether it has broken, or was closed."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Take leave."""

    def terminate(self) -> None:
        """Hang up."""


L = TypeVar("L", bound=Line)
Answer = TypeVar("Answer")


class Shortcut(Generic[L]):
    """A connection that the threads of a program use by themselves, one at a time; opened by *connect* once it is worth it.

    *monotonic* tells the seconds that pass.
    """

    def __init__(self, connect: Callable[[], Awaitable[L]], monotonic: Callable[[], float]) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._seat = threading.Lock()
        self.is_closed = False
        # From here on, of whoever has the seat.
        self._sent = 0
        self._last_sent = float("-inf")
        self._driven: _Driven[L] | None = None

    def run(self, work: Callable[[L], Coroutine[Any, Any, Answer]]) -> Answer | None:
        """Do *work* on the connection and give its answer; None, and nothing is done, if it is not to be had.

        Any error but ours leaves the connection closed.
        """
        if running_loop() is not None or not self._seat.acquire(blocking=False):
            return None
        try:
            driven = self._at_hand()
            return None if driven is None or driven.line is None else driven.drive(work(driven.line))
        except TimeballError:
            raise
        except BaseException:
            self._throw_away()
            raise
        finally:
            if self.is_closed:
                self._take_leave()
            self._seat.release()

    def close(self) -> None:
        """Hang up; whoever is on the line is cut off. Nothing is opened again."""
        self.is_closed = True
        driven = self._driven
        if driven is not None:
            driven.interrupt()
        # Without the seat there is nothing that could be done: a signal struck where it was about to be given back.
        if not self._seat.acquire(timeout=_PATIENCE_SECONDS):
            return
        try:
            self._take_leave()
        finally:
            self._seat.release()

    def _at_hand(self) -> _Driven[L] | None:
        now = self._monotonic()
        has_paused = now - self._last_sent > _LONG_SECONDS
        self._last_sent = now
        if self._driven is not None and (self.is_closed or not self._driven.is_sound(after_pause=has_paused)):
            self._take_leave()
        if self._driven is None and not self.is_closed and self._is_worth_it(has_paused):
            self._open()
        return self._driven

    def _is_worth_it(self, has_paused: bool) -> bool:
        self._sent = 1 if has_paused else self._sent + 1
        return self._sent > _FEW

    def _open(self) -> None:
        driven: _Driven[L] = _Driven()
        # Known before it is open, so that whoever closes the shortcut need not wait for a connection.
        self._driven = driven
        # In a thread of its own, where no signal strikes: much is done to connect, and a driver may stumble over what it did not expect.
        # A bare one with a bare lock: what `threading` makes of these must not be struck either.
        gate = threading.Lock()
        gate.acquire()
        _thread.start_new_thread(driven.open, (self._connect, gate))
        try:
            gate.acquire()
        except BaseException:
            driven.interrupt()
            if driven.is_opening:
                gate.acquire(timeout=_PATIENCE_SECONDS)
            raise
        if driven.line is None:
            # Of a database that is away the portal knows what to say.
            self._sent = 0
            self._take_leave()

    def _take_leave(self) -> None:
        driven, self._driven = self._driven, None
        if driven is not None:
            driven.end()

    def _throw_away(self) -> None:
        driven, self._driven = self._driven, None
        self._sent = 0
        if driven is not None:
            driven.drop()


class _Driven(Generic[L]):
    """A loop that runs only while somebody waits for something in it, and the connection that belongs to it."""

    def __init__(self) -> None:
        # Not uvloop: in the main thread it takes hold of the signals whenever it is set going, which takes a tenth of a millisecond.
        # And not epoll: what a forked child does to its copy of that when it ends is done to the parent's.
        self._selector = _Selector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_exception_handler(self._note)
        self._task: asyncio.Future[Any] | None = None
        self._stray: BaseException | None = None
        self.line: L | None = None
        self.is_opening = True

    def open(self, connect: Callable[[], Awaitable[L]], gate: threading.Lock) -> None:
        """Have a connection, unless the database is away; then open the gate."""
        try:
            with suppress(StoreError):
                self.line = self.drive(connect())
        finally:
            self.is_opening = False
            gate.release()

    def drive(self, work: Awaitable[Answer]) -> Answer:
        """Run the loop until the work is done."""
        task: asyncio.Future[Answer] = asyncio.ensure_future(work, loop=self._loop)
        self._task = task
        try:
            answer = self._loop.run_until_complete(task)
        except BaseException as error:
            if self._stray is not None:
                raise self._stray from None
            if isinstance(error, asyncio.CancelledError):
                raise StoreUnavailable("Timeball was closed while this call was under way") from None
            raise
        if self._stray is not None:
            raise self._stray
        return answer

    def is_sound(self, *, after_pause: bool) -> bool:
        """Whether the connection is still there; after a pause the loop has a look first, for nobody drove it meanwhile."""
        assert self.line is not None
        if after_pause:
            self.drive(asyncio.sleep(0))
        return not self.line.is_closed()

    def interrupt(self) -> None:
        """Cut off what is under way, from any thread."""
        task = self._task
        if task is not None and not task.done():
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(task.cancel)

    def end(self) -> None:
        """Close the connection in good order."""
        if running_loop() is not None:
            if self.line is not None:
                self.line.terminate()
            return
        # It may have broken: that is why it ends.
        with suppress(Exception):
            self._loop.run_until_complete(self._close_line())
        self._loop.close()

    async def _close_line(self) -> None:
        if self.line is not None and not self.line.is_closed():
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.line.close(timeout=_PATIENCE_SECONDS)

    def drop(self) -> None:
        """Let go of everything that a signal has struck, without setting it going again: it might never end."""
        if running_loop() is self._loop:
            # Struck just when it was about to say that it runs no longer.
            asyncio._set_running_loop(None)
        for watched in list(self._selector.get_map().values()):
            # Whoever is at the other end is told; the file belongs to its socket, which closes it.
            with suppress(OSError), socket.socket(fileno=os.dup(watched.fd)) as other:
                other.shutdown(socket.SHUT_RDWR)
        for task in asyncio.all_tasks(self._loop):
            _forget(task)
        with suppress(RuntimeError):
            self._loop.close()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A signal's error that struck within a callback or a transport would be logged and forgotten: it belongs to whoever drives.

        What comes after it is its consequence.
        """
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError) and ("handle" in context or "transport" in context):
            self._stray = self._stray or error
            loop.stop()
        else:
            loop.default_exception_handler(context)


def _forget(task: asyncio.Task[Any]) -> None:
    """Nobody will ever come back to it, and nobody needs to hear of that."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if coroutine is not None:
        with suppress(Exception):
            coroutine.close()
