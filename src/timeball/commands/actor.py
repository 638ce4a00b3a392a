"""Who gives a command."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from timeball.store.interface import AuditEntry

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """Who gives a command, why, and from where; and whether they may write what `shell.command` runs.

    A caller that holds the database's password may do everything, so the default is an administrator. Without an *author*, this
    program is the author of what it makes.
    """

    name: str = "local"
    reason: str | None = None
    place: str | None = None
    is_administrator: bool = True
    author: str | None = None

    @property
    def entry(self) -> AuditEntry:
        return AuditEntry(self.name, self.reason, self.place)

    @property
    def created_by(self) -> str:
        """What is written on the jobs and executions that this actor makes."""
        return (self.author or this_program())[:_LONGEST]


LOCAL = Actor()


@cache
def this_program() -> str:
    """The account, the machine and the program of this process: `program:alice@web-1 shop.py`."""
    try:
        account = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as a number that has no name
        account = str(os.geteuid())
    path = Path(sys.argv[0] if sys.argv else "")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return f"program:{account}@{socket.gethostname()} {program if program not in ('', '-c', '-') else 'python'}"
