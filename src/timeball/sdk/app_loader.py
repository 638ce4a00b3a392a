"""Finding a program's `Timeball` by the reference people type: `app:tb`."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from timeball.errors import InvalidInput, TimeballError, quote_text
from timeball.sdk.app import Timeball

_EXAMPLE = "expected module:attribute, such as app:tb"


def load_app(reference: str) -> Timeball:
    """Import the module and return its `Timeball`; `app` alone will do if the module has only one.

    The current directory is looked in first. What the module itself raises while it is imported is the cause of what is
    raised here.
    """
    module_name, colon, attribute = reference.partition(":")
    if not module_name or (colon and not attribute):
        raise _not_an_app(f"the app is {reference!r}, {_EXAMPLE}")
    if module_name.endswith(".py") or "/" in module_name:
        suggested = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise _not_an_app(f"the app is {reference!r}, {_EXAMPLE}", f"write {suggested}:{attribute or 'tb'}")
    if not all(name.isidentifier() for name in module_name.split(".")):
        raise _not_an_app(f"the app is {reference!r}, {_EXAMPLE}", "write the module with dots, as Python imports it")
    module = _import(module_name)
    return _attribute_of(module, attribute) if attribute else _only_one_in(module)


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except TimeballError:
        raise  # it says itself what is wrong with what was declared
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise _not_an_app(
                f"there is no module {error.name!r}",
                f"looked in {here} and in the installed packages: start in the folder of the module, or install it",
            ) from None
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> InvalidInput:
    """The module is there, and cannot be imported."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return _not_an_app(
        f"{name} cannot be imported: {type(error).__name__}: {quote_text(said, 300)}\n{_place(error)}",
        f'correct it there; the whole stack is shown by: python -c "import {name}"',
    )


def _place(error: Exception) -> str:
    """The innermost line of the program itself, which may have called something that is not its own."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(Path.cwd()))] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}"


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
