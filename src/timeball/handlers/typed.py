"""Handlers whose payload is one Pydantic model: checked when a job is created, and again before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from timeball.domain.handler import Handler, HandlerOptions, PayloadMismatch
from timeball.domain.json_values import encode_object
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.refusals import counted, payload_mismatch
from timeball.handlers.registry import style_of
from timeball.handlers.schemas import schema_of


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
            # What was found is not repeated: it may be a password that somebody put where it does not belong.
            raise payload_mismatch(
                self.name,
                payload,
                error,
                known=self._fields,
                hint=f"GET /api/v1/handlers/{self.name} shows what it takes",
                tells_found=False,
            ) from None

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these fields."""
        if args:
            raise InvalidInput(
                f"{self.name} takes its fields by name, found {counted(args)} by their place",
                field="payload",
                hint=f"its fields are {', '.join(self._fields)}",
            )
        payload = encode_object(dict(kwargs))
        self.check(payload)
        return payload

    @property
    def _fields(self) -> list[str]:
        """As payloads call them."""
        return [field.alias or name for name, field in self.model.model_fields.items()]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the model."""
        return schema_of(self.model)

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
