"""A thread with an event loop of its own, through which programs of any kind reach something asynchronous.

A pool of database connections belongs to one event loop. Programs have none (a script), one (a web server), or one after the
other (`asyncio.run` twice); so the pool lives in a loop that is ours, and everybody hands work in: threads wait for
the answer, coroutines await it. The way there and back took 50 µs at the median on two busy cores (quartiles 47-99).

- Nothing is started before the first call, and what could not be opened is tried again by the next one.
- `close` ends what is under way and may be called any number of times; a later call opens anew.
- At the end of the program the portal closes itself. A thread that is no daemon would keep the program from ending.
- After `os.fork()` the child has no such thread. It begins with a portal of its own and keeps its hands off what it
  inherited: those sockets are the parent's, and even collecting them as garbage could disturb it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, TypeVar

from timeball.errors import StoreUnavailable, TimeballError

T = TypeVar("T")
Answer = TypeVar("Answer")
Work = Callable[[T], Coroutine[Any, Any, Answer]]


class BackgroundLoop(Generic[T]):
    """The way to a resource that lives in an event loop of its own; opened by the first call."""

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_resource = open_resource
        self._mutex = threading.Lock()
        self._host: _LoopThread[T] | None = None
        self._inherited: list[_LoopThread[T]] = []
        self._is_prepared_for_fork = False

    @property
    def resource(self) -> T | None:
        """The resource if it is open; a call opens it. Only what is made for other threads may be used of it."""
        host = self._host
        return None if host is None else host.resource

    def call(self, work: Work[T, Answer]) -> Answer:
        """Have *work* done with the resource, and wait for what comes of it."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits for the answer any more
            raise

    async def acall(self, work: Work[T, Answer]) -> Answer:
        """The same, for coroutines of any event loop."""
        return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Close the resource and end the thread."""
        with self._mutex:
            host, self._host = self._host, None
        if host is not None:
            atexit.unregister(self.close)
            host.stop()

    async def aclose(self) -> None:
        """The same, for coroutines."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _submit(self, work: Work[T, Answer]) -> Future[Answer]:
        # Under the mutex, so that no work is handed to a loop that has just been stopped.
        with self._mutex:
            if self._host is None:
                self._host = self._new_host()
            if self._host.is_own_thread:
                raise TimeballError("Timeball was called from its own background thread, which would wait for itself")
            return asyncio.run_coroutine_threadsafe(self._host.perform(work), self._host.loop)

    def _new_host(self) -> _LoopThread[T]:
        if not self._is_prepared_for_fork:
            self._is_prepared_for_fork = True
            os.register_at_fork(after_in_child=_weak_callback(self._reset_after_fork))
        atexit.register(self.close)
        return _LoopThread(self._open_resource)

    def _reset_after_fork(self) -> None:
        """In a forked child: whoever held the mutex is not here, nor is the thread."""
        self._mutex = threading.Lock()
        if self._host is not None:
            self._inherited.append(self._host)
            self._host = None


def _weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """A call of *method* that does not keep its object alive: what is registered for forks stays for good."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call


class _LoopThread(Generic[T]):
    """A running thread with its loop and, once somebody needs it, the open resource."""

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
        """Whether this is the host's own thread."""
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
            # Not by the loop: for that it starts a thread, which some Pythons refuse to a program that is about to end.
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
    """Threads for the loop; when the program ends, Python forbids new work for them, and it is done on the spot."""

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
    except ImportError:  # not on this platform: slower, and right all the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
