"""Finds the `Timeball` of a program by its reference on the command line: `app:tb`."""

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

    The current directory comes before the installed packages. An error that the module raises while it is imported is the cause of
    the error raised here.
    """
    module_name, colon, attribute = reference.partition(":")
    if not module_name or (colon and not attribute):
        raise _not_an_app(f'the app is "{quote_text(reference)}", {_EXAMPLE}')
    if module_name.endswith(".py") or "/" in module_name:
        suggested = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise _not_an_app(f'the app is "{quote_text(reference)}", {_EXAMPLE}', f"write {suggested}:{attribute or 'tb'}")
    if not all(name.isidentifier() for name in module_name.split(".")):
        raise _not_an_app(
            f'the app is "{quote_text(reference)}", {_EXAMPLE}', "write the module with dots, as Python imports it"
        )
    module = _import(module_name)
    return _attribute_of(module, attribute) if attribute else _only_one_in(module)


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except TimeballError:
        raise  # its message names the wrong declaration already
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise _not_an_app(
                f"there is no module {error.name!r}",
                f"looked in {here} and in the installed packages: start in the folder of the module, or install it",
            ) from None
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> InvalidInput:
    """The error for a module that exists and cannot be imported."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return _not_an_app(
        f"{name} cannot be imported: {type(error).__name__}: {quote_text(message, 300)}\n{_place(error)}",
        f'correct it there; the whole stack is shown by: python -c "import {name}"',
    )


def _place(error: Exception) -> str:
    """The innermost line of the program itself; the error may come from a package that it calls."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(Path.cwd()))] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}"


def _attribute_of(module: ModuleType, path: str) -> Timeball:
    value: Any = module
    for name in path.split("."):
        if not hasattr(value, name):
            raise _not_an_app(f"{module.__name__} has no attribute {path!r}", _suggestion(module))
        value = getattr(value, name)
    if not isinstance(value, Timeball):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise _not_an_app(f"{module.__name__}:{path} is a {kind}, expected a Timeball", _suggestion(module))
    return value


def _only_one_in(module: ModuleType) -> Timeball:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, Timeball)}
    if len(apps) != 1:
        raise _not_an_app(f"{module.__name__} has {len(apps)} Timeballs, expected one; {_EXAMPLE}", _suggestion(module))
    return next(iter(apps.values()))


def _suggestion(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Timeball)]
    if not names:
        return f"make one in {module.__name__}: tb = Timeball()"
    return "did you mean " + " or ".join(f"{module.__name__}:{name}" for name in names) + "?"


def _not_an_app(problem: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(problem, field="app", hint=hint)
