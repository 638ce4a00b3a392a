"""From what a handler did to an outcome: pure functions, the same for all runners.

An attempt that was halted has two stories: what the handler did, and what it was asked for. The handler's own counts
as long as it cannot have known (a thread that ends a moment after its timeout, without having looked at `current.cancelled`);
once it knew, whatever it returns or raises is taken for stopping, and the halt decides. So a handler that leaves its
loop early because the worker is going away is run again, and not taken for done.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import CoroutineType
from typing import Any, assert_never

from timeball.current import Halt, RunContext
from timeball.domain.execution import (
    Cancelled,
    ErrorInfo,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from timeball.domain.handler import PayloadMismatch
from timeball.domain.json_values import encode_result
from timeball.domain.spans import parse_span, show_span
from timeball.domain.text import clean
from timeball.loops import is_out_of_files
from timeball.outcomes import Cancel, ControlWord, Retry, Snooze
from timeball.runners.error_report import describe, describe_interruption

SUCCEEDED = Succeeded()
TIMED_OUT = "TimedOut"
# What runs out comes back when others end; asking all the time would not help them.
_PAUSE = timedelta(seconds=5)


def outcome_of_return(value: Any) -> Outcome:
    """The outcome of a handler that returned."""
    if value is None:
        return SUCCEEDED
    # By its class, here and below: what a value says of its class may be anything, an error too.
    kind = type(value)
    if issubclass(kind, ControlWord):
        return _outcome_of_word(value)
    if issubclass(kind, CoroutineType):
        value.close()
        return Failed(_never_awaited(value.__qualname__), is_retryable=False)
    return Succeeded(encode_result(value))


def outcome_of_error(
    error: BaseException, no_retry: tuple[type[BaseException], ...] = (), *, shares_files: bool = True
) -> Outcome:
    """The outcome of a handler that raised; errors of the kinds in *no_retry* are not tried again. Never raises.

    A handler that *shares_files* with the worker's process is not to blame if no more can be opened.
    """
    kind = type(error)
    if issubclass(kind, ControlWord):
        return _outcome_of_word(error)
    if shares_files and is_out_of_files(error):
        return without_room(error)
    is_hopeless = issubclass(kind, (PayloadMismatch, *no_retry))
    is_misfit = issubclass(kind, PayloadMismatch) and getattr(error, "is_of_call", False)
    return Failed(describe(error), is_retryable=not is_hopeless, is_misfit=is_misfit)


def without_room(error: BaseException) -> Outcome:
    """The outcome of an attempt for which the machine has no file, thread or process left: it is made again a little later."""
    return Snoozed(_PAUSE, clean(f"the worker cannot run it now: {error}"))


def outcome_of_halt(context: RunContext, error: ErrorInfo | None = None) -> Outcome:
    """The outcome of an attempt that ended because it was told to; *error* says where it was."""
    match context.halted:
        case Halt.TIMEOUT:
            return TimedOut(_timeout_error(context, error))
        case Halt.CANCEL:
            return Cancelled(context.halt_reason or "cancelled")
        case Halt.SHUTDOWN:
            return Released()
        case None:
            raise ValueError("the attempt was not halted")
        case _:
            assert_never(context.halted)


def settle(context: RunContext, outcome: Outcome) -> Outcome:
    """The outcome that counts, when the attempt may have been halted before it ended."""
    if context.halted is None:
        return outcome
    if context.has_noticed:
        return outcome_of_halt(context, _error_of(outcome))
    if context.halted is Halt.CANCEL and not isinstance(outcome, Succeeded):
        return outcome_of_halt(context)
    return outcome


def _outcome_of_word(word: Any) -> Outcome:
    try:
        match word:
            case Snooze(delay=delay):
                # Again: an attribute may have been given another value since.
                return Snoozed(parse_span(delay, "delay"))
            case Cancel(reason=reason):
                return Cancelled(reason)
            case Retry(after=after):
                return Failed(_reason_to_retry(word), retry_after=None if after is None else parse_span(after, "after"))
            case _:
                return Failed(describe(word))
    except Exception as error:
        return Failed(describe(error))


def _reason_to_retry(word: Retry) -> ErrorInfo:
    cause = word.__cause__ or (None if word.__suppress_context__ else word.__context__)
    return replace(describe(word), type="Retry") if cause is None else describe(cause)


def _never_awaited(name: str) -> ErrorInfo:
    message = f"the handler returned the coroutine {name} without awaiting it; declare the handler with async def"
    return describe_interruption("TypeError", message, None)


def _error_of(outcome: Outcome) -> ErrorInfo | None:
    return outcome.error if isinstance(outcome, Failed | TimedOut | Lost) else None


def _timeout_error(context: RunContext, error: ErrorInfo | None) -> ErrorInfo:
    allowed = context.claimed.timeout_ms
    limit = "its timeout" if allowed is None else f"its timeout of {show_span(timedelta(milliseconds=allowed))}"
    message = f"ran past {limit}"
    if error is None:
        return describe_interruption(TIMED_OUT, message, None)
    return replace(error, type=TIMED_OUT, message=message)
