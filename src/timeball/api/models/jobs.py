"""Bodies about jobs, templates and declared jobs.

The fields of a job in a request come from the table `domain.job_fields`. `JobOut` and `JobOptionParams` repeat their names and types for
the type checkers of programs that use the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypedDict, TypeVar, assert_never

import orjson
from pydantic import BaseModel, ConfigDict, Field, create_model

from timeball.api.models import InstantText, Interval, Label, ReasonIn, RequestModel
from timeball.domain import job_fields
from timeball.domain.backfill import MAX_RUNNING
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS, shown_call
from timeball.domain.job import JobView, calendar_of, spec_of
from timeball.domain.job_fields import LIST_FIELDS, SPEC_FIELDS, JobField, json_default
from timeball.domain.trace import without_trace
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.domain.values.redaction import redact, redact_in_list

Model = TypeVar("Model", bound=BaseModel)

# Jobs.

Unchecked = Annotated[bool, Field(description="Take a payload that the handler's published schema refuses.")]


def _request_type(line: JobField) -> Any:
    """What a request may say for a field."""
    match line.rule:
        case job_fields.Label(longest=longest):
            return Annotated[str, Field(min_length=1, max_length=longest)]
        case job_fields.Text(longest=longest):
            return Annotated[str, Field(max_length=longest)]
        case job_fields.Whole(least=least, most=most):
            return Annotated[int, Field(ge=least, le=most)]
        case job_fields.Choice(words=words):
            return Literal[tuple(word.value for word in words)]
        case job_fields.Labels(most=most):
            return Annotated[list[Label], Field(max_length=most)]
        case job_fields.Spans(most=most):
            return Annotated[list[Annotated[int, Field(ge=0, le=job_fields.MAX_SPAN_MS)]], Field(max_length=most)]
        case job_fields.Interval():
            return Interval
        case job_fields.Instant():
            return InstantText
        case job_fields.Json():
            return Any
        case job_fields.JsonObject():
            return dict[str, Any]
        case _:
            assert_never(line.rule)


def _request_field(line: JobField, default: Any) -> tuple[Any, Any]:
    type_ = _request_type(line)
    return type_ | None if line.is_optional else type_, Field(default, description=line.about)


def takes_job_fields(**defaults: Any) -> Callable[[type[Model]], type[Model]]:
    """Give a model all fields of a job; *defaults* stand in place of those of the table, and their fields are never null."""

    def with_fields(model: type[Model]) -> type[Model]:
        fields: dict[str, Any] = {}
        for name, line in SPEC_FIELDS.items():
            if name in defaults:
                fields[name] = _request_field(replace(line, is_optional=False), defaults[name])
            else:
                fields[name] = _request_field(line, ... if line.is_required else json_default(line))
        return create_model(
            model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
        )

    return with_fields


class JobBody(RequestModel):
    """The fields of a job that people post, as `domain.job_fields` lists them.

    What is left out of `queue`, `priority`, the retries, `timeout_ms`, `delivery`, `max_running`, `start_within_seconds` and `tags` is
    what the handler declares; the defaults below are those of a handler that declares nothing.
    """

    unchecked: Unchecked = False


@takes_job_fields()
class JobIn(JobBody):
    """A job to create. With no time it runs now, once; with `"schedule": "manual"` when it is triggered."""

    handler: Label


# A request that leaves them out changes nothing; the defaults are never read.
@takes_job_fields(handler="test.echo", name="a-name")
class JobPatch(JobBody):
    """What to change of a job: only the fields that are given."""


class PauseIn(ReasonIn):
    """A pause, for ever or until an instant."""

    until: InstantText | None = None


class RunIn(ReasonIn):
    """A run, with another payload if one is given (that needs the role editor)."""

    payload: Any = None
    unchecked: Unchecked = False


class TriggerIn(RunIn):
    """A run that may also say by when it must have begun; otherwise the job says it."""

    start_within_seconds: Annotated[
        Annotated[int, Field(ge=1, le=366 * 86_400)] | None,
        Field(description="The run is skipped if it has not begun so long after this request."),
    ] = None
    expires_at: Annotated[
        InstantText | None,
        Field(
            description="The run is skipped if it has not begun by this instant; without an offset, in the job's zone."
        ),
    ] = None
    meta: Annotated[
        dict[str, Any] | None, Field(description="In place of the job's meta: a JSON object, up to 4 KB.")
    ] = None
    on_success: Annotated[
        dict[str, Any] | None,
        Field(description="What is called when the run has succeeded, in place of both calls that follow the job's."),
    ] = None
    on_failure: Annotated[
        dict[str, Any] | None,
        Field(
            description="What is called when the run has ended otherwise, in place of both calls that follow the job's."
        ),
    ] = None


class BackfillIn(RunIn):
    """The span whose occurrences are to be run, both ends included, and which of them."""

    from_: Annotated[InstantText, Field(alias="from", description="Without an offset, in the job's zone.")]
    until: Annotated[
        InstantText | None,
        Field(description="By default, and at the latest, now; without an offset, in the job's zone."),
    ] = None
    only: Annotated[
        Literal["missing", "failed", "all"],
        Field(
            description="`missing`: skipped, and not filled in yet. `failed`: begun or filled in, but no execution of it succeeded, "
            "waits or runs. `all`: everything that is over."
        ),
    ] = "missing"
    by: Annotated[
        Literal["versions", "present"],
        Field(
            description="`versions`: the instants that the versions of the job named at the time. `present`: those that its present "
            "schedule names in the span, also from before the job existed."
        ),
    ] = "versions"
    max_running: Annotated[
        Annotated[int, Field(ge=1, le=MAX_RUNNING)],
        Field(description="How many executions of the backfill may be unfinished at a time."),
    ] = 1
    priority: Annotated[Annotated[int, Field(ge=0, le=100)], Field(description="The priority of its executions.")] = 0
    order: Annotated[Literal["asc", "desc"], Field(description="`desc`: the latest occurrence first.")] = "asc"
    dry_run: Annotated[bool, Field(description="Count what would run, and write nothing.")] = False


class BackfillCountOut(BaseModel):
    """How many occurrences have a verdict and a reason."""

    verdict: Literal["ran", "running", "waiting", "skipped", "expected", "unrecorded"]
    reason: str | None = Field(
        description="Why it was skipped, how it ended (`dead`, `cancelled`), or why there is no record (`deleted`, `not_scheduled`)."
    )
    count: int
    would_run: int


class BackfillPreviewOut(BaseModel):
    """What a backfill would do."""

    model_config = ConfigDict(populate_by_name=True)

    from_: datetime = Field(alias="from")
    until: datetime
    would_run: int
    counts: list[BackfillCountOut]
    counted_until: datetime | None = Field(
        description="Set if the span has more than 100,000 occurrences: those behind this one were not counted."
    )


class LastExecution(BaseModel):
    """How a job last ended."""

    id: str
    state: str
    finished_at: datetime


def tells_job_fields(model: type[Model]) -> type[Model]:
    """Give the fields of a model that are fields of a job the descriptions of the table."""
    for name, info in model.model_fields.items():
        if name in SPEC_FIELDS:
            info.description = SPEC_FIELDS[name].about
    model.model_rebuild(force=True)
    return model


@tells_job_fields
class JobOut(BaseModel):
    """A job, its values under secret-looking keys hidden."""

    id: str
    name: str | None
    description: str | None
    handler: str
    payload: Any
    kind: Literal["once", "every", "cron", "rrule", "manual", "after"]
    schedule: str | None
    interval_seconds: int | None
    scheduled_at: datetime | None
    after: str | None
    timezone: str
    on_gap: str
    on_repeat: str
    skip_on: list[str]
    only_on: list[str]
    shift: str
    calendars: dict[str, int] = Field(
        description="The calendars of both lists, each with the version that the job uses."
    )
    starts_at: datetime | None
    ends_at: datetime | None
    max_executions: int | None
    jitter_seconds: int
    misfire: str
    misfire_grace_seconds: int
    misfire_cap: int
    misfire_max_age_seconds: int | None
    overlap: str
    queue: str
    priority: int
    max_retries: int
    max_lost: int
    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_ms: list[int]
    timeout_ms: int | None
    delivery: str
    max_running: int | None
    limit_key: str | None
    unique_key: str | None
    if_exists: str
    unique_for_seconds: int | None
    start_within_seconds: int | None
    pause_after_failures: int | None
    expires_at: datetime | None
    tags: list[str]
    owner: str | None
    meta: dict[str, Any] | None
    on_success: dict[str, Any] | None
    on_failure: dict[str, Any] | None
    expect: dict[str, Any] | None
    status: Literal["active", "paused", "finished"]
    next_run_at: datetime | None
    last_execution: LastExecution | None
    paused_at: datetime | None
    paused_until: datetime | None
    pause_reason: str | None
    version: int
    declared_by: str | None
    created_by: str | None = Field(description="Who made it: a key, a person or a program.")
    created_at: datetime | None
    updated_at: datetime | None


def job_document(
    view: JobView, *, in_list: bool = False, with_payload: bool = True, shows_secrets: bool = False
) -> dict[str, Any]:
    """A job with its status, as `JobOut` has it; secrets hidden, unless a program reads its own. A list leaves large payloads out."""
    job, standing = view.job, view.situation
    spec, calendar = spec_of(job), calendar_of(job.rule)
    spec_fields = {name: getattr(spec, name) for name in SPEC_FIELDS}
    last = None
    if standing.last_id is not None:
        last = {
            "id": format_execution_id(standing.last_id),
            "state": standing.last_state,
            "finished_at": standing.last_finished_at,
        }
    # The order is for people who read it with curl: identity, definition, status.
    return (
        {"id": format_job_id(job.id)}
        | spec_fields
        | {
            "payload": _payload(job.payload, in_list=in_list, shows_secrets=shows_secrets) if with_payload else None,
            "meta": without_trace(job.meta) if shows_secrets else redact(without_trace(job.meta)),
            **{name: _call(getattr(job, name), shows_secrets=shows_secrets) for name in FOLLOW_UP_FIELDS},
            **{name: list(spec_fields[name]) for name in LIST_FIELDS},
            "calendars": calendar.versions if calendar else {},
            "kind": job.kind,
            "status": view.status,
            "next_run_at": standing.next_run_at,
            "last_execution": last,
            "paused_at": job.paused_at,
            "paused_until": job.paused_until,
            "pause_reason": job.pause_reason,
            "version": job.version,
            "declared_by": job.declared_by,
            "created_by": job.created_by,
            "created_at": job.created_at,
            "updated_at": job.updated_at,
        }
    )


def _payload(text: str, *, in_list: bool, shows_secrets: bool) -> Any:
    if in_list:
        return redact_in_list(text)
    payload = orjson.loads(text)
    return payload if shows_secrets else redact(payload)


def _call(call: dict[str, Any] | None, *, shows_secrets: bool) -> Any:
    shown = shown_call(call)
    return shown if shows_secrets else redact(shown)


Moment = datetime | str


class JobOptionParams(TypedDict, total=False):
    """The fields of a job but its name and handler, as methods of the client take them."""

    payload: Any
    description: str | None
    schedule: str | None
    interval_seconds: float | None
    scheduled_at: Moment | None
    after: str | None
    timezone: str
    on_gap: str
    on_repeat: str
    skip_on: Sequence[str]
    only_on: Sequence[str]
    shift: str
    starts_at: Moment | None
    ends_at: Moment | None
    max_executions: int | None
    jitter_seconds: int
    misfire: str
    misfire_grace_seconds: int
    misfire_cap: int
    misfire_max_age_seconds: int | None
    overlap: str
    queue: str
    priority: int
    max_retries: int
    max_lost: int
    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_ms: Sequence[int]
    timeout_ms: int | None
    delivery: str
    max_running: int | None
    limit_key: str | None
    unique_key: str | None
    if_exists: str
    unique_for_seconds: int | None
    start_within_seconds: int | None
    pause_after_failures: int | None
    expires_at: Moment | None
    tags: Sequence[str]
    owner: str | None
    meta: dict[str, Any] | None
    on_success: dict[str, Any] | None
    on_failure: dict[str, Any] | None
    expect: dict[str, Any] | None
    unchecked: bool


class JobParams(JobOptionParams, total=False):
    """All fields of a job."""

    name: str
    handler: str


class JobCreated(JobOut):
    """A job that was created, and its first execution if it has one already."""

    execution_id: str | None
    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


class JobChanged(JobOut):
    """A job that was changed."""

    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


class FieldChangeOut(BaseModel):
    """One field, before and after; secrets hidden."""

    field: str
    before: Any
    after: Any


class RevisionOut(BaseModel):
    """One change of a job, and for which occurrences its version answers, where that is kept."""

    at: datetime | None
    actor: str | None
    action: str
    reason: str | None
    version: int | None
    changes: list[FieldChangeOut]
    effective_from: datetime | None
    effective_until: datetime | None


# Templates.

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class TemplateIn(RequestModel):
    """A template: the job that it makes, under a name of its own."""

    name: Label
    description: Annotated[str, Field(max_length=10_000)] | None = None
    job: JobIn


class TemplatePatch(RequestModel):
    """What to change of a template: only what is given. `job` is replaced as a whole."""

    name: Label = Field("a-name")
    description: Annotated[str, Field(max_length=10_000)] | None = None
    job: JobIn = Field(default_factory=lambda: JobIn.model_validate({"handler": "test.echo"}))


class TemplateUse(JobPatch):
    """A job of a template: other values for some of its fields, and values for the `{{name}}`s in its payload.

    Without `variables` the payload is taken as it is.
    """

    variables: dict[VariableName, str | int | float | bool] | None = Field(None, max_length=100)


class TemplateOut(BaseModel):
    """A template; values under secret-looking keys are hidden."""

    id: str
    name: str
    description: str | None
    job: dict[str, Any]
    variables: list[str] = Field(description="The names that the payload leaves open.")
    version: int
    created_at: datetime
    updated_at: datetime


class TemplateWritten(TemplateOut):
    """A template that was made or changed."""

    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


# Calendars.

CalendarEntries = Annotated[
    list[Annotated[str, Field(max_length=30)]],
    Field(
        max_length=10_000,
        description="Days: `2026-12-25`, ranges `2026-12-24..2027-01-01`, days of every year `12-25`, of the week `sat`.",
    ),
]
IcsText = Annotated[str, Field(max_length=1_000_000, description="The text of an iCalendar file: its all-day events.")]
Country = Annotated[str, Field(max_length=10, description="The code of a country, such as `DE`: its public holidays.")]
Subdivision = Annotated[str, Field(max_length=20, description="A part of the country, such as `BY`.")]


class CalendarIn(RequestModel):
    """A calendar: one of `days`, `ics` and `country` says its days."""

    name: Label
    description: Annotated[str, Field(max_length=10_000)] | None = None
    days: CalendarEntries | None = None
    ics: IcsText | None = None
    country: Country | None = None
    subdivision: Subdivision | None = None


class CalendarPatch(RequestModel):
    """What to change of a calendar: only what is given. New days replace all that are there."""

    description: Annotated[str, Field(max_length=10_000)] | None = None
    days: CalendarEntries | None = None
    ics: IcsText | None = None
    country: Country | None = None
    subdivision: Subdivision | None = None


class CalendarOut(BaseModel):
    """A calendar."""

    name: str
    description: str | None
    source: dict[str, str | None] = Field(
        description="Where its days came from: a `list`, an `ics` file or a `country`."
    )
    days: list[str]
    next_days: list[date] = Field(description="The next ten of its days, from today on.")
    version: int
    jobs: int = Field(description="How many jobs use it, counted up to 10,000.")
    job_names: list[str] = Field(description="Up to twenty of them.")
    created_at: datetime
    updated_at: datetime


class CalendarWritten(CalendarOut):
    """A calendar that was made or changed."""

    followed: bool = Field(description="Whether all of its jobs use this version; otherwise the rest follows soon.")
    warnings: list[str] = Field(description="What could not be taken over from a file.")


# Declared jobs.


class SyncIn(ReasonIn):
    """The jobs that are to be there, each with a name."""

    jobs: list[JobIn] = Field(max_length=1_000)
    declared_by: Label = Field("api", description="Whose declaration this is; only its own jobs are ever pruned.")
    prune: bool = Field(False, description="Delete jobs of this declaration that are no longer declared.")
    dry_run: bool = Field(False, description="Show what would be done, and do nothing.")


class SyncFieldChange(BaseModel):
    """A field that differs."""

    before: Any
    after: Any


class SyncStepOut(BaseModel):
    """One job: what is done to it, what differs, and when it runs next, before and after."""

    name: str
    action: Literal["create", "change", "leave", "delete"]
    id: str | None
    version: int | None
    changes: dict[str, SyncFieldChange]
    next_before: list[datetime]
    next_after: list[datetime]


class SyncOut(BaseModel):
    """What was done, or would be."""

    dry_run: bool
    created: int
    changed: int
    left: int
    deleted: int
    jobs: list[SyncStepOut]
    warnings: list[str] = Field(
        description="What may be wrong with them, such as a handler that no worker has published."
    )
