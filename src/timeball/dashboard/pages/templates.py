"""Templates: the fields of jobs, kept under a name and used with other values."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.jobs import job_document
from timeball.api.resources.templates import listed_template_document, template_document
from timeball.dashboard.context import PageContext, PageRouter, parse_json_field
from timeball.dashboard.formatting import pretty_json
from timeball.dashboard.internal_api import ApiProblem
from timeball.domain.job_fields import SPEC_FIELDS
from timeball.errors import InvalidInput

router = PageRouter()

_PAGE = 100
_VARIABLE = "variable."
_BLANK = {"name": "", "description": "", "job": ""}
# The fields of a job that become part of a template.
_COPIED = SPEC_FIELDS.keys() - {"name"}


@router.get("/templates")
async def list_templates(context: PageContext) -> Response:
    """All templates, by name."""
    page = await context.site.queries.templates.page(context.page_request(_PAGE))
    rows = await asyncio.to_thread(lambda: [listed_template_document(template) for template in page.items])
    return context.page("templates.html", part="partials/templates_list.html", rows=rows, page=page)


@router.get("/templates/new", Role.EDITOR)
async def new_template_form(context: PageContext) -> Response:
    """The form of a new template, empty or filled with a job."""
    job: dict[str, Any] = {"handler": "http.webhook", "payload": {"url": "https://example.com/{{path}}"}}
    name = ""
    if context.query("job"):
        view = await context.site.queries.jobs.view(context.query("job"))
        job = {field: value for field, value in job_document(view).items() if field in _COPIED and value is not None}
        name = view.job.name or ""
    return _form(context, None, {"name": name, "description": "", "job": pretty_json(job)})


@router.post("/templates", Role.EDITOR)
async def create_template(context: PageContext) -> Response:
    """Create a template."""
    try:
        created = await context.api.post("templates", body=_body(context))
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, None, context.form, problem)
    return context.go(context.site_url(f"/templates/{created['id']}"), f"The template {created['name']} is created.")


@router.get("/templates/{template}")
async def template_page(context: PageContext) -> Response:
    """One template, and the form that creates a job from it."""
    return await _show(context)


@router.post("/templates/{template}/use", Role.EDITOR)
async def use_template(context: PageContext) -> Response:
    """Create a job from a template, with values for its variables."""
    variables = {
        name.removeprefix(_VARIABLE): value for name, value in context.form_pairs if name.startswith(_VARIABLE)
    }
    body: dict[str, Any] = {name: context.form[name] for name in ("name", "scheduled_at") if context.form.get(name)}
    if variables:
        body["variables"] = variables
    try:
        job = await context.api.post("templates", context.path["template"], "use", body=body)
    except ApiProblem as problem:
        return await _show(context, problem)
    target = (
        f"/executions/{job['execution_id']}" if job.get("execution_id") and not job["name"] else f"/jobs/{job['id']}"
    )
    return context.go(context.site_url(target), "The job is created from the template.")


@router.get("/templates/{template}/edit", Role.EDITOR)
async def edit_template_form(context: PageContext) -> Response:
    """The form of a template."""
    template = await _read(context)
    values = {
        "name": template["name"],
        "description": template["description"] or "",
        "job": pretty_json(template["job"]),
    }
    return _form(context, template, values)


@router.post("/templates/{template}/edit", Role.EDITOR)
async def change_template(context: PageContext) -> Response:
    """Change a template, if it still has the version that the form was opened with."""
    template = await _read(context)
    try:
        version = int(context.form.get("version") or template["version"])
        await context.api.change("templates", template["id"], body=_body(context), version=version)
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, template, context.form, problem)
    return context.go(context.site_url(f"/templates/{template['id']}"), "Saved.")


@router.post("/templates/{template}/delete", Role.EDITOR)
async def delete_template(context: PageContext) -> Response:
    """Delete a template; the jobs created from it stay."""
    await context.api.delete("templates", context.path["template"])
    return context.go(context.site_url("/templates"), "The template is deleted. Jobs created from it stay.")


def _body(context: PageContext) -> dict[str, Any]:
    return {
        "name": context.form.get("name", "").strip(),
        "description": context.form.get("description", "").strip() or None,
        "job": parse_json_field(context.form.get("job", ""), "job"),
    }


def _form(
    context: PageContext,
    template: dict[str, Any] | None,
    values: dict[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    errors = {problem.field: str(problem)} if isinstance(problem, InvalidInput) and problem.field else {}
    status = 200 if problem is None else 422
    return context.page(
        "template_form.html",
        http_status=status,
        template=template,
        values=_BLANK | values,
        problem=problem,
        errors=errors,
    )


async def _show(context: PageContext, problem: ApiProblem | None = None) -> Response:
    status = 200 if problem is None else 422
    return context.page(
        "template.html", http_status=status, template=await _read(context), problem=problem, values=context.form
    )


async def _read(context: PageContext) -> dict[str, Any]:
    return template_document(await context.site.queries.templates.find(context.path["template"]))
