"""JSON Schemas of payloads, and the errors for payloads and arguments that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson
from pydantic import BaseModel, PydanticInvalidForJsonSchema, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from timeball.domain.handler import PayloadMismatch
from timeball.domain.values.field_errors import FieldError, describe_unknown_name, read_field_errors
from timeball.errors import InvalidInput, quote_text

_MAX_ARGUMENT_PROBLEMS = 5
_EMPTY = inspect.Parameter.empty


def payload_mismatch(
    name: str, payload: str, error: ValidationError, *, known: Iterable[str], hint: str, shows_value: bool = True
) -> PayloadMismatch:
    """The refusal of a payload that does not fit what is called *name*, which takes the fields in *known*."""
    problems = error.errors(include_url=False, include_input=shows_value)
    found = read_field_errors(problems, _decoded(payload), "the payload", known=known, shows_value=shows_value)
    said = "; ".join(misfit.words for misfit in found[:_MAX_ARGUMENT_PROBLEMS])
    errors = [{"pointer": f"/payload{misfit.pointer}", "detail": misfit.words} for misfit in found]
    return PayloadMismatch(
        f"the payload does not fit {name}: {said}", field=errors[0]["pointer"][1:], hint=hint, errors=errors
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
    """Why a function cannot be called with these arguments; every reason, and not the first alone.

    A *partial* call needs not have all of them.
    """
    found = [
        *_unknown_arguments(parameters, args, kwargs),
        *(() if is_partial else _missing_arguments(parameters, args, kwargs)),
    ]
    said = "; ".join(words for _, words in found[:_MAX_ARGUMENT_PROBLEMS])
    errors = [{"pointer": f"/payload/{name}" if name else "/payload", "detail": words} for name, words in found]
    return InvalidInput(
        f"the arguments do not fit {shape_of(function, parameters)}: {said}",
        field="payload",
        hint="give one value for each parameter that has no default, by its place or by its name",
        errors=errors,
    )


def _unknown_arguments(
    parameters: tuple[inspect.Parameter, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    only_by_place = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    rests = {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.name not in rests]
    placed = by_place[: len(args)]
    if len(args) > len(by_place) and not takes_more:
        yield "", f"found {counted(args)} by their place, expected {len(by_place)} at most"
    for name in kwargs:
        if name in only_by_place and not takes_any:
            yield name, f"{name} is given by its name, expected by its place"
        elif name in placed and name not in only_by_place:
            yield name, f"{name} is given twice, by its place and by its name"
        elif name not in names and not takes_any:
            yield name, describe_unknown_name(name, names)


def _missing_arguments(
    parameters: tuple[inspect.Parameter, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for p in parameters:
        is_given = p in by_place[: len(args)] or (p.name in kwargs and p.kind is not p.POSITIONAL_ONLY)
        if p.default is _EMPTY and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and not is_given:
            yield p.name, f"{p.name} is missing"


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
_MAX_SCHEMA_PROBLEMS = 5
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
    value = orjson.loads(payload)
    if validator.is_valid(value):
        return
    found = list(_field_errors(schema, validator, value))
    said = "; ".join(misfit.words for misfit in found[:_MAX_SCHEMA_PROBLEMS])
    errors = [{"pointer": f"/payload{misfit.pointer}", "detail": misfit.words} for misfit in found]
    raise PayloadMismatch(
        f"the payload does not fit {name}: {said}",
        field=errors[0]["pointer"][1:],
        hint=f"GET /api/v1/handlers/{name} shows what it takes; unchecked: true writes it all the same",
        errors=errors,
    )


def accepts_payload(schema: Mapping[str, Any], payload: str) -> bool:
    """Whether a payload (JSON text) could be taken."""
    try:
        check_payload(schema, "", payload)
    except InvalidInput:
        return False
    return True


def _field_errors(schema: Mapping[str, Any], validator: Any, value: Any) -> Iterator[FieldError]:
    known = list(schema.get("properties", {}))
    for error in islice(validator.iter_errors(value), _MAX_SCHEMA_ERRORS):
        path = tuple(quote_text(str(step), 100) for step in error.instance_path)
        where = ".".join(path)
        match type(error.kind).__name__.rpartition("_")[2]:
            case "Required":
                missing = quote_text(str(error.kind.property), 100)
                yield FieldError(path=(*path, missing), words=f"{'.'.join((*path, missing))} is missing")
            case "AdditionalProperties":
                for stranger in error.kind.unexpected:
                    words = describe_unknown_name(stranger, known) if not path else f"{where}.{stranger} is unknown"
                    yield FieldError(
                        path=(*path, quote_text(stranger, 100)), words=quote_text(words, 300), is_unknown=True
                    )
            case "Type":
                yield FieldError(path=path, words=f"{where or 'the payload'}: expected {_kinds(error.kind.types)}")
            case "AnyOf":
                yield FieldError(
                    path=path, words=quote_text(f"{where or 'the payload'}: {_expected(schema, value, error)}", 300)
                )
            case _:
                # Without the value: it may be a secret that was put in the wrong place.
                yield FieldError(path=path, words=quote_text(f"{where or 'the payload'}: {error.message}", 300))


def _expected(schema: Mapping[str, Any], value: Any, loose: Any) -> str:
    """What the schema expects at the place of an error, before it was loosened."""
    import jsonschema_rs

    strict = jsonschema_rs.validator_for(dict(schema), mask="it", offline=True)
    here = [error for error in strict.iter_errors(value) if error.instance_path == loose.instance_path]
    kinds = [kind for error in here if hasattr(error.kind, "types") for kind in error.kind.types]
    return f"expected {_kinds(kinds)}" if kinds else str((here or [loose])[0].message)


_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _kinds(types: list[str]) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in types)


@lru_cache(maxsize=1_000)
def _validator(schema: str) -> Any:
    """What checks payloads by a schema; None if nothing can: the workers then decide alone."""
    import jsonschema_rs  # a worker needs it only when a payload does not fit

    try:
        return jsonschema_rs.validator_for(_loosened(orjson.loads(schema)), mask="it", offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return None


_NUMERIC_TEXT = {"type": "string", "pattern": r"^\s*[-+]?(\d|\.\d|[iI]nf|[nN]a[nN])"}
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
