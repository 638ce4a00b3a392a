"""Why, at an instant: what became of the occurrence of a job at it, or what will stand in the way of one that lies ahead.

`foresee` asks the gates about facts as they will be at the instant if nothing is changed before: a pause or a freeze with an end is over by
then or not, and an execution that runs now is counted only if it usually takes longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from timeball.domain.execution import DueKind, Execution, ExecutionState, Origin
from timeball.domain.explain.causes import Cause, CauseKind, in_one_sentence
from timeball.domain.explain.explanation import Explanation, Gate, check_gates
from timeball.domain.explain.facts import Competitor, ExecutionTable, ExplainFacts, not_asked
from timeball.domain.explain.gates import check_slots
from timeball.domain.job import Job
from timeball.domain.policies import Verdict
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.schedule import Manual, Schedule
from timeball.domain.scheduling.verdicts import LedgerLine
from timeball.domain.values.ids import occurrence_id
from timeball.domain.values.wording import counted, instant_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOccurrence:
    """An occurrence before or after an instant, and what became of it."""

    at: datetime
    verdict: Verdict
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantExplanation:
    """What became of an instant of a job, and why. *line* is None if nothing was or is to be due at it.

    *present* has the gates of an occurrence that has not ended.
    """

    job: Job
    at: datetime
    now: datetime
    version: int
    headline: str
    causes: Sequence[Cause]
    line: LedgerLine | None = None
    before: NearOccurrence | None = None
    after: NearOccurrence | None = None
    present: Explanation | None = None


def is_at(line: LedgerLine, rule: Schedule, instant: datetime) -> bool:
    """Whether a line has an occurrence at an instant; a range has them only where its schedule names them, or leaves them out."""
    if line.is_left_out:
        return any(rule.left_out(instant - MICROSECOND, instant))
    return instant in (line.first, line.last) or rule.last_at_or_before(instant) == instant


def occurrence_before(line: LedgerLine | None, rule: Schedule, instant: datetime) -> NearOccurrence | None:
    """The last occurrence of a line before an instant."""
    if line is None:
        return None
    inside = rule.last_at_or_before(instant) if line.last >= instant else line.last
    return NearOccurrence(at=inside or line.first, verdict=line.verdict, reason=line.reason)


def occurrence_after(line: LedgerLine | None, rule: Schedule, instant: datetime) -> NearOccurrence | None:
    """The first occurrence of a line after an instant."""
    if line is None:
        return None
    inside = rule.next_after(instant) if line.first <= instant else line.first
    return NearOccurrence(at=inside or line.last, verdict=line.verdict, reason=line.reason)


# words


def moment_in_words(at: datetime, now: datetime, timezone: str) -> str:
    """An instant, with what the clock of the job's zone shows at it."""
    words = instant_in_words(at, now)
    return words if timezone == "UTC" else f"{words} ({at.astimezone(ZoneInfo(timezone)):%H:%M} in {timezone})"


def headline_of_line(line: LedgerLine, when: str, causes: Sequence[Cause], now: datetime) -> str:
    """What became of an occurrence, in one sentence."""
    chain = in_one_sentence(causes)
    if line.verdict is Verdict.SKIPPED or line.is_left_out:
        verb = "SKIPPED" if line.verdict is Verdict.SKIPPED else "WILL BE SKIPPED"
        whole = ""
        if line.is_range and line.count:
            first, last = (instant_in_words(at, now) for at in (line.first, line.last))
            whole = f", with all {counted(line.count, 'occurrence')} from {first} to {last}"
        return f"{verb} at {when}{whole}: {line.reason}; {chain}."
    ended = next((cause.sentence for cause in causes if cause.kind is CauseKind.ENDED), None)
    first = "" if chain == ended else chain
    return f"RAN for {when}: {'; '.join(part for part in (first, ended) if part)}."


def nothing_due(
    rule: Schedule,
    version: int,
    near: tuple[NearOccurrence | None, NearOccurrence | None],
    *,
    is_named: bool,
    now: datetime,
) -> Cause:
    """Why nothing is recorded at an instant: the schedule does not name it, or there is no record of it."""
    if isinstance(rule, Manual):
        words = "the job has no schedule: it runs only when it is triggered"
    elif is_named:
        words = f"version {version} of the job names this instant ({rule.describe()}), but there is no record of it"
    else:
        words = f"version {version} of the job names no occurrence at this instant ({rule.describe()})"
    before, after = near
    told = [
        f"the one before, at {instant_in_words(before.at, now)}, {_became(before)}" if before else None,
        f"the next one, at {instant_in_words(after.at, now)}, {_became(after)}" if after else None,
    ]
    return Cause(
        kind=CauseKind.NOT_DUE,
        sentence="; ".join([words, *(part for part in told if part)]),
        since=None if before is None else before.at,
        until=None if after is None else after.at,
    )


def _became(occurrence: NearOccurrence) -> str:
    match occurrence.verdict:
        case Verdict.SKIPPED:
            return f"was skipped ({occurrence.reason})"
        case Verdict.EXPECTED if occurrence.reason:
            return f"is to be skipped ({occurrence.reason})"
        case Verdict.RAN:
            return "ran"
        case verdict:
            return f"is {verdict}"


# what lies ahead


def expected_execution(job: Job, at: datetime) -> Execution:
    """The execution of an occurrence that lies ahead, as it will be when its time comes."""
    return Execution(
        id=occurrence_id(job.id, at),
        job_id=job.id,
        state=ExecutionState.SCHEDULED,
        origin=Origin.SCHEDULE,
        version=job.version,
        queue=job.queue,
        priority=job.priority,
        handler=job.handler,
        scheduled_for=at,
        run_at=at + job.jitter,
        queued_at=None,
        started_at=None,
        finished_at=None,
        attempts=0,
        lost=0,
        fence=0,
        worker=None,
        result=None,
        error_type=None,
        error=None,
        reason=None,
        retry_of=None,
        limit_key=job.limit_key,
        unique_key=job.unique_key,
        created_by=None,
        expires_at=job.expiry_of(at),
    )


def foresee(facts: ExplainFacts, job: Job, at: datetime) -> Explanation:
    """Asks the gates about an occurrence that lies ahead. *facts* are those of now, with the freeze that holds the job then."""
    then = _facts_then(facts, job, at)
    gates = [_as_of_then(gate, then) for gate in check_gates(then)]
    closed = [gate.result.sentence for gate in gates if gate.is_stopped]
    when = moment_in_words(at, facts.now, job.timezone)
    if not closed:
        headline = f"EXPECTED at {when}: nothing that is known now is in its way."
    else:
        headline = f"EXPECTED at {when}, but {closed[0]}."
        headline += f" Also: {closed[1]}." if len(closed) > 1 else ""
    return Explanation(replace(then, now=facts.now), headline, gates, None)


def _facts_then(facts: ExplainFacts, job: Job, at: datetime) -> ExplainFacts:
    is_resumed = job.paused_until is not None and job.paused_until <= at
    is_paused = job.is_paused and not is_resumed
    queue, now = facts.queue, facts.now
    holders = [one for one in queue.holders if _is_still_there(one, now, at)]
    limit = facts.limit
    if limit is not None:
        under_limit = [one for one in limit.holders if _is_still_there(one, now, at)]
        limit = replace(limit, taken=len(under_limit), holders=under_limit)
    is_open = queue.paused_until is not None and queue.paused_until <= at
    return replace(
        facts,
        now=at + job.jitter,
        job=replace(job, paused_at=None, paused_until=None, pause_reason=None) if is_resumed else job,
        # A paused job has no executions ahead: the gate of the job itself is asked.
        execution=None if is_paused else expected_execution(job, at),
        state_table=None if is_paused else ExecutionTable.DUE,
        due_kind=None if is_paused else DueKind.OCCURRENCE,
        queue=replace(queue, taken=len(holders), holders=holders, paused_at=None if is_open else queue.paused_at),
        limit=limit,
        competitors=[one for one in facts.competitors if _is_still_there(one, now, at)],
        # Which slots are taken then cannot be known; limits are asked with what is likely to run still.
        workers=[replace(worker, busy=0) for worker in facts.workers],
    )


def _as_of_then(gate: Gate, then: ExplainFacts) -> Gate:
    """Two gates look at what is done until then: the time has come, and the execution is promoted and may have a slot."""
    if gate.name == "run_time":
        return Gate(gate.name, gate.title, not_asked("the gates are asked about the instant at which it is due"))
    if gate.name == "slots" and then.execution is not None:
        return Gate(gate.name, gate.title, check_slots(replace(then, state_table=ExecutionTable.BLOCKED)))
    return gate


def _is_still_there(competitor: Competitor, now: datetime, at: datetime) -> bool:
    end = competitor.expected_end(now)
    return end is not None and end > at


def gate_causes(explanation: Explanation) -> list[Cause]:
    """The closed gates as causes."""
    return [
        Cause(kind=CauseKind.GATE, sentence=gate.result.sentence, ids=gate.result.links)
        for gate in explanation.gates
        if gate.is_stopped
    ]
