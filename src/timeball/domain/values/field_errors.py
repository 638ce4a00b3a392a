"""Validation errors in one wording: the field, what was found, what was expected, and the name that was probably meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from timeball.domain.values.redaction import redact
from timeball.errors import quote_text

PydanticProblem = Mapping[str, Any]
"""One of those that Pydantic lists: `type`, `loc`, `msg`, and mostly `ctx` and `input`."""
_SOON_SAID = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """A value that does not fit: where it stands, and why."""

    path: tuple[str, ...]
    words: str
    is_unknown: bool = False

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer."""
        return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in self.path)


def read_field_errors(
    problems: Iterable[PydanticProblem], value: Any, whole: str, *, known: Iterable[str] = (), shows_value: bool = True
) -> list[FieldError]:
    """One for each place in *value* (all of it is called *whole*); *known* are the fields that it may have.

    What was found is told only if *shows_value*, and never under a name that sounds like a secret.
    """
    by_place: dict[tuple[str, ...], list[PydanticProblem]] = {}
    for problem in problems:
        place = path_in(value, problem["loc"], is_missing=problem["type"] == "missing")
        by_place.setdefault(place, []).append(problem)
    return [_field_error(place, found, whole, known, shows_value) for place, found in by_place.items()]


def path_in(value: Any, steps: Sequence[int | str], *, is_missing: bool) -> tuple[str, ...]:
    """The steps that people know: Pydantic also names the member of a union it tried, and what of a pair it looked at."""
    path: list[str] = []
    for number, step in enumerate(steps, start=1):
        leads_on = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
        if leads_on or (is_missing and number == len(steps)):
            path.append(quote_text(str(step), 100))
        if leads_on:
            value = value[step]
    return tuple(path)


def _field_error(
    path: tuple[str, ...], problems: Sequence[PydanticProblem], whole: str, known: Iterable[str], shows_value: bool
) -> FieldError:
    name = ".".join(path) or whole
    first = problems[0]
    match first["type"]:
        case "missing":
            words = f"{name} is missing"
        case "extra_forbidden":
            # What is known is known of the uppermost fields only.
            instead = _suggestion(name, tuple(known)) if len(path) == 1 else ""
            return FieldError(path=path, words=f"{name} is unknown{instead}", is_unknown=True)
        case "value_error" | "assertion_error":
            words = f"{name}: {first['msg'].removeprefix('Value error, ').removeprefix('Assertion failed, ')}"
        case "json_invalid":
            # Not repeated: what is no JSON has no names, by which a secret could be told.
            words = f"{name} is no JSON, expected an object: {first['ctx']['error']}"
        case _:
            words = describe_mismatch(name, path, problems, shows_value=shows_value)
    return FieldError(path=path, words=quote_text(words, 300))


def describe_unknown_name(name: str, known: Sequence[str]) -> str:
    """A name that nothing has, and what it may have been meant for."""
    return f"{name} is unknown{_suggestion(name, known)}"


def _suggestion(name: str, known: Sequence[str]) -> str:
    """What was meant, or else all there is, if that is soon said."""
    if question := did_you_mean(nearest_names(name, known)):
        return f": {question}"
    return f", expected {', '.join(known)}" if 0 < len(known) <= _SOON_SAID else ""


def describe_mismatch(
    name: str, path: tuple[str, ...], problems: Sequence[PydanticProblem], *, shows_value: bool = True
) -> str:
    """What stands at *path*, called *name*, and what was expected there. Several problems are several ways to be right."""
    expected = [_expected(problem) for problem in problems]
    found = f" {_found(path, problems[0]['input'])}" if shows_value else ""
    if None in expected:
        return f"{name}{found}: {problems[0]['msg']}"
    separator = "," if found else ":"
    return f"{name}{found}{separator} expected {' or '.join(dict.fromkeys(filter(None, expected)))}"


def _found(path: tuple[str, ...], value: Any) -> str:
    # Not looked into: it may be nested more deeply than we could follow.
    if isinstance(value, dict):
        return "is an object"
    if isinstance(value, list | tuple):
        return f"is a list of {len(value)}"
    key = path[-1] if path else ""
    match redact({key: value})[key]:
        case str() as text if len(text) > 60:
            return f"has {len(text)} characters"
        case None | bool() | int() | float() | str() as plain:
            return f"is {quote_text(_json(plain))}"
        case other:
            return f"is {quote_text(repr(other))}"


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        # A number of more than 64 bits, or half of a surrogate pair.
        return json.dumps(value, default=str)


def _expected(problem: PydanticProblem) -> str | None:
    words = _EXPECTED.get(problem["type"])
    return words(problem.get("ctx", {})) if words else _KINDS.get(problem["type"].rpartition("_")[0])


_INSTANT = "an instant such as 2026-11-16T06:00:00Z"
_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType(
    {
        "greater_than_equal": lambda limit: f"{_number(limit['ge'])} or more",
        "greater_than": lambda limit: f"more than {_number(limit['gt'])}",
        "less_than_equal": lambda limit: f"{_number(limit['le'])} or less",
        "less_than": lambda limit: f"less than {_number(limit['lt'])}",
        "literal_error": lambda choice: str(choice["expected"]),
        "enum": lambda choice: str(choice["expected"]),
        "string_too_short": lambda limit: f"at least {_counted(limit['min_length'])}",
        "string_too_long": lambda limit: f"at most {_counted(limit['max_length'])}",
        "too_short": lambda limit: f"at least {limit['min_length']}",
        "too_long": lambda limit: f"at most {limit['max_length']}",
        "int_from_float": lambda _: "a whole number",
        "int_parsing_size": lambda _: "a smaller number",
        "finite_number": lambda _: "a finite number",
        "multiple_of": lambda limit: f"a multiple of {limit['multiple_of']}",
        "string_pattern_mismatch": lambda text: f"text that matches {text['pattern']}",
        "none_required": lambda _: "null",
        "is_instance_of": lambda kind: f"a {kind['class']}",
        "model_attributes_type": lambda _: "an object",
        "timezone_aware": lambda _: f"{_INSTANT}, with its offset",
    }
)
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "int": "a whole number",
        "float": "a number",
        "string": "text",
        "bytes": "text",
        "bool": "true or false",
        "decimal": "a number",
        "datetime": _INSTANT,
        "datetime_from_date": _INSTANT,
        "date": "a date such as 2026-11-16",
        "date_from_datetime": "a date such as 2026-11-16",
        "time": "a time such as 06:00",
        "time_delta": "a number of seconds, or a duration such as PT30S",
        "uuid": "a UUID",
        "url": "a URL such as https://example.com/",
        "path": "a path",
        "list": "a list",
        "tuple": "a list",
        "set": "a list",
        "frozen_set": "a list",
        "deque": "a list",
        "iterable": "a list",
        "named_tuple": "a list or an object",
        "dict": "an object",
        "mapping": "an object",
        "dataclass": "an object",
        "model": "an object",
    }
)


def _number(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _counted(characters: int) -> str:
    return "1 character" if characters == 1 else f"{characters} characters"


VARIABLE_PREFIX = "TIMEBALL_"


_LIKENESS = 0.75


def nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names that somebody may have meant: those that end alike, or else the one that is spelt almost alike."""
    import difflib  # for who has mistyped something

    plain = {_bare_name(each): each for each in known}
    ending = tuple(each for bare, each in plain.items() if bare.endswith(f"_{_bare_name(name)}"))
    alike = difflib.get_close_matches(_bare_name(name), plain, 1, _LIKENESS)
    return ending[:2] or tuple(plain[each] for each in alike)


def did_you_mean(names: Iterable[str]) -> str:
    """A question, if there is anything to ask."""
    words = " or ".join(names)
    return f"did you mean {words}?" if words else ""


def _bare_name(name: str) -> str:
    return name.upper().removeprefix(VARIABLE_PREFIX).replace(".", "_").replace("__", "_")
