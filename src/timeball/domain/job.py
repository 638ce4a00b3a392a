"""Jobs: what to run and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never
from uuid import UUID

import orjson

from timeball.domain.expectations import check_expect
from timeball.domain.expiry import Expiry
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS, check_call, check_group
from timeball.domain.job_fields import (
    GROWING_BACKOFF,
    MAX_META_BYTES,
    MAX_SPAN_MS,
    SPEC_FIELDS,
    TIME_FIELDS,
    Choice,
    Expectations,
    FollowUp,
    Instant,
    Interval,
    JobField,
    JobSpec,
    Json,
    JsonObject,
    Label,
    Labels,
    Spans,
    Text,
    Whole,
)
from timeball.domain.policies import (
    Delivery,
    IfExists,
    MisfireRule,
    OnGap,
    OnRepeat,
    Overlap,
    Policy,
    RetryPolicy,
    Shift,
)
from timeball.domain.scheduling.calendars import CalendarRule, CalendarVersion, calendar_rule, unresolved
from timeball.domain.scheduling.civil_time import format_instant, parse_instant
from timeball.domain.scheduling.rrule import continued_rrule, is_rrule
from timeball.domain.scheduling.schedule import (
    After,
    Cron,
    Every,
    Manual,
    Once,
    Rrule,
    Schedule,
    ScheduleKind,
    parse_schedule,
)
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import ExecutionId, JobId, jitter_of, shard_of
from timeball.domain.values.json_text import check_small_object, to_json
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput, quote_text

if TYPE_CHECKING:
    from timeball.domain.execution import ExecutionState

# The calendars that a job may name, by name; None where they are not looked up.
KnownCalendars: TypeAlias = Mapping[str, CalendarVersion] | None
_MOST_CALENDARS = 10

# A job is reached at /jobs/{name}, and these stand there already.
RESERVED_NAMES = frozenset({"bulk", "export", "sync"})


class JobStatus(StrEnum):
    """Whether a job goes on. `finished` is derived: nothing of it waits or runs, and nothing will."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is stored: checked, with its instants in UTC."""

    id: JobId
    name: str | None
    description: str | None
    handler: str
    payload: str
    rule: Schedule
    timezone: str
    max_executions: int | None
    jitter_seconds: int
    misfire: MisfireRule
    overlap: Overlap
    queue: str
    priority: int
    retry: RetryPolicy
    timeout_ms: int | None
    delivery: Delivery
    max_running: int | None
    limit_key: str | None
    unique_key: str | None
    start_within_seconds: int | None
    pause_after_failures: int | None
    tags: tuple[str, ...]
    owner: str | None
    shard: int
    # Not changed in place: jobs share it.
    meta: dict[str, Any] | None = None
    expires_at: datetime | None = None
    if_exists: IfExists = IfExists.KEEP
    unique_for_seconds: int | None = None
    version: int = 1
    declared_by: str | None = None
    # Who made it: a key, a person or a program.
    created_by: str | None = None
    # Its payload names secrets and was written by someone who is no administrator: it may use those alone that are bound.
    bound_secrets_only: bool = False
    # Calls that follow the end of an execution, as `domain.follow_ups` reads them. Not changed in place, either.
    on_success: dict[str, Any] | None = None
    on_failure: dict[str, Any] | None = None
    # What is expected of it, as `domain.expectations` reads it. Not changed in place.
    expect: dict[str, Any] | None = None
    # A job comes after this one, or did once.
    is_followed: bool = False
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    paused_from: datetime | None = None
    paused_left: int | None = None
    pause_reason: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def kind(self) -> ScheduleKind:
        return self.rule.kind

    @property
    def has_follow_ups(self) -> bool:
        """Whether something follows the end of its executions."""
        return self.on_success is not None or self.on_failure is not None or self.is_followed

    @property
    def is_enqueued(self) -> bool:
        """Whether this is a one-off without a name: its execution bears its id, and the janitor deletes both together."""
        return self.name is None and isinstance(self.rule, Once)

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def jitter(self) -> timedelta:
        """How far behind its exact instants this job runs: always the same, so that its rhythm stays even."""
        return jitter_of(self.id, self.jitter_seconds)

    def expiry_of(self, scheduled_for: datetime) -> datetime | None:
        """By when the execution of an occurrence must have begun: counted from when it is to run, with its jitter."""
        expiry = Expiry(start_within_seconds=self.start_within_seconds, expires_at=self.expires_at)
        return expiry.instant(scheduled_for + self.jitter)

    @property
    def effective_limit(self) -> int | None:
        """How many executions that share `limit_key` may be ready or running together."""
        return 1 if self.is_serial else self.max_running

    @property
    def is_serial(self) -> bool:
        """Whether its occurrences wait for each other, which they do by a limit of one."""
        return self.overlap.is_serial and self.rule.is_recurring


@dataclass(frozen=True, slots=True)
class JobSituation:
    """The state of a job beside its definition: whether it has unfinished executions, the next run, and the last result."""

    is_live: bool
    next_run_at: datetime | None
    last_id: ExecutionId | None = None
    last_state: ExecutionState | None = None
    last_finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and its situation."""

    job: Job
    situation: JobSituation

    @property
    def status(self) -> JobStatus:
        if self.job.is_paused:
            return JobStatus.PAUSED
        rule = self.job.rule
        is_open = self.situation.is_live or isinstance(rule, Manual) or (isinstance(rule, After) and rule.cause_id)
        return JobStatus.ACTIVE if is_open else JobStatus.FINISHED


# The fields that `RetryPolicy` holds, and those that `Job` has as attributes of the same name.
RETRY_FIELDS = tuple(attribute.name for attribute in fields(RetryPolicy))
JOB_ATTRIBUTES = tuple(
    attribute.name
    for attribute in fields(Job)
    if attribute.name in SPEC_FIELDS.keys() - {"payload", "misfire", "expires_at"}
)


def define_job(
    spec: JobSpec,
    job_id: JobId,
    now: datetime,
    shards: int,
    created_by: str | None = None,
    calendars: KnownCalendars = None,
) -> Job:
    """Check a spec and make it a job; InvalidInput says which field does not fit, and why.

    *calendars* are those that the spec may name, in their present versions. Without them their days are unknown: the job cannot be
    stored, only compared or copied.
    """
    rule = rule_of(spec, now, calendars)
    values: dict[str, Any] = {
        name: None if value is None and is_optional else check(value)
        for name, is_optional, check in _CHECKS
        for value in (getattr(spec, name),)
    }
    job = Job(
        id=job_id,
        payload=to_json(spec.payload),
        rule=rule,
        misfire=_misfire_rule(values),
        retry=RetryPolicy(**{name: values[name] for name in RETRY_FIELDS}),
        expires_at=_expires_at(spec, rule),
        shard=shard_of(job_id, shards),
        created_by=created_by,
        **{name: values[name] for name in JOB_ATTRIBUTES},
    )
    if isinstance(rule, Once):
        # Its handler may expect something of its other jobs.
        job = replace(job, expect=None)
    _check_key(job)
    _check_after(job)
    return _with_limit_key(job)


def rule_of(spec: JobSpec, now: datetime, calendars: KnownCalendars) -> Schedule:
    """The schedule of a spec; *calendars* as in `define_job`."""
    return parse_schedule(
        schedule=spec.schedule,
        interval_seconds=spec.interval_seconds,
        scheduled_at=spec.scheduled_at,
        after=spec.after,
        timezone=spec.timezone,
        on_gap=spec.on_gap,
        on_repeat=spec.on_repeat,
        starts_at=spec.starts_at,
        ends_at=spec.ends_at,
        name=spec.name,
        calendar=_calendar_rule(spec, calendars),
        now=now,
    )


def spec_of(job: Job) -> JobSpec:
    """The spec that would make this job again, without its payload; an edit changes some of its fields."""
    return JobSpec(**_values_of_spec(job))


def _values_of_spec(job: Job) -> dict[str, Any]:
    return spec_values(job) | {"payload": None, "limit_key": None if has_own_key(job) else job.limit_key}


def spec_values(job: Job) -> dict[str, Any]:
    """The value of every field of a job; the payload is JSON text, and a key that limits this job alone is among them."""
    rule, misfire, calendar = job.rule, job.misfire, calendar_of(job.rule)
    return {
        "payload": job.payload,
        "schedule": _schedule_text(rule),
        "interval_seconds": rule.interval_seconds if isinstance(rule, Every) else None,
        "scheduled_at": _anchor(rule),
        "after": rule.cause if isinstance(rule, After) else None,
        "on_gap": rule.on_gap if isinstance(rule, Cron) else OnGap.NEXT_VALID,
        "on_repeat": rule.on_repeat if isinstance(rule, Cron) else OnRepeat.FIRST,
        "skip_on": tuple(one.name for one in calendar.skip_on) if calendar else (),
        "only_on": tuple(one.name for one in calendar.only_on) if calendar else (),
        "shift": calendar.shift if calendar else Shift.NONE,
        "starts_at": rule.starts_at,
        "ends_at": rule.ends_at,
        "misfire": misfire.policy,
        "misfire_grace_seconds": int(misfire.grace.total_seconds()),
        "misfire_cap": misfire.cap,
        "misfire_max_age_seconds": None if misfire.max_age is None else int(misfire.max_age.total_seconds()),
        "expires_at": job.expires_at,
        **{name: getattr(job.retry, name) for name in RETRY_FIELDS},
        **{name: getattr(job, name) for name in JOB_ATTRIBUTES},
    }


def calendar_of(rule: Schedule) -> CalendarRule | None:
    """The calendars of a schedule."""
    return rule.calendar if isinstance(rule, Cron | Every) else None


def _calendar_rule(spec: JobSpec, calendars: KnownCalendars) -> CalendarRule | None:
    if not spec.skip_on and not spec.only_on and spec.shift == Shift.NONE:
        return None
    skip_on, only_on = (_check_labels(getattr(spec, name), name, _MOST_CALENDARS) for name in ("skip_on", "only_on"))
    shift = Shift(_check_word(spec.shift, Shift, "shift"))
    if shift is not Shift.NONE and not skip_on:
        raise InvalidInput(f"shift is {shift}, but skip_on names no calendar whose days could move", field="shift")
    known = unresolved([*skip_on, *only_on]) if calendars is None else calendars
    return calendar_rule(skip_on, only_on, shift, spec.timezone, known)


def has_own_key(job: Job) -> bool:
    """Whether the limit of a job is its own: no other job has this key."""
    return job.limit_key == f"job:{job.id}"


def redefine_job(
    job: Job, changes: Mapping[str, Any], now: datetime, shards: int, calendars: KnownCalendars = None
) -> Job:
    """The job with some fields changed, checked as a whole; its version goes up by one. *calendars* as in `define_job`."""
    unknown = sorted(changes.keys() - SPEC_FIELDS.keys())
    if unknown:
        raise InvalidInput(
            f"unknown field {unknown[0]!r}; known are {', '.join(sorted(SPEC_FIELDS))}", field=unknown[0]
        )
    present = _values_of_spec(job)
    values = present | _other_backoff(changes) | other_kinds(present, changes) | {"payload": {}, **changes}
    if isinstance(job.rule, Rrule) and is_rrule(changes.get("schedule")) and changes.get("starts_at") is None:
        # A rule that does not say from when it counts goes on counting as before.
        values["schedule"] = continued_rrule(str(changes["schedule"]), job.rule.expression)
    spec = JobSpec(**values)
    if not spec.has_time:
        raise _lost_time(job, changes)
    fresh = define_job(spec, job.id, now, shards, calendars=calendars)
    kept_payload = fresh.payload if "payload" in changes else job.payload
    return replace(
        fresh,
        rule=with_same_cause(fresh.rule, job.rule),
        payload=kept_payload,
        version=job.version + 1,
        declared_by=job.declared_by,
        created_by=job.created_by,
        bound_secrets_only=job.bound_secrets_only,
        is_followed=job.is_followed,
        paused_at=job.paused_at,
        paused_until=job.paused_until,
        paused_from=job.paused_from,
        paused_left=job.paused_left,
        pause_reason=job.pause_reason,
        created_at=job.created_at,
    )


def copy_spec(job: Job, overrides: dict[str, Any], now: datetime) -> JobSpec:
    """The spec for a copy of a job; the copy of a named job is called `<name>-copy`, unless another name is given."""
    if job.expires_at is not None and job.expires_at <= now:
        # A copy that has expired before it exists is of no use.
        overrides = {"expires_at": None} | overrides
    # The number of shards does not matter: only the checked fields are used.
    changed = redefine_job(job, overrides, now, 1)
    name = changed.name if "name" in overrides or changed.name is None else f"{changed.name}-copy"
    # Two jobs under one unique key would be one.
    spec = replace(spec_of(changed), name=name, payload=orjson.loads(changed.payload))
    if "unique_key" in overrides:
        return spec
    return replace(spec, unique_key=None, if_exists=IfExists.KEEP, unique_for_seconds=None)


def other_kinds(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of other schedules than *changes* give, emptied: a cron expression given to an interval job takes the interval's place.

    *values* are the fields of the job that they concern.
    """
    if changes.get("after") is not None:
        return dict.fromkeys(("schedule", "interval_seconds", "scheduled_at", "expires_at"))
    emptied: dict[str, Any] = {}
    if any(changes.get(name) is not None for name in TIME_FIELDS):
        emptied["after"] = None
    if changes.get("schedule") is not None:
        return emptied | dict.fromkeys(("interval_seconds", "scheduled_at", "expires_at"))
    if changes.get("interval_seconds") is not None:
        keeps_anchor = values.get("interval_seconds") is not None
        return emptied | dict.fromkeys(
            ("schedule", "expires_at") if keeps_anchor else ("schedule", "scheduled_at", "expires_at")
        )
    if changes.get("scheduled_at") is not None:
        return emptied | {"schedule": None}
    if "interval_seconds" in changes and values.get("interval_seconds") is not None:
        # The anchor goes with its interval: left alone, it would be the instant of a one-off.
        return emptied | {"scheduled_at": None}
    return emptied


def _other_backoff(changes: Collection[str]) -> dict[str, Any]:
    """The list of pauses, emptied if *changes* replace it: a first or a longest pause is given in its place."""
    return {"backoff_ms": ()} if GROWING_BACKOFF & set(changes) else {}


def _lost_time(job: Job, changes: Mapping[str, Any]) -> InvalidInput:
    """Only a new job runs now for want of a time: an edit that takes the time away may mean several things."""
    field = next(name for name in TIME_FIELDS if name in changes)
    return InvalidInput(
        f"{field} is null, and the job (now {job.kind}) would have no time",
        field=field,
        hint='say "schedule": "manual" for a job that runs when it is triggered, or give it another time',
    )


def _schedule_text(rule: Schedule) -> str | None:
    match rule:
        case Cron(expression=expression):
            return expression
        case Manual(kind=kind):
            return kind.value
        case Every() | Once() | After():
            return None


def _anchor(rule: Schedule) -> datetime | None:
    match rule:
        case Every(anchor=anchor):
            return anchor
        case Once(scheduled_at=scheduled_at):
            return scheduled_at
        case Cron() | Manual() | After():
            return None


def _expires_at(spec: JobSpec, rule: Schedule) -> datetime | None:
    if spec.expires_at is None:
        return None
    instant = parse_instant(spec.expires_at, spec.timezone, "expires_at")
    if not isinstance(rule, Once):
        raise InvalidInput(
            f"expires_at is {format_instant(instant)}, but the job is not a one-off: each of its executions would expire then",
            field="expires_at",
            hint="give start_within_seconds, or end its schedule with ends_at",
        )
    if instant <= rule.scheduled_at:
        raise InvalidInput(
            f"expires_at is {format_instant(instant)}, expected an instant after {format_instant(rule.scheduled_at)}, when it runs",
            field="expires_at",
            hint="move it too, or set it to null",
        )
    return instant


def _check_key(job: Job) -> None:
    """Only an enqueue says what becomes of its key: a scheduled occurrence is skipped while its key is taken."""
    for name, value in (("if_exists", job.if_exists), ("unique_for_seconds", job.unique_for_seconds)):
        if value in (None, IfExists.KEEP):
            continue
        if job.unique_key is None:
            raise InvalidInput(
                f"{name} is {value}, and there is no unique_key",
                field=name,
                hint="say which executions are alike: unique_key",
            )
        if not job.is_enqueued:
            raise InvalidInput(
                f"{name} is {value}, expected only of a one-off without a name: an occurrence is skipped while its unique_key is taken",
                field=name,
                hint="leave it out",
            )


# What concerns instants that a schedule names, and those of a job that comes after another are named by that one.
_NOT_AFTER = ("max_executions", "jitter_seconds", "unique_key", "overlap")


def _check_after(job: Job) -> None:
    if not isinstance(job.rule, After):
        return
    if job.name == job.rule.cause:
        raise InvalidInput(
            f"after is {job.name}, which is the job itself: it would wait for its own success", field="after"
        )
    for name in _NOT_AFTER:
        value = getattr(job, name)
        if value != SPEC_FIELDS[name].default:
            raise InvalidInput(
                f"{name} is {value}, expected none for a job that runs after each success of {job.rule.cause}",
                field=name,
                hint="max_running: 1 lets its executions run one after the other"
                if name == "overlap"
                else "leave it out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseJob:
    """A job that others come after: locked, and what ends of it from now on is followed, but for what had been promoted."""

    id: JobId
    name: str
    kind: ScheduleKind
    # Its occurrences after this instant are followed: none of them had been promoted.
    since: datetime
    # What it comes after itself: the ids and names of the jobs before it, the nearest first.
    chain: tuple[tuple[JobId, str], ...] = ()


def come_after(job: Job, causes: Mapping[str, CauseJob]) -> Job:
    """The job with the one that it comes after looked up; InvalidInput if there is none, if it has no occurrences, or in a circle."""
    rule = job.rule
    if not isinstance(rule, After):
        return job
    cause = causes.get(rule.cause)
    if cause is None:
        raise InvalidInput(
            f"after is {quote_text(rule.cause)}, and there is no job of this name",
            field="after",
            hint="give the name of the job whose successes it follows; a job without a name cannot be followed",
        )
    if cause.kind is ScheduleKind.MANUAL:
        raise InvalidInput(
            f"after is {quote_text(cause.name)}, which runs only when it is triggered, and has no occurrences",
            field="after",
            hint="let each run call what follows it: on_success",
        )
    passed = [(cause.id, cause.name), *cause.chain]
    if job.id in (id_ for id_, _ in passed):
        until = next(number for number, (id_, _) in enumerate(passed) if id_ == job.id)
        raise _circle(cause.name, [job.name, *(name for _, name in passed[:until]), job.name])
    if rule.cause_id == cause.id:
        return job
    return replace(job, rule=After(cause=cause.name, cause_id=cause.id, since=cause.since))


def causes_first(specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Specs in an order in which each comes behind those whose success it follows, as far as they are among them.

    InvalidInput if some of them come after each other in a circle.
    """
    by_name = {spec.name: spec for spec in specs if spec.name is not None}

    def depth(spec: JobSpec) -> int:
        passed: list[str | None] = [spec.name]
        while spec.after in by_name:
            if spec.after in passed:
                raise _circle(spec.after, [*passed[passed.index(spec.after) :], spec.after])
            passed.append(spec.after)
            spec = by_name[spec.after]
        return len(passed)

    return sorted(specs, key=depth)


def _circle(cause: str, names: Sequence[str | None]) -> InvalidInput:
    return InvalidInput(
        f"after is {quote_text(cause)}, which makes a circle: {' after '.join(name or 'this job' for name in names)}",
        field="after",
        hint="one of these jobs needs a time of its own",
    )


def come_after_each_other(jobs: Sequence[Job], causes: Mapping[str, CauseJob], now: datetime) -> list[Job]:
    """New jobs, which may come after each other in any order, as `come_after` has it."""
    new = {job.name: job for job in jobs if job.name is not None}
    known = dict(causes)
    followed = {job.rule.cause for job in jobs if isinstance(job.rule, After)}

    def chain_of(job: Job) -> tuple[tuple[JobId, str], ...]:
        chain: list[tuple[JobId, str]] = []
        while isinstance(job.rule, After) and job.rule.cause in new and len(chain) <= len(new):
            job = new[job.rule.cause]
            chain.append((job.id, job.name or ""))
        return tuple(chain)

    for name in followed & new.keys():
        job = new[name]
        known[name] = CauseJob(id=job.id, name=name, kind=job.kind, since=now, chain=chain_of(job))
    done = [come_after(job, known) for job in jobs]
    return [replace(job, is_followed=True) if job.name in followed else job for job in done]


def with_same_cause(rule: Schedule, known: Schedule) -> Schedule:
    """A schedule that names the job it comes after, with that job if *known* is the same schedule."""
    return known if isinstance(known, After) and rule == known else rule


def _with_limit_key(job: Job) -> Job:
    if job.effective_limit is None:
        if job.limit_key is not None:
            raise InvalidInput(
                "limit_key is given without max_running; say how many may run together", field="max_running"
            )
        return job
    if job.is_serial and job.limit_key is not None and job.max_running not in (None, 1):
        raise InvalidInput(
            f"overlap {job.overlap} lets one execution run at a time, but max_running lets {job.max_running} of the limit_key;"
            f" expected max_running 1, or overlap {' or '.join(policy for policy in Overlap if not policy.is_serial)}",
            field="max_running",
        )
    return replace(job, limit_key=job.limit_key or f"job:{job.id}")


def _misfire_rule(values: Mapping[str, Any]) -> MisfireRule:
    age = values["misfire_max_age_seconds"]
    return MisfireRule(
        policy=values["misfire"],
        grace=timedelta(seconds=values["misfire_grace_seconds"]),
        cap=values["misfire_cap"],
        max_age=None if age is None else timedelta(seconds=age),
    )


def _check_name(name: object) -> str:
    checked = check_label(name, "name")
    if checked in RESERVED_NAMES:
        raise InvalidInput(
            f'name is "{checked}", which is part of an address of the API (/jobs/{checked})',
            field="name",
            hint=f"choose another name, such as {checked}-job",
        )
    return checked


def check_meta(value: object) -> dict[str, Any]:
    """The meta of a job or of one execution; InvalidInput if it is not a JSON object, or is too large."""
    return check_small_object(value, "meta", MAX_META_BYTES)


def _define_call(spec: JobSpec) -> dict[str, Any]:
    """The checked fields of a call, which is a one-off without an instant of its own."""
    now = datetime(2000, 1, 1, tzinfo=UTC)
    return spec_values(define_job(replace(spec, scheduled_at=now), JobId(UUID(int=0)), now, 1))


def check_group_work(work: Mapping[str, Any]) -> dict[str, Any]:
    """A group that begins something, as it is stored; InvalidInput if it cannot be made."""
    return check_group(work, _define_call)


def check_calls(fields: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """The calls that follow one execution, as they are stored; InvalidInput if one of them cannot be made."""
    return {
        name: None if fields.get(name) is None else check_call(fields[name], name, _define_call)
        for name in FOLLOW_UP_FIELDS
    }


def _check_labels(values: object, name: str, most: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, list | tuple | set | frozenset):
        raise InvalidInput(f"{name} is {type(values).__name__}, expected a list of texts", field=name)
    if len(values) > most:
        raise InvalidInput(f"{name} has {len(values)} entries, expected at most {most}", field=name)
    return tuple(dict.fromkeys(check_label(value, name) for value in values))


def _check_spans(values: object, name: str, most: int) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{name} is {type(values).__name__}, expected a list of milliseconds", field=name)
    if len(values) > most:
        raise InvalidInput(f"{name} has {len(values)} entries, expected at most {most}", field=name)
    return tuple(_check_number(value, name, 0, MAX_SPAN_MS) for value in values)


def _check_number(value: object, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise unexpected_value(name, value, f"a whole number from {least} to {most}")
    if not least <= value <= most:
        raise unexpected_value(name, value, f"{least} to {most}")
    return value


def _check_word(value: object, words: type[Policy], name: str) -> Policy:
    try:
        return words(str(value))
    except ValueError:
        raise unexpected_value(name, value, list_choices(words)) from None


def _checker(line: JobField) -> Callable[[Any], Any]:
    """What makes of a value that was asked for the one that a job holds, or raises InvalidInput."""
    match line.rule:
        case Label(longest=longest):
            return _check_name if line.name == "name" else partial(check_label, field=line.name, longest=longest)
        case Text(longest=longest):
            return partial(check_description, field=line.name, longest=longest)
        case Whole(least=least, most=most):
            return partial(_check_number, name=line.name, least=least, most=most)
        case Choice(words=words):
            return partial(_check_word, words=words, name=line.name)
        case Labels(most=most):
            return partial(_check_labels, name=line.name, most=most)
        case Expectations():
            return partial(check_expect, field=line.name)
        case FollowUp():
            return partial(check_call, field=line.name, define=_define_call)
        case JsonObject(most_bytes=most_bytes):
            return partial(check_small_object, field=line.name, most_bytes=most_bytes)
        case Spans(most=most):
            return partial(_check_spans, name=line.name, most=most)
        case Interval() | Instant() | Json():
            raise AssertionError(f"{line.name} is checked with the schedule, or as JSON")
        case _:
            assert_never(line.rule)


# The fields that are checked one by one. Becoming JSON checks the payload; `parse_schedule` checks what is about the schedule, together.
_CHECKS = tuple(
    (name, line.is_optional, _checker(line))
    for name, line in SPEC_FIELDS.items()
    if name in JOB_ATTRIBUTES or name in RETRY_FIELDS or name.startswith("misfire")
)
