"""JSON Schemas of payloads, and the errors for payloads and arguments that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import orjson
from pydantic import BaseModel, PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from timeball.domain.handler import PayloadMismatch
from timeball.domain.payload_references import check_resolved
from timeball.domain.values.field_errors import (
    FieldError,
    describe_unknown_name,
    errors_from_json_schema,
    errors_from_pydantic,
    summarize,
)
from timeball.errors import InvalidInput, quote_text

_EMPTY = inspect.Parameter.empty


def payload_mismatch(
    name: str, payload: str, error: ValidationError, *, known: Iterable[str], hint: str, shows_value: bool = True
) -> PayloadMismatch:
    """The error for a payload that does not fit the handler *name*, which takes the fields in *known*."""
    problems = error.errors(include_url=False, include_input=shows_value)
    errors = errors_from_pydantic(problems, _decoded(payload), "the payload", known=known, shows_value=shows_value)
    return _mismatch(name, errors, hint)


def _mismatch(name: str, errors: Sequence[FieldError], hint: str) -> PayloadMismatch:
    return PayloadMismatch(
        f"the payload does not fit {name}: {summarize(errors)}",
        field=f"payload{errors[0].pointer}",
        hint=hint,
        errors=[error.below("/payload") for error in errors],
    )


def _decoded(payload: str) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None


def arguments_mismatch(
    function: Callable[..., Any],
    parameters: tuple[inspect.Parameter, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    is_partial: bool = False,
) -> InvalidInput:
    """Why a function cannot be called with these arguments: every reason, not only the first.

    A *partial* call need not have all of them.
    """
    errors = [
        *_unknown_arguments(parameters, args, kwargs),
        *(() if is_partial else _missing_arguments(parameters, args, kwargs)),
    ]
    from timeball.handlers.counterparts import argument_hint  # read only when arguments do not fit

    hint = argument_hint(name for error in errors if error.is_unknown for name in map(str, error.path))
    return InvalidInput(
        f"the arguments do not fit {shape_of(function, parameters)}: {summarize(errors)}",
        field="payload",
        hint=hint or "give one value for each parameter that has no default, by position or by name",
        errors=[error.below("/payload") for error in errors],
    )


def _unknown_arguments(
    parameters: tuple[inspect.Parameter, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[FieldError]:
    by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    only_by_place = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    rests = {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.name not in rests]
    placed = by_place[: len(args)]
    if len(args) > len(by_place) and not takes_more:
        yield FieldError(path=(), detail=f"found {counted(args)} by position, expected {len(by_place)} at most")
    for name in kwargs:
        if name in only_by_place and not takes_any:
            yield FieldError(path=(name,), detail=f"{name} is given by name, expected by position")
        elif name in placed and name not in only_by_place:
            yield FieldError(path=(name,), detail=f"{name} is given twice, by position and by name")
        elif name not in names and not takes_any:
            yield FieldError(path=(name,), detail=describe_unknown_name(name, names), is_unknown=True)


def _missing_arguments(
    parameters: tuple[inspect.Parameter, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[FieldError]:
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for p in parameters:
        is_given = p in by_place[: len(args)] or (p.name in kwargs and p.kind is not p.POSITIONAL_ONLY)
        if p.default is _EMPTY and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and not is_given:
            yield FieldError(path=(p.name,), detail=f"{p.name} is missing")


def counted(values: Sequence[Any]) -> str:
    """How many there are."""
    return "1 value" if len(values) == 1 else f"{len(values)} values"


class _BareWord(str):
    """Stands in a signature as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def shape_of(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...]) -> str:
    """A function as people know it, such as `send(to: str, copies: int = …)`. Defaults are left out: one may be a secret."""
    told = [
        p.replace(
            default=p.default if p.default is _EMPTY else _BareWord("…"),
            annotation=_BareWord(p.annotation) if isinstance(p.annotation, str) else p.annotation,
        )
        for p in parameters
    ]
    return quote_text(f"{name_of(function)}{inspect.Signature(told)}", 300)


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called where it is written."""
    return getattr(function, "__qualname__", None) or type(function).__name__


# JSON Schemas of payloads: made from types, and asked whether a payload could ever be taken.
#
# Pydantic takes more than its JSON Schema says: `"42"` for a number, an alias or the name of a field, whatever a validator of the user's
# converts. A payload that workers take must not be refused where it is written, so what converts is marked in the schema
# (`x-timeball-converts`), and a check loosens the schema first. What passes the check may still be refused by the worker.

CONVERTS = "x-timeball-converts"
_MAX_SCHEMA_ERRORS = 50


class _SchemaGenerator(GenerateJsonSchema):
    """Marks what converts its input before it is looked at."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_wrap_schema(schema))

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_plain_schema(schema))

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        made = super().str_schema(schema)
        changes = ("strip_whitespace", "to_lower", "to_upper", "coerce_numbers_to_str")
        return _marked(made) if any(schema.get(name) for name in changes) else made

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        return _marked(super().decimal_schema(schema))

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        return _marked(super().bytes_schema(schema))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        strips = schema.get("config", {}).get("str_strip_whitespace")
        return _marked(made) if strips or _has_several_names(schema["cls"]) else made


def _has_several_names(model: type[Any]) -> bool:
    """Whether a field can be given under another name than its schema shows."""
    if not issubclass(model, BaseModel):
        return False
    config = model.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return any(
        (field.validation_alias is not None and (by_name or not isinstance(field.validation_alias, str)))
        for field in model.model_fields.values()
    )


def _marked(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"allOf": [schema], CONVERTS: True} if "$ref" in schema else {**schema, CONVERTS: True}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type. A fresh one each time: the caller may change it."""
    return TypeAdapter(kind).json_schema(schema_generator=_SchemaGenerator)


def has_schema(hint: Any) -> bool:
    """Whether JSON Schema has words for a type."""
    try:
        schema_of(hint)
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return False
    return True


# checking
def check_payload(schema: Mapping[str, Any], name: str, payload: str) -> None:
    """Raises `PayloadMismatch`, with a pointer to each place, if a payload (JSON text) could never be taken by the handler *name*."""
    validator = _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS).decode())
    if validator is None:
        return
    check_resolved(payload, partial(_check_by, validator, schema, name))


def _check_by(validator: Any, schema: Mapping[str, Any], name: str, payload: str) -> None:
    value = orjson.loads(payload)
    if validator.is_valid(value):
        return
    errors = errors_from_json_schema(
        _schema_problems(schema, validator, value), "the payload", known=list(schema.get("properties", {}))
    )
    raise _mismatch(
        name, errors, f"GET /api/v1/handlers/{name} shows what it takes; unchecked: true writes it all the same"
    )


def accepts_payload(schema: Mapping[str, Any], payload: str) -> bool:
    """Whether a payload (JSON text) could be taken."""
    try:
        check_payload(schema, "", payload)
    except InvalidInput:
        return False
    return True


def _schema_problems(
    schema: Mapping[str, Any], validator: Any, value: Any
) -> Iterator[tuple[Sequence[object], Sequence[Any]]]:
    """Each place with what is wrong there, in terms of *schema* before it was loosened."""
    for error in islice(validator.iter_errors(value), _MAX_SCHEMA_ERRORS):
        is_choice = error.kind.name in ("anyOf", "oneOf")
        yield error.instance_path, (_strict_errors(schema, value, error) if is_choice else [error])


def _strict_errors(schema: Mapping[str, Any], value: Any, loose: Any) -> list[Any]:
    """What *schema* says of the place of an error that a loosened schema found: its types, if it names any."""
    import jsonschema_rs

    strict = jsonschema_rs.validator_for(dict(schema), mask="it", offline=True)
    here = [error for error in strict.iter_errors(value) if error.instance_path == loose.instance_path]
    return [error for error in here if error.kind.name == "type"] or here[:1] or [loose]


@lru_cache(maxsize=1_000)
def _validator(schema: str) -> Any:
    """What checks payloads by a schema; None if nothing can: the workers then decide alone."""
    import jsonschema_rs  # a worker needs it only when a payload does not fit

    try:
        return jsonschema_rs.validator_for(_loosened(orjson.loads(schema)), mask="it", offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return None


# To the end of the text: an instant begins with a number, too.
_NUMERIC_TEXT = {
    "type": "string",
    "pattern": r"^\s*[-+]?((\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|[iI]nf[a-zA-Z]*|[nN]a[nN])\s*$",
}
_FORMATS_OF_NUMBERS = frozenset({"date-time", "date", "time", "duration"})
_NAMED = ("properties", "$defs", "patternProperties")


def _loosened(schema: Any) -> Any:
    """The schema of everything that Pydantic may take where it says *schema*."""
    if isinstance(schema, list):
        return [_loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get(CONVERTS):
        return {name: schema[name] for name in ("$defs",) if name in schema}
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            kept[name] = {key: _loosened(inner) for key, inner in value.items()}
        elif name == "oneOf":
            # More than one may fit once they are loosened.
            kept["anyOf"] = [*kept.get("anyOf", []), *_loosened(value)]
        elif name in ("default", "examples", "enum", "const"):
            kept[name] = value
        elif name not in ("uniqueItems", "format", "discriminator"):
            kept[name] = _loosened(value)
    return _with_conversions(kept, schema)


def _with_conversions(kept: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        numbers = {"type": "number", "multipleOf": 1} if kind == "integer" else {"type": "number"}
        limits = {name: kept[name] for name in kept if name not in ("type", "enum", "const")}
        exact = {name: kept[name] for name in ("enum", "const") if name in kept}
        return {"anyOf": [limits | exact | numbers, _NUMERIC_TEXT, {"type": "boolean"}]}
    if kind == "boolean":
        return {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, {"type": "string"}]}
    if kind == "string" and schema.get("format") in _FORMATS_OF_NUMBERS:
        return {"type": ["string", "number"]}
    if "enum" in kept and not all(isinstance(member, str) for member in kept["enum"]):
        return {"anyOf": [kept, {"type": "string"}]}
    return kept
