"""How late do jobs start that were enqueued for an instant, at so many a second?"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.notebook import MILLISECONDS
from bench.peers.contest import Contest, FellShort, Note
from bench.peers.marks import wall_offset
from bench.peers.questions.latency import percentile
from bench.peers.stage import Stage

TITLE = "lateness of one-off jobs, one process"
_RATES = (100, 500)
_SECONDS = 3
# Who has not run everything so long after the last was due, does not keep up.
_AFTERWARDS = 10.0
# How fast a peer takes jobs for later is tried with a few that are due tomorrow.
_PROBES = 100
_FIRST_PROBE = 500_000_000
_TOMORROW = 24 * 3600.0
# The clocks are compared once, with some microseconds between the two readings.
_EARLY_MS = -0.1


def ask(contest: Contest) -> None:
    """Both rates one after the other, on the same processes."""
    contest.interleave({"lateness": _drop}, contest.sized(1, 1, 3))


def _drop(stage: Stage) -> Iterator[Note]:
    if stage.peer.hears_others:
        _start(stage)
        stage.warm_up()
    took = stage.ask("enqueue_at", first=_FIRST_PROBE, count=_PROBES, at=time.time() + _TOMORROW, rate=1_000)
    for index, rate in enumerate(_RATES):
        # Everybody gets time to enqueue them all before the first is due.
        lead = 3 + 2 * rate * _SECONDS * took / _PROBES
        yield from _at_rate(stage, first=index * 100_000, rate=rate, lead=lead)


def _start(stage: Stage) -> None:
    stage.start_scheduler("lateness")
    stage.start()


def _at_rate(stage: Stage, first: int, rate: int, lead: float) -> Iterator[Note]:
    number, before = rate * _SECONDS, stage.marks.count()
    due = time.time() + lead
    took = stage.ask("enqueue_at", first=first, count=number, at=due, rate=rate)
    if took > lead:
        raise FellShort(f"enqueuing {number:,} took {took:.1f} s, longer than the {lead:.1f} s until the first is due")
    if not stage.peer.hears_others:
        running = stage.start()
    left = due + _SECONDS + _AFTERWARDS - time.time()
    stage.marks.wait_until(before + number, time.monotonic() + left)
    if not stage.peer.hears_others:
        stage.kill(running[0])
    offset = wall_offset()
    late = [(mark.at + offset - due - (mark.number - first) / rate) * 1000 for mark in stage.marks.of(first, number)]
    if len(late) < number:
        raise FellShort(f"at {rate}/s {len(late):,} of {number:,} had run {_AFTERWARDS:.0f} s after the last was due")
    yield f"p50 at {rate}/s", percentile(late, 50), MILLISECONDS
    yield f"p99 at {rate}/s", percentile(late, 99), MILLISECONDS
    if min(late) < _EARLY_MS:
        yield f"earliest at {rate}/s", min(late), MILLISECONDS
