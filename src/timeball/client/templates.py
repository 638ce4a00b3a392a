"""Templates, as calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from timeball.client.calls import Call, Page, a, a_page, at, get, nothing, post, spelled
from timeball.client.models import CreatedJob, Template, WrittenTemplate
from timeball.client.verbs import Face, Group, Verb, Walk
from timeball.client.wishes import JobFields


def search(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[Template]]:
    """The templates there are."""
    return get("/templates", a_page(Template), limit=limit, cursor=cursor)


def fetch(template: str) -> Call[Template]:
    """The template of an id or name."""
    return get(at("templates", template), a(Template))


def create(name: str, job: Mapping[str, Any], description: str | None = None) -> Call[WrittenTemplate]:
    """Keep a job as a template; `{{name}}` in its payload is filled in when it is used."""
    return post("/templates", a(WrittenTemplate), {"name": name, "job": _sent(job), "description": description})


def update(template: str, version: int | None = None, **changes: Any) -> Call[WrittenTemplate]:
    """Change the given fields of a template (name, description, job); `job` is replaced as a whole."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return Call("PATCH", at("templates", template), a(WrittenTemplate), body=changes, headers=headers)


def delete(template: str) -> Call[None]:
    """Delete a template; the jobs that were made of it stay."""
    return Call("DELETE", at("templates", template), nothing)


def use(template: str, variables: Mapping[str, Any] | None = None, **overrides: Unpack[JobFields]) -> Call[CreatedJob]:
    """Make a job of a template, with values for its variables and other values for the given fields."""
    body: dict[str, Any] = dict(_sent(overrides))
    if variables is not None:
        body["variables"] = dict(variables)
    return Call("POST", at("templates", template, "use"), a(CreatedJob), body=body)


def _sent(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: spelled(value) for name, value in fields.items()}


class Templates(Group[Face]):
    """What can be done with templates."""

    list = Verb(search)
    iterate = Walk(search)
    get = Verb(fetch)
    create = Verb(create)
    update = Verb(update)
    delete = Verb(delete)
    use = Verb(use)
