"""The outcome of an attempt from what its handler returned or raised, and the description of an error.

An attempt that was halted has two stories: what the handler did, and what it was asked to do. The handler's own counts as long as
the handler cannot have known, as with a thread that ends a moment after its timeout without having read `current.cancelled`. Once
it knew, whatever it returns or raises is taken for stopping, and the halt decides. So a handler that leaves its loop early because
the worker is leaving is run again, and not taken for done.

A traceback leaves out the frames between the worker and the handler or a wrapper of it (`_MACHINERY`); they are the same every
time. The frame to look at is the innermost one of the user's own code: neither of Python's library nor of an installed package,
unless there is nothing else. The fingerprint names the kind of error and the place, not the line nor the data in the message,
so that the same failure has the same fingerprint on every machine and after an edit elsewhere in the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_stack, walk_tb
from types import CoroutineType, FrameType, TracebackType
from typing import Any, TypeVar, assert_never

from timeball.config.environment import is_out_of_files
from timeball.current import AttemptContext, Cancel, ControlSignal, Retry, Snooze, StopReason, TimedOut
from timeball.domain.execution import (
    CancelOutcome,
    ErrorInfo,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.handler import BackoffFunction, Handler, HandlerOptions, PayloadMismatch
from timeball.domain.values.json_text import encode_result
from timeball.domain.values.text import clean_text
from timeball.domain.values.wording import format_duration, parse_duration

T = TypeVar("T")

SUCCEEDED = Succeeded()
TIMED_OUT = "TimedOut"
# Files, threads and processes are free again when other attempts end; retrying at once would not help them.
_RESOURCE_PAUSE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An error of a handler, and the context variables with which it was raised: what a collector of errors is shown of it."""

    error: BaseException
    scope: Context

    def traceback(self) -> TracebackType | None:
        """Its traceback without the frames between the worker and the handler."""
        entries: list[TracebackType] = []
        entry = self.error.__traceback__
        while entry is not None:
            entries.append(entry)
            entry = entry.tb_next
        visible: TracebackType | None = None
        for entry in reversed(_without_machinery(entries, lambda entry: entry.tb_frame.f_code.co_filename)):
            visible = TracebackType(visible, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        return visible


def outcome_of_return(value: Any) -> Outcome:
    """The outcome of a handler that returned."""
    if value is None:
        return SUCCEEDED
    # By its type, here and below: `__class__` of a value may be anything, and may raise.
    kind = type(value)
    if issubclass(kind, ControlSignal):
        return _outcome_of_signal(value)
    if issubclass(kind, CoroutineType):
        value.close()
        return Failed(_never_awaited(value.__qualname__), is_retryable=False)
    return Succeeded(encode_result(value))


def outcome_of_error(
    error: BaseException, handler: Handler | None, context: AttemptContext, *, shares_files: bool = True
) -> Outcome:
    """The outcome of a handler that raised, by what was declared with it. Never raises.

    A handler that *shares_files* with the worker's process is not to blame if no more files can be opened.
    """
    kind = type(error)
    if issubclass(kind, ControlSignal):
        outcome = _outcome_of_signal(error)
        if isinstance(outcome, Failed):
            outcome = replace(outcome, raised=RaisedError(_cause_of(error) or error, context.error_scope))
        return outcome
    if shares_files and is_out_of_files(error):
        return outcome_of_exhaustion(error)
    described = describe_error(error)
    raised = RaisedError(error, context.error_scope)
    if issubclass(kind, PayloadMismatch):
        is_of_call = getattr(error, "is_of_call", False)
        return Failed(described, is_retryable=False, is_payload_mismatch=is_of_call, raised=raised)
    if handler is None:
        return Failed(described, raised=raised)
    options = handler.options
    is_retryable = options.retries(kind)
    pause = _own_pause(options.backoff, error, context) if is_retryable and options.backoff is not None else None
    return Failed(described, is_retryable, pause, is_expected=issubclass(kind, options.expected), raised=raised)


def _own_pause(backoff: BackoffFunction, error: BaseException, context: AttemptContext) -> timedelta | None:
    """The pause that the handler's own function asks for; None, and a line in the log, if it fails at that."""
    claimed = context.claimed
    try:
        return parse_duration(backoff(claimed.attempt - claimed.lost, error), "backoff")
    except BaseException as problem:
        # The function is the handler's: whatever it does must not change what became of the attempt.
        text = f"the usual pause follows: backoff failed with {_type_name(type(problem))}: {clean_text(problem)}"
        context.emit_log("warning", text)
        return None


def judge_timeout(outcome: TimeoutOutcome, options: HandlerOptions) -> TimeoutOutcome:
    """A timeout, by what was declared with its handler: there its name is that of the error that is raised in the code."""
    if not (options.no_retry or options.retry_on or options.expected):
        return outcome
    return replace(outcome, is_retryable=options.retries(TimedOut), is_expected=issubclass(TimedOut, options.expected))


def outcome_of_exhaustion(error: BaseException) -> Outcome:
    """The outcome of an attempt for which the machine has no file, thread or process left: the attempt is made a little later."""
    return Snoozed(_RESOURCE_PAUSE, clean_text(f"the worker cannot run it now: {error}"))


def outcome_of_halt(context: AttemptContext, error: ErrorInfo | None = None, raised: object = None) -> Outcome:
    """The outcome of an attempt that ended because it was halted; *error* says where it was."""
    match context.halted:
        case StopReason.TIMEOUT:
            return TimeoutOutcome(_timeout_error(context, error), raised=raised)
        case StopReason.CANCEL:
            return CancelOutcome(context.halt_reason or "cancelled")
        case StopReason.SHUTDOWN:
            return Released()
        case None:
            raise ValueError("the attempt was not halted")
        case _:
            assert_never(context.halted)


def settle(context: AttemptContext, outcome: Outcome) -> Outcome:
    """The outcome that counts, when the attempt may have been halted before it ended."""
    if context.halted is None:
        return outcome
    if context.has_noticed:
        return outcome_of_halt(context, _error_of(outcome), getattr(outcome, "raised", None))
    if context.halted is StopReason.CANCEL and not isinstance(outcome, Succeeded):
        return outcome_of_halt(context)
    return outcome


def _outcome_of_signal(word: Any) -> Outcome:
    try:
        match word:
            case Snooze(delay=delay):
                # Parsed again: the handler may have changed the attribute.
                return Snoozed(parse_duration(delay, "delay"))
            case Cancel(reason=reason):
                return CancelOutcome(reason)
            case Retry(after=after):
                return Failed(
                    _reason_to_retry(word), retry_after=None if after is None else parse_duration(after, "after")
                )
            case _:
                return Failed(describe_error(word))
    except Exception as error:
        return Failed(describe_error(error))


def _reason_to_retry(word: Retry) -> ErrorInfo:
    cause = _cause_of(word)
    return replace(describe_error(word), type="Retry") if cause is None else describe_error(cause)


def _cause_of(error: BaseException) -> BaseException | None:
    """The error that the handler has had before it raised this one, and that this one does not hide."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _never_awaited(name: str) -> ErrorInfo:
    message = f"the handler returned the coroutine {name} without awaiting it; declare the handler with async def"
    return describe_interruption("TypeError", message, None)


def _error_of(outcome: Outcome) -> ErrorInfo | None:
    return outcome.error if isinstance(outcome, Failed | TimeoutOutcome | Lost) else None


def _timeout_error(context: AttemptContext, error: ErrorInfo | None) -> ErrorInfo:
    allowed = context.claimed.timeout_ms
    limit = "its timeout" if allowed is None else f"its timeout of {format_duration(timedelta(milliseconds=allowed))}"
    message = f"ran past {limit}"
    if error is None:
        return describe_interruption(TIMED_OUT, message, None)
    return replace(error, type=TIMED_OUT, message=message)


_PACKAGE = os.path.join(Path(__file__).parents[2], "")
_BUILT_IN = os.path.join(_PACKAGE, "handlers", "builtin", "")


# The packages that call a handler or surround it. The built-in handlers are handlers themselves. The SDK is not among them: its
# frames are in a traceback because the handler has called it.
_MACHINERY = tuple(os.path.join(_PACKAGE, part, "") for part in ("engine", "handlers", "contrib"))
# Where an inline run is called; further in, a frame of it is one that the handler has called.
_CALLERS_OF_INLINE_RUNS = os.path.join(_PACKAGE, "sdk", "")
# What these packages call a wrapper or a coroutine through. Frames of them below the handler's own are the handler's doing.
_GO_BETWEENS = (contextlib.__file__, os.path.join(os.path.dirname(asyncio.__file__), ""))
_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)


def describe_error(error: BaseException) -> ErrorInfo:
    """An error that a handler raised. Never raises, whatever class it is of and whatever that has broken."""
    return _report(_type_name(type(error)), clean_text(error), _location_of(error), _traceback_of(error))


def describe_interruption(kind: str, message: str, frame: FrameType | None) -> ErrorInfo:
    """An error that hit a handler from outside, while it was at *frame*, if that is known."""
    if frame is None:
        return _report(kind, message, None, None)
    stack = list(walk_stack(frame))[::-1]
    lines = _visible_stack(StackSummary.extract(iter(stack))).format()
    return _report(kind, message, _CodeLocation.innermost(stack), "".join(["Stack (most recent call last):\n", *lines]))


def describe_exit(kind: str, message: str, handler: str) -> ErrorInfo:
    """The end of a child process of which only the exit status is known."""
    return ErrorInfo(type=kind, message=message, fingerprint=_fingerprint(kind, handler))


@dataclass(frozen=True, slots=True)
class _CodeLocation:
    """Where a frame stands."""

    filename: str
    line: int
    module: str
    function: str

    @classmethod
    def innermost(cls, frames: Iterable[tuple[FrameType, int]]) -> _CodeLocation | None:
        """The last frame of the user's code; failing that, the last one that is not between the worker and the handler."""
        visible = _without_machinery(list(frames), lambda place: place[0].f_code.co_filename)
        places = [cls.of(frame, line) for frame, line in visible]
        users = [place for place in places if place.is_users]
        return next(reversed(users or places), None)

    @classmethod
    def of(cls, frame: FrameType, line: int) -> _CodeLocation:
        function = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        return cls(frame.f_code.co_filename, line, clean_text(frame.f_globals.get("__name__", "")), function)

    @property
    def is_users(self) -> bool:
        is_ours = self.filename.startswith(_PACKAGE) and not self.filename.startswith(_BUILT_IN)
        return not is_ours and not self.filename.startswith((*_INSTALLED, "<"))

    def __str__(self) -> str:
        return f"{_short_path(self.filename)}:{self.line} in {self.function}"


def _report(kind: str, message: str, place: _CodeLocation | None, traceback: str | None) -> ErrorInfo:
    return ErrorInfo(
        type=kind,
        message=message,
        traceback=traceback,
        top_frame=None if place is None else str(place),
        fingerprint=_fingerprint(kind, "" if place is None else f"{place.module}:{place.function}"),
    )


def _fingerprint(kind: str, place: str) -> str:
    return blake2b(f"{kind}|{place}".encode("utf-8", "replace"), digest_size=6).hexdigest()


def _type_name(kind: type[BaseException]) -> str:
    try:
        name, module = clean_text(kind.__qualname__).rpartition("<locals>.")[2], clean_text(kind.__module__)
    except BaseException:  # a metaclass may have broken them
        return "Exception"
    return name if module == "builtins" else f"{module}.{name}"


def _location_of(error: BaseException) -> _CodeLocation | None:
    try:
        return _CodeLocation.innermost(walk_tb(error.__traceback__))
    except BaseException:
        return None


def _traceback_of(error: BaseException) -> str | None:
    try:
        report = TracebackException.from_exception(error, compact=True)
        _strip(report)
        return "".join(report.format())
    except BaseException:
        # An error may be of any class, with any attribute broken. It must not harm more than its own attempt.
        return None


def _strip(report: TracebackException) -> None:
    to_strip = [report]
    while to_strip:
        part = to_strip.pop()
        part.stack = _visible_stack(part.stack)
        to_strip += [
            inner for inner in (part.__cause__, part.__context__, *(part.exceptions or ())) if inner is not None
        ]


def _visible_stack(stack: StackSummary) -> StackSummary:
    visible = _without_machinery(stack, lambda frame: frame.filename)
    return StackSummary.from_list(visible)


def _without_machinery(frames: Sequence[T], filename_of: Callable[[T], str]) -> list[T]:
    """The frames, outermost first, without those between the worker and the code of a handler or wrapper."""
    visible: list[T] = []
    is_between = False
    for index, frame in enumerate(frames, 1):
        filename = filename_of(frame)
        if not visible and filename.startswith(_CALLERS_OF_INLINE_RUNS):
            continue
        if filename.startswith(_MACHINERY) and not filename.startswith(_BUILT_IN):
            is_between = True
        # An error that a go-between raises itself would have no frame at all.
        elif not is_between or not filename.startswith(_GO_BETWEENS) or index == len(frames):
            is_between = False
            visible.append(frame)
    return visible


def _short_path(filename: str) -> str:
    """A path below the working directory, or below a place Python imports from, relative to it."""
    bases = sorted(sys.path, key=len, reverse=True)
    if not filename.startswith(_INSTALLED):
        bases.insert(0, _working_directory())
    for base in bases:
        if base and filename.startswith(os.path.join(base, "")):
            return filename[len(os.path.join(base, "")) :]
    return filename


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
