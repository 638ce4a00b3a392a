"""What an edit, a pause, a resumption, a deletion or a sync with declared jobs changes in a job and its pending occurrence.

Each change is a pure function from a `JobSnapshot`, which the store reads, to a `JobChange`, which the store writes in the same
transaction. The store repeats both when a scheduler wrote the next occurrence meanwhile. So a change and a promotion, in any order, leave
one truth.

The rules of the ledger: everything that a job owed up to its watermark is recorded. A new version is responsible for occurrences after
*now* and after the last promoted one; what the old version still owed by then is recorded as skipped. A pause keeps the watermark in
`paused_from`; the resumption records what fell into the pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any

import orjson

from timeball.domain.follow_ups import shown_call
from timeball.domain.job import CauseJob, Job, KnownCalendars, calendar_of, come_after, redefine_job, spec_of
from timeball.domain.job_fields import SPEC_FIELDS, JobSpec
from timeball.domain.policies import SkipReason
from timeball.domain.scheduling.calendars import CalendarVersion, unresolved
from timeball.domain.scheduling.civil_time import MICROSECOND, tzdata_version
from timeball.domain.scheduling.occurrences import (
    NextOccurrence,
    SkippedRange,
    first_occurrence,
    skipped_between,
    split_first,
)
from timeball.domain.scheduling.schedule import After, Cron, Every, Once
from timeball.errors import Conflict, InvalidInput, quote_text


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A job as a transaction reads it: its row is locked, and its pending occurrence is taken away."""

    job: Job
    pending: NextOccurrence | None
    # The latest scheduled instant that has been promoted and is not finished: it may lie a moment ahead.
    promoted_until: datetime | None
    now: datetime
    # The jobs that a change names as those to come after, locked.
    causes: Mapping[str, CauseJob] = field(default_factory=dict)
    # The calendars of the job, and others that a change names, in their present versions; they cannot change meanwhile.
    calendars: Mapping[str, CalendarVersion] = field(default_factory=dict)

    @property
    def after(self) -> datetime:
        """From here on a new rule answers: nothing up to here can be owed twice."""
        known = (self.now, self.promoted_until, self.pending.watermark if self.pending else None, self.job.paused_from)
        return max(instant for instant in known if instant is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What to write for a job, in one transaction."""

    job: Job
    action: str
    pending: NextOccurrence | None = None
    skipped: SkippedRange | None = None
    # The instant from which a new version answers; None when the definition stays as it is.
    effective_from: datetime | None = None
    # The instant after which no version answers any more.
    closes_at: datetime | None = None
    resume_at: datetime | None = None
    # Scheduled executions that wait are recorded as skipped, for this reason; other waiting ones are parked.
    withdraw: SkipReason | None = None
    # All waiting executions are cancelled, for this reason.
    cancel_waiting: str | None = None
    unpark: bool = False
    reason: str | None = None


def skipped_with_tzdata(snapshot: JobSnapshot, skipped: SkippedRange) -> tuple[tuple[SkippedRange, str], ...]:
    """What a change records as skipped, each with the time-zone data that named it: others than ours may have named what was pending."""
    pending, ours = snapshot.pending, tzdata_version()
    if pending is None or pending.scheduled_for != skipped.first or pending.tzdata in ("", ours):
        return ((skipped, ours),)
    first, *rest = split_first(snapshot.job.rule, skipped)
    return ((first, pending.tzdata), *((part, ours) for part in rest))


def closing_tzdata(snapshot: JobSnapshot) -> str | None:
    """The time-zone data by which a version that ends here owes nothing; None if that is unknown.

    What waits was the next by the data that named it. What is owed by now is recorded by ours, and so is what fell into a pause.
    """
    pending = snapshot.pending
    if pending is not None and pending.scheduled_for > snapshot.now:
        return pending.tzdata or None
    return tzdata_version() if pending is not None or snapshot.job.is_paused else None


def edit_job(snapshot: JobSnapshot, changes: Mapping[str, Any], shards: int) -> JobChange:
    """Change some fields; takes effect for the next occurrence."""
    old = snapshot.job
    job = redefine_job(old, changes, snapshot.now, shards, snapshot.calendars)
    if isinstance(job.rule, After) and changes.get("after") is not None:
        job = come_after(job, snapshot.causes)
    if job.name is None and old.name is not None:
        raise InvalidInput("name cannot be taken away from a job; give it another one", field="name")
    if job.is_enqueued != old.is_enqueued:
        raise InvalidInput(
            "a one-off without a name cannot become another kind of job; create a new one", field="schedule"
        )
    return _put_into_force(snapshot, job)


def follow_calendars(snapshot: JobSnapshot) -> JobChange | None:
    """Let a job use the present versions of its calendars; None if it does so already, or has to wait.

    It waits while an occurrence is owed: what is due was named by the old days, and runs. A job whose calendars leave it no day comes to
    its end.
    """
    job, pending = snapshot.job, snapshot.pending
    rule, calendar = job.rule, calendar_of(job.rule)
    if calendar is None or not isinstance(rule, Cron | Every):
        return None
    fresh = calendar.in_versions(snapshot.calendars)
    is_owed = pending is not None and pending.scheduled_for <= snapshot.now
    if fresh == calendar or (is_owed and not job.is_paused):
        return None
    changed = replace(job, rule=replace(rule, calendar=fresh), version=job.version + 1)
    return replace(_put_into_force(snapshot, changed), action="job.calendar")


def _put_into_force(snapshot: JobSnapshot, job: Job) -> JobChange:
    """What makes a new version of a job answer from now on."""
    if snapshot.job.is_paused:
        return _edit_paused(snapshot, job)
    pending = _pending_after_edit(snapshot, job, snapshot.after)
    return JobChange(
        job=job,
        action="job.update",
        pending=pending,
        skipped=_owed_skip(snapshot, SkipReason.EDITED, pending),
        effective_from=snapshot.after,
    )


def _edit_paused(snapshot: JobSnapshot, job: Job) -> JobChange:
    """A paused job stays paused; what the old rule owed until now is recorded, and the new one answers from now on."""
    paused_from = snapshot.after
    if isinstance(job.rule, Once) and _is_moved(snapshot.job, job.rule):
        # Set to an instant that has passed, it is owed all the same.
        paused_from = min(paused_from, job.rule.scheduled_at - MICROSECOND)
    return JobChange(
        job=replace(job, paused_from=paused_from, paused_left=_left_after_edit(snapshot, job)),
        action="job.update",
        skipped=_paused_skip(snapshot),
        effective_from=snapshot.after,
        resume_at=job.paused_until,
    )


def _pending_after_edit(snapshot: JobSnapshot, job: Job, after: datetime) -> NextOccurrence | None:
    if isinstance(job.rule, Once):
        return _once_after_edit(snapshot, job, job.rule, after)
    return first_occurrence(job, after, _left_after_edit(snapshot, job))


def _is_moved(old: Job, rule: Once) -> bool:
    return not isinstance(old.rule, Once) or old.rule.scheduled_at != rule.scheduled_at


def _once_after_edit(snapshot: JobSnapshot, job: Job, rule: Once, after: datetime) -> NextOccurrence | None:
    if snapshot.pending is None and not _is_moved(snapshot.job, rule):
        return None
    fresh = first_occurrence(job, after)
    if fresh is not None and job.is_enqueued and snapshot.pending is None:
        raise Conflict(
            "this one-off job has run or is running; its time cannot be changed", hint="retry it, or create a new one"
        )
    return fresh


def _left_after_edit(snapshot: JobSnapshot, job: Job) -> int | None:
    """How many executions are left: a new limit counts from what was used of the old one."""
    old_limit, new_limit = snapshot.job.max_executions, job.max_executions
    left = _executions_left(snapshot)
    if new_limit is None or old_limit is None or left is None:
        return new_limit
    return max(new_limit - (old_limit - left), 0)


def _owed_skip(snapshot: JobSnapshot, reason: SkipReason, kept: NextOccurrence | None = None) -> SkippedRange | None:
    """What the pending occurrence and those behind it owed until now, unless it is *kept*."""
    pending = snapshot.pending
    if pending is None or pending.scheduled_for > snapshot.now or snapshot.job.is_enqueued:
        return None
    if kept is not None and kept.scheduled_for == pending.scheduled_for:
        return None
    return skipped_between(snapshot.job.rule, pending.scheduled_for, snapshot.now, reason)


def refuse_past(until: datetime | None, now: datetime) -> None:
    """Raise InvalidInput if the end of a pause has passed."""
    if until is not None and until <= now:
        raise InvalidInput(
            f"until is {until.isoformat()}, which has passed; expected an instant in the future", field="until"
        )


def pause_job(snapshot: JobSnapshot, until: datetime | None, reason: str | None) -> JobChange:
    """Stop a job's schedule: nothing of it starts until it is resumed, by hand or at *until*."""
    job = snapshot.job
    refuse_past(until, snapshot.now)
    paused_from = job.paused_from if job.is_paused else _watermark(snapshot)
    return JobChange(
        job=replace(
            job,
            paused_at=job.paused_at or snapshot.now,
            paused_until=until,
            paused_from=paused_from,
            paused_left=_executions_left(snapshot),
            pause_reason=reason,
        ),
        action="job.pause",
        resume_at=until,
        withdraw=SkipReason.PAUSED,
        reason=reason,
    )


def _executions_left(snapshot: JobSnapshot) -> int | None:
    """How many executions a job has left; None if it has no limit, or if its rule has come to its end before."""
    job, pending = snapshot.job, snapshot.pending
    if pending is not None:
        return pending.executions_left
    if job.is_paused:
        return job.paused_left
    # The rule goes on and yet nothing is pending: all were used up.
    is_used_up = job.max_executions is not None and job.rule.next_after(snapshot.after) is not None
    return 0 if is_used_up else None


def _watermark(snapshot: JobSnapshot) -> datetime:
    pending = snapshot.pending
    if pending is not None and isinstance(snapshot.job.rule, Once):
        # It may have been set to an instant that had passed: it is still owed.
        return min(pending.watermark, pending.scheduled_for - MICROSECOND)
    if pending is not None:
        return max(pending.watermark, snapshot.promoted_until or pending.watermark)
    return max(snapshot.promoted_until or snapshot.now, snapshot.now)


def resume_job(snapshot: JobSnapshot, reason: str | None = None) -> JobChange:
    """Let a paused job go on from now: no burst, and what fell into the pause is recorded as skipped."""
    job = snapshot.job
    if not job.is_paused:
        return JobChange(job=job, action="job.resume", pending=snapshot.pending, reason=reason)
    resumed = replace(job, paused_at=None, paused_until=None, paused_from=None, paused_left=None, pause_reason=None)
    return JobChange(
        job=resumed,
        action="job.resume",
        pending=_pending_after_pause(snapshot, resumed, snapshot.after),
        skipped=_paused_skip(snapshot),
        unpark=True,
        reason=reason,
    )


def _pending_after_pause(snapshot: JobSnapshot, job: Job, after: datetime) -> NextOccurrence | None:
    if job.is_enqueued and snapshot.pending is None:
        # Its one execution is parked elsewhere, runs, or has come to its end: a cancellation, perhaps, ahead of its instant.
        return None
    paused_from = snapshot.job.paused_from
    if isinstance(job.rule, Once) and paused_from is not None and job.rule.scheduled_at <= paused_from:
        return None
    if isinstance(job.rule, Once) and job.rule.scheduled_at <= snapshot.now:
        # Its instant fell into the pause and has been recorded as skipped.
        return None
    return first_occurrence(job, after, snapshot.job.paused_left)


def _paused_skip(snapshot: JobSnapshot) -> SkippedRange | None:
    job = snapshot.job
    if job.is_enqueued or job.paused_left == 0:
        # The one was parked, and runs when the pause is over; the other had nothing left to run.
        return None
    first = None if job.paused_from is None else job.rule.next_after(job.paused_from)
    if first is None or first > snapshot.now:
        return None
    return skipped_between(job.rule, first, snapshot.now, SkipReason.PAUSED)


def delete_job(snapshot: JobSnapshot, reason: str | None) -> JobChange:
    """Take a job out of service: its name is free again, what waits is cancelled, its history stays."""
    job = snapshot.job
    skipped = _paused_skip(snapshot) if job.is_paused else _owed_skip(snapshot, SkipReason.DELETED)
    return JobChange(
        job=replace(job, deleted_at=snapshot.now),
        action="job.delete",
        skipped=skipped,
        closes_at=snapshot.after,
        cancel_waiting=reason or "the job was deleted",
        reason=reason,
    )


# Jobs as they are declared, compared with those that are there: what would have to be done, and nothing done yet.


class SyncAction(StrEnum):
    """What a declaration asks for."""

    CREATE = "create"
    CHANGE = "change"
    LEAVE = "leave"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedJob:
    """One job of a plan: how it is, how it is to be, and which fields differ.

    A job to be created has no *before*, one to be deleted no *after*. *spec* is the declaration.
    """

    name: str
    step: SyncAction
    before: Job | None = None
    after: Job | None = None
    spec: JobSpec | None = None
    fields: Mapping[str, Any]

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Each field that differs: its value before and after."""
        if self.before is None or self.after is None:
            return {}
        old, new = _values(self.before), _values(self.after)
        return {name: (old[name], new[name]) for name in sorted(old) if old[name] != new[name]}


def check_declaration(spec: JobSpec) -> None:
    """Refuse a declaration that does not say which job it is, or when it runs.

    A declaration says how a job is to be, and is repeated. A job with no time runs now, which would be another now each time.
    """
    if spec.name is None:
        raise InvalidInput("a declared job needs a name", field="name")
    if not spec.has_time:
        raise InvalidInput(
            f"the declared job {spec.name!r} has no time, so every sync would run it again",
            field="schedule",
            hint='say "schedule": "manual" for a job that runs when it is triggered, or give it a time; POST /jobs runs a job now',
        )


def declared_fields(spec: JobSpec) -> dict[str, Any]:
    """The fields that a declaration gives a job that is there: all of them."""
    fields = {name: getattr(spec, name) for name in SPEC_FIELDS}
    if spec.interval_seconds is not None and spec.scheduled_at is None:
        # An interval without an anchor keeps the one it has: a restart must not shift the rhythm.
        fields.pop("scheduled_at")
    return fields


def declared_changes(
    present: Job, spec: JobSpec, now: datetime, shards: int, calendars: KnownCalendars = None
) -> tuple[Job, dict[str, Any]]:
    """The job that a declaration wants in place of this one, and the fields to change for it: none, if they are the same."""
    changes = declared_fields(spec)
    fresh = redefine_job(present, changes, present.created_at or now, shards, calendars)
    # The job that it came after is deleted: another one may have its name by now.
    has_lost_cause = isinstance(present.rule, After) and present.rule.cause_id is None
    return (present, {}) if _is_same(present, fresh) and not has_lost_cause else (fresh, changes)


def plan_sync(
    present: Mapping[str, Job],
    declared: Sequence[tuple[JobSpec, Job]],
    pruned: Sequence[Job],
    now: datetime,
    shards: int,
    calendars: KnownCalendars = None,
) -> list[SyncedJob]:
    """What is to be done so that the jobs are as declared; *declared* come with the job that each would make anew."""
    _check_causes(declared, present)
    names = [job.name for _, job in declared]
    steps = [_planned(present.get(job.name or ""), spec, job, now, shards, calendars) for spec, job in declared]
    seen = {name: number for number, name in enumerate(names)}
    for number, name in enumerate(names):
        if seen[name] != number:
            raise InvalidInput(f"two of the jobs are named {name!r}", field=f"jobs/{seen[name]}/name")
    gone = [SyncedJob(name=job.name or "", step=SyncAction.DELETE, before=job, fields={}) for job in pruned]
    return [*steps, *(one for one in gone if one.name not in seen)]


def _check_causes(declared: Sequence[tuple[JobSpec, Job]], present: Mapping[str, Job]) -> None:
    """Refuse jobs that come after one that is neither declared nor there, and jobs that come after each other in a circle."""
    jobs = {name: job for name, job in present.items() if not job.is_enqueued}
    jobs |= {job.name: job for _, job in declared if job.name is not None}
    for number, (spec, job) in enumerate(declared):
        passed = [job.name]
        following = job
        while isinstance(rule := following.rule, After):
            cause = jobs.get(rule.cause)
            why = None
            if cause is None:
                why = (
                    f"after is {quote_text(rule.cause)}, and there is no job of this name" if following is job else None
                )
            elif cause.name in passed:
                why = f"after is {quote_text(spec.after or '')}, which makes a circle: {' after '.join(map(str, [*passed, cause.name]))}"
            if why is not None:
                raise InvalidInput(why, field=f"jobs/{number}/after")
            if cause is None:
                break
            passed.append(cause.name)
            following = cause


def _planned(
    present: Job | None, spec: JobSpec, job: Job, now: datetime, shards: int, calendars: KnownCalendars
) -> SyncedJob:
    name = job.name or ""
    if present is None:
        return SyncedJob(name=name, step=SyncAction.CREATE, after=job, spec=spec, fields={})
    after, fields = declared_changes(present, spec, now, shards, calendars)
    step = SyncAction.CHANGE if fields else SyncAction.LEAVE
    return SyncedJob(name=name, step=step, before=present, after=after, spec=spec, fields=fields)


def _values(job: Job) -> dict[str, Any]:
    spec = spec_of(job)
    return {name: getattr(spec, name) for name in SPEC_FIELDS} | {"payload": orjson.loads(job.payload)}


def _is_same(one: Job, other: Job) -> bool:
    return _comparable(one) == _comparable(other) and orjson.loads(one.payload) == orjson.loads(other.payload)


# Without what differs in any case; the database writes a payload in its own way.
_COMPARED = attrgetter(
    *(
        attribute.name
        for attribute in fields(Job)
        if attribute.name not in ("rule", "payload", "version", "created_at", "updated_at", "on_success", "on_failure")
    )
)


def _comparable(job: Job) -> tuple[Any, ...]:
    """What a declaration says of a job; it names calendars and not their versions."""
    rule, calendar = job.rule, calendar_of(job.rule)
    if calendar is not None and isinstance(rule, Cron | Every):
        rule = replace(rule, calendar=calendar.in_versions(unresolved(calendar.names)))
    return *_COMPARED(job), rule, shown_call(job.on_success), shown_call(job.on_failure)
