"""Templates: jobs that are not made yet; kept under a name, used with other values."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.views import job_document
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.pages.job_form import read_json
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import pretty
from timeball.errors import InvalidInput

pages = Pages()
_VARIABLE = "variable."
_BLANK = {"name": "", "description": "", "job": ""}
# What stays of a job when it becomes a template: everything that it was asked for, nothing that it has become.
_BECOME = frozenset(
    {"id", "kind", "status", "next_run_at", "last_execution", "paused_at", "paused_until", "pause_reason", "version"}
    | {"declared_by", "created_by", "created_at", "updated_at", "name"}
)


@pages.get("/templates")
async def list_templates(visit: Visit) -> Response:
    """All templates, by name."""
    found = await visit.api.get("templates", limit=100, cursor=visit.query("cursor"))
    return visit.page("templates.html", part="partials/templates_list.html", rows=found["data"], page=found)


@pages.get("/templates/new", Role.EDITOR)
async def ask_for_template(visit: Visit) -> Response:
    """An empty template, or one made from a job."""
    job: dict[str, Any] = {"handler": "http.webhook", "payload": {"url": "https://example.com/{{path}}"}}
    name = ""
    if visit.query("job"):
        view = await visit.site.insights.view_job(visit.query("job"))
        job = {
            field: value for field, value in job_document(view).items() if field not in _BECOME and value is not None
        }
        name = view.job.name or ""
    return _form(visit, None, {"name": name, "description": "", "job": pretty(job)})


@pages.post("/templates", Role.EDITOR)
async def create_template(visit: Visit) -> Response:
    """Keep a template."""
    try:
        made = await visit.api.post("templates", body=_body(visit))
    except (ApiProblem, InvalidInput) as problem:
        return _form(visit, None, visit.form, problem)
    return visit.go(visit.site_url(f"/templates/{made['id']}"), f"The template {made['name']} is kept.")


@pages.get("/templates/{template}")
async def show_template(visit: Visit) -> Response:
    """One template, and the form that makes a job of it."""
    return await _show(visit)


@pages.post("/templates/{template}/use", Role.EDITOR)
async def use_template(visit: Visit) -> Response:
    """Make a job of a template, with values for what it leaves open."""
    variables = {name.removeprefix(_VARIABLE): value for name, value in visit.form_pairs if name.startswith(_VARIABLE)}
    body: dict[str, Any] = {name: visit.form[name] for name in ("name", "scheduled_at") if visit.form.get(name)}
    if variables:
        body["variables"] = variables
    try:
        made = await visit.api.post("templates", visit.path["template"], "use", body=body)
    except ApiProblem as problem:
        return await _show(visit, problem)
    target = (
        f"/executions/{made['execution_id']}"
        if made.get("execution_id") and not made["name"]
        else f"/jobs/{made['id']}"
    )
    return visit.go(visit.site_url(target), "A job was made of the template.")


@pages.get("/templates/{template}/edit", Role.EDITOR)
async def ask_for_changes(visit: Visit) -> Response:
    """The form with what the template is now."""
    found = await visit.api.get("templates", visit.path["template"])
    values = {"name": found["name"], "description": found["description"] or "", "job": pretty(found["job"])}
    return _form(visit, found, values)


@pages.post("/templates/{template}/edit", Role.EDITOR)
async def change_template(visit: Visit) -> Response:
    """Change a template, if nobody else has changed it meanwhile."""
    found = await visit.api.get("templates", visit.path["template"])
    try:
        version = int(visit.form.get("version") or found["version"])
        await visit.api.change("templates", found["id"], body=_body(visit), version=version)
    except (ApiProblem, InvalidInput) as problem:
        return _form(visit, found, visit.form, problem)
    return visit.go(visit.site_url(f"/templates/{found['id']}"), "Saved.")


@pages.post("/templates/{template}/delete", Role.EDITOR)
async def delete_template(visit: Visit) -> Response:
    """Forget a template; the jobs made of it stay."""
    await visit.api.delete("templates", visit.path["template"])
    return visit.go(visit.site_url("/templates"), "The template is deleted. Jobs made of it stay.")


def _body(visit: Visit) -> dict[str, Any]:
    return {
        "name": visit.form.get("name", "").strip(),
        "description": visit.form.get("description", "").strip() or None,
        "job": read_json(visit.form.get("job", ""), "job"),
    }


def _form(
    visit: Visit,
    template: dict[str, Any] | None,
    values: dict[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    errors = {problem.field: str(problem)} if isinstance(problem, InvalidInput) and problem.field else {}
    status = 200 if problem is None else 422
    return visit.page(
        "template_form.html",
        http_status=status,
        template=template,
        values=_BLANK | values,
        problem=problem,
        errors=errors,
    )


async def _show(visit: Visit, problem: ApiProblem | None = None) -> Response:
    found = await visit.api.get("templates", visit.path["template"])
    status = 200 if problem is None else 422
    return visit.page("template.html", http_status=status, template=found, problem=problem, values=visit.form)
