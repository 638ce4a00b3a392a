"""The root of the tree, whose branches are imported when somebody asks for them: `timeball --help` needs none of their code.

What a branch says of itself before it is there stands in the table of `main`; a test compares it with the branch.
Values that need no reading are left as they are: for any other, Typer builds a Pydantic adapter, and importing Pydantic takes
longer than all the rest of `timeball next`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException


class Leaf(TyperCommand):
    """A command that reads its values quickly."""

    def get_params(self, ctx: Any) -> Any:
        """What can be typed behind it."""
        return _hastened(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """What was typed behind it."""
        with _placed(ctx):
            return super().parse_args(ctx, args)


class Noun(TyperGroup):
    """A group of commands that reads its values quickly."""

    def get_params(self, ctx: Any) -> Any:
        """What can be typed behind it."""
        return _hastened(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """What was typed behind it."""
        with _placed(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            from timeball.cli.misuse import UnknownCommand

            raise UnknownCommand(args[0], ctx)
        return super().resolve_command(ctx, args)


class Branch(TyperCommand):
    """A command that stands in the tree and has not been imported: its name, where it lives, and what it does in a sentence."""

    def __init__(self, name: str, home: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._home = home

    def load(self) -> Any:
        """The command itself: a noun, or one of several in its module."""
        module, _, attribute = self._home.partition(":")
        group = typer.main.get_group(getattr(import_module(f"timeball.cli.{module}"), attribute))
        return group if group.name == self.name else group.commands[str(self.name)]


class Tree(Noun):
    """The root: its commands are branches, until one of them is to be run or completed."""

    branches: ClassVar[Sequence[Branch]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for branch in self.branches:
            self.add_command(branch)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed, imported."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, Branch) else found, rest


def with_examples(text: str | None, examples: Sequence[str]) -> str:
    """A help text that starts with examples. `\\b` keeps the lines as they are."""
    words = inspect.cleandoc(text or "")
    if not examples:
        return words
    summary, _, rest = words.partition("\n\n")
    shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    return "\n\n".join(part for part in (summary, shown, rest) if part)


@contextmanager
def _placed(ctx: Any) -> Iterator[None]:
    """Let an error know the command that it is about; Typer forgets it for some."""
    try:
        yield
    except TyperException as error:
        if getattr(error, "ctx", ctx) is None:
            vars(error)["ctx"] = ctx
        raise


class _Unread:
    """Stands in the place of what reads the value of a parameter, and makes that one when a value has to be read."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if not _needs_reading(value, param.type_descriptor):
            return () if value is None and (param.multiple or param.nargs == -1) else value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


_UNREAD = _Unread()


def _hastened(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        # A release of Typer that keeps it elsewhere is slower, and right all the same.
        if getattr(parameter, "_runtime_param", _UNREAD) is None:
            parameter._runtime_param = _UNREAD
    return parameters


def _needs_reading(value: Any, descriptor: Any) -> bool:
    """Whether something was given, and is not yet of the kind that is wanted: a default is, and any text where text is wanted."""
    if value is None or value == ():
        return False
    return type(value) is not descriptor.annotation or descriptor.parameter_info.parser is not None
