"""Running handlers in child processes, which can be ended whatever they do.

Each child runs one attempt at a time and is used again, as long as an attempt leaves nothing behind. A child that dies
with an attempt in its hands makes it `Lost`, as a worker would that dies: it counts against `max_lost`, not against
`max_retries`. What a handler's processes leave running is ended with the child (see `warden`).
"""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_never

from timeball.current import Halt, RunContext
from timeball.domain.execution import ErrorInfo, Failed, Lost, Outcome
from timeball.domain.handler import Handler
from timeball.runners.child_process import ChildProcess, Died, Ending, Unusable
from timeball.runners.error_report import describe, describe_death
from timeball.runners.verdict import outcome_of_halt, settle, without_room
from timeball.runners.wire import Ended

COOPERATION = timedelta(seconds=2)
_RUNS_PER_CHILD = 1_000

# No file, process or memory left.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class ProcessRunner:
    """Runs handlers of *app* (`module:attribute`, as given to the worker) in children of this process.

    *cooperation* is how long a cancelled handler may go on before it is ended by force; one past its timeout has had its time.
    """

    def __init__(self, app: str, *, cooperation: timedelta = COOPERATION) -> None:
        self._app = app
        self._cooperation = cooperation
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._waits: set[asyncio.Task[None]] = set()

    async def warm(self, children: int = 1) -> None:
        """Start children before they are needed, so that the first attempts need not wait for the app's import."""
        while len(self._idle) < children:
            self._idle.append(await ChildProcess.start(self._app))

    async def run(self, handler: Handler, context: RunContext) -> Outcome:
        """Run the handler in a child. After a forced end nothing of it is left when this returns."""
        try:
            while (child := await self._take(context)) is not None:
                ending = await self._run_in(child, context)
                if not _died_idle(child, ending):
                    return _outcome(handler, context, ending)
        except OSError as error:
            # The machine has no room for another process just now.
            return settle(context, without_room(error) if error.errno in _NO_ROOM else Failed(describe(error)))
        return outcome_of_halt(context)

    async def stop(self) -> None:
        """End all children, with whatever they run."""
        children = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(child.end() for child in children))

    async def _take(self, context: RunContext) -> ChildProcess | None:
        """A child for this attempt; None if it was halted meanwhile."""
        child = await self._living_child()
        if not context.is_halted:
            return child
        self._idle.append(child)
        return None

    async def _living_child(self) -> ChildProcess:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            await child.end()
        return await ChildProcess.start(self._app)

    async def _run_in(self, child: ChildProcess, context: RunContext) -> Ending:
        self._busy.add(child)
        context.on_halt = lambda: self._halt(child, context)
        ending: Ending | None = None
        try:
            ending = await child.perform(context)
            return ending
        finally:
            context.on_halt = None
            await self._release(child, ending)

    async def _release(self, child: ChildProcess, ending: Ending | None) -> None:
        is_reusable = isinstance(ending, Ended) and ending.is_reusable and child.runs < _RUNS_PER_CHILD
        if is_reusable and child.is_alive:
            self._busy.discard(child)
            self._idle.append(child)
            return
        await child.end()
        self._busy.discard(child)

    def _halt(self, child: ChildProcess, context: RunContext) -> None:
        child.stop(context)
        if context.halted is Halt.TIMEOUT:
            child.hang_up()
        else:
            self._spawn(self._hang_up_later(child, context, child.runs))

    async def _hang_up_later(self, child: ChildProcess, context: RunContext, run: int) -> None:
        await context.clock.sleep(self._cooperation.total_seconds())
        if child in self._busy and child.runs == run:
            child.hang_up()

    def _spawn(self, wait: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(wait)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)


def _died_idle(child: ChildProcess, ending: Ending) -> bool:
    """Whether a child that had worked before was found dead: the attempt has not begun, so another child can have it."""
    return isinstance(ending, Died) and not ending.has_begun and child.runs > 1


def _outcome(handler: Handler, context: RunContext, ending: Ending) -> Outcome:
    match ending:
        case Ended(outcome=outcome, has_noticed=has_noticed):
            context.has_noticed = has_noticed
            return settle(context, outcome)
        case Unusable(error=error):
            return settle(context, Failed(error))
        case Died():
            # Whoever was told to end and then died has taken notice.
            context.has_noticed = context.is_halted
            return settle(context, Lost(_death(handler, ending)))
        case _:
            assert_never(ending)


def _death(handler: Handler, ending: Died) -> ErrorInfo:
    when = "while its handler ran" if ending.has_begun else "while it imported the app"
    return describe_death("ProcessDied", f"the child process {_manner(ending.returncode)} {when}", handler.name)


def _manner(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (by hand, or for want of memory)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
