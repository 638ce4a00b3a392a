"""What there is to be scheduled: every handler of the box and of installed packages, with what it takes.

A payload is checked here when a job is created or changed. A handler that is nobody's here is left alone: a worker may
have it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from timeball.domain.contract import OPTION_FIELDS, Contract, example_of, first_sentence
from timeball.domain.handler import Handler, HandlerOptions
from timeball.errors import InvalidInput
from timeball.handlers.installed import installed_handler, installed_names
from timeball.handlers.typed import ModelBinder

_LONGEST_DOC = 10_000


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

    def knows(self, name: str) -> bool:
        """Whether it is in the box or of an installed package."""
        return self.find(name) is not None

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Raises `PayloadMismatch` for a payload that does not fit the published schema of a handler."""
        from timeball.handlers.schemas import check_payload  # a program that only enqueues needs none

        check_payload(schema, name, payload)

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
    schema = handler.binder.schema()
    return HandlerEntry(
        name=handler.name,
        description=_description(handler),
        run_style=handler.style.value,
        payload_schema=schema,
        example=example_of(schema),
        is_enabled_here=is_enabled,
    )


def _description(handler: Handler) -> str:
    return first_sentence(_doc(handler))


def _doc(handler: Handler) -> str:
    function: Any = handler.function
    return inspect.getdoc(function if inspect.isroutine(function) else type(function)) or ""


def contract_of(handler: Handler) -> Contract:
    """What a worker publishes of a handler."""
    usual, given = inherited_options(HandlerOptions()), inherited_options(handler.options)
    return Contract(
        name=handler.name,
        schema=handler.binder.schema(),
        options={name: value for name, value in given.items() if value != usual[name]},
        doc=_doc(handler)[:_LONGEST_DOC].replace("\0", ""),
        run_style=handler.style.value,
    )


def inherited_options(options: HandlerOptions) -> dict[str, Any]:
    """What a handler gives to its jobs, as JSON."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in OPTION_FIELDS
        for value in [getattr(options, name)]
    }
