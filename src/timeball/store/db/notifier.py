"""Sends wake-ups by NOTIFY: the first one at once, those right after it in one message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from timeball.domain.wakeup import Wakeup
from timeball.errors import StoreError

if TYPE_CHECKING:
    from timeball.store.db.database import Database

Result = TypeVar("Result")

# The instant of a wake-up is not later than that of the work, although the clock of the program may be ahead of that of the database.
WAKEUP_MARGIN = timedelta(milliseconds=50)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_INTERVAL_SECONDS = 0.005


# A little longer than necessary: the next write takes the wake-ups along, which saves a commit.
_GRACE_SECONDS = 0.0025


# After so many writes in a row have taken them along, this is a stream, in which only the last wake-ups need a message of their own.
# Checking for them after every write, in another thread, would take an eighth of the time of the writes.
_BUSY_AFTER = 4
_BUSY_GRACE_SECONDS = 0.02
_FLUSH_SECONDS = 1.0


class Notifier:
    """Collects wake-ups and sends them, at most one message every few milliseconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._waiting = Wakeup()
        self._last_sent = float("-inf")
        self._has_sender = False
        # Only used in the event loop.
        self._sender: asyncio.Task[None] | None = None

    def tell(self, wakeup: Wakeup) -> None:
        """Send these soon; returns at once. A wake-up that cannot be sent is dropped: polling finds its work."""
        if not wakeup:
            return
        with self._mutex:
            self._waiting.merge(wakeup)
            if not self._has_sender:
                # In this order: a signal may interrupt in between.
                self._call_sender()
                self._has_sender = True

    def take_pending(self, wakeup: Wakeup) -> Wakeup | None:
        """The wake-ups that the next statement sends: these, and all pending ones; None if it is too early for another message.

        They count as sent: a caller that does not send them passes them to `tell` again.
        """
        now = self._database.env.clock.monotonic()
        with self._mutex:
            if now - self._last_sent < _INTERVAL_SECONDS:
                return None
            going = self._take_waiting(now)
        going.merge(wakeup)
        return going

    async def send_with(self, wakeup: Wakeup | None, write: Callable[[str | None], Awaitable[Result]]) -> Result:
        """Send taken wake-ups with a statement. If it fails, send them alone: they may announce the work of other writes, too."""
        if wakeup is None:
            return await write(None)
        try:
            return await write(wakeup.encode())
        except Exception:
            self.tell(wakeup)
            raise

    def _take_waiting(self, now: float) -> Wakeup:
        self._last_sent = now
        # No two messages of a process have the same nonce, and hardly two of different processes.
        going, self._waiting = self._waiting, Wakeup()
        going.nonce = int(now * 1e6)
        return going

    def _call_sender(self) -> None:
        if running_loop() is self._loop:
            self._begin()
        else:
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        passed = 0
        try:
            while self._has_more():
                last_sent = self._last_sent
                await self._wait_for_interval(is_stream=passed >= _BUSY_AFTER)
                with self._mutex:
                    has_passed = self._last_sent != last_sent or not self._waiting
                    going = Wakeup() if has_passed else self._take_waiting(self._database.env.clock.monotonic())
                passed = passed + 1 if has_passed else 0
                if going:
                    await self._database.notify(going.encode())
        except BaseException as error:
            self._has_sender = False
            if not isinstance(error, StoreError):
                raise

    async def _wait_for_interval(self, *, is_stream: bool) -> None:
        since = self._database.env.clock.monotonic() - self._last_sent
        if since < _INTERVAL_SECONDS:
            await asyncio.sleep(_INTERVAL_SECONDS + (_BUSY_GRACE_SECONDS if is_stream else _GRACE_SECONDS) - since)

    def _has_more(self) -> bool:
        """Whether there are pending wake-ups; if not, the next `tell` has to start the sender again."""
        with self._mutex:
            self._has_sender = bool(self._waiting)
            return self._has_sender

    async def flush(self) -> None:
        """Wait a moment until all pending wake-ups are sent; losing them costs time only."""
        # Wake-ups of other threads arrive with the next turn of the loop.
        await asyncio.sleep(0)
        if self._sender is not None:
            # `wait` and not `await`: a task that was cancelled at the end of a program is done as well.
            await asyncio.wait([self._sender], timeout=_FLUSH_SECONDS)
