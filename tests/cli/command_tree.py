"""The tree of commands as its help shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from timeball.cli.app import app
from timeball.cli.tree import LazyCommand


def all_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with its path."""
    yield from _descend((), typer.main.get_command(app))


def _descend(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield path, loaded
    for name, child in getattr(loaded, "commands", {}).items():
        yield from _descend((*path, name), child)


def root_commands() -> list[LazyCommand]:
    """The commands that `timeball --help` lists, before they are imported."""
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
