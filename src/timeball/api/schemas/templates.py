"""Templates."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from timeball.api.schemas.common import In, Label
from timeball.api.schemas.jobs import JobIn, JobPatch

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class TemplateIn(In):
    """A template: the job that it makes, under a name of its own."""

    name: Label
    description: Annotated[str, Field(max_length=10_000)] | None = None
    job: JobIn


class TemplatePatch(In):
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
