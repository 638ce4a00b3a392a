"""The child process that an isolated handler runs in, and the messages between it and its worker: JSON, each with its length before it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread, main_thread
from types import FrameType
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from timeball.config.environment import resident_memory
from timeball.current import (
    RUNNING,
    SLOT_LENDER,
    AttemptContext,
    LogCapture,
    StopReason,
    end_forked_copy,
    is_failure_record,
)
from timeball.domain.execution import CancelOutcome, ClaimedExecution, ErrorInfo, Failed, Outcome, Snoozed, Succeeded
from timeball.domain.handler import Handler, HandlerSource
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.json_text import check_result
from timeball.engine.runners.failure_log import AttemptFailure, FailureLog
from timeball.engine.runners.interrupt import RETRY_SECONDS, error_of_halt, is_in_handler
from timeball.engine.runners.outcome import RaisedError, describe_error, outcome_of_error, outcome_of_return
from timeball.env import SystemClock
from timeball.errors import NotFound
from timeball.handlers.binding import is_async
from timeball.handlers.hooks import NO_PROCESS_HOOKS, ProcessHooks
from timeball.handlers.occurrence import occurrence_environment
from timeball.handlers.registry import invoke

_LENGTH = struct.Struct("!I")
# A payload, result or traceback is far smaller; more than this is no message of ours.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupMessage:
    """First words to a child: where to import from."""

    kind: Literal["setup"] = "setup"
    path: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMessage:
    """Run this attempt; *number* comes back with everything that is said about it."""

    kind: Literal["run"] = "run"
    number: int
    claimed: ClaimedExecution


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMessage:
    """Ask the handler to stop; if *raises*, by an error in its code."""

    kind: Literal["stop"] = "stop"
    number: int
    why: StopReason
    reason: str
    raises: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMessage:
    """The app is imported. *pid* is that of the process with the user's code, and of its process group."""

    kind: Literal["ready"] = "ready"
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFailedMessage:
    """The app could not be imported."""

    kind: Literal["broken"] = "broken"
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedMessage:
    """The handler is about to be called: from here on a death counts as the attempt's."""

    kind: Literal["begun"] = "begun"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """A log line."""

    kind: Literal["log"] = "log"
    number: int
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMessage:
    """How far the attempt is."""

    kind: Literal["progress"] = "progress"
    number: int
    fraction: float
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitMessage:
    """The handler begins to wait for another run, or *has_ended* to."""

    kind: Literal["wait"] = "wait"
    number: int
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMessage:
    """The trace that the attempt has begun."""

    kind: Literal["trace"] = "trace"
    number: int
    words: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeMessage:
    """The handler has ended, with one of these outcomes."""

    kind: Literal["ended"] = "ended"
    number: int
    succeeded: Succeeded | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    cancelled: CancelOutcome | None = None
    has_noticed: bool
    is_reusable: bool
    # Whether the child has the error itself, and waits for what is to be logged of it.
    keeps_error: bool = False
    # What the child keeps after the attempt, in bytes.
    memory: int

    @classmethod
    def of(cls, number: int, outcome: Outcome, *, has_noticed: bool, is_reusable: bool, memory: int) -> OutcomeMessage:
        """The message that carries an outcome of a handler's own making."""
        return cls(
            number=number,
            succeeded=outcome if isinstance(outcome, Succeeded) else None,
            failed=replace(outcome, raised=None) if isinstance(outcome, Failed) else None,
            snoozed=outcome if isinstance(outcome, Snoozed) else None,
            cancelled=outcome if isinstance(outcome, CancelOutcome) else None,
            has_noticed=has_noticed,
            is_reusable=is_reusable,
            keeps_error=isinstance(outcome, Failed) and outcome.raised is not None and not outcome.is_payload_mismatch,
            memory=memory,
        )

    @property
    def outcome(self) -> Outcome:
        """The outcome that was carried; its result is checked again, for the handler's own code has had this process."""
        result = None if self.succeeded is None else self.succeeded.result
        success = Succeeded(None if result is None else check_result(result.encode()))
        return self.failed or self.snoozed or self.cancelled or success


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMessage:
    """What follows the error that this child has kept: it is to be logged at this level, or not at all (0)."""

    kind: Literal["failure"] = "failure"
    number: int
    level: int
    outcome: str
    becomes: str
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLoggedMessage:
    """The error was logged as the worker said."""

    kind: Literal["logged"] = "logged"
    number: int


ToChild = SetupMessage | RunMessage | StopMessage | FailureMessage
FromChild = (
    ReadyMessage
    | SetupFailedMessage
    | StartedMessage
    | LogMessage
    | ProgressMessage
    | WaitMessage
    | TraceMessage
    | OutcomeMessage
    | FailureLoggedMessage
)

_TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
_FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def pack(message: ToChild) -> bytes:
    """A message to a child as bytes."""
    return _framed(_TO_CHILD.dump_json(message))


async def receive(reader: asyncio.StreamReader) -> FromChild | None:
    """The next message of a child; None when there will be no more. Raises ValueError for what is no message of ours."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return _FROM_CHILD.validate_json(await reader.readexactly(_checked(length)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Channel:
    """The child's end. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = Lock()

    def send(self, message: FromChild) -> None:
        """Send a message whole."""
        with self._lock:
            self._connection.sendall(_framed(_FROM_CHILD.dump_json(message)))

    def receive(self) -> ToChild | None:
        """The next message; None when the worker has hung up."""
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        length = _checked(_LENGTH.unpack(head)[0])
        body = self._reader.read(length)
        return _TO_CHILD.validate_json(body) if len(body) == length else None


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _checked(length: int) -> int:
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes, expected at most {MAX_MESSAGE_BYTES}")
    return length


_TERMINATED = 128 + signal.SIGTERM
# Brings the main thread to raise an error in the handler. Programs leave the last of the real-time signals alone.
_INTERRUPT = getattr(signal, "SIGRTMAX", signal.SIGUSR2)


def main(app: str) -> None:
    """Serve the worker at the other end of fd 0 until it hangs up."""
    channel = Channel(_take_channel())
    setup = channel.receive()
    if not isinstance(setup, SetupMessage):
        return
    sys.path[:] = setup.path
    try:
        handlers = load_handlers(app)
        hooks: ProcessHooks = getattr(handlers, "process_hooks", NO_PROCESS_HOOKS)
        hooks.start_child()
    except BaseException as error:
        channel.send(SetupFailedMessage(error=describe_error(error)))
        raise
    _capture_logs()
    channel.send(ReadyMessage(pid=os.getpid()))
    ChildSession(channel, handlers).serve()
    hooks.stop_child()


def _take_channel() -> socket.socket:
    """Move the socket away from fd 0, where the programs a handler starts would inherit it."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return connection


def load_handlers(app: str) -> HandlerSource:
    """The handlers of an app given as `module:attribute`: a `Timeball`, or a registry."""
    module, _, attribute = app.partition(":")
    if not module or not attribute:
        raise unexpected_value("the app", app, "module:attribute, such as app:tb", field="app")
    target: Any = importlib.import_module(module)
    for name in attribute.split("."):
        target = getattr(target, name)
    source: HandlerSource = getattr(target, "registry", target)
    return source


def _capture_logs() -> None:
    """Capture log records once: what the root logger also writes to stdout or stderr would come back as output.

    The record of a failed attempt is not captured, and is made when the output of the attempt has been read.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr):
            handler.addFilter(is_failure_record)
    LogCapture().install()


class ChildSession:
    """The conversation of this process with its worker."""

    def __init__(self, channel: Channel, handlers: HandlerSource) -> None:
        self._channel = channel
        self._handlers = handlers
        self._clock = SystemClock()
        self._runs: SimpleQueue[RunMessage | None] = SimpleQueue()
        self._pid = os.getpid()
        # The attempt just running, and whether its handler may be interrupted by an exception.
        self._current: tuple[int, AttemptContext] | None = None
        self._is_interruptible = False
        self._was_interrupted = False
        # Never set: a pause between two looks.
        self._pause = Event()
        self._last_stop: StopMessage | None = None
        # The error of the last attempt, until it is logged.
        self._raised: tuple[ClaimedExecution, RaisedError] | None = None
        self._verdicts: SimpleQueue[FailureMessage | None] = SimpleQueue()

    def serve(self) -> None:
        """Run what comes, until the worker hangs up or asks us to leave."""
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(_INTERRUPT, self._raise_stop)
        Thread(target=self._listen, name="timeball-child", daemon=True).start()
        while (run := self._runs.get()) is not None:
            ending = self._attempt(run)
            self._channel.send(ending)
            if ending.keeps_error and (message := self._verdicts.get()) is not None:
                self._log_failure(message)
                self._channel.send(FailureLoggedMessage(number=run.number))

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            if isinstance(message, RunMessage):
                self._runs.put(message)
            elif isinstance(message, StopMessage):
                self._stop(message)
            elif isinstance(message, FailureMessage):
                self._verdicts.put(message)
        self._runs.put(None)
        self._verdicts.put(None)

    def _log_failure(self, message: FailureMessage) -> None:
        if self._raised is None or not message.level:
            return
        (claimed, raised), self._raised = self._raised, None
        log = FailureLog()
        log.add(AttemptFailure(claimed, message.outcome, message.error, message.level, message.becomes, raised=raised))
        # A collector that blocks must not keep this child.
        log.flush()
        _flush_output()

    def _stop(self, message: StopMessage) -> None:
        # Remembered first: the attempt may be just about to start.
        self._last_stop = message
        current = self._current
        if current is not None and current[0] == message.number:
            current[1].halt(message.why, message.reason)
            if message.raises:
                Thread(target=self._interrupt_until_raised, args=current, name="timeball-stop", daemon=True).start()

    def _interrupt_until_raised(self, number: int, context: AttemptContext) -> None:
        """Have the main thread look whether the error can be raised, until it was, or the attempt is over."""
        main = main_thread().ident
        assert main is not None
        while self._current == (number, context) and not self._was_interrupted:
            signal.pthread_kill(main, _INTERRUPT)
            self._pause.wait(RETRY_SECONDS)

    def _raise_stop(self, _number: int, frame: FrameType | None) -> None:
        if self._current is None or os.getpid() != self._pid:
            return
        context = self._current[1]
        can_raise = self._is_interruptible and not self._was_interrupted and is_in_handler(frame)
        if context.halted is not None and can_raise:
            self._was_interrupted = True
            context.note_stop()
            raise error_of_halt(context.halted)(context.halt_reason)

    def _leave(self, number: int, _frame: FrameType | None) -> None:
        """On SIGTERM: end the handler by an exception, so that it can clean up; the subreaper waits a moment before it kills."""
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._runs.put(None)
        self._verdicts.put(None)
        if self._current is not None:
            self._interrupt(self._current[1])

    def _interrupt(self, context: AttemptContext) -> None:
        context.note_stop()
        if not context.is_halted and context.interrupt():
            return
        if self._is_interruptible:
            self._is_interruptible = False
            raise SystemExit(_TERMINATED)

    def _attempt(self, run: RunMessage) -> OutcomeMessage:
        context = AttemptContext(run.claimed, self._clock, partial(_ChannelSink, self._channel, run.number))
        self._was_interrupted = False
        self._current = (run.number, context)
        if self._last_stop is not None:
            self._stop(self._last_stop)
        # For the programs that a handler starts.
        os.environ.update(occurrence_environment(run.claimed))
        self._channel.send(StartedMessage(number=run.number))
        token = RUNNING.set(context)
        SLOT_LENDER.set(self)
        outcome = self._perform(context)
        RUNNING.reset(token)
        raised = outcome.raised if isinstance(outcome, Failed) else None
        self._raised = (run.claimed, raised) if isinstance(raised, RaisedError) else None
        self._current = None
        _flush_output()
        # An error that came out of nowhere may have left anything behind.
        is_reusable = not self._was_interrupted and not _has_children() and not _is_exhausted(outcome)
        return OutcomeMessage.of(
            run.number,
            outcome,
            has_noticed=context.has_noticed,
            is_reusable=is_reusable,
            memory=resident_memory(),
        )

    def lend(self, context: AttemptContext) -> None:
        """The handler waits for another run."""
        self._tell_wait(context, has_ended=False)

    def take_back(self, context: AttemptContext) -> None:
        """The handler goes on."""
        self._tell_wait(context, has_ended=True)

    def _tell_wait(self, context: AttemptContext, *, has_ended: bool) -> None:
        current = self._current
        if current is not None and current[1] is context and os.getpid() == self._pid:
            self._channel.send(WaitMessage(number=current[0], has_ended=has_ended))

    def _perform(self, context: AttemptContext) -> Outcome:
        handler: Handler | None = None
        try:
            handler = self._find(context.claimed.handler)
            outcome = outcome_of_return(self._call(handler, context))
        except BaseException as error:
            self._is_interruptible = False
            end_forked_copy(context)
            return outcome_of_error(error, handler, context, shares_files=False)
        end_forked_copy(context)
        return outcome

    def _find(self, name: str) -> Handler:
        handler = self._handlers.find(name)
        if handler is None:
            raise NotFound("handler", name)
        return handler

    def _call(self, handler: Handler, context: AttemptContext) -> Any:
        self._is_interruptible = True
        value = invoke(handler, context.payload)
        self._is_interruptible = False
        return asyncio.run(_interruptibly(value, context)) if is_async(handler) else value


async def _interruptibly(coroutine: Coroutine[Any, Any, Any], context: AttemptContext) -> Any:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    context.interrupt_by(partial(loop.call_soon_threadsafe, context.cancel_task, task))
    if context.is_halted:
        context.interrupt()
    try:
        return await coroutine
    finally:
        context.interrupt_by(None)


class _ChannelSink:
    """Sends log lines and progress of an attempt to the worker, which stamps them with its own clock."""

    def __init__(self, channel: Channel, number: int, _context: AttemptContext) -> None:
        self._channel = channel
        self._number = number

    def emit_log(self, _at: datetime, level: str, message: str) -> None:
        self._channel.send(LogMessage(number=self._number, level=level, message=message))

    def report_progress(self, fraction: float, note: str | None) -> None:
        self._channel.send(ProgressMessage(number=self._number, fraction=fraction, note=note))

    def keep_trace(self, words: dict[str, str]) -> None:
        self._channel.send(TraceMessage(number=self._number, words=words))


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # the handler has closed or replaced it


def _is_exhausted(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.error.type == MemoryError.__name__


def _has_children() -> bool:
    """Whether the handler has left processes behind, living or not yet waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
