"""Every command that Timeball tells people to type is one that it takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import timeball
from timeball.cli.app import app
from timeball.cli.tree import LazyCommand

SOURCES = Path(timeball.__file__).parent
# A command stands alone in its text, or behind a colon at the end of a sentence.
COMMAND = re.compile(r"(?:^|: )(timeball [a-z][^`;\n]*?)(?:[;\n`].*)?$", re.DOTALL)
# Whatever is filled in: it is read as a name, and as a number.
FILLED_IN = "7"


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in a module, but for docstrings, with what is filled in replaced."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | docs:
            yield node.lineno, node.value


def advised() -> list[Any]:
    """Every command in the gates, in the doctor's lines and in the hints of errors."""
    found: list[Any] = []
    for folder in ("domain", "insights", "commands", "handlers", "store", "engine", "api"):
        for file in sorted((SOURCES / folder).rglob("*.py")):
            for line, text in texts(ast.parse(file.read_text(encoding="utf-8"))):
                if match := COMMAND.search(text):
                    place = f"{file.relative_to(SOURCES)}:{line}"
                    found.append(pytest.param(match[1].strip(), id=f"{place} {match[1].strip()}"))
    return found


def parse(command: str) -> None:
    """Read a command as the command line does, and do not run it."""
    _, *words = shlex.split(command)
    found: Any = typer.main.get_command(app)
    context: Any = None
    while True:
        context = found.make_context(found.name, words, parent=context)
        if not hasattr(found, "commands"):
            return
        words = [*context._protected_args, *context.args]
        if not words:
            return
        _, found, words = found.resolve_command(context, words)
        found = found.load() if isinstance(found, LazyCommand) else found


@pytest.mark.parametrize("command", advised())
def test_what_people_are_told_to_type_can_be_typed(command: str) -> None:
    parse(command)


def test_the_gates_and_the_doctor_are_among_what_is_read() -> None:
    commands = {str(one.values[0]) for one in advised()}

    assert {"timeball jobs edit 7 --set max_running=7", "timeball jobs edit 7 --set ends_at=null"} <= commands
    assert {"timeball queues limit 7 7", "timeball handlers show 7", "timeball db migrate"} <= commands


@pytest.mark.parametrize(
    "wrong", ["timeball jobs edit nightly --max-running 2", "timeball jobs trigger", "timeball frob"]
)
def test_a_command_that_does_not_exist_is_noticed(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|missing|unknown|is no|frob"):
        parse(wrong)
