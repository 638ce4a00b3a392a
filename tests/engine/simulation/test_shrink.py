"""A plan that breaks a promise is shrunk to what it takes to break it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools.mutants import MUTANTS, ROOT

from tests.engine.simulation import kept_seeds
from tests.engine.simulation.shrink import Shrinker
from tests.engine.simulation.swarm_plan import CUT, KILL, POISON, SCHEDULER, WORKER, Deed, Plan, What, draw, read
from tests.engine.simulation.swarm_trial import MakeDatabase, live_through
from timeball.store.db import database
from timeball.store.db.statements import all_statements, numbered, parse

# One in which everything goes wrong, and a short one with an execution that kills its worker, and does not expire before it is claimed.
WHOLE = next(
    plan
    for plan in map(draw, range(1_000))
    if any(len(deed.faults) > 1 for deed in plan.deeds) and {deed.what for deed in plan.deeds} >= {*What} - {What.WAIT}
)
POISONED = next(
    plan
    for plan in map(draw, range(1_000))
    if len(plan.deeds) < 80 and any(deed.work == POISON and not deed.within for deed in plan.deeds)
)


async def shrunk(plan: Plan, breaks: Callable[[Plan], bool], **bounds: float) -> tuple[Plan, int]:
    async def asked(candidate: Plan) -> bool:
        return breaks(candidate)

    shrinker = Shrinker(asked, **bounds)  # type: ignore[arg-type]
    return await shrinker.shrink(plan), shrinker.runs


def turns_of(plan: Plan, loop: str) -> int:
    return sum(deed.loop == loop for deed in plan.deeds)


def seconds_of(plan: Plan) -> float:
    return sum(deed.seconds for deed in plan.deeds if deed.what in (What.TURN, What.WAIT))


async def test_what_breaks_without_any_trouble_needs_no_deed() -> None:
    smallest, _ = await shrunk(WHOLE, lambda _: True)

    assert smallest.deeds == ()
    assert [node.partition("-")[0] for node in smallest.nodes] == [SCHEDULER, WORKER], "or nothing could end"


async def test_only_the_deeds_that_it_takes_are_left() -> None:
    def breaks(plan: Plan) -> bool:
        made = sum(deed.amount for deed in plan.deeds if deed.work == "queue")
        return made >= 1 and turns_of(plan, "reaper") >= 2 and turns_of(plan, "claimer") >= 1

    smallest, runs = await shrunk(WHOLE, breaks, most_runs=1_000)

    assert sorted((str(deed.what), deed.loop or deed.work) for deed in smallest.deeds) == [
        ("turn", "claimer"),
        ("turn", "reaper"),
        ("turn", "reaper"),
        ("work", "queue"),
    ]
    assert {deed.amount for deed in smallest.deeds if deed.what == What.WORK} == {1}
    assert not any(deed.seconds or deed.fails or deed.faults for deed in smallest.deeds)
    assert len(smallest.nodes) == 2
    assert runs < 300


async def test_of_many_faults_the_one_that_matters_is_left() -> None:
    guilty = next(deed for deed in WHOLE.deeds if len(deed.faults) > 1)
    fault = guilty.faults[-1]

    smallest, _ = await shrunk(
        WHOLE, lambda plan: any(deed.number == guilty.number and fault in deed.faults for deed in plan.deeds)
    )

    assert [deed.faults for deed in smallest.deeds] == [(fault,)]


async def test_where_time_has_to_pass_waiting_is_left_of_what_happened_meanwhile() -> None:
    smallest, _ = await shrunk(WHOLE, lambda plan: seconds_of(plan) >= seconds_of(WHOLE) / 2)

    assert len(smallest.deeds) < 10
    assert {deed.what for deed in smallest.deeds} <= {What.WAIT, What.TURN}


@pytest.mark.parametrize("bounds", [{"most_runs": 7}, {"most_seconds": 0}])
async def test_it_ends_when_its_runs_or_seconds_are_used_up(bounds: dict[str, float]) -> None:
    smallest, runs = await shrunk(WHOLE, lambda plan: turns_of(plan, "reaper") >= 2, **bounds)

    assert runs == bounds.get("most_runs", 0)
    assert turns_of(smallest, "reaper") >= 2


def test_a_plan_is_kept_and_read_again(tmp_path: Path) -> None:
    named = Deed(what=What.TURN, number=5, node="worker-1", loop="claimer", faults=((CUT, "claim.before"), (KILL, 3)))
    plan = replace(WHOLE, deeds=(*WHOLE.deeds, named))

    plan.write(tmp_path / "kept" / "it.json", "S5 Something")

    assert read(tmp_path / "kept" / "it.json") == plan


@pytest.mark.parametrize("seed", range(50))
def test_a_seed_draws_the_same_plan_again(seed: int) -> None:
    plan = draw(seed)

    assert plan == draw(seed)
    assert len({deed.number for deed in plan.deeds if deed.what == What.TURN}) > 50


def take_out(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make mutants` does it, but only for this test."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == guard)
    source = (ROOT / "src" / "timeball" / mutant.file).read_text().replace(mutant.old, mutant.new, 1)
    weakened = {name: statement for name, statement in parse(source).items() if statement != all_statements()[name]}
    assert weakened

    def weakly_numbered(name: str) -> tuple[str, tuple[str, ...]]:
        return (weakened[name].numbered(), weakened[name].parameters) if name in weakened else numbered(name)

    monkeypatch.setattr(database, "numbered", weakly_numbered)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_smallest_plan_that_breaks_a_promise_is_kept_to_be_run_again(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A seeded bug: fences begin again when an attempt is lost. All it takes is one execution that kills its worker."""
    # The runs end it, not the seconds, however long they take here.
    monkeypatch.setattr(kept_seeds, "MOST_SECONDS", math.inf)
    with monkeypatch.context() as weakened:
        take_out("a fence that begins again on release", weakened)
        trial = await live_through(POISONED, make_database)
        told = await kept_seeds.keep(POISONED, trial, make_database, tmp_path, most_runs=40)
        [kept] = tmp_path.iterdir()
        smallest = read(kept)
        again = await live_through(smallest, make_database)

    assert trial.broke == again.broke == "S4 Fences strictly increase"
    assert len(POISONED.deeds) > 60
    assert len(smallest.deeds) <= 3
    assert f"make swarm ONLY={os.path.relpath(kept)}" in told
    assert kept.read_text() in told
    assert not (await live_through(smallest, make_database)).broken, "it was the missing guard"
