"""What is said of a payload, or of arguments, that do not fit a handler: every reason, and what the handler takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import ValidationError

from timeball.domain.handler import PayloadMismatch
from timeball.domain.instants import shown
from timeball.errors import InvalidInput
from timeball.misfits import read_misfits, unknown

_MOST_PROBLEMS = 5
_EMPTY = inspect.Parameter.empty


def payload_mismatch(
    name: str, payload: str, error: ValidationError, *, known: Iterable[str], hint: str, tells_found: bool = True
) -> PayloadMismatch:
    """The refusal of a payload that does not fit what is called *name*, which takes the fields in *known*."""
    problems = error.errors(include_url=False, include_input=tells_found)
    found = read_misfits(problems, _decoded(payload), "the payload", known=known, tells_found=tells_found)
    said = "; ".join(misfit.words for misfit in found[:_MOST_PROBLEMS])
    errors = [{"pointer": f"/payload{misfit.pointer}", "detail": misfit.words} for misfit in found]
    return PayloadMismatch(
        f"the payload does not fit {name}: {said}", field=errors[0]["pointer"][1:], hint=hint, errors=errors
    )


def _decoded(payload: str) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None


def arguments_misfit(
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
    found = [*_strangers(parameters, args, kwargs), *(() if is_partial else _missing(parameters, args, kwargs))]
    said = "; ".join(words for _, words in found[:_MOST_PROBLEMS])
    errors = [{"pointer": f"/payload/{name}" if name else "/payload", "detail": words} for name, words in found]
    return InvalidInput(
        f"the arguments do not fit {shape_of(function, parameters)}: {said}",
        field="payload",
        hint="give one value for each parameter that has no default, by its place or by its name",
        errors=errors,
    )


def _strangers(
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
            yield name, unknown(name, names)


def _missing(
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


class _Word(str):
    """Stands in a signature as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def shape_of(function: Callable[..., Any], parameters: tuple[inspect.Parameter, ...]) -> str:
    """A function as people know it, such as `send(to: str, copies: int = …)`. A default may be anybody's secret."""
    told = [
        p.replace(
            default=p.default if p.default is _EMPTY else _Word("…"),
            annotation=_Word(p.annotation) if isinstance(p.annotation, str) else p.annotation,
        )
        for p in parameters
    ]
    return shown(f"{name_of(function)}{inspect.Signature(told)}", 300)


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called where it is written."""
    return getattr(function, "__qualname__", None) or type(function).__name__
