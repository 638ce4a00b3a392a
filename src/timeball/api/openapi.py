"""How routes describe themselves, the OpenAPI document, and the /docs page that is rendered from it.

FastAPI builds most of the document from the routes. What it leaves out or spells in its own way is corrected here, so that the
document passes the common linters (Spectral, Redocly) and client generators understand it. The page needs no script and no file
from another site.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from http import HTTPStatus
from typing import Any, TypeAlias

import orjson
from fastapi import Depends
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic import BaseModel
from starlette.routing import BaseRoute

from timeball.api.auth import Role, require_role
from timeball.api.errors import PROBLEM_MEDIA_TYPE
from timeball.api.models import ProblemOut
from timeball.api.models.executions import BulkJobsIn
from timeball.api.params import limit_heavy_request, refuse_unknown_parameters
from timeball.domain.job_fields import SPEC_FIELDS, json_default

_SCHEMAS = "#/components/schemas/"
_ALWAYS = (400, 401, 403, 422, 429, 503)
_WITH_BODY = (413, 415)

JOB_ID, EXECUTION_ID = "job_01JCV3V1KC8M2T4QZ5R7N9X0AB", "exe_01JCV3V1KC8M2T4QZ5R7N9X0AB"
WORKER_ID = "wrk_01JCV3V1KC8M2T4QZ5R7N9X0AB"
INSTANT_EXAMPLE = "2026-11-16T06:00:00Z"


def route_options(
    role: Role | None,
    example: Any,
    *,
    status: int = 200,
    request: Any = None,
    has_body: bool = False,
    fails: Sequence[int] = (),
    media_type: str = "application/json",
    is_heavy: bool = False,
) -> dict[str, Any]:
    """The arguments of a route: its role, an example, the ways it can fail, and whether it is expensive."""
    codes = sorted({*_ALWAYS, *fails, *(_WITH_BODY if has_body else ())})
    responses: dict[int | str, Any] = {status: {} if status == 204 else {"content": {media_type: {"example": example}}}}
    responses |= {code: _problem_response(code) for code in codes}
    extra: dict[str, Any] = {"x-role": "none" if role is None else role.value}
    if role is None:
        extra["security"] = []
    if request is not None:
        extra["requestBody"] = {"content": {"application/json": {"example": request}}}
    return {
        "status_code": status,
        "responses": responses,
        "dependencies": [
            *([] if role is None else [Depends(require_role(role))]),
            Depends(refuse_unknown_parameters),
            *([Depends(limit_heavy_request)] if is_heavy else []),
        ],
        "openapi_extra": extra,
    }


def probe_options(get: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the HEAD route for a GET route: the same role, and no description."""
    return {"include_in_schema": False, "dependencies": get["dependencies"], "openapi_extra": get["openapi_extra"]}


def export_options(example: str) -> dict[str, Any]:
    """The arguments of a route that responds with a file."""
    options = route_options(Role.VIEWER, example, media_type="text/csv")
    options["responses"][200]["content"]["application/jsonl"] = {"example": '{"id":"..."}\n'}
    options["responses"][200]["content"]["application/json"] = {"example": [{"id": "..."}]}
    return options


def _problem_response(code: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(code).phrase,
        # By reference: as a `model`, FastAPI would read it anew for each way in which each route can fail.
        "content": {
            PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _SCHEMAS + "ProblemOut"}, "example": _problem_example(code)}
        },
    }


def _problem_example(code: int) -> dict[str, Any]:
    phrase = HTTPStatus(code).phrase
    name = phrase.lower().replace(" ", "_")
    return {
        "type": f"urn:timeball:problem:{name}",
        "title": phrase,
        "status": code,
        "detail": "what was found, and what was expected",
        "instance": "/api/v1/jobs",
        "code": name,
        "errors": [],
        "hint": "what to do",
        "request_id": "req_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    }


def page_example(item: Any) -> dict[str, Any]:
    """An example of a page."""
    return {"data": [item], "next_cursor": None, "has_more": False}


NEW_JOB_EXAMPLE: dict[str, Any] = {
    "name": "daily-report",
    "description": "Generate daily sales report",
    "handler": "http.webhook",
    "payload": {"url": "https://api.example.com/reports/generate", "method": "POST"},
    "schedule": "0 6 * * *",
    "priority": 75,
    "max_retries": 3,
    "timeout_ms": 60000,
}
JOB_EXAMPLE: dict[str, Any] = {
    "id": JOB_ID,
    **{name: json_default(line) for name, line in SPEC_FIELDS.items()},
    **NEW_JOB_EXAMPLE,
    "calendars": {},
    "kind": "cron",
    "status": "active",
    "next_run_at": INSTANT_EXAMPLE,
    "last_execution": None,
    "paused_at": None,
    "paused_until": None,
    "pause_reason": None,
    "version": 1,
    "declared_by": None,
    "created_by": "key:key_01JD2XW0Z7Q9V5T3M8R6N4K2H1 deploy",
    "created_at": "2026-11-15T09:30:00Z",
    "updated_at": "2026-11-15T09:30:00Z",
}
EXECUTION_EXAMPLE: dict[str, Any] = {
    "id": EXECUTION_ID,
    "job_id": JOB_ID,
    "state": "succeeded",
    "origin": "schedule",
    "job_version": 1,
    "handler": "http.webhook",
    "queue": "default",
    "priority": 75,
    "scheduled_for": INSTANT_EXAMPLE,
    "run_at": None,
    "queued_at": "2026-11-16T05:59:59.512000Z",
    "started_at": "2026-11-16T06:00:00.001000Z",
    "finished_at": "2026-11-16T06:00:00.842000Z",
    "lateness_ms": 1.0,
    "duration_ms": 841.0,
    "attempts": 1,
    "lost": 0,
    "worker": WORKER_ID,
    "error_type": None,
    "error": None,
    "reason": None,
    "retry_of": None,
    "created_by": None,
    "expires_at": None,
    "meta": None,
    "trace_id": None,
    "progress": None,
}
BULK_EXAMPLE = {
    "done": 1,
    "failed": 0,
    "has_more": False,
    "results": [{"id": EXECUTION_ID, "status": "done", "execution_id": EXECUTION_ID, "error": None}],
}


CREATED_EXAMPLE = JOB_EXAMPLE | {"execution_id": EXECUTION_ID, "warnings": []}


Document: TypeAlias = dict[str, Any]


# The version of the API, not of the program: the document is public, and need not reveal what runs here.
API_VERSION = "1"
_DESCRIPTION = (
    "Jobs at their exact time. Errors are `application/problem+json`; lists are `{data, next_cursor, has_more}`; "
    "every POST takes an `Idempotency-Key`. Each route says which role a key must have (`x-role`): "
    "viewer, operator, editor or admin, each including those before it."
)
_TAGS = {
    "jobs": "What to run, and when.",
    "executions": "Every run of a job: its state, its attempts, its log.",
    "groups": "Parts that run side by side, and what follows when all of them have ended.",
    "dead letter": "Executions that have used up their retries.",
    "templates": "Jobs with placeholders, to be filled in.",
    "calendars": "Named sets of days that jobs leave out, or run on alone.",
    "operations": "Bulk actions and their progress.",
    "queues": "Named queues of executions: pause, limit, purge.",
    "alerts": "Facts that a person should act upon, until they are gone; and the channels that they are told to.",
    "freezes": "Spans in which nothing of a queue, a tag, a job or the installation starts.",
    "nodes": "The workers and schedulers that are running.",
    "handlers": "What workers can run.",
    "events": "Changes as they happen, as server-sent events.",
    "webhooks": "Addresses that events are sent to, and what became of each message.",
    "system": "Statistics, health, the doctor, the audit.",
    "time": "Timelines, forecasts, calendars and previews of schedules.",
    "drop-in": "For clients that were written for a home-made scheduler: one-off jobs as types with data.",
}


def openapi_document(routes: Sequence[BaseRoute]) -> Document:
    """The description of all routes."""
    document = get_openapi(
        title="Timeball",
        version=API_VERSION,
        description=_DESCRIPTION,
        routes=routes,
        license_info={"name": "MIT", "identifier": "MIT"},
        tags=[{"name": name, "description": description} for name, description in _TAGS.items()],
    )
    _add_model(document, "BulkJobs", BulkJobsIn)
    _add_model(document, "ProblemOut", ProblemOut)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    # In open mode, on loopback and before the first key is created, no key is needed.
    document["security"] = [{"key": []}, {}]
    for operation, route in _operations(document, routes):
        _complete(operation)
        _restore_examples(operation, route)
    return document


def served_below(document: Document, prefix: str) -> Document:
    """The document for an application that is mounted below *prefix*."""
    return document | {"servers": [{"url": prefix or "/"}]}


def _add_model(document: Document, name: str, model: type[BaseModel]) -> None:
    """Add a model that FastAPI does not know: the body of a route that reads it by hand, or what routes only refer to."""
    schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}")
    schemas = document["components"]["schemas"]
    schemas.update({part: parts for part, parts in schema.pop("$defs", {}).items() if part not in schemas})
    schemas[name] = schema


def _operations(document: Document, routes: Sequence[BaseRoute]) -> Iterator[tuple[Document, RouteContext]]:
    for route in iter_route_contexts(routes):
        if isinstance(route.original_route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                yield document["paths"][route.path_format][method.lower()], route


def _complete(operation: Document) -> None:
    """Correct one operation: the role in its description, an optional body."""
    operation["description"] = f"{operation.get('description', '')}\n\nRole: **{operation['x-role']}**.".strip()
    for media in operation.get("requestBody", {}).get("content", {}).values():
        _drop_null(media.get("schema", {}))


def _drop_null(schema: Document) -> None:
    """Remove `null` from an optional body: `required` says that it is optional, and generated clients would send the null."""
    choices = schema.get("anyOf", [])
    kept = [choice for choice in choices if choice != {"type": "null"}]
    if len(kept) == 1 and len(choices) == 2:
        del schema["anyOf"]
        schema.update(kept[0])


def _restore_examples(operation: Document, route: RouteContext) -> None:
    """Put the examples back: FastAPI drops every `null` in them, and with it properties that the schema requires."""
    for status, response in (route.responses or {}).items():
        for media_type, media in response.get("content", {}).items():
            if "example" in media:
                operation["responses"][str(status)]["content"][media_type]["example"] = media["example"]
    body = (route.openapi_extra or {}).get("requestBody", {})
    for media_type, media in body.get("content", {}).items():
        if "example" in media:
            operation["requestBody"]["content"][media_type]["example"] = media["example"]


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff }
h2 { margin-top: 2.5rem; text-transform: capitalize }
details { border: 1px solid #d5dae0; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { background: #f3f5f7; padding: .7rem; overflow: auto; border-radius: 4px; max-height: 26rem }
.method { display: inline-block; width: 4.5rem; font-weight: 700 }
.role { float: right; color: #57606a }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #dfe3e8 }
  pre { background: #1e2328 }
  details { border-color: #3a424b }
  .role { color: #9aa4af }
}
""".strip()
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
CONTENT_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"


def render_docs(schema: dict[str, Any]) -> str:
    """The page."""
    groups: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    sections = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timeball API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Timeball API</h1><p>{_prose(schema['info']['description'])}</p>"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>{sections}</body></html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(_parameter(parameter) for parameter in operation.get("parameters", ()))
    request = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    answers = "".join(_answer(code, response) for code, response in operation["responses"].items() if code < "300")
    fails = ", ".join(code for code in operation["responses"] if code >= "300")
    return (
        f'<details><summary><code><span class="method">{method.upper()}</span>{escape(path)}</code>'
        f'<span class="role">{escape(operation["x-role"])}</span></summary>'
        f"<p>{_prose(operation['description'])}</p>"
        + (f"<ul>{parameters}</ul>" if parameters else "")
        + (f"<p>Body</p>{_example(request)}" if request is not None else "")
        + f"{answers}<p>Problems: {escape(fails)}</p></details>"
    )


def _prose(text: str) -> str:
    """Text with the Markdown that descriptions use: `code` and **bold**."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)


def _parameter(parameter: dict[str, Any]) -> str:
    note = parameter.get("description", "")
    return f"<li><code>{escape(parameter['name'])}</code> ({escape(parameter['in'])}) {_prose(note)}</li>"


def _answer(code: str, response: dict[str, Any]) -> str:
    content: dict[str, Any] = next(iter(response.get("content", {}).values()), {})
    return f"<p>{escape(code)}</p>{_example(content['example']) if 'example' in content else ''}"


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f"<pre>{escape(text)}</pre>"
