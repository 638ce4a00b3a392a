"""The engine is wired by constructors: no part is completed by another one after it was made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import timeball

_PRODUCT = Path(timeball.__file__).parent
# An object of the standard library, which has no other way to change it.
_FOREIGN = {("outcome.py", "part.stack"), ("failure_log.py", "record.exc_text")}


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def _assigned_from_outside(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        for target in _targets(node):
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls"):
                yield ast.unparse(target)


def test_no_attribute_is_assigned_from_outside_its_class() -> None:
    files = [*(_PRODUCT / "engine").rglob("*.py"), _PRODUCT / "runtime.py"]

    found = {(path.name, name) for path in files for name in _assigned_from_outside(path)}

    assert found == _FOREIGN
