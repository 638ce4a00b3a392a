"""The two ways of a single enqueue to the database: together with others in a batch, or alone on a direct connection.

Much of what a durable write costs is its commit, and a commit can be shared. So every enqueue goes to the `Batcher`, which writes in
the background loop: a lone one is written at once, and those that come in while a write is under way go together with the next one.

A thread or coroutine that enqueues in a tight loop has no company. To wake the background loop, and to be woken by it, takes a fifth
of the time of each of its enqueues; so it writes by itself, on the connection of the `DirectPath`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from timeball.errors import StoreError, StoreUnavailable, TimeballError

if TYPE_CHECKING:
    from timeball.store.db.direct_connection import DirectConnection

_MAX_BATCH = 200
# So many calls, none of them long after the one before, are a tight loop.
_TIGHT_LOOP_CALLS = 10
_LONG_PAUSE_SECONDS = 1.0
# Where no direct connection can be opened, it is tried again after this time.
_REOPEN_SECONDS = 60.0
# How long closing waits for the caller that uses the direct connection; that one notices within a tenth of a second.
_CLOSE_SECONDS = 2.0

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def closed_error() -> StoreUnavailable:
    """What a caller hears whose write was under way when all was closed."""
    return StoreUnavailable("Timeball was closed while this call was under way")


class ThreadFuture(Generic[Answer]):
    """Where one thread waits for its answer. A `Future` of `concurrent.futures` can do more, and takes four times as long."""

    __slots__ = ("_answer", "_gate", "_is_done")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_done = False
        self._answer: Any = None

    def result(self, timeout: float = -1) -> Answer:
        """Wait for the answer, once; raise it if it is an error."""
        if not self._gate.acquire(timeout=timeout):
            raise TimeoutError
        if isinstance(self._answer, Exception):
            raise self._answer
        answer: Answer = self._answer
        return answer

    def cancel(self) -> None:
        """Give up waiting: an item that is not under way yet is left out."""
        self._is_done = True

    def done(self) -> bool:
        """Whether the answer is there, or the thread has given up."""
        return self._is_done

    def settle(self, answer: Answer | Exception) -> None:
        """Give the answer; the first one counts."""
        if not self._is_done:
            self._answer, self._is_done = answer, True
            self._gate.release()


_Future = ThreadFuture[Any] | asyncio.Future[Any]


class Batcher(Generic[Item, Answer]):
    """Collects single items from any thread and event loop, and has them written together in the loop it was made in.

    *write* answers in the order of the items, and does all or none. If it raises one of our errors, the items are tried one by one, so
    that a wrong one fails alone; if the store is away, all of them fail.

    Waking another thread costs most on this way, so it is done once for all that wait, in both directions.
    """

    def __init__(self, write: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._queue: deque[tuple[Item, _Future]] = deque()
        self._is_closed = False
        # From here on, in the loop alone.
        self._writer: asyncio.Task[None] | None = None
        self._under_way = 0
        self._next_item: asyncio.Future[None] = self._loop.create_future()

    @property
    def waiting(self) -> int:
        """About how many callers wait here; may be asked from any thread."""
        return len(self._queue) + self._under_way

    def submit(self, item: Item) -> ThreadFuture[Answer] | None:
        """Add an item, from any thread; None if the batcher is closed."""
        future: ThreadFuture[Answer] = ThreadFuture()
        return future if self._add(item, future) else None

    def asubmit(self, item: Item) -> asyncio.Future[Answer] | None:
        """Like `submit`, from any event loop."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return future if self._add(item, future) else None

    def close(self) -> None:
        """Take no more items; the callers that wait fail."""
        with self._mutex:
            self._is_closed = True
            queue, self._queue = self._queue, deque()
        _deliver((future, closed_error()) for _, future in queue)
        self._wake_writer()

    def _add(self, item: Item, future: _Future) -> bool:
        with self._mutex:
            if self._is_closed:
                return False
            if not self._queue:
                # Before the item is added: should a signal strike in between, the next caller still finds an empty queue.
                self._loop.call_soon_threadsafe(self._wake_writer)
            self._queue.append((item, future))
        return True

    def _wake_writer(self) -> None:
        if self._writer is None and not self._is_closed:
            self._writer = self._loop.create_task(self._write_all())
        elif not self._next_item.done():
            self._next_item.set_result(None)

    async def _write_all(self) -> None:
        try:
            # One task for all batches: a new one for each would be a turn of the loop for each.
            while not self._is_closed:
                while batch := self._next_batch():
                    self._under_way = len(batch)
                    await self._write_batch(batch)
                    self._under_way = 0
                self._next_item = self._loop.create_future()
                await self._next_item
        finally:
            self._writer, self._under_way = None, 0

    def _next_batch(self) -> list[tuple[Item, _Future]]:
        batch: list[tuple[Item, _Future]] = []
        with self._mutex:
            while self._queue and len(batch) < _MAX_BATCH:
                item, future = self._queue.popleft()
                if not future.done():
                    batch.append((item, future))
        return batch

    async def _write_batch(self, batch: Sequence[tuple[Item, _Future]]) -> None:
        try:
            answers: Sequence[Any] = await self._write([item for item, _ in batch])
        except TimeballError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailable):
                for pair in batch:
                    await self._write_batch([pair])
                return
            answers = [error] * len(batch)
        except asyncio.CancelledError:
            _deliver((future, closed_error()) for _, future in batch)
            raise
        except Exception as error:  # whatever it is: the callers must not wait for ever
            answers = [error] * len(batch)
        _deliver(zip((future for _, future in batch), answers, strict=True))


def _deliver(answers: Iterable[tuple[_Future, Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for future, answer in answers:
        if isinstance(future, ThreadFuture):
            future.settle(answer)
        else:
            by_loop.setdefault(future.get_loop(), []).append((future, answer))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


class DirectPath:
    """The one connection that callers use by themselves, one thread or coroutine at a time.

    - It is opened for a tight loop, not for a program that enqueues now and then. *start* has that done in another thread, and no
      caller waits for it.
    - A caller that finds it in use takes the other way; it never waits for another caller here.
    - A signal or a cancellation may strike at any point, even inside the driver. Then the connection is closed, and a later call has
      another one opened.
    """

    def __init__(
        self,
        connect: Callable[[], DirectConnection],
        start: Callable[[Callable[[], None]], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._start = start
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self.is_closed = False
        # From here on, changed under the mutex, unless `_open` cannot get it.
        # `forget_loop` does not take it, and may be lost: then a loop is taken for tight too early.
        self._connection: DirectConnection | None = None
        self._is_opening = False
        self._open_after = float("-inf")
        self._calls_in_a_row = 0
        self._last_call_at = float("-inf")

    def run(self, write: Callable[[DirectConnection], Answer]) -> Answer | None:
        """Call *write* with the connection; None, and nothing is done, if the connection is not to be had."""
        # Without waiting. A signal between this line and the next would cost the program the direct path, and no more.
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            connection = self._usable_connection()
            return None if connection is None else write(connection)
        except BaseException as error:
            self._on_error(error)
            raise
        finally:
            self._mutex.release()

    async def arun(self, write: Callable[[DirectConnection], Awaitable[Answer]]) -> Answer | None:
        """Like `run`, for coroutines."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            connection = self._usable_connection()
            return None if connection is None else await write(connection)
        except BaseException as error:
            self._on_error(error)
            raise
        finally:
            self._mutex.release()

    def forget_loop(self) -> None:
        """Callers come together, and share commits: the next one that is alone has to show a tight loop again."""
        self._calls_in_a_row = 0

    def close(self) -> None:
        """Close the connection for good; a caller that waits for an answer on it fails."""
        self.is_closed = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        if self._mutex.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._discard()
            finally:
                self._mutex.release()

    def _usable_connection(self) -> DirectConnection | None:
        now = self._monotonic()
        has_paused = now - self._last_call_at > _LONG_PAUSE_SECONDS
        self._last_call_at = now
        if self._calls_in_a_row <= _TIGHT_LOOP_CALLS:
            self._calls_in_a_row = 1 if has_paused else self._calls_in_a_row + 1
        if self._calls_in_a_row <= _TIGHT_LOOP_CALLS:
            return None
        if self._connection is None:
            if not self._is_opening and now > self._open_after and not self.is_closed:
                self._start(self._open)
                self._is_opening = True
        elif has_paused and not self._connection.is_usable():
            self._discard()
        return self._connection

    def _open(self) -> None:
        connection = None
        try:
            connection = self._connect()
        except (TimeballError, ImportError, AttributeError):
            # The batcher's errors say what is wrong with the database, and it does without this driver, or this release of it.
            self._open_after = self._monotonic() + _REOPEN_SECONDS
        # Bounded, as in `close`: a signal may have struck where the mutex was about to be released, or calls in a tight loop leave no gap.
        if not self._mutex.acquire(timeout=_CLOSE_SECONDS):
            if connection is not None:
                connection.close()
            # A later call has another one opened.
            self._open_after, self._is_opening = self._monotonic() + _REOPEN_SECONDS, False
            return
        try:
            self._connection, self._is_opening = connection, False
            if self.is_closed:
                self._discard()
        finally:
            self._mutex.release()

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, StoreError) or not isinstance(error, TimeballError):
            self._discard()

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        self._calls_in_a_row = 0
        if connection is not None:
            connection.close()
