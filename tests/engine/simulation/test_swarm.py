"""Whatever a seed does to schedulers and workers: once it is over, everything ends, once, and the promises hold."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.engine.simulation.kept_seeds import KEPT, is_first, keep
from tests.engine.simulation.swarm import TO_BE_MET
from tests.engine.simulation.swarm_plan import draw, read
from tests.engine.simulation.swarm_trial import MakeDatabase, Trial, live_through
from tests.support.servers import IN_CI

ONLY = os.environ.get("SWARM_ONLY", "")
# The first 60 meet all there is to be met. `make soak` runs many more, and others every night.
FIRST, NUMBER = int(os.environ.get("SWARM_FIRST", "0")), int(os.environ.get("SWARM_SEEDS", "120" if IN_CI else "60"))
# Seeds that alone notice a mutant (tools/mutants.py).
KNOWN_TO_NOTICE = (169,)


def cases() -> list[int | Path]:
    """Seeds, those that have failed first, and the plans that were kept of them; or the only one that is asked for."""
    if ONLY:
        return [int(ONLY) if ONLY.isdecimal() else Path(ONLY)]
    plans = sorted(KEPT.glob("*.json"))
    return [
        *plans,
        *dict.fromkeys([*(read(plan).seed for plan in plans), *KNOWN_TO_NOTICE, *range(FIRST, FIRST + NUMBER)]),
    ]


CASES = cases()


@pytest.fixture(scope="session")
def met(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each seed writes down what it has met, for all processes of this test run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "swarm"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem if isinstance(case, Path) else str(case))
async def test_once_the_trouble_is_over_everything_has_ended_once(
    case: int | Path, make_database: MakeDatabase, met: Path
) -> None:
    """Fault 2. Every seed runs twice: one that does not repeat itself could not be looked into."""
    plan = read(case) if isinstance(case, Path) else draw(case)
    print(plan)
    trial = await live_through(plan, make_database, tell=print if ONLY else None)

    if trial.broken:
        told = f"{plan}\n\n{trial}"
        if not ONLY and is_first(met, trial.broke):
            told += "\n\n" + await keep(plan, trial, make_database)
        pytest.fail(told, pytrace=False)
    again = await live_through(plan, make_database, reverses_rows=True)
    assert trial.trace == again.trace, f"{plan} does not repeat itself"
    note_what_was_met(met, str(case), trial)


def note_what_was_met(met: Path, case: str, trial: Trial) -> None:
    """A batch that misses something proves less than it seems to; the last of its seeds says so, in whichever process it runs."""
    name = re.sub("[^A-Za-z0-9]", "-", case)
    (met / f"{name}.part").write_text(json.dumps(trial.seen))
    (met / f"{name}.part").rename(met / f"{name}.json")
    whole = [json.loads(file.read_text()) for file in met.glob("*.json")]
    if len(whole) == len(CASES) and not ONLY:
        assert set().union(*whole) >= TO_BE_MET
