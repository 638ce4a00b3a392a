"""A target is worth so many retries: a rate, and a share of its first attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timeball.engine.worker import admission
from timeball.engine.worker.admission import RetryBudget


def taken(budget: RetryBudget, now: float, wanted: int = 1_000, target: str = "t") -> int:
    return sum(budget.take(target, now) for _ in range(wanted))


def test_without_first_attempts_a_target_gets_the_rate() -> None:
    budget = RetryBudget(per_second=10, share=0.2)

    assert [taken(budget, second) for second in range(10)] == [100] + [0] * 9
    assert taken(budget, 10) == 100, "ten seconds later the first hundred are forgotten"


def test_first_attempts_are_worth_a_share() -> None:
    budget = RetryBudget(per_second=10, share=0.2)
    for _ in range(500):
        budget.note_first("t", 0)

    assert taken(budget, 1) == 100 + 100
    assert taken(budget, 10.5) == 0, "the first attempts have left the window, the retries have not"


def test_first_attempts_count_in_the_second_they_were_made_in() -> None:
    budget = RetryBudget(per_second=0, share=0.5)
    for second in (0, 20):
        for _ in range(10):
            budget.note_first("t", second)

        assert taken(budget, second) == 5


def test_a_retry_that_succeeds_costs_nothing() -> None:
    budget = RetryBudget(per_second=1, share=0)

    for _ in range(10_000):
        assert budget.take("t", 3)
        budget.give_back("t", 3)

    assert taken(budget, 3) == 10


def test_no_more_is_given_back_than_was_taken() -> None:
    """What succeeds after ten seconds was taken in a second that is forgotten."""
    budget = RetryBudget(per_second=1, share=0)
    taken(budget, 0)
    for _ in range(10):
        budget.give_back("t", 20)

    assert taken(budget, 21) <= 20


def test_targets_do_not_share_their_budgets() -> None:
    budget = RetryBudget(per_second=1, share=0)

    assert taken(budget, 0, target="a") == 10
    assert taken(budget, 0, target="b") == 10


def test_targets_that_have_fallen_silent_are_forgotten() -> None:
    budget = RetryBudget(per_second=1, share=0)
    for number in range(5_000):
        budget.note_first(f"host-{number}", number / 100)

    assert len(budget._windows) <= admission._MANY_TARGETS + 1
    assert len(budget._latest) <= admission._MANY_TARGETS + 1


@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=300),
    st.integers(0, 5),
    st.floats(0, 1),
)
def test_in_no_ten_seconds_there_are_more_than_allowed(
    steps: list[tuple[float, bool]], per_second: int, share: float
) -> None:
    budget, now = RetryBudget(per_second, share), 0.0
    firsts: list[int] = []
    retries: list[int] = []
    for pause, is_first in steps:
        now += pause
        if is_first:
            budget.note_first("t", now)
            firsts.append(int(now))
        elif budget.take("t", now):
            retries.append(int(now))
            begin = int(now) - 9
            recent = [sum(second >= begin for second in seen) for seen in (retries, firsts)]
            assert recent[0] <= 10 * per_second + share * recent[1]
