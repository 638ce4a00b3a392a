"""What the handlers of a program will stumble over, as far as their code tells it: `timeball check app:tb` prints it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

from timeball.domain.handler import Handler, RunStyle

_HTTP_VERBS: Final = ("get", "post", "put", "patch", "delete", "head", "options", "request")
# Calls that hold up the event loop, and with it all other coroutines of the worker.
_BLOCKING: Final = {
    "time": ("sleep",),
    "os": ("system", "wait", "waitpid"),
    "subprocess": ("run", "call", "check_call", "check_output", "getoutput"),
    "socket": ("create_connection",),
    "urllib.request": ("urlopen", "urlretrieve"),
    "requests": _HTTP_VERBS,
    "httpx": _HTTP_VERBS,
    "psycopg": ("connect",),
    "psycopg2": ("connect",),
    "sqlite3": ("connect",),
}


def lint_handler(handler: Handler) -> Iterator[str]:
    """Each thing that is wrong with a handler, in a sentence that says what to do."""
    for name, kind in handler.binder.parameters_json_cannot_hold():
        yield (
            f"its parameter {name} takes a {kind}, which JSON cannot hold: an enqueue with one will be refused; "
            "pass its id, and load it in the handler"
        )
    if handler.ignores_timeouts:
        yield (
            "its timeout ends nothing: a plain function learns of it by current.cancelled alone; add interrupt=True, which raises "
            "timeball.TimedOut in its thread, or isolate=True, or make it a coroutine function"
        )
    if handler.style is RunStyle.COROUTINE:
        for call, line in _blocking_calls(inspect.unwrap(handler.function)):
            yield (
                f"line {line}: {call}() blocks the event loop of the worker; await its asynchronous counterpart, "
                f"await asyncio.to_thread({call}, ...), or make the handler a plain function"
            )


def _blocking_calls(function: Callable[..., Any]) -> Iterator[tuple[str, int]]:
    """The calls that block in the body of a coroutine function, each with its line in the file."""
    try:
        lines, first = inspect.getsourcelines(function)
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return  # made at run time, or not in a file
    scope = {**getattr(function, "__globals__", {}), **inspect.getclosurevars(function).nonlocals}
    blocking = {
        id(getattr(module, name))
        for module_name, names in _BLOCKING.items()
        if (module := sys.modules.get(module_name)) is not None
        for name in names
        if hasattr(module, name)
    }
    for node in _own_nodes(definition):
        if isinstance(node, ast.Import | ast.ImportFrom):
            scope |= _imported(node)
        elif isinstance(node, ast.Call) and id(_resolved(node.func, scope)) in blocking:
            yield ast.unparse(node.func), first + node.lineno - 1


def _own_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function in the order of its text, without functions inside it: those may run in a thread."""
    for node in ast.iter_child_nodes(definition):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, Any]:
    """The names that an import inside a function binds, as far as the modules are loaded."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: sys.modules.get(
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            for alias in node.names
        }
    module = sys.modules.get(node.module or "")
    return {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}


def _resolved(node: ast.expr, scope: dict[str, Any]) -> Any:
    """What a name with dots means where the function is defined; None if that cannot be told."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, scope)
        return getattr(owner, node.attr, None) if inspect.ismodule(owner) else None
    return None
