"""Handlers whose payload is one Pydantic model: checked when a job is created, and again before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from timeball.domain.handler import Handler, HandlerOptions, PayloadMismatch
from timeball.domain.json_values import encode_object
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.registry import style_of
from timeball.misfits import read_misfits

_MOST_PROBLEMS = 5


class Refused(TimeballError):
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
    def invoke(self) -> Callable[[str], Any]:
        """Call the function with a payload; `PayloadMismatch` if it does not fit."""
        return self._invoke

    def _invoke(self, payload: str) -> Any:
        return self._function(self.check(payload))

    def check(self, payload: str) -> P:
        """The payload as its model; `PayloadMismatch` says which fields do not fit."""
        try:
            return self.model.model_validate_json(payload)
        except ValidationError as error:
            raise _mismatch(self.name, payload, self.model, error) from None

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these fields."""
        if args:
            raise InvalidInput(f"{self.name} takes its fields by name", field="payload")
        payload = encode_object(dict(kwargs))
        self.check(payload)
        return payload

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
    """A handler of that name; what is `Refused`, and errors of the kinds in *no_retry*, are not tried again."""
    return Handler(
        name=name,
        function=function,
        style=style_of(function, isolate=False),
        binder=ModelBinder(name, function, model),
        options=HandlerOptions(no_retry=(Refused, *no_retry)),
        target=target,
    )


def _mismatch(name: str, payload: str, model: type[Payload], error: ValidationError) -> PayloadMismatch:
    # What was found is not repeated: it may be a password that somebody put where it does not belong.
    problems = error.errors(include_url=False, include_input=False)
    found = read_misfits(problems, _decoded(payload), "the payload", known=model.model_fields, tells_found=False)
    said = "; ".join(misfit.words for misfit in found[:_MOST_PROBLEMS])
    errors = [{"pointer": f"/payload{misfit.pointer}", "detail": misfit.words} for misfit in found]
    return PayloadMismatch(
        f"the payload does not fit {name}: {said}",
        field=errors[0]["pointer"][1:],
        hint=f"GET /api/v1/handlers/{name} shows what it takes",
        errors=errors,
    )


def _decoded(payload: str) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
