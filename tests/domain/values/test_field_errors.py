from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from timeball.domain.values.field_errors import (
    FieldError,
    errors_from_json_schema,
    errors_from_pydantic,
    list_choices,
    summarize,
    unexpected_value,
)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    street: Annotated[str, Field(min_length=1, max_length=100)] = "a"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: Annotated[int, Field(ge=1, lt=10)]
    weight: int | float = 1
    colour: Literal["red", "blue"] = "red"
    token: int = 0
    is_paid: bool = False
    tags: Annotated[list[str], Field(max_length=2)] = Field(default_factory=list)
    place: Place | None = None
    word: Annotated[str, Field(pattern="^a$")] = "a"
    at: datetime | None = None
    even: int = 2

    @field_validator("even")
    @classmethod
    def _even(cls, even: int) -> int:
        if even % 2:
            raise ValueError(f"{even} is odd, expected an even number")
        return even


def errors_of(value: Any, *, shows_value: bool = True) -> list[FieldError]:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(value)
    return errors_from_pydantic(
        caught.value.errors(), value, "the order", known=Order.model_fields, shows_value=shows_value
    )


@pytest.mark.parametrize(
    ("given", "pointer", "detail"),
    [
        ({"number": 0}, "/number", "number is 0, expected 1 or more"),
        ({"number": 10}, "/number", "number is 10, expected less than 10"),
        ({"number": "7"}, "/number", 'number is "7", expected a whole number'),
        ({"number": 1.5}, "/number", "number is 1.5, expected a whole number"),
        ({"number": None}, "/number", "number is null, expected a whole number"),
        ({"number": {"a": 1}}, "/number", "number is an object, expected a whole number"),
        ({"weight": "much"}, "/weight", 'weight is "much", expected a whole number or a number'),
        ({"colour": "pink"}, "/colour", 'colour is "pink", expected red or blue'),
        ({"is_paid": "yes"}, "/is_paid", 'is_paid is "yes", expected true or false'),
        ({"tags": "a,b"}, "/tags", 'tags is "a,b", expected a list'),
        ({"tags": ["a", "b", "c"]}, "/tags", "tags is a list of 3, expected at most 2"),
        ({"tags": ["a", 1]}, "/tags/1", "tags.1 is 1, expected text"),
        ({"place": []}, "/place", "place is a list of 0, expected an object"),
        ({"place": {"street": ""}}, "/place/street", 'place.street is "", expected at least 1 character'),
        (
            {"place": {"street": "x" * 101}},
            "/place/street",
            "place.street has 101 characters, expected at most 100 characters",
        ),
        ({"word": "b"}, "/word", 'word is "b", expected text that matches ^a$'),
        ({"at": "soon"}, "/at", 'at is "soon", expected an instant such as 2026-11-16T06:00:00Z'),
        ({"even": 3}, "/even", "even: 3 is odd, expected an even number"),
        ({"colur": "red"}, "/colur", "colur is unknown: did you mean colour?"),
        (
            {"a/b~": 1},
            "/a~1b~0",
            "a/b~ is unknown, expected number, weight, colour, token, is_paid, tags, place, word, at, even",
        ),
        ({"place": {"town": 1}}, "/place/town", "place.town is unknown"),
    ],
)
def test_the_message_has_the_value_and_the_expectation(given: dict[str, Any], pointer: str, detail: str) -> None:
    (error,) = errors_of({"number": 1, **given})

    assert (error.pointer, error.detail) == (pointer, detail)


def test_a_missing_field_is_named() -> None:
    (error,) = errors_of({})

    assert (error.pointer, error.detail) == ("/number", "number is missing")


def test_a_value_that_is_no_object_is_called_by_its_name() -> None:
    (error,) = errors_of([1, 2])

    assert (error.pointer, error.detail) == ("", "the order is a list of 2, expected an object")


@pytest.mark.parametrize(
    ("given", "shows_value"),
    [({"token": "hunter2"}, True), ({"weight": "https://me:hunter2@host"}, True), ({"weight": "hunter2"}, False)],
)
def test_a_secret_is_not_repeated(given: dict[str, Any], shows_value: bool) -> None:
    (error,) = errors_of({"number": 1, **given}, shows_value=shows_value)

    assert "hunter2" not in error.detail
    assert "expected a whole number" in error.detail


def test_every_path_is_reported() -> None:
    found = errors_of({"number": 0, "weight": "x", "colur": 1})

    assert [error.pointer for error in found] == ["/number", "/weight", "/colur"]
    assert [error.is_unknown for error in found] == [False, False, True]


SCHEMA = {
    "properties": {
        "number": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "colour": {"enum": ["red", "blue"]},
        "word": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"},
        "tags": {"type": ["array", "null"], "maxItems": 2},
        "place": {"properties": {"street": {}}, "additionalProperties": False},
    },
    "required": ["number"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "pointer", "detail"),
    [
        ({"number": 0}, "/number", "number: expected 1 or more"),
        ({"number": 10}, "/number", "number: expected less than 10"),
        ({"number": "x"}, "/number", "number: expected a whole number"),
        ({"colour": "pink"}, "/colour", "colour: expected red or blue"),
        ({"word": ""}, "/word", "word: expected at least 1 character"),
        ({"word": "abcd"}, "/word", "word: expected at most 3 characters"),
        ({"word": "b"}, "/word", "word: expected text that matches ^a"),
        ({"tags": "a"}, "/tags", "tags: expected a list or null"),
        ({"tags": [1, 2, 3]}, "/tags", "tags: expected at most 2"),
        ({"colur": "red"}, "/colur", "colur is unknown: did you mean colour?"),
        ({"place": {"town": 1}}, "/place/town", "place.town is unknown"),
    ],
)
def test_a_json_schema_is_worded_like_pydantic_and_shows_no_value(
    value: dict[str, Any], pointer: str, detail: str
) -> None:
    found = jsonschema_rs.validator_for(SCHEMA).iter_errors({"number": 1, **value})
    problems = [(problem.instance_path, [problem]) for problem in found]

    first = errors_from_json_schema(problems, "the order", known=list(SCHEMA["properties"]))[0]

    assert (first.pointer, first.detail) == (pointer, detail)


def test_manual_checks_use_the_same_wording() -> None:
    error = unexpected_value("--limit", "x", "1 or more", field="limit", hint="leave it out")

    assert (str(error), error.field, error.hint) == ('--limit is "x", expected 1 or more', "limit", "leave it out")
    assert list(error.errors) == [{"pointer": "/limit", "detail": '--limit is "x", expected 1 or more'}]
    assert [list_choices("a"), list_choices("ab"), list_choices("abc")] == ["a", "a or b", "a, b or c"]


def test_a_summary_has_the_first_errors() -> None:
    errors = errors_of({"number": 0, "weight": "x", "colur": 1})

    assert summarize(errors, 2) == 'number is 0, expected 1 or more; weight is "x", expected a whole number or a number'
