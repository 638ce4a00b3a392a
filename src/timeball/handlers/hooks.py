"""Code of a program that surrounds its runs, and code for the start and the end of its processes.

`@tb.around_run` takes what makes a context manager: a generator function that yields once, a function that `contextmanager` has
decorated, a class, a method such as `app.app_context` of Flask. It is called for each run, with the `ActiveRun` if it takes an
argument, in the very task, thread or process in which the handler is called. So the handler sees the context variables and thread
locals that it sets. It becomes an entry of `Handler.wrappers`, which `handlers.registry` enters and leaves.

A plain one surrounds every handler of the program; around a coroutine function it is entered in its task, and must not block. An
async one can surround coroutine functions alone. A program that has plain functions as well must say that these go without
(`coroutines_only=True`): a run without its tenant, because its function happens to be a plain one, is worse than an error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from timeball.current import active_run
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput
from timeball.handlers.binding import is_async

Function = TypeVar("Function", bound=Callable[..., Any])


class RunHook:
    """A function of the program that surrounds every run; a `RunWrapper`."""

    __slots__ = ("_open", "_takes_run", "coroutines_only", "is_async", "name")

    def __init__(self, function: Callable[..., Any], *, coroutines_only: bool = False) -> None:
        self.name = hook_name(function)
        code = inspect.unwrap(function)
        self.is_async = inspect.isasyncgenfunction(code) or _is_async_manager(function)
        self.coroutines_only = coroutines_only
        self._takes_run = _takes_argument(function, "around_run", self.name)
        if inspect.iscoroutinefunction(function):
            raise InvalidInput(
                f"around_run was given {self.name}, a coroutine function without a yield, expected one that yields once",
                hint="put `yield` where the run is to take place",
            )
        if inspect.isgeneratorfunction(function):
            self._open: Callable[..., Any] = contextmanager(function)
        elif inspect.isasyncgenfunction(function):
            self._open = asynccontextmanager(function)
        else:
            self._open = function

    def check_surrounds(self, handler: Handler) -> None:
        """Refuse a handler that this would have to leave out without a word."""
        if self.is_async and not self.coroutines_only and not is_async(handler):
            raise InvalidInput(
                f"{self.name} is async and cannot surround {handler.name}, which is a plain function",
                field="around_run",
                hint="make it a plain generator function; or let plain functions run without it: "
                "@tb.around_run(coroutines_only=True)",
            )

    def surrounds(self, handler: Handler) -> bool:
        """Whether it is entered around this handler."""
        return is_async(handler) or not (self.coroutines_only or self.is_async)

    def around(self) -> AbstractContextManager[object]:
        """For a plain function."""
        manager = self._manager()
        if not hasattr(type(manager), "__enter__"):
            raise self._no_manager(manager, "a context manager")
        entered: AbstractContextManager[object] = manager
        return entered

    def around_async(self) -> AbstractAsyncContextManager[object]:
        """For a coroutine function."""
        manager = self._manager()
        if hasattr(type(manager), "__aenter__"):
            entered: AbstractAsyncContextManager[object] = manager
            return entered
        if not hasattr(type(manager), "__enter__"):
            raise self._no_manager(manager, "a context manager")
        return _InTask(manager)

    def _manager(self) -> Any:
        return self._open(active_run()) if self._takes_run else self._open()

    def _no_manager(self, value: object, expected: str) -> InvalidInput:
        if inspect.iscoroutine(value):
            value.close()
        return InvalidInput(
            f"around_run was given {self.name}, which returned {type(value).__name__}, expected {expected}",
            field="around_run",
            hint="write a generator function that yields once, or return a context manager",
        )


class _InTask:
    """A plain context manager in the task of a coroutine function."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AbstractContextManager[object]) -> None:
        self._manager = manager

    async def __aenter__(self) -> object:
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return self._manager.__exit__(*error)


def surrounded(handler: Handler, hooks: Iterable[RunHook]) -> Handler:
    """The handler with the code of the program around its runs, inside of what surrounds it already."""
    hooks = tuple(hooks)
    for hook in hooks:
        hook.check_surrounds(handler)
    own = tuple(hook for hook in hooks if hook.surrounds(handler))
    return replace(handler, wrappers=(*handler.wrappers, *own)) if own else handler


@dataclass(frozen=True, slots=True)
class ProcessHooks:
    """What a program does when a process that runs its handlers starts, and when it stops: in the order of registration, and in reverse."""

    starts: tuple[Callable[[], Any], ...] = ()
    stops: tuple[Callable[[], Any], ...] = ()

    @asynccontextmanager
    async def around_worker(self) -> AsyncIterator[None]:
        """Around the time in which a worker runs handlers. An error of a start is raised; one of a stop, too, once all were called."""
        if not self.starts and not self.stops:
            yield
            return
        async with AsyncExitStack() as stack:
            for start in self.starts:
                await _call_hook(start, "on_worker_start")
            # Once all have started: what has not been opened could not be closed.
            for stop in self.stops:
                stack.push_async_callback(_call_hook, stop, "on_worker_stop")
            yield

    def start_child(self) -> None:
        """The start of an isolated child: async hooks run in an event loop of their own, as each of its coroutine handlers does."""
        for start in self.starts:
            asyncio.run(_call_hook(start, "on_worker_start"))

    def stop_child(self) -> None:
        """The end of an isolated child."""
        for stop in reversed(self.stops):
            asyncio.run(_call_hook(stop, "on_worker_stop"))


NO_PROCESS_HOOKS = ProcessHooks()


async def _call_hook(hook: Callable[[], Any], where: str) -> None:
    try:
        value = hook()
        # Not whatever can be awaited: a hook that returns the run that it has enqueued does not wait for it.
        if inspect.iscoroutine(value) or asyncio.isfuture(value):
            await value
    except Exception as error:
        error.add_note(f"raised by {hook_name(hook)}, which @tb.{where} has registered")
        raise


def check_process_hook(function: Callable[..., Any], where: str) -> None:
    """Refuse what could not be called when a process starts or stops."""
    name = hook_name(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{where} was given {name}, a generator function, expected a function or a coroutine function"
        )
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        raise InvalidInput(f"{where} was given {name}, expected a function that takes no arguments") from None


def hook_name(function: Callable[..., Any]) -> str:
    """How errors call a hook: `app.tenants:with_tenant`."""
    if not callable(function):
        raise InvalidInput(f"found {function!r}, expected a function")
    inner = function.func if isinstance(function, partial) else function
    qualname = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', type(inner).__module__)}:{qualname}"


def _takes_argument(function: Callable[..., Any], where: str, name: str) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a callable written in C
    for arguments in ((None,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise InvalidInput(f"{where} was given {name}{signature}, expected a function that takes the run, or nothing")


def _is_async_manager(function: Callable[..., Any]) -> bool:
    return isinstance(function, type) and hasattr(function, "__aenter__") and not hasattr(function, "__enter__")
