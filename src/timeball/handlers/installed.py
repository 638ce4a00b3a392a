"""Handlers of packages that are installed beside Timeball.

A package names them as entry points of the group `timeball.handlers`; what is installed on the worker is there to be scheduled:

    [project.entry-points."timeball.handlers"]
    "acme.greet" = "acme_handlers:greet"

The name is the handler's name; what it leads to is a function, as one would declare it with `@tb.handler`, or a `Handler`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from timeball.domain.handler import Handler
from timeball.errors import InvalidInput
from timeball.handlers.registry import make_handler

GROUP = "timeball.handlers"


def installed_handlers(found: Iterable[EntryPoint] | None = None) -> tuple[Handler, ...]:
    """The handlers of all installed packages. One that cannot be loaded stops the start: its jobs would wait for ever."""
    points = entry_points(group=GROUP) if found is None else found
    return tuple(_load(point) for point in sorted(points, key=lambda point: point.name))


def installed_names() -> tuple[str, ...]:
    """The names under which installed packages bring handlers along; nothing is loaded."""
    return tuple(sorted(entry_points(group=GROUP).names))


def installed_handler(name: str) -> Handler:
    """The installed handler of that name; InvalidInput if its package is broken, or there is none."""
    points = list(entry_points(group=GROUP, name=name))
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
