"""Seeds that have failed are kept for ever, each as the smallest plan that breaks the same promise; every run includes them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from tests.engine.simulation.shrink import Shrinker
from tests.engine.simulation.swarm_plan import Plan
from tests.engine.simulation.swarm_trial import MakeDatabase, Trial, live_through

KEPT = Path(__file__).parent / "kept"
MOST_RUNS, MOST_SECONDS = 400, float(os.environ.get("SWARM_SHRINKING_SECONDS", "150"))


def is_first(met: Path, broke: str) -> bool:
    """Whether it is new in this test run: what hundreds of seeds break is shrunk once."""
    try:
        (met / blake2b(broke.encode(), digest_size=8).hexdigest()).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def keep(
    plan: Plan, trial: Trial, make_database: MakeDatabase, folder: Path = KEPT, most_runs: int = MOST_RUNS
) -> str:
    """Shrink a plan, write down what is left of it, and say how to run that again."""
    smallest = await _shrunk(plan, trial, make_database, most_runs)
    file = folder / f"seed-{plan.seed}-{re.sub('[^a-z0-9]+', '-', trial.broke.lower())}.json"
    smallest.write(file, trial.broke)
    return (
        f"shrunk to {smallest}\n\n{file.read_text()}\nkept; run it again with: make swarm ONLY={os.path.relpath(file)}"
    )


async def _shrunk(plan: Plan, trial: Trial, make_database: MakeDatabase, most_runs: int) -> Plan:
    async def breaks(candidate: Plan) -> bool:
        return trial.broke in (await live_through(candidate, make_database)).broken

    # Only what has struck, and by its name: that is still true of a turn in which less happens.
    struck = replace(plan, deeds=(*trial.done, *plan.deeds[len(trial.done) :]))
    shrinker = Shrinker(breaks, most_runs, MOST_SECONDS)
    return await shrinker.shrink(struck if await breaks(struck) else plan)
