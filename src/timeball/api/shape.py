"""The shape of an answer: only some fields of each thing, or more than it usually tells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from timeball.api.problems import Refusal
from timeball.api.views import Document
from timeball.domain.instants import shown

_LONGEST = 2_000


Fields = Annotated[
    str | None, Query(max_length=_LONGEST, description="Only these fields of each, with commas between.")
]
Expand = Annotated[
    str | None,
    Query(
        max_length=200,
        description="Tell more, with commas between: `job` and `attempts` of an execution, `next` times of a job.",
    ),
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What was asked for: the fields to keep, if not all, and what to tell besides."""

    fields: tuple[str, ...] | None
    expand: frozenset[str]

    def shows(self, field: str) -> bool:
        """Whether a field is to be told."""
        return self.fields is None or field in self.fields

    def fit(self, document: Document) -> Document:
        """A document with only the fields that were asked for; what was expanded stays."""
        if self.fields is None:
            return document
        kept = {*self.fields, *self.expand}
        return {name: value for name, value in document.items() if name in kept}

    def fit_page(self, page: Document) -> Document:
        """A page whose items have only the fields that were asked for."""
        return page | {"data": [self.fit(item) for item in page["data"]]}


def shape_of(model: type[BaseModel], expandable: Sequence[str]) -> Callable[..., Shape]:
    """The dependency that reads `fields` and `expand` for things of a model."""
    known = tuple(model.model_fields)

    def shape(fields: Fields = None, expand: Expand = None) -> Shape:
        kept = None if fields is None else _words(fields, "fields", (*known, *expandable))
        return Shape(kept, frozenset(() if expand is None else _words(expand, "expand", expandable)))

    return shape


def _words(text: str, parameter: str, known: Collection[str]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None or not words:
        found = "empty" if unknown is None else repr(shown(unknown))
        raise Refusal(
            422,
            "invalid_input",
            f"{parameter} is {found}, expected some of {', '.join(known)}",
            hint="check its spelling",
        )
    return words
