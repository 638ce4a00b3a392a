"""Why an execution may or may not run: each gate decides and explains itself.

The gates stand in the order in which an execution meets them. Each answers in one sentence with names and numbers, and says what to do
next where somebody can do something; its links are the ids of what stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from timeball.domain import queue_gates, schedule_gates
from timeball.domain.execution import ExecutionState
from timeball.domain.facts import Facts
from timeball.domain.findings import Finding, Verdict, not_asked, passed, stopped
from timeball.domain.misfire import SkipReason


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate and what it found."""

    name: str
    title: str
    finding: Finding

    @property
    def is_stopped(self) -> bool:
        return self.finding.verdict is Verdict.STOPPED


def examine(facts: Facts) -> list[Gate]:
    """Ask every gate, in order."""
    execution = facts.execution
    if execution is not None and execution.state is ExecutionState.SKIPPED:
        return _skipped(execution.reason)
    if execution is not None and (execution.started_at is not None or execution.state.is_final):
        why = "it has started" if execution.started_at is not None else f"it is {execution.state}"
        return [Gate(name, title, not_asked(why)) for name, title, _ in GATES]
    return [Gate(name, title, ask(facts)) for name, title, ask in GATES]


GATES: tuple[tuple[str, str, Callable[[Facts], Finding]], ...] = (
    ("enabled", "job enabled", schedule_gates.enabled),
    ("due", "was due", schedule_gates.due),
    ("late_policy", "not too late", schedule_gates.late_policy),
    ("overlap", "no overlap", schedule_gates.overlap),
    ("unique_key", "no duplicate key", schedule_gates.unique_key),
    ("run_time", "time reached", schedule_gates.run_time),
    ("queue_open", "queue open", queue_gates.queue_open),
    ("worker_for_queue", "a worker serves the queue", queue_gates.worker_for_queue),
    ("worker_for_handler", "a worker knows the handler", queue_gates.worker_for_handler),
    ("slots", "a slot is free", queue_gates.slots),
    ("rate", "rate limit", queue_gates.rate),
    ("place_in_line", "place in line", queue_gates.place_in_line),
    ("scheduler", "a scheduler is at work", schedule_gates.scheduler),
)

_REASONS: dict[SkipReason, tuple[str, str, str | None]] = {
    SkipReason.MISFIRE: ("late_policy", "it was too late, and the misfire policy does not run it", "backfill it"),
    SkipReason.TOO_OLD: ("late_policy", "it was older than misfire_max_age_seconds", "backfill it"),
    SkipReason.OVER_CAP: ("late_policy", "more were missed than misfire_cap allows to catch up", "backfill it"),
    SkipReason.OVERLAP: (
        "overlap",
        "an earlier execution was unfinished, and overlap is `skip`",
        "set overlap to queue",
    ),
    SkipReason.PAUSED: ("enabled", "the job was paused", None),
    SkipReason.DELETED: ("enabled", "the job was deleted", None),
    SkipReason.UNIQUE_KEY: ("unique_key", "another execution held its unique key", None),
    SkipReason.EDITED: ("due", "the schedule was changed, and no longer names this instant", None),
    SkipReason.CANCELLED: ("due", "this occurrence was cancelled", None),
    SkipReason.ENDED: (
        "due",
        "the job had run as often as max_executions allows, or newer time-zone data moved this past its ends_at",
        None,
    ),
    SkipReason.CLOCK_GAP: ("due", "the clock jumped over this time, and on_gap is `skip`", None),
}


def _skipped(reason: str | None) -> list[Gate]:
    """The gates of an occurrence that was not run: those before the one that stopped it were passed."""
    known = _REASONS.get(SkipReason(reason)) if reason in list(SkipReason) else None
    stopping, sentence, advice = known or ("due", reason or "it was skipped", None)
    gates: list[Gate] = []
    for name, title, _ in GATES:
        if name == stopping:
            gates.append(Gate(name, title, stopped(sentence, advice)))
        elif any(gate.is_stopped for gate in gates):
            gates.append(Gate(name, title, not_asked("it was skipped before")))
        else:
            gates.append(Gate(name, title, passed("it was not stopped here")))
    return gates
