"""What is said of a command that was typed wrong: by the name that was typed, what was found, what was expected, what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, get_args

from typer.exceptions import TyperException

from timeball.domain.instants import shown
from timeball.misfits import disappointment, unknown


class UnknownCommand(TyperException):
    """There is no command of that name where it was typed."""

    exit_code = 2

    def __init__(self, name: str, ctx: Any) -> None:
        super().__init__(f"No such command {name!r}.")
        self.name = name
        self.ctx = ctx


def misuse(error: TyperException, typed: Sequence[str]) -> Iterator[str]:
    """What is wrong with a command as it was typed, how it is typed, and what shows more."""
    words = error.format_message()
    context = getattr(error, "ctx", None)
    # A noun or program that was called alone and does nothing alone: the message is its help.
    if context is None or "\n" in words:
        yield words
        return
    yield f"timeball: {_told(error, context, typed) or f'{words[:1].lower()}{words[1:]}'}"
    yield f"  {' '.join(context.get_usage().split())}"
    yield f"  {context.command_path} --help shows examples"


def _told(error: Any, context: Any, typed: Sequence[str]) -> str | None:
    """The same in our words; None, if Typer says something that we do not know."""
    if isinstance(error, UnknownCommand):
        return "command " + unknown(shown(error.name), context.command.list_commands(context))
    if getattr(error, "param", None) is not None:
        return _of_parameter(error, typed)
    if hasattr(error, "possibilities"):
        return unknown(shown(error.option_name), _options(context))
    if hasattr(error, "option_name"):
        has_none = error.option_name in _options(context, takes_value=True)
        return f"{error.option_name} has {'no value, expected one' if has_none else 'a value, expected none'} behind it"
    if surplus := _SURPLUS.fullmatch(error.message):
        return f"found {shown(surplus[1])} at the end, expected nothing more"
    return None


_SURPLUS = re.compile(r"Got unexpected extra argument\S* \((.*)\)", re.DOTALL)


def _options(context: Any, *, takes_value: bool = False) -> list[str]:
    """The long names of all options of a command."""
    parameters = [
        each for each in context.command.get_params(context) if not (takes_value and getattr(each, "is_flag", False))
    ]
    return [name for each in parameters for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


def _of_parameter(error: Any, typed: Sequence[str]) -> str | None:
    name = _as_typed(error.param, typed)
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    problems: Any = getattr(error.__cause__, "errors", list)()
    if not problems:
        return None
    if choices := _choices(getattr(error.param, "type_descriptor", None)):
        return f'{name} is "{shown(str(problems[0]["input"]))}", expected {choices}'
    return disappointment(name, (str(error.param.name),), problems)


def _as_typed(parameter: Any, typed: Sequence[str]) -> str:
    """What an option was called, if it has several names; an argument has one for people."""
    names = [str(name) for name in parameter.opts if name.startswith("-")]
    if not names:
        return str(parameter.metavar or parameter.name).strip("[]{}")
    # The value may stand right behind it: `--limit=0`, `-n0`.
    written = [name for name in names if any(word.partition("=")[0] == name or _is_short(name, word) for word in typed)]
    return max(written or names, key=len)


def _is_short(name: str, word: str) -> bool:
    return not name.startswith("--") and not word.startswith("--") and word.startswith(name)


def _choices(descriptor: Any) -> str | None:
    annotation = getattr(descriptor, "annotation", None)
    kinds = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, Enum)]
    if not kinds:
        return None
    *most, last = [str(each.value) for each in kinds[0]]
    return f"{', '.join(most)} or {last}"
