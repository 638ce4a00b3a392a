"""A plan that breaks a promise becomes the smallest one found that still breaks it, by leaving things out (delta debugging).

Hypothesis shrinks what it has drawn itself, from a few thousand choices at most; a plan has more, hangs on a seed that is kept, and one run
costs a second. So we do it ourselves, largest pieces first: whole kinds of trouble and work, nodes, stretches of deeds, single faults; then
smaller amounts. Where time has to pass, a stretch of deeds becomes one that only waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from time import monotonic

from tests.engine.simulation.swarm_plan import (
    CUT,
    KILL,
    NARROW,
    PLAIN,
    POISON,
    SCHEDULER,
    SCHEDULES,
    WORKER,
    Deed,
    Plan,
    What,
)

Breaks = Callable[[Plan], Awaitable[bool]]
Smaller = Callable[[Plan], Plan]


class Shrinker:
    """Tries smaller plans until none of them *breaks* what the first one did, or it has used up its runs or seconds."""

    def __init__(self, breaks: Breaks, most_runs: int = 400, most_seconds: float = 150) -> None:
        self._breaks = breaks
        self._most_runs = most_runs
        self._ends_at = monotonic() + most_seconds
        self._tried: set[Plan] = set()
        self.runs = 0

    async def shrink(self, plan: Plan) -> Plan:
        """The smallest plan that was found; the given one, if nothing can be left out."""
        before = None
        while plan != before and not self._is_spent:
            before = plan
            for smaller in _whole_kinds(plan):
                plan = await self._try(plan, smaller)
            plan = await self._without_stretches(plan)
            for smaller in _single_things(plan):
                plan = await self._try(plan, smaller)
        return plan

    @property
    def _is_spent(self) -> bool:
        return self.runs >= self._most_runs or monotonic() >= self._ends_at

    async def _try(self, plan: Plan, smaller: Smaller) -> Plan:
        """The smaller plan if it breaks the same, or the plan as it is."""
        candidate = smaller(plan)
        if candidate == plan or candidate in self._tried or self._is_spent:
            return plan
        self._tried.add(candidate)
        self.runs += 1
        return candidate if await self._breaks(candidate) else plan

    async def _without_stretches(self, plan: Plan) -> Plan:
        """Stretches of deeds, of half the plan first and of one deed last, from the end to the beginning."""
        size = len(plan.deeds)
        while size > 0 and not self._is_spent:
            for start in range((len(plan.deeds) - 1) // size * size, -1, -size):
                stretch = slice(start, start + size)
                left_out = await self._try(plan, lambda plan, stretch=stretch: _replaced(plan, stretch, []))
                if left_out is plan:
                    left_out = await self._try(plan, lambda plan, stretch=stretch: _waited(plan, stretch))
                plan = left_out
            size //= 2
        return plan


def _whole_kinds(plan: Plan) -> Iterator[Smaller]:
    yield lambda plan: _each(plan, lambda deed: replace(deed, faults=()))
    for kind in (CUT, KILL):
        yield lambda plan, kind=kind: _each(plan, lambda deed: _without_faults(deed, kind))
    yield lambda plan: _each(plan, lambda deed: replace(deed, fails=0.0))
    for troubles in (
        (What.KILL, What.FREEZE),
        (What.KILL,),
        (What.FREEZE,),
        (What.SAVE, What.FALL_BACK),
        (What.HOLD, What.LET_GO, What.PAUSE),
    ):
        yield lambda plan, troubles=troubles: _kept(plan, lambda deed: deed.what not in troubles)
    for work in (*SCHEDULES, NARROW, POISON, PLAIN):
        yield lambda plan, work=work: _kept(plan, lambda deed: deed.work != work)
    for node in reversed(plan.nodes):
        yield lambda plan, node=node: _without_node(plan, node)
    yield lambda plan: _each(plan, lambda deed: replace(deed, amount=min(deed.amount, 1)))


def _single_things(plan: Plan) -> Iterator[Smaller]:
    for index, deed in enumerate(plan.deeds):
        for fault in deed.faults:
            rest = tuple(other for other in deed.faults if other != fault)
            yield lambda plan, index=index, rest=rest: _at(plan, index, faults=rest)
        if deed.fails:
            yield lambda plan, index=index: _at(plan, index, fails=0.0)
        for amount in _fewer(deed.amount):
            yield lambda plan, index=index, amount=amount: _at(
                plan, index, amount=min(amount, plan.deeds[index].amount)
            )
        if deed.what == What.TURN and deed.seconds:
            yield lambda plan, index=index: _at(plan, index, seconds=0.0)


def _fewer(amount: int) -> Iterable[int]:
    """Half of it, and so on: 8, 4, 2, 1 for 16."""
    while amount > 1:
        amount //= 2
        yield amount


def _each(plan: Plan, change: Callable[[Deed], Deed]) -> Plan:
    return replace(plan, deeds=tuple(map(change, plan.deeds)))


def _kept(plan: Plan, is_kept: Callable[[Deed], bool]) -> Plan:
    return replace(plan, deeds=tuple(filter(is_kept, plan.deeds)))


def _at(plan: Plan, index: int, **changes: object) -> Plan:
    return _replaced(plan, slice(index, index + 1), [replace(plan.deeds[index], **changes)])  # type: ignore[arg-type]


def _replaced(plan: Plan, stretch: slice, deeds: list[Deed]) -> Plan:
    return replace(plan, deeds=(*plan.deeds[: stretch.start], *deeds, *plan.deeds[stretch.stop :]))


def _waited(plan: Plan, stretch: slice) -> Plan:
    """Whatever happened in it, the time passes all the same."""
    seconds = sum(deed.seconds for deed in plan.deeds[stretch] if deed.what in (What.TURN, What.WAIT))
    return _replaced(plan, stretch, [Deed(what=What.WAIT, seconds=round(seconds, 3))]) if seconds else plan


def _without_faults(deed: Deed, kind: str) -> Deed:
    return replace(deed, faults=tuple(fault for fault in deed.faults if fault[0] != kind))


def _without_node(plan: Plan, node: str) -> Plan:
    """No node is left out that is needed to finish."""
    rest = tuple(other for other in plan.nodes if other != node)
    if not all(any(other.startswith(kind) for other in rest) for kind in (SCHEDULER, WORKER)):
        return plan
    return replace(_kept(plan, lambda deed: deed.node != node), nodes=rest)
