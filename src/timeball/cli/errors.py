"""Exit codes, and the messages for failed and mistyped commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, get_args

from typer.exceptions import TyperException

from timeball.cli.formatting import printable
from timeball.domain.values.field_errors import (
    describe_mismatch,
    describe_problems,
    describe_unknown_name,
    describe_value,
    list_choices,
)
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

# How the command line ends: exit codes, and errors in three lines: what, why, what to type next.

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
    (SettingsError, "change what is named above; then: timeball check"),
    (NotAllowed, "set TIMEBALL_API_KEY to a key with the right role; timeball keys create makes one"),
    (InvalidInput, "the command with --help shows examples"),
    (NotFound, "look for it with: timeball jobs, or: timeball runs"),
    (Conflict, "look at it again, then try again"),
    (TimeballError, "timeball check says whether settings and database are in order"),
)


# What the API calls otherwise, or what has no noun of its own.
_NOUNS = {"executions": "runs", "operations": "runs"}


class Declined(TimeballError):
    """Somebody was asked, and said no."""

    code = "declined"


def exit_code(error: TimeballError) -> int:
    """The exit code that an error ends with."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def error_lines(error: TimeballError) -> Iterator[str]:
    """What went wrong, why, and what to type next."""
    what, _, rest = str(error).partition("\n")
    yield f"timeball: {what}"
    yield f"  {_details(error, rest)}"
    if not isinstance(error, Declined):
        yield f"  {_advice(error)}"


def _advice(error: TimeballError) -> str:
    # The API speaks of headers there, of which a terminal has none.
    if error.hint and error.code != "unauthenticated":
        return _as_command(error.hint)
    return next(advice for kind, advice in _ADVICE if isinstance(error, kind))


def _as_command(hint: str) -> str:
    """A hint that names a list of the API, as what to type in a terminal."""
    return re.sub(r" GET /api/v1/(\w+)", lambda found: f": timeball {_NOUNS.get(found[1], found[1])}", hint)


def _details(error: TimeballError, rest: str) -> str:
    facts = [rest.strip()] if rest.strip() else []
    others = [f"{each['pointer']}: {each['detail']}" for each in error.errors if each["detail"] not in str(error)]
    facts += others[:3]
    facts.append(f"{error.code}" if error.status is None else f"{error.code}, status {error.status}")
    if error.request_id is not None and error.status is not None and error.status >= 500:
        facts.append(f"request {error.request_id}")
    return "; ".join(facts)


def report_error(error: TimeballError) -> int:
    """Explain an error on stderr, and say how to end."""
    _write_lines(error_lines(error))
    return exit_code(error)


def report_usage_error(error: TyperException, typed: Sequence[str] = ()) -> int:
    """The same for a command that was typed wrong."""
    # for who has mistyped something

    _write_lines(usage_error_lines(error, typed))
    return error.exit_code


def _write_lines(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stderr.write(printable(line) + "\n")


# What is said of a command that was typed wrong: by the name that was typed, what was found, what was expected, what was meant.


class UnknownCommand(TyperException):
    """There is no command of that name where it was typed."""

    exit_code = 2

    def __init__(self, name: str, ctx: Any) -> None:
        super().__init__(f"No such command {name!r}.")
        self.name = name
        self.ctx = ctx


def usage_error_lines(error: TyperException, typed: Sequence[str]) -> Iterator[str]:
    """What is wrong with a command as it was typed, how it is typed, and what shows more."""
    words = error.format_message()
    context = getattr(error, "ctx", None)
    # A noun or program that was called alone and does nothing alone: the message is its help.
    if context is None or "\n" in words:
        yield words
        return
    yield f"timeball: {_describe(error, context, typed) or f'{words[:1].lower()}{words[1:]}'}"
    yield f"  {' '.join(context.get_usage().split())}"
    yield f"  {context.command_path} --help shows examples"


def _describe(error: Any, context: Any, typed: Sequence[str]) -> str | None:
    """The same in our words; None, if Typer says something that we do not know."""
    if isinstance(error, UnknownCommand):
        return "command " + describe_unknown_name(quote_text(error.name), context.command.list_commands(context))
    if getattr(error, "param", None) is not None:
        return _describe_parameter(error, typed)
    if hasattr(error, "possibilities"):
        return describe_unknown_name(quote_text(error.option_name), _options(context))
    if hasattr(error, "option_name"):
        has_none = error.option_name in _options(context, takes_value=True)
        return f"{error.option_name} has {'no value, expected one' if has_none else 'a value, expected none'} behind it"
    if surplus := _EXTRA_ARGUMENT.fullmatch(error.message):
        return f"found {quote_text(surplus[1])} at the end, expected nothing more"
    return None


_EXTRA_ARGUMENT = re.compile(r"Got unexpected extra argument\S* \((.*)\)", re.DOTALL)


def _options(context: Any, *, takes_value: bool = False) -> list[str]:
    """The long names of all options of a command."""
    parameters = [
        each for each in context.command.get_params(context) if not (takes_value and getattr(each, "is_flag", False))
    ]
    return [name for each in parameters for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


def _describe_parameter(error: Any, typed: Sequence[str]) -> str | None:
    name = _typed_name(error.param, typed)
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    problems: Any = getattr(error.__cause__, "errors", list)()
    if not problems:
        return None
    # Typer words a wrong choice itself.
    if choices := _choices(getattr(error.param, "type_descriptor", None)):
        return describe_mismatch(name, list_choices(choices), describe_value(problems[0]["input"]))
    return describe_problems(name, (str(error.param.name),), problems)


def _typed_name(parameter: Any, typed: Sequence[str]) -> str:
    """What an option was called, if it has several names; an argument has one for people."""
    names = [str(name) for name in parameter.opts if name.startswith("-")]
    if not names:
        return str(parameter.metavar or parameter.name).strip("[]{}")
    # The value may stand right behind it: `--limit=0`, `-n0`.
    written = [name for name in names if any(word.partition("=")[0] == name or _is_short(name, word) for word in typed)]
    return max(written or names, key=len)


def _is_short(name: str, word: str) -> bool:
    return not name.startswith("--") and not word.startswith("--") and word.startswith(name)


def _choices(descriptor: Any) -> list[str]:
    annotation = getattr(descriptor, "annotation", None)
    kinds = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, Enum)]
    return [str(each.value) for each in kinds[0]] if kinds else []
