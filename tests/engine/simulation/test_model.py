"""With all guards no order of steps breaks a promise; without one of them some order does, unless another stands in for it on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.simulation.model import CLAIM_GUARDS, FIRING_GUARDS, Model, claims, explore, firing

pytestmark = pytest.mark.slow

Make = Callable[[frozenset[str]], Model[Any]]

# Where two are redundant on purpose: without the first nothing breaks, and without both something does.
REDUNDANT = [
    (claims, "fence", "claim id"),
    (firing, "epoch", "row"),
    (firing, "one next", "edit takes the row"),
    (firing, "edit takes the row", "one next"),
]


@pytest.mark.parametrize(("make", "guards"), [(claims, CLAIM_GUARDS), (firing, FIRING_GUARDS)])
def test_with_all_guards_no_order_of_steps_breaks_a_promise(make: Make, guards: frozenset[str]) -> None:
    assert explore(make(guards)) is None


NEEDED = [
    (claims, CLAIM_GUARDS, "claim id", "S5: an outcome was accepted while the row named another claim"),
    (claims, CLAIM_GUARDS, "fence grows", "S4: fences do not increase"),
    (claims, CLAIM_GUARDS, "from ready", "S4: taken away from a living worker"),
    (claims, CLAIM_GUARDS, "only the dead are reaped", "S4: taken away from a living worker"),
    (firing, FIRING_GUARDS, "row", "S1: an occurrence is recorded twice"),
    (firing, FIRING_GUARDS, "version", "S2: an instant that its version does not name"),
]


@pytest.mark.parametrize(("make", "guards", "guard", "broken"), NEEDED)
def test_without_a_guard_there_is_a_way_to_break_its_promise(
    make: Make, guards: frozenset[str], guard: str, broken: str
) -> None:
    way = explore(make(guards - {guard}))

    assert way is not None
    assert way[-1] == broken


def test_the_fence_alone_is_not_enough_after_a_failover_that_loses_writes() -> None:
    way = explore(claims(CLAIM_GUARDS - {"claim id"}))

    assert way is not None
    assert "failed over" in way, "a number was given twice"


@pytest.mark.parametrize(("make", "first", "second"), REDUNDANT)
def test_of_two_that_are_redundant_on_purpose_either_may_go(make: Make, first: str, second: str) -> None:
    guards = CLAIM_GUARDS if make is claims else FIRING_GUARDS

    assert explore(make(guards - {first})) is None
    assert explore(make(guards - {first, second})) is not None


def test_every_guard_is_needed_or_redundant_on_purpose() -> None:
    judged = {(make, guard) for make, _, guard, _ in NEEDED} | {(make, guard) for make, guard, _ in REDUNDANT}

    assert judged == {(claims, guard) for guard in CLAIM_GUARDS} | {(firing, guard) for guard in FIRING_GUARDS}
