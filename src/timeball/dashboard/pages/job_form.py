"""The form that creates or changes a job, and the preview of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.documents import resolved_payload_document
from timeball.api.models.jobs import job_document
from timeball.api.resources.system import instant_load_document
from timeball.application.queries.forecast import InstantLoadRequest
from timeball.application.queries.jobs import FireTime
from timeball.dashboard.context import PageContext, PageRouter, known_handlers, parse_json_field
from timeball.dashboard.formatting import format_seconds, pluralize
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.domain.job import Job
from timeball.domain.job_fields import (
    OPTION_FIELDS,
    SPEC_FIELDS,
    TIME_FIELDS,
    Choice,
    JobField,
    JobSpec,
    JsonObject,
    Labels,
    Section,
    Spans,
    Whole,
)
from timeball.domain.payload_references import VersionSchedule, check_references
from timeball.domain.policies import OnGap, OnRepeat, Shift
from timeball.domain.scheduling.civil_time import zone_names
from timeball.domain.scheduling.schedule import After, Manual, Once, ScheduleKind
from timeball.domain.search import PageRequest
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.json_text import to_json
from timeball.domain.values.wording import format_duration, parse_duration
from timeball.errors import InvalidInput, InvalidJson

router = PageRouter()


# Making and changing a job: the form, and the schedule editor inside it.

# The fields of the form, by their names there: a span is written with its unit (`30s`), so its name has none.
# The schedule and the payload are read in ways of their own.
_FIELDS = {line.bare_name: line for name, line in SPEC_FIELDS.items() if name not in (*TIME_FIELDS, "payload")}
_OF_CALENDARS = ("skip_on", "only_on")
# The fields that the template places by hand, in an order and with hints of its own. The others follow them in the card of their section.
_PLACED = frozenset(
    {"name", "handler", "tags", "description", "timezone", "on_gap", "on_repeat", "misfire_grace", "misfire", "overlap"}
    | {*_OF_CALENDARS, "shift"}
    | {"queue", "priority", "timeout", "max_retries", "initial_backoff", "max_backoff", "max_running"}
)
_MORE = {
    section: [name for name, line in _FIELDS.items() if line.section is section and name not in _PLACED]
    for section in Section
}
_CHOICES = {
    name: [(word.value, word.about) for word in line.rule.words]
    for name, line in _FIELDS.items()
    if isinstance(line.rule, Choice)
}
# The word that takes a limit away from a new job: there an empty field is what the handler declares.
_NONE = "none"
# The calendars that a form offers.
_CALENDARS = PageRequest(limit=100)


@router.get("/jobs/new", Role.EDITOR)
async def new_job_form(context: PageContext) -> Response:
    """An empty form, or one filled in by a link."""
    return await _form(context, None, _defaults() | dict(context.request.query_params))


@router.post("/jobs", Role.EDITOR)
async def create_job(context: PageContext) -> Response:
    """Create the job; what does not fit is said beside its field."""
    form = _typed(context)
    try:
        job = await context.api.post("jobs", body=_without_empty_options(job_body(form), form))
    except (ApiProblem, InvalidInput) as problem:
        return await _form(context, None, form, problem)
    message = " ".join((f"{job['name'] or 'The job'} is created.", *job["warnings"]))
    return context.go(context.site_url(f"/jobs/{job['id']}"), message)


def _typed(context: PageContext) -> dict[str, str]:
    """The fields of the form; the calendars that were ticked are one field, with commas between them."""
    ticked = {name: ", ".join(filter(None, context.form_list(name))) for name in _OF_CALENDARS if name in context.form}
    return context.form | ticked


def _without_empty_options(body: dict[str, Any], form: dict[str, str]) -> dict[str, Any]:
    """What was left empty of a new job is what its handler declares."""
    return {name: value for name, value in body.items() if name not in OPTION_FIELDS or _text(form, SPEC_FIELDS[name])}


@router.get("/jobs/{job}/edit", Role.EDITOR)
async def edit_job_form(context: PageContext) -> Response:
    """The form with what the job is now; a link may have filled in another time."""
    view = await context.site.queries.jobs.view(context.path["job"])
    job = job_document(view)
    times = {name: context.query(name) for name in ("schedule", "first_at") if context.query(name)}
    return await _form(context, job, form_values(job) | times)


@router.post("/jobs/{job}/edit", Role.EDITOR)
async def change_job(context: PageContext) -> Response:
    """Change the fields that differ, unless the job was changed meanwhile."""
    job = job_document(await context.site.queries.jobs.view(context.path["job"]))
    form = _typed(context)
    try:
        body = job_body(form)
        # A payload that was not touched stays as it is: what is hidden in it must not be stored as dots.
        if form.get("payload", "").split() == form_values(job)["payload"].split():
            body.pop("payload", None)
        changes = {name: value for name, value in body.items() if value != _comparable(job, name)}
        version = int(form.get("version") or job["version"])
        if changes:
            changed = await context.api.change("jobs", job["id"], body=changes, version=version)
    except (ApiProblem, InvalidInput) as problem:
        return await _form(context, job, form, problem)
    if not changes:
        return context.go(context.site_url(f"/jobs/{job['id']}"), "Nothing was changed.")
    message = " ".join(("Saved; it holds from the next occurrence on.", *changed["warnings"]))
    return context.go(context.site_url(f"/jobs/{job['id']}"), message)


def _comparable(job: dict[str, Any], name: str) -> Any:
    value = job.get(name)
    return value.isoformat() if isinstance(value, datetime) else value


async def _form(
    context: PageContext,
    job: dict[str, Any] | None,
    values: dict[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    return context.page(
        "job_form.html",
        http_status=200 if problem is None else 422,
        job=job,
        values=_defaults() | values,
        fields=_FIELDS,
        choices=_CHOICES,
        more=_MORE,
        errors=_errors(problem),
        problem=problem,
        zones=sorted(zone for zone in zone_names() if "/" in zone or zone == "UTC"),
        handlers=await known_handlers(context.site.queries),
        calendars=[view.calendar.name for view in (await context.site.queries.calendars.page(_CALENDARS)).items],
    )


def _errors(problem: ApiProblem | InvalidInput | None) -> dict[str, str]:
    """What is wrong, by the name that a field has in the form."""
    errors = field_errors(problem)
    return {SPEC_FIELDS[name].bare_name if name in SPEC_FIELDS else name: text for name, text in errors.items()}


def job_body(form: dict[str, str]) -> dict[str, Any]:
    """What a form says, as the API takes it; InvalidInput names a field that cannot be read at all."""
    body = {
        line.name: _value(line, _text(form, line))
        for name, line in _FIELDS.items()
        if _text(form, line) or (name in form and _has_empty_value(line))
    }
    if form.get("payload", "").strip():
        body["payload"] = parse_json_field(form["payload"], "payload")
    return body | schedule_fields(form) | _calendar_fields(form)


def _calendar_fields(form: dict[str, str]) -> dict[str, Any]:
    """A kind of schedule that calendars mean nothing to has none."""
    kind = form.get("kind")
    if kind not in ("cron", "every"):
        return {"skip_on": [], "only_on": [], "shift": Shift.NONE.value}
    return {} if kind == "cron" else {"shift": Shift.NONE.value}


def _has_empty_value(line: JobField) -> bool:
    """Whether a field that was emptied says something; a name and what has no empty value stay as they are."""
    return isinstance(line.rule, Labels | Spans) or (line.is_optional and line.name != "name")


def _value(line: JobField, text: str) -> Any:
    """What was typed for a field, as the API takes it."""
    match line.rule:
        case Labels():
            return [label.strip() for label in text.split(",") if label.strip()]
        case Spans():
            return [_milliseconds(part, line.bare_name) for part in text.split(",") if part.strip()]
        case Whole() if line.is_optional and text.lower() == _NONE:
            return None
        case _ if not text:
            return None
        case Whole() if line.unit is not None:
            return int(parse_duration(text, line.bare_name).total_seconds() * (1_000 if line.unit == "ms" else 1))
        case Whole():
            return _number(text, line.name)
        case JsonObject():
            return parse_json_field(text, line.name)
        case _:
            return text


def _milliseconds(text: str, name: str) -> int:
    return int(parse_duration(text.strip(), name) / timedelta(milliseconds=1))


def schedule_fields(form: dict[str, str]) -> dict[str, Any]:
    """The one way to say when that was chosen; the others are taken away. Once without an instant is now."""
    fields: dict[str, Any] = dict.fromkeys(TIME_FIELDS)
    match form.get("kind"):
        case "cron":
            fields["schedule"] = form.get("schedule", "").strip()
        case "every":
            fields["interval_seconds"] = int(parse_duration(form.get("interval", ""), "interval").total_seconds())
            fields["scheduled_at"] = form.get("first_at", "").strip() or None
        case "once":
            fields["scheduled_at"] = form.get("scheduled_at", "").strip() or None
        case "after":
            fields["after"] = form.get("after", "").strip()
        case "manual":
            fields["schedule"] = ScheduleKind.MANUAL.value
    return fields


def _text(form: dict[str, str], line: JobField) -> str:
    """What was typed for a field of a job."""
    return form.get(line.bare_name, "").strip()


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise unexpected_value(name, text, "a whole number") from None


def form_values(job: dict[str, Any]) -> dict[str, str]:
    """A job as its form shows it."""
    anchor = _shown(SPEC_FIELDS["scheduled_at"], job["scheduled_at"])
    return {name: _shown(line, job[line.name]) for name, line in _FIELDS.items()} | {
        # A recurrence rule is written where a cron expression is.
        "kind": "cron" if job["kind"] == "rrule" else str(job["kind"]),
        "schedule": job["schedule"] if job["kind"] in ("cron", "rrule") else "",
        "interval": _shown(SPEC_FIELDS["interval_seconds"], job["interval_seconds"]),
        "scheduled_at": anchor if job["kind"] == "once" else "",
        "first_at": anchor if job["kind"] == "every" else "",
        "after": job["after"] or "",
        "payload": orjson.dumps(job["payload"], option=orjson.OPT_INDENT_2).decode(),
        "version": str(job["version"]),
    }


def _shown(line: JobField, value: Any) -> str:
    """The value of a field as its form shows it."""
    if value is None:
        return ""
    if isinstance(line.rule, Spans):
        return ", ".join(format_duration(timedelta(milliseconds=wait)) for wait in value)
    if line.unit is not None:
        return format_duration(parse_duration(value / 1_000 if line.unit == "ms" else value))
    if isinstance(line.rule, Labels):
        return ", ".join(value)
    if isinstance(line.rule, JsonObject):
        return orjson.dumps(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _defaults() -> dict[str, str]:
    """A form that is empty; what a handler may declare is left to it."""
    usual = {name: "" if line.is_handler_option else _shown(line, line.default) for name, line in _FIELDS.items()}
    return usual | {
        "kind": "cron",
        "schedule": "0 9 * * mon-fri",
        "interval": "15m",
        "first_at": "",
        "scheduled_at": "",
        "after": "",
        "payload": "{}",
        "version": "",
    }


# What a schedule would do, while it is being typed: plain words, the next ten, clock changes, what would move, what it meets.

_PREVIEWED = 10


@router.post("/parts/schedule", Role.VIEWER)
async def preview_schedule(context: PageContext) -> Response:
    """The schedule of a form, as it would be."""
    queries = context.site.queries
    now = queries.now()
    zone = context.form.get("timezone", "").strip() or "UTC"
    try:
        rule = await queries.jobs.rule_of(_previewed_spec(_typed(context), zone), now)
    except InvalidInput as error:
        return context.page("partials/schedule_preview.html", error=error, rule=None)
    times = queries.jobs.next_times(rule, zone, now, _PREVIEWED)
    job = context.form.get("job", "")
    current = await queries.jobs.find(job) if job else None
    payload, payload_error = _next_payload(context, VersionSchedule(rule, zone), current, times)
    return context.page(
        "partials/schedule_preview.html",
        error=None,
        rule=rule,
        is_manual=isinstance(rule, Manual),
        is_after=isinstance(rule, After),
        is_now=isinstance(rule, Once) and rule.scheduled_at == now,
        times=times,
        changes=[change for change in queries.jobs.clock_changes(rule, now, 4) if change not in times],
        zone=zone,
        compared=None if current is None else _comparison(context, current, times),
        landing=await _landing(context, current, times),
        payload=payload,
        payload_error=payload_error,
    )


def _next_payload(
    context: PageContext, schedule: VersionSchedule, job: Job | None, times: Sequence[FireTime]
) -> tuple[Any, InvalidInput | None]:
    """The payload of the form with the values of its references at the next run; or why they cannot be used."""
    try:
        payload = to_json(parse_json_field(context.form.get("payload", "").strip() or "{}", "payload"))
        check_references(payload)
    except InvalidInput as error:
        # What is not JSON yet is being typed.
        return None, None if isinstance(error, InvalidJson) else error
    queries = context.site.queries
    resolved = queries.jobs.next_payload(payload, schedule, times, None if job is None else job.id)
    return resolved_payload_document(resolved), None


def _previewed_spec(form: dict[str, str], zone: str) -> JobSpec:
    """What the form says about time; a job with other kinds of fields would be refused for them."""
    is_cron, is_recurring = form.get("kind") == "cron", form.get("kind") in ("cron", "every")
    calendars: dict[str, Any] = {
        name: tuple(_value(SPEC_FIELDS[name], _text(form, SPEC_FIELDS[name]))) if is_recurring else ()
        for name in _OF_CALENDARS
    }
    return JobSpec(
        handler="preview",
        **schedule_fields(form),
        **calendars,
        shift=form.get("shift") or Shift.NONE if is_cron else Shift.NONE,
        timezone=zone,
        on_gap=form.get("on_gap", OnGap.NEXT_VALID),
        on_repeat=form.get("on_repeat", OnRepeat.FIRST),
        starts_at=form.get("starts_at", "").strip() or None,
        ends_at=form.get("ends_at", "").strip() or None,
        name=form.get("name", "").strip() or None,
    )


async def _landing(context: PageContext, job: Job | None, times: Sequence[FireTime]) -> dict[str, Any] | None:
    """What the next run would meet."""
    first = next((time.occurrence.at for time in times if time.occurrence.is_due), None)
    if first is None:
        return None
    queue = context.form.get("queue", "").strip() or "default"
    request = InstantLoadRequest(at=first, queue=queue, job_id=None if job is None else job.id)
    return instant_load_document(await context.site.queries.forecast.load_at(request))


def _comparison(context: PageContext, job: Job, new: Sequence[FireTime]) -> dict[str, Any]:
    queries = context.site.queries
    old = queries.jobs.next_times(job.rule, job.timezone, queries.now(), _PREVIEWED)
    return {"words": job.rule.describe(), "verdict": describe_moves(old, new)}


def describe_moves(old: Sequence[FireTime], new: Sequence[FireTime]) -> str:
    """What a change of schedule does to the next runs, in a sentence."""
    before = [time.occurrence.at for time in old if time.occurrence.is_due]
    after = [time.occurrence.at for time in new if time.occurrence.is_due]
    if before == after:
        return "Nothing moves: the next runs stay where they are."
    if not before or not after:
        return f"It had {pluralize(len(before), 'run')} ahead, and would have {len(after) or 'none'}."
    shifts = [there - here for here, there in zip(before, after, strict=False)]
    moved = [shift for shift in shifts if shift]
    if len(set(moved)) == 1:
        return f"{len(moved)} of {len(shifts)} move {_shift(moved[0])}."
    return f"{len(moved)} of {len(shifts)} move; the next one {_shift(shifts[0]) if shifts[0] else 'stays'}."


def _shift(shift: timedelta) -> str:
    return f"{format_seconds(abs(shift.total_seconds()))} {'later' if shift > timedelta(0) else 'earlier'}"
