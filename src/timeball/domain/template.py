"""Templates: the fields of jobs, and how a job is made of them.

Data is data: the only thing that happens to a payload is that `{{name}}` in its texts is replaced by a given value, once.
There are no expressions, and what was put in is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NewType
from uuid import UUID

from timeball.domain.job import other_kinds
from timeball.domain.job_fields import LIST_FIELDS, SPEC_FIELDS, JobSpec
from timeball.errors import InvalidInput

TemplateId = NewType("TemplateId", UUID)
Variable = str | int | float | bool

_PLACEHOLDER = re.compile(r"\{\{ ?([A-Za-z_][A-Za-z0-9_]{0,63}) ?\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The fields of a job, kept under a name."""

    id: TemplateId
    name: str
    description: str | None
    job: Mapping[str, Any]
    version: int
    created_at: datetime
    updated_at: datetime


def spec_from_template(
    job: Mapping[str, Any], overrides: Mapping[str, Any], variables: Mapping[str, Variable] | None = None
) -> JobSpec:
    """The job that a template makes: with other values for some fields, and with its variables filled in if any are given."""
    unknown = sorted((set(job) | set(overrides)) - SPEC_FIELDS.keys())
    if unknown:
        raise InvalidInput(f"unknown field {unknown[0]!r}", field=unknown[0])
    spec = replace(_spec(job), **{**other_kinds(job, overrides), **_typed(overrides)})
    return spec if variables is None else replace(spec, payload=fill_placeholders(spec.payload, variables))


def _spec(job: Mapping[str, Any]) -> JobSpec:
    if "handler" not in job:
        raise InvalidInput("handler is missing: the job of a template needs one", field="handler")
    return JobSpec(**_typed(job))


def _typed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(fields) | {name: tuple(fields[name]) for name in LIST_FIELDS if name in fields}


def fill_placeholders(payload: Any, variables: Mapping[str, Variable]) -> Any:
    """The payload with every `{{name}}` in its texts replaced; a text that is nothing else becomes the value itself."""
    names = set(placeholders(payload))
    missing, surplus = sorted(names - set(variables)), sorted(set(variables) - names)
    if missing:
        raise InvalidInput(f"variables has no {missing[0]!r}, which the payload names", field="variables")
    if surplus:
        known = ", ".join(sorted(names)) or "none"
        raise InvalidInput(f"variables has {surplus[0]!r}, the payload names {known}", field=f"variables/{surplus[0]}")
    return _fill(payload, variables)


def placeholders(value: Any) -> Iterator[str]:
    """The names that the texts of a payload leave open."""
    match value:
        case str():
            yield from _PLACEHOLDER.findall(value)
        case dict():
            for inner in value.values():
                yield from placeholders(inner)
        case list():
            for inner in value:
                yield from placeholders(inner)


def _fill(value: Any, variables: Mapping[str, Variable]) -> Any:
    match value:
        case str():
            whole = _PLACEHOLDER.fullmatch(value)
            return variables[whole[1]] if whole else _PLACEHOLDER.sub(lambda match: _text(variables[match[1]]), value)
        case dict():
            return {key: _fill(inner, variables) for key, inner in value.items()}
        case list():
            return [_fill(inner, variables) for inner in value]
        case _:
            return value


def _text(value: Variable) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
