"""Every handler that can be scheduled: built in, or of an installed package; with its schema and documentation.

An installed package names its handlers as entry points of the group `timeball.handlers`:

    [project.entry-points."timeball.handlers"]
    "acme.greet" = "acme_handlers:greet"

The name is the handler's name; it leads to a function, as one would declare it with `@tb.handler`, or to a `Handler`.

A payload is checked here when a job is created or changed. The payload of a handler that is not known here is not checked: a worker may
have that handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from timeball.domain.handler import Handler, HandlerOptions
from timeball.domain.handler_contract import HandlerContract, example_of, first_sentence
from timeball.errors import InvalidInput
from timeball.handlers.binding import ModelBinder
from timeball.handlers.registry import make_handler

ENTRY_POINT_GROUP = "timeball.handlers"


def installed_handlers(found: Iterable[EntryPoint] | None = None) -> tuple[Handler, ...]:
    """The handlers of all installed packages. One that cannot be loaded stops the start: its jobs would wait for ever."""
    points = entry_points(group=ENTRY_POINT_GROUP) if found is None else found
    return tuple(_load(point) for point in sorted(points, key=lambda point: point.name))


def installed_names() -> tuple[str, ...]:
    """The names under which installed packages bring handlers along; nothing is loaded."""
    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP).names))


def installed_handler(name: str) -> Handler:
    """The installed handler of that name; InvalidInput if its package is broken, or there is none."""
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        raise InvalidInput(f"no installed package brings a handler {name}", field="handler")
    return _load(points[0])


def _load(point: EntryPoint) -> Handler:
    try:
        loaded: Any = point.load()
    except (Exception, SystemExit) as error:
        # SystemExit too: a package that wants to end the process ends only its own part in it.
        raise InvalidInput(
            f"handler {point.name} of {_package(point)} cannot be loaded from {point.value}: {error!r}",
            hint="repair or uninstall the package",
        ) from error
    if isinstance(loaded, Handler):
        return replace(loaded, name=point.name)
    if not callable(loaded):
        raise InvalidInput(
            f"handler {point.name} of {_package(point)} is {type(loaded).__name__}, expected a function or a Handler"
        )
    return make_handler(loaded, name=point.name)


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


_LONGEST_DOC = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDescription:
    """A handler as people choose it: a sentence, the JSON Schema of its payload, an example, and how it runs."""

    name: str
    description: str
    run_style: str
    payload_schema: dict[str, Any]
    example: Any
    is_enabled_here: bool


class HandlerCollection(Protocol):
    """Handlers, by name and one after the other."""

    def find(self, name: str) -> Handler | None: ...

    def __iter__(self) -> Iterator[Handler]: ...


class HandlerCatalogue:
    """The handlers that this process knows: the built-in ones (*known*), of which *enabled* may run here, and the installed ones."""

    def __init__(self, known: HandlerCollection, enabled: Iterable[str]) -> None:
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
        # Read once: it opens a file of every installed package, ten milliseconds that each enqueue would pay.
        return frozenset(installed_names())

    def knows(self, name: str) -> bool:
        """Whether it is built in or of an installed package."""
        return self.find(name) is not None

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Raises `PayloadMismatch` for a payload that does not fit the published schema of a handler."""
        from timeball.handlers.payloads import check_payload  # a program that only enqueues needs none

        check_payload(schema, name, payload)

    def checker(self, name: str) -> Callable[[str], object] | None:
        """A function that refuses payloads which this handler could never accept."""
        handler = self.find(name)
        return handler.binder.check if handler is not None and isinstance(handler.binder, ModelBinder) else None

    def entries(self) -> list[HandlerDescription]:
        """All handlers, by name."""
        installed = filter(None, (self._find_installed(name) for name in self._installed_names))
        handlers = sorted([*self._known, *installed], key=lambda handler: handler.name)
        return [entry_of(handler, is_enabled=self._is_enabled(handler.name)) for handler in handlers]

    def _is_enabled(self, name: str) -> bool:
        return name in self._enabled or self._known.find(name) is None


def entry_of(handler: Handler, *, is_enabled: bool = True) -> HandlerDescription:
    """A handler as the catalogue shows it."""
    schema = handler.binder.schema()
    return HandlerDescription(
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


def contract_of(handler: Handler) -> HandlerContract:
    """What a worker publishes of a handler."""
    usual, given = inherited_options(HandlerOptions()), inherited_options(handler.options)
    return HandlerContract(
        name=handler.name,
        schema=handler.binder.schema(),
        options={name: value for name, value in given.items() if value != usual[name]},
        doc=_doc(handler)[:_LONGEST_DOC].replace("\0", ""),
        run_style=handler.style.value,
    )


def inherited_options(options: HandlerOptions) -> dict[str, Any]:
    """What a handler gives to its jobs, as JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.job_fields().items()}
