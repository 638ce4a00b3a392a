"""Jobs: what to run and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from timeball.domain.job_fields import SPEC_FIELDS, JobSpec
from timeball.domain.policies import Delivery, Misfire, MisfireRule, OnGap, OnRepeat, Overlap, RetryPolicy
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once, Schedule, ScheduleKind, parse_schedule
from timeball.domain.values.ids import JobId, jitter_of, shard_of
from timeball.domain.values.json_text import to_json
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput

E = TypeVar("E", bound=StrEnum)


# A job is reached at /jobs/{name}, and these stand there already.
RESERVED_NAMES = frozenset({"bulk", "export", "sync"})
_LARGEST = 2**31 - 1
_LONGEST_MS = 366 * 24 * 3600 * 1000


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
    tags: tuple[str, ...]
    shard: int
    version: int = 1
    declared_by: str | None = None
    # Who made it: a key, a person or a program.
    created_by: str | None = None
    # Its payload names secrets and was written by someone who is no administrator: it may use those alone that are bound.
    bound_secrets_only: bool = False
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

    @property
    def effective_limit(self) -> int | None:
        """How many executions that share `limit_key` may be ready or running together."""
        return 1 if self.is_serial else self.max_running

    @property
    def is_serial(self) -> bool:
        """Whether its occurrences wait for each other, which they do by a limit of one."""
        return self.overlap in (Overlap.QUEUE, Overlap.CANCEL_RUNNING) and self.rule.is_recurring


def define_job(spec: JobSpec, job_id: JobId, now: datetime, shards: int, created_by: str | None = None) -> Job:
    """Check a wish and make it a job; InvalidInput says which field does not fit, and why."""
    rule = parse_schedule(
        schedule=spec.schedule,
        interval_seconds=spec.interval_seconds,
        scheduled_at=spec.scheduled_at,
        timezone=spec.timezone,
        on_gap=spec.on_gap,
        on_repeat=spec.on_repeat,
        starts_at=spec.starts_at,
        ends_at=spec.ends_at,
        now=now,
    )
    job = Job(
        id=job_id,
        name=None if spec.name is None else _check_name(spec.name),
        description=None if spec.description is None else check_description(spec.description, "description"),
        handler=check_label(spec.handler, "handler"),
        payload=to_json(spec.payload),
        rule=rule,
        timezone=spec.timezone,
        max_executions=_whole(spec.max_executions, "max_executions", 1, 2**62, optional=True),
        jitter_seconds=_number(spec.jitter_seconds, "jitter_seconds", 0, 86_400),
        misfire=_misfire_rule(spec),
        overlap=_member(Overlap, spec.overlap, "overlap"),
        queue=check_label(spec.queue, "queue"),
        priority=_number(spec.priority, "priority", 0, 100),
        retry=_retry_policy(spec),
        timeout_ms=_whole(spec.timeout_ms, "timeout_ms", 1, _LONGEST_MS, optional=True),
        delivery=_member(Delivery, spec.delivery, "delivery"),
        max_running=_whole(spec.max_running, "max_running", 1, _LARGEST, optional=True),
        limit_key=None if spec.limit_key is None else check_label(spec.limit_key, "limit_key"),
        unique_key=None if spec.unique_key is None else check_label(spec.unique_key, "unique_key"),
        tags=_tags(spec.tags),
        shard=shard_of(job_id, shards),
        created_by=created_by,
    )
    return _with_limit_key(job)


def spec_of(job: Job) -> JobSpec:
    """The wish that would make this job again; an edit changes some of its fields."""
    rule = job.rule
    own_key = job.limit_key == f"job:{job.id}"
    return JobSpec(
        handler=job.handler,
        payload=None,
        name=job.name,
        description=job.description,
        schedule=rule.expression if isinstance(rule, Cron) else None,
        interval_seconds=rule.interval_seconds if isinstance(rule, Every) else None,
        scheduled_at=_anchor(rule),
        timezone=job.timezone,
        on_gap=rule.on_gap if isinstance(rule, Cron) else OnGap.NEXT_VALID,
        on_repeat=rule.on_repeat if isinstance(rule, Cron) else OnRepeat.FIRST,
        starts_at=rule.starts_at,
        ends_at=rule.ends_at,
        max_executions=job.max_executions,
        jitter_seconds=job.jitter_seconds,
        misfire=job.misfire.policy,
        misfire_grace_seconds=int(job.misfire.grace.total_seconds()),
        misfire_cap=job.misfire.cap,
        misfire_max_age_seconds=None if job.misfire.max_age is None else int(job.misfire.max_age.total_seconds()),
        overlap=job.overlap,
        queue=job.queue,
        priority=job.priority,
        max_retries=job.retry.max_retries,
        max_lost=job.retry.max_lost,
        initial_backoff_ms=job.retry.initial_backoff_ms,
        max_backoff_ms=job.retry.max_backoff_ms,
        timeout_ms=job.timeout_ms,
        delivery=job.delivery,
        max_running=job.max_running,
        limit_key=None if own_key else job.limit_key,
        unique_key=job.unique_key,
        tags=job.tags,
    )


def redefine_job(job: Job, changes: Mapping[str, Any], now: datetime, shards: int) -> Job:
    """The job with some fields of its wish changed, checked as a whole; its version goes up by one."""
    unknown = sorted(set(changes) - SPEC_FIELDS)
    if unknown:
        raise InvalidInput(
            f"unknown field {unknown[0]!r}; known are {', '.join(sorted(SPEC_FIELDS))}", field=unknown[0]
        )
    spec = replace(without_other_kinds(spec_of(job), changes), **changes)
    fresh = define_job(replace(spec, payload={}) if "payload" not in changes else spec, job.id, now, shards)
    kept_payload = fresh.payload if "payload" in changes else job.payload
    return replace(
        fresh,
        payload=kept_payload,
        version=job.version + 1,
        declared_by=job.declared_by,
        created_by=job.created_by,
        bound_secrets_only=job.bound_secrets_only,
        paused_at=job.paused_at,
        paused_until=job.paused_until,
        paused_from=job.paused_from,
        paused_left=job.paused_left,
        pause_reason=job.pause_reason,
        created_at=job.created_at,
    )


def without_other_kinds(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """Whoever gives a cron expression to an interval job means to replace the interval, not to contradict it."""
    if changes.get("schedule") is not None:
        return replace(spec, interval_seconds=None, scheduled_at=None)
    if changes.get("interval_seconds") is not None:
        keeps_anchor = spec.interval_seconds is not None
        return replace(spec, schedule=None, scheduled_at=spec.scheduled_at if keeps_anchor else None)
    if changes.get("scheduled_at") is not None:
        return replace(spec, schedule=None)
    return spec


def _anchor(rule: Schedule) -> datetime | None:
    match rule:
        case Every(anchor=anchor):
            return anchor
        case Once(scheduled_at=scheduled_at):
            return scheduled_at
        case Cron() | Manual():
            return None


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
            " expected max_running 1, or overlap skip or allow",
            field="max_running",
        )
    return replace(job, limit_key=job.limit_key or f"job:{job.id}")


def _misfire_rule(spec: JobSpec) -> MisfireRule:
    age = _whole(spec.misfire_max_age_seconds, "misfire_max_age_seconds", 0, 2**40, optional=True)
    return MisfireRule(
        policy=_member(Misfire, spec.misfire, "misfire"),
        grace=timedelta(seconds=_number(spec.misfire_grace_seconds, "misfire_grace_seconds", 0, 366 * 86_400)),
        cap=_number(spec.misfire_cap, "misfire_cap", 1, 10_000),
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


def _retry_policy(spec: JobSpec) -> RetryPolicy:
    return RetryPolicy(
        max_retries=_number(spec.max_retries, "max_retries", 0, _LARGEST),
        max_lost=_number(spec.max_lost, "max_lost", 1, _LARGEST),
        initial_backoff_ms=_number(spec.initial_backoff_ms, "initial_backoff_ms", 0, _LONGEST_MS),
        max_backoff_ms=_number(spec.max_backoff_ms, "max_backoff_ms", 0, _LONGEST_MS),
    )


def _tags(tags: object) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidInput(f"tags is {type(tags).__name__}, expected a list of texts", field="tags")
    if len(tags) > 50:
        raise InvalidInput(f"tags has {len(tags)} entries, expected at most 50", field="tags")
    return tuple(dict.fromkeys(check_label(tag, "tags") for tag in tags))


def _number(value: object, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is {value!r}, expected a whole number from {least} to {most}", field=name)
    if not least <= value <= most:
        raise InvalidInput(f"{name} is {value}, expected {least} to {most}", field=name)
    return value


def _whole(value: object, name: str, least: int, most: int, *, optional: bool) -> int | None:
    return None if value is None and optional else _number(value, name, least, most)


def _member(kind: type[E], value: object, name: str) -> E:
    try:
        return kind(str(value))
    except ValueError:
        allowed = ", ".join(member.value for member in kind)
        raise InvalidInput(f"{name} is {value!r}, expected one of {allowed}", field=name) from None
