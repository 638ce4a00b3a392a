"""Request and response bodies as Pydantic models, shared with the HTTP client; unknown fields are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

# What all models share: an unknown field is an error, and nothing is converted in silence.

T = TypeVar("T")

Label = Annotated[str, Field(min_length=1, max_length=200)]
InstantText = Annotated[
    str, Field(max_length=64, description="ISO 8601; without an offset, on the clock of `timezone`.")
]
Milliseconds = Annotated[int, Field(ge=0, le=366 * 24 * 3600 * 1000)]


# The bound stands in each of the two: JSON Schema has no word for a bound of a choice.
Interval = Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=1)]
MAX_INT32 = 2**31 - 1


def refuse_nul(text: str) -> str:
    """Text that the database can hold; Pydantic itself refuses half a surrogate pair."""
    if "\0" in text:
        raise ValueError("contains a NUL character, which cannot be stored")
    return text


ShortText = Annotated[str, Field(max_length=200), AfterValidator(refuse_nul)]


# Far more than any object of ours has; to list a problem for each of a hundred thousand unknown ones takes seconds.
MAX_FIELDS = 100


class RequestModel(BaseModel):
    """What comes in."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"{len(value)} fields were given, expected some of: {', '.join(cls.model_fields)}")
        return value


class ReasonIn(RequestModel):
    """Why something is done; goes into the audit."""

    reason: Annotated[str, Field(max_length=1_000), AfterValidator(refuse_nul)] | None = None


class PageOut(BaseModel, Generic[T]):
    """A part of a list; totals and page numbers are there when they were asked for."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None
    page: int | None = None
    limit: int | None = None
    total_pages: int | None = None
    searched_to: datetime | None = Field(
        None, description="A search for something rare was broken off here; `next_cursor` goes on with it."
    )
    looked_at: int | None = Field(None, description="How many rows a search that was broken off has looked at.")


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
