"""A thousand schedules that fire every second: does each run happen, happen once, and when?

Which second a run belongs to is what its handler was told. Where a peer tells nothing, only the number of runs is compared, and
lateness is unknown. Who has fallen behind is counted by what it began within the seconds of the watch, whichever second that was
due in: a queue that is served in order still does what was due earlier, and would seem to do nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import median
from typing import NamedTuple

from bench.notebook import MILLISECONDS, NUMBER, Unit
from bench.peers.contest import Contest, Note
from bench.peers.marks import Mark, wall_offset
from bench.peers.questions.latency import percentile
from bench.peers.stage import Stage

TITLE = "schedules that are due every second"
_SETTLE = 2.0
_AFTERWARDS = 3.0
_START_SECONDS = 60.0
# Who has begun and still does not get round all schedules after so long, does not keep up, and is watched as it is.
_ROUND_SECONDS = 4.0
TWICE = Unit("", 0, is_more_better=False)


def ask(contest: Contest) -> None:
    """One node, then two: a worker each, and a scheduler each where that is another process."""
    watch = partial(_watch, schedules=contest.sized(50, 1_000, 1_000), seconds=contest.sized(5, 8, 20))
    contest.interleave({"one scheduler": partial(watch, nodes=1), "two schedulers": partial(watch, nodes=2)}, rounds=1)


def _watch(stage: Stage, nodes: int, schedules: int, seconds: int) -> Iterator[Note]:
    stage.start(nodes, schedules)
    stage.start_scheduler("recurring", nodes, schedules)
    stage.ask("schedule", count=schedules)
    if not stage.marks.wait_for(1, _START_SECONDS):
        raise RuntimeError(f"the schedules do not fire: {stage.log('worker')[-300:]}")
    stage.marks.wait_until(schedules, time.monotonic() + _ROUND_SECONDS)
    begin = ceil(time.time() + _SETTLE)
    time.sleep(begin + seconds + _AFTERWARDS - time.time())
    tally = count_up(stage.marks.of(0, schedules), begin, seconds, wall_offset())
    due, by = schedules * seconds, "one" if nodes == 1 else "two"
    # Who makes up for what it owes may do more than is due.
    yield f"of {due:,} runs happened, {by}", min(tally.happened, due), NUMBER
    yield f"twice, {by}", tally.twice, TWICE
    if len(tally.late) > 1:
        yield f"p99 late, {by}", percentile(tally.late, 99), MILLISECONDS


@dataclass(frozen=True, slots=True)
class Tally:
    """How many runs happened, how many of these more than once, and how late (in milliseconds) where that is known."""

    happened: int
    twice: int
    late: list[float]


class Run(NamedTuple):
    """One run of a schedule: the instant it was due at, and when it began, both in seconds since 1970."""

    number: int
    instant: float
    at: float

    @property
    def late(self) -> float:
        return self.at - self.instant


def count_up(marks: Sequence[Mark], begin: int, seconds: int, offset: float) -> Tally:
    """The runs of some whole seconds on the wall clock, which is *offset* ahead of the clock of the marks."""
    if any(mark.instant is not None for mark in marks):
        return _by_instant(marks, begin, begin + seconds, offset)
    return _by_number(marks, begin, seconds, offset)


def _by_instant(marks: Iterable[Mark], begin: int, end: int, offset: float) -> Tally:
    runs = [Run(mark.number, mark.instant, mark.at + offset) for mark in marks if mark.instant is not None]
    begun = [run for run in runs if begin <= run.at < end]
    is_behind = bool(begun) and median(run.late for run in begun) > _AFTERWARDS
    watched = begun if is_behind else [run for run in runs if begin <= run.instant < end]
    once = len({(run.number, run.instant) for run in watched})
    return Tally(once, len(watched) - once, [run.late * 1000 for run in watched])


def _by_number(marks: Iterable[Mark], begin: int, seconds: int, offset: float) -> Tally:
    runs = Counter(mark.number for mark in marks if begin <= mark.at + offset < begin + seconds)
    # A timer with a beat of its own may have one run more or less in a window of whole seconds: that is no fault.
    happened = sum(seconds if number >= seconds - 1 else number for number in runs.values())
    return Tally(happened, sum(max(number - seconds - 1, 0) for number in runs.values()), [])
