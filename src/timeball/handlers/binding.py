"""Binds a payload to the parameters of a function, or to one Pydantic model.

A payload is the JSON object of the arguments by name: `send_receipt(42, to="x")` is stored as `{"order_id": 42, "to": "x"}`, so the same
job can be posted over HTTP without knowing the function. `*args` is a list under its own name, the names of `**kwargs` stand beside
the others, and a default that was not overridden is not stored: it may change later.

On the worker the object is checked and converted by the annotations in one pass over the JSON text (Pydantic). An annotation that cannot be
resolved, or means nothing to Pydantic, lets its argument through as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import UnionType
from typing import Annotated, Any, Generic, NotRequired, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

from timeball.domain.handler import Handler, HandlerOptions, PayloadMismatch, RunStyle
from timeball.domain.payload_references import check_resolved
from timeball.domain.values.json_text import encode_object
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.payloads import arguments_mismatch, counted, name_of, payload_mismatch, schema_of, shape_of


class HandlerRefused(TimeballError):
    """The work cannot be done, now or later: trying again would not help."""

    code = "refused"


class Payload(BaseModel):
    """What a built-in handler is given. An unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


P = TypeVar("P", bound=Payload)


class ModelBinder(Generic[P]):
    """Binds payloads to the one parameter of a function, a model."""

    __slots__ = ("_function", "model", "name")

    def __init__(self, name: str, function: Callable[[P], Any], model: type[P]) -> None:
        self.name = name
        self.model = model
        self._function = function

    @property
    def call(self) -> Callable[[str], Any]:
        """Call the function with a payload; `PayloadMismatch` if it does not fit."""
        return self._call

    def _call(self, payload: str) -> Any:
        try:
            fields = self.check(payload)
        except PayloadMismatch as mismatch:
            mismatch.is_of_call = True
            raise
        return self._function(fields)

    def check(self, payload: str) -> P:
        """The payload as its model; `PayloadMismatch` says which fields do not fit."""
        try:
            return self.model.model_validate_json(payload)
        except ValidationError as error:
            # The value is not repeated: it may be a password in the wrong field.
            raise payload_mismatch(
                self.name,
                payload,
                error,
                known=self._fields,
                hint=f"GET /api/v1/handlers/{self.name} shows what it takes",
                shows_value=False,
            ) from None

    def check_stored(self, payload: str) -> None:
        """The same for a payload that may have references."""
        check_resolved(payload, self.check)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these fields."""
        if args:
            raise InvalidInput(
                f"{self.name} takes its fields by name, found {counted(args)} by position",
                field="payload",
                hint=f"its fields are {', '.join(self._fields)}",
            )
        payload = encode_object(dict(kwargs))
        self.check_stored(payload)
        return payload

    @property
    def _fields(self) -> list[str]:
        """As payloads call them."""
        return [field.alias or name for name, field in self.model.model_fields.items()]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the model."""
        return schema_of(self.model)

    def parameters_json_cannot_hold(self) -> list[tuple[str, str]]:
        """None: a model of Pydantic is made of JSON."""
        return []

    def prepare(self) -> None:
        """The model was built when its module was imported."""


def typed_handler(
    name: str,
    function: Callable[[P], Any],
    model: type[P],
    *,
    no_retry: tuple[type[BaseException], ...] = (),
    target: Callable[[str], str | None] | None = None,
) -> Handler:
    """A handler whose payload is one model; `HandlerRefused` and errors of the kinds in *no_retry* are not retried."""
    return Handler(
        name=name,
        function=function,
        style=style_of(function, isolate=False),
        binder=ModelBinder(name, function, model),
        options=HandlerOptions(no_retry=(HandlerRefused, *no_retry)),
        target=target,
    )


_EMPTY = inspect.Parameter.empty
_NOTHING = frozenset({"{}", "null"})
_RETRY = "run it again with a payload that fits: timeball runs retry EXECUTION --payload JSON"


class SignatureBinder:
    """Binds payloads to the parameters of one function.

    What `call` needs is built when it is first used: a program that only enqueues never pays for it, and
    annotations may name what is defined further down in their module.
    """

    __slots__ = ("_call", "_function", "_is_plain", "_names", "_parameters", "_positional", "_required", "_signature")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._parameters = tuple(self._signature.parameters.values())
        self._positional = tuple(p.name for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        # Else the quick way of `encode` is not for this function.
        self._is_plain = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in self._parameters)
        self._names = frozenset(self._signature.parameters)
        self._required = frozenset(p.name for p in self._parameters if p.default is _EMPTY)
        self._call: Callable[[str], Any] | None = None

    @property
    def call(self) -> Callable[[str], Any]:
        """Call the function with a payload; `PayloadMismatch` if it does not fit."""
        if self._call is None:
            self.prepare()
            assert self._call is not None
        return self._call

    def prepare(self) -> None:
        """Build `call` now."""
        if self._call is None:
            self._call = _prepared(self._function, self._parameters)

    def check(self, payload: str) -> None:
        """`PayloadMismatch` if the payload does not fit."""
        if self._parameters or payload not in _NOTHING:
            _decode(self._function, self._parameters, _validator(self._function, self._parameters), payload)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the payload, with the defaults that JSON can say."""
        from timeball.handlers.payloads import has_schema, schema_of  # for a worker that starts, and for a catalogue

        hints = {name: hint for name, hint in _hints(self._function, self._parameters).items() if has_schema(hint)}
        schema = schema_of(_shape(self._function, self._parameters, hints))
        extra = _extra(self._parameters)
        if extra is not None and extra.name in hints:
            of_extras = schema_of(_dynamic_type(dict)[str, hints[extra.name]])
            schema["additionalProperties"] = of_extras.get("additionalProperties", True)
            schema["$defs"] = schema.get("$defs", {}) | of_extras.get("$defs", {})
        for p in self._parameters:
            field = schema.get("properties", {}).get(p.name)
            if isinstance(field, dict) and p.default is not _EMPTY and _is_json(p.default):
                field["default"] = p.default
        if not self._parameters:
            # `_call_bare` takes both.
            schema["type"] = ["object", "null"]
        return schema

    def parameters_json_cannot_hold(self) -> list[tuple[str, str]]:
        """The parameters with a class of which no value can be in a payload."""
        resolved = {p.name: _resolved(self._function, p) for p in self._parameters if p.annotation is not _EMPTY}
        return [
            (name, unknown.__qualname__)
            for name, hint in resolved.items()
            if (unknown := _class_unknown_to_pydantic(hint)) is not None
        ]

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these arguments; `InvalidInput` if the function could not be called with them."""
        values = dict(zip(self._positional, args, strict=False)) if args else {}
        if kwargs:
            values.update(kwargs)
        is_clear = self._is_plain and len(values) == len(args) + len(kwargs) and self._are_enough(values.keys())
        return encode_object(values if is_clear else self._named(args, kwargs))

    def _are_enough(self, names: Set[str]) -> bool:
        # Mostly all are given, and one comparison tells.
        return names == self._names or self._required <= names <= self._names

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            raise arguments_mismatch(self._function, self._parameters, args, kwargs) from None
        values: dict[str, Any] = {}
        for name, value in bound.items():
            is_extra = self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            for key, inner in value.items() if is_extra else ((name, value),):
                if key in values:
                    raise InvalidInput(f"{name_of(self._function)}: {key} is given twice", field=key)
                values[key] = inner
        return values


Decode = Callable[[str], dict[str, Any]]


def _prepared(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...]) -> Callable[[str], Any]:
    decode = partial(_decode, function, parameters, _validator(function, parameters))
    if not parameters:
        return partial(_call_bare, function, decode)
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
        return partial(_call_by_position, function, decode, parameters)
    return partial(_call_by_name, function, decode)


def _decode(
    function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...], validate: Decode, payload: str
) -> dict[str, Any]:
    try:
        return validate(payload)
    except ValidationError as error:
        mismatch = payload_mismatch(
            shape_of(function, parameters), payload, error, known=[p.name for p in parameters], hint=_RETRY
        )
        mismatch.is_of_call = True
        raise mismatch from None


def _call_bare(function: Callable[..., Any], decode: Decode, payload: str) -> Any:
    if payload not in _NOTHING:
        decode(payload)
    return function()


def _call_by_name(function: Callable[..., Any], decode: Decode, payload: str) -> Any:
    return function(**decode(payload))


def _call_by_position(
    function: Callable[..., Any], decode: Decode, parameters: tuple[inspect.Parameter, ...], payload: str
) -> Any:
    values = decode(payload)
    args: list[Any] = []
    takes_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            args += values.pop(p.name, ())
        elif p.kind is p.POSITIONAL_ONLY or (takes_rest and p.kind is p.POSITIONAL_OR_KEYWORD):
            args.append(values.pop(p.name, p.default))
    return function(*args, **values)


def _validator(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...]) -> Decode:
    hints = _hints(function, parameters)
    validate = TypeAdapter(_shape(function, parameters, hints)).validator.validate_json
    extra = _extra(parameters)
    if extra is None or extra.name not in hints:
        return validate
    names = frozenset(p.name for p in parameters if p is not extra)
    extras = TypeAdapter(_dynamic_type(dict)[str, hints[extra.name]])
    return partial(_validate_with_extras, validate, names, extras)


def _shape(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...], hints: Mapping[str, Any]) -> Any:
    """The arguments by name, as a type."""
    extra = _extra(parameters)
    fields = {p.name: _field(p, hints.get(p.name, Any)) for p in parameters if p is not extra}
    shape = _dynamic_type(TypedDict)(name_of(function), fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid" if extra is None else "allow")
    return shape


def _extra(parameters: tuple[inspect.Parameter, ...]) -> inspect.Parameter | None:
    return next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)


def _is_json(value: object) -> bool:
    try:
        orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return False
    return isinstance(value, None | bool | int | float | str | list | dict)


def _dynamic_type(kind: Any) -> Any:
    """A type about to be filled with what is only known at run time, which no checker can follow."""
    return kind


def _validate_with_extras(
    validate: Decode, names: frozenset[str], extras: TypeAdapter[Any], payload: str
) -> dict[str, Any]:
    values = validate(payload)
    values.update(extras.validate_python({name: value for name, value in values.items() if name not in names}))
    return values


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return NotRequired[list[hint]]
    return hint if parameter.default is _EMPTY else NotRequired[hint]


def _hints(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...]) -> dict[str, Any]:
    """The annotations that can be resolved and that Pydantic knows what to do with."""
    resolved = {p.name: _resolved(function, p) for p in parameters if p.annotation is not _EMPTY}
    return {name: hint for name, hint in resolved.items() if _is_known_to_pydantic(hint)}


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """One annotation at a time, so that one name that cannot be found does not cost the others their types."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})

    def annotated() -> None: ...

    annotated.__annotations__ = {parameter.name: parameter.annotation}
    try:
        return get_type_hints(annotated, globalns=scope, include_extras=True)[parameter.name]
    except Exception:
        return Any


def _is_known_to_pydantic(hint: Any) -> bool:
    try:
        TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return False
    return True


def _class_unknown_to_pydantic(hint: Any) -> type | None:
    """The class in an annotation that Pydantic cannot make of JSON: `Document` in `list[Document | None]`."""
    outer, parts = get_origin(hint), get_args(hint)
    if not (isinstance(hint, type) or parts) or _is_known_to_pydantic(hint):
        return None
    if outer is None:
        return cast(type, hint)
    if outer is Annotated:
        parts = parts[:1]
    elif outer not in (Union, UnionType):
        parts = (outer, *parts)
    return next((unknown for part in parts if (unknown := _class_unknown_to_pydantic(part)) is not None), None)


def style_of(function: Callable[..., Any], *, isolate: bool) -> RunStyle:
    """How a function is run. Generators are refused: what they yield would be lost."""
    inner = function.func if isinstance(function, partial) else function
    code = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise InvalidInput(f"handler {function!r} is a generator; expected a function or a coroutine function")
    if isolate:
        return RunStyle.PROCESS
    return RunStyle.COROUTINE if inspect.iscoroutinefunction(code) else RunStyle.THREAD


def is_async(handler: Handler) -> bool:
    """Whether calling the handler makes a coroutine."""
    style = handler.style
    if style is RunStyle.PROCESS:
        style = style_of(handler.function, isolate=False)
    return style is RunStyle.COROUTINE
