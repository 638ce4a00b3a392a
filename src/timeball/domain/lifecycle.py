"""What follows an outcome. The one place that knows the states of an execution.

    scheduled ─► queued ─► running ─► succeeded | dead | cancelled
        │           │         ├─────► retrying ─► queued          (failed, timed out)
        │           │         ├─────► scheduled ─► queued         (snoozed)
        │           │         └─────► queued                      (released, lost)
        └───────────┴───────────────► skipped | cancelled

`decide` is pure. A dead worker's execution enters it as the outcome `Lost`, an overrun one as `TimedOut`; no other code
makes up its mind about what an execution becomes.

A person may have spoken while the attempt went on: asked for a stop that its holder did not live to hear, deleted the job, or paused
it. What would be tried again is cancelled then, or waits in `due`, where the scheduler parks what belongs to a paused job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, assert_never

from timeball.domain.execution import (
    Cancelled,
    ErrorInfo,
    ExecutionState,
    Failed,
    Finding,
    Lost,
    NotDropped,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    called_off,
)
from timeball.domain.json_values import dropped_result
from timeball.domain.misfire import SkipReason
from timeball.domain.retry import RetryPolicy


class Delivery(StrEnum):
    """Whether an attempt whose end is unknown may be repeated."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What `decide` must know of an execution: its tries so far, this one included, its budgets, and what people said meanwhile."""

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
class Wait:
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


Transition = Finish | Wait | Requeue


def written_instead(outcome: Outcome, why: str) -> Outcome:
    """What is recorded for an outcome that the database cannot hold: the same kind of end, with the reason in place of what was refused.

    A success stays one, for the work is done; a snooze, whose instant cannot be kept, is a failure.
    """
    error = ErrorInfo(type="UnwritableOutcome", message=why, fingerprint="unwritable-outcome")
    match outcome:
        case Succeeded():
            return Succeeded(dropped_result(why))
        case Failed(is_retryable=is_retryable):
            return Failed(error, is_retryable=is_retryable)
        case Snoozed():
            return Failed(error)
        case TimedOut():
            return TimedOut(error)
        case Lost():
            return Lost(error)
        case Cancelled():
            return Cancelled(why)
        case NotDropped() | Released():
            return outcome
        case _:
            assert_never(outcome)


class Move(NamedTuple):
    """Where an execution goes after what was found, and its standing when that was decided."""

    finding: Finding
    standing: Standing
    transition: Transition


def decide(standing: Standing, outcome: Outcome, now: datetime, chance: float) -> Transition:
    """What an execution becomes after an outcome; *chance* in [0, 1) spreads the retries."""
    if standing.stop is not None and outcome == Released(has_started=False):
        outcome = called_off(standing.stop)
    transition = _follow(standing, outcome, now, chance)
    return transition if isinstance(transition, Finish) else _heed_people(standing, transition, now)


def _follow(standing: Standing, outcome: Outcome, now: datetime, chance: float) -> Transition:
    attempts, lost = standing.attempts, standing.lost
    match outcome:
        case Succeeded(result):
            return Finish(ExecutionState.SUCCEEDED, attempts, lost, result=result)
        case Failed():
            return _after_failure(standing, outcome, now, chance)
        case TimedOut(error):
            return _after_failure(standing, Failed(error), now, chance)
        case Snoozed(delay):
            return Wait(now + delay, attempts - 1, lost, is_retry=attempts > 1)
        case Cancelled(reason):
            return Finish(ExecutionState.CANCELLED, attempts, lost, reason=reason)
        case NotDropped(reason):
            return _after_calling_off(standing, reason, now)
        case Lost(error):
            return _after_loss(standing, error)
        case Released(has_started):
            return _after_release(standing, has_started=has_started)
        case _:
            assert_never(outcome)


def _after_failure(standing: Standing, outcome: Failed, now: datetime, chance: float) -> Finish | Wait:
    failures = standing.attempts - standing.lost
    if not outcome.is_retryable:
        return _dead(standing, outcome.error, "the error is not one to retry")
    if failures > standing.retry.max_retries:
        return _dead(standing, outcome.error, f"failed {failures} times, max_retries is {standing.retry.max_retries}")
    delay = outcome.retry_after if outcome.retry_after is not None else standing.retry.delay(failures, chance)
    return Wait(now + delay, standing.attempts, standing.lost, is_retry=True, error=outcome.error)


def _after_calling_off(standing: Standing, reason: str, now: datetime) -> Finish | Wait:
    if reason == SkipReason.PAUSED and standing.attempts > 1:
        # As the retries that nobody held: they wait for the end of the pause.
        return Wait(now, standing.attempts - 1, standing.lost, is_retry=True)
    return Finish(ExecutionState.SKIPPED, standing.attempts - 1, standing.lost, reason=reason)


def _after_loss(standing: Standing, error: ErrorInfo) -> Finish | Requeue:
    lost = standing.lost + 1
    if standing.delivery is Delivery.AT_MOST_ONCE:
        reason = "its worker was lost, and at_most_once forbids another attempt"
        return Finish(ExecutionState.DEAD, standing.attempts, lost, error=error, reason=reason)
    if lost >= standing.retry.max_lost:
        reason = f"lost with its worker {lost} times, max_lost is {standing.retry.max_lost}"
        return Finish(ExecutionState.DEAD, standing.attempts, lost, error=error, reason=reason)
    return Requeue(standing.attempts, lost, error=error)


def _after_release(standing: Standing, *, has_started: bool) -> Finish | Requeue:
    if has_started and standing.delivery is Delivery.AT_MOST_ONCE:
        reason = "its worker left while it ran, and at_most_once forbids another attempt"
        return Finish(ExecutionState.DEAD, standing.attempts, standing.lost, reason=reason)
    return Requeue(standing.attempts - 1, standing.lost)


def _heed_people(standing: Standing, again: Wait | Requeue, now: datetime) -> Transition:
    """What would be tried again, unless somebody has called it off meanwhile."""
    stop = None if standing.stop is None else called_off(standing.stop)
    if isinstance(stop, Cancelled):
        return _cancelled(again, stop.reason)
    if standing.is_deleted:
        return _cancelled(again, "the job was deleted")
    if standing.is_paused and isinstance(again, Requeue):
        return Wait(now, again.attempts, again.lost, is_retry=again.attempts > 0, error=again.error)
    return again


def _cancelled(again: Wait | Requeue, reason: str) -> Finish:
    return Finish(ExecutionState.CANCELLED, again.attempts, again.lost, error=again.error, reason=reason)


def _dead(standing: Standing, error: ErrorInfo, reason: str) -> Finish:
    return Finish(ExecutionState.DEAD, standing.attempts, standing.lost, error=error, reason=reason)
