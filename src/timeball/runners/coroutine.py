"""Running `async def` handlers on the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from timeball.current import RUNNING, RunContext, end_forked_copy
from timeball.domain.execution import Outcome
from timeball.domain.handler import Handler
from timeball.runners.verdict import outcome_of_error, outcome_of_halt, outcome_of_return, settle


def invoke(handler: Handler, payload: str) -> Any:
    """Call a handler with a stored payload: the coroutine of an `async def`, the result of anything else."""
    return handler.binder.invoke(payload)


def interrupt(context: RunContext, task: asyncio.Task[Any]) -> None:
    """Make a halt felt in a coroutine: for `context.on_halt`, as long as the handler's coroutine is awaited in *task*."""
    # The error is sure to reach the handler, which is suspended now; so it knows, even if it should swallow the error.
    context.has_noticed = True
    task.cancel()


class CoroutineRunner:
    """Awaits the handler's coroutine in the caller's task."""

    async def run(self, handler: Handler, context: RunContext) -> Outcome:
        """Await the handler. A halt cancels what it awaits; one that swallows that keeps its slot until it returns."""
        if context.halted is not None:
            return outcome_of_halt(context)
        task = context.task or asyncio.current_task()
        assert task is not None
        token = RUNNING.set(context)
        context.on_halt = partial(interrupt, context, task)
        try:
            outcome = outcome_of_return(await handler.binder.invoke(context.claimed.payload))
        except BaseException as error:
            end_forked_copy(context)
            if isinstance(error, asyncio.CancelledError) and task.cancelling() and not context.is_halted:
                raise
            outcome = outcome_of_error(error, handler.options.no_retry)
        else:
            end_forked_copy(context)
        finally:
            context.on_halt = None
            RUNNING.reset(token)
        if context.has_noticed:
            _take_back_interrupt(task)
        return settle(context, outcome)

    async def stop(self) -> None:
        """There is nothing to free."""


def _take_back_interrupt(task: asyncio.Task[Any]) -> None:
    if task.uncancel():
        # Somebody else wants the task itself to end.
        raise asyncio.CancelledError
