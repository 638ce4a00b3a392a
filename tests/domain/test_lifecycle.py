"""What an execution becomes after an outcome: budgets hold over every sequence of outcomes, and a final state stays final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from timeball.domain.execution import (
    CancelOutcome,
    ErrorInfo,
    ExecutionState,
    Failed,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.lifecycle import AttemptFacts, Finish, Postpone, Requeue, Transition, decide
from timeball.domain.policies import Delivery, RetryPolicy

NOW = utc(2026, 3, 2, 12)
ERROR = ErrorInfo(type="ValueError", message="no")

spans = st.timedeltas(timedelta(0), timedelta(days=365))
chances = st.floats(0, 1, exclude_max=True)
failures = st.builds(Failed, st.just(ERROR), st.booleans(), st.none() | spans)
uncounted = st.just(Released()) | st.builds(Snoozed, spans)
unhappy = failures | st.just(TimeoutOutcome(ERROR)) | st.just(Lost(ERROR))
final = st.just(Succeeded("1")) | st.just(CancelOutcome("enough")) | st.just(NotStarted("deleted"))
policies = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 5),
    max_lost=st.integers(1, 5),
    initial_backoff_ms=st.integers(0, 10_000),
    max_backoff_ms=st.integers(0, 10_000_000),
)
deliveries = st.sampled_from(Delivery)


@dataclass
class Walk:
    """One execution through its attempts: each outcome follows a claim, which counts the attempt."""

    policy: RetryPolicy
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    attempts: int = 0
    lost: int = 0
    end: Finish | None = None

    def take(self, outcome: Outcome, chance: float = 0.5) -> Transition:
        assert self.end is None, "nothing can follow an end"
        standing = AttemptFacts(attempts=self.attempts + 1, lost=self.lost, retry=self.policy, delivery=self.delivery)
        transition = decide(standing, outcome, NOW, chance)
        self.attempts, self.lost = transition.attempts, transition.lost
        if isinstance(transition, Finish):
            self.end = transition
        return transition

    def take_all(self, outcomes: Sequence[Outcome]) -> int:
        """Take outcomes until the end; returns how many were needed."""
        for number, outcome in enumerate(outcomes):
            if self.end is not None:
                return number
            self.take(outcome)
        return len(outcomes)


@given(policies, deliveries, st.lists(unhappy | uncounted, max_size=40))
@settings(deadline=None)
def test_no_sequence_of_outcomes_exceeds_the_budgets(
    policy: RetryPolicy, delivery: Delivery, outcomes: list[Outcome]
) -> None:
    walk = Walk(policy, delivery)

    taken = outcomes[: walk.take_all(outcomes)]

    counted = sum(isinstance(outcome, Failed | TimeoutOutcome) for outcome in taken)
    lost = sum(isinstance(outcome, Lost) for outcome in taken)
    assert counted <= policy.max_retries + 1
    assert lost <= policy.max_lost
    assert (walk.attempts, walk.lost) == (counted + lost, lost)


@given(policies, deliveries, st.lists(unhappy, min_size=12, max_size=12))
@settings(deadline=None)
def test_repeated_failures_or_losses_end_dead(policy: RetryPolicy, delivery: Delivery, outcomes: list[Outcome]) -> None:
    walk = Walk(policy, delivery)

    walk.take_all(outcomes)

    assert walk.end is not None
    assert walk.end.state is ExecutionState.DEAD
    assert walk.end.error == ERROR
    assert walk.end.reason


@given(policies, deliveries, st.lists(unhappy, max_size=12), st.lists(uncounted, max_size=6))
@settings(deadline=None)
def test_released_and_snoozed_attempts_do_not_count(
    policy: RetryPolicy, delivery: Delivery, outcomes: list[Outcome], between: list[Outcome]
) -> None:
    plain, interrupted = Walk(policy, delivery), Walk(policy, delivery)
    mixed = list(outcomes)
    for number, outcome in enumerate(between):
        mixed.insert((7 * number) % (len(mixed) + 1), outcome)

    plain.take_all(outcomes)
    interrupted.take_all(mixed)

    assert interrupted.end == plain.end
    assert (interrupted.attempts, interrupted.lost) == (plain.attempts, plain.lost)


@given(policies, deliveries, st.lists(unhappy | uncounted, max_size=5), final)
@settings(deadline=None)
def test_success_cancellation_and_not_started_are_final(
    policy: RetryPolicy, delivery: Delivery, before: list[Outcome], outcome: Outcome
) -> None:
    walk = Walk(policy, delivery)
    walk.take_all(before)
    if walk.end is not None:
        return

    end = walk.take(outcome)

    assert isinstance(end, Finish)
    assert end.state.is_final
    match outcome:
        case Succeeded():
            assert (end.state, end.result) == (ExecutionState.SUCCEEDED, "1")
        case CancelOutcome():
            assert (end.state, end.reason) == (ExecutionState.CANCELLED, "enough")
        case NotStarted():
            assert (end.state, end.reason) == (ExecutionState.SKIPPED, "deleted")


@given(policies, unhappy | uncounted | final, chances, st.integers(1, 10), st.integers(0, 4))
@settings(deadline=None)
def test_no_retry_is_planned_in_the_past(
    policy: RetryPolicy, outcome: Outcome, chance: float, attempts: int, lost: int
) -> None:
    standing = AttemptFacts(attempts=attempts, lost=min(lost, attempts - 1), retry=policy)

    transition = decide(standing, outcome, NOW, chance)

    if isinstance(transition, Postpone):
        assert transition.run_at >= NOW
    assert transition.attempts >= transition.lost >= 0


@given(policies, chances, st.integers(1, 6))
@settings(deadline=None)
def test_a_failure_waits_for_its_back_off(policy: RetryPolicy, chance: float, number: int) -> None:
    standing = AttemptFacts(attempts=number, lost=0, retry=policy)

    transition = decide(standing, Failed(ERROR), NOW, chance)

    if number > policy.max_retries:
        assert isinstance(transition, Finish)
    else:
        assert transition == Postpone(NOW + policy.delay(number, chance), number, 0, is_retry=True, error=ERROR)


def test_lost_attempts_do_not_lengthen_the_back_off() -> None:
    policy = RetryPolicy(max_retries=3, initial_backoff_ms=1_000)

    transition = decide(AttemptFacts(attempts=3, lost=2, retry=policy), Failed(ERROR), NOW, 0.9)

    assert transition == Postpone(NOW + policy.delay(1, 0.9), 3, 2, is_retry=True, error=ERROR)


def test_lost_attempts_do_not_use_up_the_retries() -> None:
    policy = RetryPolicy(max_retries=1, max_lost=5)

    transition = decide(AttemptFacts(attempts=4, lost=3, retry=policy), Failed(ERROR), NOW, 0)

    assert isinstance(transition, Postpone)


def test_a_handler_may_choose_its_own_wait() -> None:
    outcome = Failed(ERROR, retry_after=timedelta(hours=5))

    transition = decide(AttemptFacts(attempts=1, lost=0, retry=RetryPolicy()), outcome, NOW, 0.9)

    assert transition == Postpone(NOW + timedelta(hours=5), 1, 0, is_retry=True, error=ERROR)


def test_a_chosen_delay_adds_no_attempts() -> None:
    outcome = Failed(ERROR, retry_after=timedelta(hours=5))

    transition = decide(AttemptFacts(attempts=1, lost=0, retry=RetryPolicy(max_retries=0)), outcome, NOW, 0.9)

    assert isinstance(transition, Finish)


def test_an_error_that_is_not_retryable_is_not_retried() -> None:
    end = decide(AttemptFacts(attempts=1, lost=0, retry=RetryPolicy()), Failed(ERROR, is_retryable=False), NOW, 0)

    assert isinstance(end, Finish)
    assert (end.state, end.error, end.attempts) == (ExecutionState.DEAD, ERROR, 1)
    assert "not one to retry" in (end.reason or "")


def test_a_dead_execution_names_the_budget_that_was_used_up() -> None:
    policy = RetryPolicy(max_retries=2, max_lost=4)

    failed = decide(AttemptFacts(attempts=3, lost=0, retry=policy), Failed(ERROR), NOW, 0)
    lost = decide(AttemptFacts(attempts=4, lost=3, retry=policy), Lost(ERROR), NOW, 0)

    assert isinstance(failed, Finish)
    assert failed.reason == "failed 3 times, max_retries is 2"
    assert isinstance(lost, Finish)
    assert lost.reason == "lost with its worker 4 times, max_lost is 4"


def test_a_lost_attempt_goes_back_to_the_queue_at_once() -> None:
    transition = decide(AttemptFacts(attempts=2, lost=0, retry=RetryPolicy()), Lost(ERROR), NOW, 0)

    assert transition == Requeue(attempts=2, lost=1, error=ERROR)


def test_at_most_once_never_runs_a_lost_attempt_again() -> None:
    standing = AttemptFacts(
        attempts=1, lost=0, retry=RetryPolicy(max_retries=9, max_lost=9), delivery=Delivery.AT_MOST_ONCE
    )

    end = decide(standing, Lost(ERROR), NOW, 0)

    assert isinstance(end, Finish)
    assert (end.state, end.lost) == (ExecutionState.DEAD, 1)
    assert "at_most_once" in (end.reason or "")


def test_at_most_once_never_runs_a_started_execution_again() -> None:
    policy = RetryPolicy(max_retries=9, max_lost=9)
    standing = AttemptFacts(attempts=1, lost=0, retry=policy, delivery=Delivery.AT_MOST_ONCE)

    end = decide(standing, Released(has_started=True), NOW, 0)

    assert isinstance(end, Finish)
    assert (end.state, end.attempts) == (ExecutionState.DEAD, 1)
    assert "at_most_once" in (end.reason or "")


@pytest.mark.parametrize(
    ("delivery", "has_started"),
    [
        (Delivery.AT_LEAST_ONCE, False),
        (Delivery.AT_LEAST_ONCE, True),
        (Delivery.AT_MOST_ONCE, False),
    ],
)
def test_a_released_execution_may_run_elsewhere_at_once(delivery: Delivery, has_started: bool) -> None:
    standing = AttemptFacts(attempts=3, lost=1, retry=RetryPolicy(), delivery=delivery)

    assert decide(standing, Released(has_started=has_started), NOW, 0) == Requeue(attempts=2, lost=1)


@pytest.mark.parametrize(("attempts", "is_retry"), [(1, False), (2, True)])
def test_a_snooze_shows_as_retrying_only_after_a_try_that_counted(attempts: int, is_retry: bool) -> None:
    transition = decide(
        AttemptFacts(attempts=attempts, lost=0, retry=RetryPolicy()), Snoozed(timedelta(minutes=5)), NOW, 0
    )

    assert transition == Postpone(NOW + timedelta(minutes=5), attempts - 1, 0, is_retry=is_retry)


# what people said meanwhile

again = (
    failures.filter(lambda outcome: outcome.is_retryable)
    | st.just(TimeoutOutcome(ERROR))
    | st.just(Lost(ERROR))
    | uncounted
)
GENEROUS = RetryPolicy(max_retries=9, max_lost=9)


@given(again | st.just(Released(has_started=True)))
@settings(deadline=None)
def test_a_stopped_execution_is_not_retried(outcome: Outcome) -> None:
    """The worker may have died before it received the stop."""
    end = decide(AttemptFacts(attempts=2, lost=1, retry=GENEROUS, stop="not needed"), outcome, NOW, 0)

    assert isinstance(end, Finish)
    assert (end.state, end.reason) == (ExecutionState.CANCELLED, "not needed")
    assert end.error == getattr(outcome, "error", None)


@given(again | st.just(Released(has_started=True)))
@settings(deadline=None)
def test_an_execution_of_a_deleted_job_is_not_retried(outcome: Outcome) -> None:
    end = decide(AttemptFacts(attempts=2, lost=1, retry=GENEROUS, is_deleted=True), outcome, NOW, 0)

    assert isinstance(end, Finish)
    assert (end.state, end.reason) == (ExecutionState.CANCELLED, "the job was deleted")


@pytest.mark.parametrize("called_off", [{"stop": "not needed"}, {"is_deleted": True}, {"is_paused": True}])
@pytest.mark.parametrize("outcome", [Succeeded("1"), Failed(ERROR, is_retryable=False), NotStarted("paused")])
def test_a_final_outcome_wins_over_requests(outcome: Outcome, called_off: dict[str, Any]) -> None:
    plain = AttemptFacts(attempts=1, lost=0, retry=GENEROUS)

    assert decide(replace(plain, **called_off), outcome, NOW, 0) == decide(plain, outcome, NOW, 0)


@pytest.mark.parametrize(
    ("outcome", "attempts", "lost", "is_retry"),
    [(Lost(ERROR), 1, 1, True), (Released(has_started=True), 0, 0, False), (Released(), 0, 0, False)],
)
def test_an_execution_of_a_paused_job_waits_in_due(outcome: Outcome, attempts: int, lost: int, is_retry: bool) -> None:
    standing = AttemptFacts(attempts=1, lost=0, retry=GENEROUS, is_paused=True)

    transition = decide(standing, outcome, NOW, 0)

    assert transition == Postpone(NOW, attempts, lost, is_retry=is_retry, error=getattr(outcome, "error", None))


def test_a_held_execution_that_was_stopped_and_released_did_not_start() -> None:
    standing = AttemptFacts(attempts=1, lost=0, retry=GENEROUS, stop="skip:paused", is_paused=True)

    end = decide(standing, Released(), NOW, 0)

    assert end == Finish(ExecutionState.SKIPPED, 0, 0, reason="paused")


@pytest.mark.parametrize(("attempts", "lost"), [(2, 0), (2, 1), (5, 1)])
@pytest.mark.parametrize("outcome", [NotStarted("paused"), Released()])
def test_a_retry_that_was_held_when_its_job_was_paused_waits(outcome: Outcome, attempts: int, lost: int) -> None:
    standing = AttemptFacts(attempts=attempts, lost=lost, retry=GENEROUS, stop="skip:paused", is_paused=True)

    assert decide(standing, outcome, NOW, 0) == Postpone(NOW, attempts - 1, lost, is_retry=True)


def test_exactly_four_states_are_final() -> None:
    assert {state.value for state in ExecutionState if state.is_final} == {"succeeded", "cancelled", "dead", "skipped"}
