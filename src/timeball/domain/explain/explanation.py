"""The answer to "why": one sentence, every gate in the order in which an execution passes them, and the likely start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.explain import gates
from timeball.domain.explain.facts import Competitor, ExplainFacts, GateResult, GateVerdict, not_asked, passed, stopped
from timeball.domain.policies import Overlap, SkipReason
from timeball.domain.values.wording import counted, duration_in_words, instant_in_words
from timeball.errors import quote_text

# With fewer finished runs than this no start is predicted.
_MIN_HISTORY = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate and its answer."""

    name: str
    title: str
    result: GateResult

    @property
    def is_stopped(self) -> bool:
        return self.result.verdict is GateVerdict.STOPPED


def check_gates(facts: ExplainFacts) -> list[Gate]:
    """The answers of all gates, in order."""
    execution = facts.execution
    if execution is not None and execution.state is ExecutionState.SKIPPED:
        return _gates_of_skipped(execution, facts.now)
    if execution is not None and (execution.started_at is not None or execution.state.is_final):
        why = "it has started" if execution.started_at is not None else f"it is {execution.state}"
        return [Gate(name, title, not_asked(why)) for name, title, _ in GATES]
    return [Gate(name, title, ask(facts)) for name, title, ask in GATES]


GATES: tuple[tuple[str, str, Callable[[ExplainFacts], GateResult]], ...] = (
    ("enabled", "job enabled", gates.check_enabled),
    ("not_frozen", "no freeze", gates.check_freeze),
    ("due", "was due", gates.check_due),
    ("late_policy", "not too late", gates.check_late_policy),
    ("expiry", "not expired", gates.check_expiry),
    ("overlap", "no overlap", gates.check_overlap),
    ("unique_key", "no duplicate key", gates.check_unique_key),
    ("run_time", "time reached", gates.check_run_time),
    ("queue_open", "queue open", gates.check_queue_open),
    ("worker_for_queue", "a worker serves the queue", gates.check_worker_for_queue),
    ("worker_for_handler", "a worker knows the handler", gates.check_worker_for_handler),
    ("slots", "a slot is free", gates.check_slots),
    ("rate", "rate limit", gates.check_rate),
    ("place_in_line", "place in line", gates.check_place_in_line),
    ("scheduler", "a scheduler is at work", gates.check_scheduler),
)

_SKIP_REASONS: dict[SkipReason, tuple[str, str, str | None]] = {
    SkipReason.MISFIRE: ("late_policy", "it was too late, and the misfire policy does not run it", "backfill it"),
    SkipReason.TOO_OLD: ("late_policy", "it was older than misfire_max_age_seconds", "backfill it"),
    SkipReason.CAPPED: ("late_policy", "more were missed than misfire_cap allows to catch up", "backfill it"),
    SkipReason.EXPIRED: ("expiry", "it had not begun in time", "run it again"),
    SkipReason.OVERLAP: (
        "overlap",
        "an earlier execution was unfinished, and the overlap policy of the job skips an occurrence then",
        f"set overlap to {Overlap.QUEUE} or {Overlap.ALLOW}",
    ),
    SkipReason.PAUSED: ("enabled", "the job was paused", None),
    SkipReason.FREEZE: ("not_frozen", "a freeze held it, and its `afterwards` does not run it", "backfill it"),
    SkipReason.DELETED: ("enabled", "the job was deleted", None),
    SkipReason.UNIQUE_KEY: ("unique_key", "another execution held its unique key", None),
    SkipReason.EDITED: ("due", "the schedule was changed, and no longer names this instant", None),
    SkipReason.CANCELLED: ("due", "this occurrence was cancelled", None),
    SkipReason.ENDED: (
        "due",
        "the job had run as often as max_executions allows, or newer time-zone data moved this past its ends_at",
        None,
    ),
    SkipReason.CALENDAR: ("due", "the calendars of the job leave this day out", None),
    SkipReason.CLOCK_GAP: ("due", "the clock skipped this time, and on_gap is `skip`", None),
}


def skip_words(reason: str | None) -> str:
    """Why an occurrence was skipped, in general words."""
    entry = _SKIP_REASONS.get(SkipReason(reason)) if reason in list(SkipReason) else None
    return entry[1] if entry else reason or "it was skipped"


def _gates_of_skipped(execution: Execution, now: datetime) -> list[Gate]:
    """The gates of a skipped execution: it passed those before the one that stopped it."""
    reason = execution.reason
    entry = _SKIP_REASONS.get(SkipReason(reason)) if reason in list(SkipReason) else None
    stopping, sentence, advice = entry or ("due", reason or "it was skipped", None)
    if reason == SkipReason.EXPIRED and execution.expires_at is not None:
        sentence = f"it had not begun by {instant_in_words(execution.expires_at, now)}, when it expired"
    gates: list[Gate] = []
    for name, title, _ in GATES:
        if name == stopping:
            gates.append(Gate(name, title, stopped(sentence, advice)))
        elif any(gate.is_stopped for gate in gates):
            gates.append(Gate(name, title, not_asked("it was skipped at an earlier gate")))
        else:
            gates.append(Gate(name, title, passed("it passed this gate")))
    return gates


@dataclass(frozen=True, slots=True)
class LikelyStart:
    """The expected start and its tolerance."""

    at: datetime
    give_or_take: timedelta


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an execution or a job is in its state."""

    facts: ExplainFacts
    headline: str
    gates: Sequence[Gate]
    likely_start: LikelyStart | None

    @property
    def stopped_by(self) -> Gate | None:
        """The first gate that is closed."""
        return next((gate for gate in self.gates if gate.is_stopped), None)


def explain(facts: ExplainFacts) -> Explanation:
    """Ask all gates and summarise their answers."""
    gates = check_gates(facts)
    likely = likely_start(facts, gates)
    return Explanation(facts, _headline(facts, gates, likely), gates, likely)


def likely_start(facts: ExplainFacts, gates: Sequence[Gate]) -> LikelyStart | None:
    """When an execution should start: at its time, or when enough of those before it should have ended.

    None if it cannot be predicted: a closed gate must be opened first, or there is too little history.
    """
    execution = facts.execution
    if execution is None or execution.started_at is not None or execution.state.is_final or facts.is_parked:
        return None
    stopping = [gate.name for gate in gates if gate.is_stopped]
    if stopping in (["run_time"], ["not_frozen", "run_time"]) and execution.run_at is not None:
        return LikelyStart(execution.run_at, timedelta(0))
    if stopping == ["not_frozen"] and facts.freeze is not None:
        return LikelyStart(facts.freeze.until_at, timedelta(0))
    if stopping == ["slots"]:
        return _when_a_slot_is_free(facts)
    if stopping == ["overlap"]:
        return _nth_end(facts.competitors, 0, facts.now)
    return None


def _when_a_slot_is_free(facts: ExplainFacts) -> LikelyStart | None:
    if facts.limit is not None and facts.limit.holders:
        return _nth_end(facts.limit.holders, 0, facts.now)
    holders = facts.queue.holders if facts.queue.max_running is not None else facts.on_workers
    return _nth_end(holders, facts.ahead, facts.now)


def _nth_end(competitors: Sequence[Competitor], number: int, now: datetime) -> LikelyStart | None:
    """When the n-th of the running ones should have ended; the slots then suffice for all before it and for itself."""
    known = [
        competitor
        for competitor in competitors
        if competitor.typical is not None and competitor.typical.count >= _MIN_HISTORY
    ]
    ends = [(end, competitor) for competitor in known if (end := competitor.expected_end(now)) is not None]
    if len(known) < len(competitors) or number >= len(ends):
        return None
    end, competitor = sorted(ends, key=lambda pair: pair[0])[number]
    assert competitor.typical is not None
    return LikelyStart(end, (competitor.typical.p95 - competitor.typical.median) / 2)


def _headline(facts: ExplainFacts, gates: Sequence[Gate], likely: LikelyStart | None) -> str:
    execution = facts.execution
    if execution is not None and execution.state.is_final:
        return _ended(execution, gates, facts.now)
    if execution is not None and execution.started_at is not None:
        return _running(execution, facts)
    stopped = [gate for gate in gates if gate.is_stopped]
    if not stopped:
        return _about_to_start(facts, gates)
    head = "NOT RUNNING" if execution is None else "NOT STARTED"
    also = f" Also: {stopped[1].result.sentence}." if len(stopped) > 1 else ""
    return f"{head}: {stopped[0].result.sentence}.{also}{_likely_words(likely, facts)}"


def _about_to_start(facts: ExplainFacts, gates: Sequence[Gate]) -> str:
    if facts.execution is None:
        return "NOTHING IN THE WAY: every gate is open, and nothing waits."
    place = next((gate for gate in gates if gate.name == "place_in_line"), None)
    line = f" It is {_place(place)}." if place and place.result.verdict is GateVerdict.PASSED else ""
    return f"ABOUT TO START: every gate is open.{line}"


def _place(gate: Gate) -> str:
    return gate.result.sentence.removeprefix("it is ")


def _likely_words(likely: LikelyStart | None, facts: ExplainFacts) -> str:
    if likely is None or likely.at == facts.run_at:
        return ""
    either_way = "" if likely.give_or_take < timedelta(seconds=1) else f" ± {duration_in_words(likely.give_or_take)}"
    return f" Likely start {instant_in_words(likely.at, facts.now)}{either_way}."


def _running(execution: Execution, facts: ExplainFacts) -> str:
    assert execution.started_at is not None
    started, now = execution.started_at, facts.now
    where = f" on {facts.holder.name}" if facts.holder else ""
    words = f"RUNNING since {instant_in_words(started, now)} ({duration_in_words(now - started)}){where}"
    stop = f" It was asked to stop: {facts.stop}." if facts.stop else ""
    note = "" if facts.progress is None else f" {facts.progress:.0%} done{_noted(facts.progress_note)}."
    return f"{words}.{_usual_words(started, facts)}{note}{stop}"


def _noted(note: str | None) -> str:
    return f", {note}" if note else ""


def _usual_words(started: datetime, facts: ExplainFacts) -> str:
    typical = facts.typical
    if typical is None or typical.count < _MIN_HISTORY:
        return " There is no history to predict its end."
    end = started + typical.median
    if end < facts.now:
        return f" It usually takes {duration_in_words(typical.median)}."
    return f" It usually takes {duration_in_words(typical.median)}, so it should end at {instant_in_words(end, facts.now)}."


def _ended(execution: Execution, gates: Sequence[Gate], now: datetime) -> str:
    assert execution.finished_at is not None
    when = instant_in_words(execution.finished_at, now)
    match execution.state:
        case ExecutionState.SKIPPED:
            why = next((gate.result.sentence for gate in gates if gate.is_stopped), execution.reason)
            return f"ENDED: skipped, because {why}."
        case ExecutionState.DEAD:
            error = ": ".join(part for part in (execution.error_type, execution.error) if part) or execution.reason
            attempts, reason = counted(execution.attempts, "attempt"), quote_text(error or "no reason was given", 200)
            return f"ENDED: dead at {when} after {attempts}: {reason}."
        case ExecutionState.CANCELLED:
            because = f": {execution.reason}" if execution.reason else ""
            return f"ENDED: cancelled at {when}{because}."
        case _:
            return f"ENDED: {execution.state} at {when}{_took(execution)}."


def _took(execution: Execution) -> str:
    if execution.started_at is None or execution.finished_at is None:
        return ""
    late = "" if execution.lateness is None else f", started {duration_in_words(execution.lateness)} after its time"
    return f" after {duration_in_words(execution.finished_at - execution.started_at)}{late}"
