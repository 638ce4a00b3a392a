"""The one way to a handler: whatever runs a handler calls `invoke`.

The runners of a worker (coroutine, thread, isolated child), Django's task backend and the test harness differ in the task, thread
or process that a handler runs in, and in what they make of its outcome. All of them call the handler here. So this is the place for
anything that has to surround every run of a handler, and `Handler.wrappers` is the list of it: Django's clean-up of database
connections is one entry. An entry is entered before the payload is bound and left after the handler has returned or raised, the
first one outermost. It sees the attempt as the handler does, through `timeball.current`.

A process that a handler forks, and that returns from the handler, is ended before it leaves a wrapper: the exit of a wrapper may
close or commit what the copy shares with the worker, such as a connection. A run without wrappers is checked by its runner alone.

A decorated function that a program calls itself, `send(42)`, is a plain call and not a run: it has no payload and no attempt, and
nothing surrounds it.

Frames of this package stand between the worker and the code of a handler. Tracebacks leave them out (`engine.runners.outcome`), as
they do for all of `timeball.handlers` but the built-in handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timeball.current import RUNNING, end_forked_copy
from timeball.domain.handler import Handler, RunStyle, RunWrapper
from timeball.handlers.binding import style_of


def invoke(handler: Handler, payload: str) -> Any:
    """Call a handler with a stored payload: the coroutine of an `async def`, the result of anything else.

    `PayloadMismatch` if the payload does not fit; the function is not entered then.
    """
    if not handler.wrappers:
        return handler.binder.call(payload)
    if is_async(handler):
        return _surround_async(handler.wrappers, handler, payload)
    return _surround(handler.wrappers, handler, payload)


def _surround(wrappers: Sequence[RunWrapper], handler: Handler, payload: str) -> Any:
    if not wrappers:
        return handler.binder.call(payload)
    with wrappers[0].around():
        try:
            return _surround(wrappers[1:], handler, payload)
        finally:
            _end_forked_copy()


async def _surround_async(wrappers: Sequence[RunWrapper], handler: Handler, payload: str) -> Any:
    if not wrappers:
        return await handler.binder.call(payload)
    async with wrappers[0].around_async():
        try:
            return await _surround_async(wrappers[1:], handler, payload)
        finally:
            _end_forked_copy()


def _end_forked_copy() -> None:
    context = RUNNING.get(None)
    if context is not None:
        end_forked_copy(context)


def is_async(handler: Handler) -> bool:
    """Whether calling the handler makes a coroutine."""
    style = handler.style
    if style is RunStyle.PROCESS:
        style = style_of(handler.function, isolate=False)
    return style is RunStyle.COROUTINE
