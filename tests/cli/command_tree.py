"""The tree of commands as its help shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from timeball.cli.app import app
from timeball.cli.tree import LazyCommand


def all_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and noun, with the words that lead to it."""
    yield from _below((), typer.main.get_command(app))


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    whole = command.load() if isinstance(command, LazyCommand) else command
    yield path, whole
    for name, child in getattr(whole, "commands", {}).items():
        yield from _below((*path, name), child)


def all_branches() -> list[LazyCommand]:
    """The commands of the root as its help lists them, before they are imported."""
    root: Any = typer.main.get_command(app)
    return list(root.commands.values())


def examples_of(command: Any) -> list[str]:
    """The command lines in a help text."""
    _, marker, rest = (command.help or "").partition("Examples:\n")
    block = rest.split("\n\n")[0] if marker else ""
    return [re.sub(r" {3,}.*", "", line.strip()) for line in block.splitlines() if line.strip().startswith("timeball ")]


def all_examples() -> list[str]:
    """Every example once, in the order of the tree."""
    return list(dict.fromkeys(example for _, command in all_commands() for example in examples_of(command)))
