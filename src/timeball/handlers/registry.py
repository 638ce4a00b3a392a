"""Handlers by name, and the one way to call one: whatever runs a handler calls `invoke`.

The runners of a worker (coroutine, thread, isolated child), Django's task backend and the test harness differ in the task, thread
or process that a handler runs in, and in what they make of its outcome. All of them call the handler here. So this is the place for
anything that has to surround every run of a handler, and `Handler.wrappers` is the list of it: Django's clean-up of database
connections is one entry, the code that a program declares with `@tb.around_run` (`handlers.hooks`) another. An entry is entered
before the payload is bound and left after the handler has returned or raised, the first one outermost. It sees the attempt as the
handler does, through `timeball.current`.

A wrapper cannot swallow an error, and a process that a handler forks is ended before it leaves one (`handlers.layers`). A wrapper may
raise another error in place of the handler's. A run without wrappers is checked by its runner alone.

Parameters that a run provides (`handlers.dependencies`) belong to the binder: they are opened inside of all wrappers.

A decorated function that a program calls itself, `send(42)`, is a plain call and not a run: it has no payload and no attempt, and
nothing surrounds it.

Frames of this module stand between the worker and the code of a handler or a wrapper. Tracebacks leave them out;
`engine.runners.outcome` says which packages and modules are left out.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from timeball.current import RUNNING
from timeball.domain.handler import Handler, HandlerOptions, RunStyle
from timeball.domain.values.text import check_label
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.handlers.binding import SignatureBinder, is_async, style_of
from timeball.handlers.dependencies import with_dependencies
from timeball.handlers.hooks import NO_PROCESS_HOOKS, ProcessHooks
from timeball.handlers.layers import AsyncLayer, Layer


class Registry:
    """The handlers a program knows. A name belongs to one handler only."""

    __slots__ = ("_handlers", "process_hooks")

    def __init__(self, handlers: Iterable[Handler] = (), process_hooks: ProcessHooks = NO_PROCESS_HOOKS) -> None:
        self._handlers: dict[str, Handler] = {}
        # What the program does when a process that runs its handlers starts, and when it stops.
        self.process_hooks = process_hooks
        for handler in handlers:
            self.add(handler)

    def add(self, handler: Handler) -> Handler:
        """Make a handler known; a name that is taken is refused."""
        known = self._handlers.setdefault(handler.name, handler)
        if known is not handler:
            raise Conflict(
                f"handler {handler.name!r} is declared twice: by {_location(known)} and by {_location(handler)}",
                hint="give one of them another name: @tb.handler(name=...)",
            )
        return handler

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if it is known here."""
        return self._handlers.get(name)

    def get(self, name: str) -> Handler:
        """The handler of that name; raises `NotFound`."""
        handler = self._handlers.get(name)
        if handler is None:
            raise NotFound("handler", name)
        return handler

    def names(self) -> tuple[str, ...]:
        """All names, in the order of their declaration."""
        return tuple(self._handlers)

    def merge(self, others: Iterable[Handler]) -> Registry:
        """A registry of these handlers and the others, such as those in the box."""
        return Registry([*self, *others], self.process_hooks)

    def prepare(self) -> None:
        """Build all that the first call of each handler would have to build."""
        for handler in self:
            handler.binder.prepare()

    def __contains__(self, name: object) -> bool:
        return name in self._handlers

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)


def make_handler(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    isolate: bool = False,
    options: HandlerOptions | None = None,
) -> Handler:
    """Turn a function into a handler: `async def` runs on the loop, `def` in a thread, *isolate* in a child process."""
    style, options = style_of(function, isolate=isolate), options if options is not None else HandlerOptions()
    check_stopping(style, options)
    return Handler(
        # A worker names all its handlers in each claim: one that cannot be written would stop them all.
        name=check_label(name if name is not None else default_name(function), "name"),
        function=function,
        style=style,
        binder=SignatureBinder(with_dependencies(function)),
        options=options,
    )


def check_stopping(style: RunStyle, options: HandlerOptions) -> None:
    """Refuse what means nothing to a handler of this style."""
    if options.interrupt and style is not RunStyle.THREAD:
        where = "a child process, which gets the error anyway" if style is RunStyle.PROCESS else "the event loop"
        raise InvalidInput(
            f"interrupt is for a plain function in a thread, but this handler runs in {where}",
            field="interrupt",
            hint="leave it out",
        )
    if options.grace is not None and style is RunStyle.COROUTINE:
        raise InvalidInput(
            "grace is given for a coroutine function, which is cancelled at its timeout and never ended by force",
            field="grace",
            hint="leave it out, or isolate the handler",
        )


def default_name(function: Callable[..., Any]) -> str:
    """The name of a handler that was given none: `app.mail:send_receipt`, the same wherever the file is started from."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        raise InvalidInput(f"{function!r} has no name of its own; give it one: @tb.handler(name=...)", field="name")
    module = function.__module__
    return f"{_main_module_name() if module == '__main__' else module}:{qualname}"


def _main_module_name() -> str:
    """What `__main__` is called when a worker imports the same file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    path = getattr(main, "__file__", None)
    return "__main__" if path is None else Path(path).stem


def _location(handler: Handler) -> str:
    code = getattr(inspect.unwrap(handler.function), "__code__", None)
    return repr(handler.function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def invoke(handler: Handler, payload: str) -> Any:
    """Call a handler with a stored payload: the coroutine of an `async def`, the result of anything else.

    `PayloadMismatch` if the payload does not fit; the function is not entered then.
    """
    if not handler.wrappers:
        return handler.binder.call(payload)
    if is_async(handler):
        return _invoke_async(handler, payload)
    with ExitStack() as stack:
        for wrapper in handler.wrappers:
            stack.enter_context(Layer(wrapper.around()))
        return _ended_with(handler.binder.call(payload))


async def _invoke_async(handler: Handler, payload: str) -> Any:
    async with AsyncExitStack() as stack:
        for wrapper in handler.wrappers:
            await stack.enter_async_context(AsyncLayer(wrapper.around_async()))
        coroutine: Awaitable[Any] = handler.binder.call(payload)
        return _ended_with(await coroutine)


def _ended_with(value: Any) -> Any:
    """What a handler returned, once the code around the run can see it."""
    context = RUNNING.get(None)
    if context is not None and context.active_run is not None:
        context.active_run.end_with(value)
    return value
