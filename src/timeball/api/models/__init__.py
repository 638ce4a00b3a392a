"""Request and response bodies as Pydantic models, which the HTTP client shares: so nothing here imports FastAPI."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

T = TypeVar("T")

Label = Annotated[str, Field(min_length=1, max_length=200)]
InstantText = Annotated[
    str, Field(max_length=64, description="ISO 8601; without an offset, it is on the clock of `timezone`.")
]


# The bound is in both members: JSON Schema cannot bound a choice.
Interval = Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=1)]


def refuse_nul(text: str) -> str:
    """Text that the database can hold; Pydantic itself refuses half a surrogate pair."""
    if "\0" in text:
        raise ValueError("contains a NUL character, which cannot be stored")
    return text


ShortText = Annotated[str, Field(max_length=200), AfterValidator(refuse_nul)]


# Far more than any model has: wording a problem for each of a hundred thousand unknown fields would take seconds.
MAX_FIELDS = 100


class RequestModel(BaseModel):
    """A request body: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"{len(value)} fields were given, expected some of: {', '.join(cls.model_fields)}")
        return value


class ReasonIn(RequestModel):
    """The reason for a change, for the audit."""

    reason: Annotated[str, Field(max_length=1_000), AfterValidator(refuse_nul)] | None = None


class PageOut(BaseModel, Generic[T]):
    """A page of a list; totals and page numbers are present if they were requested."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None
    page: int | None = None
    limit: int | None = None
    total_pages: int | None = None
    searched_to: datetime | None = Field(
        None, description="The search stopped here after its time limit; `next_cursor` continues it."
    )
    looked_at: int | None = Field(None, description="How many rows the search looked at before it stopped.")


class FullList(BaseModel, Generic[T]):
    """A whole list."""

    data: list[T]


class FieldErrorOut(BaseModel):
    """What is wrong with one field."""

    pointer: str
    detail: str


class ProblemOut(BaseModel):
    """Why a request failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[FieldErrorOut]
    hint: str | None
    request_id: str | None
