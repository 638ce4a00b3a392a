"""Which executions a test means: by their handler, and by some or all of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from timeball.domain.json_values import encode_object
from timeball.errors import InvalidInput
from timeball.handlers.refusals import arguments_misfit
from timeball.handles import Call, HandlerHandle

HandlerLike = HandlerHandle[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A handler's name, and the arguments that matter; *defaults* stand for those that were not stored."""

    handler: str
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False

    def fits(self, handler: str, payload: Any) -> bool:
        """Whether an execution of *handler* with this payload is meant."""
        if handler != self.handler:
            return False
        if self.is_whole:
            return bool(payload == self.arguments)
        known = {**self.defaults, **payload}
        return all(name in known and known[name] == value for name, value in self.arguments.items())

    def __str__(self) -> str:
        return spelt(self.handler, self.arguments)


def spelt(handler: str, payload: Any) -> str:
    """A call as people write it."""
    if not isinstance(payload, dict):
        return f"{handler}({payload!r})"
    return f"{handler}({', '.join(f'{name}={value!r}' for name, value in payload.items())})"


def wanted(
    handler: HandlerLike | Call[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Wanted:
    """What a test means by a handler and arguments, or by a call such as `send.call(42, to="x")`."""
    given = kwargs or {}
    if isinstance(handler, Call):
        _refuse(bool(args or given), f"a call of {handler.handler} has its arguments already")
        return Wanted(handler=handler.handler, arguments=orjson.loads(handler.payload), is_whole=True)
    if isinstance(handler, str):
        _refuse(bool(args), f"arguments of {handler!r} need names: its parameters are not known by its name alone")
        return Wanted(handler=handler, arguments=_as_stored(given))
    function = handler.handler.function
    return Wanted(
        handler=handler.name, arguments=_as_stored(_named(function, args, given)), defaults=_defaults(function)
    )


def name_of(handler: HandlerLike) -> str:
    """The name of a handler, however it is given."""
    return handler if isinstance(handler, str) else handler.name


def _named(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        parameters = tuple(signature.parameters.values())
        raise arguments_misfit(function, parameters, args, kwargs, is_partial=True) from None
    extra = {p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD}
    own = {name: value for name, value in bound.items() if name not in extra}
    return own | {key: value for name in extra for key, value in bound.get(name, {}).items()}


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: _stored_default(p.default) for p in parameters if p.default is not p.empty}


def _stored_default(value: Any) -> Any:
    """A default may be anything, even what no payload could hold: then nothing equals it."""
    try:
        return _as_stored({"value": value})["value"]
    except InvalidInput:
        return value


def _as_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    stored: dict[str, Any] = orjson.loads(encode_object(dict(values)))
    return stored


def _refuse(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise InvalidInput(message)
