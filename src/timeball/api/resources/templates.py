"""Job templates: models, serialiser and routes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import precondition_error
from timeball.api.models import PageOut
from timeball.api.models.jobs import JobCreated, TemplateIn, TemplateOut, TemplatePatch, TemplateUse, TemplateWritten
from timeball.api.openapi import CREATED_EXAMPLE, INSTANT_EXAMPLE, JOB_EXAMPLE, page_example, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, IfMatch, PageParams, given_fields, parse_if_match
from timeball.api.resources.jobs import creation_response
from timeball.api.responses import Document, json_bytes, json_response, page_document
from timeball.domain.job_fields import LIST_FIELDS
from timeball.domain.template import Template, placeholders
from timeball.domain.values.ids import format_id
from timeball.domain.values.redaction import redact, redact_fields_in_list
from timeball.errors import Conflict

router = APIRouter(prefix="/templates", tags=["templates"])

TemplateRef = Annotated[str, Path(max_length=200, description="A template's id or name.")]

_JOB = {"handler": "http.webhook", "payload": {"url": "https://example.com/reports", "json": {"day": "{{day}}"}}}
_EXAMPLE = {
    "id": "tpl_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "name": "report",
    "description": "One report",
    "job": _JOB,
    "variables": ["day"],
    "version": 1,
    "created_at": INSTANT_EXAMPLE,
    "updated_at": INSTANT_EXAMPLE,
}


@router.get("", response_model=PageOut[TemplateOut], **route_options(Role.VIEWER, page_example(_EXAMPLE)))
async def list_templates(context: Context, page: PageParams) -> Response:
    """List templates by name."""
    templates = await context.queries.templates.page(page)
    return json_response(await asyncio.to_thread(page_document, templates, page, listed_template_document))


_WRITTEN_EXAMPLE = _EXAMPLE | {"warnings": []}


@router.post(
    "",
    response_model=TemplateWritten,
    **route_options(
        Role.EDITOR, _WRITTEN_EXAMPLE, status=201, request={"name": "report", "job": _JOB}, has_body=True, fails=[409]
    ),
)
async def create_template(
    body: TemplateIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store the fields of a job under a name. They are checked as if the job were created."""
    created = await context.commands.templates.create(
        body.name, _job_of(body.job), body.description, caller.as_actor(), is_unchecked=body.job.unchecked
    )
    location = {"Location": f"/api/v1/templates/{format_id('tpl', created.id)}"}
    warnings = {"warnings": await context.commands.contracts.warn(body.job.handler)}
    return json_response(template_document(created) | warnings, 201, _etag(created) | location)


@router.get("/{template}", response_model=TemplateOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_template(template: TemplateRef, context: Context) -> Response:
    """One template. Its ETag is its version."""
    target = await context.queries.templates.find(template)
    return json_response(template_document(target), headers=_etag(target))


_CHANGE: dict[str, Any] = route_options(
    Role.EDITOR, _WRITTEN_EXAMPLE, request={"description": "Another"}, has_body=True, fails=[404, 409, 412]
)


@router.put("/{template}", response_model=TemplateWritten, **_CHANGE)
async def replace_template(
    template: TemplateRef, body: TemplatePatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; the same as PATCH. Jobs that were created from the template stay as they are."""
    return await _change(template, body, context, caller, if_match)


@router.patch("/{template}", response_model=TemplateWritten, **_CHANGE)
async def change_template(
    template: TemplateRef, body: TemplatePatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields. Jobs that were created from the template stay as they are."""
    return await _change(template, body, context, caller, if_match)


async def _change(
    reference: str, body: TemplatePatch, context: ApiContext, caller: Caller, if_match: str | None
) -> Response:
    target = await context.queries.templates.find(reference)
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    if "job" in fields:
        fields["job"] = _job_of(body.job)
    expected = parse_if_match(if_match)
    try:
        changed = await context.commands.templates.update(
            target.id, fields, caller.as_actor(), expected, is_unchecked="job" in fields and body.job.unchecked
        )
    except Conflict as error:
        raise precondition_error(error) from error
    warnings = {"warnings": await context.commands.contracts.warn(body.job.handler) if "job" in fields else []}
    return json_response(template_document(changed) | warnings, headers=_etag(changed))


_DELETE: dict[str, Any] = route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{template}", response_class=Response, **_DELETE)
async def delete_template(
    template: TemplateRef, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Delete a template; jobs that were created from it stay."""
    target = await context.queries.templates.find(template)
    try:
        await context.commands.templates.delete(target.id, caller.as_actor(), parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    return Response(status_code=204)


_USE: dict[str, Any] = route_options(
    Role.EDITOR,
    CREATED_EXAMPLE,
    status=201,
    request={"scheduled_at": INSTANT_EXAMPLE, "variables": {"day": "monday"}},
    has_body=True,
    fails=[404, 409],
)
_USE["responses"][200] = {
    "description": "The job that holds the unique_key",
    "model": JobCreated,
    "content": {"application/json": {"example": JOB_EXAMPLE | {"execution_id": None, "warnings": []}}},
}


@router.post("/{template}/use", response_model=JobCreated, **_USE)
async def use_template(
    template: TemplateRef,
    context: Context,
    caller: CurrentCaller,
    body: TemplateUse | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a job from a template, with other values for the given fields.

    `variables` replace each `{{name}}` in the texts of the payload, once and unchanged. A text that is nothing but
    `{{name}}` becomes the value itself, so that a number stays a number.
    """
    target = await context.queries.templates.find(template)
    overrides = {} if body is None else given_fields(body)
    variables = overrides.pop("variables", None)
    created, warnings = await context.commands.templates.use(
        target,
        overrides,
        variables,
        caller.as_actor(),
        caller.idempotency,
        is_unchecked=body is not None and body.unchecked,
    )
    return await creation_response(context, created, warnings)


def _job_of(body: Any) -> dict[str, Any]:
    fields = given_fields(body)
    return fields | {name: list(fields[name]) for name in LIST_FIELDS if name in fields}


def _etag(template: Template) -> dict[str, str]:
    return {"ETag": f'"{template.version}"'}


def listed_template_document(template: Template) -> Document:
    """A template in a list: without large fields of its job."""
    text = json_bytes(template.job).decode()
    return template_document(template) | {"job": redact_fields_in_list(text)}


def template_document(template: Template) -> Document:
    """A template; secrets hidden."""
    return {
        "id": format_id("tpl", template.id),
        "name": template.name,
        "description": template.description,
        "job": redact(dict(template.job)),
        "variables": sorted(set(placeholders(template.job.get("payload")))),
        "version": template.version,
        "created_at": template.created_at,
        "updated_at": template.updated_at,
    }
