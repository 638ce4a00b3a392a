"""`timeball`: where the command line begins.

A node lives for weeks, and is mostly asked for in a word or two: `timeball worker app:tb`. Then it is started without the tree of
commands, which would stay in its memory and never be used again: 1.5 of the forty megabytes that an idle worker has for itself.
Whatever else is typed goes by the tree.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from timeball.cli.exits import INTERRUPTED, OK, leave
from timeball.errors import TimeballError


def main() -> None:
    """The entry point."""
    bear_with_encodings()
    # The program may lie in the folder one is in.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run(sys.argv[1:]))


# What tables, charts and sentences are drawn with, for an encoding that lacks it; any other character becomes a question mark.
_STAND_INS = dict(zip("─│├└┴╳►→●•·–«»✓✗µ▁▂▃▄▅▆▇█", "-||++X>>**.-<>+xu__--==##", strict=True)) | {"…": "...", "±": "+-"}


def bear_with_encodings() -> None:
    """Let what is printed be legible, and no error, where the encoding of standard output lacks a character of it."""
    codecs.register_error("timeball", _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="timeball")


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_STAND_INS.get(char, "?") for char in error.object[error.start : error.end]), error.end


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code. Whatever is wrong is told in three lines, without a stack."""
    try:
        if _is_plain_node(arguments):
            return _run_node(*arguments)
        from timeball.cli.root import run_command

        return run_command(arguments)
    except TimeballError as error:
        return leave(error)


def _is_plain_node(arguments: Sequence[str]) -> bool:
    """Whether it is a worker or a scheduler without any option, and no shell that asks how the line could go on."""
    kind, *rest = arguments or [""]
    is_named = len(rest) < 2 and all(each and not each.startswith("-") for each in rest)
    return kind in ("worker", "scheduler") and is_named and "_TIMEBALL_COMPLETE" not in os.environ


def _run_node(kind: str, reference: str | None = None) -> int:
    from timeball.cli.nodes import run_nodes

    try:
        run_nodes(reference, with_worker=kind == "worker", with_scheduler=kind == "scheduler")
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK
