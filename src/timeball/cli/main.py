"""`timeball`: where the command line begins.

A node lives for weeks, and is mostly asked for in a word or two: `timeball worker app:tb`. Then it is started without the tree of
commands, which would stay in its memory and never be used again: 1.5 of the forty megabytes that an idle worker has for itself.
Whatever else is typed goes by the tree.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from timeball.cli.exits import INTERRUPTED, OK, leave
from timeball.errors import TimeballError


def main() -> None:
    """The entry point."""
    # The program may lie in the folder one is in.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run(sys.argv[1:]))


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
