"""The one wording of validation errors: the field, what was found, what was expected, and the name that was probably meant.

Request bodies and parameters, payloads, settings, sync files and command-line options are checked by different tools.
Each tool's findings become `FieldError`s here, so that the same mistake reads the same everywhere: `port is "x", expected a whole number`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from timeball.domain.values.redaction import redact
from timeball.errors import InvalidInput, quote_text

PydanticProblem = Mapping[str, Any]
"""An item of `ValidationError.errors()`: `type`, `loc`, `msg`, and mostly `ctx` and `input`."""
VARIABLE_PREFIX = "TIMEBALL_"
_MAX_LISTED_NAMES = 12
_MAX_SUMMARIZED = 5
_MAX_DETAIL = 300
# Validators write messages that go on with the name of the field ("is not an address") or that stand alone.
_VERBS = ("is ", "has ", "contains ", "names ", "begins ", "cannot ", "does ", "needs ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """A value that does not fit: where it is, and one sentence that says why."""

    path: tuple[str, ...]
    detail: str
    is_unknown: bool = False

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer."""
        return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in self.path)

    def below(self, prefix: str) -> dict[str, str]:
        """The error as `InvalidInput.errors` holds it, for a value that stands at *prefix* in something larger."""
        return {"pointer": f"{prefix}{self.pointer}", "detail": self.detail}


def summarize(errors: Sequence[FieldError], limit: int = _MAX_SUMMARIZED) -> str:
    """The first errors in one line."""
    return "; ".join(error.detail for error in errors[:limit])


# The sentence, for checks that are written by hand.


def describe_mismatch(name: str, expected: str, found: str = "") -> str:
    """*found* begins with a verb, as `describe_value` writes it; it is left out where a value must not be shown."""
    return f"{name} {found}, expected {expected}" if found else f"{name}: expected {expected}"


def unexpected_value(
    name: str,
    value: Any,
    expected: str,
    *,
    field: str | None = None,
    hint: str | None = None,
    error: type[InvalidInput] = InvalidInput,
) -> InvalidInput:
    """The error for a value that does not fit; *field* is the API's name for what the user calls *name*."""
    detail = describe_mismatch(name, expected, describe_value(value, field or name))
    return error(detail, field=field or name, hint=hint)


def list_choices(names: Iterable[object]) -> str:
    """`a, b or c`."""
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last


def describe_value(value: Any, key: str = "") -> str:
    """What a value is, in a few words: `is 7`, `is "x"`, `is a list of 3`; a secret is not shown, known by its *key*."""
    # Only the outermost level: a value may be nested more deeply than we could follow.
    if isinstance(value, dict):
        return "is an object"
    if isinstance(value, list | tuple):
        return f"is a list of {len(value)}"
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


# Pydantic's problems.


def errors_from_pydantic(
    problems: Iterable[PydanticProblem], value: Any, whole: str, *, known: Iterable[str] = (), shows_value: bool = True
) -> list[FieldError]:
    """One error for each place in *value*; *whole* is the name of the value itself, *known* the names of its fields.

    What was found is shown only if *shows_value*, and never under a name that sounds like a secret.
    """
    by_path: dict[tuple[str, ...], list[PydanticProblem]] = {}
    for problem in problems:
        path = _path_in(value, problem["loc"], is_missing=problem["type"] == "missing")
        by_path.setdefault(path, []).append(problem)
    return [
        FieldError(
            path=path,
            # The names that are known are those of the top level.
            detail=describe_problems(
                ".".join(path) or whole,
                path,
                found,
                known=tuple(known) if len(path) == 1 else (),
                shows_value=shows_value,
            ),
            is_unknown=found[0]["type"] == "extra_forbidden",
        )
        for path, found in by_path.items()
    ]


def _path_in(value: Any, steps: Sequence[int | str], *, is_missing: bool) -> tuple[str, ...]:
    """The steps that exist in *value*: Pydantic also names the member of a union it tried, and the side of a pair."""
    path: list[str] = []
    for number, step in enumerate(steps, start=1):
        exists = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
        if exists or (is_missing and number == len(steps)):
            path.append(quote_text(str(step), 100))
        if exists:
            value = value[step]
    return tuple(path)


def describe_problems(
    name: str,
    path: Sequence[str],
    problems: Sequence[PydanticProblem],
    *,
    known: Sequence[str] = (),
    shows_value: bool = True,
) -> str:
    """All problems of one place in one sentence: several of them are several ways to be right."""
    first = problems[0]
    match first["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return describe_unknown_name(name, known)
        case "value_error" | "assertion_error":
            message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            detail = f"{name} {message}" if message.startswith(_VERBS) else f"{name}: {message}"
        case "json_invalid":
            # The text is not shown: without names, a secret in it cannot be told from the rest.
            detail = f"{name} is not valid JSON, expected an object: {first['ctx']['error']}"
        case _:
            detail = _describe_pydantic(name, path, problems, shows_value=shows_value)
    return quote_text(detail, _MAX_DETAIL)


def _describe_pydantic(
    name: str, path: Sequence[str], problems: Sequence[PydanticProblem], *, shows_value: bool
) -> str:
    expected = [_expected_by_pydantic(problem) for problem in problems]
    found = describe_value(problems[0]["input"], path[-1] if path else "") if shows_value else ""
    if None in expected:
        return f"{name}{' ' if found else ''}{found}: {problems[0]['msg']}"
    return describe_mismatch(name, " or ".join(dict.fromkeys(filter(None, expected))), found)


def _expected_by_pydantic(problem: PydanticProblem) -> str | None:
    words = _EXPECTED_BY_PYDANTIC.get(problem["type"])
    return words(problem.get("ctx", {})) if words else _KINDS_OF_PYDANTIC.get(problem["type"].rpartition("_")[0])


# JSON Schema's errors.


def errors_from_json_schema(
    problems: Iterable[tuple[Sequence[object], Sequence[Any]]], whole: str, *, known: Sequence[str] = ()
) -> list[FieldError]:
    """The errors of a JSON Schema validator (`jsonschema_rs`), each place with what is wrong there.

    No value is shown: it may be a secret that was put in the wrong place.
    """
    errors: list[FieldError] = []
    for steps, found in problems:
        path = tuple(quote_text(str(step), 100) for step in steps)
        kind = found[0].kind
        match kind.name:
            case "required":
                inner = (*path, quote_text(str(kind.property), 100))
                errors.append(FieldError(path=inner, detail=f"{'.'.join(inner)} is missing"))
            case "additionalProperties":
                for name in kind.unexpected:
                    inner = (*path, quote_text(name, 100))
                    detail = describe_unknown_name(".".join(inner), () if path else known)
                    errors.append(FieldError(path=inner, detail=quote_text(detail, _MAX_DETAIL), is_unknown=True))
            case _:
                detail = _describe_schema_errors(".".join(path) or whole, found)
                errors.append(FieldError(path=path, detail=quote_text(detail, _MAX_DETAIL)))
    return errors


def _describe_schema_errors(name: str, errors: Sequence[Any]) -> str:
    expected = [_expected_by_schema(error.kind) for error in errors]
    if None in expected:
        return f"{name}: {errors[0].message}"
    return describe_mismatch(name, " or ".join(dict.fromkeys(filter(None, expected))))


def _expected_by_schema(kind: Any) -> str | None:
    words = _EXPECTED_BY_KEYWORD.get(kind.name)
    return words(kind) if words else None


# What each check expects, in the words that both checkers share.


def _number(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _characters(number: int) -> str:
    return "1 character" if number == 1 else f"{number} characters"


_INSTANT = "an instant such as 2026-11-16T06:00:00Z"
_QUOTED = re.compile(r"'([^']*)'")
_EXPECTED_BY_PYDANTIC: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType(
    {
        "greater_than_equal": lambda limit: f"{_number(limit['ge'])} or more",
        "greater_than": lambda limit: f"more than {_number(limit['gt'])}",
        "less_than_equal": lambda limit: f"{_number(limit['le'])} or less",
        "less_than": lambda limit: f"less than {_number(limit['lt'])}",
        "literal_error": lambda choice: _QUOTED.sub(r"\1", str(choice["expected"])),
        "enum": lambda choice: _QUOTED.sub(r"\1", str(choice["expected"])),
        "string_too_short": lambda limit: f"at least {_characters(limit['min_length'])}",
        "string_too_long": lambda limit: f"at most {_characters(limit['max_length'])}",
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
_KINDS_OF_PYDANTIC: Mapping[str, str] = MappingProxyType(
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
_KINDS_OF_SCHEMA: Mapping[str, str] = MappingProxyType(
    {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "array": "a list",
        "object": "an object",
        "null": "null",
    }
)
_EXPECTED_BY_KEYWORD: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "type": lambda kind: " or ".join(
            _KINDS_OF_SCHEMA.get(name, name) for name in sorted(kind.types, key="null".__eq__)
        ),
        "minimum": lambda kind: f"{_number(kind.limit)} or more",
        "exclusiveMinimum": lambda kind: f"more than {_number(kind.limit)}",
        "maximum": lambda kind: f"{_number(kind.limit)} or less",
        "exclusiveMaximum": lambda kind: f"less than {_number(kind.limit)}",
        "minLength": lambda kind: f"at least {_characters(kind.limit)}",
        "maxLength": lambda kind: f"at most {_characters(kind.limit)}",
        "minItems": lambda kind: f"at least {kind.limit}",
        "maxItems": lambda kind: f"at most {kind.limit}",
        "enum": lambda kind: list_choices(kind.options),
        "const": lambda kind: str(kind.expected_value),
        "pattern": lambda kind: f"text that matches {kind.pattern}",
    }
)


# Names that do not exist, and the names that were probably meant.

_LIKENESS = 0.75


def describe_unknown_name(name: str, known: Sequence[str]) -> str:
    """An unknown name with the one that was probably meant, or else with all of them if they are few."""
    if question := did_you_mean(nearest_names(name, known)):
        return f"{name} is unknown: {question}"
    listed = f", expected {', '.join(known)}" if 0 < len(known) <= _MAX_LISTED_NAMES else ""
    return f"{name} is unknown{listed}"


def nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names that were probably meant: those that end alike, or else the one that is spelt almost alike."""
    import difflib  # only needed after a typing mistake

    plain = {_bare_name(each): each for each in known}
    ending = tuple(each for bare, each in plain.items() if bare.endswith(f"_{_bare_name(name)}"))
    alike = difflib.get_close_matches(_bare_name(name), plain, 1, _LIKENESS)
    return ending[:2] or tuple(plain[each] for each in alike)


def did_you_mean(names: Iterable[str]) -> str:
    """A question that names them; empty if there are none."""
    words = " or ".join(names)
    return f"did you mean {words}?" if words else ""


def _bare_name(name: str) -> str:
    return name.upper().removeprefix(VARIABLE_PREFIX).replace(".", "_").replace("__", "_")
