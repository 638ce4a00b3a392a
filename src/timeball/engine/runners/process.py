"""Runs handlers in child processes: a pool of them, and the worker's end of each."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, assert_never

from timeball.current import PRINT_LEVEL, SLOT_LENDER, AttemptContext, StopReason
from timeball.domain.execution import ClaimedExecution, ErrorInfo, Failed, Lost, Outcome, TimeoutOutcome
from timeball.domain.handler import Handler, Isolate
from timeball.engine.runners.child import (
    FailureLoggedMessage,
    FailureMessage,
    FromChild,
    LogMessage,
    OutcomeMessage,
    ProgressMessage,
    ReadyMessage,
    RunMessage,
    SetupFailedMessage,
    SetupMessage,
    StartedMessage,
    StopMessage,
    TraceMessage,
    WaitMessage,
    pack,
    receive,
)
from timeball.engine.runners.failure_log import FLUSH_SECONDS, LOGGED_BY_CHILD, AttemptFailure
from timeball.engine.runners.outcome import (
    describe_error,
    describe_exit,
    judge_timeout,
    outcome_of_exhaustion,
    outcome_of_halt,
    settle,
)
from timeball.handlers.subreaper import TERM_GRACE_SECONDS

COOPERATION_GRACE = timedelta(seconds=2)
# How long a child may take to log an error; its worker does it after that, without the traceback.
_LOG_SECONDS = FLUSH_SECONDS + 3

ForeseeFailure = Callable[[ClaimedExecution, Failed | TimeoutOutcome], Awaitable[AttemptFailure]]
# No file, process or memory left.
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class ProcessRunner:
    """Runs handlers of *app* (`module:attribute`, as given to the worker) in child processes, which can be ended whatever they do.

    Each child runs one attempt at a time and is used again, as long as an attempt leaves nothing behind, and as *isolate* allows, or
    what the handler itself has declared. When a child dies during an
    attempt, the attempt is `Lost`, as with a worker that dies: it counts as a lost attempt, not as a retry. Processes that a
    handler leaves running are ended with the child (`handlers.subreaper`).
    One past its timeout gets an error in its code, and after a grace it is ended by force. One that is cancelled, or whose worker
    leaves, is told first; *cooperation* is how long it may go on before it gets the error. *grace* stands in place of the handlers'.
    """

    def __init__(
        self,
        app: str,
        *,
        cooperation: timedelta = COOPERATION_GRACE,
        grace: timedelta | None = None,
        isolate: Isolate | None = None,
        foresee: ForeseeFailure | None = None,
    ) -> None:
        self._app = app
        # What is to be logged of a failed attempt, whose error only its child has.
        self._foresee = foresee
        self._isolate = isolate or Isolate()
        self._grace = grace
        self._cooperation = cooperation
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._waits: set[asyncio.Task[None]] = set()

    async def warm(self, children: int = 1) -> None:
        """Start children before they are needed, so that the first attempts need not wait for the app's import."""
        while len(self._idle) < children:
            self._idle.append(await ChildProcess.start(self._app))

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        """Run the handler in a child. After a forced end nothing of it is left when this returns."""
        try:
            while (child := await self._take(handler, context)) is not None:
                ending, outcome = await self._run_in(child, handler, context)
                if not _died_idle(child, ending):
                    return outcome
        except OSError as error:
            # The machine cannot start another process now.
            return settle(
                context,
                outcome_of_exhaustion(error) if error.errno in _OUT_OF_RESOURCES else Failed(describe_error(error)),
            )
        return outcome_of_halt(context)

    async def stop(self) -> None:
        """End all children, with whatever they run."""
        children = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(child.end() for child in children))

    def _limits(self, handler: Handler) -> Isolate:
        return handler.options.isolate or self._isolate

    async def _take(self, handler: Handler, context: AttemptContext) -> ChildProcess | None:
        """A child for this attempt; None if it was halted meanwhile."""
        child = await self._fit_child(self._limits(handler))
        if not context.is_halted:
            return child
        self._idle.append(child)
        return None

    async def _fit_child(self, limits: Isolate) -> ChildProcess:
        """A child that may have another run: the one used last, or a new one in place of an idle one that may not."""
        for child in reversed(self._idle):
            if child.is_alive and limits.allows(child.runs, child.memory):
                self._idle.remove(child)
                return child
        if self._idle:
            await self._idle.pop(0).end()
        return await ChildProcess.start(self._app)

    async def _run_in(
        self, child: ChildProcess, handler: Handler, context: AttemptContext
    ) -> tuple[ChildResult, Outcome]:
        self._busy.add(child)
        grace = handler.grace if self._grace is None else self._grace
        context.interrupt_by(lambda: self._halt(child, context, grace))
        ending: ChildResult | None = None
        try:
            ending = await child.perform(context)
            context.interrupt_by(None)
            outcome = _outcome(handler, context, ending)
            if isinstance(ending, OutcomeMessage) and ending.keeps_error:
                outcome = await self._log_failure(child, handler, context, outcome)
            return ending, outcome
        finally:
            context.interrupt_by(None)
            await self._release(child, self._limits(handler), ending)

    async def _log_failure(
        self, child: ChildProcess, handler: Handler, context: AttemptContext, outcome: Outcome
    ) -> Outcome:
        """Have the child log its error as that of this outcome; it waits for this."""
        if isinstance(outcome, TimeoutOutcome):
            outcome = judge_timeout(outcome, handler.options)
        if self._foresee is None or not isinstance(outcome, Failed | TimeoutOutcome):
            child.settle_failure(None)
            await child.hear_logged()
            return outcome
        child.settle_failure(await self._foresee(context.claimed, outcome))
        return replace(outcome, raised=LOGGED_BY_CHILD) if await child.hear_logged() else outcome

    async def _release(self, child: ChildProcess, limits: Isolate, ending: ChildResult | None) -> None:
        is_reusable = isinstance(ending, OutcomeMessage) and ending.is_reusable
        if is_reusable and child.is_alive and limits.allows(child.runs, child.memory):
            self._busy.discard(child)
            self._idle.append(child)
            return
        await child.end()
        self._busy.discard(child)

    def _halt(self, child: ChildProcess, context: AttemptContext, grace: timedelta) -> None:
        is_late = context.halted is StopReason.TIMEOUT
        if is_late and not child.has_begun:
            # There is nothing to clean up.
            child.hang_up()
            return
        child.stop(context, raises=is_late)
        self._spawn(self._end(child, context, grace, child.runs, is_told=is_late))

    async def _end(
        self, child: ChildProcess, context: AttemptContext, grace: timedelta, run: int, *, is_told: bool
    ) -> None:
        def is_running() -> bool:
            return child in self._busy and child.runs == run

        if not is_told:
            await context.clock.sleep(self._cooperation.total_seconds())
            if not is_running():
                return
            child.stop(context, raises=True)
        await context.clock.sleep(grace.total_seconds())
        if is_running():
            child.hang_up()

    def _spawn(self, wait: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(wait)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)


def _died_idle(child: ChildProcess, ending: ChildResult) -> bool:
    """Whether a child that had worked before was found dead: the attempt has not started, so another child can run it."""
    return isinstance(ending, ChildExit) and not ending.has_begun and child.runs > 1


def _outcome(handler: Handler, context: AttemptContext, ending: ChildResult) -> Outcome:
    match ending:
        case OutcomeMessage(outcome=outcome, has_noticed=has_noticed):
            if has_noticed:
                context.note_stop()
            return settle(context, outcome)
        case ChildStartFailure(error=error):
            return settle(context, Failed(error))
        case ChildExit():
            # A child that was told to end and then died has taken notice.
            if context.is_halted:
                context.note_stop()
            return settle(context, Lost(_exit_error(handler, ending)))
        case _:
            assert_never(ending)


def _exit_error(handler: Handler, ending: ChildExit) -> ErrorInfo:
    when = "while its handler ran" if ending.has_begun else "while it imported the app"
    return describe_exit("ProcessDied", f"the child process {_exit_reason(ending.returncode)} {when}", handler.name)


def _exit_reason(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (by hand, or for want of memory)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


# The subreaper needs the grace and a moment more; if it takes longer, it is killed itself.
_END_SECONDS = TERM_GRACE_SECONDS + 5
_READ_BYTES = 64 * 1024
_LONGEST_LINE = 16 * 1024


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The child ended before its handler did."""

    returncode: int
    has_begun: bool


@dataclass(frozen=True, slots=True)
class ChildStartFailure:
    """The child could not import the app."""

    error: ErrorInfo


ChildResult = OutcomeMessage | ChildExit | ChildStartFailure


class ChildProcess:
    """The worker's end of one child process, used for one attempt at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, connection: socket.socket, outputs: list[ChildOutput]
    ) -> None:
        self._process = process
        # A second descriptor of the same socket: shutting it down works whatever waits to be sent through the first.
        self._lifeline = connection.dup()
        self._connection = connection
        self._outputs = outputs
        self._group: int | None = None
        self._is_hung_up = False
        self._is_closed = False
        self.runs = 0
        # What it kept after its last run, in bytes.
        self.memory = 0
        # Whether the handler of the present attempt is called, or was.
        self.has_begun = False

    @classmethod
    async def start(cls, app: str) -> ChildProcess:
        """Start a child; it imports the app while we go on."""
        ours, theirs = socket.socketpair()
        outputs = [ChildOutput(), ChildOutput()]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-u", "-m", "timeball.engine.runners", app),
                stdin=theirs.fileno(),
                stdout=outputs[0].inlet,
                stderr=outputs[1].inlet,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            for output in outputs:
                output.close()
            raise
        finally:
            theirs.close()
            for output in outputs:
                output.close_inlet()
        child = cls(process, ours, outputs)
        await child._connect()
        return child

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._connection)
        for output in self._outputs:
            output.open()
        self._writer.write(pack(SetupMessage(path=sys.path)))

    @property
    def is_alive(self) -> bool:
        """Whether it can be given an attempt."""
        return self._process.returncode is None and not self._is_hung_up and not self._reader.at_eof()

    async def perform(self, context: AttemptContext) -> ChildResult:
        """Run an attempt; afterwards *context* has all its log lines and progress."""
        self.runs += 1
        self.has_begun = False
        for output in self._outputs:
            output.begin(context.emit_log)
        claimed = context.claimed._replace(payload=context.payload)
        self._writer.write(pack(RunMessage(number=self.runs, claimed=claimed)))
        try:
            return await self._hear(context)
        finally:
            for output in self._outputs:
                output.finish()

    async def _hear(self, context: AttemptContext) -> ChildResult:
        while (message := await self._receive()) is not None:
            match message:
                case ReadyMessage(pid=pid):
                    self._group = pid
                case SetupFailedMessage(error=error):
                    return ChildStartFailure(error)
                case _ if message.number != self.runs:
                    continue
                case StartedMessage():
                    self.has_begun = True
                case LogMessage(level=level, message=text):
                    context.emit_log(level, text)
                case ProgressMessage(fraction=fraction, note=note):
                    context.report_progress(fraction, note)
                case WaitMessage(has_ended=has_ended):
                    if (lender := SLOT_LENDER.get(None)) is not None:
                        (lender.take_back if has_ended else lender.lend)(context)
                case TraceMessage(words=words):
                    context.begin_trace(words)
                case OutcomeMessage():
                    self.memory = message.memory
                    return message
                case FailureLoggedMessage():
                    continue
        self.hang_up()
        return ChildExit(await self._process.wait(), self.has_begun)

    def settle_failure(self, failure: AttemptFailure | None) -> None:
        """Say what is to be logged of the error that the child has kept; None if nothing is."""
        message = FailureMessage(
            number=self.runs,
            level=0 if failure is None else failure.level,
            outcome="" if failure is None else failure.outcome,
            becomes="" if failure is None else failure.becomes,
            error=ErrorInfo(type="", message="") if failure is None else failure.error,
        )
        if not self._is_hung_up:
            self._writer.write(pack(message))

    async def hear_logged(self) -> bool:
        """Wait until the child has done it; a child that has not after a while, or has died, is not used again."""
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                while (message := await self._receive()) is not None:
                    if isinstance(message, FailureLoggedMessage) and message.number == self.runs:
                        return True
        except TimeoutError:
            pass
        self.hang_up()
        return False

    async def _receive(self) -> FromChild | None:
        try:
            return await receive(self._reader)
        except ValueError:
            # The handler has written into the socket; nothing that comes from there can be trusted any more.
            return None

    def stop(self, context: AttemptContext, *, raises: bool) -> None:
        """Tell the handler that it is to stop, by an error in its code if *raises*."""
        if context.halted is not None and not self._is_hung_up:
            message = StopMessage(number=self.runs, why=context.halted, reason=context.halt_reason, raises=raises)
            self._writer.write(pack(message))

    def hang_up(self) -> None:
        """Have the subreaper end the child and all its descendants: TERM, a short grace, KILL."""
        if not self._is_hung_up:
            self._is_hung_up = True
            _ignoring_os_errors(lambda: self._lifeline.shutdown(socket.SHUT_WR))

    async def end(self) -> None:
        """Hang up and wait until nothing of it is left. May be called more than once."""
        self.hang_up()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
        finally:
            self._close()

    def _kill(self) -> None:
        """The subreaper does not answer: without it the kernel kills the child, and we kill its group."""
        _ignoring_os_errors(self._process.kill)
        group = self._group
        if group is not None:
            _ignoring_os_errors(lambda: os.killpg(group, signal.SIGKILL))

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self._lifeline.close()
        for output in self._outputs:
            output.close()


class ChildOutput:
    """What the child's processes write to stdout or stderr, as log lines of the running attempt."""

    def __init__(self) -> None:
        self._outlet, self.inlet = os.pipe()
        os.set_blocking(self._outlet, False)
        self._rest = b""
        self._is_open = False
        # Where lines go now; what is written between two attempts belongs to neither, and goes where the worker writes.
        self._take_line: Callable[[str, str], None] = _write_to_stderr

    def open(self) -> None:
        """Read whenever there is something."""
        asyncio.get_running_loop().add_reader(self._outlet, self._read)
        self._is_open = True

    def close_inlet(self) -> None:
        """Leave writing to the child."""
        os.close(self.inlet)

    def close(self) -> None:
        """Read no more."""
        self._stop_reading()
        os.close(self._outlet)

    def begin(self, take_line: Callable[[str, str], None]) -> None:
        """Lines are those of another attempt from now on."""
        self._take_line = take_line

    def finish(self) -> None:
        """Take all that was written until now, with the unfinished last line; later lines are not of this attempt."""
        while self._is_open and self._read():
            pass
        self._emit(self._rest)
        self._rest = b""
        self._take_line = _write_to_stderr

    def _read(self) -> bool:
        try:
            data = os.read(self._outlet, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._stop_reading()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._rest) > _LONGEST_LINE:
            self._emit(self._rest)
            self._rest = b""
        return True

    def _emit(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self._take_line(PRINT_LEVEL, text)

    def _stop_reading(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self._outlet)
            self._is_open = False


def _write_to_stderr(_level: str, line: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")


def _ignoring_os_errors(act: Callable[[], object]) -> None:
    """Act on a process that may just have ended."""
    try:
        act()
    except OSError:
        return
