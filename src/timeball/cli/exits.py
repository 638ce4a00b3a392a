"""How the command line ends: exit codes, and errors in three lines: what, why, what to type next."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from timeball.cli.words import harmless
from timeball.errors import (
    Conflict,
    ExecutionFailed,
    InvalidInput,
    NotAllowed,
    NotFound,
    SettingsError,
    TimeballError,
)

if TYPE_CHECKING:
    from typer.exceptions import TyperException

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


def explanation(error: TimeballError) -> Iterator[str]:
    """What went wrong, why, and what to type next."""
    what, _, rest = str(error).partition("\n")
    yield f"timeball: {what}"
    yield f"  {_why(error, rest)}"
    if not isinstance(error, Declined):
        yield f"  {_advice(error)}"


def _advice(error: TimeballError) -> str:
    # The API speaks of headers there, of which a terminal has none.
    if error.hint and error.code != "unauthenticated":
        return _as_typed(error.hint)
    return next(advice for kind, advice in _ADVICE if isinstance(error, kind))


def _as_typed(hint: str) -> str:
    """A hint that names a list of the API, as what to type in a terminal."""
    return re.sub(r" GET /api/v1/(\w+)", lambda found: f": timeball {_NOUNS.get(found[1], found[1])}", hint)


def _why(error: TimeballError, rest: str) -> str:
    facts = [rest.strip()] if rest.strip() else []
    others = [f"{each['pointer']}: {each['detail']}" for each in error.errors if each["detail"] not in str(error)]
    facts += others[:3]
    facts.append(f"{error.code}" if error.status is None else f"{error.code}, status {error.status}")
    if error.request_id is not None and error.status is not None and error.status >= 500:
        facts.append(f"request {error.request_id}")
    return "; ".join(facts)


def leave(error: TimeballError) -> int:
    """Explain an error on stderr, and say how to end."""
    _tell(explanation(error))
    return exit_code(error)


def leave_misused(error: TyperException, typed: Sequence[str] = ()) -> int:
    """The same for a command that was typed wrong."""
    from timeball.cli.misuse import misuse  # for who has mistyped something

    _tell(misuse(error, typed))
    return error.exit_code


def _tell(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stderr.write(harmless(line) + "\n")
