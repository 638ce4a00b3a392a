"""What a context manager may do around one run, whatever it belongs to: a wrapper of the handler, or a dependency.

It cannot swallow an error: one that it swallows goes on all the same, because a run that has failed must not count as done. Before it is
left, a copy of the process that the handler forked is ended: its exit may close or commit what the copy shares with the worker.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType

from timeball.current import RUNNING, end_forked_copy


class Layer:
    """A context manager around one run of a plain function, or in the task of a coroutine function."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AbstractContextManager[object]) -> None:
        self._manager = manager

    def __enter__(self) -> object:
        return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _leave(error)
        if self._manager.__exit__(kind, error, traceback) and error is not None:
            error.__traceback__ = traceback  # without the frames of the manager that swallowed it


class AsyncLayer:
    """The same for an async one."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AbstractAsyncContextManager[object]) -> None:
        self._manager = manager

    async def __aenter__(self) -> object:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _leave(error)
        if await self._manager.__aexit__(kind, error, traceback) and error is not None:
            error.__traceback__ = traceback


def _leave(error: BaseException | None) -> None:
    """Before a manager is left: end a forked copy, and tell the code around the run of an error."""
    context = RUNNING.get(None)
    if context is not None:
        end_forked_copy(context)
        if error is not None:
            context.keep_error_scope()
            if context.active_run is not None:
                context.active_run.fail_with(error)
