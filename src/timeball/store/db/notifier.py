"""Sends wake-ups by NOTIFY: the first one at once, those right behind it in one message."""

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

# A wake-up names an instant that is not later than that of the work: the program's clock may be ahead of the database's.
WAKEUP_MARGIN = timedelta(milliseconds=50)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_INTERVAL_SECONDS = 0.005


# A little longer than it must be: a statement that passes by takes the hints along, which saves a commit.
_GRACE_SECONDS = 0.0025


# After so many in a row have passed by, it is a stream, which needs nobody but for its very last hints: who would look for them each
# time, in a thread of its own, takes an eighth of the time of those that pass.
_BUSY_AFTER = 4
_BUSY_GRACE_SECONDS = 0.02
_FLUSH_SECONDS = 1.0


class Notifier:
    """Collects hints and sends them, at most one message every few milliseconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._waiting = Wakeup()
        self._last_sent = float("-inf")
        self._has_sender = False
        # In the loop alone.
        self._sender: asyncio.Task[None] | None = None

    def tell(self, wakeup: Wakeup) -> None:
        """Send these soon; returns at once. A hint that cannot be sent is forgotten: polling stands behind it."""
        if not wakeup:
            return
        with self._mutex:
            self._waiting.merge(wakeup)
            if not self._has_sender:
                # First called, then taken for called: a signal may strike in between.
                self._call_sender()
                self._has_sender = True

    def take_pending(self, wakeup: Wakeup) -> Wakeup | None:
        """What the next statement is to announce: these, and all that wait; None if it is too early for another message.

        What was taken counts as sent: whoever does not send it tells it again.
        """
        now = self._database.env.clock.monotonic()
        with self._mutex:
            if now - self._last_sent < _INTERVAL_SECONDS:
                return None
            going = self._take_waiting(now)
        going.merge(wakeup)
        return going

    async def send_with(self, wakeup: Wakeup | None, write: Callable[[str | None], Awaitable[Result]]) -> Result:
        """Send taken wake-ups with a statement; if it fails, send them by themselves: they announce the work of others, too."""
        if wakeup is None:
            return await write(None)
        try:
            return await write(wakeup.encode())
        except Exception:
            self.tell(wakeup)
            raise

    def _take_waiting(self, now: float) -> Wakeup:
        self._last_sent = now
        # No two messages of a process have the same lot, and hardly two of different ones.
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
        """Whether something waits; if not, the next one who tells something has to begin again."""
        with self._mutex:
            self._has_sender = bool(self._waiting)
            return self._has_sender

    async def flush(self) -> None:
        """Wait until everything told so far has been sent, but not for long: it is only hints."""
        # What a thread has just told comes in by the next turn.
        await asyncio.sleep(0)
        if self._sender is not None:
            # Waited for, not awaited: one that was cut off at the end of a program is done as well.
            await asyncio.wait([self._sender], timeout=_FLUSH_SECONDS)
