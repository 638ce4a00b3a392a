"""The delay before the next attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.policies import RetryPolicy

YEAR_MS = 366 * 24 * 3600 * 1000

policies = st.builds(RetryPolicy, initial_backoff_ms=st.integers(0, YEAR_MS), max_backoff_ms=st.integers(0, YEAR_MS))
chances = st.floats(0, 1, exclude_max=True)
numbers = st.integers(1, 2**31)


@given(policies, numbers, chances)
@settings(deadline=None)
def test_a_wait_lies_between_half_the_first_back_off_and_the_ceiling(
    policy: RetryPolicy, failures: int, chance: float
) -> None:
    wait = policy.delay(failures, chance)

    least = min(policy.initial_backoff_ms, policy.max_backoff_ms) / 2
    assert timedelta(milliseconds=least) <= wait <= policy.ceiling(failures)
    assert wait <= timedelta(milliseconds=policy.max_backoff_ms)


@given(policies, numbers, numbers)
@settings(deadline=None)
def test_the_ceiling_never_falls_as_failures_add_up(policy: RetryPolicy, one: int, other: int) -> None:
    fewer, more = sorted((one, other))

    assert policy.ceiling(fewer) <= policy.ceiling(more) <= timedelta(milliseconds=policy.max_backoff_ms)


@given(policies, numbers, chances, chances)
@settings(deadline=None)
def test_randomness_spreads_the_delays(policy: RetryPolicy, failures: int, one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert policy.delay(failures, low) <= policy.delay(failures, high)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1), (2, 2), (3, 4), (7, 64), (12, 2048), (13, 3600), (99, 3600)])
def test_the_ceiling_doubles_up_to_the_longest(failures: int, seconds: int) -> None:
    assert RetryPolicy().ceiling(failures) == timedelta(seconds=seconds)


def test_two_that_failed_together_do_not_return_together() -> None:
    policy = RetryPolicy()

    waits = {policy.delay(3, chance / 100) for chance in range(100)}

    assert len(waits) == 100


@pytest.mark.parametrize("chance", [0, 0.5, 0.99])
def test_a_list_of_pauses_is_followed_to_the_letter_and_its_last_one_repeats(chance: float) -> None:
    policy = RetryPolicy(backoff_ms=(5_000, 30_000, 300_000), max_backoff_ms=1)

    pauses = [policy.delay(failures, chance).total_seconds() for failures in (1, 2, 3, 4, 99)]

    assert pauses == [5, 30, 300, 300, 300]


def test_no_back_off_means_at_once() -> None:
    assert RetryPolicy(initial_backoff_ms=0).delay(5, 0.99) == timedelta(0)
