"""Lets concurrent enqueues share a commit.

Much of what a durable write costs is its commit, and that can be shared. So while one is under way, the wishes that come in
gather, and all go with the next; who comes alone goes at once and waits for nobody. Measured with slow commits, beside a
loop of bare INSERTs: 0.55 of its rate one by one, 4.6 times it with sixteen coroutines at a time.

Wishes come from any thread and any event loop, and the answers go back there. Waking another thread is what costs most
on that way, so it is done once for all that wait, in both directions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from timeball.errors import StoreUnavailable, TimeballError

_MAX_BATCH = 200

Item = TypeVar("Item")
Answer = TypeVar("Answer")


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
        """Nobody waits for the answer any more."""
        self._is_done = True

    def done(self) -> bool:
        """Whether the answer is there, or nobody waits for it."""
        return self._is_done

    def settle(self, answer: Answer | Exception) -> None:
        """Give the answer; the first one counts."""
        if not self._is_done:
            self._answer, self._is_done = answer, True
            self._gate.release()


# Where somebody waits: a thread, or a coroutine of some event loop.
_Receiver = ThreadFuture[Any] | asyncio.Future[Any]


class Batcher(Generic[Item, Answer]):
    """Collects single items and has them dealt with together, in the event loop it was made in.

    *perform* answers in the order of the items, and does all or none. If it raises one of our errors, the items are tried
    one by one, so that nobody pays for the one that cannot be; if the store is away, all hear of it.
    """

    def __init__(self, perform: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._incoming: list[tuple[Item, _Receiver]] = []
        self._is_closed = False
        # From here on, in the loop alone.
        self._waiting: deque[tuple[Item, _Receiver]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._going = 0
        self._rest: asyncio.Future[None] = self._loop.create_future()

    @property
    def crowd(self) -> int:
        """About how many wait here just now; may be asked from any thread."""
        return len(self._incoming) + len(self._waiting) + self._going

    def submit(self, item: Item) -> ThreadFuture[Answer] | None:
        """Hand an item in, from any thread; None if it is too late, because the batcher is closed.

        Whoever cancels the slip before the item is under way has it left out.
        """
        slip: ThreadFuture[Answer] = ThreadFuture()
        return slip if self._hand_in(item, slip) else None

    def asubmit(self, item: Item) -> asyncio.Future[Answer] | None:
        """The same, from any event loop."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return future if self._hand_in(item, future) else None

    def close(self) -> None:
        """Take nothing more; those who wait are told."""
        with self._mutex:
            self._is_closed = True
            self._waiting.extend(self._incoming)
            self._incoming = []
        _deliver((receiver, _closed()) for _, receiver in self._waiting)
        self._waiting.clear()
        self._wake_sender()

    def _hand_in(self, item: Item, receiver: _Receiver) -> bool:
        with self._mutex:
            if self._is_closed:
                return False
            if not self._incoming:
                # First called, then handed in: a signal that strikes in between leaves nothing that everybody takes for called.
                self._loop.call_soon_threadsafe(self._take_in)
            self._incoming.append((item, receiver))
        return True

    def _take_in(self) -> None:
        with self._mutex:
            incoming, self._incoming = self._incoming, []
        self._waiting.extend(incoming)
        if self._waiting and self._sender is None:
            self._sender = self._loop.create_task(self._send_all())
        self._wake_sender()

    def _wake_sender(self) -> None:
        if not self._rest.done():
            self._rest.set_result(None)

    async def _send_all(self) -> None:
        try:
            # One task for all there will be: who enqueues one by one would wait for a new one each time.
            while not self._is_closed:
                self._rest = self._loop.create_future()
                while batch := self._next_batch():
                    self._going = len(batch)
                    await self._send(batch)
                    self._going = 0
                await self._rest
        finally:
            self._sender = None

    def _next_batch(self) -> list[tuple[Item, _Receiver]]:
        batch: list[tuple[Item, _Receiver]] = []
        while self._waiting and len(batch) < _MAX_BATCH:
            item, receiver = self._waiting.popleft()
            if not receiver.done():
                batch.append((item, receiver))
        return batch

    async def _send(self, batch: Sequence[tuple[Item, _Receiver]]) -> None:
        try:
            answers: Sequence[Any] = await self._perform([item for item, _ in batch])
        except TimeballError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailable):
                for one in batch:
                    await self._send([one])
                return
            answers = [error] * len(batch)
        except asyncio.CancelledError:
            _deliver((receiver, _closed()) for _, receiver in batch)
            raise
        except Exception as error:  # whatever it is: those who wait must hear of it
            answers = [error] * len(batch)
        _deliver(zip((receiver for _, receiver in batch), answers, strict=True))


def _deliver(answers: Iterable[tuple[_Receiver, Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for receiver, answer in answers:
        if isinstance(receiver, ThreadFuture):
            receiver.settle(answer)
        else:
            by_loop.setdefault(receiver.get_loop(), []).append((receiver, answer))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    for receiver, answer in pairs:
        if receiver.done():
            continue
        if isinstance(answer, Exception):
            receiver.set_exception(answer)
        else:
            receiver.set_result(answer)


def _closed() -> StoreUnavailable:
    return StoreUnavailable("Timeball was closed while this call was under way")
