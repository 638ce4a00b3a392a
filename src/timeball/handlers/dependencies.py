"""Parameters that a run provides: `session: Annotated[Session, Depends(open_session)]`.

Such a parameter is no argument: it is not in the payload, not in the published schema, and an enqueue does not give it. When a handler
is called, each function that `Depends` names is called once, however many parameters ask for it; it may have such parameters itself.
What it opened is closed after the run, in reverse, also when the handler has raised: the rest of a generator function after its `yield`,
or the exit of a context manager that it returned. All of it happens where the handler runs, inside of the code around the run.

A program that calls the function itself gives the argument itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from timeball.domain.handler import RunStyle
from timeball.errors import InvalidInput
from timeball.handlers.binding import style_of
from timeball.handlers.hooks import hook_name
from timeball.handlers.layers import AsyncLayer, Layer

# Annotations that need not be resolved: most parameters have one of these.
_PLAIN = frozenset({"int", "str", "float", "bool", "bytes", "dict", "list", "tuple", "set", "None", "Any", "object"})
_PROVIDED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Depends:
    """Says in an annotation what provides the parameter: a function, a generator function, or what returns a context manager."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidInput(
                f"Depends was given {function!r}, expected a function",
                field="Depends",
                hint="give the function itself, without calling it: Depends(open_session)",
            )
        self.function = function

    def __repr__(self) -> str:
        return f"Depends({hook_name(self.function)})"


@dataclass(frozen=True, slots=True)
class _Provider:
    """A function that provides a value, and what it needs itself."""

    function: Callable[..., Any]
    needs: Mapping[str, _Provider]

    @property
    def is_async(self) -> bool:
        """Whether it can only be used around a coroutine function."""
        code = inspect.unwrap(self.function)
        own = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        return own or any(one.is_async for one in self.needs.values())


_Values = dict[Callable[..., Any], Any]


def with_dependencies(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the parameters that are provided, which it provides itself; the same function if it has none."""
    providers = _providers_of(function, ())
    if not providers:
        return function
    if style_of(function, isolate=False) is RunStyle.COROUTINE:
        call = _providing_async(function, providers)
    else:
        for name, provider in providers.items():
            if provider.is_async:
                raise InvalidInput(
                    f"{name} of {hook_name(function)} depends on {hook_name(provider.function)}, which is async, "
                    "and the function is a plain one",
                    field=name,
                    hint="make the handler a coroutine function, or what provides it a plain function",
                )
        call = _providing(function, providers)
    signature = inspect.signature(function)
    left = [parameter for parameter in signature.parameters.values() if parameter.name not in providers]
    call.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return call


def _providing(function: Callable[..., Any], providers: Mapping[str, _Provider]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        with ExitStack() as stack:
            opened: _Values = {}
            for name, provider in providers.items():
                values[name] = _open(provider, stack, opened)
            return function(*args, **values)

    return call


def _providing_async(function: Callable[..., Any], providers: Mapping[str, _Provider]) -> Callable[..., Any]:
    @wraps(function)
    async def call(*args: Any, **values: Any) -> Any:
        async with AsyncExitStack() as stack:
            opened: _Values = {}
            for name, provider in providers.items():
                values[name] = await _open_async(provider, stack, opened)
            return await function(*args, **values)

    return call


def _open(provider: _Provider, stack: ExitStack, opened: _Values) -> Any:
    if provider.function in opened:
        return opened[provider.function]
    needs = {name: _open(one, stack, opened) for name, one in provider.needs.items()}
    value = _opener(provider.function)(**needs)
    kind = type(value)
    if hasattr(kind, "__enter__"):
        value = stack.enter_context(Layer(value))
    elif hasattr(kind, "__aenter__"):
        raise InvalidInput(
            f"{hook_name(provider.function)} returned {kind.__name__}, an async context manager, around a plain function",
            field="Depends",
            hint="make the handler a coroutine function",
        )
    opened[provider.function] = value
    return value


async def _open_async(provider: _Provider, stack: AsyncExitStack, opened: _Values) -> Any:
    if provider.function in opened:
        return opened[provider.function]
    needs = {name: await _open_async(one, stack, opened) for name, one in provider.needs.items()}
    value = _opener(provider.function)(**needs)
    if inspect.iscoroutine(value):
        value = await value
    kind = type(value)
    if hasattr(kind, "__aenter__"):
        value = await stack.enter_async_context(AsyncLayer(value))
    elif hasattr(kind, "__enter__"):
        value = stack.enter_context(Layer(value))
    opened[provider.function] = value
    return value


def _opener(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function):
        return contextmanager(function)
    return asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function


# what a signature asks for


def _providers_of(function: Callable[..., Any], callers: tuple[Callable[..., Any], ...]) -> dict[str, _Provider]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # written in C: it has no annotations
    providers: dict[str, _Provider] = {}
    for parameter in parameters:
        marker = _marker_of(function, parameter)
        if marker is not None:
            if parameter.kind not in _PROVIDED_KINDS:
                raise InvalidInput(
                    f"{parameter} of {hook_name(function)} cannot be provided, expected a parameter that is given by name",
                    field=parameter.name,
                )
            providers[parameter.name] = _provider(marker.function, (*callers, function))
        elif callers and parameter.default is parameter.empty and parameter.kind in _PROVIDED_KINDS:
            raise InvalidInput(
                f"{hook_name(function)} takes {parameter.name}, which nothing provides",
                field=parameter.name,
                hint=f"give it a default, or annotate it: {parameter.name}: Annotated[..., Depends(...)]",
            )
    return providers


def _provider(function: Callable[..., Any], callers: tuple[Callable[..., Any], ...]) -> _Provider:
    if function in callers:
        circle = " -> ".join(hook_name(one) for one in (*callers[callers.index(function) :], function))
        raise InvalidInput(f"what a handler depends on depends on itself: {circle}", field="Depends")
    return _Provider(function, _providers_of(function, callers))


def _marker_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Depends | None:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = None if annotation in _PLAIN else _resolved(function, parameter, annotation)
    if get_origin(annotation) is not Annotated:
        return None
    for mark in get_args(annotation)[1:]:
        if isinstance(mark, Depends):
            return mark
        if type(mark).__name__ == Depends.__name__:
            raise InvalidInput(
                f"{parameter.name} of {hook_name(function)} has Depends of {type(mark).__module__}, expected that of timeball",
                field=parameter.name,
                hint="from timeball import Depends",
            )
    return None


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter, annotation: str) -> Any:
    def annotated() -> None: ...

    annotated.__annotations__ = {parameter.name: annotation}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(annotated, globalns=scope, include_extras=True)[parameter.name]
    except Exception as error:
        if Depends.__name__ not in annotation:
            return None  # it may name what is defined further down
        raise InvalidInput(
            f"the annotation of {parameter.name} of {hook_name(function)} cannot be read: {error}",
            field=parameter.name,
            hint="import what it names for the program that runs, not for type checkers alone, and before the function",
        ) from None
