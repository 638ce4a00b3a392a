"""Handlers by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from timeball.domain.handler import Handler, HandlerOptions
from timeball.domain.values.text import check_label
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.handlers.binding import SignatureBinder, style_of


class Registry:
    """The handlers a program knows. A name belongs to one handler only."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers: dict[str, Handler] = {}
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
        return Registry([*self, *others])

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
    return Handler(
        # A worker names all its handlers in each claim: one that cannot be written would stop them all.
        name=check_label(name if name is not None else default_name(function), "name"),
        function=function,
        style=style_of(function, isolate=isolate),
        binder=SignatureBinder(function),
        options=options if options is not None else HandlerOptions(),
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
