"""Exit codes, and the messages of failed and mistyped commands.

An error has three lines: what is wrong, why, and what to type next.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, get_args

from typer.exceptions import TyperException

from timeball.cli.output import printable
from timeball.errors import (
    Conflict,
    ExecutionFailed,
    InvalidInput,
    NotAllowed,
    NotFound,
    SettingsError,
    TimeballError,
    quote_text,
)

# A worker that has drained because it had grown too large: its supervisor is to start another.
TO_BE_REPLACED = 75
OK, FAILED, USAGE, NOT_FOUND, NOT_ALLOWED, CONFLICT, RUN_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

_CODES: tuple[tuple[type[TimeballError], int], ...] = (
    (InvalidInput, USAGE),
    (NotFound, NOT_FOUND),
    (NotAllowed, NOT_ALLOWED),
    (Conflict, CONFLICT),
    (ExecutionFailed, RUN_FAILED),
)


# For errors that bring no advice of their own.
_ADVICE: tuple[tuple[type[TimeballError], str], ...] = (
    (SettingsError, "correct what is named above, then: timeball check"),
    (NotAllowed, "set TIMEBALL_API_KEY to a key with the right role; timeball keys create makes one"),
    (InvalidInput, "{command} --help shows examples"),
    (NotFound, "look for it with: timeball jobs, or: timeball runs"),
    (Conflict, "look at its current state, then try again"),
    (TimeballError, "timeball check shows whether settings and database are in order"),
)


# Lists of the API that have another name here, or none.
_NOUNS = {"executions": "runs", "operations": "runs"}


class Declined(TimeballError):
    """The question of a command was answered with no."""

    code = "declined"


def exit_code(error: TimeballError) -> int:
    """The exit code that an error ends with."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def error_lines(error: TimeballError, command: str = "timeball") -> Iterator[str]:
    """What went wrong, why, and what to type next; *command* is the one that failed."""
    what, _, rest = str(error).partition("\n")
    yield f"timeball: {what}"
    yield f"  {_details(error, rest)}"
    if not isinstance(error, Declined):
        yield f"  {_advice(error, command)}"


def _advice(error: TimeballError, command: str) -> str:
    # That hint is about HTTP headers, which a terminal has not.
    if error.hint and error.code != "unauthenticated":
        return _as_command(error.hint)
    return next(advice for kind, advice in _ADVICE if isinstance(error, kind)).replace("{command}", command)


def _as_command(hint: str) -> str:
    """A hint that names a list of the API, with the command that shows the list."""
    return re.sub(r" GET /api/v1/(\w+)", lambda match: f": timeball {_NOUNS.get(match[1], match[1])}", hint)


def _details(error: TimeballError, rest: str) -> str:
    facts = [rest.strip()] if rest.strip() else []
    others = [
        f"{problem['pointer']}: {problem['detail']}" for problem in error.errors if problem["detail"] not in str(error)
    ]
    facts += others[:3]
    facts.append(f"{error.code}" if error.status is None else f"{error.code}, status {error.status}")
    if error.request_id is not None and error.status is not None and error.status >= 500:
        facts.append(f"request {error.request_id}")
    return "; ".join(facts)


def report_error(error: TimeballError, command: str) -> int:
    """Print an error to stderr; returns the exit code."""
    _write_lines(error_lines(error, command))
    return exit_code(error)


def report_usage_error(error: TyperException, typed: Sequence[str] = ()) -> int:
    """The same for a mistyped command."""
    _write_lines(usage_error_lines(error, typed))
    return error.exit_code


def _write_lines(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stderr.write(printable(line) + "\n")


class UnknownCommand(TyperException):
    """The group has no command of this name."""

    exit_code = 2

    def __init__(self, name: str, ctx: Any) -> None:
        super().__init__(f"No such command {name!r}.")
        self.name = name
        self.ctx = ctx


def usage_error_lines(error: TyperException, typed: Sequence[str]) -> Iterator[str]:
    """What is wrong with a mistyped command, its usage, and where to find examples."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    # A group that was called without a command: the message is its help.
    if context is None or "\n" in message:
        yield message
        return
    yield f"timeball: {_describe(error, context, typed) or f'{message[:1].lower()}{message[1:]}'}"
    yield f"  {' '.join(context.get_usage().split())}"
    yield f"  {context.command_path} --help shows examples"


def _describe(error: Any, context: Any, typed: Sequence[str]) -> str | None:
    """An error of Typer in our words; None if it is one that we do not know."""
    from timeball.domain.values.field_errors import describe_unknown_name

    if isinstance(error, UnknownCommand):
        return "command " + describe_unknown_name(quote_text(error.name), context.command.list_commands(context))
    if getattr(error, "param", None) is not None:
        return _describe_parameter(error, typed)
    if hasattr(error, "possibilities"):
        return describe_unknown_name(quote_text(error.option_name), _options(context))
    if hasattr(error, "option_name"):
        needs_value = error.option_name in _options(context, takes_value=True)
        return f"{error.option_name} {'needs a value' if needs_value else 'takes no value'}"
    if extra := re.fullmatch(_EXTRA_ARGUMENT, error.message, re.DOTALL):
        return f"unexpected argument {quote_text(extra[1])}"
    return None


_EXTRA_ARGUMENT = r"Got unexpected extra argument\S* \((.*)\)"


def _options(context: Any, *, takes_value: bool = False) -> list[str]:
    """The long names of all options of a command."""
    parameters = [
        parameter
        for parameter in context.command.get_params(context)
        if not (takes_value and getattr(parameter, "is_flag", False))
    ]
    return [
        name
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    ]


def _describe_parameter(error: Any, typed: Sequence[str]) -> str | None:
    name = _typed_name(error.param, typed)
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    problems: Any = getattr(error.__cause__, "errors", list)()
    if not problems:
        return None
    from timeball.domain.values.field_errors import describe_mismatch, describe_problems, describe_value, list_choices

    # Typer words a wrong choice itself.
    if choices := _choices(getattr(error.param, "type_descriptor", None)):
        return describe_mismatch(name, list_choices(choices), describe_value(problems[0]["input"]))
    return describe_problems(name, (str(error.param.name),), problems)


def _typed_name(parameter: Any, typed: Sequence[str]) -> str:
    """The name of a parameter as it was typed, if it has several; an argument has one for people."""
    names = [str(name) for name in parameter.opts if name.startswith("-")]
    if not names:
        return str(parameter.metavar or parameter.name).strip("[]{}")
    # The value may follow directly: `--limit=0`, `-n0`.
    used = [name for name in names if any(word.partition("=")[0] == name or _is_short(name, word) for word in typed)]
    return max(used or names, key=len)


def _is_short(name: str, word: str) -> bool:
    return not name.startswith("--") and not word.startswith("--") and word.startswith(name)


def _choices(descriptor: Any) -> list[str]:
    annotation = getattr(descriptor, "annotation", None)
    enums = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, Enum)]
    words = [member.value for member in enums[0]] if enums else get_args(annotation)
    return [word for word in words if isinstance(word, str)]
