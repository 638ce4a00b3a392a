"""Finding a program's `Timeball` by the reference people type: `app:tb`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from timeball.app import Timeball
from timeball.errors import InvalidInput

_EXAMPLE = "expected module:attribute, such as app:tb"


def load_app(reference: str) -> Timeball:
    """Import the module and return its `Timeball`; `app` alone will do if the module has only one.

    The current directory is looked in first. What the module itself raises while it is imported comes through as it is.
    """
    module_name, colon, attribute = reference.partition(":")
    if not module_name or (colon and not attribute):
        raise _not_an_app(f"the app is {reference!r}, {_EXAMPLE}")
    if module_name.endswith(".py") or "/" in module_name:
        suggested = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise _not_an_app(f"the app is {reference!r}, {_EXAMPLE}", f"write {suggested}:{attribute or 'tb'}")
    module = _import(module_name)
    return _attribute_of(module, attribute) if attribute else _only_one_in(module)


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another one
        raise _not_an_app(
            f"there is no module {error.name!r}", f"looked in {here} and in the installed packages"
        ) from None


def _attribute_of(module: ModuleType, path: str) -> Timeball:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise _not_an_app(f"{module.__name__} has no attribute {path!r}", _what_there_is(module))
        found = getattr(found, name)
    if not isinstance(found, Timeball):
        kind = f"{type(found).__module__}.{type(found).__qualname__}"
        raise _not_an_app(f"{module.__name__}:{path} is a {kind}, expected a Timeball", _what_there_is(module))
    return found


def _only_one_in(module: ModuleType) -> Timeball:
    found = {id(value): value for value in vars(module).values() if isinstance(value, Timeball)}
    if len(found) != 1:
        raise _not_an_app(
            f"{module.__name__} has {len(found)} Timeballs, expected one; {_EXAMPLE}", _what_there_is(module)
        )
    return next(iter(found.values()))


def _what_there_is(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Timeball)]
    if not names:
        return f"make one in {module.__name__}: tb = Timeball()"
    return "did you mean " + " or ".join(f"{module.__name__}:{name}" for name in names) + "?"


def _not_an_app(problem: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(problem, field="app", hint=hint)
