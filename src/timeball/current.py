"""What a handler can read, report and ask for while it runs: `current`, and `Snooze`, `Retry` and `Cancel`.

    def import_pages(source: str) -> None:
        for number, page in enumerate(pages := fetch(source)):
            if current.cancelled:
                raise Cancel("asked to stop")
            current.progress(number / len(pages), f"page {number}")

`current` works in coroutines, in threads and in isolated child processes: a context variable holds the `AttemptContext` of the attempt. A
process that a handler forks inherits the variable and the worker's connections, which it must not use. There every use raises
`OutsideRun`, and a copy that returns from the handler is ended (`end_forked_copy`).

What a handler writes with `logging` becomes lines of its execution's log, too (`LogCapture`), and so does what it prints
(`engine.runners.print_capture`).

A handler can answer with a control signal instead of a result or an error:

    return Snooze("30s")                 run me again in 30 s; this attempt does not count
    raise Retry(after="5m")              this attempt failed; the next one after 5 minutes, if any are left
    raise Cancel("the order is gone")    give this execution up, for good and without being a failure

Control signals are not errors: they pass through `except Exception`, as `asyncio.CancelledError` does.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from timeball.domain.execution import MAX_LINE_CHARACTERS, ClaimedExecution, Origin
from timeball.domain.trace import TRACE_KEY, trace_words, without_trace
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.domain.values.text import clean_text, shorten_text
from timeball.domain.values.wording import Duration, format_duration, parse_duration
from timeball.env import Clock
from timeball.errors import TimeballError

if TYPE_CHECKING:
    import asyncio


class ControlSignal(BaseException):
    """What `Snooze`, `Retry` and `Cancel` have in common: each may be raised or returned."""


class Snooze(ControlSignal):
    """Run this execution again after a span; the attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        self.delay: timedelta = parse_duration(delay, "delay")
        super().__init__(f"snoozed for {format_duration(self.delay)}")


class Retry(ControlSignal):
    """This attempt has failed; make the next one after a span, or after the usual back-off.

    It counts against `max_retries` as any failure does. Raised `from` an error, that error is recorded.
    """

    def __init__(self, reason: str | None = None, *, after: Duration | None = None) -> None:
        self.after: timedelta | None = None if after is None else parse_duration(after, "after")
        super().__init__(reason if reason is not None else "the handler asked for another try")


class Cancel(ControlSignal):
    """Give this execution up: it ends as cancelled, with the reason."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Stopped(TimeballError):
    """The attempt is to end, and this is raised in the code of its handler, which can clean up; raised as such, the worker is leaving."""

    code = "stopped"

    def __init__(self, message: str | None = None) -> None:
        # Raised in another thread, the error is made by Python, there and without a message. From now on the handler knows.
        context = RUNNING.get(None) if message is None else None
        if context is not None:
            context.notice()
            message = context.halt_reason
        super().__init__(message or "the attempt is to end")


class TimedOut(Stopped):
    """The attempt runs longer than its timeout."""

    code = "timed_out"


class Cancelled(Stopped):
    """The execution was cancelled."""

    code = "cancelled"


_EX_SOFTWARE = 70
_LONGEST_NOTE = 1_000


class _CurrentProcess:
    """The id of this process, read once, and again in a forked copy: reading it costs as much as a small handler."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self._read()
        os.register_at_fork(after_in_child=self._read)

    def _read(self) -> None:
        self.number = os.getpid()


_PROCESS = _CurrentProcess()


class OutsideRun(TimeballError):
    """`current` was used where no handler runs, or in a process that a handler forked."""

    code = "outside_run"


class StopReason(StrEnum):
    """Why a running attempt is asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"


class AttemptSink(Protocol):
    """Where log lines and progress of one attempt go. Called from any thread; must be quick and must not raise."""

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        """Keep a log line; *level* is one of debug, info, print, warning, error, critical."""

    def report_progress(self, fraction: float, note: str | None) -> None:
        """Note how far the attempt is, from 0 to 1; the last report counts."""

    def keep_trace(self, words: dict[str, str]) -> None:
        """Keep the trace that the attempt has begun with its execution."""


class AttemptContext:
    """One running attempt, as its handler, its runner and the executor share it.

    *open_sink* is called once, when the attempt first logs or reports progress; most never do.
    """

    __slots__ = (
        "_active_run",
        "_error_scope",
        "_interrupt",
        "_open_sink",
        "_pid",
        "_printed",
        "_sink",
        "claimed",
        "clock",
        "halt_reason",
        "halted",
        "has_noticed",
        "payload",
        "task",
    )

    def __init__(
        self, claimed: ClaimedExecution, clock: Clock, open_sink: Callable[[AttemptContext], AttemptSink]
    ) -> None:
        self.claimed = claimed
        # What the handler is called with: references in it have their values by then.
        self.payload = claimed.payload
        self.clock = clock
        self.halted: StopReason | None = None
        self.halt_reason = ""
        # Whether the handler has seen that it is to stop: what it returns after that is no success.
        self.has_noticed = False
        # The task that the attempt runs in, if it is known: asking the event loop costs as much as a small handler.
        self.task: asyncio.Task[Any] | None = None
        self._interrupt: Callable[[], object] | None = None
        self._open_sink = open_sink
        self._sink: AttemptSink | None = None
        self._pid = _PROCESS.number

    @property
    def meta(self) -> dict[str, Any]:
        """The meta of the execution, read anew: what one reader changes in it, no other sees."""
        meta = self.claimed.meta
        return {} if meta is None else without_trace(orjson.loads(meta)) or {}

    @property
    def trace(self) -> dict[str, str]:
        """The trace that the execution belongs to, as headers carry it; empty if it belongs to none."""
        meta = self.claimed.meta
        return {} if meta is None or TRACE_KEY not in meta else trace_words(orjson.loads(meta))

    def begin_trace(self, words: Mapping[str, str]) -> None:
        """The execution has no trace, and this attempt begins one: it is kept with the execution, for all that comes after it."""
        self._open().keep_trace(dict(words))

    @property
    def active_run(self) -> ActiveRun | None:
        """What the code around the attempt is given, if there is such code. No attempt without it pays for it, not even by a None."""
        return getattr(self, "_active_run", None)

    def observe(self) -> ActiveRun:
        """The same, made when the code around the attempt first asks for it."""
        if self.active_run is None:
            self._active_run = ActiveRun(self)
        return self._active_run

    @property
    def error_scope(self) -> Context:
        """The context variables as they were when the handler raised, inside of all code around the run."""
        scope: Context | None = getattr(self, "_error_scope", None)
        return copy_context() if scope is None else scope

    def keep_error_scope(self) -> None:
        """An error has left the handler: before code around the run sets its variables back. The innermost counts."""
        if getattr(self, "_error_scope", None) is None:
            self._error_scope = copy_context()

    def replace_payload(self, payload: str) -> None:
        """Call the handler with this payload instead of the claimed one."""
        self.payload = payload

    def halt(self, why: StopReason, reason: str = "") -> None:
        """Ask the attempt to stop; the first reason stands. For the executor, on its loop."""
        if self.is_halted:
            return
        self.halt_reason = reason
        self.halted = why
        self.interrupt()

    def run_in(self, task: asyncio.Task[Any]) -> None:
        """The attempt runs in this task."""
        self.task = task

    def interrupt_by(self, interrupt: Callable[[], object] | None) -> None:
        """Make a halt reach the handler by calling this, in the thread that calls `halt`; for the runner."""
        self._interrupt = interrupt

    def interrupt(self) -> bool:
        """Interrupt the handler now; False if it cannot be interrupted at this moment."""
        if self._interrupt is None:
            return False
        self._interrupt()
        return True

    def cancel_task(self, task: asyncio.Task[Any]) -> None:
        """Interrupt a handler by cancelling the task that awaits its coroutine."""
        # The error is sure to reach the handler, which is suspended now. So the handler knows, even if it swallows the error.
        self.has_noticed = True
        task.cancel()

    def note_stop(self) -> None:
        """The handler knows that it is to stop."""
        self.has_noticed = True

    @property
    def is_halted(self) -> bool:
        """Whether the attempt is to stop."""
        return self.halted is not None

    def notice(self) -> bool:
        """Whether the handler is to stop; from now on it knows."""
        # Read once: a halt between two reads would be told to the handler but not noted.
        is_halted = self.is_halted
        if is_halted:
            self.has_noticed = True
        return is_halted

    @property
    def is_forked_copy(self) -> bool:
        """Whether this process is a copy of the one in which the attempt was started."""
        return _PROCESS.number != self._pid

    @property
    def has_spoken(self) -> bool:
        """Whether the attempt has logged or reported anything so far."""
        return self._sink is not None

    def emit_log(self, level: str, message: str) -> None:
        """Add a line to the log of the attempt, made fit for the database and the wire."""
        line = shorten_text(clean_text(message), MAX_LINE_CHARACTERS)
        self._open().emit_log(self.clock.now(), _level(level), line)

    def emit_print(self, stream: str, text: str) -> None:
        """Add what the handler prints to this stream to the log, each line once it is complete."""
        printed: dict[str, str] | None = getattr(self, "_printed", None)
        if printed is None:
            self._printed = printed = {}
            # Or the end of the attempt would not be told, and an unfinished line be lost.
            self._open()
        *lines, rest = (printed.get(stream, "") + text).split("\n")
        for line in lines:
            self._emit_printed(line)
        if len(rest) > MAX_LINE_CHARACTERS and len(rest := _shown_line(rest)) > MAX_LINE_CHARACTERS:
            self._emit_printed(rest)
            rest = ""
        printed[stream] = rest

    def end_print(self) -> None:
        """The attempt has ended: unfinished lines are as complete as they will be."""
        printed: dict[str, str] = getattr(self, "_printed", None) or {}
        for stream, rest in printed.items():
            printed[stream] = ""
            self._emit_printed(rest)

    def _emit_printed(self, line: str) -> None:
        line = _shown_line(line)
        if line.strip():
            self.emit_log(PRINT_LEVEL, line)

    def report_progress(self, fraction: float, note: str | None) -> None:
        """Note how far the attempt is; a number outside of 0 to 1 is taken as the nearer end."""
        note = None if note is None else shorten_text(clean_text(note), _LONGEST_NOTE)
        self._open().report_progress(_fraction(fraction), note)

    def _open(self) -> AttemptSink:
        if self._sink is None:
            self._sink = self._open_sink(self)
        return self._sink


class RunOutcome(StrEnum):
    """How an attempt ended, as the code around it is told. Whether a retry follows a failure is decided later."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    # It ended because it was asked to: cancelled from outside, past its timeout, or its worker leaves.
    STOPPED = "stopped"


class ActiveRun:
    """A running attempt as the code around it sees it: `@tb.around_run`. *outcome*, *result* and *error* are None until it has ended."""

    __slots__ = ("_context", "error", "outcome", "result")

    def __init__(self, context: AttemptContext) -> None:
        self._context = context
        self.outcome: RunOutcome | None = None
        # What the handler returned.
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def id(self) -> str:
        """The id of the execution: the same in every attempt."""
        return format_execution_id(self._context.claimed.id)

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return format_job_id(self._context.claimed.job_id)

    @property
    def job_name(self) -> str | None:
        """The name of the job; None if it has none."""
        return self._context.claimed.job_name

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return self._context.claimed.handler

    @property
    def queue(self) -> str:
        """The queue the execution came from."""
        return self._context.claimed.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first."""
        return self._context.claimed.attempt

    @property
    def scheduled_for(self) -> datetime:
        """The exact instant that the schedule named."""
        return self._context.claimed.scheduled_for

    @property
    def origin(self) -> Origin:
        """What created the execution."""
        return Origin(self._context.claimed.origin)

    @property
    def meta(self) -> dict[str, Any]:
        """What was said about the execution beside its arguments; empty if nothing was."""
        return self._context.meta

    @property
    def wait(self) -> timedelta:
        """How long it has been due by now: since its instant, or since that of this retry."""
        return max(self._context.clock.now() - self._context.claimed.run_at, timedelta(0))

    @property
    def lateness(self) -> timedelta:
        """How long after its exact instant it is by now."""
        return max(self._context.clock.now() - self._context.claimed.scheduled_for, timedelta(0))

    @property
    def trace(self) -> dict[str, str]:
        """The trace of the execution, as headers carry it (`traceparent`, `tracestate`); empty if it has none."""
        return self._context.trace

    def begin_trace(self, words: Mapping[str, str]) -> None:
        """Keep the trace that this attempt begins with its execution, which has none: for its retries, and for what follows it."""
        self._context.begin_trace(words)

    def end_with(self, value: object) -> None:
        """The handler has returned."""
        is_signal = issubclass(type(value), ControlSignal)
        self.result = None if is_signal else value
        self.outcome = self._outcome_of(value) if is_signal else self._ended_as(RunOutcome.SUCCEEDED)

    def fail_with(self, error: BaseException) -> None:
        """The handler, or code around it, has raised."""
        if error is not self.error:
            self.result, self.error = None, error
            is_signal = issubclass(type(error), ControlSignal)
            self.outcome = self._outcome_of(error) if is_signal else self._ended_as(RunOutcome.FAILED)

    def _outcome_of(self, signal: object) -> RunOutcome:
        if issubclass(type(signal), Retry):
            return RunOutcome.FAILED
        return RunOutcome.SNOOZED if issubclass(type(signal), Snooze) else RunOutcome.CANCELLED

    def _ended_as(self, outcome: RunOutcome) -> RunOutcome:
        context = self._context
        return RunOutcome.STOPPED if context.is_halted and context.has_noticed else outcome

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.handler}, attempt {self.attempt}>"


def active_run() -> ActiveRun:
    """What the code around the attempt that runs here is given: one object for all of it."""
    return _running().observe()


RUNNING: ContextVar[AttemptContext] = ContextVar("timeball_running")


class SlotLender(Protocol):
    """What the slots of the attempts that run here belong to. Called from any thread."""

    def lend(self, context: AttemptContext) -> None:
        """The attempt waits for another run: its slot may be given to others until it goes on."""

    def take_back(self, context: AttemptContext) -> None:
        """The attempt goes on."""


# Set where attempts come from, so that all of them inherit it and none pays for it.
SLOT_LENDER: ContextVar[SlotLender] = ContextVar("timeball_slot_lender")


class OwnSlot:
    """The slot of the attempt that runs where this is made, if one does."""

    __slots__ = ("_context", "_lender")

    def __init__(self) -> None:
        context = RUNNING.get(None)
        self._context = None if context is None or context.is_forked_copy else context
        self._lender = SLOT_LENDER.get(None)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend it, while the attempt waits for another run that may need it; in any thread."""
        context, lender = self._context, self._lender
        if context is None or lender is None:
            yield
            return
        lender.lend(context)
        try:
            yield
        finally:
            lender.take_back(context)


def end_forked_copy(context: AttemptContext) -> None:
    """End this process at once if it is a copy made by `os.fork()` inside of the handler; else do nothing.

    Called when the run of a handler is over: the copy must not go on as if it were the worker.
    """
    if _PROCESS.number == context._pid:
        return
    sys.stderr.write(
        f"timeball: process {os.getpid()} was forked by handler {context.claimed.handler} and returned from it; "
        "it is ended here, before it can act as the worker. End a forked process with os._exit().\n"
    )
    sys.stderr.flush()
    os._exit(_EX_SOFTWARE)


class Current:
    """The running attempt, seen from its handler."""

    __slots__ = ()

    @property
    def execution_id(self) -> str:
        """The execution's id: the same in every attempt, so it can serve as an idempotency key."""
        return format_execution_id(_running().claimed.id)

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return format_job_id(_running().claimed.job_id)

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first."""
        return _running().claimed.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every claim of the execution: a target that keeps the largest can refuse the others."""
        return _running().claimed.fence

    @property
    def scheduled_for(self) -> datetime:
        """The exact instant that the schedule named, whenever this attempt takes place."""
        return _running().claimed.scheduled_for

    @property
    def origin(self) -> Origin:
        """What created the execution: its schedule, an enqueue, a trigger, a backfill or a retry."""
        return Origin(_running().claimed.origin)

    @property
    def job_name(self) -> str | None:
        """The name of the job; None if it has none."""
        return _running().claimed.job_name

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return _running().claimed.handler

    @property
    def queue(self) -> str:
        """The queue the execution came from."""
        return _running().claimed.queue

    @property
    def meta(self) -> dict[str, Any]:
        """What was said about the execution beside its arguments: `options(meta=...)`, or the job's; empty if nothing was."""
        return _running().meta

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop: cancelled, timed out, or the worker is leaving.

        A handler that has read True is taken to have stopped because of it, whatever it returns or raises then.
        """
        return _running().notice()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the handler is to stop: `timeout`, `cancel` or `shutdown`; None if it is not. For a coroutine that was cancelled.

        A handler that has read a reason is taken to have stopped because of it, as with `cancelled`.
        """
        context = _running()
        return context.halted if context.notice() else None

    def log(self, message: str, level: str = "info", **fields: Any) -> None:
        """Add a line to the execution's log: `current.log("sent", to=address)` reads `sent to='a@b.co'`."""
        words = [clean_text(message), *(f"{name}={_shown(value)}" for name, value in fields.items())]
        _running().emit_log(level, " ".join(words))

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far the work is, from 0 to 1. A number outside is taken as the nearer end: progress never fails an attempt."""
        _running().report_progress(fraction, note)


current = Current()


def _running() -> AttemptContext:
    context = RUNNING.get(None)
    if context is None:
        raise OutsideRun("timeball.current was used outside of a running handler")
    if context.is_forked_copy:
        raise OutsideRun(
            f"timeball.current was used in process {os.getpid()}, which handler {context.claimed.handler} forked; "
            "only the process that runs the handler may use it"
        )
    return context


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # a line in the log is not worth an attempt
        return f"<its repr cannot be had: {clean_text(error)}>"


def _fraction(value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = 1.0 if value > 0 else 0.0
    # In this order: every comparison with NaN is false.
    return min(1.0, max(0.0, number))


# Of what a handler prints, or writes to standard error.
PRINT_LEVEL = "print"
_LEVELS = frozenset({"debug", "info", PRINT_LEVEL, "warning", "error", "critical"})


def _shown_line(line: str) -> str:
    """What a terminal shows of a line that returns to its beginning, as a progress bar does."""
    return line.rstrip("\r").rpartition("\r")[2]


def _level(name: str) -> str:
    lowered = clean_text(name).lower()
    return lowered if lowered in _LEVELS else "info"


_OWN_LOGGER = "timeball"
# What marks the record of a failed attempt (`engine.runners.failure_log`). The execution has the error and its traceback, and our own
# log has a line for it: in neither is it told twice.
FAILURE_MARK = "is_attempt_failure"


class LogCapture(logging.Handler):
    """Turns log records of a running handler into lines of its execution's log; other records go where they went before."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        if is_failure_record(record):
            return
        context = RUNNING.get(None)
        if context is None or _is_ours(record):
            _pass_on(self, record)
            return
        # A process that a handler forked may go on logging, only not here.
        if not context.is_forked_copy:
            context.emit_log(_level_of(record), self.format(record))

    def install(self) -> None:
        """Start capturing, once the user's modules are imported: `logging.basicConfig` does nothing after this.

        An unconfigured root logger lets only warnings through; it is opened to `info`.
        One capture serves all workers of a process: a second one would write every line twice.
        """
        root = logging.getLogger()
        if any(isinstance(handler, LogCapture) for handler in root.handlers):
            return
        if not root.handlers and root.level == logging.WARNING:
            root.setLevel(logging.INFO)
        root.addHandler(self)

    def remove(self) -> None:
        """Stop capturing."""
        logging.getLogger().removeHandler(self)


def is_failure_record(record: logging.LogRecord) -> bool:
    """Whether the record tells of a failed attempt, and was made by us."""
    return hasattr(record, FAILURE_MARK)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == _OWN_LOGGER or record.name.startswith(f"{_OWN_LOGGER}.")


def _pass_on(capture: LogCapture, record: logging.LogRecord) -> None:
    """Without the capture, a record without any other handler would have been written to stderr."""
    is_alone = logging.getLogger().handlers == [capture]
    if is_alone and logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)


def _level_of(record: logging.LogRecord) -> str:
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if record.levelno >= least:
            return name
    return "debug"
