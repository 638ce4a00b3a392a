"""Failed attempts as records of `logging`, so that every collector that a program has hears of them.

Each failed attempt is one record, on the logger that is named after its handler, made once it is decided what follows: a warning if
another attempt does, an error if the execution is dead, and no more than info if the handler has declared the error as expected. It is
made in the process that has the error itself, with the context variables that the handler had, so that a collector that keeps its scope
in them adds what belongs to the run. That is the worker, or the isolated child, or for an attempt whose worker is gone the scheduler that
rescues it; the last one knows no traceback.

A collector is code of the program, and may block or raise. So records are handed to it in a thread of their own, in order; what has
waited for too long is given up and counted. Our own log has a line for each failed attempt as well (`attempt.failed`), without the
traceback. So `logging` does not write the record to standard error where a program has configured nothing: it would be there twice.
"""

from __future__ import annotations

import logging
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final

from timeball.current import FAILURE_MARK, TimedOut
from timeball.domain.execution import (
    ClaimedExecution,
    ErrorInfo,
    ExecutionState,
    Failed,
    Lost,
    Outcome,
    TimeoutOutcome,
    outcome_word,
)
from timeball.domain.lifecycle import Finish, Transition, next_state
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.engine.runners.outcome import RaisedError
from timeball.telemetry.background_calls import BackgroundCalls
from timeball.telemetry.events import Emit, ignore

# In the place of the error: the child that raised it has logged it.
LOGGED_BY_CHILD: Final = "logged"
FLUSH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """What a record tells: the attempt, its error, and what follows."""

    claimed: ClaimedExecution
    outcome: str
    error: ErrorInfo
    level: int
    becomes: str
    raised: RaisedError | None = None
    # Of a run that a program makes inline: our own log does not tell of it.
    is_inline: bool = False


def failure_of(claimed: ClaimedExecution, outcome: Outcome, transition: Transition) -> AttemptFailure | None:
    """What is to be logged of an attempt; None if it has not failed, or a child has logged it."""
    if not isinstance(outcome, Failed | TimeoutOutcome | Lost):
        return None
    raised = None if isinstance(outcome, Lost) else outcome.raised
    if raised == LOGGED_BY_CHILD:
        return None
    is_expected = not isinstance(outcome, Lost) and outcome.is_expected
    is_dead = isinstance(transition, Finish) and transition.state is ExecutionState.DEAD
    level = logging.INFO if is_expected else logging.ERROR if is_dead else logging.WARNING
    return AttemptFailure(
        claimed,
        outcome_word(outcome),
        outcome.error,
        level,
        next_state(transition),
        raised if isinstance(raised, RaisedError) else None,
    )


def log_failure(failure: AttemptFailure) -> None:
    """Make the record, and hand it to the collectors here and now."""
    logger = logging.getLogger(failure.claimed.handler)
    if not logger.isEnabledFor(failure.level):
        return
    scope = Context() if failure.raised is None else failure.raised.scope
    scope.run(logger.handle, _record(failure, logger))


def _record(failure: AttemptFailure, logger: logging.Logger) -> logging.LogRecord:
    claimed, error = failure.claimed, failure.error
    exc_info = _exc_info(failure)
    path, line, function = _place(exc_info[2] if exc_info else None)
    execution_id = format_execution_id(claimed.id)
    extra = {
        **({} if failure.is_inline else {FAILURE_MARK: True}),
        "execution_id": execution_id,
        "job_id": format_job_id(claimed.job_id),
        "job_name": claimed.job_name,
        "handler": claimed.handler,
        "queue": claimed.queue,
        "origin": claimed.origin,
        "attempt": claimed.attempt,
        "outcome": failure.outcome,
        "becomes": failure.becomes,
    }
    text = "attempt %d of %s %s, the execution is %s: %s: %s"
    words = {"timed_out": "timed out", "lost": "was lost"}.get(failure.outcome, failure.outcome)
    values = (claimed.attempt, execution_id, words, failure.becomes, error.type, error.message)
    record = logger.makeRecord(logger.name, failure.level, path, line, text, values, exc_info, function, extra)
    if error.traceback is not None:
        # Where a formatter keeps a traceback that it has written out: this one can be written, and has no passwords.
        record.exc_text = error.traceback.rstrip("\n")
    return record


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def _exc_info(failure: AttemptFailure) -> _ExcInfo | None:
    raised = failure.raised
    if raised is None:
        return None
    error = raised.error
    if failure.outcome == "timed_out" and not isinstance(error, TimedOut):
        # What was raised in the handler is how it was stopped, such as the cancellation of its task.
        error = TimedOut(failure.error.message)
    return type(error), error, raised.traceback()


def _place(entry: TracebackType | None) -> tuple[str, int, str | None]:
    if entry is None:
        return "(unknown file)", 0, None
    while entry.tb_next is not None:
        entry = entry.tb_next
    code = entry.tb_frame.f_code
    return code.co_filename, entry.tb_lineno, code.co_name


class FailureLog:
    """Hands failures to the collectors of the program, in their order, beside the engine."""

    def __init__(self, emit: Emit = ignore) -> None:
        self._calls = BackgroundCalls("timeball-failure-log", emit)

    def add(self, failure: AttemptFailure) -> None:
        """Log it soon; at once, and without waiting for a collector."""
        logger = logging.getLogger(failure.claimed.handler)
        if not logger.isEnabledFor(failure.level):
            return
        if not logger.hasHandlers():
            # A collector need not be a handler, and without any `logging` would write it to standard error.
            logger.addHandler(logging.NullHandler())
        self._calls.add(partial(log_failure, failure))

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait for a bounded time until all are logged; False if some are not."""
        return self._calls.flush(seconds)
