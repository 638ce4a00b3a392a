"""What became of an occurrence, and why: the chain of causes that led to it, each in one sentence, with names and times.

A chain is a list in the order of reading. A cause of depth 1 is why the one of depth 0 before it came to be, and so on. It has few
steps: what held an occurrence up, and what held that up in turn. Every sentence of the chain is worded here, for all fronts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from timeball.domain.execution import Attempt, Execution
from timeball.domain.explain.facts import QueueInterval
from timeball.domain.freeze import Freeze, format_freeze_id
from timeball.domain.scheduling.civil_time import MICROSECOND, WallTimeRepeat, offset_periods_from
from timeball.domain.scheduling.cron import NoteKind
from timeball.domain.scheduling.schedule import Cron, Schedule
from timeball.domain.values.ids import Incarnation, format_execution_id, format_id
from timeball.domain.values.wording import counted, duration_in_words, instant_in_words, listed
from timeball.errors import quote_text

if TYPE_CHECKING:
    from timeball.domain.rollup import TypicalDuration

# What starts later than this after its instant is late: a free slot would have taken it.
LATE_AFTER = timedelta(seconds=2)
_MAX_ATTEMPTS = 3
_MAX_INTERVALS = 3
_LONGEST_ERROR = 200


class CauseKind(StrEnum):
    """What a cause is about."""

    NOT_DUE = "not_due"
    CLOCK_CHANGE = "clock_change"
    CALENDAR = "calendar"
    HISTORY_DELETED = "history_deleted"
    STARTED = "started"
    ATTEMPT = "attempt"
    ENDED = "ended"
    HELD_BY = "held_by"
    RAN_LONG = "ran_long"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_LIMITED = "queue_limited"
    WAITED = "waited"
    FROZEN = "frozen"
    NO_SCHEDULER = "no_scheduler"
    JOB_PAUSED = "job_paused"
    JOB_CHANGED = "job_changed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POLICY = "policy"
    GATE = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One step of a chain. *ids* name what it is about; *since* and *until* are its span, as far as it has one."""

    kind: CauseKind
    sentence: str
    ids: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    actor: str | None = None
    depth: int = 0


def deeper(causes: Iterable[Cause], steps: int = 1) -> list[Cause]:
    """The same causes, as the reasons for the one before them."""
    return [replace(cause, depth=cause.depth + steps) for cause in causes]


def in_one_sentence(causes: Sequence[Cause]) -> str:
    """The first cause, and the first one of each depth below it: `a, because b, because c`."""
    words: list[str] = []
    for cause in causes:
        if cause.depth == len(words):
            words.append(cause.sentence)
        elif cause.depth == 0:
            break
    return ", because ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An entry of the audit: who changed a job or an execution, when and why."""

    id: str
    at: datetime
    actor: str
    action: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What may have held an execution up between its instant and its first start.

    *holders* are executions of its job that were unfinished when it was queued, if it had to wait for them.
    """

    now: datetime
    execution: Execution
    due_at: datetime
    attempts: Sequence[Attempt] = ()
    intervals: Sequence[QueueInterval] = ()
    freezes: Sequence[Freeze] = ()
    holders: Sequence[Execution] = ()
    names: Mapping[Incarnation, str]
    typical: TypicalDuration | None = None

    @property
    def started_at(self) -> datetime | None:
        """The start of the first attempt: later ones wait for their back-off."""
        starts = [self.execution.started_at, *(attempt.started_at for attempt in self.attempts)]
        return min((at for at in starts if at is not None), default=None)

    @property
    def waited_until(self) -> datetime:
        """Its first start, or its end if it never started, or now."""
        return self.started_at or self.execution.finished_at or self.now

    @property
    def promoted_at(self) -> datetime | None:
        """When it was first queued, if that is known: a further attempt is queued again."""
        queued_at = self.execution.queued_at
        return queued_at if queued_at is not None and queued_at <= self.waited_until else None


def why_it_waited(facts: WaitFacts) -> list[Cause]:
    """Why an execution did not start at its instant; nothing if it did."""
    if facts.waited_until - facts.due_at <= LATE_AFTER:
        return []
    freezes = [freeze for freeze in facts.freezes if freeze.touches(facts.due_at, facts.waited_until)]
    causes = [frozen(freeze, facts.now) for freeze in freezes[:_MAX_INTERVALS]]
    promoted_at = facts.promoted_at
    thawed_at = max((freeze.until_at for freeze in freezes), default=facts.due_at)
    if promoted_at is not None and promoted_at - max(thawed_at, facts.due_at) > LATE_AFTER:
        causes.append(no_scheduler(max(thawed_at, facts.due_at), promoted_at, facts.now))
    queued_at = max(promoted_at or facts.due_at, facts.due_at)
    pauses = [
        interval
        for interval in facts.intervals
        if interval.is_pause and interval.touches(queued_at, facts.waited_until)
    ]
    causes += [queue_paused(pause, facts.now) for pause in pauses[:_MAX_INTERVALS]]
    if facts.holders:
        return [*causes, *(held_by(holder, facts.now) for holder in facts.holders[:1])]
    free_from = max([queued_at, thawed_at, *(pause.until or facts.now for pause in pauses)])
    if facts.waited_until - free_from > LATE_AFTER:
        causes.append(_waited_for_a_slot(facts, free_from))
    return causes


def _waited_for_a_slot(facts: WaitFacts, since: datetime) -> Cause:
    until, queue = facts.waited_until, facts.execution.queue
    limit = next((one for one in facts.intervals if not one.is_pause and one.touches(since, until)), None)
    waited = duration_in_words(until - since)
    if limit is None:
        return Cause(
            kind=CauseKind.WAITED,
            sentence=f"it waited {waited} for a free slot of a worker of queue «{queue}»",
            since=since,
            until=until,
        )
    return Cause(
        kind=CauseKind.QUEUE_LIMITED,
        sentence=f"it waited {waited} for a place in queue «{queue}», which {limit.actor} had limited to {limit.value} at once"
        f"{_because(limit.reason)}",
        since=since,
        until=until,
        actor=limit.actor,
    )


def why_it_lasted(facts: WaitFacts) -> list[Cause]:
    """Why an execution was unfinished for so long: why it waited, then how long it ran."""
    causes = why_it_waited(facts)
    failed = [attempt_failed(attempt, facts) for attempt in facts.attempts[:_MAX_ATTEMPTS]]
    started_at, end = facts.started_at, facts.execution.finished_at or facts.now
    if started_at is None or (causes and end - started_at < facts.waited_until - facts.due_at):
        return [*causes, *failed]
    typical = facts.typical
    usually = "" if typical is None else f", usually {duration_in_words(typical.median)}"
    ran = Cause(
        kind=CauseKind.RAN_LONG,
        sentence=f"it {'ran' if facts.execution.finished_at else 'has run'} for {duration_in_words(end - started_at)}{usually}"
        f"{_on(facts.execution.worker, facts.names)}",
        ids=(format_execution_id(facts.execution.id),),
        since=started_at,
        until=facts.execution.finished_at,
    )
    return [*causes, ran, *failed]


def how_it_ran(facts: WaitFacts) -> list[Cause]:
    """When an execution started, how late and why, what its attempts met, and how it ended."""
    execution, started_at = facts.execution, facts.started_at
    causes: list[Cause] = []
    if started_at is not None:
        late = started_at - facts.due_at
        how = f"{duration_in_words(late)} late" if late > LATE_AFTER else "on time"
        first = facts.attempts[0].worker if facts.attempts else execution.worker
        causes.append(
            Cause(
                kind=CauseKind.STARTED,
                sentence=f"it started at {instant_in_words(started_at, facts.now)}, {how}{_on(first, facts.names)}",
                ids=(format_execution_id(execution.id),),
                since=started_at,
            )
        )
        causes += deeper(why_it_waited(facts))
    causes += [attempt_failed(attempt, facts) for attempt in facts.attempts[:_MAX_ATTEMPTS]]
    if execution.finished_at is not None:
        causes.append(_ended(facts, execution.finished_at))
    return causes


def _ended(facts: WaitFacts, finished_at: datetime) -> Cause:
    execution, more = facts.execution, len(facts.attempts) - _MAX_ATTEMPTS
    after = f" after {counted(execution.attempts, 'attempt')}" if execution.attempts > 1 else ""
    left_out = f" ({more} more failed)" if more > 0 else ""
    because = f": {quote_text(execution.reason, _LONGEST_ERROR)}" if execution.reason else ""
    return Cause(
        kind=CauseKind.ENDED,
        sentence=f"it ended as {execution.state} at {instant_in_words(finished_at, facts.now)}{after}{left_out}"
        f"{_on(execution.worker, facts.names)}{because}",
        ids=(format_execution_id(execution.id),),
        until=finished_at,
    )


def attempt_failed(attempt: Attempt, facts: WaitFacts) -> Cause:
    """One unsuccessful attempt."""
    error = "" if attempt.error is None else f": {_error_words(attempt.error.type, attempt.error.message)}"
    return Cause(
        kind=CauseKind.ATTEMPT,
        sentence=f"attempt {attempt.number} ended as {attempt.outcome} at {instant_in_words(attempt.finished_at, facts.now)}"
        f"{_on(attempt.worker, facts.names)}{error}",
        ids=(format_execution_id(attempt.execution_id),),
        since=attempt.started_at,
        until=attempt.finished_at,
    )


def held_by(holder: Execution, now: datetime) -> Cause:
    """Another execution of the job was unfinished."""
    since, end = holder.scheduled_for, holder.finished_at
    lasted = duration_in_words((end or now) - since)
    verb = f"held it for {lasted}" if end is not None else f"has held it for {lasted}, and still does"
    return Cause(
        kind=CauseKind.HELD_BY,
        sentence=f"{format_execution_id(holder.id)} {verb} ({span_in_words(since, end, now)})",
        ids=(format_execution_id(holder.id),),
        since=since,
        until=end,
    )


def queue_paused(pause: QueueInterval, now: datetime) -> Cause:
    """A pause of the queue."""
    verb = "was" if pause.until is not None else "has been"
    return Cause(
        kind=CauseKind.QUEUE_PAUSED,
        sentence=f"queue «{pause.queue}» {verb} paused by {pause.actor} {span_in_words(pause.since, pause.until, now)}"
        f"{_because(pause.reason)}",
        ids=(f"queue:{pause.queue}",),
        since=pause.since,
        until=pause.until,
        actor=pause.actor,
    )


def frozen(freeze: Freeze, now: datetime) -> Cause:
    """A freeze."""
    verb = "was" if freeze.until_at <= now else "is" if freeze.from_at <= now else "will be"
    return Cause(
        kind=CauseKind.FROZEN,
        sentence=f"{freeze.what} {verb} frozen by {freeze.actor} {span_in_words(freeze.from_at, freeze.until_at, now)}"
        f"{_because(freeze.reason)}; afterwards: `{freeze.afterwards}`",
        ids=(format_freeze_id(freeze.id),),
        since=freeze.from_at,
        until=freeze.until_at,
        actor=freeze.actor,
    )


def no_scheduler(since: datetime, until: datetime, now: datetime) -> Cause:
    """A time in which no scheduler recorded anything of the job."""
    return Cause(
        kind=CauseKind.NO_SCHEDULER,
        sentence=f"no scheduler recorded an occurrence of this job {span_in_words(since, until, now)} "
        f"({duration_in_words(until - since)})",
        since=since,
        until=until,
    )


def changed(kind: CauseKind, words: str, change: Change | None, now: datetime, until: datetime | None = None) -> Cause:
    """A change of the job or of the occurrence, by its entry in the audit; without one, its author is not known."""
    if change is None:
        return Cause(kind=kind, sentence=f"{words}; the audit no longer says by whom", until=until)
    lasting = "" if until is None else f" until {instant_in_words(until, now)}"
    return Cause(
        kind=kind,
        sentence=f"{words} by {change.actor} at {instant_in_words(change.at, now)}{lasting}{_because(change.reason)}",
        ids=(change.id,),
        since=change.at,
        until=until,
        actor=change.actor,
    )


def clock_change_at(rule: Schedule, instant: datetime) -> Cause | None:
    """What a clock change does to the wall time of an instant; None if there is none, or the schedule does not follow a clock."""
    if not isinstance(rule, Cron):
        return None
    period = next(offset_periods_from(rule.timezone, instant), None)
    if period is None:
        return None
    wall = period.wall(instant)
    if period.gap and instant == period.start:
        skipped = f"{wall - period.gap:%H:%M} to {wall:%H:%M}"
        sentence = (
            f"the clock of {rule.timezone} went forward from {skipped} at this instant, and on_gap is `{rule.on_gap}`"
        )
    elif period.reading is not WallTimeRepeat.ONCE:
        sentence = (
            f"the clock of {rule.timezone} showed {wall:%H:%M} twice, this is the {period.reading} time, "
            f"and on_repeat is `{rule.on_repeat}`"
        )
    else:
        return None
    return Cause(kind=CauseKind.CLOCK_CHANGE, sentence=sentence, since=period.start, until=period.end)


def calendar_at(rule: Schedule, instant: datetime) -> Cause | None:
    """The calendars that leave an instant out of a schedule, or have moved an occurrence to it; None if there are none."""
    notes = (occurrence.note for occurrence in rule.occurrences(instant - MICROSECOND, instant, with_skipped=True))
    for note in notes:
        if note is not None and note.kind is NoteKind.LEFT_OUT_BY_CALENDAR:
            names = listed([f"«{name}»" for name in note.calendars])
            if (
                any(rule.left_out(instant - MICROSECOND, instant))
                or not isinstance(rule, Cron)
                or rule.calendar is None
            ):
                sentence = f"the schedule leaves {note.wall:%A %d %B} out by the calendar {names}"
            else:
                shift = rule.calendar.shift
                sentence = f"the calendar {names} moves {note.wall:%A %d %B} to the {shift} day that is allowed"
            return Cause(
                kind=CauseKind.CALENDAR, sentence=sentence, ids=tuple(f"calendar:{name}" for name in note.calendars)
            )
        if note is not None and note.kind is NoteKind.MOVED_BY_CALENDAR:
            return Cause(kind=CauseKind.CALENDAR, sentence=f"a calendar moved it here from {note.wall:%A %d %B %H:%M}")
    return None


def span_in_words(since: datetime, until: datetime | None, now: datetime) -> str:
    """`from 01:50:00 UTC to 02:25:00 UTC`, or `since 01:50:00 UTC`."""
    start = instant_in_words(since, now)
    return f"since {start}" if until is None else f"from {start} to {instant_in_words(until, now)}"


def _because(reason: str | None) -> str:
    return f": {quote_text(reason, _LONGEST_ERROR)}" if reason else ""


def _error_words(kind: str | None, message: str | None) -> str:
    return quote_text(": ".join(part for part in (kind, message) if part), _LONGEST_ERROR)


def _on(worker: Incarnation | None, names: Mapping[Incarnation, str]) -> str:
    return "" if worker is None else f" on {names.get(worker) or format_id('wrk', worker)}"
