"""A thousand schedules that fire every second: does each run happen, happen once, and when?

Which second a run belongs to is what its handler was told. Where a peer tells nothing but fires at whole seconds, it is the
second the run began in; where its timers beat as they like, only the number of runs is compared, and lateness is unknown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from bench.notebook import MILLISECONDS, NUMBER, Unit
from bench.peers.contest import Contest, Note
from bench.peers.marks import Mark, wall_offset
from bench.peers.questions.latency import percentile
from bench.peers.stage import Stage

TITLE = "schedules that are due every second"
_SETTLE = 2.0
_AFTERWARDS = 3.0
_START_SECONDS = 60.0
TWICE = Unit("", 0, is_more_better=False)


def ask(contest: Contest) -> None:
    """One node, then two: a worker each, and a scheduler each where that is another process."""
    watch = partial(_watch, schedules=contest.sized(50, 1_000, 1_000), seconds=contest.sized(5, 8, 20))
    contest.interleave({"one scheduler": partial(watch, nodes=1), "two schedulers": partial(watch, nodes=2)}, rounds=1)


def _watch(stage: Stage, nodes: int, schedules: int, seconds: int) -> Iterator[Note]:
    stage.start(nodes, schedules)
    stage.start_scheduler("recurring", nodes, schedules)
    stage.ask("schedule", count=schedules)
    if not stage.marks.wait_for(schedules, _START_SECONDS):
        raise RuntimeError(f"the schedules do not fire: {stage.log('worker')[-300:]}")
    begin = ceil(time.time() + _SETTLE)
    time.sleep(begin + seconds + _AFTERWARDS - time.time())
    tally = count_up(stage.marks.of(0, schedules), begin, seconds, wall_offset())
    due, by = schedules * seconds, "one" if nodes == 1 else "two"
    yield f"of {due:,} runs happened, {by}", tally.happened, NUMBER
    yield f"twice, {by}", tally.twice, TWICE
    if len(tally.late) > 1:
        yield f"p99 late, {by}", percentile(tally.late, 99), MILLISECONDS


@dataclass(frozen=True, slots=True)
class Tally:
    """How many runs happened, how many of these more than once, and how late (in milliseconds) where that is known."""

    happened: int
    twice: int
    late: list[float]


def count_up(marks: Sequence[Mark], begin: int, seconds: int, offset: float) -> Tally:
    """The runs of some whole seconds on the wall clock, which is *offset* ahead of the clock of the marks."""
    if any(mark.instant is not None for mark in marks):
        return _by_instant(marks, begin, begin + seconds, offset)
    return _by_number(marks, begin, seconds, offset)


def _by_instant(marks: Iterable[Mark], begin: int, end: int, offset: float) -> Tally:
    due = [(mark, mark.instant) for mark in marks if mark.instant is not None and begin <= mark.instant < end]
    once = {(mark.number, instant) for mark, instant in due}
    return Tally(len(once), len(due) - len(once), [(mark.at + offset - instant) * 1000 for mark, instant in due])


def _by_number(marks: Iterable[Mark], begin: int, seconds: int, offset: float) -> Tally:
    runs = Counter(mark.number for mark in marks if begin <= mark.at + offset < begin + seconds)
    # A timer with a beat of its own may have one run more or less in a window of whole seconds: that is no fault.
    happened = sum(seconds if number >= seconds - 1 else number for number in runs.values())
    return Tally(happened, sum(max(number - seconds - 1, 0) for number in runs.values()), [])
