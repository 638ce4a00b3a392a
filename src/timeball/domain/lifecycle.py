"""What an execution becomes after an outcome: the one place that knows the transitions between states.

    scheduled ─► queued ─► running ─► succeeded | dead | cancelled
        │           │         ├─────► retrying ─► queued          (failed, timed out)
        │           │         ├─────► scheduled ─► queued         (snoozed)
        │           │         └─────► queued                      (released, lost)
        └───────────┴───────────────► skipped | cancelled

`decide` is pure. The execution of a dead worker enters it as the outcome `Lost`, one past its timeout as `TimeoutOutcome`; no
other code decides what an execution becomes.

During an attempt a person may have asked for a stop that the worker never received, deleted the job or paused it. An
execution that would be tried again is then cancelled, or waits in `due`, where the scheduler parks the rows of a paused job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, assert_never

from timeball.domain.execution import (
    CancelOutcome,
    ErrorInfo,
    ExecutionState,
    Failed,
    FinishedAttempt,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
    outcome_of_stop,
)
from timeball.domain.policies import Delivery, RetryPolicy, SkipReason
from timeball.domain.values.json_text import dropped_result


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What `decide` must know of an execution: its attempts including this one, its retry policy, and requests made meanwhile."""

    attempts: int
    lost: int
    retry: RetryPolicy
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    stop: str | None = None
    is_paused: bool = False
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The execution ends here, for good."""

    state: ExecutionState
    attempts: int
    lost: int
    result: str | None = None
    error: ErrorInfo | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Postpone:
    """The execution goes back to `due` until *run_at*: as `retrying`, or as `scheduled` when it was snoozed."""

    run_at: datetime
    attempts: int
    lost: int
    is_retry: bool
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """The execution goes back to `ready` at once."""

    attempts: int
    lost: int
    error: ErrorInfo | None = None


Transition = Finish | Postpone | Requeue


def next_state(transition: Transition) -> str:
    """The state that an execution is in after it, in a word."""
    match transition:
        case Finish(state=state):
            return state.value
        case Postpone():
            return ExecutionState.RETRYING.value
        case Requeue():
            return ExecutionState.QUEUED.value
        case _:
            assert_never(transition)


def replacement_outcomes(outcome: Outcome, why: str) -> Iterator[Outcome]:
    """What is recorded for an outcome that the database refuses, the best first: the same kind of outcome, with the reason as its content.

    A success stays a success, because the work is done. If that is refused too, what follows it cannot be written: it ends dead, and is
    not run again. A snooze whose instant cannot be stored becomes a failure.
    """
    error = ErrorInfo(type="UnwritableOutcome", message=why, fingerprint="unwritable-outcome")
    yield _replacement_outcome(outcome, why, error)
    if isinstance(outcome, Succeeded):
        yield Failed(error, is_retryable=False)


def _replacement_outcome(outcome: Outcome, why: str, error: ErrorInfo) -> Outcome:
    match outcome:
        case Succeeded():
            return Succeeded(dropped_result(why))
        case Failed(is_retryable=is_retryable):
            return Failed(error, is_retryable=is_retryable)
        case Snoozed():
            return Failed(error)
        case TimeoutOutcome():
            return TimeoutOutcome(error)
        case Lost():
            return Lost(error)
        case CancelOutcome():
            return CancelOutcome(why)
        case NotStarted() | Released():
            return outcome
        case _:
            assert_never(outcome)


class Decision(NamedTuple):
    """The transition of an execution after an attempt, and the facts that it was decided by."""

    attempt: FinishedAttempt
    facts: AttemptFacts
    transition: Transition


def decide(facts: AttemptFacts, outcome: Outcome, now: datetime, chance: float) -> Transition:
    """What an execution becomes after an outcome; *chance* in [0, 1) spreads the retries."""
    if facts.stop is not None and outcome == Released(has_started=False):
        outcome = outcome_of_stop(facts.stop)
    transition = _transition_after(facts, outcome, now, chance)
    return transition if isinstance(transition, Finish) else _apply_requests(facts, transition, now)


def _transition_after(facts: AttemptFacts, outcome: Outcome, now: datetime, chance: float) -> Transition:
    attempts, lost = facts.attempts, facts.lost
    match outcome:
        case Succeeded(result):
            return Finish(ExecutionState.SUCCEEDED, attempts, lost, result=result)
        case Failed():
            return _after_failure(facts, outcome, now, chance)
        case TimeoutOutcome(error, is_retryable, is_expected):
            return _after_failure(facts, Failed(error, is_retryable, is_expected=is_expected), now, chance)
        case Snoozed(delay):
            return Postpone(now + delay, attempts - 1, lost, is_retry=attempts > 1)
        case CancelOutcome(reason):
            return Finish(ExecutionState.CANCELLED, attempts, lost, reason=reason)
        case NotStarted(reason):
            return _after_not_started(facts, reason, now)
        case Lost(error):
            return _after_loss(facts, error)
        case Released(has_started):
            return _after_release(facts, has_started=has_started)
        case _:
            assert_never(outcome)


def _after_failure(facts: AttemptFacts, outcome: Failed, now: datetime, chance: float) -> Finish | Postpone:
    failures = facts.attempts - facts.lost
    if not outcome.is_retryable:
        return _dead(facts, outcome.error, "the error is not one to retry")
    if failures > facts.retry.max_retries:
        return _dead(facts, outcome.error, f"failed {failures} times, max_retries is {facts.retry.max_retries}")
    delay = outcome.retry_after if outcome.retry_after is not None else facts.retry.delay(failures, chance)
    return Postpone(now + delay, facts.attempts, facts.lost, is_retry=True, error=outcome.error)


def _after_not_started(facts: AttemptFacts, reason: str, now: datetime) -> Finish | Postpone:
    if reason == SkipReason.PAUSED and facts.attempts > 1:
        # A retry that a worker held waits for the end of the pause, like those that were not held.
        return Postpone(now, facts.attempts - 1, facts.lost, is_retry=True)
    return Finish(ExecutionState.SKIPPED, facts.attempts - 1, facts.lost, reason=reason)


def _after_loss(facts: AttemptFacts, error: ErrorInfo) -> Finish | Requeue:
    lost = facts.lost + 1
    if facts.delivery is Delivery.AT_MOST_ONCE:
        reason = "its worker was lost, and at_most_once forbids another attempt"
        return Finish(ExecutionState.DEAD, facts.attempts, lost, error=error, reason=reason)
    if lost >= facts.retry.max_lost:
        reason = f"lost with its worker {lost} times, max_lost is {facts.retry.max_lost}"
        return Finish(ExecutionState.DEAD, facts.attempts, lost, error=error, reason=reason)
    return Requeue(facts.attempts, lost, error=error)


def _after_release(facts: AttemptFacts, *, has_started: bool) -> Finish | Requeue:
    if has_started and facts.delivery is Delivery.AT_MOST_ONCE:
        reason = "its worker left while it ran, and at_most_once forbids another attempt"
        return Finish(ExecutionState.DEAD, facts.attempts, facts.lost, reason=reason)
    return Requeue(facts.attempts - 1, facts.lost)


def _apply_requests(facts: AttemptFacts, again: Postpone | Requeue, now: datetime) -> Transition:
    """Applies a stop, a deletion or a pause that was requested meanwhile to an execution that would be tried again."""
    stop = None if facts.stop is None else outcome_of_stop(facts.stop)
    if isinstance(stop, CancelOutcome):
        return _cancelled(again, stop.reason)
    if facts.is_deleted:
        return _cancelled(again, "the job was deleted")
    if facts.is_paused and isinstance(again, Requeue):
        return Postpone(now, again.attempts, again.lost, is_retry=again.attempts > 0, error=again.error)
    return again


def _cancelled(again: Postpone | Requeue, reason: str) -> Finish:
    return Finish(ExecutionState.CANCELLED, again.attempts, again.lost, error=again.error, reason=reason)


def _dead(facts: AttemptFacts, error: ErrorInfo, reason: str) -> Finish:
    return Finish(ExecutionState.DEAD, facts.attempts, facts.lost, error=error, reason=reason)
