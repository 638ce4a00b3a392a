"""Making and changing a job: the form, and the schedule editor inside it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.views import job_document
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.civil_time import zone_names
from timeball.domain.contract import OPTION_FIELDS
from timeball.domain.node import NodeKind
from timeball.domain.spans import parse_span, show_span
from timeball.errors import InvalidInput
from timeball.insights import Insights

pages = Pages()
_TEXTS = (
    "name",
    "description",
    "handler",
    "timezone",
    "on_gap",
    "on_repeat",
    "misfire",
    "overlap",
    "queue",
    "delivery",
)
_NUMBERS = ("priority", "max_retries", "max_running", "max_executions", "misfire_cap")
_SPANS_IN_MS = {"timeout": "timeout_ms", "initial_backoff": "initial_backoff_ms", "max_backoff": "max_backoff_ms"}
_SPANS_IN_SECONDS = {"grace": "misfire_grace_seconds", "jitter": "jitter_seconds"}
# The fields of the form that are called otherwise than those of a job.
_SHOWN = {api: shown for shown, api in _SPANS_IN_MS.items()}
_NONE = "none"
_SCHEDULES = ("schedule", "interval_seconds", "scheduled_at")
_OPTIONAL = ("description", "max_running", "max_executions", "starts_at", "ends_at", "timeout_ms")


@pages.get("/jobs/new", Role.EDITOR)
async def ask_for_job(visit: Visit) -> Response:
    """An empty form, or one filled in by a link."""
    return await _form(visit, None, _defaults() | dict(visit.request.query_params))


@pages.post("/jobs", Role.EDITOR)
async def create_job(visit: Visit) -> Response:
    """Create the job; what does not fit is said beside its field."""
    try:
        made = await visit.api.post("jobs", body=_without_empty_options(job_body(visit.form), visit.form))
    except (ApiProblem, InvalidInput) as problem:
        return await _form(visit, None, visit.form, problem)
    told = " ".join((f"{made['name'] or 'The job'} is created.", *made["warnings"]))
    return visit.go(visit.site_url(f"/jobs/{made['id']}"), told)


def _without_empty_options(body: dict[str, Any], form: dict[str, str]) -> dict[str, Any]:
    """What was left empty of a new job is what its handler declares."""
    return {name: value for name, value in body.items() if name not in OPTION_FIELDS or _text(form, name)}


@pages.get("/jobs/{job}/edit", Role.EDITOR)
async def ask_for_changes(visit: Visit) -> Response:
    """The form with what the job is now; a link may have filled in another time."""
    view = await visit.site.insights.view_job(visit.path["job"])
    job = job_document(view)
    times = {name: visit.query(name) for name in ("schedule", "first_at") if visit.query(name)}
    return await _form(visit, job, form_of(job) | times)


@pages.post("/jobs/{job}/edit", Role.EDITOR)
async def change_job(visit: Visit) -> Response:
    """Change what differs, if nobody else has changed the job meanwhile."""
    job = job_document(await visit.site.insights.view_job(visit.path["job"]))
    try:
        wanted = job_body(visit.form)
        # A payload that was not touched stays as it is: what is hidden in it must not be stored as dots.
        if visit.form.get("payload", "").split() == form_of(job)["payload"].split():
            wanted.pop("payload", None)
        changes = {name: value for name, value in wanted.items() if value != _comparable(job, name)}
        version = int(visit.form.get("version") or job["version"])
        if changes:
            changed = await visit.api.change("jobs", job["id"], body=changes, version=version)
    except (ApiProblem, InvalidInput) as problem:
        return await _form(visit, job, visit.form, problem)
    if not changes:
        return visit.go(visit.site_url(f"/jobs/{job['id']}"), "Nothing was changed.")
    told = " ".join(("Saved; it holds from the next occurrence on.", *changed["warnings"]))
    return visit.go(visit.site_url(f"/jobs/{job['id']}"), told)


def _comparable(job: dict[str, Any], name: str) -> Any:
    value = job.get(name)
    return value.isoformat() if isinstance(value, datetime) else value


async def _form(
    visit: Visit, job: dict[str, Any] | None, values: dict[str, str], problem: ApiProblem | InvalidInput | None = None
) -> Response:
    return visit.page(
        "job_form.html",
        http_status=200 if problem is None else 422,
        job=job,
        values=_defaults() | values,
        errors=_errors(problem),
        problem=problem,
        zones=sorted(zone for zone in zone_names() if "/" in zone or zone == "UTC"),
        handlers=await known_handlers(visit.site.insights),
    )


def _errors(problem: ApiProblem | InvalidInput | None) -> dict[str, str]:
    """What is wrong, by the field of the form that it stands beside."""
    if problem is None:
        return {}
    if isinstance(problem, InvalidInput):
        return {problem.field: str(problem)} if problem.field else {}
    names = {api: form for form, api in (_SPANS_IN_MS | _SPANS_IN_SECONDS | {"interval": "interval_seconds"}).items()}
    found = {}
    for error in problem.errors:
        name = error["pointer"].strip("/").partition("/")[0]
        found[names.get(name, name)] = error["detail"]
    return found


async def known_handlers(insights: Insights) -> list[str]:
    """The handlers that some live worker knows, or that workers have published."""
    nodes = await insights.nodes(NodeKind.WORKER)
    return sorted({*(name for node in nodes for name in node.handlers), *await insights.contracts.names()})


def job_body(form: dict[str, str]) -> dict[str, Any]:
    """What a form says, as the API takes it; InvalidInput names a field that cannot be read at all."""
    body: dict[str, Any] = {name: form[name].strip() for name in _TEXTS if form.get(name, "").strip()}
    without = [name for name in _OPTIONAL if _is_told_none(form, name)]
    body |= {name: _number(form[name], name) for name in _NUMBERS if _text(form, name) and name not in without}
    for name, target in _SPANS_IN_MS.items():
        if form.get(name, "").strip() and target not in without:
            body[target] = int(parse_span(form[name], name).total_seconds() * 1_000)
    for name, target in _SPANS_IN_SECONDS.items():
        if form.get(name, "").strip():
            body[target] = int(parse_span(form[name], name).total_seconds())
    for name in ("starts_at", "ends_at"):
        if form.get(name, "").strip():
            body[name] = form[name].strip()
    body |= dict.fromkeys([*without, *(name for name in _OPTIONAL if _is_emptied(form, name))])
    body["tags"] = [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()]
    if form.get("payload", "").strip():
        body["payload"] = read_json(form["payload"], "payload")
    return body | schedule_fields(form)


def schedule_fields(form: dict[str, str]) -> dict[str, Any]:
    """The one way to say when that was chosen; the others are taken away."""
    fields: dict[str, Any] = dict.fromkeys(_SCHEDULES)
    match form.get("kind"):
        case "cron":
            fields["schedule"] = form.get("schedule", "").strip()
        case "every":
            fields["interval_seconds"] = int(parse_span(form.get("interval", ""), "interval").total_seconds())
            fields["scheduled_at"] = form.get("first_at", "").strip() or None
        case "once":
            fields["scheduled_at"] = form.get("scheduled_at", "").strip()
    return fields


def _is_emptied(form: dict[str, str], name: str) -> bool:
    return _SHOWN.get(name, name) in form and not _text(form, name)


def _is_told_none(form: dict[str, str], name: str) -> bool:
    """Whether a limit is taken away by a word: of a new job, an empty field is what the handler declares."""
    return name in ("timeout_ms", "max_running") and _text(form, name).lower() == _NONE


def _text(form: dict[str, str], name: str) -> str:
    """What was typed for this field of a job."""
    return form.get(_SHOWN.get(name, name), "").strip()


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{name} is {text[:40]!r}, expected a whole number", field=name) from None


def read_json(text: str, field: str) -> Any:
    """JSON that somebody typed."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"this is not JSON: {error}", field=field, hint='such as {"to": "a@b.co"}') from None


def form_of(job: dict[str, Any]) -> dict[str, str]:
    """A job as its form shows it."""
    values = {name: "" if job[name] is None else str(job[name]) for name in (*_TEXTS, *_NUMBERS)}
    values |= {name: _span(job[source], "milliseconds") for name, source in _SPANS_IN_MS.items()}
    values |= {name: _span(job[source], "seconds") for name, source in _SPANS_IN_SECONDS.items()}
    values |= {name: "" if job[name] is None else job[name].isoformat() for name in ("starts_at", "ends_at")}
    anchor = "" if job["scheduled_at"] is None else job["scheduled_at"].isoformat()
    return values | {
        "kind": str(job["kind"]),
        "schedule": job["schedule"] or "",
        "interval": _span(job["interval_seconds"], "seconds"),
        "scheduled_at": anchor if job["kind"] == "once" else "",
        "first_at": anchor if job["kind"] == "every" else "",
        "tags": ", ".join(job["tags"]),
        "payload": orjson.dumps(job["payload"], option=orjson.OPT_INDENT_2).decode(),
        "version": str(job["version"]),
    }


def _span(value: float | None, unit: str) -> str:
    return "" if value is None else show_span(parse_span(value / 1_000 if unit == "milliseconds" else value))


def _defaults() -> dict[str, str]:
    return {
        "name": "",
        "description": "",
        "handler": "",
        "payload": "{}",
        "kind": "cron",
        "schedule": "0 9 * * mon-fri",
        "interval": "15m",
        "first_at": "",
        "scheduled_at": "",
        "timezone": "UTC",
        "on_gap": "next_valid",
        "on_repeat": "first",
        "misfire": "latest",
        "grace": "30s",
        "misfire_cap": "100",
        "overlap": "skip",
        "starts_at": "",
        "ends_at": "",
        "max_executions": "",
        "jitter": "0s",
        # Empty: what the handler declares.
        "queue": "",
        "priority": "",
        "max_retries": "",
        "initial_backoff": "",
        "max_backoff": "",
        "timeout": "",
        "max_running": "",
        "delivery": "",
        "tags": "",
        "version": "",
    }
