"""The answer to "why": one sentence first, then every gate; and the likely start, where it can be said honestly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.facts import Facts, Rival
from timeball.domain.findings import Verdict
from timeball.domain.gates import Gate, examine
from timeball.domain.instants import shown
from timeball.domain.wording import counted, moment_words, span_words

# A guess that is no better than this is not worth saying.
_LEAST_HISTORY = 3


@dataclass(frozen=True, slots=True)
class LikelyStart:
    """When it should start, give or take."""

    at: datetime
    give_or_take: timedelta


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an execution, or a job, is where it is."""

    facts: Facts
    headline: str
    gates: Sequence[Gate]
    likely_start: LikelyStart | None

    @property
    def stopped_by(self) -> Gate | None:
        """The first gate that is closed."""
        return next((gate for gate in self.gates if gate.is_stopped), None)


def explain(facts: Facts) -> Explanation:
    """Ask all gates and sum up."""
    gates = examine(facts)
    likely = likely_start(facts, gates)
    return Explanation(facts, _headline(facts, gates, likely), gates, likely)


def likely_start(facts: Facts, gates: Sequence[Gate]) -> LikelyStart | None:
    """When an execution should start: at its time, or when enough of those before it have usually ended.

    None where nobody can tell: something closed has to be opened first, or there is too little history.
    """
    execution = facts.execution
    if execution is None or execution.started_at is not None or execution.state.is_final or facts.is_parked:
        return None
    stopping = [gate.name for gate in gates if gate.is_stopped]
    if stopping == ["run_time"] and execution.run_at is not None:
        return LikelyStart(execution.run_at, timedelta(0))
    if stopping == ["slots"]:
        return _when_a_place_is_free(facts)
    if stopping == ["overlap"]:
        return _nth_end(facts.rivals, 0, facts.now)
    return None


def _when_a_place_is_free(facts: Facts) -> LikelyStart | None:
    if facts.limit is not None and facts.limit.holders:
        return _nth_end(facts.limit.holders, 0, facts.now)
    holders = facts.queue.holders if facts.queue.max_running is not None else facts.on_workers
    return _nth_end(holders, facts.ahead, facts.now)


def _nth_end(rivals: Sequence[Rival], number: int, now: datetime) -> LikelyStart | None:
    """When the n-th of those that run should have ended; places are then free for all before us and for us."""
    known = [rival for rival in rivals if rival.usual is not None and rival.usual.count >= _LEAST_HISTORY]
    ends = [(end, rival) for rival in known if (end := rival.expected_end(now)) is not None]
    if len(known) < len(rivals) or number >= len(ends):
        return None
    end, rival = sorted(ends, key=lambda pair: pair[0])[number]
    assert rival.usual is not None
    return LikelyStart(end, (rival.usual.p95 - rival.usual.median) / 2)


def _headline(facts: Facts, gates: Sequence[Gate], likely: LikelyStart | None) -> str:
    execution = facts.execution
    if execution is not None and execution.state.is_final:
        return _ended(execution, gates, facts.now)
    if execution is not None and execution.started_at is not None:
        return _running(execution, facts)
    stopped = [gate for gate in gates if gate.is_stopped]
    if not stopped:
        return _about_to_start(facts, gates)
    head = "NOT RUNNING" if execution is None else "NOT STARTED"
    also = f" Also: {stopped[1].finding.sentence}." if len(stopped) > 1 else ""
    return f"{head}: {stopped[0].finding.sentence}.{also}{_likely_words(likely, facts)}"


def _about_to_start(facts: Facts, gates: Sequence[Gate]) -> str:
    if facts.execution is None:
        return "NOTHING IN THE WAY: every gate is open, and nothing waits."
    place = next((gate for gate in gates if gate.name == "place_in_line"), None)
    line = f" It is {_place(place)}." if place and place.finding.verdict is Verdict.PASSED else ""
    return f"ABOUT TO START: every gate is open.{line}"


def _place(gate: Gate) -> str:
    return gate.finding.sentence.removeprefix("it is ")


def _likely_words(likely: LikelyStart | None, facts: Facts) -> str:
    if likely is None or likely.at == facts.run_at:
        return ""
    either_way = "" if likely.give_or_take < timedelta(seconds=1) else f" ± {span_words(likely.give_or_take)}"
    return f" Likely start {moment_words(likely.at, facts.now)}{either_way}."


def _running(execution: Execution, facts: Facts) -> str:
    assert execution.started_at is not None
    started, now = execution.started_at, facts.now
    where = f" on {facts.holder.name}" if facts.holder else ""
    words = f"RUNNING since {moment_words(started, now)} ({span_words(now - started)}){where}"
    stop = f" It was asked to stop: {facts.stop}." if facts.stop else ""
    note = "" if facts.progress is None else f" {facts.progress:.0%} done{_noted(facts.progress_note)}."
    return f"{words}.{_usual_words(started, facts)}{note}{stop}"


def _noted(note: str | None) -> str:
    return f", {note}" if note else ""


def _usual_words(started: datetime, facts: Facts) -> str:
    usual = facts.usual
    if usual is None or usual.count < _LEAST_HISTORY:
        return " There is no history to tell its end by."
    end = started + usual.median
    if end < facts.now:
        return f" It usually takes {span_words(usual.median)}."
    return f" It usually takes {span_words(usual.median)}, so it should end at {moment_words(end, facts.now)}."


def _ended(execution: Execution, gates: Sequence[Gate], now: datetime) -> str:
    assert execution.finished_at is not None
    when = moment_words(execution.finished_at, now)
    match execution.state:
        case ExecutionState.SKIPPED:
            why = next((gate.finding.sentence for gate in gates if gate.is_stopped), execution.reason)
            return f"ENDED: skipped, because {why}."
        case ExecutionState.DEAD:
            error = ": ".join(part for part in (execution.error_type, execution.error) if part) or execution.reason
            return f"ENDED: dead at {when} after {counted(execution.attempts, 'attempt')}: {shown(error or 'no reason was given', 200)}."
        case ExecutionState.CANCELLED:
            because = f": {execution.reason}" if execution.reason else ""
            return f"ENDED: cancelled at {when}{because}."
        case _:
            return f"ENDED: {execution.state} at {when}{_took(execution)}."


def _took(execution: Execution) -> str:
    if execution.started_at is None or execution.finished_at is None:
        return ""
    late = "" if execution.lateness is None else f", started {span_words(execution.lateness)} after its time"
    return f" after {span_words(execution.finished_at - execution.started_at)}{late}"
