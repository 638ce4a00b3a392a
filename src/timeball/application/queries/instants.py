"""Why, at any instant: what became of the occurrence of a job at an instant, and the chain that led to it.

The ledger says what became of it. The chain is read from the execution and its attempts, the intervals of its queue, the freezes and the
audit: a few reads by indexes, each of few rows, whatever the history holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from timeball.domain.execution import Execution, Origin
from timeball.domain.explain.causes import (
    LATE_AFTER,
    Cause,
    CauseKind,
    Change,
    WaitFacts,
    calendar_at,
    changed,
    clock_change_at,
    deeper,
    frozen,
    held_by,
    how_it_ran,
    in_one_sentence,
    no_scheduler,
    why_it_lasted,
    why_it_waited,
)
from timeball.domain.explain.explanation import Explanation, skip_words
from timeball.domain.explain.instants import (
    InstantExplanation,
    gate_causes,
    headline_of_line,
    is_at,
    moment_in_words,
    nothing_due,
    occurrence_after,
    occurrence_before,
)
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import MIN_INSTANT, parse_instant
from timeball.domain.scheduling.schedule import Schedule
from timeball.domain.scheduling.verdicts import LedgerLine
from timeball.domain.values.ids import ExecutionId, JobId, occurrence_id, parse_id
from timeball.domain.values.wording import instant_in_words
from timeball.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from timeball.application.queries.explain import ExplainQueries
    from timeball.application.queries.jobs import JobQueries
    from timeball.application.queries.ledger import LedgerQueries
    from timeball.domain.job import Job
    from timeball.store.diagnostics import ExplainStore
    from timeball.store.store import Store

# A change and what it records are of one transaction; the id of the audit entry is made by the clock of another machine.
_CLOCKS_APART = timedelta(seconds=1)


class InstantQueries:
    """Answers "why" for an instant of a job."""

    def __init__(
        self, store: Store, surroundings: ExplainStore, jobs: JobQueries, ledger: LedgerQueries, explain: ExplainQueries
    ) -> None:
        self._store = store
        self._surroundings = surroundings
        self._jobs = jobs
        self._ledger = ledger
        self._explain = explain

    async def of_job(self, reference: str, at: str | datetime) -> InstantExplanation:
        """What became of a job at an instant, or is to become of it. A time without an offset is on the clock of the job's zone."""
        job = await self._find(reference)
        instant = parse_instant(at, job.timezone, "at")
        period = await self._ledger.version_at(job, instant)
        question = _Question(
            job,
            instant,
            await self._store.history.moment(),
            job.rule if period is None else period.rule,
            job.version if period is None else period.version,
        )
        line = await self._ledger.at(job, instant)
        if line is None or not is_at(line, question.rule, instant):
            return await self._nothing(question)
        match line.verdict:
            case Verdict.RAN:
                return question.answer(line, await self._how_it_ran(question, line))
            case Verdict.SKIPPED | Verdict.EXPECTED if line.is_left_out or line.verdict is Verdict.SKIPPED:
                return question.answer(line, await self._why_skipped(question, line))
            case Verdict.EXPECTED:
                return question.answer_by_gates(line, await self._explain.ahead(job, instant))
            case _:
                return question.answer_by_gates(line, await self._present(question, line))

    async def _find(self, reference: str) -> Job:
        """A job by its id or its name. One that was deleted is found by its id: its history stays."""
        try:
            return await self._jobs.find(reference)
        except NotFound:
            with suppress(InvalidInput):
                job_id = JobId(parse_id("job", reference))
                deleted = (await self._store.jobs.find([job_id])).get(job_id)
                if deleted is not None:
                    return deleted
            raise

    async def _nothing(self, question: _Question) -> InstantExplanation:
        job, at, now, rule = question.job, question.at, question.now, question.rule
        near = await self._ledger.near(job, at)
        before, after = occurrence_before(near.before, rule, at), occurrence_after(near.after, rule, at)
        is_named = rule.last_at_or_before(at) == at
        causes = [nothing_due(rule, question.version, (before, after), is_named=is_named, now=now)]
        if job.created_at is not None and at <= job.created_at:
            words = f"the job was created at {instant_in_words(job.created_at, now)}"
            by = f" by {job.created_by}" if job.created_by else ""
            causes.insert(
                0, Cause(kind=CauseKind.JOB_CHANGED, sentence=words + by, since=job.created_at, actor=job.created_by)
            )
        elif near.history_from is not None and at < near.history_from:
            words = f"records from before {instant_in_words(near.history_from, now)} were deleted"
            causes.append(Cause(kind=CauseKind.HISTORY_DELETED, sentence=words, until=near.history_from))
        when, verb = moment_in_words(at, now, job.timezone), "WAS" if at <= now else "IS"
        causes += deeper(question.of_the_schedule())
        return InstantExplanation(
            job=job,
            at=at,
            now=now,
            version=question.version,
            headline=f"NOTHING {verb} DUE at {when}: {in_one_sentence(causes)}.",
            causes=causes,
            before=before,
            after=after,
        )

    async def _present(self, question: _Question, line: LedgerLine) -> Explanation:
        """What an occurrence waits for, or since when it runs. One that is not judged yet waits for the one before it to be."""
        execution = None if line.execution_id is None else await self._store.history.find(line.execution_id)
        if execution is None:
            return await self._explain.job(str(question.job.id))
        return await self._explain.of_execution(execution)

    async def _how_it_ran(self, question: _Question, line: LedgerLine) -> list[Cause]:
        execution = None if line.execution_id is None else await self._store.history.find(line.execution_id)
        if execution is None:
            return [Cause(kind=CauseKind.HISTORY_DELETED, sentence="its record has been deleted meanwhile")]
        return how_it_ran(await self._wait_facts(question, execution))

    async def _why_skipped(self, question: _Question, line: LedgerLine) -> list[Cause]:
        execution = None
        if line.execution_id is not None:
            execution = await self._store.history.find(line.execution_id)
        if execution is not None:
            judged_at = execution.finished_at
        else:
            judged_at = await self._ledger.range_recorded_at(question.job, line.first)
        judgement = _Judgement(line, execution, judged_at)
        match line.reason:
            case SkipReason.OVERLAP | SkipReason.UNIQUE_KEY:
                return await self._why_held(question, judgement)
            case SkipReason.MISFIRE | SkipReason.TOO_OLD | SkipReason.CAPPED:
                return [question.policy(line), *deeper(await self._why_late(question, judgement))]
            case SkipReason.FREEZE:
                return await self._freezes(question) or [question.policy(line)]
            case SkipReason.EXPIRED:
                return await self._why_expired(question, judgement)
            case SkipReason.PAUSED:
                change = await self._change(question, ("job.pause",), line.first)
                return [changed(CauseKind.JOB_PAUSED, "the job was paused", change, question.now, judged_at)]
            case SkipReason.EDITED:
                change = await self._change(question, ("job.update",), judged_at)
                return [changed(CauseKind.JOB_CHANGED, "the schedule was changed", change, question.now)]
            case SkipReason.DELETED:
                change = await self._change(question, ("job.delete",), judged_at)
                return [changed(CauseKind.JOB_CHANGED, "the job was deleted", change, question.now)]
            case SkipReason.CANCELLED:
                change = await self._cancellation(question, judgement)
                return [changed(CauseKind.CANCELLED, "this occurrence was cancelled", change, question.now)]
            case _:
                return [question.policy(line), *deeper(question.of_the_schedule())]

    async def _why_held(self, question: _Question, judgement: _Judgement) -> list[Cause]:
        """Another execution was unfinished: which one, for how long, and why it was late or took so long."""
        job = question.job
        ids = await self._surroundings.unfinished_at(
            job.id, judgement.judged_at or question.at, judgement.id_of(job, question.at), with_backfills=job.is_serial
        )
        holder = await self._store.history.find(ids[0]) if ids else None
        if holder is None:
            return [question.policy(judgement.line)]
        facts = await self._wait_facts(question, holder)
        return [held_by(holder, question.now), *deeper(why_it_lasted(facts))]

    async def _why_late(self, question: _Question, judgement: _Judgement) -> list[Cause]:
        """From when to when no scheduler recorded anything of the job; or what froze it."""
        causes = await self._freezes(question)
        if judgement.judged_at is None:
            return causes
        since = await self._last_recorded(question, judgement.line)
        return [*causes, no_scheduler(since, judgement.judged_at, question.now)]

    async def _last_recorded(self, question: _Question, line: LedgerLine) -> datetime:
        """When the occurrence before a line was recorded; the instant of the line if that was later, or is not known."""
        before = (await self._ledger.near(question.job, line.first)).before
        if before is None:
            return line.first
        if before.execution_id is None:
            recorded_at = await self._ledger.range_recorded_at(question.job, before.first)
        else:
            execution = await self._store.history.find(before.execution_id)
            recorded_at = None if execution is None else execution.queued_at or execution.finished_at
        return line.first if recorded_at is None else min(recorded_at, line.first)

    async def _why_expired(self, question: _Question, judgement: _Judgement) -> list[Cause]:
        execution = judgement.execution
        if execution is None:
            return [question.policy(judgement.line)]
        since, expired_at = execution.queued_at or execution.scheduled_for, execution.expires_at
        by = "in time" if expired_at is None else f"by {instant_in_words(expired_at, question.now)}, when it expired"
        cause = Cause(
            kind=CauseKind.EXPIRED,
            sentence=f"it had not begun {by}; it had waited since {instant_in_words(since, question.now)}",
            since=since,
            until=expired_at,
        )
        return [cause, *deeper(why_it_waited(await self._wait_facts(question, execution)))]

    async def _cancellation(self, question: _Question, judgement: _Judgement) -> Change | None:
        until = judgement.judged_at or question.now
        if judgement.execution is not None:
            change = await self._surroundings.last_change(
                f"execution:{judgement.execution.id}", ("execution.cancel",), MIN_INSTANT, until + _CLOCKS_APART
            )
            if change is not None:
                return change
        return await self._change(question, ("job.skip_next",), judgement.judged_at)

    async def _change(self, question: _Question, actions: Sequence[str], until: datetime | None) -> Change | None:
        return await self._surroundings.last_change(
            f"job:{question.job.id}", actions, MIN_INSTANT, (until or question.now) + _CLOCKS_APART
        )

    async def _freezes(self, question: _Question) -> list[Cause]:
        job, at = question.job, question.at + question.job.jitter
        freezes = (await self._store.freezes.list()).freezes
        return [
            frozen(freeze, question.now)
            for freeze in freezes
            if freeze.covers(at) and freeze.holds(job.queue, job.id, job.tags)
        ]

    async def _wait_facts(self, question: _Question, execution: Execution) -> WaitFacts:
        """What may have held an execution of the job up; little is read of one that started at its time."""
        job, nodes = question.job, await self._store.nodes.list()
        jitter = job.jitter if execution.origin is Origin.SCHEDULE else timedelta(0)
        facts = WaitFacts(
            now=question.now,
            execution=execution,
            due_at=execution.scheduled_for + jitter,
            attempts=await self._store.history.attempts(execution.id),
            names={node.incarnation: node.name for node in nodes},
            typical=await self._surroundings.typical_duration(job.id, execution.handler),
        )
        if facts.waited_until - facts.due_at <= LATE_AFTER:
            return facts
        return replace(
            facts,
            intervals=await self._store.queues.intervals(execution.queue, facts.due_at, facts.waited_until),
            freezes=[
                freeze
                for freeze in (await self._store.freezes.list()).freezes
                if freeze.holds(execution.queue, job.id, job.tags)
            ],
            holders=await self._waited_for(job, facts),
        )

    async def _waited_for(self, job: Job, facts: WaitFacts) -> list[Execution]:
        """The execution that a serial job finished first."""
        if not job.is_serial:
            return []
        ids = await self._surroundings.unfinished_at(
            job.id, facts.promoted_at or facts.due_at, facts.execution.id, with_backfills=True
        )
        holder = await self._store.history.find(ids[0]) if ids else None
        return [] if holder is None else [holder]


@dataclass(frozen=True, slots=True)
class _Judgement:
    """A skipped line, its execution if it has one, and when it was judged."""

    line: LedgerLine
    execution: Execution | None
    judged_at: datetime | None

    def id_of(self, job: Job, at: datetime) -> ExecutionId:
        return occurrence_id(job.id, at) if self.execution is None else self.execution.id


@dataclass(frozen=True, slots=True)
class _Question:
    """An instant of a job, and the schedule of the version that is responsible for it."""

    job: Job
    at: datetime
    now: datetime
    rule: Schedule
    version: int

    def of_the_schedule(self) -> list[Cause]:
        """What calendars and clock changes make of the instant."""
        causes = calendar_at(self.rule, self.at), clock_change_at(self.rule, self.at)
        return [cause for cause in causes if cause is not None]

    def policy(self, line: LedgerLine) -> Cause:
        """The reason of a skipped line in general words."""
        return Cause(kind=CauseKind.POLICY, sentence=skip_words(line.reason))

    def answer(self, line: LedgerLine, causes: Sequence[Cause]) -> InstantExplanation:
        when = moment_in_words(self.at, self.now, self.job.timezone)
        changes = [] if line.is_left_out else self.of_the_schedule()
        return InstantExplanation(
            job=self.job,
            at=self.at,
            now=self.now,
            version=line.version,
            headline=headline_of_line(line, when, causes, self.now),
            causes=[*causes, *changes],
            line=line,
        )

    def answer_by_gates(self, line: LedgerLine, explanation: Explanation) -> InstantExplanation:
        return InstantExplanation(
            job=self.job,
            at=self.at,
            now=self.now,
            version=line.version,
            headline=explanation.headline,
            causes=[*gate_causes(explanation), *self.of_the_schedule()],
            line=line,
            present=explanation,
        )
