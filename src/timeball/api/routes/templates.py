"""Templates: jobs that are not made yet."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from timeball.api.auth import Caller, Role, TheCaller
from timeball.api.described import JOB_EXAMPLE, MOMENT, described, listed
from timeball.api.desk import Desk, TheDesk
from timeball.api.routes.jobs import CREATED_EXAMPLE, IdempotencyKey, IfMatch, ThePage, shown_creation, stale
from timeball.api.schemas.common import ListOut
from timeball.api.schemas.jobs import JobCreated
from timeball.api.schemas.templates import TemplateIn, TemplateOut, TemplatePatch, TemplateUse, TemplateWritten
from timeball.api.views import Document, answer, page_document, to_bytes
from timeball.api.wishes import fields_of, version_from
from timeball.domain.ids import show
from timeball.domain.redaction import redacted, redacted_fields_in_list
from timeball.domain.template import Template, placeholders
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
    "created_at": MOMENT,
    "updated_at": MOMENT,
}


@router.get("", response_model=ListOut[TemplateOut], **described(Role.VIEWER, listed(_EXAMPLE)))
async def list_templates(desk: TheDesk, page: ThePage) -> Response:
    """List templates by name, cursor by cursor."""
    found = await desk.insights.templates(page)
    return answer(await asyncio.to_thread(page_document, found, page, _listed_template))


_WRITTEN_EXAMPLE = _EXAMPLE | {"warnings": []}


@router.post(
    "",
    response_model=TemplateWritten,
    **described(
        Role.EDITOR, _WRITTEN_EXAMPLE, status=201, request={"name": "report", "job": _JOB}, has_body=True, fails=[409]
    ),
)
async def create_template(
    body: TemplateIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Keep the fields of a job under a name. They are checked as if the job were made."""
    made = await desk.commands.create_template(
        body.name, _job_of(body.job), body.description, caller.acting(), is_unchecked=body.job.unchecked
    )
    location = {"Location": f"/api/v1/templates/{show('tpl', made.id)}"}
    warnings = {"warnings": await desk.commands.warn(body.job.handler)}
    return answer(template_document(made) | warnings, 201, _tag(made) | location)


@router.get("/{template}", response_model=TemplateOut, **described(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_template(template: TemplateRef, desk: TheDesk) -> Response:
    """One template. Its ETag is its version."""
    found = await desk.insights.find_template(template)
    return answer(template_document(found), headers=_tag(found))


_CHANGE: dict[str, Any] = described(
    Role.EDITOR, _WRITTEN_EXAMPLE, request={"description": "Another"}, has_body=True, fails=[404, 409, 412]
)


@router.put("/{template}", response_model=TemplateWritten, **_CHANGE)
async def replace_template(
    template: TemplateRef, body: TemplatePatch, desk: TheDesk, caller: TheCaller, if_match: IfMatch = None
) -> Response:
    """Change what is given; the same as PATCH. Jobs that were made of it stay as they are."""
    return await _change(template, body, desk, caller, if_match)


@router.patch("/{template}", response_model=TemplateWritten, **_CHANGE)
async def change_template(
    template: TemplateRef, body: TemplatePatch, desk: TheDesk, caller: TheCaller, if_match: IfMatch = None
) -> Response:
    """Change what is given. Jobs that were made of it stay as they are."""
    return await _change(template, body, desk, caller, if_match)


async def _change(reference: str, body: TemplatePatch, desk: Desk, caller: Caller, if_match: str | None) -> Response:
    found = await desk.insights.find_template(reference)
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    if "job" in fields:
        fields["job"] = _job_of(body.job)
    expected = version_from(if_match)
    try:
        changed = await desk.commands.update_template(
            found.id, fields, caller.acting(), expected, is_unchecked="job" in fields and body.job.unchecked
        )
    except Conflict as error:
        raise stale(error) from error
    warnings = {"warnings": await desk.commands.warn(body.job.handler) if "job" in fields else []}
    return answer(template_document(changed) | warnings, headers=_tag(changed))


_DELETE: dict[str, Any] = described(Role.EDITOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{template}", response_class=Response, **_DELETE)
async def delete_template(
    template: TemplateRef, desk: TheDesk, caller: TheCaller, if_match: IfMatch = None
) -> Response:
    """Forget a template; the jobs that were made of it stay."""
    found = await desk.insights.find_template(template)
    try:
        await desk.commands.delete_template(found.id, caller.acting(), version_from(if_match))
    except Conflict as error:
        raise stale(error) from error
    return Response(status_code=204)


_USE: dict[str, Any] = described(
    Role.EDITOR,
    CREATED_EXAMPLE,
    status=201,
    request={"scheduled_at": MOMENT, "variables": {"day": "monday"}},
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
    desk: TheDesk,
    caller: TheCaller,
    body: TemplateUse | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make a job of a template, with other values for the fields that are given.

    `variables` replace each `{{name}}` in the texts of the payload, once and as they are; a text that is nothing but
    `{{name}}` becomes the value itself, so that a number stays a number.
    """
    found = await desk.insights.find_template(template)
    overrides = {} if body is None else fields_of(body)
    variables = overrides.pop("variables", None)
    created, warnings = await desk.commands.use_template(
        found,
        overrides,
        variables,
        caller.acting(),
        caller.deed,
        is_unchecked=body is not None and body.unchecked,
    )
    return await shown_creation(desk, created, warnings)


def _job_of(body: Any) -> dict[str, Any]:
    fields = fields_of(body)
    return fields | ({"tags": list(fields["tags"])} if "tags" in fields else {})


def _tag(template: Template) -> dict[str, str]:
    return {"ETag": f'"{template.version}"'}


def _listed_template(template: Template) -> Document:
    """A template as a list shows it: without large fields of its job."""
    text = to_bytes(template.job).decode()
    return template_document(template) | {"job": redacted_fields_in_list(text)}


def template_document(template: Template) -> Document:
    """A template; secrets hidden."""
    return {
        "id": show("tpl", template.id),
        "name": template.name,
        "description": template.description,
        "job": redacted(dict(template.job)),
        "variables": sorted(set(placeholders(template.job.get("payload")))),
        "version": template.version,
        "created_at": template.created_at,
        "updated_at": template.updated_at,
    }
