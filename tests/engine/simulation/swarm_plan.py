"""What a seed draws for the swarm: who is there, which work is made, who has a turn when, and what goes wrong.

A plan is a list of deeds, one after the other; nothing else happens until everything is healed. What is left to chance within a deed
hangs on the seed and on the deed's own number, so a plan from which something was taken still means the same in all that is left of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from timeball.domain.backfill import BackfillSelection
from timeball.domain.freeze import Afterwards
from timeball.domain.policies import Misfire, Overlap

SCHEDULER, WORKER = "scheduler", "worker"
# The loops of a node; who is named twice has more turns.
LOOPS = {
    SCHEDULER: ("shards", "scheduler", "scheduler", "reaper"),
    WORKER: ("recorder", "recorder", "claimer", "claimer", "sweeper", "reconciler", "cancellation poller"),
}
# Work: schedules by their overlap, which end after so many occurrences, and one-offs.
SCHEDULES = tuple(overlap.value for overlap in Overlap)
MISFIRES = tuple(misfire.value for misfire in Misfire)
AFTERWARDS = tuple(afterwards.value for afterwards in Afterwards)
PLAIN, NARROW, POISON = "plain", "narrow", "poison"
# Groups with chains and groups in them; and a job that comes after a schedule.
GROUP, AFTER = "group", "after"

EVERYTHING, QUEUE = "everything", "queue"
# The share of seeds with freezes and pauses. They are drawn apart, so that the other seeds mean what they always meant.
_HELD_SHARE = 0.3
# The share of seeds with backfills, drawn apart likewise.
_BACKFILLED_SHARE = 0.3
# The share of seeds with groups and with jobs that come after others, drawn apart likewise.
_FOLLOWED_SHARE = 0.3
SELECTIONS = tuple(selection.value for selection in BackfillSelection)

CUT, KILL = "cut", "kill"
# Of so many points of one turn each may be struck; none of them passes more.
POINTS = 40
_MORE_WORK = 12
_OTHER_DAYS = 30
# The day on which the swarm begins, the one after it, and the one before: the first leaves out all that is due at once.
CLOSED = ("", "", "2026-03-02", "2026-03-03", "2026-03-01")

# What strikes, and where: at which point of the turn, or, once it has struck, the first one of that name.
Fault = tuple[str, int | str]


class What(StrEnum):
    """What happens."""

    TURN = "turn"
    WAIT = "wait"
    WORK = "work"
    KILL = "kill"
    FREEZE = "freeze"
    HOLD = "hold"
    LET_GO = "let go"
    PAUSE = "pause"
    SAVE = "save"
    FALL_BACK = "fall back"
    CALENDAR = "calendar"
    BACKFILL = "backfill"
    FEED = "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that happens. Which of the fields mean something depends on *what* it is."""

    what: What
    number: int = 0
    node: str = ""
    loop: str = ""
    # Seconds that pass before a turn, or that a node is frozen for.
    seconds: float = 0.0
    # How many of the runs that end in a turn fail.
    fails: float = 0.0
    faults: tuple[Fault, ...] = ()
    work: str = ""
    # What a schedule does about occurrences that come too late.
    misfire: str = Misfire.ALL.value
    # How many seconds each execution has to begin; 0 if it may begin at any time.
    within: int = 0
    # Which occurrences run after a freeze that holds *work*: everything, the usual queue, or a schedule.
    afterwards: str = ""
    # The day on which a schedule does not run; none if it is empty. The days of a calendar are changed to it.
    closed: str = ""
    # The schedule that a job comes after.
    cause: str = ""
    # Which occurrences of *work* a backfill runs.
    only: str = ""
    # How many are made, how many of a backfill may be unfinished, or how often a node that wakes goes on before it looks at any clock.
    amount: int = 0

    def __str__(self) -> str:
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without what means nothing."""
        unset = Deed(what=self.what)
        return {name: value for name, value in asdict(self).items() if name == "what" or value != getattr(unset, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that tells one run from another."""

    seed: int
    nodes: tuple[str, ...]
    # How many of a worker's runs end in one of its turns.
    ends: float
    deeds: tuple[Deed, ...]

    def __str__(self) -> str:
        kinds = Counter(node.partition("-")[0] for node in self.nodes)
        what = Counter(str(deed.what) for deed in self.deeds)
        return f"seed {self.seed}: {dict(kinds)}, {dict(what)}, {self.faults} faults"

    @property
    def faults(self) -> int:
        """How many faults strike statements."""
        return sum(len(deed.faults) for deed in self.deeds)

    def chance(self, *of: object) -> Random:
        """The chances of one deed."""
        return Random(" ".join(map(str, (self.seed, *of))))

    def healing(self) -> Iterator[Deed]:
        """Turns without end, in which nothing goes wrong."""
        rng = self.chance("healing")
        for number, turn in enumerate(_turns(rng, self.nodes, (0, 0.1, 0.5, 1)), start=1):
            yield replace(turn, number=-number)

    def write(self, file: Path, broke: str) -> None:
        """Keep it, a line for each deed, with what it broke."""
        deeds = ",\n".join(f"    {deed}" for deed in self.deeds)
        head = json.dumps(
            {"broke": broke, "seed": self.seed, "ends": self.ends, "nodes": self.nodes}, indent=2
        ).removesuffix("\n}")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{head},\n  "deeds": [\n{deeds}\n  ]\n}}\n')


def read(file: Path) -> Plan:
    """A plan that was kept."""
    kept = json.loads(file.read_text())
    deeds = tuple(_deed(**deed) for deed in kept["deeds"])
    return Plan(seed=kept["seed"], ends=kept["ends"], nodes=tuple(kept["nodes"]), deeds=deeds)


def _deed(what: str, faults: Any = (), **rest: Any) -> Deed:
    return Deed(what=What(what), faults=tuple((kind, point) for kind, point in faults), **rest)


def draw(seed: int) -> Plan:
    """Short plans and long ones, few nodes and many, calm and troubled."""
    rng = Random(seed)
    nodes = (
        *(f"{SCHEDULER}-{number}" for number in range(1, rng.randint(1, 3) + 1)),
        *(f"{WORKER}-{number}" for number in range(1, rng.randint(1, 3) + 1)),
    )
    rates = {CUT: rng.choice((0, 0.02, 0.1)), KILL: rng.choice((0, 0.002, 0.01))}
    length = rng.choice((60, 100, 150, 250, 500))
    trouble_rate = rng.choice((2, 10)) / length
    saves_at = length // 2 if rng.random() < 0.4 else None
    falls_back_at = saves_at + rng.randint(5, 29) if saves_at is not None else None
    # Chances of its own, so that seeds draw the same as before in everything else.
    expiry, calendars = Random(f"expiry {seed}"), Random(f"calendars {seed}")
    deeds = [
        replace(
            deed,
            within=expiry.choice((0, 0, 2, 8)),
            closed=calendars.choice(CLOSED) if deed.work in SCHEDULES else "",
        )
        for deed in _first_work(rng)
    ]
    with_calendar = [deed.work for deed in deeds if deed.closed]
    turns = _turns(rng, nodes, (0, 0.01, 0.1, 0.5))
    for number, turn in enumerate(islice(turns, length)):
        if number == saves_at:
            # What is claimed between here and there will be claimed again, under the same number.
            deeds += [Deed(what=What.WORK, work=PLAIN, amount=5), Deed(what=What.SAVE)]
        if number == falls_back_at:
            deeds.append(Deed(what=What.FALL_BACK))
        if rng.random() < trouble_rate:
            deeds.append(_trouble(rng, turn.node))
        faults = tuple(_faults(rng, rates))
        deeds.append(replace(turn, faults=faults, fails=rng.choice((0, 0.2, 0.4))))
        if with_calendar and number % _OTHER_DAYS == _OTHER_DAYS // 2:
            work, closed = calendars.choice(with_calendar), calendars.choice([day for day in CLOSED if day])
            deeds.append(Deed(what=What.CALENDAR, work=work, closed=closed))
        if number % _MORE_WORK == 0:
            deeds.append(
                Deed(what=What.WORK, work=PLAIN, amount=rng.choice((1, 5)), within=expiry.choice((0, 0, 1, 4)))
            )
    deeds = _with_follow_ups(seed, _with_backfills(seed, _with_freezes(seed, deeds)))
    return Plan(seed=seed, nodes=nodes, ends=rng.choice((0.1, 0.5)), deeds=tuple(deeds))


def _with_backfills(seed: int, deeds: list[Deed]) -> list[Deed]:
    """Among the deeds of some seeds: backfills, of which several may fill in one schedule, and the steps that feed them."""
    rng = Random(f"{seed} backfills")
    if rng.random() >= _BACKFILLED_SHARE:
        return deeds
    # Late enough for something to be missing.
    first = len(deeds) // 2
    for number in range(rng.randint(1, 3)):
        place = rng.randint(first, len(deeds))
        backfill = Deed(
            what=What.BACKFILL,
            number=number,
            work=rng.choice(SCHEDULES),
            only=rng.choice(SELECTIONS),
            amount=rng.choice((1, 3)),
        )
        deeds = [*deeds[:place], backfill, *deeds[place:]]
    for number in range(rng.randint(5, 20)):
        place = rng.randint(first, len(deeds))
        struck = ((rng.choice((CUT, KILL)), rng.randint(0, 12)),) if rng.random() < 0.4 else ()
        deeds = [*deeds[:place], Deed(what=What.FEED, number=number, faults=struck), *deeds[place:]]
    return deeds


def _with_follow_ups(seed: int, deeds: list[Deed]) -> list[Deed]:
    """Among the deeds of some seeds: groups, and jobs that come after schedules."""
    rng = Random(f"{seed} follow-ups")
    if rng.random() >= _FOLLOWED_SHARE:
        return deeds
    # Not before the first schedules are there.
    first = len(SCHEDULES)
    for number in range(rng.randint(1, 4)):
        place = rng.randint(first, len(deeds))
        group = Deed(what=What.WORK, number=number, work=GROUP, amount=rng.choice((1, 3, 10)))
        deeds = [*deeds[:place], group, *deeds[place:]]
    for cause in rng.sample(SCHEDULES, rng.randint(0, 2)):
        place = rng.randint(first, first + len(deeds) // 4)
        deeds = [*deeds[:place], Deed(what=What.WORK, work=AFTER, cause=cause), *deeds[place:]]
    return deeds


def _with_freezes(seed: int, deeds: list[Deed]) -> list[Deed]:
    """Among the deeds of some seeds: freezes, of which some are ended early, and pauses of the usual queue with an end."""
    rng = Random(f"{seed} holds")
    if rng.random() >= _HELD_SHARE:
        return deeds
    for _ in range(rng.randint(1, 4)):
        # Not before the first schedules are there.
        place = rng.randint(len(SCHEDULES) + 2, len(deeds))
        deeds = [*deeds[:place], _hold(rng), *deeds[place:]]
        if rng.random() < 0.4:
            place = rng.randint(place, len(deeds))
            deeds = [*deeds[:place], Deed(what=What.LET_GO), *deeds[place:]]
    return deeds


def _hold(rng: Random) -> Deed:
    if rng.random() < 0.25:
        return Deed(what=What.PAUSE, seconds=rng.choice((1, 5, 20)))
    return Deed(
        what=What.HOLD,
        work=rng.choice((EVERYTHING, QUEUE, *SCHEDULES)),
        seconds=rng.choice((2, 10, 30)),
        afterwards=rng.choice(AFTERWARDS),
    )


def _first_work(rng: Random) -> Iterator[Deed]:
    for overlap in SCHEDULES:
        yield Deed(what=What.WORK, work=overlap, misfire=rng.choice(MISFIRES), amount=rng.choice((1, 2, 4)))
    yield Deed(what=What.WORK, work=PLAIN, amount=rng.choice((5, 30)))
    yield Deed(what=What.WORK, work=NARROW, amount=rng.choice((3, 10)))
    if rng.random() < 0.3:
        yield Deed(what=What.WORK, work=POISON, amount=1)


def _turns(rng: Random, nodes: tuple[str, ...], waits: tuple[float, ...]) -> Iterator[Deed]:
    """Turns without end: in every round each node has one, in any order, and each of its loops before one of them has another."""
    loops = {node: _rounds(rng, LOOPS[node.partition("-")[0]]) for node in nodes}
    for number, node in enumerate(_rounds(rng, nodes)):
        yield Deed(what=What.TURN, number=number, node=node, loop=next(loops[node]), seconds=rng.choice(waits))


def _rounds(rng: Random, of: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from rng.sample(of, len(of))


def _trouble(rng: Random, node: str) -> Deed:
    if rng.random() < 0.5:
        return Deed(what=What.KILL, node=node)
    return Deed(what=What.FREEZE, node=node, seconds=rng.choice((2, 15, 40)), amount=rng.choice((1, 2, 4)))


def _faults(rng: Random, rates: dict[str, float]) -> Iterator[Fault]:
    for point in range(POINTS):
        chance = rng.random()
        if chance < rates[KILL]:
            yield KILL, point
            return
        if chance < rates[KILL] + rates[CUT]:
            yield CUT, point
