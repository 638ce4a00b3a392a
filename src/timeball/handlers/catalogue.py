"""What there is to be scheduled: every handler of the box and of installed packages, with what it takes.

A payload is checked here when a job is created or changed. A handler that is nobody's here is left alone: a worker may
have it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

from pydantic import (
    BaseModel,
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
)

from timeball.domain.handler import Handler
from timeball.errors import InvalidInput
from timeball.handlers.installed import installed_handler, installed_names
from timeball.handlers.typed import ModelBinder


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEntry:
    """A handler as people choose it: a sentence, the JSON Schema of its payload, an example, and how it runs."""

    name: str
    description: str
    run_style: str
    payload_schema: dict[str, Any]
    example: Any
    is_enabled_here: bool


class Known(Protocol):
    """Handlers, by name and one after the other."""

    def find(self, name: str) -> Handler | None: ...

    def __iter__(self) -> Iterator[Handler]: ...


class Catalogue:
    """The handlers of this process: *known* in the box, of which *enabled* may run here; and the installed ones."""

    def __init__(self, known: Known, enabled: Iterable[str]) -> None:
        self._known = known
        self._enabled = frozenset(enabled)
        self._installed: dict[str, Handler | None] = {}

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if it is known here."""
        return self._known.find(name) or self._find_installed(name)

    def _find_installed(self, name: str) -> Handler | None:
        if name not in self._installed and name in self._installed_names:
            try:
                self._installed[name] = installed_handler(name)
            except InvalidInput:
                # A package that is broken here may be whole on the workers.
                self._installed[name] = None
        return self._installed.get(name)

    @cached_property
    def _installed_names(self) -> frozenset[str]:
        # Once: it reads a file of every package there is, ten milliseconds that each enqueue would pay.
        return frozenset(installed_names())

    def checker(self, name: str) -> Callable[[str], object] | None:
        """What refuses a payload that this handler could never take."""
        handler = self.find(name)
        return handler.binder.check if handler is not None and isinstance(handler.binder, ModelBinder) else None

    def entries(self) -> list[HandlerEntry]:
        """All handlers, by name."""
        installed = filter(None, (self._find_installed(name) for name in self._installed_names))
        handlers = sorted([*self._known, *installed], key=lambda handler: handler.name)
        return [entry_of(handler, is_enabled=self._is_enabled(handler.name)) for handler in handlers]

    def _is_enabled(self, name: str) -> bool:
        return name in self._enabled or self._known.find(name) is None


def entry_of(handler: Handler, *, is_enabled: bool = True) -> HandlerEntry:
    """A handler as the catalogue shows it."""
    schema = _schema(handler)
    return HandlerEntry(
        name=handler.name,
        description=_description(handler),
        run_style=handler.style.value,
        payload_schema=schema,
        example=_example(schema),
        is_enabled_here=is_enabled,
    )


def _description(handler: Handler) -> str:
    function: Any = handler.function
    text = inspect.getdoc(function if inspect.isroutine(function) else type(function)) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    # Once: it takes Pydantic longer than all the rest of an answer.
    return model.model_json_schema()


def _schema(handler: Handler) -> dict[str, Any]:
    if isinstance(handler.binder, ModelBinder):
        model: type[BaseModel] = handler.binder.model
        return _schema_of(model)
    function: Any = handler.function
    try:
        schema = TypeAdapter(function).json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError, NameError):
        # Its annotations mean nothing to Pydantic; the binder lets such arguments through as they are.
        return {"type": "object"}
    return schema if schema.get("type") == "object" else {"type": "object"}


def _example(schema: dict[str, Any]) -> Any:
    """The example of the model, or one made of its fields' examples and defaults."""
    if schema.get("examples"):
        return schema["examples"][0]
    fields = {name: _example_of_field(field) for name, field in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return {name: value for name, value in fields.items() if value is not None or name in required}


def _example_of_field(field: dict[str, Any]) -> Any:
    found = field.get("examples", [field.get("default")])[0]
    return _PLACEHOLDERS.get(field.get("type", "")) if found is None else found


_PLACEHOLDERS: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "array": [], "object": {}}
