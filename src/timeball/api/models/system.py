"""Bodies about queues, nodes, handlers, schedules, health, audit, doctor and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from timeball.api.models import (
    FieldErrorOut,
    InstantText,
    Interval,
    Label,
    ReasonIn,
    RequestModel,
    ShortText,
)
from timeball.domain.job_fields import MAX_INT32
from timeball.domain.values.ids import format_execution_id, format_id, format_job_id

if TYPE_CHECKING:
    from timeball.application.queries.jobs import FireTime
    from timeball.domain.explain.causes import Cause
    from timeball.domain.explain.explanation import Explanation, Gate
    from timeball.domain.explain.instants import InstantExplanation


class QueueChangeIn(ReasonIn):
    """The limit of a queue, and what is expected of it: only what is given changes."""

    max_running: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = Field(
        None, description="How many of its executions may run at the same time; `null` removes the limit."
    )
    max_oldest_wait_seconds: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = Field(
        None, description="An alert opens while an execution has waited in it for so long; `null` expects nothing."
    )
    must_be_served: bool | None = Field(None, description="An alert opens while no worker serves it.")


class QueuePauseIn(ReasonIn):
    """A pause of a queue, for ever or until an instant."""

    until: Annotated[str, Field(max_length=64, description="ISO 8601; without an offset, it is in UTC.")] | None = None


class FreezeIn(ReasonIn):
    """A freeze of one queue, one tag, one job, or of everything."""

    queue: Label | None = None
    tag: Label | None = None
    job: Annotated[str, Field(max_length=200, description="A job's id or name.")] | None = None
    everything: bool = Field(False, description="Freeze the whole installation.")
    from_: (
        Annotated[str, Field(max_length=64, description="ISO 8601; without an offset, it is in UTC. Default: now.")]
        | None
    ) = Field(None, alias="from")
    until: Annotated[str, Field(max_length=64, description="ISO 8601; without an offset, it is in UTC.")]
    afterwards: Literal["skip", "latest", "all"] = Field(
        "skip", description="Which of the occurrences that fell into it run when it is over."
    )


class FreezeOut(BaseModel):
    """A span in which nothing in a scope starts."""

    model_config = ConfigDict(populate_by_name=True)

    id: str
    scope: Literal["installation", "queue", "tag", "job"]
    queue: str | None
    tag: str | None
    job: str | None = Field(description="The id of the job.")
    from_: datetime = Field(alias="from")
    until: datetime = Field(description="The first instant after it.")
    state: Literal["planned", "active", "over"]
    afterwards: Literal["skip", "latest", "all"]
    reason: str | None
    created_by: str
    created_at: datetime
    ended_by: str | None = Field(description="Who ended it before its time.")


class PurgeIn(ReasonIn):
    """A queue to purge; `confirm` is its name once more."""

    confirm: Annotated[str, Field(max_length=200)]


class PurgeOut(BaseModel):
    """The purged queue."""

    queue: str
    cancelled: int


class QueueOut(BaseModel):
    """A queue; a depth above 10,000 is shown as 10,001."""

    name: str
    is_paused: bool
    paused_at: datetime | None
    paused_until: datetime | None = Field(description="When it is resumed by itself; `null`: by a request.")
    pause_reason: str | None
    max_running: int | None
    max_oldest_wait_seconds: int | None = Field(description="Expected: nothing waits in it for longer.")
    must_be_served: bool = Field(description="Expected: a worker serves it.")
    depth: int
    running: int
    oldest_at: datetime | None
    oldest_wait_seconds: float | None


class NodeOut(BaseModel):
    """A worker or a scheduler."""

    id: str
    kind: Literal["worker", "scheduler"]
    name: str
    started_at: datetime
    renewed_at: datetime
    lease_until: datetime
    slots: int
    busy: int
    queues: list[str] | None
    handlers: list[str]
    shards: list[int]
    version: str
    draining: bool
    broker: Literal["postgresql", "redis", "rabbitmq"]
    broker_state: Literal["works", "silent", "down"]
    broker_error: str | None
    trouble: str | None = Field(description="The last error of the node, which goes on running.")
    trouble_at: datetime | None


class HandlerVersionOut(BaseModel):
    """A published contract of a handler; the same code has the same fingerprint."""

    fingerprint: str
    is_newest: bool = Field(description="Whether the worker process that started last has it.")
    published_at: datetime
    started_at: datetime = Field(description="When a worker process last started with it.")
    workers: list[str] = Field(description="The live workers that have it.")


class HandlerOut(BaseModel):
    """A handler with its newest published contract; unknown fields are `null`."""

    name: str
    description: str | None
    doc: str | None = Field(description="Its docstring.")
    run_style: Literal["coroutine", "thread", "process"] | None
    payload_schema: dict[str, Any] | None = Field(description="JSON Schema of the payload.")
    options: dict[str, Any] | None = Field(description="The defaults of its jobs.")
    example: Any = Field(description="An example of a valid payload.")
    is_enabled_here: bool | None = Field(description="Whether a worker with this process's settings would run it.")
    workers: int = Field(description="How many live workers know it.")
    needs_role: Literal["editor", "admin"] = Field(description="The role that may write its payload.")
    versions: list[HandlerVersionOut] = Field(description="The published contracts, the newest first.")


class HandlerToCheck(RequestModel):
    """A handler, and the schema to check its stored payloads with."""

    name: Label
    payload_schema: dict[str, Any]


class HandlerCheckIn(RequestModel):
    """Handlers of another version of a program."""

    handlers: list[HandlerToCheck] = Field(min_length=1, max_length=1_000)
    cursor: Annotated[str, Field(max_length=1_000)] | None = None


class IncompatiblePayloadOut(BaseModel):
    """A job, template or execution whose payload does not fit."""

    kind: Literal["job", "template", "execution"]
    id: str
    name: str | None = Field(description="The name of the job or template.")
    handler: str
    errors: list[FieldErrorOut]


class HandlerCheckOut(BaseModel):
    """The stored payloads that do not fit; `next_cursor` continues the check."""

    checked: int
    misfits: list[IncompatiblePayloadOut]
    next_cursor: str | None


class PreviewIn(RequestModel):
    """A schedule to preview."""

    schedule: Annotated[str, Field(max_length=1_000)] | None = None
    interval_seconds: Interval | None = None
    scheduled_at: InstantText | None = None
    after: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="The name of another job: when its occurrences succeed is not foretold."
    )
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="The name of the job, from which `H` in its schedule is derived."
    )
    skip_on: Annotated[list[Label], Field(max_length=10)] = Field([], description="Calendars whose days are left out.")
    only_on: Annotated[list[Label], Field(max_length=10)] = Field(
        [], description="Calendars on whose days alone it runs."
    )
    shift: Literal["none", "next", "previous"] = Field("none", description="Where a day of `skip_on` goes.")
    since: InstantText | None = Field(None, description="The first instants after this one; by default now.")
    count: int = Field(10, ge=1, le=100)
    queue: ShortText | None = Field(
        None, description="Show also what else runs in this queue at the next instant, and its slots."
    )
    job: ShortText | None = Field(None, description="The job that gets this schedule: it is not counted.")
    payload: Any = Field(
        default={}, description="Show also this payload with the values that its references have at the next instant."
    )


FireTimeNote = Literal[
    "moved_by_gap",
    "skipped_by_gap",
    "first_of_repeat",
    "second_of_repeat",
    "moved_by_calendar",
    "left_out_by_calendar",
]


class FireTimeOut(BaseModel):
    """An instant of a schedule; `note` says how a clock change or a calendar affects it.

    `left_out_by_calendar` stands for `count` occurrences from `at` to `last`, which are not due.
    """

    at: datetime
    local: str
    is_due: bool
    is_frozen: bool = Field(description="Whether it falls into a freeze of the job, its queue, a tag or everything.")
    note: FireTimeNote | None
    count: int | None = Field(1, description="How many occurrences it stands for; null if they were not counted.")
    last: datetime | None = Field(None, description="The last of several that a calendar leaves out.")
    calendars: list[str] = Field([], description="The calendars that leave it out.")


def fire_time_document(time: FireTime) -> dict[str, Any]:
    """An instant of a schedule."""
    note = time.occurrence.note
    return {
        "at": time.occurrence.at,
        "local": time.local.isoformat(),
        "is_due": time.occurrence.is_due,
        "is_frozen": time.is_frozen,
        "note": None if note is None else note.kind,
        "count": 1 if note is None else note.count,
        "last": None if note is None else note.last,
        "calendars": [] if note is None else list(note.calendars),
    }


class ConcurrentJobOut(BaseModel):
    """A job that runs at the same instant."""

    id: str
    label: str
    p95_seconds: float | None


class InstantLoadOut(BaseModel):
    """What runs at the next instant in the queues that share the slots; `need` counts the new run too."""

    at: datetime
    jobs: list[ConcurrentJobOut]
    one_offs: int
    need: int
    slots: int
    left_out: bool = Field(description="Whether there are more jobs than were checked.")


class NextOut(BaseModel):
    """When a job runs next."""

    description: str
    next: list[FireTimeOut]
    landing: InstantLoadOut | None = None
    payload: Any = Field(
        None, description="The payload of the next occurrence with the values of its references; null if it has none."
    )


class CheckOut(BaseModel):
    """One check."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str


class HealthOut(BaseModel):
    """Whether the installation can work."""

    status: Literal["ok", "warn", "fail"]
    version: str
    checks: list[CheckOut]


class ReadyCheckOut(BaseModel):
    """One check, without details."""

    name: str
    status: Literal["ok", "warn", "fail"]


class ReadyOut(BaseModel):
    """Whether this process can work."""

    status: Literal["ok", "warn", "fail"]
    checks: list[ReadyCheckOut]


class LiveOut(BaseModel):
    """The process responds."""

    status: Literal["ok"]


class AuditOut(BaseModel):
    """A change, with who made it and why."""

    id: str
    at: datetime
    actor: str
    place: str | None
    action: str
    subject: str
    reason: str | None
    before: Any
    after: Any


class TargetOut(BaseModel):
    """Where to look: a kind and an id."""

    kind: str
    id: str


class DiagnosisOut(BaseModel):
    """One finding of the doctor; docs/reference/doctor.md explains every code."""

    code: str
    status: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    advice: str | None = Field(description="What to do.")
    command: str | None = Field(description="The command of the advice, to be typed in a terminal.")
    target: TargetOut | None


class DoctorOut(BaseModel):
    """All findings; the status is that of the most severe one."""

    status: Literal["ok", "warn", "fail"]
    version: str
    lines: list[DiagnosisOut]


class AttentionItemOut(BaseModel):
    """Something that needs attention."""

    code: str
    status: Literal["warn", "fail"]
    sentence: str
    advice: str | None
    command: str | None
    target: TargetOut | None
    why: str | None = Field(description="Why the execution waits, in one sentence.")
    mark: str | None = Field(
        description="Of what is over and needs no more than a look, such as missed occurrences: another one as soon as there is more of it."
    )
    alert: str | None = Field(description="Its alert; null if none has been opened yet.")


class GateOut(BaseModel):
    """A condition that an execution has to meet before it starts, and its result."""

    name: str
    title: str
    verdict: Literal["passed", "stopped", "not_asked"]
    sentence: str
    advice: str | None = Field(description="What to do, if something can be done.")
    command: str | None = Field(description="The command of the advice, to be typed in a terminal.")
    links: list[str] = Field(description="The ids of what blocks the execution.")


class LikelyStartOut(BaseModel):
    """When the execution will probably start."""

    at: datetime
    give_or_take_seconds: float


class CauseOut(BaseModel):
    """A step of the chain that led to what became of an occurrence."""

    model_config = ConfigDict(populate_by_name=True)

    depth: int = Field(description="1: it is the reason for the step of depth 0 before it; and so on.")
    kind: str = Field(description="What it is about, such as `held_by`, `queue_paused` or `no_scheduler`.")
    sentence: str
    ids: list[str] = Field(description="The ids of what it is about.")
    from_: datetime | None = Field(alias="from", description="When it began, as far as it has a time.")
    until: datetime | None = Field(description="When it ended; `null` while it lasts.")
    actor: str | None = Field(description="Who did it, if a person or a program did.")


class NearOccurrenceOut(BaseModel):
    """The occurrence before or after an instant at which nothing is due, and what became of it."""

    at: datetime
    verdict: Literal["ran", "running", "waiting", "skipped", "expected"]
    reason: str | None


class ExplanationOut(BaseModel):
    """One sentence first, then every gate in the order in which an execution passes them.

    If it was asked about an instant: what became of the occurrence at it, and the chain that led to it.
    """

    checked_at: datetime
    job_id: str | None
    job_name: str | None
    execution_id: str | None
    state: str | None
    headline: str
    stopped_by: str | None
    likely_start: LikelyStartOut | None
    gates: list[GateOut]
    at: datetime | None = Field(description="The instant that was asked about; the fields below belong to it.")
    verdict: Literal["ran", "running", "waiting", "skipped", "expected"] | None = Field(
        description="What became of the occurrence at the instant; `null` if nothing was or is to be due at it."
    )
    reason: str | None = Field(description="Why it was skipped.")
    version: int | None = Field(description="The version of the job that answers for the instant.")
    before: NearOccurrenceOut | None = Field(description="If nothing was due: the occurrence before.")
    after: NearOccurrenceOut | None = Field(description="If nothing was due: the occurrence after.")
    because: list[CauseOut] = Field(description="The chain that led to it, in the order of reading.")


# The fields of an explanation that belong to an instant, if none was asked about.
NO_INSTANT: dict[str, Any] = {
    "at": None,
    "verdict": None,
    "reason": None,
    "version": None,
    "before": None,
    "after": None,
    "because": [],
}


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """An explanation as the API shows it."""
    facts, stopped_by, likely = explanation.facts, explanation.stopped_by, explanation.likely_start
    execution = facts.execution
    job_id = execution.job_id if execution is not None else None if facts.job is None else facts.job.id
    return {
        "checked_at": facts.now,
        "job_id": None if job_id is None else format_job_id(job_id),
        "job_name": facts.job and facts.job.name,
        "execution_id": None if execution is None else format_execution_id(execution.id),
        "state": None if execution is None else execution.state,
        "headline": explanation.headline,
        "stopped_by": stopped_by and stopped_by.name,
        "likely_start": likely and {"at": likely.at, "give_or_take_seconds": likely.give_or_take.total_seconds()},
        "gates": [_gate_document(gate) for gate in explanation.gates],
        **NO_INSTANT,
    }


def instant_document(explanation: InstantExplanation) -> dict[str, Any]:
    """What became of an instant as the API shows it."""
    job, line, present = explanation.job, explanation.line, explanation.present
    stopped_by = None if present is None else present.stopped_by
    return {
        "checked_at": explanation.now,
        "job_id": format_job_id(job.id),
        "job_name": job.name,
        "execution_id": None if line is None or line.execution_id is None else format_execution_id(line.execution_id),
        "state": line and line.state,
        "headline": explanation.headline,
        "stopped_by": stopped_by and stopped_by.name,
        "likely_start": None,
        "gates": [] if present is None else [_gate_document(gate) for gate in present.gates],
        "at": explanation.at,
        "verdict": line and line.verdict,
        "reason": line and line.reason,
        "version": explanation.version,
        "before": explanation.before and asdict(explanation.before),
        "after": explanation.after and asdict(explanation.after),
        "because": [_cause_document(cause) for cause in explanation.causes],
    }


def _cause_document(cause: Cause) -> dict[str, Any]:
    return {
        "depth": cause.depth,
        "kind": cause.kind,
        "sentence": cause.sentence,
        "ids": list(cause.ids),
        "from": cause.since,
        "until": cause.until,
        "actor": cause.actor,
    }


def _gate_document(gate: Gate) -> dict[str, Any]:
    return {
        "name": gate.name,
        "title": gate.title,
        "verdict": gate.result.verdict,
        "sentence": gate.result.sentence,
        "advice": gate.result.advice,
        "command": gate.result.command,
        "links": list(gate.result.links),
    }


def node_document(node: Any) -> dict[str, Any]:
    """A worker or scheduler."""
    document = asdict(node)
    status = document.pop("broker_status")
    return document | {
        "id": format_id(_NODE_PREFIXES[node.kind], node.incarnation),
        "incarnation": None,
        "broker_state": status["state"],
        "broker_error": status["error"],
    }


_NODE_PREFIXES = {"worker": "wrk", "scheduler": "sch"}


def queue_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """A queue with its depth and its longest wait."""
    oldest = row["oldest_at"]
    wait = None if oldest is None else max((row["moment"] - oldest).total_seconds(), 0.0)
    return {
        "name": row["name"],
        "is_paused": row["paused_at"] is not None,
        "paused_at": row["paused_at"],
        "paused_until": row["paused_until"],
        "pause_reason": row["pause_reason"],
        "max_running": row["max_running"],
        "max_oldest_wait_seconds": row["max_oldest_wait_seconds"],
        "must_be_served": bool(row["must_be_served"]),
        "depth": row["depth"],
        "running": row["running"],
        "oldest_at": oldest,
        "oldest_wait_seconds": wait,
    }
