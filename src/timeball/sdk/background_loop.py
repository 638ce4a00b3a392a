"""An event loop in a background thread, through which any program reaches something asynchronous.

A pool of database connections belongs to one event loop. A script has none, a web server has one, and a program that calls
`asyncio.run` twice has two, one after the other. So the pool lives in a loop of ours. Threads submit work and wait for the answer,
coroutines submit work and await it; the way there and back took 50 µs at the median on two busy cores (quartiles 47-99).

- The thread is started by the first call. If the resource cannot be opened, the next call tries again.
- `close` ends what is under way, and may be called any number of times; a later call opens the resource again.
- At the end of the program the loop closes itself. Its thread is a daemon: another one would keep the program from ending.
- After `os.fork()` the child has no such thread, and starts one of its own. It does not touch what it inherited, and keeps it from
  being collected as garbage: those sockets are the parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, TypeVar

from timeball.errors import StoreUnavailable, TimeballError

T = TypeVar("T")
Answer = TypeVar("Answer")
Work = Callable[[T], Coroutine[Any, Any, Answer]]

_LONGEST_WAIT_SECONDS = 0.25


class BackgroundLoop(Generic[T]):
    """A resource that lives in an event loop in a background thread; opened by the first call."""

    def __init__(
        self, open_resource: Callable[[], AbstractAsyncContextManager[T]], check: Callable[[], None] = lambda: None
    ) -> None:
        self._open_resource = open_resource
        # Called in the caller's thread; what it raises is raised to the caller, and nothing is started.
        self._check = check
        self._mutex = threading.Lock()
        self._loop_thread: _LoopThread[T] | None = None
        self._inherited: list[_LoopThread[T]] = []
        self._is_prepared_for_fork = False

    @property
    def resource(self) -> T | None:
        """The resource, if it is open. Other threads may use only those of its parts that are made for them."""
        loop_thread = self._loop_thread
        return None if loop_thread is None else loop_thread.resource

    def call(self, work: Work[T, Answer]) -> Answer:
        """Run *work* with the resource in the background loop, and wait for its result."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: no caller waits for the result any more
            raise

    def wait(self, work: Work[T, Answer]) -> Answer:
        """Like `call`, for work that may take as long as it likes: a handler that is to stop gets its error here (`interrupt.py`).

        Its thread gets it between two bytecodes, so it does not stay in one wait.
        """
        future = self.submit(work)
        try:
            while not wait_for((future,), _LONGEST_WAIT_SECONDS).done:
                pass
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def acall(self, work: Work[T, Answer]) -> Answer:
        """Like `call`, for coroutines of any event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Close the resource and end the thread."""
        with self._mutex:
            loop_thread, self._loop_thread = self._loop_thread, None
        if loop_thread is not None:
            atexit.unregister(self.close)
            loop_thread.stop()

    async def aclose(self) -> None:
        """Like `close`, for coroutines."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def submit(self, work: Work[T, Answer]) -> Future[Answer]:
        """Start *work* with the resource in the background loop; the future has its result."""
        self._check()
        # Under the mutex, so that no work is submitted to a loop that has just been stopped.
        with self._mutex:
            if self._loop_thread is None:
                self._loop_thread = self._new_loop_thread()
            if self._loop_thread.is_own_thread:
                raise TimeballError("Timeball was called from its own background thread, which would wait for itself")
            return asyncio.run_coroutine_threadsafe(self._loop_thread.perform(work), self._loop_thread.loop)

    def _new_loop_thread(self) -> _LoopThread[T]:
        if not self._is_prepared_for_fork:
            self._is_prepared_for_fork = True
            os.register_at_fork(after_in_child=_weak_callback(self._reset_after_fork))
        atexit.register(self.close)
        return _LoopThread(self._open_resource)

    def _reset_after_fork(self) -> None:
        """In a forked child: the thread is missing, and so is the one that may have held the mutex."""
        self._mutex = threading.Lock()
        if self._loop_thread is not None:
            self._inherited.append(self._loop_thread)
            self._loop_thread = None


def _weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """A call of *method* that does not keep its object alive: a function that is registered for forks stays for good."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    return call


class _LoopThread(Generic[T]):
    """A running thread with its loop and, after the first call, the open resource."""

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.loop = _new_loop()
        self._executor = _Executor(thread_name_prefix="timeball")
        self.loop.set_default_executor(self._executor)
        self.resource: T | None = None
        self._open_resource = open_resource
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self.loop.run_forever, name="timeball", daemon=True)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.get_ident() == self._thread.ident

    async def perform(self, work: Work[T, Answer]) -> Answer:
        try:
            return await work(await self._opened() if self.resource is None else self.resource)
        except asyncio.CancelledError:
            if self._is_stopping:
                raise StoreUnavailable("Timeball was closed while this call was under way") from None
            raise

    async def _opened(self) -> T:
        async with self._opening:
            if self.resource is None:
                self.resource = await self._stack.enter_async_context(self._open_resource())
            return self.resource

    def stop(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self.loop).result()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            # Not by the loop, which starts a thread for it: some versions of Python refuse that at the end of a program.
            self._executor.shutdown(wait=True)
            self.loop.close()

    async def _shut_down(self) -> None:
        self._is_stopping = True
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._stack.aclose()


class _Executor(ThreadPoolExecutor):
    """Threads for the loop. When the program ends, Python forbids new work for them, and the loop does it itself."""

    def submit(self, function: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError:
            return _run_inline(function, *args, **kwargs)


def _run_inline(function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Future[Answer]:
    future: Future[Answer] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on this platform: slower, and just as correct
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
